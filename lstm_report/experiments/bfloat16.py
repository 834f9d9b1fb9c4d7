"""Notebook 10's measurements: inference by `numba-bf16` beside `numba-fused`, PyTorch
and ONNX Runtime, and how far rounding moves outputs.
"""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from lstm_kernels import reference
from lstm_kernels.cores import allowed
from lstm_kernels.errors import UnavailableError
from lstm_kernels.versions import versions

from ..measure import peers, results
from ..measure.ceilings import ceilings
from ..measure.comparer import LAST_PLACE, compare, compare_outputs
from ..measure.runner import each, network, networks, rounds, rows_of, timed, verify
from ..measure.timing import REST, interleaved, together
from ..measure.workloads import AIRLINE, GRID, REFERENCE, Workload
from . import ablation

LAYER = GRID["one layer"]
WORKS = {
    "one layer": LAYER,
    "four layers": REFERENCE,
    "256 samples": replace(LAYER, B=256),
    "one sample": Workload(L=4, T=100, D=1024, H=1024, B=1),
    "deep, one sample": GRID["deep, one sample"],
}
# H and T of what `errors` compares, each with four samples.
ERRORS = [(32, 10), (32, 100), (128, 10), (128, 100), (512, 10), (512, 100)]
FUSED, BF16 = "numba-fused", "numba-bf16"


def why_unavailable():
    """None where `numba-bf16` can run, else the reason."""
    (version,) = (v for v in versions() if v.name == BF16)
    return version.why_unavailable


def format_error(L, T, count):
    """The largest relative error that rounding operands to bfloat16 explains, of
    `count` values.

    An operand errs by 2^-8 of itself at most. Spread evenly, the errors of two factors
    are in the mean square 2^-8 sqrt(2/3) of their product, and a sum of products errs
    by as much of its own size, whatever its length. Sums of T steps and L layers follow
    each other like a random walk; the largest of N values is sqrt(2 ln 2N) times a
    typical one.
    """
    typical = LAST_PLACE / 2 * math.sqrt(2 / 3 * (T + L))
    return typical * math.sqrt(2 * math.log(2 * count))


def speeds(work, threads, **options):
    """Rows: inference by our networks and the peers on a workload, in one loop."""
    (x, _), params = work.example(), work.params()
    nets = networks([FUSED, BF16], work, threads=threads)
    half = peers.Torch(params, threads, dtype="bfloat16")
    others = {
        "pytorch": peers.Torch(params, threads).predict,
        "pytorch/bfloat16": half.predict,
        "onnxruntime": peers.OnnxRuntime(params, threads).predict,
    }
    programs = {name: partial(predict, x) for name, predict in others.items()}
    few = np.arange(min(2, work.B))
    bound = format_error(work.L, work.T, work.T * len(few) * work.H)
    limits = {"samples": few, "tolerances": {"pytorch/bfloat16": bound}}

    def check():
        return compare_outputs(programs, params, x, **limits) | verify(nets, work)

    # Its inputs are in bfloat16 before the clock starts, and its outputs stay so.
    timed_programs = programs | {
        "pytorch/bfloat16": partial(half.outputs, half.tensor(x))
    }
    cases = timed_programs | each(nets, lambda net: net.forward(x))
    times = timed({"forward": cases}, check, rest=REST, **options)
    return rows_of(times, work).assign(threads=threads)


def compared(preset):
    """`speeds` of every workload, and the ceilings."""
    works = WORKS.values() if preset == "paper" else [AIRLINE]
    parts = [ceilings(allowed(), **rounds(preset, 9))]
    for work in works:
        parts.append(speeds(work, allowed(), **rounds(preset, max(9, work.repeats))))
    return together(parts)


def rates():
    """GFLOP/s of one core by name: each instruction on registers alone, and each tile's
    loop; the best of three rounds.
    """
    half = networks([BF16], AIRLINE)[BF16].tiles
    calls = {
        "float32 multiply-add, on registers": ablation.register_peak,
        "dot product, on registers": partial(ablation.register_peak, dot=True),
        "float32, the tile's loop": ablation.peak,
        "dot, the tile's loop": partial(ablation.peak, half),
    }
    rounds_ = [{name: call() for name, call in calls.items()} for _ in range(3)]
    return {name: max(one[name] for one in rounds_) for name in calls}


def passes(work, threads, *, repeats, again=False):
    """Inference of our networks on a workload, beside the loops of their tiles, all in
    one loop: a table by network, and the times.

    The table has GFLOP/s of a tile's loop, which are those of one core times `threads`,
    milliseconds, and which part of that rate each pass reaches (medians of the rounds'
    ratios).
    """
    (x, _), nets = work.example(), networks([FUSED, BF16], work, threads=threads)
    cases, operations, lines = {}, {}, {}
    for name, net in nets.items():
        tiles = net.tiles if name == BF16 else None
        cases[f"{name}, loop"], operations[name] = ablation.tile_loop(tiles)
        cases[name] = partial(net.forward, x)
    times = interleaved(cases, repeats=repeats, rest=REST, again=again)
    seconds = times.pivot_table(index="repeat", columns="case", values="seconds")
    for name in nets:
        loop = threads * operations[name] / 1e9 / seconds[f"{name}, loop"]
        lines[name] = {
            "its loop, GFLOP/s": loop.median(),
            "inference, ms": 1e3 * seconds[name].median(),
            "inference, of its loop": (work.gflop / seconds[name] / loop).median(),
        }
    return pd.DataFrame(lines).T, times


def errors(preset, seeds=3):
    """Rows: largest error of y against float64, relative to the largest entry, by H and
    T, of `numba-bf16` and of PyTorch in bfloat16.
    """
    rows, sizes = [], ERRORS if preset == "paper" else ERRORS[:1]
    for (H, T), seed in ((size, seed) for size in sizes for seed in range(seeds)):
        work = Workload(L=1, T=T, D=H, H=H, B=4)
        params, (x, _) = work.params(seed=seed), work.example(seed)
        net = network(BF16, params)
        half = peers.Torch(params, allowed(), dtype="bfloat16")
        want = reference.forward(params.astype(np.float64), x.astype(np.float64))[0]
        for name, y in {BF16: net.forward(x)[0], "pytorch": half.predict(x)}.items():
            error = compare({"y": y}, {"y": want}, math.inf)
            row = {"version": name, "stage": "y", "repeat": seed, "max_err": error}
            rows.append(work.columns() | row)
    return pd.DataFrame(rows).assign(seconds=np.nan)


def main(preset="paper", folder=None):
    """Compare; yields (experiment, rows, path) once its file is written. Raises
    UnavailableError at once where `numba-bf16` or a package it is compared with cannot
    run.
    """
    if why := why_unavailable():
        raise UnavailableError(f"{BF16}: {why}")
    if missing := {"pytorch", "onnxruntime"} - {*peers.installed()}:
        raise UnavailableError(f"bench-bf16: want {' and '.join(sorted(missing))} too")
    plan = {"bfloat16": partial(compared, preset)}
    plan["bfloat16-errors"] = partial(errors, preset)
    return results.fill(plan, preset=preset, folder=folder)
