"""A team of threads that wait to be needed, and the region in which they work.

Compiled code opens a region and works in it as participant 0; threads of the team that
are awake join as participants 1, 2, ... and claim work (`run.py`). The region ends
when its work is done, where a parallel loop of OpenMP or Numba ends when every thread
has come, even one that never got a core. After a region a thread looks for the next one
for LINGER nanoseconds, then sleeps on a lock of Python's, which needs no interpreter.
Threads run machine code alone and are started through Python's C interface, so they are
threads of the system also where a library such as gevent has replaced Python's. A
forked child starts threads of its own. One region at a time has the team; a caller that
comes meanwhile works alone.

What that is for: beside a PyTorch process that keeps both of two cores busy, a forward
pass of the airline network takes 29 us in the median and 56 us at the 99th percentile,
with one `prange` of Numba in place of a team 6.4 and 7.4 ms. Quiet, they are level.

Memory of a team, words of 8 bytes, lines of 64:
  0  door: region number << 16 | threads that joined << 1 | is it open?; -1 at the end
  1  what to run: function, job, first round, participants; written behind a closed door
  2  how many threads have left a region, ever; have joined one; have ended
  3, 4  a set of cores, for `keep_away`
  5, 6, ... one line for each thread: is it asleep?, its lock, its number in the system,
     the address of the team's memory, its participant p
"""

import atexit
import ctypes
import os
import threading
import time
from functools import cache

import numpy as np

from ..forks import at_fork
from ..kernels import native, part
from .instructions import (
    add,
    call,
    exchange,
    foreign,
    library,
    offer_core,
    pause,
    read,
    swap,
    two_words,
)

LINE = 64  # bytes of a cache line
SPINS = 1000  # pauses, some 20 us of waiting, then the core is offered to others
MOST_THREADS = 512
LEAVING = 64  # pauses, some 2 us, for the others to leave a region
LINGER = 200_000  # nanoseconds; longer than Python takes between two small calls

# Bytes from the start of a team's memory, as above, and from the start of a thread's
# line.
_FUNCTION, _JOB, _TURN, _WANTED = range(LINE, LINE + 32, 8)
_LEFT, _JOINED, _ENDED = range(2 * LINE, 2 * LINE + 24, 8)
_CORES, _THREADS = 3 * LINE, 5 * LINE
_LOCK, _NUMBER, _TEAM, _P = range(8, 40, 8)
_OPEN, _ONE, _JOINS = 1, 2, 0xFFFF  # in the door: is it open?, one more, both fields
_MASK = 128  # bytes of a set of cores
WINDOWS, MONOTONIC = os.name == "nt", getattr(time, "CLOCK_MONOTONIC", 0)

_read_clock = (
    foreign("clock", library.QueryPerformanceCounter, 32, 64)
    if WINDOWS
    else foreign("clock", library.clock_gettime, 32, 32, 64)
)
_TICK = round(1e9 * time.get_clock_info("perf_counter").resolution)  # in Windows

# Locks of Python's, which need no interpreter: take one, waiting for it; release one.
_take_lock = foreign("sleep", ctypes.pythonapi.PyThread_acquire_lock, 32, 64, 32)
wake = foreign("wake", ctypes.pythonapi.PyThread_release_lock, 0, 64)

# Which cores a thread may use, in Linux alone.
MOVES = hasattr(library, "sched_getcpu") and hasattr(library, "gettid")
if MOVES:
    _own_number = foreign("own_number", library.gettid, 32)
    _core = foreign("core", library.sched_getcpu, 32)
    _get_cores = foreign("get_cores", library.sched_getaffinity, 32, 32, 64, 64)
    _set_cores = foreign("set_cores", library.sched_setaffinity, 32, 32, 64, 64)


@part
def clock():
    """Nanoseconds since some moment, the same for every core."""
    now = two_words()  # seconds and nanoseconds, or ticks
    if WINDOWS:
        _read_clock(now)
        return read(now) * _TICK
    _read_clock(MONOTONIC, now)
    return read(now) * 1_000_000_000 + read(now + 8)  # the second word: nanoseconds


@part
def invites(team, door, seen, p):
    """Is a region open that thread p has not been in, and has room for it?"""
    return door & _OPEN != 0 and door >> 16 != seen and p < read(team + _WANTED)


def attend(asleep):
    """What a thread of a team does for ever: join regions, and sleep between them.
    asleep: address of its line.
    """
    team, p = read(asleep + _TEAM), read(asleep + _P)
    seen, spins, since = 0, 0, clock()
    if MOVES:
        exchange(asleep + _NUMBER, _own_number())
    while True:
        door = read(team)
        if door < 0:  # the process ends
            add(team + _ENDED, 1)
            return 0
        if invites(team, door, seen, p):
            function = read(team + _FUNCTION)
            job = read(team + _JOB)
            turn = read(team + _TURN)
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
            exchange(asleep, 1)
            door = read(team)
            late = door < 0 or invites(team, door, seen, p)
            # Else its caller is waking this thread
            if not late or not swap(asleep, 1, 0):
                _take_lock(read(asleep + _LOCK), 1)
            spins, since = 0, clock()


@part
def keep_away(mask, thread):
    """Let a thread of the system use every core that the caller may use, but the
    caller's own.

    Linux may wake it there, and the two share that core for milliseconds while another
    is idle. mask: address of room for a set of cores.
    """
    core = _core()
    if core < 0 or core >= 8 * _MASK or _get_cores(0, _MASK, mask) < 0:
        return
    word, others = mask + core // 64 * 8, 0  # the word that has the caller's core
    allowed = read(word)
    exchange(word, allowed & ~(1 << core % 64))
    for place in range(0, _MASK, 8):
        others |= read(mask + place)  # the next 64 cores of the set
    if others == 0:
        exchange(word, allowed)
    _set_cores(thread, _MASK, mask)


def enter(team, participants, function, job, sync):
    """Run function(p, round, job) for all participants that come, p = 0 being the
    caller.

    sync: address of the number of the next round. Returns how many threads are still in
    some region: they do nothing any more, but may read its job and its sync.
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
        asleep = team + _THREADS + p * LINE  # the first word of thread p's line
        if read(asleep) and swap(asleep, 1, 0):
            if MOVES:
                keep_away(team + _CORES, read(asleep + _NUMBER))
            wake(read(asleep + _LOCK))
    exchange(sync, call(function, 0, turn, job))
    door = add(team, -_OPEN)
    joined = add(team + _JOINED, (door & _JOINS) >> 1) + ((door & _JOINS) >> 1)
    for _ in range(LEAVING):
        if read(team + _LEFT) == joined:
            break
        pause()
    return joined - read(team + _LEFT)


@cache
def compiled(function):
    """A function of integers as machine code that Python can call, without its lock."""
    kinds = [ctypes.c_int64] * (1 + function.__code__.co_argcount)
    return ctypes.CFUNCTYPE(*kinds)(native(function, ""))


class Team:
    """The threads of this process."""

    def __init__(self):
        lines = _THREADS // LINE + MOST_THREADS
        raw = np.zeros(lines * LINE + LINE, np.uint8)
        start = -raw.ctypes.data % LINE
        self._words = raw[start : start + lines * LINE].view(np.int64)
        self._address = self._words.ctypes.data
        self._count = 1
        self._free = threading.Lock()
        self._kept = []  # jobs of regions in which a thread may still be

    def run(self, participants, function, job, sync, owner):
        """Run function(p, round, job) in a region of up to so many participants;
        addresses. owner: what they point into. Returns whether a thread stayed behind:
        it does nothing more, but may read those records, which must not be written any
        more.
        """
        enter_ = compiled(enter)
        if participants == 1 or self._words[0] < 0 or self._free.locked():
            enter_(self._address, 1, function, job, sync)
            return False
        with self._free:
            if participants > self._count:
                self._start(participants)
            self._kept.append(owner)
            stayed = enter_(self._address, participants, function, job, sync) > 0
            if not stayed:
                self._kept.clear()
            return stayed

    def drain(self):
        """Wait until no thread is in a region."""
        while self._words[_LEFT // 8] < self._words[_JOINED // 8]:
            time.sleep(0)

    def dismiss(self):
        """End the threads: code and memory go with the process, and must not be in use
        then.
        """
        self._free.acquire(timeout=1)  # another Python thread may still compute
        self._words[0] = -1  # a later caller works alone
        for p in range(1, self._count):
            line = self._line(p)
            if line[0]:
                line[0] = 0
                _release(int(line[_LOCK // 8]))
        until = time.monotonic() + 0.1
        while self._words[_ENDED // 8] < self._count - 1 and time.monotonic() < until:
            time.sleep(1e-4)

    def _line(self, p):
        """The words of thread p."""
        return self._words[(_THREADS + p * LINE) // 8 :][: LINE // 8]

    def _start(self, participants):
        code = native(attend, "")
        for p in range(self._count, participants):
            lock, line = _allocate(), self._line(p)
            _acquire(lock, 1)
            line[_LOCK // 8 : _P // 8 + 1] = lock, 0, self._address, p  # 0: its number
            if _start_thread(code, line.ctypes.data) == NO_THREAD:
                return  # the system gives no more: the work is done without
            self._count = p + 1


NO_THREAD = ctypes.c_ulong(-1).value
_allocate = ctypes.pythonapi.PyThread_allocate_lock
_acquire = ctypes.pythonapi.PyThread_acquire_lock
_allocate.restype, _allocate.argtypes = ctypes.c_void_p, []
_release = ctypes.pythonapi.PyThread_release_lock
_acquire.argtypes = [ctypes.c_void_p, ctypes.c_int]
_release.argtypes = [ctypes.c_void_p]
_start_thread = ctypes.pythonapi.PyThread_start_new_thread
_start_thread.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
_start_thread.restype = ctypes.c_ulong


@cache
def team():
    """The team of this process, made when first asked for."""
    made = Team()
    atexit.register(made.dismiss)
    return made


def _renew():
    if team.cache_info().currsize:
        atexit.unregister(team().dismiss)
        team.cache_clear()  # a child inherits no threads, and has none to end


at_fork(renew=_renew)
