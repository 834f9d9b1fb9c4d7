"""How threads divide a pass of `numba-fused`, and which way is fastest: that is tried.

Every division computes the same bits. So nothing has to be predicted: the first calls
of a network run each in turn, and the times of these calls decide.
"""

from functools import lru_cache
from typing import NamedTuple

from ..schedules import by_samples, by_units, layer_by_layer, wavefront

# A thread that slept works at full speed a millisecond later: so a division runs for a
# few calls or milliseconds on end, and the last of these calls counts.
CALLS, SETTLED = 8, 4e-3
# Rounds in which each division has its turn, at most; seconds of passes after the first
# of them, later twice as many each time, in which the best so far runs: threads of a
# BLAS library wait for more work on the cores for 0.1 s.
ROUNDS, REST = 5, 20e-3
# Threads that gain less than this part, and these seconds, lose when they have to be
# woken, as between two loops of calls.
MARGIN, WAKING = 0.05, 5e-6


class Division(NamedTuple):
    """How threads divide a pass."""

    by: str  # one thread, samples, units (unit blocks of a step), layers
    chunk: int = 0  # steps of a task, by layers
    together: int = 0  # layers side by side, by layers
    lanes: int = 0  # samples that go together, where lanes are samples

    def schedule(self, graph, threads):
        """The Schedule of a pass for so many threads."""
        if self.by == "samples":
            return by_samples(graph, threads, max(self.lanes, 1))
        if self.by == "units":
            return by_units(graph, threads)
        if self.by == "layers":
            return wavefront(graph, threads, self.chunk, together=self.together)
        if self.by != "one thread":
            want = "one thread, samples, units or layers"
            raise ValueError(f"by: got {self.by!r}, want {want}")
        return layer_by_layer(graph)

    def __str__(self):
        how = f", chunks of {self.chunk}, {self.together} side by side"
        lanes = f", lanes of {self.lanes} samples"
        return self.by + how * bool(self.chunk) + lanes * bool(self.lanes)


class Choice(NamedTuple):
    """What was tried: the fastest division, None while that is not known, and the least
    seconds of each that has run.
    """

    fastest: str | None
    seconds: dict[str, float]


def divisions(layers, T, B, blocks, threads, lanes):
    """What can be tried for mini-batches (T, B) of layers of so many unit blocks; first
    what is most often the fastest. lanes: of a vector.
    """
    found = by_lanes(B, threads, lanes) if blocks == 1 else []
    if threads > 1 and blocks > 1:
        found.append(Division("units"))
    if threads > 1 and B > 1:
        found.append(Division("samples"))
    if threads > 1 and layers > 1:
        found += by_layers(layers, T, threads, (4, 10))
    return [*found, Division("one thread")]


def by_lanes(B, threads, lanes):
    """Samples as lanes: two vectors at once, one where a thread has an odd number."""
    found = []
    for by, workers in (("one thread", 1), ("samples", threads)):
        groups, rest = divmod(B, lanes)
        if not rest and groups >= workers and (by == "one thread" or workers > 1):
            width = lanes * (2 if groups % (2 * workers) == 0 else 1)
            found.append(Division(by, lanes=width))
    return found


def by_layers(layers, T, threads, counts=(2, 4, 8, 16, 32)):
    """Layers at the same time: a sequence in so many chunks, all layers side by side or
    as many as there are threads.
    """
    return [
        Division("layers", chunk, together)
        for together in sorted({layers, min(threads, layers)}, reverse=True)
        for chunk in dict.fromkeys(-(-T // count) for count in counts)
    ]


class Trial:
    """Which of some divisions is fastest for one kind of pass.

    `division` is what the next pass runs. Threads may share a trial: a pass more or
    less of one division is all they can do to each other.
    """

    tried = 0  # passes of all trials that were not decided: who times calls waits

    def __init__(self, candidates):
        self.seconds = {division: [] for division in candidates}  # one of each turn
        self._left = list(self.seconds)
        self.division, self.decided = self._left[0], len(self._left) == 1
        self._turn, self._rest = [], 0.0  # passes of this turn; seconds to rest

    def record(self, division, seconds):
        """A pass took so long."""
        if self.decided:
            return
        Trial.tried += 1
        if self._rest > 0:
            self._rest -= seconds
            if self._rest <= 0:
                self.division = self._left[0]
            return
        self._turn.append(seconds)
        if len(self._turn) < CALLS and sum(self._turn) < SETTLED:
            return
        self._turn = []
        self.seconds[division].append(seconds)
        self.division = min(self._left, key=lambda d: len(self.seconds[d]))
        turns = len(self.seconds[self.division])  # that each has had
        if len(self.seconds[division]) == turns:  # a round is complete
            self._compare(turns)

    def _compare(self, turns):
        """Leave out what is slower than the best by more than turns vary: the more of
        them, the less. The least time counts, so that one turn that was disturbed
        leaves out nothing.
        """
        price = {d: self._price(d) for d in self._left}
        best = min(price, key=price.get)
        long = price[best] > SETTLED
        if long or turns > 1:
            most = price[best] * (1 + 2.0 ** (2 - turns - 2 * long))
            self._left = [d for d in self._left if price[d] <= most]
        self.decided = len(self._left) == 1 or turns == ROUNDS
        if self.decided or not long:
            self.division, self._rest = best, REST * 2 ** (turns - 1)
        else:
            self.division = self._left[0]

    def _price(self, division):
        """The least seconds of a turn, and for threads what they have to gain."""
        seconds = min(self.seconds[division])
        alone = division.by == "one thread"
        return seconds if alone else seconds * (1 + MARGIN) + WAKING

    def choice(self):
        """The Choice, so far."""
        seconds = {str(d): min(s) for d, s in self.seconds.items() if s}
        return Choice(str(self.division) if self.decided else None, seconds)


@lru_cache(maxsize=256)  # a network of sequences of any length tries each anew
def trial(form, candidates):
    """The Trial of a form of pass, kept for the process among those asked for last."""
    return Trial(candidates)
