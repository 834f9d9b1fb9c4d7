"""Schedules of layers, predicted and measured: how long waits last, who waits for whom,
what a step, a task and a hand-over cost, and the bound; for page 05 and the lab.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lstm_kernels.errors import counted
from lstm_kernels.params import Params
from lstm_kernels.schedules import (
    Costs,
    Graph,
    Schedule,
    layer_by_layer,
    waits_for,
    wavefront,
)
from lstm_kernels.simulate import Timeline, simulate
from lstm_kernels.versions.numba_wavefront import NumbaWavefront

from ..measure.comparer import compare_outputs
from ..measure.evidence import percent, speed, took
from ..measure.timing import disturbance, interleaved

CHUNK = 5  # steps of a task, where hand-overs are timed
SETTLED = 5e-3  # seconds of passes in a row: a parked thread is slow at first
CHUNKS = 1, 2, 3, 4, 6, 8, 12, 20  # of which the best wavefront has one


def waits(line: Timeline) -> list[float]:
    """Seconds from the end of the last task waited for to the start of the one that
    waited on another thread, which was idle meanwhile.
    """
    found: list[float] = []
    free: dict[int, float] = {}
    for needed, span in zip(waits_for(line.schedule), line.spans, strict=True):
        before = [line.spans[i] for i in needed]
        last = max(before, key=lambda s: s.stop, default=span)
        if last.worker != span.worker and free.get(span.worker, 0.0) < last.stop:
            found.append(span.start - last.stop)
        free[span.worker] = span.stop
    return found


class Ran:
    """Passes of x (T, 1, D) by several schedules, timed in turn.

    plans: name -> Schedule of whole steps, each run by as many threads as it has
    workers. lines: name -> Timeline of its fastest pass of `repeats`. error: the
    largest relative error of all outputs, compared with the reference in float64.
    disturbed: what `disturbance` says of the times. Raises MismatchError for a wrong
    output.
    """

    def __init__(
        self, params: Params, x: np.ndarray, plans: Mapping[Any, Schedule], repeats: int
    ) -> None:
        nets = {name: _network(params, plan) for name, plan in plans.items()}
        every: dict[Any, list[Timeline]] = {name: [] for name in plans}

        def run(name):
            nets[name].forward(x)
            every[name].append(nets[name].timeline(*x.shape[:2]))
            return every[name][-1].makespan

        outputs = {f"{k}": partial(_output, net, x) for k, net in nets.items()}
        self.error = max(compare_outputs(outputs, params, x).values())
        cases = {name: partial(run, name) for name in plans}
        how: dict[str, Any] = {"repeats": repeats, "least": SETTLED, "self_timed": True}
        times = interleaved(cases, **how)
        self.disturbed = disturbance(times)
        self.lines = {
            name: min(lines, key=lambda line: line.makespan)
            for name, lines in every.items()
        }


def _output(net, x):
    return net.forward(x)[0]


def _network(params, plan):
    def schedules(graph):
        return Schedule(graph, plan.tasks)

    return NumbaWavefront(params, plan.workers, schedules=schedules)


def measured_costs(
    params: Params, x: np.ndarray, threads: int, repeats: int
) -> tuple[Costs, str]:
    """What steps, tasks and hand-overs cost in passes of x (T, 1, D), and what
    disturbed them. With one thread a hand-over is not measured, and counts as nothing.
    """
    graph = Graph(params.num_layers, len(x))
    single = sorted(graph.tasks(1))  # layer by layer, a task a step
    plans = {
        "whole": layer_by_layer(graph),
        "single": Schedule(graph, tuple(single)),
    }
    if threads > 1:  # each task waits for the one before, on the other worker
        tasks = sorted(graph.tasks(min(CHUNK, graph.steps)))
        turns = (task._replace(worker=k % 2) for k, task in enumerate(tasks))
        plans["handed over"] = Schedule(graph, tuple(turns))
    ran = Ran(params, x, plans, repeats)
    whole, alone = ran.lines["whole"], ran.lines["single"]
    step = tuple((span.stop - span.start) / graph.steps for span in whole.spans)
    more = (alone.makespan - whole.makespan) / max(1, len(single) - graph.layers)
    gaps = waits(ran.lines["handed over"]) if threads > 1 else []
    hand = float(np.median(gaps)) if gaps else 0.0
    return Costs(step, task=max(0.0, more), hand=hand), ran.disturbed


def told(costs: Costs, threads: int) -> str:
    """Measured costs in words."""
    step, task, hand = map(took, (max(costs.step), costs.task, costs.hand))
    text = f"A step of a layer takes {step}, a task {task} more than its steps"
    if threads > 1:
        return f"{text}; a worker that waits for another's task begins {hand} after it."
    return (
        f"{text}. What handing over takes was not measured: this process has one core."
    )


def bound(graph: Graph, costs: Costs, workers: int) -> float:
    """Seconds that no schedule of whole steps is below: the work shared by all workers,
    or the longest path through the graph, whichever is more.
    """
    steps = costs.of(graph).step
    path = sum(steps) + (graph.steps - 1) * max(steps)
    return max(sum(steps) * graph.steps / workers, path)


def whole_layers(graph: Graph, workers: int, costs: Costs) -> Schedule:
    """A task a layer, neighbours on one worker; nothing runs at the same time."""
    tasks = graph.tasks(graph.steps)
    shares = (task.layer * workers // graph.layers for task in tasks)
    pairs = zip(tasks, shares, strict=True)
    return Schedule(graph, tuple(task._replace(worker=w) for task, w in pairs))


def best_wavefront(graph: Graph, workers: int, costs: Costs) -> Schedule:
    """The wavefront that is predicted to be fastest, by the length of its chunks; as
    many layers side by side as workers where that divides the layers, else all.
    """
    together = graph.layers if graph.layers % workers else workers
    every = [
        wavefront(graph, workers, chunk, together=together, costs=costs)
        for chunk in sorted({min(chunk, graph.steps) for chunk in CHUNKS})
    ]
    return min(every, key=lambda schedule: simulate(schedule, costs).makespan)


def circle(schedule: Schedule) -> str:
    """In words the workers that wait for each other for ever, of a schedule that
    computes every cell once, in tasks of whole steps; "" where none does.
    """
    tasks, needed = schedule.tasks, waits_for(schedule)
    lists: list[list[int]] = [[] for _ in range(schedule.workers)]
    for index, task in enumerate(tasks):
        lists[task.worker].append(index)
    done: set[int] = set()
    while ready := [own for own in lists if own and done.issuperset(needed[own[0]])]:
        done.update(own.pop(0) for own in ready)
    told: dict[int, str] = {}
    worker = next((worker for worker, own in enumerate(lists) if own), None)
    while worker is not None and worker not in told:
        head = lists[worker][0]
        other = min(set(needed[head]) - done)
        owner = tasks[other].worker
        behind = other != lists[owner][0]
        place = f"which comes later in the list of worker {owner}"
        told[worker] = (
            f"worker {worker} is at {_named(tasks, head)} and waits for "
            f"{_named(tasks, other)}, {place if behind else f'where worker {owner} is'}"
        )
        worker = owner
    ring = list(told)
    return (
        "; ".join(told[k] for k in ring[ring.index(worker) :]) if worker in told else ""
    )


def _named(tasks, index):
    layer, start, stop, *_ = tasks[index]
    return f"task {index} (layer {layer}, steps {start} to {stop - 1})"


class Compared(NamedTuple):
    """A schedule in seconds: its bound, what it is predicted to take, what it was
    measured to take, None where it was not; one worker, layer by layer; and what
    another schedule is predicted to take, the package's.
    """

    bound: float
    predicted: float
    measured: float | None
    alone: float
    package: float

    @property
    def share(self) -> float:
        """Of the bound, as predicted."""
        return self.bound / self.predicted

    @property
    def reached(self) -> float | None:
        """Of the bound, as measured."""
        return self.measured and self.bound / self.measured

    @property
    def gain(self) -> float:
        """How many times as fast as one worker: measured, else predicted."""
        return self.alone / (self.measured or self.predicted)

    @property
    def most(self) -> float:
        """How many times as fast the bound allows."""
        return self.alone / self.bound

    def told(self, workers: int) -> str:
        """The row in words."""
        text = f"On {counted(workers, 'worker')}: predicted {took(self.predicted)}, "
        text += f"**{percent(self.share)} of the bound** of {took(self.bound)}; "
        if self.package < self.predicted:
            best = percent(self.bound / self.package)
            text += f"the package's own is predicted to reach {best}; "
        if self.measured is None or self.reached is None:
            return f"{text}not measured: this process has fewer cores."
        text += f"measured {took(self.measured)}, {percent(self.reached)}"
        more = f", compared with one worker: {speed(self.gain)}" * (workers > 1)
        return f"{text}{more}."

    def cells(self, workers: int) -> dict[str, str]:
        """The row of a table."""
        return {
            "predicted, of the bound": percent(self.share),
            "measured": percent(self.reached) if self.reached else "not measured",
            "compared with one": speed(self.gain) * bool(self.reached and workers > 1),
        }


def compared(
    params: Params,
    x: np.ndarray,
    threads: int,
    repeats: int,
    costs: Costs,
    schedules: Mapping[int, Schedule],
    package: Mapping[int, Schedule],
) -> tuple[dict[int, Compared], dict[int, Timeline], Ran]:
    """Of schedules by their number of workers: how each compares, its predicted
    Timeline, and the passes of those of at most `threads` workers.
    """
    graph = Graph(params.num_layers, len(x))
    run = {w: schedule for w, schedule in schedules.items() if w <= threads}
    ran = Ran(params, x, {0: layer_by_layer(graph)} | run, repeats)
    seconds = {workers: line.makespan for workers, line in ran.lines.items()}
    lines = {w: simulate(schedule, costs) for w, schedule in schedules.items()}
    rows = {
        w: Compared(
            bound=bound(graph, costs, w),
            predicted=line.makespan,
            measured=seconds.get(w),
            alone=seconds[0],
            package=simulate(package[w], costs).makespan,
        )
        for w, line in lines.items()
    }
    return rows, lines, ran
