"""PyTorch's threads for the regions of passes: those of OpenMP that it computes with.

After each of its own regions PyTorch's threads wait awake for some milliseconds. Where
every core has one, threads of another pool come late to a pass between two operations
of PyTorch; these are there at once.
"""

import ctypes
from functools import cache

import torch

from ..cpu.intrinsics import c_function, call_worker, words_at
from ..cpu.thread_pool import thread_pool
from ..forks import at_fork
from ..kernels import native

# OpenMP of GCC, which that of LLVM and Intel has too; not in Windows
_torch = ctypes.CDLL(torch._C.__file__)
FOUND = hasattr(_torch, "GOMP_parallel") and hasattr(_torch, "omp_get_thread_num")
CODE, FIRST, LAST, ARGUMENTS, RESULT = range(5)  # words that a region's threads read

if FOUND:
    _own_number = c_function("omp_get_thread_num", _torch.omp_get_thread_num, 32)
    _parallel = _torch.GOMP_parallel
    _parallel.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_uint] * 2
    _parallel.restype = None


def team_member(address):
    """What each thread of a region runs. address: of the region's words."""
    region, p = words_at(address, 5), _own_number()
    code, arguments = region[CODE], region[ARGUMENTS]
    result = call_worker(code, p, region[FIRST], region[LAST], arguments)
    if p == 0:
        region[RESULT] = result
    return 0


@cache
def team_code():
    """The address of `team_member`."""
    return native(team_member, "")


class OpenMP:
    """What a ThreadPool is for a pass; a region ends when each of its threads has."""

    def run(self, workers, code, arguments, owner, first, last):
        """As `ThreadPool.run`; `owner` needs to live no longer than the call."""
        if workers == 1:
            return thread_pool().run(1, code, arguments, owner, first, last)
        words = (ctypes.c_int64 * 5)(code, first, last, arguments)
        _parallel(team_code(), ctypes.addressof(words), workers, 0)
        return words[RESULT]

    def drain(self):
        """Nobody is late."""


_pools = [OpenMP()] if FOUND else []


def pool():
    """Where passes get threads. OpenMP's do not outlive a fork, and a region in a child
    would wait for them.
    """
    return _pools[0] if _pools else thread_pool()


at_fork(renew=_pools.clear)
