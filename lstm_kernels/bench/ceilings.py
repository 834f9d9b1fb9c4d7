"""What kernels are compared with: BLAS's SGEMM, copying memory, and clock x units x lanes."""

import ctypes
import timeit
from functools import cache
from typing import NamedTuple

import llvmlite.binding
import numpy as np

from .comparer import compare
from .runner import timed
from .timing import REST

SIZE, COUNT = 4096, 2**26  # rows of the SGEMM's matrices; float32 numbers of the copy
# Operations of the SGEMM and bytes of the copy, read and written.
SGEMM_GFLOP, COPY_GB = 2 * SIZE**3 / 1e9, 2 * 4 * COUNT / 1e9

# Bytes that each of a core's two FMA units takes at once, by LLVM's name of the core. From AMD's
# Software Optimization Guides (56305, 56665, 57647, 58455), Intel's Optimization Reference Manual
# and Arm's guides for Neoverse. Zen 4 has AVX-512 with units of 256 bits. Skylake's and Cascade
# Lake's servers have one or two units of 512 bits, which their name does not tell.
UNITS = 2
UNIT_BYTES = {
    **dict.fromkeys(("haswell", "broadwell", "skylake", "znver2", "znver3", "znver4"), 32),
    **dict.fromkeys(("icelake-server", "sapphirerapids", "emeraldrapids", "graniterapids"), 64),
    "znver5": 64,
    **dict.fromkeys(("neoverse-n1", "neoverse-n2"), 16),
}


def ceilings(threads, repeats=20, **options):
    """Seconds of an SGEMM by BLAS, SIZE x SIZE, and of copying 256 MiB, as rows of a results file;
    BLAS takes its own threads, `threads` is what the rows record.
    """
    a = np.random.default_rng(0).standard_normal((SIZE, SIZE), dtype=np.float32)
    out, source, copy = np.zeros_like(a), np.ones(COUNT, np.float32), np.zeros(COUNT, np.float32)
    cases = {"sgemm": lambda: np.matmul(a, a, out=out), "copy": lambda: np.copyto(copy, source)}

    def check():
        for run in cases.values():
            run()
        row = a[0].astype(np.float64) @ a
        return {
            "sgemm": compare({"row": out[0]}, {"row": row}, 1e-5),
            "copy": compare({"copy": copy}, {"copy": source}, 0.0),
        }

    times = timed({"ceiling": cases}, check, repeats=repeats, rest=REST, **options)
    return times.rename(columns={"case": "version"}).assign(threads=threads)


class Peak(NamedTuple):
    """The float32 multiply-adds that one core can do, and the numbers that this comes from."""

    clock: float  # GHz, measured while one core is busy
    units: int  # that multiply and add, each begins one instruction in a cycle
    lanes: int  # float32 numbers that a unit takes at once
    core: str  # LLVM's name of the core

    @property
    def gflops(self):
        """GFLOP/s of one core; a multiply-add is two operations."""
        return 2 * self.clock * self.units * self.lanes

    def __str__(self):
        return (
            f"{self.gflops:.0f} GFLOP/s a core: 2 x {self.clock:.2f} GHz (measured) x {self.units} "
            f"units x {self.lanes} lanes ({self.core})"
        )


def peak():
    """The Peak of a core of this machine; None where its units or its clock are not known.

    The clock is of integer code: a core may run wide vectors more slowly.
    """
    from ..cpu import registers  # which imports Numba

    core, vectors, frequency = core_name(), registers.vector_registers(), clock()
    if core not in UNIT_BYTES or not vectors.fused or frequency is None:
        return None
    return Peak(frequency, UNITS, min(UNIT_BYTES[core], vectors.bytes) // 4, core)


def core_name():
    """LLVM's name of this machine's core: `znver5`, `skylake-avx512`."""
    return llvmlite.binding.get_host_cpu_name()


def dependent(count, a, b):
    """2 * count operations of one cycle each, of which every one waits for the one before."""
    x = a
    for _ in range(count):
        x = (x + a) ^ b
    return x


@cache
def clock(count=1_000_000, runs=20):
    """GHz at which a busy core runs, from the fastest of some runs of `dependent` (each takes half
    a millisecond); None where that is no clock of a CPU: the loop is emulated or always disturbed.
    """
    from ..kernels import native

    address = native(dependent, "clock")
    function = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 3)(address)
    seconds = min(timeit.repeat(lambda: function(count, 3, 5), number=1, repeat=runs))
    frequency = 2 * count / seconds / 1e9
    return frequency if 0.2 < frequency < 10 else None
