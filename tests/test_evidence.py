"""Evidence from fresh processes: ranges, ratios, words; what runs in a process."""

import os
import time
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lstm_report.measure import evidence
from lstm_report.measure.evidence import Interval, digits, speed
from lstm_report.measure.process import ProcessError

NUMBERS = st.lists(st.floats(1e-3, 1e3), min_size=1)


@given(NUMBERS, NUMBERS, st.sampled_from([0.5, 1, 2]))
def test_a_threshold_is_met_in_every_process(values, others, limit):
    one, other = Interval.of(values), Interval.of(others)
    assert (one.low, one.high) == (min(values), max(values))
    assert one.middle == pytest.approx(np.median(values))
    assert evidence.at_least(one, limit) == all(v >= limit for v in values)
    assert evidence.at_most(one, limit) == all(v <= limit for v in values)
    assert evidence.ahead(one, other) == all(v > w for v in values for w in others)
    assert one.level == (min(values) <= 1 <= max(values))
    for none in ([], [*values, np.nan]):
        with pytest.raises(ValueError, match="values: got"):
            Interval.of(none)


def test_a_ratio_is_the_median_of_the_rounds_of_each_process():
    # Of the ratios 2, 2 and 8; the medians' own ratio is 4.
    taken = {"old": [[2, 8, 16], [3, 3, 3]], "new": [[1, 4, 2], [1, 1, 6]]}
    rows = [(c, p, r, taken[c][p][r]) for c, p, r in product(taken, (0, 1), range(3))]
    rows = pd.DataFrame(rows, columns=["case", "process", "repeat", "seconds"])
    table = evidence.ratios(rows, "old")
    assert table["new"].to_list() == [2.0, 3.0]
    frame = evidence.intervals(table)
    assert frame.loc["new"].to_dict() == {"low": 2.0, "middle": 2.5, "high": 3.0}
    assert evidence.seconds(rows)["new"].to_list() == [2.0, 1.0]
    for wrong in (np.nan, 0, -1):  # as no clock gives
        rows.loc[3, "seconds"] = wrong
        for told in (evidence.seconds, lambda rows: evidence.ratios(rows, "old")):
            with pytest.raises(ValueError, match="rows: got seconds"):
                told(rows)


WORDS = {
    2.0: "2x",
    1234.0: "1230x",
    0.97: "3 % slower",
    0.5: "50 % slower",
    0.493: "0.493x",
    float("nan"): "not measured",
    Interval(1.001, 1.05, 1.1): "1.05x (1x to 1.1x)",
    Interval(0.5, 0.8, 0.9): "20 % slower (0.5x to 0.9x)",
    # Level is where 1 lies in the range, its ends too.
    Interval(1.0, 1.01, 1.02): "no difference (1x to 1.02x)",
}


def test_ratios_and_numbers_in_words_have_their_unit():
    assert [speed(ratio) for ratio in WORDS] == list(WORDS.values())
    shown = {0.012345: "0.0123", 1.2345: "1.23", 123.45: "123", 12345.0: "12300"}
    assert {value: digits(value) for value in shown} == shown
    told = (
        evidence.ms(0.0015),
        evidence.us(2e-6),
        evidence.ns(Interval(1e-9, 2e-9, 3e-9)),
    )
    assert told == ("1.5 ms", "2 \N{MICRO SIGN}s", "2 ns (1 to 3)")
    told = evidence.percent(0.125), evidence.kib(2048), evidence.gflops(1234.5)
    assert told == ("12.5 %", "2 KiB", "1230 GFLOP/s")


def measured(value=1.0, end="", path="", process=0):
    """A row, and how its process ends."""
    if end == "raise":
        raise RuntimeError("no such machine")
    if end == "wait":
        time.sleep(60)
    if end == "once" and process:
        os._exit(0)
    if end == "no table":
        return [1.0]
    if end == "empty":
        return pd.DataFrame({"seconds": []})
    if end.startswith("noisy"):  # the first process; the others are quiet
        slower = 1.0 if Path(path).exists() else 9.0
        if end == "noisy, then nothing" and slower == 1 and not process:
            os._exit(0)
        Path(path).touch()
        taken = [value * slower**k for k in range(4)]
        return pd.DataFrame({"case": "a", "repeat": range(4), "seconds": taken})
    if end == "worse":  # every process, each noisier than the one before
        with Path(path).open("a") as calls:
            calls.write("x")
        taken = [Path(path).stat().st_size ** k for k in range(1, 5)]
        return pd.DataFrame({"case": "a", "repeat": range(4), "seconds": taken})
    row = {"case": "a", "repeat": 0, "seconds": value + process, "pid": os.getpid()}
    return pd.DataFrame([row])


def test_each_process_is_a_new_one_that_knows_its_number_and_its_rows_arrive():
    rows = evidence.fresh(measured, 2, value=0.25)
    assert rows["process"].to_list() == [0, 1]
    assert rows["seconds"].to_list() == [0.25, 1.25]
    assert len({*rows["pid"], os.getpid()}) == 3
    assert isinstance(rows.attrs["conditions"], dict)

    def inner():
        """Not at the top of its module."""

    with pytest.raises(ValueError, match=r"measure: got test_evidence\..*inner, want"):
        evidence.fresh(inner)


@pytest.mark.parametrize(
    ("end", "count", "limit", "said"),
    [
        ("raise", 1, 60, r"status 1:[\s\S]*no such machine"),
        ("wait", 1, 1, "not finished in time"),
        # Rows of the first process do not stand for those of the second.
        ("once", 2, 60, "status 0, no rows"),
        ("no table", 1, 60, "got list, want a table"),
        ("empty", 1, 60, "got no rows, want a table"),
    ],
)
def test_a_process_that_fails_says_what_it_printed(end, count, limit, said):
    with pytest.raises(ProcessError, match=f"measured: {said}"):
        evidence.fresh(measured, count, limit=limit, end=end)


def test_a_process_that_was_disturbed_is_repeated(tmp_path):
    rows = evidence.fresh(measured, 2, end="noisy", path=str(tmp_path / "a"))
    assert rows["process"].to_list() == [0] * 4 + [1] * 4
    assert rows["seconds"].max() < 9
    # Twice at most, and of two the quieter is kept: of calls 2 to 7 these.
    (tmp_path / "c").write_text("x")
    rows = evidence.fresh(measured, 4, end="worse", path=str(tmp_path / "c"))
    first = rows[rows["repeat"] == 0]["seconds"].to_list()
    assert (first, (tmp_path / "c").stat().st_size) == ([2, 4, 6, 7], 7)
    # What it measured first stays where the second one fails.
    path = str(tmp_path / "b")
    rows = evidence.fresh(measured, 2, end="noisy, then nothing", path=path)
    assert rows.groupby("process")["seconds"].max().to_list() == [729, 1]
    for processes in (0, -1, 2.5):
        with pytest.raises((ValueError, TypeError), match="processes: got"):
            evidence.fresh(measured, processes)
