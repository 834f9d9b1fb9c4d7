"""`numba-fused`: every partition has the same bits, whatever runs before; tapes."""

import gc
import random
import subprocess
import sys
import weakref

import numpy as np
import pytest
from conftest import example

import lstm_kernels as lk
from lstm_kernels.cells import CELLS
from lstm_kernels.cpu.entries import Arguments, _words, loader
from lstm_kernels.cpu.net import Net
from lstm_kernels.cpu.partitions import Autotuner, Partition, partitions
from lstm_kernels.cpu.thread_pool import thread_pool
from lstm_kernels.kernels import PLAIN, njit
from lstm_kernels.versions import numba_fused
from lstm_kernels.versions.numba_fused import NumbaFused


def every_partition(net, x):
    """All that would be autotuned on two threads."""
    sizes = net._params.num_layers, *x.shape[:2], net.layout.blocks
    return partitions(*sizes, 2)


def partitioned(partition, *arguments):
    """A network of `numba-fused` whose passes have one partition."""

    class Partitioned(NumbaFused):
        def _partitions(self, T, B):
            return [partition]

    return Partitioned(*arguments)


def ends(params, x, seed=0):
    """A state, and gradients of the final one and of y."""
    rng, (T, B, _) = np.random.default_rng(seed), x.shape
    shape = len(CELLS[params.cell].state), params.num_layers, B, params.hidden_size
    state, dstate = (tuple(rng.uniform(-1, 1, shape).astype(x.dtype)) for _ in "hc")
    return state, dstate, rng.standard_normal((T, *shape[2:])).astype(x.dtype)


def bits(value):
    """The bytes of all numbers in what a call returns."""
    if hasattr(value, "arrays"):
        value = tuple(value.arrays().values())
    if isinstance(value, tuple):
        return [part for item in value for part in bits(item)]
    return [np.asarray(value).tobytes()]


def results(net, x, target):
    """The bytes of what a network computes on each public path; then it has made a
    step.
    """
    state, dstate, dy = ends(net.params(), x)
    passes = net.forward(x, state), net.forward(x), net.forward(x, state, True)
    assert bits(passes[2]) == bits(passes[0])
    gradients = tuple(net.backward(dy, end) for end in (dstate, None))
    after = net.loss_and_grads(x, target), net.step(x, target, 0.1), net.params()
    return bits((passes, gradients, after))


def test_every_partition_gives_the_same_bits(cell):
    for shape in [(2, 5, 17, 3, 33), (1, 9, 4, 40, 64), (3, 4, 30, 7, 100)]:
        params, *batch = example(shape, cell)
        every = every_partition(lk.network("numba-fused", params, threads=2), batch[0])
        assert len(every) >= 2
        first, *others = [results(partitioned(p, params, 2), *batch) for p in every]
        assert all(other == first for other in others), shape


def test_any_partition_may_follow_any_other(cell, monkeypatch):
    """As while they are autotuned, and where the fastest of two kinds of pass
    differ.
    """
    chance, ran = random.Random(0), set()

    class Restless(Autotuner):
        def record(self, partition, seconds):
            ran.add(partition)
            self.partition = chance.choice(self._left)

    monkeypatch.setattr(numba_fused, "autotuner", lambda form, every: Restless(every))
    params, x, target = example((2, 3, 32, 2, 40), cell)
    net, alone = NumbaFused(params, 2), partitioned(Partition("one thread"), params, 2)
    every, (state, dstate, dy) = every_partition(net, x), ends(params, x)
    forward = [(x,), (x, state), (x, None, True), (x, state, True)]
    others = {"loss_and_grads": (x, target), "step": (x, target, 0.1)}
    for call in range(300):
        calls = [("forward", chance.choice(forward)), chance.choice([*others.items()])]
        if len(calls[0][1]) == 3:
            calls.insert(1, ("backward", (dy, chance.choice([None, dstate]))))
        for name, arguments in calls:
            got, want = (getattr(one, name)(*arguments) for one in (net, alone))
            assert bits(got) == bits(want), (call, name)
    assert bits(net.params()) == bits(alone.params())
    assert ran == {*every}


def test_a_bare_pass_writes_every_step_of_h(cell):
    params, x, _ = example((2, 5, 6, 1, 40), cell)
    net = lk.network("numba-fused", params, threads=2)
    for partition in every_partition(net, x):
        run = net.bare_forward(x, partition)
        for _ in range(2):
            run.h[1:] = np.nan
            run()
            np.testing.assert_array_equal(run.h[1:, :, :40], net.forward(x)[0])


def test_a_diverged_network_is_as_new_with_new_parameters():
    params, x, target = example((2, 4, 5, 3, 20))
    net, fresh = (lk.network("numba-fused", params) for _ in range(2))
    bad = params.copy()
    bad.layers[0].W[:] = 1e38
    net.assign(bad)
    for _ in range(3):
        net.step(x, target, 1e30)
    net.assign(params)
    for _ in range(2):
        assert net.step(x, target, 0.1) == fresh.step(x, target, 0.1)
    for name, value in fresh.params().arrays().items():
        np.testing.assert_array_equal(net.params().arrays()[name], value)


def test_the_memory_of_a_tape_goes_back_when_it_ends():
    params, x, _ = example((2, 4, 5, 3, 20))
    net = lk.network("numba-fused", params)
    gc.disable()
    try:
        for _ in range(3):
            tapes = [net.record(x) for _ in range(3)]
            assert not net._free
            del tapes
            assert len(net._free) == 3
            net.forward(x, training=True)
            net.forward(x, training=True)
            assert len(net._free) == 2  # one is the short form's
            net.params(), net.assign(params)
            assert len(net._free) == 3
    finally:
        gc.enable()


def test_tapes_that_ended_leave_no_more_memory_than_calls():
    params, x, _ = example((1, 4, 5, 3, 20))
    net = lk.network("numba-fused", params)
    tapes = [net.record(x) for _ in range(20)]
    del tapes
    net.record(x)
    assert len(net._free) <= numba_fused.MOST_WORKSPACES + 1


def test_a_network_keeps_no_array_of_its_caller_alive():
    params, x, target = example((1, 4, 5, 3, 20))
    net = lk.network("numba-fused", params)
    calls = [
        lambda x, target: net.forward(x),
        lambda x, target: net.loss_and_grads(x, target),
        lambda x, target: net.step(x, target, 0.1),
        lambda x, target: net.epoch(lk.Dataset(x, target), np.arange(5), 2, 0.1),
    ]
    for call in calls:
        x_once, target_once = x.copy(), target.copy()
        gone = weakref.ref(x_once), weakref.ref(target_once)
        call(x_once, target_once)
        del x_once, target_once
        thread_pool().drain()
        thread_pool()._kept.clear()
        gc.collect()
        assert [ref() is None for ref in gone] == [True, True]


def test_a_bare_pass_keeps_its_input_alive():
    params, x, _ = example((1, 300, 4, 1, 8))
    net = lk.network("numba-fused", params)
    want, once = net.forward(x)[0], x.copy()
    alive, compiled = weakref.ref(once), net.bare_forward(once)
    run, h = compiled.run, compiled.h
    del once, compiled
    gc.collect()
    assert alive() is not None
    run()
    assert np.array_equal(h[1:, :, :8], want)


def test_a_call_that_a_loss_ended_waits_for_its_workers(monkeypatch):
    """One that came late would take the next call's passes for this one's."""
    params, _, _ = example((1, 4, 4, 3, 20))
    net = lk.network("numba-fused", params, threads=2)
    monkeypatch.setattr(net, "_partitions", lambda *_: [Partition("samples")])
    pool, waits = thread_pool(), []
    monkeypatch.setattr(pool, "drain", lambda: waits.append(len(waits)))
    target = np.full((32, params.output_size), 1e30, np.float32)
    target[:4] = 0  # the first step, which autotuning takes by itself, is finite
    dataset = lk.Dataset(np.ones((4, 32, 3), np.float32), target)
    losses = net.epoch(dataset, np.arange(32), 4, 0.1)
    assert (len(losses), len(waits)) == (2, 1)


def test_a_backward_that_was_not_finished_leaves_no_timeline(monkeypatch):
    params, x, _ = example((2, 6, 4, 3, 20))
    net = lk.network("numba-wavefront", params)
    y, _ = net.forward(x, training=True)
    with monkeypatch.context() as planted:
        planted.setattr(net, "_run", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            net.backward(y)
    with pytest.raises(ValueError, match="timeline: got T 6, B 4, want"):
        net.timeline(6, 4, True, True)


def test_arguments_lie_in_memory_as_numba_passes_them():
    """Numba's own code stores what `_words` says."""
    workspace = lk.network("numba-fused", lk.Params.init(2, 3, output_size=1))
    net = workspace._new_workspace(4, 5, "gradients").net
    arguments = Arguments(net)
    load = loader(arguments.type)

    compiled = njit(**PLAIN)(lambda a, n: (load(a).h.size, load(a).fed[1, 2], n.h.size))
    size, fed, same_size = compiled(arguments.address, net)
    assert size == same_size == net.h.size
    assert fed == net.fed[1, 2]
    arguments.point("x", np.ones((4, 5, 2), np.float32))
    arguments.set("T", 9)
    changed = njit(**PLAIN)(lambda a: (load(a).x[19, 1], load(a).T))
    assert changed(arguments.address) == (1, 9)
    assert len(arguments.words) == len(_words(tuple(net)))
    assert isinstance(arguments.values, Net)


def test_views_in_compiled_code_are_not_counted():
    """What a private option of Numba's is for."""
    for options, counts in ((PLAIN, False), ({}, True)):
        f = njit(**options)(lambda a: a[0][1:].sum() + a[1][2:].sum())
        f(np.ones((3, 4)))
        (text,) = f.inspect_llvm().values()
        assert ("NRT_incref(" in text) == counts


@pytest.mark.parametrize("version", ["numba-fused", "numba-wavefront"])
def test_a_second_process_compiles_nothing(version):
    script = f"""
import numpy as np, lstm_kernels as lk
from numba.core import event
with event.install_recorder("numba:compile") as seen:
    net = lk.network({version!r}, lk.Params.init(1, 3, num_layers=2, output_size=1))
    net.step(np.ones((2, 1, 1), np.float32), np.ones((1, 1), np.float32), 0.1)
    net.forward(np.ones((2, 1, 1), np.float32))
print(len(seen.buffer))
"""
    line = [sys.executable, "-c", script]
    _, second = (subprocess.check_output(line, timeout=300) for _ in range(2))
    assert int(second) == 0
