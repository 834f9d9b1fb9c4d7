"""What the GPU kernels ask of a device, found without one.

Every kernel is compiled to PTX by numba-cuda and assembled by ptxas, which needs neither a GPU nor
a driver, and says how many registers and how much local memory it takes. `make ptx`, or `python
tools/ptx.py`, compiles all of them in about ten minutes and writes data/results/ptxas.csv.
"""

import hashlib
import importlib.util
import itertools
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd

import lstm_kernels
from lstm_kernels.bench import results
from lstm_kernels.cells import CELLS
from lstm_kernels.cores import cores
from lstm_kernels.gpu import device, plans, sample_kernels
from lstm_kernels.kernels import SOURCES

CAPABILITIES = ((6, 0), (7, 5), (8, 0), (9, 0))  # P100, T4, A100, H100 and H200
REGISTERS = 65536  # of a multiprocessor, on all of these: a block must get by with them
THREADS = {"cuda-v1": 1, "cuda-v2": 32, "cuda-fused": 256}  # in a block, cuda-v3 as cuda-v2
PATH = results.FOLDER / "ptxas.csv"
# What a build of kernels can vary besides the cell, the dtype and the capability: free names.
BUILDS = {
    "cuda-v1": {"one thread": {"where": "no_position"}},
    "cuda-v2": {"thread per sample": {"where": "position"}},
    "cuda-fused": {
        f"{R} to a thread, weights {'shared' if resident else 'in device memory'}, {sums}": {
            "R": R,
            "RESIDENT": resident,
            "ATOMIC": sums == "atomic",
        }
        for R, resident, sums in [
            *itertools.product((1, 4), (True, False), ("ordered",)),
            (4, True, "atomic"),
        ]
    },
}


class OverBudgetError(AssertionError):
    """Kernels take more than their block can have; the message says which and what."""


def why_unavailable():
    """None when kernels can be compiled here, else the reason."""
    if device.SIMULATED:
        return "NUMBA_ENABLE_CUDASIM is set: the simulator compiles nothing"
    if importlib.util.find_spec("numba_cuda") is None:
        return "numba-cuda is not installed"
    if not hasattr(np, "row_stack"):
        return device.NUMPY_TOO_NEW
    if ptxas() is None:
        return "ptxas is not installed"
    return None


def ptxas():
    """The path of the assembler: of NVIDIA's wheel, or on the PATH; None without one."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations if spec else ():
        for path in sorted(Path(folder).glob("*/bin/ptxas")):
            return str(path)
    return shutil.which("ptxas")


@contextmanager
def stand_in(capability):
    """While inside, numba-cuda believes that there is a device of this capability.

    Compiling a kernel that calls device functions asks the current device for its capability.
    """
    device = type("Device", (), {"compute_capability": capability})
    modules = [m for m in list(sys.modules.values()) if "get_current_device" in vars(m)]
    before = [(m, m.get_current_device) for m in modules if m.__name__.startswith("numba")]
    try:
        for module, _ in before:
            module.get_current_device = lambda: device
        yield
    finally:
        for module, function in before:
            module.get_current_device = function


def assemble(text, capability):
    """What ptxas says of a kernel: registers, and bytes of shared memory, stack and spills."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(text)
        target = f"-arch=sm_{capability[0]}{capability[1]}"
        words = [ptxas(), "-v", target, str(source), "-o", str(source.with_suffix(".cubin"))]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ptxas: {done.stderr.strip()}")

    def number(pattern):
        match = re.search(pattern, done.stderr)
        return int(match[1]) if match else 0

    return {
        "registers": number(r"Used (\d+) registers"),
        "shared": number(r"(\d+) bytes smem"),
        "stack": number(r"(\d+) bytes stack frame"),
        "spills": number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
    }


def compile_build(build, *, kernels=None):
    """Rows of the table for (version, variant, cell, dtype name, capability), a kernel each."""
    name, variant, cell, dtype, capability = build
    from numba import cuda

    assembled = []

    def compile(function, signature):
        text, _ = cuda.compile_ptx(function, signature, cc=capability)
        kernel = re.sub(r"_\w+$", "", function.__name__)
        if kernels is None or kernel in kernels:
            assembled.append((kernel, assemble(text, capability)))

    modules = plans.MODULES if name == "cuda-fused" else (sample_kernels,)
    with stand_in(capability):
        names = BUILDS[name][variant]
        device.build.__wrapped__(cell, np.dtype(dtype), modules, compile=compile, **names)
    about = {"version": name, "variant": variant, "cell": cell, "dtype": dtype}
    about["capability"] = ".".join(map(str, capability))
    return [about | {"kernel": kernel} | taken for kernel, taken in assembled]


def every_build():
    """All builds: versions and variants, cells, dtypes, capabilities."""
    kinds = [
        (name, variant, cell, dtype)
        for name, variants in BUILDS.items()
        for variant in variants
        for cell, dtype in itertools.product(CELLS, ("float32", "float64"))
        if dtype == "float32" or not variant.startswith("4")  # see `plans.plan`
    ]
    return [(*kind, capability) for kind in kinds for capability in CAPABILITIES]


def table(builds, workers=None):
    """Compile builds on several processes; a DataFrame with a row for each kernel."""
    with ProcessPoolExecutor(workers or cores(), mp_context=get_context("spawn")) as pool:
        return pd.DataFrame(itertools.chain.from_iterable(pool.map(compile_build, builds)))


def check(rows):
    """Raise OverBudgetError for kernels that spill, or whose block does not fit."""
    most = (REGISTERS // rows["version"].map(THREADS)).clip(upper=255)
    over = rows[(rows["registers"] > most) | rows[["spills", "stack", "shared"]].any(axis=1)]
    if not over.empty:
        raise OverBudgetError(
            "rows: want no spills, no stack and no static shared memory, since a launch asks for "
            f"all of it, and registers for blocks of {THREADS} threads; got\n{over.to_string()}"
        )


def sources():
    """A hash of the texts that kernels are made of, without those that fill and compile them."""
    folder = Path(lstm_kernels.__file__).parent
    names = [name for name in SOURCES["gpu"] if name not in ("kernels.py", "gpu/device.py")]
    texts = b"".join((folder / name).read_bytes() for name in names)
    return hashlib.sha256(texts).hexdigest()[:12]


def main():
    """Compile every kernel, write the table, check the budget."""
    if reason := why_unavailable():
        sys.exit(f"the kernels cannot be compiled here: {reason}")
    rows = table(every_build())
    made = f"numba-cuda {version('numba-cuda')}, ptxas of CUDA {version('nvidia-cuda-nvcc-cu12')}"
    results.replace(PATH, rows.assign(compiler=made, sources=sources()).to_csv(index=False))
    check(rows)
    print(f"{len(rows)} kernels, none spills; written to {PATH}")


if __name__ == "__main__":
    main()
