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

from math import prod
from typing import NamedTuple

import numba
import numpy as np

from ..cells import CELLS
from ..params import Grads, Layer, Params, expand, fold

# Of each array in `work`: its shape, names of sizes; who writes it; who reads it. S is
# T + 1 slots, of which slot 0 holds the initial state; Q is a multiple of four.
ARRAYS = {
    "partials": ("blocks Q", "each block: its gradients, its loss", "update, host"),
    "x": ("T B D", "host; `gather`", "forward, gradients"),
    "h": ("L S B H", "forward: step t in slot t + 1", "forward, gradients, host"),
    "c": ("L S B H", "forward: step t in slot t + 1", "backward"),
    "gates": ("L T B H K", "forward", "backward"),
    "dy": ("T B H", "host; read-out; the layer above", "backward"),
    # Of h and c: the initial and then the final state, or their gradients.
    "state": ("2 L B H", "host; kernels", "kernels; host"),
    "da": ("L T B H K", "backward", "gradients"),
    "dx": ("T B D", "backward of layer 0", "host"),
    "d_out": ("B O", "read-out", "gradients"),
}
# n of the kernels: the steps and samples of a pass, where the arrays begin in `work`,
# and where the last one ends.
Places = NamedTuple("Places", [(name, int) for name in ("T", "B", *ARRAYS, "end")])


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

    @property
    def P(self):
        """How many numbers the packed parameters are."""
        layers = self.D + self.H + 1 + (self.L - 1) * (2 * self.H + 1)
        return layers * self.H * self.K + (self.H + 1) * self.O

    def shape(self, name, blocks=1):
        """The shape of an array of the table."""
        sizes = {"S": self.T + 1, "Q": four(self.P + 1), "2": 2, "blocks": blocks}
        sizes |= self._asdict()
        return tuple(sizes[axis] for axis in ARRAYS[name][0].split())

    def places(self, blocks):
        """Places in `work`, with a row of partials for so many blocks."""
        begin = [0]
        for name in ARRAYS:
            begin.append(begin[-1] + four(prod(self.shape(name, blocks))))
        return Places(self.T, self.B, *begin)


# What kernels are compiled for: sizes of the network, its cell and dtype, samples to a
# thread, threads that share a sum. `build.functions` makes kernels anew with other
# values.
L, D, H, O, K = 1, 1, 32, 1, 4
P = Sizes(L, 0, 0, D, H, O, K).P
R = parts = 1
U_gates = W_gates = (True,) * K  # whether the matrix feeds each gate
real, number = np.float32, numba.float32


def four(size):
    """The next multiple of four: where four numbers can be loaded at once."""
    return (size + 3) // 4 * 4


def layer_at(l):
    """Where a layer begins in theta; the read-out, for l = L."""
    return 0 if l == 0 else (D + H + 1 + (l - 1) * (2 * H + 1)) * H * K


def weight_at(l, row, j):
    """Where theta has gate 0 of unit j in a row of a layer's U, W and b."""
    return layer_at(l) + (row * H + j) * K


def transposed_at(l):
    """Where theta has a layer transposed."""
    return four(P) + layer_at(l)


def parameter(p):
    """Of number p of the layers: layer, row of its U, W and b, unit and gate."""
    l = 0 if p < layer_at(1) else 1 + (p - layer_at(1)) // ((2 * H + 1) * H * K)
    q = p - layer_at(l)
    return l, q // (H * K), q // K % H, q % K


# Where an array, which begins at a place of n, has the first number of sample s. The
# samples of a tile follow each other.


def step_at(n, begin, t, s, width):
    """Of x, dx and dy at step t."""
    return begin + (t * n.B + s) * width


def slot_at(n, begin, l, slot, s):
    """Of h and c of a layer in a slot."""
    return begin + ((l * (n.T + 1) + slot) * n.B + s) * H


def gate_at(n, begin, l, t, s):
    """Of gates and da of a layer at step t."""
    return begin + ((l * n.T + t) * n.B + s) * H * K


def state_at(n, part, l, s):
    """Of a layer's h (part 0) or c (1) in state."""
    return n.state + ((part * L + l) * n.B + s) * H


def pack(params):
    """theta of Params, flat."""
    cell, H = CELLS[params.cell], params.hidden_size
    layers = []
    for layer in params.layers:
        full = expand(cell, layer)
        rows = np.concatenate([full.U, full.W, full.b[None]])
        layers.append(rows.reshape(len(rows), -1, H).swapaxes(1, 2))
    arrays = layers if params.V is None else [*layers, params.V, params.b_out]
    theta = np.concatenate([a.reshape(-1) for a in arrays])
    padding = np.zeros(four(theta.size) - theta.size, theta.dtype)
    behind = [rows.swapaxes(0, 1).reshape(-1) for rows in layers]
    return np.concatenate([theta, padding, *behind])


def unpack(flat, like):
    """Arrays by name, as `Params.arrays` has them, of packed numbers; like: Params of
    the sizes.
    """
    cell, H, begin, layers = CELLS[like.cell], like.hidden_size, 0, []
    for layer in like.layers:
        inputs = len(layer.U)
        shape = inputs + H + 1, H, len(cell.gates)
        rows = flat[begin : begin + prod(shape)].reshape(shape).swapaxes(1, 2)
        rows = rows.reshape(shape[0], -1)
        folded = fold(cell, Layer(rows[:inputs], rows[inputs:-1], rows[-1]))
        arrays = folded.U, folded.W, folded.b
        layers.append(Layer(*(np.array(a, order="C") for a in arrays)))
        begin += prod(shape)
    if like.V is None:
        return Params(layers, cell=like.cell).arrays()
    V = flat[begin : begin + like.V.size].reshape(like.V.shape).copy()
    b_out = flat[begin + V.size :][: like.b_out.size].copy()
    return Params(layers, V, b_out, like.cell).arrays()


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
    p = Params.from_arrays(unpack(flat, params), params.cell)
    with_c = len(CELLS[params.cell].state) == 2
    state = tuple(dstate) if with_c else (dstate[0] + dstate[1],)
    return Grads(p.layers, p.V, p.b_out, p.cell, x=dx, state=state)
