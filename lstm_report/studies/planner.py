"""Which layers go to which rank: the contiguous partition with the least makespan,
page 08.

A step of training sends M micro-batches through the stages and back. With stages i of
f_i seconds forward and b_i back, filled and drained, it takes

    sum f + (M - 1) max f + sum b + (M - 1) max b:

the first micro-batch passes every stage, and the others follow at the pace of the
slowest. The sums are the same for every partition. The maxima of a longer partition
follow from a shorter one's, so dynamic programming over the layers finds the best: of
each prefix it keeps what no other beats in max f and in max b.
"""

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise
from operator import attrgetter

from lstm_kernels.errors import REAL, check_int


@dataclass(frozen=True)
class LayerCost:
    """The seconds that a layer takes for one micro-batch, forward and backward."""

    name: str
    forward: float
    backward: float

    def __post_init__(self):
        for field in ("forward", "backward"):
            value = getattr(self, field)
            if not isinstance(value, REAL) or not 0 <= value < math.inf:
                want = "a finite number, not negative"
                raise ValueError(f"{self.name}.{field}: got {value!r}, want {want}")


@dataclass(frozen=True)
class Plan:
    """How many layers each rank has, in order, and the predicted seconds of a step."""

    counts: tuple[int, ...]
    seconds: float


def predict(layers, counts, micro_batches):
    """The Plan of a partition: layers, a LayerCost of each; counts, how many of them
    each rank has. Raises TypeError or ValueError.
    """
    M = check_int("micro_batches", micro_batches)
    ends = list(accumulate((check_int("counts", n) for n in counts), initial=0))
    if ends[-1] != len(layers) or not layers:
        want = f"{len(layers)} layers, one or more each"
        raise ValueError(f"counts: got {tuple(counts)}, want {want}")
    f, b = zip(*(_seconds(layers[i:j]) for i, j in pairwise(ends)), strict=True)
    seconds = sum(f) + (M - 1) * max(f) + sum(b) + (M - 1) * max(b)
    return Plan(tuple(counts), seconds)


def partitions(layers, ranks):
    """Every way to give neighbouring layers to so many ranks, at least one to each."""
    for cuts in combinations(range(1, layers), ranks - 1):
        yield tuple(b - a for a, b in pairwise([0, *cuts, layers]))


def plan(layers, ranks, micro_batches):
    """The Plan over exactly `ranks` ranks with the least makespan; arguments as of
    `predict`. Raises TypeError, or ValueError for more ranks than layers.
    """
    layers = list(layers)
    M = check_int("micro_batches", micro_batches)
    if not layers:
        raise ValueError("layers: got none, want at least one LayerCost")
    L, P = len(layers), check_int("ranks", ranks, 1, len(layers))
    # For each number of layers placed: the slowest stages' seconds, and the counts
    # that have them.
    fronts = {0: [((0.0, 0.0), ())]}
    for _ in range(P):
        states = defaultdict(list)
        for done, stop in combinations(range(L + 1), 2):
            seconds = _seconds(layers[done:stop])
            for slowest, counts in fronts.get(done, ()):
                slowest = tuple(map(max, slowest, seconds))
                states[stop].append((slowest, (*counts, stop - done)))
        fronts = {stop: _unbeaten(states[stop]) for stop in states}
    plans = [predict(layers, counts, M) for _, counts in fronts[L]]
    return min(plans, key=attrgetter("seconds"))


def _unbeaten(states):
    """Those that no other is at least as good as in both; of equal ones the first."""
    unbeaten, least = [], math.inf
    for (forward, backward), counts in sorted(states):
        if backward < least:
            unbeaten.append(((forward, backward), counts))
            least = backward
    return unbeaten


def _seconds(group):
    return sum(layer.forward for layer in group), sum(layer.backward for layer in group)
