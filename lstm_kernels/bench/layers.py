"""Layers in parallel: what a schedule takes, measured from the time stamps of its tasks, beside
what `simulate.py` predicts.
"""

import time
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product

import numba
import numpy as np
import pandas as pd

from .. import cores, schedules, simulate
from ..cpu import flow
from ..kernels import native
from ..schedules import Costs, Graph, Schedule, Task, wavefront
from ..versions import network
from ..versions.numba_wavefront import NumbaWavefront
from .comparer import TOLERANCE, MismatchError, compare, truth
from .experiments import Workload, repeats_for, rows_of
from .timing import interleaved, summary

WAYS = ("forward", "backward")
DEEP = Workload(L=8, T=500, D=256, H=256, B=1)
SMALL_DEEP = Workload(L=2, T=24, D=8, H=16, B=1)
# Chunks of these two lengths, on one thread, give the costs of a step and of a task.
SHORT, LONG = 5, 50


def empty_task(task, _, address):
    return 0


@cache
def _empty():
    """The machine code of a task that does nothing."""
    return native(empty_task, "empty")


def handovers(order, count=400, runs=20, patience=10):
    """Nanoseconds from the end of the last task waited for to the start of the one that waits.

    order: "point-to-point", a chain of empty tasks whose neighbours run on different threads;
    "barrier", rounds of one empty task on each of two threads. Goes on until each thread ran its
    own tasks in `runs` runs, since on busy cores one does both threads' work; after `patience`
    seconds it makes do with runs in which both took part, and is empty without any.
    """
    if order == "barrier":
        schedule = wavefront(Graph(2, count), 2, 1, order=order)
    else:
        chain = [Task(0, i, i + 1, worker=i % 2, after=(i - 1,) if i else ()) for i in range(count)]
        schedule = Schedule(Graph(1, count), tuple(chain))
    running, mine, found, good = flow.Flow(schedule), [t.worker for t in schedule.tasks], [], []
    end = time.perf_counter() + patience
    while len(good) < runs and time.perf_counter() < end:
        for _ in range(2):  # in the second one both threads are awake
            running.run(2, _empty(), 0, None)
        line = running.timeline()
        ran = [span.worker for span in line.spans]
        if len(set(ran)) == 2:
            found.append(_waits(line)[2:])  # the first two tasks wait for nothing
            good += found[-1:] if np.mean(np.equal(ran, mine)) > 0.9 else []
    return np.concatenate(good or found or [np.empty(0)])


def _waits(line):
    """Nanoseconds from the end of the last task that a task waits for, or that its worker has
    before it, to the start of the task; of all tasks of a Timeline.
    """
    waits, before = [], {}
    for index, task in enumerate(line.schedule.tasks):
        others = [*task.after, *before.get(task.worker, ())]
        end = max((line.spans[other].stop for other in others), default=0.0)
        waits.append(1e9 * (line.spans[index].start - end))
        before[task.worker] = [index]
    return np.array(waits)


@dataclass
class Pass:
    """A pass of one network by one schedule: run() gives its seconds; spans of all runs stay."""

    work: Workload
    way: str
    threads: int
    schedule: Schedule
    lines: list = field(default_factory=list)

    def __post_init__(self):
        (x, _), back, way = self.work.example(), self.way == "backward", self.schedule.graph

        def pick(graph):
            return self.schedule if graph == way else schedules.layer_by_layer(graph)

        net = self._net = NumbaWavefront(self.work.params(), self.threads, schedules=pick)
        net.forward(x, training=back)
        self._call = partial(net.backward, ones(self.work)) if back else partial(net.forward, x)

    def arrays(self):
        """What the pass computes, by name: y, or every gradient."""
        result = self._call()
        return result.arrays() if self.way == "backward" else {"inference: y": result[0]}

    def run(self):
        """Seconds from the first task's start to the last one's end; the second run of two, with
        the weights in the cache that they fit.
        """
        for _ in range(2):
            self._call()
        back = self.way == "backward"
        self.lines.append(self._net.timeline(self.work.T, self.work.B, back, back))
        return self.lines[-1].makespan

    @property
    def timeline(self):
        """The run of median length."""
        return sorted(self.lines, key=lambda line: line.makespan)[len(self.lines) // 2]

    def seconds(self, chunk, moved=False):
        """Median seconds of a task of `chunk` steps after one of the same layer, or of another."""
        chosen, before = [], {}
        for index, task in enumerate(self.schedule.tasks):
            other = before.get(task.worker, task.layer) != task.layer
            if task.stop - task.start == chunk and task.worker in before and other == moved:
                chosen.append(index)
            before[task.worker] = task.layer
        spans = [line.spans[index] for line in self.lines for index in chosen]
        return float(np.median([span.stop - span.start for span in spans]))


def ones(work):
    """The gradient of y (T, B, H) that backward passes begin with."""
    return np.ones((work.T, work.B, work.H), np.float32)


def verify(passes):
    """Largest relative error of each pass against the reference in float64, by key; raises
    MismatchError.
    """
    errors, wants = {}, {}
    for key, timed in passes.items():
        work = timed.work
        if work not in wants:
            wants[work] = truth(work.params(), work.example()[0], ones(work))
        got = timed.arrays()
        want = {name: wants[work][name] for name in got}
        errors[key] = compare(got, want, TOLERANCE[np.dtype(np.float32)])
    return errors


def schedule_for(work, way, threads, chunk, *, together=None, order="point-to-point"):
    """A wavefront of a workload; as many layers side by side as threads, if not told otherwise."""
    graph = Graph(work.L, work.T, backward=way == "backward")
    together = min(threads, work.L) if together is None else together
    return wavefront(graph, threads, chunk, together=together, order=order)


def calibration(work, way):
    """The passes that `fit` takes costs from: one thread that stays with its layer, in short chunks
    and in long ones; one that changes layers; where there are two, two threads with a layer each.
    """
    short, long = (max(1, min(chunk, work.T // 2)) for chunk in (SHORT, LONG))
    two = Workload(2, *_rest(work))
    passes = {
        "short": Pass(two, way, 1, schedule_for(two, way, 1, short)),
        "long": Pass(two, way, 1, schedule_for(two, way, 1, long)),
        "moving": Pass(two, way, 1, schedule_for(two, way, 1, short, together=2)),
    }
    if 2 in threads():
        passes["both"] = Pass(two, way, 2, schedule_for(two, way, 2, long))
    return passes


def threads():
    """The numbers of threads that are compared: one, and two where there are two cores."""
    return (1, 2)[: min(numba.get_num_threads(), cores.cores())]


def _rest(work):
    return work.T, work.D, work.H, work.B


def fit(passes, hand):
    """Costs (of one layer) from the timed passes of `calibration`."""
    short, long = (passes[name].schedule.longest for name in ("short", "long"))
    low, high = passes["short"].seconds(short), passes["long"].seconds(long)
    step = (high - low) / (long - short) if long > short else low / short
    task = max(0.0, low - short * step)
    moved = max(0.0, passes["moving"].seconds(short, moved=True) - low)
    shared = passes["both"].seconds(long) / high if "both" in passes else 1.0
    return Costs((step,), task, hand, moved, max(1.0, shared))


def of_layers(costs, layers):
    """The same costs for each of so many layers."""
    return Costs(costs.step * layers, costs.task, costs.hand, costs.moved, costs.shared)


@dataclass
class Sweep:
    """Timed passes by (sweep, way, how, size), their times, costs by way, errors of what the passes
    computed, and how the predictions compare.
    """

    passes: dict
    times: pd.DataFrame
    costs: dict
    errors: dict

    @property
    def table(self):
        """Measured and simulated milliseconds of every pass that no cost was fitted to."""
        medians, rows = self.times.groupby("case")["seconds"].median(), []
        for key in self.passes:
            if key[0] != "calibration":
                predicted = self.beside(*key)["Predicted"].makespan
                rows.append((*key, 1e3 * medians[str(key)], 1e3 * predicted))
        columns = ["sweep", "way", "how", "size", "measured", "predicted"]
        table = pd.DataFrame(rows, columns=columns)
        return table.assign(error=table["predicted"] / table["measured"] - 1)

    def beside(self, *key):
        """The Timelines of a pass, predicted and measured."""
        timed = self.passes[key]
        costs = of_layers(self.costs[timed.way], timed.work.L)
        return {
            "Predicted": simulate.simulate(timed.schedule, costs),
            "Measured": timed.timeline,
        }

    def rows(self):
        """The sweep over layers as rows of a results file."""
        parts = []
        for key, timed in self.passes.items():
            if key[0] == "layers":
                times = self.times[self.times["case"] == str(key)].assign(case="numba-wavefront")
                error = {"numba-wavefront": self.errors[key]}
                part = rows_of(times, timed.work, timed.way, error)
                parts.append(part.assign(threads=timed.threads))
        return pd.concat(parts, ignore_index=True)


def sweep(work=DEEP, *, layers=(1, 2, 4, 8, 16), chunks=(5, 10, 20, 50, 125, 500), repeats=10):
    """Time passes of `work` with other numbers of layers on one and two threads, and with chunks of
    other lengths on two, all in one loop with the passes that the costs are fitted to. Verified
    before and after. Where there is one core, those on two threads are left out.
    """
    passes, usual = {}, max(1, min(20, work.T // 2))
    for way in WAYS:
        for name, timed in calibration(work, way).items():
            passes["calibration", way, name, 0] = timed
        for count, P in product(layers, threads()):
            some, beside = Workload(count, *_rest(work)), P if count % P == 0 else count
            plan = schedule_for(some, way, P, usual if P == 2 else work.T, together=beside)
            passes["layers", way, P, count] = Pass(some, way, P, plan)
        for chunk, order in product(
            chunks if 2 in threads() else (), ("point-to-point", "barrier")
        ):
            beside = work.L if order == "barrier" else 2
            plan = schedule_for(work, way, 2, chunk, together=beside, order=order)
            passes["chunks", way, order, chunk] = Pass(work, way, 2, plan)
    waits = handovers("point-to-point") if 2 in threads() else np.empty(0)
    hand = 1e-9 * float(np.median(waits)) if waits.size else 0.0
    errors = verify(passes)
    cases = {str(key): timed.run for key, timed in passes.items()}
    times = interleaved(cases, repeats=repeats, own=True)
    verify(passes)
    costs = {
        way: fit({key[2]: p for key, p in passes.items() if key[:2] == ("calibration", way)}, hand)
        for way in WAYS
    }
    return Sweep(passes, times, costs, errors)


def picked(work):
    """How long the chunks are that `numba-wavefront` takes when nobody tells it, in words."""
    net = NumbaWavefront(work.params())
    found = {way: net.pick(net.graph(work.T, way == "backward"), work.B) for way in WAYS}
    return ", ".join(f"{plan.longest} {way}" for way, plan in found.items())


def against_fused(batches, hidden, *, L=4, T=100, repeats=7):
    """Speed of `numba-wavefront` over `numba-fused`, inference, two threads: a table B x H. Raises
    MismatchError unless both compute the same bits.
    """
    table = {}
    for H in hidden:
        for B in batches:
            work = Workload(L, T, H, H, B)
            params, (x, _) = work.params(), work.example()
            nets = {name: network(name, params) for name in ("numba-fused", "numba-wavefront")}
            cases = {name: partial(net.forward, x) for name, net in nets.items()}
            count = min(repeats, repeats_for(work))
            times = summary(interleaved(cases, repeats=count, least=0.01), "numba-fused")
            table[B, H] = times["ratio"]["numba-wavefront"]
            one, other = (net.forward(x)[0] for net in nets.values())
            if not (np.isfinite(one).all() and np.array_equal(one, other)):
                raise MismatchError(f"{work}: numba-wavefront computes other bits than numba-fused")
    return pd.Series(table).unstack()


def many_cores(costs, cores, layers, T):
    """Predicted speed-up over one core of the best wavefront, cores x layers."""
    table = {}
    for L in layers:
        every, graph = of_layers(costs, L), Graph(L, T)
        alone = simulate.simulate(simulate.choose(graph, 1, every), every).makespan
        for P in cores:
            chosen = simulate.choose(graph, P, every, most_tasks=4096)
            best = simulate.simulate(chosen, every).makespan
            table[P, L] = alone / best
    return pd.Series(table).unstack()


def without(schedule, index):
    """The schedule, but task `index` waits for nobody: wrong on purpose."""
    tasks = list(schedule.tasks)
    tasks[index] = tasks[index]._replace(after=())
    return Schedule(schedule.graph, tuple(tasks))
