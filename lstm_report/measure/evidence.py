"""Evidence from fresh processes: a measurement runs in several, one after the other,
and an effect is the range of what they found.

Rounds within one process share its memory layout, its choices and its moment; another
process, another day, need not find what they agree on. The range of five processes
holds the median of all processes with probability 1 - 2 / 2^5 = 94 %, whatever their
distribution.
"""

import inspect
import pickle
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from .process import ProcessError, run
from .timing import together

PROCESSES = 5
# The function's own source, then its rows and what disturbed them. Files are closed at
# once: what a compiled function keeps alive, the interpreter's end does not write out.
CHILD = """
import pickle, sys
from pathlib import Path
from lstm_report.measure.timing import conditions, system
_arguments, _out = map(Path, sys.argv[1:])
_before = system()
_rows = {name}(**pickle.loads(_arguments.read_bytes()))
_out.write_bytes(pickle.dumps((_rows, conditions(_before, system()))))
"""


class Interval(NamedTuple):
    """The least, the median and the largest value over processes."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Interval":
        """That of numbers, one of each process; ValueError for none or for NaN."""
        found = np.asarray(values, float)
        if not found.size or np.isnan(found).any():
            raise ValueError(f"values: got {found}, want a number of each process")
        return cls(found.min(), float(np.median(found)), found.max())

    @property
    def level(self) -> bool:
        """Whether 1, no effect, lies in it."""
        return self.low <= 1 <= self.high

    def __str__(self) -> str:
        ends = f"{digits(self.low)} to {digits(self.high)}"
        return f"{digits(self.middle)} ({ends})"


def fresh(
    measure: Callable,
    processes: int = PROCESSES,
    *,
    limit: float = 600.0,
    **arguments: Any,
) -> pd.DataFrame:
    """The rows of a measurement from each of several new processes, one after the
    other: what it returns, a DataFrame, with a column `process`.

    measure: a function, also one of a notebook; only its source goes to the process, so
    it imports what it needs. arguments: its own, by name; they can be pickled. limit:
    seconds for each process. Raises ProcessError with the output of one that fails
    or ends without rows.
    """
    source = textwrap.dedent(inspect.getsource(measure))
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder, "arguments")
        given.write_bytes(pickle.dumps(arguments))
        program = Path(folder, "measure.py")  # a file, as `inspect` wants
        program.write_text(source + CHILD.format(name=measure.__name__))
        for process in range(processes):
            found = Path(folder, f"rows{process}")  # never those of the last one
            words = [sys.executable, str(program), str(given), str(found)]
            env = {"PYTHONPATH": str(Path(__file__).parents[2])}
            code, output = run(words, env=env, limit=limit)
            if code != 0 or not found.exists():
                what = "not finished in time" if code is None else f"status {code}"
                what += ", no rows" if code == 0 else ""
                raise ProcessError(f"{measure.__name__}: {what}:\n{output}", output)
            rows, conditions = pickle.loads(found.read_bytes())
            part = rows.assign(process=process)
            part.attrs["conditions"] = conditions
            parts.append(part)
    return together(parts)


def seconds(rows: pd.DataFrame, by: str = "case") -> pd.DataFrame:
    """Median seconds of each process: a row a process, a column for each `by`."""
    medians = rows.groupby(["process", by], sort=False)["seconds"].median()
    return medians.unstack(by)


def ratios(rows: pd.DataFrame, baseline: str, by: str = "case") -> pd.DataFrame:
    """How many times faster than `baseline` each case is, a row a process: the median
    of the ratios round by round, in which neighbours in time are compared.
    """
    table = rows.pivot_table(
        index=["process", "repeat"], columns=by, values="seconds", sort=False
    )
    return table.rdiv(table[baseline], axis=0).groupby("process").median()


def intervals(values: pd.DataFrame) -> pd.DataFrame:
    """The Interval of each column of a table with a row a process, as a DataFrame with
    columns low, middle, high.
    """
    found = {name: Interval.of(values[name]) for name in values}
    return pd.DataFrame.from_dict(found, orient="index", columns=Interval._fields)


def digits(value: float) -> str:
    """A number with three significant digits, without an exponent."""
    return f"{float(f'{value:.3g}'):.0f}" if abs(value) >= 100 else f"{value:.3g}"


def speed(ratio: float | Interval) -> str:
    """How many times as fast, as text: of a number, or of an Interval of ratios.

    "2.1x", "3 % slower"; "1.9x (1.87x to 1.93x)", "level (0.98x to 1.02x)".
    """
    if not isinstance(ratio, Interval):
        if pd.isna(ratio):
            return "not measured"
        below = f"{digits(100 * (1 - ratio))} % slower"
        return below if ratio < 1 else f"{digits(ratio)}x"
    middle = "level" if ratio.level else speed(ratio.middle)
    return f"{middle} ({digits(ratio.low)}x to {digits(ratio.high)}x)"
