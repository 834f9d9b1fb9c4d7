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
from .errors import check_array, check_choice, check_int, counted
from .params import Gradients, Grads, Layer, Parameters, Params, Weights

FACTORED = (
    "lstm",
    "rnn",
)  # a GRU's U and W feed different gates: they have no common Q


@dataclass
class FactoredLayer:
    """Factors P (D+H, R) and Q (R, K*H) of U over W; bias b (K*H,)."""

    P: np.ndarray
    Q: np.ndarray
    b: np.ndarray


class FactoredWeights(Weights):
    """What factored parameters and their gradients share."""

    layer: ClassVar[type] = FactoredLayer
    parts: ClassVar[tuple[str, ...]] = ("P", "Q", "b")

    @property
    def hidden_size(self) -> int:
        return self.layers[0].Q.shape[1] // len(CELLS[self.cell].gates)

    @property
    def input_size(self) -> int:
        return self.layers[0].P.shape[0] - self.hidden_size

    @property
    def rank(self) -> int:
        """R, the same in every layer."""
        return self.layers[0].P.shape[1]

    @property
    def dtype(self) -> np.dtype:
        return self.layers[0].P.dtype

    @property
    def form(self) -> str:
        """The sizes in words, as of Params, and the rank."""
        layers, inputs = (
            counted(self.num_layers, "layer"),
            counted(self.input_size, "input"),
        )
        readout = "" if self.V is None else f", read-out {self.output_size}"
        sizes = f"{layers} of {self.hidden_size}, {inputs}, rank {self.rank}{readout}"
        return f"{self.cell.upper()}, {sizes}, {self.dtype}"


class Factored(FactoredWeights, Parameters):
    """Parameters with factored weights: `layers[l].P`, `.Q`, `.b`; the read-out `V`,
    `b_out`.
    """

    @property
    def count(self) -> int:
        """How many numbers the layers have, without the read-out."""
        return sum(
            getattr(layer, part).size for layer in self.layers for part in self.parts
        )

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
        if not isinstance(self, Factored):
            raise TypeError(
                f"{name}: got {type(self).__name__}, want low_rank.Factored"
            )
        cell, checked = CELLS[check_choice(f"{name}.cell", self.cell, FACTORED)], {}
        if not self.layers or (self.V is None) != (self.b_out is None):
            raise ValueError(
                f"{name}: got {self.layers!r}, want layers, V and b_out or neither"
            )
        arrays = self.arrays()
        KH = check_array(f"{name}.layers.0.b", arrays["layers.0.b"], ("K*H",)).size
        H, left = divmod(KH, len(cell.gates))
        P = check_array(f"{name}.layers.0.P", arrays["layers.0.P"], ("D+H", "R"))
        if left or len(P) <= H:
            raise ValueError(
                f"{name}.layers.0: got b of {KH} and P {P.shape}, want K*H and (D+H, R)"
            )
        R, shapes = P.shape[1], {"V": (H, "O"), "b_out": (self.output_size,)}
        for l in range(self.num_layers):
            rows = 2 * H if l else len(P)
            shape = {"P": (rows, R), "Q": (R, KH), "b": (KH,)}
            shapes |= {f"layers.{l}.{part}": shape[part] for part in self.parts}
        for path, array in arrays.items():
            checked[path] = check_array(
                f"{name}.{path}", array, shapes[path], dtype=P.dtype
            )
        kept = all(checked[path] is a for path, a in arrays.items())
        return self if kept else Factored.from_arrays(checked, self.cell)


class FactoredGrads(FactoredWeights, Gradients):
    """Gradients: the fields of Factored, and `.x` and `.state` as of Grads."""


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
    check_choice("params.cell", params.cell, FACTORED)
    rank, layers = check_int("rank", rank, 1, full_rank(params)), []
    for layer in params.layers:
        matrix = np.vstack([layer.U, layer.W]).astype(np.float64)
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        root, short = np.sqrt(values[:rank]), (0, max(0, rank - len(values)))
        P = np.pad(left[:, :rank] * root, ((0, 0), short))
        Q = np.pad(root[:, None] * right[:rank], (short, (0, 0)))
        layers.append(FactoredLayer(*(a.astype(params.dtype) for a in (P, Q, layer.b))))
    return Factored(layers, params.V, params.b_out, params.cell).copy()


def through_factors(factored: Factored, grads: Grads) -> FactoredGrads:
    """Gradients of the factors from those of U and W: dP = dM Q^T, dQ = P^T dM for M =
    P Q.
    """
    layers = []
    for layer, grad in zip(factored.layers, grads.layers, strict=True):
        dM = np.vstack([grad.U, grad.W])
        layers.append(FactoredLayer(dM @ layer.Q.T, layer.P.T @ dM, grad.b))
    read_out = grads.V, grads.b_out
    return FactoredGrads(layers, *read_out, factored.cell, x=grads.x, state=grads.state)
