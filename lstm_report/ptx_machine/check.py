"""`check`: a kernel executed on a CPU, and what it does wrong."""

import inspect
import linecache
import threading
from dataclasses import dataclass
from functools import cache
from math import prod

import numba
import numpy as np
from numba import from_dtype, types
from numba.core.errors import NumbaError

from . import compiler, machine
from .arrays import Arguments
from .machine import MOST_SHARED, MOST_THREADS, ORDERS, FaultError, Machine, triple
from .parse import Program

RED_ZONE = 1 << 14  # words behind an array that are nobody's
MOST_STATIC = 48 << 10  # bytes of shared memory that are asked for in the kernel
# Along x, y and z.
MOST_BLOCKS, MOST_IN_BLOCK = (2**31 - 1, 65535, 65535), (1024, 1024, 64)
alone = threading.Lock()  # the compiler has one device for all threads
REASONS = {
    "misaligned": "at an address that is not a multiple of SIZE",
    "outside": "outside of all that there is",
    "unwritten": "which nobody has written",
    "trapped": "runs into a trap, or asks a lane that takes no part",
    "endless": "runs through a loop that does not end",
    "diverged barrier": "waits at a barrier that other threads do not reach",
    "grid barrier not reached": "waits for blocks that do not come",
    "deadlock": "waits for what never happens",
}


@dataclass(frozen=True)
class Fault:
    """What a kernel does wrong at a line of its source, the first time, and how often.

    thread, block: ints, or tuples where `check` got tuples. array: the name of an
    argument, "shared memory" or "local memory"; index: of the element there, in memory
    of a block or a thread the byte. Both are None where memory plays no part, and far
    from every argument. text: who does what; instruction: of PTX.
    """

    kind: str
    file: str
    line: int
    thread: int | tuple
    block: int | tuple
    array: str | None
    index: int | tuple | None
    count: int
    text: str
    instruction: str

    def __str__(self):
        source = linecache.getline(self.file, self.line).strip()
        times = f"{self.count} times, " if self.count > 1 else ""
        how = f"({times}`{self.instruction}`)"
        return f"{self.kind}: {self.file}:{self.line}: {source}\n    {self.text} {how}"


def why_unavailable():
    """None when `check` can execute kernels here, else the reason."""
    with alone:
        return machine.why_unavailable() or compiler.why_unavailable()


def check(kernel, grid, block, *arguments, shared_bytes=0, order="forward", seed=1):
    """Execute kernel[grid, block, 0, shared_bytes](*arguments) on the CPU; returns a
    list of Faults, empty for none. The arrays receive the results.

    kernel: of `@cuda.jit`, or a plain function. grid, block: an int or a tuple of up to
    three. arguments: NumPy arrays, C-contiguous, of which an `unwritten` one may not be
    read before it is written; numbers; tuples of both. order: how threads take turns,
    "forward", "reverse" or "random", by `seed`. A kernel with `cuda.cg.this_grid()` is
    launched cooperatively. A fault that a launch cannot survive ends it.

    Raises TypeError or ValueError for what cannot be launched, RuntimeError where
    kernels cannot be compiled, NotImplementedError for what the machine does not know.
    """
    if reason := why_unavailable():
        raise RuntimeError(reason)
    function, fastmath = _function_of(kernel)
    _check_size("grid", grid, MOST_BLOCKS)
    _check_size("block", block, MOST_IN_BLOCK)
    if prod(triple(block)) > MOST_THREADS:
        raise ValueError(f"block: got {block}, want at most {MOST_THREADS} threads")
    _check_whole("shared_bytes", shared_bytes, MOST_SHARED)
    _check_whole("seed", seed, 2**63 - 1)
    if order not in ORDERS:
        raise ValueError(f"order: got {order!r}, want one of {', '.join(ORDERS)}")
    names = list(inspect.signature(function).parameters)
    if len(names) != len(arguments):
        want = f"want {len(names)} ({', '.join(names)})"
        raise TypeError(f"arguments: got {len(arguments)}, {want}")
    kinds = tuple(map(_type_of, names, arguments))
    with alone:
        program = _program(function, kinds, fastmath)
    if program.static > MOST_STATIC:
        got = f"{program.static} bytes of static shared memory"
        raise ValueError(f"kernel: got {got}, want at most {MOST_STATIC}")
    _check_whole("shared_bytes", shared_bytes, MOST_SHARED - program.static)
    blocks = prod(triple(grid)) if program.cooperative else 1
    sizes = [*_sizes(arguments), *(table.nbytes for table in program.tables.values())]
    memory = Machine(
        order,
        seed,
        words=sum(-(-size // 256) * 64 + RED_ZONE for size in (0, *sizes)),
        shared_words=blocks * -(-(shared_bytes + program.static) // 4),
        red_zone=RED_ZONE,
        grain=1 if program.narrow else 4,
    )
    passed = Arguments(memory, names, kinds, arguments)
    try:
        with alone:
            memory.launch(program, grid, block, shared_bytes, passed.bits)
    except FaultError:
        if not memory.faults:
            raise
    passed.take_back()
    report, faults = _Report(program, passed.arrays, grid, block), {}
    for (_, pc, kind), found in memory.faults.items():
        # What the compiler made of one line, with another, is one fault.
        lines = kind, found.source, found.other and program.sources[found.other[0]]
        count = found.count + (faults[lines][1].count if lines in faults else 0)
        pc, first = faults.get(lines, (pc, found))
        faults[lines] = pc, first._replace(count=count)
    return [report.fault(pc, kind, at) for (kind, *_), (pc, at) in faults.items()]


def _function_of(kernel):
    """The Python function of a kernel, and whether it is compiled with fastmath."""
    options = getattr(kernel, "targetoptions", {})
    of_cuda = "cuda" in type(kernel).__module__
    function = kernel.py_func if of_cuda else kernel
    if options.get("device") or not inspect.isfunction(function):
        got = "a device function" if of_cuda else type(kernel).__name__
        raise TypeError(
            f"kernel: got {got}, want a function, with @cuda.jit or without"
        )
    return function, bool(options.get("fastmath"))


def _check_size(name, size, most):
    sizes = size if isinstance(size, tuple) else (size,)
    whole = all(isinstance(n, (int, np.integer)) and n > 0 for n in sizes)
    if not whole or len(sizes) not in (1, 2, 3):
        want = "want a positive integer, or a tuple of one to three"
        raise ValueError(f"{name}: got {size!r}, {want}")
    if any(n > limit for n, limit in zip(sizes, most, strict=False)):
        raise ValueError(f"{name}: got {size}, want at most {most}")


def _check_whole(name, number, most):
    if not isinstance(number, (int, np.integer)) or not 0 <= number <= most:
        raise ValueError(f"{name}: got {number!r}, want an integer from 0 to {most}")


def _type_of(name, value):
    if isinstance(value, tuple):
        return types.Tuple([_type_of(f"{name}[{i}]", v) for i, v in enumerate(value)])
    if type(value) in (bool, int, float) or isinstance(value, np.number | np.bool_):
        return numba.typeof(value)
    if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
        want = "want a NumPy array, a real number or a tuple"
        raise TypeError(f"{name}: got {type(value).__name__}, {want}")
    if not value.flags.c_contiguous:
        got = f"shape {value.shape} with strides {value.strides}"
        raise ValueError(f"{name}: got {got}, want a C-contiguous array")
    try:
        kind = from_dtype(value.dtype) if value.dtype.kind in "biufcV" else None
    except NumbaError:
        kind = None
    if kind is None or not value.dtype.isnative:
        raise TypeError(f"{name}: got dtype {value.dtype}, want numbers of Numba's")
    return types.Array(kind, value.ndim, "C")


@cache
def _program(function, kinds, fastmath):
    text = compiler.compile_ptx(function, kinds, fastmath=fastmath)
    try:
        return Program(text, function.__name__)
    except RecursionError:
        what = f"{function.__name__}: a device function that calls itself"
        raise NotImplementedError(what) from None


def _sizes(values):
    """Bytes of each array among arguments."""
    for value in values:
        if isinstance(value, tuple):
            yield from _sizes(value)
        elif isinstance(value, np.ndarray):
            yield value.nbytes


class _Report:
    """What the machine found, in words of the launch."""

    def __init__(self, program, arrays, grid, block):
        self.program, self.arrays = program, arrays
        self.grid, self.block = grid, block

    def fault(self, pc, kind, found):
        program, (file, line) = self.program, found.source
        array, index, element = self._place(found.space, found.address)
        verb, size = program.access(pc)
        text = f"thread {_numbered(found.thread, self.block)} of block "
        text += f"{_numbered(found.block, self.grid)} "
        text += f"{verb} {element}, " if element else ""
        shape = next((a.shape for name, _, a in self.arrays if name == array), None)
        if kind == "outside" and shape:
            text += f"outside of its shape {shape}"
        else:
            reason = REASONS.get(kind) or self._other(found)
            text += reason.replace("SIZE", f"{size} bytes")
        text += "; here the launch ended" if kind in machine.FATAL else ""
        who = _numbered(found.thread, self.block), _numbered(found.block, self.grid)
        said = text, program.statements[pc]
        return Fault(kind, file, line, *who, array, index, found.count, *said)

    def _place(self, space, address):
        """(array, index, both as text) of an address."""
        if space in ("shared", "local"):
            return f"{space} memory", address, f"{space} memory at byte {address}"
        if not space or not self.arrays:
            return None, None, ""

        def distance(entry):
            first, size = entry[2].address, entry[2].nbytes
            return max(first - address, address - first - size + 1, 0)

        name, _, array = nearest = min(self.arrays, key=distance)
        if distance(nearest) > 4 * RED_ZONE:
            return None, None, "global memory"
        index = (address - array.address) // array.dtype.itemsize
        if distance(nearest) and len(array.shape) > 1:
            return name, index, f"{name}.flat[{index}]"
        if not distance(nearest) and len(array.shape) > 1:
            index = tuple(map(int, np.unravel_index(index, array.shape)))
        return name, index, f"{name}[{str(index).strip('()')}]"

    def _other(self, found):
        """The other access of a race."""
        pc, thread, block = found.other
        verb, _ = self.program.access(pc)
        if thread >= 0 and block >= 0:
            who = f"thread {_numbered(thread, self.block)}"
        else:
            who, verb = "several threads", verb.removesuffix("s")
        if block >= 0 and block != found.block:
            who += f" of block {_numbered(block, self.grid)}"
        line = self.program.sources[pc].line
        return f"which {who} {verb} at line {line}, and nothing orders the two"


def _numbered(number, sizes):
    """The number of a thread or block as its axes have it."""
    if not isinstance(sizes, tuple):
        return number
    place = np.unravel_index(number, triple(sizes)[::-1])[::-1]
    return tuple(map(int, place))[: len(sizes)]
