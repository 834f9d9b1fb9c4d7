"""The benchmark: every version on the same work, verified, timed side by side, verified again."""

import cProfile
import os
import pstats
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from .. import data
from ..params import Params
from ..training import train
from ..versions import network as make_network
from ..versions import versions
from . import provenance, results
from .comparer import compare_to_reference
from .timing import interleaved, summary


@dataclass(frozen=True)
class Workload:
    """Sizes of a network and a mini-batch: layers, steps, inputs, hidden units, samples."""

    L: int
    T: int
    D: int
    H: int
    B: int

    def params(self, **how):
        return Params.init(self.D, self.H, num_layers=self.L, output_size=1, **how)

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

    @property
    def step_gflop(self):
        """The same of a training step: twice as many again, but for dx of the first layer."""
        return 3 * self.gflop - 2 * self.T * self.B * 4 * self.H * self.D / 1e9

    def columns(self):
        return {"L": self.L, "T": self.T, "B": self.B, "D": self.D, "H": self.H, "dtype": "float32"}


AIRLINE = Workload(L=1, T=12, D=1, H=32, B=16)
REFERENCE = Workload(L=4, T=100, D=512, H=512, B=64)
GRID = {
    "airline": AIRLINE,
    "airline, two layers": Workload(L=2, T=12, D=1, H=64, B=16),
    "middle": Workload(L=4, T=100, D=128, H=128, B=32),
    "deep, one sample": Workload(L=8, T=500, D=256, H=256, B=1),
    "one layer": Workload(L=1, T=100, D=512, H=512, B=64),
    **{
        f"reference, {B} samples": Workload(L=4, T=100, D=512, H=512, B=B)
        for B in (1, 4, 16, 64, 256)
    },
}
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


def verify(nets, work):
    """Largest relative error of each network, with the parameters it has now, against the
    reference; raises MismatchError. Of a large workload some steps and samples are compared.
    """
    x, _ = work.example(seed=1)
    x = np.ascontiguousarray(x[:20, :16] if work.gflop > 1 else x)
    return {name: compare_to_reference(net, net.params(), x) for name, net in nets.items()}


# Run in a process of its own, so that nothing is compiled or loaded before.
FIRST_STEP = """
import time
from lstm_kernels.bench.experiments import AIRLINE, network
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


def epochs(names, work=AIRLINE, *, epochs=1, repeats=20):
    """Time `epochs` training epochs on the airline windows; rows of a results file."""
    dataset, params = airline_dataset(), work.params()
    nets = {name: network(name, params) for name in names}
    errors = verify(nets, work)

    def case(net):
        return lambda: train(net, dataset, epochs, work.B, 0.05, progress=False)

    # Twenty milliseconds at a time: a call of two begins with sleeping threads and cold caches.
    cases = {name: case(net) for name, net in nets.items()}
    times = interleaved(cases, repeats=repeats, least=0.02)
    verify(nets, work)
    return rows_of(times, work, f"{epochs} epochs" if epochs > 1 else "epoch", errors)


def forwards(names, work, *, repeats=20):
    """Time inference of each version; rows of a results file."""
    params, (x, _) = work.params(), work.example()
    nets = {name: network(name, params) for name in names}
    errors = verify(nets, work)
    cases = {name: (lambda net=net: net.forward(x)) for name, net in nets.items()}
    return rows_of(interleaved(cases, repeats=repeats), work, "forward", errors)


def steps(names, work, *, repeats=20):
    """Time inference and one descent step of each version; rows of a results file."""
    params, (x, target) = work.params(), work.example()
    nets = {name: network(name, params) for name in names}
    errors = verify(nets, work)
    parts = []
    for stage, call in (
        ("forward", lambda net: net.forward(x)),
        ("step", lambda net: net.step(x, target, 1e-4)),
    ):
        cases = {name: (lambda net=net, call=call: call(net)) for name, net in nets.items()}
        parts.append(rows_of(interleaved(cases, repeats=repeats), work, stage, errors))
    verify(nets, work)
    return pd.concat(parts, ignore_index=True)


def packing(work, *, repeats=20):
    """Time packing the parameters of `numba-fused`, and the transposed copies alone, which each
    training step writes anew; rows of a results file.
    """
    net, params = network("numba-fused", work.params()), work.params()
    cases = {
        "numba-fused": lambda: net.assign(params),
        "numba-fused/transposes": net.pack_transposes,
    }
    return rows_of(interleaved(cases, repeats=repeats), work, "pack", {})


def repeats_for(work):
    """Rounds that keep a measurement of a workload under a minute or two."""
    return 20 if work.gflop < 0.1 else 10 if work.gflop < 10 else 5 if work.gflop < 200 else 3


def grid(names, works):
    """Inference and a step of each version on each workload; rows of a results file.

    Versions are left out where they would take minutes.
    """
    parts = []
    for work in works:
        slow = ("sequential", "numpy-sample") if work.gflop > 0.1 else ()
        slow += ("numpy-naive", "numba-sample") if work.gflop > 200 else ()
        chosen = [name for name in names if name not in slow]
        parts.append(steps(chosen, work, repeats=repeats_for(work)))
    return pd.concat(parts, ignore_index=True)


def gradient_forms(grid, *, repeats=20):
    """Median seconds of a training step, (H, B) x form of the weight gradients, beside numpy."""
    forms = {
        "numpy": "numpy",
        "numba-sample/buffers": "a buffer per sample",
        "numba-sample": "rows owned by threads",
    }
    table = {}
    for H, B in grid:
        rows = steps(list(forms), Workload(1, 12, 1, H, B), repeats=repeats)
        rows = rows[rows["stage"] == "step"]
        case = rows["version"].str.cat(rows["variant"], sep="/", na_rep="").str.rstrip("/")
        table[H, B] = rows["seconds"].groupby(case.map(forms)).median()
    return pd.DataFrame(table).T.rename_axis(index=["H", "B"])[list(forms.values())]


def pieces(name, work=AIRLINE, *, repeats=20):
    """Median microseconds of a training step of a version: forward, backward, and the rest."""
    net, (x, target) = network(name, work.params()), work.example()
    dy = np.ones_like(net.forward(x)[0])

    def forward_and_back():
        net.forward(x, training=True)
        net.backward(dy)

    cases = {
        "forward": lambda: net.forward(x, training=True),
        "both": forward_and_back,
        "step": lambda: net.step(x, target, 1e-4),
    }
    median = 1e6 * summary(interleaved(cases, repeats=repeats))["median"]
    forward, both, step = median["forward"], median["both"], median["step"]
    return {"forward": forward, "backward": both - forward, "rest": max(0.0, step - both)}


def profile(name, work=AIRLINE, *, count=6):
    """The `count` functions in which one training epoch of a version spends most: their shares."""
    net, dataset = network(name, work.params()), airline_dataset()
    with cProfile.Profile() as profiler:
        train(net, dataset, 1, work.B, 0.05, progress=False)
    rows = pstats.Stats(profiler).stats.items()
    own = pd.Series({f"{function} ({Path(file).name})": r[2] for (file, _, function), r in rows})
    return (own / own.sum()).sort_values(ascending=False).head(count)


def available(target="cpu"):
    """Names of the versions of a target that can run here."""
    return [v.name for v in versions() if v.target == target and not v.why_unavailable]


def main(preset="paper", folder=None):
    """Run every experiment and write its file; yields (experiment, rows, path)."""
    from . import layers  # which measures with what is here

    for warning in provenance.distorting_variables():
        print(
            f"warning: {warning} steers BLAS; unset it to measure what users see", file=sys.stderr
        )
    paper, names = preset == "paper", available()
    reference = REFERENCE if paper else SMALL_REFERENCE
    sizes = [Workload(1, 12, 1, H, B) for H in (32, 64) for B in (16, 64)] if paper else [AIRLINE]
    forms = ["numpy", "numba-sample/buffers", "numba-sample"]
    plan = {
        "airline": lambda: pd.concat(
            [
                compile_times("numba-sample"),
                compile_times("numba-fused"),
                epochs(names, epochs=5 if paper else 1, repeats=20 if paper else 1),
            ]
        ),
        "gradients": lambda: pd.concat(
            [steps(forms, work, repeats=20 if paper else 2) for work in sizes]
        ),
        "reference": lambda: pd.concat(
            [
                steps(["numpy-naive", "numpy"], reference, repeats=20 if paper else 2),
                packing(reference, repeats=20 if paper else 2),
            ]
        ),
        "grid": lambda: grid(names, GRID.values() if paper else [AIRLINE]),
    }
    deep = layers.DEEP if paper else layers.SMALL_DEEP
    plan["layers"] = lambda: layers.sweep(deep, chunks=(), repeats=20 if paper else 1).rows()
    results.place(plan, preset=preset, folder=folder)
    for experiment, run in plan.items():
        rows = run()
        yield experiment, rows, results.write(experiment, rows, preset=preset, folder=folder)
