"""Instruction sets to which this process's children can be restricted, ours and other packages'.

What a CPU without AVX-512 or AVX2 would run can be compiled, tested and timed on one that has
them. The peers of a comparison are restricted by their own variables, each library to the kernels
that it brings for that instruction set.
"""

import os
import platform
import subprocess
import sys

_SSE2 = "+64bit,+cmov,+cx16,+fxsr,+sse,+sse2"
_AVX = _SSE2 + ",+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+avx"
_AVX2 = _AVX + ",+avx2,+fma,+bmi,+bmi2,+f16c,+lzcnt,+movbe"
_AVX512 = _AVX2 + ",+avx512f,+avx512cd,+avx512bw,+avx512dq,+avx512vl"

# Numba's names of a CPU and its features; oneDNN's, PyTorch's and OpenBLAS's names of kernel sets.
_SETS = {
    "AVX-512": ("skylake-avx512", _AVX512, "AVX512_CORE", "avx512", "SkylakeX"),
    "AVX2": ("haswell", _AVX2, "AVX2", "avx2", "Haswell"),
    "AVX": ("sandybridge", _AVX, "AVX", "default", "Sandybridge"),
    # The least that oneDNN knows is SSE4.1. OpenBLAS reports its kernels for Core2 as Katmai.
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


def variables(name):
    """The environment variables that restrict a process to an instruction set of NAMES."""
    if name not in _SETS:
        raise ValueError(f"instruction set: got {name!r}, want one of {', '.join(_SETS)}")
    return dict(zip(VARIABLES, _SETS[name], strict=True))


def features(name):
    """The names of the CPU features that an instruction set of NAMES may use."""
    return [word[1:] for word in variables(name)["NUMBA_CPU_FEATURES"].split(",")]


def runnable():
    """Those of NAMES whose features this CPU has."""
    import llvmlite.binding

    has = llvmlite.binding.get_host_cpu_features()
    return [name for name in NAMES if all(has.get(word) for word in features(name))]


def main(words):
    """Run a command on an instruction set: `python -m lstm_kernels.bench.isa AVX2 COMMAND ...`."""
    name, *command = words
    done = subprocess.run(command, env=os.environ | variables(name), check=False)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main(sys.argv[1:])
