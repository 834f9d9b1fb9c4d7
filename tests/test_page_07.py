"""Page 07, its own cells on made rows."""

import numpy as np
import pandas as pd
import pytest
from pages import Page, bars, machine, of_card, rows

PAGE = Page("07_handover")
page = PAGE.module
HANDED = {"line": 100, "window": (110, 109, 113), "message": (250, 230, 270)}
HANDED |= {"collective": 430, "openmp": 700, "message from Python": 610}
HANDED["collective from Python"] = 970
# Speeds over one thread, by H, of each process where they differ.
SPEEDS = {
    "threads": {128: (0.8, 0.7, 0.75), 256: 1.4, 512: (1.8, 1.7, 1.83)},
    "openmp": {128: (0.9, 1.1, 1), 256: (0.9, 1.2, 1.3), 512: 1.6},
    "window": {128: 0.85, 256: 1.3, 512: 1.7},
    "messages": {128: 0.4, 256: 0.7, 512: (1.1, 1.2, 1.4)},
    "collective": {128: 0.3, 256: 0.6, 512: (0.9, 1.1, 1.2)},
}
RANKS = {"window", "message", "messages", "collective", "two halves"}
BARE = {"threads": 130, "openmp": 690, "window": 170, "messages": 930}
BARE["collective"] = 2300


def handed(**changed):
    """Rows of ns: 1 KiB takes eleven times as long as 8 bytes, by messages five."""
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
            took["two halves"] = one / 2 + 3.7e-6
        parts.append(rows({"one thread": one} | took, H=H, stage="forward"))
    return pd.concat(parts).assign(T=10)


def on_card():
    """Of 64 and 512 units, so many milliseconds; the CPU takes longer at 512."""
    parts = []
    for H, took in ((64, (6, 3, 1)), (512, (40, 5, 10))):
        times = dict(zip(page.RUNS, np.array(took) / 1e3, strict=True))
        parts.append(of_card("units", "inference", times, H=H))
    return pd.concat(parts)


def made(without=(), handing=None, line=(1.7e-7, 1.9e-7, 2.3e-7), **ways):
    """Rows of a job; `without`: cases that are not there, where no jobs run."""
    means = pd.concat([handed(**(handing or {})), passed(**ways)])
    cases = means["case"].str.removesuffix(page.handover.BARE)
    left = ~cases.str.removesuffix(" from Python").isin(without)
    return {
        "measure_means": means[left],
        "measure_machine": machine(line=line).dropna(subset="seconds"),
        "gpu": on_card(),
    }


CASES = {
    "as expected": (
        made(),
        "TTT",
        "A cache line takes 170 ns (115 to 380) to the other",
        "(2.5x (2.3x to 2.7x) as long as a line, 2.27x (2.11x to 2.39x) as long as a w",
        "Sharing pays from H = 256 in memory, 512 by messages",
        "ranks, messages: 512; ranks, collective: none",
        "H = 128: 2.12x (2.12x to 2.12x); H = 256: 1.86x",
        "which take a core at least 1.31 \N{MICRO SIGN}s: 7.71 hand",
        "| threads, counters | 130 ns (65 to 260) |",
        "| ranks, window | 170 ns (85 to 340) | 2150 ns (1080 to 4310) | 256 |",
        "takes 0.357x (0.329x to 0.386x) as long as an OpenMP region",
        "| 64 | 6 | 3 | 1 |",
    ),
    "no jobs, no OpenMP, one core": (
        made(without=RANKS | {"openmp"}, line=np.nan),
        "--T",
        "takes a time not measured on one core to",
    ),
}
EDGES = [
    (0, 100, lambda ns: made(handing={"message": ns, "window": 90})),  # a line
    (0, 110, lambda ns: made(handing={"message": ns, "window": 110})),
    (1, 0.4, lambda speed: made(window={128: speed})),  # by messages
    (1, 0.7, lambda speed: made(window={256: speed})),
    (2, 1, lambda speed: made(threads={256: speed})),
    (2, 1, lambda speed: made(window={256: speed})),
]
test_page, test_edge, test_all = PAGE.tests(__file__, CASES, EDGES)


def test_a_way_pays_from_where_every_larger_size_gains():
    pays = page.pays_from(passed(threads={128: 1.2, 256: 0.9}))
    assert (pays["threads"], pays["collective"]) == (512, None)
    assert "each of two 0.25 MiB" in page.say_caches(256)


def test_what_the_figures_draw():
    page.plots.style()
    (ax,) = page.figure_hand_overs(handed()).axes
    dots = [line.get_xdata() for line in ax.lines if line.get_marker() == "o"]
    assert [dots[0], dots[4]] == [pytest.approx([1.1]), pytest.approx([6.1])]
    (ax,) = page.figure_speed(passed()).axes
    drawn = [tuple(y.get_ydata()) for y in ax.lines if y.get_marker() == "o"]
    assert pytest.approx((0.4, 0.7, 1.2)) in drawn
    assert pytest.approx((1.1, 1.4)) in bars(ax)
    assert "samples, h crosses never" in page.figure_partitions().alt
