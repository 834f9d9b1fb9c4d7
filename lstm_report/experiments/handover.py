"""What it costs to hand a hidden value over, by every means, and inference by ranks
that do: the question of the source.

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

import numba
import numpy as np

from lstm_kernels import reference
from lstm_kernels.cpu.instructions import exchange, integers
from lstm_kernels.cpu.rounds import LINE, finish, new_sync, wait
from lstm_kernels.cpu.slice_kernels import await_steps
from lstm_kernels.cpu.workspace import at, buffer
from lstm_kernels.errors import check_int
from lstm_kernels.gpu import device
from lstm_kernels.kernels import native
from lstm_kernels.params import Params
from lstm_kernels.ranks import rnn
from lstm_kernels.ranks.world import CORES, take_cores
from lstm_kernels.versions import network, versions

from ..measure.comparer import MismatchError, compare
from ..measure.timing import interleaved, settle, together
from ..measure.workloads import Workload

WORD = 8  # bytes of what the compiled loops hand over at least
# Two lines from one participant's word to the other's: a core fetches neighbours with a
# line.
APART = 2 * LINE
QUICK = 10  # times as many turns for what is so quick that starting it would show
LONG = 1 << 16  # bytes; what is longer is handed over less often in a repeat
POLL = 1e-3  # seconds between two looks of a rank that waits asleep
ONE, THREADS = "one rank", "threads"
GPU_VERSIONS = ("cuda-v2", "cuda-v3", "cuda-fused")
TOLERANCE = 2e-4  # relative, of float32 outputs


def to_and_fro(word, other_word, place, numbers, before, turns, first):
    """Hand `numbers` integers over, `turns` times each way; how many arrived as they
    were sent.

    word, other_word: addresses of this participant's word and of the other's, each in a
    line of its own. place: that of the integers, which both write in turn. before:
    turns done before this call. first: 1 for who begins, 0 for the other.
    """
    values, arrived = integers(place, numbers), 0
    for turn in range(before + 1, before + turns + 1):
        if not first:
            await_steps(other_word, turn)
            for i in range(numbers):
                arrived += values[i] == 2 * turn + i
        for i in range(numbers):
            values[i] = 2 * turn + 1 - first + i
        exchange(word, turn)
        if first:
            await_steps(other_word, turn)
            for i in range(numbers):
                arrived += values[i] == 2 * turn + 1 + i
    return arrived


def meetings(sync, participants, turns):
    """Meet `turns` times: rounds of one task for each participant."""
    turn = 2
    for _ in range(turns):
        finish(sync, 1, turn)
        turn = wait(sync, 1, turn, participants)
    return turn


@cache
def _compiled(function, count):
    """A kernel as a function of `count` integers, which lets other threads run."""
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * count)
    return kind(native(function, "handover"))


def meet(world):
    """Wait for every rank, asleep, so that one that computes alone is not disturbed."""
    request = world.comm.Ibarrier()
    while not request.Test():
        time.sleep(POLL)


def timed(world, case):
    """Seconds of a call from a common start to the last rank's end, on every rank."""
    meet(world)
    world.comm.Barrier()
    start = time.perf_counter()
    case()
    taken = time.perf_counter() - start
    meet(world)  # a rank without work must not take a core from threads of another
    return world.comm.allreduce(taken, world.MPI.MAX)


def alone(world, call):
    """Seconds of a call of rank 0, while the others sleep."""
    return timed(world, call if world.rank == 0 else lambda: None)


def in_turn(cases, repeats):
    """`interleaved` for cases that return their seconds."""
    return interleaved(
        cases, repeats=check_int("repeats", repeats), least=0, self_timed=True
    )


def handover(world, sizes=(8, 256, 4096, 65536, 1048576), turns=1000, repeats=20):
    """Time every means between two ranks: a row per means, number of bytes and repeat.

    `seconds` are those of one way. sizes: bytes, multiples of 8. turns: there and back
    in a repeat, fewer of large ones.
    """
    if world.size != 2:
        raise ValueError(f"world: got {world.size} ranks, want 2")
    turns = check_int("turns", turns)
    has_gpu = device.why_unavailable() is None and not device.SIMULATED
    has_gpu = all(world.comm.allgather(has_gpu))
    cases = {}
    for n in sizes:
        if check_int("sizes", n) % WORD:
            raise ValueError(f"sizes: got {n} bytes, want multiples of {WORD}")
        count = max(10, min(turns, turns * LONG // n))
        for means in ("cache line", "window"):
            cases[f"{means} {n}"] = Line(world, means, n, QUICK * count).seconds
        ours, both = np.ones(n, np.uint8), np.empty(2 * n, np.uint8)
        message = partial(_message, world, ours, both[:n])
        collective = partial(world.comm.Allgather, ours, both)
        cases[f"message {n}"] = partial(_mean, world, message, count, 2)
        cases[f"collective {n}"] = partial(_mean, world, collective, count, 1)
        if has_gpu:
            cases[f"device {n}"] = partial(_device, world, ours, count)
    cases["thread barrier 0"] = partial(_thread_barrier, world, QUICK * turns)
    cases["barrier 0"] = partial(_mean, world, world.comm.Barrier, turns, 1)
    rows = in_turn(cases, repeats)
    case = rows.pop("case").str.rsplit(" ", n=1, expand=True)
    rows = rows.assign(version=case[0], bytes=case[1].astype(int), stage="hand over")
    threads = rows["version"].isin(["cache line", "thread barrier"])
    return rows.assign(ranks=np.where(threads, 1, 2), threads=np.where(threads, 2, 1))


class Line:
    """Bytes handed to and fro between two threads of rank 0, or in a window of two
    ranks.
    """

    def __init__(self, world, means, count, turns):
        self._world, self._means, self._turns = world, means, turns
        self._numbers, self._done = count // WORD, 0
        self._memory = buffer(2 * APART + count, dtype=np.uint8)

    def seconds(self):
        """Seconds that one way took, the mean over the turns, on every rank."""
        world = self._world
        if self._means == "window":
            self._memory, self._done = world.window(len(self._memory)), 0
            if world.rank == 0:
                self._memory[:] = 0
            taken = timed(world, partial(self._hand, 1 - world.rank))
        else:
            taken = world.comm.bcast(on_two_threads(world, self._hand))
        self._done += self._turns
        return taken / (2 * self._turns)

    def _hand(self, first):
        start = at(self._memory)
        words = (start, start + APART) if first else (start + APART, start)
        run, numbers = _compiled(to_and_fro, 7), self._numbers
        place = start + 2 * APART
        arrived = run(*words, place, numbers, self._done, self._turns, first)
        if arrived != numbers * self._turns:
            want = numbers * self._turns
            raise MismatchError(f"hand over: got {arrived} of {want} numbers")


def _mean(world, call, turns, ways):
    """Seconds of a way, of `ways` in a call."""

    def calls():
        for _ in range(turns):
            call()

    return timed(world, calls) / (ways * turns)


def _message(world, ours, other):
    """There and back."""
    if world.rank == 0:
        world.comm.Send(ours, 1)
        world.comm.Recv(other, 1)
    else:
        world.comm.Recv(other, 0)
        world.comm.Send(ours, 0)


def on_two_threads(world, work):
    """Seconds of work(1) and work(0) on two threads of rank 0, while other ranks sleep;
    each has a core of its own where there are two.
    """
    meet(world)
    spent, errors, both = [], [], threading.Barrier(2)

    def run(first):
        try:
            take_cores(first, len(CORES))
            both.wait()
            start = time.perf_counter()
            work(first)
            spent.append(time.perf_counter() - start)
        except BaseException as error:  # raised below; the other thread stops waiting
            errors.append(error)
            both.abort()

    if world.rank == 0:
        threads = [threading.Thread(target=run, args=(first,)) for first in (1, 0)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    meet(world)
    if errors:
        raise errors[0]
    return max(spent, default=0.0)


def _thread_barrier(world, turns):
    sync, run = new_sync(buffer, 1), _compiled(meetings, 3)
    taken = on_two_threads(world, lambda first: run(at(sync), 2, turns)) / turns
    return world.comm.bcast(taken)


def _device(world, ours, turns):
    """To the GPU and back, on rank 0: one way is half of it."""

    def copies():
        room = device.cuda.device_array(ours.shape, np.uint8)
        for _ in range(turns):
            room.copy_to_device(ours)
            room.copy_to_host(ours)

    return alone(world, copies) / (2 * turns)


def inference(
    world,
    hidden=(128, 256, 512, 1024, 2048),
    batch=1,
    layers=1,
    steps=200,
    chunks=10,
    repeats=20,
):
    """Time inference of RNNs by one rank, by its threads, by a GPU where there is one,
    and by all ranks in every way that fits: a row per way, hidden units and repeat.

    Each way is compared with the reference before and after; `max_err` is its largest
    error.
    """
    check_int("chunks", chunks)
    parts, threads = [], min(world.size, numba.get_num_threads())
    for H in hidden:
        work = Workload(L=layers, T=steps, D=H, H=H, B=batch)
        sizes = {"num_layers": layers, "output_size": H, "cell": "rnn", "seed": 0}
        params, (x, _) = Params.init(H, H, **sizes), work.example(0)
        ways = _of_one(world, params, threads) | _of_all(world, params, work, chunks)
        if THREADS in ways:
            alone(world, partial(settle, partial(ways[THREADS], x)))
        want = reference.forward(params.astype(np.float64), x.astype(np.float64))[0]
        check = partial(_errors, world, ways, x, want)
        errors = check()
        calls = {name: partial(way, x) for name, way in ways.items()}
        rows = in_turn({n: partial(timed, world, c) for n, c in calls.items()}, repeats)
        check()
        rows = rows.assign(stage="forward", max_err=rows["case"].map(errors))
        # The read-out of all steps on one rank, and with the steps shared by all.
        y = np.random.default_rng(0).standard_normal((steps, batch, H), np.float32)
        low, high = world.share(steps)
        cases = {
            ONE: partial(alone, world, partial(rnn.outputs, params, y)),
            "steps": partial(timed, world, partial(rnn.outputs, params, y[low:high])),
        }
        both = [rows, in_turn(cases, repeats).assign(stage="read-out")]
        parts.append(together(both).assign(**work.columns()))
    rows = together(parts).rename(columns={"case": "version"})
    single = rows["version"].isin([ONE, THREADS, *GPU_VERSIONS])
    rows["threads"] = np.where(rows["version"] == THREADS, threads, 1)
    return rows.assign(ranks=np.where(single, 1, world.size))


def _of_one(world, params, threads):
    """Ways of rank 0, while the others sleep: functions of x."""
    ways = {}
    if world.rank == 0:
        ways[ONE] = network("numba-fused", params, threads=1).forward
        if threads > 1:
            net = network("numba-fused", params, threads=threads)
            ways[THREADS] = partial(_on_every_core, world, net.forward)
        for version in versions():
            runs = not (version.why_unavailable or device.SIMULATED)
            if version.name in GPU_VERSIONS and runs:
                ways[version.name] = network(version.name, params).forward
    names = world.comm.bcast(list(ways))
    return {name: ways.get(name, lambda x: None) for name in names}


def _on_every_core(world, call, x):
    take_cores()
    try:
        return call(x)
    finally:
        take_cores(*world.near)


def _of_all(world, params, work, chunks):
    """Ways of all ranks that this workload has: functions of x."""
    ways = {}
    if work.L == 1:
        ways |= {m: rnn.Units(params, world, m).forward for m in rnn.MEANS}
    if 1 < world.size <= work.L:
        ways["layers"] = rnn.Layers(params, world, chunks).forward
    if 1 < world.size <= work.B:
        ways["samples"] = rnn.Samples(params, world).forward
    return ways


def _errors(world, ways, x, want):
    """Of each way the largest error of any rank; raises MismatchError on a rank that
    differs.
    """
    errors, (low, high) = {}, world.share(x.shape[1])
    for name, way in ways.items():
        got, error = way(x), 0.0
        if got is not None:
            y = got[0] if isinstance(got, tuple) else got
            part = want[:, low:high] if name == "samples" else want
            error = compare({"y": y}, {"y": part}, TOLERANCE)
        errors[name] = world.comm.allreduce(error, world.MPI.MAX)
    return errors
