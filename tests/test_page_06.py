"""Page 6: its claims, sentences, table and figures on made rows."""

from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
from pages import bars, claims, functions, rows, says

from lstm_report.experiments.switches import COMBINATIONS, EVERY, Variant
from lstm_report.measure import MismatchError
from lstm_report.measure.workloads import Workload

page = functions("06")
CASES = [*page.measured_cases(), "numba-fused"]
WORK = Workload(L=1, T=20, D=512, H=512, B=64)


def passes(**seconds):
    """A second for every case but those that are given; 0.2 and 0.1 seconds without
    products; a peak of 100 GFLOP/s, so that 20 GFLOP take 0.2 seconds at it. All
    processes see the same peak.
    """
    made = rows(dict.fromkeys(CASES, 1.0) | seconds, part="pass")
    rest = rows({"baseline": 0.2, "all": 0.1}, part="rest")
    peak = rows({"peak": 0.02}, part="peak", B=0)  # the best round takes half of it
    return pd.concat([made, rest, peak])


def shares(**seconds):
    return page.shares(passes(**seconds), 20)


def effects(**seconds):
    return page.effects(passes(**seconds))


def fused(*seconds):
    made = passes(**{"numba-fused": seconds})
    return made, page.shares(made, 20)


def batches():
    """Shares of 10 steps: at 1 sample and at 224 the baseline's is 50 %, all gain 1.6
    times; of `numba-fused` in three processes 90, 80 and 60 %.
    """
    parts = [rows({"peak": 0.02}, part="peak", B=0)]
    for B in (1, 224):
        at_peak = 0.01 * page.replace(WORK, B=B, T=10).gflop
        took = {"baseline": 2 * at_peak, "all": at_peak / 0.8}
        took["numba-fused"] = at_peak / np.array([0.9, 0.8, 0.6])
        parts.append(rows(took, part="batch", B=B))
    return page.batch_shares(pd.concat(parts), WORK)


MIXED = {"baseline": 2.0, "combine": (1.0, 1.6, 2.5), "fuse": 4.0, "layout": 1.5}
MIXED |= {"layout + kernel": 0.5, "all": (0.8, 0.7, 0.9)}
SLOW, FAST = {"fuse": (2.1, 1, 1.1)}, {"fuse": (1.9, 1, 1.1), "all": (0.9, 0.8, 0.7)}
LATE = passes(baseline=0.09, all=(0.045, 0.03, 0.06)), 20
ORDER = passes(baseline=0.073, all=(0.0365, 0.02, 0.05)), 20
IDLE, BUSY = (shares(concurrent=(first, 0.7, 0.5)) for first in (0.6, 1.0))
# 1 / 7.98 of the peak is 0.2 of 1.596 s, and the rest 0.2 s; 57.3 % are 0.2 of 0.349 s.
test_claims = claims(
    (page.claim_bound, shares(baseline=(0.5, 1.59, 1)), True, "13 to 40 %", "most 5x"),
    (page.claim_bound, shares(baseline=(0.5, 1.61, 1)), False, "run at 14 to 67 %"),
    (page.claim_end, shares(all=(0.3, 0.348, 0.32)), True, "57 to 67 %", "29 to 33 %"),
    (page.claim_end, shares(all=(0.3, 0.35, 0.32)), False, "its card's, 57 %"),
    (page.claim_fused, fused(0.5, 0.99, 0.8), True, "1.25x (1.01x to 2x); 20 to 40 %"),
    (page.claim_fused, fused(0.5, 1.01, 0.8), False, "They are at 20 % of the peak"),
)
test_words = says(
    (page.sentence_effects, effects(**MIXED), "Alone, gain: *concurrent* 2x (2x to 2x"),
    (page.sentence_effects, effects(**MIXED), "*kernel* 3x (3x to 3x); level: *combin"),
    (page.sentence_effects, effects(**MIXED), "*fuse* 50 % slower"),
    (page.sentence_effects, effects(**MIXED), "*combine* 1.25x (1"),
    (page.figure_effects, effects(baseline=2.0, **SLOW), "baseline, 4 of 6 gain"),
    (page.figure_effects, effects(baseline=2.0, **SLOW), "2x; 2x; level; 2x; 2x; leve"),
    (page.figure_effects, effects(baseline=2.0, **SLOW), "Taken from all, 0 of 5"),
    (page.figure_effects, effects(baseline=2.0, **FAST), "baseline, 5 of 6 gain"),
    (page.figure_effects, effects(baseline=2.0, **FAST), "Taken from all, 5 of 5"),
    (page.table_order, LATE, "baseline, 1x, 182.5, 1x, 450", "+ fuse, 6.21x, 29.4, 9"),
    (page.table_order, LATE, "+ kernel: all, , , 2x (1.5x to 3x), 225"),
    (page.sentence_order, ORDER, "All together 2x (1.46x to 3.65x) here"),
    (page.sentence_order, ORDER, "2x as fast as this CPU at the ba"),
    (page.sentence_order, ORDER, "and 7.98x at the end"),
    (page.sentence_why, (IDLE, 100), "works at 7 % of its card's"),
    (page.sentence_why, (IDLE, 100), "and at 40 to 67 % wi"),
    (page.sentence_why, (IDLE, 100), "baseline's share 20 %", "take 20 % of its time"),
    (page.sentence_why, (IDLE, 100), "run at 25 % of the peak", "keep all cores busy"),
    (page.sentence_why, (BUSY, 100), "costs nothing that shows in every process"),
    (page.sentence_batches, batches(), "gain 1.6x with 1 sample and 1.6x with 224"),
    (page.sentence_batches, batches(), "26 % of its card, with 224", "2.9x of that"),
    (page.figure_batches, batches(), "Baseline: 50 % (1 sample) to 50 % (224) of"),
    (page.figure_cores, (), "wavefront: two cells, of two layers"),
)


def test_the_cases_are_combinations_that_can_run():
    cases = page.measured_cases()
    assert len(cases) == len(set(cases.values())) == 16
    assert set(cases.values()) <= set(COMBINATIONS)
    assert (cases["baseline"], cases["all"]) == ((), EVERY)
    for removed, on in page.WITHOUT.items():
        assert {*on, *removed.split(" and ")} == {*EVERY}
    assert {case for _, case in page.STEPS.values()} <= set(CASES)


def test_what_the_figures_draw():
    upper, _ = page.figure_effects(effects(baseline=2.0, **SLOW)).axes
    dots = [line.get_xdata()[0] for line in upper.lines if line.get_marker() == "o"]
    assert dots == pytest.approx([2, 2, 2 / 1.1, 2, 2, 1])
    want = [(2, 0), (1.82, 1), (1.2, 2), (1.063, 3), (1.3, 4)]
    np.testing.assert_allclose(upper.collections[0].get_offsets(), want)
    (ax,) = page.figure_batches(batches()).axes
    points = np.concatenate([mark.get_offsets() for mark in ax.collections[:2]])
    want = [(64, 7.19), (224, 26.4), (32, 29.8), (64, 57.4)]
    np.testing.assert_allclose(points, want, rtol=0.01)
    ends = [(50, 50), (80, 80), (60, 90)]
    np.testing.assert_allclose(bars(ax), np.repeat(ends, 2, axis=0))


def test_the_picture_of_the_cores_has_all_work_once():
    counts = {form: len(list(page.boxes(form))) for form in page.FORMS}
    # Each product on both cores, point-wise on one; or all of a cell on one.
    assert list(counts.values()) == [2 * 8 + 1, 2 * 2 + 1, 8 + 1, 2 * (8 + 1)]
    assert len({text for *_, text in page.boxes("concurrent")}) == 9


def test_the_measurement_is_verified(monkeypatch):
    options = {"sizes": asdict(Workload(2, 4, 5, 9, 4)), "batches": (1, 3), "rounds": 1}
    options["cases"] = {"baseline": (), "all": EVERY}
    right = Variant._fused
    wrong = lambda s, sums, b, c, h: right(s, sums, 2 * b, c, h)  # noqa: E731
    monkeypatch.setattr(Variant, "_fused", wrong)
    with pytest.raises(MismatchError, match=r"^all: y"):
        page.measure_passes(**options)
