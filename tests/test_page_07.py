"""Page 07 on synthetic rows, and what its figures draw."""

import numpy as np
import pandas as pd
import pytest
from pages import Page, bars, machine, of_card, rows

PAGE = Page("07_handover")
page = PAGE.module
ABOUT = {"cores": 13, "gpu": {"name": "Card"}}
HANDED = {"line": 100, "window": (110, 109, 113), "message": (250, 230, 270)}
HANDED |= {"openmp": 700, "message from Python": 610}  # ns
# Speeds over one thread, by H, of each process where they differ.
SPEEDS = {
    "threads": {128: (0.8, 0.7, 0.75), 256: 1.63, 512: (1.8, 1.7, 1.83)},
    "openmp": {128: (0.9, 1.1, 1.03), 256: (0.9, 1.2, 1.3), 512: 1.6},
    "window": {128: 0.85, 256: 1.57, 512: 1.7},
    "messages": {128: 0.4, 256: 0.71, 512: (1.1, 1.2, 1.45)},
}
BARE = {"threads": 130, "openmp": 690, "window": 170, "messages": 930}  # ns


def handed(**changed):
    """Rows: 1 KiB takes eleven times as long as 8 bytes, by messages five."""
    return pd.concat(
        rows({name: factor * 1e-9 * pd.Series(each)}, bytes=n, stage="hand over")
        for name, each in (HANDED | changed).items()
        for n, factor in ((0, 1), (8, 1), (1024, 5 if name == "message" else 11))
        if (n == 0) == (name == "openmp")
    )


def passed(**changed):
    """Rows of 10 steps, by one thread 2 us each of 128 units, growing as H squared."""
    parts = []
    for H in (128, 256, 512):
        one, took = 20e-6 * (H / 128) ** 2, {}
        for way, by in SPEEDS.items():
            took[way] = one / pd.Series((by | changed.get(way, {}))[H])
        if H == 256:
            took |= {f"{way} without work": 1e-8 * ns for way, ns in BARE.items()}
        parts.append(rows({"one thread": one} | took, H=H, stage="forward"))
    return pd.concat(parts).assign(T=10)


def on_card():
    """Of 64 and 512 units, so many milliseconds: a block, all blocks, the host."""
    parts = []
    for H, took in ((64, (6, 3, 1)), (512, (40, 5, 2))):
        names = "rnn", "rnn_grid", "numba-fused"
        times = dict(zip(names, np.array(took) / 1e3, strict=True))
        parts.append(of_card("units", "inference", times, H=H, T=32))
    return pd.concat(parts)


def made(without=(), handing=None, line=(1.7e-7, 1.9e-7, 2.3e-7), **ways):
    """Rows of a job; `without`: cases that are not there, where no jobs run."""
    timed = pd.concat([handed(**(handing or {})), passed(**ways)])
    cases = timed["case"].str.removesuffix(page.handover.BARE)
    left = ~cases.str.removesuffix(" from Python").isin(without)
    return {
        "measure_mechanisms": timed[left],
        "measure_machine": machine(line=line).dropna(subset="seconds"),
        "gpu": on_card(),
        "about": ABOUT,
        "rates": (1.7, 310.0),
    }


EDGES = [
    (0, 100, lambda ns: made(handing={"message": ns, "window": 90})),  # a line
    (0, 110, lambda ns: made(handing={"message": ns, "window": 110})),
    (1, 0.71, lambda speed: made(window={256: speed})),  # by messages
    (2, 1.5, lambda speed: made(threads={256: speed})),
    (2, 1.5, lambda speed: made(window={256: speed})),
]
test_text, test_edge, test_all = PAGE.approved(made(), EDGES)


def test_without_jobs_and_without_a_second_core_threads_alone_are_told():
    ranks = {"window", "message", "messages", "openmp"}
    nb = PAGE.told(**made(without=ranks, line=np.nan))
    assert nb.claims == "---"
    assert "A cache line to the other core: not measured." in nb.text


def test_what_the_figures_draw():
    page.plots.style()
    (ax,) = page.figure_mechanisms(handed()).axes
    dots = [line.get_xdata() for line in ax.lines if line.get_marker() == "o"]
    assert [dots[0], dots[3]] == [pytest.approx([1.1]), pytest.approx([6.1])]
    (ax,) = page.figure_speed(passed()).axes
    drawn = [tuple(y.get_ydata()) for y in ax.lines if y.get_marker() == "o"]
    assert pytest.approx((0.4, 0.71, 1.2)) in drawn
    assert pytest.approx((1.1, 1.45)) in bars(ax)
    assert "samples, h crosses never" in page.figure_partitions().alt
