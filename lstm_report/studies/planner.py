"""Which layers go to which rank: the contiguous partition with the least makespan,
page 08.

A step of training sends M micro-batches through the stages and back. With stages i of
f_i seconds forward and b_i back, filled and drained, it takes

    sum f + (M - 1) max f + sum b + (M - 1) max b:

the first micro-batch passes every stage, and the others follow at the pace of the
slowest.
"""

import math
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
    stages = [layers[i:j] for i, j in pairwise(ends)]
    f = [sum(layer.forward for layer in stage) for stage in stages]
    b = [sum(layer.backward for layer in stage) for stage in stages]
    seconds = sum(f) + (M - 1) * max(f) + sum(b) + (M - 1) * max(b)
    return Plan(tuple(counts), seconds)


def partitions(layers, ranks):
    """Every way to give neighbouring layers to so many ranks, at least one to each."""
    for cuts in combinations(range(1, layers), ranks - 1):
        yield tuple(b - a for a, b in pairwise([0, *cuts, layers]))


def plan(layers, ranks, micro_batches):
    """The Plan over exactly `ranks` ranks with the least makespan, of every one;
    arguments as of `predict`. Raises TypeError, or ValueError for more ranks than
    layers.
    """
    if not layers:
        raise ValueError("layers: got none, want at least one LayerCost")
    every = partitions(len(layers), check_int("ranks", ranks, 1, len(layers)))
    plans = (predict(layers, counts, micro_batches) for counts in every)
    return min(plans, key=attrgetter("seconds"))
