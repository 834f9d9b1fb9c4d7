"""Gradients by differences of the loss, which ours must agree with; for page 01 and the
appendix.
"""

import numpy as np

from lstm_kernels import reference
from lstm_kernels.cells import CELLS
from lstm_kernels.params import Params

from .measure.comparer import compare

# A rule is pairs (step, weight): the derivative is the sum of weight * loss(theta +
# step * eta), over eta; of complex numbers the real part.
RULES = {
    "one-sided": [(1, 1), (0, -1)],
    "central": [(1, 0.5), (-1, -0.5)],
    "complex": [(1j, -1j)],
}


def gradients(loss, named, rule, eta):
    """The gradient of loss(named) with respect to each array in `named`, by
    differences.
    """
    result = {}
    for name, array in named.items():
        slopes = []
        for unit in eta * np.eye(array.size).reshape(-1, *array.shape):
            losses = [
                weight * loss(named | {name: array + step * unit})
                for step, weight in rule
            ]
            slopes.append(np.real(sum(losses)))
        result[name] = np.reshape(slopes, array.shape) / eta
    return result


def case(kind, steps, rng, layer_forward=reference.layer_forward):
    """A small network: its loss, all arrays that it depends on, and ours of their
    gradients.
    """
    params = Params.init(3, 4, num_layers=2, output_size=2, cell=kind, dtype=np.float64)
    x, target = rng.normal(size=(steps, 2, 3)), rng.normal(size=(2, 2))
    initial = {f"state.{name}": np.zeros((2, 2, 4)) for name in CELLS[kind].state}

    def loss(named):
        moved = Params.from_arrays(named, kind)
        state = tuple(named[name] for name in initial)
        y, *_ = reference.forward(moved, named["x"], state, layer_forward=layer_forward)
        return np.mean((y[-1] @ moved.V + moved.b_out - target) ** 2)

    _, grads = reference.loss_and_grads(params, x, target, layer_forward=layer_forward)
    return loss, params.arrays() | {"x": x} | initial, grads.arrays()


def error(loss, named, by_hand):
    """The largest error of gradients, relative to the largest entry of their array."""
    numeric = gradients(loss, named, RULES["central"], 1e-5)
    return compare(by_hand, numeric, tolerance=np.inf)
