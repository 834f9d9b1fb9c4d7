"""The planner against every partition, its formula against a simulation, bad input."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lstm_report.studies.planner import LayerCost, partitions, plan, predict

# With ties, and without.
COSTS = st.one_of(st.integers(0, 4), st.floats(0, 1))
MODELS = st.lists(st.builds(LayerCost, st.just("a layer"), COSTS, COSTS), min_size=1)


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


@given(MODELS.map(lambda layers: layers[:8]), st.integers(1, 5), st.integers(1, 9))
def test_no_partition_is_faster_and_seconds_are_those_of_a_simulation(layers, P, M):
    P = min(P, len(layers))
    every, best = list(partitions(len(layers), P)), plan(layers, P, M)
    assert best.counts in every
    assert len(set(every)) == len(every) == math.comb(len(layers) - 1, P - 1)
    for counts in every:
        assert (sum(counts), len(counts)) == (len(layers), P)
        groups = np.split(layers, np.cumsum(counts)[:-1])
        f = [sum(layer.forward for layer in group) for group in groups]
        b = [sum(layer.backward for layer in group) for group in groups]
        seconds = predict(layers, counts, M).seconds
        assert seconds == pytest.approx(simulated(f, b, M), rel=1e-12)
        assert best.seconds <= seconds * (1 + 1e-12)
    assert best == predict(layers, best.counts, M)


LAYERS = [LayerCost(str(i), np.float32(1), 2) for i in range(4)]


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        (plan, (LAYERS, 5, 2), "ranks: got 5, want an integer from 1"),
        (plan, (LAYERS, 2, 0), "micro_batches: got 0"),
        (plan, ([], 1, 2), "layers: got none, want at least one"),
        (predict, (LAYERS, (2, 3), 2), "counts: got (2, 3), want 4 layers"),
        (predict, (LAYERS, (4, 0), 2), "counts: got 0, want an int"),
        (predict, (LAYERS, (2, 2), 0), "micro_batches: got 0"),
        (LayerCost, ("top", math.nan, 1), "top.forward: got nan, want a finite num"),
        (LayerCost, ("top", 1, math.inf), "top.backward: got inf, want a finite"),
        (LayerCost, ("top", -1e-9, 1), "top.forward: got -1e-09, want a finite"),
        (LayerCost, ("top", 1, "1"), "top.backward: got '1', want a finite"),
    ],
)
def test_bad_input_is_named(call, arguments, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        call(*arguments)
