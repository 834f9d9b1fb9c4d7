"""Kernels of numba-cuda as PTX, where there is neither a GPU nor a driver."""

import importlib.util
import sys
from contextlib import contextmanager

import numba

CAPABILITY = (9, 0)


def why_unavailable():
    """None when kernels can be compiled here, else the reason."""
    if numba.config.ENABLE_CUDASIM:
        return "NUMBA_ENABLE_CUDASIM is set: the simulator compiles nothing"
    if importlib.util.find_spec("numba_cuda") is None:
        return "numba-cuda is not installed: pip install 'numba-cuda[cu12]'"
    return None


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

    with stand_in(capability):
        return cuda.compile_ptx(
            function, signature, cc=capability, lineinfo=True, **options
        )[0]
