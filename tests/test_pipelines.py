"""Pipelines that go forward and back: what waits for what, time, tapes kept, and bad
input.
"""

import dataclasses

import pytest
from planted import planted

from lstm_kernels import schedules
from lstm_kernels.ranks.planner import _kept
from lstm_kernels.schedules import PIPELINES, Costs, Graph, check, pipeline, wavefront
from lstm_kernels.simulate import choose, simulate

SIZES = [(P, M) for P in range(1, 6) for M in range(1, 10)]


def shares(P):
    """Workers by number, of one layer each and of unlike numbers; and layers of each,
    as a list.
    """
    unlike = [1 + 2 * stage % 3 for stage in range(P)]
    return [(P, P), (2 * P + 1, P), (sum(unlike), unlike)]


def built(module, order, steps=1):
    for P, M in SIZES:
        for layers, workers in shares(P):
            graph = module.Graph(layers, steps, M, training=True)
            yield P, M, workers, module.pipeline(graph, workers, order)


def own_tasks(schedule, worker):
    """(row, micro-batch) of what a worker runs, in its order."""
    return [(task.layer, task.part) for task in schedule.tasks if task.worker == worker]


def check_graph(module, order):
    for steps in (1, 3):
        for *_, schedule in built(module, order, steps):
            module.check(schedule)


def check_homes(module, order):
    """A layer goes forward and back where it lives, for every micro-batch."""
    for P, _, workers, schedule in built(module, order):
        layers = schedule.graph.layers
        homes = {task.layer: task.worker for task in schedule.tasks}
        assert all(task.worker == homes[task.layer] for task in schedule.tasks)
        assert [homes[row] for row in range(layers)] == sorted(
            homes[row] for row in range(layers)
        )
        assert all(homes[row] == homes[2 * layers - 1 - row] for row in range(layers))
        counts = [list(homes.values()).count(worker) // 2 for worker in range(P)]
        if isinstance(workers, list):
            assert counts == workers
        else:
            assert max(counts) - min(counts) <= 1


def check_tapes(module, order):
    """The numbers that the planner counts memory with, and from them the order of a
    worker.
    """
    for P, M, _, schedule in built(module, order):
        want = [M if order == "fill-drain" else min(P - stage, M) for stage in range(P)]
        assert module.most_kept(schedule) == want
        assert [_kept(order, stage, P, M) for stage in range(P)] == want
        for worker in range(P):
            back = [
                row >= schedule.graph.layers for row, _ in own_tasks(schedule, worker)
            ]
            if order == "fill-drain":
                assert back == sorted(back)
            parts = [part for row, part in own_tasks(schedule, worker) if row == 0]
            assert parts == sorted(parts)


def check_time(module, order):
    """Equal stages, twice as long back as forward: 3 (M + P - 1)."""
    for P, M in SIZES:
        schedule = module.pipeline(module.Graph(P, 1, M, training=True), P, order)
        costs = Costs((1.0,) * P + (2.0,) * P)
        assert simulate(schedule, costs).makespan == 3 * (M + P - 1)


def check_races(module, order):
    """Every wait is needed: without it the schedule is a race."""
    for P, M in [(2, 1), (3, 4), (4, 2)]:
        schedule = module.pipeline(module.Graph(2 * P, 2, M, training=True), P, order)
        waiting = [index for index, task in enumerate(schedule.tasks) if task.after]
        assert len(waiting) == 2 * (P - 1) * M
        for index in waiting:
            tasks = list(schedule.tasks)
            tasks[index] = tasks[index]._replace(after=())
            with pytest.raises(
                ValueError, match=f"task {index} on worker . does not wait for"
            ):
                module.check(module.Schedule(schedule.graph, tuple(tasks)))


def check_loops(module, order):
    """A worker's stages are as many apart as there are workers, and run whole, loop by
    loop; a part of the time is idle that shrinks with the loops: 3 (M + (P - 1) /
    loops).
    """
    for P, M, loops in [(1, 3, 2), (2, 2, 2), (2, 8, 2), (3, 4, 3), (4, 9, 2)]:
        S = P * loops
        graph = module.Graph(S, 1, M, training=True)
        schedule = module.pipeline(graph, [1] * S, loops=loops)
        assert schedule == module.pipeline(graph, P, loops=loops)
        module.check(schedule)
        for worker in range(P):
            own = [*range(worker, S, P)]
            rows = own + [2 * S - 1 - stage for stage in reversed(own)]
            assert own_tasks(schedule, worker) == [
                (row, m) for row in rows for m in range(M)
            ]
        costs = Costs((1.0 / loops,) * S + (2.0 / loops,) * S)
        want = pytest.approx(3 * (M + (P - 1) / loops))
        assert simulate(schedule, costs).makespan == want


CHECKS = {
    "loops": check_loops,
    "graph": check_graph,
    "homes": check_homes,
    "tapes": check_tapes,
    "time": check_time,
    "races": check_races,
}


@pytest.mark.parametrize("order", PIPELINES)
@pytest.mark.parametrize("checked", CHECKS.values(), ids=CHECKS)
def test_a_pipeline(checked, order):
    checked(schedules, order)


@pytest.mark.parametrize(
    ("checked", "right", "wrong"),
    [
        ("graph", "last.pop(task.worker, None)", "last.clear()"),
        ("graph", "(q[0][0] - 1, q[0][1]) in placed", "q"),
        ("homes", "2 * graph.layers - 1 - row if back else row", "row % graph.layers"),
        ("homes", "row * P // L", "min(row, P - 1)"),
        ("tapes", "min(P - first, graph.parts)", "min(P - first + 1, graph.parts)"),
        (
            "tapes",
            "zip_longest(back, forward[ahead:])",
            "zip_longest(forward[ahead:], back)",
        ),
        ("tapes", "-1 if graph.goes_back(task.layer) else 1", "1"),
        ("time", "min(P - first, graph.parts)", "1"),
        ("loops", "worker=stage % (P // loops)", "worker=stage // loops"),
        (
            "loops",
            "for stage in stages for part in range(graph.parts)",
            "for part in range(graph.parts) for stage in stages",
        ),
        ("races", "if other != index and not before >> other & 1", "if other > index"),
    ],
)
def test_these_tests_see_a_fault(checked, right, wrong):
    faulty = planted(schedules, right, wrong)
    with pytest.raises((AssertionError, pytest.fail.Exception, ValueError, KeyError)):
        CHECKS[checked](faulty, "one-forward-one-backward")


def test_the_loss_comes_between_the_ways():
    graph = Graph(2, 3, training=True)
    assert graph.rows == 4
    assert graph.needs(1, 2) == [(0, 2), (1, 1)]
    assert graph.needs(2, 2) == [
        (1, 2)
    ]  # the last step of the top row, and no later step
    assert graph.needs(2, 0) == [
        (1, 2),
        (2, 1),
    ]  # the first one too needs the last of the top
    assert graph.needs(3, 1) == [(2, 1), (3, 2)]
    assert [graph.goes_back(row) for row in range(4)] == [False, False, True, True]
    check(schedules.layer_by_layer(Graph(3, 4, 2, training=True)))


def swapped(schedule, i, j):
    """The schedule with two tasks in each other's place, and waits for them
    renumbered.
    """
    tasks, places = list(schedule.tasks), {i: j, j: i}
    tasks[i], tasks[j] = tasks[j], tasks[i]
    renumbered = [
        t._replace(after=tuple(places.get(a, a) for a in t.after)) for t in tasks
    ]
    return dataclasses.replace(schedule, tasks=tuple(renumbered))


@pytest.mark.parametrize("order", PIPELINES)
@pytest.mark.parametrize("P", [1, 3])
def test_back_before_forward_is_refused(order, P):
    schedule = pipeline(Graph(3, 2, 4, training=True), P, order)
    places = {
        (task.layer, task.part): index for index, task in enumerate(schedule.tasks)
    }
    for layer in range(3):
        for part in range(4):
            forward, back = places[layer, part], places[5 - layer, part]
            assert schedule.tasks[forward].worker == schedule.tasks[back].worker
            with pytest.raises(ValueError, match=r"comes later|want an earlier one"):
                check(swapped(schedule, forward, back))


def test_tasks_that_do_not_need_each_other_may_be_swapped():
    check(swapped(pipeline(Graph(1, 2, 4, training=True), 1), 0, 2))


@pytest.mark.parametrize("order", PIPELINES)
def test_a_task_that_is_missing_or_there_twice_is_refused(order):
    schedule = pipeline(Graph(3, 1, 4, training=True), 3, order)
    for index, task in enumerate(schedule.tasks):
        with pytest.raises(ValueError, match="computed twice"):
            check(dataclasses.replace(schedule, tasks=(*schedule.tasks, task)))
        left = [
            t._replace(after=tuple(a - (a > index) for a in t.after if a != index))
            for t in schedule.tasks
        ]
        del left[index]
        with pytest.raises(ValueError, match=r"comes later|got 23 cells, want the 24"):
            check(dataclasses.replace(schedule, tasks=tuple(left)))


def test_a_hand_over_costs_each_way_once():
    """One micro-batch through three stages: two boundaries forward and two back."""
    costs = Costs((1.0,) * 3 + (2.0,) * 3, hand=0.25)
    for order in PIPELINES:
        schedule = pipeline(Graph(3, 1, 1, training=True), 3, order)
        assert simulate(schedule, costs).makespan == 3 + 6 + 4 * 0.25


TRAINING = Graph(4, 2, 3, training=True)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: pipeline(TRAINING, 0),
            ValueError,
            "workers: got 0, want an integer from 1 to 4",
        ),
        (
            lambda: pipeline(TRAINING, 5),
            ValueError,
            "workers: got 5, want an integer from 1 to 4",
        ),
        (
            lambda: pipeline(TRAINING, 2.0),
            TypeError,
            "workers: got 2.0, want an integer",
        ),
        (
            lambda: pipeline(TRAINING, [2, 1]),
            ValueError,
            r"workers: got 3 .*\[2, 1\], want 4",
        ),
        (
            lambda: pipeline(TRAINING, [4, 0]),
            ValueError,
            "workers: got 0, want an integer",
        ),
        (
            lambda: pipeline(TRAINING, [3, "1"]),
            TypeError,
            "workers: got '1', want an integer",
        ),
        (
            lambda: pipeline(TRAINING, []),
            ValueError,
            r"workers: got 0 layers \[\], want 4",
        ),
        (
            lambda: pipeline(TRAINING, 2, "luck"),
            ValueError,
            "order: got 'luck', want one of",
        ),
        (
            lambda: pipeline(TRAINING, 2, loops=0),
            ValueError,
            "loops: got 0, want an integer",
        ),
        (
            lambda: pipeline(TRAINING, 2, loops=3),
            ValueError,
            "workers: got 2, .* from 1 to 1",
        ),
        (
            lambda: pipeline(TRAINING, [1, 1, 2], loops=2),
            ValueError,
            "loops: got 2 for 3 stages, want a divisor of that",
        ),
        (
            lambda: pipeline(TRAINING, 2, "one-forward-one-backward", loops=2),
            ValueError,
            "loops: got 2 with order 'one-forward-one-backward', want 1, or 'fill-drain'",
        ),
        (
            lambda: Graph(2, 2, backward=True, training=True),
            ValueError,
            "training: got True",
        ),
        (
            lambda: wavefront(TRAINING, 2),
            ValueError,
            "graph: got .* only forward or only backward",
        ),
        (
            lambda: choose(TRAINING, 2, Costs((1.0,) * 8)),
            ValueError,
            "graph: got .* only forward or only backward",
        ),
        (
            lambda: simulate(pipeline(TRAINING, 2), Costs((1.0,) * 4)),
            ValueError,
            "costs: got 4 layers' steps, want 8",
        ),
        (
            lambda: simulate(pipeline(TRAINING, 2), Costs((1.0,) * 9)),
            ValueError,
            "costs: got 9 layers' steps, want 8",
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
