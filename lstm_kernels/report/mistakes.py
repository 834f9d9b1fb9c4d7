"""Wrong on purpose: the parallelisations that do not work, for the notebooks to catch."""

import numpy as np
from numba import prange

from ..bench.comparer import TOLERANCE, MismatchError, compare
from ..cells import CELLS
from ..params import expand
from ..versions.numba_sample import NumbaSample, add_product, compiled, forward_units


def forward_steps(x, U, W, b, h, c, gates):
    """WRONG: `forward_samples` with prange over the steps, although step t reads what step t-1
    writes.
    """
    T, B, _ = x.shape
    for t in prange(T):
        for s in range(B):
            a = gates[t, s]
            a[:] = b
            add_product(a, x[t, s], U)
            add_product(a, h[t, s], W)
            forward_units(a, h[t + 1, s], c[t, s], c[t + 1, s])


def parallel_over_time(params, x):
    """Outputs (T, B, H) of a one-layer network whose steps run at the same time: a race between
    threads, right when each happens to start after the one before has ended.
    """
    cell = CELLS[params.cell]
    layer, (T, B, _) = expand(cell, params.layers[0]), x.shape
    h, c = np.zeros((2, T + 1, B, params.hidden_size), x.dtype)
    gates = np.empty((T, B, layer.W.shape[1]), x.dtype)
    compiled(forward_steps, cell, x.dtype)(x, layer.U, layer.W, layer.b, h, c, gates)
    return h[1:]


def second_half_first(params, x):
    """Outputs of two threads whose second runs ahead, on one thread: its half of the steps begins
    with the zeros that stand where the first half has not put its last state yet.
    """
    net, middle = NumbaSample(params, threads=1), len(x) // 2
    return np.concatenate([net.forward(half)[0] for half in (x[:middle], x[middle:])])


def caught(got, want):
    """What the comparer says about outputs `got`, or None where it finds no fault."""
    try:
        compare({"y": got}, {"y": want}, TOLERANCE[want.dtype])
    except MismatchError as error:
        return str(error)
    return None
