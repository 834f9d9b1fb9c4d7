"""Evidence from fresh processes: ranges, ratios, words; what runs in a process."""

import os
from itertools import product

import numpy as np
import pandas as pd
import pytest

from lstm_report.measure import evidence
from lstm_report.measure.evidence import Interval, digits, speed
from lstm_report.measure.process import ProcessError


def test_an_interval_is_the_range_over_processes():
    assert Interval.of([3.0, 1.0, 2.0, 9.0, 2.5]) == (1.0, 2.5, 9.0)
    for values in ([], [1.0, np.nan]):
        with pytest.raises(ValueError, match="values: got"):
            Interval.of(values)


def test_a_ratio_is_the_median_of_the_rounds_of_each_process():
    # Of the ratios 2, 2 and 8; the medians' own ratio is 4.
    taken = {"old": [[2, 8, 16], [3, 3, 3]], "new": [[1, 4, 2], [1, 1, 6]]}
    rows = [(c, p, r, taken[c][p][r]) for c, p, r in product(taken, (0, 1), range(3))]
    rows = pd.DataFrame(rows, columns=["case", "process", "repeat", "seconds"])
    table = evidence.ratios(rows, "old")
    assert table["new"].to_list() == [2.0, 3.0]
    assert table["old"].to_list() == [1.0, 1.0]
    frame = evidence.intervals(table)
    assert frame.loc["new"].to_dict() == {"low": 2.0, "middle": 2.5, "high": 3.0}
    assert evidence.seconds(rows)["new"].to_list() == [2.0, 1.0]


WORDS = {
    2.0: "2x",
    1234.0: "1230x",
    0.97: "3 % slower",
    float("nan"): "not measured",
    Interval(1.87, 1.9, 1.93): "1.9x (1.87x to 1.93x)",
    Interval(1.001, 1.05, 1.1): "1.05x (1x to 1.1x)",
    Interval(0.5, 0.8, 0.9): "20 % slower (0.5x to 0.9x)",
    # Level is where 1 lies in the range, its ends too.
    Interval(0.98, 1.01, 1.02): "level (0.98x to 1.02x)",
    Interval(1.0, 1.01, 1.02): "level (1x to 1.02x)",
    Interval(0.98, 0.99, 1.0): "level (0.98x to 1x)",
}


def test_ratios_and_numbers_in_words():
    assert [speed(ratio) for ratio in WORDS] == list(WORDS.values())
    shown = {0.012345: "0.0123", 1.2345: "1.23", 123.45: "123", 12345.0: "12300"}
    assert {value: digits(value) for value in shown} == shown


def measured(value=1.0, end="", path=""):
    """Only this source goes to a process, so it imports what it needs."""
    import atexit
    import ctypes
    import os
    import time
    from pathlib import Path

    import pandas as pd

    if end == "raise":
        raise RuntimeError("no such machine")
    if end == "wait":
        time.sleep(60)
    if end == "crash":
        atexit.register(os._exit, 3)  # once the rows are written
    if end == "stay":  # never freed, and with it the globals of the program
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(measured))
    if end == "once":
        if Path(path).exists():
            os._exit(0)
        Path(path).touch()
    row = {"case": "a", "repeat": 0, "seconds": value, "pid": os.getpid()}
    return pd.DataFrame([row])


@pytest.mark.parametrize("end", ["", "stay"])
def test_each_process_is_a_new_one_and_its_rows_arrive(end):
    rows = evidence.fresh(measured, 2, value=0.25, end=end)
    assert rows["process"].to_list() == [0, 1]
    assert rows["seconds"].to_list() == [0.25, 0.25]
    assert len({*rows["pid"], os.getpid()}) == 3
    assert isinstance(rows.attrs["conditions"], dict)


@pytest.mark.parametrize(
    ("end", "count", "limit", "said"),
    [
        ("raise", 1, 60, r"status 1:[\s\S]*no such machine"),
        ("wait", 1, 1, "not finished in time"),
        ("crash", 1, 60, "status 3:"),
        # Rows of the first process do not stand for those of the second.
        ("once", 2, 60, "status 0, no rows"),
    ],
)
def test_a_process_that_fails_says_what_it_printed(tmp_path, end, count, limit, said):
    with pytest.raises(ProcessError, match=f"measured: {said}"):
        evidence.fresh(measured, count, limit=limit, end=end, path=str(tmp_path / "a"))
