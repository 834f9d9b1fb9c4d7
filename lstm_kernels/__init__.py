"""Parallel LSTMs: one dependency graph, many schedules. See NOTATION.md for the symbols."""

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
