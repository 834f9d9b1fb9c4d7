"""`make bench`: what is measured of every version. An experiment is a few calls that
the runner times; its options (`repeats`, `again`) are those of `timing.interleaved`.
"""

import cProfile
import pstats
import tempfile
import time
from functools import partial
from pathlib import Path

import pandas as pd

from lstm_kernels.training import train

from ..measure import results
from ..measure.process import in_process
from ..measure.runner import (
    available,
    measure,
    network,
    networks,
    rounds,
    rows_of,
)
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
    with tempfile.TemporaryDirectory() as folder:
        call = partial(in_process, f"{__name__}:first_step", [name])
        seconds = [call(env={"NUMBA_CACHE_DIR": folder}) for _ in range(2)]
    stages = {"stage": ["compile", "load"], "seconds": seconds}
    return rows_of(pd.DataFrame(stages | {"case": name, "repeat": 0}), AIRLINE)


def epochs(names, work=AIRLINE, *, epochs=1, **options):
    """Time `epochs` training epochs on the airline windows; rows of a results file."""
    dataset = airline_dataset()
    words = dataset, epochs, work.B, 0.05
    stage = f"{epochs} epochs" if epochs > 1 else "epoch"
    calls = {stage: lambda net: train(net, *words, progress=False)}
    # Twenty milliseconds at a time: a call of two begins with sleeping threads and cold
    # caches.
    return measure(networks(names, work), work, calls, least=0.02, **options)


def steps(names, work, **options):
    """Time inference and one descent step of each version; rows of a results file."""
    x, target = work.example()
    calls = {"forward": lambda net: net.forward(x)}
    calls["step"] = lambda net: net.step(x, target, 1e-4)
    return measure(networks(names, work), work, calls, **options)


def packing(work, **options):
    """Time packing the parameters of `numba-fused`; rows of a results file."""
    nets, params = networks(["numba-fused"], work), work.params()
    calls = {"pack": lambda net: net.assign(params)}
    return measure(nets, work, calls, **options)


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
    shares = {
        f"{function} ({Path(file).name})": row[2]
        for (file, _, function), row in pstats.Stats(profiler).stats.items()
    }
    own = pd.Series(shares)
    return (own / own.sum()).sort_values(ascending=False).head(count)


def main(preset="paper", folder=None):
    """Run every experiment and write its file; yields (experiment, rows, path)."""
    paper, names, many = preset == "paper", available(), rounds(preset)
    reference = REFERENCE if paper else SMALL_REFERENCE
    deep = layers.DEEP if paper else layers.SMALL_DEEP
    works, how = (GRID.values(), {"again": True}) if paper else ([AIRLINE], many)

    def airline():
        firsts = map(compile_times, ("numba-sample", "numba-fused"))
        return together([*firsts, epochs(names, epochs=5 if paper else 1, **many)])

    def on_reference():
        pair = steps(["numpy-naive", "numpy"], reference, **many)
        return together([pair, packing(reference, **many)])

    plan = {
        "airline": airline,
        "reference": on_reference,
        "grid": partial(grid, names, works, **how),
        "layers": lambda: layers.sweep(deep, chunks=(), **many).rows(),
    }
    return results.fill(plan, preset=preset, folder=folder)
