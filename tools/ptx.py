"""What the GPU kernels ask of a device, found without one.

Every kernel is compiled to PTX by numba-cuda and assembled by ptxas, which needs
neither a GPU nor a driver, and says how many registers and how much local memory it
takes. `make ptx`, or `python tools/ptx.py`, takes some minutes and writes
data/results/ptxas.csv.
"""

import argparse
import hashlib
import importlib.util
import itertools
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd

from lstm_kernels import cells
from lstm_kernels.cores import cores
from lstm_kernels.gpu import build, plain_kernels, ptx, registers
from lstm_kernels.gpu.layout import Sizes
from lstm_kernels.versions import cuda_epoch, cuda_fused, cuda_persistent, cuda_v1
from lstm_report.measure import results
from lstm_report.ptx_machine import compiler
from lstm_report.ptx_machine.compiler import stand_in

CAPABILITIES = ((6, 0), (7, 5), (8, 0), (9, 0))  # P100, T4, A100, H100 and H200
REGISTERS = 65536  # of a multiprocessor, on all of these: a block must get by with them
# In a block; cuda-v2's and cuda-v3's kernels are cuda-v1's.
THREADS = {"cuda-v1": 32, "cuda-fused": 256, "cuda-persistent": 256}
PATH = results.FOLDER / "ptxas.csv"
# What a build of kernels can vary besides the cell, the dtype and the capability:
# version and variant -> layers, inputs, units, and constants. A thread takes some
# samples; 8 threads compute a part each of a sum.
KEPT = {"units": 16, "buffer": 4352}  # of the reference network
BUILDS = {
    ("cuda-v1", "thread per sample"): (1, 1, 1, {}),  # sizes do not matter
    ("cuda-fused", "1 sample, 8 parts, 32 units"): (1, 1, 32, {"R": 1, "parts": 8}),
    ("cuda-fused", "4 samples, 8 parts, 32 units"): (1, 1, 32, {"R": 4, "parts": 8}),
    ("cuda-fused", "4 samples, 32 units"): (1, 1, 32, {"R": 4, "parts": 1}),
    ("cuda-fused", "1 sample, 512 units"): (2, 64, 512, {"R": 1, "parts": 1}),
    ("cuda-fused", "4 samples, 512 units"): (2, 64, 512, {"R": 4, "parts": 1}),
    ("cuda-persistent", "1 sample, 512 units"): (2, 64, 512, KEPT | {"R": 1}),
    ("cuda-persistent", "8 samples, 512 units"): (2, 64, 512, KEPT | {"R": 8}),
}
# The oldest capability that has what kernels ask for.
OLDEST = {"cuda-persistent": (7, 0)}
ENTRIES = {
    "cuda-v1": cuda_v1.KERNELS,
    "cuda-fused": (*cuda_fused.CudaFused.kernels, cuda_epoch.CudaEpoch.kernels[-1]),
    "cuda-persistent": cuda_persistent.KERNELS,
}
MODULES = {"cuda-v1": (plain_kernels,), "cuda-fused": build.TILES}
MODULES["cuda-persistent"] = (*build.TILES, *cuda_persistent.MODULES)


def why_unavailable():
    """None when kernels can be compiled and assembled here, else the reason."""
    missing = None if ptxas() else "ptxas is not installed"
    return compiler.why_unavailable() or missing


def ptxas():
    """The path of the assembler: of NVIDIA's wheel, or on the PATH, or None."""
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations if spec else ()
    paths = [path for folder in folders for path in Path(folder).glob("*/bin/ptxas")]
    return str(min(paths)) if paths else shutil.which("ptxas")


def assemble(text, capability):
    """What ptxas says of a kernel: registers, and bytes of shared memory, stack and
    spills.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(text)
        # What is linked to a kernel, the grid's barrier, is not there yet.
        words = [ptxas(), "-v", *(["-c"] if ".extern .func" in text else [])]
        words += ["-arch=sm_{}{}".format(*capability), str(source)]
        words += ["-o", str(source.with_suffix(".cubin"))]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ptxas: {done.stderr.strip()}")

    def number(*patterns):
        matches = (re.search(pattern, done.stderr) for pattern in patterns)
        return sum(int(match[1]) for match in matches if match)

    return {
        "registers": number(r"Used (\d+) registers"),
        "shared": number(r"(\d+) bytes smem"),
        "stack": number(r"(\d+) bytes stack frame"),
        "spills": number(r"(\d+) bytes spill stores", r"(\d+) bytes spill loads"),
        "instructions": len(re.findall(r"^\t(?!\.)[^\n]*;$", text, re.MULTILINE)),
    }


def described(of_build):
    """Rows of the table for a (version, variant, cell, dtype name, capability)."""
    name, variant, cell, dtype, capability = of_build
    from numba import cuda

    columns = {"version": name, "variant": variant, "cell": cell, "dtype": dtype}
    columns["capability"] = ".".join(map(str, capability))
    rows = []

    def compile(function, signature):
        text, _ = cuda.compile_ptx(function, signature, cc=capability)
        kernel = {"kernel": function.__name__} | assemble(text, capability)
        rows.append(columns | kernel)

    L, D, H, constants = BUILDS[name, variant]
    sizes = Sizes(L, 0, 0, D, H, 1, len(cells.CELLS[cell].gates))
    arguments = cell, np.dtype(dtype), MODULES[name], ENTRIES[name], sizes
    with stand_in(capability):
        build.build.__wrapped__(*arguments, compile=compile, **constants)
    return rows


def every_build():
    """All builds: versions and variants, cells, dtypes, capabilities."""
    kinds = itertools.product(BUILDS, cells.CELLS, ("float32", "float64"), CAPABILITIES)
    return [
        (name, variant, cell, dtype, capability)
        for (name, variant), cell, dtype, capability in kinds
        # As the plans have it: in float64 a thread takes one sample.
        if (dtype == "float32" or variant.startswith(("1", "thread")))
        and capability >= OLDEST.get(name, (0, 0))
    ]


def table(builds):
    """The rows of each build, on several processes; a DataFrame."""
    with ProcessPoolExecutor(cores(), mp_context=get_context("spawn")) as pool:
        return pd.DataFrame(itertools.chain.from_iterable(pool.map(described, builds)))


def over_budget(rows):
    """The rows of kernels that spill, or whose block does not fit.

    A launch asks for all shared memory, which begins at a multiple of 16 bytes as long
    as nothing lies before it: loads of four numbers at once depend on that.
    """
    most = (REGISTERS // rows["version"].map(THREADS)).clip(upper=255)
    memory = rows[["shared", "stack", "spills"]].max(axis=1)
    return rows[(rows["registers"] > most) | (memory > 0)]


def sources():
    """A hash of the texts that kernels are made of."""
    modules = cells, build, registers, ptx, plain_kernels, *MODULES["cuda-persistent"]
    paths = sorted(module.__file__ for module in modules)
    texts = b"".join(Path(path).read_bytes() for path in paths)
    return hashlib.sha256(texts).hexdigest()[:12]


def main():
    """Compile every kernel, write the table, check the budget."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    if reason := why_unavailable():
        sys.exit(f"the kernels cannot be compiled here: {reason}")
    assembler = version("nvidia-cuda-nvcc-cu12")
    made = f"numba-cuda {version('numba-cuda')}, ptxas of CUDA {assembler}"
    rows = table(every_build()).assign(compiler=made, sources=sources())
    results.replace(PATH, rows.to_csv(index=False))
    over = over_budget(rows)
    if not over.empty:
        want = "want no spills, stack or static shared memory, and registers for blocks"
        sys.exit(f"{want} of {THREADS} threads; got\n{over.to_string()}")
    print(f"{len(rows)} kernels within their registers; written to {PATH}")


if __name__ == "__main__":
    main()
