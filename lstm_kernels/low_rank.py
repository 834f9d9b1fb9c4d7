"""Low-rank weights: the matrix of a layer, U over W, as a product of two thin ones.

A layer of D inputs and H hidden units has (D + H) K H weights. With M = [U; W] = P Q,
where P is (D + H, R) and Q (R, K H), it has R (D + H + K H), and a step is s = x Px + h
Ph, a = s Q + b with P = [Px; Ph]. The best P Q of a rank is the truncated singular
value decomposition (Eckart & Young 1936); both factors take the root of the singular
values, so that they descend at the same rate.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .cells import CELLS
from .errors import check_array, check_choice, check_int, check_type
from .params import Arrays, Grads, Layer, Parameters, Params


def factorable() -> list[str]:
    """The cells whose U and W feed the same gates: only they have a common Q."""
    return [n for n, cell in CELLS.items() if cell.input_gates == cell.recurrent_gates]


@dataclass(repr=False)
class FactoredLayer(Arrays):
    """Factors P (D+H, R) and Q (R, K*H) of U over W; bias b (K*H,)."""

    P: np.ndarray
    Q: np.ndarray
    b: np.ndarray


class Factored(Parameters[FactoredLayer]):
    """Parameters with factored weights: `layers[l].P`, `.Q`, `.b`; the read-out `V`,
    `b_out`.
    """

    layer: ClassVar[type] = FactoredLayer

    @property
    def input_size(self) -> int:
        return len(self.layers[0].P) - self.hidden_size

    @property
    def rank(self) -> int:
        """R, the same in every layer."""
        return self.layers[0].P.shape[1]

    @property
    def count(self) -> int:
        """How many numbers the layers have, without the read-out."""
        return sum(a.size for layer in self.layers for a in vars(layer).values())

    @property
    def form(self) -> str:
        """The sizes in words, as of Params, and the rank."""
        return f"{super().form}, rank {self.rank}"

    def dense(self) -> Params:
        """The Params with U and W multiplied out."""
        layers = []
        for layer in self.layers:
            U, W = np.split(layer.P @ layer.Q, [len(layer.P) - self.hidden_size])
            layers.append(Layer(U, W, layer.b))
        return Params(layers, self.V, self.b_out, self.cell).copy()

    def check(self, name: str = "params") -> "Factored":
        """Raise TypeError or ValueError if shapes, dtypes or values do not fit.

        Returns a Factored of plain C-contiguous arrays: this, or another where one was
        copied.
        """
        check_type(name, self, Factored, "low_rank.Factored")
        return self._checked(name, factorable())

    def _shapes(self, name, cell):
        bottom, first = f"{name}.layers[0]", self.layers[0]
        KH = check_array(f"{bottom}.b", first.b, ("K*H",)).size
        rows, R = check_array(f"{bottom}.P", first.P, ("D+H", "R")).shape
        H, left = divmod(KH, len(cell.gates))
        if left or rows <= H:
            got = f"b of {KH} and P of {rows} rows"
            raise ValueError(f"{bottom}: got {got}, want K*H and D+H")
        shapes = {}
        for index in range(self.num_layers):
            shape = {"P": (2 * H if index else rows, R), "Q": (R, KH), "b": (KH,)}
            shapes |= {f"layers.{index}.{part}": shape[part] for part in shape}
        if self.V is not None:
            O = check_array(f"{name}.V", self.V, (H, "O")).shape[1]
            shapes |= {"V": (H, O), "b_out": (O,)}
        return shapes


def full_rank(params: Params) -> int:
    """The largest rank that a layer's U over W can have: from there on nothing is
    lost.
    """
    return max(
        min(len(layer.U) + len(layer.W), layer.U.shape[1]) for layer in params.layers
    )


def factor(params: Params, rank: int) -> Factored:
    """Params with each layer's U over W of rank `rank`, by the truncated singular value
    decomposition, computed in float64. A layer that cannot have this rank gets columns
    of zeros.

    Raises TypeError, or ValueError for a rank below 1 or above `full_rank`, and for a
    GRU.
    """
    params = Params.check(params)
    check_choice("params.cell", params.cell, factorable())
    rank, layers = check_int("rank", rank, 1, full_rank(params)), []
    for layer in params.layers:
        matrix = np.vstack([layer.U, layer.W]).astype(np.float64)
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        root, short = np.sqrt(values[:rank]), (0, max(0, rank - len(values)))
        P = np.pad(left[:, :rank] * root, ((0, 0), short))
        Q = np.pad(root[:, None] * right[:rank], (short, (0, 0)))
        layers.append(FactoredLayer(*(a.astype(params.dtype) for a in (P, Q, layer.b))))
    return Factored(layers, params.V, params.b_out, params.cell).copy()


def through_factors(factored: Factored, grads: Grads) -> Grads:
    """Gradients of the factors, `layers[l].P`, `.Q`, `.b`, from those of U and W: dP =
    dM Q^T, dQ = P^T dM for M = P Q.
    """
    layers = []
    for layer, grad in zip(factored.layers, grads.layers, strict=True):
        dM = np.vstack([grad.U, grad.W])
        layers.append(FactoredLayer(dM @ layer.Q.T, layer.P.T @ dM, grad.b))
    return Grads(layers, grads.V, grads.b_out, grads.cell, grads.x, grads.state)
