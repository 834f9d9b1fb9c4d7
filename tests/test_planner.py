"""The planner against every partition, its formula against a simulation, memory, bad
input.
"""

import math
import re

import numpy as np
import pytest
from planted import planted

from lstm_kernels.ranks import planner
from lstm_kernels.ranks.planner import LayerCost, partitions, plan, predict


def example(seed):
    """Layers, ranks, micro-batches, seconds of a hand-over, and the numbers' source."""
    rng = np.random.default_rng(seed)
    L = int(rng.integers(2, 9))
    P, M = int(rng.integers(1, min(L, 5) + 1)), int(rng.integers(1, 10))
    costs = rng.random((L, 4))
    if seed % 2:  # with ties too
        costs[:, :2] = rng.integers(0, 5, (L, 2))
    layers = [LayerCost(f"layer {i}", *row) for i, row in enumerate(costs)]
    return layers, P, M, float(rng.choice([0.0, 0.1, 1.0])), rng


def every(layers, ranks, M, **options):
    found = partitions(len(layers), ranks)
    return [predict(layers, counts, M, **options) for counts in found]


def simulated(f, b, M, hand):
    """Seconds until stage 0 has its last gradient, event by event: a stage runs its
    micro-batches forward in order and then back in order, each as soon as it has
    arrived.
    """
    P = len(f)
    free, arrived = [0.0] * P, [0.0] * M
    for stage in range(P):
        for m in range(M):
            free[stage] = max(free[stage], arrived[m]) + f[stage]
            arrived[m] = free[stage] + hand
    arrived = [0.0] * M
    for stage in reversed(range(P)):
        for m in range(M):
            free[stage] = max(free[stage], arrived[m]) + b[stage]
            arrived[m] = free[stage] + hand
    return free[0]


def check_best(module):
    """No partition is faster, nor of those within the limit."""
    for seed in range(100):
        layers, P, M, hand, rng = example(seed)
        known = every(layers, P, M, hand=hand)
        for limit in (math.inf, max(rng.choice(known).memory)):
            best = min(one.seconds for one in known if max(one.memory) <= limit)
            found = module.plan(layers, P, M, hand=hand, limit=limit)
            assert found.seconds == pytest.approx(best, rel=1e-12)
            assert max(found.memory) <= limit
            assert found.counts in [one.counts for one in known]


def check_formula(module):
    """The module's formula against the simulation."""
    for seed in range(100):
        layers, P, M, hand, rng = example(seed)
        counts = rng.choice(list(partitions(len(layers), P))).tolist()
        found = module.predict(layers, counts, M, hand=hand)
        cuts = np.cumsum(counts)[:-1]
        f = [sum(group) for group in np.split([n.forward for n in layers], cuts)]
        b = [sum(group) for group in np.split([n.backward for n in layers], cuts)]
        assert found.seconds == pytest.approx(simulated(f, b, M, hand), rel=1e-12)
        np.testing.assert_allclose(found.stages, np.stack([f, b], axis=1), rtol=1e-12)


def check_memory(module):
    """Parameters once, and a tape for each micro-batch."""
    layers = [
        LayerCost("a", 1, 2, weights=7, tape=2),
        LayerCost("b", 1, 2, weights=5, tape=3),
        LayerCost("c", 1, 2, weights=11, tape=1),
    ]
    assert module.predict(layers, (2, 1), 6).memory == (12 + 6 * 5, 11 + 6 * 1)


def check_limit(module):
    """Where nothing fits, the error has the least that does."""
    for seed in range(30):
        layers, P, M, hand, _ = example(seed)
        layers = [
            LayerCost(n.name, n.forward, n.backward, 1e5 * n.weights) for n in layers
        ]
        least = min(max(one.memory) for one in every(layers, P, M, hand=hand))
        with pytest.raises(ValueError, match=r"limit: got .* bytes, want at l") as told:
            module.plan(layers, P, M, hand=hand, limit=0.999 * least)
        limit = float(re.search(r"want at least (\S+) on", str(told.value))[1])
        assert least <= limit < least + 1
        assert max(module.plan(layers, P, M, hand=hand, limit=limit).memory) <= limit


CHECKS = {
    "best": check_best,
    "formula": check_formula,
    "memory": check_memory,
    "limit": check_limit,
}


@pytest.mark.parametrize("checked", CHECKS.values(), ids=CHECKS)
def test_the_planner(checked):
    checked(planner)


@pytest.mark.parametrize(
    ("checked", "right", "wrong"),
    [
        ("best", "if memory <= limit", "if memory < limit"),
        ("best", "all(a <= b for", "any(a <= b for"),
        ("formula", "2 * (len(groups) - 1) * hand", "(len(groups) - 1) * hand"),
        ("formula", "(M - 1) * max(b)", "(M - 1) * max(f)"),
        (
            "memory",
            "layer.weights + micro_batches * layer.tape",
            "micro_batches * (layer.weights + layer.tape)",
        ),
        ("limit", "{math.ceil(least[L])}", "{least[L]:.4g}"),
        ("limit", "max(least[done], memory)", "memory"),
    ],
)
def test_these_tests_see_a_fault(checked, right, wrong):
    faulty = planted(planner, right, wrong)
    with pytest.raises((AssertionError, ValueError)):
        CHECKS[checked](faulty)


def test_a_limit_moves_layers_away():
    """The fastest partition has even shares; the first layer's tape leaves room for no
    other.
    """
    layers = [LayerCost(str(i), 1, 2, tape=tape) for i, tape in enumerate([8, 2, 2, 2])]
    assert plan(layers, 2, 4).counts == (2, 2)
    assert plan(layers, 2, 4, limit=32).counts == (1, 3)


def test_partitions_are_all_and_different():
    for layers in range(1, 9):
        for ranks in range(1, layers + 1):
            found = list(partitions(layers, ranks))
            assert len(set(found)) == len(found) == math.comb(layers - 1, ranks - 1)
            assert all(
                sum(c) == layers and len(c) == ranks and min(c) > 0 for c in found
            )


def test_costs_may_be_numbers_of_numpy():
    layers = [LayerCost(str(i), np.float32(1), np.int64(2)) for i in range(3)]
    assert plan(layers, 3, 2).seconds == 3 * (2 + 3 - 1)


@pytest.mark.parametrize("field", ["forward", "backward", "weights", "tape"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1e-9, "1", None, 1j])
def test_a_cost_that_is_no_cost(field, value):
    good = {"forward": 1.0, "backward": 2.0, "weights": 0, "tape": 0}
    with pytest.raises(
        ValueError, match=rf"top\.{field}: got {value!r}, want a finite number"
    ):
        LayerCost("top", **good | {field: value})


LAYERS = [LayerCost(str(i), 1, 2, weights=1) for i in range(4)]
RANKS = "want an integer from 1 to 4"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: plan(LAYERS, 5, 2), ValueError, f"ranks: got 5, {RANKS}"),
        (lambda: plan(LAYERS, 0, 2), ValueError, f"ranks: got 0, {RANKS}"),
        (lambda: plan(LAYERS, 2.0, 2), TypeError, "ranks: got 2.0, want an integer"),
        (lambda: plan(LAYERS, 2, 0), ValueError, "micro_batches: got 0"),
        (lambda: plan(LAYERS, 2, 2, hand=-1), ValueError, "hand: got -1, want a fin"),
        (
            lambda: plan(LAYERS, 2, 2, limit=math.nan),
            ValueError,
            "limit: got nan bytes, want at",
        ),
        (lambda: plan([], 1, 2), ValueError, "layers: got none, want at least one"),
        (
            lambda: predict(LAYERS, (2, 3), 2),
            ValueError,
            r"counts: got \(2, 3\), want 4",
        ),
        (
            lambda: predict(LAYERS, (2, 1), 2),
            ValueError,
            r"counts: got \(2, 1\), want 4",
        ),
        (
            lambda: predict(LAYERS, (5, -1), 2),
            ValueError,
            "counts: got -1, want an int",
        ),
        (lambda: predict(LAYERS, (4, 0), 2), ValueError, "counts: got 0, want an int"),
        (
            lambda: predict(LAYERS, (), 2),
            ValueError,
            r"counts: got \(\), want 4 layers",
        ),
        (lambda: predict(LAYERS, (2.0, 2.0), 2), TypeError, "counts: got 2.0, want an"),
        (lambda: predict(LAYERS, (2, 2), 0), ValueError, "micro_batches: got 0"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
