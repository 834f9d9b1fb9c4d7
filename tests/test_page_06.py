"""What page 06 says of its measurements, on made ones."""

from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
from pages import functions

from lstm_report.experiments.switches import COMBINATIONS, EVERY, Variant
from lstm_report.measure import MismatchError
from lstm_report.measure.workloads import Workload

page = functions("06")
CASES = [*page.measured_cases(), "numba-fused"]
COLUMNS = ["part", "case", "B", "process", "repeat", "seconds"]


def made(part, B=64, **seconds):
    """Rows of one part: seconds of each case, one number or one a process."""
    lines = [
        (part, case, B, process, repeat, value)
        for case, values in seconds.items()
        for process, value in enumerate(np.broadcast_to(values, 5))
        for repeat in range(2)
    ]
    return pd.DataFrame(lines, columns=COLUMNS)


def passes(**seconds):
    """A second for every case but those that are given; 0.2 and 0.1 seconds without
    products; a peak of 100 GFLOP/s, so that 20 GFLOP take 0.2 seconds at it.
    """
    rows = made("pass", **dict.fromkeys(CASES, 1.0) | seconds)
    rest = made("rest", baseline=0.2, all=0.1)
    return pd.concat([rows, rest, made("peak", B=0, peak=0.01)])


def test_the_cases_are_combinations_that_can_run():
    cases = page.measured_cases()
    assert len(cases) == len(set(cases.values())) == 16
    assert set(cases.values()) <= set(COMBINATIONS)
    assert cases["baseline"] == ()
    assert cases["all"] == EVERY
    for removed, on in page.WITHOUT.items():
        assert {*on, *removed.split(" and ")} == {*EVERY}
    assert {case for _, case in page.STEPS.values()} <= set(CASES)


def test_effects_are_those_that_were_made():
    switches = {"baseline": 2.0, "combine": [1.0, 1.6, 2.5, 2.0, 1.0], "fuse": 4.0}
    others = {"layout": 1.5, "layout + kernel": 0.5, "all": 0.8}
    found = page.effects(passes(**switches, **others))
    assert list(found["alone"].index) == [*page.ALONE, "kernel"]
    assert list(found["alone"].loc["combine"]) == pytest.approx([0.8, 1.25, 2])
    assert found["alone"]["middle"]["fuse"] == 0.5
    assert found["alone"]["middle"]["kernel"] == 3
    assert found["taken away"]["middle"].tolist() == pytest.approx([1.25] * 5)
    text = page.sentence_effects(found)
    assert "Alone, gain: *concurrent* 2x (2x to 2x)" in text
    assert "level: *combine*" in text
    assert "*fuse* 50 % slower (0.5x to 0.5x)." in text


def test_the_figure_of_effects():
    found = page.effects(passes(baseline=2.0, fuse=[2.1, 1, 1, 1, 1]))
    figure = page.figure_effects(found)
    upper, lower = figure.axes
    assert upper.get_title("left") == "Alone over the baseline, 4 of 6 gain"
    assert lower.get_title("left") == "Taken from all, 0 of 5 are missed"
    assert lower.get_xlabel() == "times as fast with it as without it (log)"
    dots = [line.get_xdata()[0] for line in upper.lines if line.get_marker() == "o"]
    assert dots == [2, 2, 2, 2, 2, 1]
    texts = [text.get_text() for text in upper.texts if text.get_text()]
    assert texts == ["2x", "2x", "level", "2x", "2x", "level", "Optim-LSTM's GPU"]
    want = [(2, 0), (1.82, 1), (1.2, 2), (1.063, 3), (1.3, 4)]
    np.testing.assert_allclose(upper.collections[0].get_offsets(), want)
    assert "Alone, gain: *combine* 2x" in figure.alt
    better = page.effects(passes(baseline=2.0, fuse=[1.9, 1, 1, 1, 1], all=0.9))
    upper, lower = page.figure_effects(better).axes
    assert upper.get_title("left") == "Alone over the baseline, 5 of 6 gain"
    assert lower.get_title("left") == "Taken from all, 5 of 5 are missed"


def test_the_table_in_the_project_s_order():
    table = page.table_order(passes(baseline=0.09, all=0.045), 20)
    assert list(table.index) == list(page.STEPS)
    assert list(table.loc["baseline"]) == ["1x", "182.5", "1x", "450"]
    assert list(table.loc["+ fuse"])[:2] == ["6.21x", "29.4"]
    assert list(table.loc["+ kernel: all"]) == ["", "", "2x (2x to 2x)", "225"]
    text = page.sentence_order(passes(baseline=0.073, all=0.0365), 20)
    assert text.startswith("All together 2x (2x to 2x) here")
    assert "2x as fast as this CPU at the baseline" in text
    assert "7.98x at the end" in text


def test_shares_of_the_peak():
    found = page.shares(passes(concurrent=0.6, all=0.5), 20)
    shares = dict.fromkeys(("baseline", "numba-fused", "rest of baseline"), 0.2)
    shares |= {"all": 0.4, "divided products": 0.25, "a product a core": 0.5}
    assert found.iloc[0].to_dict() == pytest.approx(shares | {"rest of all": 0.2})
    text = " ".join(page.sentence_why(found, 100.0).split())
    assert "at 7 % of its card's nominal peak" in text
    assert "33.6 MFLOP" in text
    assert "is 8 blocks for 20" in text
    assert "run at 25 % of the peak, and at 50 % with one product on each core" in text
    assert "the library does not keep all cores busy" in text
    level = page.shares(passes(concurrent=[1.0, 0.6, 0.6, 0.6, 0.6]), 20)
    assert "costs nothing that shows" in page.sentence_why(level, 100.0)


# 1 / 7.98 of the peak is 0.2 of 1.596 s; 57.3 % are 0.2 of 0.349 s.
@pytest.mark.parametrize(
    ("claim", "case", "inside", "beyond", "numbers"),
    [
        ("bound", "baseline", 1.59, 1.61, "to 40 % of the peak, so at most 2.5x"),
        ("end", "all", 0.348, 0.35, "57 to 67 %"),
        ("fused", "numba-fused", 0.99, 1.01, "to 40 % of the peak"),
    ],
)
def test_a_claim_needs_every_process(claim, case, inside, beyond, numbers):
    best = 0.3 if claim == "end" else 0.5
    for worst, held in ((inside, True), (beyond, False)):
        rows = passes(**{case: [best, best, worst, best, best]})
        found = page.shares(rows, 20)
        arguments = (rows, found) if claim == "fused" else (found,)
        said = getattr(page, f"claim_{claim}")(*arguments)
        assert said["held"] == held
        assert numbers in said["numbers"]
        assert "peak" in said["sentence"] + said["why"]
        assert "%" in said["why"]


def test_the_figure_over_the_batch():
    work = Workload(L=1, T=20, D=512, H=512, B=64)
    parts = [made("peak", B=0, peak=0.01)]
    for B, gflop in ((1, 0.0419), (224, 9.395)):  # 10 steps
        seconds = {"baseline": 0.02, "all": 0.0125, "numba-fused": 0.0111}
        parts.append(made("batch", B, **{n: s * gflop for n, s in seconds.items()}))
    shown = page.batch_shares(pd.concat(parts), work)
    table = shown.groupby(["B", "case"])["share"].median().unstack()
    assert table["baseline"].tolist() == pytest.approx([50, 50], rel=0.01)
    assert table["all"].tolist() == pytest.approx([80, 80], rel=0.01)
    (ax,) = page.figure_batches(shown).axes
    title = "Baseline: 50 % (1 sample) to 50 % (224) of the peak"
    assert ax.get_title("left") == title
    assert ax.get_xlabel() == "batch, samples (log)"
    assert ax.get_ylabel() == "share of the machine's peak, %"
    labels = {text.get_text() for text in ax.texts}
    assert labels == {*page.NAMES, "GPU", "Optim-LSTM optimised, plateau"}
    points = np.concatenate([mark.get_offsets() for mark in ax.collections[:2]])
    want = [(64, 7.19), (224, 26.4), (32, 29.8), (64, 57.4)]
    np.testing.assert_allclose(points, want, rtol=0.01)
    text = " ".join(page.sentence_batches(shown).split())
    assert "gain 1.6x with 1 sample and 1.6x with 224" in text
    assert "2.9x of that, and not" in text


def test_the_picture_of_the_cores():
    counts = {form: len(list(page.boxes(form))) for form in page.FORMS}
    # Each product on both cores, point-wise on one; or all of a cell on one.
    assert list(counts.values()) == [2 * 8 + 1, 2 * 2 + 1, 8 + 1, 2 * (8 + 1)]
    assert len({text for *_, text in page.boxes("concurrent")}) == 9
    figure = page.figure_cores()
    assert "one on each core" in figure.alt
    assert [ax.get_title("left").split(":")[0] for ax in figure.axes] == [*page.FORMS]


def test_the_measurement_is_verified(monkeypatch):
    options = {"sizes": asdict(Workload(2, 4, 5, 9, 4)), "batches": (1, 3), "rounds": 1}
    options["cases"] = {"baseline": (), "all": EVERY}
    rows = page.measure_passes(**options)
    counts = rows.groupby("part").size().to_dict()
    assert counts == {"pass": 3, "rest": 2, "batch": 2 * 3 * 2, "peak": 6}
    assert (rows["seconds"] > 0).all()
    right = Variant._fused
    wrong = lambda s, sums, b, c, h: right(s, sums, 2 * b, c, h)  # noqa: E731
    monkeypatch.setattr(Variant, "_fused", wrong)
    with pytest.raises(MismatchError, match=r"^all: y"):
        page.measure_passes(**options)
