"""Page 3, the ladder on a CPU: its claims and figures on made rows."""

import numpy as np
import pandas as pd
from pages import claims, functions, rows, says

page = functions("03_cpu")
LARGE = "512 units"


def work(name, *, fusing, tile, packing, threads, slow=1):
    """Rows of a workload: how many times as long everything takes without fusing, the
    tile, packing, and how many times as fast it is with threads, by process.
    """
    took = {"numpy-sample": 64, "numpy": 16, "numba-sample": 2 * np.array(tile)}
    took |= {"numba-tile": 2, "numba-fused": 1, "sums stored": fusing}
    parts = {
        "forward": took | {"all cores": 1 / np.array(threads)},
        "loops": {"sequential": 20, "compiled loops": 4},
        "product": {"rows": packing, "panels": 1},
        "training": {"steps from Python": 3, "one call": 1},
    }
    made = pd.concat(rows(each, part=part) for part, each in parts.items())
    return made.assign(work=name, seconds=slow * made["seconds"])


def ladder(fusing=(1, 0.9, 1.1), tile=(2, 3, 5), packing=(1.5, 1.7, 1.9)):
    """Rows of both workloads."""
    small = {"fusing": 7, "tile": 7, "packing": 1.3, "threads": (0.9, 1, 1.1)}
    large = {"fusing": fusing, "tile": tile, "packing": packing, "threads": 2}
    return pd.concat([work("airline", slow=10, **small), work(LARGE, **large)])


def epoch(slowest):
    """Five epochs of plain loops take 50 seconds; of `numpy-sample`, in the slowest
    process, five times `slowest`.
    """
    took = {"numpy": 0.5, "numba-sample": 0.25, "numba-tile": 0.2, "numba-fused": 0.1}
    took |= {"sequential": 10, "numpy-sample": (0.7, 0.8, slowest)}
    return rows(took, part="epoch")


GROWTH = {
    "numpy, 16 samples a step": (1.0, 1.02, 1.05),
    "numpy, 8 steps": (0.7, 0.6, 0.8),
    "numba-fused, 16 samples a step": 1.0,
    "numba-fused, 8 steps": 0.9,
    "numba-fused, 8 steps, all cores": 0.85,
}


def growth(*exponents):
    """Sizes 100 and 10,000: seconds grow as N^p, of `numpy` in 8 steps by process."""
    cases = GROWTH | ({"numpy, 8 steps": exponents} if exponents else {})
    return pd.concat(
        rows({c: (N / 100) ** np.array(p) for c, p in cases.items()}, windows=N)
        for N in (100, 10_000)
    ).assign(part="size")


def rates():
    """8e9 operations in a pass; plain loops compute 2e9 of them in 20 s."""
    roof = rows({"registers": 0.1, "SGEMM": 0.2}, part="roof")
    return page.rates(ladder(), LARGE, 8.0, 2.0), page.roofs(roof)


def ideas(**gains):
    made = ladder(**gains)
    return ({name: page.effects(made, name) for name in ("airline", LARGE)},)


def recorded():
    """Of PyTorch 3 and 5 times the time of a step; an SGEMM at 100 GFLOP/s."""
    shapes = {(1, 32, 16): (3, 1.622016e-4), (4, 512, 64): (5, 2.147483648)}
    made = [("ceiling", None, None, None, "sgemm", 2 * 4096**3 / 1e11)]
    for shape, (torch, forward) in shapes.items():
        made += [("step", *shape, "pytorch", torch), ("step", *shape, "numba-fused", 1)]
        made += [("forward", *shape, "pytorch", forward)]
    columns = ["stage", "L", "H", "B", "version", "seconds"]
    return pd.DataFrame(made, columns=columns).assign(variant=None)


def fusing(**gains):
    return ladder(**gains), LARGE


S1 = pd.DataFrame({"version": ["Sequential (plain)", "NumPy"], "seconds": [300, 100]})
test_claims = claims(
    (page.claim_fusing, fusing(), True, "512 units"),
    (page.claim_fusing, fusing(), True, "level (0.9x to 1.1x); tile 3x (2x"),
    (page.claim_fusing, fusing(fusing=(1.49, 1, 1.2)), True),
    # One process is enough.
    (page.claim_fusing, fusing(fusing=(1.5, 1, 1.2)), False, "overlap: packing at lea"),
    (page.claim_fusing, fusing(tile=(1.1, 3, 5)), False, "overlap: tile at least 1.1x"),
    (page.claim_fusing, fusing(packing=(1.7, 1.1, 1.5)), False),
    (page.claim_goals, epoch(1.0), True, "`numpy-sample` 12.5x (10x to 14.3x)", "100x"),
    (page.claim_goals, epoch(1.01), False, "Below ten in some process: numpy-sample"),
    (page.claim_growth, growth(), True, "0.7 (0.6 to 0.8)", "a step 1.02 (1 to 1.05)"),
    (page.claim_growth, growth(0.6, 0.7, 0.999), True),
    (page.claim_growth, growth(0.6, 0.7, 1.001), False, "the exponent is 1"),
)
test_words = says(
    (page.beside, (epoch(0.9), S1), "100, 3x, numpy-sample, 3.5, 14.3x", "0.5, 100x"),
    (page.figure_sizes, growth(), "grows as N^1.02, with 8 steps as N^0.70"),
    (page.figure_sizes, growth(), "numpy, 8 steps: 0.70;", "all cores: 0.85;"),
    (page.figure_rungs, rates(), "From 0.1 to 8 GFLOP/s: 80 % of one core's roof"),
    (page.figure_rungs, rates(), "0.1; 0.125; 0.5; 1.6; 4; 8; roof 10; SGEMM 5."),
    (page.figure_ideas, ideas(), "512 units: tile gains 3x; fusing: level. airline."),
    (page.figure_ideas, ideas(), "5x; 4x; 4.57x; 7x; 1.3x; 7x; 3x; level."),
    (page.figure_ideas, ideas(), "5x; 4x; 10.7x; 3x; 1.7x; level; 3x; 2x."),
    (page.figure_ideas, ideas(fusing=(1.2, 1.3, 1.4)), "fusing: 1.3x. "),
    (page.figure_ideas, ideas(fusing=(0.7, 0.8, 0.9)), "fusing: 20 % slower."),
    (page.figure_ideas, ideas(packing=(3.2, 3.1, 3)), "512 units: packing gains 3.1x;"),
    (page.against_torch, recorded(), "has 3x the speed", "network, 5x on four layers"),
    (page.against_torch, recorded(), "the products are 10 % of", "they are 50 %,"),
)


def test_the_wrong_form_is_marked_where_it_starts():
    assert page.figure_who().axes[3].lines[0].get_xdata()[0] == 2.5


def shown(parts):
    first = 0
    yield first
    return parts


def test_an_excerpt_has_the_lines_from_one_to_another():
    code = page.excerpt(shown, ("first", "yield"), ("return", "return"))
    assert code == "first = 0\nyield first\nreturn parts"


def test_products_take_a_share_of_a_step():
    work = page.AIRLINE
    assert 0 < page.share_of_products(page.airline_dataset(), work.params(), work.B) < 1
