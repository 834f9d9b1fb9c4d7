"""A pass of numbers for the scheduler (`cpu/scheduler.py`): what a cell computes shows
whether all that it needs was there.

A cell (row, step, block, sample) is a hash of its name, of how often it was computed,
and of the cells that it needs, of all blocks and of its sample: the step before; of the
row below the same step, or where a stage begins all steps. `Toy.want` says anew what
they are.
"""

from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from lstm_kernels import kernels
from lstm_kernels.cpu.atomics import atomic_add, atomic_exchange, load_acquire
from lstm_kernels.cpu.entries import Arguments
from lstm_kernels.cpu.fp_mode import KEEP
from lstm_kernels.cpu.intrinsics import pause
from lstm_kernels.cpu.packing import aligned
from lstm_kernels.cpu.plan import Pass, Stage
from lstm_kernels.cpu.scheduler import CANCEL
from lstm_kernels.schedules import Graph, Schedule, Task, by_units, wavefront

ROWS, STEPS, BLOCKS, SAMPLES = SHAPE = 10, 8, 5, 4  # there is room for so many
CELLS = ROWS * STEPS * BLOCKS * SAMPLES
FACTOR, NAME = 0x1E3779B97F4A7C15, 7919
DELAYS = 64
K = 0  # the stage, which `kernel_of` fills in


class Job(NamedTuple):
    control: np.ndarray  # words of the scheduler
    values: np.ndarray  # (CELLS,): what cells are
    counts: np.ndarray  # (CELLS,): how often they were computed
    delays: np.ndarray  # (DELAYS,): pauses of some
    # Of each stage its first row, layers, steps, blocks, backward?, changes?
    stages: np.ndarray
    began: np.ndarray  # items that began; with which one the pass is cancelled


def cell(row, step, block, sample):
    """The place of a cell."""
    return ((row * STEPS + step) * BLOCKS + block) * SAMPLES + sample


def toy(job, number, l, begin, end, start, stop, low, high, first, last):
    """The cells of a box; 1, and none of them, where the pass is cancelled."""
    stage = job.stages[K]
    if atomic_add(job.began, 0, 1) + 1 == job.began[1]:
        atomic_exchange(job.control, CANCEL, 1)
    if stage[5] == 0 and load_acquire(job.control, CANCEL):
        return 1
    below = stage[1] - 1 - l if stage[4] else l  # rows of this stage
    row = stage[0] + below
    for t in range(start, stop):
        for j in range(low, high):
            for s in range(first, last):
                total = 0
                for i in range(stage[3]):
                    if t > 0:
                        total += job.values[cell(row, t - 1, i, s)]
                    if below > 0:
                        total += job.values[cell(row - 1, t, i, s)]
                if below == 0 and K > 0:
                    for u in range(job.stages[K - 1, 2]):
                        for i in range(job.stages[K - 1, 3]):
                            total += job.values[cell(row - 1, u, i, s)]
                n = cell(row, t, j, s)
                for _ in range(job.delays[n % DELAYS]):
                    pause()
                counted = atomic_add(job.counts, n, 1) + 1
                job.values[n] = total * FACTOR + n * NAME + counted
    return 0


@cache
def kernel_of(stage):
    return kernels.fill([cell, toy], {"K": stage}, f"toy{stage}", kernels.part)["toy"]


class Toy:
    """A pass of toy cells: stages are pairs of a Schedule and whether it changes
    parameters.
    """

    def __init__(self, *stages):
        self.graphs, words, row = [schedule.graph for schedule, _ in stages], [], 0
        for schedule, changes in stages:
            graph = schedule.graph
            sizes = graph.layers, graph.steps, graph.blocks, graph.backward, changes
            words.append((row, *sizes))
            row += graph.layers
        self.control = aligned((16,), np.int64)
        values, counts = np.zeros((2, CELLS), np.int64)
        self.values, self.counts = values.reshape(SHAPE), counts.reshape(SHAPE)
        self.delays, self.began = np.zeros(DELAYS, np.int64), aligned((8,), np.int64)
        words = np.array(words, np.int64)
        job = Job(self.control, values, counts, self.delays, words, self.began)
        self._stages = [
            Stage(kernel_of(k), schedule, changes)
            for k, (schedule, changes) in enumerate(stages)
        ]
        self._arguments = Arguments(job)
        self.renew()

    def renew(self):
        """Words that count anew, as those of a new workspace."""
        self.control[CANCEL] = 0
        self.plan = Pass(self._stages, self._arguments, KEEP, timed=True)

    def clear(self, cancels_at=0):
        """Nothing is computed; the pass is cancelled with the how manieth item, or
        never.
        """
        for array in (self.values, self.counts, self.began):
            array[...] = 0
        self.began[1] = cancels_at

    def run(self, passes=1, came=None):
        """So many passes in one region, to which so many workers come."""
        _, *rest = self.plan._region
        self.plan._region = came or self.plan.workers, *rest
        self.plan.run(passes, self)

    def want(self, passes):
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
                    made = total * factor + names[row, t][box] + np.uint64(passes)
                    values[row, t][box] = made
                    counts[row, t][box] = passes
                row += 1
            last = graph
        return values.view(np.int64), counts

    def check(self, passes):
        """Each cell was computed so often, after all that it needs."""
        values, counts = self.want(passes)
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
