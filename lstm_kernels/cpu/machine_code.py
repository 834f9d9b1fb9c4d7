"""Kernels as machine code: each is compiled when its address is first asked for."""

import inspect
from functools import cache

from ..kernels import native
from .instructions import function_of, integers, record_at

PARTICIPATE = "lambda p, turn, place: kernel(p, turn, record_at(place, 0))"


@cache
def address(kernel, dtype):
    """The address of machine code that runs a kernel on the record of a dtype at an
    address, a JOB or a PLAN (`arrays.py`): kernel(p, turn, record) as a function of
    integers, or kernel(job, ...) as one of the record's and of the integers' address.
    """
    function = kernel.py_func  # of which there may be one of this name elsewhere
    name = f"{function.__module__.rpartition('.')[2]}_{function.__name__}"
    free = {"kernel": kernel, "record_at": record_at(dtype), "integers": integers}
    count, text = len(inspect.signature(function).parameters) - 1, PARTICIPATE
    if count > 2:
        numbers = ", ".join(f"integers(place, {count})[{k}]" for k in range(count))
        text = f"lambda job, place: kernel(record_at(job, 0), {numbers})"
    entry = function_of(text, name, __name__, __file__, **free)
    label = dtype["real"].name if "real" in dtype.names else ""
    return native(entry, label, origins=[function.__module__])
