"""The kernels of `numba-fused` in plain Python, on memory in which every address is
looked up: a machine for tiles, as `LLVM` of `simd.py` is one, and what stands for
instructions that Python lacks.
"""

import math
import time
from bisect import bisect_right
from collections import defaultdict
from functools import partial
from types import FunctionType

import numpy as np

from lstm_kernels.cpu import lanes, memory, plans, run, steps, tiles, workspace
from lstm_kernels.cpu.arrays import LAYER, PLAN, PROGRESS, ROW, TABLE, TASK
from lstm_kernels.cpu.lane_tiles import LaneTiles
from lstm_kernels.versions import numba_fused

RECORDS = {"plan": PLAN, "row": ROW, "task": TASK, "layer": LAYER, "progress": PROGRESS}
CALLERS = "inputs forward backward through few gradient transpose"
CALLERS += " forward_lanes backward_lanes"


class Memory:
    """Contiguous arrays, found by address: those that lie in no other."""

    def __init__(self, arrays=()):
        self._starts, self._stops, self._bytes = [], [], []
        for array in arrays:
            self.add(array)

    def add(self, array):
        assert array.flags.c_contiguous
        start = array.__array_interface__["data"][0]
        stop, k = start + array.nbytes, bisect_right(self._starts, start)
        if k and stop <= self._stops[k - 1]:
            return
        first = k - (k > 0 and self._starts[k - 1] == start)
        inside = slice(first, bisect_right(self._stops, stop, lo=first))
        self._starts[inside], self._stops[inside] = [start], [stop]
        self._bytes[inside] = [array.reshape(-1).view(np.uint8)]

    def find(self, address, size, whole=1):
        """So many bytes at an address, all inside one array; None if they are not.
        whole: of what the address has to be a multiple, from that array's start on.
        """
        k = bisect_right(self._starts, address) - 1
        if k < 0 or address + size > self._stops[k]:
            return None
        first = address - self._starts[k]
        return None if first % whole else self._bytes[k][first : first + size]


class Checked:
    """The machine that runs a tile at once, and refuses addresses outside its
    arrays.
    """

    def __init__(self, dtype, lanes, memory=None):
        self.dtype, self.lanes, self.memory = np.dtype(dtype), lanes, memory

    def _view(self, address, count):
        size = self.dtype.itemsize
        found = self.memory.find(address, count * size, size)
        if found is None:
            raise IndexError(
                f"address {address:#x}: {count} numbers outside all arrays"
            )
        return found.view(self.dtype)

    def load(self, address):
        return self._view(address, self.lanes).copy()

    def load_aligned(self, address):
        size = self.lanes * self.dtype.itemsize
        if address % size:
            raise IndexError(f"address {address:#x}: not a multiple of {size} bytes")
        return self.load(address)

    def store(self, address, vector):
        self._view(address, self.lanes)[:] = vector

    def prefetch(self, address):
        pass

    def apart(self, number):
        return number

    def broadcast(self, address):
        return self.splat(self._view(address, 1)[0])

    def splat(self, number):
        return np.full(self.lanes, number, self.dtype)

    constant = splat

    def fma(self, x, y, z):
        return x * y + z

    def clamp(self, x, low, high):
        return np.clip(x, self.dtype.type(low), self.dtype.type(high))

    def magnitude(self, x):
        return np.abs(x)

    def copysign(self, x, sign):
        return np.copysign(x, sign)

    def exponent(self, x):
        bits = x.view(f"u{self.dtype.itemsize}")
        return (bits << np.finfo(self.dtype).nmant).view(self.dtype)

    def interleave(self, x, y):
        return list(np.stack([x, y], axis=1).reshape(2, self.lanes))

    def total(self, x):
        while len(x) > 1:
            x = x[: len(x) // 2] + x[len(x) // 2 :]
        return x[0]

    def store_number(self, address, number):
        self._view(address, 1)[0] = number

    def variable(self, vector):
        return [vector]

    def get(self, slot):
        return slot[0]

    def set(self, slot, vector):
        slot[0] = vector

    def each(self, count, step=1):
        yield from range(0, count, step)

    def groups(self, count, size):
        full = count - count % size
        for first in range(0, full, size):
            yield first, size
        if count > full:
            yield full, count - full


class Record:
    """A row of a record array, with its fields as attributes, as compiled code has
    them.
    """

    def __init__(self, row):
        self.__dict__["_row"] = row

    def __getattr__(self, name):
        return self._row[name].item()

    def __setattr__(self, name, value):
        self._row[name] = value


class Interpreted:
    """Kernels as plain Python. Tiles, records and arrays may touch what the package
    took the address of (`memory.at`), and nothing else.

    It takes the place of the team of threads (`Team.run`): participants come one after
    the other. The first does every task, since who waits helps; in turns it is the
    caller and the last of the others.

    like: tiles of the dtype and lanes of those that run. used: the names of those that
    ran.
    """

    def __init__(self, monkeypatch, like):
        self.used, self._regions, self._performed = set(), 0, 0
        self._memory = defaultdict(Memory)  # of each dtype
        self._machine = Checked(like.dtype, like.lanes, self._memory[like.dtype])
        self._tiles, self._names, self._kernels = [], {}, []
        modules = run, steps, lanes
        self._spaces = {module.__name__: dict(vars(module)) for module in modules}
        self._functions = functions = {}
        for space in self._spaces.values():
            for name, value in space.items():
                f = getattr(value, "py_func", None)
                if f and (scope := self._spaces.get(f.__module__)):
                    new = FunctionType(f.__code__, scope, name)
                    space[name] = functions.setdefault(f, new)
        replaced = dict.fromkeys(CALLERS.split(), self._tile)
        for name, dtype in RECORDS.items():
            replaced[f"{name}_at"] = partial(self._record_at, dtype)
        replaced |= {"array": self._array, "number": lambda job, value: float(value)}
        replaced |= {"arrays": self._arrays}
        replaced |= {"integers": self._integers, "place": self._place}
        replaced |= {"read": lambda address: int(self._integers(address, 1)[0])}
        replaced |= {"add": self._add, "exchange": self._exchange, "swap": self._swap}
        replaced |= {"perform": self._perform, "clock": time.perf_counter_ns}
        replaced |= {"pause": lambda: None, "offer_core": lambda: None}
        replaced |= {"exchange_fp_env": lambda wanted: wanted}
        replaced |= {"POLLS": 1, "SPINS": 0}  # nobody else will have done it
        for space in self._spaces.values():
            space.update({n: f for n, f in replaced.items() if n in space})
        taken = {"at": self._at, "address": self._address, "codes": self._codes}
        taken |= {"team": lambda: self}
        changes = [(tiles, "_code", self._code)]
        for module in (memory, plans, workspace, numba_fused):  # take addresses
            changes += [(module, *f) for f in taken.items() if f[0] in vars(module)]
        for change in changes:
            monkeypatch.setattr(*change)

    def _code(self, of, name, keep):
        self._tiles.append(of.all(keep)[name])
        return len(self._tiles)

    def _codes(self, of, *names, keep=True):
        found = tiles.codes(of, *names, keep=keep)
        kind = "_lanes" if isinstance(of, LaneTiles) else ""
        self._names |= {code: name + kind for name, code in found.items()}
        return found

    def _address(self, kernel, dtype):
        self._kernels.append((self._functions[kernel.py_func], dtype))
        return len(self._kernels)

    def run(self, participants, code, place, sync, owner):
        """A region; whether a thread stayed in it, which the caller goes by."""
        (kernel, dtype), word = self._kernels[code - 1], self._integers(sync, 1)
        turn, record = int(word[0]), self._record_at(dtype, place, 0)
        self._regions += 1
        come = [*range(participants)][:: 1 if self._regions % 2 else -1]
        ends = {come[0]: kernel(come[0], turn, record)}
        performed = self._performed
        ends |= {p: kernel(p, turn, record) for p in come[1:]}
        assert self._performed == performed, "who came late found something to do"
        assert len({*ends.values()}) == 1, "participants end with different editions"
        word[0] = ends[0]
        return False

    def drain(self):
        """Nobody stays in a region."""

    def _perform(self, code, job, *numbers):
        kernel, dtype = self._kernels[code - 1]
        self._performed += 1
        return kernel(self._record_at(dtype, job, 0), *numbers)

    def _at(self, array):
        self._memory[array.dtype].add(array)
        return array.__array_interface__["data"][0]

    def _inside(self, address, shape, dtype):
        """The array at an address, all of it inside one whose address was taken."""
        size = math.prod(map(int, shape)) * dtype.itemsize
        kinds = [dtype]
        if dtype == np.int64:
            kinds.append(np.dtype(np.uint8))  # what counts what is done
        if dtype == PROGRESS:
            kinds = [np.dtype(np.int64)]  # it is words
        for kind in kinds:
            found = self._memory[kind].find(address, size, kind.itemsize)
            if found is not None:
                return found.view(dtype).reshape(shape)
        raise IndexError(f"address {address:#x}: {size} bytes outside every array")

    def _array(self, job, address, shape):
        if not address:  # of an array that this pass does not use
            return Absent()
        return self._inside(int(address), shape, job._row.dtype["real"])

    def _arrays(self, job, record, names):
        def size(axis):
            fields = (r for r in (record, job) if axis in r._row.dtype.names)
            return int(axis) if axis.isdigit() else getattr(next(fields), axis)

        found = []
        for name in names.split():
            where = record if name in record._row.dtype.names else job
            shape = [sum(map(size, axis)) for axis in TABLE[name].axes]
            found.append(self._array(job, getattr(where, name), shape))
        return found[0] if len(found) == 1 else found

    def _integers(self, address, count):
        return self._inside(int(address), (int(count),), np.dtype(np.int64))

    def _record_at(self, dtype, address, k):
        place = int(address) + int(k) * dtype.itemsize
        return Record(self._inside(place, (1,), dtype)[0])

    def _place(self, array, index):
        if isinstance(array, Absent):
            return 0
        index = index if isinstance(index, tuple) else (index,)
        for i, size in zip(index, array.shape, strict=False):
            if not 0 <= i < size:
                raise IndexError(f"{index} is outside {array.shape}")
        start = array.__array_interface__["data"][0]
        return start + sum(map(int.__mul__, map(int, index), array.strides))

    def _add(self, address, number):
        word = self._integers(address, 1)
        word += number
        return int(word[0]) - number

    def _exchange(self, address, number):
        word = self._integers(address, 1)
        before, word[0] = int(word[0]), number
        return before

    def _swap(self, address, old, new):
        word = self._integers(address, 1)
        if word[0] != old:
            return False
        word[0] = new
        return True

    def _tile(self, code, *numbers, **named):
        tile, m = self._tiles[code - 1], self._machine
        self.used.add(self._names[code])

        def given(n):
            return m.splat(n) if isinstance(n, float) else int(n)

        tile(m, *map(given, numbers), **{k: given(n) for k, n in named.items()})


class Absent:
    """An array that a pass does not have."""

    strides = (0, 0, 0, 0)
