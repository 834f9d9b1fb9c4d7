"""How threads partition a pass of `numba-fused`, and which partition is fastest: it is
autotuned.

Every partition computes the same bits. So nothing has to be predicted: the first calls
of a network run each in turn, and the times of these calls decide.
"""

from functools import lru_cache
from typing import NamedTuple

from ..schedules import by_samples, by_units, layer_by_layer, wavefront

# A thread that was parked works at full speed a millisecond later: so a partition runs
# for a few calls or milliseconds on end, and the last of these calls counts.
CALLS, SETTLED = 8, 4e-3
# Rounds in which each partition has its turn, at most; seconds of passes after the
# first of them, later twice as many each time, in which the best so far runs: threads
# of a BLAS library wait for more work on the cores for 0.1 s.
ROUNDS, REST = 5, 20e-3
# Threads that gain less than this part, and these seconds, lose when they have to be
# woken, as between two loops of calls.
MARGIN, WAKING = 0.05, 5e-6


class Partition(NamedTuple):
    """How threads partition the work of a pass."""

    by: str  # one thread, samples, units (unit blocks of a step), layers
    chunk: int = 0  # steps of a task, by layers
    together: int = 0  # layers side by side, by layers

    def schedule(self, graph, threads):
        """The Schedule of a pass for so many threads."""
        if self.by == "samples":
            return by_samples(graph, threads)
        if self.by == "units":
            return by_units(graph, threads)
        if self.by == "layers":
            return wavefront(graph, threads, self.chunk, together=self.together)
        if self.by != "one thread":
            want = "one thread, samples, units or layers"
            raise ValueError(f"by: got {self.by!r}, want {want}")
        return layer_by_layer(graph)

    def __str__(self):
        chunks = f", chunks of {self.chunk}, {self.together} side by side"
        return self.by + chunks * bool(self.chunk)


class Tuning(NamedTuple):
    """A result of autotuning: the fastest partition, None while that is not known, and
    the least seconds of each that has run.
    """

    fastest: str | None
    seconds: dict[str, float]


def partitions(layers, T, B, blocks, threads):
    """The candidates for mini-batches (T, B) of layers of so many unit blocks; first
    what is most often the fastest.
    """
    candidates = []
    if threads > 1 and blocks > 1:
        candidates.append(Partition("units"))
    if threads > 1 and B > 1:
        candidates.append(Partition("samples"))
    if threads > 1 and layers > 1:
        candidates += by_layers(layers, T, threads, (4, 10))
    return [*candidates, Partition("one thread")]


def by_layers(layers, T, threads, counts=(2, 4, 8, 16, 32)):
    """Layers at the same time: a sequence in so many chunks, all layers side by side or
    as many as there are threads.
    """
    return [
        Partition("layers", chunk, together)
        for together in sorted({layers, min(threads, layers)}, reverse=True)
        for chunk in dict.fromkeys(-(-T // count) for count in counts)
    ]


class Autotuner:
    """Finds which of some partitions is fastest for one kind of pass.

    `partition` is what the next pass runs. Python threads may share an autotuner: a
    race only shifts one timing sample between partitions.
    """

    trials = 0  # passes of all autotuners that are not done: who times calls waits

    def __init__(self, candidates):
        self.seconds = {candidate: [] for candidate in candidates}  # one of each turn
        self._left = list(self.seconds)
        self.partition, self.done = self._left[0], len(self._left) == 1
        self._turn, self._rest = [], 0.0  # passes of this turn; seconds to rest

    def record(self, partition, seconds):
        """Note how long a pass took."""
        if self.done:
            return
        Autotuner.trials += 1
        if self._rest > 0:
            self._rest -= seconds
            if self._rest <= 0:
                self.partition = self._left[0]
            return
        self._turn.append(seconds)
        if len(self._turn) < CALLS and sum(self._turn) < SETTLED:
            return
        self._turn = []
        self.seconds[partition].append(seconds)
        self.partition = min(self._left, key=lambda p: len(self.seconds[p]))
        turns = len(self.seconds[self.partition])  # that each has had
        if len(self.seconds[partition]) == turns:  # a round is complete
            self._compare(turns)

    def _compare(self, turns):
        """Drop the candidates that are slower than the best by more than turns vary:
        the more of them, the less. The least time counts, so that one noisy turn drops
        nothing.
        """
        price = {p: self._price(p) for p in self._left}
        best = min(price, key=price.get)
        long = price[best] > SETTLED
        if long or turns > 1:
            most = price[best] * (1 + 2.0 ** (2 - turns - 2 * long))
            self._left = [p for p in self._left if price[p] <= most]
        self.done = len(self._left) == 1 or turns == ROUNDS
        if self.done or not long:
            self.partition, self._rest = best, REST * 2 ** (turns - 1)
        else:
            self.partition = self._left[0]

    def _price(self, partition):
        """The least seconds of a turn, and for threads what they have to gain."""
        seconds = min(self.seconds[partition])
        alone = partition.by == "one thread"
        return seconds if alone else seconds * (1 + MARGIN) + WAKING

    def tuning(self):
        """The Tuning, so far."""
        seconds = {str(p): min(s) for p, s in self.seconds.items() if s}
        return Tuning(str(self.partition) if self.done else None, seconds)


@lru_cache(maxsize=256)  # a network of sequences of any length tunes each anew
def autotuner(form, candidates):
    """The Autotuner of a form of pass, kept for the process among those asked for
    last.
    """
    return Autotuner(candidates)
