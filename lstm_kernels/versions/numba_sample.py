"""`numba-sample`: the samples of a mini-batch on threads, OpenMP's `parallel for`.

What changed from `numpy`: whole sequences run inside compiled code, one sample to a
loop iteration; samples meet nowhere until the weight gradients. Bounded by the product
of one vector with W, which reads a weight for every multiply-add, and for the smallest
networks by entering a parallel region (some 5 us).

Weight gradients: a buffer per sample, added up at the end, is the obvious form; its
traffic grows as samples x weights, and it falls behind NumPy as soon as that leaves the
cache. Here (`blocked_product`) a thread owns some rows of the gradient, for all steps
and samples: no buffers, and an order of additions that does not depend on the number of
threads.

Numba's threads serve one region at a time; they begin with the first call. In a child
forked after that such a network is an error, and other OpenMP code, PyTorch's too, ends
or hangs if they are GNU's: fork with another version, or spawn.
"""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, partial

import numba
import numpy as np
from numba import njit, prange
from numba.cpython.unsafe.tuple import tuple_setitem

from .. import kernels
from ..cells import lstm, sigmoid_of
from ..cores import cores
from ..cpu import activations, simd
from ..cpu.fp_mode import FLUSH, KEEP, exchange_fp_mode
from ..forks import at_fork
from ..kernels import OPTIONS, cached, fill, numbas_threads, part
from ..params import Layer
from ..reference import Tape
from .base import Compiled

# The cell of these kernels, and its gates: an LSTM in plain Python. `compiled` makes
# them anew for the cell and the dtype of a network.
cell_forward, cell_backward = lstm(math.tanh, sigmoid_of(math.tanh))
K, NO_GATES, FP_MODE = 4, (0.0,) * 4, FLUSH


def load(a, j, H):
    """The K gates of unit j in a row (K*H,)."""
    gates = NO_GATES
    for g in range(K):
        gates = tuple_setitem(gates, g, a[g * H + j])
    return gates


def store(a, j, H, values):
    """The first K values to the gates of unit j."""
    for g in range(K):
        a[g * H + j] = values[g]


@njit(**OPTIONS)
def add_product(out, v, M):
    """out (n,) += v (k,) @ M (k, n), eight rows at a time: a load and a store for eight
    FMAs.
    """
    k = len(v) - len(v) % 8
    for r in range(0, k, 8):
        v0, v1, v2, v3 = v[r], v[r + 1], v[r + 2], v[r + 3]
        v4, v5, v6, v7 = v[r + 4], v[r + 5], v[r + 6], v[r + 7]
        M0, M1, M2, M3 = M[r], M[r + 1], M[r + 2], M[r + 3]
        M4, M5, M6, M7 = M[r + 4], M[r + 5], M[r + 6], M[r + 7]
        for j in range(len(out)):
            low = v0 * M0[j] + v1 * M1[j] + v2 * M2[j] + v3 * M3[j]
            high = v4 * M4[j] + v5 * M5[j] + v6 * M6[j] + v7 * M7[j]
            out[j] += low + high
    for r in range(k, len(v)):
        v0, M0 = v[r], M[r]
        for j in range(len(out)):
            out[j] += v0 * M0[j]


def forward_units(a, h, c_prev, c):
    """The cell for all units of a sample: pre-activations a (K*H,) become gates; h, c
    (H,) are filled. As a function of its own it becomes vector code.
    """
    H = len(h)
    for j in range(H):
        out = cell_forward(*load(a, j, H), c_prev[j])
        store(a, j, H, out)
        h[j], c[j] = out[K], out[K + 1]


def backward_units(dy, dh, dc, gates, c_prev, c, da):
    """The same backward: fills da (K*H,); dc (H,) becomes that of the step before."""
    H = len(dy)
    for j in range(H):
        out = cell_backward(dy[j] + dh[j], dc[j], *load(gates, j, H), c_prev[j], c[j])
        store(da, j, H, out)
        dc[j] = out[K]


def forward_samples(x, U, W, b, h, c, gates):
    """x (T, B, D), U, W (D or H, K*H), b (K*H,); fills h, c (T+1, B, H) and gates (T,
    B, K*H).
    """
    T, B, _ = x.shape
    for s in prange(B):
        mode = exchange_fp_mode(FP_MODE)  # of one of Numba's threads, not ours alone
        for t in range(T):
            a = gates[t, s]
            a[:] = b
            add_product(a, x[t, s], U)
            add_product(a, h[t, s], W)
            forward_units(a, h[t + 1, s], c[t, s], c[t + 1, s])
        exchange_fp_mode(mode)


def backward_samples(dy, U_T, W_T, c, gates, dh, dc, da, dx):
    """dh, dc (B, H): gradient of the final state, then of the initial one; fills da,
    dx.
    """
    T, B, _ = dy.shape
    for s in prange(B):
        mode = exchange_fp_mode(FP_MODE)
        for t in range(T - 1, -1, -1):
            d = da[t, s]
            backward_units(dy[t, s], dh[s], dc[s], gates[t, s], c[t, s], c[t + 1, s], d)
            dh[s] = 0
            add_product(dh[s], d, W_T)
            dx[t, s] = 0
            add_product(dx[t, s], d, U_T)
        exchange_fp_mode(mode)


def blocked_product(z, da, out):
    """out (m, n) += z (N, m).T @ da (N, n): an iteration owns eight rows of out, for
    all N.
    """
    N, m = z.shape
    for block in prange((m + 7) // 8):
        mode = exchange_fp_mode(FP_MODE)
        first, last = 8 * block, min(8 * block + 8, m)
        for r in range(0, N, 8):  # eight rows of da stay in L1 for all rows of out
            for k in range(first, last):
                add_product(out[k], z[r : r + 8, k], da[r : r + 8])
        exchange_fp_mode(mode)


PIECE = 1e9  # operations of a region: between two, Python raises a KeyboardInterrupt
_region = threading.RLock()
at_fork(hold=_region)


@cache
def _begin():
    """Begin Numba's threads, on a thread of its own: to begin them sets OpenMP's number
    of threads for whoever does, and PyTorch takes that of the caller.
    """
    with suppress(RuntimeError), ThreadPoolExecutor(1) as aside:  # no thread to be had
        aside.submit(numba.get_num_threads).result()


@cache
def compiled(kernel, cell=None, dtype=None, fp_mode=FLUSH):
    """A kernel, for a Cell and a dtype if it asks for them, cached on disk. fp_mode:
    the floating-point mode that it computes in.
    """
    names, label = {"FP_MODE": fp_mode}, f"fp_mode_{fp_mode}"
    if cell:
        functions = [
            simd.of_numbers(f, dtype) for f in (activations.tanh, activations.sigmoid)
        ]
        # A loop over units becomes vector code only where the whole cell stands in it.
        forward, backward = (
            njit(f, **OPTIONS, forceinline=True) for f in cell.make(*functions)
        )
        K = len(cell.gates)
        names |= {"cell_forward": forward, "cell_backward": backward, "K": K}
        names["NO_GATES"] = (dtype.type(0),) * K
        label += f"_{cell.name}_{dtype.name}"
    functions = [kernel, load, store, forward_units, backward_units]
    space = fill(functions, names, label, part)
    return cached(njit, space[kernel.__name__].py_func, parallel=True, **OPTIONS)


def pieces(count, operations):
    """Slices of range(count), each of about PIECE, for so many operations of one; of
    eights.
    """
    size = 8 * max(1, int(PIECE / operations) // 8)
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]


def layer_forward(cell, layer, x, h0, c0, kernel=forward_samples, compiled=compiled):
    """The reference's layer_forward, a sample per iteration of a parallel loop."""
    (T, B, D), (H, KH) = x.shape, layer.W.shape
    h, c = np.empty((T + 1, B, H), x.dtype), np.empty((T + 1, B, H), x.dtype)
    gates = np.empty((T, B, KH), x.dtype)
    h[0], c[0] = h0, c0
    kernel = compiled(kernel, cell, x.dtype)
    for steps in pieces(T, 2 * B * (D + H) * KH):
        # From the state before the first step
        slots = slice(steps.start, steps.stop + 1)
        kernel(x[steps], layer.U, layer.W, layer.b, h[slots], c[slots], gates[steps])
    return Tape(x, h, c, gates)


def layer_backward(
    cell,
    layer,
    tape,
    dy,
    dh,
    dc,
    kernel=backward_samples,
    product=blocked_product,
    compiled=compiled,
):
    """The reference's layer_backward."""
    (T, B, D), (H, KH) = tape.x.shape, layer.W.shape
    da = np.empty_like(tape.gates)
    dx = np.empty_like(tape.x)
    dh = dh.copy()
    dc = dc.copy()
    U_T, W_T = np.ascontiguousarray(layer.U.T), np.ascontiguousarray(layer.W.T)
    kernel = compiled(kernel, cell, dy.dtype)
    for steps in reversed(pieces(T, 2 * B * (D + H) * KH)):
        c, gates = tape.c[steps.start : steps.stop + 1], tape.gates[steps]
        kernel(dy[steps], U_T, W_T, c, gates, dh, dc, da[steps], dx[steps])
    # [x_t, h_{t-1}, 1]: one product for dU, dW and db
    z = np.empty((T, B, D + H + 1), dy.dtype)
    z[..., :D], z[..., D:-1], z[..., -1] = tape.x, tape.h[:-1], 1
    grad = np.zeros((D + H + 1, KH), dy.dtype)
    z, da = z.reshape(T * B, -1), da.reshape(T * B, KH)
    for rows in pieces(T * B, 2 * (D + H + 1) * KH):
        compiled(product)(z[rows], da[rows], grad)
    return Layer(grad[:D], grad[D:-1], grad[-1]), dx, dh, dc


class NumbaSample(Compiled):
    name = "numba-sample"
    layer_forward = staticmethod(layer_forward)
    layer_backward = staticmethod(layer_backward)

    def __init__(self, params, threads=None, *, subnormals=False):
        super().__init__(params, threads, subnormals=subnormals)
        if subnormals:
            keeping = partial(compiled, fp_mode=KEEP)
            self.layer_forward = partial(self.layer_forward, compiled=keeping)
            self.layer_backward = partial(self.layer_backward, compiled=keeping)
        if kernels.threads_lost:
            want = "another version, or a process that is spawned"
            got = "a fork of a process in which Numba's threads had begun"
            raise RuntimeError(f"{self.name}: got {got}, want {want}")
        # Numba's own number is of the cores alone: it knows no quota.
        self._threads = self._threads or min(numbas_threads(), cores())

    @staticmethod
    def most_threads():
        return numba.config.NUMBA_NUM_THREADS

    @contextmanager
    def _guard(self):
        # Its threads serve one region: under the layer workqueue a second one ends the
        # process.
        with _region, super()._guard():
            _begin()
            before = numba.get_num_threads()
            try:
                numba.set_num_threads(self._threads)
                yield
            finally:
                numba.set_num_threads(before)
