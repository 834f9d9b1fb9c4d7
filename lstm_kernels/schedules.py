"""A pass as a box of cells, and schedules of it, as data.

A cell is a step of a unit block of a layer for one sample. It needs its input, from all
blocks of the layer below at the same step, and its state, from all blocks of its own
layer one step before; in a backward pass the same seen from the other corner. A *task*
is a sub-box, a *schedule* says which worker runs which tasks in which order. What a
task waits for follows from its box: it begins when the counters of its own layer and of
the layer below have come far enough (`cpu/scheduler.py`). So no schedule is a race. But
it can leave out a cell, or let workers wait in a circle, which `check` finds; and
schedules differ in time, which `simulate.py` predicts.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from graphlib import TopologicalSorter
from itertools import chain, pairwise, product
from typing import NamedTuple

import numpy as np

from .errors import REAL, check_int, check_type


class Task(NamedTuple):
    """Steps start, ..., stop-1 of one layer, in a backward pass last to first, of some
    unit blocks and samples, bounds of them or None for all; the worker that runs it.
    """

    layer: int
    start: int
    stop: int
    worker: int = 0
    blocks: tuple[int, int] | None = None
    samples: tuple[int, int] | None = None


class Part(NamedTuple):
    """What a worker does at once of a task, whose index it has: all of it, or one step
    where several tasks share each step.
    """

    task: int
    start: int
    stop: int


@dataclass(frozen=True)
class Graph:
    """The cells of a pass: layers, steps, unit blocks, samples; which way it goes."""

    layers: int
    steps: int
    backward: bool = False
    blocks: int = 1
    samples: int = 1

    def __post_init__(self):
        for name in ("layers", "steps", "blocks", "samples"):
            check_int(name, getattr(self, name))

    def needs(self, layer, step):
        """The (layer, step) that one needs; outside the grid lie the inputs, the
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

    def box(self, task):
        """Slices of the cells of a task: layer, steps, unit blocks, samples."""
        blocks = task.blocks or (0, self.blocks)
        samples = task.samples or (0, self.samples)
        layer, steps = slice(task.layer, task.layer + 1), slice(task.start, task.stop)
        return layer, steps, slice(*blocks), slice(*samples)


@dataclass(frozen=True)
class Schedule:
    """Tasks; each worker runs its own in this order."""

    graph: Graph
    tasks: tuple[Task, ...]

    def __post_init__(self):
        check_type("tasks", self.tasks, tuple, "a tuple of Tasks")

    @property
    def workers(self):
        return 1 + max((task.worker for task in self.tasks), default=0)

    @property
    def employed(self):
        """How many workers have a task."""
        return len({task.worker for task in self.tasks})

    def shares_steps(self, task):
        """Whether other tasks have unit blocks of its steps."""
        return (task.blocks or (0, self.graph.blocks)) != (0, self.graph.blocks)

    @property
    def parts(self):
        """The Parts of task after task, each in the order of the pass."""
        result = []
        for index, task in enumerate(self.tasks):
            size = 1 if self.shares_steps(task) else task.stop - task.start
            starts = range(task.start, task.stop, size)
            for start in reversed(starts) if self.graph.backward else starts:
                result.append(Part(index, start, start + size))
        return result

    def of(self, part):
        """A Part as a Task."""
        return self.tasks[part.task]._replace(start=part.start, stop=part.stop)


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

    def seconds(self, task, part):
        """What a part of a task takes."""
        return self.task + self.step[task.layer] * (part.stop - part.start)


def _cells(schedule):
    """Zeros for the cells of a schedule, layers x steps x unit blocks x samples, and a
    function of a task: the slices of its cells. Blocks that no task parts are one, and
    so are samples.
    """
    graph, boxes = schedule.graph, [schedule.graph.box(t) for t in schedule.tasks]
    places = []
    for axis, size in ((2, graph.blocks), (3, graph.samples)):
        bounds = {n for box in boxes for n in (box[axis].start, box[axis].stop)}
        ordered = sorted(bounds | {0, size})
        places.append({bound: place for place, bound in enumerate(ordered)})

    def where(task):
        layer, steps, *rest = graph.box(task)
        pairs = zip(rest, places, strict=True)
        return layer, steps, *(slice(at[s.start], at[s.stop]) for s, at in pairs)

    shape = graph.layers, graph.steps, *(len(at) - 1 for at in places)
    return np.zeros(shape, np.int64), where


@lru_cache(maxsize=64)
def waits_for(schedule):
    """For each Part of a schedule the places, among its parts, of those that must be
    done before it begins, a tuple; -1 is a part that there is not.

    They are the step before, of all unit blocks of its layer; for the first part of a
    task also the steps of the task, of all unit blocks of the layer below; both of its
    samples.
    """
    graph, parts, result = schedule.graph, schedule.parts, []
    owner, where = _cells(schedule)
    owner -= 1
    for place, part in enumerate(parts):
        owner[where(schedule.of(part))] = place
    way = 1 if graph.backward else -1
    for place, part in enumerate(parts):
        task = schedule.tasks[part.task]
        layer, steps, _, samples = where(task)
        before = part.stop if graph.backward else part.start - 1
        below, needed = task.layer + way, set()
        if 0 <= before < graph.steps:
            needed.update(owner[layer, before, :, samples].flat)
        first = place == 0 or parts[place - 1].task != part.task
        if first and 0 <= below < graph.layers:
            needed.update(owner[below, steps, :, samples].flat)
        result.append(tuple(sorted(map(int, needed))))
    return tuple(result)


def timed(schedule, seconds, hand=0.0):
    """When each Part begins and ends: a list (part, start, stop, last) in the order of
    `schedule.parts`; last: the place of the one on another worker for which it was
    late, or None.

    seconds: a function of a task and a part. hand: seconds from the end of a part to
    the start of one that waited for it, on another worker. Raises ValueError where
    workers wait for what is never done.
    """
    tasks, parts, needed = schedule.tasks, schedule.parts, waits_for(schedule)
    lists = [[] for _ in range(schedule.workers)]
    for place, part in enumerate(parts):
        lists[tasks[part.task].worker].append(place)
    free, at, result = [0.0] * len(lists), [0] * len(lists), [None] * len(parts)

    def run(worker):
        """Run the next parts of a worker that can be; whether there was one."""
        first, places = at[worker], lists[worker]
        while at[worker] < len(places):
            place = places[at[worker]]
            if any(other < 0 or result[other] is None for other in needed[place]):
                break
            part, start, last = parts[place], free[worker], None
            for other in needed[place]:
                foreign = tasks[parts[other].task].worker != worker
                over = result[other][2] + hand * foreign
                if over > start:
                    start, last = over, other if foreign else None
            free[worker] = start + seconds(tasks[part.task], part)
            result[place] = part, start, free[worker], last
            at[worker] += 1
        return at[worker] > first

    while any(run(worker) for worker in range(len(lists))):
        pass
    for worker, places in enumerate(lists):
        for place in places[at[worker] :]:
            name = f"schedule: task {parts[place].task} on worker {worker}"
            raise ValueError(f"{name} waits for what is never done")
    return result


def check(schedule):
    """Raise ValueError unless every cell is computed once, and no worker waits for
    ever. Workers are numbered from 0, below the number of tasks; samples that a task
    has alone no other has with more (`cpu/scheduler.py` counts what is done of each
    group).
    """
    check_type("schedule", schedule, Schedule, "a Schedule")
    graph = check_type("schedule.graph", schedule.graph, Graph, "a Graph")
    most = max(len(schedule.tasks), 1024) - 1  # each worker takes memory
    shape = graph.layers, graph.steps, graph.blocks, graph.samples
    for index, task in enumerate(schedule.tasks):
        name = f"schedule: task {index}"
        bounds = [
            b for b in check_type(name, task, Task, "a Task")[4:] if b is not None
        ]
        pairs = all(isinstance(b, tuple) and len(b) == 2 for b in bounds)
        if not pairs or not all(type(n) is int for n in chain(task[:4], *bounds)):
            want = "integers, and None or two of them for blocks and samples"
            raise TypeError(f"{name} is {task}, want {want}")
        if not 0 <= task.worker <= most:
            raise ValueError(f"{name} is on worker {task.worker}, want 0 to {most}")
        for part, size in zip(graph.box(task), shape, strict=True):
            if not 0 <= part.start < part.stop <= size:
                raise ValueError(f"{name} is {task}, want a box inside {graph}")
    groups = (graph.box(task)[3] for task in schedule.tasks)
    for one, other in pairwise(sorted({(s.start, s.stop) for s in groups})):
        if other[0] < one[1]:
            got = f"tasks of samples {one} and of {other}"
            raise ValueError(f"schedule: got {got}, want groups that share none")
    times, where = _cells(schedule)  # that a cell is computed
    for task in schedule.tasks:
        times[where(task)] += 1
    for wrong, how in ((times == 0, "never"), (times > 1, "twice")):
        if wrong.any():
            layer, step, *_ = (int(i) for i in np.argwhere(wrong)[0])
            cell = f"cell {(layer, step)}"
            raise ValueError(f"schedule: {cell} is computed {how}, want once")
    timed(schedule, lambda task, part: 1.0)


def for_fewer(schedule, workers):
    """A schedule of the same parts for at most so many workers, each of which does what
    several do of a checked one, in an order in which nobody waits for ever.
    """
    if schedule.workers <= workers:
        return schedule
    result = sorted(timed(schedule, lambda *_: 1.0), key=lambda one: one[1])
    tasks = (schedule.of(part) for part, *_ in result)
    tasks = (task._replace(worker=task.worker % workers) for task in tasks)
    return Schedule(schedule.graph, tuple(tasks))


def layer_by_layer(graph):
    """One worker, every step of a layer before the next layer: the order of the
    reference.
    """
    check_type("graph", graph, Graph, "a Graph")
    return Schedule(graph, tuple(graph.tasks(graph.steps)))


def cuts(count, parts):
    """Bounds of so many parts of 0, ..., count-1, as equal as can be."""
    return [*pairwise(count * k // parts for k in range(parts + 1))]


def by_samples(graph, workers, together=1):
    """Each worker has some of the samples, so many of which stay together, through all
    layers. Raises TypeError or ValueError for zero workers, or for samples that leave a
    rest.
    """
    groups, rest = divmod(graph.samples, check_int("together", together))
    if rest:
        want = f"a divisor of {graph.samples} samples"
        raise ValueError(f"together: got {together}, want {want}")
    shares = cuts(groups, min(check_int("workers", workers), groups))
    shares = [(together * first, together * last) for first, last in shares]
    return Schedule(
        graph,
        tuple(
            task._replace(worker=worker, samples=share)
            for task in graph.tasks(graph.steps)
            for worker, share in enumerate(shares)
        ),
    )


def by_units(graph, workers):
    """Each worker has some of the unit blocks of every step; where there are too few,
    samples.
    """
    if graph.blocks < check_int("workers", workers):
        return by_samples(graph, workers)
    return Schedule(
        graph,
        tuple(
            task._replace(worker=worker, blocks=share)
            for task in graph.tasks(graph.steps)
            for worker, share in enumerate(cuts(graph.blocks, workers))
        ),
    )


def fill_and_drain(stages, workers, samples):
    """A training step of a pipeline, each sample of which is a micro-batch: forward
    through the stages, layers 0, ..., S-1, and back, layers S, ..., 2 S - 1. Stage v is
    on worker v % workers, which takes its tasks by turns, all forward before the first
    one back (Huang et al. 2019). Raises TypeError or ValueError for none.
    """
    S, workers = check_int("stages", stages), check_int("workers", workers)
    graph, tasks = Graph(2 * S, 1, samples=samples), []
    for layer, m in product(range(2 * S), range(samples)):
        stage = min(layer, 2 * S - 1 - layer)
        task = Task(layer, 0, 1, stage % workers, samples=(m, m + 1))
        tasks.append(((layer >= S, layer + m, stage), task))
    return Schedule(graph, tuple(task for _, task in sorted(tasks)))


def wavefront(graph, workers, chunk=1, *, together=None, costs=None):
    """Chunks of so many steps along the diagonals, given to `workers` by list
    scheduling.

    together: layers that advance side by side; None is all of them. With as many as
    there are workers each keeps its layer's weights in its cache, and the next layers
    follow. costs: Costs to schedule by; None counts steps. Raises TypeError or
    ValueError for zero workers or a chunk longer than T.
    """
    check_type("graph", graph, Graph, "a Graph")
    # More workers have no task.
    workers = min(check_int("workers", workers), graph.layers)
    together = graph.layers if together is None else check_int("together", together)
    costs = Costs((1.0,) * graph.layers) if costs is None else costs
    check_type("costs", costs, Costs, "Costs").of(graph)

    def diagonal(task):
        up, along = graph.rank(task)
        return up // together, up + -(-along // chunk)

    tasks = Schedule(graph, tuple(sorted(graph.tasks(chunk), key=diagonal)))
    return _list_schedule(tasks, workers, diagonal, costs)


def _list_schedule(schedule, workers, rank, costs):
    """A schedule of the same tasks, of whole steps, in which the next one is that which
    can start first; among several that of lowest rank, on a worker that ran its layer
    before.
    """
    tasks, needed = schedule.tasks, waits_for(schedule)
    order = TopologicalSorter(dict(enumerate(needed)))
    order.prepare()
    ready, free, before, done, started = [], [0.0] * workers, {}, {}, []
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
        task = tasks[place]._replace(worker=worker)
        started.append(task)
        free[worker] = start + costs.seconds(task, task)
        before[worker], done[place] = task.layer, (free[worker], worker)
        ready.remove(place)
        order.done(place)
    return Schedule(schedule.graph, tuple(started))
