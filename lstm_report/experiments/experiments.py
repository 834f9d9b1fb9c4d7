"""What is measured of every version. An experiment is a few calls that the runner
times; its options (`repeats`, `again`) are those of `timing.interleaved`.
"""

import cProfile
import os
import pstats
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import pandas as pd

from lstm_kernels.training import train
from lstm_kernels.versions import versions

from ..measure import results
from ..measure.runner import measure, network, networks, rounds, rows_of, timed, verify
from ..measure.timing import together
from ..measure.workloads import (
    AIRLINE,
    GRID,
    REFERENCE,
    SMALL_REFERENCE,
    Workload,
    airline_dataset,
)
from . import layers

FORMS = {
    "numpy": "numpy",
    "numba-sample/buffers": "a buffer per sample",
    "numba-sample": "rows owned by threads",
}

# Run in a process of its own, so that nothing is compiled or loaded before.
FIRST_STEP = """
import time
from lstm_report.measure.runner import network
from lstm_report.measure.workloads import AIRLINE
net, (x, target) = network({name!r}, AIRLINE.params()), AIRLINE.example()
start = time.perf_counter()
net.step(x, target, 1e-3)
first = time.perf_counter()
net.step(x, target, 1e-3)
print(2 * first - start - time.perf_counter())
"""


def compile_times(name):
    """What the first step of a version in a new process costs beyond the second: rows
    for an empty and a filled cache of compiled code (stages "compile" and "load").
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
            rows.append(
                {
                    "case": name,
                    "stage": stage,
                    "repeat": 0,
                    "seconds": float(done.stdout),
                }
            )
    return rows_of(pd.DataFrame(rows), AIRLINE)


def epochs(names, work=AIRLINE, *, epochs=1, **options):
    """Time `epochs` training epochs on the airline windows; rows of a results file."""
    dataset = airline_dataset()
    how = {
        "epochs": epochs,
        "batch_size": work.B,
        "learning_rate": 0.05,
        "progress": False,
    }
    stage = f"{epochs} epochs" if epochs > 1 else "epoch"
    calls = {stage: lambda net: train(net, dataset, **how)}
    # Twenty milliseconds at a time: a call of two begins with sleeping threads and cold
    # caches.
    return measure(networks(names, work), work, calls, least=0.02, **options)


def steps(names, work, **options):
    """Time inference and one descent step of each version; rows of a results file."""
    x, target = work.example()
    calls = {
        "forward": lambda net: net.forward(x),
        "step": lambda net: net.step(x, target, 1e-4),
    }
    return measure(networks(names, work), work, calls, **options)


def packing(work, **options):
    """Time packing the parameters of `numba-fused`, and the transposed copies alone,
    which each training step writes anew; rows of a results file.
    """
    net, params = network("numba-fused", work.params()), work.params()
    cases = {
        "numba-fused": lambda: net.assign(params),
        "numba-fused/transposes": partial(
            net.pack_transposes, net._space(1, 1, "descent")
        ),
    }
    check = partial(verify, {"numba-fused": net}, work)
    return rows_of(timed({"pack": cases}, check, **options), work)


def grid(names, works, **options):
    """Inference and a step of each version on each workload; rows of a results file.

    Versions are left out where they would take minutes.
    """
    parts = []
    for work in works:
        slow = ("sequential", "numpy-sample") if work.gflop > 0.1 else ()
        slow += ("numpy-naive", "numba-sample") if work.gflop > 200 else ()
        chosen = [name for name in names if name not in slow]
        parts.append(steps(chosen, work, **{"repeats": work.repeats} | options))
    return together(parts)


def gradient_forms(grid, **options):
    """Median seconds of a training step, (H, B) x form of the weight gradients, beside
    numpy.
    """
    table = {}
    for H, B in grid:
        rows = steps(list(FORMS), Workload(1, 12, 1, H, B), **options).query(
            "stage == 'step'"
        )
        case = (
            rows["version"].str.cat(rows["variant"], sep="/", na_rep="").str.rstrip("/")
        )
        table[H, B] = rows["seconds"].groupby(case.map(FORMS)).median()
    return pd.DataFrame(table).T.rename_axis(index=["H", "B"])[list(FORMS.values())]


def profile(name, work=AIRLINE, *, count=6):
    """The `count` functions in which one training epoch of a version spends most: their
    shares.
    """
    net, dataset = network(name, work.params()), airline_dataset()
    with cProfile.Profile() as profiler:
        train(
            net,
            dataset,
            epochs=1,
            batch_size=work.B,
            learning_rate=0.05,
            progress=False,
        )
    rows = pstats.Stats(profiler).stats.items()
    own = pd.Series(
        {f"{function} ({Path(file).name})": r[2] for (file, _, function), r in rows}
    )
    return (own / own.sum()).sort_values(ascending=False).head(count)


def available(target="cpu"):
    """Names of the versions of a target that can run here."""
    return [v.name for v in versions() if v.target == target and not v.why_unavailable]


def main(preset="paper", folder=None):
    """Run every experiment and write its file; yields (experiment, rows, path)."""
    paper, names, many = preset == "paper", available(), rounds(preset)
    reference = REFERENCE if paper else SMALL_REFERENCE
    deep = layers.DEEP if paper else layers.SMALL_DEEP
    firsts = [partial(compile_times, name) for name in ("numba-sample", "numba-fused")]
    whole = partial(epochs, names, epochs=5 if paper else 1, **many)
    pair = partial(steps, ["numpy-naive", "numpy"], reference, **many)
    works, how = (GRID.values(), {"again": True}) if paper else ([AIRLINE], many)
    plan = {
        "airline": lambda: together([*(first() for first in firsts), whole()]),
        "reference": lambda: together([pair(), packing(reference, **many)]),
        "grid": lambda: grid(names, works, **how),
        "layers": lambda: layers.sweep(deep, chunks=(), **many).rows(),
    }
    return results.fill(plan, preset=preset, folder=folder)
