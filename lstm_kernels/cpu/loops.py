"""The cell in plain loops: kernels that Numba itself turns into vector code, one unit at a time."""

from functools import cache

import numpy as np
from numba import njit

from ..kernels import OPTIONS, cached, named
from . import activations, simd

# The free names of a kernel, which `specialise` fills in.
cell_forward = cell_backward = load = store = K = real = None


@njit
def load1(a, j, H):
    return (a[j],)


@njit
def load4(a, j, H):
    return a[j], a[H + j], a[2 * H + j], a[3 * H + j]


@njit
def store1(a, j, H, values):
    a[j] = values[0]


@njit
def store4(a, j, H, values):
    a[j], a[H + j], a[2 * H + j], a[3 * H + j] = values[0], values[1], values[2], values[3]


@cache
def specialise(kernel, cell, dtype, *parts):
    """Compile `kernel` for a Cell and a dtype, cached on disk.

    Fills in cell_forward, cell_backward (from `cell`), load and store (its K gates of unit j in a
    row of K*H), K, real (the dtype), and the functions `parts`, filled in likewise: a loop in a
    function of its own is checked for overlapping arrays, and made vector code, by itself.
    """
    real = np.dtype(dtype).type
    functions = (simd.of_numbers(f, dtype) for f in (activations.tanh, activations.sigmoid))
    # A loop over units becomes vector code only where the whole cell stands in it.
    inside = OPTIONS | {"forceinline": True}
    forward, backward = (njit(f, **inside) for f in cell.make(*functions))
    K = len(cell.gates)
    names = {
        "cell_forward": forward,
        "cell_backward": backward,
        "load": load4 if K == 4 else load1,
        "store": store4 if K == 4 else store1,
        "K": K,
        "real": real,
    }
    label = f"{cell.name}_{real.__name__}"
    for part in parts:
        names[part.__name__] = njit(named(part, part.__globals__ | names, label), **OPTIONS)
    function = named(kernel, kernel.__globals__ | names, label)
    return cached(njit, function, parallel=True, **OPTIONS)
