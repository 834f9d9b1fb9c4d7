"""How threads divide a pass of `numba-fused`: every division beside what the first
calls choose, for pages 04 and 05.
"""

from functools import partial

import pandas as pd

from lstm_kernels.versions.numba_fused import NumbaFused

from ..measure.runner import each, timed, verify
from ..measure.workloads import Workload

CHOSEN = "chosen"  # among the names of divisions
UNITS, SAMPLES, LAYERS, T = (32, 64, 128, 512), (1, 4, 16, 64), (1, 4), 20
SHAPE = ["stage", "L", "T", "D", "H", "B"]


class Divided(NumbaFused):
    """A network that divides its work in one way."""

    def __init__(self, params, division):
        super().__init__(params)
        self._only = division

    def _divisions(self, T, B):
        return [self._only._replace(chunk=min(self._only.chunk, T))]


def grid(layers=LAYERS, units=UNITS, samples=SAMPLES):
    """The workloads of the map."""
    return [Workload(L, T, H, H, B) for L in layers for H in units for B in samples]


def table(works, *, stages=("forward", "step"), **options):
    """Median seconds of each kind of division (that by layers with its best chunk), and
    of what is chosen: a row for each stage and workload. Verified before and after.

    options: as `interleaved` takes them; `repeats` is by default that of the workload.
    """
    rows = []
    for work in works:
        params, (x, target) = work.params(), work.example()
        chosen = NumbaFused(params)
        every = chosen._divisions(work.T, work.B)
        nets = {str(one): Divided(params, one) for one in every} | {CHOSEN: chosen}
        calls = {
            "forward": lambda net, x=x: net.forward(x),
            "step": lambda net, x=x, target=target: net.step(x, target, 1e-6),
        }
        cases = {stage: each(nets, calls[stage]) for stage in stages}
        # Threads that slept are slow for a millisecond.
        how = {"repeats": work.repeats, "least": 0.02} | options
        times = timed(cases, partial(verify, nets, work), **how)
        rows.append(times.assign(**vars(work)))
    rows = pd.concat(rows)
    medians = rows.groupby([*SHAPE, "case"], sort=False)["seconds"].median()
    kinds = medians.rename(index=lambda name: str(name).partition(",")[0], level="case")
    return kinds.groupby([*SHAPE, "case"], sort=False).min().unstack("case")


def gains(found):
    """How many times as fast as one thread the fastest division is, and its name: two
    Series; found: of `table`.
    """
    tried = found.drop(columns=CHOSEN)
    fastest = tried.idxmin(axis=1)
    return tried["one thread"] / tried.min(axis=1), fastest
