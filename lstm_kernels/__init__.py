"""Parallel LSTMs: one dependency graph, many schedules. See NOTATION.md for the
symbols.
"""

import importlib
from importlib.util import find_spec
from pkgutil import iter_modules
from types import ModuleType

from .data import Dataset
from .errors import DivergedError, UnavailableError
from .params import Grads, Layer, Params
from .training import History, train
from .versions import Version, network, versions

__version__ = "0.1.0"
__all__ = [
    "Dataset",
    "DivergedError",
    "Grads",
    "History",
    "Layer",
    "Params",
    "UnavailableError",
    "Version",
    "network",
    "train",
    "versions",
]


def __getattr__(name: str) -> ModuleType:
    """A module of the package, imported when first asked for:
    `lstm_kernels.forecast`.
    """
    if find_spec(f".{name}", __name__) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f".{name}", __name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *(module.name for module in iter_modules(__path__))})
