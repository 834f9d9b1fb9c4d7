"""`numba-wavefront`: any schedule gives the same bits, whatever the threads do
meanwhile.
"""

from itertools import pairwise, product

import numpy as np
import pytest
from conftest import SHAPES, ctrl_c_after, example

import lstm_kernels as lk
from lstm_kernels.cpu import flow, instructions, team, workspace
from lstm_kernels.kernels import native
from lstm_kernels.schedules import Graph, Schedule, Task, check, wavefront
from lstm_kernels.versions.numba_wavefront import NumbaWavefront

words = instructions.integers


def random_schedule(rng, graph, workers=5):
    """Chunks of any length on any worker, layer after layer; or a random wavefront."""
    if rng.random() < 0.5:
        sizes = (int(rng.integers(1, n + 1)) for n in (workers, graph.steps))
        together = int(rng.integers(1, graph.layers + 1))
        order = ("point-to-point", "barrier")[rng.integers(2)]
        return wavefront(graph, *sizes, together=together, order=order)
    chunks = []
    for layer in range(graph.layers):
        inner = rng.integers(1, graph.steps, 3) if graph.steps > 1 else ()
        cuts = sorted({0, *map(int, inner), graph.steps})
        chunks += [Task(layer, *ends) for ends in pairwise(cuts)]
    owner, tasks = {}, []
    for number, task in enumerate(sorted(chunks, key=graph.rank)):
        steps = range(task.start, task.stop)
        needs = {n for step in steps for n in graph.needs(task.layer, step)}
        after = tuple(sorted({owner[n] for n in needs if n in owner}))
        owner |= {(task.layer, step): number for step in steps}
        tasks.append(task._replace(worker=int(rng.integers(workers)), after=after))
    return Schedule(graph, tuple(tasks))


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
    for shape in [*SHAPES[1:4], (4, 9, 1, 20, 40), (5, 6, 40, 3, 33)]:
        params, x, target = example(shape, cell)
        dy = rng.standard_normal((*x.shape[:2], shape[4])).astype(np.float32)
        want = bits(lk.network("numba-fused", params), x, target, dy)
        for given in (None, random_schedule, random_schedule):
            schedules = given and (lambda graph: random_schedule(rng, graph))
            net = NumbaWavefront(params, schedules=schedules)
            assert bits(net, x, target, dy) == want, shape


def toy(task, _, address):
    """A task's value is a hash of the values it waits for, its time some spins."""
    at = words(address, 5)  # first, after, values, delays, how many tasks
    count = at[4]
    first, values = words(at[0], count + 1), words(at[2], count)
    after, delays = words(at[1], first[count]), words(at[3], count)
    for _ in range(delays[task]):
        instructions.pause()
    value = task + 1
    for e in range(first[task], first[task + 1]):
        value = (value ^ values[after[e]]) * 0x1E3779B97F4A7C15
        value ^= value >> 29
    values[task] = value
    return 0


def stopper(task, _, address):
    """Count the runs of a task, and tell all to leave after the fifth."""
    at = words(address, 2)  # counts, the word that tells
    instructions.add(at[0] + 8 * task, 1)
    if task == 5:
        instructions.exchange(at[1], 1)
    return 0


def toy_schedule(rng):
    """Up to 40 tasks, each after up to 4 earlier ones, of 1 to 6 workers."""
    count, workers = int(rng.integers(1, 41)), int(rng.integers(1, 7))
    tasks = []
    for i in range(count):
        after = {int(rng.integers(i)) for _ in range(rng.integers(5)) if i}
        worker = int(rng.integers(workers))
        tasks.append(Task(0, i, i + 1, worker=worker, after=tuple(sorted(after))))
    return Schedule(Graph(1, count), tuple(tasks))


def test_stress_random_graphs_random_delays():
    """Delays of up to 100 us in one task of ten, always the same values; threads that
    never come are not waited for: whoever waits long helps out.
    """
    rng, code = np.random.default_rng(1), native(toy, "test")
    for _ in range(40):
        schedule = toy_schedule(rng)
        running, count = flow.Flow(schedule), len(schedule.tasks)
        values, delays = np.zeros((2, count), np.int64)
        first, after = (running._arrays[name] for name in ("first", "after"))
        arrays = first, after, values, delays
        job = np.array([*map(workspace.at, arrays), count])
        for task in range(count):
            team.compiled(toy)(task, 0, workspace.at(job))
        want = values.copy()
        for participants in (1, *rng.integers(1, running.workers + 1, 9)):
            values[:] = 0
            delays[:] = rng.integers(0, 3000, count) * (rng.random(count) < 0.1)
            stop = np.zeros(1, np.int64)
            how = int(participants), code, workspace.at(job), stop, arrays
            running.run(*how)
            assert (values == want).all()
            spans = running.timeline().spans
            for span, task in zip(spans, schedule.tasks, strict=True):
                assert all(spans[a].stop <= span.start for a in task.after)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_is_told_to_leave_leaves_the_rest(workers):
    running = flow.Flow(wavefront(Graph(3, 40), workers, 1))
    counts, stop = np.zeros(120, np.int64), np.zeros(1, np.int64)
    job = np.array([workspace.at(counts), workspace.at(stop)])
    how = workers, native(stopper, "test"), workspace.at(job), stop, (job, counts)
    running.run(*how)
    team.team().drain()
    assert counts[5] == counts.max() == 1
    assert counts.sum() < len(counts)
    counts[:], stop[:] = 0, 1
    running.run(*how)
    assert not counts.any()


def test_an_interrupt_or_an_error_ends_a_flow_and_the_network_lives(monkeypatch):
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
    ends()
    with monkeypatch.context() as planted:
        planted.setattr(flow, "team", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            net.forward(short, training=True)
    ends()


def race(graph):
    good = wavefront(graph, 2, 2)
    return Schedule(graph, tuple(task._replace(after=()) for task in good.tasks))


@pytest.mark.parametrize(
    ("schedules", "error", "message"),
    [
        (3, TypeError, r"^schedules: got 3, want a function"),
        ((), TypeError, r"^schedules: got \(\), want a function"),
        (race, ValueError, "does not wait for task"),
        (lambda graph: wavefront(graph, 2, 9), ValueError, "chunk: got 9, want an"),
        (lambda _: wavefront(Graph(2, 5), 2, 2), ValueError, "schedules: got Graph"),
    ],
)
def test_a_schedule_that_cannot_be_run_is_refused(schedules, error, message):
    params, x, _ = example((2, 4, 7, 3, 5), "lstm")
    with pytest.raises(error, match=message):
        lk.network("numba-wavefront", params, schedules=schedules).forward(x)


def test_the_schedules_that_are_tried_hold():
    sizes = product([(1, 1), (1, 50), (6, 2)], (1, 2), (False, True))
    for (L, T), threads, backward in sizes:
        params = lk.Params.init(3, 16, num_layers=L)
        net = lk.network("numba-wavefront", params, threads=threads)
        for division in net._divisions(T, 1):
            found = net._schedule(Graph(L, T, backward=backward), None, division)
            check(found)
            assert found.workers <= min(threads, L)
