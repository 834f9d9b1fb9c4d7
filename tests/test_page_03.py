"""Page 3, the ladder on a CPU: its claims, figures and study versions on made rows."""

import numpy as np
import pandas as pd
import pytest
from conftest import example
from pages import claims, functions, rows, says

import lstm_kernels as lk
from lstm_report.experiments import rungs
from lstm_report.measure.comparer import compare, compare_to_reference

page = functions("03_cpu")
LARGE = "512 units"


def ladder(*, fusing=(1, 0.9, 1.1), tile=(2, 3, 5), packing=(1.5, 1.7, 1.9), threads=2):
    """Rows of both workloads: how many times as long everything takes without fusing,
    the tile and packing, by process. All is 10 times as slow with 32 units, whose tile
    and fusing gain 7 times.
    """

    def work(name, fusing, tile, threads, slow=1):
        took = dict(zip(page.RUNGS[1:4], (64, 16, 2 * np.array(tile)), strict=True))
        took |= {"numba-tile": 2, "numba-fused": 1, "sums stored": fusing}
        took |= {"all cores": 1 / np.array(threads)}
        parts = {"loops": {"sequential": 20, "compiled loops": 4}, "forward": took}
        parts["product"] = {"rows": packing, "panels": 1}
        parts["training"] = {"steps from Python": 3, "one call": 1}
        made = (
            rows({case: slow * np.array(s) for case, s in of.items()}, part=part)
            for part, of in parts.items()
        )
        return pd.concat(made).assign(work=name)

    return pd.concat(
        [
            work("airline", 7, 7, (0.9, 1, 1.1), slow=10),
            work(LARGE, fusing, tile, threads),
        ]
    )


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
    (
        page.claim_fusing,
        fusing(),
        True,
        "With 512 units",
        "fusing level (0.9x to 1.1x); tile 3x (2x to 5x); packing 1.7x (1.5x to 1.9x)",
    ),
    (page.claim_fusing, fusing(fusing=(1.49, 1, 1.2)), True),
    # One process is enough.
    (
        page.claim_fusing,
        fusing(fusing=(1.5, 1, 1.2)),
        False,
        "overlap: packing at least",
    ),
    (page.claim_fusing, fusing(tile=(1.1, 3, 5)), False, "overlap: tile at least 1.1x"),
    (page.claim_fusing, fusing(packing=(1.7, 1.1, 1.5)), False),
    (
        page.claim_goals,
        (epoch(1.0),),
        True,
        "`numpy-sample` 12.5x (10x to 14.3x)",
        "100x",
    ),
    (
        page.claim_goals,
        (epoch(1.01),),
        False,
        "Below ten in some process: numpy-sample",
    ),
    (
        page.claim_growth,
        (growth(),),
        True,
        "exponent 0.7 (0.6 to 0.8); with 16 samples a step 1.02 (1 to 1.05)",
    ),
    (page.claim_growth, (growth(0.6, 0.7, 0.999),), True),
    (page.claim_growth, (growth(0.6, 0.7, 1.001),), False, "the exponent is 1"),
)
test_words = says(
    (
        page.beside,
        (epoch(0.9), S1),
        "Sequential, 300, 1x, sequential, 50, 1x\nNumPy, 100, 3x, numpy-sample, 3.5, 14.3x",
        ", , , numba-fused, 0.5, 100x",
    ),
    (
        page.figure_sizes,
        (growth(),),
        "numpy: time grows as N^1.02, with 8 steps as N^0.70. ",
        "milliseconds for an epoch on a log axis against windows in the data set on a",
        "numpy, 8 steps: 0.70; ",
        "numba-fused, 8 steps, all cores: 0.85; ",
    ),
    (
        page.figure_rungs,
        rates(),
        "From 0.1 to 8 GFLOP/s: 80 % of one core's roof. ",
        "GFLOP/s of inference, products only, one thread on a log axis",
        "Labels: 0.1; 0.125; 0.5; 1.6; 4; 8; roof 10; SGEMM 5.",
    ),
    (
        page.figure_ideas,
        ideas(),
        "512 units: tile gains 3x; fusing: level. airline. (loops compiled, batch, ",
        "Labels: 5x; 4x; 4.57x; 7x; 1.7x; 7x; 3x; level.",
        "512 units. times as fast as without on a log axis. "
        "Labels: 5x; 4x; 10.7x; 3x; 1.7x; level; 3x; 2x.",
    ),
    (page.figure_ideas, ideas(fusing=(1.2, 1.3, 1.4)), "tile gains 3x; fusing: 1.3x. "),
    (
        page.figure_ideas,
        ideas(fusing=(0.7, 0.8, 0.9)),
        "gains 3x; fusing: 20 % slower.",
    ),
    (page.figure_ideas, ideas(packing=(3.2, 3.1, 3)), "512 units: packing gains 3.1x;"),
    (page.figure_ideas, ideas(threads=(0.9, 1, 1.1)), "1.7x; level; 3x; level."),
    (
        page.figure_who,
        (),
        "sample s",
        "step t. ",
        "WRONG, ",
        "thread 1 starts at step 3",
    ),
    (
        page.against_torch,
        (recorded(),),
        "has 3x the speed",
        "network, 5x on four layers",
    ),
    (page.against_torch, (recorded(),), "the products are 10 % of", "they are 50 %,"),
)


def test_the_wrong_form_is_marked_where_it_starts():
    assert page.figure_who().axes[3].lines[0].get_xdata()[0] == 2.5


def test_milliseconds_are_drawn():
    (ax,) = page.figure_sizes(growth()).axes
    drawn = [line.get_ydata().astype(float) for line in ax.lines]
    assert any(np.allclose(y, [1e3, 1e3 * 100**0.7]) for y in drawn)


@pytest.mark.parametrize("shape", [(1, 3, 5, 3, 17), (2, 6, 8, 64, 64)], ids=str)
def test_study_versions_compute_the_same_network(shape):
    params, x, _ = example(shape)
    compare_to_reference(rungs.StoredFused(params), params, x)
    one = lk.Params.init(shape[3], shape[4], seed=0)
    layer = one.layers[0]
    y = rungs.compiled_loops()(x, layer.U, layer.W, layer.b)
    compare({"y": y}, {"y": lk.network("numpy", one).forward(x)[0]}, 2e-5)


def test_products_of_rows_and_panels_agree():
    v = np.random.default_rng(0).random((9, 6), "f4")
    W = np.random.default_rng(1).random((6, 512), "f4")
    add_rows, add_panels = rungs.products()
    by_rows, by_panels = np.zeros((9, 512), "f4"), np.zeros((2, 9, 256), "f4")
    add_rows(by_rows, v, W)
    add_panels(by_panels, v, rungs.panels(W))
    whole = {"rows": by_rows, "panels": np.concatenate(list(by_panels), axis=1)}
    compare(whole, dict.fromkeys(whole, v @ W), 1e-5)
