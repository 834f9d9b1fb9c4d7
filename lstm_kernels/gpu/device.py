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
from functools import cache
from math import prod
from os.path import dirname, realpath

import numba
import numpy as np


def named_toolkit():
    """The folder of the CUDA toolkit that the environment names, or None."""
    return os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")


# Without its own wheels numba-cuda looks for the compiler (NVVM) in the named toolkit.
_nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
if _nvcc and not named_toolkit():
    os.environ["CUDA_HOME"] = dirname(dirname(realpath(_nvcc)))

# A broken installation must not break the import of this package.
try:
    from numba import cuda
except Exception as error:
    cuda = None
    broken = f"{type(error).__name__}: {error}"

# numba-cuda asks for a name that NumPy 2.5 removed.
vars(np).setdefault("row_stack", np.vstack)

SIMULATED = cuda is not None and bool(numba.config.ENABLE_CUDASIM)
SHARED = 48 << 10  # bytes of shared memory that every device grants a block
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


def name_of(device):
    return device.name.decode() if isinstance(device.name, bytes) else str(device.name)


def numbered(pair):
    return ".".join(map(str, pair))


def first_line(error):
    return (str(error).strip().splitlines() or ["no message"])[0]


def told(error):
    return f"{type(error).__name__}: {first_line(error)}"


def select(number):
    """Let this thread use device number % count, if there are devices."""
    if cuda is not None and cuda.is_available() and (count := len(cuda.gpus)):
        cuda.select_device(number % count)


class Device:
    """What a network uses of the device: launches, memory, and copies that are counted.

    `sent` and `fetched` count the bytes copied to and from the device since the network
    was made. A block may have `shared` bytes of shared memory and `threads` threads.
    `capability` says what instructions there are.
    """

    def __init__(self, version):
        self.version = version
        self.sent = 0
        self.fetched = 0
        self._arrays = {}
        self._views = {}  # name -> shape -> the array, made once: a step asks for some
        self._configured = {}
        self.simulated = SIMULATED
        self.multiprocessors, self.shared, self.threads = 4, SHARED, 4
        self.capability = (9, 0)
        if not SIMULATED:
            device = cuda.current_context().device
            self.multiprocessors = device.MULTIPROCESSOR_COUNT
            self.shared = max(SHARED, device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
            self.threads = 256
            self.capability = tuple(device.compute_capability)

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

    def configure(self, kernel, blocks, threads, shared, together=False):
        """The kernel with its grid.

        together: the kernel's blocks wait for each other. Raises RuntimeError where the
        device does not grant so much shared memory, or cannot hold that many such
        blocks at a time.
        """
        key = kernel, blocks, threads, shared
        # The simulator's kernel has one grid at a time.
        if self.simulated or key not in self._configured:
            if shared > SHARED and not self.simulated:
                allow_shared(kernel, self.shared, self.load_driver)
            if together:
                self._refuse_too_many(kernel, blocks, threads, shared)
            # A grid that leaves most of the device idle is a subject, not a mistake.
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Grid size")
                self._configured[key] = kernel[blocks, threads, 0, shared]
        return self._configured[key]

    def _refuse_too_many(self, kernel, blocks, threads, shared):
        """Blocks that wait for one which cannot start would wait for ever."""
        most = 1  # Numba's simulator runs one block after another
        if not self.simulated:
            overloads = kernel.overloads.values()
            held = (o.max_cooperative_grid_blocks(threads, shared) for o in overloads)
            most = min(held)
        if blocks > most:
            raise RuntimeError(
                f"{self.version}: got {blocks} blocks of {threads} threads and "
                f"{shared} bytes of shared memory that wait for each other, want at "
                f"most {most}, which this device holds at a time"
            )

    def array(self, name, shape, dtype):
        """A device array of that shape. Its memory is kept for the next call of that
        name; what it holds, too, if the shape is the same.

        Raises ValueError if the device has no room for it.
        """
        size = prod(shape)
        if name not in self._arrays or self._arrays[name].size < size:
            self._arrays.pop(name, None)
            self._views.pop(name, None)
            self.check_room(size * np.dtype(dtype).itemsize, name)
            self._arrays[name] = cuda.device_array((size,), dtype)
            self._views[name] = {}
        views = self._views[name]
        if shape not in views:
            views[shape] = self._arrays[name][:size].reshape(shape)
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


def synchronize():
    """Wait until the device has done what was launched."""
    cuda.synchronize()
