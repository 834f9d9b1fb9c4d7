"""Arrays at addresses: zeros at cache lines, several in one, records that point to
them.
"""

import ctypes
import itertools
import math

import numpy as np

_word_at, _HEAD = ctypes.c_int64.from_address, object.__basicsize__
_probe = np.zeros(1)
_QUICK = _word_at(id(_probe) + _HEAD).value == _probe.ctypes.data


def at(array):
    """The address of an array's numbers: the first field of NumPy's array object, which
    takes a tenth of the time of asking in Python. A small pass asks several times.
    """
    if _QUICK:
        return _word_at(id(array) + _HEAD).value
    return array.ctypes.data


def buffer(*shape, dtype):
    """Zeros that begin at a cache line."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def places(shapes, multiple=1):
    """Where arrays of these shapes begin, one behind another, each at a multiple; and
    the end.
    """
    sizes = (-(-math.prod(shape) // multiple) * multiple for shape in shapes)
    return [0, *itertools.accumulate(sizes)]


def views(flat, starts, shapes):
    """The arrays of these shapes that begin at these places of a flat one."""
    size = flat.itemsize
    pairs = zip(starts, shapes, strict=False)
    return [np.ndarray(shape, flat.dtype, flat, size * n) for n, shape in pairs]


def point(record, **fields):
    """Fill in fields of a record: a number, or the address of an array."""
    for name, value in fields.items():
        record[name] = at(value) if isinstance(value, np.ndarray) else value
