"""Device functions that every GPU kernel uses: a cell's K values as a tuple, R of these for R
samples, a walk over a matrix, and sums over blocks.

`load(a, at, stride)` takes the K values that belong to one unit; `input_weights` and
`recurrent_weights` do so of U and W, and read zero where a gate has none: a GRU's U does not feed
`hn`, its W does not feed `n`. Shared memory is what the launch asks for; all arrays there begin at
its start, HEAD bytes are kept. The names below that are None are filled in by `device.functions`.
"""

import math

import numpy as np

from .layout import Places, parameter_count

cuda = K = ATOMIC = real = int64 = None

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


# Functions of tuples, of a unit's K values or of R samples' such tuples: arguments, and entry k of
# the tuple that each returns. They are written out for K or R: a loop would put tuples into memory.
TUPLES = {
    "zeros": ("", "real(0)"),
    "load": ("a, at, stride", "a[u(at + {k} * stride)]"),
    "add": ("a, v, w", "a[{k}] + v * w[{k}]"),  # v: a number
    "dot": ("a, v, w", "a[{k}] + v[{k}] * w[{k}]"),  # K sums side by side, added up by `total`
    "start": ("a", "a"),
    "add_rows": ("a, z, at, step, w", "add(a[{k}], z[u(at + {k} * step)], w)"),
    "add_bands": ("a, z, at, most, w", "add(a[{k}], z[u(at + min({k}, most))], w)"),
    "dot_rows": ("a, v, at, step, stride, w", "dot(a[{k}], load(v, at + {k} * step, stride), w)"),
}


def written_out(name, function, places):
    """The text of a function of TUPLES, an entry for each place; at a place of -1 zero."""
    arguments, entry = TUPLES[function]
    entries = (entry.format(k=k) if k >= 0 else "real(0)" for k in places)
    return f"def {name}({arguments}):\n    return ({', '.join(entries)},)\n"


def store(a, at, stride, values):
    """The first K values to places `stride` apart."""
    for k in range(K):
        a[u(at + k * stride)] = values[k]


def total(a):
    return a[0] if K == 1 else (a[0] + a[1]) + (a[2] + a[3])


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
