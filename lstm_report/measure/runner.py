"""The one runner: verify, time in turn, verify again, and make rows of a results
file.
"""

import time
from functools import partial

import numpy as np

from lstm_kernels.versions import network, versions

from .comparer import compare_to_reference
from .timing import interleaved, together

# Seconds in which threads of a BLAS library, after a check, wait on the cores for more.
AFTER_BLAS = 0.2


def networks(names, work, **options):
    """A network of each version with the parameters of a workload, by name."""
    return {name: network(name, work.params(), **options) for name in names}


def available(target="cpu"):
    """Names of the versions of a target that can run here."""
    return [v.name for v in versions() if v.target == target and not v.why_unavailable]


def each(nets, call):
    """Cases to time: `call` of each network, by its name."""
    return {name: partial(call, net) for name, net in nets.items()}


def verify(nets, work):
    """Largest relative error of each network, with the parameters it has now, against
    the reference; raises MismatchError. Of a large workload some steps and samples are
    compared.
    """
    x, _ = work.example(seed=1)
    x = np.ascontiguousarray(x[:20, :16] if work.gflop > 1 else x)
    return {
        name: compare_to_reference(net, net.params(), x) for name, net in nets.items()
    }


def timed(cases, check, **options):
    """Verify, time the cases of each stage in turn, verify again; a row per repeat:
    stage, case, repeat, seconds, max_err.

    cases: stage -> name -> function without arguments. check: a function that returns
    the largest error of what is timed, by name, and raises MismatchError. options: as
    `interleaved` takes it.
    """
    errors = check()
    time.sleep(AFTER_BLAS)
    parts = [
        interleaved(named, **options).assign(stage=stage)
        for stage, named in cases.items()
        if named
    ]
    check()
    times = together(parts)
    return times.assign(max_err=times["case"].map(errors))


def rows_of(times, work):
    """Rows of a results file from what `timed` returns: a case `a/b` is version a,
    variant b.
    """
    name = times["case"].str.split("/", expand=True).reindex(columns=[0, 1])
    columns = {"version": name[0], "variant": name[1], **work.columns()}
    return times.drop(columns="case").assign(**columns)


def measure(nets, work, calls, **options):
    """Time calls of networks, which are verified before and after; rows of a results
    file.

    nets: by name; those that round what they multiply are for inference alone. calls:
    stage -> function of a network. options: as `interleaved` takes it.
    """
    trained = {name: net for name, net in nets.items() if net.rounding is None}
    cases = {
        stage: each(nets if stage == "forward" else trained, call)
        for stage, call in calls.items()
    }
    return rows_of(timed(cases, partial(verify, nets, work), **options), work)


def rounds(preset, repeats=20):
    """Options of `interleaved`: paper measures a disturbed run again, smoke takes two
    rounds.
    """
    return {"repeats": repeats, "again": True} if preset == "paper" else {"repeats": 2}


def medians(rows):
    """Median seconds by what was compared, for reading."""
    keys = ["variant", "stage", "N", "L", "H", "B", "version", "threads"]
    keys = [key for key in keys if key in rows]
    return rows.groupby(keys, sort=False, dropna=False)["seconds"].median()
