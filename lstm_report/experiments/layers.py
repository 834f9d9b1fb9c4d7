"""Layers in parallel: what a schedule takes, measured from the time stamps of its
tasks, and what `simulate.py` predicts.
"""

import time
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from operator import attrgetter

import numba
import numpy as np
import pandas as pd

from lstm_kernels import cores, schedules, simulate
from lstm_kernels.cpu import flow
from lstm_kernels.kernels import native
from lstm_kernels.schedules import Costs, Graph, Schedule, Task, wavefront
from lstm_kernels.versions.numba_wavefront import NumbaWavefront

from ..measure.comparer import TOLERANCE, compare, truth
from ..measure.runner import timed
from ..measure.timing import settle
from ..measure.workloads import GRID, Workload
from . import divisions

WAYS = ("forward", "backward")
DEEP = GRID["deep, one sample"]
SMALL_DEEP = Workload(L=2, T=24, D=8, H=16, B=1)
# Chunks of these two lengths, on one thread, give the costs of a step and of a task.
SHORT, LONG = 5, 50
STOP = attrgetter("stop")


def empty_task(task, _, address):
    return 0


def handovers(order, count=400, enough=8000, patience=10):
    """Nanoseconds from the end of the last task waited for to the start of the one that
    waits, on another thread.

    order: "point-to-point", a chain of empty tasks whose neighbours run on different
    threads; "barrier", rounds of one empty task on each of two threads. Goes on until
    `enough` are seen, for at most `patience` seconds: on busy cores one thread does the
    work of both, and hands over nothing.
    """
    if order == "barrier":
        schedule = wavefront(Graph(2, count), 2, 1, order=order)
    else:
        chain = [
            Task(0, i, i + 1, worker=i % 2, after=(i - 1,) if i else ())
            for i in range(count)
        ]
        schedule = Schedule(Graph(1, count), tuple(chain))
    running, address = flow.Flow(schedule), native(empty_task, "empty")
    waits, end = [], time.perf_counter() + patience
    stop = np.zeros(1, np.int64)
    while len(waits) < enough and time.perf_counter() < end:
        for _ in range(2):  # in the second one both threads are awake
            running.run(2, address, 0, stop, None)
        waits += handed_over(running.timeline())
    return np.array(waits)


def handed_over(line):
    """The same of the tasks of a Timeline."""
    waits = []
    for task, span in zip(line.schedule.tasks, line.spans, strict=True):
        last = max((line.spans[other] for other in task.after), key=STOP, default=span)
        if last.worker != span.worker:
            waits.append(1e9 * (span.start - last.stop))
    return waits


class Pass:
    """A pass of a network by a wavefront in chunks of some length: run() gives its
    seconds, the Timelines of all runs stay in `lines`. together: None is as many layers
    as threads.
    """

    def __init__(
        self, work, way, threads, chunk, *, together=None, order="point-to-point"
    ):
        back = way == "backward"
        graph = Graph(work.L, work.T, backward=back)
        together = min(threads, work.L) if together is None else together
        plan = wavefront(graph, threads, chunk, together=together, order=order)

        def pick(other):
            return plan if other == graph else schedules.layer_by_layer(other)

        self.work, self.way, self.threads = work, way, threads
        self.schedule, self.lines = plan, []
        net = self._net = NumbaWavefront(work.params(), threads, schedules=pick)
        x, _ = work.example()
        net.forward(x, training=back)
        call = partial(net.backward, work.dy())
        self._call = call if back else partial(net.forward, x)

    def error(self):
        """Largest relative error of what the pass computes, y or every gradient,
        compared with the reference in float64; raises MismatchError.
        """
        got, work = self._call(), self.work
        got = got.arrays() if self.way == "backward" else {"inference: y": got[0]}
        want = {name: wanted(work)[name] for name in got}
        return compare(got, want, TOLERANCE[np.dtype(np.float32)])

    def run(self):
        """Seconds from the first task's start to the last one's end; the second run of
        two, with the weights in the cache that they fit.
        """
        for _ in range(2):
            self._call()
        back = self.way == "backward"
        self.lines.append(self._net.timeline(self.work.T, self.work.B, back, back))
        return self.lines[-1].makespan

    @property
    def timeline(self):
        """The run of median length."""
        return sorted(self.lines, key=attrgetter("makespan"))[len(self.lines) // 2]

    def seconds(self, chunk, moved=False):
        """Median seconds of a task of `chunk` steps after one of the same layer, or of
        another.
        """
        spans, before = [], {}
        for index, task in enumerate(self.schedule.tasks):
            last = before.get(task.worker)
            alike = last is not None and (last != task.layer) == moved
            if alike and task.stop - task.start == chunk:
                spans += [line.spans[index] for line in self.lines]
            before[task.worker] = task.layer
        return float(np.median([span.stop - span.start for span in spans]))


@cache
def wanted(work):
    """What every pass of a workload computes, by name, from the reference in
    float64.
    """
    return truth(work.params(), work.example()[0], work.dy())


def calibration(work, way):
    """The passes that `fit` takes costs from: one thread that stays with its layer, in
    short chunks and in long ones; one that changes layers; where there are two, two
    threads with a layer each.
    """
    short, long = (max(1, min(chunk, work.T // 2)) for chunk in (SHORT, LONG))
    two = replace(work, L=2)
    passes = {
        "short": Pass(two, way, 1, short),
        "long": Pass(two, way, 1, long),
        "moving": Pass(two, way, 1, short, together=2),
    }
    return passes | ({"both": Pass(two, way, 2, long)} if 2 in thread_counts() else {})


def thread_counts():
    """The numbers of threads that are compared: one, and two where there are two
    cores.
    """
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
    """Timed passes by (sweep, way, how, size), their times (`case` is the key as text),
    costs by way, and how the predictions compare.
    """

    passes: dict
    times: pd.DataFrame
    costs: dict

    @property
    def table(self):
        """Measured and simulated milliseconds of every pass that no cost was fitted
        to.
        """
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
        timed_pass = self.passes[key]
        costs = of_layers(self.costs[timed_pass.way], timed_pass.work.L)
        predicted = simulate.simulate(timed_pass.schedule, costs)
        return {"Predicted": predicted, "Measured": timed_pass.timeline}


def sweep(
    work=DEEP,
    *,
    layers=(1, 2, 4, 8, 16),
    chunks=(5, 10, 20, 50, 125, 500),
    repeats=10,
    **options,
):
    """Time passes of `work` with other numbers of layers on one and two threads, and
    with chunks of other lengths on two, all in one loop with the passes that the costs
    are fitted to. Verified before and after. Where there is one core, those on two
    threads are left out.
    """
    passes, usual, two = {}, max(1, min(20, work.T // 2)), 2 in thread_counts()
    for way in WAYS:
        for name, timed_pass in calibration(work, way).items():
            passes["calibration", way, name, 0] = timed_pass
        for L, P in product(layers, thread_counts()):
            stack, beside = replace(work, L=L), P if L % P == 0 else L
            chunk = usual if P == 2 else work.T
            passes["layers", way, P, L] = Pass(stack, way, P, chunk, together=beside)
        orders = ("point-to-point", "barrier")
        for chunk, order in product(chunks if two else (), orders):
            beside = work.L if order == "barrier" else 2
            one = Pass(work, way, 2, chunk, together=beside, order=order)
            passes["chunks", way, order, chunk] = one
    waits = handovers("point-to-point") if two else np.empty(0)
    hand = 1e-9 * float(np.median(waits)) if waits.size else 0.0
    cases = {str(key): timed_pass.run for key, timed_pass in passes.items()}

    def check():
        return {str(key): timed_pass.error() for key, timed_pass in passes.items()}

    times = timed({"pass": cases}, check, repeats=repeats, self_timed=True, **options)
    costs = {}
    for way in WAYS:
        fitted = {k[2]: p for k, p in passes.items() if k[:2] == ("calibration", way)}
        costs[way] = fit(fitted, hand)
    return Sweep(passes, times, costs)


def picked(work):
    """How many steps the tasks have that `numba-wavefront` keeps after trying, in
    words.
    """
    net, (x, _) = NumbaWavefront(work.params()), work.example()
    dy = np.ones((work.T, work.B, work.H), x.dtype)

    def both():
        net.forward(x, training=True)
        net.backward(dy)

    settle(both)
    calls = {"forward": "forward for training", "backward": "backward"}
    found = {
        way: net.division(work.T, work.B, call).fastest for way, call in calls.items()
    }
    return "; ".join(f"{way} {division}" for way, division in found.items())


def against_steps(batches, hidden, *, L=4, T=100, repeats=7, **options):
    """Speed of layers at the same time over the best division of a step, inference,
    two threads: a table B x H.
    """
    works = [Workload(L, T, H, H, B) for H, B in product(hidden, batches)]
    found = divisions.table(works, stages=["forward"], repeats=repeats, **options)
    ratio = found.reindex(columns=["units", "samples"]).min(axis=1) / found["layers"]
    return ratio.droplevel(["stage", "L", "T", "D"]).unstack("H")


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
