"""`numba-wavefront`: any schedule gives the same bits, whatever the threads do
meanwhile.
"""

import signal
from functools import cache

import numpy as np
import pytest
from checked import Interpreted
from conftest import SHAPES, example

import lstm_kernels as lk
from lstm_kernels.cells import CELLS
from lstm_kernels.cpu import flow, instructions, team, wavefront_kernels, workspace
from lstm_kernels.cpu.machine_code import address
from lstm_kernels.cpu.tiles import Tiles
from lstm_kernels.kernels import native
from lstm_kernels.schedules import Graph, Schedule, Task, check, pipeline, wavefront
from lstm_kernels.versions.numba_wavefront import NumbaWavefront
from lstm_report.measure.comparer import compare_to_reference


def random_schedule(rng, graph, workers=5):
    """Chunks of any length, in any order that the graph allows, on any worker."""
    shapes = {"point-to-point": 2, "barrier": 1}
    together = int(rng.integers(1, graph.layers + 1))
    chunk = int(rng.integers(1, graph.steps + 1))
    if rng.random() < 0.5:
        order = list(shapes)[rng.integers(2)]
        how = {"together": together, "order": order}
        return wavefront(graph, int(rng.integers(1, workers + 1)), chunk, **how)
    cuts = {
        layer: [
            0,
            *sorted(
                rng.choice(range(1, graph.steps), rng.integers(graph.steps), False)
            ),
        ]
        if graph.steps > 1
        else [0]
        for layer in range(graph.layers)
    }
    left = [
        Task(layer, int(a), int(b))
        for layer, starts in cuts.items()
        for a, b in zip(starts, [*starts[1:], graph.steps], strict=True)
    ]
    left.sort(key=graph.rank)  # layer after layer; then any task whose needs are there
    owner, tasks = {}, []
    while left:
        ready = [
            t
            for t in left
            if all(
                need in owner or (need[0] == t.layer and t.start <= need[1] < t.stop)
                for step in range(t.start, t.stop)
                for need in graph.needs(t.layer, step)
            )
        ]
        task = ready[rng.integers(len(ready))]
        needs = {
            owner[need]
            for step in range(task.start, task.stop)
            for need in graph.needs(task.layer, step)
            if need in owner
        }
        for step in range(task.start, task.stop):
            owner[task.layer, step] = len(tasks)
        left = [other for other in left if other is not task]
        after = tuple(sorted(needs))
        tasks.append(task._replace(worker=int(rng.integers(workers)), after=after))
    return Schedule(graph, tuple(tasks))


def bits(net, x, target, dy):
    """Everything a network computes, as one tuple of bytes."""
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
    for shape in [*SHAPES, (4, 9, 1, 20, 40), (3, 70, 1, 3, 16), (5, 6, 40, 3, 33)]:
        params, x, target = example(shape, cell)
        dy = rng.standard_normal((*x.shape[:2], shape[4])).astype(np.float32)
        want = bits(lk.network("numba-fused", params), x, target, dy)
        for given in (None, random_schedule, random_schedule, random_schedule):
            schedules = given and (lambda graph: random_schedule(rng, graph))
            net = NumbaWavefront(params, schedules=schedules)
            compare_to_reference(net, params, x)
            assert bits(net, x, target, dy) == want, shape


def test_micro_batches_of_a_pipeline():
    params, x, target = example((4, 5, 7, 3, 17), "lstm")
    dy = np.ones((5, 7, 17), np.float32)
    want = bits(lk.network("numba-fused", params), x, target, dy)

    def in_parts(parts, workers):
        def schedules(graph):
            parted = Graph(graph.layers, graph.steps, parts, graph.backward)
            return pipeline(parted, workers)

        return NumbaWavefront(params, schedules=schedules)

    for parts in (1, 2, 6):
        assert bits(in_parts(parts, 3), x, target, dy) == want
    with pytest.raises(ValueError, match="8 parts of a mini-batch of 7"):
        in_parts(8, 2).forward(x)


# A toy: a task's value is a hash of the values it waits for, and its time a number of
# spins.

words = instructions.integers


def toy(task, _, address):
    at = words(address, 5)
    count = at[4]
    first, values, delays = (
        words(at[0], count + 1),
        words(at[2], count),
        words(at[3], count),
    )
    after = words(at[1], first[count])
    for _ in range(delays[task]):
        instructions.pause()
    value = task + 1
    for e in range(first[task], first[task + 1]):
        value = (value ^ values[after[e]]) * 0x1E3779B97F4A7C15
        value ^= value >> 29
    values[task] = value
    return 0


class Toy:
    """A schedule of toys: run() returns their values."""

    def __init__(self, schedule):
        self.flow = flow.Flow(schedule)
        first, after = (self.flow._arrays[name] for name in ("first", "after"))
        self.count = len(schedule.tasks)
        self.values = np.zeros(self.count, np.int64)
        self.delays = np.zeros(self.count, np.int64)
        arrays = first, after, self.values, self.delays
        self.job = np.array([*map(workspace.at, arrays), self.count])

    def one_by_one(self):
        self.values[:] = 0
        for task in range(self.count):
            team.compiled(toy)(task, 0, workspace.at(self.job))
        return self.values.copy()

    def run(self, participants, delays=0, perform=toy):
        self.values[:], self.delays[:] = 0, delays
        stop, place = np.zeros(1, np.int64), workspace.at(self.job)
        self.flow.run(participants, code_of(perform), place, stop, self)
        return self.values.copy()


@cache
def code_of(perform):
    return native(perform, "test")


def toy_schedule(rng):
    """A random graph of work: up to 40 tasks, each after up to 4 earlier ones, 1 to 6
    workers.
    """
    count, workers = int(rng.integers(1, 41)), int(rng.integers(1, 7))
    tasks = [
        Task(
            0,
            i,
            i + 1,
            worker=int(rng.integers(workers)),
            after=tuple(
                sorted(
                    {int(j) for j in rng.integers(0, i, rng.integers(0, 5))}
                    if i
                    else ()
                )
            ),
        )
        for i in range(count)
    ]
    return Schedule(Graph(1, count), tuple(tasks))


def test_stress_random_graphs_random_delays():
    """A thousand runs, delays of up to 100 us in one task of ten, always the same
    values.
    """
    rng, runs = np.random.default_rng(1), 0
    for _ in range(100):
        some = Toy(toy_schedule(rng))
        want = some.one_by_one()
        for _ in range(10):
            delays = rng.integers(0, 3000, some.count) * (rng.random(some.count) < 0.1)
            participants = int(rng.integers(1, some.flow.workers + 1))
            assert (some.run(participants, delays) == want).all()
            line = some.flow.timeline()
            for span, task in zip(line.spans, some.flow.schedule.tasks, strict=True):
                assert all(line.spans[a].stop <= span.start for a in task.after)
            runs += 1
    assert runs == 1000


def test_stress_of_networks_with_random_delays():
    """Delays before the tasks of real passes; every output has the bits of layer by
    layer.
    """
    rng = np.random.default_rng(2)

    def late(task, _, address):
        at = words(address, 3)  # the real task, its job, the delays
        for _ in range(words(at[2] + 8 * task, 1)[0]):
            instructions.pause()
        return instructions.call(at[0], task, 0, at[1])

    delayed = native(late, "test")
    for _ in range(15):
        shape = tuple(int(rng.integers(1, high)) for high in (7, 30, 4, 10, 40))
        params, x, _ = example(shape, "lstm", seed=int(rng.integers(1000)))
        want, _ = lk.network("numba-fused", params, threads=1).forward(x)
        net = NumbaWavefront(
            params, schedules=lambda graph: random_schedule(rng, graph)
        )
        net.forward(x)
        space = net._space(*x.shape[:2], "inference")
        running = space.ran[False]
        real = address(wavefront_kernels.forward_task, space.work.job.dtype)
        stop = np.zeros(1, np.int64)
        for _ in range(20):
            count = len(running.tasks)
            delays = rng.integers(0, 2000, count) * (rng.random(count) < 0.2)
            top = space.begin(x)
            top[1:] = np.nan
            job = np.array([real, space.work.address, workspace.at(delays)])
            place, alive = workspace.at(job), (space, job, delays, top)
            running.run(min(2, running.workers), delayed, place, stop, alive)
            assert (top[1:, :, : shape[4]] == want).all()


def test_one_thread_runs_the_schedule_of_many():
    """Threads that never come are not waited for: whoever waits long helps out."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        some = Toy(toy_schedule(rng))
        assert (some.run(1) == some.one_by_one()).all()


def stopper(task, _, address):
    """Count the runs of a task, and tell all to leave after the fifth."""
    at = words(address, 2)
    instructions.add(at[0] + 8 * task, 1)
    if task == 5:
        instructions.exchange(at[1], 1)
    return 0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_is_told_to_stop_leaves_the_rest(workers):
    running = flow.Flow(wavefront(Graph(3, 40), workers, 1))
    counts, stop = np.zeros(120, np.int64), np.zeros(1, np.int64)
    job = np.array([workspace.at(counts), workspace.at(stop)])
    running.run(workers, code_of(stopper), workspace.at(job), stop, job)
    team.team().drain()
    assert counts[5] == 1
    assert counts.max() == 1
    assert counts.sum() < len(counts)
    counts[:], stop[:] = 0, 1
    running.run(workers, code_of(stopper), workspace.at(job), stop, job)
    assert not counts.any()


class Late(Exception):
    pass


def again_and_again(call):
    while True:
        call()


def test_what_is_no_function_makes_no_schedules():
    params = lk.Params.init(1, 4, num_layers=2)
    for given in (3, ()):
        with pytest.raises(TypeError, match=r"^schedules: got .*, want a function"):
            lk.network("numba-wavefront", params, schedules=given)


def test_an_interrupt_ends_the_call_and_the_network_lives():
    """A signal's exception, as Ctrl-C is one, comes out of the call within slices of
    time.
    """
    params, x, target = example((6, 3000, 8, 64, 128), "lstm")
    net = lk.network("numba-wavefront", params)
    short, dy = np.ascontiguousarray(x[:5]), np.ones((5, 8, 128), np.float32)
    want = bits(
        lk.network("numba-fused", params),
        short,
        target,
        np.ones_like(short[..., :1]) @ np.ones((1, 128), np.float32),
    )

    def alarm(number, frame):
        # Not in a finaliser of types or of a weak dictionary, nor in a hook of the
        # garbage collection, such as Hypothesis has: there Python would lose it.
        if not any(
            n in frame.f_code.co_filename for n in ("typing", "weakref", "hypothesis")
        ):
            raise Late

    before = signal.signal(signal.SIGALRM, alarm)
    try:
        calls = (
            lambda: net.forward(x, training=True),
            lambda: net.step(x, target, 0.1),
        )
        for call in calls:
            net.forward(short, training=True)
            # Again each second: Python loses an exception raised in a finaliser.
            signal.setitimer(signal.ITIMER_REAL, 0.15, 1.0)
            with pytest.raises(Late):
                again_and_again(call)
            signal.setitimer(signal.ITIMER_REAL, 0)
            with pytest.raises(RuntimeError, match="nothing to go back through"):
                net.backward(np.zeros((3000, 8, 128), np.float32))
            net.assign(params)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert bits(net, short, target, dy) == want


def test_every_address_lies_inside_an_array(cell, monkeypatch):
    rng, used = np.random.default_rng(4), set()
    for shape in [(1, 1, 1, 1, 1), (3, 4, 1, 3, 17), (2, 3, 5, 9, 40)]:
        params, x, target = example(shape, cell)
        tiles = Tiles(CELLS[cell], np.dtype(np.float32), shape[4])
        kernels = Interpreted(monkeypatch, tiles)
        net = NumbaWavefront(
            params, schedules=lambda graph: random_schedule(rng, graph)
        )
        compare_to_reference(net, params, x)
        net.step(x, target, 0.1)
        used |= kernels.used
        monkeypatch.undo()
    assert used >= {"inputs", "step", "back", "through_U", "gradient_W"}


def test_an_error_in_a_task_ends_the_call_and_the_network_lives(monkeypatch):
    params, x, _ = example((3, 6, 2, 3, 5), "lstm")
    net = NumbaWavefront(params, schedules=lambda graph: wavefront(graph, 3, 2))
    want, _ = net.forward(x)

    def fail(*_):
        raise ArithmeticError("planted")

    with monkeypatch.context() as patched:
        patched.setattr(flow.Flow, "run", fail)
        with pytest.raises(ArithmeticError, match="planted"):
            net.forward(x, training=True)
    with pytest.raises(RuntimeError, match="nothing to go back through"):
        net.backward(np.zeros_like(want))
    assert (net.forward(x)[0] == want).all()


def test_a_schedule_that_breaks_the_graph_is_refused():
    params, x, _ = example((2, 4, 1, 3, 5), "lstm")

    def race(graph):
        good = wavefront(graph, 2, 2)
        return Schedule(graph, tuple(task._replace(after=()) for task in good.tasks))

    with pytest.raises(ValueError, match="does not wait for task"):
        NumbaWavefront(params, schedules=race).forward(x)
    with pytest.raises(ValueError, match="chunk: got 9, want an integer from 1 to 4"):
        NumbaWavefront(params, schedules=lambda graph: wavefront(graph, 2, 9)).forward(
            x
        )
    other = Graph(2, 5)
    with pytest.raises(ValueError, match="schedules: got Graph"):
        NumbaWavefront(params, schedules=lambda graph: wavefront(other, 2, 2)).forward(
            x
        )


def test_the_schedules_that_are_tried_hold(cell):
    for shape in [
        (1, 1, 1, 1, 1),
        (1, 50, 1, 3, 16),
        (6, 2, 1, 3, 16),
        (2, 100, 9, 3, 16),
    ]:
        params, x, _ = example(shape, cell)
        for threads in (1, 2):
            net = lk.network("numba-wavefront", params, threads=threads)
            space = net._space(*x.shape[:2], "gradients")
            for division in net._divisions(*x.shape[:2]):
                for backward in (False, True):
                    graph = Graph(shape[0], shape[1], backward=backward)
                    found = net._schedule(graph, space, division)
                    check(found)
                    assert found.workers <= min(threads, shape[0])
