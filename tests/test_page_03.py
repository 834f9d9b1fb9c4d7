"""Page 3, the ladder on a CPU, on synthetic rows."""

import numpy as np
import pandas as pd
from pages import Page, machine, of_card, rows

PAGE = Page("03")
page = PAGE.module
page.has_512_bits = lambda: True  # as the CPU of the rows below
TILE, CALL = "four samples at a time", "one call a step"
# What each idea gains in the process that is neither slow nor fast: all differ.
GAINS = dict(
    zip(
        page.IDEAS,
        (97, 2, 1.9, 1.1, 2.3, 1.02, 1.05, 1.2, 1, 3.1, 1.3, 1.07),
        strict=True,
    )
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
FIVE_EPOCHS |= {"cuda-v2": 6, "cuda-v3": 3, "cuda-fused": 2, "cuda-epoch": 1}
FIVE_EPOCHS |= {"numba-fused": 0.6}


def ladder(small=GAINS, large=LARGE, off=(1.0, 1.03), growth=GROWTH):
    """Rows of `measure_ladder`. small, large: the gain of each idea; off: the whole
    over the product of all gains, at either size.
    """
    made = []

    def add(times, part, work, **columns):
        made.append(rows(times, part=part, work=work, **columns))

    for work, gains, by in zip(
        (page.SMALL, page.LARGE), (small, large), off, strict=True
    ):
        ideas = [*page.IDEAS][work == page.LARGE :]
        for idea in ideas:
            without, with_it = page.IDEAS[idea]
            add({without: np.array(gains[idea]), with_it: 1}, idea, work)
        gained = by * np.prod([np.median(gains[idea]) for idea in ideas])
        fused = 1 / (gained / gains[page.FIRST]) if work == page.SMALL else 1 / gained
        took = {"loops": 1, "numpy": 5 * fused, "numba-fused": fused}
        if work == page.SMALL:
            took |= zip(page.VERSIONS[1:-1], (19, 17, 13, 11, 7), strict=True)
            steps = page.TIMED // page.AIRLINE.B
            add({"sequential": gained / steps, "numba-fused": 1}, "whole", work)
        else:
            add({"loops": gained, "numba-fused": 1}, "whole", work)
        add(took, "versions", work)
    for stage, share in (("forward", 0.3), ("step", 1)):
        times = {name: share * k for k, name in enumerate(page.VERSIONS, 2)}
        add(times, stage, page.SMALL)
    for N in (80, 8000):
        times = {case: (N / 80) ** np.array(power) for case, power in growth.items()}
        add(times, "size", page.SMALL, windows=N)
    return pd.concat(made)


def widths():
    """Processes of a compiler that chooses 256 bits, and of one that chooses 512."""
    times = {"256 bits": 1.4, "512 bits": 1}
    return [
        pd.concat([rows(times | {"tile": t}, work=w) for w, t in tiles.items()])
        for tiles in ({page.SMALL: 5, page.LARGE: 7}, {page.SMALL: 6, page.LARGE: 6.5})
    ]


def made(**of_ladder):
    large = {"cuda-fused": 0.09, "cuda-persistent": 0.007}
    gpu = [of_card("table", "5 epochs", FIVE_EPOCHS)]
    gpu.append(of_card("large", "forward on device", large))
    return {
        "measure_ladder": ladder(**of_ladder),
        "measure_width": widths(),
        "measure_machine": machine(roof=107, sgemm=83),
        "gpu": pd.concat(gpu),
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
test_text, test_edge, test_all = PAGE.approved(made(), EDGES)


def test_what_is_counted():
    assert page.figure_who().axes[3].lines[0].get_xdata()[0] == 2.5  # where it is wrong
    # Of 8 multiply-adds 8 loads and 2 broadcasts; of 16 of a tile of 4 by 4 twelve.
    accesses = {name: held.accesses for name, held in page.HELD.items()}
    assert (accesses["numba-sample"], accesses["numba-tile"]) == (1.25, 0.75)
    assert accesses["numba-fused"] < 0.75


def test_versions_are_compared_with_the_reference():
    """At sizes at which weights are in one panel, and in two."""
    assert page.largest_errors(("numpy", "numba-tile")) < 1e-5
    wrong = page.wrong_over_time(runs=2)
    assert (wrong["last"], "want at most" in wrong["said"]) == (23, True)
    for H in (32, 128):  # 4 H is 128 and 512
        work = page.Workload(L=1, T=3, D=4, H=H, B=8)
        for case in page.chain(work.params(), work, count=2).values():
            case()
