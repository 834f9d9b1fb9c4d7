"""The dependency graph of a stacked recurrent network, and schedules of it, as data.

Cell (l, t) needs (l-1, t), its input, and (l, t-1), its state; in a backward pass it
needs (l+1, t) and (l, t+1): the same graph seen from the other corner. A *schedule*
says which worker runs which task after which others. Any schedule that respects the
graph (`check`) computes the same numbers; they differ in time, which `simulate.py`
predicts.
"""

import math
from collections import defaultdict
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import product
from typing import NamedTuple

from .errors import REAL, check_choice, check_int, check_type


class Task(NamedTuple):
    """A chunk: steps start, ..., stop-1 of one layer, in a backward pass last to first;
    the worker that runs it, and the tasks (places in the schedule) it waits for.
    """

    layer: int
    start: int
    stop: int
    worker: int = 0
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class Graph:
    """The cells (layer, step) of a stack, and which way they go."""

    layers: int
    steps: int
    backward: bool = False

    def __post_init__(self):
        for name in ("layers", "steps"):
            check_int(name, getattr(self, name))

    def needs(self, layer, step):
        """The cells that cell (layer, step) needs; outside the grid lie the inputs, the
        initial state and the gradients that a backward pass begins with.
        """
        way = 1 if self.backward else -1
        cells = (layer + way, step), (layer, step + way)
        return [
            (l, t) for l, t in cells if 0 <= l < self.layers and 0 <= t < self.steps
        ]

    def rank(self, task):
        """How far a task is from the first corner: layers and steps to go before it."""
        if self.backward:
            return self.layers - 1 - task.layer, self.steps - task.stop
        return task.layer, task.start

    def tasks(self, chunk):
        """Every task of up to `chunk` steps, in an order that the graph allows, on
        worker 0.

        Raises TypeError or ValueError for a chunk that is not 1 to `steps`.
        """
        starts = range(0, self.steps, check_int("chunk", chunk, 1, self.steps))
        tasks = (
            Task(layer, start, min(start + chunk, self.steps))
            for layer, start in product(range(self.layers), starts)
        )
        return sorted(tasks, key=self.rank)


@dataclass(frozen=True)
class Schedule:
    """Tasks; each worker runs its own in this order, and waits for what a task comes
    `after`.
    """

    graph: Graph
    tasks: tuple[Task, ...]

    @property
    def workers(self):
        return 1 + max((task.worker for task in self.tasks), default=0)

    @property
    def employed(self):
        """How many workers have a task."""
        return len({task.worker for task in self.tasks})


@dataclass(frozen=True)
class Costs:
    """Seconds that list scheduling and `simulate` count with.

    step: of a step of each layer, (L,). task: what a task takes beyond its steps. hand:
    from the end of a task to the start of one that waited for it, on another worker.
    Raises TypeError or ValueError for what is not finite numbers, zero or more.
    """

    step: tuple[float, ...]
    task: float = 0.0
    hand: float = 0.0

    def __post_init__(self):
        check_type("step", self.step, (tuple, list), "a tuple of numbers")
        numbers = {f"step[{i}]": seconds for i, seconds in enumerate(self.step)}
        numbers |= {"task": self.task, "hand": self.hand}
        for name, value in numbers.items():
            want = "a finite number, not negative"
            check_type(name, value, REAL, want)
            if not 0 <= value < math.inf:
                raise ValueError(f"{name}: got {value!r}, want {want}")

    def of(self, graph):
        """These costs; raises ValueError unless they are of so many layers."""
        if len(self.step) != graph.layers:
            got = f"{len(self.step)} layers' steps"
            raise ValueError(f"costs: got {got}, want {graph.layers}")
        return self

    def seconds(self, task):
        """What a task takes."""
        return self.task + self.step[task.layer] * (task.stop - task.start)


def layer_by_layer(graph):
    """One worker, every step of a layer before the next layer: the order of the
    reference.
    """
    check_type("graph", graph, Graph, "a Graph")
    return Schedule(graph, tuple(graph.tasks(graph.steps)))


def wavefront(
    graph, workers, chunk=1, *, together=None, order="point-to-point", costs=None
):
    """Chunks of so many steps along the diagonals, given to `workers` by list
    scheduling.

    together: layers that advance side by side; None is all of them. With as many as
    there are workers each keeps its layer's weights in its cache, and the next layers
    follow. order: "point-to-point", a task waits for the tasks it needs; "barrier", for
    the whole diagonal before. costs: Costs to schedule by; None counts steps. Raises
    TypeError or ValueError for zero workers, a chunk longer than T, or another order.
    """
    check_type("graph", graph, Graph, "a Graph")
    # More workers have no task.
    workers = min(check_int("workers", workers), graph.layers)
    together = graph.layers if together is None else check_int("together", together)
    check_choice("order", order, ("point-to-point", "barrier"))
    costs = Costs((1.0,) * graph.layers) if costs is None else costs
    check_type("costs", costs, Costs, "Costs").of(graph)

    def diagonal(task):
        up, along = graph.rank(task)
        return up // together, up + -(-along // chunk)

    tasks = sorted(graph.tasks(chunk), key=diagonal)
    # Chunks need each other as cells do.
    grid = Graph(graph.layers, -(-graph.steps // chunk), graph.backward)
    cells = [(task.layer, task.start // chunk) for task in tasks]
    at = {cell: place for place, cell in enumerate(cells)}
    needed = [[at[need] for need in grid.needs(*cell)] for cell in cells]
    if order == "barrier":
        places = defaultdict(list)
        for place, task in enumerate(tasks):
            places[diagonal(task)].append(place)
        before = dict(zip(places, [[], *places.values()], strict=False))
        needed = [before[diagonal(task)] for task in tasks]
    return _list_schedule(graph, tasks, needed, workers, diagonal, costs)


def check(schedule):
    """Raise ValueError unless every cell is computed once, surely after what it needs.

    Sure is what a worker's own order and the waiting say: a task that only happens to
    start later is a race, and is refused. Waiting goes back in the list of tasks, so
    nobody waits in a circle. Workers are numbered from 0, below the number of tasks.
    """
    check_type("schedule", schedule, Schedule, "a Schedule")
    graph, known, last = schedule.graph, [], {}
    owner = {}  # of each cell the task that computes it
    most = max(len(schedule.tasks), 1024) - 1  # each worker takes memory
    for index, task in enumerate(schedule.tasks):
        worker, name = task.worker, f"schedule: task {index}"
        if not 0 <= worker <= most:
            raise ValueError(f"{name} is on worker {worker}, want 0 to {most}")
        if wrong := [other for other in task.after if not 0 <= other < index]:
            raise ValueError(f"{name} waits for {wrong[0]}, want an earlier one")
        before = 0  # the tasks that are surely done, as bits
        for other in (*task.after, *last.get(worker, ())):
            before |= known[other] | 1 << other
        known.append(before)
        last[worker] = (index,)
        if not 0 <= task.start < task.stop:
            raise ValueError(f"{name} is {task}, want at least one step")
        steps = range(task.start, task.stop)
        for step in reversed(steps) if graph.backward else steps:
            cell = task.layer, step
            name = f"schedule: cell {cell}"
            if cell in owner:
                raise ValueError(f"{name} is computed twice")
            for need in graph.needs(*cell):
                if need not in owner:
                    raise ValueError(f"{name} needs {need}, which comes later")
                other = owner[need]
                if other != index and not before >> other & 1:
                    raise ValueError(
                        f"{name} needs {need}, and task {index} on worker {worker} "
                        f"does not wait for task {other}, which computes it"
                    )
            owner[cell] = index
    cells = set(product(range(graph.layers), range(graph.steps)))
    if owner.keys() != cells:
        want = f"the {len(cells)} of {graph}"
        raise ValueError(f"schedule: got {len(owner)} cells, want {want}")


def _list_schedule(graph, tasks, needed, workers, rank, costs):
    """The schedule in which the next task is the one that can start first; among
    several that of lowest rank, on a worker that ran its layer before. A task waits for
    the last task that it needs of each other worker.
    """
    order = TopologicalSorter(dict(enumerate(needed)))
    order.prepare()
    ready, free, before, done, started = [], [0.0] * workers, {}, {}, {}
    ranks = [rank(task) for task in tasks]
    while order:
        ready += order.get_ready()
        keys, idle = [], free.index(min(free))
        for place in ready:
            layer, others = tasks[place].layer, [done[other] for other in needed[place]]
            likely = {idle, *(w for w, ran in before.items() if ran == layer)}
            for worker in likely.union(w for _, w in others):
                handed = [stop + costs.hand * (w != worker) for stop, w in others]
                start = max([free[worker], *handed])
                moved = before.get(worker) != layer
                keys.append((start, ranks[place], moved, place, worker))
        start, _, _, place, worker = min(keys)
        task = started[place] = tasks[place]._replace(worker=worker)
        free[worker] = start + costs.seconds(task)
        before[worker], done[place] = task.layer, (free[worker], worker)
        ready.remove(place)
        order.done(place)
    at = {place: index for index, place in enumerate(started)}
    waiting = []
    for place, task in started.items():
        last = {done[need][1]: at[need] for need in sorted(needed[place], key=at.get)}
        last.pop(task.worker, None)
        waiting.append(task._replace(after=tuple(sorted(last.values()))))
    return Schedule(graph, tuple(waiting))
