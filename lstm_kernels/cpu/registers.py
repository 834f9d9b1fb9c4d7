"""The vector registers of an instruction set, and the tile that fits them."""

from functools import cache
from typing import NamedTuple

import llvmlite.binding
import numba


class Registers(NamedTuple):
    """Vector registers of an instruction set."""

    bytes: int  # of one
    number: int  # how many there are
    fused: bool  # does one instruction multiply and add?
    name: str


def instruction_set(triple, features):
    """The Registers of a target; features: a dict of those that LLVM may use, name ->
    bool.
    """
    if triple.startswith(("aarch64", "arm64")):
        # Part of the architecture, whatever is detected
        return Registers(16, 32, True, "NEON")
    if features.get("avx512f"):
        return Registers(64, 32, True, "AVX-512")
    if features.get("avx2") and features.get("fma"):
        return Registers(32, 16, True, "AVX2")
    if features.get("avx"):
        return Registers(32, 16, False, "AVX")
    # Every x86-64 has SSE2; elsewhere LLVM makes do with what there is.
    return Registers(16, 16, False, "SSE2")


def cpu_features():
    """Those of the CPU that Numba compiles for: a dict name -> bool."""
    if numba.config.CPU_FEATURES is not None:  # "+avx,-avx2"
        words = filter(None, numba.config.CPU_FEATURES.split(","))
        return {word[1:]: word[0] == "+" for word in words}
    return llvmlite.binding.get_host_cpu_features()


@cache
def vector_registers():
    """The Registers of the CPU that Numba compiles for."""
    return instruction_set(llvmlite.binding.get_process_triple(), cpu_features())


# Each height of a tile up to the tallest is compiled, for the rows that are left over.
# Eight rows of one vector are sums enough for the latency of an FMA (4 cycles, two of
# them begun in each).
MOST_ROWS = 8


def tile_rows(vectors):
    """The tallest tile with `vectors` vectors a row whose sums and operands fit the
    registers; a product takes one more where it is not fused with its sum.
    """
    registers = vector_registers().number - (not vector_registers().fused)
    rows = 1
    while rows < MOST_ROWS:
        tall = rows + 1
        if tall * vectors + min(tall, vectors) + 1 > registers:
            break
        rows = tall
    return rows
