"""What the notebooks, the benchmark and the tests share: comparing, timing, provenance, results,
plots.
"""

from .compare import TOLERANCE, MismatchError, compare, compare_to_reference
from .notebook import Notebook
from .plots import COLOURS, style
from .provenance import machine
from .timing import interleaved, summary

__all__ = [
    "COLOURS",
    "TOLERANCE",
    "MismatchError",
    "Notebook",
    "compare",
    "compare_to_reference",
    "interleaved",
    "machine",
    "style",
    "summary",
]
