"""`make bench`: what is measured of every version. An experiment is a few calls that
the runner times; its options (`repeats`, `again`) are those of `timing.interleaved`.
"""

from functools import partial

from ..measure import results
from ..measure.runner import available, measure, networks, rounds
from ..measure.timing import together
from ..measure.workloads import AIRLINE, GRID


def steps(names, work, **options):
    """Time inference and one descent step of each version; rows of a results file."""
    x, target = work.example()
    calls = {"forward": lambda net: net.forward(x)}
    calls["step"] = lambda net: net.step(x, target, 1e-4)
    return measure(networks(names, work), work, calls, **options)


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


def main(preset="paper", folder=None, names=None):
    """Measure the grid and write its file; yields (experiment, rows, path). names: of
    versions, None of all that can run here.
    """
    works, options = [AIRLINE], rounds(preset)
    if preset == "paper":
        works, options = GRID.values(), {"again": True}
    plan = {"grid": partial(grid, names or available(), works, **options)}
    return results.fill(plan, preset=preset, folder=folder)
