"""`numpy-sample`: NumPy on one sample at a time, the source's NumPy row, like for like.

What changed from `sequential`: the loops over units are vector operations. Nothing is
parallel. Bounded by the cost of a NumPy call (about 1 us), which a vector of one sample
is too short to pay for.
"""

import numpy as np

from .. import reference
from ..params import Layer
from ..reference import Tape
from .base import Network


def one(a, s):
    """Sample s of an array (T, B, ...), as a mini-batch of one."""
    return a[:, s : s + 1]


def layer_forward(cell, layer, x, h0, c0):
    """The reference's layer_forward for each sample by itself."""
    tapes = [
        reference.layer_forward(cell, layer, one(x, s), h0[s : s + 1], c0[s : s + 1])
        for s in range(x.shape[1])
    ]
    parts = zip(*((tape.h, tape.c, tape.gates) for tape in tapes), strict=True)
    return Tape(x, *(np.concatenate(samples, axis=1) for samples in parts))


def layer_backward(cell, layer, tape, dy, dh, dc):
    """The reference's layer_backward for each sample by itself; the weight gradients
    are summed.
    """
    total = Layer(*(np.zeros_like(a) for a in (layer.U, layer.W, layer.b)))
    results = []
    for s in range(tape.x.shape[1]):
        single = Tape(*(one(a, s) for a in vars(tape).values()))
        grad, *rest = reference.layer_backward(
            cell, layer, single, one(dy, s), dh[s : s + 1], dc[s : s + 1]
        )
        for name in "UWb":
            getattr(total, name)[...] += getattr(grad, name)
        results.append(rest)
    dx, dh0, dc0 = zip(*results, strict=True)
    return total, np.concatenate(dx, axis=1), np.concatenate(dh0), np.concatenate(dc0)


class NumpySample(Network):
    name, parallel = "numpy-sample", False
    layer_forward = staticmethod(layer_forward)
    layer_backward = staticmethod(layer_backward)
