"""The planner against every partition, its formula against a simulation, bad input."""

import math

import numpy as np
import pytest
from planted import planted

from lstm_kernels.ranks import planner
from lstm_kernels.ranks.planner import LayerCost, partitions, plan, predict


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


def check_best(module):
    """No partition is faster."""
    for seed in range(100):
        layers, P, M, _ = example(seed)
        plans = [predict(layers, n, M) for n in partitions(len(layers), P)]
        best = module.plan(layers, P, M)
        least = min(other.seconds for other in plans)
        assert best.seconds == pytest.approx(least, rel=1e-12)
        assert best.counts in [other.counts for other in plans]


def check_formula(module):
    """The module's formula against the simulation."""
    for seed in range(100):
        layers, P, M, rng = example(seed)
        counts = rng.choice(list(partitions(len(layers), P))).tolist()
        cuts = np.cumsum(counts)[:-1]
        f = [sum(group) for group in np.split([n.forward for n in layers], cuts)]
        b = [sum(group) for group in np.split([n.backward for n in layers], cuts)]
        seconds = module.predict(layers, counts, M).seconds
        assert seconds == pytest.approx(simulated(f, b, M), rel=1e-12)


@pytest.mark.parametrize("check", [check_best, check_formula])
def test_the_planner(check):
    check(planner)


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        (check_best, "if backward < least", "if backward > least"),
        (check_best, "for _ in range(P)", "for _ in range(1)"),
        (check_best, "map(max, slowest, seconds)", "map(min, slowest, seconds)"),
        (check_formula, "(M - 1) * max(b)", "(M - 1) * max(f)"),
    ],
)
def test_these_tests_see_a_fault(check, right, wrong):
    faulty = planted(planner, right, wrong)
    with pytest.raises((AssertionError, KeyError)):
        check(faulty)


def test_partitions_are_all_and_different():
    for layers in range(1, 9):
        for ranks in range(1, layers + 1):
            every = list(partitions(layers, ranks))
            assert len(set(every)) == len(every) == math.comb(layers - 1, ranks - 1)
            assert all(
                sum(c) == layers and len(c) == ranks and min(c) > 0 for c in every
            )


def test_costs_may_be_numbers_of_numpy():
    layers = [LayerCost(str(i), np.float32(1), np.int64(2)) for i in range(3)]
    assert plan(layers, 3, 2).seconds == 3 * (2 + 3 - 1)


@pytest.mark.parametrize("field", ["forward", "backward"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1e-9, "1", None, 1j])
def test_a_cost_that_is_no_cost(field, value):
    message = rf"top\.{field}: got {value!r}, want a finite number"
    with pytest.raises(ValueError, match=message):
        LayerCost("top", **{"forward": 1.0, "backward": 2.0} | {field: value})


LAYERS = [LayerCost(str(i), 1, 2) for i in range(4)]
RANKS = "want an integer from 1 to 4"


@pytest.mark.parametrize(
    ("layers", "ranks", "micro_batches", "error", "message"),
    [
        (LAYERS, 5, 2, ValueError, f"ranks: got 5, {RANKS}"),
        (LAYERS, 0, 2, ValueError, f"ranks: got 0, {RANKS}"),
        (LAYERS, 2.0, 2, TypeError, "ranks: got 2.0, want an integer"),
        (LAYERS, 2, 0, ValueError, "micro_batches: got 0"),
        ([], 1, 2, ValueError, "layers: got none, want at least one"),
    ],
)
def test_bad_input_of_plan(layers, ranks, micro_batches, error, message):
    with pytest.raises(error, match=message):
        plan(layers, ranks, micro_batches)


@pytest.mark.parametrize(
    ("counts", "micro_batches", "error", "message"),
    [
        ((2, 3), 2, ValueError, r"counts: got \(2, 3\), want 4"),
        ((2, 1), 2, ValueError, r"counts: got \(2, 1\), want 4"),
        ((5, -1), 2, ValueError, "counts: got -1, want an int"),
        ((4, 0), 2, ValueError, "counts: got 0, want an int"),
        ((), 2, ValueError, r"counts: got \(\), want 4 layers"),
        ((2.0, 2.0), 2, TypeError, "counts: got 2.0, want an"),
        ((2, 2), 0, ValueError, "micro_batches: got 0"),
    ],
)
def test_bad_input_of_predict(counts, micro_batches, error, message):
    with pytest.raises(error, match=message):
        predict(LAYERS, counts, micro_batches)
