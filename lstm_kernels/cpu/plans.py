"""Passes as schedules one after the other, and their records for `run`."""

from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

import numpy as np

from ..schedules import Graph, Schedule, Task, cuts
from ..simulate import Span, Timeline
from . import steps
from .arrays import PLAN, ROW, TASK
from .lanes import (
    backward_lanes_row,
    chunks_row,
    forward_lanes_row,
    seams_row,
)
from .machine_code import address
from .memory import at, buffer, point
from .run import run
from .team import LINE


class Stage(NamedTuple):
    """A schedule whose layers are rows of a pass; what does a part of it (`steps.py`),
    whether it changes parameters, and the step that its first one is.
    """

    perform: object
    schedule: Schedule
    changes: bool = False
    offset: int = 0


def stage_of_samples(perform, schedule):
    """A step for the samples of each task of another schedule, by its worker."""
    workers, graph = {}, Graph(1, 1, samples=schedule.graph.samples)
    for task in reversed(schedule.tasks):
        samples = schedule.graph.box(task)[3]
        workers[samples.start, samples.stop] = task.worker
    tasks = (Task(0, 0, 1, w, samples=samples) for samples, w in workers.items())
    return Stage(perform, Schedule(graph, tuple(tasks)))


def stage_of_parts(perform, count, workers, samples, changes=False):
    """So many parts, which all workers share."""
    graph = Graph(1, 1, blocks=count, samples=samples)
    shares = enumerate(cuts(count, min(workers, count)))
    tasks = (Task(0, 0, 1, w, blocks=share) for w, share in shares)
    return Stage(perform, Schedule(graph, tuple(tasks)), changes)


def _cuts_steps(stage):
    """Whether a task has some steps of a layer: then others may be at other layers."""
    graph, tasks = stage.schedule.graph, stage.schedule.tasks
    return any(task.stop - task.start < graph.steps for task in tasks)


def _ahead(sizes, schedule, division):
    L, T, B, J = (sizes[name] for name in "LTBJ")
    perform = forward_lanes_row if division.lanes else steps.forward_row
    return Stage(perform, schedule(Graph(L, T, blocks=J, samples=B)))


def _back(sizes, schedule, division):
    L, T, B, J_wide = (sizes[name] for name in ("L", "T", "B", "J_wide"))
    perform = backward_lanes_row if division.lanes else steps.backward_row
    return Stage(perform, schedule(Graph(L, T, True, blocks=J_wide, samples=B)))


def _after(sizes, division, purpose):
    """What can wait until after a backward pass (`steps.gradients_row`)."""
    L, T, B, J = (sizes[name] for name in "LTBJ")
    parts = L * J + 1
    if purpose == "gradients":
        parts += -(-T * B // steps.ROWS) + L
    workers = 1 if division.by == "one thread" else sizes["threads"]
    return stage_of_parts(steps.gradients_row, parts, workers, B, changes=True)


def forward(sizes, schedule, division, purpose):
    return [_ahead(sizes, schedule, division)]


def backward(sizes, schedule, division, purpose):
    return [_back(sizes, schedule, division), _after(sizes, division, purpose)]


def train(sizes, schedule, division, purpose):
    """Examples, forward, the read-out, backward."""
    (ahead,) = forward(sizes, schedule, division, purpose)
    back, after = backward(sizes, schedule, division, purpose)
    examples = stage_of_samples(steps.examples_row, ahead.schedule)
    readout = stage_of_samples(steps.readout_row, back.schedule)
    return [examples, ahead, readout, back, after]


def sweep(sizes, schedule, division, purpose, run_up):
    """Chunks from where those before ended; the first sweep, after a run-up of so many
    steps, or a later one, for which that is None.
    """
    L, T, B = (sizes[name] for name in "LTB")
    whole = schedule(Graph(L, T, samples=B))
    seams = stage_of_parts(seams_row, 1, 1, B)
    stages = [Stage(forward_lanes_row, whole), seams]
    if run_up:
        late = schedule(Graph(L, run_up, samples=B))
        late = Stage(forward_lanes_row, late, offset=T - run_up)
        stages = [late, seams, *stages]
    if run_up is not None:
        stages.insert(0, stage_of_samples(chunks_row, whole))
    return stages


# "back in lanes": after a forward pass in lanes, whose arrays it reads.
PASSES: dict[str, Callable[..., list[Stage]]] = {
    "forward": forward,
    "backward": backward,
    "back in lanes": backward,
    "train": train,
    "sweep": sweep,
}


class Plan:
    """A pass as records for `run`, and the words that count what is done.

    division: what made it. timed: are times kept?
    Where the workers are ranks, `shared` is the number of this one and memory that all
    have, zeros, of `words` bytes, where the words are: then nobody does what another
    has.
    """

    shared: tuple[int, np.ndarray] | None = None

    def __init__(self, stages, division=None, *, timed=False):
        self.stages, self.division = stages, division
        self.workers = workers = max(stage.schedule.workers for stage in stages)
        # Else a layer begins when the one below is done, for the same samples.
        self.layers_overlap = any(map(_cuts_steps, stages))
        self.timed, self._count = timed, 0  # counters
        self._parts, self._slots = 0, []  # of each task's parts, where their times are
        self._tasks, self._rows, self._performs = [], [], []
        self._groups = []  # of samples, of the row below
        lists = [[] for _ in range(workers)]
        self._order = []  # of each task, stage after stage, the place of its record
        for stage in stages:
            places = self._add(stage)
            for task in stage.schedule.tasks:
                lists[task.worker].append(places[task])
                self._order.append(places[task])
        self._lists = np.array([*chain(*lists)], np.int64)
        self._bounds = np.cumsum([0, *map(len, lists)])
        self._tasks = np.array(self._tasks, TASK)
        self.spans = self._new_spans()
        self.words = (len(self._tasks) + self._count) * LINE
        self.aimed = self._codes = None  # at which JOB; of its rows

    def _add(self, stage):
        """The rows of a stage; the place of each task."""
        schedule, places = stage.schedule, {}
        graph, layers = schedule.graph, range(schedule.graph.layers)
        for layer in reversed(layers) if graph.backward else layers:
            tasks = [task for task in schedule.tasks if task.layer == layer]
            boxes = [graph.box(task)[1:] for task in tasks]
            groups = sorted({(s.start, s.stop) for _, _, s in boxes})
            shared = any(map(schedule.shares_steps, tasks))
            first, stepwise = len(self._tasks), bool(places)
            for task, (of, blocks, samples) in zip(tasks, boxes, strict=True):
                start, stop = of.start, of.stop
                if graph.backward:  # in the order of the pass
                    start, stop = graph.steps - stop, graph.steps - start
                box = start, stop, blocks.start, blocks.stop
                group = samples.start, samples.stop
                # Below its samples may be in one group, or in many
                below = sum(end <= samples.start for _, end in self._groups)
                last = sum(begin < samples.stop for begin, _ in self._groups)
                places[task] = len(self._tasks)
                place = groups.index(group), below, last, self._parts
                line = len(self._rows), *box, *group, *place
                self._tasks.append(line)
                many = (stop - start) * (blocks.stop - blocks.start)
                end = self._parts + (many if shared else 1)
                self._slots.append(slice(self._parts, end))
                self._parts = end
            sizes = (
                layer,
                stage.offset,
                graph.steps,
                graph.blocks,
                len(groups),
                self._count,
            )
            how = stepwise, shared, stage.changes, first, len(self._tasks)
            self._rows.append((0, *sizes, *how))
            self._performs.append(stage.perform)
            self._count += len(groups)
            self._groups = groups
        return places

    def _new_spans(self):
        return buffer(self._parts * self.timed, 8, dtype=np.int64)

    @property
    def participants(self):
        """How many of the workers are threads of this process."""
        return self.workers if self.shared is None else 1

    def aim(self, work):
        """Let new records point to those of a Work, with words that begin anew, or that
        other ranks count on.
        """
        record, rows = np.zeros(1, PLAN), np.array(self._rows, ROW)
        edition = buffer(8, dtype=np.int64)
        if self.shared is None:
            words = buffer(self.words, dtype=np.uint8)
        else:
            rank, words = self.shared
            point(record, first=rank)
            if self.aimed is not None:
                edition[:] = self._edition
        counters = at(words) + len(self._tasks) * LINE
        rows["counters"] = counters + rows["counters"] * LINE
        if self._codes is None:
            self._codes = [address(p, work.job.dtype) for p in self._performs]
        rows["perform"] = self._codes
        self.spans = self._new_spans()
        if self.timed:
            point(record, spans=self.spans)
        point(record, bounds=self._bounds, lists=self._lists, tasks=self._tasks)
        point(record, rows=rows, row_count=len(rows), claims=words)
        point(record, job=work.job, progress=work.progress, workers=self.workers)
        point(record, helps=self.shared is None, fp_env=work.fp_env)
        self._edition, self.address = edition, at(record)
        region = self.participants, address(run, PLAN), self.address, at(edition)
        self.region = region  # of a team
        self.aimed = work.job
        self.arrays = record, rows, words, edition, self.spans

    @property
    def began(self):
        """When the last part of a pass began, in nanoseconds of `team.clock`."""
        return self.spans[:, 2].max(initial=0)

    def timeline(self, number):
        """When each part of stage `number` ran, as a Timeline; None if the last pass
        was not timed, or was left.
        """
        schedule, taken = self.stages[number].schedule, []
        first = sum(len(stage.schedule.tasks) for stage in self.stages[:number])
        for index, count in Counter(part.task for part in schedule.parts).items():
            slots = self.spans[self._slots[self._order[first + index]]]
            for blocks in slots.reshape(count, -1, 8).tolist():  # of a part
                _, workers, starts, stops, *_ = zip(*blocks, strict=True)
                if 0 in stops:
                    return None
                stop, worker = max(zip(stops, workers, strict=True))
                taken.append((index, worker, min(starts), stop))
        begin = min(start for _, _, start, _ in taken)
        spans = (
            Span(index, worker, (start - begin) / 1e9, (stop - begin) / 1e9)
            for index, worker, start, stop in taken
        )
        return Timeline(schedule, tuple(spans))
