"""How a schedule runs: tasks that wait for each other point to point, without locks.

A participant runs the tasks of one worker in order, and before each waits for the tasks
it comes after. One that waits long runs another task that can run, of any worker: so a
thread that comes late, or never, costs time and not the result. Participants leave
between two tasks when they are told to stop (`interrupts.py`).
"""

import sys
from functools import cache
from itertools import chain

import numpy as np

from ..kernels import fill, native, part
from ..simulate import Span, Timeline
from .instructions import add, array_at, call, offer_core, pause, read, record_at
from .records import record
from .rounds import LINE
from .team import clock, team
from .workspace import at, buffer, point

TAKEN, DONE, START, STOP, WHO = range(5)  # columns of the state, a cache line per task
PATIENCE = (
    1000  # pauses, some 20 us, and as many offers, before a participant helps out
)

FLOW_TABLE = """
tasks             | how many
lists bounds      | @ tasks of worker after worker (tasks,); where each begins (workers + 1,)
after first       | @ tasks that each comes after; where those of each begin (tasks + 1,)
state             | @ a cache line for each task (tasks, 8)
stop              | @ a word: participants leave when it is set
patience          | pauses before a participant that waits helps out
perform job       | @ the work: machine code perform(task, 0, job), and what it gets
"""
FLOW, FLOW_WORD = record(FLOW_TABLE)
flow_at = record_at(FLOW)
words = array_at(np.int64)


def word(flow, task, column):
    return (
        flow.state + task * LINE + 8 * column
    )  # in the line of a task, the word of that column


def may_run(flow, task):
    """Are all tasks done that a task comes after?"""
    first = words(flow.first, (flow.tasks + 1,))
    after = words(flow.after, (first[flow.tasks],))
    done = True
    for e in range(first[task], first[task + 1]):
        done = done and read(word(flow, after[e], DONE)) != 0
    return done


def take(flow, task, p):
    """Run a task, unless some participant has it; whether it was free."""
    if read(word(flow, task, TAKEN)) or add(word(flow, task, TAKEN), 1):
        return False
    start = clock()
    call(flow.perform, task, 0, flow.job)
    line = words(word(flow, task, 0), (8,))
    line[START], line[STOP], line[WHO] = start, clock(), p
    add(word(flow, task, DONE), 1)
    return True


def help_out(flow, p):
    """Run a task that is free and can run; False if there is none."""
    for task in range(flow.tasks):
        free = read(word(flow, task, TAKEN)) == 0
        if free and may_run(flow, task) and take(flow, task, p):
            return True
    return False


def wait_for(flow, task, p):
    """Wait until a task is done, or until all are to leave: then False. The core is
    offered before the participant helps out: the thread that has the task may need it.
    """
    spins = 0
    while read(word(flow, task, DONE)) == 0:
        spins += 1
        if spins < flow.patience:
            pause()
        elif spins < 2 * flow.patience:
            offer_core()
        elif read(flow.stop):
            return False
        elif not help_out(flow, p):
            offer_core()
    return True


def participate(p, turn, address):
    """Run the tasks of worker p; the caller of the region, p = 0, stays to the end.
    Returns whether tasks may be left.
    """
    flow = flow_at(address, 0)
    bounds = words(flow.bounds, (p + 2,))
    lists = words(flow.lists, (flow.tasks,))
    first = words(flow.first, (flow.tasks + 1,))
    after = words(flow.after, (first[flow.tasks],))
    for k in range(bounds[p], bounds[p + 1]):
        task = lists[k]
        for e in range(first[task], first[task + 1]):
            if not wait_for(flow, after[e], p):
                return 1
        if read(flow.stop):
            return 1
        take(flow, task, p)
    if p == 0:
        for task in range(flow.tasks):
            if not wait_for(flow, task, p):
                return 1
    return 0


@cache
def machine_code():
    """The address of `participate`."""
    functions = fill([sys.modules[__name__]], {}, "", part)
    return native(functions["participate"].py_func, "")


class Flow:
    """A schedule as arrays: tasks (n, 4) with layer, start, stop, part, and a FLOW.
    After a run, `state` (n, 8) has whether each task is taken and done, its
    nanoseconds, and who ran it.
    """

    def __init__(self, schedule):
        self.schedule, self.workers = schedule, schedule.workers
        chunks = [
            (task.layer, task.start, task.stop, task.part) for task in schedule.tasks
        ]
        self.tasks = np.array(chunks, np.int64)
        lists, after = [[] for _ in range(self.workers)], []
        for index, task in enumerate(schedule.tasks):
            own = lists[task.worker]
            after.append(
                [*task.after, *own[-1:]]
            )  # for helpers: the worker's own order
            own.append(index)
        self._arrays = {
            "lists": np.array([*chain(*lists)], np.int64),
            "bounds": np.cumsum([0, *map(len, lists)]),
            "first": np.cumsum([0, *map(len, after)]),
            "after": np.array([*chain(*after)], np.int64),
        }
        self._last = None
        self.renew()

    def renew(self):
        """New records, where a thread may still read the old ones; all at once
        (`Work.renew`).
        """
        state, flow = buffer(len(self.tasks), 8, dtype=np.int64), np.zeros(1, FLOW)
        words = buffer(
            2, 8, dtype=np.int64
        )  # are tasks left?; a stop word, if the caller has none
        point(flow, **self._arrays, state=state, tasks=len(self.tasks))
        vars(self).update(state=state, _words=words, _record=flow)

    def run(self, participants, perform, job, owner, stop=None):
        """Run perform(task, 0, job), machine code, for all tasks, or until stop[0] is
        not zero.

        owner: what `job` points into. Returns whether a thread stayed behind
        (`Team.run`).
        """
        self.state.fill(0)
        flow = self._record.view(np.int64)  # fields of records take Python longer
        flow[FLOW_WORD.perform], flow[FLOW_WORD.job] = perform, job
        flow[FLOW_WORD.stop] = at(self._words[1] if stop is None else stop)
        alone = participants == 1  # it has nothing to wait for
        flow[FLOW_WORD.patience] = 0 if alone else PATIENCE
        kept = owner, self._arrays, self.state, self._record, self._words, stop
        places = at(self._record), at(self._words)
        stayed = team().run(participants, machine_code(), *places, kept)
        self._last = self.state
        if stayed:
            self.renew()
        return stayed

    def timeline(self):
        """When each task of the last run ran, as a Timeline; None before the first."""
        state = self._last
        if state is None:
            return None
        start, stop = (state[:, [START, STOP]] - state[:, START].min()).T / 1e9
        columns = np.arange(len(state)), state[:, WHO], start, stop
        spans = map(Span, *(column.tolist() for column in columns))
        return Timeline(self.schedule, tuple(spans))
