"""A pass of numbers for the loop of all passes (`cpu/run.py`): what a cell computes
shows whether all that it needs was there.

A cell (row, step, block, sample) is a hash of its name, of how often it was computed,
and of the cells that it needs, of all blocks and of its sample: the step before; of the
row below the same step, or where a stage begins all steps. `Toy.want` says anew what
they are.
"""

from itertools import pairwise

import numpy as np

from lstm_kernels.cpu.arrays import LAYER, record
from lstm_kernels.cpu.instructions import add, exchange, integers, pause, read
from lstm_kernels.cpu.memory import buffer, point
from lstm_kernels.cpu.plans import Plan, Stage
from lstm_kernels.cpu.run import LEAVE
from lstm_kernels.cpu.workspace import Work
from lstm_kernels.kernels import part
from lstm_kernels.schedules import Graph, Schedule, Task, by_units, wavefront

ROWS, STEPS, BLOCKS, SAMPLES = SHAPE = 10, 8, 5, 4  # there is room for so many
CELLS = ROWS * STEPS * BLOCKS * SAMPLES
APART = 100  # from the first step of a stage to that of the next one
FACTOR, NAME = 0x1E3779B97F4A7C15, 7919
STAGE = 8  # words of a stage: its first row, layers, steps, blocks, backward?, changes?
DELAYS = 64
# What cells are, how often they were computed, the pauses of some; the stages; counts
# the parts that began, of which the last one but `leaves_at` lets all leave.
TOY, _ = record("address layers progress values counts delays stages began leaves_at")


@part
def cell(row, step, block, sample):
    """The place of a cell."""
    return ((row * STEPS + step) * BLOCKS + block) * SAMPLES + sample


@part
def toy(job, l, start, stop, step, end, low, high, first, last):
    """The cells of a box; 1, and none of them, where all are to leave."""
    k = start // APART
    stage = integers(job.stages + k * STAGE * 8, STAGE)
    if add(job.began, 1) + 1 == job.leaves_at:
        exchange(job.progress + LEAVE, 1)
    if stage[5] == 0 and read(job.progress + LEAVE):
        return 1
    values, delays = integers(job.values, CELLS), integers(job.delays, DELAYS)
    below = stage[1] - 1 - l if stage[4] else l  # rows of this stage
    row = stage[0] + below
    for t in range(step - k * APART, end - k * APART):
        for j in range(low, high):
            for s in range(first, last):
                total = 0
                for i in range(stage[3]):
                    if t > 0:
                        total += values[cell(row, t - 1, i, s)]
                    if below > 0:
                        total += values[cell(row - 1, t, i, s)]
                if below == 0 and k > 0:
                    before = integers(job.stages + (k - 1) * STAGE * 8, STAGE)
                    for u in range(before[2]):
                        for i in range(before[3]):
                            total += values[cell(row - 1, u, i, s)]
                n = cell(row, t, j, s)
                for _ in range(delays[n % DELAYS]):
                    pause()
                counted = add(job.counts + 8 * n, 1) + 1
                values[n] = total * FACTOR + n * NAME + counted
    return 0


class Some(Plan):
    """A Plan of which so many participants come, whatever workers it has."""

    came = None

    @property
    def participants(self):
        return self.came or self.workers


class Toy:
    """A pass of toy cells: stages are pairs of a Schedule and whether it changes
    parameters, as a Plan for a Work.
    """

    def __init__(self, *stages):
        self.graphs, words, row = [schedule.graph for schedule, _ in stages], [], 0
        for schedule, changes in stages:
            graph = schedule.graph
            sizes = graph.layers, graph.steps, graph.blocks, graph.backward, changes
            words.append((row, *sizes, 0, 0))
            row += graph.layers
        self.values, self.counts = np.zeros((2, *SHAPE), np.int64)
        self.delays, self.began = np.zeros(DELAYS, np.int64), buffer(8, dtype=np.int64)
        self._stages, job = np.array(words, np.int64), np.zeros(1, TOY)
        point(job, values=self.values, counts=self.counts, delays=self.delays)
        point(job, stages=self._stages, began=self.began)
        self.work = Work(np.zeros(1, LAYER), job)
        self.plan = Some(
            [
                Stage(toy, schedule, changes, APART * k)
                for k, (schedule, changes) in enumerate(stages)
            ],
            timed=True,
        )

    def clear(self, leaves_at=0):
        """Nothing is computed; all are to leave at the how manieth part, or never."""
        for array in (self.values, self.counts, self.began):
            array[...] = 0
        self.work.settle()
        self.work.job["leaves_at"] = leaves_at

    def run(self, editions=1, came=None):
        """So many passes in one region, to which so many participants come."""
        self.plan.came = came
        if self.plan.aimed is not None:
            self.plan.region = self.plan.participants, *self.plan.region[1:]
        self.work.progress[1:3] = 0, editions  # the first, and the one after the last
        self.work.run(self.plan, self)

    def want(self, editions):
        """The cells and how often each is computed after so many passes."""
        values, counts = np.zeros(SHAPE, np.uint64), np.zeros(SHAPE, np.int64)
        names = np.arange(CELLS, dtype=np.uint64).reshape(SHAPE) * np.uint64(NAME)
        row, last, factor = 0, None, np.uint64(FACTOR)
        for graph in self.graphs:
            box = np.s_[: graph.blocks, : graph.samples]
            for layer in range(graph.layers):
                for t in range(graph.steps):
                    total = np.zeros(graph.samples, np.uint64)
                    if t > 0:
                        total += values[row, t - 1][box].sum(axis=0)
                    if layer > 0:
                        total += values[row - 1, t][box].sum(axis=0)
                    elif last is not None:
                        below = values[row - 1, : last.steps, : last.blocks]
                        total += below[..., : graph.samples].sum(axis=(0, 1))
                    made = total * factor + names[row, t][box] + np.uint64(editions)
                    values[row, t][box] = made
                    counts[row, t][box] = editions
                row += 1
            last = graph
        return values.view(np.int64), counts

    def check(self, editions):
        """Each cell was computed so often, after all that it needs."""
        values, counts = self.want(editions)
        np.testing.assert_array_equal(self.counts, counts)
        np.testing.assert_array_equal(self.values, values)


def random_cuts(rng, count, most):
    """Bounds of up to `most` parts of 0, ..., count-1."""
    inner = rng.integers(1, count, most - 1) if count > 1 else ()
    return [*pairwise(sorted({0, count, *map(int, inner)}))]


def random_schedule(rng, graph, workers=5):
    """A random wavefront; or boxes of any size on any workers: each layer in chunks,
    each chunk in unit blocks, which are of workers of their own.
    """
    if rng.random() < 0.3:
        sizes = (int(rng.integers(1, n + 1)) for n in (workers, graph.steps))
        together = int(rng.integers(1, graph.layers + 1))
        return wavefront(graph, *sizes, together=together)
    if rng.random() < 0.2:
        return by_units(graph, int(rng.integers(1, workers + 1)))
    groups, tasks = random_cuts(rng, graph.samples, 3), []
    parts = int(rng.integers(1, min(3, workers) + 1))  # of a step, at most
    for layer in range(graph.layers):
        for start, stop in random_cuts(rng, graph.steps, 4):
            for group in groups:
                blocks = random_cuts(rng, graph.blocks, parts)
                some = rng.permutation(workers).tolist()
                for worker, box in zip(some, blocks, strict=False):
                    tasks.append(Task(layer, start, stop, worker, box, group))
    return Schedule(graph, tuple(sorted(tasks, key=graph.rank)))


def random_toy(rng, workers=6):
    """Up to three stages of rows that share their steps or do not."""
    samples, stages = int(rng.integers(1, SAMPLES + 1)), []
    for _ in range(rng.integers(1, 4)):
        sizes = (int(rng.integers(1, n + 1)) for n in (3, STEPS))
        way, blocks = bool(rng.integers(2)), int(rng.integers(1, BLOCKS + 1))
        graph = Graph(*sizes, way, blocks, samples)
        some = int(rng.integers(1, workers + 1))
        stages.append((random_schedule(rng, graph, some), False))
    return Toy(*stages)
