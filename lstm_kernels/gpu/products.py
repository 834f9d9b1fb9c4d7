"""Products of a block: rows of an operand in device memory times a matrix.

The rows, and a matrix that is not the block's own, come into shared memory piece by
piece: the next one is under way while the threads multiply the last. The sums take the
place of the pieces. A block's threads are a matrix for copies; in a product each takes
four columns, R rows and a part of the sum over k. The same order of additions on every
run.
"""

from typing import NamedTuple

from .device import cuda
from .device_functions import lane, sum_numbers
from .layout import four, net
from .ptx import copy_number, copy_quad, wait_for_copies
from .registers import add_four, load, store

ROWS = 64  # at most, of a product


def eight(size):
    """The next multiple of eight: products are computed for so many k at once."""
    return (size + 7) // 8 * 8


def kept_forward():
    """How far rows of W are apart in shared memory."""
    # Rows that follow each other begin in other banks.
    return four(net.units * net.K) + 4


def buffers_at():
    """Where the buffers begin in shared memory, behind the weights of either pass, and
    the sums: (parts, rows, columns).
    """
    return max(eight(net.H) * kept_forward(), eight(net.H * net.K) * four(net.units))


class Rows(NamedTuple):
    """Rows of work: the first one `at`, how many there are."""

    at: int
    stride: int
    number: int


class Matrix(NamedTuple):
    """A matrix of which number (k, c) is theta's at + k down + c across, for c < width;
    with `across` zero it is the block's weights in shared memory, rows `down` apart.
    """

    at: int
    down: int
    across: int
    width: int


def stage(shared, to, down, across, source, rows, width, whole_rows, whole_width, fill):
    """Copy Rows of `width` numbers of source into shared memory: number (i, k) to `to`
    + i down + k across. `fill` makes them whole_rows of whole_width numbers.
    """
    together = across == 1 and (rows.at | rows.stride | width) & 3 == 0
    i = cuda.threadIdx.y
    while i < whole_rows:
        place = to + i * down
        at = rows.at + i * rows.stride
        known = width if i < rows.number else 0
        k = cuda.threadIdx.x
        if together:
            k *= 4
            while k < whole_width:
                if k < known:
                    copy_quad(shared, place + k, source, at + k)
                else:
                    store(net.quad, shared, place + k, (fill, fill, fill, fill))
                k += 4 * cuda.blockDim.x
        else:
            while k < whole_width:
                if k < known:
                    copy_number(shared, place + k * across, source, at + k)
                else:
                    shared[place + k * across] = fill
                k += cuda.blockDim.x
        i += cuda.blockDim.y


# How the threads divide a product, (rows, count) times (count, columns).


def rows_at_once(columns):
    """The most rows of a product."""
    _, threads = lane()
    return net.R * min(ROWS // net.R, threads // (columns // 4))


def division(rows, columns):
    """So many rows with those that fill them up, the parts of each sum, and the row,
    column and part of this thread, which is idle if there is no such part.
    """
    me, threads = lane()
    fours = columns // 4
    groups = min((rows + net.R - 1) // net.R, rows_at_once(columns) // net.R)
    group = me // fours % groups
    part = me // (fours * groups)
    return groups * net.R, threads // (fours * groups), group, me % fours * 4, part


def partial_product(a, shared, z, step, rows, w, pitch, part, parts, count):
    """a plus a part of `count` numbers of rows, `step` apart from z on, times rows of a
    matrix, `pitch` apart from w on.
    """
    k = 4 * part
    while k < count:
        i = w + k * pitch
        w0 = load(net.quad, shared, i)
        w1 = load(net.quad, shared, i + pitch)
        w2 = load(net.quad, shared, i + 2 * pitch)
        w3 = load(net.quad, shared, i + 3 * pitch)
        a = add_four(a, shared, z + k, rows // net.R * step, w0, w1, w2, w3)
        k += 4 * parts
    return a


def stage_piece(to, k, piece, rows, whole, count, matrix, columns, work, theta, shared):
    """Numbers k to k + piece - 1 of `whole` rows, and those rows of the matrix, unless
    it is there.
    """
    left = count - k
    some = Rows(rows.at + k, rows.stride, rows.number)
    stage(shared, to, piece + 4, 1, work, some, left, whole, piece, net.zero)
    to += 2 * net.buffer
    pitch = columns + 4
    if matrix.across == 1:  # rows of theta are rows of the matrix
        some = Rows(matrix.at + k * matrix.down, matrix.down, left)
        width = matrix.width
        stage(shared, to, pitch, 1, theta, some, width, piece, columns, net.zero)
    elif matrix.across > 1:  # they are its columns
        some = Rows(matrix.at + k, matrix.across, matrix.width)
        stage(shared, to, 1, pitch, theta, some, left, columns, piece, net.zero)


def multiply(rows, count, matrix, columns, work, theta, shared):
    """Let the sums be Rows of `count` numbers times a Matrix (count, columns). Returns
    how many parts are left to add, and how far apart they are.
    """
    whole, parts, row, column, part = division(rows.number, columns)
    kept = matrix.across == 0
    pitch = matrix.down if kept else columns + 4
    size = 2 * net.buffer if kept else net.buffer
    piece = min(eight(count), (size // whole - 4) // 8 * 8)
    if not kept:
        piece = min(piece, net.buffer // pitch // 8 * 8)
    a = net.quads
    here, there = buffers_at(), buffers_at() + size
    cuda.syncthreads()
    how = rows, whole, count, matrix, columns, work, theta, shared
    stage_piece(here, 0, piece, *how)
    k = 0
    while k < count:
        wait_for_copies()
        cuda.syncthreads()
        if k + piece < count:
            stage_piece(there, k + piece, piece, *how)
        if part < parts:
            w = column + (k * pitch if kept else here + 2 * net.buffer)
            z, step = here + row * (piece + 4), piece + 4
            some = min(piece, eight(count - k))
            a = partial_product(a, shared, z, step, whole, w, pitch, part, parts, some)
        k += piece
        here, there = there, here
    cuda.syncthreads()
    if part < parts:
        i = buffers_at() + (part * whole + row) * columns + column
        for r in range(net.R):
            store(net.quad, shared, i + r * (whole // net.R) * columns, a[r])
    cuda.syncthreads()
    return parts, whole * columns


def transform(rows, count, matrix, columns, bias, to, pitch, work, theta, shared):
    """Let rows of work from `to` on, `pitch` apart, be Rows times a Matrix, and theta's
    numbers from `bias` on, if that is positive.
    """
    first = 0
    while first < rows.number:
        at = rows.at + first * rows.stride
        most = rows_at_once(columns)
        some = Rows(at, rows.stride, min(rows.number - first, most))
        parts, step = multiply(some, count, matrix, columns, work, theta, shared)
        i = cuda.threadIdx.y
        while i < some.number:
            c = cuda.threadIdx.x
            while c < matrix.width:
                value = sum_numbers(shared, buffers_at() + i * columns + c, parts, step)
                if bias > 0:
                    value += theta[bias + c]
                work[to + (first + i) * pitch + c] = value
                c += cuda.blockDim.x
            i += cuda.blockDim.y
        first += most
