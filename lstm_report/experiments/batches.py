"""GFLOP/s against the batch size: the study's baseline and fastest combination,
`numba-fused`, and peers; and the batch from which the weights are no longer what a step
waits for.

A step of B samples reads each weight once and computes 2 B operations with it. Below
the knee reading bounds it, above it the FMA units do.
"""

from dataclasses import replace
from functools import partial
from importlib import metadata
from importlib.util import find_spec

import numpy as np
import pandas as pd

from lstm_kernels.cores import allowed
from lstm_kernels.errors import check_int, check_rate

from ..measure.ceilings import SGEMM_GFLOP, ceilings
from ..measure.comparer import compare_outputs
from ..measure.peers import PACKAGES, PEERS
from ..measure.runner import (
    chosen_threads,
    measure,
    network,
    networks,
    rounds,
    rows_of,
    timed,
)
from ..measure.timing import REST, together
from ..measure.workloads import REFERENCE, SMALL_REFERENCE, Workload
from .optimisations import FUSED, STUDY, all_combinations, by_combination, gains, name
from .switches import BASELINE, Variant

# Every step computes the same, so 20 of them have the rate of 100, in a fifth of the
# time.
WORK = replace(REFERENCE, T=20)
BATCHES = tuple(2**power for power in range(10))
COMPARED = ("pytorch", "onnxruntime")
SAMPLES = 16  # of a mini-batch that are compared with the reference
K = 4  # gates


def fastest(work, threads, **options):
    """The combination of switches that is fastest here: a tuple of their names."""
    table = by_combination(all_combinations(work, threads=threads, **options))
    best = gains(table).idxmax()
    return () if best == name(BASELINE) else tuple(best.split(" + "))


def programs(params, best, names, threads):
    """What is compared, by name: functions of x (T, B, D) that return y (T, B, H)."""
    variants = {
        f"{STUDY}/{name(on)}": Variant(params, on, threads=threads) for on in (best, ())
    }
    net = network(FUSED, params, threads=threads)
    found = {key: variant.forward for key, variant in variants.items()}
    found[FUSED] = lambda x: net.forward(x)[0]
    return found | {peer: PEERS[peer](params, threads).predict for peer in names}


def inference(work, batches, *, best, names=(), threads=None, **options):
    """Time inference at each batch size, all in one loop, verified before and after;
    rows of a results file, stage "forward".

    work: its sizes but for B. best: a combination of switches, beside the baseline.
    names: of PEERS. threads: for everyone; None is every core. options: as
    `interleaved` takes them, and `repeats` of the workload by default. Raises
    MismatchError for wrong outputs.
    """
    if not len(batches):
        raise ValueError(f"batches: got {batches!r}, want at least one")
    threads, params, parts = chosen_threads(threads), work.params(), []
    compared = programs(params, best, names, threads)
    for B in batches:
        batch = replace(work, B=check_int("batches", B))
        x, _ = batch.example()
        cases = {key: partial(program, x) for key, program in compared.items()}
        how = {"repeats": batch.repeats, "rest": REST} | options
        chosen = np.unique(
            np.linspace(0, B - 1, SAMPLES).astype(int)
        )  # the first and the last
        check = partial(compare_outputs, cases, params, x, samples=chosen)
        times = timed({"forward": cases}, check, **how)
        rows = rows_of(times, batch).assign(threads=threads)
        packages = (
            rows["version"].map(PACKAGES).map(metadata.version, na_action="ignore")
        )
        parts.append(
            rows.assign(variant=rows["variant"].where(packages.isna(), packages))
        )
    return together(parts)


def reading(H, *, threads=None, **options):
    """Time `numba-fused` on a layer of H units with one input and one sample: a step of
    it reads W from the cache where W lives, and does little else. Rows of a results
    file, stage "reading".
    """
    threads, work = (
        chosen_threads(threads),
        Workload(L=1, T=100, D=1, H=check_int("H", H), B=1),
    )
    x, _ = work.example()
    nets = networks([FUSED], work, threads=threads)
    calls = {"reading": lambda net: net.forward(x)}
    return measure(nets, work, calls, **options).assign(threads=threads)


def sweep(preset="paper", *, best=None, names=None):
    """Every batch size, reading the weights, and the ceilings before and after; rows of
    a results file.

    best: the combination of switches beside the baseline; None measures which is
    fastest. names: of PEERS; None takes those of COMPARED that are installed.
    """
    paper, threads = preset == "paper", allowed()
    work, batches = (WORK, BATCHES) if paper else (SMALL_REFERENCE, (1, 4))
    if names is None:
        names = [peer for peer in COMPARED if find_spec(PACKAGES[peer])]
    best = fastest(work, threads, repeats=3) if best is None else best
    how = {"again": True} if paper else {"repeats": 2}
    parts = [
        ceilings(threads, **rounds(preset, 9)),
        inference(work, batches, best=best, names=names, threads=threads, **how),
        reading(work.H, threads=threads, **rounds(preset)),
        ceilings(threads, **rounds(preset, 9)),
    ]
    return together(parts)


def rates(rows):
    """GFLOP/s of every row of stage "forward", with its name: columns name, B, repeat,
    gflops.
    """
    rows = rows[rows["stage"] == "forward"]
    sizes = rows[list("LTDHB")].astype(int).itertuples(index=False)
    gflop = np.array([Workload(*size).gflop for size in sizes])
    variant = rows["variant"].astype(object).where(rows["version"] == STUDY)
    return pd.DataFrame(
        {
            "name": variant.fillna(rows["version"]),
            "B": rows["B"].astype(int),
            "repeat": rows["repeat"],
            "gflops": gflop / rows["seconds"],
        }
    )


def peak(rows):
    """GFLOP/s of BLAS's SGEMM in the rows of `sweep`; NaN where it was not measured."""
    ceiling = rows[(rows["stage"] == "ceiling") & (rows["version"] == "sgemm")]
    return SGEMM_GFLOP / ceiling["seconds"].median()


def bandwidth(rows):
    """GB/s at which `reading` read W, float32, once a step; NaN where it was not
    measured.

    The cell and what threads wait for each other are in its time: reading alone is
    faster.
    """
    rows = rows[rows["stage"] == "reading"]
    return (4 * K * rows["H"] ** 2 * rows["T"] / rows["seconds"]).median() / 1e9


def knee(peak, bandwidth, *, bytes_per_weight=4):
    """The batch at which reading the weights takes as long as computing with them: B =
    peak * bytes_per_weight / (2 * bandwidth), the ridge of a roofline (Williams,
    Waterman & Patterson 2009) in samples.

    peak: GFLOP/s. bandwidth: GB/s of reading weights. Raises TypeError or ValueError
    unless all are above zero.
    """
    peak, bandwidth = check_rate("peak", peak), check_rate("bandwidth", bandwidth)
    return peak * check_int("bytes_per_weight", bytes_per_weight) / (2 * bandwidth)
