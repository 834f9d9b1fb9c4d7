"""Page 3, the ladder on a CPU: its cells on made rows."""

import numpy as np
import pandas as pd
import pytest
from pages import Page, machine, of_card, rows

PAGE = Page("03")
page = PAGE.module
TILE, CALL = "four samples at a time", "one call a step"
# What each idea gains in the process that is neither slow nor fast: all differ.
GAINS = dict(
    zip(page.IDEAS, (97, 2, 1.9, 1.1, 2.3, 1.02, 1.05, 1.2, 1, 3.1, 1.3), strict=True)
)
LARGE = GAINS | {TILE: 2.9, CALL: 1.04, "one call an epoch": 1.01}
GROWTH = {
    "numpy, 16 samples a step": (1.0, 1.02, 1.05),
    "numpy, 8 steps": (0.7, 0.6, 0.8),
    "numba-fused, 16 samples a step": 1.0,
    "numba-fused, 8 steps": 0.9,
    "all cores, 16 samples a step": 1.01,
    "all cores, 8 steps": 0.85,
}
FIVE_EPOCHS = {"sequential": 51, "numpy-sample": 12, "numpy": 9, "cuda-v1": 102}
FIVE_EPOCHS |= {"cuda-v2": 6, "cuda-v3": 3}


def ladder(
    small=GAINS,
    large=LARGE,
    off=(1.0, 1.03),
    growth=GROWTH,
    first=(97, 87, 107),
    **whole,
):
    """Rows of `measure_ladder`. small, large: the gain of each idea; first: that of the
    first; off: the whole over the product of all gains, at either
    size; whole: how many times as long as the last rung others take.
    """
    made = []

    def add(times, part, work, **columns):
        made.append(rows(times, part=part, work=work, **columns))

    for work, gains, by in zip(
        (page.SMALL, page.LARGE), (small, large), off, strict=True
    ):
        for idea, (without, with_it) in page.IDEAS.items():
            without_it = np.array((gains | {page.FIRST: first})[idea])
            add({without: without_it, with_it: 1}, idea, work)
        rest = [np.median(gain) for gain in gains.values()][1:]
        fused = 1 / np.prod(rest) / by
        took = {"loops": 1, "numpy": 5 * fused, "numba-fused": fused}
        if work == page.SMALL:
            took |= zip(page.RUNGS[1:-1], (19, 17, 13, 11, 7), strict=True)
            took |= {name: fused * np.array(times) for name, times in whole.items()}
        add(took, "whole", work)
    for stage, share in (("forward", 0.3), ("gradients", 0.8), ("step", 1)):
        times = {rung: share * k for k, rung in enumerate(page.RUNGS, 2)}
        add(times, stage, page.SMALL)
    for N in (80, 8000):
        times = {case: (N / 80) ** np.array(power) for case, power in growth.items()}
        add(times, "size", page.SMALL, windows=N)
    return pd.concat(made)


def peers():
    """Of PyTorch 3 and 5 times the time of a step; an SGEMM at 100 GFLOP/s."""
    shapes = {(1, 32, 16): (3, 1.622016e-4), (4, 512, 64): (5, 2.147483648)}
    made = [("ceiling", None, None, None, "sgemm", 2 * 4096**3 / 1e11)]
    for shape, (torch, forward) in shapes.items():
        made += [("step", *shape, "pytorch", torch), ("step", *shape, "numba-fused", 1)]
        made += [("forward", *shape, "pytorch", forward)]
    columns = ["stage", "L", "H", "B", "version", "seconds"]
    return pd.DataFrame(made, columns=columns).assign(variant=None, repeat=0)


def made(**of_ladder):
    return {
        "measure_ladder": ladder(**of_ladder),
        "measure_machine": machine(roof=107, sgemm=83),
        "peers": peers(),
        "gpu": of_card("table", "5 epochs", FIVE_EPOCHS),
    }


CASES = {
    "held": (
        made(),
        "TTT",
        "2.91 % with 512 units",
        "roof of a core is 107 GFLOP/s (53.5 to 214)",
        *("loops compiled 97x (87x to 107x), sums", "left over 1.03x"),
        *("products are 10 % of PyTorch's", "they are 50 %"),
        *("exponent 0.7 (0.6 to 0.8)", "a step 1.02 (1 to 1.05)"),
        *("backward pass takes 50 to 50 %", "293 s | 1x", "2.25x | 1x", "3240 s | 1x"),
        *("| 102 s | 50 % slower | 0.118x |", "| 3 s | 17x | 4x |"),  # of V1 and V3
    )
}
# Calls of the small network gain 2.3 x 1.05 x 1.2 times, of the large one 1.04 x ...
CALLS = 1.05 * 1.2, 1.05 * 1.01
EDGES = [
    (0, ("most", 1 / 0.9), lambda by: made(off=(by[1], 1.03))),
    (0, 1 / 1.1, lambda by: made(off=(1, by[1]))),
    (1, 1.1 / CALLS[0], lambda gain: made(small=GAINS | {CALL: gain})),
    (1, ("most", 2.9 / CALLS[1]), lambda gain: made(large=LARGE | {CALL: gain})),
    (
        2,
        ("most", 0.95),
        lambda power: made(growth=GROWTH | {"numpy, 8 steps": sorted(power)}),
    ),
]
test_page, test_edge, test_all = PAGE.tests(__file__, CASES, EDGES)


def test_what_is_counted():
    assert page.figure_who().axes[3].lines[0].get_xdata()[0] == 2.5  # where it is wrong
    # Of 8 multiply-adds 8 loads and 2 broadcasts; of 16 of a tile of 4 by 4 twelve.
    loads = page.loads()
    assert (loads["numba-sample"], loads["numba-tile"]) == (1.25, 0.75)
    assert loads["numba-fused"] < 0.75
    two_steps = rows({"a": 4.0}, part="whole", work=page.LARGE)
    rate = page.rate(two_steps, {page.LARGE: page.WIDE}, "a").middle
    assert rate == pytest.approx(page.WIDE.step_gflop / 2)


def test_rungs_are_compared_with_the_reference():
    """At sizes at which weights are in one panel, and in two."""
    assert page.largest_errors(("numpy", "numba-tile")) < 1e-5
    assert "m.fma(" in page.heart()
    wrong = page.wrong_over_time(runs=2)
    assert (wrong["last"], "want at most" in wrong["said"]) == (23, True)
    for H in (32, 128):  # 4 H is 128 and 512
        work = page.Workload(L=1, T=3, D=4, H=H, B=8)
        for case in page.chain(work.params(), work, count=2).values():
            case()
