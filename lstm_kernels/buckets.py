"""Bucketing: sequences of different length in groups, each padded to its longest.

A mini-batch is one array of T steps, so a sequence shorter than T is padded, and the
padding is computed. Sequences of a bucket are padded to its border, the longest length
that it takes. More buckets pad less, but leave fewer sequences to fill the mini-batches
of each.
"""

from bisect import bisect_left

import numpy as np

from .data import Dataset
from .errors import check_int


def borders(lengths, buckets):
    """The borders of at most so many buckets that pad least, increasing; the last is
    the longest.

    Dynamic programming over the distinct lengths: the least padding of the sequences up
    to a length with k buckets, from that of fewer with k - 1; O(k n^2) for n lengths.
    lengths: (N,) integers from 1. Raises TypeError or ValueError.
    """
    sizes, counts = np.unique(_lengths(lengths), return_counts=True)
    n = len(sizes)
    buckets = min(check_int("buckets", buckets), n)
    until = np.concatenate([[0], np.cumsum(counts)])  # sequences shorter than sizes[i]
    # Steps of the sequences i, ..., j-1 in one bucket, padding included; of no
    # sequence: none.
    cost = np.append(0, sizes)[None, :] * (until[None, :] - until[:, None])
    cost = np.where(np.tri(n + 1, k=-1, dtype=bool), np.inf, cost)
    least, before = cost[0], []
    for _ in range(buckets - 1):
        every = least[:, None] + cost  # (the sequences before, up to here)
        before.append(every.argmin(axis=0))
        least = every.min(axis=0)
    ends, end = [n], n
    for choice in reversed(before):
        end = int(choice[end])
        ends.append(end)
    return [int(sizes[end - 1]) for end in sorted(set(ends)) if end]


def equal_borders(lengths, buckets):
    """Borders as far apart as each other, from the shortest length to the longest."""
    lengths = _lengths(lengths)
    low, high, buckets = lengths.min() - 1, lengths.max(), check_int("buckets", buckets)
    every = low + (high - low) * np.arange(1, buckets + 1) / buckets
    return sorted({int(border) for border in np.ceil(every)})


def assign(lengths, borders):
    """Of each bucket the indices of its sequences, in their order: a list of arrays.

    Raises ValueError for a sequence that is longer than the last border.
    """
    lengths = _lengths(lengths)
    borders = [check_int("borders", border) for border in borders]
    if borders != sorted(set(borders)) or not borders:
        raise ValueError(f"borders: got {borders}, want increasing lengths")
    if lengths.max() > borders[-1]:
        raise ValueError(
            f"borders: got {borders}, want a last one of at least {lengths.max()}"
        )
    place = np.array([bisect_left(borders, length) for length in lengths])
    return [np.flatnonzero(place == bucket) for bucket in range(len(borders))]


def waste(lengths, borders):
    """The share of the steps computed that are padding, from 0 to 1."""
    lengths = _lengths(lengths)
    groups = assign(lengths, borders)
    steps = sum(
        border * len(group) for border, group in zip(borders, groups, strict=True)
    )
    return 1 - float(lengths.sum()) / steps


class Bucketed(Dataset):
    """A Dataset of strings (`data.symbols`) whose mini-batches are of one bucket each,
    padded to its longest: each epoch draws them, and their order, from the order of the
    examples.

    borders: as of `borders` or `equal_borders`. Raises TypeError or ValueError as
    `assign`, and for a data set whose targets are not the lengths.
    """

    mixes = False

    def __init__(self, dataset, borders):
        if not isinstance(dataset, Dataset):
            raise TypeError(
                f"dataset: got {type(dataset).__name__}, want lstm_kernels.Dataset"
            )
        super().__init__(dataset.x, dataset.target)
        lengths = np.count_nonzero(self.x.any(axis=2), axis=0)
        if not np.array_equal(self.target, lengths[:, None]):
            raise ValueError(
                "dataset: got targets that are not lengths, want strings' (symbols)"
            )
        self.borders, self._bucket = (
            [int(border) for border in borders],
            np.empty(len(self), int),
        )
        for bucket, index in enumerate(assign(lengths, borders)):
            self._bucket[index] = bucket

    def batches(self, order, batch_size):
        """The examples of each mini-batch (`Dataset.batches`), all of one bucket."""
        order, found = np.asarray(order), []
        for bucket in range(len(self.borders)):
            found += super().batches(order[self._bucket[order] == bucket], batch_size)
        # A mini-batch comes where its last example does: as random as the order is.
        places = np.empty(len(self), np.int64)
        places[order] = np.arange(len(order))
        return sorted(found, key=lambda index: places[index].max())

    def batch(self, index):
        """The examples at `index` (B,), without the steps after the longest: copies."""
        x, target = super().batch(index)
        return np.ascontiguousarray(x[: int(target.max())]), target

    def sha256(self):
        """The hash of the examples and of the borders."""
        return f"{super().sha256()} {self.borders}"


def _lengths(lengths):
    array = np.asarray(lengths)
    if (
        array.ndim != 1
        or array.dtype.kind not in "iu"
        or not array.size
        or array.min() < 1
    ):
        got = f"{array.dtype} of shape {array.shape}" if array.size else "none"
        raise ValueError(f"lengths: got {got}, want integers (N,) of at least 1")
    return array.astype(np.int64)
