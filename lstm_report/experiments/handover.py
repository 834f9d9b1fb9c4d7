"""What it costs to hand a hidden value over, by every means: the question of the
source.

From one core to another, one way: a line of the cache that two threads write in turn,
or two processes in a window of shared memory; a barrier of either; a message; a
collective. To a GPU and back where there is one. Means of MPI are called from Python,
as `rnn.py` calls them, and their times hold what such a call takes; the others are
compiled loops.
"""

import ctypes
import threading
import time
from functools import cache, partial

import numpy as np

from lstm_kernels.cpu import slice_kernels
from lstm_kernels.cpu.rounds import LINE, new_sync
from lstm_kernels.cpu.workspace import at, buffer
from lstm_kernels.errors import check_ints
from lstm_kernels.gpu import device
from lstm_kernels.kernels import native
from lstm_kernels.ranks.world import CORES, Sum, take_cores

from ..measure.comparer import MismatchError
from ..measure.timing import interleaved

VALUE, WORD = (
    4,
    8,
)  # bytes of a hidden value; of what the compiled loops hand over at least
SIZES = "8,256,4096,65536,1048576"
# Two lines from one participant's word to the other's: a core fetches neighbours with a
# line.
APART = 2 * LINE
QUICK = 10  # times as many turns for what is compiled
LONG = 1 << 16  # bytes; what is longer is handed over less often in a repeat


def handover(world, sizes=SIZES, turns=1000, repeats=20):
    """Time every means between two ranks: a row per means, number of bytes and repeat.

    `seconds` are those of one way. sizes: bytes, multiples of 8. turns: there and back
    in a repeat, fewer of large ones.
    """
    if world.size != 2:
        raise ValueError(f"world: got {world.size} ranks, want 2")
    cases = {}
    for n in _sizes(sizes):
        count = max(10, min(turns, turns * LONG // n))
        for name in (
            "cache line",
            "window",
        ):  # which are so quick that starting them would show
            cases[f"{name} {n}"] = Line(world, name, n, QUICK * count).seconds
        for name in ("message", "collective"):
            cases[f"{name} {n}"] = Line(world, name, n, count).seconds
        if world.agree(
            "GPU", device.why_unavailable() is None and not device.SIMULATED
        ):
            cases[f"device {n}"] = partial(_device, world, n, count)
    cases["thread barrier 0"] = partial(_thread_barrier, world, QUICK * turns)
    cases["barrier 0"] = Line(world, "barrier", 0, turns).seconds
    rows = _rows(cases, repeats, "hand over")
    threads = rows["version"].isin(["cache line", "thread barrier"])
    return rows.assign(ranks=np.where(threads, 1, 2), threads=np.where(threads, 2, 1))


def sums(world, sizes="4096,65536,1048576,16777216", repeats=10):
    """Time sums over all ranks (`world.Sum`), as gradients are summed: rows like
    `handover`'s.
    """
    arrays = {f"sum {n}": np.ones(n // VALUE, np.float32) for n in _sizes(sizes)}
    cases = {name: partial(_sum, world, array) for name, array in arrays.items()}
    return _rows(cases, repeats, "sum").assign(ranks=world.size, threads=1)


def _sizes(text):
    sizes = check_ints("sizes", text, WORD)
    if wrong := [n for n in sizes if n % WORD]:
        raise ValueError(f"sizes: got {wrong[0]} bytes, want multiples of {WORD}")
    return sizes


def _rows(cases, repeats, stage):
    rows = interleaved(cases, repeats=repeats, least=0, own=True)
    case = rows.pop("case").str.rsplit(" ", n=1, expand=True)
    return rows.assign(version=case[0], bytes=case[1].astype(int), stage=stage)


@cache
def _compiled(function, count):
    """A kernel as a function of `count` integers, which lets other threads run."""
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * count)
    return kind(native(function, "handover"))


class Line:
    """Bytes handed to and fro between two threads of rank 0, or between two ranks."""

    def __init__(self, world, means, count, turns):
        self._world, self._turns, self._numbers, self._done = (
            world,
            turns,
            count // WORD,
            0,
        )
        self._run = getattr(self, f"_{means.replace(' ', '_')}")
        self._kernel = _compiled(slice_kernels.to_and_fro, 7)
        room = 2 * APART + count
        if means == "window":
            self._memory, self._window = world.window(room)
        else:
            self._memory = buffer(room, dtype=np.uint8)
        self._mine, self._other = (
            np.ones(count, np.uint8),
            np.empty(2 * count, np.uint8),
        )

    def seconds(self):
        """Seconds that one way took, the mean over the turns, on every rank."""
        taken = self._run()
        self._done += self._turns
        return self._world.comm.allreduce(taken, self._world.MPI.MAX)

    def _to_and_fro(self, first):
        words = at(self._memory), at(self._memory) + APART
        own, other = words if first else words[::-1]
        place, numbers = words[0] + 2 * APART, self._numbers
        arrived = self._kernel(
            own, other, place, numbers, self._done, self._turns, first
        )
        if arrived != numbers * self._turns:
            raise MismatchError(
                f"hand over: got {arrived} of {numbers * self._turns} numbers"
            )

    def _cache_line(self):
        return on_two_threads(self._world, self._to_and_fro) / (2 * self._turns)

    def _window(self):
        return self._timed(partial(self._to_and_fro, 1 - self._world.rank)) / (
            2 * self._turns
        )

    def _message(self):
        return self._timed(self._exchange) / (2 * self._turns)

    def _exchange(self):
        comm, mine, other = self._world.comm, self._mine, self._other[: self._mine.size]
        for _ in range(self._turns):
            if self._world.rank == 0:
                comm.Send(mine, 1)
                comm.Recv(other, 1)
            else:
                comm.Recv(other, 0)
                comm.Send(mine, 0)

    def _collective(self):
        return self._timed(self._gather) / self._turns

    def _gather(self):
        for _ in range(self._turns):
            self._world.comm.Allgather(self._mine, self._other)

    def _barrier(self):
        return self._timed(self._meet) / self._turns

    def _meet(self):
        for _ in range(self._turns):
            self._world.comm.Barrier()

    def _timed(self, work):
        self._world.meet()
        self._world.comm.Barrier()
        start = time.perf_counter()
        work()
        return time.perf_counter() - start


def on_two_threads(world, work):
    """Seconds of work(1) and work(0) on two threads of rank 0, while other ranks sleep;
    each has a core of its own where there are two.
    """
    world.meet()
    spent, failed, both = [], [], threading.Barrier(2)

    def run(first):
        try:
            take_cores(first, len(CORES))
            both.wait()
            start = time.perf_counter()
            work(first)
            spent.append(time.perf_counter() - start)
        except BaseException as error:  # raised below; the other thread stops waiting
            failed.append(error)
            both.abort()

    threads = [threading.Thread(target=run, args=(first,)) for first in (1, 0)]
    for thread in threads if world.rank == 0 else ():
        thread.start()
    for thread in threads if world.rank == 0 else ():
        thread.join()
    world.meet()
    if failed:
        raise failed[0]
    return max(spent, default=0.0)


def _thread_barrier(world, turns):
    sync, meet = new_sync(buffer, 1), _compiled(slice_kernels.meetings, 3)
    taken = on_two_threads(world, lambda first: meet(at(sync), 2, turns)) / turns
    return world.comm.bcast(taken)


def _device(world, n, turns):
    """To the GPU and back, on rank 0: one way is half of it."""
    taken = 0.0
    if world.rank == 0:
        mine, there = np.ones(n, np.uint8), device.cuda.device_array(n, np.uint8)
        start = time.perf_counter()
        for _ in range(turns):
            there.copy_to_device(mine)
            there.copy_to_host(mine)
        taken = (time.perf_counter() - start) / (2 * turns)
    return world.comm.bcast(taken)


def _sum(world, array):
    summing = Sum(world, array)
    return world.timed(summing.run)
