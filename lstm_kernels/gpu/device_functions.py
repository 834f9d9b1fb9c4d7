"""Device functions that every GPU kernel uses: the cell's functions, and a unit's K
values as a tuple.
"""

import math

import numpy as np

from ..cells import CELLS
from .device import cuda
from .layout import K, R, parts, real


def tanh(x):
    return math.tanh(x)


def sigmoid(x):
    """By e^-|x|, which never overflows, in Python neither: right at both ends."""
    small = math.exp(-abs(x))
    one = real(1)
    return (one if x >= real(0) else small) / (one + small)


cell_forward, cell_backward = CELLS["lstm"].make(tanh, sigmoid)


def u(i):
    """An index that is not negative: Numba leaves Python's test for that out of the
    loop.
    """
    return np.uint64(i)


def lane():
    """The thread's number in its block, and how many there are."""
    threads = cuda.blockDim.x * cuda.blockDim.y
    return cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x, threads


def quad(a, i):
    """Numbers i to i + 3 of an array, at once; `build` has the device's."""
    if i % 4:
        raise IndexError(f"i: got {i}, want a multiple of four")
    return tuple(a[i + k] for k in range(4))


def store_quad(a, i, values):
    """Let numbers i to i + 3 be the values."""
    if i % 4:
        raise IndexError(f"i: got {i}, want a multiple of four")
    for k in range(4):
        a[i + k] = values[k]


def store(a, i, values):
    """Let numbers i to i + K - 1 be the first K values."""
    if K == 4:
        store_quad(a, i, values)
    else:
        for k in range(K):
            a[u(i + k)] = values[k]


# `build` writes the tuples below out, `(f(0), f(1), ...)`: Numba knows no tuple of a
# generator, and a loop would put the numbers into memory.


def load(a, i):
    """Numbers i to i + K - 1 of an array."""
    return quad(a, i) if K == 4 else tuple(a[u(i + k)] for k in range(K))


def zeros():
    return tuple(real(0) for k in range(K))


def add(a, v, w):
    """a + v w, for a number v."""
    return tuple(a[k] + v * w[k] for k in range(K))


def dot(a, v, w):
    """a + v w, number by number; `total` adds them up."""
    return tuple(a[k] + v[k] * w[k] for k in range(K))


def fed(a, gates):
    """a, but zero for the gates that are not fed."""
    return tuple(a[k] if gates[k] else real(0) for k in range(K))


def total(a):
    value = a[0]
    for k in range(1, K):
        value += a[k]
    return value


# Of R samples of a thread: their K values each; their numbers lie `step` apart.


def copies(a):
    return tuple(a for r in range(R))


def quads(source, i, step):
    return tuple(quad(source, i + r * step) for r in range(R))


def add_samples(a, v, q, w):
    """a plus number q of each of v times w."""
    return tuple(add(a[r], v[r][q], w) for r in range(R))


def add_numbers(a, source, i, step, w):
    return tuple(add(a[r], source[u(i + r * step)], w) for r in range(R))


def dot_samples(a, source, i, step, w):
    return tuple(dot(a[r], load(source, i + r * step), w) for r in range(R))


# Of the sums that `parts` threads have each computed a part of, `step` apart: the same
# order of additions on every run.


def sum_numbers(shared, i, step):
    value = shared[u(i)]
    for p in range(1, parts):
        value += shared[u(i + p * step)]
    return value


def sum_values(shared, i, step):
    """K sums."""
    a = load(shared, i)
    for p in range(1, parts):
        a = add(a, real(1), load(shared, i + p * step))
    return a


# Of four rows of a matrix that has `rows` from i on; ones stand for those it lacks.


def rows(a, i, count):
    return tuple(a[u(i + q)] if q < count else real(1) for q in range(4))


def add_rows(a, v, w):
    """a[q] + v[q] w for each of four rows q."""
    return tuple(add(a[q], v[q], w) for q in range(4))
