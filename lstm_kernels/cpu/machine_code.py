"""Kernels as machine code: each is compiled when its address is first asked for."""

from functools import cache

from ..kernels import native
from .instructions import function_of, record_at

ENTRY = "lambda p, turn, address: kernel(p, turn, record_at(address, 0))"


@cache
def address(kernel, dtype):
    """The address of machine code that runs kernel(p, turn, job) on the record of a
    dtype at an address, a JOB (`arrays.py`) or a FLOW; it takes and returns integers.
    """
    function = kernel.py_func  # of which there may be one of this name elsewhere
    name = f"{function.__module__.rpartition('.')[2]}_{function.__name__}"
    free = {"kernel": kernel, "record_at": record_at(dtype)}
    entry = function_of(ENTRY, name, __name__, __file__, **free)
    label = dtype["real"].name if "real" in dtype.names else ""
    return native(entry, label, origins=[function.__module__])
