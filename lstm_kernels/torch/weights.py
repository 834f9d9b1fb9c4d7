"""PyTorch's weights, packed for the kernels: read from its memory, never owned.

Of a layer PyTorch has weight_ih (G H, D), weight_hh (G H, H) and two biases (G H,),
with the gates in our order.
"""

import numpy as np

from ..cpu.packing import Weights


def array_of(tensor):
    """A tensor's memory as an array. `tensor.numpy()` would make its storage one that
    cannot be resized, as FSDP does with parameters.
    """
    return np.from_dlpack(tensor.detach())


def chosen(gates, K):
    """An index of some of K gates: a slice, which is quicker, where it is all."""
    return slice(K) if len(gates) == K else [*gates]


class Matrix:
    """A weight of PyTorch, (G, H, R), and its two packed copies (`cpu/packing.py`): in
    `theta`, which has R rows for each unit block, and in `panels`, its transpose.
    """

    def __init__(self, layout, gates, theta, panels):
        K, J, units = len(layout.cell.gates), layout.blocks, layout.units
        R, (count, _, wide) = len(theta) // J, panels.shape
        last = np.zeros((K, J * units, count * wide), theta.dtype)  # with padding
        rows = last[..., :R].reshape(K, J, units, R).transpose(1, 3, 0, 2)
        columns = last.reshape(K, J, units, count, wide).transpose(3, 1, 0, 2, 4)
        pairs = (theta, rows), (panels, columns)
        self._copies = [(out.reshape(a.shape), a) for out, a in pairs]
        self._last, self._gates = last[:, : layout.hidden, :R], chosen(gates, K)

    def pack(self, new, compare):
        """Pack a matrix; with `compare` only where it differs from the last."""
        if not compare or (self._last[self._gates] != new).any():
            self._last[self._gates] = new
            for out, values in self._copies:
                out[...] = values


class Bias:
    """Two biases of PyTorch, (G, H), and where they are packed: their sum where they
    feed the same gate.
    """

    def __init__(self, layout, theta):
        K, J, units = len(layout.cell.gates), layout.blocks, layout.units
        total = np.zeros((K, J * units), theta.dtype)
        self._total, self._out = total[:, : layout.hidden], theta.reshape(J, K, units)
        self._values = total.reshape(K, J, units).transpose(1, 0, 2)
        self._gates = [chosen(layout.gates[M], K) for M in "UW"]

    def pack(self, b_ih, b_hh):
        of_U, of_W = self._gates
        self._total[-1] = 0  # of a GRU, which U does not feed
        self._total[of_U] = b_ih
        self._total[of_W] += b_hh
        self._out[...] = self._values


class TorchWeights(Weights):
    """Packed weights that are PyTorch's, and whose gradients have its form."""

    def __init__(self, layout, params):
        super().__init__(layout, params)
        self.transposed, self._layers, self._known = True, [], None
        theta, panels, gates = self.theta, self.panels, layout.gates
        for U, W, b, U_T, W_T in self.offsets.tolist():
            end = W_T + layout.padded // layout.wide
            of_U = Matrix(layout, gates["U"], theta[U:W], panels[U_T:W_T])
            of_W = Matrix(layout, gates["W"], theta[W:b], panels[W_T:end])
            of_b = Bias(layout, theta[b : b + layout.blocks])
            self._layers.append((of_U, of_W, of_b))

    @staticmethod
    def plain_shapes(layer):
        (D, GH), H = layer.U.shape, len(layer.W)
        return (GH, D), (GH, H), (GH,), (GH,)

    def read(self, tensors, compare):
        """Pack tensors, of each layer U, W and two biases or none, where they are new
        or modified. compare: whether to compare values too, for changes that PyTorch
        does not count, such as those of `.data`.
        """
        places = [(t.data_ptr(), t.shape) for t in tensors]
        versions = [None if t.is_inference() else t._version for t in tensors]
        known, same = self._known, self._known == (places, versions)
        if same and not compare:
            return
        if known is None or known[0] != places:
            self._arrays = self._checked(tensors)
        self._known = None  # until all is packed
        layers = zip(self._layers, self._arrays, strict=True)
        for (U, W, bias), (new_U, new_W, *biases) in layers:
            U.pack(new_U, same)
            W.pack(new_W, same)
            if biases:
                bias.pack(*biases)
        self._known = places, versions

    def _checked(self, tensors):
        """Of each layer the arrays of its tensors, gate by gate."""
        count, H, layers = len(tensors) // len(self._layers), self._layout.hidden, []
        for k in range(len(self._layers)):
            arrays = list(map(array_of, tensors[count * k : count * (k + 1)]))
            got, want = [a.shape for a in arrays], self._plain[4 * k :][:count]
            if got != want:
                raise ValueError(f"weights: got shapes {got}, want {want}")
            layers.append([a.reshape(-1, H, *a.shape[1:]) for a in arrays])
        return layers
