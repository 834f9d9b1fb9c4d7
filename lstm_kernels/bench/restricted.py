"""`make bench-isa`: `numba-fused`, PyTorch and BLAS, all restricted to the same instruction set.

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

import numpy as np
import pandas as pd

from ..cores import allowed, cores, why
from ..cpu import registers
from ..versions import network
from . import experiments, isa, peers, provenance, results
from .comparer import TOLERANCE, compare
from .timing import interleaved

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


def public_step(work, names, threads, repeats):
    """Time forward(x, training=True) and backward(dy), public calls, beside PyTorch's autograd of
    the same loss, sum(y * dy); rows of a results file.
    """
    params, (x, _) = work.params(), work.example()
    dy = np.random.default_rng(2).standard_normal((work.T, work.B, work.H)).astype(np.float32)
    ours = network("numba-fused", params, threads=threads)

    def forward_and_backward():
        ours.forward(x, training=True)
        return ours.backward(dy)

    cases, errors = {"numba-fused": forward_and_backward}, {}
    if "pytorch" in names:
        peer = peers.Torch(params, threads)
        cases["pytorch"] = lambda: peer.gradients(x, dy)
        want = forward_and_backward().to_torch()
        got = peer.gradients(x, dy)
        errors["pytorch"] = compare(got, {n: want[n] for n in got}, TOLERANCE[x.dtype])
    errors |= experiments.verify({"numba-fused": ours}, work)
    times = interleaved(cases, repeats=repeats, rest=peers.REST)
    experiments.verify({"numba-fused": ours}, work)
    return experiments.rows_of(times, work, "public step", errors).assign(threads=threads)


def measure(name, preset):
    """Rows of a results file from this process, which must be restricted to the instruction set."""
    if (found := registers.vector_registers().name) != name:
        raise ValueError(f"instruction set: got {found}, want {name}")
    threads, paper = allowed(), preset == "paper"
    names = [peer for peer in ("pytorch",) if find_spec(peers.PACKAGES[peer])]
    # Without AVX the largest workload would take minutes, and says what the next one does.
    works = {k: w for k, w in experiments.GRID.items() if w.gflop < 200}
    works = works if paper else {"airline": experiments.AIRLINE}
    parts = [peers.ceilings(threads, 9 if paper else 2)]
    for label, work in works.items():
        repeats = experiments.repeats_for(work) if paper else 2
        parts.append(peers.side_by_side(work, names, threads, repeats, mine=["numba-fused"]))
        if label in PUBLIC:
            parts.append(public_step(work, names, threads, repeats))
        print(f"{name}: {label}", file=sys.stderr, flush=True)
    parts.append(peers.ceilings(threads, 9 if paper else 2))  # did the machine slow down?
    rows = pd.concat(parts, ignore_index=True)
    kernels = ", ".join(sorted({f"{b['library']} {b['kernels']}" for b in provenance.blas()}))
    variant = rows["variant"].astype(object)  # numbers, if nothing has one
    rows["variant"] = variant.where(rows["version"] != "sgemm", kernels)
    return rows.assign(instruction_set=name)


def main(preset="paper", folder=None):
    """Measure every instruction set in turn and write isa.csv (`results.write`)."""
    results.place(("isa",), preset=preset, folder=folder)
    for setting in provenance.distorting_variables():
        print(f"warning: {setting} steers BLAS; what is measured runs without it", file=sys.stderr)
    if cores() < allowed():
        print(f"warning: {why()}; everyone's threads will pause", file=sys.stderr)
    if not find_spec(peers.PACKAGES["pytorch"]):
        print("warning: PyTorch is not installed; nothing to compare with", file=sys.stderr)
    parts = []
    with tempfile.TemporaryDirectory() as place:
        for name in sets():
            path = Path(place) / "rows.csv"
            run(name, "-m", __name__, name, preset, str(path))
            parts.append(pd.read_csv(path))
    rows = pd.concat(parts, ignore_index=True)
    return rows, results.write("isa", rows, preset=preset, folder=folder)


if __name__ == "__main__":
    measure(*sys.argv[1:3]).to_csv(sys.argv[3], index=False)
