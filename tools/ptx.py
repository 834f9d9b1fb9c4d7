"""What the GPU kernels ask of a device, found without one.

Every kernel is compiled to PTX by numba-cuda and assembled by ptxas, which needs
neither a GPU nor a driver, and says how many registers and how much local memory it
takes. Of some, nvdisasm shows the instructions: what a multiply-add costs in each hot
loop. `make ptx`, or `python tools/ptx.py`, takes about ten minutes and writes
data/results/ptxas.csv and sass.csv.
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
from itertools import chain
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd

import lstm_kernels
from lstm_kernels.cells import CELLS
from lstm_kernels.cores import cores
from lstm_kernels.gpu import build, device, plans, sample_kernels
from lstm_kernels.gpu.layout import Sizes
from lstm_kernels.kernels import SOURCES
from lstm_kernels.versions import cuda_epoch, cuda_fused, cuda_v1
from lstm_report.measure import results

CAPABILITIES = ((6, 0), (7, 5), (8, 0), (9, 0))  # P100, T4, A100, H100 and H200
COLD = 128  # bytes that a kernel may keep in memory beside its registers: see `check`
REGISTERS = 65536  # of a multiprocessor, on all of these: a block must get by with them
THREADS = {
    "cuda-v1": 1,
    "cuda-v2": 32,
    "cuda-fused": 256,
}  # in a block, cuda-v3 as cuda-v2
PATH, CENSUS_PATH = results.FOLDER / "ptxas.csv", results.FOLDER / "sass.csv"
SMALL, LARGE = Sizes(1, 0, 0, 1, 32, 1), Sizes(2, 0, 0, 64, 512, 1)
# So large that no loop is unrolled into its surroundings
CENSUS = Sizes(1, 0, 0, 128, 128, 1)


def _fused(R, where, end):
    names = {"R": R, "RESIDENT": where == "shared"}
    return names | {"PRODUCT": end == "by all blocks", "ATOMIC": end == "by atomics"}


# What a build of kernels can vary besides the cell, the dtype and the capability: sizes
# and names.
BUILDS = {
    "cuda-v1": {"one thread": (SMALL, {"where": "no_position"})},
    "cuda-v2": {"thread per sample": (SMALL, {"where": "position"})},
    "cuda-fused": {
        f"{R} to a thread, weights {where}, gradients {end}": (
            sizes,
            _fused(R, where, end),
        )
        for sizes, R, where, end in [
            (SMALL, 1, "shared", "by tile"),
            (SMALL, 4, "shared", "by tile"),
            (SMALL, 4, "shared", "by atomics"),
            (LARGE, 1, "in device memory", "by all blocks"),
            (LARGE, 4, "in device memory", "by tile"),
        ]
    },
}
MODULES = dict.fromkeys(BUILDS, (sample_kernels,)) | {"cuda-fused": plans.MODULES}
ENTRIES = dict.fromkeys(BUILDS, cuda_v1.KERNELS)
ENTRIES["cuda-fused"] = *cuda_fused.CudaFused.kernels, cuda_epoch.CudaEpoch.kernels[-1]
# The loops in which the multiply-adds of a pass are, in the order of the kernels' text:
# the input times U and h times W; da times W and U transposed, and the gradients of U
# and W.
LOOPS = {"forward": ("x U", "h W"), "backward": ("da W'", "da U'", "x' da", "h' da")}
COUNTED = [
    (version, variant, cell)
    for version in ("cuda-v2", "cuda-fused")
    for variant in BUILDS[version]
    if not variant.endswith("by atomics")  # only the sums differ
    for cell in CELLS
]
# The least share of multiply-adds among the instructions of a loop.
LEAST = {("cuda-v2", "rnn"): 0.15, ("cuda-v2", "others"): 0.18}
LEAST |= {("cuda-fused", "rnn"): 0.25, ("cuda-fused", "others"): 0.5}


class OverBudgetError(AssertionError):
    """Kernels take more than their block can have; the message says which and what."""


def why_unavailable():
    """None when kernels can be compiled here, else the reason."""
    if device.SIMULATED:
        return "NUMBA_ENABLE_CUDASIM is set: the simulator compiles nothing"
    if importlib.util.find_spec("numba_cuda") is None:
        return "numba-cuda is not installed"
    missing = [name for name in ("ptxas", "nvdisasm") if tool(name) is None]
    return f"{missing[0]} is not installed" if missing else None


def tool(name):
    """The path of the assembler or disassembler: of NVIDIA's wheel, or on the PATH, or
    None.
    """
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations if spec else ():
        for path in sorted(Path(folder).glob(f"*/bin/{name}")):
            return str(path)
    return shutil.which(name)


@contextmanager
def stand_in(capability):
    """While inside, numba-cuda believes that there is a device of this capability.

    Compiling a kernel that calls device functions asks the current device for its
    capability.
    """
    device = type("Device", (), {"compute_capability": capability})
    modules = [m for m in list(sys.modules.values()) if "get_current_device" in vars(m)]
    before = [
        (m, m.get_current_device) for m in modules if m.__name__.startswith("numba")
    ]
    try:
        for module, _ in before:
            module.get_current_device = lambda: device
        yield
    finally:
        for module, function in before:
            module.get_current_device = function


def assemble(text, capability, census=False):
    """What ptxas says of a kernel: registers, and bytes of shared memory, stack and
    spills; with `census` its instructions.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(text)
        cubin = str(source.with_suffix(".cubin"))
        # What is linked to a kernel, the grid's barrier, is not there yet.
        words = [tool("ptxas"), "-v", *(["-c"] if ".extern .func" in text else [])]
        words += [f"-arch=sm_{capability[0]}{capability[1]}", str(source), "-o", cubin]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"ptxas: {done.stderr.strip()}")
        if census:
            words = [tool("nvdisasm"), "-c", cubin]
            return subprocess.run(
                words, capture_output=True, text=True, check=True
            ).stdout

    def number(pattern):
        match = re.search(pattern, done.stderr)
        return int(match[1]) if match else 0

    return {
        "registers": number(r"Used (\d+) registers"),
        "shared": number(r"(\d+) bytes smem"),
        "stack": number(r"(\d+) bytes stack frame"),
        "spills": number(r"(\d+) bytes spill stores")
        + number(r"(\d+) bytes spill loads"),
    }


def compile_build(build_of, *, entries=None, census=False):
    """(kernel, what `assemble` returns) of a (version, variant, cell, dtype name,
    capability).
    """
    name, variant, cell, dtype, capability = build_of
    from numba import cuda

    assembled = []

    def compile(function, signature):
        text, _ = cuda.compile_ptx(function, signature, cc=capability)
        assembled.append((function.__name__, assemble(text, capability, census)))

    sizes, names = BUILDS[name][variant]
    how = cell, np.dtype(dtype), MODULES[name], entries or ENTRIES[name]
    with stand_in(capability):
        sizes = CENSUS if census else sizes
        build.build.__wrapped__(*how, sizes, compile=compile, **names)
    return assembled


def described(build_of):
    """Rows of the table of kernels for a build."""
    *names, capability = build_of
    columns = dict(zip(("version", "variant", "cell", "dtype"), names, strict=True))
    columns["capability"] = ".".join(map(str, capability))
    return [
        columns | {"kernel": kernel} | taken
        for kernel, taken in compile_build(build_of)
    ]


def inner_loops(text):
    """The instructions of each innermost loop of a disassembled kernel, in its
    order.
    """
    instructions, labels, loops = [], {}, []
    for line in text.splitlines():
        if match := re.match(r"\s*(\.L_\w+):", line):
            labels[match[1]] = len(instructions)
        elif match := re.search(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+ +)?([^;]+);", line):
            instructions.append(match[1].strip())
            jump = re.match(r"BRA.*`\((\.L_\w+)\)", match[1])
            if jump and jump[1] in labels:
                loops.append((labels[jump[1]], len(instructions)))
    return [
        instructions[first:last]
        for first, last in loops
        if not any(
            (a, b) != (first, last) and first <= a and b <= last for a, b in loops
        )
    ]


def count(instructions):
    """Of the instructions of a loop: all, multiply-adds, loads."""

    def starting(*names):
        return sum(text.startswith(names) for text in instructions)

    kinds = {"multiply_adds": ("FFMA",), "loads": ("LDS", "LDG", "LD.")}
    return {"instructions": len(instructions)} | {
        k: starting(*v) for k, v in kinds.items()
    }


def census(build_of):
    """Rows of the table of loops for a (version, variant, cell): those of LOOPS."""
    rows, about = [], dict(zip(("version", "variant", "cell"), build_of, strict=True))
    how = {"entries": tuple(LOOPS), "census": True}
    for kernel, text in compile_build((*build_of, "float32", (9, 0)), **how):
        loops = [
            loop for loop in inner_loops(text) if not any("MUFU" in i for i in loop)
        ]
        # What remains of an unrolled loop over single rows, the cell and sums have
        # fewer.
        found = [[c] for c in map(count, loops) if c["multiply_adds"] >= 16]
        # The gradients' loops may have a second one, for the last steps
        if kernel == "backward":
            each = (len(found) - 2) // 2
            ends = (2, 2 + each, len(found)) if each else ()
            found[2:] = [
                [*chain.from_iterable(found[a:b])] for a, b in itertools.pairwise(ends)
            ]
        # By all blocks: elsewhere
        names = LOOPS[kernel] if len(found) != 2 else LOOPS[kernel][:2]
        for name, parts in zip(names, found, strict=True):
            rows.append(about | {"loop": name} | pd.DataFrame(parts).sum().to_dict())
    return rows


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


def table(rows_of, builds, workers=None):
    """The rows of each build, `described` or `census`, on several processes; a
    DataFrame.
    """
    with ProcessPoolExecutor(
        workers or cores(), mp_context=get_context("spawn")
    ) as pool:
        return pd.DataFrame(chain.from_iterable(pool.map(rows_of, builds)))


def check(rows):
    """Raise OverBudgetError for kernels that spill, or whose block does not fit.

    A whole epoch in float64 has more numbers than registers: it may keep some, none of
    which a loop of products uses, in COLD bytes of memory.
    """
    most = (REGISTERS // rows["version"].map(THREADS)).clip(upper=255)
    cold = COLD * ((rows["kernel"] == "epoch") & (rows["dtype"] == "float64"))
    over = rows["registers"] > most
    over |= (
        rows["shared"].astype(bool)
        | (rows["stack"] > cold)
        | (rows["spills"] > 4 * cold)
    )
    over = rows[over]
    if not over.empty:
        raise OverBudgetError(
            "rows: want no spills, no stack and no static shared memory, since a launch asks for "
            f"all of it, and registers for blocks of {THREADS} threads; got\n{over.to_string()}"
        )


# What makes a loop of products shorter, one change after another. The product of h with
# a matrix of four gates side by side, as a kernel: its index, its loop, its sizes, its
# loads.
EXAMPLE = """
def example(h, w, a, n, first):
    j = cuda.grid(1)
    {start}
    {loop}
        {load}
        {add}
        {next}
    {store}
"""
PLAIN = {
    "start": "i = f = g = o = real(0)",
    "loop": "for k in range(n):",
    "load": "q = (k * n + j) * 4",
    "add": "v = h[first + k]; "
    "i += v * w[q]; f += v * w[q + 1]; g += v * w[q + 2]; o += v * w[q + 3]",
    "next": "pass",
    "store": "a[j * 4] = i; a[j * 4 + 1] = f; a[j * 4 + 2] = g; a[j * 4 + 3] = o",
}
NOT_NEGATIVE = "v = h[u(first + k)]; i += v * w[u(q)]; f += v * w[u(q + 1)]; "
NOT_NEGATIVE += "g += v * w[u(q + 2)]; o += v * w[u(q + 3)]"
AT_ONCE = "v = h[u(first + k)]; p = quad(w, q); i += v * p[0]; f += v * p[1]; "
AT_ONCE += "g += v * p[2]; o += v * p[3]"
CHANGES = {
    "range, sizes as arguments": {},
    "indices marked as not negative": {"add": NOT_NEGATIVE},
    "while instead of range": {
        "start": "i = f = g = o = real(0); k = 0",
        "loop": "while k < n:",
        "next": "k += 1",
    },
    "sizes as literals": {"loop": "while k < 128:", "load": "q = (k * 128 + j) * 4"},
    "four weights in one load": {"add": AT_ONCE},
}


def examples(capability=(9, 0)):
    """Rows of the table of loops: EXAMPLE with each of CHANGES on top of those
    before.
    """
    from numba import cuda, float32, int64

    rows, parts = [], dict(PLAIN)
    sizes, cell = CENSUS, CELLS["lstm"]
    for change, new in CHANGES.items():
        parts |= new
        how = cell, np.float32, (sample_kernels,), sizes
        space = build.functions(*how, where="position") | {"cuda": cuda}
        space["u"] = cuda.jit(device=True)(space["u"])
        exec(EXAMPLE.format(**parts), space)
        arrays = [float32[::1]] * 3
        with stand_in(capability):
            text, _ = cuda.compile_ptx(
                space["example"], (*arrays, int64, int64), cc=capability
            )
        loops = inner_loops(assemble(text, capability, census=True))
        most = max(map(count, loops), key=lambda counts: counts["multiply_adds"])
        rows.append(
            {"version": "example", "variant": change, "cell": "lstm", "loop": "h W"}
            | most
        )
    return pd.DataFrame(rows)


def budget(rows):
    """Raise OverBudgetError for loops with too small a share of multiply-adds: LEAST.

    An RNN's unit has one number where the others have four: in a thread with one
    sample, and in the gradients, a number that is loaded serves one multiply-add.
    """
    rows = rows[rows["version"] != "example"]
    rnn = (rows["cell"] == "rnn").map({True: "rnn", False: "others"})
    least = [LEAST[key] for key in zip(rows["version"], rnn, strict=True)]
    over = rows[rows["multiply_adds"] / rows["instructions"] < least]
    if not over.empty:
        raise OverBudgetError(
            f"rows: want at least {LEAST} of a loop's instructions to be multiply-adds; got\n"
            f"{over.to_string()}"
        )


def sources():
    """A hash of the texts that kernels are made of, without those that compile and
    launch them.
    """
    folder = Path(lstm_kernels.__file__).parent
    others = ("kernels.py", "gpu/build.py", "gpu/device.py")
    names = [name for name in SOURCES["gpu"] if name not in others]
    texts = b"".join((folder / name).read_bytes() for name in names)
    return hashlib.sha256(texts).hexdigest()[:12]


def main():
    """Compile every kernel, write the tables, check the budgets."""
    if reason := why_unavailable():
        sys.exit(f"the kernels cannot be compiled here: {reason}")
    made = f"numba-cuda {version('numba-cuda')}, ptxas of CUDA {version('nvidia-cuda-nvcc-cu12')}"
    about = {"compiler": made, "sources": sources()}
    loops = pd.concat([examples(), table(census, COUNTED)])
    results.replace(CENSUS_PATH, loops.assign(**about).to_csv(index=False))
    print(f"{len(loops)} loops; written to {CENSUS_PATH}", flush=True)
    budget(loops)
    rows = table(described, every_build())
    results.replace(PATH, rows.assign(**about).to_csv(index=False))
    check(rows)
    print(f"{len(rows)} kernels, none spills; written to {PATH}")


if __name__ == "__main__":
    main()
