"""A pool of threads, and the parallel region in which they work.

Compiled code opens a region and works in it as worker 0; threads of the pool that are
awake join as workers 1, 2, ... and claim work (`scheduler.py`). The region ends when
its work is done, where a parallel loop of OpenMP or Numba ends when every thread has
come, even one that never got a core. After a region a thread looks for the next one for
LINGER nanoseconds, then parks on a lock of Python's, which needs no interpreter.
Threads run machine code alone and are started through Python's C interface, so they are
threads of the system also where a library such as gevent has replaced Python's. A
forked child starts threads of its own. One region at a time has the pool; a caller that
comes meanwhile works alone.

What that is for: beside a PyTorch process that keeps both of two cores busy, a forward
pass of the airline network takes 29 us in the median and 56 us at the 99th percentile,
with one `prange` of Numba in place of the pool 6.4 and 7.4 ms. Quiet, they are level.

Memory of a pool, words of 8 bytes in lines of 64:
  0  region: its number << 16 | threads that joined << 1 | is it open?; -1 at the end
  1  what to run: code, arguments, first and last generation, workers; written while no
     region is open
  2  how many threads have left a region, ever; have joined one; have ended
  3, 4  a set of cores, for `avoid_own_core`
  5, 6, ... one line for each thread: is it parked?, its lock, its number in the system,
     the address of the pool's memory, its worker p
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
from .atomics import atomic_add, atomic_exchange, compare_and_swap, load_acquire
from .intrinsics import (
    c_function,
    call_worker,
    library,
    pause,
    sched_yield,
    two_words,
    words_at,
)

LINE = 8  # words of a cache line
SPINS = 1000  # pauses, some 20 us of waiting, then the core is offered to others
MOST_THREADS = 512
LEAVING = 64  # pauses, some 2 us, for the others to leave a region
LINGER = 200_000  # nanoseconds; longer than Python takes between two small calls

# Words of a pool, and of a thread's line.
_CODE, _ARGUMENTS, _FIRST, _LAST, _WORKERS = range(LINE, LINE + 5)
_LEFT, _JOINED, _ENDED = range(2 * LINE, 2 * LINE + 3)
_CORES, _THREADS = 3 * LINE, 5 * LINE
_PARKED, _LOCK, _NUMBER, _POOL, _P = range(5)
_OPEN, _ONE, _JOINS = 1, 2, 0xFFFF  # of a region: is it open?, one more, both fields
_CORE_WORDS = 16  # of a set of cores
_ALL = _THREADS + MOST_THREADS * LINE
WINDOWS, MONOTONIC = os.name == "nt", getattr(time, "CLOCK_MONOTONIC", 0)

_read_clock = (
    c_function("clock", library.QueryPerformanceCounter, 32, 64)
    if WINDOWS
    else c_function("clock", library.clock_gettime, 32, 32, 64)
)
_TICK = round(1e9 * time.get_clock_info("perf_counter").resolution)  # in Windows

# Locks of Python's, which need no interpreter: take one, waiting for it; release one.
_take = c_function("park", ctypes.pythonapi.PyThread_acquire_lock, 32, 64, 32)
_wake = c_function("wake", ctypes.pythonapi.PyThread_release_lock, 0, 64)

# Which cores a thread may use, in Linux alone.
MOVES = hasattr(library, "sched_getcpu") and hasattr(library, "gettid")
if MOVES:
    _own_number = c_function("own_number", library.gettid, 32)
    _core = c_function("core", library.sched_getcpu, 32)
    _get_cores = c_function("get_cores", library.sched_getaffinity, 32, 32, 64, 64)
    _set_cores = c_function("set_cores", library.sched_setaffinity, 32, 32, 64, 64)


@part
def clock():
    """Nanoseconds since some moment, the same for every core."""
    place = two_words()  # seconds and nanoseconds, or ticks
    now = words_at(place, 2)
    if WINDOWS:
        _read_clock(place)
        return load_acquire(now, 0) * _TICK
    _read_clock(MONOTONIC, place)
    return load_acquire(now, 0) * 1_000_000_000 + load_acquire(now, 1)


@part
def invites(pool, region, seen, p):
    """Is a region open that thread p has not been in, and has room for it?"""
    return region & _OPEN != 0 and region >> 16 != seen and p < pool[_WORKERS]


def worker_loop(address):
    """What a thread of a pool does for ever: join regions, and park between them.
    address: of its line.
    """
    own = words_at(address, LINE)
    pool, p = words_at(own[_POOL], _ALL), own[_P]
    seen, spins, since = 0, 0, clock()
    if MOVES:
        atomic_exchange(own, _NUMBER, _own_number())
    while True:
        region = load_acquire(pool, 0)
        if region < 0:  # the process ends
            atomic_add(pool, _ENDED, 1)
            return 0
        if invites(pool, region, seen, p):
            code, arguments = load_acquire(pool, _CODE), load_acquire(pool, _ARGUMENTS)
            first, last = load_acquire(pool, _FIRST), load_acquire(pool, _LAST)
            # Joined, what was read belongs to this region
            if compare_and_swap(pool, 0, region, region + _ONE):
                seen = region >> 16
                call_worker(code, p, first, last, arguments)
                atomic_add(pool, _LEFT, 1)
                spins, since = 0, clock()
            continue
        spins += 1
        if spins < SPINS:
            pause()
        elif clock() - since < LINGER:
            sched_yield()
        else:
            atomic_exchange(own, _PARKED, 1)
            region = load_acquire(pool, 0)
            late = region < 0 or invites(pool, region, seen, p)
            # Else its caller is waking this thread
            if not late or not compare_and_swap(own, _PARKED, 1, 0):
                _take(own[_LOCK], 1)
            spins, since = 0, clock()


@part
def avoid_own_core(address, pool, thread):
    """Let a thread of the system use every core that the caller may use, but the
    caller's own.

    Linux may wake it there, and the two share that core for milliseconds while another
    is idle. address: of the pool's set of cores.
    """
    core, size = _core(), 8 * _CORE_WORDS
    if core < 0 or core >= 8 * size or _get_cores(0, size, address) < 0:
        return
    word, others = _CORES + core // 64, 0  # the word that has the caller's core
    allowed = load_acquire(pool, word)
    atomic_exchange(pool, word, allowed & ~(1 << core % 64))
    for k in range(_CORES, _CORES + _CORE_WORDS):
        others |= load_acquire(pool, k)
    if others == 0:
        atomic_exchange(pool, word, allowed)
    _set_cores(thread, size, address)


def run_region(address, workers, code, arguments, first, last):
    """Run code(p, first, last, arguments) for all workers that come, p = 0 being the
    caller; what it returns for the caller.
    """
    if workers == 1:
        return call_worker(code, 0, first, last, arguments)
    pool = words_at(address, _ALL)
    atomic_exchange(pool, _CODE, code)
    atomic_exchange(pool, _ARGUMENTS, arguments)
    atomic_exchange(pool, _FIRST, first)
    atomic_exchange(pool, _LAST, last)
    atomic_exchange(pool, _WORKERS, workers)
    atomic_exchange(pool, 0, ((load_acquire(pool, 0) >> 16) + 1) << 16 | _OPEN)
    for p in range(1, workers):
        line = _THREADS + p * LINE
        parked = load_acquire(pool, line + _PARKED)
        if parked and compare_and_swap(pool, line + _PARKED, 1, 0):
            if MOVES:
                thread = load_acquire(pool, line + _NUMBER)
                avoid_own_core(address + 8 * _CORES, pool, thread)
            _wake(load_acquire(pool, line + _LOCK))
    result = call_worker(code, 0, first, last, arguments)
    region = atomic_add(pool, 0, -_OPEN)
    joins = (region & _JOINS) >> 1
    joined = atomic_add(pool, _JOINED, joins) + joins
    for _ in range(LEAVING):
        if load_acquire(pool, _LEFT) == joined:
            break
        pause()
    return result


@cache
def compiled(function):
    """A function of integers as machine code that Python can call, without its lock."""
    kinds = [ctypes.c_int64] * (1 + function.__code__.co_argcount)
    return ctypes.CFUNCTYPE(*kinds)(native(function, ""))


class ThreadPool:
    """The threads of this process."""

    def __init__(self):
        raw = np.zeros(_ALL + LINE, np.int64)
        start = -raw.ctypes.data % (8 * LINE) // 8
        self._words = raw[start : start + _ALL]
        self._address = self._words.ctypes.data
        self._count = 1
        self._free = threading.Lock()
        self._kept = []  # arguments of regions in which a thread may still be

    def run(self, workers, code, arguments, owner, first, last):
        """Run code(p, first, last, arguments) in a region of up to so many workers;
        what it returns. code, arguments: addresses. owner: what they point into. A
        thread that is late may still read that when the region has ended.
        """
        run = compiled(run_region)
        if workers == 1 or self._words[0] < 0 or self._free.locked():
            return run(self._address, 1, code, arguments, first, last)
        with self._free:
            if workers > self._count:
                self._start(workers)
            self._kept.append(owner)
            result = run(self._address, workers, code, arguments, first, last)
            if self._words[_LEFT] == self._words[_JOINED]:
                self._kept.clear()
            return result

    def drain(self):
        """Wait until no thread is in a region."""
        while self._words[_LEFT] < self._words[_JOINED]:
            time.sleep(0)

    def shut_down(self):
        """End the threads: code and memory go with the process, and must not be in use
        then.
        """
        self._free.acquire(timeout=1)  # another Python thread may still compute
        self._words[0] = -1  # a later caller works alone
        for p in range(1, self._count):
            line = self._line(p)
            if line[_PARKED]:
                line[_PARKED] = 0
                _release(int(line[_LOCK]))
        until = time.monotonic() + 0.1
        while self._words[_ENDED] < self._count - 1 and time.monotonic() < until:
            time.sleep(1e-4)

    def _line(self, p):
        """The words of thread p."""
        return self._words[_THREADS + p * LINE :][:LINE]

    def _start(self, workers):
        code = native(worker_loop, "")
        for p in range(self._count, workers):
            lock, line = _allocate(), self._line(p)
            _acquire(lock, 1)
            line[_LOCK : _P + 1] = lock, 0, self._address, p  # 0: its number
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
def thread_pool():
    """The pool of this process, made when first asked for."""
    pool = ThreadPool()
    atexit.register(pool.shut_down)
    return pool


def _renew():
    if thread_pool.cache_info().currsize:
        atexit.unregister(thread_pool().shut_down)
        thread_pool.cache_clear()  # a child inherits no threads, and has none to end


at_fork(renew=_renew)
