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
import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np

from . import opcodes
from .parse import PLACES, SHARED

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "build" / "ptx_machine"
# Opcodes met, as this text of opcodes.py knows them.
MET = (
    f"opcodes-{hashlib.sha256((HERE / 'opcodes.py').read_bytes()).hexdigest()[:8]}.txt"
)
MOST_SHARED, MOST_THREADS = 227 << 10, 1024  # of a block
NOBODY = 0x7FC0_DEAD  # a NaN that nobody wrote
KINDS = "misaligned", "outside", "trapped", "endless", "diverged barrier"
KINDS += "grid barrier not reached", "deadlock", "unwritten", "race"
FATAL = KINDS[:7]
ORDERS = "forward", "reverse", "random"
# The fields of `machine` in interpreter.c that Python sets or reads, in their order.
_NUMBERS = ["slots", "length", "grid", "x", "y", "together", "shared", "words"]
_NUMBERS += ["locals", "order", "most", "seed"]
_PROGRAM = ["code", "lists", "start"]
_MEMORY = ["memory", "state", "shadow", "counts", "faults", "first"]
_GCC = ["gcc", "-O2", "-fwrapv", "-fno-strict-aliasing", "-ffp-contract=off"]
_GCC += ["-shared", "-fPIC", "-w"]


class FaultError(RuntimeError):
    """A launch cannot go on; the message says where and why."""


class _State(ctypes.Structure):
    """`machine` of interpreter.c."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in _NUMBERS),
        *((name, ctypes.c_void_p) for name in _PROGRAM),
        ("special", ctypes.c_int64 * len(PLACES)),
        *((name, ctypes.c_void_p) for name in _MEMORY),
        *((name, ctypes.c_int64) for name in ("accesses", "critical", "chain", "now")),
        ("private", ctypes.c_int64 * 16),
    ]


def why_unavailable():
    """None when the interpreter can be compiled, else the reason."""
    return None if shutil.which("gcc") else "gcc is not installed"


def kept(name, make):
    """The path of a file of FOLDER, which `make(path)` writes if it is not there."""
    path = FOLDER / name
    if not path.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{os.getpid()}.{name}")
        make(part)
        part.replace(path)
    return path


def _opcodes_met():
    """Those of the runs before: the next one compiles no interpreter for them."""
    path = FOLDER / MET
    names = path.read_text().split() if path.exists() else []
    return {name: i for i, name in enumerate(filter(opcodes.is_known, names))}


OPCODES = _opcodes_met()  # name -> number; grows
_libraries = {}  # number of opcodes -> interpreter


def _has_fma():
    """Whether fmaf can be an instruction; else it is a slower function."""
    told = Path("/proc/cpuinfo")
    known = platform.machine() == "x86_64" and told.exists()
    return known and " fma " in told.read_text()


def interpreter():
    """The interpreter for all opcodes met, compiled by gcc unless it is kept."""
    if len(OPCODES) in _libraries:
        return _libraries[len(OPCODES)]
    cases = [f"case {i}: {opcodes.statement(name)}" for name, i in OPCODES.items()]
    windows = opcodes.SHARED_WINDOW, opcodes.LOCAL_WINDOW
    head = "#define SHARED_WINDOW {}ull\n#define LOCAL_WINDOW {}ull\n".format(*windows)
    text = (HERE / "interpreter.c").read_text()
    text = head + text.replace("STATEMENTS\n", "\n      ".join(cases) + "\n")
    words = [*_GCC, *(["-mfma"] if _has_fma() else [])]
    key = hashlib.sha256((text + " ".join(words)).encode()).hexdigest()[:16]

    def make(path):
        source = path.with_suffix(".c")
        source.write_text(text)
        subprocess.run([*words, source, "-o", path, "-lm"], check=True)
        source.unlink()

    library = ctypes.CDLL(str(kept(f"{key}.so", make)))
    met = FOLDER / f"{os.getpid()}.opcodes.txt"
    met.write_text("\n".join(OPCODES))
    met.replace(FOLDER / MET)
    _libraries[len(OPCODES)] = library
    return library


class Machine:
    """Memory of `words` words of four bytes, and behind it the blocks' shared memory.

    order: of ORDERS, how threads take turns. `faults` are (kernel, pc, kind) ->
    (count, the statement, thread, block, address of the first); `counts` kernel ->
    (Program, executions of each statement); `critical` kernel -> the most instructions
    of a block's chain of busiest threads from barrier to barrier, of all launches;
    `chain` the same of multiply-adds.
    """

    def __init__(self, order="forward", seed=1, words=1 << 25, shared_words=1 << 22):
        self.words, self.order, self.seed = words, ORDERS.index(order), seed
        total = words + shared_words
        self.memory = np.zeros(total, np.uint32)
        self.state = np.zeros(total, np.uint8)
        self.shadow = np.zeros((total, 8), np.int32)
        self.next, self.now, self.accesses, self.launches = 64, 0, 0, 0
        self.faults, self.counts, self.critical, self.chain = {}, {}, {}, {}
        self.most = 1 << 28  # iterations of a loop between two barriers

    def allocate(self, size):
        """The address of `size` new bytes, a multiple of 256; a red zone follows."""
        at, count = self.next, -(-size // 4)
        self.next = at + -(-count // 64) * 64 + 64
        if self.next > self.words:
            raise MemoryError("the machine's memory is full")
        self.memory[at : at + count] = NOBODY
        self.state[at : at + count] = 1
        self.shadow[at : at + count] = 0, 0, 0, 0, 0, 0, -1, -1
        return 4 * at

    def release(self, address):
        """Take back what was allocated from this address on."""
        self.state[address // 4 : self.next] = 0
        self.next = address // 4

    def view(self, address, count, dtype):
        size = count * np.dtype(dtype).itemsize
        return self.memory.view(np.uint8)[address : address + size].view(dtype)

    def write(self, address, array):
        self.view(address, array.size, array.dtype)[:] = array.reshape(-1)
        self.state[address // 4 : -(-(address + array.nbytes) // 4)] = 2

    def read(self, address, count, dtype):
        """A copy; words that nobody wrote are a fault."""
        end = -(-(address + count * np.dtype(dtype).itemsize) // 4)
        if unwritten := int((self.state[address // 4 : end] != 2).sum()):
            place = "copy to the host", address, "unwritten"
            self.faults[place] = unwritten, "", 0, 0, address
        return self.view(address, count, dtype).copy()

    def launch(self, program, blocks, threads, shared, values):
        """Run a kernel; values: of its parameters, as bits.

        Raises FaultError where it cannot go on; other faults are in `faults`.
        """
        x, y, *_ = (*threads, 1) if isinstance(threads, tuple) else (threads, 1)
        shared += program.static
        if x * y > MOST_THREADS or shared > MOST_SHARED:
            raise FaultError(f"{x * y} threads, {shared} bytes: more than a block has")
        together = blocks if program.cooperative else 1
        if together * -(-shared // 4) > len(self.memory) - self.words:
            raise MemoryError("the machine has no room for the blocks' shared memory")
        length = len(program.code)
        start = np.full(len(program.slots), NOBODY | NOBODY << 32, np.uint64)
        named = dict(zip(program.params, values, strict=True))
        named |= dict(zip(SHARED, (x, y, blocks, shared - program.static), strict=True))
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
            "first": np.zeros((len(KINDS), length, 3), np.int64),
        }
        self.launches += 1
        numbers = {"slots": len(start), "length": length, "grid": blocks}
        numbers |= {"x": x, "y": y, "together": program.cooperative, "shared": shared}
        numbers |= {"words": self.words, "locals": program.locals, "order": self.order}
        numbers |= {"most": self.most, "seed": self.seed + self.launches}
        pointers = {name: array.ctypes.data for name, array in arrays.items()}
        state = _State(**numbers, **pointers, now=self.now)
        state.special[:] = [program.slots[name] for name in PLACES]
        interpreter().launch(ctypes.byref(state))
        self.now = state.now
        self.accesses += state.accesses
        self._collect(program, arrays, state)

    def _collect(self, program, arrays, state):
        name = program.entry
        none = program, np.zeros(len(program.code), int)
        self.counts.setdefault(name, none)[1][:] += arrays["counts"]
        self.critical[name] = self.critical.get(name, 0) + state.critical
        self.chain[name] = self.chain.get(name, 0) + state.chain
        fatal = ""
        for kind, pc in np.argwhere(arrays["faults"]).tolist():
            place, text = (name, pc, KINDS[kind]), program.statements[pc]
            count = self.faults.get(place, (0,))[0] + int(arrays["faults"][kind, pc])
            self.faults[place] = count, text, *arrays["first"][kind, pc].tolist()
            if KINDS[kind] in FATAL and not fatal:
                fatal = f"{KINDS[kind]} at {pc}, `{text}`: {self.faults[place][2:]}"
        if fatal:
            raise FaultError(f"{name}: {fatal}")

    def share_of_products(self):
        """Which share of the instructions of product loops are multiply-adds."""
        executed = products = 0
        for program, counts in self.counts.values():
            for first, end in program.product_loops():
                executed += int(counts[first:end].sum())
                products += int((counts * program.products)[first:end].sum())
        return products / executed if executed else 0.0

    def kinds(self):
        """How many faults of each kind."""
        found = {}
        for (_, _, kind), (count, *_) in self.faults.items():
            found[kind] = found.get(kind, 0) + count
        return found
