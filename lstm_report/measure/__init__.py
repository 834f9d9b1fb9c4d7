"""What is measured and how: workloads, the one runner, the comparer, timing,
provenance, results files; the experiments are lists on top of them.
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
