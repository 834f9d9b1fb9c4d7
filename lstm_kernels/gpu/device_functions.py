"""Device functions that every GPU kernel uses: the cell's functions, a unit's K values
as a tuple, R of these for R samples, and which part of a matrix a thread takes.

The names below that are None are filled in by `device.functions`.
"""

import math

import numpy as np

cuda = K = real = quad = store_quad = None


def tanh(x):
    return math.tanh(x)


def sigmoid(x):
    """By e^-|x|, which never overflows, in Python neither: right at both ends."""
    small = math.exp(-abs(x))
    one = real(1)
    return (one if x >= real(0) else small) / (one + small)


def u(i):
    """An index that is not negative: Numba leaves Python's test for that out of the
    loop.
    """
    return np.uint64(i)


# Functions of tuples: arguments, and entry k of the tuple that each returns. They are
# written out: a loop would put tuples into memory.
TUPLES = {
    # Of a unit's K values.
    "zeros": ("", "real(0)"),
    "strided": ("a, at, stride", "a[u(at + {k} * stride)]"),
    "add": ("a, v, w", "a[{k}] + v * w[{k}]"),  # v: a number
    "dot": (
        "a, v, w",
        "a[{k}] + v[{k}] * w[{k}]",
    ),  # K sums side by side, added up by `total`
    # Of the K values of each of R samples, whose own numbers lie `step` apart.
    "start": ("a", "a"),
    "quads": ("z, at, step", "quad(z, at + {k} * step)"),
    "add_quads": (
        "a, v, w0, w1, w2, w3",
        "add(add(add(add(a[{k}], v[{k}][0], w0), v[{k}][1], w1), v[{k}][2], w2), v[{k}][3], w3)",
    ),
    "add_samples": ("a, z, at, step, w", "add(a[{k}], z[u(at + {k} * step)], w)"),
    "dot_samples": ("a, z, at, step, w", "dot(a[{k}], load(z, at + {k} * step), w)"),
    # Of the K values of each of four rows of a matrix.
    "add_rows": ("a, v, w", "add(a[{k}], v[{k}], w)"),
    "clipped": ("a, at, most, stride", "a[u(at + min({k}, most) * stride)]"),
}


def written_out(name, function, count):
    """The text of a function of TUPLES with `count` entries."""
    arguments, entry = TUPLES[function]
    entries = "".join(f"{entry.format(k=k)}, " for k in range(count))
    return f"def {name}({arguments}):\n    return ({entries.strip()})\n"


def load(a, at):
    """The K values of a unit, side by side."""
    return quad(a, at) if K == 4 else (a[u(at)],)


def store(a, at, values):
    """The first K values to `at`, side by side."""
    if K == 4:
        store_quad(a, at, values)
    else:
        a[u(at)] = values[0]


def total(a):
    return a[0] if K == 1 else (a[0] + a[1]) + (a[2] + a[3])


def lane():
    """The thread's number in its block, and how many there are."""
    threads = cuda.blockDim.x * cuda.blockDim.y
    return cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x, threads
