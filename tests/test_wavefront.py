"""`numba-wavefront`: any schedule gives the same bits."""

from itertools import product

import numpy as np
import pytest
from conftest import SHAPES, ctrl_c_after, example
from toys import random_schedule

import lstm_kernels as lk
from lstm_kernels.cpu import workspace
from lstm_kernels.cpu.partitions import Partition
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
from lstm_kernels.versions.numba_fused import NumbaFused
from lstm_kernels.versions.numba_wavefront import NumbaWavefront


def bits(net, x, target, dy):
    """Everything a network computes, as bytes."""
    y, state = net.forward(x, training=True)
    grads = net.backward(dy)
    loss, _ = net.loss_and_grads(x, target)
    first = [y, *state, grads.x, *grads.state, *grads.arrays().values(), np.array(loss)]
    dataset = lk.Dataset(np.repeat(x, 2, axis=1), np.repeat(target, 2, axis=0))
    losses = net.epoch(dataset, np.arange(len(dataset) - 1), x.shape[1], 0.1)
    last = [np.array(losses), *net.params().arrays().values(), net.forward(x)[0]]
    return [array.tobytes() for array in first + last]


def test_every_schedule_gives_the_bits_of_numba_fused(cell):
    rng = np.random.default_rng(0)
    shapes = [*SHAPES[1:4], (4, 9, 1, 20, 40), (5, 6, 40, 3, 33), (2, 7, 6, 3, 150)]
    for shape in shapes:
        params, x, target = example(shape, cell)
        dy = rng.standard_normal((*x.shape[:2], shape[4])).astype(np.float32)
        want = bits(lk.network("numba-fused", params), x, target, dy)
        for given in (None, *[random_schedule] * 4):
            schedules = given and (lambda graph: random_schedule(rng, graph))
            net = NumbaWavefront(params, schedules=schedules)
            assert bits(net, x, target, dy) == want, shape


@pytest.mark.parametrize("threads", [1, 2])
def test_a_backward_pass_may_be_partitioned_otherwise_than_its_forward_pass(threads):
    """Into other groups of samples, which wait for those that have theirs."""
    params, x, target = example((2, 5, 12, 3, 20))
    dy = np.ones((5, 12, 20), np.float32)
    want = bits(lk.network("numba-fused", params), x, target, dy)
    for ahead, back in product((1, 2, 3, 5), repeat=2):

        def schedules(graph, ahead=ahead, back=back):
            return by_samples(graph, back if graph.backward else ahead)

        net = NumbaWavefront(params, threads, schedules=schedules)
        assert bits(net, x, target, dy) == want


def test_no_more_threads_take_part_than_a_network_has():
    params, x, _ = example((3, 8, 6, 3, 150))
    want = lk.network("numba-fused", params).forward(x)[0]
    for schedules in (
        lambda graph: wavefront(graph, 3, 2),
        lambda graph: by_units(graph, 3),
        lambda graph: by_samples(graph, 700 if graph.samples > 700 else 6),
        lambda graph: (
            Schedule(graph, (Task(0, 0, 8, 900), Task(1, 0, 8, 30)))
            if graph.layers == 2
            else Schedule(graph, tuple(Task(l, 0, 8, 300 * l) for l in range(3)))
        ),
    ):
        for threads in (1, 2):
            net = NumbaWavefront(params, threads, schedules=schedules)
            assert (net.forward(x)[0] == want).all()
            [space] = net._free
            assert space.last["forward"].workers <= threads


def test_an_interrupt_or_an_error_ends_a_pass_and_the_network_lives(monkeypatch):
    params, x, _ = example((3, 6000, 4, 3, 128))
    short = x[:6].copy()
    net = NumbaWavefront(params, schedules=lambda graph: wavefront(graph, 2, 3))
    want = net.forward(short)[0]

    def ends():
        with pytest.raises(RuntimeError, match="nothing to go back through"):
            net.backward(np.zeros_like(want))
        assert (net.forward(short, training=True)[0] == want).all()

    net.forward(short, training=True)
    with ctrl_c_after(0.1):
        while True:
            net.forward(x, training=True)
    with pytest.raises(ValueError, match="timeline: got T 6000, B 4, want"):
        net.timeline(6000, 4, training=True)
    ends()
    with monkeypatch.context() as planted:
        planted.setattr(workspace.plan, "thread_pool", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            net.forward(short, training=True)
    ends()


def test_a_timeline_is_of_the_last_pass_that_way():
    """Of the parts of a schedule in their order; of one worker too."""
    params, x, target = example((2, 6, 4, 3, 150))
    for threads, share in ((1, by_samples), (2, by_units), (2, wavefront)):
        net = NumbaWavefront(params, threads, schedules=lambda g, s=share: s(g, 2))
        y, _ = net.forward(x, training=True)
        first = net.timeline(6, 4, training=True)
        net.backward(y)
        back = net.timeline(6, 4, True, True)
        assert net.timeline(6, 4, training=True) == first
        net.loss_and_grads(x, target)
        later = net.timeline(6, 4, training=True)
        assert later != first
        assert net.timeline(6, 4, True, True) != back
        for line, backward in ((first, False), (back, True), (later, False)):
            schedule = line.schedule
            assert schedule.graph.backward == backward
            assert [s.task for s in line.spans] == [p.task for p in schedule.parts]
            assert min(span.start for span in line.spans) == 0
            for span, others in zip(line.spans, waits_for(schedule), strict=True):
                assert span.start < span.stop
                assert all(line.spans[k].stop <= span.start for k in others)
        net.forward(x, training=True)
        assert net.timeline(6, 4, training=True) != later


def circle(graph):
    """Worker 0 begins with the last layer, worker 1 with the others."""
    tasks = graph.tasks(graph.steps)
    ends = tasks[-1], tasks[0]
    rest = (task._replace(worker=1) for task in tasks[1:-1])
    return Schedule(graph, (*ends, *rest))


@pytest.mark.parametrize(
    ("schedules", "error", "message"),
    [
        (3, TypeError, r"^schedules: got 3, want a function"),
        ((), TypeError, r"^schedules: got \(\), want a function"),
        (circle, ValueError, "task 0 on worker 0 waits for what is never done"),
        (lambda g: Schedule(g, (Task(0, 0, 4),)), ValueError, "is computed never"),
        (lambda graph: wavefront(graph, 2, 9), ValueError, "chunk: got 9, want an"),
        (lambda _: wavefront(Graph(2, 5), 2, 2), ValueError, "schedules: got Graph"),
    ],
)
def test_a_schedule_that_cannot_be_run_is_refused(schedules, error, message):
    params, x, _ = example((2, 4, 7, 3, 5), "lstm")
    with pytest.raises(error, match=message):
        lk.network("numba-wavefront", params, schedules=schedules).forward(x)


def test_the_schedules_that_are_autotuned_hold():
    sizes = product([(1, 1), (1, 50), (6, 2)], (1, 2), (False, True))
    for (L, T), threads, backward in sizes:
        params = lk.Params.init(3, 16, num_layers=L)
        net = lk.network("numba-wavefront", params, threads=threads)
        for partition in net._partitions(T, 1):
            schedule = net._schedule(Graph(L, T, backward=backward), partition)
            check(schedule)
            assert schedule.workers <= min(threads, L)


class Mine(NumbaFused):
    """A version with a partition of its own, by a name that nothing else knows."""

    name = "numba-fused"

    def _partitions(self, T, B):
        return [Partition("mine")]

    def _schedule(self, graph, partition):
        return wavefront(graph, 2, 3)


def test_a_partition_of_another_class_is_run_and_checked(monkeypatch):
    params, x, target = example((3, 20, 4, 3, 20))
    want, net = lk.network("numba-fused", params, threads=1), Mine(params, threads=2)
    for _ in range(3):
        for got, sure in zip(net.forward(x), want.forward(x), strict=True):
            np.testing.assert_array_equal(got, sure)
    assert net.step(x, target, 0.1) == want.step(x, target, 0.1)
    monkeypatch.setattr(
        Mine, "_schedule", lambda self, graph, partition: Schedule(graph, ())
    )
    with pytest.raises(ValueError, match=r"^schedule: cell \(0, 0\) is computed never"):
        Mine(params).forward(x)
    with pytest.raises(ValueError, match=r"^by: got 'mine', want one thread, samples"):
        Partition("mine").schedule(Graph(1, 1), 2)
