"""The partitions of an inference by `numba-fused` among two threads, each timed: for
page 05.
"""

from functools import cache, partial
from itertools import product

import numpy as np
import pandas as pd

from lstm_kernels.reference import forward
from lstm_kernels.versions.numba_fused import NumbaFused

from ..measure.comparer import TOLERANCE, compare
from ..measure.evidence import Interval, ratios
from ..measure.timing import interleaved, together, wait_until_idle
from ..measure.workloads import Workload

STEP = ("units", "samples")  # the kinds of partition that divide each step
SHAPE = ["L", "H", "B"]


class Partitioned(NumbaFused):
    """A network on two threads that has one partition."""

    def __init__(self, params, partition):
        super().__init__(params, threads=2)
        self._only = partition

    def _partitions(self, T, B):
        return [self._only]


def measure(layers, units, samples, *, T, repeats):
    """Time an inference of every shape by every partition that `numba-fused` autotunes
    on two threads: rows of a results file, the partition in `variant`. Every output is
    compared with the reference before and after.
    """
    loops, want = {}, {}
    for L, H in product(layers, units):
        params = Workload(L, T, H, H, 1).params()
        tries, network = (
            NumbaFused(params, threads=2),
            cache(partial(Partitioned, params)),
        )
        for work in [Workload(L, T, H, H, B) for B in samples]:
            x, _ = work.example()
            every = tries._partitions(T, work.B)
            loops[work] = {str(one): partial(network(one).forward, x) for one in every}
            want[work] = forward(params.astype(np.float64), x.astype(np.float64))[0]

    def check():
        most = TOLERANCE[np.dtype(np.float32)]
        for work, calls in loops.items():
            for call in calls.values():
                compare({"y": call()[0]}, {"y": want[work]}, most)
        wait_until_idle()

    check()
    how = {"version": "numba-fused", "stage": "forward", "threads": 2}
    parts = [
        interleaved(calls, repeats=repeats, least=5e-3).assign(**work.columns(), **how)
        for work, calls in loops.items()
    ]
    check()
    return together(parts).rename(columns={"case": "variant"})


def compared(rows, ours, theirs):
    """How many times as fast the fastest partition of kinds `ours` is as that of kinds
    `theirs`, over processes: columns low, middle, high by shape (L, H, B). The fastest
    is that of all processes together, so that no process picks its own.
    """
    found = {}
    for shape, part in rows.groupby(SHAPE):
        kind = part["variant"].str.partition(",")[0]
        both = [part[kind.isin(kinds)] for kinds in (ours, theirs)]
        if not any(some.empty for some in both):
            names = [s.groupby("variant")["seconds"].median().idxmin() for s in both]
            found[shape] = Interval.of(ratios(part, names[1], by="variant")[names[0]])
    table = pd.DataFrame.from_dict(found, orient="index", columns=Interval._fields)
    return table.set_axis(pd.MultiIndex.from_tuples(table.index, names=SHAPE))
