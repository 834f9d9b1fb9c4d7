"""An epoch's launches as one CUDA graph: recorded once, replayed by one launch.

The driver is called by its C interface, which is the same in every release of
numba-cuda. A recording holds what each launch was given: addresses, sizes and numbers.
What lies at the addresses may change between replays.
"""

import ctypes
import sys
import warnings
import weakref
from contextlib import ExitStack
from functools import cache

from .device import SIMULATED, cuda

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


@cache
def _library():
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def _check(name, error):
    """Raise RuntimeError for an error that a function of the driver returned."""
    if error:
        known = ctypes.c_char_p()
        _library().cuGetErrorName(error, ctypes.byref(known))
        text = (known.value or b"an unknown error").decode()
        raise RuntimeError(f"cuda-graph: {name}: {text} ({error})")


def _call(name, *arguments):
    _check(name, getattr(_library(), name)(*arguments))


class Graph:
    """Launches that the driver has recorded.

    launches: pairs of a function, which returns a kernel with its grid, and the
    kernel's arguments: numbers and device arrays. Each kernel has run before: loading
    one is no part of a recording. Raises RuntimeError with the driver's error.
    """

    def __init__(self, launches):
        stream, graph, executable = (ctypes.c_void_p() for _ in range(3))
        with ExitStack() as cleanup:
            # Nothing is freed meanwhile, and other threads use the default stream.
            cleanup.enter_context(cuda.defer_cleanup())
            _call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
            cleanup.callback(_library().cuStreamDestroy_v2, stream)
            _call("cuStreamBeginCapture_v2", stream, _RELAXED)
            try:
                _launch_on(cuda.external_stream(stream.value), launches)
            finally:  # a launch that fails is told before the recording it ends
                error = _library().cuStreamEndCapture(stream, ctypes.byref(graph))
                if graph:
                    cleanup.callback(_library().cuGraphDestroy, graph)
            _check("cuStreamEndCapture", error)
            flags = ctypes.c_ulonglong(0)
            arguments = ctypes.byref(executable), graph, flags
            _call("cuGraphInstantiateWithFlags", *arguments)
        self._executable = executable
        destroy = weakref.finalize(self, _library().cuGraphExecDestroy, executable)
        destroy.atexit = False  # then the driver has ended, or frees everything

    def replay(self):
        """Launch all of it on the default stream; RuntimeError with the driver's
        error.
        """
        _call("cuGraphLaunch", self._executable, None)


def _launch_on(stream, launches):
    """Launch kernels on a stream instead of the one that they were configured for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Grid size")
        for configured, arguments in launches:
            launch = configured()
            grid = launch.griddim, launch.blockdim, stream, launch.sharedmem
            launch.dispatcher[grid](*arguments)


class Turns:
    """The same launches, one after another, where there is no driver to record them."""

    def __init__(self, launches):
        self._launches = tuple(launches)

    def replay(self):
        for configured, arguments in self._launches:
            configured()(*arguments)


record = Turns if SIMULATED else Graph


def address(array):
    """Where a device array begins."""
    interface = "__array_interface__" if SIMULATED else "__cuda_array_interface__"
    return getattr(array, interface)["data"][0]
