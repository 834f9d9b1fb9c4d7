"""The GPU as the versions see it, and the one module that imports numba.cuda.

It launches kernels, and counts every byte that crosses between host and device. With
NUMBA_ENABLE_CUDASIM=1 in the environment the same kernels run in Numba's simulator, on
the host and slowly.
"""

import ctypes
import os
import shutil
import sys
import warnings
from contextlib import suppress
from functools import cache
from importlib import import_module
from math import prod
from os.path import dirname, realpath
from typing import NamedTuple

import numba
import numpy as np

# Without its own wheels numba-cuda looks for the compiler (NVVM) in the named toolkit.
_nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
if _nvcc and not os.environ.get("CUDA_PATH"):
    os.environ.setdefault("CUDA_HOME", dirname(dirname(realpath(_nvcc))))

# A broken installation must not break the import of this package.
try:
    from numba import cuda
except Exception as error:
    cuda = None
    broken = f"{type(error).__name__}: {error}"

SIMULATED = cuda is not None and bool(numba.config.ENABLE_CUDASIM)
# A module of numba-cuda asks, when it is imported, for a name that NumPy 2.5 removed.
if not (cuda is None or SIMULATED or hasattr(np, "row_stack")):
    vars(np)["row_stack"] = np.vstack
    with suppress(Exception):  # older releases have no such module
        import_module("numba.cuda.np.arrayobj")
    del vars(np)["row_stack"]

SHARED = 48 << 10  # bytes of shared memory that every device grants a block
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


def name_of(device):
    return device.name.decode() if isinstance(device.name, bytes) else str(device.name)


def numbered(pair):
    return ".".join(map(str, pair))


def told(error):
    """What an error is, in a line."""
    first = (str(error).strip().splitlines() or ["no message"])[0]
    return f"{type(error).__name__}: {first}"


def select(number):
    """Let this thread use device number % count, if there are devices."""
    if cuda is not None and cuda.is_available() and (count := len(cuda.gpus)):
        cuda.select_device(number % count)


class Grid(NamedTuple):
    """What a kernel is launched with."""

    blocks: int
    threads: int | tuple[int, int]  # of a block
    shared: int = 0  # bytes of shared memory of a block
    together: bool = False  # the blocks wait for each other


class Device:
    """What a network uses of the device: launches, memory, and copies that are counted.

    `sent` and `fetched` count the bytes copied to and from the device since the network
    was made. A block may have `shared` bytes of shared memory and `threads` threads.
    """

    def __init__(self, version):
        self.version = version
        self.sent = self.fetched = 0
        self._arrays = {}  # name -> all of its memory, and shape -> its view
        self._configured = {}
        self.simulated = SIMULATED
        self.multiprocessors, self.shared, self.threads = 4, SHARED, 4
        if not SIMULATED:
            device = cuda.current_context().device
            self.multiprocessors = device.MULTIPROCESSOR_COUNT
            self.shared = max(SHARED, device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
            self.threads = 256

    @staticmethod
    def load_driver():
        return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")

    def check_room(self, wanted, name):
        """Raise ValueError where the device has not that many bytes left."""
        free = self.free()
        if wanted > free:
            raise ValueError(
                f"x: {self.version} wants {wanted / 2**20:.1f} MiB on the device for "
                f"{name!r}, which has {free / 2**20:.1f} MiB free, want a smaller "
                "mini-batch or network"
            )

    def free(self):
        """Bytes of memory that the device has left; what was let go counts as free."""
        context = cuda.current_context()
        if not SIMULATED:
            context.memory_manager.deallocations.clear()
        return context.get_memory_info()[0]

    def launch(self, kernel, grid, *arguments):
        """Run a kernel on a Grid.

        Raises RuntimeError where the device does not grant so much shared memory, or
        cannot hold blocks that wait for each other at a time: they would for ever.
        """
        key = kernel, grid
        # The simulator's kernel has one grid at a time.
        if self.simulated or key not in self._configured:
            if grid.shared > SHARED and not self.simulated:
                allow_shared(kernel, self.shared, self.load_driver)
            if grid.together and grid.blocks > (most := self._most(kernel, grid)):
                raise RuntimeError(
                    f"{self.version}: got {grid.blocks} blocks of {grid.threads} "
                    f"threads and {grid.shared} bytes of shared memory that wait for "
                    f"each other, want at most {most}, which this device holds"
                )
            # A grid that leaves most of the device idle is a subject, not a mistake.
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Grid size")
                where = grid.blocks, grid.threads, 0, grid.shared
                self._configured[key] = kernel[where]
        self._configured[key](*arguments)

    def _most(self, kernel, grid):
        """How many blocks of a Grid the device holds at a time."""
        if self.simulated:  # Numba's simulator runs one block after another
            return 1
        kinds = kernel.overloads.values()
        return min(
            k.max_cooperative_grid_blocks(grid.threads, grid.shared) for k in kinds
        )

    def array(self, name, shape, dtype):
        """A device array of that shape. Its memory is kept for the next call of that
        name; what it holds, too, if the shape is the same.

        Raises ValueError if the device has no room for it.
        """
        size = prod(shape)
        if name not in self._arrays or self._arrays[name][0].size < size:
            self._arrays.pop(name, None)
            self.check_room(size * np.dtype(dtype).itemsize, name)
            self._arrays[name] = cuda.device_array((size,), dtype), {}
        memory, views = self._arrays[name]
        if shape not in views:  # made once: a step asks for some
            views[shape] = memory[:size].reshape(shape)
        return views[shape]

    def send(self, name, host):
        """The device array `name` with a copy of the host's."""
        return self.copy_to(self.array(name, host.shape, host.dtype), host)

    def copy_to(self, array, host):
        """Copy a host array into a device array of as many numbers; returns that."""
        array.copy_to_device(host.reshape(array.shape))
        self.sent += host.nbytes
        return array

    def copy_from(self, array, host):
        """Copy a device array into a host array of as many numbers; returns that."""
        array.copy_to_host(host.reshape(array.shape))
        self.fetched += host.nbytes
        return host


@cache  # once, since it takes time; the kernels live as long as the process
def allow_shared(kernel, size, load_driver):
    """Let a kernel ask for up to `size` bytes of dynamic shared memory.

    The driver is called by its C interface, which is the same in every release of
    numba-cuda.
    """
    library = load_driver()
    for overload in kernel.overloads.values():
        function = overload._codelibrary.get_cufunc()
        handle = getattr(function.handle, "value", function.handle)
        handle = ctypes.c_void_p(int(handle))
        if hasattr(function, "kernel"):  # of a library instead of a module
            where = handle, function.device.id
            error = library.cuKernelSetAttribute(_MAX_DYNAMIC_SHARED, size, *where)
        else:
            error = library.cuFuncSetAttribute(handle, _MAX_DYNAMIC_SHARED, size)
        if error:
            raise RuntimeError(
                f"the driver does not grant a block {size} bytes of shared memory "
                f"(error {error})"
            )
