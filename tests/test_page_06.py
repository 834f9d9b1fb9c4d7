"""Page 6 on made rows, and that its cases are what they are called."""

import numpy as np
import pandas as pd
import pytest
from filed import filed
from pages import Page, bars, rows
from planted import planted

from lstm_report.experiments.switches import COMBINATIONS, EVERY
from lstm_report.measure import MismatchError
from lstm_report.measure.workloads import SMALL_REFERENCE, Workload

PAGE = Page("06_optimisations")
page = PAGE.module
BATCHES = {1: {"baseline": 0.3, "all": (0.25, 0.2, 0.24), "numba-fused": 0.13}}
BATCHES[224] = {"baseline": 7.0, "all": (3.5, 2.8, 3.7), "numba-fused": 2.9}


def passes(**seconds):
    """A second for each case but those given; the best round of the peak would take a
    fifth of one, of reading the weights for a step 20 ms, of waking 0.1 ms.
    """
    each = dict.fromkeys([*page.cases(), "numba-fused"], 1.0)
    parts = [rows(each | seconds, part="pass", B=SMALL_REFERENCE.B)]
    parts += [rows(times, part="pass", B=B) for B, times in BATCHES.items()]
    parts.append(rows({"baseline": 0.17, "all": 0.11}, part="rest", B=16))
    once = {"peak": 0.4 / SMALL_REFERENCE.gflop, "read": 0.04, "wake": 2e-4}
    parts += [rows({name: t}, part=name, B=0) for name, t in once.items()]
    return pd.concat(parts)


def made(**seconds):
    return {"measure_passes": passes(**seconds)}


LAYOUT = {"layout": 0.9, "layout + wavefront": 0.8, "concurrent": 1.3}
LAYOUT["layout + kernel"] = (1.0, 1.1, 0.95)  # the kernel gains 0.9, 0.818, 0.947
UNDIVIDED = "layout + wavefront + kernel"
CASES = {
    "wins": (
        made(
            **LAYOUT,
            all=(0.95, 0.8, 0.9),
            **{UNDIVIDED: (0.5, 0.4, 0.82), "numba-fused": (0.5, 0.8, 0.7)},
        ),
        "TTT",
        "factor of the start 2.78 (2.78 to 2.78), of the end 2.58 (2.29 to 2.72)",
        "2.31x (2.31x to 2.31x). With 224 samples all switches gain 2x (1.89x",
        "| baseline | 1x | 1.82 | 1x | 100 |",
        "| + kernel: all | | | 1.11x (1.05x to 1.25x) | 95 |",
        "| all | 22.2 % (21.1 to 25) | 57.3 % |",
        "Baseline: 4.17 % (1 sample) to 40 % (224) of the peak",
    )
}
# Two factors multiply to 7.98 / gain; that of the start is 2.78 at 20 % of the peak.
START = 0.2 / page.OPTIM_START
EDGES = [
    (0, ("most", 0.8 / 0.947), lambda times: made(**LAYOUT, **{UNDIVIDED: times})),
    (1, ("most", START**2 / 7.98), lambda times: made(all=times)),
    (2, ("most", 0.9), lambda times: made(all=0.9, **{"numba-fused": times})),
]
test_page, test_edge, test_all = PAGE.tests(__file__, CASES, EDGES)


def test_the_cases_are_combinations_that_can_run():
    cases = page.cases()
    assert set(cases.values()) <= set(COMBINATIONS)
    assert (cases["baseline"], cases["all"]) == ((), EVERY)
    for removed, on in page.WITHOUT.items():
        assert {*on, removed} == {*EVERY}
    assert {case for _, case in page.STEPS.values()} <= {*cases, "numba-fused"}


def test_the_figure_of_batches_shows_shares_and_the_roof():
    (ax,) = page.figure_batches(passes(), SMALL_REFERENCE).axes
    at_one = 0.2 / 16 / np.array([0.3, 0.3, 0.25, 0.2, 0.13])
    found = sorted(low for low, _ in bars(ax))
    assert found[0] == pytest.approx(100 * at_one[0])
    roof = ax.lines[0].get_xydata()  # reading takes 0.2 s of ten steps
    np.testing.assert_allclose(roof, [[1, 6.25], [16, 100], [224, 100]])
    points = np.concatenate([mark.get_offsets() for mark in ax.collections[:2]])
    np.testing.assert_allclose(points[:2], [(64, 7.18), (224, 26.4)], rtol=0.01)


def test_the_picture_of_the_cores_has_all_work_once():
    counts = {form: len(list(page.boxes(form))) for form in page.FORMS}
    # Each product on both cores, point-wise on one; or all of a cell on one.
    assert list(counts.values()) == [2 * 8 + 1, 2 * 2 + 1, 8 + 1, 2 * (8 + 1)]
    page.plots.style()
    assert "of two layers" in page.figure_cores().axes[-1].get_title("left")


def test_the_measurement_is_verified():
    work = Workload(2, 4, 5, 9, 4)
    wrong = planted(page, "v=v: v.forward(x)", "v=v: 2 * v.forward(x)")
    with pytest.raises(MismatchError, match=": y"):
        wrong.differ(work)
    wrong = planted(page, "p=p: p(x)", "p=p: 2 * p(x)")
    with pytest.raises(MismatchError, match=": y"):
        wrong.measure_passes(work, batches=(1, 3), rounds=1)


def test_nvidias_code_is_told_as_it_was_recorded(tmp_path):
    assert page.say_example(tmp_path) == ""
    took = {0: 0.08, 1: 0.04, 3: 0.05, 7: 0.016, 15: 0.01, 31: 0.02}
    made = [
        {"version": "LSTM.cu", "variant": f"options {mask}", "repeat": repeat}
        | {"seconds": seconds * slow, "stage": "forward"}
        for mask, seconds in took.items()
        for repeat, slow in enumerate((1, 9, 0.5))
    ]
    about = {"gpu": {"name": "Card"}, "date": "2026-02-03"}
    filed(tmp_path, pd.DataFrame(made), "example", **about)
    said = page.say_example(tmp_path)
    assert (
        "compiled for one GPU (Card) and run there on 2026-02-03, takes 80 ms for the"
        in said
    )
    assert "streams, 50 ms; point-wise operations in one pass, 16 ms;" in said
    assert said.endswith("The fastest is 8x as fast as none.")
