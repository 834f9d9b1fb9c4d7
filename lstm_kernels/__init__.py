"""Parallel LSTMs: one dependency graph, many schedules. See NOTATION.md for the symbols."""

import importlib
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
# Imported when first asked for: `lstm_kernels.forecast.HoltWinters`.
_MODULES = ("bench", "blas", "cells", "cores", "forecast", "reference", "report", "schedules")


def __getattr__(name: str) -> ModuleType:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f".{name}", __name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
