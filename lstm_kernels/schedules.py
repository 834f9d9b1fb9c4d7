"""The dependency graph of a stacked recurrent network, schedules of it, and what they would take.

Cell (l, t) needs (l-1, t), its input, and (l, t-1), its state; on the way back it needs (l+1, t)
and (l, t+1): the same graph seen from the other corner. A *schedule* says who runs what after what.
Any schedule that respects the graph computes the same numbers; they differ in time, which
`simulate` predicts from measured costs.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from .errors import check_choice, check_int

WORKERS = 1024  # so many numbers may be used by few tasks; what runs a schedule looks at each


class Block(NamedTuple):
    """Steps start, ..., stop-1 of one layer for one micro-batch; on the way back, last to first."""

    layer: int
    start: int
    stop: int
    part: int = 0


class Task(NamedTuple):
    """A block, the worker that runs it, and the tasks (places in the schedule) it waits for."""

    block: Block
    worker: int
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class Graph:
    """The cells (layer, step) of a stack, for each of `parts` micro-batches; which way they go."""

    layers: int
    steps: int
    parts: int = 1
    backward: bool = False

    def __post_init__(self):
        for name in ("layers", "steps", "parts"):
            check_int(name, getattr(self, name))

    def needs(self, layer, step):
        """The cells that cell (layer, step) needs."""
        if not self.backward:
            return dependencies(layer, step)
        last = self.layers - 1, self.steps - 1
        mirrored = dependencies(last[0] - layer, last[1] - step)
        return [(last[0] - other, last[1] - s) for other, s in mirrored]

    def rank(self, block):
        """How far a block is from the first corner: layers and steps to go before it."""
        if self.backward:
            return self.layers - 1 - block.layer, self.steps - block.stop
        return block.layer, block.start

    def blocks(self, chunk):
        """Every block of up to `chunk` steps, in an order that the graph allows.

        Raises TypeError or ValueError for a chunk that is not 1 to `steps`.
        """
        cuts = range(0, self.steps, _check_chunk(chunk, self.steps))
        found = [
            Block(layer, start, min(start + chunk, self.steps), part)
            for part in range(self.parts)
            for layer in range(self.layers)
            for start in cuts
        ]
        return sorted(found, key=lambda block: (block.part, *self.rank(block)))


@dataclass(frozen=True)
class Schedule:
    """Tasks; each worker runs its own in this order, and waits for what a task comes `after`."""

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
        """Steps in the longest block."""
        return max(task.block.stop - task.block.start for task in self.tasks)


@dataclass(frozen=True)
class Costs:
    """Seconds that `simulate` counts with.

    step: of a step of each layer (L,). task: what a block takes beyond its steps. hand: from the
    end of a block to the start of one that waited for it, on another worker. moved: what a block
    takes more when its worker ran another layer before, so that its cache holds other weights.
    shared: no time but a factor, on all of that where more than one worker computes, and they share
    a cache, the memory, or the power.
    """

    step: tuple[float, ...]
    task: float = 0.0
    hand: float = 0.0
    moved: float = 0.0
    shared: float = 1.0

    def __post_init__(self):
        named = [(f"step[{i}]", value) for i, value in enumerate(self.step)]
        named += [(name, getattr(self, name)) for name in ("task", "hand", "moved", "shared")]
        for name, value in named:
            if not 0 <= value < math.inf:
                raise ValueError(f"{name}: got {value!r}, want a finite number, not negative")

    def seconds(self, block, before, workers):
        """What a block takes on a worker that ran layer `before`, one of so many."""
        time = self.task + self.step[block.layer] * (block.stop - block.start)
        time += self.moved if before != block.layer else 0.0
        return time * (self.shared if workers > 1 else 1.0)


class Span(NamedTuple):
    """When a task ran, seconds from the first one's start, and where."""

    task: int
    worker: int
    start: float
    stop: float


@dataclass(frozen=True)
class Timeline:
    """What became of a schedule, predicted or measured: a span for each task."""

    schedule: Schedule
    spans: tuple[Span, ...]

    @property
    def makespan(self):
        """Seconds from the first start to the last stop."""
        return max(span.stop for span in self.spans) - min(span.start for span in self.spans)

    @property
    def idle(self):
        """The share of the time of the workers that have a task in which they ran nothing."""
        busy = sum(span.stop - span.start for span in self.spans)
        return 1 - busy / (self.makespan * self.schedule.employed) if self.makespan else 0.0


def dependencies(layer, step):
    """The cells that cell (layer, step) needs on the way forward; outside the grid lie the inputs
    and the initial state.
    """
    below = [(layer - 1, step)] if layer else []
    before = [(layer, step - 1)] if step else []
    return below + before


def layer_by_layer(graph):
    """One worker, every step of a layer before the next layer: the order of the reference."""
    return Schedule(graph, tuple(Task(block, 0) for block in graph.blocks(graph.steps)))


def wavefront(graph, workers, chunk=1, *, together=None, order="point-to-point", costs=None):
    """Blocks of `chunk` steps along the diagonals, given to `workers` by list scheduling.

    together: layers that advance side by side; None is all of them. With as many as there are
    workers each keeps its layer's weights in its cache, and the next layers follow. order:
    "point-to-point", a block waits for the blocks it needs; "barrier", for the whole diagonal
    before. costs: Costs to schedule by; None counts steps.
    Raises TypeError or ValueError for zero workers, a chunk longer than T, or another order.
    """
    workers = min(check_int("workers", workers), graph.layers * graph.parts)  # more have no task
    together = graph.layers if together is None else check_int("together", together)
    check_choice("order", order, ("point-to-point", "barrier"))
    costs = Costs((1.0,) * graph.layers) if costs is None else _check_costs(costs, graph)

    def diagonal(block):
        up, along = graph.rank(block)
        return block.part, up // together, up + -(-along // chunk)

    blocks = sorted(graph.blocks(chunk), key=diagonal)
    if order == "point-to-point":
        return _wait(graph, _list_schedule(graph, blocks, workers, diagonal, costs))
    rounds = {}
    for block in blocks:
        rounds.setdefault(diagonal(block), []).append(block)
    return _barriers(graph, [_deal(blocks, workers) for blocks in rounds.values()])


def pipeline(graph, workers):
    """Neighbouring layers per worker, a stage; micro-batches go from stage to stage.

    Raises ValueError for more workers than layers.
    """
    if check_int("workers", workers) > graph.layers:
        raise ValueError(f"workers: got {workers}, want at most {graph.layers}, the layers")

    def stage(block):
        return graph.rank(block)[0] * workers // graph.layers

    blocks = sorted(
        graph.blocks(graph.steps),
        key=lambda block: (block.part + stage(block), stage(block), graph.rank(block)),
    )
    return _wait(graph, [(block, stage(block)) for block in blocks])


def speedup_bound(layers, steps, chunk=1):
    """Of a wavefront on any number of workers: L T / (T + (L-1) C), for C = 1 L T / (L + T - 1).

    Raises ValueError for a chunk longer than T.
    """
    _check_chunk(chunk, steps)
    return layers * steps / (steps + (layers - 1) * chunk)


def pipeline_bound(micro_batches, stages):
    """Of a pipeline of equal stages: M P / (M + P - 1)."""
    return micro_batches * stages / (micro_batches + stages - 1)


def check(schedule):
    """Raise ValueError unless every cell is computed once, surely after what it needs.

    Sure is what a worker's own order and the waiting say: a task that only happens to start later
    is a race, and is refused. Waiting goes back in the list of tasks, so nobody waits in a circle.
    Workers are numbered from 0, below the number of tasks or WORKERS.
    """
    if not isinstance(schedule, Schedule):
        raise TypeError(f"schedule: got {type(schedule).__name__}, want a Schedule")
    graph, owner, known, last = schedule.graph, {}, [], {}
    most = max(len(schedule.tasks), WORKERS) - 1
    for index, (block, worker, after) in enumerate(schedule.tasks):
        if not 0 <= worker <= most:
            raise ValueError(f"schedule: task {index} is on worker {worker}, want 0 to {most}")
        wrong = [other for other in after if not 0 <= other < index]
        if wrong:
            raise ValueError(f"schedule: task {index} waits for {wrong[0]}, want an earlier one")
        before = 0  # the tasks that are surely done, as bits
        for other in (*after, *last.get(worker, ())):
            before |= known[other] | 1 << other
        known.append(before)
        last[worker] = (index,)
        if not 0 <= block.start < block.stop:
            raise ValueError(f"schedule: task {index} is {block}, want at least one step")
        steps = range(block.start, block.stop)
        for step in reversed(steps) if graph.backward else steps:
            cell = (block.part, block.layer, step)
            if cell in owner:
                raise ValueError(f"schedule: cell {cell[1:]}, part {cell[0]}, is computed twice")
            for need in graph.needs(block.layer, step):
                there = owner.get((block.part, *need))
                if there is None:
                    raise ValueError(f"schedule: cell {cell[1:]} needs {need}, which comes later")
                if there != index and not before >> there & 1:
                    raise ValueError(
                        f"schedule: cell {cell[1:]} needs {need}, and task {index} on worker "
                        f"{worker} does not wait for task {there}, which computes it"
                    )
            owner[cell] = index
    cells = set(product(range(graph.parts), range(graph.layers), range(graph.steps)))
    if owner.keys() != cells:
        raise ValueError(f"schedule: got {len(owner)} cells, want the {len(cells)} of {graph}")


def simulate(schedule, costs):
    """The Timeline of a schedule: a task starts when its worker is free and all it waits for is
    done and handed over.
    """
    _check_costs(costs, schedule.graph)
    spans, free, before, workers = [], {}, {}, schedule.employed
    for index, (block, worker, after) in enumerate(schedule.tasks):
        start = free.get(worker, 0.0)
        for other in after:
            start = max(start, spans[other].stop + costs.hand * (spans[other].worker != worker))
        stop = start + costs.seconds(block, before.get(worker), workers)
        spans.append(Span(index, worker, start, stop))
        free[worker], before[worker] = stop, block.layer
    return Timeline(schedule, tuple(spans))


def choose(graph, workers, costs, most_tasks=1024):
    """The wavefront that `simulate` predicts to be fastest, over chunks and layers side by side."""
    best = None
    for together in sorted({graph.layers, min(workers, graph.layers)}):
        for count in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128):
            chunk = -(-graph.steps // count)
            if count > graph.steps or (count > 1 and graph.layers * count > most_tasks):
                break
            found = wavefront(graph, workers, chunk, together=together, costs=costs)
            seconds = simulate(found, costs).makespan
            if best is None or seconds < best[0]:
                best = seconds, found
    return best[1]


def _check_chunk(chunk, steps):
    if check_int("chunk", chunk) > steps:
        raise ValueError(f"chunk: got {chunk}, want at most {steps}, the steps")
    return chunk


def _check_costs(costs, graph):
    if len(costs.step) != graph.layers:
        raise ValueError(f"costs: got {len(costs.step)} layers' steps, want {graph.layers}")
    return costs


def _needed(graph, blocks):
    """For each block the places, in `blocks`, of those that hold what it needs."""
    rows = {}
    for place, block in enumerate(blocks):
        rows.setdefault((block.part, block.layer), []).append((block.start, place))
    for row in rows.values():
        row.sort()
    found, side = [], 1 if graph.backward else -1
    for block in blocks:
        below = rows.get((block.part, block.layer + side), [])
        first = bisect_right(below, (block.start, len(blocks))) - 1
        last = bisect_right(below, (block.stop - 1, len(blocks)))
        needs = [place for _, place in below[max(first, 0) : last]]
        row = rows[block.part, block.layer]
        at = bisect_right(row, (block.start, len(blocks))) - 1 + side
        found.append(needs + ([row[at][1]] if 0 <= at < len(row) else []))
    return found


def _list_schedule(graph, blocks, workers, rank, costs):
    """Whoever is free takes, of the blocks that can run, the first by rank; of several that of the
    layer it ran last. Pairs (block, worker) in the order in which they were taken.
    """
    needed = _needed(graph, blocks)
    users, open_needs = [[] for _ in blocks], [len(n) for n in needed]
    for place, others in enumerate(needed):
        for other in others:
            users[other].append(place)
    ready = [place for place, count in enumerate(open_needs) if not count]
    free, before, done, taken = [0.0] * workers, {}, {}, []
    ranks = [rank(block) for block in blocks]
    while ready:
        keys, idle = [], free.index(min(free))
        for place in ready:
            layer, others = blocks[place].layer, [done[other] for other in needed[place]]
            likely = {idle, *(w for w, ran in before.items() if ran == layer)}
            for worker in likely.union(w for _, w in others):
                handed = [stop + costs.hand * (w != worker) for stop, w in others]
                start = max([free[worker], *handed])
                moved = before.get(worker) != layer
                keys.append((start, ranks[place], moved, place, worker))
        start, _, _, place, worker = min(keys)
        block = blocks[place]
        free[worker] = start + costs.seconds(block, before.get(worker), workers)
        before[worker], done[place] = block.layer, (free[worker], worker)
        taken.append((block, worker))
        ready.remove(place)
        for user in users[place]:
            open_needs[user] -= 1
            if not open_needs[user]:
                ready.append(user)
    return taken


def _deal(blocks, workers):
    """Pairs (block, worker): neighbouring layers of a diagonal to the same worker."""
    return [(block, i * workers // len(blocks)) for i, block in enumerate(blocks)]


def _wait(graph, placed):
    """A schedule of pairs (block, worker) in which a block waits for those it needs, point to
    point.
    """
    blocks = [block for block, _ in placed]
    tasks = []
    for (block, worker), needs in zip(placed, _needed(graph, blocks), strict=True):
        others = tuple(sorted(need for need in needs if placed[need][1] != worker))
        tasks.append(Task(block, worker, others))
    return Schedule(graph, tuple(tasks))


def _barriers(graph, rounds):
    """A schedule of rounds of pairs (block, worker): a block waits for everyone's last block."""
    tasks, last = [], {}
    for placed in rounds:
        for block, worker in placed:
            after = sorted(task for other, task in last.items() if other != worker)
            tasks.append(Task(block, worker, tuple(after)))
        last |= {worker: len(tasks) - len(placed) + i for i, (_, worker) in enumerate(placed)}
    return Schedule(graph, tuple(tasks))
