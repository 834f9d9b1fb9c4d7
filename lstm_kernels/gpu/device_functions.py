"""Device functions that every GPU kernel uses: a cell's K values as a tuple, the order of the
parameters, and sums over blocks.

Everything lies in flat arrays: `load(a, at, stride)` takes the K values that belong to one unit.
Shared memory is what the launch asks for; all arrays there begin at its start, HEAD bytes are kept.
The names below that are None are filled in by `device.build`; a GRU's U does not feed `hn` and
its W does not feed `n`, so those weights are read as zero.
"""

import math

import numpy as np

cuda = K = G = real = int64 = None

HEAD = 96  # bytes of shared memory: eleven integers for a kernel's use, and who came last
LAST = 11  # the place of that among the integers


def tanh(x):
    return math.tanh(x)


def sigmoid(x):
    """By e^-|x|, which never overflows, in Python neither: right at both ends."""
    small = math.exp(-abs(x))
    one = real(1)
    return (one if x >= real(0) else small) / (one + small)


def u(i):
    """An index that is not negative: Numba leaves Python's test for that out of the loop."""
    return np.uint64(i)


def load1(a, at, stride):
    """The values of a unit, `stride` apart."""
    return (a[u(at)],)


def load4(a, at, stride):
    return a[u(at)], a[u(at + stride)], a[u(at + 2 * stride)], a[u(at + 3 * stride)]


def store1(a, at, stride, values):
    a[u(at)] = values[0]


def store4(a, at, stride, values):
    a[u(at)], a[u(at + stride)] = values[0], values[1]
    a[u(at + 2 * stride)], a[u(at + 3 * stride)] = values[2], values[3]


def add1(a, v, w):
    """a + v w, for tuples a and w and a number v."""
    return (a[0] + v * w[0],)


def add4(a, v, w):
    return a[0] + v * w[0], a[1] + v * w[1], a[2] + v * w[2], a[3] + v * w[3]


def dot1(a, v, w):
    """a + v w, element by element; `total` adds the elements up at the end: K sums side by side."""
    return (a[0] + v[0] * w[0],)


def dot4(a, v, w):
    return a[0] + v[0] * w[0], a[1] + v[1] * w[1], a[2] + v[2] * w[2], a[3] + v[3] * w[3]


def total1(a):
    return a[0]


def total4(a):
    return (a[0] + a[1]) + (a[2] + a[3])


def zeros1():
    return (real(0),)


def zeros4():
    return real(0), real(0), real(0), real(0)


def gru_input(a, at, stride):
    return a[u(at)], a[u(at + stride)], a[u(at + 2 * stride)], real(0)


def gru_recurrent(a, at, stride):
    return a[u(at)], a[u(at + stride)], real(0), a[u(at + 2 * stride)]


def layer_at(index, D, H):
    """Where the layer's U, W and b begin in the parameters, and how many inputs it has."""
    first = (D + H) * G * H + K * H
    at = 0 if index == 0 else first + (index - 1) * (2 * H * G * H + K * H)
    inputs = D if index == 0 else H
    return at, at + inputs * G * H, at + (inputs + H) * G * H, inputs


def readout_at(L, D, H):
    """Where V begins in the parameters: behind the layers. b_out follows V, the loss follows it."""
    return layer_at(L, D, H)[0]


def arrived(counters, index, of):
    """Count this block in; True in the one that comes last of `of`, for all its threads.

    What a block wrote before is visible to the last one: the fence keeps the order.
    """
    cuda.threadfence()
    head = cuda.shared.array(0, int64)
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        head[LAST] = 1 if cuda.atomic.add(counters, index, 1) == of - 1 else 0
        if head[LAST] == 1:
            counters[index] = 0  # for the next launch
    cuda.syncthreads()
    cuda.threadfence()
    return head[LAST] == 1


def add_up(partials, size, first, count, stride):
    """The sum of `count` rows of partials, `stride` rows apart, into row `first`, in that order."""
    for p in range(cuda.threadIdx.x, size, cuda.blockDim.x):
        value = partials[first * size + p]
        for row in range(1, count):
            value += partials[(first + row * stride) * size + p]
        partials[first * size + p] = value


def sum_over_blocks(partials, size, counters):
    """Add the blocks' rows of `size` numbers up into row 0; True in the block that ends it.

    Groups of about sqrt(blocks) rows: the last block of a group to arrive adds its rows up, the
    last of these the groups. Who adds depends on chance, the order of additions does not: the same
    bits on every run, and no block ever waits for another.
    """
    blocks = cuda.gridDim.x
    width = 1
    while width * width < blocks:
        width += 1
    groups = (blocks + width - 1) // width
    group = cuda.blockIdx.x // width
    members = min(width, blocks - group * width)
    if not arrived(counters, 1 + group, members):
        return False
    add_up(partials, size, group * width, members, 1)
    if not arrived(counters, 0, groups):
        return False
    add_up(partials, size, 0, groups, width)
    cuda.syncthreads()
    return True
