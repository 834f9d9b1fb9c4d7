"""Long regions of machine code, which a signal ends (`lstm_kernels/interrupts.py`)."""

from functools import partial

from ..interrupts import interruptible
from .team import team

LONG = 2e9  # operations: from there on, another thread costs less than a hundredth


def run_on(work, operations, function, *arguments):
    """function(*arguments), a region or a flow on a Work; a signal ends a long one,
    and the next one gets a new PROGRESS (`Work.enter`).
    """
    if operations < LONG:
        return function(*arguments)
    return interruptible(partial(function, *arguments), work.progress, team().drain)


def run_region(control, operations, function, *arguments):
    """function(*arguments), a region; a signal cancels a long one: it sets the first
    word of `control`.
    """
    if operations < LONG:
        return function(*arguments)
    return interruptible(partial(function, *arguments), control, team().drain)
