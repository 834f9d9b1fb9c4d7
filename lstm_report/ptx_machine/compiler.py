"""Kernels of numba-cuda as PTX, where there is neither a GPU nor a driver."""

import sys
import warnings
from contextlib import contextmanager
from functools import cache

import numba
from numba.core.errors import NumbaDebugInfoWarning

CAPABILITY = (9, 0)


@cache
def why_unavailable():
    """None when kernels can be compiled here, which is tried, else the reason."""
    if numba.config.ENABLE_CUDASIM:
        return "NUMBA_ENABLE_CUDASIM is set: the simulator compiles nothing"
    try:
        compile_ptx(_nothing, ())
    except Exception as error:  # of several kinds: no NVVM, no numba.cuda
        said = (str(error).strip().splitlines() or ["no message"])[0]
        what = f"{type(error).__name__}: {said.rstrip('.: ')}"
        return f"no kernel can be compiled ({what}): pip install 'numba-cuda[cu12]'"
    return None


def _nothing():
    """A kernel to try the compiler with."""
    return  # numba-cuda 0.22 takes no docstring alone


@contextmanager
def stand_in(capability=CAPABILITY):
    """While inside, numba-cuda believes that there is a device of this capability.

    Compiling a kernel that calls device functions asks the current device for its
    capability.
    """
    device = type("Device", (), {"compute_capability": capability})
    modules = [m for m in list(sys.modules.values()) if "get_current_device" in vars(m)]
    modules = [m for m in modules if m.__name__.startswith("numba")]
    before = [(m, m.get_current_device) for m in modules]
    try:
        for module in modules:
            module.get_current_device = lambda: device
        yield
    finally:
        for module, function in before:
            module.get_current_device = function


def compile_ptx(function, signature, capability=CAPABILITY, **options):
    """The PTX of a Python function, with the lines of its source."""
    from numba import cuda

    with stand_in(capability), warnings.catch_warnings():
        # Some releases want a file; a notebook's cell is none, and its lines are right.
        warnings.simplefilter("ignore", NumbaDebugInfoWarning)
        return cuda.compile_ptx(
            function, signature, cc=capability, lineinfo=True, **options
        )[0]
