"""What the notebooks, the benchmark and the tests share: comparing, timing, provenance, results,
plots.
"""

from .compare import TOLERANCE, MismatchError, compare, compare_to_reference
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


def __getattr__(name):
    if name == "Notebook":  # needs IPython, which a machine that only measures may lack
        from .notebook import Notebook

        return Notebook
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
