"""The kernels that the classroom hands to its learners, and what it compares theirs
with.
"""

import math
from functools import cache

import numpy as np
from numba import njit

from lstm_kernels.cells import CELLS, lstm, sigmoid_of
from lstm_kernels.cpu import activations, simd
from lstm_kernels.kernels import OPTIONS, fill
from lstm_kernels.versions.numba_sample import add_product

__all__ = [
    "add_product",
    "arrays_of_walk",
    "cell_by_cell",
    "on_gpu",
    "per_load",
    "plain_product",
    "recurrence",
    "sigmoid",
    "sigmoids",
    "states",
    "unit",
    "units",
    "walk",
]

sigmoid, sigmoids = (sigmoid_of(tanh) for tanh in (math.tanh, np.tanh))
LSTM, SINGLE = CELLS["lstm"], np.dtype(np.float32)
_functions = (
    simd.of_numbers(f, SINGLE) for f in (activations.tanh, activations.sigmoid)
)
_forward, _ = (njit(f, **OPTIONS, forceinline=True) for f in lstm(*_functions))


def cell_by_cell(rows):
    """h and c of each row (i_bar, f_bar, g_bar, o_bar, c_prev): the package's cell on
    floats.
    """
    forward, _ = lstm(math.tanh, sigmoid)
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


@cache
def walk_in_python():
    """The package's `plain_kernels.walk` of an LSTM, to be called without a GPU."""
    from lstm_kernels.gpu import build, layout, plain_kernels

    sizes = layout.Sizes.of_cell(LSTM)
    net = build.net_of(LSTM, SINGLE, sizes, part=lambda function: function)
    names = vars(plain_kernels).items()  # those that are compiled, as Python's
    names = {name: f.py_func for name, f in names if hasattr(f, "py_func")}
    return fill([plain_kernels], names | {"net": net}, "lesson")["walk"]


def walk(*arguments):
    """Sample s from its first step to its last, what a thread of a GPU does: s, x (T,
    B, D), U (D, 4, H), W (H, 4, H), b (4, H); fills h and c (T+1, B, H) from slot 1 on,
    and gates (T, B, H, 4).
    """
    walk_in_python()(*arguments)


def states(x, U, W, b):
    """h and c (T+1, B, H): zeros in slot 0, NaN where they are to be filled."""
    h, c = np.full((2, len(x) + 1, x.shape[1], len(W)), np.nan, x.dtype)
    h[0] = c[0] = 0
    return h, c


def arrays_of_walk(x, U, W, b):
    """What `walk` is given besides a sample, of x (T, B, D) and weights as
    `recurrence` has them.
    """
    H, h_and_c = len(W), states(x, U, W, b)
    gates = np.empty((*x.shape[:2], H, 4), x.dtype)
    weights = U.reshape(-1, 4, H), W.reshape(H, 4, H), b.reshape(4, H)
    return x, *weights, *h_and_c, gates


cuda = work = None  # free names of `kernel`, which `kernel_of` fills in


def kernel(x, U, W, b, h, c, gates):
    """What the GPU runs: `work` is exercise 6, given the numbers of a thread."""
    numbers = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    work(*numbers, x, U, W, b, h, c, gates)


def kernel_of(thread, part=None):
    """Exercise 6 as a kernel in Python; part: compiles what that calls, or None."""
    from lstm_kernels.gpu import build, layout, plain_kernels
    from lstm_kernels.gpu.device import cuda

    how = "lstm", SINGLE, (plain_kernels,), ("walk",), layout.Sizes.of_cell(LSTM)
    made = build.build(*how, compile=lambda part, _: build.of_device(part))
    device = fill([thread], made, "lesson", part or build.of_device)
    names = {"cuda": cuda, "work": device[thread.__name__]}
    return fill([kernel], names, "lesson")["kernel"]


def on_gpu(thread, size=128):
    """Exercise 6 in blocks of `size` threads: x, U, W, b -> h and c (T+1, B, H)."""
    from lstm_kernels.gpu.device import cuda  # only where there is a GPU

    launched = cuda.jit(kernel_of(thread))

    def run(*inputs):
        sent = [cuda.to_device(array) for array in arrays_of_walk(*inputs)]
        launched[-(-inputs[0].shape[1] // size), size](*sent)
        h, c = (array.copy_to_host() for array in sent[4:6])
        return {"h": h, "c": c}

    return run


class Counted:
    """An array that counts the numbers read from it."""

    def __init__(self, array, reads):
        self.array = array
        self.reads = reads
        self.shape, self.size, self.ndim = array.shape, array.size, array.ndim
        self.dtype = array.dtype

    @property
    def T(self):
        return Counted(self.array.T, self.reads)

    def __len__(self):
        return len(self.array)

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
