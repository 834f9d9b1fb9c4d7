"""`make bench`: what is measured of every version. An experiment is a few calls that
the runner times; its options (`repeats`, `again`) are those of `timing.interleaved`.
"""

import cProfile
import pstats
import time
from functools import partial
from pathlib import Path

import pandas as pd

from lstm_kernels.training import train

from ..measure import results
from ..measure.process import with_caches
from ..measure.runner import (
    available,
    measure,
    network,
    networks,
    rounds,
    rows_of,
)
from ..measure.timing import together
from ..measure.workloads import AIRLINE, GRID, Workload, airline_dataset

FORMS = {
    "numpy": "numpy",
    "numba-sample/buffers": "a buffer per sample",
    "numba-sample": "rows owned by threads",
}


def first_step(name):
    """Seconds that the first step of a version takes beyond the second; in a new
    process, where nothing is compiled or loaded yet.
    """
    net, (x, target) = network(name, AIRLINE.params()), AIRLINE.example()
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        net.step(x, target, 1e-3)
        seconds.append(time.perf_counter() - start)
    return seconds[0] - seconds[1]


def compile_times(name):
    """`first_step` of a version, as rows, for an empty and a filled cache of compiled
    code (stages "compile" and "load").
    """
    seconds = pd.Series(with_caches(f"{__name__}:first_step", [name]), name="seconds")
    times = seconds.rename_axis("stage").reset_index()
    return rows_of(times.assign(case=name, repeat=0), AIRLINE)


def steps(names, work, **options):
    """Time inference and one descent step of each version; rows of a results file."""
    x, target = work.example()
    calls = {"forward": lambda net: net.forward(x)}
    calls["step"] = lambda net: net.step(x, target, 1e-4)
    return measure(networks(names, work), work, calls, **options)


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
        rows = steps(list(FORMS), Workload(1, 12, 1, H, B), **options)
        rows = rows[rows["stage"] == "step"]
        case = rows["version"] + ("/" + rows["variant"]).fillna("")
        table[H, B] = rows["seconds"].groupby(case.map(FORMS)).median()
    return pd.DataFrame(table).T.rename_axis(index=["H", "B"])[list(FORMS.values())]


def profile(name, work=AIRLINE, *, count=6):
    """The `count` functions in which one training epoch of a version spends most: their
    shares.
    """
    net, words = network(name, work.params()), (airline_dataset(), 1, work.B, 0.05)
    with cProfile.Profile() as profiler:
        train(net, *words, progress=False)
    seconds = {
        f"{function} ({Path(file).name})": row[2]
        for (file, _, function), row in pstats.Stats(profiler).stats.items()
    }
    seconds = pd.Series(seconds)
    return (seconds / seconds.sum()).sort_values(ascending=False).head(count)


def main(preset="paper", folder=None):
    """Measure the grid and write its file; yields (experiment, rows, path)."""
    works, options = [AIRLINE], rounds(preset)
    if preset == "paper":
        works, options = GRID.values(), {"again": True}
    plan = {"grid": partial(grid, available(), works, **options)}
    return results.fill(plan, preset=preset, folder=folder)
