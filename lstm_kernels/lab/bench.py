"""The benchmark: every version on the same work, verified, timed side by side, verified again."""

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from .. import data
from ..params import Params
from ..train import train
from ..versions import network as make_network
from ..versions import versions
from . import provenance, results
from .compare import compare_to_reference
from .timing import interleaved


@dataclass(frozen=True)
class Workload:
    """Sizes of a network and a mini-batch: layers, steps, inputs, hidden units, samples."""

    L: int
    T: int
    D: int
    H: int
    B: int

    def params(self, **how):
        return Params.init(self.D, self.H, self.L, 1, **how)

    def example(self, seed=0):
        """Random x (T, B, D) and target (B, 1)."""
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((self.T, self.B, self.D)).astype(np.float32)
        return x, rng.standard_normal((self.B, 1)).astype(np.float32)

    @property
    def gflop(self):
        """Floating-point operations of one LSTM inference, products only, in 1e9."""
        inputs = self.D + (self.L - 1) * self.H + self.L * self.H
        return 2 * self.T * self.B * 4 * self.H * inputs / 1e9

    def columns(self):
        return {"L": self.L, "T": self.T, "B": self.B, "D": self.D, "H": self.H, "dtype": "float32"}


AIRLINE = Workload(L=1, T=12, D=1, H=32, B=16)
REFERENCE = Workload(L=4, T=100, D=512, H=512, B=64)
SMALL_REFERENCE = Workload(L=2, T=10, D=64, H=64, B=16)


def airline_dataset():
    """The training windows of notebook 02: 12 months each, years 1949-1958."""
    passengers = data.airline().to_numpy(float)[:120]
    return data.windows(data.LogDifference.fit(passengers).forward(passengers), 12)


def network(version, params):
    """A network of a version; a name with a slash selects a variant (`numba-sample/buffers`)."""
    name, _, variant = version.partition("/")
    net = make_network(name, params)
    if variant == "buffers":
        net.layer_backward = partial(net.layer_backward, per_sample=True)
    return net


def rows_of(times, work, stage, errors):
    """Timing rows in the form of a results file."""
    name = times["case"].str.split("/", expand=True).reindex(columns=[0, 1])
    return pd.DataFrame(
        {
            "version": name[0],
            "variant": name[1],
            **work.columns(),
            "stage": stage,
            "repeat": times["repeat"],
            "seconds": times["seconds"],
            "max_err": times["case"].map(errors),
        }
    )


def verify(nets, params, work):
    """Largest relative error of each network against the reference; raises MismatchError."""
    x, _ = work.example(seed=1)
    return {name: compare_to_reference(net, params, x) for name, net in nets.items()}


# Run in a process of its own, so that nothing is compiled or loaded before.
FIRST_STEP = """
import time
from lstm_kernels.lab.bench import AIRLINE, network
net, (x, target) = network({name!r}, AIRLINE.params()), AIRLINE.example()
start = time.perf_counter()
net.step(x, target, 1e-3)
first = time.perf_counter()
net.step(x, target, 1e-3)
print(2 * first - start - time.perf_counter())
"""


def compile_times(name):
    """What the first step of a version in a new process costs beyond the second: rows for an empty
    and a filled cache of compiled code (stages "compile" and "load").
    """
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for stage in ("compile", "load"):
            done = subprocess.run(
                [sys.executable, "-c", FIRST_STEP.format(name=name)],
                env=os.environ | {"NUMBA_CACHE_DIR": folder},
                capture_output=True,
                text=True,
                check=True,
            )
            times = pd.DataFrame({"case": [name], "repeat": [0], "seconds": [float(done.stdout)]})
            rows.append(rows_of(times, AIRLINE, stage, {}))
    return pd.concat(rows, ignore_index=True)


def epochs(names, work=AIRLINE, *, epochs=1, repeats=20, optimizer="sgd"):
    """Time `epochs` training epochs on the airline windows for each version; rows of a results
    file.
    """
    dataset, params = airline_dataset(), work.params()
    nets = {name: network(name, params) for name in names}
    errors = verify(nets, params, work)

    def case(net):
        return lambda: train(
            net, dataset, epochs, work.B, 0.05, optimizer=optimizer, progress=False
        )

    times = interleaved({name: case(net) for name, net in nets.items()}, repeats=repeats)
    verify({name: network(name, params) for name in names}, params, work)
    return rows_of(times, work, f"{epochs} epochs" if epochs > 1 else "epoch", errors)


def steps(names, work, *, repeats=20):
    """Time inference and one descent step of each version; rows of a results file."""
    params, (x, target) = work.params(), work.example()
    nets = {name: network(name, params) for name in names}
    errors = verify(nets, params, work)
    parts = []
    for stage, call in (
        ("forward", lambda net: net.forward(x)),
        ("step", lambda net: net.step(x, target, 1e-4)),
    ):
        cases = {name: (lambda net=net, call=call: call(net)) for name, net in nets.items()}
        parts.append(rows_of(interleaved(cases, repeats=repeats), work, stage, errors))
    verify({name: network(name, params) for name in names}, params, work)
    return pd.concat(parts, ignore_index=True)


def available(target="cpu"):
    """Names of the versions of a target that can run here."""
    return [v.name for v in versions() if v.target == target and not v.why_unavailable]


def main(preset="paper", folder=results.FOLDER):
    """Run every experiment and write its file; yields (experiment, rows, path)."""
    for warning in provenance.distorting_variables():
        print(
            f"warning: {warning} steers BLAS; unset it to measure what users see", file=sys.stderr
        )
    paper, names = preset == "paper", available()
    reference = REFERENCE if paper else SMALL_REFERENCE
    sizes = [Workload(1, 12, 1, H, B) for H in (32, 64) for B in (16, 64)] if paper else [AIRLINE]
    grid = ["numpy", "numba-sample/buffers", "numba-sample"]
    plan = {
        "airline": lambda: pd.concat(
            [
                compile_times("numba-sample"),
                epochs(names, epochs=5, repeats=20 if paper else 1),
            ]
        ),
        "gradients": lambda: pd.concat(
            [steps(grid, work, repeats=20 if paper else 2) for work in sizes]
        ),
        "reference": lambda: steps(["numpy-naive", "numpy"], reference, repeats=20 if paper else 2),
    }
    for experiment, run in plan.items():
        rows = run()
        yield experiment, rows, results.write(experiment, rows, preset=preset, folder=folder)
