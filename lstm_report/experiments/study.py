"""`make bench-study`: the measurements of notebook 06 that take longer than its
page.
"""

from functools import partial

from ..measure import results
from . import batches, compilers, compression


def main(preset="paper", folder=None):
    """Run every experiment and write its file; yields (experiment, rows, path).

    The compilers come first: PyTorch's operations, one by one, take far longer in a
    process in which other experiments have run.
    """
    paper = preset == "paper"
    seeds, ranks = (5, compression.RANKS) if paper else (1, (1, 4))
    plan = {
        "compilers": partial(compilers.measure, preset),
        "batches": partial(batches.sweep, preset),
        "low-rank": partial(compression.study, preset, seeds, ranks),
    }
    return results.fill(plan, preset=preset, folder=folder)
