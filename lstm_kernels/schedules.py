"""The dependency graph of a stacked recurrent network, and schedules of it, as data.

Cell (l, t) needs (l-1, t), its input, and (l, t-1), its state; in a backward pass it
needs (l+1, t) and (l, t+1): the same graph seen from the other corner. A *schedule*
says which worker runs which task after which others. Any schedule that respects the
graph (`check`) computes the same numbers; they differ in time, which `simulate.py`
predicts.
"""

import math
from collections import Counter
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from itertools import product, zip_longest
from typing import NamedTuple

from .errors import REAL, check_choice, check_int, check_type

# So many numbers may be used by few tasks; what runs a schedule looks at each.
WORKERS = 1024


class Task(NamedTuple):
    """A chunk: steps start, ..., stop-1 of one row of the graph for one micro-batch, in
    a backward pass last to first; the worker that runs it, and the tasks (places in the
    schedule) it waits for. The row is the layer, but in a training graph (`Graph`).
    """

    layer: int
    start: int
    stop: int
    part: int = 0
    worker: int = 0
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class Graph:
    """The cells (layer, step) of a stack, for each of `parts` micro-batches; which way
    they go.

    training: forward and then backward. Such a graph has a row for each layer forward,
    then one for each backward, from the top: row L needs the last step of row L-1,
    where the loss is known.
    """

    layers: int
    steps: int
    parts: int = 1
    backward: bool = False
    training: bool = False

    def __post_init__(self):
        for name in ("layers", "steps", "parts"):
            check_int(name, getattr(self, name))
        if self.backward and self.training:
            raise ValueError("training: got True with backward=True, want one of them")

    @property
    def rows(self):
        """Rows of cells: the layers, in a training graph twice."""
        return 2 * self.layers if self.training else self.layers

    def goes_back(self, row):
        """Whether the steps of a row are run last to first."""
        return self.backward or row >= self.layers

    def needs(self, layer, step):
        """The cells that cell (layer, step) needs; outside the grid lie the inputs, the
        initial state and the gradients that a backward pass begins with.
        """
        before = layer + 1 if self.backward else layer - 1
        turns = self.training and layer == self.layers  # here the loss comes in between
        cells = (before, self.steps - 1 if turns else step), (layer, step - 1)
        if self.goes_back(layer):
            cells = cells[0], (layer, step + 1)
        return [(l, t) for l, t in cells if 0 <= l < self.rows and 0 <= t < self.steps]

    def rank(self, task):
        """How far a task is from the first corner: rows and steps to go before it."""
        row = self.layers - 1 - task.layer if self.backward else task.layer
        return row, self.steps - task.stop if self.goes_back(task.layer) else task.start

    def tasks(self, chunk):
        """Every task of up to `chunk` steps, in an order that the graph allows, on
        worker 0.

        Raises TypeError or ValueError for a chunk that is not 1 to `steps`.
        """
        starts = range(0, self.steps, check_int("chunk", chunk, 1, self.steps))
        every = product(range(self.parts), range(self.rows), starts)
        tasks = (
            Task(layer, start, min(start + chunk, self.steps), part)
            for part, layer, start in every
        )
        return sorted(tasks, key=lambda task: (task.part, *self.rank(task)))


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

    @property
    def longest(self):
        """Steps in the longest chunk."""
        return max(task.stop - task.start for task in self.tasks)


@dataclass(frozen=True)
class Costs:
    """Seconds that list scheduling and `simulate` count with.

    step: of a step of each row of the graph, (L,) or (2 L,). task: what a task takes
    beyond its steps. hand: from the end of a task to the start of one that waited for
    it, on another worker. moved: what a task takes more when its worker ran another
    layer before, so that its cache holds other weights. shared: no time but a factor,
    on all of that where more than one worker computes, and they share a cache, the
    memory, or the power. Raises TypeError or ValueError for what is not finite numbers,
    zero or more.
    """

    step: tuple[float, ...]
    task: float = 0.0
    hand: float = 0.0
    moved: float = 0.0
    shared: float = 1.0

    def __post_init__(self):
        check_type("step", self.step, (tuple, list), "a tuple of numbers")
        numbers = vars(self) | {f"step[{i}]": a for i, a in enumerate(self.step)}
        del numbers["step"]
        for name, value in numbers.items():
            want = "a finite number, not negative"
            check_type(name, value, REAL, want)
            if not 0 <= value < math.inf:
                raise ValueError(f"{name}: got {value!r}, want {want}")

    def of(self, graph):
        """These costs; raises ValueError unless they are of so many rows."""
        if len(self.step) != graph.rows:
            got = f"{len(self.step)} layers' steps"
            raise ValueError(f"costs: got {got}, want {graph.rows}")
        return self

    def seconds(self, task, before, workers):
        """What a task takes on a worker that ran layer `before`, one of so many."""
        time = self.task + self.step[task.layer] * (task.stop - task.start)
        time += self.moved if before != task.layer else 0.0
        return time * (self.shared if workers > 1 else 1.0)


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
    if check_type("graph", graph, Graph, "a Graph").training:
        want = "one that is only forward or only backward"
        raise ValueError(f"graph: got {graph}, want {want}")
    # More workers have no task.
    workers = min(check_int("workers", workers), graph.layers * graph.parts)
    together = graph.layers if together is None else check_int("together", together)
    check_choice("order", order, ("point-to-point", "barrier"))
    costs = Costs((1.0,) * graph.layers) if costs is None else costs
    check_type("costs", costs, Costs, "Costs").of(graph)

    def diagonal(task):
        up, along = graph.rank(task)
        return task.part, up // together, up + -(-along // chunk)

    tasks = sorted(graph.tasks(chunk), key=diagonal)
    needed = _needed(graph, tasks)
    if order == "barrier":
        places = {}
        for place, task in enumerate(tasks):
            places.setdefault(diagonal(task), []).append(place)
        before = dict(zip(places, [[], *places.values()], strict=False))
        needed = [before[diagonal(task)] for task in tasks]
    return _waiting(graph, *_list_schedule(tasks, needed, workers, diagonal, costs))


PIPELINES = ("fill-drain", "one-forward-one-backward")


def pipeline(graph, workers, order="fill-drain", loops=1):
    """Neighbouring layers per worker, a stage; micro-batches go from stage to stage.

    workers: how many, with equal shares, or the number of layers of each. order, of a
    training graph: "fill-drain", every micro-batch goes forward before the first one
    goes back (Huang et al. 2019); "one-forward-one-backward", a stage goes back as soon
    as it may, so that it keeps at most as many tapes as there are stages from it to the
    last (Narayanan et al. 2021). loops: how often a micro-batch comes to each worker;
    more than once, a worker has as many stages, each smaller, so that the last worker
    begins sooner (Lamy-Poirier 2023); a list of `workers` then has the layers of each
    stage, the first loop's first. Raises TypeError or ValueError for more stages than
    layers, layers that do not add up, stages that are no multiple of the loops, and
    loops with another order than "fill-drain".
    """
    check_choice("order", order, PIPELINES)
    if check_int("loops", loops) > 1 and order != "fill-drain":
        raise ValueError(
            f"loops: got {loops} with order {order!r}, want 1, or 'fill-drain'"
        )
    stage_of, P = _stages(graph, workers, loops)
    # By stage, counted on from the last one where the pass goes back, and micro-batch.
    runs = {}
    for task in graph.tasks(graph.steps):
        row = graph.rank(task)[0]
        back = row >= graph.layers
        stage = stage_of[2 * graph.layers - 1 - row if back else row]
        place = 2 * P - 1 - stage if back else stage
        runs.setdefault((place, task.part), []).append(
            task._replace(worker=stage % (P // loops))
        )
    queues = [_turns(graph, first, P, order, loops) for first in range(P // loops)]
    placed, tasks = set(), []
    while any(queues):
        ready = [
            q for q in queues if q and (not q[0][0] or (q[0][0] - 1, q[0][1]) in placed)
        ]
        for queue in ready:
            placed.add(queue[0])
            tasks += runs[queue.pop(0)]
    return _waiting(graph, tasks, _needed(graph, tasks))


def _stages(graph, workers, loops):
    """The stage of each row that goes one way, and how many stages there are."""
    L = graph.layers
    if isinstance(workers, list | tuple):
        counts = [check_int("workers", count) for count in workers]
        if sum(counts) != L:
            raise ValueError(f"workers: got {sum(counts)} layers {workers}, want {L}")
        if len(counts) % loops:
            raise ValueError(
                f"loops: got {loops} for {len(counts)} stages, want a divisor of that"
            )
        return [stage for stage, count in enumerate(counts) for _ in range(count)], len(
            counts
        )
    P = check_int("workers", workers, 1, max(L // loops, 1)) * loops
    return [row * P // L for row in range(L)], P


def _turns(graph, first, P, order, loops):
    """What the worker of stage `first` of P runs: (place, micro-batch), as in
    `pipeline`.
    """
    stages = range(first, P, P // loops)
    forward = [(stage, part) for stage in stages for part in range(graph.parts)]
    if not graph.training:
        return forward
    back = [
        (2 * P - 1 - stage, part)
        for stage in stages[::-1]
        for part in range(graph.parts)
    ]
    if order == "fill-drain":
        return forward + back
    ahead = min(P - first, graph.parts)
    both = zip_longest(back, forward[ahead:])
    return forward[:ahead] + [turn for pair in both for turn in pair if turn]


def most_kept(schedule):
    """For each worker, the most micro-batches that a training pass keeps at once: those
    gone forward through its layers and not yet back. Counted in tapes of all its
    layers.
    """
    graph, kept = schedule.graph, {}
    most = [0] * schedule.workers
    for task in schedule.tasks:
        own = kept.setdefault(task.worker, Counter())
        own[task.part] += -1 if graph.goes_back(task.layer) else 1
        most[task.worker] = max(most[task.worker], sum(n > 0 for n in own.values()))
    return most


def check(schedule):
    """Raise ValueError unless every cell is computed once, surely after what it needs.

    Sure is what a worker's own order and the waiting say: a task that only happens to
    start later is a race, and is refused. Waiting goes back in the list of tasks, so
    nobody waits in a circle. Workers are numbered from 0, below the number of tasks or
    WORKERS.
    """
    check_type("schedule", schedule, Schedule, "a Schedule")
    graph, owner, known, last = schedule.graph, {}, [], {}
    most = max(len(schedule.tasks), WORKERS) - 1
    for index, task in enumerate(schedule.tasks):
        worker, part, layer = task.worker, task.part, task.layer
        name = f"schedule: task {index}"
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
        for step in reversed(steps) if graph.goes_back(layer) else steps:
            cell = layer, step
            name = f"schedule: cell {cell}"
            if (part, *cell) in owner:
                raise ValueError(f"{name}, part {part}, is computed twice")
            for need in graph.needs(*cell):
                other = owner.get((part, *need))
                if other is None:
                    raise ValueError(f"{name} needs {need}, which comes later")
                if other != index and not before >> other & 1:
                    raise ValueError(
                        f"{name} needs {need}, and task {index} on worker {worker} "
                        f"does not wait for task {other}, which computes it"
                    )
            owner[part, *cell] = index
    cells = set(product(range(graph.parts), range(graph.rows), range(graph.steps)))
    if owner.keys() != cells:
        want = f"the {len(cells)} of {graph}"
        raise ValueError(f"schedule: got {len(owner)} cells, want {want}")


def _needed(graph, tasks):
    """For each task the places in `tasks` of those that it needs; all chunks are
    equal.
    """
    chunk = max(task.stop - task.start for task in tasks)
    # Chunks need each other as the cells of a graph with fewer steps do.
    chunks = replace(graph, steps=-(-graph.steps // chunk))
    cells = [(task.layer, task.start // chunk) for task in tasks]
    every = zip(tasks, cells, strict=True)
    places = {(task.part, *cell): i for i, (task, cell) in enumerate(every)}
    return [
        [places[task.part, *need] for need in chunks.needs(*cell)]
        for task, cell in zip(tasks, cells, strict=True)
    ]


def _list_schedule(tasks, needed, workers, rank, costs):
    """The tasks in the order in which they start, with the workers that run them, and
    what each needs of that order: the next is the task that can start first; among
    several that of lowest rank, on a worker that ran its layer before.
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
        free[worker] = start + costs.seconds(task, before.get(worker), workers)
        before[worker], done[place] = task.layer, (free[worker], worker)
        ready.remove(place)
        order.done(place)
    at = {place: index for index, place in enumerate(started)}
    waits = [[at[need] for need in needed[place]] for place in started]
    return [*started.values()], waits


def _waiting(graph, tasks, needed):
    """A schedule in which a task waits for the last task that it needs of each other
    worker.
    """
    waiting = []
    for task, needs in zip(tasks, needed, strict=True):
        last = {tasks[need].worker: need for need in sorted(needs)}
        last.pop(task.worker, None)
        waiting.append(task._replace(after=tuple(sorted(last.values()))))
    return Schedule(graph, tuple(waiting))
