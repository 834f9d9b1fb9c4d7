"""`cuda-v1`: the quick port. The kernels run on the GPU, on one thread.

What changed from `numpy`: the loops over samples, steps and units of a layer run in
kernels (`gpu/plain_kernels.py`); the output layer and the descent stay on the host.
NumPy arrays are passed as they are, so Numba copies each of them to the device before a
launch and back after it, whether the kernel writes it or not. Nothing is parallel:
bounded by the latency of one thread, which waits for every load.
"""

import warnings
from typing import NamedTuple

import numpy as np

from ..gpu import plain_kernels
from ..gpu.available import why_unavailable
from ..gpu.build import build
from ..gpu.device import Device, Grid
from ..gpu.layout import Sizes
from ..params import Layer
from .base import Network

KERNELS = "forward", "backward", "gradients"


class Tape(NamedTuple):
    """Of a layer: h (T+1, B, H) and the last c on the host; what kernels have, x, U, W,
    h, c and gates.
    """

    h: np.ndarray
    c: np.ndarray
    kept: tuple


class CudaV1(Network):
    """Gradients are summed in a fixed order: the same bits on every run."""

    name = "cuda-v1"
    device = Device
    why_unavailable = staticmethod(why_unavailable)

    def __init__(self, params, threads=None):
        super().__init__(params, threads)
        self._device = self.device(self.name)
        key = params.cell, params.dtype, (plain_kernels,), KERNELS
        self._kernels = build(*key, Sizes.of_cell(self._cell))

    def layer_forward(self, cell, layer, x, h0, c0):
        (T, B, D), H, K = x.shape, len(layer.W), len(cell.gates)
        matrices = layer.U.reshape(D, K, H), layer.W.reshape(H, K, H)
        x, U, W, b, h0, c0 = map(
            self.there, (x, *matrices, layer.b.reshape(K, H), h0, c0)
        )
        h, c = self.empty(T + 1, B, H), self.empty(T + 1, B, H)
        gates = self.empty(T, B, H, K)
        self._launch("forward", B, h0, c0, x, U, W, b, h, c, gates)
        return Tape(self.back(h), self.back(c[-1:]), (x, U, W, h, c, gates))

    def layer_backward(self, cell, layer, tape, dy, dh, dc):
        x, U, W, h, c, gates = tape.kept
        (T, B, H, K), D = gates.shape, x.shape[2]
        dy, dh, dc = map(self.there, (dy, dh, dc))
        da, dx = self.empty(T, B, H, K), self.empty(T, B, D)
        rows = self.empty(D + H + 1, K, H)
        self._launch("backward", B, U, W, c, gates, dy, dh, dc, da, dx)
        self._launch("gradients", (D + H + 1) * H, x, h, da, rows)
        dx, dh, dc, rows = map(self.back, (dx, dh, dc, rows))
        rows = rows.reshape(D + H + 1, K * H)
        return Layer(rows[:D], rows[D:-1], rows[-1]), dx, dh, dc

    def grid(self, count):
        """The Grid of a launch for so many samples, or units of rows."""
        return Grid(1, 1)

    def there(self, array):
        """A host's array as the kernels get it; they may write it."""
        return array.copy()

    def empty(self, *shape):
        """An array that a kernel fills."""
        self._device.check_room(np.prod(shape) * self._dtype.itemsize, "a tape")
        return np.empty(shape, self._dtype)

    def back(self, array):
        """What a kernel has written, on the host."""
        return array

    def _launch(self, name, count, *arrays):
        copied = sum(a.nbytes for a in arrays if isinstance(a, np.ndarray))
        self._device.sent += copied
        self._device.fetched += copied
        # These copies are counted: they are what V1 and V2 show.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Host array used in CUDA kernel")
            self._device.launch(self._kernels[name], self.grid(count), *arrays)
