"""Device functions that every kernel uses: threads, places of numbers, sums.

A kernel and what it calls are compiled for a network: `net` is its `layout.Net`, all
that is constant in them.
"""

import numpy as np

from .device import cuda
from .layout import four, net
from .registers import add, load


def u(i):
    """An index that is not negative: Numba leaves Python's test for that out of the
    loop.
    """
    return np.uint64(i)


def lane():
    """The thread's number in its block, and how many there are."""
    threads = cuda.blockDim.x * cuda.blockDim.y
    return cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x, threads


def clear(array, i, size):
    """Zeros from i on."""
    me, threads = lane()
    while me < size:
        array[i + me] = net.zero
        me += threads


# Where theta has parameters (`layout`).


def layer_at(l):
    """Where a layer begins; the read-out, for l = L."""
    if l == 0:
        return 0
    return (net.D + net.H + 1 + (l - 1) * (2 * net.H + 1)) * net.H * net.K


def weight_at(l, row, j):
    """Gate 0 of unit j in a row of a layer's U, W and b."""
    return layer_at(l) + (row * net.H + j) * net.K


def transposed_at(l):
    """Where a layer begins that is transposed."""
    return four(net.P) + layer_at(l)


def parameter(p):
    """Of number p of the layers: layer, row of its U, W and b, unit and gate."""
    later = (2 * net.H + 1) * net.H * net.K  # numbers of a layer above the first
    l = 0 if p < layer_at(1) else 1 + (p - layer_at(1)) // later
    q = p - layer_at(l)
    return l, q // (net.H * net.K), q // net.K % net.H, q % net.K


# Where an array, which begins at a place of n, has the first number of sample s. The
# samples of a tile follow each other.


def step_at(n, begin, t, s, width):
    """Of x, dx and dy at step t."""
    return begin + (t * n.B + s) * width


def slot_at(n, begin, l, slot, s):
    """Of h and c of a layer in a slot."""
    return begin + ((l * (n.T + 1) + slot) * n.B + s) * net.H


def gate_at(n, begin, l, t, s):
    """Of gates and da of a layer at step t."""
    return begin + ((l * n.T + t) * n.B + s) * net.H * net.K


def state_at(n, part, l, s):
    """Of a layer's h (part 0) or c (1) in state."""
    return n.state + ((part * net.L + l) * n.B + s) * net.H


# Sums that several threads have each computed a part of, `step` apart: the same order
# of additions on every run.


def sum_numbers(shared, i, parts, step):
    value = shared[u(i)]
    for part in range(1, parts):
        value += shared[u(i + part * step)]
    return value


def sum_values(shared, i, parts, step):
    """K sums."""
    a = load(net.zeros, shared, i)
    for part in range(1, parts):
        a = add(a, load(net.zeros, shared, i + part * step))
    return a


def total(a):
    value = a[0]
    for k in range(1, net.K):
        value += a[k]
    return value


def rows(a, i, count):
    """Four rows of a matrix that has `count` from i on; ones stand for those it
    lacks.
    """
    return (
        a[u(i)] if count > 0 else net.one,
        a[u(i + 1)] if count > 1 else net.one,
        a[u(i + 2)] if count > 2 else net.one,
        a[u(i + 3)] if count > 3 else net.one,
    )
