"""GFLOP/s against the batch size: the study's baseline and fastest combination,
`numba-fused`, and peers; and the batch from which the weights are no longer what a step
waits for.

A step of B samples reads each weight once and computes 2 B operations with it. Below
the knee reading bounds it, above it the FMA units do.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from lstm_kernels.cores import allowed
from lstm_kernels.errors import check_int, check_rate

from ..measure import peers
from ..measure.ceilings import SGEMM_GFLOP, ceilings
from ..measure.comparer import compare_outputs
from ..measure.runner import chosen_threads, measure, networks, rounds, rows_of, timed
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
    net = networks([FUSED], work, threads=threads)[FUSED]
    programs = {
        f"{STUDY}/{name(on)}": Variant(params, on, threads=threads).forward
        for on in (best, BASELINE)
    }
    programs[FUSED] = lambda x: net.forward(x)[0]
    programs |= {n: peers.PEERS[n](params, threads).predict for n in names}
    for B in batches:
        batch = replace(work, B=check_int("batches", B))
        x, _ = batch.example()
        cases = {key: partial(program, x) for key, program in programs.items()}
        # The first and the last among them.
        samples = np.unique(np.linspace(0, B - 1, SAMPLES).astype(int))
        check = partial(compare_outputs, cases, params, x, samples=samples)
        rounds_of_batch = {"repeats": batch.repeats, "rest": REST} | options
        times = timed({"forward": cases}, check, **rounds_of_batch)
        rows = rows_of(times, batch).assign(threads=threads)
        parts.append(peers.with_releases(rows))
    return together(parts)


def reading(H, *, threads=None, **options):
    """Time `numba-fused` on a layer of H units with one input and one sample: a step of
    it reads W from the cache where W lives, and does little else. Rows of a results
    file, stage "reading".
    """
    threads = chosen_threads(threads)
    work = Workload(L=1, T=100, D=1, H=check_int("H", H), B=1)
    nets, (x, _) = networks([FUSED], work, threads=threads), work.example()
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
    names = peers.installed(COMPARED) if names is None else names
    best = fastest(work, threads, repeats=3) if best is None else best
    options = {"again": True} if paper else {"repeats": 2}
    limits = partial(ceilings, threads, **rounds(preset, 9))
    parts = [limits()]
    parts.append(
        inference(work, batches, best=best, names=names, threads=threads, **options)
    )
    parts.append(reading(work.H, threads=threads, **rounds(preset)))
    return together([*parts, limits()])


def rates(rows):
    """GFLOP/s of every row of stage "forward", with its name: columns name, B, repeat,
    gflops.
    """
    rows = rows[rows["stage"] == "forward"]
    sizes = rows[list("LTDHB")].astype(int).itertuples(index=False)
    gflop = np.array([Workload(*size).gflop for size in sizes])
    variant = rows["variant"].astype(object).where(rows["version"] == STUDY)
    columns = {
        "name": variant.fillna(rows["version"]),
        "B": rows["B"].astype(int),
        "repeat": rows["repeat"],
        "gflops": gflop / rows["seconds"],
    }
    return pd.DataFrame(columns)


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


def knee(peak, bandwidth):
    """The batch at which reading the weights, float32, takes as long as computing with
    them: B = 4 peak / (2 bandwidth), the ridge of a roofline (Williams, Waterman &
    Patterson 2009) in samples.

    peak: GFLOP/s. bandwidth: GB/s of reading weights. Raises TypeError or ValueError
    unless both are above zero.
    """
    return 2 * check_rate("peak", peak) / check_rate("bandwidth", bandwidth)
