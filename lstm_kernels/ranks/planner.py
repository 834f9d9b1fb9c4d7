"""Which layers go to which rank: the contiguous partition with the least makespan.

A step of training sends M micro-batches through the stages and back. With stages i of
f_i seconds forward and b_i back, filled and drained, it takes

    sum f + (M - 1) max f + sum b + (M - 1) max b, and a hand-over for each boundary,
    both ways:

the first micro-batch passes every stage, and the others follow at the pace of the
slowest. The sums are the same for every partition. The maxima of a longer partition
follow from a shorter one's, so dynamic programming over the layers finds the best: of
each prefix it keeps what no other beats in max f, in max b and in max (f + b), the pace
where a stage goes forward and back in turn.
"""

import math
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, combinations, pairwise, permutations
from operator import attrgetter

from ..errors import REAL, check_choice, check_int, counted
from ..schedules import PIPELINES, Costs, Graph, pipeline
from ..simulate import simulate

EVERY = 1000  # partitions that are all tried where no formula is exact
SECONDS = attrgetter("seconds")


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
            value = getattr(self, field)
            if not isinstance(value, REAL) or not 0 <= value < math.inf:
                want = "a finite number, not negative"
                raise ValueError(f"{self.name}.{field}: got {value!r}, want {want}")


@dataclass(frozen=True)
class Plan:
    """A partition: how many parts each rank has, in order, and what is predicted of it.

    seconds: of a step. stages: (forward, backward) seconds of each rank and
    micro-batch. memory: bytes of each rank.
    """

    counts: tuple[int, ...]
    seconds: float
    stages: tuple[tuple[float, float], ...]
    memory: tuple[float, ...]


def predict(parts, counts, micro_batches, *, hand=0.0, order="fill-drain", loops=1):
    """The Plan of a given partition, timed by the simulator.

    parts: LayerCost of each layer. counts: how many of them each rank has, or each
    stage, where a rank has one in each of `loops`. hand: seconds from the end of a
    stage's work to where the next may begin. Raises TypeError or ValueError.
    """
    groups = _groups(parts, counts)
    graph = Graph(
        len(counts), 1, check_int("micro_batches", micro_batches), training=True
    )
    stages = tuple(
        (sum(p.forward for p in g), sum(p.backward for p in g)) for g in groups
    )
    steps = [f for f, _ in stages] + [b for _, b in reversed(stages)]
    schedule = pipeline(graph, [1] * len(counts), order, loops)
    seconds = simulate(schedule, Costs(tuple(steps), hand=hand)).makespan
    kept = [
        _kept(order, stage, len(counts), micro_batches) for stage in range(len(counts))
    ]
    held = [_memory(g, k) for g, k in zip(groups, kept, strict=True)]
    ranks = len(counts) // loops
    memory = tuple(sum(held[rank::ranks]) for rank in range(ranks))
    return Plan(tuple(counts), seconds, stages, memory)


def partitions(layers, ranks):
    """Every way to give neighbouring layers to so many ranks, at least one to each."""
    if ranks == 1:
        yield (layers,)
        return
    for first in range(1, layers - ranks + 2):
        for rest in partitions(layers - first, ranks - 1):
            yield (first, *rest)


def plan(parts, ranks, micro_batches, *, hand=0.0, order="fill-drain", limit=math.inf):
    """The partition over exactly `ranks` ranks with the least makespan; with order
    "one-forward-one-backward" and more than EVERY partitions, the least that a search
    from that of "fill-drain" finds, layer by layer.

    limit: bytes that a rank may hold; with order "one-forward-one-backward" the first
    of P stages keeps up to P tapes, the last one. Other arguments as of `predict`.
    Returns a Plan. Raises TypeError or ValueError for more ranks than parts, and where
    nothing fits the limit.
    """
    parts, M = list(parts), check_int("micro_batches", micro_batches)
    if not parts:
        raise ValueError("parts: got none, want at least one LayerCost")
    L, P = len(parts), check_int("ranks", ranks, 1, len(parts))
    check_choice("order", order, PIPELINES)
    # For each number of parts placed: the slowest stages' seconds, and the counts that
    # have them.
    front, least = {0: [((0.0, 0.0, 0.0), ())]}, {0: 0.0}
    for stage in range(P):
        kept, found, needed = _kept(order, stage, P, M), {}, {}
        for done, stop in combinations(range(L - (P - stage - 1) + 1), 2):
            if done not in least:
                continue
            group = parts[done:stop]
            memory = _memory(group, kept)
            needed[stop] = min(needed.get(stop, math.inf), max(least[done], memory))
            if memory <= limit:
                f, b = sum(p.forward for p in group), sum(p.backward for p in group)
                found.setdefault(stop, []).extend(
                    (tuple(map(max, slowest, (f, b, f + b))), (*counts, stop - done))
                    for slowest, counts in front.get(done, ())
                )
        front, least = {stop: _best(states) for stop, states in found.items()}, needed
    if not front.get(L):
        want = f"at least {math.ceil(least[L])} on {counted(P, 'rank')}"  # never rounded down
        raise ValueError(f"limit: got {limit} bytes, want {want}")
    # The formula is exact for "fill-drain"; of the other order the simulator has the
    # last word.
    best = partial(predict, parts, micro_batches=M, hand=hand, order=order)
    found = min((best(counts) for _, counts in front[L]), key=SECONDS)
    if order == "fill-drain":
        return found
    if math.comb(L - 1, P - 1) <= EVERY:
        plans = map(best, partitions(L, P))
        return min((plan for plan in plans if max(plan.memory) <= limit), key=SECONDS)
    while True:
        near = (best(counts) for counts in _neighbours(found.counts))
        fitting = (plan for plan in near if max(plan.memory) <= limit)
        better = min(fitting, key=SECONDS, default=found)
        if better.seconds >= found.seconds:
            return found
        found = better


def _neighbours(counts):
    """Partitions that differ by the place of one part."""
    for i, j in permutations(range(len(counts)), 2):
        if counts[i] > 1:
            yield tuple(n - (k == i) + (k == j) for k, n in enumerate(counts))


def _best(states):
    """Those that no other state is at least as good as in every number; of equal ones
    the first.
    """
    kept = []
    for key, counts in sorted(states):
        if not any(
            all(a <= b for a, b in zip(other, key, strict=True)) for other, _ in kept
        ):
            kept.append((key, counts))
    return kept


def _groups(parts, counts):
    """The parts of each rank."""
    ends = [0, *accumulate(check_int("counts", count) for count in counts)]
    if ends[-1] != len(parts) or not parts:
        raise ValueError(
            f"counts: got {tuple(counts)}, want {len(parts)} parts, one or more each"
        )
    return [parts[a:b] for a, b in pairwise(ends)]


def _kept(order, stage, ranks, micro_batches):
    """The most micro-batches whose tapes a stage keeps: `schedules.most_kept` counts
    the same.
    """
    return micro_batches if order == "fill-drain" else min(ranks - stage, micro_batches)


def _memory(group, kept):
    return sum(part.weights + kept * part.tape for part in group)
