"""Products on tensor cores: in place of those functions of `products`.

A tensor core takes float32 numbers of which it reads the upper 19 bits (TF32). So a
number is cut in two, x = hi + lo, and a product is three: hi hi + hi lo + lo hi, which
is float32's accuracy but for its last bit or two. A warp computes 32 rows of 16
columns.
"""

from .device_functions import lane, u
from .products import ROWS, nothing
from .ptx import multiply_tf32


def warps():
    _, threads = lane()
    return threads // 32


def rows_at_once(columns):
    """The most rows of a product."""
    return min(ROWS, 32 * (warps() // (columns // 16)))


def division(rows, columns):
    """As in `products`; the row and the column are those that the thread has
    of its warp's, as `mma` wants them.
    """
    me, _ = lane()
    warp = me // 32
    downwards = (rows + 31) // 32
    shares = downwards * (columns // 16)
    row = warp % downwards * 32 + me % 32 // 4
    column = warp // downwards % (columns // 16) * 16
    return downwards * 32, warps() // shares, row, column, warp // shares


def no_sums():
    """The sums of a thread: of two by two squares four each."""
    return nothing(), nothing(), nothing(), nothing()


def partial_product(a, shared, z, step, rows, w, pitch, part, parts, count):
    """As in `products`."""
    me, _ = lane()
    z += me % 4
    w += me % 4 * pitch + me % 32 // 4
    k = 8 * part
    while k < count:
        v = z + k
        upper = left_of(shared, v, step)
        lower = left_of(shared, v + 16 * step, step)
        i = w + k * pitch
        first = shared[u(i)], shared[u(i + 4 * pitch)]
        second = shared[u(i + 8)], shared[u(i + 8 + 4 * pitch)]
        a = (
            multiply_tf32(a[0], upper, first),
            multiply_tf32(a[1], upper, second),
            multiply_tf32(a[2], lower, first),
            multiply_tf32(a[3], lower, second),
        )
        k += 8 * parts
    return a


def left_of(shared, v, step):
    """A thread's four numbers of 16 rows by eight."""
    below = v + 8 * step
    return shared[u(v)], shared[u(below)], shared[u(v + 4)], shared[u(below + 4)]


def put_sums(a, shared, i, rows, columns):
    """As in `products`."""
    me, _ = lane()
    i += me % 4 * 2
    for square in range(4):
        k = i + square // 2 * 16 * columns + square % 2 * 8
        shared[k], shared[k + 1] = a[square][0], a[square][1]
        k += 8 * columns
        shared[k], shared[k + 1] = a[square][2], a[square][3]
