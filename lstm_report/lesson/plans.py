"""The exercises of the lab: what a function of a Graph returns, and likely slips."""

from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

import numpy as np

from lstm_kernels.schedules import Costs, Graph, Schedule, Task, check
from lstm_kernels.simulate import simulate

from ..experiments.timelines import best_wavefront, bound, circle, whole_layers
from ..measure.evidence import percent
from .exercises import Wrong, limited
from .lesson import described

STEPS = 100
OTHERS = [Graph(5, 7), Graph(1, 1)]  # of which a schedule has to be right too


class Plan(NamedTuple):
    """graph: of the stack that is run; workers: the counts for which it is graded;
    hint: where to begin; least: the share of the bound to be reached where steps alone
    cost; package: of a graph, workers and costs, what is shown in its place.
    """

    number: int
    graph: Graph
    workers: tuple[int, ...]
    hint: str
    least: float = 0.0
    package: Callable = best_wavefront


WHOLE = "Task(layer, 0, graph.steps) is a whole layer; layer 0 comes first"
SHARED = "give each task its worker, 0 for some layers and 1 for the others"
CHUNKS = "a chunk ends at min(start + chunk, graph.steps); the layer tells its worker"
OWN = "follow the diagonals; task._replace(worker=1) is the same task on worker 1"
PLANS = {
    "one": Plan(1, Graph(4, STEPS), (1,), WHOLE, package=whole_layers),
    "layers": Plan(2, Graph(4, STEPS), (2,), SHARED, package=whole_layers),
    "wave": Plan(3, Graph(4, STEPS), (2,), CHUNKS, least=0.75),
    "own": Plan(4, Graph(3, STEPS), (2, 4), OWN),
}
FORMS = {  # what is returned -> what is said
    "NoneType": "it returns nothing. Hint: `return tasks`",
    "generator": "it returns a generator. Hint: put its tasks into a list",
    "Schedule": "it returns a Schedule, which the lab makes. Hint: return its tasks",
    "Task": "it returns one Task. Hint: a list, `[Task(...)]`",
}
RAISED = {  # what stands in an exception's text -> hint
    "list index": "it is also called with other numbers of layers and steps",
    "float": "a task has integers: `//` divides without a remainder",
    "zero": "also a short sequence has chunks of at least one step: max(1, ...)",
    "chunk:": "a chunk is no longer than the sequence: min(chunk, graph.steps)",
}
WAITS = (
    "in chunks, neighbouring layers on two workers, each of which finishes a layer "
    "before its next"
)
ONE_PAST = "stop is one past the last step, so the next task starts at that number"


def returned(plan, function, graph, workers):
    """The tasks that a function returned, a tuple; Wrong for anything else."""
    try:
        with limited(function):
            tasks = function(*(graph, workers)[: len(plan.workers)])
    except Wrong:
        raise
    except Exception as error:
        hints = (hint for word, hint in RAISED.items() if word in str(error))
        hint = next(hints, plan.hint)
        raise Wrong(f"{described(error, function)}. Hint: {hint}") from None
    kind = type(tasks).__name__
    if not isinstance(tasks, list | tuple) or kind in FORMS:
        raise Wrong(FORMS.get(kind, f"it returns a {kind}, want a list of Task"))
    return tuple(whole_steps(index, task) for index, task in enumerate(tasks))


def whole_steps(index, task):
    """Element `index` of a list, as a Task of Python's integers; Wrong for another."""
    if not isinstance(task, Task):
        want = "Task(layer, start, stop, worker)"
        raise Wrong(f"element {index} is `{task!r}`, want `{want}`")
    if (task.blocks, task.samples) != (None, None):
        raise Wrong(f"task {index} has blocks or samples, want whole steps")
    for name in ("layer", "start", "stop", "worker"):
        value = getattr(task, name)
        if not isinstance(value, bool | int | np.integer):
            got = f"{name} of task {index} is `{value!r}`, want an integer"
            hint = f". Hint: {RAISED['float']}" if isinstance(value, float) else ""
            raise Wrong(f"{got}{hint}")
    return Task(*map(int, task[:4]))


def checked(plan, function, graph, workers):
    """The Schedule that a function returned for a graph; Wrong, with a hint."""
    schedule = Schedule(graph, returned(plan, function, graph, workers))
    try:
        check(schedule)
    except ValueError as error:
        told, hints = str(error), slips(graph, schedule.tasks)
        told = circle(schedule) if "waits for" in told else f"`{told}`"
        raise Wrong(f"{told}. Hint: {next(hints, plan.hint)}") from None
    if schedule.workers > workers:
        got = f"a task is on worker {schedule.workers - 1}, want 0 to {workers - 1}"
        again = "for any number of layers: `%` begins again with 0"
        hint = "workers count from 0" if graph == plan.graph else again
        raise Wrong(f"{got}. Hint: {hint}")
    if graph != plan.graph:
        return schedule
    if workers > schedule.employed == 1:
        raise Wrong(f"one worker has every task, want {workers}. Hint: {SHARED}")
    costs = Costs((1.0,) * graph.layers)
    share = bound(graph, costs, workers) / simulate(schedule, costs).makespan
    if share < plan.least:
        got = f"each cell once, but it reaches {percent(share)} of the bound"
        raise Wrong(f"{got}, want {percent(plan.least)}. Hint: {WAITS}")
    return schedule


def slips(graph, tasks):
    """Hints for a schedule that was refused, the most telling first."""
    times = np.zeros((graph.layers, graph.steps), int)
    for task in tasks:
        times[task.layer : task.layer + 1, task.start : task.stop] += 1
    starts, stops = ({(task[0], task[k]) for task in tasks} for k in (1, 2))
    never, often = ({*map(tuple, np.argwhere(n))} for n in (times == 0, times > 1))
    sizes, rest = {task.stop - task.start for task in tasks}, (times[0] == 0).sum()
    absent = [layer for layer, row in enumerate(times) if not row.any()]
    equal = len(sizes) == 1 and len(tasks) > graph.layers
    if any(task.worker < 0 for task in tasks):
        yield "workers count from 0"
    if not tasks:
        yield "no task at all; a sequence may be shorter than a chunk"
    if any(task.stop > graph.steps for task in tasks):
        yield (
            "the last chunk may be shorter: min(start + chunk, graph.steps)"
            if any(task.start > 0 for task in tasks)
            else "stop is at most graph.steps"
        )
    if len({*tasks}) < len(tasks):
        yield "a task is in the list more than once"
    if any(task.start >= task.stop for task in tasks):
        yield "a task has one step at least: its start is less than its stop"
    if any(not 0 <= task.layer < graph.layers for task in tasks) or not times[0].any():
        yield "layers count from 0, to graph.layers - 1"
    if never and not times[:, 0].any():
        yield "steps count from 0"
    if absent == [*range(1, graph.layers)]:
        yield "layer 0 alone is there; is `return` inside the loop?"
    if absent:
        names = ", ".join(map(str, absent))
        half = absent == [graph.layers - 1] and graph.layers % 2
        more = ", and an odd number has no half" if half else ""
        yield f"no task of layer {names}; range(graph.layers) has every layer{more}"
    if never and equal and rest < min(sizes) and times[0, -rest:].max() == 0:
        yield "the last chunk is missing, a shorter one: range(0, graph.steps, chunk)"
    if often and times.min() > 1:
        yield "every worker has every cell; a cell belongs to one worker"
    if (never and never <= stops) or (often and often <= starts):
        yield ONE_PAST
    if often or never:
        yield f"the tasks have {times.sum()} cells, the graph has {times.size}"
    pairs = [(a, b) for a, b in combinations(tasks, 2) if a.worker == b.worker]
    if any(a.layer == b.layer and a.start > b.start for a, b in pairs):
        yield "steps go up; a backward pass goes from the last to the first"
    if any(a.layer > b.layer and a.stop > b.start for a, b in pairs):
        yield "a worker takes its tasks in the order of the list: lower layers first"
    yield "let all workers follow one order of tasks, such as that of the diagonals"
