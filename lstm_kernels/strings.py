"""Strings of symbols: the embedded Reber grammar, one-hot rows, buckets, and models
that predict the next symbol.

A batch of strings is one-hot rows x (T, B, S), zero after a string's end. A *predicted
symbol* is any symbol of a string but its first.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from .data import Dataset, check_order
from .errors import (
    DivergedError,
    check_array,
    check_dtype,
    check_int,
    check_rate,
    check_type,
)
from .params import Grads, Params
from .readout import cross_entropy, cross_entropy_and_grads, log_softmax

SYMBOLS = "BTPSXVE"
# Reber's grammar after its B: node -> symbol -> next node. Where two symbols leave a
# node, either is taken with probability 1/2. Its E leads to node 6.
REBER = {
    0: {"T": 1, "P": 2},
    1: {"S": 1, "X": 3},
    2: {"T": 2, "V": 4},
    3: {"X": 2, "S": 5},
    4: {"P": 3, "V": 5},
    5: {"E": 6},
}
SHORTEST = 9  # embedded string
LONGEST = 1000  # least length: a string of one symbol more is a quarter less probable
LONGEST_STEPS = 2**31 - 1  # so that steps of all sequences are counted in 64 bits


def _embedded():
    """The embedded grammar: state -> symbol -> next state; nothing follows "end"."""
    grammar = {"start": {"B": "outer"}, "outer": {o: (o, "start") for o in "TP"}}
    for o in "TP":  # the copies of the inner grammar remember it
        grammar[o, "start"] = {"B": (o, 0)}
        for node, edges in REBER.items():
            grammar[o, node] = {symbol: (o, to) for symbol, to in edges.items()}
        grammar[o, 6] = {o: "last"}
    return grammar | {"last": {"E": "end"}, "end": {}}


EMBEDDED = _embedded()


@dataclass(frozen=True)
class Reber:
    """The embedded Reber grammar (Reber 1967; Hochreiter & Schmidhuber 1997, section
    5.1), given that a string has `least` symbols or more.

    A string is B, T or P, a string of Reber's grammar (B to E), the same T or P again,
    and E: the last symbol but one repeats the second. Without a condition (least=9, the
    shortest string) each of two symbols that may follow has probability 1/2. A larger
    `least` changes these, and all methods count with the changed ones: while a string
    is short, it does not end. Raises TypeError or ValueError for a `least` that is no
    integer from 9 to 1000.
    """

    least: int = SHORTEST

    def __post_init__(self):
        check_int("least", self.least, SHORTEST, LONGEST)

    def strings(self, count: int, *, seed: int = 0) -> list[str]:
        """`count` strings, drawn independently."""
        count, drawn = check_int("count", count), []
        rng = np.random.default_rng(check_int("seed", seed, low=0))
        for _ in range(count):
            state, string = "start", ""
            while following := self._probabilities(state, len(string)):
                first, *second = following  # one or two
                symbol = first if rng.random() < following[first] else second[0]
                state = EMBEDDED[state][symbol]
                string += symbol
            drawn.append(string)
        return drawn

    def successors(self, prefix: str) -> dict[str, float]:
        """The symbols that may follow `prefix`, each with its probability; none after a
        whole string. Raises TypeError, or ValueError where no string begins with
        `prefix`.
        """
        state, _ = self._walk("prefix", prefix)
        return self._probabilities(state, len(prefix))

    def cross_entropy(self, strings: Sequence[str]) -> float:
        """The mean of -log p(next symbol | symbols before) over the predicted symbols
        of `strings`, in nats: what no model is below, in the mean over all strings.
        Raises TypeError, or ValueError for what is no whole string.
        """
        nats, strings = 0.0, _check_strings(strings)
        for index, string in enumerate(strings):
            name = f"strings[{index}]"
            state, probabilities = self._walk(name, string)
            if state != "end":
                want = " or ".join(map(repr, self._probabilities(state, len(string))))
                got = f"its end at position {len(string)}"
                raise ValueError(f"{name}: got {got}, want {want}")
            nats -= sum(map(math.log, probabilities))
        return nats / sum(len(string) - 1 for string in strings)

    @cached_property
    def _survival(self):
        """For k = 0, 1, ...: the probability that k or more symbols follow a state."""
        survival = [dict.fromkeys(EMBEDDED, 1.0)]
        for _ in range(1, self.least):
            before = survival[-1]
            survival.append(
                {
                    state: sum(before[t] for t in to.values()) / max(len(to), 1)
                    for state, to in EMBEDDED.items()
                }
            )
        return survival

    def _probabilities(self, state, length):
        """The probability of each symbol after `length` symbols that lead to
        `state`.
        """
        survival = self._survival[max(self.least - length - 1, 0)]
        weights = {symbol: survival[to] for symbol, to in EMBEDDED[state].items()}
        total = sum(weights.values())
        return {symbol: p / total for symbol, p in weights.items() if p}

    def _walk(self, name, string):
        """The state after `string`, and the probability of each of its symbols."""
        state, probabilities = "start", []
        for position, symbol in enumerate(_check_string(name, string)):
            following = self._probabilities(state, position)
            if symbol not in following:
                want = " or ".join(map(repr, following)) or "the end of the string"
                got = f"{symbol!r} at position {position}"
                raise ValueError(f"{name}: got {got}, want {want}")
            state = EMBEDDED[state][symbol]
            probabilities.append(following[symbol])
        return state, probabilities


def one_hot(strings: Sequence[str], *, dtype: DTypeLike = np.float32) -> Dataset:
    """Strings of the seven symbols as one-hot rows, in the order of `SYMBOLS`.

    Returns a Dataset of N strings: x (T, N, 7), zero after a string's end, T the
    longest; target (N, 1), their lengths. Raises TypeError, or ValueError for no or an
    empty string, or for an unknown symbol; strings need not be of the grammar.
    """
    strings, dtype = _check_strings(strings), check_dtype("dtype", dtype)
    lengths = np.array([[len(string)] for string in strings])
    x = np.zeros((lengths.max(), len(strings), len(SYMBOLS)), dtype)
    for index, string in enumerate(strings):
        if not string:
            want = "at least one symbol"
            raise ValueError(f"strings[{index}]: got an empty string, want {want}")
        x[range(len(string)), index, [*map(SYMBOLS.index, string)]] = 1
    return Dataset(x, lengths.astype(dtype))


def borders(lengths, buckets):
    """The borders of at most so many buckets that pad least, increasing; the last is
    the longest. A sequence is padded to the first border that it does not exceed.

    Dynamic programming over the distinct lengths: the least steps of the sequences up
    to a length with k buckets, from those of fewer with k - 1; O(k n^2) for n lengths.
    lengths: (N,) integers from 1. Raises TypeError or ValueError.
    """
    sizes, counts = np.unique(check_lengths(lengths), return_counts=True)
    n = len(sizes)
    buckets = min(check_int("buckets", buckets), n)
    shorter = np.concatenate([[0], np.cumsum(counts)])  # sequences below sizes[i]
    least, choices = np.append(0, sizes) * shorter, []  # of the first j sizes
    for _ in range(buckets - 1):
        choice, before = np.zeros(n + 1, int), least
        least = before.copy()
        for j in range(1, n + 1):
            # The last bucket takes sizes i, ..., j-1; the buckets before, i sizes.
            every = before[:j] + sizes[j - 1] * (shorter[j] - shorter[:j])
            choice[j] = every.argmin()
            least[j] = every[choice[j]]
        choices.append(choice)
    ends = [n]
    for choice in reversed(choices):
        ends.append(int(choice[ends[-1]]))
    return [int(sizes[end - 1]) for end in sorted(set(ends)) if end]


def equal_borders(lengths, buckets):
    """Borders as far apart as each other, from the shortest length to the longest."""
    lengths = check_lengths(lengths)
    low, high = int(lengths.min()) - 1, int(lengths.max())
    buckets = min(check_int("buckets", buckets), high - low)
    return sorted({low - -(high - low) * k // buckets for k in range(1, buckets + 1)})


def assign(lengths, borders):
    """Of each bucket the indices of its sequences, in their order: a list of arrays.

    Raises ValueError for a sequence that is longer than the last border.
    """
    lengths = check_lengths(lengths)
    check_type("borders", borders, (list, tuple, np.ndarray), "a list of lengths")
    borders = [check_int("borders", border) for border in borders]
    if borders != sorted(set(borders)) or not borders:
        raise ValueError(f"borders: got {borders}, want increasing lengths")
    if lengths.max() > borders[-1]:
        want = f"a last one of at least {lengths.max()}"
        raise ValueError(f"borders: got {borders}, want {want}")
    place = np.array([bisect_left(borders, length) for length in lengths])
    return [np.flatnonzero(place == bucket) for bucket in range(len(borders))]


def waste(lengths, borders):
    """The share of the steps computed that are padding, from 0 to 1."""
    groups, lengths = assign(lengths, borders), check_lengths(lengths)
    steps = sum(b * len(group) for b, group in zip(borders, groups, strict=True))
    return 1 - float(lengths.sum()) / float(steps)


def check_lengths(lengths):
    """Return lengths of sequences as int64 (N,), or raise TypeError or ValueError."""
    array = np.asarray(lengths)
    want = f"integers (N,) from 1 to {LONGEST_STEPS}"
    if isinstance(lengths, np.ma.MaskedArray):
        raise TypeError(f"lengths: got a masked array, want {want}")
    if array.ndim != 1 or array.dtype.kind not in "iu" or not array.size:
        got = f"{array.dtype} of shape {array.shape}" if array.size else "none"
        raise ValueError(f"lengths: got {got}, want {want}")
    if not 1 <= array.min() <= array.max() <= LONGEST_STEPS:
        raise ValueError(f"lengths: got {array.min()} to {array.max()}, want {want}")
    return array.astype(np.int64)


class Bucketed(Dataset):
    """A Dataset of strings (`one_hot`) whose mini-batches are of one bucket each,
    padded to its longest: each epoch draws them, and their order, from the order of the
    examples. More buckets pad less, but leave fewer strings to fill the mini-batches of
    each.

    borders: as of `borders` or `equal_borders`. Raises TypeError or ValueError as
    `assign`, and for a data set whose targets are not the lengths.
    """

    mixes = False

    def __init__(self, dataset, borders):
        check_type("dataset", dataset, Dataset)
        super().__init__(dataset.x, dataset.target)
        lengths = np.count_nonzero(self.x.any(axis=2), axis=0)
        if not np.array_equal(self.target, lengths[:, None]):
            got = "targets that are not lengths"
            raise ValueError(f"dataset: got {got}, want strings' (one_hot)")
        self._bucket = np.empty(len(self), int)
        for bucket, index in enumerate(assign(lengths, borders)):
            self._bucket[index] = bucket
        self.borders = [int(border) for border in borders]

    def batches(self, order, batch_size):
        """The examples of each mini-batch (`Dataset.batches`), all of one bucket."""
        order, batches = np.asarray(order), []
        for bucket in range(len(self.borders)):
            batches += super().batches(order[self._bucket[order] == bucket], batch_size)
        # A mini-batch comes where its last example does: as random as the order is.
        places = np.empty(len(self), np.int64)
        places[order] = np.arange(len(order))
        return sorted(batches, key=lambda index: places[index].max())

    def batch(self, index):
        """The examples at `index` (B,), without the steps after the longest: copies."""
        x, target = super().batch(index)
        return np.ascontiguousarray(x[: int(target.max())]), target

    def sha256(self):
        """The hash of the examples and of the borders."""
        return f"{super().sha256()} {self.borders}"


class NextSymbol:
    """The distribution of the next symbol, softmax(y[t] V + b_out), of a network.

    net: of lstm_kernels.network, with a read-out of as many outputs as inputs; it is
    not copied, and `assign`, `epoch` and training change it. `lstm_kernels.train` takes
    a model as it takes a network, with `one_hot(strings)` as the data set. Raises
    TypeError or ValueError for another network. Not to be used by two threads at once.

    The loss of an epoch in its History is the mean over strings of their mini-batch's
    loss.
    """

    def __init__(self, net):
        if not (hasattr(net, "backward") and hasattr(net, "params")):
            check_type("net", net, (), "a network of lstm_kernels.network")
        params = net.params()
        inputs, outputs = params.input_size, params.output_size
        if outputs is None:
            want = "V and b_out (output_size of Params.init)"
            raise ValueError(f"net: got no read-out, want {want}")
        if inputs != outputs:
            got = f"{inputs} inputs and {outputs} outputs"
            raise ValueError(f"net: got {got}, want as many of each")
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
        x, _ = check_one_hot(x, symbols=self._symbols, dtype=self._dtype, least=1)
        return np.exp(self._log_probabilities(x))

    def loss(self, x: np.ndarray) -> float:
        """The mean cross-entropy of the predicted symbols of x (T, B, S), in nats.

        Raises TypeError or ValueError as `probabilities`, and for a string of one
        symbol.
        """
        x, lengths = check_one_hot(x, symbols=self._symbols, dtype=self._dtype)
        x = x[: lengths.max()]
        log_p = self._log_probabilities(x[:-1])
        return cross_entropy(log_p, numbers(x[1:]), np.count_nonzero(x[1:]))

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
        theta, wanted = self.net.params(), x[1:]
        y, _ = self.net.forward(x[:-1], training=True)
        count = int(np.count_nonzero(wanted))
        loss, dy, dV, db_out = cross_entropy_and_grads(
            y, theta.V, theta.b_out, numbers(wanted), count
        )
        grads = self.net.backward(dy)
        grads.V, grads.b_out = dV, db_out
        if not np.isfinite(loss):
            for a in grads.arrays().values():
                a[...] = np.nan
        return loss, grads

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
        order, batch_size = check_order(dataset, order, batch_size, mixed=False)

        def step(x, target):
            loss, grads = self.loss_and_grads(x, target)
            if np.isfinite(loss):
                theta, gradients = self.net.params(), grads.arrays()
                with np.errstate(over="ignore"):
                    new = {
                        n: a - rate * gradients[n] for n, a in theta.arrays().items()
                    }
                if not all(np.isfinite(a).all() for a in new.values()):
                    raise DivergedError("a parameter is not finite")
                self.net.assign(theta.from_arrays(new, theta.cell))
            return loss

        return dataset.each_batch(order, batch_size, step)

    def _log_probabilities(self, x):
        y, _ = self.net.forward(x)
        theta = self.net.params()
        return log_softmax(y, theta.V, theta.b_out)


def check_one_hot(x, *, symbols, dtype, least=2):
    """Return x, one-hot rows (T, B, `symbols`), and the lengths of its strings, of at
    least `least` symbols, or raise TypeError or ValueError.
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
    """Return x up to its longest string, if it is one-hot rows (T, B, `symbols`) of two
    symbols or more and target (B, 1) has their lengths; or raise TypeError or
    ValueError.
    """
    x, lengths = check_one_hot(x, symbols=symbols, dtype=dtype)
    target = check_array("target", target, (x.shape[1], 1), dtype=dtype)
    if wrong := np.flatnonzero(target[:, 0] != lengths).tolist():
        got = f"{target[wrong[0], 0]} at index [{wrong[0]}, 0]"
        raise ValueError(f"target: got {got}, want length {lengths[wrong[0]]}")
    return x[: lengths.max()]


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
    check_type("model", model, NextSymbol, "NextSymbol")
    Reber().cross_entropy(strings)  # checks them
    p = model.probabilities(one_hot(strings, dtype=model.params().dtype).x)
    every = np.arange(len(strings))
    p = p[[len(string) - 3 for string in strings], every]  # (N, S), of its prediction
    outer = [SYMBOLS.index(string[1]) for string in strings]
    other = [SYMBOLS.index("P" if string[1] == "T" else "T") for string in strings]
    return float(np.mean(p[every, outer] > p[every, other]))


def _check_string(name, string):
    check_type(name, string, str, f"a string of {SYMBOLS}")
    for position, symbol in enumerate(string):
        if symbol not in SYMBOLS:
            got = f"{symbol!r} at position {position}"
            raise ValueError(f"{name}: got {got}, want of {SYMBOLS}")
    return string


def _check_strings(strings):
    if isinstance(strings, str) or not isinstance(strings, Sequence):
        got = type(strings).__name__
        raise TypeError(f"strings: got {got}, want a list of strings")
    if not strings:
        raise ValueError("strings: got an empty list, want at least one string")
    return [
        _check_string(f"strings[{index}]", string)
        for index, string in enumerate(strings)
    ]
