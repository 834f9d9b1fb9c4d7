"""The compiled passes of `numba-fused` and `numba-wavefront`: partitions and their
autotuner, timelines, and what a network keeps of memory and code.

That every schedule gives the same bits is in test_versions, that calls may come in any
order in test_machine.
"""

import ctypes
import gc
import subprocess
import sys
import time
import tracemalloc
import weakref
from contextlib import suppress
from functools import partial
from itertools import count

import numpy as np
import pytest
from conftest import example
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import types
from numba.core.errors import TypingError
from test_machine import interrupted

import lstm_kernels as lk
from lstm_kernels.cpu.entries import Arguments, Item, Reference, integers
from lstm_kernels.cpu.net import Kernels
from lstm_kernels.cpu.partitions import Autotuner, Partition, autotuner, partitions
from lstm_kernels.cpu.thread_pool import thread_pool
from lstm_kernels.kernels import PLAIN, native, njit
from lstm_kernels.schedules import (
    Graph,
    Schedule,
    Task,
    by_samples,
    by_units,
    check,
    waits_for,
    wavefront,
)
from lstm_kernels.versions import numba_fused

ONE, SAMPLES, UNITS = (Partition(by) for by in ("one thread", "samples", "units"))
EVERY = (UNITS, SAMPLES, ONE)
KINDS = "forward", "forward for training", "backward", "loss_and_grads", "step"


# Schedules


@pytest.mark.parametrize("threads", [1, 2])
def test_a_schedule_may_have_more_workers_than_a_network_has_threads(threads):
    params, x, _ = example((3, 8, 6, 3, 150))
    want, _ = lk.network("numba-fused", params).forward(x)
    for schedule in (
        lambda graph: wavefront(graph, 3, 2),
        lambda graph: by_units(graph, 3),
        lambda graph: by_samples(graph, 6),
        lambda graph: Schedule(graph, tuple(Task(l, 0, 8, 300 * l) for l in range(3))),
    ):
        net = lk.network("numba-wavefront", params, threads=threads, schedules=schedule)
        np.testing.assert_array_equal(net.forward(x)[0], want)


@pytest.mark.parametrize(
    ("schedules", "error", "message"),
    [
        (3, TypeError, "schedules: got 3, want a function of a Graph"),
        (lambda graph: None, TypeError, "schedule: got NoneType, want a Schedule"),
        (lambda g: Schedule(g, (Task(0, 0, 4),)), ValueError, "is computed never"),
        (lambda graph: wavefront(graph, 2, 9), ValueError, "chunk: got 9, want an"),
        (lambda _: wavefront(Graph(2, 5), 2, 2), ValueError, "schedules: got Graph"),
    ],
)
def test_a_schedule_that_cannot_be_run_is_refused(schedules, error, message):
    params, x, _ = example((2, 4, 7, 3, 5))
    with pytest.raises(error, match=message):
        lk.network("numba-wavefront", params, schedules=schedules).forward(x)


def check_spans(timeline):
    """Each part of the schedule ran, after all that it needs."""
    schedule, spans = timeline.schedule, timeline.spans
    assert [span.task for span in spans] == [part.task for part in schedule.parts]
    assert min(span.start for span in spans) == 0
    for span, others in zip(spans, waits_for(schedule), strict=True):
        assert span.start < span.stop
        assert all(spans[k].stop <= span.start for k in others)


def test_a_timeline_is_of_the_last_whole_pass_that_way():
    """Of the parts of a schedule in their order; of one worker too."""
    params, x, target = example((2, 6, 4, 3, 150))
    for threads, share in ((1, by_samples), (2, by_units), (2, wavefront)):
        schedules = {"schedules": lambda graph, share=share: share(graph, 2)}
        net = lk.network("numba-wavefront", params, threads=threads, **schedules)
        for shape in ((6, 4), (6, 4, True), (6, 4, True, True)):
            with pytest.raises(ValueError, match="timeline: got T 6, B 4, want"):
                net.timeline(*shape)
        began = time.perf_counter()
        y, _ = net.forward(x, training=True)
        took = time.perf_counter() - began
        first = net.timeline(6, 4, training=True)
        assert 0 < first.makespan < took  # in seconds
        net.backward(y)
        back = net.timeline(6, 4, True, True)
        assert net.timeline(6, 4, training=True) == first
        net.loss_and_grads(x, target)
        assert net.timeline(6, 4, training=True) != first
        assert net.timeline(6, 4, True, True) != back
        for line, backward in ((first, False), (back, True)):
            assert line.schedule.graph.backward == backward
            check_spans(line)


def test_a_backward_pass_that_was_interrupted_has_no_timeline_of_its_own():
    params, x, _ = example((2, 6, 4, 3, 20))
    net, line, where = lk.network("numba-wavefront", params), 0, "first"
    while where:
        y, _ = net.forward(x)
        net.forward(x, training=True)
        where = interrupted(partial(net.backward, y), line)
        with suppress(ValueError):  # which says that there is none
            timeline = net.timeline(6, 4, True, True)
            check_spans(timeline)
        line += 7


# The autotuner


def tune(tuner, seconds, calls=50_000):
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


@settings(max_examples=40)
@given(
    scale=st.floats(4e-4, 0.5),
    fastest=st.sampled_from(EVERY),
    gap=st.floats(0.08, 1),
    seed=st.integers(0, 99),
)
def test_the_fastest_partition_is_found_whatever_a_pass_takes(
    scale, fastest, gap, seed
):
    rng, times = np.random.default_rng(seed), dict.fromkeys(EVERY, 1 + gap)
    times[fastest], tuner = 1.0, Autotuner(EVERY)
    tune(tuner, lambda d, *_: scale * times[d] * rng.uniform(1, 1 + gap / 8))
    tuning = tuner.tuning()
    assert str(tuner.partition) == tuning.fastest == str(fastest)
    assert tuning.seconds[str(fastest)] == pytest.approx(scale, rel=gap / 8)


@pytest.mark.parametrize("scale", [20e-6, 0.5])
def test_tuning_costs_a_few_calls_or_milliseconds(scale):
    times, passes = {UNITS: 1.0, SAMPLES: 2.5, ONE: 2.0}, []

    def seconds(partition, *_):
        passes.append(partition)
        return scale * times[partition]

    wasted = tune(Autotuner(EVERY), seconds) - len(passes) * scale
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
    tune(tuner, lambda d, *so: 240e-6 if d == ONE else of_two(*so, next(passes)))
    assert tuner.partition == UNITS


@pytest.mark.parametrize(
    ("seconds", "gain", "threads"),
    [(1e-3, 0.03, False), (1e-3, 0.07, True), (20e-6, 0.2, False)],
)
def test_threads_have_to_gain_more_than_the_margin(seconds, gain, threads):
    tuner = Autotuner(EVERY)
    tune(tuner, lambda d, *_: seconds * (1 if d == ONE else 1 - gain))
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
    every = partitions(*sizes)
    assert [one.by for one in every] == [*names, "one thread"]
    assert len({str(one) for one in every}) == len(every)
    graph = Graph(*sizes[:2], samples=sizes[2])
    for one in every:
        check(one.schedule(graph, sizes[4]))


@pytest.mark.parametrize("version", ["numba-fused", "numba-wavefront"])
def test_calls_that_tune_keep_their_bits_and_the_result_is_shared(version):
    params, x, target = example((2, 11, 5, 3, 36), seed=7)
    net = lk.network(version, params, threads=2)
    alone = lk.network("numba-fused", params, threads=1)
    assert net.partition(11, 5) == (None, {})
    dy = np.ones((11, 5, 36), np.float32)
    calls = {
        "forward": lambda net: net.forward(x),
        "backward": lambda net: (net.forward(x, training=True), net.backward(dy).x),
        "loss_and_grads": lambda net: net.loss_and_grads(x, target)[1].x,
        "step": lambda net: net.step(x, target, 0.0 + 1e-30),
    }
    wants = {name: call(alone) for name, call in calls.items()}
    for _ in range(100_000):
        for name, call in calls.items():
            np.testing.assert_equal(call(net), wants[name])
        if all(net.partition(11, 5, kind).fastest for kind in KINDS):
            break
    for kind in KINDS:
        tuning = net.partition(11, 5, kind)
        assert tuning.fastest in tuning.seconds
        assert "one thread" in tuning.seconds or version == "numba-wavefront"
        assert len(tuning.seconds) > 1
        other = lk.network(version, params.copy(), threads=2)  # of the same form
        assert other.partition(11, 5, kind) == tuning
    assert net.partition(11, 6) == (None, {})


def test_an_epoch_that_tunes_is_its_steps():
    params, x, target = example((2, 5, 23, 3, 20), seed=5)
    dataset, order = lk.Dataset(x, target), np.random.default_rng(0).permutation(23)
    whole, steps = (lk.network("numba-fused", params, threads=2) for _ in range(2))
    autotuner.cache_clear()
    batches = [(x[:, part], target[part]) for part in np.split(order, [8, 16])]
    for _ in range(100):  # from the first that tries to those that are decided
        losses = whole.epoch(dataset, order, 8, 0.01)
        assert losses == [steps.step(*batch, 0.01) for batch in batches]
    np.testing.assert_equal(steps.params().arrays(), whole.params().arrays())


def test_a_call_that_a_loss_ended_waits_for_its_workers(monkeypatch):
    """One that came late would take the next call's passes for this one's."""
    params, _, _ = example((1, 4, 4, 3, 20))
    net = lk.network("numba-fused", params, threads=2)
    monkeypatch.setattr(net, "_partitions", lambda *_: [SAMPLES])
    pool, waits = thread_pool(), []
    monkeypatch.setattr(pool, "drain", lambda: waits.append(len(waits)))
    target = np.full((32, params.output_size), 1e30, np.float32)
    target[:4] = 0  # the first step, which autotuning takes by itself, is finite
    dataset = lk.Dataset(np.ones((4, 32, 3), np.float32), target)
    losses = net.epoch(dataset, np.arange(32), 4, 0.1)
    assert (len(losses), len(waits)) == (2, 1)


def test_a_bare_pass_writes_every_step_of_h_and_keeps_its_input(cell):
    params, x, _ = example((2, 50, 6, 1, 40), cell)
    net, once = lk.network("numba-fused", params, threads=2), x.copy()
    want, _ = net.forward(x)
    passes = [net.bare_forward(once, by) for by in (*EVERY, Partition("layers", 4, 2))]
    alive = weakref.ref(once)
    del once
    for bare in passes:
        run, h = bare.run, bare.h
        del bare
        gc.collect()
        assert alive() is not None
        for _ in range(2):
            h[1:] = np.nan
            run()
            np.testing.assert_array_equal(h[1:, :, :40], want)


# Memory


def traced(work):
    """MiB that work() leaves behind, as far as Python and NumPy allocate them."""
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    work()
    gc.collect()
    net = lk.network("numba-fused", lk.Params.init(8, 64), threads=2)
    of_two = net.bare_forward(np.ones((2, 8, 8), np.float32), SAMPLES)
    for _ in range(100):  # a later region lets go what a late thread might have read
        of_two()
        thread_pool().drain()
    return (tracemalloc.get_traced_memory()[0] - before) / 2**20


def test_a_network_keeps_the_memory_of_a_few_shapes():
    params, x, _ = example((2, 100, 32, 3, 64))

    def one_shape(net, T):
        net.forward(x[:T].copy(), training=True)
        tapes = [net.record(x[:T].copy()) for _ in range(6)]
        tapes[0].backward(tapes[0].y)
        del tapes
        net.forward(x[:1].copy())  # each call gives back what is too much

    nets = [lk.network("numba-fused", params, threads=2) for _ in range(3)]
    one_shape(nets[2], 5)  # compiles
    tracemalloc.start()
    try:
        once = traced(lambda: nets[0].record(x))
        kept = traced(lambda: [one_shape(nets[1], T) for T in range(90, 100)])
        assert once > 5
        assert kept / once == pytest.approx(numba_fused.MOST_WORKSPACES, abs=0.5)
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        for T in range(90, 100):  # nor has it more in between
            nets[2].forward(x[:T].copy(), training=True)
        _, most = tracemalloc.get_traced_memory()
        assert (most - before) / 2**20 < once * (numba_fused.MOST_WORKSPACES + 0.5)
        assert traced(nets.clear) < -0.9 * (kept + once)
    finally:
        tracemalloc.stop()


def test_kept_memory_is_bounded_in_bytes(monkeypatch):
    params, x, _ = example((2, 400, 32, 3, 64))
    net = lk.network("numba-fused", params)
    tracemalloc.start()
    try:
        once = traced(lambda: net.forward(x))
        monkeypatch.setattr(numba_fused, "MOST_BYTES", 0)
        short = traced(lambda: [net.forward(x[:T].copy()) for T in (5, 4, 3)])
        assert once > 3
        assert short < -0.9 * once
    finally:
        tracemalloc.stop()


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
        once = x.copy(), target.copy()
        references = [weakref.ref(a) for a in once]
        call(*once)
        del once
        for _ in range(1000):  # of the last region, in case a thread was late
            if not any(reference() is not None for reference in references):
                break
            net.predict(x)
            gc.collect()
        assert [reference() for reference in references] == [None, None]


def test_shapes_that_were_tuned_are_forgotten_with_the_least_used():
    def alive():
        gc.collect()
        return sum(type(one) is Autotuner for one in gc.get_objects())

    params, before = lk.Params.init(1, 3), alive()
    net = lk.network("numba-fused", params, threads=1)
    for T in range(1, 400):
        net.forward(np.ones((T, 1, 1), np.float32))
    assert alive() - before < 350


# Code


def compiled(function, kind):
    """A function of a NamedTuple, which is given its address, as Python calls it."""
    number = ctypes.c_int64
    address = native(function, "", types.int64(kind))
    return ctypes.CFUNCTYPE(number, number)(address)


def test_arguments_lie_in_memory_as_numba_passes_them():
    """Compiled code finds by a Reference what `Arguments` stores."""
    net = lk.network("numba-fused", lk.Params.init(2, 3, output_size=1))
    values = net.bare_forward(np.ones((4, 5, 2), np.float32)).workspace.net
    values = values._replace(kernels=Kernels(*range(10)))
    arguments = Arguments(values)

    def value(read):
        return compiled(read, Reference(arguments.type))(arguments.address)

    assert value(lambda n: n.h.size) == values.h.size
    assert value(lambda n: n.fed[1, 2]) == values.fed[1, 2] == 2
    assert value(lambda n: n.order.size) == 0
    assert value(lambda n: n.kernels.forward) == 1
    assert value(lambda n: n.kernels.transpose) == 9
    arguments.point("x", np.full((4, 5, 2), 7, np.float32))
    arguments.set("T", 9)
    assert value(lambda n: n.T) == 9
    assert value(lambda n: n.x[19, 1]) == 7


def test_a_reference_has_the_fields_of_its_tuple_alone():
    words = np.arange(3, 13)
    for k, name in enumerate(Item._fields):
        read = eval(f"lambda item: item.{name}")
        assert compiled(read, integers(Item))(words.ctypes.data) == 3 + k
    with pytest.raises(TypingError, match="Unknown attribute 'steps'"):
        compiled(lambda item: item.steps, integers(Item))


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
