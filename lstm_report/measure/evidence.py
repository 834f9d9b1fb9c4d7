"""Evidence from fresh processes: a measurement runs in several, one after the other,
and an effect is the range of what they found.

Rounds within one process share its memory layout, its choices and its moment; another
process, another day, need not find what they agree on. The range of five processes
holds the median of all processes with probability 1 - 2 / 2^5 = 94 %, whatever their
distribution.
"""

import inspect
import json
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lstm_kernels.errors import check_int

from .process import ProcessError, run
from .timing import disturbance, together, unrest

PROCESSES = 5
MOST_AGAIN = 2  # processes of a measurement that are repeated where they were disturbed
# Files are closed at once: what a compiled function keeps alive, the interpreter's end
# does not write out.
CHILD = """
import importlib, json, pickle, signal, sys
from pathlib import Path
paths, module, name, given, out = sys.argv[1:]
# Behind its own: nothing of a folder that the caller has must hide a library.
sys.path += [path for path in json.loads(paths) if path not in sys.path]
from lstm_kernels.ranks.launch import die_with_parent
die_with_parent(signal.SIGKILL)
from lstm_report.measure.timing import conditions, system
measure = getattr(importlib.import_module(module), name)
before = system()
rows = measure(**pickle.loads(Path(given).read_bytes()))
Path(out).write_bytes(pickle.dumps((rows, conditions(before, system()))))
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
    env: Mapping[str, str] | None = None,
    **arguments: Any,
) -> pd.DataFrame:
    """The rows of a measurement from each of several new processes, one after the
    other: what it returns, a DataFrame, with a column `process`. Of a process that was
    disturbed, the first MOST_AGAIN times, a second one is run, and the quieter kept;
    a second one that fails is passed over.

    measure: a function of a module, which each process imports; a parameter `process`
    of it gets the number of the process, as a seed. arguments: its own, by name; they
    can be pickled. limit: seconds for each process. env: more of its environment.
    Raises ValueError for a function that no process can import, ProcessError with the
    output of one that fails or ends without rows.
    """
    check_int("processes", processes)
    module = getattr(measure, "__module__", "__main__")
    name = getattr(measure, "__qualname__", repr(measure))
    if module == "__main__" or "." in name:
        got = f"{module}.{name}"[:200]
        raise ValueError(f"measure: got {got}, want a function of a module")
    parts, again = [], MOST_AGAIN
    numbered = "process" in inspect.signature(measure).parameters
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder, "arguments")
        for process in range(processes):
            if numbered:
                arguments["process"] = process
            given.write_bytes(pickle.dumps(arguments))
            out = Path(folder, f"{process}")
            found = [_rows(measure, given, out, limit, env, process)]
            if again and disturbance(found[0]):
                again -= 1
                out.unlink()
                with suppress(ProcessError):  # what was measured stays
                    found.append(_rows(measure, given, out, limit, env, process))
            parts.append(min(found, key=unrest))
    return together(parts)


def _rows(measure, given, out, limit, env, process):
    """The rows of a measurement from one new process, which writes them to `out`; with
    the number of the process.
    """
    call = [measure.__module__, measure.__name__, str(given), str(out)]
    words = [sys.executable, "-P", "-c", CHILD, json.dumps(sys.path), *call]
    code, output = run(words, limit=limit, env=env)
    if code != 0 or not out.exists():
        what = "not finished in time" if code is None else f"status {code}"
        what += ", no rows" if code == 0 else ""
        raise ProcessError(f"{measure.__name__}: {what}:\n{output}", output)
    rows, conditions = pickle.loads(out.read_bytes())
    if not isinstance(rows, pd.DataFrame) or rows.empty:
        got = "no rows" if isinstance(rows, pd.DataFrame) else type(rows).__name__
        raise ProcessError(f"{measure.__name__}: got {got}, want a table of rows")
    rows = rows.assign(process=process)
    rows.attrs["conditions"] = conditions
    return rows


def seconds(rows: pd.DataFrame, by: str = "case") -> pd.DataFrame:
    """Median seconds of each process: a row a process, a column for each `by`."""
    _checked(rows)
    medians = rows.groupby(["process", by], sort=False)["seconds"].median()
    return medians.unstack(by)


def _checked(rows):
    """ValueError for seconds that no clock gives."""
    wrong = rows["seconds"][~(rows["seconds"] > 0)]
    if len(wrong):
        raise ValueError(f"rows: got seconds {wrong.iloc[0]}, want more than 0")


def ratios(rows: pd.DataFrame, baseline: str, by: str = "case") -> pd.DataFrame:
    """How many times faster than `baseline` each case is, a row a process: the median
    of the ratios round by round, in which neighbours in time are compared.
    """
    _checked(rows)
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


def at_least(value: float | Interval, least: float) -> bool:
    """Whether a number is, or in every process was, at least so large."""
    return bool((value.low if isinstance(value, Interval) else value) >= least)


def at_most(value: float | Interval, most: float) -> bool:
    """Whether a number is, or in every process was, at most so large."""
    return bool((value.high if isinstance(value, Interval) else value) <= most)


def ahead(one: Interval, other: Interval) -> bool:
    """Whether the least of one is above the largest of the other."""
    return bool(one.low > other.high)


def digits(value: float) -> str:
    """A number with three significant digits, without an exponent."""
    return f"{float(f'{value:.3g}'):.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _in(scale: float, unit: str) -> Callable[[float | Interval], str]:
    """A function that says a number times `scale` with its unit; of an Interval its
    middle, and its ends in brackets.
    """

    def told(value: float | Interval) -> str:
        if isinstance(value, Interval):
            ends = f"{digits(scale * value.low)} to {digits(scale * value.high)}"
            return f"{digits(scale * value.middle)} {unit} ({ends})"
        return f"{digits(scale * value)} {unit}"

    return told


# Of seconds, of a fraction, of operations a second in 1e9, of bytes.
ms, us, ns = _in(1e3, "ms"), _in(1e6, "\N{MICRO SIGN}s"), _in(1e9, "ns")
percent, gflops = _in(100, "%"), _in(1, "GFLOP/s")
kib, mib = _in(2**-10, "KiB"), _in(2**-20, "MiB")


def took(seconds: float) -> str:
    """Seconds as text, in ms from 10 ms on."""
    return ms(seconds) if seconds >= 0.01 else us(seconds)


def speed(ratio: float | Interval) -> str:
    """How many times as fast, as text: of a number, or of an Interval of ratios.

    "2.1x", "3 % slower", "0.07x", which is less than half the speed;
    "1.9x (1.87x to 1.93x)", "no difference (0.98x to 1.02x)".
    """
    if not isinstance(ratio, Interval):
        if pd.isna(ratio):
            return "not measured"
        below = f"{digits(100 * (1 - ratio))} % slower"
        return below if 0.5 <= ratio < 1 else f"{digits(ratio)}x"
    middle = "no difference" if ratio.level else speed(ratio.middle)
    return f"{middle} ({digits(ratio.low)}x to {digits(ratio.high)}x)"
