"""Layers in parallel: what a schedule takes, measured from the time stamps of its tasks, and what
`simulate.py` predicts.
"""

import time
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import product

import numba
import numpy as np
import pandas as pd

from .. import cores, schedules, simulate
from ..cpu import flow
from ..kernels import native
from ..schedules import Costs, Graph, Schedule, Task, wavefront
from ..versions.numba_wavefront import NumbaWavefront
from .comparer import TOLERANCE, MismatchError, compare, truth
from .runner import each, networks, rows_of, timed, verify
from .timing import model_error, summary, together
from .workloads import GRID, Workload

WAYS = ("forward", "backward")
DEEP = GRID["deep, one sample"]
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
    running, workers = flow.Flow(schedule), [task.worker for task in schedule.tasks]
    shared, exact = [], []  # the waits of runs that both threads took part in; as scheduled
    end = time.perf_counter() + patience
    while len(exact) < runs and time.perf_counter() < end:
        for _ in range(2):  # in the second one both threads are awake
            running.run(2, _empty(), 0, None)
        line = running.timeline()
        ran = [span.worker for span in line.spans]
        if len(set(ran)) == 2:
            shared.append(_waits(line)[2:])  # the first two tasks wait for nothing
            exact += shared[-1:] if np.mean(np.equal(ran, workers)) > 0.9 else []
    return np.concatenate(exact or shared or [np.empty(0)])


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
        (x, _), back, graph = self.work.example(), self.way == "backward", self.schedule.graph

        def pick(other):
            return self.schedule if other == graph else schedules.layer_by_layer(other)

        net = self._net = NumbaWavefront(self.work.params(), self.threads, schedules=pick)
        net.forward(x, training=back)
        self._call = partial(net.backward, self.work.dy()) if back else partial(net.forward, x)

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


def verify_passes(passes):
    """Largest relative error of each pass against the reference in float64, by its key as text;
    raises MismatchError.
    """
    errors, wants = {}, {}
    for key, timed_pass in passes.items():
        work = timed_pass.work
        if work not in wants:
            wants[work] = truth(work.params(), work.example()[0], work.dy())
        got = timed_pass.arrays()
        want = {name: wants[work][name] for name in got}
        errors[str(key)] = compare(got, want, TOLERANCE[np.dtype(np.float32)])
    return errors


def schedule_for(work, way, threads, chunk, *, together=None, order="point-to-point"):
    """A wavefront of a workload; as many layers side by side as threads, if not told otherwise."""
    graph = Graph(work.L, work.T, backward=way == "backward")
    beside = min(threads, work.L) if together is None else together
    return wavefront(graph, threads, chunk, together=beside, order=order)


def calibration(work, way):
    """The passes that `fit` takes costs from: one thread that stays with its layer, in short chunks
    and in long ones; one that changes layers; where there are two, two threads with a layer each.
    """
    short, long = (max(1, min(chunk, work.T // 2)) for chunk in (SHORT, LONG))
    two = replace(work, L=2)
    passes = {
        "short": Pass(two, way, 1, schedule_for(two, way, 1, short)),
        "long": Pass(two, way, 1, schedule_for(two, way, 1, long)),
        "moving": Pass(two, way, 1, schedule_for(two, way, 1, short, together=2)),
    }
    if 2 in thread_counts():
        passes["both"] = Pass(two, way, 2, schedule_for(two, way, 2, long))
    return passes


def thread_counts():
    """The numbers of threads that are compared: one, and two where there are two cores."""
    return (1, 2)[: min(numba.get_num_threads(), cores.cores())]


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
    return replace(costs, step=costs.step * layers)


@dataclass
class Sweep:
    """Timed passes by (sweep, way, how, size), their times (`case` is the key as text), costs by
    way, and how the predictions compare.
    """

    passes: dict
    times: pd.DataFrame
    costs: dict

    @property
    def errors(self):
        """The largest relative error of what each pass computed."""
        return self.times.groupby("case")["max_err"].first().to_dict()

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

    @property
    def model_error(self):
        """`timing.model_error` over all passes of the table."""
        return model_error(self.table)

    def beside(self, *key):
        """The Timelines of a pass, predicted and measured."""
        timed_pass = self.passes[key]
        costs = of_layers(self.costs[timed_pass.way], timed_pass.work.L)
        return {
            "Predicted": simulate.simulate(timed_pass.schedule, costs),
            "Measured": timed_pass.timeline,
        }

    def rows(self):
        """The sweep over layers as rows of a results file."""
        parts = []
        for key, timed_pass in self.passes.items():
            if key[0] == "layers":
                times = self.times[self.times["case"] == str(key)]
                times = times.assign(case="numba-wavefront", stage=timed_pass.way)
                parts.append(rows_of(times, timed_pass.work).assign(threads=timed_pass.threads))
        return together(parts)


def sweep(
    work=DEEP, *, layers=(1, 2, 4, 8, 16), chunks=(5, 10, 20, 50, 125, 500), repeats=10, **options
):
    """Time passes of `work` with other numbers of layers on one and two threads, and with chunks of
    other lengths on two, all in one loop with the passes that the costs are fitted to. Verified
    before and after. Where there is one core, those on two threads are left out.
    """
    passes, usual = {}, max(1, min(20, work.T // 2))
    for way in WAYS:
        for name, timed_pass in calibration(work, way).items():
            passes["calibration", way, name, 0] = timed_pass
        for L, P in product(layers, thread_counts()):
            stack, beside = replace(work, L=L), P if L % P == 0 else L
            plan = schedule_for(stack, way, P, usual if P == 2 else work.T, together=beside)
            passes["layers", way, P, L] = Pass(stack, way, P, plan)
        for chunk, order in product(
            chunks if 2 in thread_counts() else (), ("point-to-point", "barrier")
        ):
            beside = work.L if order == "barrier" else 2
            plan = schedule_for(work, way, 2, chunk, together=beside, order=order)
            passes["chunks", way, order, chunk] = Pass(work, way, 2, plan)
    waits = handovers("point-to-point") if 2 in thread_counts() else np.empty(0)
    hand = 1e-9 * float(np.median(waits)) if waits.size else 0.0
    cases = {str(key): timed_pass.run for key, timed_pass in passes.items()}
    check = partial(verify_passes, passes)
    times = timed({"pass": cases}, check, repeats=repeats, own=True, **options)
    costs = {
        way: fit({key[2]: p for key, p in passes.items() if key[:2] == ("calibration", way)}, hand)
        for way in WAYS
    }
    return Sweep(passes, times, costs)


def picked(work):
    """How many steps the tasks have that `numba-wavefront` picks by itself, in words."""
    net = NumbaWavefront(work.params())
    plans = {way: net.pick(net.graph(work.T, way == "backward"), work.B) for way in WAYS}
    return ", ".join(f"{plan.longest} {way}" for way, plan in plans.items())


def against_fused(batches, hidden, *, L=4, T=100, repeats=7, **options):
    """Speed of `numba-wavefront` over `numba-fused`, inference, two threads: a table B x H. Raises
    MismatchError unless both compute the same bits.
    """
    table = {}
    for H, B in product(hidden, batches):
        work = Workload(L, T, H, H, B)
        times = _with_fused(work, repeats=min(repeats, work.repeats), **options)
        table[B, H] = summary(times, "numba-fused")["ratio"]["numba-wavefront"]
    return pd.Series(table).unstack()


def _with_fused(work, **options):
    x, nets = work.example()[0], networks(("numba-fused", "numba-wavefront"), work)

    def check():
        one, other = (net.forward(x)[0] for net in nets.values())
        if not np.array_equal(one, other):
            raise MismatchError(f"{work}: numba-wavefront computes other bits than numba-fused")
        return verify(nets, work)

    cases = {"forward": each(nets, lambda net: net.forward(x))}
    return timed(cases, check, least=0.01, **options)


def many_cores(costs, cores, layers, T):
    """Predicted speed-up over one core of the best wavefront, cores x layers."""
    table = {}
    for L in layers:
        every, graph = of_layers(costs, L), Graph(L, T)
        alone = simulate.simulate(simulate.choose(graph, 1, every), every).makespan
        for P in cores:
            chosen = simulate.choose(graph, P, every, most_tasks=4096)
            table[P, L] = alone / simulate.simulate(chosen, every).makespan
    return pd.Series(table).unstack()


def without(schedule, index):
    """The schedule, but task `index` waits for nobody: wrong on purpose."""
    tasks = list(schedule.tasks)
    tasks[index] = tasks[index]._replace(after=())
    return Schedule(schedule.graph, tuple(tasks))
