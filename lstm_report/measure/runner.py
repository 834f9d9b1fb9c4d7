"""The one runner: verify, time in turn, verify again, and make rows of a results
file.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from lstm_kernels.versions import VersionName, network, versions
from lstm_kernels.versions.base import Network

from .comparer import compare_to_reference
from .timing import interleaved, together, wait_until_idle
from .workloads import Workload

Nets = Mapping[str, Network]


def networks(names: Iterable[VersionName], work: Workload, **options: Any) -> Nets:
    """A network of each version with the parameters of a workload, by name."""
    return {name: network(name, work.params(), **options) for name in names}


def available(target: str = "cpu") -> list[VersionName]:
    """Names of the versions of a target that can run here."""
    return [v.name for v in versions() if v.target == target and not v.why_unavailable]


def each(nets: Mapping[str, Any], call: Callable) -> dict[str, Callable]:
    """Cases to time: `call` of each network, by its name."""
    return {name: partial(call, net) for name, net in nets.items()}


def verify(nets: Nets, work: Workload) -> dict[str, float]:
    """Largest relative error of each network, with the parameters it has now, against
    the reference; raises MismatchError. Of a large workload some steps and samples are
    compared.
    """
    x, _ = work.example(seed=1)
    x = np.ascontiguousarray(x[:20, :16] if work.gflop > 1 else x)
    return {
        name: compare_to_reference(net, net.params(), x) for name, net in nets.items()
    }


def timed(
    cases: Mapping[str, Mapping[str, Callable]],
    check: Callable[[], Mapping[str, float]],
    *,
    interleaved: Callable = interleaved,
    **options: Any,
) -> pd.DataFrame:
    """Verify, time the cases of each stage in turn, verify again; a row per repeat:
    stage, case, repeat, seconds, max_err.

    cases: stage -> name -> function without arguments. check: a function that returns
    the largest error of what is timed, by name, and raises MismatchError. options: as
    `interleaved` takes it.
    """
    errors = check()
    wait_until_idle()
    parts = [
        interleaved(named, **options).assign(stage=stage)
        for stage, named in cases.items()
        if named
    ]
    check()
    times = together(parts)
    return times.assign(max_err=times["case"].map(errors))


def rows_of(times: pd.DataFrame, work: Workload) -> pd.DataFrame:
    """Rows of a results file from what `timed` returns: a case `a/b` is version a,
    variant b.
    """
    name = times["case"].str.split("/", expand=True).reindex(columns=[0, 1])
    columns = {"version": name[0], "variant": name[1], **work.columns()}
    return times.drop(columns="case").assign(**columns)


def measure(
    nets: Nets, work: Workload, calls: Mapping[str, Callable], **options: Any
) -> pd.DataFrame:
    """Time calls of networks, which are verified before and after; rows of a results
    file.

    nets: by name. calls: stage -> function of a network. options: as `interleaved`
    takes it.
    """
    cases = {stage: each(nets, call) for stage, call in calls.items()}
    return rows_of(timed(cases, partial(verify, nets, work), **options), work)


def rounds(preset: str, repeats: int = 20) -> dict[str, Any]:
    """Options of `interleaved`: paper measures a disturbed run again, smoke takes two
    rounds.
    """
    return {"repeats": repeats, "again": True} if preset == "paper" else {"repeats": 2}


def medians(rows: pd.DataFrame) -> pd.Series:
    """Median seconds by what was compared, for reading."""
    keys = ["variant", "stage", "N", "L", "H", "B", "version", "threads"]
    keys = [key for key in keys if key in rows]
    return rows.groupby(keys, sort=False, dropna=False)["seconds"].median()
