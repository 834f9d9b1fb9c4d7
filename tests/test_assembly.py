"""The inner loops of every micro-kernel, on instruction sets that can be compiled for here:
those of an LSTM with AVX2 on each run, `make test-isa` has all.
"""

import os
import platform
import re
from itertools import product
from pathlib import Path

import numba
import numpy as np
import pytest

import lstm_kernels
from lstm_kernels.cells import CELLS
from lstm_kernels.cpu import micro_kernels, registers
from lstm_kernels.cpu.micro_kernels import MicroKernels
from lstm_kernels.kernels import OPTIONS, fill
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
EACH_RUN = "AVX2"
# Of tiles with 1, 2, 4 and 8 vectors
ROWS = {"AVX-512": [8, 8, 6, 3], "AVX2": [8, 6, 3, 1]}
ROWS |= {name: [8, 6, 2, 1] for name in ("AVX", "SSE2")}


FUSED = re.compile(r"vfn?madd|fmla|fmls")
MULTIPLY = re.compile(r"v?mulp[sd]|fmul\s+v")  # where no instruction does both
STACK = re.compile(r".*(\(%rsp|\[sp)")
# What stores a result, as a loop over rows does, or divides, as a cell does
OTHER = re.compile(r"v?div|fdiv|(v?mov\w*\s+%\w+, .*\(|st[rp]\s)(?!.*(\(?%rsp|\[sp))")
JUMP = re.compile(r"(?:j\w+|b\.?\w*|cbn?z\s+\w+,|tbn?z\s+\w+,.*,)\s+(\.?L\w+)$")


def matching(kind, lines):
    return [line for line in lines if kind.match(line)]


def multiply_adds(loop):
    return len(matching(FUSED, loop) or matching(MULTIPLY, loop))


def inner_loops(text):
    """The loops over k of x86-64 or aarch64 assembly, each as its instructions: the
    innermost ones that multiply.
    """
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    labels = {line[:-1]: n for n, line in enumerate(lines) if line.endswith(":")}
    jumps = {n: jump[1] for n, line in enumerate(lines) if (jump := JUMP.match(line))}
    spans = [(labels[to], n) for n, to in jumps.items() if labels.get(to, n) < n]
    loops = []
    for first, last in spans:
        inside = lines[first : last + 1]
        loop = [line for line in inside if line and line[0] != "." and line[-1] != ":"]
        inner = [span for span in spans if first <= span[0] and span[1] <= last]
        if len(inner) == 1 and multiply_adds(loop) and not matching(OTHER, loop):
            loops.append(loop)
    return loops


def every_micro_kernel(dtype, cells):
    """What the registers are, and the inner loops of every micro-kernel of cells by
    "cell vectors name"; of networks with two vectors of hidden units and with four,
    which have other wide unit blocks.
    """
    dtype = np.dtype(dtype)
    loops, lanes = {}, registers.vector_registers().bytes // dtype.itemsize
    for cell, count in product(cells, (2, 4)):
        every = MicroKernels(CELLS[cell], dtype, count * lanes).all()
        for name, micro_kernel in every.items():
            names = {"traced": micro_kernels.trace(micro_kernel, dtype, lanes)}
            function = fill([micro_kernels._call], names, "assembly")["_call"]
            code = numba.cfunc(micro_kernels.SIGNATURE, **OPTIONS)(function)
            loops[f"{cell} {count} {name}"] = inner_loops(code._library.get_asm_str())
    return registers.vector_registers(), loops


@pytest.mark.parametrize("name", SETS if X86 else ["of this machine"])
def test_no_loop_over_k_touches_the_stack(name):
    """A spilled sum or pointer halved the speed of AVX2 once."""
    cpu, features, want = SETS.get(name, ("", "", None))
    env = {"NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": features} if want else {}
    folders = Path(lstm_kernels.__file__).parents[1], Path(__file__).parent
    env["PYTHONPATH"] = ":".join(map(str, folders))
    every = "LSTM_KERNELS_ISA" in os.environ
    if want and name != EACH_RUN and not every:
        pytest.skip("takes 15 seconds: make test-isa")
    dtype = "float64" if name == "AVX" else "float32"  # loops differ in little else
    cells = list(CELLS) if every else ["lstm"]
    got, loops = in_process("test_assembly:every_micro_kernel", [dtype, cells], env=env)
    rows = ROWS[name][2] if want else registers.tile_rows(4)
    assert want is None or got == want
    assert len(loops) == 20 * len(cells)
    for tile, of_tile in loops.items():
        assert bool(of_tile) == (not tile.endswith(" transpose")), tile
        assert not any(matching(STACK, loop) for loop in of_tile), tile
    tallest = max(loops["lstm 4 forward"], key=multiply_adds)
    at_once = 1 if name in ("SSE2", "AVX") else 2  # how many k
    assert multiply_adds(tallest) == at_once * 4 * rows
    # Two-operand instructions copy what they multiply, and spread a number in two.
    products = {"SSE2": 3, "AVX": 2}.get(name, at_once) * 4 * rows
    assert len(tallest) <= products + 4 + at_once * 2 * rows + 4 * at_once


@pytest.mark.parametrize("name", SETS)
def test_a_tile_with_its_operands_fills_the_registers(name, monkeypatch):
    """With AVX-512, 6 rows of 4 vectors are 24 sums, and take 4 + 1 registers more."""
    of_set = registers.Registers(*SETS[name][2])
    monkeypatch.setattr(registers, "vector_registers", lambda: of_set)
    assert [registers.tile_rows(vectors) for vectors in (1, 2, 4, 8)] == ROWS[name]


@pytest.mark.parametrize(
    ("triple", "features", "want"),
    [
        ("aarch64-unknown-linux-gnu", "", "NEON"),  # nothing detected: an emulator
        ("arm64-apple-darwin22", "", "NEON"),
        ("x86_64-unknown-linux-gnu", "", "SSE2"),
        ("x86_64-unknown-linux-gnu", "avx", "AVX"),
        ("x86_64-unknown-linux-gnu", "avx avx2", "AVX"),
        ("x86_64-pc-windows-msvc", "avx2 fma", "AVX2"),
        ("x86_64-unknown-linux-gnu", "avx512f avx2 fma", "AVX-512"),
    ],
)
def test_registers_are_decided_by_the_triple_and_the_features(triple, features, want):
    found = registers.instruction_set(triple, dict.fromkeys(features.split(), True))
    assert list(found) == (SETS[want][2] if want in SETS else [16, 32, True, want])
