"""Page 03, the ladder on a CPU: its claims, figures and study versions on made rows."""

import matplotlib.pyplot as plt
import numpy as np
import pages
import pandas as pd
import pytest
from conftest import example

import lstm_kernels as lk
from lstm_report import plots
from lstm_report.experiments import rungs
from lstm_report.measure.comparer import compare, compare_to_reference
from lstm_report.measure.evidence import digits

PAGE = pages.functions("03_cpu")
RUNGS = "numpy-sample", "numpy", "numba-sample", "numba-tile", "numba-fused"


def rows_of(part, seconds, work="512 units", **columns):
    """Rows of three processes; seconds: by case, one number or one of each process."""
    return pd.DataFrame(
        [
            {"part": part, "work": work, "case": case, "repeat": 0, "seconds": s}
            | {"process": process}
            | columns
            for case, values in seconds.items()
            for process, s in enumerate(np.broadcast_to(values, 3))
        ]
    )


def ladder_rows(fusing=(1.0, 1.0, 1.0), tile=2.0, packing=1.5, work="512 units"):
    """Without an idea everything takes `fusing`, `tile`, `packing`, else 4 times as
    long.
    """
    forward = dict(zip(RUNGS, (64.0, 16.0, 2 * tile, 2.0, 1.0), strict=True))
    forward |= {"sums stored": fusing, "all cores": 0.5}
    return pd.concat(
        [
            rows_of("loops", {"sequential": 4.0, "compiled loops": 1.0}, work),
            rows_of("product", {"rows": packing, "panels": 1.0}, work),
            rows_of("forward", forward, work),
            rows_of("training", {"steps from Python": 4.0, "one call": 1.0}, work),
        ]
    )


def test_effects_divide_what_runs_without_an_idea_by_what_runs_with_it():
    table = PAGE.effects(ladder_rows(), "512 units")
    got = table["middle"].to_dict()
    assert got == {
        "loops compiled": 4.0,
        "batch": 4.0,
        "compiled pass": 16.0,
        "tile": 2.0,
        "packing": 1.5,
        "fusing": 1.0,
        "epoch in one call": 4.0,
        "threads": 2.0,
    }


@pytest.mark.parametrize(
    ("fusing", "tile", "packing", "held"),
    [
        ((1.0, 1.0, 1.49), 2.0, 1.5, True),
        ((1.0, 1.0, 1.5), 2.0, 1.5, False),  # one process is enough
        ((1.0, 1.0, 1.49), (1.48, 2.0, 2.0), 1.5, False),
        ((1.0, 1.0, 1.49), 2.0, (1.48, 1.5, 1.5), False),
    ],
)
def test_fusing_gains_less_in_every_process_or_the_claim_fails(
    fusing, tile, packing, held
):
    made = ladder_rows(fusing, np.array(tile), packing)
    claim = PAGE.claim_fusing(made, "512 units")
    assert claim["held"] is held
    assert "512 units" in claim["sentence"]
    assert held or "overlap" in claim["why"]


@pytest.mark.parametrize(("slowest", "held"), [(1.0, True), (1.01, False)])
def test_ten_times_is_the_least_of_all_processes(slowest, held):
    took = dict.fromkeys(RUNGS, 0.1) | {"sequential": 10.0}
    rows = rows_of("epoch", took | {"numpy-sample": (0.9, 0.9, slowest)})
    claim = PAGE.claim_goals(rows)
    assert claim["held"] is held
    assert held or "numpy-sample" in claim["why"]
    assert "11.1x" in claim["numbers"]
    assert "100x" in claim["numbers"]


def test_both_tables_stand_side_by_side():
    took = dict(
        zip(("sequential", *RUNGS), (4.0, 2.0, 1.0, 0.5, 0.2, 0.1), strict=True)
    )
    theirs = pd.DataFrame({"version": ["Sequential (plain)", "NumPy"]})
    theirs["seconds"] = 300, 100
    table = PAGE.beside(rows_of("epoch", took), theirs)
    assert table.iloc[0].tolist() == ["300", "1x", "sequential", "20", "1x"]
    assert table.iloc[1].tolist() == ["100", "3x", "numpy-sample", "10", "2x"]
    assert table.iloc[5].tolist() == ["", "", "numba-fused", "0.5", "40x"]
    assert len(table) == 6


def growth_rows(exponents):
    """Sizes 100 and 10,000: seconds grow as N^p, of each process its own p."""
    return pd.concat(
        rows_of("size", {case: (N / 100.0) ** np.array(p)}, "airline", windows=N)
        for case, p in exponents.items()
        for N in (100, 10_000)
    )


GROWTH = {
    "numpy, 16 samples a step": 1.0,
    "numpy, 8 steps": 0.7,
    "numba-fused, 16 samples a step": 1.0,
    "numba-fused, 8 steps": 0.9,
    "numba-fused, 8 steps, all cores": 0.8,
}


@pytest.mark.parametrize(("last", "held"), [(0.999, True), (1.001, False)])
def test_time_grows_more_slowly_in_every_process_or_the_claim_fails(last, held):
    rows = growth_rows(GROWTH | {"numpy, 8 steps": (0.7, 0.7, last)})
    claim = PAGE.claim_growth(rows)
    assert claim["held"] is held
    assert f"0.7 (0.7 to {digits(last)})" in claim["numbers"]
    assert "16 samples a step 1 (1 to 1)" in claim["numbers"]


def test_figure_of_sizes_has_a_line_a_case_with_its_exponent():
    figure = PAGE.figure_sizes(growth_rows(GROWTH))
    (ax,) = figure.axes
    assert ax.get_title("left") == "numpy: time grows as N^1.00, with 8 steps as N^0.70"
    assert ax.get_xlabel() == "windows in the data set"
    assert ax.get_ylabel() == "milliseconds for an epoch"
    texts = {text.get_text() for text in ax.texts}
    assert {"numpy, 8 steps: 0.70", "numba-fused, 8 steps, all cores: 0.80"} <= texts
    drawn = {tuple(np.round(line.get_ydata().astype(float), 6)) for line in ax.lines}
    assert (1e3, 1e5) in drawn
    assert (1e3, round(1e3 * 100**0.7, 6)) in drawn
    plt.close(figure)


def test_rates_and_figure_of_the_rungs_under_the_roof():
    # 8e9 operations in a pass; plain loops compute 2e9 of them in 4 s
    table = PAGE.rates(ladder_rows(), "512 units", 8.0, 2.0)
    want = {"sequential": 0.5, "numpy-sample": 0.125, "numpy": 0.5}
    want |= {"numba-sample": 2.0, "numba-tile": 4.0, "numba-fused": 8.0}
    assert table["middle"].to_dict() == want
    roof = PAGE.roofs(rows_of("roof", {"registers": 0.1, "SGEMM": 0.2}))
    assert roof.to_dict() == pytest.approx({"registers": 10.0, "SGEMM": 5.0})
    figure = PAGE.figure_rungs(table, roof)
    (ax,) = figure.axes
    assert ax.get_title("left") == "From 0.5 to 8 GFLOP/s: 80 % of one core's roof"
    assert ax.get_xlabel() == "GFLOP/s of inference, products only, one thread"
    assert [tick.get_text() for tick in ax.get_yticklabels()] == list(want)
    texts = [text.get_text() for text in ax.texts]
    assert texts[:6] == ["0.5", "0.125", "0.5", "2", "4", "8"]
    assert texts[6:] == ["roof 10", "SGEMM 5"]
    plt.close(figure)


@pytest.mark.parametrize(
    ("fusing", "title"),
    [
        ((1.0, 1.0, 1.0), "512 units: tile gains 2x; fusing: level"),
        ((1.2, 1.3, 1.4), "512 units: tile gains 2x; fusing: 1.3x"),
        ((0.7, 0.8, 0.9), "512 units: tile gains 2x; fusing: 20 % slower"),
    ],
)
def test_figure_of_ideas_says_level_where_an_interval_holds_one(fusing, title):
    made = ladder_rows(fusing).replace({"all cores": "unused"})
    made = pd.concat([made, rows_of("forward", {"all cores": (0.9, 1.0, 1.1)})])
    tables = {"airline": PAGE.effects(ladder_rows(work="airline"), "airline")}
    tables["512 units"] = PAGE.effects(made, "512 units")
    figure = PAGE.figure_ideas(tables)
    assert figure.get_suptitle() == title
    small, large = figure.axes
    assert [tick.get_text() for tick in small.get_yticklabels()] == list(PAGE.EFFECTS)
    assert large.get_xlabel() == "times as fast as without"
    assert [text.get_text() for text in large.texts][-1] == "level"
    assert [text.get_text() for text in small.texts][2:4] == ["16x", "2x"]
    assert large.get_title("left") in plots.words(figure)
    plt.close(figure)


def test_figure_of_who_marks_where_the_wrong_form_starts():
    figure = PAGE.figure_who()
    wrong = figure.axes[3]
    assert wrong.get_title("left").startswith("WRONG")
    assert wrong.lines[0].get_xdata()[0] == 2.5
    assert "step 3" in figure.alt
    assert wrong.get_xlabel() == "step t"
    assert figure.axes[2].get_ylabel() == "sample s"
    plt.close(figure)


def test_peers_are_told_with_the_share_of_their_products():
    keys = ["stage", "L", "H", "B", "version", "seconds"]
    rows = pd.DataFrame(
        [
            ("ceiling", None, None, None, "sgemm", 2 * 4096**3 / 1e11),  # 100 GFLOP/s
            *(("step", 1, 32, 16, v, s) for v, s in TORCH.items()),
            *(("step", 4, 512, 64, v, s) for v, s in TORCH.items()),
            ("forward", 1, 32, 16, "pytorch", 1.622016e-4),
            ("forward", 4, 512, 64, "pytorch", 2.147483648),
        ],
        columns=keys,
    ).assign(variant=None)
    told = PAGE.against_torch(rows)
    assert "has 3x the speed" in told
    assert "are 10 %" in told
    assert "are 50 %" in told


TORCH = {"pytorch": 3.0, "numba-fused": 1.0}


@pytest.mark.parametrize("shape", [(1, 3, 5, 3, 17), (2, 6, 8, 64, 64)], ids=str)
def test_study_versions_compute_the_same_network(shape):
    params, x, _ = example(shape)
    compare_to_reference(rungs.StoredFused(params), params, x)
    layer = params.layers[0]
    one = lk.Params.init(shape[3], shape[4], seed=0)
    layer = one.layers[0]
    y = rungs.compiled_loops()(x, layer.U, layer.W, layer.b)
    compare({"y": y}, {"y": lk.network("numpy", one).forward(x)[0]}, 2e-5)


def test_products_of_rows_and_panels_agree():
    v, W = (
        np.random.default_rng(n).random(s, "f4")
        for n, s in ((0, (9, 6)), (1, (6, 512)))
    )
    add_rows, add_panels = rungs.products()
    rows, out = np.zeros((9, 512), "f4"), np.zeros((2, 9, 256), "f4")
    add_rows(rows, v, W)
    add_panels(out, v, rungs.panels(W))
    whole = {"rows": rows, "panels": np.concatenate(list(out), axis=1)}
    compare(whole, dict.fromkeys(whole, v @ W), 1e-5)
