"""What is measured and how: comparing, timing, the experiments, provenance, results files."""

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
