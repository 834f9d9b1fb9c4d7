"""Schedules against the graph, the simulator against what can be counted. What a pass
is, which cell needs which and what a worker does at once, is said here anew.
"""

from collections import Counter
from itertools import combinations, pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lstm_kernels.schedules import (
    Costs,
    Graph,
    Schedule,
    Task,
    by_samples,
    by_units,
    check,
    fill_and_drain,
    for_fewer,
    layer_by_layer,
    timed,
    waits_for,
    wavefront,
)
from lstm_kernels.simulate import Span, Timeline, pipeline_bound, simulate

sizes, few = st.integers(1, 7), st.integers(1, 4)
graphs = st.builds(Graph, sizes, st.integers(1, 20), st.booleans(), few, few)
small = st.builds(Graph, few, st.integers(1, 6), st.booleans(), few, few)
workers = sizes | st.just(10**6)
seconds = st.floats(0.01, 10)


@st.composite
def wavefronts(draw, graphs=graphs):
    graph = draw(graphs)
    costs = st.builds(Costs, st.just((1.0,) * graph.layers), *[seconds] * 2)
    options = {"together": draw(st.none() | sizes), "costs": draw(st.none() | costs)}
    chunk = draw(st.integers(1, graph.steps))
    return wavefront(graph, draw(workers), chunk, **options)


def drawn_cuts(draw, count, most):
    """Bounds of up to `most` parts of 0, ..., count-1."""
    inner = draw(st.sets(st.integers(1, max(1, count - 1)), max_size=most - 1))
    return [*pairwise(sorted({0, count} | {n for n in inner if n < count}))]


@st.composite
def boxes(draw, graphs=small):
    """Any division: each layer in chunks of any length, each chunk in parts of its
    blocks on workers of their own; layer after layer, so that nobody waits in a circle.
    """
    graph = draw(graphs)
    groups, tasks = drawn_cuts(draw, graph.samples, 3), []
    for layer in range(graph.layers):
        for start, stop in drawn_cuts(draw, graph.steps, 4):
            for group in groups:
                blocks = drawn_cuts(draw, graph.blocks, 3)
                some = draw(st.permutations(range(5)))
                for worker, part in zip(some, blocks, strict=False):
                    task = Task(layer, start, stop, worker, part, group)
                    tasks.append(task)
    return Schedule(graph, tuple(sorted(tasks, key=graph.rank)))


schedules = (
    wavefronts()
    | boxes()
    | st.builds(layer_by_layer, small)
    | st.builds(by_units, small, workers)
    | st.builds(by_samples, small, workers)
    | st.builds(fill_and_drain, few, workers, few)
)


def unit(graph):
    return Costs((1.0,) * graph.layers)


def cells_of(schedule):
    """What the workers do at once, in the order of the tasks: pairs of a task and the
    cells (layer, step, block, sample), all of a task or a step of it, where it has not
    all blocks.
    """
    graph, pairs = schedule.graph, []
    for task in schedule.tasks:
        blocks = range(*(task.blocks or (0, graph.blocks)))
        samples = range(*(task.samples or (0, graph.samples)))
        steps = range(task.start, task.stop)[:: -1 if graph.backward else 1]
        at_once = [steps] if len(blocks) >= graph.blocks else [[t] for t in steps]
        for some in at_once:
            pairs.append((task, [*product([task.layer], some, blocks, samples)]))
    return pairs


def needed(graph, cell):
    """The cells that one needs: its state and its input have all units of a sample."""
    layer, step, _, sample = cell
    way = 1 if graph.backward else -1
    for l, t in ((layer, step + way), (layer + way, step)):
        if 0 <= l < graph.layers and 0 <= t < graph.steps:
            yield from ((l, t, block, sample) for block in range(graph.blocks))


def every_cell(graph):
    return {
        *product(*map(range, (graph.layers, graph.steps, graph.blocks, graph.samples)))
    }


def runs_to_its_end(schedule):
    """Whether no worker waits for ever: a worker begins with what is next when all is
    done that the cells of it need, and of a task's other steps what they need of the
    layer below.
    """
    graph, done, lists, whole = schedule.graph, set(), {}, {}
    for task, cells in cells_of(schedule):
        lists.setdefault(task.worker, []).append((task, cells))
        whole.setdefault(task, set()).update(cells)
    moved = True
    while moved:
        moved = False
        for left in lists.values():
            if left:
                task, cells = left[0]
                own = {n for cell in cells for n in needed(graph, cell)}
                other = {n for cell in whole[task] for n in needed(graph, cell)}
                own |= {n for n in other if n[0] != task.layer}
                if own - set(cells) <= done:
                    done |= set(cells)
                    left.pop(0)
                    moved = True
    return not any(lists.values())


def is_whole(schedule):
    """Whether it has every cell of its graph once, and no task that is empty, and
    samples in groups that share none.
    """
    graph, pairs = schedule.graph, cells_of(schedule)
    if Counter(cell for _, cells in pairs for cell in cells) != Counter(
        every_cell(graph)
    ):
        return False
    filled = {task for task, cells in pairs if cells} == {*schedule.tasks}
    groups = {task.samples or (0, graph.samples) for task in schedule.tasks}
    return filled and all(a[1] <= b[0] for a, b in combinations(sorted(groups), 2))


@given(schedules, st.tuples(seconds, seconds))
def test_every_schedule_respects_the_graph_and_its_simulation_the_waits(
    schedule, others
):
    check(schedule)
    graph, costs = schedule.graph, Costs((1.0,) * schedule.graph.layers, *others)
    line, last, when = simulate(schedule, costs), {}, {}
    for span, (task, cells) in zip(line.spans, cells_of(schedule), strict=True):
        assert span.worker == task.worker
        assert schedule.tasks[span.task] == task
        assert span.start >= last.get(task.worker, 0.0) - 1e-9
        last[task.worker] = span.stop
        assert not when.keys() & set(cells)
        when.update(dict.fromkeys(cells, span))
    assert when.keys() == every_cell(graph)
    for cell, span in when.items():
        for other in (when[need] for need in needed(graph, cell)):
            wait = costs.hand * (other.worker != span.worker)
            assert other is span or span.start >= other.stop + wait - 1e-9
    first = min(span.start for span in line.spans)
    assert line.makespan == pytest.approx(max(last.values()) - first)
    assert -1e-9 <= line.idle < 1


@given(schedules, st.data())
def test_a_schedule_with_a_fault_is_refused(schedule, data):
    """Two tasks of one worker change places, one goes, comes twice or without steps,
    or a bound moves: the check says what counting and trying say.
    """
    graph, tasks = schedule.graph, list(schedule.tasks)
    i = data.draw(st.integers(0, len(tasks) - 1))
    how = data.draw(st.sampled_from(["swap", "swap", "drop", "twice", "empty", "move"]))
    if how == "swap":
        same = [k for k, task in enumerate(tasks) if task.worker == tasks[i].worker]
        j = data.draw(st.sampled_from(same))
        tasks[i], tasks[j] = tasks[j], tasks[i]
    elif how == "empty":
        tasks.insert(i, tasks[i]._replace(stop=tasks[i].start))
    elif how == "move":
        name = data.draw(
            st.sampled_from(["layer", "start", "stop", "blocks", "samples"])
        )
        old, by = getattr(tasks[i], name), data.draw(st.sampled_from([-1, 1]))
        if name in ("blocks", "samples"):
            first, last = old or (0, getattr(graph, name))
            new = data.draw(st.sampled_from([(first + by, last), (first, last + by)]))
        else:
            new = old + by
        tasks[i] = tasks[i]._replace(**{name: new})
    else:
        tasks[i : i + 1] = tasks[i : i + 1] * (2 if how == "twice" else 0)
    changed = Schedule(graph, tuple(tasks))
    if is_whole(changed) and runs_to_its_end(changed):
        check(changed)
    else:
        with pytest.raises(ValueError, match=r"^schedule: .*(, want|is never done)"):
            check(changed)


A, B = Task(0, 0, 4, worker=0), Task(1, 0, 4, worker=1)
ONE, TWO = Graph(1, 4), Graph(2, 4)
WIDE = Graph(1, 4, blocks=3, samples=4)


@pytest.mark.parametrize(
    ("graph", "tasks", "message"),
    [
        (ONE, (Task(0, 2, 4), Task(0, 0, 2)), "task 0 on worker 0 waits for what is"),
        (TWO, (A,), r"cell \(1, 0\) is computed never"),
        (TWO, (), r"cell \(0, 0\) is computed never"),
        (TWO, (A, B._replace(stop=5)), r"task 1 is Task\(.*, want a box inside"),
        (TWO, (A, B, A), r"cell \(0, 0\) is computed twice"),
        (ONE, (A._replace(worker=-1),), "task 0 is on worker -1, want 0 to"),
        (ONE, (A._replace(worker=1024),), "task 0 is on worker 1024, want 0 to 1023"),
        (
            WIDE,
            (A._replace(samples=(0, 3)), A._replace(samples=(2, 4), worker=1)),
            r"got tasks of samples \(0, 3\) and of \(2, 4\), want groups",
        ),
        *(
            (ONE, (A._replace(**{name: wrong}),), "task 0 is .*, want integers, and")
            for name, wrong in (
                ("worker", 1.0),
                ("layer", False),
                ("blocks", (0, 1, 1)),
                ("blocks", [0, 1]),
                ("samples", (0, 1.0)),
            )
        ),
    ],
)
def test_what_is_wrong_with_a_schedule_is_said(graph, tasks, message):
    with pytest.raises((TypeError, ValueError), match=f"^schedule: .*{message}"):
        check(Schedule(graph, tasks))


@given(wavefronts())
def test_a_wavefront_takes_no_less_than_its_longest_path(schedule):
    graph = schedule.graph
    assert schedule.workers <= graph.layers
    work = graph.layers * graph.steps
    assert sum(task.stop - task.start for task in schedule.tasks) == work
    least = simulate(schedule, unit(graph)).makespan + 1e-9
    assert least >= max(graph.steps + graph.layers - 1, work / schedule.workers)


@given(graphs, st.data())
def test_one_worker_takes_a_wavefront_by_its_diagonals(graph, data):
    chunk = data.draw(st.integers(1, graph.steps))
    chunks, diagonals = Counter(), []
    for task in wavefront(graph, 1, chunk).tasks:
        layer = graph.layers - 1 - task.layer if graph.backward else task.layer
        diagonals.append(layer + chunks[layer])
        chunks[layer] += 1
    assert diagonals == sorted(diagonals)


@given(sizes, st.integers(1, 12), st.sampled_from([1, 3]), st.booleans(), sizes)
def test_bounds_are_reached_with_workers_enough(layers, chunks, chunk, backward, fewer):
    graph = Graph(layers, chunks * chunk, backward)
    best = simulate(wavefront(graph, layers, chunk), unit(graph)).makespan
    assert best == pytest.approx(graph.steps + (layers - 1) * chunk)
    # A micro-batch goes through a pipeline as a step goes through layers.
    pipeline = fill_and_drain(layers, max(layers, fewer), chunks)
    took = simulate(pipeline, unit(pipeline.graph)).makespan
    bound = pipeline_bound(chunks, layers)
    assert 2 * chunks * layers / took == pytest.approx(bound)
    # Of more stages than workers a worker has several, all forward before one back.
    for worker in range(fewer):
        tasks = fill_and_drain(layers, fewer, chunks).tasks
        own = [task.layer for task in tasks if task.worker == worker]
        assert {min(l, 2 * layers - 1 - l) % fewer for l in own} <= {worker}
        assert [l >= layers for l in own] == sorted(l >= layers for l in own)


def test_costs_of_tasks_and_hand_overs():
    graph, costs = Graph(2, 4), Costs((1.0, 2.0), task=0.5, hand=0.25)
    assert simulate(layer_by_layer(graph), costs).makespan == 4 + 8 + 2 * 0.5
    two = simulate(wavefront(graph, 2, 2), costs).makespan
    assert two == 2 + 0.5 + 0.25 + 2 * (4 + 0.5)
    for hand, workers in (0, 2), (10, 1):  # what costs too much is not handed over
        plan = wavefront(Graph(2, 2), 2, costs=Costs((1.0, 1.0), hand=hand))
        assert plan.employed == workers


@pytest.mark.parametrize(
    ("worker", "hand", "starts", "last", "idle"),
    [
        # Who waits for its own worker pays nothing
        (0, 0.25, [0, 1, 2, 3], [None] * 4, 0),
        (1, 0.25, [0, 1, 1.25, 2.25], [None, None, 0, None], 1 - 4 / 6.5),
        # Two of six places are empty; workers without a task are not idle
        (3, 0, [0, 1, 1, 2], [None, None, 0, None], 1 / 3),
    ],
)
def test_four_cells_by_hand(worker, hand, starts, last, idle):
    cells = [(0, 0, 0), (0, 1, 0), (1, 0, worker), (1, 1, worker)]
    tasks = tuple(Task(l, t, t + 1, where) for l, t, where in cells)
    plan = Schedule(Graph(2, 2), tasks)
    assert waits_for(plan) == ((), (0,), (0,), (1, 2))
    line = simulate(plan, Costs((1.0, 1.0), hand=hand))
    assert [span.start for span in line.spans] == starts
    assert line.makespan == starts[-1] + 1
    assert line.idle == pytest.approx(idle)
    assert plan.workers == worker + 1
    late = timed(plan, lambda task, part: 1.0, hand)
    assert [where for *_, where in late] == last


@pytest.mark.parametrize("backward", [False, True])
def test_a_shared_step_by_hand(backward):
    """Two workers, a block of each step each, of one second and of two; a hand-over of
    half a second. Worker 0 waits for worker 1 in every step, worker 1 for nobody. Of
    the second layer each begins when all of the first is there.
    """
    plan = by_units(Graph(2, 2, backward, blocks=2), 2)
    result = timed(plan, lambda task, part: (1.0, 2.0)[task.worker], 0.5)
    layers = steps = [1, 0] if backward else [0, 1]
    got = [(plan.tasks[p.task][0], p.start, p.stop - p.start) for p, *_ in result]
    assert got == [(l, t, 1) for l in layers for _ in range(2) for t in steps]
    assert [plan.tasks[p.task].worker for p, *_ in result] == [0, 0, 1, 1] * 2
    starts = [0, 2.5, 0, 2, 4.5, 6.5, 4, 6]
    assert [start for _, start, *_ in result] == starts
    stops = [1, 3.5, 2, 4, 5.5, 7.5, 6, 8]
    assert [stop for _, _, stop, _ in result] == stops
    # Of worker 0: step 1 for step 0 of the other, then for its step 1, then its step 0
    assert [last for *_, last in result] == [None, 2, None, None, 3, 6, None, None]


@given(graphs, workers, st.data())
def test_samples_and_units_are_shared_evenly(graph, workers, data):
    whole = [n for n in range(1, graph.samples + 1) if graph.samples % n == 0]
    together = data.draw(st.sampled_from(whole))
    of_samples, of_units = (
        by_samples(graph, workers, together),
        by_units(graph, workers),
    )
    employed = min(workers, graph.samples // together)
    assert of_samples.employed == of_samples.workers == employed
    shares = {(task.worker, task.samples) for task in of_samples.tasks}
    counts = [last - first for _, (first, last) in shares]
    assert len(counts) == employed
    assert sum(counts) == graph.samples
    assert all(count % together == 0 for count in counts)
    assert max(counts) - min(counts) <= together
    if graph.blocks < workers:
        assert of_units == by_samples(graph, workers)
    else:
        assert of_units.employed == workers
        shares = {(task.worker, task.blocks) for task in of_units.tasks}
        counts = [last - first for _, (first, last) in shares]
        assert max(counts) - min(counts) <= 1
    for task in of_samples.tasks + of_units.tasks:  # whole layers
        assert (task.start, task.stop) == (0, graph.steps)


@given(schedules, sizes)
def test_fewer_workers_do_the_same(schedule, workers):
    tasks = (task._replace(worker=3 * task.worker + 1) for task in schedule.tasks)
    schedule = Schedule(schedule.graph, tuple(tasks))
    less = for_fewer(schedule, workers)
    check(less)
    assert less.workers <= workers
    assert less.graph == schedule.graph
    # The same things at once, but some on another worker
    every = [sorted(cells for _, cells in cells_of(plan)) for plan in (schedule, less)]
    assert every[0] == every[1]
    some = {task.worker for task in schedule.tasks}
    assert {task.worker for task in less.tasks} == {worker % workers for worker in some}


@pytest.mark.parametrize("together", [1, 2, 4])
def test_layers_that_are_not_together_wait(together):
    layers = [task.layer for task in wavefront(Graph(4, 6), 1, together=together).tasks]
    size = 6 * together
    groups = [set(layers[i : i + size]) for i in range(0, len(layers), size)]
    assert groups == [set(range(i, i + together)) for i in range(0, 4, together)]
    assert layers == sorted(layers) or together > 1


def test_a_timeline_starts_with_its_first_task():
    plan = layer_by_layer(Graph(2, 1))
    line = Timeline(plan, (Span(0, 0, 5.0, 6.0), Span(1, 0, 6.0, 8.0)))
    assert (line.makespan, line.idle) == (3.0, 0.0)
