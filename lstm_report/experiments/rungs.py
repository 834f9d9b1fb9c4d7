"""Page 03's study versions: what the ladder's rungs bundle, one idea at a time."""

import ctypes
import math
import timeit
from functools import cache, partial

import numpy as np
from numba import njit

from lstm_kernels import kernels
from lstm_kernels.cells import CELLS, lstm, sigmoid_of
from lstm_kernels.cpu import registers, simd
from lstm_kernels.cpu.tiles import Tiles
from lstm_kernels.cpu.workspace import at, buffer
from lstm_kernels.versions.numba_fused import NumbaFused
from lstm_kernels.versions.numba_tile import add_rows

PANEL = 256  # columns


def compiled(function, **names):
    """A function through Numba, its free names filled in, cached on disk."""
    made = kernels.fill([function], names, "rungs")[function.__name__]
    return kernels.cached(njit, made, **kernels.OPTIONS)


@cache
def compiled_loops():
    """`sequential`'s forward pass of an LSTM layer compiled as it stands: a function of
    x (T, B, D), U, W, b, which returns y (T, B, H).
    """
    cell, _ = map(njit, lstm(math.tanh, njit(sigmoid_of(math.tanh))))
    return compiled(forward_loops, cell=cell)


cell = None  # which `compiled` fills in


def forward_loops(x, U, W, b):
    """Sample by sample, step by step, row by row, unit by unit."""
    (T, B, D), H = x.shape, len(W)
    h, c, a = np.zeros((T + 1, B, H), x.dtype), np.zeros(H, x.dtype), b.copy()
    for s in range(B):
        c[:] = 0
        for t in range(T):
            a[:] = b
            for k in range(D):
                for j in range(4 * H):
                    a[j] += x[t, s, k] * U[k, j]
            for k in range(H):
                for j in range(4 * H):
                    a[j] += h[t, s, k] * W[k, j]
            for j in range(H):
                out = cell(a[j], a[H + j], a[2 * H + j], a[3 * H + j], c[j])
                h[t + 1, s, j], c[j] = out[4], out[5]
    return h[1:]


def panels(W):
    """A copy of W (k, n), panel by panel of PANEL columns: (n / PANEL, k, PANEL)."""
    k, n = W.shape
    width = min(PANEL, n)
    return np.ascontiguousarray(W.reshape(k, n // width, width).swapaxes(0, 1))


def add_panels(out, v, panels):
    """out (n / PANEL, m, PANEL) += v (m, k) @ W in `panels`, each as `numba-tile` adds
    a whole W.
    """
    for p in range(len(panels)):
        add_rows(out[p], v, panels[p])


@cache
def products():
    """Compiled functions of out, v and weights: whole rows, and panels."""
    return compiled(add_rows.py_func), compiled(add_panels)


class StoredTiles(Tiles):
    """Tiles that store the sums of a unit block; then the cell reads them again."""

    def __post_init__(self):
        super().__post_init__()
        self.name += "_stored"

    def _forward(self, m, rows, matrix, a, *, cell=(), keep=True, **sums):
        super()._forward(m, rows, matrix, a, **sums)
        if cell:
            m.loop(
                rows, lambda i: self.apply(m, [{}], keep, a + i * self.row, i, *cell)
            )


class StoredFused(NumbaFused):
    """`numba-fused`, but its sums leave the registers before the cell."""

    tiles_class = StoredTiles


def register_peak(rounds=20_000, repeats=200):
    """GFLOP/s of one core in multiply-adds on registers alone: clock x units x lanes x
    2.
    """
    dtype = np.dtype(np.float32)
    tiles, count = Tiles(CELLS["lstm"], dtype, 1), registers.vector_registers().number
    values = buffer(count - 4, tiles.lanes, dtype=dtype)
    values[:] = 0.1

    def sums(m, rounds, values):
        """As many sums as registers, enough to hide the latency of a multiply-add."""
        places = [values + k * tiles.vector_bytes for k in range(count - 4)]
        x, totals = m.load(places[0]), [m.variable(m.load(place)) for place in places]

        def each(_):
            for total in totals:
                m.set(total, m.fma(x, x, m.get(total)))

        m.loop(rounds, each)
        for place, total in zip(places, totals, strict=True):
            m.store(place, m.get(total))

    address = simd.compiled(sums, dtype, tiles.lanes, "peak_of_registers")
    call = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(address)
    best = min(
        timeit.repeat(partial(call, rounds, at(values)), number=1, repeat=repeats)
    )
    return 2 * rounds * values.size / best / 1e9
