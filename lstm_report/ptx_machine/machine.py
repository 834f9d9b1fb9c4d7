"""A machine that executes kernels in PTX, instruction by instruction, on the CPU.

A word of memory has a state (not allocated, allocated, written) and a shadow of who
accessed it last. Faults: an address that is not a multiple of its access, or outside of
every array; a word read that nobody wrote; a race; threads that wait for what does not
come. Races are found by happens-before: a run without one says that what ran is free of
data races under PTX's memory model, and right there too, not only one thread at a time.
This is conservative: what a block learns by an acquire counts from its next barrier on,
what it releases is what it did before its last one, and fences order nothing.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
from functools import cache
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from . import opcodes
from .arrays import NOBODY, Array
from .parse import PLACES, SIZES, Source

HERE = Path(__file__).parent
_own = None if os.access(HERE, os.W_OK) else TemporaryDirectory(prefix="ptx_machine")
# Of compiled interpreters
FOLDER = Path(_own.name) if _own else HERE / "__pycache__"
MOST_SHARED, MOST_THREADS = 227 << 10, 1024  # of a block
FATAL = (
    *("misaligned", "outside", "trapped", "endless", "diverged barrier"),
    *("grid barrier not reached", "deadlock"),
)
KINDS = *FATAL, "unwritten", "race"
ALLOCATED, WRITTEN = 1, 2  # states of a word, as in interpreter.c; 0 is nobody's
ORDERS = "forward", "reverse", "random"
SPACES = "global", "shared", "generic", "local", ""
# A fresh shadow: of each kind of access time, block, warp, lanes, vector, row; a flag.
WORD = np.array([0, 0, 0, 0, -1, 0] * 4 + [-1], np.int32)
# The fields of `machine` in interpreter.c that Python sets or reads, in their order.
_NUMBERS = ["together", "shared", "words", "grain", "locals", "order", "most", "seed"]
_PROGRAM = ["code", "lists", "start"]
_MEMORY = ["memory", "state", "shadow", "counts", "faults", "first"]
_OPTIONS = ["-O2", "-fwrapv", "-fno-strict-aliasing", "-ffp-contract=off"]
_OPTIONS += ["-shared", "-fPIC", "-w"]


class FaultError(RuntimeError):
    """A launch cannot go on; the message says where and why."""


class Found(NamedTuple):
    """The first fault of its kind at a statement, and how many there were.

    source: the statement's line. address: in the memory of that name, "" for none.
    other: of a race, the (statement, thread, block) of the other access; -1 are several
    threads, or blocks.
    """

    source: Source
    count: int  # type: ignore[assignment]  # a tuple's own method, not called
    thread: int
    block: int
    space: str
    address: int
    other: tuple[int, int, int] | None


class _State(ctypes.Structure):
    """`machine` of interpreter.c."""

    _fields_ = [
        ("slots", ctypes.c_int64),
        ("length", ctypes.c_int64),
        ("block", ctypes.c_int64 * 3),
        ("grid", ctypes.c_int64 * 3),
        *((name, ctypes.c_int64) for name in _NUMBERS),
        *((name, ctypes.c_void_p) for name in _PROGRAM),
        ("special", ctypes.c_int64 * len(PLACES)),
        *((name, ctypes.c_void_p) for name in _MEMORY),
        *((name, ctypes.c_int64) for name in ("accesses", "critical", "chain", "now")),
        ("private", ctypes.c_int64 * 16),
    ]


def compiler():
    """The path of what CC names, else of gcc or clang; None where there is none."""
    names = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]
    return next(filter(None, map(shutil.which, names)), None)


def why_unavailable():
    """None when the interpreter can be compiled, else the reason."""
    if compiler():
        return None
    got = os.environ.get("CC") or "none"
    return f"C compiler: got {got}, want gcc or clang on the PATH, or one's name in CC"


@cache
def _interpreter(count):
    """The interpreter for so many opcodes, compiled unless it is kept."""
    if reason := why_unavailable():
        raise RuntimeError(reason)
    names = opcodes.NAMES[:count]
    cases = [f"case {i}: {opcodes.statement(name)}" for i, name in enumerate(names)]
    windows = opcodes.SHARED_WINDOW, opcodes.LOCAL_WINDOW
    head = "#define SHARED_WINDOW {}ull\n#define LOCAL_WINDOW {}ull\n".format(*windows)
    text = (HERE / "interpreter.c").read_text()
    text = head + text.replace("STATEMENTS\n", "\n      ".join(cases) + "\n")
    words = [compiler(), *_OPTIONS]
    key = hashlib.sha256((text + " ".join(words)).encode()).hexdigest()[:16]
    library = FOLDER / f"{key}.so"
    if not library.exists():
        FOLDER.mkdir(exist_ok=True)
        source = library.with_suffix(f".{os.getpid()}.c")
        source.write_text(text)
        part = source.with_suffix(".so")
        words += [source, "-o", part, "-lm"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        source.unlink()
        if done.returncode:
            raise RuntimeError(f"{words[0]}: {done.stderr or done.returncode}")
        part.replace(library)
    return ctypes.CDLL(str(library))


def triple(size):
    """A grid's or a block's size in three axes."""
    return (*size, 1, 1)[:3] if isinstance(size, tuple) else (size, 1, 1)


class Machine:
    """Memory of `words` words of four bytes, and behind it the blocks' shared memory.

    order: of ORDERS, how threads take turns. red_zone: words behind each array that are
    nobody's. grain: how many bytes have a state and a shadow of their own, 4 or, for
    programs that access less, 1. `faults` are (kernel, statement's number, kind) ->
    Found; `counts` kernel -> (Program, executions of each statement); `critical` kernel
    -> the most instructions of a block's chain of busiest threads from barrier to
    barrier, of all launches; `chain` the same of multiply-adds.
    """

    def __init__(
        self,
        order="forward",
        seed=1,
        words=1 << 25,
        shared_words=1 << 22,
        red_zone=64,
        grain=4,
    ):
        self.words, self.order, self.seed = words, ORDERS.index(order), seed
        total = words + shared_words
        self.memory = np.zeros(total, np.uint32)
        self.state = np.zeros(total * 4 // grain, np.uint8)
        self.shadow = np.zeros((total * 4 // grain, len(WORD)), np.int32)
        self.next, self.red_zone, self.grain = 64, red_zone, grain
        self.now, self.accesses, self.launches = 0, 0, 0
        self.faults, self.counts, self.critical, self.chain = {}, {}, {}, {}
        self.most = 1 << 28  # iterations of a loop between two barriers

    def allocate(self, size):
        """The address of `size` new bytes, a multiple of 256; a red zone follows."""
        at, count = self.next, -(-size // 4)
        self.next = at + -(-count // 64) * 64 + self.red_zone
        if self.next > self.words:
            raise MemoryError("the machine's memory is full")
        self.memory[at : at + count] = NOBODY
        self.state[self._cells(4 * at, size)] = ALLOCATED
        self.shadow[self._cells(4 * at, size)] = WORD
        return 4 * at

    def _cells(self, address, size):
        """Where the states and shadows of these bytes are."""
        return slice(address // self.grain, -(-(address + size) // self.grain))

    def release(self, address):
        """Take back what was allocated from this address on."""
        self.state[self._cells(address, 4 * self.next - address)] = 0
        self.next = address // 4

    def mark_written(self, address, size):
        """The host has written these bytes, but for words that are `NOBODY`."""
        words = self.memory[address // 4 : -(-(address + size) // 4)]
        state = np.where(words == NOBODY, ALLOCATED, WRITTEN)
        cells, first = self._cells(address, size), address % 4 // self.grain
        state = np.repeat(state, 4 // self.grain)[first:]
        self.state[cells] = state[: cells.stop - cells.start]

    def check_written(self, address, size):
        """What nobody wrote is a fault for the host to read, too."""
        if missing := int((self.state[self._cells(address, size)] != WRITTEN).sum()):
            place = "copy to the host", 0, "unwritten"
            self.faults[place] = Found(Source(), missing, 0, 0, "global", address, None)

    def launch(self, program, grid, block, shared, values):
        """Run a kernel; values: of its parameters, as bits.

        Raises FaultError where it cannot go on; other faults are in `faults`.
        """
        grid, block, dynamic = triple(grid), triple(block), shared
        blocks, shared = prod(grid), shared + program.static
        if prod(block) > MOST_THREADS or shared > MOST_SHARED:
            got = f"{prod(block)} threads, {shared} bytes"
            raise FaultError(f"{got}: more than a block has")
        together = blocks if program.cooperative else 1
        if together * -(-shared // 4) > len(self.memory) - self.words:
            raise MemoryError("the machine has no room for the blocks' shared memory")
        length, mark = len(program.code), 4 * self.next
        start = np.full(len(program.slots), NOBODY | NOBODY << 32, np.uint64)
        named = dict(zip(program.params, values, strict=True))
        named |= dict(zip(SIZES, (*block, *grid, dynamic), strict=True))
        for name, numbers in program.tables.items():
            table = Array.new(self, numbers.shape, numbers.dtype)
            table.copy_to_device(numbers)
            named[name] = table.address
        named = {program.slots[name]: value for name, value in named.items()}
        for slot, value in (program.constants | named).items():
            start[slot] = value
        arrays = {
            "code": program.code,
            "lists": np.array(program.lists or [0], np.int32),
            "start": start,
            "memory": self.memory,
            "state": self.state,
            "shadow": self.shadow,
            "counts": np.zeros(length, np.int64),
            "faults": np.zeros((len(KINDS), length), np.int64),
            "first": np.zeros((len(KINDS), length, 7), np.int64),
        }
        self.launches += 1
        numbers = {
            "slots": len(start),
            "length": length,
            "together": program.cooperative,
            "shared": shared,
            "words": self.words,
            "grain": self.grain,
            "locals": program.locals,
            "order": self.order,
            "most": self.most,
            "seed": self.seed + self.launches,
        }
        pointers = {name: array.ctypes.data for name, array in arrays.items()}
        state = _State(**numbers, **pointers, now=self.now)
        state.block[:], state.grid[:] = block, grid
        state.special[:] = [program.slots[name] for name in PLACES]
        _interpreter(len(opcodes.NAMES)).launch(ctypes.byref(state))
        self.now = state.now
        self.accesses += state.accesses
        self.release(mark)
        self._collect(program, arrays, state)

    def _collect(self, program, arrays, state):
        name = program.entry
        none = program, np.zeros(len(program.code), int)
        self.counts.setdefault(name, none)[1][:] += arrays["counts"]
        self.critical[name] = self.critical.get(name, 0) + state.critical
        self.chain[name] = self.chain.get(name, 0) + state.chain
        fatal = ""
        for kind, pc in np.argwhere(arrays["faults"]).tolist():
            place = name, pc, KINDS[kind]
            count = self.faults[place].count if place in self.faults else 0
            count += int(arrays["faults"][kind, pc])
            thread, block, space, address, *other = arrays["first"][kind, pc].tolist()
            other = tuple(other) if other[0] >= 0 else None
            at = thread, block, SPACES[space], address, other
            self.faults[place] = Found(program.sources[pc], count, *at)
            if KINDS[kind] in FATAL and not fatal:
                where = f"thread {thread} of block {block}"
                fatal = f"{KINDS[kind]} at `{program.statements[pc]}`, {where}"
        if fatal:
            raise FaultError(f"{name}: {fatal}")
