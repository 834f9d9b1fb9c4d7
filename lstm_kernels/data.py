"""The airline-passenger series and the embedded Reber grammar, as data sets."""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from .errors import check_array, check_dtype, check_int, check_numbers

if TYPE_CHECKING:
    import pandas as pd

FOLDER = Path(__file__).parent / "series"
SYMBOLS = "BTPSXVE"
# Reber's grammar after its B: node -> symbol -> next node. Where two symbols leave a
# node, either is taken with probability 1/2. Its E leads to node 6.
REBER = MappingProxyType(
    {
        0: MappingProxyType({"T": 1, "P": 2}),
        1: MappingProxyType({"S": 1, "X": 3}),
        2: MappingProxyType({"T": 2, "V": 4}),
        3: MappingProxyType({"X": 2, "S": 5}),
        4: MappingProxyType({"P": 3, "V": 5}),
        5: MappingProxyType({"E": 6}),
    }
)
SHORTEST = 9  # embedded string
LONGEST = 1000  # least length: the probability of one falls by about a quarter with each symbol


@dataclass(repr=False)
class Dataset:
    """Examples for sequence prediction: x (T, N, D) inputs, target (N, O), N
    examples.
    """

    x: np.ndarray
    target: np.ndarray
    mixes: ClassVar[bool] = True  # whether a mini-batch is as the order has it

    def __post_init__(self):
        self.x = check_array("x", self.x, ("T", "N", "D"))
        self.target = check_array(
            "target", self.target, (self.x.shape[1], "O"), dtype=self.x.dtype
        )

    def __len__(self) -> int:
        return self.x.shape[1]

    def __repr__(self) -> str:
        sizes = f"x {self.x.shape}, target {self.target.shape}, {self.x.dtype}"
        return f"Dataset: {len(self)} examples, {sizes}"

    def batch(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The examples at `index` (B,): x (T, B, D) and target (B, O), copies."""
        return np.ascontiguousarray(self.x[:, index]), self.target[index]

    def batches(self, order: np.ndarray, batch_size: int) -> Iterable[np.ndarray]:
        """The examples of each mini-batch, as `order` (N,) has them; the last one has
        fewer if need be.
        """
        return (
            order[first : first + batch_size]
            for first in range(0, len(order), batch_size)
        )

    def each_batch(
        self, order: np.ndarray, batch_size: int, step: Callable
    ) -> list[float]:
        """step(x, target) for each of `batches`; the losses, up to one not finite."""
        losses = []
        for index in self.batches(order, batch_size):
            losses.append(step(*self.batch(index)))
            if not math.isfinite(losses[-1]):
                break
        return losses

    def sha256(self) -> str:
        """The hash of the examples: shapes, dtypes and numbers of x and target."""
        digest = hashlib.sha256()
        for a in (self.x, self.target):
            digest.update(f"{a.shape} {a.dtype.str} ".encode())
            digest.update(a.tobytes())
        return digest.hexdigest()


def airline() -> "pd.Series":
    """Monthly airline passengers in thousands, 1949-1960 (Box, Jenkins & Reinsel,
    Series G): a pandas Series of 144 integers, indexed by month.
    """
    import pandas as pd  # slow to import, and only needed here

    table = pd.read_csv(FOLDER / "airline_passengers.csv", index_col="month")
    return table["passengers"].set_axis(pd.PeriodIndex(table.index, freq="M"))


def windows(
    series: ArrayLike, length: int, *, dtype: DTypeLike = np.float32
) -> Dataset:
    """Every run of `length` values as an input, the value after it as the target.

    series: (N,) finite real numbers; dtype: of the examples. Returns a Dataset of N -
    length examples: x (length, N - length, 1), target (N - length, 1). Raises
    TypeError, or ValueError when the series is not longer than a window.
    """
    values = check_numbers("series", series)
    length = check_int("length", length, 1, len(values) - 1)
    with np.errstate(over="ignore"):  # what float32 cannot hold is refused as infinite
        values = values.astype(check_dtype("dtype", dtype))
    views = np.lib.stride_tricks.sliding_window_view(
        values[:-1], length
    )  # (N - length, length)
    return Dataset(views.T[..., None], values[length:, None])


@dataclass(frozen=True)
class LogDifference:
    """Passengers to scaled monthly growth and back: z_t = (log p_t - log p_{t-1} -
    mean) / std.

    `mean` and `std` come from the months given to `fit` and from no others. Passengers
    are finite real numbers above zero; anything else is a TypeError or ValueError.
    """

    mean: float
    std: float

    def __post_init__(self):
        check_numbers("mean", self.mean, ())
        check_numbers(
            "std", self.std, (), positive=True
        )  # zero where growth never varies

    @classmethod
    def fit(cls, passengers: ArrayLike) -> "LogDifference":
        growth = cls._growth(passengers)
        return cls(float(growth.mean()), float(growth.std()))

    def forward(self, passengers: ArrayLike) -> np.ndarray:
        """(N,) passengers to (N - 1,) values; N is at least 2."""
        return (self._growth(passengers) - self.mean) / self.std

    def backward(self, before: ArrayLike, z: ArrayLike) -> np.ndarray:
        """Passengers from those of the month before and the value of this month."""
        before = check_numbers("before", before, None, positive=True)
        return before * np.exp(check_numbers("z", z, None) * self.std + self.mean)

    @staticmethod
    def _growth(passengers):
        passengers = check_numbers("passengers", passengers, positive=True)
        if len(passengers) < 2:
            raise ValueError("passengers: got 1 month, want at least 2")
        return np.diff(np.log(passengers))


def _embedded():
    """The embedded grammar: state -> symbol -> next state; nothing follows "end"."""
    grammar = {"start": {"B": "outer"}, "outer": {o: (o, "start") for o in "TP"}}
    for o in "TP":  # the copies of the inner grammar remember it
        grammar[o, "start"] = {"B": (o, 0)}
        grammar |= {
            (o, node): {s: (o, to) for s, to in edges.items()}
            for node, edges in REBER.items()
        }
        grammar[o, 6] = {o: "last"}
    return grammar | {"last": {"E": "end"}, "end": {}}


EMBEDDED = MappingProxyType(
    {state: MappingProxyType(to) for state, to in _embedded().items()}
)


class Optimum(NamedTuple):
    """What the true distribution of strings costs on average: the least that a model
    can reach.
    """

    nats: float  # of a string
    symbols: float  # predicted, of a string: all but its first

    @property
    def cross_entropy(self) -> float:
        """Nats per predicted symbol."""
        return self.nats / self.symbols


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
        count = check_int("count", count)
        rng, drawn = np.random.default_rng(check_int("seed", seed, low=0)), []
        for _ in range(count):
            state, string = "start", ""
            while following := self._probabilities(state, len(string)):
                first, *second = following  # one or two
                symbol = first if rng.random() < following[first] else second[0]
                state, string = EMBEDDED[state][symbol], string + symbol
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
        """The mean of -log p(next symbol | symbols before) over all symbols of `strings` but the
        first of each, in nats. Raises TypeError, or ValueError for what is no whole string.
        """
        nats = 0.0
        for index, string in enumerate(strings := _check_strings(strings)):
            state, probabilities = self._walk(name := f"strings[{index}]", string)
            if state != "end":
                want = " or ".join(map(repr, self._probabilities(state, len(string))))
                raise ValueError(
                    f"{name}: got its end at position {len(string)}, want {want}"
                )
            nats -= sum(map(math.log, probabilities))
        return nats / sum(len(string) - 1 for string in strings)

    def optimum(self) -> Optimum:
        """The expectations of a string's nats and predicted symbols, exact up to
        rounding.
        """
        nats, reached = 0.0, Counter({"start": 1.0})
        for length in range(self.least):
            now, reached = reached, Counter()
            for state, share in now.items():
                for symbol, p in self._probabilities(state, length).items():
                    nats -= share * p * math.log(p)
                    reached[EMBEDDED[state][symbol]] += share * p
        # From here on the condition is met. With Q the probabilities of one state after
        # another, (I - Q)^-1, the sum of all Q^k, has the expected visits (Kemeny &
        # Snell 1960, chapter 3).
        states = [state for state, to in EMBEDDED.items() if to]
        Q = np.zeros((len(states), len(states)))
        for row, state in enumerate(states):
            for to in EMBEDDED[state].values():
                if to != "end":
                    Q[row, states.index(to)] += 1 / len(EMBEDDED[state])
        start = np.array([reached[state] for state in states])
        visits = np.linalg.solve((np.eye(len(states)) - Q).T, start)
        nats += visits @ np.log([len(EMBEDDED[state]) for state in states])
        return Optimum(float(nats), float(self.least + visits.sum() - 1))

    @cached_property
    def _survival(self):
        """For k = 0, 1, ...: the probability that k or more symbols follow a state."""
        survival = [dict.fromkeys(EMBEDDED, 1.0)]
        for _ in range(1, self.least):
            now = {}
            for state, to in EMBEDDED.items():
                now[state] = sum(survival[-1][t] for t in to.values()) / max(len(to), 1)
            survival.append(now)
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
                raise ValueError(
                    f"{name}: got {symbol!r} at position {position}, want {want}"
                )
            state = EMBEDDED[state][symbol]
            probabilities.append(following[symbol])
        return state, probabilities


def symbols(strings: Sequence[str], *, dtype: DTypeLike = np.float32) -> Dataset:
    """Strings of the seven symbols as one-hot rows, in the order of `SYMBOLS`.

    Returns a Dataset of N strings: x (T, N, 7), zero after a string's end, T the
    longest; target (N, 1), their lengths. Raises TypeError, or ValueError for no or an
    empty string, or for an unknown symbol; strings need not be of the grammar.
    """
    strings = _check_strings(strings)
    lengths = np.array([[len(string)] for string in strings])
    x = np.zeros(
        (lengths.max(), len(strings), len(SYMBOLS)), check_dtype("dtype", dtype)
    )
    for index, string in enumerate(strings):
        if not string:
            raise ValueError(
                f"strings[{index}]: got an empty string, want at least one symbol"
            )
        x[
            np.arange(len(string)), index, [SYMBOLS.index(symbol) for symbol in string]
        ] = 1
    return Dataset(x, lengths.astype(x.dtype))


def _check_string(name, string):
    if not isinstance(string, str):
        raise TypeError(f"{name}: got {string!r}, want a string of {SYMBOLS}")
    for position, symbol in enumerate(string):
        if symbol not in SYMBOLS:
            raise ValueError(
                f"{name}: got {symbol!r} at position {position}, want of {SYMBOLS}"
            )
    return string


def _check_strings(strings):
    if isinstance(strings, str) or not isinstance(strings, Sequence):
        raise TypeError(
            f"strings: got {type(strings).__name__}, want a list of strings"
        )
    if not strings:
        raise ValueError("strings: got an empty list, want at least one string")
    return [
        _check_string(f"strings[{index}]", string)
        for index, string in enumerate(strings)
    ]
