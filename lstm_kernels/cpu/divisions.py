"""How threads divide a pass of `numba-fused`, and which way is fastest: that is tried.

Every division computes the same bits. So nothing has to be predicted: the first calls
of a network run each in turn, and the times of these calls decide.
"""

from functools import cache
from statistics import median
from typing import NamedTuple

LONG = 5e-3  # seconds of a pass from which on one run tells something
ROUNDS, ROUNDS_LONG = 16, 4  # how often each division runs at most
# A pass that takes twice as long as it did may be disturbed; so many in a row are
# another machine. The next time it takes eight times as many.
SLOWER, IN_A_ROW, RARER = 2.0, 32, 8


class Division(NamedTuple):
    """How threads divide a pass."""

    by: str  # one thread, samples, units (unit blocks of a step), layers
    chunk: int = 0  # steps of a task, by layers
    together: int = 0  # layers side by side, by layers

    def __str__(self):
        return f"{self.by}, chunks of {self.chunk}" if self.chunk else self.by


class Choice(NamedTuple):
    """What was tried: the fastest division, None while that is not known, and the
    median seconds of each that has run.
    """

    fastest: str | None
    seconds: dict[str, float]


def divisions(layers, T, B, blocks, threads):
    """What can be tried for mini-batches (T, B) of layers of so many unit blocks; first
    what is most often the fastest.
    """
    found = []
    if threads > 1 and blocks > 1:
        found.append(Division("units"))
    if threads > 1 and B > 1:
        found.append(Division("samples"))
    if threads > 1 and layers > 1:
        found += by_layers(layers, T, threads, (4, 10))
    return [*found, Division("one thread")]


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

    def __init__(self, candidates):
        self._candidates, self._patience = tuple(candidates), IN_A_ROW
        self._begin()

    def _begin(self):
        self.seconds = {division: [] for division in self._candidates}
        self._left, self._slow = list(self._candidates), 0
        self.division = self._left[0]
        self.decided, self._limit = len(self._left) == 1, float("inf")

    def record(self, division, seconds):
        """A pass took so long."""
        if self.decided:
            self._watch(seconds)
            return
        self.seconds[division].append(seconds)
        self.division = min(self._left, key=lambda d: len(self.seconds[d]))
        runs = len(self.seconds[self.division])  # that each has had
        if len(self.seconds[division]) == runs:  # a round is complete
            self._compare(runs)

    def _compare(self, runs):
        """Leave out what is slower than the best by more than passes vary: the more
        runs, the less. The median counts: a thread that has to be woken each time makes
        half of the runs fast.
        """
        middle = {d: median(self.seconds[d]) for d in self._left}
        best = min(middle.values())
        long = best > LONG
        if runs >= 3 or long:
            most = best * (1 + (2.0**-runs if long else 1.5 / runs))
            self._left = [d for d in self._left if middle[d] <= most]
        self.division = self._left[0]
        if len(self._left) == 1 or runs >= (ROUNDS_LONG if long else ROUNDS):
            self.division = min(self._left, key=middle.get)
            self._limit = SLOWER * middle[self.division]
            self.decided = True

    def _watch(self, seconds):
        """Try again when passes became slow."""
        self._slow = self._slow + 1 if seconds > self._limit else 0
        if self._slow == self._patience:
            self._patience *= RARER
            self._begin()

    def choice(self):
        """The Choice, so far."""
        seconds = {str(d): median(s) for d, s in self.seconds.items() if s}
        return Choice(str(self.division) if self.decided else None, seconds)


@cache
def trial(form, candidates):
    """The Trial of a form of pass, kept for the process."""
    return Trial(candidates)
