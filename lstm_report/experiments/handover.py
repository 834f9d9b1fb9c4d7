"""What it costs to hand a value to another core by each mechanism, and what a pass of
an RNN takes whose steps two workers share: page 07.

Every round times all cases in turn. Threads run in rank 0, while the other rank sleeps;
ranks have a core each. All loops are compiled, unless a name says "from Python".
"""

import ctypes
import threading
import time
from dataclasses import replace
from functools import cache, partial

import numba
import numpy as np

from lstm_kernels import reference
from lstm_kernels.cpu.atomics import atomic_exchange, load_acquire
from lstm_kernels.cpu.entries import address
from lstm_kernels.cpu.intrinsics import pause, sched_yield, words_at
from lstm_kernels.cpu.packing import aligned
from lstm_kernels.cpu.partitions import Partition
from lstm_kernels.cpu.thread_pool import LINE, SPINS
from lstm_kernels.errors import check_int
from lstm_kernels.kernels import native, part
from lstm_kernels.params import Params
from lstm_kernels.ranks import rnn
from lstm_kernels.ranks.world import CORES, World, take_cores
from lstm_kernels.versions import network

from ..measure.comparer import TOLERANCE, MismatchError, compare
from ..measure.timing import interleaved, together
from . import openmp
from .shares import compiled, one_step, prepared

WORD = 8  # bytes
# From one worker's word to the next: a core may fetch a line's neighbour with it.
APART = 2 * LINE * WORD
QUICK = 10  # times as many turns of what starting a thread would show in
POLL = 2e-3  # seconds between two looks of a rank that waits asleep
# Steps of a pass, and H squared times the steps that are timed together: a pass is so
# long that entering it does not show.
STEPS, WORK, LONGEST = 64, 1 << 25, 640
ONE = "one thread"
PRICED = 256  # H at which a shared step is timed without its work too
BARE = " without work"


@part
def await_steps(words, steps):
    """Wait until the worker whose words these are has done so many steps: the first
    word says.
    """
    spins = 0
    while load_acquire(words, 0) < steps:
        spins += 1
        if spins < SPINS:
            pause()
        else:
            sched_yield()


def to_and_fro(own, other, numbers, before, turns, first):
    """Hand `numbers` integers over, `turns` times each way; how many arrived as they
    were sent.

    own, other: addresses of this worker's words and of the other's, the steps it has
    done and then the integers, the first of them in the same line. before: turns done
    before this call. first: 1 for who begins, 0 for the other.
    """
    ours, theirs = words_at(own, 1 + numbers), words_at(other, 1 + numbers)
    arrived = 0
    for turn in range(before + 1, before + turns + 1):
        if not first:
            await_steps(theirs, turn)
            for i in range(numbers):
                arrived += theirs[1 + i] == turn + i
        for i in range(numbers):
            ours[1 + i] = turn + i
        atomic_exchange(ours, 0, turn)
        if first:
            await_steps(theirs, turn)
            for i in range(numbers):
                arrived += theirs[1 + i] == turn + i
    return arrived


def nothing(share, t, shares, arguments):
    """What threads run in a region whose own cost is to be seen."""
    return 0


@cache
def _compiled(function, count):
    """A kernel as a function of `count` integers, which lets other threads run."""
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * count)
    return kind(native(function, "handover"))


def meet(world):
    """Wait for every rank, asleep, so that one that computes alone is not disturbed."""
    if world is None:
        return
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


def in_turn(world, cases, repeats):
    """`interleaved` for cases that return their seconds, in one order on all ranks."""
    seed = int(np.random.default_rng().integers(1 << 32))
    seed = seed if world is None else world.comm.bcast(seed)
    repeats = check_int("repeats", repeats)
    return interleaved(cases, repeats=repeats, least=0, self_timed=True, seed=seed)


def on_rank_0(world, measure):
    """What measure(), in seconds, is on rank 0 with every core, while others sleep; on
    every rank.
    """
    meet(world)
    taken = None
    if world is None or world.rank == 0:
        take_cores()
        taken = measure()
        if world is not None:
            take_cores(*world.near)
    meet(world)
    return taken if world is None else world.comm.bcast(taken)


def after_one(call, count):
    """Mean seconds of `count` calls after one that wakes threads."""
    call()
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def hand_overs(world, sizes=(8, 1024), turns=1000, repeats=10):
    """Time every mechanism: a row per mechanism, bytes and repeat; `seconds` are those
    of one way.

    sizes: bytes, multiples of 8. world: of two ranks; None: threads alone.
    """
    cases = {}
    for n in sizes:
        cases[f"line/{n}"] = Line(None, world, n, QUICK * turns).seconds
        if world is not None:
            cases[f"window/{n}"] = Line(world, world, n, QUICK * turns).seconds
            for name, loop in _messages(world, n, turns).items():
                cases[f"{name}/{n}"] = partial(_mean, world, loop, 1, 2 * turns)
    if not openmp.why_unavailable():
        regions = openmp.Regions(native(nothing, "handover"), 0, 2, turns)
        region = partial(after_one, regions, 1)
        cases["openmp/0"] = lambda: on_rank_0(world, region) / turns
    rows = in_turn(world, cases, repeats)
    case = rows["case"].str.split("/", expand=True)
    return rows.assign(case=case[0], bytes=case[1].astype(int), stage="hand over")


class Line:
    """Bytes handed to and fro, in a window of two ranks or, where that is None, by two
    threads of rank 0.
    """

    def __init__(self, ranks, world, count, turns):
        self._ranks, self._world, self._turns = ranks, world, turns
        self._numbers, self._done = check_int("bytes", count) // WORD, 0
        # Of each worker, its word and its integers
        self._room = -(-(WORD + count) // APART) * APART
        self._memory = aligned((2 * self._room,), np.uint8)

    def seconds(self):
        """Seconds that one way took, the mean over the turns, on every rank."""
        ranks = self._ranks
        if ranks is not None:
            self._memory, self._done = ranks.window(len(self._memory)), 0
            if ranks.rank == 0:
                self._memory[:] = 0
            taken = timed(ranks, partial(self._hand, 1 - ranks.rank))
        else:
            taken = on_rank_0(self._world, partial(on_two_threads, self._hand))
        self._done += self._turns
        return taken / (2 * self._turns)

    def _hand(self, first):
        start = address(self._memory)
        words = start + first * self._room, start + (1 - first) * self._room
        run = _compiled(to_and_fro, 6)
        arrived = run(*words, self._numbers, self._done, self._turns, first)
        if arrived != self._numbers * self._turns:
            want = self._numbers * self._turns
            raise MismatchError(f"hand over: got {arrived} of {want} numbers")


def on_two_threads(work):
    """Seconds of work(1) and work(0) on two threads, each with a core of its own where
    there are two.
    """
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

    threads = [threading.Thread(target=run, args=(first,)) for first in (1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return max(spent)


def _messages(world, n, turns):
    from . import mpi_loops  # which needs mpi4py

    return mpi_loops.Messages(world, n, turns).cases()


def passes(world, hidden, repeats=20):
    """Time a pass of one sample through an RNN of H units and inputs by one thread, and
    by two workers in every way: a row per H, way and repeat. At PRICED units also what
    the workers exchange, without the work.

    Every way has the bits of one thread before and after, and one thread those of the
    reference but for rounding, else MismatchError. Fewer rounds for large H.
    """
    parts = []
    for H in hidden:
        T = min(LONGEST, max(STEPS, WORK // 3 // H**2))
        count = max(1, WORK // (T * H**2))
        params = Params.init(H, H, cell="rnn", seed=0)
        x = np.random.default_rng(0).standard_normal((T, 1, H), np.float32)
        of_threads, of_ranks = _ways(world, params, x)
        check = partial(_check, world, x, params, of_threads, of_ranks)
        check()
        cases = {
            name: partial(on_rank_0, world, partial(after_one, way, count))
            for name, way in of_threads.items()
        }
        for name, way in of_ranks.items():
            cases[name] = partial(_mean, world, way, count)
        if H == PRICED:
            cases |= _bare(world, params, x, count)
        rows = in_turn(world, cases, max(min(repeats, 3), min(repeats, 10240 // H)))
        check()
        parts.append(rows.assign(H=H, T=T, stage="forward"))
    return together(parts)


def _mean(world, call, count, parts=1):
    """Seconds of one of `count` calls on all ranks, or of a part of it."""

    def calls():
        for _ in range(count):
            call()

    return timed(world, calls) / (count * parts)


class NoSample(Partition):
    """A partition of a pass whose tasks have no sample: it exchanges what it exchanges,
    and computes nothing.
    """

    def schedule(self, graph, threads):
        whole = super().schedule(graph, threads)
        tasks = (task._replace(samples=(0, 0)) for task in whole.tasks)
        return replace(whole, tasks=tuple(tasks))


def _ways(world, params, x, partition=rnn.UNITS):
    """The ways of threads and of ranks, by name: a Pass of each."""
    threads = min(2, numba.config.NUMBA_NUM_THREADS)
    of_threads = {}
    for name, count, how in (
        (ONE, 1, Partition("one thread")),
        ("threads", threads, partition),
    ):
        net = network("numba-fused", params, threads=count)
        of_threads[name] = net.bare_forward(x, how)
    if not openmp.why_unavailable():
        way = prepared(params, x)
        code, arguments = compiled(one_step, way), way.workspace.arguments.address
        loop = openmp.Regions(code, arguments, threads, len(x), way)
        of_threads["openmp"] = replace(way, run=loop)
    if world is None:
        return of_threads, {}
    from . import mpi_loops  # which needs mpi4py

    of_ranks = {"window": rnn.Units(params, world).bound(x, partition)}
    return of_threads, of_ranks | {"messages": mpi_loops.bound(params, world, x)}


def _check(world, x, params, of_threads, of_ranks):
    """Every way's h against that of one thread, on every rank that runs it."""
    one, H = of_threads[ONE], params.hidden_size
    one()
    part = x[:20].astype(np.float64)
    want = reference.forward(params.astype(np.float64), part)[0]
    compare({"h": one.h[1:21, :, :H]}, {"h": want}, TOLERANCE[x.dtype])
    want = one.h[1:, :, :H].copy()
    on_rank_0(world, lambda: [_same(want, *way) for way in of_threads.items()])
    for way in of_ranks.items():
        _same(want, *way, world.comm.Barrier)


def _same(want, name, way, wait=lambda: None):
    h = way.h[1:, :, : want.shape[2]]  # without padding
    wait()
    h[:] = np.nan
    wait()  # ranks have one h: none writes before it is NaN for all
    way()
    if not np.array_equal(h, want):
        raise MismatchError(f"{name}: other bits than one thread's")


def _bare(world, params, x, count):
    """Cases of what a shared step exchanges, by name: a pass over no sample, which
    waits, sends and begins regions as ever.
    """
    other = world and World(world.comm)  # which has a window of its own
    of_threads, of_ranks = _ways(other, params, x, NoSample("units"))
    del of_threads[ONE]
    cases = {}
    for way in (*of_threads.values(), *of_ranks.values()):
        way.workspace.arguments.set("B", 0)  # for kernels that compute shares
    for name, way in of_threads.items():
        case = partial(after_one, way, count)
        cases[f"{name}{BARE}"] = partial(on_rank_0, world, case)
    for name, way in of_ranks.items():
        cases[f"{name}{BARE}"] = partial(_mean, world, way, count)
    return cases


def both(world, few=False):
    """The rows of `hand_overs` and of `passes`."""
    cut = {"repeats": 2} if few else {}
    parts = [hand_overs(world, **cut, turns=20 if few else 1000)]
    sizes = (128, 256) if few else (128, 256, 512, 1024)
    return together([*parts, passes(world, sizes, **cut)])
