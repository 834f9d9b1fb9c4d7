"""Evidence from fresh processes: ranges, ratios, words; what runs in a process."""

import os

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


@pytest.mark.parametrize(
    ("low", "high", "level"),
    [(0.9, 1.1, True), (1.0, 1.1, True), (0.9, 1.0, True), (1.001, 1.1, False)],
)
def test_level_is_where_one_lies_in_the_range(low, high, level):
    assert Interval(low, (low + high) / 2, high).level == level
    assert ("level" in speed(Interval(low, (low + high) / 2, high))) == level


def test_a_ratio_is_the_median_of_the_rounds_of_each_process():
    # Drift: each round takes longer, and the ratio of a round stays 2, 4 and 4.
    seconds = {"old": [[2, 8, 16], [3, 3, 3]], "new": [[1, 2, 4], [1, 1, 6]]}
    rows = pd.DataFrame(
        [
            {"case": case, "process": process, "repeat": repeat, "seconds": value}
            for case, processes in seconds.items()
            for process, rounds in enumerate(processes)
            for repeat, value in enumerate(rounds)
        ]
    )
    table = evidence.ratios(rows, "old")
    assert table["new"].to_list() == [4.0, 3.0]
    assert table["old"].to_list() == [1.0, 1.0]
    frame = evidence.intervals(table)
    assert frame.loc["new"].to_dict() == {"low": 3.0, "middle": 3.5, "high": 4.0}
    assert evidence.seconds(rows)["new"].to_list() == [2.0, 1.0]


def test_ratios_and_numbers_in_words():
    words = {
        2.0: "2x",
        1234.0: "1230x",
        0.97: "3 % slower",
        float("nan"): "not measured",
        Interval(1.87, 1.9, 1.93): "1.9x (1.87x to 1.93x)",
        Interval(0.5, 0.8, 0.9): "20 % slower (0.5x to 0.9x)",
        Interval(0.98, 1.01, 1.02): "level (0.98x to 1.02x)",
    }
    assert [speed(ratio) for ratio in words] == list(words.values())
    shown = {0.012345: "0.0123", 1.2345: "1.23", 123.45: "123", 12345.0: "12300"}
    assert {value: digits(value) for value in shown} == shown


# Sources of programs: each imports what it needs.


def measured(value):
    import os

    import pandas as pd

    row = {"case": "a", "repeat": 0, "seconds": value, "pid": os.getpid()}
    return pd.DataFrame([row])


def measured_once(path):
    import os
    from pathlib import Path

    import pandas as pd

    if Path(path).exists():
        os._exit(0)
    Path(path).touch()
    return pd.DataFrame({"case": ["a"], "repeat": [0], "seconds": [1.0]})


def measured_and_crashed():
    import atexit
    import os

    import pandas as pd

    atexit.register(os._exit, 3)  # once the rows are written
    return pd.DataFrame({"case": ["a"], "repeat": [0], "seconds": [1.0]})


def measured_and_stayed():
    import ctypes

    import pandas as pd

    # Never freed, and with it the globals of the program.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(measured_and_stayed))
    return pd.DataFrame({"case": ["a"], "repeat": [0], "seconds": [1.0]})


def failed():
    raise RuntimeError("no such machine")


def waited():
    import time

    time.sleep(60)


def test_each_process_is_a_new_one():
    rows = evidence.fresh(measured, 2, value=0.25)
    assert rows["process"].to_list() == [0, 1]
    assert rows["seconds"].to_list() == [0.25, 0.25]
    assert len({*rows["pid"], os.getpid()}) == 3
    assert isinstance(rows.attrs["conditions"], dict)


def test_rows_arrive_whatever_a_program_keeps_alive():
    assert evidence.fresh(measured_and_stayed, 1)["seconds"].to_list() == [1.0]


@pytest.mark.parametrize(
    ("measure", "count", "limit", "said"),
    [
        (failed, 1, 60, r"failed: status 1:[\s\S]*no such machine"),
        (waited, 1, 1, "waited: not finished in time"),
        (measured_and_crashed, 1, 60, "measured_and_crashed: status 3:"),
        # Rows of the first process do not stand for those of the second.
        (measured_once, 2, 60, "measured_once: status 0, no rows"),
    ],
)
def test_a_process_that_fails_says_what_it_printed(
    tmp_path, measure, count, limit, said
):
    given = {"path": str(tmp_path / "ran")} if measure is measured_once else {}
    with pytest.raises(ProcessError, match=said):
        evidence.fresh(measure, count, limit=limit, **given)
