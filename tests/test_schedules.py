"""Schedules against the graph, the simulator against what can be counted."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lstm_kernels.schedules import (
    Costs,
    Graph,
    Schedule,
    Task,
    check,
    layer_by_layer,
    pipeline,
    side_by_side,
    wavefront,
)
from lstm_kernels.simulate import Span, Timeline, pipeline_bound, simulate

sizes = st.integers(1, 7)
graphs = st.builds(Graph, sizes, st.integers(1, 20), st.integers(1, 3), st.booleans())
orders = st.sampled_from(["point-to-point", "barrier"])
seconds = st.floats(0.01, 10)


@st.composite
def wavefronts(draw):
    graph = draw(graphs)
    return wavefront(
        graph,
        draw(sizes | st.just(10**6)),
        draw(st.integers(1, graph.steps)),
        together=draw(st.none() | sizes),
        order=draw(orders),
        costs=draw(
            st.none() | st.builds(Costs, st.just((1.0,) * graph.layers), *[seconds] * 2)
        ),
    )


def cells(tasks):
    return [(t.part, t.layer, step) for t in tasks for step in range(t.start, t.stop)]


def unit(graph):
    return Costs((1.0,) * graph.layers)


def test_a_cell_needs_its_input_and_its_state():
    assert Graph(4, 5).needs(0, 0) == []
    assert sorted(Graph(4, 5).needs(2, 3)) == [(1, 3), (2, 2)]
    assert sorted(Graph(4, 5, backward=True).needs(2, 3)) == [(2, 4), (3, 3)]
    assert Graph(4, 5, backward=True).needs(3, 4) == []


@settings(deadline=None)
@given(wavefronts())
def test_every_wavefront_respects_the_graph(schedule):
    check(schedule)
    graph = schedule.graph
    assert len(cells(schedule.tasks)) == (graph.layers * graph.steps * graph.parts)
    assert schedule.workers <= graph.layers * graph.parts


@settings(deadline=None)
@given(graphs, st.data())
def test_every_pipeline_has_stages_of_neighbours_as_large(graph, data):
    check(layer_by_layer(graph))
    workers = data.draw(st.integers(1, graph.layers))
    schedule = pipeline(graph, workers)
    check(schedule)
    stage = {(task.layer, task.worker) for task in schedule.tasks}
    stages = [worker for _, worker in sorted(stage)]
    assert len(stages) == graph.layers, "a layer stays with its worker"
    assert stages == sorted(stages, reverse=graph.backward)
    sizes = [stages.count(worker) for worker in range(workers)]
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None)
@given(wavefronts(), st.data())
def test_a_schedule_with_a_fault_is_refused(schedule, data):
    tasks = list(schedule.tasks)
    index = data.draw(st.integers(0, len(tasks) - 1))
    kind = data.draw(st.sampled_from(["lost", "twice", "forward", "longer"]))
    task = tasks[index]
    if kind == "lost":
        del tasks[index]
        for i, other in enumerate(tasks):
            after = (a - (a > index) for a in other.after if a != index)
            tasks[i] = other._replace(after=tuple(after))
    elif kind == "twice":
        tasks.append(task)
    elif kind == "forward":
        tasks[index] = task._replace(after=(index,))
    else:
        tasks[index] = task._replace(stop=task.stop + 1)
    with pytest.raises(ValueError, match="schedule: "):
        check(Schedule(schedule.graph, tuple(tasks)))


@settings(deadline=None)
@given(st.integers(2, 6), st.integers(2, 12), st.booleans(), st.data())
def test_waiting_for_too_little_is_a_race(layers, steps, backward, data):
    """Each layer on a worker of its own: every wait of a wavefront is needed."""
    graph = Graph(layers, steps, backward=backward)
    tasks = sorted(graph.tasks(1), key=lambda t: sum(graph.rank(t)))
    at = {(t.layer, t.start): i for i, t in enumerate(tasks)}
    for i, t in enumerate(tasks):
        below = (cell for cell in graph.needs(t.layer, t.start) if cell[0] != t.layer)
        tasks[i] = t._replace(worker=t.layer, after=tuple(at[cell] for cell in below))
    check(Schedule(graph, tuple(tasks)))
    index = data.draw(
        st.sampled_from([i for i, task in enumerate(tasks) if task.after])
    )
    tasks[index] = tasks[index]._replace(after=())
    with pytest.raises(ValueError, match="does not wait for task"):
        check(Schedule(graph, tuple(tasks)))


A, B = Task(0, 0, 4, worker=0), Task(1, 0, 4, worker=1, after=(0,))
FIRST, LATER = Task(0, 0, 2, worker=0), Task(0, 2, 4, worker=1)
AGAIN = LATER._replace(after=(0,), sweep=1)
ONE, TWO, SWEPT, DEEP = (
    Graph(1, 4),
    Graph(2, 4),
    Graph(1, 4, sweeps=2),
    Graph(2, 4, sweeps=2),
)


@pytest.mark.parametrize(
    ("graph", "tasks", "message"),
    [
        (TWO, (A, B), None),
        (TWO, (B, A), "waits for 0, want an earlier one"),
        (TWO, (Task(1, 0, 4), Task(0, 0, 4)), "comes later"),
        (TWO, (A, B._replace(after=())), r"cell \(1, 0\) needs \(0, 0\), and task 1"),
        (TWO, (A,), "got 4 cells, want the 8"),
        (TWO, (A, B, A), "computed twice"),
        (TWO, (Task(0, 2, 4), Task(0, 0, 2), B), r"\(0, 2\) needs \(0, 1\)"),
        (ONE, (Task(0, 4, 4),), "want at least one step"),
        (ONE, (A._replace(worker=-1),), "task 0 is on worker -1, want 0 to"),
        (ONE, (A._replace(worker=1024),), "task 0 is on worker 1024, want 0 to 1023"),
        (SWEPT, (FIRST, LATER, AGAIN), None),
        (SWEPT, (FIRST, LATER, AGAIN._replace(after=())), "does not wait for task 0"),
        (SWEPT, (FIRST, LATER), "in 1 sweeps, want 2, as it is not exact"),
        (SWEPT, (FIRST, LATER, AGAIN, AGAIN), "once more than it may be"),
        (
            DEEP,
            (FIRST, LATER, FIRST._replace(layer=1), LATER._replace(layer=1)),
            "which comes later",
        ),
    ],
)
def test_the_order_within_a_schedule_is_not_enough(graph, tasks, message):
    if message is None:
        check(Schedule(graph, tasks))
    else:
        with pytest.raises(ValueError, match=f"^schedule: .*{message}"):
            check(Schedule(graph, tasks))


@settings(deadline=None)
@given(wavefronts(), st.tuples(seconds, seconds))
def test_a_simulated_schedule_keeps_order_and_time(schedule, others):
    costs = Costs((1.0,) * schedule.graph.layers, *others)
    line = simulate(schedule, costs)
    spans, last = line.spans, {}
    for span, task in zip(spans, schedule.tasks, strict=True):
        assert span.worker == task.worker
        for other in task.after:
            wait = costs.hand * (schedule.tasks[other].worker != task.worker)
            assert span.start >= spans[other].stop + wait - 1e-9
        assert span.start >= last.get(task.worker, 0.0) - 1e-9
        last[task.worker] = span.stop
    assert line.makespan == pytest.approx(
        max(last.values()) - min(s.start for s in spans)
    )
    assert -1e-9 <= line.idle < 1


@settings(deadline=None)
@given(sizes, st.integers(1, 12), st.booleans())
def test_the_bounds_are_reached_with_workers_enough(layers, chunks, backward):
    for chunk in (1, 3):
        graph = Graph(layers, chunks * chunk, backward=backward)
        best = simulate(wavefront(graph, layers, chunk), unit(graph)).makespan
        assert best == pytest.approx(graph.steps + (layers - 1) * chunk)
    graph = Graph(layers, 5, chunks, backward)
    best = simulate(pipeline(graph, layers), unit(graph)).makespan
    assert layers * 5 * chunks / best == pytest.approx(pipeline_bound(chunks, layers))


@settings(deadline=None)
@given(wavefronts())
def test_no_schedule_beats_the_work_or_the_longest_path(schedule):
    graph = schedule.graph
    best = simulate(schedule, unit(graph)).makespan
    assert best >= graph.steps + graph.layers - 1 - 1e-9
    assert best >= graph.layers * graph.steps * graph.parts / schedule.workers - 1e-9


def test_costs_of_tasks_and_hand_overs():
    graph, costs = Graph(2, 4), Costs((1.0, 2.0), task=0.5, hand=0.25)
    assert simulate(layer_by_layer(graph), costs).makespan == 4 + 8 + 2 * 0.5
    two = simulate(wavefront(graph, 2, 2), costs).makespan
    assert two == 2 + 0.5 + 0.25 + 2 * (4 + 0.5)


def test_a_task_that_waits_for_one_of_its_own_worker_pays_no_hand_over():
    """By hand: steps of a second, of which every wait is written down."""
    cells = [(0, 0, ()), (0, 1, (0,)), (1, 0, (0,)), (1, 1, (1, 2))]
    graph, costs = Graph(2, 2), Costs((1.0, 1.0), hand=0.25)

    def plan(workers):
        every = zip(cells, workers, strict=True)
        tasks = [Task(l, t, t + 1, worker=w, after=after) for (l, t, after), w in every]
        check(schedule := Schedule(graph, tuple(tasks)))
        return simulate(schedule, costs)

    assert plan([0, 0, 0, 0]).makespan == 4
    alone = plan([0, 0, 1, 1])  # (1, 0) waits for (0, 0), (1, 1) for (0, 1) and (1, 0)
    assert [span.start for span in alone.spans] == [0, 1, 1.25, 2.25]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wavefront(TWO, 0), "workers: got 0, want an integer of at"),
        (lambda: wavefront(TWO, 2, 5), "chunk: got 5, want an integer from 1"),
        (lambda: wavefront(TWO, 2, together=0), "together: got 0"),
        (lambda: wavefront(TWO, 2, order="luck"), "order: got 'luck', want one"),
        (lambda: wavefront(TWO, 2, costs=Costs((1.0,))), "costs: got 1 layers"),
        (lambda: wavefront(TWO, 2, costs=3), "costs: got int, want Costs"),
        (lambda: pipeline(TWO, 0), "workers: got 0"),
        (lambda: pipeline(TWO, 3), "workers: got 3, want an integer from 1 to 2"),
        (lambda: Graph(0, 4), "layers: got 0"),
        (lambda: Costs((1.0, -1.0)), r"step\[1\]: got -1.0, want a finite number"),
        (lambda: Costs((1.0, "a")), r"step\[1\]: got str, want a finite number"),
        (lambda: Costs((1.0,), hand=math.nan), "hand: got nan, want a finite number"),
        (lambda: Costs((1.0,), task=-1e-9), "task: got -1e-09, want a finite number"),
        (lambda: Costs(i for i in (1.0, 2.0)), "step: got generator, want a tuple"),
        (lambda: simulate(Schedule(TWO, ()), unit(ONE)), "costs: got 1"),
        (lambda: simulate(None, 3), "schedule: got NoneType, want a Schedule"),
        (lambda: check([]), "schedule: got list, want a Schedule"),
        (lambda: layer_by_layer(None), "graph: got NoneType, want a Graph"),
        (lambda: pipeline_bound(2, -1), "workers: got -1, want an integer"),
        (lambda: pipeline_bound("2", 1), "micro_batches: got '2', want an integer"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        call()


@pytest.mark.parametrize("second", [1, 3])
def test_idle_is_the_share_of_the_workers_that_have_a_task(second):
    """Four cells in three rounds on two workers: two of six places are empty."""
    cells = [(0, 0, 0, ()), (0, 1, 0, ()), (1, 0, second, (0,)), (1, 1, second, (1, 2))]
    tasks = tuple(
        Task(l, t, t + 1, worker=worker, after=after) for l, t, worker, after in cells
    )
    plan = Schedule(Graph(2, 2), tasks)
    check(plan)
    assert (plan.employed, plan.workers) == (2, second + 1)
    assert simulate(plan, unit(plan.graph)).makespan == 3
    assert simulate(plan, unit(plan.graph)).idle == pytest.approx(1 / 3)


@pytest.mark.parametrize("together", [1, 2, 4])
def test_layers_that_are_not_together_wait(together):
    layers = [task.layer for task in wavefront(Graph(4, 6), 1, together=together).tasks]
    size = 6 * together
    found = [set(layers[i : i + size]) for i in range(0, len(layers), size)]
    assert found == [set(range(i, i + together)) for i in range(0, 4, together)]
    assert layers == sorted(layers) or together > 1


def test_a_barrier_waits_for_everyones_last_task():
    """Diagonals of 1, 2, 3, 2, 1 tasks; what a worker's own order gives is not waited
    for.
    """
    waits = [task.after for task in wavefront(Graph(3, 3), 3, order="barrier").tasks]
    assert waits == [(), (), (0,), (2,), (1,), (1, 2), (3, 5), (3, 4), (6,)]


def test_a_timeline_starts_with_its_first_task():
    plan = layer_by_layer(Graph(2, 1))
    line = Timeline(plan, (Span(0, 0, 5.0, 6.0), Span(1, 0, 6.0, 8.0)))
    assert (line.makespan, line.idle) == (3.0, 0.0)


@settings(deadline=None)
@given(sizes, st.integers(1, 20), sizes, st.data())
def test_sweeps_over_chunks_respect_the_graph(layers, steps, workers, data):
    chunk = data.draw(st.integers(1, steps))
    graph = Graph(layers, steps, 1, data.draw(st.booleans()), data.draw(sizes))
    schedule = side_by_side(graph, workers, chunk)
    check(schedule)
    chunks = -(-steps // chunk)
    each = sum(min(k + 1, graph.sweeps) for k in range(chunks))
    assert len(schedule.tasks) == layers * each


def test_sweeps_end_in_fewer_rounds_than_steps():
    """By hand: eight chunks of ten steps, two sweeps, eight workers: two rounds of ten,
    and one for the layer above to follow.
    """
    one, two = (Graph(layers, 80, sweeps=2) for layers in (1, 2))
    assert simulate(side_by_side(one, 8, 10), unit(one)).makespan == 20
    assert 30 <= simulate(side_by_side(two, 8, 10), unit(two)).makespan <= 40
    alone = simulate(side_by_side(one, 1, 10), unit(one))
    assert alone.makespan == 10 * (8 + 7)  # the first chunk is exact at once
