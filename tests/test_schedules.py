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
    wavefront,
)
from lstm_kernels.simulate import Span, Timeline, pipeline_bound, simulate

sizes = st.integers(1, 7)
graphs = st.builds(Graph, sizes, st.integers(1, 20), st.booleans())
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


def unit(graph):
    return Costs((1.0,) * graph.layers)


def test_a_cell_needs_its_input_and_its_state():
    assert Graph(4, 5).needs(0, 0) == []
    assert sorted(Graph(4, 5).needs(2, 3)) == [(1, 3), (2, 2)]
    assert sorted(Graph(4, 5, backward=True).needs(2, 3)) == [(2, 4), (3, 3)]
    assert Graph(4, 5, backward=True).needs(3, 4) == []


@settings(deadline=None)
@given(wavefronts(), st.tuples(seconds, seconds))
def test_every_wavefront_respects_the_graph_and_its_simulation_the_waits(
    schedule, others
):
    graph = schedule.graph
    check(schedule)
    check(layer_by_layer(graph))
    assert schedule.workers <= graph.layers
    work = graph.layers * graph.steps
    assert sum(task.stop - task.start for task in schedule.tasks) == work
    least = simulate(schedule, unit(graph)).makespan + 1e-9
    assert least >= max(graph.steps + graph.layers - 1, work / schedule.workers)
    costs = Costs((1.0,) * graph.layers, *others)
    line, last = simulate(schedule, costs), {}
    for span, task in zip(line.spans, schedule.tasks, strict=True):
        assert span.worker == task.worker
        for other in task.after:
            wait = costs.hand * (schedule.tasks[other].worker != task.worker)
            assert span.start >= line.spans[other].stop + wait - 1e-9
        assert span.start >= last.get(task.worker, 0.0) - 1e-9
        last[task.worker] = span.stop
    first = min(span.start for span in line.spans)
    assert line.makespan == pytest.approx(max(last.values()) - first)
    assert -1e-9 <= line.idle < 1


@settings(deadline=None)
@given(st.integers(2, 6), st.integers(2, 12), st.booleans(), st.data())
def test_waiting_for_too_little_is_a_race(layers, steps, backward, data):
    """Each layer on a worker of its own: every wait of a wavefront is needed."""
    graph = Graph(layers, steps, backward)
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
ONE, TWO = Graph(1, 4), Graph(2, 4)


@pytest.mark.parametrize(
    ("graph", "tasks", "message"),
    [
        (TWO, (B, A), "waits for 0, want an earlier one"),
        (TWO, (A, B._replace(after=(1,))), "task 1 waits for 1, want an earlier"),
        (TWO, (Task(1, 0, 4), Task(0, 0, 4)), "comes later"),
        (TWO, (A, B._replace(after=())), r"cell \(1, 0\) needs \(0, 0\), and task 1"),
        (TWO, (A,), "got 4 cells, want the 8"),
        (TWO, (A, B._replace(stop=5)), "got 9 cells, want the 8"),
        (ONE, (A._replace(stop=5),), "got 5 cells, want the 4"),
        (TWO, (A, B, A), "computed twice"),
        (TWO, (Task(0, 2, 4), Task(0, 0, 2), B), r"\(0, 2\) needs \(0, 1\)"),
        (ONE, (Task(0, 4, 4),), "want at least one step"),
        (ONE, (A._replace(worker=-1),), "task 0 is on worker -1, want 0 to"),
        (ONE, (A._replace(worker=1024),), "task 0 is on worker 1024, want 0 to 1023"),
    ],
)
def test_the_order_within_a_schedule_is_not_enough(graph, tasks, message):
    check(Schedule(TWO, (A, B)))
    with pytest.raises(ValueError, match=f"^schedule: .*{message}"):
        check(Schedule(graph, tasks))


@settings(deadline=None)
@given(sizes, st.integers(1, 12), st.sampled_from([1, 3]), st.booleans())
def test_the_bound_is_reached_with_workers_enough(layers, chunks, chunk, backward):
    graph = Graph(layers, chunks * chunk, backward)
    best = simulate(wavefront(graph, layers, chunk), unit(graph)).makespan
    assert best == pytest.approx(graph.steps + (layers - 1) * chunk)
    # A micro-batch goes through a pipeline as a step goes through layers.
    plan = wavefront(Graph(layers, chunks), layers)
    best = simulate(plan, unit(plan.graph)).makespan
    assert layers * chunks / best == pytest.approx(pipeline_bound(chunks, layers))


def test_costs_of_tasks_and_hand_overs():
    graph, costs = Graph(2, 4), Costs((1.0, 2.0), task=0.5, hand=0.25)
    assert simulate(layer_by_layer(graph), costs).makespan == 4 + 8 + 2 * 0.5
    two = simulate(wavefront(graph, 2, 2), costs).makespan
    assert two == 2 + 0.5 + 0.25 + 2 * (4 + 0.5)
    for hand, workers in (0, 2), (10, 1):  # what costs too much is not handed over
        plan = wavefront(Graph(2, 2), 2, costs=Costs((1.0, 1.0), hand=hand))
        assert plan.employed == workers


@pytest.mark.parametrize(
    ("worker", "hand", "starts", "idle"),
    [
        (0, 0.25, [0, 1, 2, 3], 0),  # who waits for its own worker pays nothing
        (1, 0.25, [0, 1, 1.25, 2.25], 1 - 4 / 6.5),
        (1, 0, [0, 1, 1, 2], 1 / 3),  # two of six places are empty
        (3, 0, [0, 1, 1, 2], 1 / 3),  # workers without a task are not idle
    ],
)
def test_four_cells_by_hand(worker, hand, starts, idle):
    cells = [(0, 0, 0, ()), (0, 1, 0, (0,)), (1, 0, worker, (0,))]
    cells.append((1, 1, worker, (1, 2)))
    tasks = tuple(Task(l, t, t + 1, where, after) for l, t, where, after in cells)
    plan = Schedule(Graph(2, 2), tasks)
    check(plan)
    line = simulate(plan, Costs((1.0, 1.0), hand=hand))
    assert [span.start for span in line.spans] == starts
    assert line.makespan == starts[-1] + 1
    assert line.idle == pytest.approx(idle)
    assert plan.workers == worker + 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wavefront(TWO, 0), "workers: got 0, want an integer of at"),
        (lambda: wavefront(TWO, 2, 5), "chunk: got 5, want an integer from 1"),
        (lambda: wavefront(TWO, 2, together=0), "together: got 0"),
        (lambda: wavefront(TWO, 2, order="luck"), "order: got 'luck', want one"),
        (lambda: wavefront(TWO, 2, costs=Costs((1.0,))), "costs: got 1 layers"),
        (lambda: wavefront(TWO, 2, costs=3), "costs: got int, want Costs"),
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
