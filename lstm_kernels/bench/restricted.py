"""`numba-fused`, PyTorch and BLAS, all restricted to the same instruction set.

Each set is measured in a process of its own, since libraries choose their kernels when they are
loaded. PyTorch's LSTM is oneDNN's, which keeps to the set. The three small products of its read-out
are MKL's, which on some CPUs takes no restriction; the stage "public step" does without them.
"""

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

from ..cores import allowed
from ..cpu import registers
from . import isa, peers, provenance, results
from .ceilings import ceilings
from .runner import rounds
from .timing import together
from .workloads import AIRLINE, GRID

SETS = ("AVX-512", "AVX2", "SSE2")
# Where the public calls of a training step are measured too: what surrounds the kernel shows.
PUBLIC = ("airline", "airline, two layers")


def sets():
    """Those of SETS that this CPU has; on another architecture than x86-64, its own one."""
    return [name for name in isa.runnable() if name in SETS] or [registers.vector_registers().name]


def environment(name):
    """The environment variables of a process that is restricted to an instruction set: those of
    this process, less what steers libraries to other kernels.
    """
    steering = (*provenance.DISTORTING, *isa.VARIABLES)
    kept = {key: value for key, value in os.environ.items() if key not in steering}
    return kept | (isa.variables(name) if name in isa.NAMES else {})


def run(name, *words):
    """Run Python with these words, restricted to an instruction set; RuntimeError if it fails."""
    done = subprocess.run([sys.executable, *words], env=environment(name), check=False)
    if done.returncode:
        raise RuntimeError(f"{name}: the restricted process ended with {done.returncode}")


def measure(name, preset):
    """Rows of a results file from this process, which must be restricted to the instruction set."""
    if (own := registers.vector_registers().name) != name:
        raise ValueError(f"instruction set: got {own}, want {name}")
    threads = allowed()
    names = [peer for peer in ("pytorch",) if find_spec(peers.PACKAGES[peer])]
    # Without AVX the largest workload would take minutes, and says what the next one does.
    works = {label: work for label, work in GRID.items() if work.gflop < 200}
    works = works if preset == "paper" else {"airline": AIRLINE}
    parts = [ceilings(threads, **rounds(preset, 9))]
    for label, work in works.items():
        options = {"versions": ["numba-fused"], "public": label in PUBLIC}
        options |= rounds(preset, work.repeats)
        parts.append(peers.side_by_side(work, names, threads, **options))
        print(f"{name}: {label}", file=sys.stderr, flush=True)
    rows = together([*parts, ceilings(threads, **rounds(preset, 9))])
    kernels = ", ".join(sorted({f"{b['library']} {b['kernels']}" for b in provenance.blas()}))
    variant = rows["variant"].astype(object)  # numbers, if nothing has one
    rows["variant"] = variant.where(rows["version"] != "sgemm", kernels)
    return rows.assign(instruction_set=name)


def each_set(preset):
    """The rows of every instruction set, each measured in its restricted process."""
    if not find_spec(peers.PACKAGES["pytorch"]):
        print("warning: PyTorch is not installed; nothing to compare with", file=sys.stderr)
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        for name in sets():
            path = Path(folder) / "rows"
            run(name, "-m", __name__, name, preset, str(path))
            parts.append(pd.read_pickle(path))
    return together(parts)


def main(preset="paper", folder=None):
    """Measure every instruction set in turn; yields (experiment, rows, path) of isa.csv."""
    return results.fill({"isa": lambda: each_set(preset)}, preset=preset, folder=folder)


if __name__ == "__main__":
    measure(*sys.argv[1:3]).to_pickle(sys.argv[3])
