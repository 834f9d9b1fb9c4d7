"""Instruction sets to which a child process can be restricted, ours and other
packages', and the comparison of `numba-fused` with PyTorch and BLAS on each of them.

What a CPU without AVX-512 or AVX2 would run can be compiled, tested and timed on one
that has them. The peers are restricted by their own variables, each library to the
kernels that it brings for that set, which it chooses when it is loaded. PyTorch's LSTM
is oneDNN's, which keeps to the set; the three small products of its read-out in a
training step are MKL's, which on some CPUs takes no restriction.
"""

import os
import platform
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import llvmlite.binding
import pandas as pd

from lstm_kernels.cpu import registers

from ..measure import peers, provenance, results
from ..measure.timing import together

_SSE2 = "+64bit,+cmov,+cx16,+fxsr,+sse,+sse2"
_AVX = _SSE2 + ",+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+avx"
_AVX2 = _AVX + ",+avx2,+fma,+bmi,+bmi2,+f16c,+lzcnt,+movbe"
_AVX512 = _AVX2 + ",+avx512f,+avx512cd,+avx512bw,+avx512dq,+avx512vl"

# Numba's names of a CPU and its features; oneDNN's, PyTorch's and OpenBLAS's names of
# kernel sets.
_SETS = {
    "AVX-512": ("skylake-avx512", _AVX512, "AVX512_CORE", "avx512", "SkylakeX"),
    "AVX2": ("haswell", _AVX2, "AVX2", "avx2", "Haswell"),
    "AVX": ("sandybridge", _AVX, "AVX", "default", "Sandybridge"),
    # The least that oneDNN knows is SSE4.1. OpenBLAS reports its kernels for Core2 as
    # Katmai.
    "SSE2": ("x86-64", _SSE2, "SSE41", "default", "Core2"),
}
VARIABLES = (
    "NUMBA_CPU_NAME",
    "NUMBA_CPU_FEATURES",
    "ONEDNN_MAX_CPU_ISA",
    "ATEN_CPU_CAPABILITY",
    "OPENBLAS_CORETYPE",
)
NAMES = tuple(_SETS) if platform.machine().lower() in ("x86_64", "amd64") else ()
TIMED = ("AVX-512", "AVX2", "SSE2")
CHILD = """
import sys
from lstm_report.measure import isa
isa.measure(*sys.argv[1:3]).to_pickle(sys.argv[3])
"""


def variables(name):
    """The environment variables that restrict a process to an instruction set of
    NAMES.
    """
    if name not in _SETS:
        raise ValueError(
            f"instruction set: got {name!r}, want one of {', '.join(_SETS)}"
        )
    return dict(zip(VARIABLES, _SETS[name], strict=True))


def features(name):
    """The CPU features that an instruction set of NAMES may use, each True."""
    return {word[1:]: True for word in variables(name)["NUMBA_CPU_FEATURES"].split(",")}


def sets():
    """Those of TIMED that this CPU has; on another architecture than x86-64, its own
    one.
    """
    has = {
        name
        for name, there in llvmlite.binding.get_host_cpu_features().items()
        if there
    }
    here = [name for name in TIMED if name in NAMES and features(name).keys() <= has]
    return here or [registers.vector_registers().name]


def environment(name):
    """The environment variables of a process that is restricted to an instruction set:
    those of this process, less what steers libraries to other kernels.
    """
    steering = (*provenance.DISTORTING, *VARIABLES)
    kept = {key: value for key, value in os.environ.items() if key not in steering}
    return kept | (variables(name) if name in NAMES else {})


def measure(name, preset):
    """Rows of a results file from this process, which must be restricted to the
    instruction set.
    """
    if (own := registers.vector_registers().name) != name:
        raise ValueError(f"instruction set: got {own}, want {name}")
    names = [peer for peer in ("pytorch",) if find_spec(peers.PACKAGES[peer])]
    # Without AVX the largest workload would take minutes, and says what the next one
    # does.
    rows = peers.compared(preset, names, most=200)
    kernels = ", ".join(
        sorted({f"{b['library']} {b['kernels']}" for b in provenance.blas()})
    )
    variant = rows["variant"].astype(object)  # numbers, if nothing has one
    rows["variant"] = variant.where(rows["version"] != "sgemm", kernels)
    return rows.assign(instruction_set=name)


def each_set(preset):
    """The rows of every instruction set, each measured in its restricted process;
    RuntimeError if one of them fails.
    """
    if not find_spec(peers.PACKAGES["pytorch"]):
        print(
            "warning: PyTorch is not installed; nothing to compare with",
            file=sys.stderr,
        )
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        for name in sets():
            path = Path(folder) / "rows"
            words = [sys.executable, "-c", CHILD, name, preset, str(path)]
            code = subprocess.run(words, env=environment(name), check=False).returncode
            if code:
                raise RuntimeError(f"{name}: the restricted process ended with {code}")
            parts.append(pd.read_pickle(path))
    return together(parts)


def main(preset="paper", folder=None):
    """Measure every instruction set in turn; yields (experiment, rows, path) of
    isa.csv.
    """
    return results.fill({"isa": lambda: each_set(preset)}, preset=preset, folder=folder)


if __name__ == "__main__":  # python -m lstm_report.experiments.isa AVX2 COMMAND ...
    name, *command = sys.argv[1:]
    sys.exit(
        subprocess.run(
            command, env=os.environ | variables(name), check=False
        ).returncode
    )
