"""Regions of OpenMP from compiled code: what a compiler makes of `#pragma omp
parallel`, a call of GNU's library.
"""

import ctypes
import ctypes.util
import os
from contextlib import contextmanager

import numpy as np

from lstm_kernels.cpu.entries import address
from lstm_kernels.cpu.intrinsics import c_function, call_worker, words_at
from lstm_kernels.kernels import native
from lstm_kernels.ranks.world import CORES


def why_unavailable():
    """None where the library is, else the reason."""
    return None if _library else "GNU's library of OpenMP is not here"


def _load():
    """The library, loaded with every core: it counts the cores then, and where threads
    are more than those it lets them sleep after each region.
    """
    with every_core():
        for name in ("libgomp.so.1", ctypes.util.find_library("gomp")):
            try:
                return ctypes.CDLL(name) if name else None
            except OSError:
                continue
    return None


@contextmanager
def every_core():
    """This thread may run on every core that the process was given."""
    own = os.sched_getaffinity(0) if CORES else set()
    if CORES:
        os.sched_setaffinity(0, CORES)
    try:
        yield
    finally:
        if CORES:
            os.sched_setaffinity(0, own)


_library = _load()
if _library:
    parallel = c_function("omp_parallel", _library.GOMP_parallel, 0, 64, 64, 32, 32)
    number = c_function("omp_number", _library.omp_get_thread_num, 32)


def region(data):
    """What each thread runs: function(its number, step, threads, arguments)."""
    words = words_at(data, 4)
    return call_worker(words[0], number(), words[2], words[3], words[1])


def regions(body, data, threads, steps):
    """A parallel region for each step."""
    words = words_at(data, 4)
    for t in range(steps):
        words[2] = t
        parallel(body, data, threads, 0)
    return steps


class Regions:
    """A call runs function(thread, step, threads, arguments) on so many threads, step
    after step.

    function, arguments: addresses. kept: what must live as long, what those point into.
    """

    def __init__(self, function, arguments, threads, steps, kept=None):
        self._kept = kept
        self._words = np.array([function, arguments, 0, threads])
        kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)
        self._run = kind(native(regions, "openmp"))
        self._calls = native(region, "openmp"), address(self._words), threads, steps

    def __call__(self):
        self._run(*self._calls)
