"""A GPU for the tests: all blocks of a launch run at the same time, as threads of
Python, so that they can wait for each other; and it watches every number.

An index outside an array is an error, and so are two accesses to one number that may
come in either order: by two threads of a block between its barriers, or by two blocks
between the grid's, unless both only read.
"""

import itertools
import threading
from collections import defaultdict
from types import SimpleNamespace

import numpy as np

from lstm_kernels.gpu import build, device


class RaceError(AssertionError):
    """Two threads use a number, one of them writes it, and nothing says who comes
    first.
    """


class Watched:
    """A flat array."""

    def __init__(self, array, grid, name):
        self.array, self.grid, self.name = array, grid, name
        self.size, self.shape = array.size, array.shape
        self.seen = defaultdict(list)

    def __getitem__(self, i):
        if i == slice(0, None):  # the whole array from an address made at run time
            return self
        self.note(i, "reads")
        return self.array[i]

    def __setitem__(self, i, value):
        self.note(i, "writes")
        self.array[i] = value

    def note(self, i, how):
        place = i if isinstance(i, tuple) else (i,)
        sizes = zip(place, self.shape, strict=True)
        if not all(0 <= index < size for index, size in sizes):
            raise IndexError(f"{self.name}[{i}]: want an index of {self.shape}")
        me = threading.current_thread().place
        with self.grid.lock:
            for other in self.seen[place]:
                if self.clash(me, other, how):
                    both = f"{me.who} {how}, {other[0]} {other[1]} it, too"
                    raise RaceError(f"{self.name}[{i}]: {both}")
            self.seen[place].append((me.who, how, me.phase, me.interval))

    def clash(self, me, other, how):
        who, did, phase, interval = other
        if me.who == who or me.phase != phase or how == did == "reads":
            return False
        # A barrier of a block holds for its own threads alone.
        return me.who[0] != who[0] or me.interval == interval


class Grid:
    """What kernels know as `cuda`."""

    def __init__(self, blocks, threads, numbers, dtype):
        self.blocks, self.threads, self.lock = blocks, threads, threading.Lock()
        count = threads[0] * threads[1]
        self.barriers = [threading.Barrier(count) for _ in range(blocks)]
        self.barrier = threading.Barrier(count * blocks)
        self.numbers, self.dtype = numbers, dtype  # of a block's shared memory
        self.shared = SimpleNamespace(
            array=lambda size, kind: self.memory[self.blockIdx.x]
        )
        self.cg = SimpleNamespace(this_grid=lambda: SimpleNamespace(sync=self.sync))
        self.blockDim = SimpleNamespace(x=threads[0], y=threads[1])
        self.gridDim = SimpleNamespace(x=blocks, y=1)

    blockIdx = property(lambda self: threading.current_thread().place.blockIdx)
    threadIdx = property(lambda self: threading.current_thread().place.threadIdx)

    def grid(self, axes):
        return self.blockIdx.x * self.blockDim.x + self.threadIdx.x

    def gridsize(self, axes):
        return self.gridDim.x * self.blockDim.x

    def syncthreads(self):
        self.barriers[self.blockIdx.x].wait(60)
        threading.current_thread().place.interval += 1

    def syncthreads_count(self, predicate):
        if predicate:
            raise NotImplementedError("want a predicate of 0: this grid does not count")
        self.syncthreads()
        return 0

    def sync(self):
        self.barrier.wait(60)
        threading.current_thread().place.phase += 1

    def launch(self, kernel, *arguments):
        """Run a kernel, a Python function whose `cuda` is this; the first error of a
        thread.
        """
        empty = np.full((self.blocks, self.numbers), np.nan, self.dtype)
        shared = "shared memory of {}".format
        self.memory = [Watched(a, self, shared(n)) for n, a in enumerate(empty)]
        names = kernel.__code__.co_varnames
        watched = [
            Watched(a, self, name) if isinstance(a, np.ndarray) else a
            for name, a in zip(names, arguments, strict=False)
        ]
        errors = []

        def run():
            try:
                kernel(*watched)
            except threading.BrokenBarrierError:
                pass  # another thread failed
            except Exception as error:
                errors.append(error)
                for barrier in (self.barrier, *self.barriers):
                    barrier.abort()

        threads = []
        for who in itertools.product(*map(range, (self.blocks, *self.threads))):
            thread = threading.Thread(target=run)
            thread.place = place = SimpleNamespace(who=who, phase=0, interval=0)
            place.blockIdx = SimpleNamespace(x=who[0], y=0)
            place.threadIdx = SimpleNamespace(x=who[1], y=who[2])
            threads.append(thread)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        if any(barrier.broken for barrier in (self.barrier, *self.barriers)):
            raise TimeoutError("a thread waits at a barrier that another never reaches")


class Kernel:
    """What stands in for a compiled kernel: kernel[blocks, threads, stream,
    shared](...).
    """

    def __init__(self, function, cuda):
        self.function, self.cuda = function, cuda

    def __getitem__(self, how):
        blocks, threads, _, shared = how
        threads = threads if isinstance(threads, tuple) else (threads, 1)

        def launch(*arguments):
            # Of Numba's simulated device.
            flat = [getattr(a, "_ary", a) for a in arguments]
            dtypes = [a.dtype for a in flat if isinstance(a, np.ndarray)]
            dtype = next(dtype for dtype in dtypes if dtype.kind == "f")
            self.cuda.running = Grid(blocks, threads, shared // dtype.itemsize, dtype)
            self.cuda.running.launch(self.function, *flat)

        return launch


class Cuda:
    """Passes what kernels ask for on to the grid that runs now."""

    running = None

    def __getattr__(self, name):
        return getattr(self.running, name)


def watch(monkeypatch, change=()):
    """Let networks made from now on run their kernels here. change: name -> a function
    that makes a faulty function from the dict of globals, to plant.
    """
    original, cuda = build.functions, Cuda()

    def functions(*arguments, **keywords):
        space = original(*arguments, **keywords)  # the globals of what it holds
        space["cuda"] = cuda
        space.update({name: make(space) for name, make in dict(change).items()})
        return space

    made = device.cuda.device_array

    def poisoned(size, dtype):
        """Memory of a device holds anything before it is written."""
        array = made(size, dtype)
        array[:] = np.nan if np.dtype(dtype).kind == "f" else -1
        return array

    monkeypatch.setattr(device.cuda, "device_array", poisoned)
    monkeypatch.setattr(build, "functions", functions)
    monkeypatch.setattr(build, "_compile", lambda function, _: Kernel(function, cuda))
    # Here blocks can wait for each other; Numba's simulator runs one after another.
    monkeypatch.setattr(device.Device, "_refuse_too_many", lambda *how: None)
    return cuda
