"""How a schedule runs: tasks that wait for each other point to point, without locks.

A participant runs the tasks of one worker in order, and before each waits for the tasks
it comes after. One that waits long runs another task that can run, of any worker: so a
thread that comes late, or never, costs time and not the result. Participants leave
between two tasks when they are told to stop (`interrupts.py`).
"""

from itertools import chain

import numpy as np

from ..kernels import part
from ..simulate import Span, Timeline
from .arrays import record
from .instructions import add, call, integers, offer_core, pause, read
from .machine_code import address
from .rounds import LINE
from .team import clock, team
from .workspace import at, buffer, point

TAKEN, DONE, START, STOP, WHO = range(5)  # columns of the state, a cache line per task
# Pauses, some 20 us, and as many offers of the core, before a participant helps out.
PATIENCE = 1000

# How many tasks; the tasks of worker after worker, and where each begins; what each
# comes after, and where those of each begin; a cache line for each task; a word:
# participants leave when it is set; pauses before one that waits helps out; the work,
# machine code perform(task, 0, job), and what it gets.
FLOW, FLOW_WORD = record(
    "tasks lists bounds after first state leave patience perform job"
)


@part
def word(flow, task, column):
    # In the line of a task, the word of that column
    return flow.state + task * LINE + 8 * column


@part
def may_run(flow, task):
    """Are all tasks done that a task comes after?"""
    first = integers(flow.first, flow.tasks + 1)
    after = integers(flow.after, first[flow.tasks])
    done = True
    for e in range(first[task], first[task + 1]):
        done = done and read(word(flow, after[e], DONE)) != 0
    return done


@part
def take(flow, task, p):
    """Run a task, unless some participant has it; whether it was free."""
    if read(word(flow, task, TAKEN)) or add(word(flow, task, TAKEN), 1):
        return False
    start = clock()
    call(flow.perform, task, 0, flow.job)
    line = integers(word(flow, task, 0), 8)
    line[START], line[STOP], line[WHO] = start, clock(), p
    add(word(flow, task, DONE), 1)
    return True


@part
def help_out(flow, p):
    """Run a task that is free and can run; False if there is none."""
    for task in range(flow.tasks):
        free = read(word(flow, task, TAKEN)) == 0
        if free and may_run(flow, task) and take(flow, task, p):
            return True
    return False


@part
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
        elif read(flow.leave):
            return False
        elif not help_out(flow, p):
            offer_core()
    return True


@part
def participate(p, turn, flow):
    """Run the tasks of worker p; the caller of the region, p = 0, stays to the end.
    Returns whether tasks may be left.
    """
    bounds = integers(flow.bounds, p + 2)
    lists = integers(flow.lists, flow.tasks)
    first = integers(flow.first, flow.tasks + 1)
    after = integers(flow.after, first[flow.tasks])
    for k in range(bounds[p], bounds[p + 1]):
        task = lists[k]
        for e in range(first[task], first[task + 1]):
            if not wait_for(flow, after[e], p):
                return 1
        if read(flow.leave):
            return 1
        take(flow, task, p)
    if p == 0:
        for task in range(flow.tasks):
            if not wait_for(flow, task, p):
                return 1
    return 0


class Flow:
    """A schedule as arrays: tasks (n, 3) with layer, start, stop, and a FLOW. After a
    run, `state` (n, 8) has whether each task is taken and done, its nanoseconds, and
    who ran it.
    """

    def __init__(self, schedule):
        self.schedule, self.workers = schedule, schedule.workers
        tasks = [(t.layer, t.start, t.stop) for t in schedule.tasks]
        self.tasks = np.array(tasks, np.int64)
        lists = [[] for _ in range(self.workers)]
        after = []
        for index, task in enumerate(schedule.tasks):
            tasks = lists[task.worker]
            after.append([*task.after, *tasks[-1:]])  # for helpers: the worker's order
            tasks.append(index)
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
        state, record = buffer(len(self.tasks), 8, dtype=np.int64), np.zeros(1, FLOW)
        point(record, **self._arrays, state=state, tasks=len(self.tasks))
        left = buffer(8, dtype=np.int64)  # its first word: are tasks left?
        vars(self).update(state=state, _left=left, _record=record)

    def run(self, participants, perform, job, progress, owner):
        """Run perform(task, 0, job), machine code, for all tasks, or until
        progress[0], a word, is not zero.

        owner: what `job` points into. Returns whether a thread stayed behind
        (`Team.run`).
        """
        self.state.fill(0)
        flow = self._record.view(np.int64)  # fields of records take Python longer
        flow[FLOW_WORD.perform] = perform
        flow[FLOW_WORD.job] = job
        flow[FLOW_WORD.leave] = at(progress)
        # One participant has nothing to wait for.
        flow[FLOW_WORD.patience] = 0 if participants == 1 else PATIENCE
        alive = owner, self._arrays, self.state, self._record, self._left, progress
        code, places = address(participate, FLOW), (at(self._record), at(self._left))
        stayed = team().run(participants, code, *places, alive)
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
