"""A team of threads that wait to be needed, and the region in which they work.

Compiled code opens a region and works in it as participant 0; threads of the team that are awake
join as participants 1, 2, ... and find work by claiming it (`rounds.py`). The region ends when its
work is done, whoever did it: nobody waits for a thread that did not come, and a thread that is held
up after its last task keeps nobody either. That is what a parallel loop of OpenMP or of Numba's
own layers cannot do: it ends when every thread has come, even one that never got a core.

After a region a thread looks for the next one for LINGER nanoseconds and then sleeps on a lock of
Python's (a semaphore or a condition of the system, which needs no interpreter). A child made by
fork starts threads of its own. One region at a time has the team; a caller who finds it taken
works alone.

Memory of a team, words of 8 bytes, lines of 64:
  0  door: region number << 16 | threads that joined << 1 | is it open?
  1  what to run: function, job, first round, participants; written while the door is closed
  2  how many threads have left a region, ever; how many have joined one; how many have ended
  3, 4, ... one line for each thread: is it asleep?, its lock
"""

import _thread
import atexit
import ctypes
import os
import threading
import time
from functools import cache

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from . import rounds
from .compiled import native
from .rounds import LINE, SPINS, add, exchange, offer_core, pause, read, swap

MOST_THREADS = 512
LINGER = 200_000  # nanoseconds; longer than Python takes from one small call to the next

_RUN, _LEFT, _THREADS = LINE, 2 * LINE, 3 * LINE
_FUNCTION, _JOB, _TURN, _WANTED = _RUN, _RUN + 8, _RUN + 16, _RUN + 24
_JOINED = _LEFT + 8
_OPEN, _ONE, _JOINS = 1, 2, 0xFFFF

_CLOCK = "lstm_kernels_clock"
_name = "QueryPerformanceCounter" if os.name == "nt" else "clock_gettime"
_symbols = {
    _CLOCK: getattr(rounds.library, _name),
    "lstm_kernels_sleep": ctypes.pythonapi.PyThread_acquire_lock,
    "lstm_kernels_wake": ctypes.pythonapi.PyThread_release_lock,
}
for _name, _function in _symbols.items():
    llvmlite.binding.add_symbol(_name, ctypes.cast(_function, ctypes.c_void_p).value)


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


@intrinsic
def sleep_on(typing, lock):
    """Take a lock of Python's, waiting for it."""

    def generate(context, builder, signature, args):
        int32 = ir.IntType(32)
        kind = ir.FunctionType(int32, [ir.IntType(64), int32])
        call = cgutils.get_or_insert_function(builder.module, kind, "lstm_kernels_sleep")
        builder.call(call, [args[0], ir.Constant(int32, 1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def wake(typing, lock):
    """Release a lock of Python's."""

    def generate(context, builder, signature, args):
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)])
        call = cgutils.get_or_insert_function(builder.module, kind, "lstm_kernels_wake")
        builder.call(call, args)
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def call(typing, function, p, turn, job):
    """function(p, turn, job), of machine code at an address; all are integers."""

    def generate(context, builder, signature, args):
        word = ir.IntType(64)
        kind = ir.FunctionType(word, [word] * 3)
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])

    return types.int64(*[types.int64] * 4), generate


def attend(team, p):
    """What thread p of a team does for ever: join regions, and sleep between them."""
    seen, spins, since = 0, 0, clock()
    me = team + _THREADS + p * LINE
    while True:
        door = read(team)
        if door < 0:  # the process ends
            add(team + _LEFT + 16, 1)
            return 0
        new = door & _OPEN and door >> 16 != seen
        if new and p < read(team + _WANTED):
            function, job, turn = read(team + _FUNCTION), read(team + _JOB), read(team + _TURN)
            if swap(team, door, door + _ONE):  # so what was read belongs to this region
                seen = door >> 16
                call(function, p, turn, job)
                add(team + _LEFT, 1)
                spins, since = 0, clock()
            continue
        spins += 1
        if spins < SPINS:
            pause()
        elif clock() - since < LINGER:
            offer_core()
        else:
            exchange(me, 1)
            door = read(team)
            late = door < 0 or (door & _OPEN and door >> 16 != seen and p < read(team + _WANTED))
            if not late or not swap(me, 1, 0):  # in that case somebody is waking this thread
                sleep_on(read(me + 8))
            spins, since = 0, clock()


def enter(team, participants, function, job, sync):
    """Run function(p, round, job) for all participants that come, p = 0 being the caller.

    sync: address of the word that holds the number of the next round. Returns how many threads are
    still in some region: they do nothing any more, but may read its job and its sync.
    """
    turn = read(sync)
    if participants == 1:
        exchange(sync, call(function, 0, turn, job))
        return 0
    exchange(team + _FUNCTION, function)
    exchange(team + _JOB, job)
    exchange(team + _TURN, turn)
    exchange(team + _WANTED, participants)
    exchange(team, ((read(team) >> 16) + 1) << 16 | _OPEN)
    for p in range(1, participants):
        it = team + _THREADS + p * LINE
        if read(it) and swap(it, 1, 0):
            wake(read(it + 8))
    exchange(sync, call(function, 0, turn, job))
    door = add(team, -_OPEN)
    joined = add(team + _JOINED, (door & _JOINS) >> 1) + ((door & _JOINS) >> 1)
    return joined - read(team + _LEFT)


@cache
def compiled(function):
    """A function of integers as machine code that Python can call, without its lock."""
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * function.__code__.co_argcount)
    return kind(native(function, ""))


class Team:
    """The threads of this process."""

    def __init__(self):
        lines = 3 + MOST_THREADS
        raw = np.zeros(lines * LINE + LINE, np.uint8)
        start = -raw.ctypes.data % LINE
        self._words = raw[start : start + lines * LINE].view(np.int64)
        self._address, self._count, self._free = self._words.ctypes.data, 1, threading.Lock()
        self._kept = []  # jobs of regions in which a thread may still be

    def run(self, participants, function, job, sync, owner):
        """Run function(p, round, job) in a region of up to so many participants; addresses.

        owner: what the addresses point into. Returns whether a thread stayed behind: it does
        nothing more, but may read those records, which must not be written any more.
        """
        enter_ = compiled(enter)
        if participants == 1 or self._words[0] < 0 or not self._free.acquire(blocking=False):
            enter_(self._address, 1, function, job, sync)
            return False
        try:
            if participants > self._count:
                self._start(participants)
            self._kept.append(owner)
            stayed = enter_(self._address, participants, function, job, sync) > 0
            if not stayed:
                self._kept.clear()
            return stayed
        finally:
            self._free.release()

    def drain(self):
        """Wait until no thread is in a region."""
        while self._words[_LEFT // 8] < self._words[_JOINED // 8]:
            time.sleep(0)

    def dismiss(self):
        """End the threads: code and memory go with the process, and must not be in use then."""
        self._free.acquire(timeout=1)  # another Python thread may still compute
        self._words[0] = -1  # whoever calls now works alone
        for p in range(1, self._count):
            it = self._words[(_THREADS + p * LINE) // 8 :]
            if it[0]:
                it[0] = 0
                _release(int(it[1]))
        until = time.monotonic() + 0.1
        while self._words[_LEFT // 8 + 2] < self._count - 1 and time.monotonic() < until:
            time.sleep(1e-4)

    def _start(self, participants):
        for p in range(self._count, participants):
            lock = _allocate()
            _acquire(lock, 1)
            self._words[(_THREADS + p * LINE) // 8 + 1] = lock
            try:
                _thread.start_new_thread(compiled(attend), (self._address, p))
            except RuntimeError:  # the system gives no more: the work is done without
                return
            self._count = p + 1


_allocate, _acquire = (
    ctypes.pythonapi.PyThread_allocate_lock,
    ctypes.pythonapi.PyThread_acquire_lock,
)
_allocate.restype, _allocate.argtypes = ctypes.c_void_p, []
_release = ctypes.pythonapi.PyThread_release_lock
_acquire.argtypes, _release.argtypes = [ctypes.c_void_p, ctypes.c_int], [ctypes.c_void_p]

_team = None


def team():
    """The team of this process, made when first asked for."""
    global _team
    if _team is None:
        _team = Team()
        atexit.register(_team.dismiss)
    return _team


def _after_fork():
    global _team
    if _team is not None:
        atexit.unregister(_team.dismiss)
    _team = None  # a child inherits no threads, and has none to end


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
