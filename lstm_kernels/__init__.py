"""Parallel LSTMs: the same network in many forms, from plain loops to a GPU.

Sequences are time first, x (T, B, D). Symbols: input weights U (D, G*H), recurrent
weights W (H, G*H), bias b (G*H,), output layer V (H, O) and b_out (O,), for G gates.

>>> import numpy as np
>>> params = Params.init(input_size=1, hidden_size=32, output_size=1)
>>> net = network("numba-fused", params)
>>> x = np.ones((12, 3, 1), np.float32)
>>> y, state = net.forward(x)
>>> y.shape
(12, 3, 32)
"""

from . import data, forecast
from .data import Dataset
from .errors import DivergedError, UnavailableError
from .params import Grads, Layer, Params
from .training import History, train
from .versions import Version, network, versions

__version__ = "0.2.0"
__all__ = [
    "Dataset",
    "DivergedError",
    "Grads",
    "History",
    "Layer",
    "Params",
    "UnavailableError",
    "Version",
    "data",
    "forecast",
    "network",
    "train",
    "versions",
]
