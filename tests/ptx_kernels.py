"""Kernels for `ptx_machine.check`, in a process without Numba's simulator: right ones,
whose results are NumPy's, wrong ones, whose line says what is to be reported there, and
launches that are refused.
"""

import inspect
import math
import re
import sys

import numpy as np
import pytest
from numba import cuda, float32, float64

from lstm_report.ptx_machine import ORDERS, check, unwritten

rng = np.random.default_rng(0)
numbers = rng.random(256).astype("f4")


@cuda.jit
def rotate(x, times):
    grid, i = cuda.cg.this_grid(), cuda.grid(1)
    for _ in range(times):
        below = x[i - 1]
        grid.sync()
        x[i] = below
        grid.sync()


@cuda.jit
def warps(x, sums, large, counts):
    i = cuda.grid(1)
    total = x[i]
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_down_sync(0xFFFFFFFF, total, distance)
    dynamic = cuda.shared.array(0, float32)
    static = cuda.shared.array(2, float32)
    dynamic[i] = x[i]
    if i % 32 == 0:
        static[i // 32] = total
    cuda.syncthreads()
    if i % 32 == 0:
        sums[i // 32] = static[i // 32]
    large[i] = cuda.ballot_sync(0xFFFFFFFF, dynamic[i ^ 32] > 0.5)
    cuda.atomic.add(counts, int(4 * x[i]), 1)


@cuda.jit(device=True)
def even(number):
    return number % 2 == 0


@cuda.jit
def parities(parity):
    i, j, k = cuda.grid(3)
    parity[i, j, k] = even(i + j + k)


@cuda.jit
def elementwise(a, b, integers, x, huge, reals):
    i = cuda.grid(1)
    integers[0, i], integers[1, i] = a[i] // b[i], a[i] % b[i]
    integers[2, i], integers[3, i] = a[i] >> 3, a[i] * b[i]
    integers[4, i], integers[5, i] = cuda.popc(b[i]), cuda.clz(b[i])
    reals[0, i], reals[1, i] = math.sin(x[i]), math.cos(huge[i])
    reals[2, i], reals[3, i] = math.exp(x[i]), math.log(x[i])
    reals[4, i], reals[5, i] = x[i] ** 1.7, math.tanh(x[i])
    reals[6, i], reals[7, i] = math.sqrt(x[i]), math.floor(8 * x[i])


@cuda.jit
def halves(x, out):
    i, shared = cuda.threadIdx.x, cuda.shared.array(32, float32)
    shared[i] = x[i]
    if i >= 16:  # while the others wait for the whole warp
        cuda.syncwarp(0xFFFF0000)
        out[i] = shared[47 - i]
    cuda.syncwarp()
    if i < 16:
        out[i] = shared[31 - i]


def right(order):
    """Each kernel is without a fault, and computes what NumPy does."""

    def runs(*launch, **shared):
        assert check(*launch, order=order, **shared) == []

    x = np.arange(64)
    runs(rotate, 2, 32, x, 3)
    np.testing.assert_array_equal(x, np.roll(np.arange(64), 3))
    x, sums, large = numbers[:64], unwritten(2, "f4"), unwritten(64, "u4")
    counts = np.zeros(4, "i4")
    runs(warps, 1, 64, x, sums, large, counts, shared_bytes=256)
    np.testing.assert_allclose(sums, x.reshape(2, 32).sum(1), rtol=1e-6)
    bits = (x.reshape(2, 32) > 0.5) @ (1 << np.arange(32))
    np.testing.assert_array_equal(large, np.repeat(bits[::-1], 32))
    np.testing.assert_array_equal(counts, np.histogram(x, 4, (0, 1))[0])
    first, second = unwritten(32, "f4"), unwritten(32, "f4")
    runs(halves, 1, 32, x[:32], first)
    runs(halves, 1, 32, first, second)  # what a kernel has written is written
    np.testing.assert_array_equal(first, [*x[31:15:-1], *x[31:15:-1]])
    parity = unwritten((4, 6, 8), "u1")
    runs(parities, (2, 3, 2), (2, 2, 4), parity)
    np.testing.assert_array_equal(parity, np.indices(parity.shape).sum(0) % 2 == 0)
    a, b = rng.integers(-999, 999, 32), np.arange(1, 33)
    for bits, error in ((32, 3e-6), (64, 1e-13)):
        x = (numbers[:32] + 0.1).astype(f"f{bits // 8}")
        huge = (1e6 * x).astype(x.dtype)
        integers, reals = unwritten((6, 32), "i8"), unwritten((8, 32), x.dtype)
        both = (n.astype(f"i{bits // 8}") for n in (a, b))
        runs(elementwise, 1, 32, *both, integers, x, huge, reals)
        ones = [int(n).bit_count() for n in b]
        zeros = [bits - int(n).bit_length() for n in b]
        want = np.array([a // b, a % b, a >> 3, a * b, ones, zeros])
        np.testing.assert_array_equal(integers, want)
        x, huge = x.astype("f8"), huge.astype("f8")
        want = [np.sin(x), np.cos(huge), np.exp(x), np.log(x), x**1.7, np.tanh(x)]
        want += [np.sqrt(x), np.floor(8 * x)]
        np.testing.assert_allclose(reals, want, rtol=error, atol=error)


def no_barrier(x, total):
    shared = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    shared[i] = x[i]
    cuda.syncwarp()
    total[i] = shared[i ^ 33]  #: race, shared memory


def no_atomic(x, total):
    x[0] += x[cuda.grid(1)]  #: race, x


def zeroed_by_one(x, total):
    count, i = cuda.shared.array(1, float32), cuda.threadIdx.x
    if i == 0:
        count[0] = 0
    cuda.atomic.add(count, 0, x[i])
    cuda.syncthreads()
    total[i] = count[0]


def read_by_the_last(x, total):
    cuda.atomic.add(x, 0, 1)
    if cuda.threadIdx.x == 63:
        total[0] = x[0]  #: race, x


def some_of_a_warp(x, total):
    shared, i = cuda.shared.array(64, float32), cuda.threadIdx.x
    shared[i] = x[i]
    cuda.syncwarp(0xFF << (8 * (i % 32 // 8)))
    total[i] = shared[i ^ 31]  #: race, shared memory


def no_bound(x, total):
    i = cuda.grid(1)
    total[i] = x[i + 1]  #: outside, x[64]


def below(x, total):
    total[cuda.grid(1) - 65] = x[0]  #: outside, total[-1]


def small_shared_array(x, total):
    shared, i = cuda.shared.array(63, float32), cuda.threadIdx.x
    shared[i] = x[i]  #: outside, shared memory[252]
    cuda.syncthreads()
    total[i] = shared[i ^ 1]


def small_local_array(x, total):
    local, i = cuda.local.array(4, float32), cuda.threadIdx.x
    local[min(i, 4)] = x[i]  #: outside, local memory[16]
    total[i] = local[i % 4]


def half_filled(x, total):
    shared = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    if i < 32:
        shared[i] = x[i]
    cuda.syncthreads()
    total[i] = shared[i]  #: unwritten, shared memory


def unwritten_array(x, total):
    i = cuda.grid(1)
    x[i] = total[i]  #: unwritten, total


def two_at_once(x, total):
    pair = x[1:3].view(float64)
    total[0] = pair[0]  #: misaligned, x


def some_wait(x, total):
    if cuda.threadIdx.x < 7:
        cuda.syncthreads()  #: diverged barrier, None


def some_blocks_wait(x, total):
    grid = cuda.cg.this_grid()
    if cuda.threadIdx.x < 7:
        grid.sync()  #: grid barrier not reached, None


def nobody_comes(x, total):
    while cuda.atomic.add(x, 0, 0) == x[1]:  #: deadlock, None
        pass


def no_end(x, total):
    while x[0] >= 0:  #: endless, None
        cuda.syncthreads()


WRONG = [no_barrier, no_atomic, no_bound, below, half_filled, no_end]
WRONG += [read_by_the_last, some_of_a_warp]
WRONG += [small_shared_array, small_local_array]
WRONG += [unwritten_array, two_at_once, some_wait, some_blocks_wait, nobody_comes]


def one_thread(x):
    if cuda.threadIdx.x == 1 and cuda.threadIdx.y == 2:
        x[0, 0] = x[2, 1]


def marks(function):
    """What the lines of a function say is wrong with them."""
    lines, first = inspect.getsourcelines(function)
    for number, line in enumerate(lines, first):
        if mark := re.search(r"#: (.*)", line):
            yield from ((number, text) for text in mark[1].split("; "))


def wrong(order):
    """Of each kernel those lines are reported, for those reasons, and no others."""
    for kernel in WRONG:
        x, total = np.ones(64, "f4"), unwritten(64, "f4")
        faults = check(kernel, 1, 64, x, total, order=order)
        reported = set()
        for f in faults:
            place = f"{f.array}[{f.index}]" if f.kind == "outside" else f.array
            reported.add((f.line, f"{f.kind}, {place}"))
            assert f"{f.file}:{f.line}: " in str(f)
            assert inspect.getsourcefile(kernel) == f.file
        assert reported == {*marks(kernel)}, (order, kernel, *map(str, faults))
    found = check(zeroed_by_one, 1, 64, x, unwritten(64, "f4"), order=order)
    assert "race" in {f.kind for f in found}  # at the line of the second
    (f,) = check(one_thread, (1, 1), (2, 3, 1), unwritten((3, 4)), order=order)
    assert (f.index, f.thread, f.block) == ((2, 1), (1, 2, 0), (0, 0))


def refused(order):
    """Errors name the argument, what it got and what it wants."""
    x, total, frozen = numbers[:64], np.zeros(64, "f4"), np.ones(64, "f4")
    frozen.flags.writeable = False
    for launch, options, message in [
        ((even, 1, 64, 2), {}, "kernel: got a device function, want a function"),
        ((no_bound, 0, 64, x, total), {}, "grid: got 0, want a positive integer"),
        ((no_bound, 1, (64, 64), x, total), {}, r"block: got \(64, 64\), want at most"),
        ((no_bound, 1, (1, 1, 65), x, total), {}, r"block: got \(1, 1, 65\), want at "),
        ((unwritten_array, 1, 64, frozen, total), {}, "x: got a read-only array, want"),
        (
            (no_bound, 1, 64, x, total.astype(">f4")),
            {},
            "total: got dtype >f4, want nu",
        ),
        ((no_bound, 1, 64, x), {}, r"arguments: got 1, want 2 \(x, total\)"),
        ((no_bound, 1, 64, [1], total), {}, "x: got list, want a NumPy array"),
        ((no_bound, 1, 64, numbers[::2], total), {}, "x: .* want a C-contiguous array"),
        (
            (no_bound, 1, 64, x, np.array([None])),
            {},
            "total: got dtype object, want nu",
        ),
        (
            (no_bound, 1, 64, x, total),
            {"shared_bytes": -4},
            "shared_bytes: got -4, want",
        ),
        ((no_bound, 1, 64, x, total), {"order": "last"}, "order: got 'last', want one"),
    ]:
        with pytest.raises((TypeError, ValueError), match=message):
            check(*launch, **{"order": order} | options)


if __name__ == "__main__":
    for order in ORDERS:
        {"right": right, "wrong": wrong, "refused": refused}[sys.argv[1]](order)
