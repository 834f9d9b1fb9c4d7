"""How a schedule runs: tasks that wait for each other point to point, without locks.

A participant runs the tasks of one worker in order, and before each waits for the tasks it comes
after, nothing else. Who waits long looks for another task that can run, whoever's it is: so a
thread that comes late, or never gets a core, costs time and not the result, and with fewer threads
than workers everything still runs. Participants leave after a slice of time, between tasks, and
what is left is run in the next call: in between, Python can raise a KeyboardInterrupt.

`perform(task, work)`, a free name, does the work; it may use what the tasks before wrote.
"""

import ctypes
import os
import time

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import prange, types
from numba.core import cgutils
from numba.extending import intrinsic

from ..schedules import Span, Timeline
from . import rounds
from .rounds import SPINS, add_one, offer_core, pause, read
from .spaces import buffer

TAKEN, DONE, START, STOP, WHO = range(5)  # columns of the state, a cache line per task
SLICE = 100_000_000  # nanoseconds

perform = None

_CLOCK = "lstm_kernels_clock"
_name = "QueryPerformanceCounter" if os.name == "nt" else "clock_gettime"
_clock = ctypes.cast(getattr(rounds.library, _name), ctypes.c_void_p)
llvmlite.binding.add_symbol(_CLOCK, _clock.value)


@intrinsic
def clock(typing):
    """Nanoseconds since some moment, the same for every core."""

    def generate(context, builder, signature, args):
        word, int32 = ir.IntType(64), ir.IntType(32)
        now = cgutils.alloca_once(builder, word, 2)  # seconds and nanoseconds, or ticks
        arguments = [now.type] if os.name == "nt" else [int32, now.type]
        call = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(int32, arguments), _CLOCK
        )
        if os.name == "nt":
            builder.call(call, [now])
            tick = round(1e9 * time.get_clock_info("perf_counter").resolution)
            return builder.mul(builder.load(now), ir.Constant(word, tick))
        builder.call(call, [ir.Constant(int32, time.CLOCK_MONOTONIC), now])
        seconds = builder.load(now)
        rest = builder.load(builder.gep(now, [ir.Constant(int32, 1)]))
        return builder.add(builder.mul(seconds, ir.Constant(word, 10**9)), rest)

    return types.int64(), generate


def execute(task, p, state, work):
    start = clock()
    perform(task, work)
    state[task, START], state[task, STOP], state[task, WHO] = start, clock(), p
    add_one(state, task, DONE)


def help_out(p, flow, work):
    """Run a task that nobody has and that can run; False if there is none."""
    _, _, first, after, state, _ = flow
    for task in range(len(state)):
        if read(state, task, TAKEN) == 0:
            e = first[task]
            while e < first[task + 1] and read(state, after[e], DONE):
                e += 1
            if e == first[task + 1] and add_one(state, task, TAKEN) == 0:
                execute(task, p, state, work)
                return True
    return False


def participate(p, flow, work):
    """Run the tasks of worker p, until time is over."""
    lists, bounds, first, after, state, until = flow
    for at in range(bounds[p], bounds[p + 1]):
        task = lists[at]
        for e in range(first[task], first[task + 1]):
            spins = 0
            while read(state, after[e], DONE) == 0:
                spins += 1
                if spins < SPINS:
                    pause()
                elif clock() > read(until, 0, 0):
                    return
                elif not help_out(p, flow, work):
                    offer_core()
        if clock() > read(until, 0, 0):
            return
        if read(state, task, TAKEN) == 0 and add_one(state, task, TAKEN) == 0:
            execute(task, p, state, work)


def enter(flow, threads, nanoseconds, work):
    """Run what is left of a flow, for a slice of time; returns how many tasks are left."""
    flow[5][0, 0] = clock() + nanoseconds
    workers = len(flow[1]) - 1
    if threads == 1:
        for p in range(workers):
            participate(p, flow, work)
    else:
        for p in prange(workers):
            participate(np.intp(p), flow, work)
    left = 0
    for task in range(len(flow[4])):
        left += flow[4][task, DONE] == 0
    return left


class Flow:
    """A schedule as arrays: tasks (n, 4) with layer, start, stop, part, and what `enter` takes:
    the tasks of each worker, where they begin, what each comes after, the state, the time limit.
    """

    def __init__(self, schedule):
        self.schedule, self.workers = schedule, schedule.workers
        self.tasks = np.array([task.block for task in schedule.tasks], np.int64)
        lists, after = [[] for _ in range(self.workers)], []
        for index, task in enumerate(schedule.tasks):
            mine = lists[task.worker]
            after.append([*task.after, *mine[-1:]])  # for helpers: the worker's own order
            mine.append(index)
        self.state = buffer(len(after), 8, dtype=np.int64)
        self.arrays = (
            np.array([task for mine in lists for task in mine], np.int64),
            np.cumsum([0, *map(len, lists)]),
            np.cumsum([0, *map(len, after)]),
            np.array([other for needs in after for other in needs], np.int64),
            self.state,
            np.zeros((1, 1), np.int64),
        )

    def run(self, enter, threads, work):
        """Run all tasks; a KeyboardInterrupt ends it between two slices."""
        self.state[:] = 0
        while enter(self.arrays, threads, SLICE, work):
            pass

    def timeline(self):
        """When each task of the last run ran, as a Timeline."""
        begin, columns = self.state[:, START].min(), self.state[:, [WHO, START, STOP]]
        spans = [
            Span(index, int(who), (start - begin) / 1e9, (stop - begin) / 1e9)
            for index, (who, start, stop) in enumerate(columns)
        ]
        return Timeline(self.schedule, tuple(spans))
