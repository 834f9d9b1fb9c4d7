"""A pass of toy cells for the scheduler (`cpu/scheduler.py`), which only count.

A cell (row, step, block, sample) looks whether the cells that it needs were computed as
often as it is from now on. These are cells of all blocks and of its sample: the step
before; of the row below the same step, or where a stage begins all steps.
"""

from functools import cache
from itertools import pairwise, product
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
DELAYS = 64
K = 0  # the stage, which `kernel_of` fills in


class Job(NamedTuple):
    control: np.ndarray  # words of the scheduler
    counts: np.ndarray  # SHAPE: how often cells were computed
    delays: np.ndarray  # (DELAYS,): pauses of some
    # Of each stage its first row, layers, steps, blocks, backward?, changes?
    stages: np.ndarray
    # Items that began; with which one the pass is cancelled; cells that were not there
    words: np.ndarray


@kernels.part
def missing(counts, steps, blocks, s, times):
    """How many cells of a row were not computed so often."""
    total = 0
    for t in steps:
        for j in range(blocks):
            total += counts[t, j, s] != times
    return total


def toy(job, item):
    """The cells of a work item; 1, and none of them, where the pass is cancelled."""
    row, layers, _, blocks, backward, changes = job.stages[K]
    if atomic_add(job.words, 0, 1) + 1 == job.words[1]:
        atomic_exchange(job.control, CANCEL, 1)
    if changes == 0 and load_acquire(job.control, CANCEL):
        return 1
    layer = layers - 1 - item.layer if backward else item.layer
    row += layer
    for t in range(item.start, item.stop):
        for j in range(item.low, item.high):
            for s in range(item.first, item.last):
                times, lost = job.counts[row, t, j, s] + 1, 0
                if t > 0:
                    lost += missing(job.counts[row], range(t - 1, t), blocks, s, times)
                below = job.counts[row - 1]
                if layer > 0:
                    lost += missing(below, range(t, t + 1), blocks, s, times)
                elif K > 0:
                    steps, others = job.stages[K - 1, 2], job.stages[K - 1, 3]
                    lost += missing(below, range(steps), others, s, times)
                for _ in range(job.delays[(7 * t + 3 * j + row + s) % DELAYS]):
                    pause()
                atomic_add(job.words, 2, lost)
                job.counts[row, t, j, s] = times
    return 0


@cache
def kernel_of(stage):
    return kernels.fill([toy], {"K": stage}, f"toy{stage}")["toy"]


class Toy:
    """A pass of toy cells: stages are pairs of a Schedule and whether it changes
    parameters.
    """

    def __init__(self, *stages):
        self.graphs, rows, row = [schedule.graph for schedule, _ in stages], [], 0
        for graph, (_, changes) in zip(self.graphs, stages, strict=True):
            sizes = graph.layers, graph.steps, graph.blocks, graph.backward, changes
            rows.append((row, *sizes))
            row += graph.layers
        self.counts, self.delays = np.zeros(SHAPE, np.int64), np.zeros(DELAYS, np.int64)
        control, self._words = aligned((16,), np.int64), aligned((8,), np.int64)
        rows = np.array(rows, np.int64)
        job = Job(control, self.counts, self.delays, rows, self._words)
        self._stages = [
            Stage(kernel_of(k), schedule, changes)
            for k, (schedule, changes) in enumerate(stages)
        ]
        self._arguments = Arguments(job)
        self.renew()

    def renew(self, cancels_at=0):
        """Nothing is computed yet; the pass is cancelled when so many items have begun,
        or never.
        """
        self.counts[...] = self._words[...] = 0
        self._words[1] = cancels_at
        self._arguments.values.control[CANCEL] = 0
        self.plan = Pass(self._stages, self._arguments, KEEP, timed=True)

    def run(self, passes=1, came=6):
        """So many passes in one region, to which at most so many workers come."""
        _, *rest = self.plan._region
        self.plan._region = min(came, self.plan.workers), *rest
        self.plan.run(passes, self)

    def check(self, passes):
        """Each cell was computed so often, after all that it needs."""
        counts, row = np.zeros(SHAPE, np.int64), 0
        for graph in self.graphs:
            rows = slice(row, row + graph.layers)
            counts[rows, : graph.steps, : graph.blocks, : graph.samples] = passes
            row = rows.stop
        np.testing.assert_array_equal(self.counts, counts)
        assert self._words[2] == 0


def random_cuts(rng, count, most):
    """Bounds of up to `most` parts of 0, ..., count-1."""
    inner = rng.integers(1, count, most - 1) if count > 1 else ()
    return [*pairwise(sorted({0, count, *map(int, inner)}))]


def random_schedule(rng, graph, workers=5):
    """A random wavefront, a partition by units, or boxes of any size on any workers:
    each layer in chunks, each chunk in unit blocks, which are of workers of their own.
    """
    kind = rng.random()
    if kind < 0.3:
        sizes = (int(rng.integers(1, n + 1)) for n in (workers, graph.steps))
        together = int(rng.integers(1, graph.layers + 1))
        return wavefront(graph, *sizes, together=together)
    if kind < 0.45:
        return by_units(graph, int(rng.integers(1, workers + 1)))
    groups, tasks = random_cuts(rng, graph.samples, 3), []
    parts = int(rng.integers(1, min(3, workers) + 1))  # of a step, at most
    for layer in range(graph.layers):
        for (start, stop), group in product(random_cuts(rng, graph.steps, 4), groups):
            owners = rng.permutation(workers).tolist()
            blocks = random_cuts(rng, graph.blocks, parts)
            for worker, box in zip(owners, blocks, strict=False):
                tasks.append(Task(layer, start, stop, worker, box, group))
    return Schedule(graph, tuple(sorted(tasks, key=graph.rank)))


def random_toy(rng, workers=6):
    """Up to three stages of rows that share their steps or do not."""
    samples, stages = int(rng.integers(1, SAMPLES + 1)), []
    for _ in range(rng.integers(1, 4)):
        layers, steps, blocks, employed = (
            int(rng.integers(1, most + 1)) for most in (3, STEPS, BLOCKS, workers)
        )
        graph = Graph(layers, steps, bool(rng.integers(2)), blocks, samples)
        stages.append((random_schedule(rng, graph, employed), False))
    return Toy(*stages)
