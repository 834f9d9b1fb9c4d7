"""Where numbers lie on the device. Everything is flat; this is the one table of the
arrays.

`theta` holds the parameters packed, so that a unit's K weights are one load. Of each
layer the rows of U, those of W, and b: (inputs + H + 1, H, K), with zeros where a gate
has no weight (a GRU's U does not feed `hn`, its W does not feed `n`). Behind the layers
lie V (H, O) and b_out (O). These P numbers are followed in `cuda-fused` and
`cuda-epoch` by the layers once more, each U and W transposed, for networks whose
weights have no room in shared memory. Gradients lie in the same order, the loss behind
them.

A pass works on the arrays below. `cuda-fused` and `cuda-epoch` keep them in one,
`work`, in this order, since a launch costs the host time for each array; `cuda-v1` to
`v3` keep each apart. Shapes are those of `cuda-fused`; in V1 to V3 the sample is the
last axis of all but the first, so that neighbouring threads read neighbouring
addresses. Slot 0 of h and c is the initial state.

| place    | shape           | written by                                | read by              |
|----------|-----------------|-------------------------------------------|----------------------|
| partials | (rows, P + 1)   | each block: its gradients, then its loss  | the sum over blocks  |
| x        | (T, B, D)       | the host; `step` gathers its examples     | forward, gradients   |
| h        | (L, T+1, B, H)  | forward: h of step t in slot t + 1        | layer above, dU, dW  |
| c        | (L, T+1, B, H)  | forward: c of step t in slot t + 1        | backward             |
| gates    | (L, T, B, H, K) | forward                                   | backward             |
| dy       | (T, B, H)       | the host, the read-out, the layer above   | backward             |
| state    | (2, L, B, H)    | the host: initial state, final gradient;  | forward, backward;   |
|          |                 | kernels: final state, initial gradient    | the host             |
| da       | (L, T, B, H, K) | backward                                  | backward, gradients  |
| dx       | (T, B, D)       | backward of layer 0                       | the host             |
| d_out    | (B, O)          | the read-out                              | gradients            |

In `work` each begins at a multiple of four numbers, so that four can be loaded at once.
"""

from typing import NamedTuple

import numpy as np

from ..cells import CELLS
from ..params import Grads, Layer, Params, expand, fold

L = D = H = O = K = None  # sizes of the network, literals in a kernel


class Sizes(NamedTuple):
    """The sizes of a pass."""

    L: int
    T: int
    B: int
    D: int
    H: int
    O: int

    @classmethod
    def of(cls, params, T, B):
        p = params
        return cls(p.num_layers, T, B, p.input_size, p.hidden_size, p.output_size or 0)

    def literals(self):
        """What kernels are compiled for."""
        return {name: getattr(self, name) for name in "LDHO"}


class Places(NamedTuple):
    """Where each array of the table begins in `work`, and where the last one ends."""

    partials: int
    x: int
    h: int
    c: int
    gates: int
    dy: int
    state: int
    da: int
    dx: int
    d_out: int
    end: int

    @classmethod
    def of(cls, n, rows, K):
        at = [0]
        for size in (rows * (packed_size(n, K) + 1), *(array_sizes(n, K).values())):
            at.append(at[-1] + size + -size % 4)
        return cls(*at)


def array_sizes(n, K):
    """How many numbers each array of the table has, but for the partials."""
    L, T, B, D, H, O = n
    tape, gates = L * (T + 1) * B * H, L * T * B * H * K
    sizes = {"x": T * B * D, "h": tape, "c": tape, "gates": gates, "dy": T * B * H}
    return sizes | {
        "state": 2 * L * B * H,
        "da": gates,
        "dx": T * B * D,
        "d_out": B * O,
    }


def packed_size(n, K):
    """P: how many numbers the packed parameters are."""
    layers = (n.D + n.H + 1 + (n.L - 1) * (2 * n.H + 1)) * n.H * K
    return layers + (n.H + 1) * n.O


def layer_at(index):
    """Where a layer begins in theta; the read-out, for index L."""
    return 0 if index == 0 else (D + H + 1 + (index - 1) * (2 * H + 1)) * H * K


# Of the tile kernels: n = (T, B, *Places).


def x_at(n, t, s):
    """Where x has sample s at step t."""
    return n[3] + (t * n[1] + s) * D


def h_at(n, index, slot, s):
    """Where h of a layer has unit 0 of sample s in a slot."""
    return n[4] + ((index * (n[0] + 1) + slot) * n[1] + s) * H


def c_at(n, index, slot, s):
    """Where c of a layer has unit 0 of sample s in a slot."""
    return n[5] + ((index * (n[0] + 1) + slot) * n[1] + s) * H


def gates_at(n, index, t, s):
    """Where gates of a layer have unit 0 of sample s at step t."""
    return n[6] + ((index * n[0] + t) * n[1] + s) * H * K


def dy_at(n, t, s):
    """Where dy has unit 0 of sample s at step t."""
    return n[7] + (t * n[1] + s) * H


def state_at(n, which, index, s):
    """Where state has unit 0 of sample s of a layer's h (0) or c (1)."""
    return n[8] + ((which * L + index) * n[1] + s) * H


def da_at(n, index, t, s):
    """Where da of a layer has unit 0 of sample s at step t."""
    return n[9] + ((index * n[0] + t) * n[1] + s) * H * K


def dx_at(n, t, s):
    """Where dx has sample s at step t."""
    return n[10] + (t * n[1] + s) * D


def d_out_at(n, s):
    """Where d_out has output 0 of sample s."""
    return n[11] + s * O


def pack(params, transposed=False):
    """theta of Params, flat; transposed: with the layers a second time, U and W
    transposed.
    """
    cell, K = CELLS[params.cell], len(CELLS[params.cell].gates)
    layers, turned = [], []
    for layer in params.layers:
        full, H = expand(cell, layer), len(layer.W)
        rows = (
            np.concatenate([full.U, full.W, full.b[None]])
            .reshape(-1, K, H)
            .swapaxes(1, 2)
        )
        layers.append(rows)
        turned += [
            rows[: len(layer.U)].swapaxes(0, 1),
            rows[len(layer.U) : -1].swapaxes(0, 1),
        ]
        turned.append(rows[-1:])
    readout = [] if params.V is None else [params.V, params.b_out]
    theta = np.concatenate([a.reshape(-1) for a in layers + readout])
    if not transposed:
        return theta
    padding = np.zeros(-theta.size % 4, theta.dtype)
    return np.concatenate([theta, padding, *(a.reshape(-1) for a in turned)])


def unpack(flat, like):
    """Arrays by name, as `Params.arrays` has them, of packed numbers; like: Params of
    the sizes.
    """
    cell, at, layers = CELLS[like.cell], 0, []
    K, H = len(cell.gates), like.hidden_size
    for layer in like.layers:
        rows = len(layer.U) + H + 1
        full = (
            flat[at : at + rows * H * K]
            .reshape(rows, H, K)
            .swapaxes(1, 2)
            .reshape(rows, -1)
        )
        full = fold(
            cell, Layer(full[: len(layer.U)], full[len(layer.U) : -1], full[-1])
        )
        layers.append(
            Layer(*(np.array(a, order="C") for a in (full.U, full.W, full.b)))
        )
        at += rows * H * K
    if like.V is None:
        return Params(layers, cell=like.cell).arrays()
    V = flat[at : at + like.V.size].reshape(like.V.shape).copy()
    b_out = flat[at + V.size :][: like.b_out.size].copy()
    return Params(layers, V, b_out, like.cell).arrays()


def pair(n, dtype, states):
    """The array `state` (2, L, B, H) of up to two arrays (L, B, H); what is not there
    is zero.
    """
    both = np.zeros((2, n.L, n.B, n.H), dtype)
    for i, a in enumerate(states or ()):
        both[i] = a
    return both


def collect(params, flat, x, both):
    """Grads of packed gradients `flat`, of x, and (2, L, B, H), of the initial
    state.
    """
    p = Params.from_arrays(unpack(flat, params), params.cell)
    with_c = len(CELLS[params.cell].state) == 2
    state = tuple(both) if with_c else (both[0] + both[1],)  # without c, c0 is h0
    return Grads(p.layers, p.V, p.b_out, p.cell, x=x, state=state)
