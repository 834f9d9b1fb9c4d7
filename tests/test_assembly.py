"""The inner loops of every tile, on every instruction set that can be compiled for
here.
"""

import platform
from itertools import product
from pathlib import Path

import assembly
import numpy as np
import pytest

import lstm_kernels
from lstm_kernels.cells import CELLS
from lstm_kernels.cpu import registers, simd
from lstm_kernels.cpu.tiles import Tiles
from lstm_report.measure.process import in_process

SSE2 = "+64bit,+cmov,+cx16,+fxsr,+sse,+sse2"
AVX = f"{SSE2},+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+avx"
AVX2 = f"{AVX},+avx2,+fma,+bmi,+bmi2,+f16c,+lzcnt,+movbe"
AVX512 = f"{AVX2},+avx512f,+avx512cd,+avx512bw,+avx512dq,+avx512vl"
# Numba's names of a CPU and its features; bytes and number of registers, whether one
# instruction multiplies and adds.
SETS = {
    "AVX-512": ("skylake-avx512", AVX512, [64, 32, True, "AVX-512"]),
    "AVX2": ("haswell", AVX2, [32, 16, True, "AVX2"]),
    "AVX": ("sandybridge", AVX, [32, 16, False, "AVX"]),
    "SSE2": ("x86-64", SSE2, [16, 16, False, "SSE2"]),
}
X86 = platform.machine().lower() in ("x86_64", "amd64")
ROWS = {"AVX-512": 6, "AVX2": 3, "AVX": 2, "SSE2": 2}  # of a tile with four vectors


def every_tile(dtype):
    """What the registers are, and the inner loops of every tile by "cell dtype vectors
    name"; of networks with two vectors of hidden units and with four, which have other
    wide unit blocks.
    """
    dtype = np.dtype(dtype)
    loops, lanes = {}, registers.vector_registers().bytes // dtype.itemsize
    for cell, count in product(CELLS, (2, 4)):
        for name, tile in Tiles(CELLS[cell], dtype, count * lanes).all().items():
            text = simd.assembly(tile, dtype, lanes)
            key = f"{cell} {dtype} {count} {name}"
            loops[key] = [assembly.counts(loop) for loop in assembly.inner_loops(text)]
    return registers.vector_registers(), loops


@pytest.mark.parametrize("name", SETS if X86 else ["of this machine"])
def test_no_loop_over_k_touches_the_stack(name):
    """A spilled sum or pointer halved the speed of AVX2 once."""
    cpu, features, want = SETS.get(name, ("", "", None))
    env = {"NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": features} if want else {}
    folders = Path(lstm_kernels.__file__).parents[1], Path(__file__).parent
    env["PYTHONPATH"] = ":".join(map(str, folders))
    dtype = "float64" if name == "AVX" else "float32"  # loops differ in little else
    got, loops = in_process("test_assembly:every_tile", [dtype], env=env)
    rows = ROWS.get(name, registers.tile_rows(4))
    assert want is None or got == want
    assert len(loops) == 72
    for tile, found in loops.items():
        assert bool(found) == ("transpose" not in tile), tile
        for loop in found:
            assert loop["reads and writes of the stack"] == 0, tile
    tallest = max(loops[f"lstm {dtype} 4 step"], key=lambda loop: loop["multiply-adds"])
    at_once = 1 if name in ("SSE2", "AVX") else 2  # how many k
    assert tallest["multiply-adds"] == at_once * 4 * rows
    assert tallest["vector loads"] + tallest["broadcasts"] <= at_once * (4 + rows)
    # Two-operand instructions copy what they multiply, and spread a number in two.
    products = {"SSE2": 3, "AVX": 2}.get(name, at_once) * 4 * rows
    instructions = (
        sum(tallest.values()) - tallest["of these with an operand from memory"]
    )
    assert instructions <= products + 4 + at_once * 2 * rows + 4 * at_once


def test_a_spill_is_counted():
    """Assembly as AVX2 had it, with its reload of a spilled sum; and a loop over rows,
    left out.
    """
    text = """
.LBB0_1:
\tvmovups\t(%rsi), %ymm0
\tvbroadcastss\t(%rdx), %ymm1
\tvfmadd231ps\t%ymm0, %ymm1, %ymm2
\tvmovups\t64(%rsp), %ymm3
\tvfmadd231ps\t(%rdi), %ymm1, %ymm3
\tvmovups\t%ymm3, 64(%rsp)
\tjne\t.LBB0_1
.LBB0_2:
\tvfmadd231ps\t%ymm0, %ymm1, %ymm2
\tvmovups\t%ymm2, (%rcx)
\tjb\t.LBB0_2
"""
    (loop,) = assembly.inner_loops(text)
    # Multiply-adds, one with an operand from memory; loads, a broadcast, stack; the
    # jump. The load from the stack is counted as both.
    assert list(assembly.counts(loop).values()) == [2, 1, 2, 1, 2, 0]
    arm = "ldr\tq0, [x1], #16", "fmla\tv1.4s, v0.4s, v2.s[0]", "str\tq3, [sp, #16]"
    text = "\n\t".join([".LBB0_1:", *arm, "b.ne\t.LBB0_1\n"])
    (arm,) = assembly.inner_loops(text)
    assert assembly.counts(arm)["multiply-adds"] == 1
    assert assembly.counts(arm)["reads and writes of the stack"] == 1


@pytest.mark.parametrize(
    ("triple", "features", "want"),
    [
        # Nothing detected: an emulator
        ("aarch64-unknown-linux-gnu", {}, (16, 32, True)),
        ("arm64-apple-darwin22", {}, (16, 32, True)),
        ("x86_64-unknown-linux-gnu", {}, (16, 16, False)),
        ("x86_64-unknown-linux-gnu", {"avx": True}, (32, 16, False)),
        ("x86_64-unknown-linux-gnu", {"avx": True, "avx2": True}, (32, 16, False)),
        ("x86_64-pc-windows-msvc", {"avx2": True, "fma": True}, (32, 16, True)),
        (
            "x86_64-unknown-linux-gnu",
            {"avx512f": True, "avx2": True, "fma": True},
            (64, 32, True),
        ),
    ],
)
def test_registers_are_decided_by_the_triple_and_the_features(triple, features, want):
    assert registers.instruction_set(triple, features)[:3] == want
