"""Strings of the embedded Reber grammar (Reber 1967; Hochreiter & Schmidhuber 1997,
section 5.1), one-hot rows of them, and buckets of strings that are about as long:
page 08.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike

from lstm_kernels.data import Dataset
from lstm_kernels.errors import check_int

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


def reber(count: int, seed: int = 0) -> list[str]:
    """`count` strings, drawn independently: B, T or P, a string of Reber's grammar (B
    to E), the same T or P again, and E.
    """
    rng = np.random.default_rng(seed)

    def draw(symbols):
        """One of one or two; a number is drawn for each symbol, a certain one too."""
        first, *other = symbols
        return first if rng.random() * len(symbols) < 1 else other[0]

    strings = []
    for _ in range(check_int("count", count)):
        node, start = 0, draw("B") + draw("TP")
        inner = draw("B")
        while node in REBER:
            inner += draw(REBER[node])
            node = REBER[node][inner[-1]]
        strings.append(start + inner + draw(start[1]) + draw("E"))
    return strings


def one_hot(strings: Sequence[str]) -> Dataset:
    """Strings of SYMBOLS as one-hot rows, float32: a Dataset of N strings, x (T, N, 7),
    zero after a string's end, T the longest; target (N, 1), their lengths. Raises
    ValueError for another symbol.
    """
    lengths = np.array([[len(string)] for string in strings])
    x = np.zeros((lengths.max(), len(strings), len(SYMBOLS)), np.float32)
    for n, string in enumerate(strings):
        x[range(len(string)), n, [*map(SYMBOLS.index, string)]] = 1
    return Dataset(x, lengths.astype(np.float32))


def borders(lengths: ArrayLike, buckets: int) -> list[int]:
    """The borders of at most so many buckets that pad least, increasing; the last is
    the longest. A sequence is padded to the first border that it does not exceed.
    Every choice is tried. lengths: (N,) integers from 1.
    """
    *shorter, longest = np.unique(lengths).tolist()
    count = min(check_int("buckets", buckets) - 1, len(shorter))
    every = ([*ends, longest] for ends in combinations(shorter, count))
    return min(every, key=lambda ends: _padded(lengths, ends).sum())


def waste(lengths: ArrayLike, borders: list[int]) -> float:
    """The share of the steps computed that are padding, from 0 to 1."""
    return 1 - float(np.sum(lengths) / _padded(lengths, borders).sum())


def batches(
    lengths: ArrayLike, borders: list[int], order: ArrayLike, batch_size: int
) -> list[np.ndarray]:
    """The strings of each mini-batch of an epoch, all of one bucket, from the `order`
    (N,) of all: it decides who comes together, and when, since a mini-batch comes where
    its last string does.
    """
    order, found = np.asarray(order), []
    for border in borders:
        own = order[_padded(lengths, borders)[order] == border]
        found += np.split(own, range(batch_size, len(own), batch_size))
    place = np.argsort(order)  # of each string
    return sorted(filter(len, found), key=lambda index: place[index].max())


def _padded(lengths, borders):
    """The steps that each sequence is padded to, (N,)."""
    return np.asarray(borders)[np.searchsorted(borders, lengths)]
