"""Weights of low rank in NumPy: the matrix of a layer, U over W, as a product of two
thin ones; and the same with its cell compiled: page 09.

A layer of D inputs and H hidden units has (D + H) K H weights. With M = [U; W] = P Q,
where P is (D + H, R) and Q (R, K H), it has R (D + H + K H). It is a linear layer, s_t
= x_t Px + h_{t-1} Ph with P = [Px; Ph], and the cell after a_t = s_t Q + b. The best P
Q of a rank is the truncated singular value decomposition (Eckart & Young 1936); both
factors take the root of the singular values, so that they descend at the same rate.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from lstm_kernels.blas import single_threaded
from lstm_kernels.cells import CELLS
from lstm_kernels.cpu.fp_mode import FLUSH, exchange_fp_mode
from lstm_kernels.data import Dataset
from lstm_kernels.errors import check_choice, check_int
from lstm_kernels.params import Layer, Named, Params
from lstm_kernels.reference import blocks, output_loss, quietly, sigmoid
from lstm_kernels.versions.numba_sample import forward_units

FP_MODE = FLUSH  # as of `numba-sample`
# U and W must feed the same gates, else they have no common Q.
FACTORABLE = [n for n, c in CELLS.items() if c.input_gates == c.recurrent_gates]


@dataclass
class Factors:
    """P (D+H, R) and Q (R, K*H), whose product is U over W; bias b (K*H,)."""

    P: np.ndarray
    Q: np.ndarray
    b: np.ndarray


@dataclass
class Factored:
    """Parameters with factored weights, or their gradients; V and b_out."""

    layers: list[Factors]
    V: np.ndarray
    b_out: np.ndarray
    cell: str

    @property
    def dtype(self) -> np.dtype:
        return self.V.dtype

    def arrays(self) -> Named:
        """The arrays themselves by name: `layers.0.P`, ..., `V`, `b_out`."""
        named = {
            f"layers.{index}.{part}": a
            for index, layer in enumerate(self.layers)
            for part, a in vars(layer).items()
        }
        return named | {"V": self.V, "b_out": self.b_out}

    @classmethod
    def from_arrays(cls, named: Named, cell: str) -> "Factored":
        """The inverse of `arrays`."""
        count = sum(name.endswith(".P") for name in named)
        layers = [
            Factors(*(named[f"layers.{index}.{part}"] for part in "PQb"))
            for index in range(count)
        ]
        return cls(layers, named["V"], named["b_out"], cell)

    def copy(self) -> "Factored":
        named = {name: a.copy() for name, a in self.arrays().items()}
        return self.from_arrays(named, self.cell)

    def dense(self) -> Params:
        """The Params with U and W multiplied out."""
        layers = []
        for layer in self.layers:
            U, W = np.split(layer.P @ layer.Q, [len(layer.P) - len(self.V)])
            layers.append(Layer(U, W, layer.b))
        return Params(layers, self.V, self.b_out, self.cell).copy()


def full_rank(params: Params) -> int:
    """The largest rank that a layer's U over W can have: from there on nothing is
    lost.
    """
    return max(
        min(len(layer.U) + len(layer.W), layer.U.shape[1]) for layer in params.layers
    )


def factor(params: Params, rank: int) -> Factored:
    """Params with an output layer, each layer's U over W of rank `rank`, by the
    singular value decomposition in float64. A layer that cannot have this rank gets
    columns of zeros.

    Raises TypeError, or ValueError for a rank below 1 or above `full_rank`, and for a
    GRU.
    """
    check_choice("params.cell", params.cell, FACTORABLE)
    if params.V is None or params.b_out is None:
        raise ValueError("params: got no output layer, want one: output_size=1")
    rank, layers = check_int("rank", rank, 1, full_rank(params)), []
    for layer in params.layers:
        matrix = np.vstack([layer.U, layer.W]).astype(np.float64)
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        root, short = np.sqrt(values[:rank]), (0, max(0, rank - len(values)))
        P = np.pad(left[:, :rank] * root, ((0, 0), short))
        Q = np.pad(root[:, None] * right[:rank], (short, (0, 0)))
        layers.append(Factors(*(a.astype(params.dtype) for a in (P, Q, layer.b))))
    return Factored(layers, params.V, params.b_out, params.cell)


def cut(factored: Factored, rank: int) -> Factored:
    """The same of a lower rank, the nearest one: columns are in the order of the
    singular values.
    """
    layers = [
        Factors(layer.P[:, :rank].copy(), layer.Q[:rank].copy(), layer.b)
        for layer in factored.layers
    ]
    return Factored(layers, factored.V, factored.b_out, factored.cell)


def layer_forward(cell, layer, x):
    """One layer over all steps, from a zero state: h (T+1, B, H) and what
    `layer_backward` needs.
    """
    (T, B, D), R, H = x.shape, len(layer.Q), len(layer.b) // len(cell.gates)
    forward, _ = cell.make(np.tanh, sigmoid)
    Px, Ph = np.split(layer.P, [D])
    h, c = np.zeros((2, T + 1, B, H), x.dtype)
    s = (x.reshape(T * B, D) @ Px).reshape(T, B, R)  # of all steps at once
    gates = np.empty((T, B, len(layer.b)), x.dtype)
    for t in range(T):
        s[t] += h[t] @ Ph
        a = blocks(s[t] @ layer.Q + layer.b, len(cell.gates))
        *activated, h[t + 1], c[t + 1] = forward(*a, c[t])
        np.concatenate(activated, axis=1, out=gates[t])
    return h, (x, s, h, c, gates)


def layer_backward(cell, layer, tape, dy):
    """One layer back, dy (T, B, H): the gradients of its Factors, and dx (T, B, D)."""
    x, s, h, c, gates = tape
    (T, B, D), K = x.shape, len(cell.gates)
    _, backward = cell.make(np.tanh, sigmoid)
    Px, Ph = np.split(layer.P, [D])
    da, ds = np.empty_like(gates), np.empty_like(s)
    dh, dc = np.zeros_like(h[0]), np.zeros_like(c[0])
    for t in reversed(range(T)):
        *d_bar, dc = backward(dy[t] + dh, dc, *blocks(gates[t], K), c[t], c[t + 1])
        np.concatenate(d_bar, axis=1, out=da[t])
        ds[t] = da[t] @ layer.Q.T
        dh = ds[t] @ Ph.T
    da, ds, s = (array.reshape(T * B, -1) for array in (da, ds, s))
    inputs = np.concatenate([x, h[:-1]], axis=2).reshape(T * B, -1)
    grads = Factors(inputs.T @ ds, s.T @ da, da.sum(axis=0))
    return grads, (ds @ Px.T).reshape(T, B, D)


class LowRank:
    """A network with factored weights; `lstm_kernels.train` takes it as it takes a
    network. It computes on one thread, as `numpy` does.
    """

    def __init__(self, factored: Factored):
        self._params, self._cell = factored.copy(), CELLS[factored.cell]

    def params(self) -> Factored:
        """A copy of the parameters."""
        return self._params.copy()

    def assign(self, params: Factored) -> None:
        self._params = params.copy()

    @quietly
    def forward(self, x: np.ndarray) -> tuple[np.ndarray, list]:
        """Outputs y (T, B, H) of x (T, B, D), from a zero state, and what the gradients
        need of each layer.
        """
        tapes = []
        with single_threaded():
            for layer in self._params.layers:
                h, tape = layer_forward(self._cell, layer, x)
                x = h[1:]
                tapes.append(tape)
        return x, tapes

    def predict(self, x: np.ndarray) -> np.ndarray:
        """The output layer of the last step, (B, O)."""
        return self.forward(x)[0][-1] @ self._params.V + self._params.b_out

    @quietly
    def loss_and_grads(
        self, x: np.ndarray, target: np.ndarray
    ) -> tuple[float, Factored]:
        """Mean squared error against target (B, O), and its gradients."""
        y, tapes = self.forward(x)
        grads = self.params()
        with single_threaded():
            loss, dy, grads.V, grads.b_out = output_loss(self._params, y, target)
            for l in reversed(range(len(tapes))):
                layer = self._params.layers[l]
                grads.layers[l], dy = layer_backward(self._cell, layer, tapes[l], dy)
        return loss, grads

    def epoch(
        self, dataset: Dataset, order: ArrayLike, batch_size: int, learning_rate: float
    ) -> list[float]:
        """A step of gradient descent for each mini-batch of `order`; their losses."""

        def step(x, target):
            loss, grads = self.loss_and_grads(x, target)
            gradients = grads.arrays()
            for name, a in self._params.arrays().items():
                a -= a.dtype.type(learning_rate) * gradients[name]
            return loss

        return dataset.each_batch(np.asarray(order), batch_size, step)


def cells(a, b, c_prev, h, c):
    """The cell of a step: a (B, K*H), the products, become gates; h, c (B, H) are
    filled.
    """
    mode = exchange_fp_mode(FP_MODE)
    for s in range(len(a)):
        a[s] += b
        forward_units(a[s], h[s], c_prev[s], c[s])
    exchange_fp_mode(mode)


class CompiledCell(LowRank):
    """The same with the cell of its forward pass compiled. apply_cell: `cells` as
    machine code.
    """

    def __init__(self, factored: Factored, apply_cell: Callable):
        super().__init__(factored)
        self._apply_cell = apply_cell

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, list]:
        """Outputs y (T, B, H) of x (T, B, D), from a zero state; nothing for the
        gradients.
        """
        with single_threaded():
            for layer in self._params.layers:
                (T, B, D), R, KH = x.shape, len(layer.Q), len(layer.b)
                Px, Ph = np.split(layer.P, [D])
                h, c = np.zeros((2, T + 1, B, KH // 4), x.dtype)
                s, a = np.empty((B, R), x.dtype), np.empty((B, KH), x.dtype)
                of_x = (x.reshape(T * B, D) @ Px).reshape(T, B, R)
                for t in range(T):
                    np.matmul(h[t], Ph, out=s)
                    s += of_x[t]
                    np.matmul(s, layer.Q, out=a)
                    self._apply_cell(a, layer.b, c[t], h[t + 1], c[t + 1])
                x = h[1:]
        return x, []
