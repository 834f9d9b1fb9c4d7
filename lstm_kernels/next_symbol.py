"""Next-symbol models: the read-out of every step predicts the symbol of the step after
it.

A batch of strings is one-hot rows x (T, B, S), zero after a string's end, as
`data.symbols` makes them. A *predicted symbol* is any symbol of a string but its first.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from .data import SYMBOLS, Dataset, Reber, symbols
from .errors import DivergedError, check_array, check_int, check_rate
from .params import Grads, Params
from .readout import cross_entropy, cross_entropy_and_grads, log_softmax


class NextSymbol:
    """The distribution of the next symbol, softmax(y[t] V + b_out), of a network.

    net: of lstm_kernels.network, with a read-out of as many outputs as inputs; it is
    not copied, and `assign`, `epoch` and training change it. `lstm_kernels.train` takes
    a model as it takes a network, with `data.symbols(strings)` as the data set. Raises
    TypeError or ValueError for another network. Not to be used by two threads at once.

    The loss of an epoch in its History is the mean over strings of their mini-batch's
    loss.
    """

    def __init__(self, net):
        if not (hasattr(net, "backward") and hasattr(net, "params")):
            raise TypeError(
                f"net: got {type(net).__name__}, want a network of lstm_kernels.network"
            )
        params = net.params()
        if params.V is None:
            raise ValueError(
                "net: got no read-out, want V and b_out (output_size of Params.init)"
            )
        inputs, outputs = params.input_size, params.V.shape[1]
        if inputs != outputs:
            raise ValueError(
                f"net: got {inputs} inputs and {outputs} outputs, want as many of each"
            )
        self.net, self._symbols, self._dtype = net, outputs, params.dtype

    def __repr__(self) -> str:
        return f"next symbol of {self.net!r}"

    def params(self) -> Params:
        """A copy of the network's parameters."""
        return self.net.params()

    def assign(self, params: Params) -> None:
        """Take over other values for the network's parameters."""
        self.net.assign(params)

    def probabilities(self, x: np.ndarray) -> np.ndarray:
        """Of each symbol to be the one after step t, (T, B, S).

        x: (T, B, S), one-hot. After a string's end they mean nothing. Raises TypeError
        or ValueError for x of another shape or dtype, or that is not one-hot.
        """
        x, _ = self._check(x, least=1)
        return np.exp(self._log_probabilities(x))

    def loss(self, x: np.ndarray) -> float:
        """The mean cross-entropy of the predicted symbols of x (T, B, S), in nats.

        Raises TypeError or ValueError as `probabilities`, and for a string of one
        symbol.
        """
        x, lengths = self._check(x)
        x = x[: lengths.max()]
        return cross_entropy(
            self._log_probabilities(x[:-1]), numbers(x[1:]), np.count_nonzero(x[1:])
        )

    def loss_and_grads(self, x: np.ndarray, target: np.ndarray) -> tuple[float, Grads]:
        """The loss of x (T, B, S) and its gradients.

        target: (B, 1), the lengths of the strings. Loss and gradients are means over
        the predicted symbols of the batch: each symbol weighs the same, so a long
        string weighs more than a short one. Steps after the longest string are not
        computed; results do not depend on them, and `grads.x` (T', B, S) holds the
        inputs that were used, one less than the longest string has. Where the loss is
        not finite, the gradients are NaN. Raises TypeError or ValueError as `loss`, and
        where target is not the lengths.
        """
        x = check_strings(x, target, symbols=self._symbols, dtype=self._dtype)
        return self._loss_and_grads(x[:-1], x[1:])

    def epoch(
        self, dataset: Dataset, order: ArrayLike, batch_size: int, learning_rate: float
    ) -> list[float]:
        """A gradient-descent step for each mini-batch of `order` (N,), indices of
        strings.

        Returns the losses, each before its step; it ends early at one that is not
        finite. Raises TypeError or ValueError for bad input; DivergedError for a
        parameter that is not finite: the network then holds those before that step.
        """
        rate = self._dtype.type(check_rate("learning_rate", learning_rate, self._dtype))
        order, batch_size = check_order(dataset, order, batch_size)
        steps = 0

        def step(x, target):
            nonlocal steps
            loss, grads = self.loss_and_grads(x, target)
            if np.isfinite(loss):
                theta, gradients = self.net.params(), grads.arrays()
                with np.errstate(over="ignore"):
                    new = {
                        n: a - rate * gradients[n] for n, a in theta.arrays().items()
                    }
                if not all(np.isfinite(a).all() for a in new.values()):
                    raise DivergedError("a parameter is not finite", step=steps)
                self.net.assign(type(theta).from_arrays(new, theta.cell))
                steps += 1
            return loss

        return dataset.each_batch(order, batch_size, step)

    def _log_probabilities(self, x):
        y, _ = self.net.forward(x)
        theta = self.net.params()
        return log_softmax(y, theta.V, theta.b_out)

    def _loss_and_grads(self, x, target):
        y, _ = self.net.forward(x, training=True)
        theta, places = self.net.params(), numbers(target)
        loss, dy, dV, db_out = cross_entropy_and_grads(
            y, theta.V, theta.b_out, places, int(np.count_nonzero(target))
        )
        grads = self.net.backward(dy)
        grads.V, grads.b_out = dV, db_out
        if not np.isfinite(loss):
            for a in grads.arrays().values():
                a[...] = np.nan
        return loss, grads

    def _check(self, x, least=2):
        return check_one_hot(x, symbols=self._symbols, dtype=self._dtype, least=least)


def check_one_hot(x, *, symbols, dtype, least):
    """x (T, B, symbols) and the lengths of its strings (B,), of at least `least`
    symbols; TypeError or ValueError for what is not one-hot.
    """
    x = check_array("x", x, ("T", "B", symbols), dtype=dtype)
    ones = np.count_nonzero(x, axis=2)  # (T, B)
    wrong = (ones > 1) | (x.sum(axis=2) != ones)
    wrong[1:] |= ones[1:] > ones[:-1]
    if wrong.any():
        t, b = np.argwhere(wrong)[0].tolist()
        want = "one-hot rows, and zero rows after a string's end"
        raise ValueError(f"x: got {x[t, b]} at index [{t}, {b}], want {want}")
    lengths = ones.sum(axis=0)
    if lengths.min() < least:
        at = f"{lengths.min()} symbols at index [:, {lengths.argmin()}]"
        raise ValueError(f"x: got a string of {at}, want at least {least}")
    return x, lengths


def check_strings(x, target, *, symbols, dtype):
    """x (T, B, symbols) without the steps after its longest string; target (B, 1) must
    be the lengths. Raises TypeError or ValueError.
    """
    x, lengths = check_one_hot(x, symbols=symbols, dtype=dtype, least=2)
    target = check_array("target", target, (x.shape[1], 1), dtype=dtype)
    if wrong := np.flatnonzero(target[:, 0] != lengths).tolist():
        at, want = wrong[0], lengths[wrong[0]]
        raise ValueError(
            f"target: got {target[at, 0]} at index [{at}, 0], want length {want}"
        )
    return x[: lengths.max()]


def check_order(dataset, order, batch_size):
    """Indices of examples (N,) as an array, and the batch size. Raises TypeError or
    ValueError, also for what is no Dataset.
    """
    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"dataset: got {type(dataset).__name__}, want lstm_kernels.Dataset"
        )
    batch_size = check_int("batch_size", batch_size)
    order = np.asarray(order)
    if order.ndim != 1 or order.dtype.kind not in "iu":
        got = f"shape {order.shape} of {order.dtype}"
        raise TypeError(f"order: got {got}, want indices (N,), integers")
    if order.size and not 0 <= order.min() <= order.max() < len(dataset):
        got = f"indices {order.min()} to {order.max()}"
        raise ValueError(f"order: got {got}, want 0 to {len(dataset) - 1}")
    return order, batch_size


def numbers(x):
    """The symbols of one-hot rows x (T, B, S) by their numbers (T, B), -1 after a
    string's end.
    """
    return np.where(x.any(axis=2), x.argmax(axis=2), -1)


def outer_accuracy(model: NextSymbol, strings: Sequence[str]) -> float:
    """The share of embedded Reber strings whose last symbol but one, T or P, `model`
    predicts: it gives the right one the higher probability of the two.

    Guessing has 1/2. Raises TypeError, or ValueError for what is no embedded Reber
    string.
    """
    if not isinstance(model, NextSymbol):
        raise TypeError(f"model: got {type(model).__name__}, want NextSymbol")
    Reber().cross_entropy(strings)  # checks them
    x = symbols(strings, dtype=model.params().dtype).x
    before = (
        np.array([len(string) for string in strings]) - 3
    )  # the step that predicts it
    every = np.arange(len(strings))
    p = model.probabilities(x)[before, every]  # (N, S)
    outer = [SYMBOLS.index(string[1]) for string in strings]
    other = [SYMBOLS.index("P" if string[1] == "T" else "T") for string in strings]
    return float(np.mean(p[every, outer] > p[every, other]))
