"""Notebook 06's five switches and low-rank layers: what each is worth, alone and with
others.
"""

from functools import partial
from itertools import combinations

import numpy as np
import pandas as pd
from scipy import stats

from lstm_kernels.low_rank import factor
from lstm_kernels.versions.factored import FactoredNetwork

from ..measure.comparer import compare_outputs
from ..measure.runner import each, network, rows_of, timed, verify
from ..measure.timing import interleaved, summary
from ..measure.workloads import Workload
from .ablation import cell_seconds, lstm_tiles, peak
from .switches import BASELINE, COMBINATIONS, SWITCHES, Variant

STUDY, FUSED = "study", "numba-fused"  # versions in the rows
LOW_RANK = {B: Workload(L=1, T=100, D=256, H=256, B=B) for B in (1, 64)}


def name(on):
    """A combination in words: `combine + fuse`."""
    return " + ".join(on) or "baseline"


def every_variant(params, threads=None):
    """A Variant of every combination, by its name in the rows."""
    names = {f"{STUDY}/{name(on)}": on for on in COMBINATIONS}
    return {key: Variant(params, on, threads=threads) for key, on in names.items()}


def outputs_errors(variants, params, x):
    """Largest relative error of each Variant's outputs, by name; raises
    MismatchError.
    """
    programs = each(variants, lambda variant: variant.forward(x))
    return compare_outputs(programs, params, x)


def all_combinations(work, *, threads=None, **options):
    """Inference of every combination of the switches, and of `numba-fused`, in one
    loop, verified before and after: rows of a results file, version "study", variant
    the switches that are on.
    """
    params, (x, _) = work.params(), work.example()
    variants = every_variant(params, threads)
    net = network(FUSED, params, threads=threads)
    # Of a large workload some steps and samples are compared.
    part = np.ascontiguousarray(x[:10, :16] if work.gflop > 1 else x)

    def check():
        return outputs_errors(variants, params, part) | verify({FUSED: net}, work)

    cases = each(variants, lambda variant: variant.forward(x))
    cases[FUSED] = lambda: net.forward(x)
    rows = rows_of(timed({"forward": cases}, check, **options), work)
    return rows.assign(threads=net._threads)


def by_combination(rows):
    """Seconds, a row per round and a column per combination; ValueError unless all 32
    are there.
    """
    study = rows[(rows["version"] == STUDY) & (rows["stage"] == "forward")]
    table = study.pivot(index="repeat", columns="variant", values="seconds")
    names = [name(on) for on in COMBINATIONS]
    if missing := sorted(set(names) - set(table)):
        want = f"want every combination of {list(SWITCHES)}"
        raise ValueError(f"rows: lack {missing}, {want}")
    return table[names]


def gains(table):
    """How many times faster than the baseline each combination is, by name: ratios of
    medians, so that those of three agree where BLAS's threads make some rounds of one
    of them slow.
    """
    medians = table.median()
    return medians[name(BASELINE)] / medians


def cumulative():
    """The combinations that add one switch after the other, in the source's order."""
    return [tuple(SWITCHES)[:count] for count in range(1, len(SWITCHES) + 1)]


def _interval(logs, confidence):
    """Factor and confidence interval of the mean of log factors over rounds (Student's
    t).
    """
    mean, error = logs.mean(), stats.sem(logs) if len(logs) > 1 else np.nan
    width = error * stats.t.ppf(0.5 + confidence / 2, max(1, len(logs) - 1))
    return np.exp([mean, mean - width, mean + width])


def effects(table, confidence=0.95):
    """Main effects and pairwise interactions of the full factorial: columns factor,
    low, high.

    The main effect of a switch is the factor by which it shortens the time, the
    geometric mean over the 16 settings of the others. The interaction of two is the
    factor by which the effect of one is larger with the other on than off, likewise
    over 8 settings. table: `by_combination`; the intervals are over rounds.
    """
    logs, rows = -np.log(table), {}
    on = np.array([[s in c for s in SWITCHES] for c in COMBINATIONS])
    columns = dict(zip(SWITCHES, np.where(on, 1, -1).T, strict=True))
    for switch, sign in columns.items():
        rows[switch] = _interval((logs @ sign) / 16, confidence)
    for (one, a), (two, b) in combinations(columns.items(), 2):
        rows[f"{one} x {two}"] = _interval((logs @ (a * b)) / 8, confidence)
    return pd.DataFrame(rows, index=["factor", "low", "high"]).T


def ranks_of(work, ranks, **options):
    """Inference of `numba-fused` and of factored layers of each rank, whose weights
    approximate theirs, in one loop, and the largest error against the reference with
    the factors multiplied out: rows of a results file, version "factored", column
    `low_rank`.
    """
    params, (x, _) = work.params(), work.example()
    dense = network(FUSED, params)
    nets = {
        f"factored/{R}": FactoredNetwork(factor(params, R), threads=dense._threads)
        for R in ranks
    }
    part = np.ascontiguousarray(x[:20, :16])

    def check():
        errors = {}
        for case, net in nets.items():
            outputs = {case: lambda net=net: net.forward(part)[0]}
            errors |= compare_outputs(outputs, net.params().dense(), part)
        return errors | verify({FUSED: dense}, work)

    cases = each(nets | {FUSED: dense}, lambda net: net.forward(x))
    rows = rows_of(timed({"forward": cases}, check, **options), work)
    rows["low_rank"] = pd.to_numeric(rows["variant"])
    return rows.assign(variant=None, threads=dense._threads)


def bound(work, threads):
    """The least seconds of a pass by count: its multiply-adds at the rate of the tile's
    loop with everything in cache, and the vector code of its cells at the cost measured
    of it, on threads that never wait. Returns both parts.
    """
    tiles = lstm_tiles(work.H)
    cells = work.L * work.T * work.B * tiles.blocks * cell_seconds()
    return work.gflop / (threads * peak()), cells / threads


def pointwise_share(work, **options):
    """Seconds of a baseline's and of a fused variant's pass without its products, and
    whole: what the point-wise operations and the calls around them take.
    """
    params, (x, _) = work.params(), work.example()
    cases = {}
    for on in (BASELINE, ("fuse",), ("combine", "fuse")):
        whole, bare = Variant(params, on), Variant(params, on)
        bare._product = lambda *_: []
        cases[name(on)] = partial(whole.forward, x)
        cases[f"{name(on)}, no products"] = partial(bare.forward, x)
    return summary(interleaved(cases, **options))["median"]
