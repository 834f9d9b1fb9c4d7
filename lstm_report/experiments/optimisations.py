"""Every combination of the switches in one loop, for `batches`; low-rank layers."""

import numpy as np
import pandas as pd

from lstm_kernels.low_rank import factor
from lstm_kernels.versions.factored import FactoredNetwork

from ..measure.comparer import compare_outputs
from ..measure.runner import each, network, rows_of, timed, verify
from ..measure.workloads import Workload
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
