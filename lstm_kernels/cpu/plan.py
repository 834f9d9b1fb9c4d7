"""A pass as stages one after another, each with its schedule, and as the arrays that
the scheduler runs (`scheduler.py`).
"""

from collections import Counter
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..kernels import native
from ..schedules import Graph, Schedule, Task, cuts
from ..simulate import Span, Timeline
from . import scheduler, stages
from .entries import Arguments, address, stage_entry
from .packing import aligned
from .scheduler import CANCEL, LAST
from .thread_pool import LINE, thread_pool


class Stage(NamedTuple):
    """What does a task (`stages.py`), the schedule whose layers are rows of the pass,
    and whether it changes parameters.
    """

    kernel: Any
    schedule: Schedule
    changes: bool = False


def of_samples(kernel, schedule):
    """A stage of one step, for the samples of each task of another schedule, by its
    worker.
    """
    workers, graph = {}, Graph(1, 1, samples=schedule.graph.samples)
    for task in reversed(schedule.tasks):
        samples = schedule.graph.box(task)[3]
        workers[samples.start, samples.stop] = task.worker
    tasks = (Task(0, 0, 1, w, samples=samples) for samples, w in workers.items())
    return Stage(kernel, Schedule(graph, tuple(tasks)))


def of_parts(kernel, count, workers, samples):
    """A stage of so many parts, which all workers share."""
    graph = Graph(1, 1, blocks=count, samples=samples)
    shares = enumerate(cuts(count, min(workers, count)))
    tasks = (Task(0, 0, 1, w, blocks=share) for w, share in shares)
    return Stage(kernel, Schedule(graph, tuple(tasks)), changes=True)


def forward(shape, schedule):
    """The stages of a forward pass. shape: a Shape (`workspace.py`). schedule: a
    function of a Graph that returns its Schedule.
    """
    L, T, B, J, _ = shape
    graph = Graph(L, T, blocks=J, samples=B)
    return [Stage(stages.forward_stage, schedule(graph))]


def backward(shape, schedule, workers, descends):
    """Those of a backward pass, and of what can wait until after it."""
    L, T, B, J, J_wide = shape
    graph = Graph(L, T, True, blocks=J_wide, samples=B)
    back = Stage(stages.backward_stage, schedule(graph))
    weights = of_parts(stages.weights_stage, L * J + 1, workers, B)
    if descends:
        return [back, weights]
    parts = -(-T * B // stages.ROWS) + L
    return [back, weights, of_parts(stages.inputs_stage, parts, workers, B)]


def train(shape, schedule, workers, descends):
    """Those of a training step: examples, forward, the output layer, backward."""
    (ahead,) = forward(shape, schedule)
    back, *after = backward(shape, schedule, workers, descends)
    examples = of_samples(stages.examples_stage, ahead.schedule)
    output = of_samples(stages.output_stage, back.schedule)
    return [examples, ahead, output, back, *after]


@cache
def run_code():
    """The address of the scheduler."""
    return native(scheduler.run, "", scheduler.SIGNATURE)


class Pass:
    """Stages for the Arguments of a Net, and the words that count what is done.

    timed: are times kept? Where workers are ranks, `shared` is the number of this one
    and zeros that all have, words of int64, at least `words(stages)`: then nobody does
    what another has.
    """

    def __init__(self, stages, arguments, fp_mode, *, timed=False, shared=None):
        self.stages, self._control = stages, arguments.values.control
        self.workers = max(stage.schedule.workers for stage in stages)
        self._tasks, self._items, self._counters, below = [], 0, 0, None
        self._slots = []  # of each task, stage after stage, where its times are
        order = [[] for _ in range(self.workers)]
        for stage in stages:
            code = stage_entry(stage.kernel, arguments.type)
            below = self._add(stage, code, order, below)
        first, words = shared or (0, aligned((self.words(stages),), np.int64))
        self._spans = np.zeros((self._items * timed, LINE), np.int64)
        split = len(self._tasks) * LINE
        self._table = np.array(self._tasks, np.int64)
        self._plan = Arguments(
            scheduler.Plan(
                arguments=arguments.address,
                fp_mode=fp_mode,
                first_worker=first,
                steals=int(shared is None),
                tasks=address(self._table),
                last=len(self._tasks) - 1,
                order=np.array([k for tasks in order for k in tasks], np.int64),
                bounds=np.cumsum([0, *map(len, order)]),
                claims=words[:split],
                counters=words[split:],
                control=self._control,
                spans=self._spans,
            )
        )
        workers = self.workers if shared is None else 1
        self._region = workers, run_code(), self._plan.address
        self._arguments, self._generation = arguments, 0

    def run(self, passes=1, owner=None, pool=None):
        """Run the pass, so many times, in a region of its workers. owner: what must
        live as long as a late worker may read it. pool: whose threads they are; None is
        `thread_pool()`.
        """
        pool = pool or thread_pool()
        first, self._generation = self._generation, None
        if first is None:
            raise RuntimeError(
                "run: got a pass that a signal interrupted, want a new one"
            )
        last = self._control[LAST] = first + passes
        if len(self._spans):
            self._spans.fill(0)
        region = *self._region, (self, owner), first, last
        generation = pool.run(*region)
        if generation < last and self.workers > 1:
            # A late worker would take the next call's passes for this one's
            pool.drain()
        if not self._control[CANCEL]:
            self._generation = generation

    @staticmethod
    def words(stages):
        """How many words count what is done."""
        tasks = [
            (k, task.layer, stage.schedule.graph.box(task)[3])
            for k, stage in enumerate(stages)
            for task in stage.schedule.tasks
        ]
        groups = {(k, layer, s.start) for k, layer, s in tasks}
        return (len(tasks) + len(groups)) * LINE

    def _add(self, stage, code, order, below):
        """The tasks of a stage, row by row. below: of the row below its graph, the
        groups of samples, the first one's counter, and the blocks of all steps; None at
        the bottom. Returns those of its last row.
        """
        schedule, slots, above = stage.schedule, {}, False
        graph, layers = schedule.graph, range(schedule.graph.layers)
        size = graph.steps * graph.blocks
        for layer in reversed(layers) if graph.backward else layers:
            tasks = [task for task in schedule.tasks if task.layer == layer]
            boxes = [graph.box(task)[1:] for task in tasks]
            groups = sorted({(s.start, s.stop) for _, _, s in boxes})
            shared = any(map(schedule.shares_steps, tasks))
            groups_below, counter_below, size_below = below or ((), 0, 0)
            row_first = len(self._tasks)
            for task, (steps, blocks, samples) in zip(tasks, boxes, strict=True):
                start, stop = steps.start, steps.stop
                if graph.backward:  # in the order of the pass
                    start, stop = graph.steps - stop, graph.steps - start
                items = (stop - start) * (blocks.stop - blocks.start) if shared else 1
                slots[task] = len(self._tasks), slice(self._items, self._items + items)
                # Below its samples may be in one group, or in many
                before = sum(end <= samples.start for _, end in groups_below)
                last = sum(begin < samples.stop for begin, _ in groups_below)
                line = scheduler.Task(
                    stage=code,
                    layer=layer,
                    start=start,
                    stop=stop,
                    low=blocks.start,
                    high=blocks.stop,
                    first=samples.start,
                    last=samples.stop,
                    shared=shared,
                    items=items,
                    counter=self._counters
                    + groups.index((samples.start, samples.stop)),
                    row_blocks=graph.blocks,
                    row_size=size,
                    below=counter_below + before,
                    below_end=counter_below + last,
                    # The same steps of a layer, all of another stage
                    need=stop * graph.blocks if above else size_below,
                    below_size=size_below,
                    row_first=row_first,
                    row_last=row_first + len(tasks),
                    changes=stage.changes,
                    span=self._items,
                )
                self._tasks.append(line)
                self._items += items
            below, above = (groups, self._counters, size), True
            self._counters += len(groups)
        for task in schedule.tasks:
            place, items = slots[task]
            order[task.worker].append(place)
            self._slots.append(items)
        return below

    @property
    def began(self):
        """When the last item began, in nanoseconds of `thread_pool.clock`."""
        return self._spans[:, 2].max(initial=0)

    def timeline(self, kernel):
        """When each part of the stage of a kernel ran, as a Timeline; None if the last
        pass was not timed, was cancelled, or has no such stage.
        """
        slots = iter(self._slots)
        for stage in self.stages:
            of_stage = [next(slots) for _ in stage.schedule.tasks]
            if stage.kernel is kernel and len(self._spans):
                return _timeline(stage.schedule, [self._spans[s] for s in of_stage])
        return None


def _timeline(schedule, spans):
    """The Timeline of a schedule from the spans of each task."""
    ran = []
    for index, count in Counter(part.task for part in schedule.parts).items():
        for items in spans[index].reshape(count, -1, LINE).tolist():  # of a part
            _, workers, starts, stops, *_ = zip(*items, strict=True)
            if 0 in stops:
                return None
            stop, worker = max(zip(stops, workers, strict=True))
            ran.append((index, worker, min(starts), stop))
    begin = min(start for _, _, start, _ in ran)
    spans = (
        Span(index, worker, (start - begin) / 1e9, (stop - begin) / 1e9)
        for index, worker, start, stop in ran
    )
    return Timeline(schedule, tuple(spans))
