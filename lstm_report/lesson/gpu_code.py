"""Exercise 6 as code for a GPU, executed on a CPU: do its threads race?"""

import linecache
import re
from functools import partial
from itertools import product

from numba.core.errors import NumbaError

from ..measure.comparer import MismatchError
from ..ptx_machine import check, why_unavailable
from .classroom import SINGLE, arrays_of_walk, kernel_of
from .exercises import BLOCKS, SIZES, difference, seeded, truth

UNCHECKED = " What its threads do at the same time was not checked: {}."
HINT = "Hint: numbers, comparisons and `walk` of a thread's own sample are enough"


def executed(thread, wrong, described):
    """What is wrong with `thread`, and what is said of it where it is right: two texts.
    wrong: what is wrong in Python; described: (error, thread) -> text.
    """
    if reason := why_unavailable():
        return wrong, UNCHECKED.format(reason)
    try:
        fault = first_fault(thread)
    except (NumbaError, MismatchError) as error:
        return wrong or f"as code for a GPU {described(error, thread)}. {HINT}", ""
    except Exception as error:  # what the compiler or the machine does not know
        first = re.sub(r"\S*/", "", str(error).partition("\n")[0])  # no folder
        return wrong, UNCHECKED.format(f"{type(error).__name__}: {first}")
    if fault:
        wrong = f"{wrong}. On a GPU {fault}" if wrong else f"on a GPU {fault}. {HINT}"
    return wrong, " As code for a GPU it has no race, and no index leaves its array."


def first_fault(thread):
    """The first fault in words, or None; raises MismatchError for a wrong h or c."""
    from lstm_kernels.gpu import build

    part = partial(build.cuda.jit, device=True, lineinfo=True, **build.OPTIONS)
    kernel = kernel_of(thread, part)
    for sizes, size in product(SIZES, BLOCKS):
        inputs = seeded(*sizes)
        arrays = arrays_of_walk(*inputs)
        for fault in check(kernel, -(-sizes[1] // size), size, *arrays):
            # By Python's name of a cell: the compiler's has a folder in front.
            line = linecache.getline(thread.__code__.co_filename, fault.line).strip()
            where = f"line {fault.line}, `{line}`, has a fault in blocks of {size}"
            return f"{where} threads ({fault.kind}): {fault.text}"
        difference({"h": arrays[4], "c": arrays[5]}, truth(*inputs), SINGLE)
    return None
