"""Device functions that every GPU kernel uses: a cell's K values as a tuple, R of these for R
samples, a walk over a matrix, and sums over blocks.

`load(a, at, stride)` takes the K values that belong to one unit. Shared memory is what the launch
asks for; all arrays there begin at its start, HEAD bytes are kept. The names below that are None
are filled in by `device.functions`, which also picks each function of K or R values by its number.
A GRU's U does not feed `hn` and its W does not feed `n`, so those weights are read as zero.
"""

import math

import numpy as np

from .layout import Places, parameter_count

cuda = ATOMIC = real = int64 = add = dot = load = None

LAST = len(Places._fields)  # of the integers in HEAD, behind a kernel's Places: who came last
HEAD = 8 * (LAST + 1)  # bytes


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


def start1(a):
    """A tuple for each of R samples, all the same."""
    return (a,)


def start4(a):
    return a, a, a, a


def add_rows1(a, z, at, offsets, w):
    """For each of R samples: a + z w. The first one's z lies at `at`, the others' by `offsets`."""
    return (add(a[0], z[u(at)], w),)


def add_rows4(a, z, at, offsets, w):
    return (
        add(a[0], z[u(at)], w),
        add(a[1], z[u(at + offsets[0])], w),
        add(a[2], z[u(at + offsets[1])], w),
        add(a[3], z[u(at + offsets[2])], w),
    )


def dot_rows1(a, v, at, offsets, stride, w):
    """For each of R samples: a + v w, gate by gate."""
    return (dot(a[0], load(v, at, stride), w),)


def dot_rows4(a, v, at, offsets, stride, w):
    return (
        dot(a[0], load(v, at, stride), w),
        dot(a[1], load(v, at + offsets[0], stride), w),
        dot(a[2], load(v, at + offsets[1], stride), w),
        dot(a[3], load(v, at + offsets[2], stride), w),
    )


def gru_input(a, at, stride):
    return a[u(at)], a[u(at + stride)], a[u(at + 2 * stride)], real(0)


def gru_recurrent(a, at, stride):
    return a[u(at)], a[u(at + stride)], real(0), a[u(at + 2 * stride)]


def first_place(width):
    """Where this thread begins to walk a matrix of `width` columns, and its steps: row, column,
    rows down, columns right. Threads walk it together, each entry once.
    """
    me, threads = cuda.threadIdx.x, cuda.blockDim.x
    return me // width, me % width, threads // width, threads % width


def next_place(row, column, down, right, width):
    """The place `blockDim.x` entries further on, without a division."""
    row, column = row + down, column + right
    return (row + 1, column - width) if column >= width else (row, column)


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
        value = partials[first * size + p]  # number p of the first row
        for row in range(1, count):
            value += partials[(first + row * stride) * size + p]  # and of the next ones
        partials[first * size + p] = value


def own_row(n):
    """Where in partials this block's gradients begin: in its own row, or with atomics in all's."""
    return 0 if ATOMIC else cuda.blockIdx.x * (parameter_count(n) + 1)


def sum_over_blocks(n, partials, counters):
    """Add the blocks' rows of partials up into row 0; True in the block that ends it.

    Groups of about sqrt(blocks) rows: the last block of a group to arrive adds its rows up, the
    last of these the groups. Who adds depends on chance, the order of additions does not: the same
    bits on every run, and no block ever waits for another.
    """
    blocks, size = cuda.gridDim.x, parameter_count(n) + 1
    if ATOMIC:  # all blocks have added to row 0
        return arrived(counters, 0, blocks)
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
