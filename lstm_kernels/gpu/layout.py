"""Where numbers lie on the device: the one table of a pass's arrays, and the packed
parameters.

`theta` holds the parameters packed, so that a unit's K weights are one load: of each
layer the rows of U, those of W, and b, (inputs + H + 1, H, K), with zeros where a gate
has no weight (a GRU's U does not feed `hn`, its W does not feed `n`). Behind the layers
lie V (H, O) and b_out (O). These P numbers are followed by the layers once more, each
transposed, (H, inputs + H + 1, K): neighbouring threads of the backward pass read
neighbouring addresses there. Gradients lie in the order of theta, the loss behind them.

All other arrays of a pass lie in one, `work`, since a launch costs the host time for
each; each begins at a multiple of four numbers, so that four can be loaded at once.
"""

from collections import namedtuple
from collections.abc import Callable
from math import prod
from typing import NamedTuple, cast

import numba
import numpy as np

from ..cells import CELLS
from ..params import Grads, Layer, Params, expand, fold

# The shape of each array in `work`, names of sizes. S is T + 1 slots, of which slot 0
# holds the initial state; Q is a multiple of four.
ARRAYS = {
    "partials": "blocks Q",  # of each block: its gradients and its loss
    "x": "T B D",
    "h": "L S B H",  # of step t in slot t + 1
    "c": "L S B H",
    "gates": "L T B H K",
    "dy": "T B H",
    # Of h and c: the initial and then the final state, or their gradients.
    "state": "2 L B H",
    "da": "L T B H K",
    "dx": "T B D",
    "d_out": "B O",
}
# n of the kernels: the steps and samples of a pass, where the arrays begin in `work`,
# and where the last one ends.
_FIELDS = " ".join(["T", "B", *ARRAYS, "end"])
Places = namedtuple("Places", _FIELDS)  # type: ignore[misc]


class Sizes(NamedTuple):
    """The sizes of a pass: layers, steps, samples, inputs, hidden units, outputs, gates
    of the cell.
    """

    L: int
    T: int
    B: int
    D: int
    H: int
    O: int
    K: int

    @classmethod
    def of(cls, params, T, B):
        gates = len(CELLS[params.cell].gates)
        width = params.input_size, params.hidden_size, params.output_size or 0
        return cls(params.num_layers, T, B, *width, gates)

    @classmethod
    def of_cell(cls, cell):
        """For kernels that take all other sizes from their arrays."""
        return cls(1, 0, 0, 1, 1, 0, len(cell.gates))

    @property
    def P(self):
        """How many numbers the packed parameters are."""
        layers = self.D + self.H + 1 + (self.L - 1) * (2 * self.H + 1)
        return layers * self.H * self.K + (self.H + 1) * self.O

    def shape(self, name, blocks=1):
        """The shape of an array of the table."""
        sizes = {"S": self.T + 1, "Q": four(self.P + 1), "2": 2, "blocks": blocks}
        return tuple((sizes | self._asdict())[axis] for axis in ARRAYS[name].split())

    def places(self, blocks):
        """Places in `work`, with a row of partials for so many blocks."""
        begin = [0]
        for name in ARRAYS:
            begin.append(begin[-1] + four(prod(self.shape(name, blocks))))
        return Places(self.T, self.B, *begin)


class Net(NamedTuple):
    """What kernels are compiled for, all that is constant in them.

    L to P: as of Sizes. R: samples of a thread, or rows of a product; parts: threads
    that share a sum; units: of a layer, that a block keeps; buffer: numbers of one of
    its four buffers. U_gates, W_gates: whether the matrix feeds each gate. real,
    number: NumPy's and Numba's type of numbers, of which zero and one are. zeros: K of
    them; sums: R times K; quad: four; quads: R times four. forward, backward: the cell
    (`cells.py`).
    """

    L: int
    D: int
    H: int
    O: int
    K: int
    P: int
    R: int
    parts: int
    units: int
    buffer: int
    U_gates: tuple[bool, ...]
    W_gates: tuple[bool, ...]
    real: type
    number: numba.types.Float
    zero: np.floating
    one: np.floating
    zeros: tuple
    sums: tuple
    quad: tuple
    quads: tuple
    forward: Callable
    backward: Callable


net = cast(Net, None)  # where kernels look for it; `build` puts a network's there


def four(size):
    """The next multiple of four: where four numbers can be loaded at once."""
    return (size + 3) // 4 * 4


def parts(flat, n):
    """Views of packed numbers: of each layer (inputs + H + 1, H, K), V, b_out."""
    inputs = [n.D] + [n.H] * (n.L - 1)
    shapes = [(rows + n.H + 1, n.H, n.K) for rows in inputs] + [(n.H, n.O), (n.O,)]
    arrays = np.split(flat[: n.P], np.cumsum([prod(shape) for shape in shapes])[:-1])
    return [a.reshape(shape) for a, shape in zip(arrays, shapes, strict=True)]


def pack(params):
    """theta of Params, flat."""
    n = Sizes.of(params, 0, 0)
    theta = np.zeros(four(n.P), params.dtype)
    *layers, V, b_out = parts(theta, n)
    for rows, layer in zip(layers, params.layers, strict=True):
        full = expand(CELLS[params.cell], layer)
        matrix = np.concatenate([full.U, full.W, full.b[None]])
        rows[:] = matrix.reshape(-1, n.K, n.H).swapaxes(1, 2)
    if params.V is not None:
        V[:], b_out[:] = params.V, params.b_out
    transposed = (rows.swapaxes(0, 1).reshape(-1) for rows in layers)
    return np.concatenate([theta, *transposed])


def unpack(flat, like):
    """Params of packed numbers; like: Params of the sizes."""
    n, layers = Sizes.of(like, 0, 0), []
    *packed, V, b_out = parts(flat, n)
    for rows in packed:
        matrix = rows.swapaxes(1, 2).reshape(len(rows), -1)
        U, W, (b,) = np.split(matrix, [-n.H - 1, -1])
        folded = fold(CELLS[like.cell], Layer(U, W, b))
        layers.append(Layer(*(a.copy() for a in (folded.U, folded.W, folded.b))))
    read_out = (None, None) if like.V is None else (V.copy(), b_out.copy())
    return Params(layers, *read_out, like.cell)


def state_array(n, dtype, parts):
    """The array `state` (2, L, B, H) of (h, c) or of their gradients: zeros where a
    part, or all of it (None), is missing.
    """
    both = np.zeros(n.shape("state"), dtype)
    for array, part in zip(both, parts or (), strict=False):
        array[:] = part
    return both


def collect(params, flat, dx, dstate):
    """Grads of packed gradients `flat`, of x, and of the initial state (2, L, B, H)."""
    p = unpack(flat, params)
    with_c = len(CELLS[params.cell].state) == 2
    state = tuple(dstate) if with_c else (dstate[0] + dstate[1],)
    return Grads(p.layers, p.V, p.b_out, p.cell, x=dx, state=state)
