"""Wrong on purpose: the parallelisations that do not work, for the notebooks to catch."""

import numpy as np
from numba import prange

from ..cells import CELLS
from ..params import expand
from ..versions.compiled import K, cell_forward, load, specialise, store
from ..versions.numba_sample import add_product
from .compare import TOLERANCE, MismatchError, compare


def forward_steps(x, U, W, b, h, c, gates):
    """WRONG: `forward_samples` with prange over the steps, although step t reads what step t-1
    writes.
    """
    T, B, H = x.shape[0], x.shape[1], W.shape[0]
    for t in prange(T):
        for s in range(B):
            a, h_new, c_old, c_new = gates[t, s], h[t + 1, s], c[t, s], c[t + 1, s]
            a[:] = b
            add_product(a, x[t, s], U)
            add_product(a, h[t, s], W)
            for j in range(H):
                out = cell_forward(*load(a, j, H), c_old[j])
                store(a, j, H, out)
                h_new[j], c_new[j] = out[K], out[K + 1]


def parallel_over_time(params, x):
    """Outputs (T, B, H) of a one-layer network whose steps run at the same time: wrong with two
    threads.
    """
    cell = CELLS[params.cell]
    layer = expand(cell, params.layers[0])
    (T, B, _), (H, KH) = x.shape, layer.W.shape
    h, c = (np.zeros((T + 1, B, H), x.dtype) for _ in range(2))
    gates = np.empty((T, B, KH), x.dtype)
    specialise(forward_steps, cell, x.dtype)(x, layer.U, layer.W, layer.b, h, c, gates)
    return h[1:]


def caught(got, want):
    """What the comparer says about outputs `got`, or None where it finds no fault."""
    try:
        compare({"y": got}, {"y": want}, TOLERANCE[want.dtype])
    except MismatchError as error:
        return str(error)
    return None
