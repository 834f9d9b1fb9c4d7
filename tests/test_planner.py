"""The planner against every partition, its formula against a simulation, bad input."""

import math
import re

import numpy as np
import pytest

from lstm_report.studies.planner import LayerCost, partitions, plan, predict


def example(seed):
    """Layers, ranks, micro-batches, and the numbers' source."""
    rng = np.random.default_rng(seed)
    L = int(rng.integers(2, 9))
    P, M = int(rng.integers(1, min(L, 5) + 1)), int(rng.integers(1, 10))
    costs = rng.random((L, 2))
    if seed % 2:  # with ties too
        costs = rng.integers(0, 5, (L, 2))
    layers = [LayerCost(f"layer {i}", *row) for i, row in enumerate(costs)]
    return layers, P, M, rng


def simulated(f, b, M):
    """Seconds until stage 0 has its last gradient, event by event: a stage runs its
    micro-batches forward in order and then back in order, each as soon as it has
    arrived.
    """
    free = [0.0] * len(f)
    for seconds, stages in ((f, range(len(f))), (b, reversed(range(len(f))))):
        arrived = [0.0] * M
        for stage in stages:
            for m in range(M):
                free[stage] = max(free[stage], arrived[m]) + seconds[stage]
                arrived[m] = free[stage]
    return free[0]


def test_no_partition_is_faster_and_seconds_are_those_of_a_simulation():
    for layers, P, M, rng in map(example, range(100)):
        every = list(partitions(len(layers), P))
        best = plan(layers, P, M)
        least = min(predict(layers, counts, M).seconds for counts in every)
        assert best.seconds == pytest.approx(least, rel=1e-12)
        assert best.counts in every
        assert len(set(every)) == len(every) == math.comb(len(layers) - 1, P - 1)
        assert all(sum(c) == len(layers) and len(c) == P and min(c) for c in every)
        cuts = np.cumsum(counts := rng.choice(every).tolist())[:-1]
        f = [sum(group) for group in np.split([n.forward for n in layers], cuts)]
        b = [sum(group) for group in np.split([n.backward for n in layers], cuts)]
        seconds = predict(layers, counts, M).seconds
        assert seconds == pytest.approx(simulated(f, b, M), rel=1e-12)


LAYERS = [LayerCost(str(i), np.float32(1), 2) for i in range(4)]


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        (plan, (LAYERS, 5, 2), "ranks: got 5, want an integer from 1"),
        (plan, (LAYERS, 0, 2), "ranks: got 0"),
        (plan, (LAYERS, 2.0, 2), "ranks: got 2.0, want an integer"),
        (plan, (LAYERS, 2, 0), "micro_batches: got 0"),
        (plan, ([], 1, 2), "layers: got none, want at least one"),
        (predict, (LAYERS, (2, 3), 2), "counts: got (2, 3), want 4 layers"),
        (predict, (LAYERS, (5, -1), 2), "counts: got -1, want an int"),
        (predict, (LAYERS, (4, 0), 2), "counts: got 0, want an int"),
        (predict, (LAYERS, (2, 2), 0), "micro_batches: got 0"),
        (LayerCost, ("top", math.nan, 1), "top.forward: got nan, want a finite num"),
        (LayerCost, ("top", 1, math.inf), "top.backward: got inf, want a finite"),
        (LayerCost, ("top", -1e-9, 1), "top.forward: got -1e-09, want a finite"),
        (LayerCost, ("top", 1, "1"), "top.backward: got '1', want a finite"),
    ],
)
def test_bad_input(call, arguments, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        call(*arguments)
