"""The autotuner finds the fastest partition of a pass at a bounded price, and changes no
bit.
"""

import gc
from itertools import count, pairwise

import numpy as np
import pytest
from conftest import example

import lstm_kernels as lk
from lstm_kernels.cpu import partitions
from lstm_kernels.cpu.partitions import Autotuner, Partition
from lstm_kernels.schedules import Graph, check
from lstm_kernels.versions import numba_fused
from lstm_report.measure.comparer import compare

ONE, SAMPLES, UNITS = (Partition(by) for by in ("one thread", "samples", "units"))
EVERY = (UNITS, SAMPLES, ONE)


def run(tuner, seconds, calls=50_000):
    """Passes until a tuner is decided; seconds: a function of the partition, the number
    of its passes on end and the time so far. Returns the time they took.
    """
    spent, last, again = 0.0, None, 0
    for _ in range(calls):
        again = again + 1 if tuner.partition == last else 0
        last = tuner.partition
        took = seconds(last, again, spent)
        tuner.record(last, took)
        spent += took
        if tuner.done:
            return spent
    raise AssertionError("never done")


@pytest.mark.parametrize("scale", [4e-4, 3.9e-3, 4.1e-3, 0.5])
@pytest.mark.parametrize("fastest", EVERY)
@pytest.mark.parametrize("gap", [0.2, 0.08])
def test_the_fastest_is_found_whatever_a_pass_takes(scale, fastest, gap):
    rng = np.random.default_rng(0)
    times = dict.fromkeys(EVERY, 1 + gap) | {fastest: 1.0}
    tuner = Autotuner(EVERY)
    run(tuner, lambda d, *_: scale * times[d] * rng.uniform(1, 1 + gap / 8))
    choice = tuner.tuning()
    assert str(tuner.partition) == choice.fastest == str(fastest)
    assert choice.seconds[str(fastest)] == pytest.approx(scale, rel=0.05)


@pytest.mark.parametrize("scale", [20e-6, 0.5])
def test_tuning_costs_a_few_calls_or_milliseconds(scale):
    times, passes = {UNITS: 1.0, SAMPLES: 2.5, ONE: 2.0}, []

    def seconds(partition, *_):
        passes.append(partition)
        return scale * times[partition]

    wasted = run(Autotuner(EVERY), seconds) - len(passes) * scale
    assert wasted <= max(3 * scale, 3e-3)


def woken(again, spent, passes):
    """The first passes of two threads after others take longest."""
    return [400e-6, 300e-6, 250e-6, 200e-6][again] if again < 4 else 222e-6


def crowded(again, spent, passes):
    """Slow for the first 100 ms, as beside a BLAS library's threads."""
    return (1.45 if spent < 0.1 else 1) * 222e-6


def stalled(turn):
    """One pass of a turn of eight takes longest."""
    return lambda again, spent, passes: 6e-3 if passes == 8 * turn else 111e-6


@pytest.mark.parametrize("of_two", [woken, crowded, *map(stalled, range(4))])
def test_threads_that_are_slow_at_first_or_once_do_not_lose(of_two):
    tuner, passes = Autotuner((UNITS, ONE)), count()
    run(tuner, lambda d, *so: 240e-6 if d == ONE else of_two(*so, next(passes)))
    assert tuner.partition == UNITS


@pytest.mark.parametrize(
    ("seconds", "gain", "threads"),
    [(1e-3, 0.03, False), (1e-3, 0.07, True), (20e-6, 0.2, False)],
)
def test_threads_have_to_gain_more_than_the_margin(seconds, gain, threads):
    tuner = Autotuner(EVERY)
    run(tuner, lambda d, *_: seconds * (1 if d == ONE else 1 - gain))
    assert (tuner.partition != ONE) == threads


@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        ((1, 5, 1, 1, 1), []),
        ((3, 5, 7, 4, 1), []),
        ((1, 5, 1, 1, 2), []),
        ((1, 5, 2, 1, 2), ["samples"]),
        ((1, 5, 1, 2, 2), ["units"]),
        ((2, 5, 1, 1, 2), ["layers", "layers"]),
        ((1, 5, 16, 2, 2), ["units", "samples"]),
        ((2, 5, 8, 1, 2), ["samples", "layers", "layers"]),
    ],
)
def test_the_candidates_follow_the_network(sizes, names):
    every = partitions.partitions(*sizes)
    assert [one.by for one in every] == [*names, "one thread"]
    assert len({str(one) for one in every}) == len(every)
    graph = Graph(*sizes[:2], samples=sizes[2])
    for one in every:
        check(one.schedule(graph, sizes[4]))


def test_layers_hand_on_chunks_of_several_lengths():
    for T in (1, 2, 3, 9, 10, 11, 500):
        every = partitions.by_layers(4, T, 2)
        assert len({str(one) for one in every}) == len(every)
        assert all(1 <= one.chunk <= T for one in every)
        chunks = [one.chunk for one in every if one.together == 4]
        assert all(a > b for a, b in pairwise(chunks))


@pytest.mark.parametrize("version", ["numba-fused", "numba-wavefront"])
def test_calls_that_tune_have_the_same_bits_and_the_same_memory(version):
    params, x, _ = example((2, 11, 5, 3, 36), seed=7)
    net = lk.network(version, params, threads=2)
    assert net.partition(11, 5) == (None, {})
    want = lk.network("numba-fused", params, threads=1).forward(x)[0]
    net.forward(x)
    (workspace,) = net._free
    before = workspace.bytes
    for _ in range(100_000):
        np.testing.assert_array_equal(net.forward(x)[0], want)
        if net.partition(11, 5).fastest:
            break
    choice = net.partition(11, 5)
    assert net._free == [workspace]
    assert workspace.bytes == before
    assert choice.fastest in choice.seconds
    assert {str(one) for one in net._partitions(11, 5)} == {*choice.seconds}
    other = lk.network(version, params.copy(), threads=2)  # of the same form
    assert other.partition(11, 5) == choice
    assert lk.network(version, params, threads=1).partition(11, 5) != choice
    assert net.partition(11, 6) == (None, {})


@pytest.mark.parametrize("call", [*numba_fused.CALLS])
def test_every_call_has_a_tuning_of_its_own(call):
    params, x, target = example((1, 4, 3, 2, 40), seed=11)
    net = lk.network("numba-fused", params, threads=1)  # nothing to try
    assert net.partition(4, 3, call) == ("one thread", {})
    net = lk.network("numba-fused", params, threads=2)
    for _ in range(30):
        net.forward(x, training=call in ("forward for training", "backward"))
        if call == "backward":
            net.backward(np.ones((4, 3, 40), np.float32))
        if call == "step":
            net.step(x, target, 1e-9)
        if call == "loss_and_grads":
            net.loss_and_grads(x, target)
    assert net.partition(4, 3, call).seconds


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ((1, 1, "fit"), ValueError, "call: got 'fit', want one of 'forward'"),
        ((0, 1), ValueError, "T: got 0, want an integer of at least 1"),
        ((1, 1.5), TypeError, "B: got 1.5, want an integer of at least 1"),
    ],
)
def test_a_tuning_is_of_a_call_and_of_sizes(given, error, message):
    net = lk.network("numba-fused", lk.Params.init(1, 2))
    with pytest.raises(error, match=message):
        net.partition(*given)


def test_an_epoch_that_tunes_is_its_steps():
    params, x, target = example((2, 5, 23, 3, 20), seed=5)
    dataset, order = lk.Dataset(x, target), np.random.default_rng(0).permutation(23)
    whole, steps = (lk.network("numba-fused", params, threads=2) for _ in range(2))
    partitions.autotuner.cache_clear()
    batches = [(x[:, part], target[part]) for part in np.split(order, [8, 16])]
    for _ in range(100):  # from the first that tries to those that are decided
        losses = whole.epoch(dataset, order, 8, 0.01)
        assert losses == [steps.step(*batch, 0.01) for batch in batches]
    compare(steps.params().arrays(), whole.params().arrays(), 0)


def test_an_epoch_ends_at_a_loss_that_is_not_finite_while_it_tunes():
    params, x, target = example((1, 4, 8, 3, 20), seed=9)
    partitions.autotuner.cache_clear()
    for partition in (*EVERY, Partition("layers", 4, 1)):
        net = lk.network("numba-fused", params, threads=2)
        net._partitions = lambda T, B, p=partition: [p, ONE]  # undecided
        target[4] = np.float32(3e38)
        losses = net.epoch(lk.Dataset(x, target), np.arange(8), 2, 0.1)
        assert len(losses) == 3
        assert np.isfinite(losses[:2]).all()
        assert not np.isfinite(losses[2])


def test_shapes_that_were_tuned_are_forgotten_with_the_least_used():
    def alive():
        gc.collect()
        return sum(type(one) is partitions.Autotuner for one in gc.get_objects())

    params, before = lk.Params.init(1, 3), alive()
    net = lk.network("numba-fused", params, threads=1)
    for T in range(1, 400):
        net.forward(np.ones((T, 1, 1), np.float32))
        net.partition(T, 1)
    assert alive() - before < 350
