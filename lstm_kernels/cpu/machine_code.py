"""Kernels as machine code: each is compiled when its address is first asked for."""

from functools import cache
from types import FunctionType

from ..kernels import native
from .instructions import record_at


def _entry(p, turn, address):
    return kernel(p, turn, job_at(address, 0))  # noqa: F821 - globals, below


@cache
def address(kernel, dtype):
    """The address of machine code that runs kernel(p, turn, job) on the record of a
    dtype at an address, a JOB (`arrays.py`) or a FLOW; it takes and returns integers.
    """
    function = kernel.py_func  # of which there may be one of this name elsewhere
    name = f"{function.__module__.rpartition('.')[2]}_{function.__name__}"
    space = {"kernel": kernel, "job_at": record_at(dtype), "__name__": __name__}
    entry = FunctionType(_entry.__code__, space, name)
    entry.__module__ = __name__
    label = dtype["rate"].name if "rate" in dtype.names else ""
    return native(entry, label, origins=[function.__module__])
