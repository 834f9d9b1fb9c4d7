"""The kernels that the classroom hands to its learners, and what it compares theirs
with.
"""

import math

import numpy as np
from numba import njit

from lstm_kernels.cells import lstm, sigmoid_of
from lstm_kernels.cpu import activations, simd
from lstm_kernels.kernels import OPTIONS, fill
from lstm_kernels.versions.numba_sample import add_product

__all__ = [
    "add_product",
    "cell_by_cell",
    "on_gpu",
    "per_load",
    "plain_product",
    "recurrence",
    "states",
    "unit",
    "units",
    "walk",
]

SINGLE = np.dtype(np.float32)
_functions = (
    simd.of_numbers(f, SINGLE) for f in (activations.tanh, activations.sigmoid)
)
_forward, _ = (njit(f, **OPTIONS, forceinline=True) for f in lstm(*_functions))


def cell_by_cell(rows):
    """h and c of each row (i_bar, f_bar, g_bar, o_bar, c_prev): the package's cell on
    floats.
    """
    forward, _ = lstm(math.tanh, sigmoid_of(math.tanh))
    return np.array([forward(*row)[-2:] for row in rows.tolist()]).T


@njit(**OPTIONS, forceinline=True)
def unit(i_bar, f_bar, g_bar, o_bar, c_prev):
    """h and c of one unit, compiled for float32: the cell of exercise 1."""
    _, _, _, _, h, c = _forward(i_bar, f_bar, g_bar, o_bar, c_prev)
    return h, c


@njit(**OPTIONS)
def units(a, c_prev, h, c):
    """The cell for all units of a sample, from pre-activations a (4*H,); fills h and c
    (H,).
    """
    H = len(h)
    for j in range(H):
        h[j], c[j] = unit(a[j], a[H + j], a[2 * H + j], a[3 * H + j], c_prev[j])


@njit
def recurrence(x, U, W, b, y):
    """Fill y (T, B, H), from zero states; x (T, B, D): plain loops, as exercise 3."""
    (T, B, D), H = x.shape, y.shape[2]
    h, c, a = np.empty(H, x.dtype), np.empty(H, x.dtype), np.empty(4 * H, x.dtype)
    for s in range(B):
        h[:], c[:] = 0, 0
        for t in range(T):
            a[:] = b
            for k in range(D):
                for n in range(4 * H):
                    a[n] += x[t, s, k] * U[k, n]
            for k in range(H):
                for n in range(4 * H):
                    a[n] += h[k] * W[k, n]
            units(a, c, h, c)
            y[t, s] = h


@njit
def plain_product(A, B, C):
    """C (M, N) = A (M, K) @ B (K, N): each loaded number is used once."""
    (M, K), N = A.shape, B.shape[1]
    for r in range(M):
        for j in range(N):
            total = 0.0
            for k in range(K):
                total += A[r, k] * B[k, j]
            C[r, j] = total


def sigmoid(a):
    return 1 / (1 + math.exp(-a))


def walk(s, x, U, W, b, h, c):
    """Sample s from its first step to its last: what a thread of a GPU does. Fills h, c
    (T+1, B, H) from slot 1 on; x (T, B, D).
    """
    H = h.shape[2]
    for t in range(x.shape[0]):
        for j in range(H):
            i, f, g, o = b[j], b[H + j], b[2 * H + j], b[3 * H + j]
            for k in range(x.shape[2]):
                v = x[t, s, k]
                i, f = i + v * U[k, j], f + v * U[k, H + j]
                g, o = g + v * U[k, 2 * H + j], o + v * U[k, 3 * H + j]
            for k in range(H):
                v = h[t, s, k]
                i, f = i + v * W[k, j], f + v * W[k, H + j]
                g, o = g + v * W[k, 2 * H + j], o + v * W[k, 3 * H + j]
            new = sigmoid(f) * c[t, s, j] + sigmoid(i) * math.tanh(g)
            c[t + 1, s, j] = new
            h[t + 1, s, j] = sigmoid(o) * math.tanh(new)


def states(x, U, W, b):
    """h and c (T+1, B, H): zeros in slot 0, NaN where they are to be filled."""
    h, c = np.full((2, len(x) + 1, x.shape[1], len(W)), np.nan, x.dtype)
    h[0] = c[0] = 0
    return h, c


cuda = work = None  # free names of `kernel`, which `on_gpu` fills in


def kernel(x, U, W, b, h, c):
    """What the GPU runs: `work` is exercise 6, given the numbers of a thread."""
    work(cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x, x, U, W, b, h, c)


def on_gpu(thread, size=128):
    """`thread`, exercise 6, as a CUDA kernel in blocks of `size` threads: a function of
    x, U, W, b that returns h and c (T+1, B, H).
    """
    from numba import cuda  # only where there is a GPU

    device = fill([sigmoid, walk, thread], {}, "lesson", cuda.jit(device=True))
    names = {"cuda": cuda, "work": device[thread.__name__]}
    launched = cuda.jit(fill([kernel], names, "lesson")["kernel"])

    def run(*inputs):
        sent = [cuda.to_device(array) for array in (*inputs, *states(*inputs))]
        launched[-(-inputs[0].shape[1] // size), size](*sent)
        h, c = (array.copy_to_host() for array in sent[-2:])
        return {"h": h, "c": c}

    return run


class Counted:
    """An array that counts the numbers read from it."""

    def __init__(self, array, reads):
        self.array = array
        self.reads = reads
        self.shape = array.shape
        self.dtype = array.dtype

    def __getitem__(self, key):
        value = self.array[key]
        if np.ndim(value):
            return Counted(value, self.reads)
        self.reads.append(key)
        return value

    def __setitem__(self, key, value):
        self.array[key] = value


def per_load(product, M=12, K=5, N=12):
    """Multiply-adds for each number that a product (M, K) @ (K, N) loads, counted in
    Python.
    """
    reads = []
    arrays = (Counted(np.ones(shape), reads) for shape in ((M, K), (K, N), (M, N)))
    getattr(product, "py_func", product)(*arrays)
    return M * K * N / max(1, len(reads))
