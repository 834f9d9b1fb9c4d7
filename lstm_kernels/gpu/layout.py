"""Where numbers lie on the device. Everything is flat; this is the one table of the arrays.

`theta` holds the P parameters in the order of `Params.arrays()`: U, W and b of each layer, V and
b_out. `cuda-fused` has them twice, the second time with each U and W transposed.

A pass works on the arrays below. `cuda-fused` keeps them in one, `work`, in this order, since a
launch costs the host time for each array; `cuda-v1` to `v3` keep each apart. Shapes are those of
`cuda-fused`; in V1 to V3 the sample is the last axis of all but the first, so that neighbouring
threads read neighbouring addresses. K gates of a unit, slot 0 of h and c: the initial state.

| place    | shape           | written by                                | read by              |
|----------|-----------------|-------------------------------------------|----------------------|
| partials | (blocks, P + 1) | each block: its gradients, then its loss  | the sum over blocks  |
| x        | (T, B, D)       | the host; `step` gathers its examples     | forward, gradients   |
| h        | (L, T+1, B, H)  | forward: h of step t in slot t + 1        | layer above, dU, dW  |
| c        | (L, T+1, B, H)  | forward: c of step t in slot t + 1        | backward             |
| gates    | (L, T, B, K, H) | forward                                   | backward             |
| dy       | (T, B, H)       | the host, the read-out, the layer above   | backward             |
| state    | (2, L, B, H)    | the host: initial state, final gradient;  | forward, backward;   |
|          |                 | kernels: final state, initial gradient    | the host             |
| da       | (L, T, B, K, H) | backward                                  | backward, gradients  |
| dx       | (T, B, D)       | backward of layer 0                       | the host             |
| d_out    | (B, O)          | the read-out                              | dy, dV, db_out, loss |
"""

from collections import namedtuple

import numpy as np

from ..params import Grads, Params

K = G = None


class Sizes(namedtuple("Sizes", "L T B D H O")):
    """The sizes of a pass, which kernels get as the tuple n."""

    @classmethod
    def of(cls, params, T, B):
        p = params
        return cls(p.num_layers, T, B, p.input_size, p.hidden_size, p.output_size or 0)


class Places(namedtuple("Places", "partials x h c gates dy state da dx d_out end")):
    """Where each array of the table begins in `work`, and where the last one ends."""

    @classmethod
    def of(cls, n, blocks, P, cell):
        return cls(*places(n, blocks * (P + 1), len(cell.gates)))

    def part(self, name):
        """The slice of an array."""
        index = self._fields.index(name)
        return slice(self[index], self[index + 1])

    def size(self, name):
        part = self.part(name)
        return part.stop - part.start


INDEX = Places(*range(len(Places._fields)))  # the number of each in the tuple


def places(n, partials, K):
    """The numbers of Places, for so many numbers of all blocks' partials and K gates."""
    L, T, B, D, H, O = n
    h = partials + T * B * D
    c = h + L * (T + 1) * B * H
    gates = c + L * (T + 1) * B * H
    dy = gates + L * T * B * K * H
    state = dy + T * B * H
    da = state + 2 * L * B * H
    dx = da + L * T * B * K * H
    d_out = dx + T * B * D
    return 0, partials, h, c, gates, dy, state, da, dx, d_out, d_out + B * O


def layer_at(index, D, H):
    """Where the layer's U, W and b begin in the parameters, and how many inputs it has."""
    first = (D + H) * G * H + K * H  # numbers of layer 0
    at = 0 if index == 0 else first + (index - 1) * (2 * H * G * H + K * H)
    inputs = D if index == 0 else H
    return at, at + inputs * G * H, at + (inputs + H) * G * H, inputs


def readout_at(n):
    """Where V begins in the parameters: behind the layers. b_out follows V."""
    return layer_at(n[0], n[3], n[4])[0]


def parameter_count(n):
    """P: as many gradients, too, and the loss lies behind these."""
    _, _, _, _, H, O = n
    return readout_at(n) + (H + 1) * O


def pair(n, dtype, states):
    """The array `state` (2, L, B, H) of up to two arrays (L, B, H); what is not there is zero."""
    both = np.zeros((2, n.L, n.B, n.H), dtype)
    for i, a in enumerate(states or ()):
        both[i] = a
    return both


def collect(params, cell, flat, x, both):
    """Grads of the parameters' gradients `flat`, x's and (2, L, B, H), the initial state's."""
    p = Params.from_arrays(params.cut(flat), cell.name)
    state = tuple(both) if len(cell.state) == 2 else (both[0] + both[1],)  # without c, c0 is h0
    return Grads(p.layers, p.V, p.b_out, p.cell, x=x, state=state)
