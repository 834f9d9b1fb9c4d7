"""Which layers go to which rank: the contiguous partition with the least makespan.

A step of training sends M micro-batches through the stages and back. With stages i of
f_i seconds forward and b_i back, filled and drained, it takes

    sum f + (M - 1) max f + sum b + (M - 1) max b, and a hand-over for each boundary,
    both ways:

the first micro-batch passes every stage, and the others follow at the pace of the
slowest. The sums are the same for every partition. The maxima of a longer partition
follow from a shorter one's, so dynamic programming over the layers finds the best: of
each prefix it keeps what no other beats in max f and in max b.
"""

import math
from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise
from operator import attrgetter

from ..errors import REAL, check_int, counted


@dataclass(frozen=True)
class LayerCost:
    """What a layer of any kind costs, for one micro-batch.

    forward, backward: seconds. weights: bytes that a rank holds of it whatever the
    micro-batches are: parameters, gradients, what an optimiser keeps. tape: bytes that
    each micro-batch keeps between its ways.
    """

    name: str
    forward: float
    backward: float
    weights: float = 0.0
    tape: float = 0.0

    def __post_init__(self):
        for field in ("forward", "backward", "weights", "tape"):
            _check_cost(f"{self.name}.{field}", getattr(self, field))


@dataclass(frozen=True)
class Plan:
    """A partition: how many layers each rank has, in order, and what is predicted of
    it.

    seconds: of a step. stages: (forward, backward) seconds of each rank and
    micro-batch. memory: bytes of each rank.
    """

    counts: tuple[int, ...]
    seconds: float
    stages: tuple[tuple[float, float], ...]
    memory: tuple[float, ...]


def predict(layers, counts, micro_batches, *, hand=0.0):
    """The Plan of a partition.

    layers: a LayerCost of each. counts: how many of them each rank has. hand: seconds
    from the end of a stage's work to where the next may begin. Raises TypeError or
    ValueError.
    """
    M = check_int("micro_batches", micro_batches)
    _check_cost("hand", hand)
    ends = list(accumulate((check_int("counts", n) for n in counts), initial=0))
    if ends[-1] != len(layers) or not layers:
        want = f"{len(layers)} layers, one or more each"
        raise ValueError(f"counts: got {tuple(counts)}, want {want}")
    groups = [layers[a:b] for a, b in pairwise(ends)]
    stages = tuple(map(_seconds, groups))
    f, b = zip(*stages, strict=True)
    seconds = sum(f) + (M - 1) * max(f) + sum(b) + (M - 1) * max(b)
    seconds += 2 * (len(groups) - 1) * hand
    memory = tuple(_memory(group, M) for group in groups)
    return Plan(tuple(counts), seconds, stages, memory)


def partitions(layers, ranks):
    """Every way to give neighbouring layers to so many ranks, at least one to each."""
    for cuts in combinations(range(1, layers), ranks - 1):
        yield tuple(b - a for a, b in pairwise([0, *cuts, layers]))


def plan(layers, ranks, micro_batches, *, hand=0.0, limit=math.inf):
    """The Plan over exactly `ranks` ranks with the least makespan.

    limit: bytes that a rank may hold. Other arguments as of `predict`. Raises TypeError
    or ValueError for more ranks than layers, and where nothing fits the limit.
    """
    layers = list(layers)
    M = check_int("micro_batches", micro_batches)
    if not layers:
        raise ValueError("layers: got none, want at least one LayerCost")
    L, P = len(layers), check_int("ranks", ranks, 1, len(layers))
    # For each number of layers placed: the slowest stages' seconds, and the counts
    # that have them; and the least that the fullest rank holds.
    fronts, least = {0: [((0.0, 0.0), ())]}, {0: 0.0}
    for _ in range(P):
        states, needed = {}, {}
        for done, stop in combinations(range(L + 1), 2):
            if done not in least:
                continue
            group = layers[done:stop]
            memory = _memory(group, M)
            needed[stop] = min(needed.get(stop, math.inf), max(least[done], memory))
            if memory <= limit:
                states.setdefault(stop, []).extend(
                    (tuple(map(max, slowest, _seconds(group))), (*counts, stop - done))
                    for slowest, counts in fronts.get(done, ())
                )
        fronts = {stop: _unbeaten(found) for stop, found in states.items()}
        least = needed
    if not fronts.get(L):
        want = f"at least {math.ceil(least[L])} on {counted(P, 'rank')}"  # not rounded
        raise ValueError(f"limit: got {limit} bytes, want {want}")
    plans = [predict(layers, counts, M, hand=hand) for _, counts in fronts[L]]
    return min(plans, key=attrgetter("seconds"))


def _unbeaten(states):
    """Those that no other state is at least as good as in every number; of equal ones
    the first.
    """
    kept = []
    for slowest, counts in sorted(states):
        if not any(
            all(a <= b for a, b in zip(other, slowest, strict=True))
            for other, _ in kept
        ):
            kept.append((slowest, counts))
    return kept


def _seconds(group):
    return sum(layer.forward for layer in group), sum(layer.backward for layer in group)


def _memory(group, micro_batches):
    """Parameters once, and the tapes of all micro-batches."""
    return sum(layer.weights + micro_batches * layer.tape for layer in group)


def _check_cost(name, value):
    if not isinstance(value, REAL) or not 0 <= value < math.inf:
        raise ValueError(f"{name}: got {value!r}, want a finite number, not negative")
