"""How the pages measure: workloads, the runner, the comparer, timing, provenance,
peers, child processes, results files. What they measure: `lstm_report.experiments`.
"""

from .comparer import TOLERANCE, MismatchError, compare, compare_to_reference
from .provenance import machine
from .timing import disturbance, interleaved, summary

__all__ = [
    "TOLERANCE",
    "MismatchError",
    "compare",
    "compare_to_reference",
    "disturbance",
    "interleaved",
    "machine",
    "summary",
]
