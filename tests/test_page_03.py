"""Page 3, the ladder on a CPU: its cells on made rows."""

import numpy as np
import pandas as pd
from pages import Page, machine, of_card, rows

PAGE = Page("03")
page = PAGE.module
# What each idea gains in the process that is neither slow nor fast: all differ.
GAINS = dict(
    zip(page.IDEAS, (97, 2, 1.9, 1.1, 2.3, 1.02, 1.05, 1.2, 1, 3.1, 1.3), strict=True)
)
LARGE = GAINS | {"loops compiled": 89, "four samples at a time": 2.9}
LARGE |= {"one call a step": 1.04, "one call an epoch": 1.01}
GROWTH = {
    "numpy, 16 samples a step": (1.0, 1.02, 1.05),
    "numpy, 8 steps": (0.7, 0.6, 0.8),
    "numba-fused, 16 samples a step": 1.0,
    "numba-fused, 8 steps": 0.9,
    "all cores, 16 samples a step": 1.01,
    "all cores, 8 steps": 0.85,
}


def ladder(small=GAINS, large=LARGE, off=1.0, large_off=1.03, growth=GROWTH):
    """Rows of `measure_ladder`. small, large: the gain of each idea; off: the whole,
    over the product of all gains; growth: exponents of time over windows.
    """
    made = []

    def add(times, part, work, **columns):
        made.append(rows(times, part=part, work=work, **columns))

    for work, gains in ((page.SMALL, small), (page.LARGE, large)):
        for idea, (without, with_it) in page.IDEAS.items():
            add({without: np.array(gains[idea]), with_it: 1}, idea, work)
        rest = [np.median(gain) for gain in gains.values()][1:]
        fused = 1 / np.prod(rest) / (off if work == page.SMALL else large_off)
        took = {"loops": 1, "numpy": 5 * fused, "numba-fused": fused}
        if work == page.SMALL:
            middle = zip(page.RUNGS[1:-1], (19, 17, 13, 11, 7), strict=True)
            took |= dict(middle)
        add(took, "whole", work)
    for stage, share in (("forward", 0.3), ("gradients", 0.8), ("step", 1)):
        add(
            {rung: share * k for k, rung in enumerate(page.RUNGS, 2)}, stage, page.SMALL
        )
    for N in (80, 8000):
        times = {c: (N / 80) ** np.array(p) for c, p in growth.items()}
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


def made(**how):
    return lambda: {
        "measure_ladder": ladder(**how),
        "measure_machine": machine(roof=107, sgemm=83),
        "peers": peers(),
        "gpu": of_card("table", "5 epochs", FIVE_EPOCHS),
    }


FIVE_EPOCHS = {"sequential": 51, "numpy-sample": 12, "numpy": 9, "cuda-v1": 102}
FIVE_EPOCHS |= {"cuda-v2": 6, "cuda-v3": 3}
SLOW = GAINS | {"four samples at a time": (1.1, 3.5, 1.2)}  # in one process
FAST = LARGE | {"one call a step": (1, 1.3, 2.9)}
GROWS = GROWTH | {"numpy, 8 steps": (0.7, 0.6, 0.951)}
CASES = {
    "held": (
        made(),
        "TTT",
        *("off with 32 units, 2.91 % with 512 units)", "calls 2.9x", "tile 2.9x (2.9x"),
        "roof of a core is 107 GFLOP/s (53.5 to 214)",
        *("loops compiled 97x (97x to 97x), sums in registers 3.1x", "left over 1.03x"),
        *("products are 10 % of PyTorch's", "they are 50 %", "3x on the airline"),
        *("exponent 0.7 (0.6 to 0.8)", "a step 1.02 (1 to 1.05)", "of 1000 samples"),
        *(
            "backward pass takes 50 to 50 %",
            "293 s | 1x",
            "2.25x | 1x",
            "| 3240 s | 1x",
        ),
        *("| 102 s | 50 % slower | 0.118x |", "| 3 s | 17x | 4x |"),  # of V1 and V3
        *("grows as N^1.02, with 8 steps as N^0.70", "`cuda-v1` | CPU+GPU, CPU+GPU"),
    ),
    "small off": (made(off=1.12), "FTT", "10.7 % off with 32 units"),
    "just": (made(off=1.11, large_off=0.91), "TTT"),
    "large off": (made(large_off=0.909), "FTT", "10 % with 512 units"),
    "tile as good": (made(small=SLOW), "TFT"),
    "calls as dear": (made(large=FAST), "TFT"),
    "growth": (made(growth=GROWS), "TTF", "0.7 (0.6 to 0.951)"),
}
test_page, test_both, test_reached = PAGE.tests(
    CASES,
    also=["largest_errors", "wrong_over_time", "heart", "loads", "figure_who", "chain"],
)


def test_the_wrong_form_is_marked_where_it_starts():
    assert page.figure_who().axes[3].lines[0].get_xdata()[0] == 2.5


def test_the_comparer_sees_threads_over_time():
    found = page.wrong_over_time(runs=2)
    assert found["last"] == 23
    assert "want at most" in found["said"]


def test_rungs_and_excerpt():
    assert page.largest_errors(("numpy", "numba-tile")) < 1e-5
    assert page.heart().startswith("def multiply_add(")
    assert "m.fma(" in page.heart()
    assert chr(34) not in page.heart()  # no docstring
    assert list(page.loads()) == ["numba-sample", "numba-tile", "numba-fused"]


def test_study_versions_train_as_the_reference():
    """Sizes at which weights are in one panel, and in two."""
    for H in (32, 128):  # 4 H is 128 and 512
        work = page.Workload(L=1, T=3, D=4, H=H, B=8)
        for case in page.chain(work.params(), work, count=2).values():
            case()
