"""The kernels of `numba-fused` in plain Python, on memory in which every address is
looked up: a machine for tiles, as `LLVM` of `simd.py` is one, and what stands for
instructions that Python lacks.
"""

from types import FunctionType

import numpy as np

from lstm_kernels.cpu import (
    block_kernels,
    chunk_kernels,
    chunks,
    flow,
    passes,
    workspace,
)
from lstm_kernels.cpu.arrays import PROGRESS
from lstm_kernels.versions import numba_fused


class Checked:
    """The machine that runs a tile at once, and refuses addresses outside its
    arrays.
    """

    def __init__(self, dtype, lanes, arrays=()):
        self.dtype, self.lanes = np.dtype(dtype), lanes
        self.allow(arrays)

    def allow(self, arrays):
        """Confine the tiles to these contiguous arrays."""
        self.arrays = [(a.ctypes.data, a.ctypes.data + a.nbytes, a) for a in arrays]

    def _view(self, address, count):
        size = count * self.dtype.itemsize
        for start, stop, array in self.arrays:
            if start <= address and address + size <= stop:
                first = address - start
                flat = array.reshape(-1).view(np.uint8)[first : first + size]
                return flat.view(self.dtype)
        raise IndexError(f"address {address:#x}: {size} bytes outside every array")

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

    def loop(self, count, body, step=1):
        for index in range(0, count, step):
            body(index)

    def tiles(self, rows, size, tile):
        full = rows - rows % size
        for first in range(0, full, size):
            tile(first, size)
        if rows > full:
            tile(full, rows - full)


class Record:
    """A row of a record array, with its fields as attributes, as compiled code has
    them.
    """

    def __init__(self, row):
        self.__dict__["_row"] = row

    def __getattr__(self, name):
        return self._row[name]

    def __setattr__(self, name, value):
        self._row[name] = value


class Interpreted:
    """Kernels as plain Python. Tiles, records and arrays may touch what the package
    took the address of (`workspace.at`), and nothing else.

    tiles: of the dtype and lanes of those that run. used: the names of those that ran.
    """

    def __init__(self, monkeypatch, tiles):
        self.used, self._seen, self._turns = set(), {}, {}
        self._machine = Checked(tiles.dtype, tiles.lanes)
        self._tiles, self._codes = [], []
        modules = passes, block_kernels, flow, chunk_kernels
        self._spaces = {module.__name__: dict(vars(module)) for module in modules}
        self._functions = functions = {}
        for space in self._spaces.values():
            for name, value in space.items():
                f = getattr(value, "py_func", None)
                if f and (scope := self._spaces.get(f.__module__)):
                    new = FunctionType(f.__code__, scope, name)
                    space[name] = functions.setdefault(f, new)
        tile_names = "inputs step whole back through few gradient transpose"
        tile_names += " forward_tile"
        replaced = dict.fromkeys(tile_names.split(), self._tile)
        replaced |= {"layer_at": self._record_at}
        replaced["progress_at"] = self._progress_at
        replaced |= {"claim": self._claim, "finish": lambda *_: None}
        replaced |= {"wait": lambda sync, groups, turn, tasks: turn + 1}
        replaced |= {"array": self._array, "number": lambda job, value: float(value)}
        replaced |= {"integers": self._integers, "place": self._place}
        replaced |= {"read": lambda address: self._integers(address, 1)[0]}
        replaced |= {"exchange": self._exchange, "call": self._call}
        for space in self._spaces.values():
            space.update({n: f for n, f in replaced.items() if n in space})
        taken = {"at": self._at, "address": self._address}
        taken |= {"codes": self._codes_of, "code": self._code_of}

        def run(work, kernel, participants, owner, operations=0):
            turn = int(work.sync[-1, 0])
            self.run(kernel, 0, turn, self._record_at(work.address, 0))
            self._turns.clear()

        def run_flow(flow_, participants, perform, job, stop, owner):
            """The tasks in their order."""
            for task in range(len(flow_.tasks)):
                self._call(perform, task, 0, job)
            return False

        changes = [(workspace.Work, "run", run), (flow.Flow, "run", run_flow)]
        for module in (workspace, flow, chunks, numba_fused):  # take addresses
            changes += [(module, *f) for f in taken.items() if f[0] in vars(module)]
        for change in changes:
            monkeypatch.setattr(*change)

    def _codes_of(self, tiles, *names, keep=True):
        found = {}
        for name in names:
            self._tiles.append(tiles.all(keep)[name])
            found[name] = len(self._tiles)
        return found

    def _code_of(self, tiles):
        self._tiles.append(tiles.forward())
        return len(self._tiles)

    def _address(self, kernel, dtype):
        self._codes.append(kernel)
        return len(self._codes)

    def run(self, kernel, p, turn, record):
        return self._functions[kernel.py_func](p, turn, record)

    def _call(self, code, p, turn, address):
        return self.run(self._codes[code - 1], p, turn, self._record_at(address, 0))

    def _at(self, array):
        place = array.__array_interface__["data"][0]
        key = place, array.nbytes, array.dtype
        if self._seen.get(key) is not array:
            self._seen[key] = array
            m, seen = self._machine, self._seen.values()
            m.allow(a for a in seen if a.dtype == m.dtype and a.flags.c_contiguous)
            m.arrays.sort(key=lambda entry: entry[0] - entry[1])  # the largest first
        return place

    def _inside(self, address, shape, dtype):
        """The array at an address, all of it inside one whose address was taken."""
        size = int(np.prod(shape)) * dtype.itemsize
        for (start, *_), array in self._seen.items():
            end = start + array.nbytes
            fits = start <= address and address + size <= end
            if fits and (array.dtype == dtype or array.dtype.fields):
                flat = array.reshape(-1).view(np.uint8)
                part = flat[address - start : address - start + size]
                return part.view(dtype).reshape(shape)
        raise IndexError(f"address {address:#x}: {size} bytes outside every array")

    def _array(self, job, address, shape):
        if not address:  # of an array that this pass does not use
            return Absent()
        return self._inside(int(address), shape, job._row.dtype["real"])

    def _integers(self, address, count):
        return self._inside(int(address), (int(count),), np.dtype(np.int64))

    def _place(self, array, index):
        if isinstance(array, Absent):
            return 0
        index = index if isinstance(index, tuple) else (index,)
        for i, size in zip(index, array.shape, strict=False):
            if not 0 <= i < size:
                raise IndexError(f"{index} is outside {array.shape}")
        start = array.__array_interface__["data"][0]
        return start + sum(map(int.__mul__, map(int, index), array.strides))

    def _exchange(self, address, number):
        self._integers(address, 1)[0] = number

    def _record_at(self, address, k):
        for (start, *_), array in self._seen.items():
            index, inside = divmod(int(address) - start, array.dtype.itemsize)
            if array.dtype.fields and not inside and 0 <= index < len(array) - k:
                return Record(array[index + k])
        raise IndexError(f"address {address:#x}: no record")

    def _progress_at(self, address, _):
        return Record(self._integers(address, len(PROGRESS.names)).view(PROGRESS)[0])

    def _tile(self, code, *numbers, **named):
        tile, m = self._tiles[code - 1], self._machine
        self.used.add(tile.__name__)

        def given(n):
            return m.splat(n) if isinstance(n, float) else int(n)

        tile(m, *map(given, numbers), **{k: given(n) for k, n in named.items()})

    def _claim(self, sync, groups, turn, me, tasks):
        self._turns[turn] = self._turns.get(turn, -1) + 1
        return self._turns[turn] if self._turns[turn] < tasks else -1


class Absent:
    """An array that a pass does not have."""

    strides = (0, 0, 0, 0)
