"""Schedules against the graph, the simulator against what can be counted. What a pass
is, which cell needs which and what a worker does at once, is said here anew.
"""

import math
from functools import partial
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
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
    return wavefront(
        graph,
        draw(workers),
        draw(st.integers(1, graph.steps)),
        together=draw(st.none() | sizes),
        costs=draw(
            st.none() | st.builds(Costs, st.just((1.0,) * graph.layers), *[seconds] * 2)
        ),
    )


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
)


def unit(graph):
    return Costs((1.0,) * graph.layers)


def steps_of(graph, start, stop):
    steps = range(start, stop)
    return steps[::-1] if graph.backward else steps


def cells_of(schedule):
    """What the workers do at once, in the order of the tasks: pairs of a task and the
    cells (layer, step, block, sample), all of a task or a step of it, where it has not
    all blocks.
    """
    graph, found = schedule.graph, []
    for task in schedule.tasks:
        blocks = range(*(task.blocks or (0, graph.blocks)))
        samples = range(*(task.samples or (0, graph.samples)))
        at_once = [steps_of(graph, task.start, task.stop)]
        if len(blocks) < graph.blocks:
            at_once = [[step] for step in at_once[0]]
        for steps in at_once:
            found.append((task, [*product([task.layer], steps, blocks, samples)]))
    return found


def needed(graph, cell):
    """The cells that one needs: its state and its input have all units of a sample."""
    layer, step, _, sample = cell
    way = 1 if graph.backward else -1
    for l, t in ((layer, step + way), (layer + way, step)):
        if 0 <= l < graph.layers and 0 <= t < graph.steps:
            yield from ((l, t, block, sample) for block in range(graph.blocks))


def runs_to_its_end(schedule):
    """Whether no worker waits for ever: a worker begins with what is next when all is
    done that the cells of it need, and of a task's other steps what they need of the
    layer below.
    """
    graph, done, lists = schedule.graph, set(), {}
    whole = {}
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


def test_a_cell_needs_its_input_and_its_state():
    assert Graph(4, 5).needs(0, 0) == []
    assert sorted(Graph(4, 5).needs(2, 3)) == [(1, 3), (2, 2)]
    assert sorted(Graph(4, 5, backward=True).needs(2, 3)) == [(2, 4), (3, 3)]
    assert Graph(4, 5, backward=True).needs(3, 4) == []


@settings(deadline=None)
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
    sizes = graph.layers, graph.steps, graph.blocks, graph.samples
    assert when.keys() == set(product(*map(range, sizes)))
    for cell, span in when.items():
        for other in (when[need] for need in needed(graph, cell)):
            wait = costs.hand * (other.worker != span.worker)
            assert other is span or span.start >= other.stop + wait - 1e-9
    first = min(span.start for span in line.spans)
    assert line.makespan == pytest.approx(max(last.values()) - first)
    assert -1e-9 <= line.idle < 1


@settings(deadline=None)
@given(wavefronts())
def test_a_wavefront_takes_no_less_than_its_longest_path(schedule):
    graph = schedule.graph
    assert schedule.workers <= graph.layers
    work = graph.layers * graph.steps
    assert sum(task.stop - task.start for task in schedule.tasks) == work
    least = simulate(schedule, unit(graph)).makespan + 1e-9
    assert least >= max(graph.steps + graph.layers - 1, work / schedule.workers)


@settings(deadline=None)
@given(schedules, st.data())
def test_who_waits_in_a_circle_is_caught(schedule, data):
    """Two tasks of one worker change places: the check says what trying says."""
    tasks = list(schedule.tasks)
    i = data.draw(st.integers(0, len(tasks) - 1))
    same = [k for k, task in enumerate(tasks) if task.worker == tasks[i].worker]
    j = data.draw(st.sampled_from(same))
    tasks[i], tasks[j] = tasks[j], tasks[i]
    changed = Schedule(schedule.graph, tuple(tasks))
    if runs_to_its_end(changed):
        check(changed)
    else:
        with pytest.raises(ValueError, match="waits for what is never done"):
            check(changed)


def test_two_workers_that_wait_for_each_other():
    ahead = [Task(l, 0, 2, worker=l % 2) for l in range(4)]
    check(Schedule(Graph(4, 2), tuple(ahead)))
    crossed = tuple(ahead[k] for k in (2, 1, 0, 3))
    with pytest.raises(ValueError, match="task 0 on worker 0 waits for what is never"):
        check(Schedule(Graph(4, 2), crossed))


A, B = Task(0, 0, 4, worker=0), Task(1, 0, 4, worker=1)
ONE, TWO = Graph(1, 4), Graph(2, 4)
WIDE = Graph(1, 4, blocks=3, samples=4)


@pytest.mark.parametrize(
    ("graph", "tasks", "message"),
    [
        (TWO, (Task(1, 0, 4), Task(0, 0, 4)), "task 0 on worker 0 waits for what is"),
        (ONE, (Task(0, 2, 4), Task(0, 0, 2)), "task 0 on worker 0 waits for what is"),
        (TWO, (A,), r"cell \(1, 0\) is computed never"),
        (TWO, (), r"cell \(0, 0\) is computed never"),
        (TWO, (A, B._replace(stop=3)), r"cell \(1, 3\) is computed never"),
        (TWO, (A, B._replace(stop=5)), r"task 1 is Task\(.*, want a box inside"),
        (TWO, (A, B._replace(layer=2)), "task 1 is .*, want a box inside"),
        (TWO, (A._replace(start=-1), B), "task 0 is .*, want a box inside"),
        (TWO, (A, B, A), r"cell \(0, 0\) is computed twice"),
        (ONE, (Task(0, 4, 4),), "task 0 is .*, want a box inside"),
        (ONE, (A._replace(worker=-1),), "task 0 is on worker -1, want 0 to"),
        (ONE, (A._replace(worker=1024),), "task 0 is on worker 1024, want 0 to 1023"),
        (WIDE, (A._replace(blocks=(0, 4)),), "task 0 is .*, want a box inside"),
        (WIDE, (A._replace(blocks=(2, 2)),), "task 0 is .*, want a box inside"),
        (WIDE, (A._replace(samples=(1, 5)),), "task 0 is .*, want a box inside"),
        (WIDE, (A._replace(blocks=(0, 2)),), r"cell \(0, 0\) is computed never"),
        (WIDE, (A._replace(samples=(1, 4)),), r"cell \(0, 0\) is computed never"),
        (
            WIDE,
            (A._replace(blocks=(0, 2)), A._replace(blocks=(1, 3))),
            r"cell \(0, 0\) is computed twice",
        ),
        # One worker has both halves of each step, one after the other
        (
            WIDE,
            (A._replace(blocks=(0, 2)), A._replace(blocks=(2, 3))),
            "task 0 on worker 0 waits for what is never done",
        ),
        (
            WIDE,
            (A._replace(samples=(0, 3)), A._replace(samples=(2, 4), worker=1)),
            r"got tasks of samples \(0, 3\) and of \(2, 4\), want groups",
        ),
        (
            WIDE,
            (
                A._replace(stop=2, samples=(0, 2)),
                A._replace(stop=2, samples=(2, 4)),
                A._replace(start=2),
            ),
            r"got tasks of samples \(0, 2\) and of \(0, 4\), want groups",
        ),
    ],
)
def test_what_is_no_schedule_of_its_graph_is_refused(graph, tasks, message):
    check(Schedule(TWO, (A, B)))
    check(Schedule(TWO, (B, A)))  # each worker has an order, together they have none
    check(Schedule(WIDE, (A,)))
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
    ("worker", "hand", "starts", "last", "idle"),
    [
        # Who waits for its own worker pays nothing
        (0, 0.25, [0, 1, 2, 3], [None] * 4, 0),
        (1, 0.25, [0, 1, 1.25, 2.25], [None, None, 0, None], 1 - 4 / 6.5),
        # Two of six places are empty; the last one waits for nobody
        (1, 0, [0, 1, 1, 2], [None, None, 0, None], 1 / 3),
        # Workers without a task are not idle
        (3, 0, [0, 1, 1, 2], [None, None, 0, None], 1 / 3),
    ],
)
def test_four_cells_by_hand(worker, hand, starts, last, idle):
    cells = [(0, 0, 0), (0, 1, 0), (1, 0, worker), (1, 1, worker)]
    tasks = tuple(Task(l, t, t + 1, where) for l, t, where in cells)
    plan = Schedule(Graph(2, 2), tasks)
    check(plan)
    assert waits_for(plan) == ((), (0,), (0,), (1, 2))
    line = simulate(plan, Costs((1.0, 1.0), hand=hand))
    assert [span.start for span in line.spans] == starts
    assert line.makespan == starts[-1] + 1
    assert line.idle == pytest.approx(idle)
    assert plan.workers == worker + 1
    found = timed(plan, lambda task, part: 1.0, hand)
    assert [where for *_, where in found] == last


@pytest.mark.parametrize("backward", [False, True])
def test_a_shared_step_by_hand(backward):
    """Two workers, a block of each step each, of one second and of two; a hand-over of
    half a second. Worker 0 waits for worker 1 in every step, worker 1 for nobody. Of
    the second layer each begins when all of the first is there.
    """
    graph = Graph(2, 2, backward, blocks=2)
    plan = by_units(graph, 2)
    check(plan)
    found = timed(plan, lambda task, part: (1.0, 2.0)[task.worker], 0.5)
    layers, steps = [0, 1], [0, 1]
    if backward:
        layers, steps = [1, 0], [1, 0]
    got = [(plan.tasks[p.task][0], p.start, p.stop - p.start) for p, *_ in found]
    assert got == [(l, t, 1) for l in layers for _ in range(2) for t in steps]
    assert [plan.tasks[p.task].worker for p, *_ in found] == [0, 0, 1, 1] * 2
    starts = [0, 2.5, 0, 2, 4.5, 6.5, 4, 6]
    assert [start for _, start, *_ in found] == starts
    stops = [1, 3.5, 2, 4, 5.5, 7.5, 6, 8]
    assert [stop for _, _, stop, _ in found] == stops
    # Of worker 0: step 1 for step 0 of the other, then for its step 1, then its step 0
    assert [last for *_, last in found] == [None, 2, None, None, 3, 6, None, None]
    # The same with nothing handed over: worker 1 sets the pace
    assert simulate(plan, Costs((1.0, 1.0))).makespan == 4


@settings(deadline=None)
@given(graphs, workers, st.data())
def test_samples_are_shared_evenly_in_groups(graph, workers, data):
    whole = [n for n in range(1, graph.samples + 1) if graph.samples % n == 0]
    together = data.draw(st.sampled_from(whole))
    plan = by_samples(graph, workers, together)
    check(plan)
    assert plan.employed == plan.workers == min(workers, graph.samples // together)
    shares = {}
    for task in plan.tasks:  # whole layers, of the same samples
        assert (task.start, task.stop, task.blocks) == (0, graph.steps, None)
        shares.setdefault(task.worker, set()).add(task.samples)
    assert all(len(share) == 1 for share in shares.values())
    counts = [last - first for ((first, last),) in shares.values()]
    assert all(count % together == 0 for count in counts)
    assert max(counts) - min(counts) <= together
    assert sum(counts) == graph.samples


@settings(deadline=None)
@given(graphs, workers)
def test_units_are_shared_evenly_or_else_samples(graph, workers):
    plan = by_units(graph, workers)
    check(plan)
    if graph.blocks < workers:
        assert plan == by_samples(graph, workers)
        return
    counts = dict.fromkeys(range(workers), 0)
    for task in plan.tasks:
        assert (task.start, task.stop, task.samples) == (0, graph.steps, None)
        first, last = task.blocks
        counts[task.worker] += last - first
    assert sum(counts.values()) == graph.layers * graph.blocks
    assert max(counts.values()) - min(counts.values()) <= graph.layers


@given(sizes, sizes, sizes)
def test_a_pipeline_of_equal_stages_reaches_its_bound(stages, workers, samples):
    schedule = fill_and_drain(stages, workers, samples)
    check(schedule)
    for worker in range(min(stages, workers)):
        own = [task for task in schedule.tasks if task.worker == worker]
        assert {min(t.layer, 2 * stages - 1 - t.layer) % workers for t in own} == {
            worker
        }
        back = [task.layer >= stages for task in own]
        assert back == sorted(back)
    took = simulate(schedule, Costs((1.0,) * (2 * stages))).makespan
    if workers >= stages:
        bound = pipeline_bound(samples, stages)
        assert 2 * samples * stages / took == pytest.approx(bound)


@settings(deadline=None)
@given(schedules, sizes)
def test_fewer_workers_do_the_same(schedule, workers):
    less = for_fewer(schedule, workers)
    check(less)
    assert less.workers <= workers
    assert less.graph == schedule.graph
    # The same things at once, but some on another worker
    want, got = (
        sorted(cells for _, cells in cells_of(plan)) for plan in (schedule, less)
    )
    assert want == got
    some = {task.worker for task in schedule.tasks}
    assert {task.worker for task in less.tasks} == {worker % workers for worker in some}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wavefront(TWO, 0), "workers: got 0, want an integer of at"),
        (lambda: wavefront(TWO, 2, 5), "chunk: got 5, want an integer from 1"),
        (lambda: wavefront(TWO, 2, together=0), "together: got 0"),
        (lambda: wavefront(TWO, 2, costs=Costs((1.0,))), "costs: got 1 layers"),
        (lambda: wavefront(TWO, 2, costs=3), "costs: got int, want Costs"),
        (lambda: by_units(TWO, 0), "workers: got 0, want an integer"),
        (lambda: by_samples(TWO, 0), "workers: got 0, want an integer"),
        (lambda: by_samples(TWO, 2, 0), "together: got 0, want an integer"),
        (lambda: by_samples(WIDE, 2, 3), "together: got 3, want a divisor of 4"),
        (lambda: by_samples(WIDE, 2, 8), "together: got 8, want a divisor of 4"),
        (lambda: check(Schedule(None, (A,))), "schedule.graph: got NoneType, want a"),
        (lambda: check(Schedule(ONE, ((0, 0, 4),))), "schedule: task 0: got tuple"),
        *(
            (
                partial(check, Schedule(ONE, (A._replace(**wrong),))),
                "schedule: task 0 is",
            )
            for wrong in (
                {"worker": 1.0},
                {"layer": "0"},
                {"layer": False},
                {"start": None},
                {"blocks": (0, 1, 1)},
                {"blocks": [0, 1]},
                {"blocks": 5},
                {"blocks": ()},
                {"samples": (0, 1.0)},
                {"samples": (0,)},
            )
        ),
        (lambda: Schedule(TWO, [A, B]), "tasks: got list, want a tuple of Tasks"),
        (lambda: Graph(0, 4), "layers: got 0"),
        (lambda: Graph(1, 4, samples=0), "samples: got 0"),
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


def test_a_timeline_starts_with_its_first_task():
    plan = layer_by_layer(Graph(2, 1))
    line = Timeline(plan, (Span(0, 0, 5.0, 6.0), Span(1, 0, 6.0, 8.0)))
    assert (line.makespan, line.idle) == (3.0, 0.0)
