"""Evidence from fresh processes: ranges, ratios, words; what runs in a process."""

import os

import numpy as np
import pandas as pd
import pytest

from lstm_report.measure import evidence
from lstm_report.measure.evidence import Interval, digits, speed
from lstm_report.measure.process import ProcessError


def rows_of(times):
    """Rows from case -> a list for each process of the seconds of each round."""
    made = [
        (case, process, repeat, seconds)
        for case, processes in times.items()
        for process, rounds in enumerate(processes)
        for repeat, seconds in enumerate(rounds)
    ]
    return pd.DataFrame(made, columns=["case", "process", "repeat", "seconds"])


def test_an_interval_is_the_range_over_processes():
    assert Interval.of([3.0, 1.0, 2.0, 9.0, 2.5]) == (1.0, 2.5, 9.0)
    assert Interval.of([1.5]) == (1.5, 1.5, 1.5)
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
    rows = rows_of(
        {"old": [[2, 8, 16], [3, 3, 3]], "new": [[1, 2, 4], [1, 1, 6]]},
    )
    table = evidence.ratios(rows, "old")
    assert table["new"].to_list() == [4.0, 3.0]
    assert table["old"].to_list() == [1.0, 1.0]
    frame = evidence.intervals(table)
    assert frame.loc["new"].to_list() == [3.0, 3.5, 4.0]
    assert list(frame) == ["low", "middle", "high"]
    assert evidence.seconds(rows)["new"].to_list() == [2.0, 1.0]


def test_words():
    assert speed(2.0) == "2x"
    assert speed(1234.0) == "1230x"
    assert speed(0.97) == "3 % slower"
    assert speed(float("nan")) == "not measured"
    assert speed(Interval(1.87, 1.9, 1.93)) == "1.9x (1.87x to 1.93x)"
    assert speed(Interval(0.5, 0.8, 0.9)) == "20 % slower (0.5x to 0.9x)"
    assert speed(Interval(0.98, 1.01, 1.02)) == "level (0.98x to 1.02x)"
    assert str(Interval(1.0, 2.0, 3.0)) == "2 (1 to 3)"
    assert [digits(v) for v in (0.012345, 1.2345, 123.45, 12345.0)] == [
        "0.0123",
        "1.23",
        "123",
        "12300",
    ]


def measure_pid(value):
    import os

    import pandas as pd

    return pd.DataFrame({"case": ["a"], "repeat": [0], "seconds": [value]}).assign(
        pid=os.getpid()
    )


def measure_wrongly():
    raise RuntimeError("no such machine")


def measure_once(path):
    import os
    from pathlib import Path

    import pandas as pd

    if Path(path).exists():
        os._exit(0)
    Path(path).touch()
    return pd.DataFrame({"case": ["a"], "repeat": [0], "seconds": [1.0]})


def measure_for_ever():
    import time

    time.sleep(60)


def measure_and_crash():
    import atexit
    import os

    import pandas as pd

    atexit.register(os._exit, 3)  # once the rows are written
    return pd.DataFrame({"case": ["a"], "repeat": [0], "seconds": [1.0]})


def measure_that_stays():
    import ctypes

    import pandas as pd

    # Never freed, and with it the globals of the program.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(measure_that_stays))
    return pd.DataFrame({"case": ["a"], "repeat": [0], "seconds": [1.0]})


def test_rows_arrive_whatever_a_program_keeps_alive():
    assert evidence.fresh(measure_that_stays, 1)["seconds"].to_list() == [1.0]


def test_each_process_is_a_new_one():
    rows = evidence.fresh(measure_pid, 2, value=0.25)
    assert rows["process"].to_list() == [0, 1]
    assert rows["seconds"].to_list() == [0.25, 0.25]
    assert len({*rows["pid"], os.getpid()}) == 3
    assert isinstance(rows.attrs["conditions"], dict)


def test_a_process_that_fails_says_what_it_printed():
    with pytest.raises(ProcessError, match=r"measure_wrongly: status 1:[\s\S]*no such"):
        evidence.fresh(measure_wrongly, 1)
    with pytest.raises(ProcessError, match="measure_for_ever: not finished in time"):
        evidence.fresh(measure_for_ever, 1, limit=1)


def test_rows_of_a_process_that_crashed_after_them_are_not_taken():
    with pytest.raises(ProcessError, match="measure_and_crash: status 3:"):
        evidence.fresh(measure_and_crash, 1)


def test_rows_of_one_process_do_not_stand_for_those_of_the_next(tmp_path):
    with pytest.raises(ProcessError, match="measure_once: status 0, no rows"):
        evidence.fresh(measure_once, 2, path=str(tmp_path / "ran"))
