"""Wrong on purpose: the parallelisations that do not work, for the notebooks to catch."""

import numpy as np
from numba import prange

from ..bench.comparer import TOLERANCE, MismatchError, compare
from ..cells import CELLS
from ..params import expand
from ..versions.numba_sample import add_product, compiled, forward_samples, forward_units


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
    return _outputs(params, x, forward_steps, [slice(0, len(x))])


def second_half_first(params, x):
    """Outputs of two threads whose second runs ahead, on one thread: its half of the steps from
    states that nobody has computed, then the first half.
    """
    middle = len(x) // 2
    return _outputs(params, x, forward_samples, [slice(middle, len(x)), slice(0, middle)])


def _outputs(params, x, kernel, parts):
    """h (T, B, H) after a call of the kernel on each part of the steps, in the order given."""
    cell = CELLS[params.cell]
    layer = expand(cell, params.layers[0])
    (T, B, _), (H, KH) = x.shape, layer.W.shape
    h, c = (np.zeros((T + 1, B, H), x.dtype) for _ in range(2))
    gates = np.empty((T, B, KH), x.dtype)
    run = compiled(kernel, cell, x.dtype)
    for part in parts:
        states = slice(part.start, part.stop + 1)  # from the one before the part's first step
        run(x[part], layer.U, layer.W, layer.b, h[states], c[states], gates[part])
    return h[1:]


def caught(got, want):
    """What the comparer says about outputs `got`, or None where it finds no fault."""
    try:
        compare({"y": got}, {"y": want}, TOLERANCE[want.dtype])
    except MismatchError as error:
        return str(error)
    return None
