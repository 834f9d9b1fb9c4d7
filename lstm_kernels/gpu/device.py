"""The GPU as the versions see it, and the one module that imports numba.cuda.

It says why there is no GPU, launches kernels, and counts every byte that crosses
between host and device. With NUMBA_ENABLE_CUDASIM=1 in the environment the same kernels
run in Numba's simulator, on the host and slowly.
"""

import ctypes
import glob
import os
import shutil
import sys
import warnings
from functools import cache
from os.path import dirname, realpath

import numba
import numpy as np

from ..errors import LowOccupancyWarning


def toolkit():
    """The folder of the CUDA toolkit whose nvcc is on the PATH or in the usual place,
    or None.
    """
    tools = [
        shutil.which("nvcc"),
        *sorted(glob.glob("/usr/local/cuda*/bin/nvcc"), reverse=True),
    ]
    tool = next(filter(None, tools), None)
    return tool and dirname(dirname(realpath(tool)))


# Without its own wheels numba-cuda looks for the compiler (NVVM) where these variables
# point.
if not (os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")) and (
    found := toolkit()
):
    os.environ["CUDA_HOME"] = found

try:
    from numba import cuda
except (
    Exception
) as error:  # a broken installation must not break the import of this package
    cuda, _broken = None, f"{type(error).__name__}: {error}"

vars(np).setdefault(
    "row_stack", np.vstack
)  # numba-cuda asks for a name that NumPy 2.5 removed

SIMULATED = cuda is not None and bool(numba.config.ENABLE_CUDASIM)
SHARED = 48 << 10  # bytes of shared memory that every device grants a block
FIRST_OF_CUDA_13 = (7, 5)  # the oldest capability that CUDA 13 compiles for
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


@cache
def why_unavailable():
    """None when kernels can run here, on a device or simulated, else the reason."""
    if cuda is None:
        return f"numba.cuda cannot be imported ({_broken.splitlines()[0]})"
    if SIMULATED:
        return None
    try:
        if not cuda.is_available() or not len(cuda.gpus):
            reason = (
                str(cuda.cuda_error() or "no device was found").strip().splitlines()[0]
            )
            return f"there is no CUDA device ({reason.rstrip(':').strip()})"
        device = cuda.get_current_device()
    except Exception as error:
        return f"the CUDA driver does not work ({type(error).__name__}: {first_line(error)})"
    return why_not_compiled(
        _name(device), tuple(device.compute_capability), _compile_nothing
    )


def _name(device):
    return device.name.decode() if isinstance(device.name, bytes) else str(device.name)


def why_not_compiled(name, capability, compile):
    """None when `compile(capability)` works, else what is wrong, and what to
    install.
    """
    try:
        compile(capability)
    except Exception as error:
        said, (major, minor) = (
            f"{type(error).__name__}: {first_line(error)}",
            capability,
        )
        if "nvvm" in str(error).lower():
            folder = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
            return (
                f"the CUDA compiler (NVVM) was not found in {folder or 'any usual place'}: install "
                f"lstm-kernels[cuda13], or name the toolkit's folder in CUDA_HOME ({said})"
            )
        if capability < FIRST_OF_CUDA_13:
            return (
                f"{name} has compute capability {major}.{minor}, which CUDA 13 no longer compiles "
                f"for: install lstm-kernels[cuda12] ({first_line(error)})"
            )
        return f"kernels do not compile for {name} ({said})"
    return None


def first_line(error):
    return (str(error).strip().splitlines() or ["no message"])[0]


def _compile_nothing(capability):
    def nothing(a):
        a[0] = 0

    cuda.compile_ptx(nothing, (numba.types.float32[::1],), cc=capability)


def describe():
    """The device as a dict: name, capability, multiprocessors, memory, clocks, shared
    memory.
    """
    device, context = cuda.get_current_device(), cuda.current_context()
    return {
        "name": _name(device),
        "capability": ".".join(map(str, device.compute_capability)),
        "multiprocessors": device.MULTIPROCESSOR_COUNT,
        "memory_gib": round(context.get_memory_info()[1] / 2**30, 1),
        "clock_mhz": device.CLOCK_RATE / 1000,
        "memory_clock_mhz": device.MEMORY_CLOCK_RATE / 1000,
        "memory_bus_bits": device.GLOBAL_MEMORY_BUS_WIDTH,
        "shared_kib_per_block": device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN / 1024,
    }


class Device:
    """What a network uses of the device: launches, memory, and copies that are counted.

    `sent` and `fetched` count the bytes copied to and from the device since the network
    was made.
    """

    def __init__(self, version):
        self.version, self.sent, self.fetched = version, 0, 0
        self._arrays, self._configured, self._warned = {}, {}, False
        self.multiprocessors, self.most_shared = 4, SHARED
        if not SIMULATED:
            device = cuda.current_context().device
            self.multiprocessors = device.MULTIPROCESSOR_COUNT
            self.most_shared = max(SHARED, device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)

    def free(self):
        """Bytes of memory that the device has left; what was let go counts as free."""
        context = cuda.current_context()
        if not SIMULATED:
            context.memory_manager.deallocations.clear()
        return context.get_memory_info()[0]

    def refuse_fork(self):
        """Raise where a child has no device: it cannot use the context of its
        parent.
        """
        if not SIMULATED:
            raise RuntimeError(
                f"{self.version}: the process was forked, and a child cannot use its parent's "
                "device, want a network made in a process that was spawned"
            )

    def configure(self, kernel, blocks, threads, shared, together=False):
        """The kernel with its grid; Numba's warning of few blocks is explained, once
        for a network.

        together: the kernel's blocks wait for each other. Raises RuntimeError where the
        device does not grant so much shared memory, or cannot hold that many such
        blocks at a time.
        """
        key = kernel, blocks, threads, shared
        if SIMULATED:
            if together:  # Numba's simulator runs one block after another
                self._refuse_too_many(1, *key[1:])
            return kernel[blocks, threads, 0, shared]
        if key not in self._configured:
            if shared > SHARED:
                allow_shared(kernel, self.most_shared)
            if together:
                held = (
                    o.max_cooperative_grid_blocks(threads, shared)
                    for o in overloads(kernel)
                )
                self._refuse_too_many(min(held), *key[1:])
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                configured = kernel[blocks, threads, 0, shared]
            self._configured[key] = configured
            if caught and not self._warned:
                self._warned = True
                warnings.warn(
                    f"{self.version}: {blocks} blocks of {threads} threads on a device of "
                    f"{self.multiprocessors} multiprocessors leave most of it idle: the mini-batch "
                    "is small for this version, which is right, but not fast",
                    LowOccupancyWarning,
                    stacklevel=6,
                )
        return self._configured[key]

    def _refuse_too_many(self, most, blocks, threads, shared):
        """Blocks that wait for one which cannot start would wait for ever."""
        if blocks > most:
            raise RuntimeError(
                f"{self.version}: got {blocks} blocks of {threads} threads and {shared} bytes of "
                f"shared memory that wait for each other, want at most {most}, which this device "
                "holds at a time"
            )

    def launch(self, kernel, blocks, threads, shared, *arguments):
        """Run a kernel. A NumPy array among the arguments is copied to the device and
        back.
        """
        for a in arguments:
            if isinstance(a, np.ndarray):
                self.sent, self.fetched = self.sent + a.nbytes, self.fetched + a.nbytes
        with (
            warnings.catch_warnings()
        ):  # these copies are counted: they are what V1 and V2 show
            warnings.filterwarnings("ignore", message="Host array used in CUDA kernel")
            self.configure(kernel, blocks, threads, shared)(*arguments)

    def array(self, name, size, dtype, zero=False):
        """A device array that is kept for the next call of that name, of at least
        `size` entries.

        What it holds is undefined, or zero when it is new and `zero`. Raises ValueError
        if the device has no room for it.
        """
        if name not in self._arrays or self._arrays[name].size < size:
            self._arrays.pop(name, None)
            wanted, free = size * np.dtype(dtype).itemsize, self.free()
            if wanted > free:
                raise ValueError(
                    f"x: {self.version} wants {wanted / 2**20:.1f} MiB on the device for {name!r}, "
                    f"which has {free / 2**20:.1f} MiB free, want a smaller mini-batch or network"
                )
            self._arrays[name] = cuda.device_array(size, dtype)
            if zero:
                self._arrays[name].copy_to_device(np.zeros(size, dtype))
        return self._arrays[name]

    def kept(self, name):
        """The device array of that name."""
        return self._arrays[name]

    def send(self, name, host):
        """Copy an array, flat, to the start of the device array `name`; returns that
        part of it.
        """
        return self.send_into(self.array(name, host.size, host.dtype), 0, host)[
            : host.size
        ]

    def send_into(self, array, at, host):
        """Copy an array, flat, into a device array from entry `at` on."""
        array[at : at + host.size].copy_to_device(host.reshape(-1))
        self.sent += host.nbytes
        return array

    def fetch(self, array, host):
        """Copy the first entries of a device array into `host`, a flat array, and
        return it.
        """
        array[: host.size].copy_to_host(host)
        self.fetched += host.nbytes
        return host


def overloads(kernel):
    """What a kernel was compiled to, one for each signature."""
    return tuple(kernel.overloads.values())


_allowed = {}  # kernel -> bytes; the kernels live as long as the process


def allow_shared(kernel, size):
    """Let a kernel ask for up to `size` bytes of dynamic shared memory: once, and never
    for less.

    The driver is called by its C interface, which is the same in every release of
    numba-cuda.
    """
    if _allowed.get(kernel, 0) >= size:
        return
    library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    for overload in overloads(kernel):
        function = overload._codelibrary.get_cufunc()
        handle = getattr(function.handle, "value", function.handle)
        handle = ctypes.c_void_p(int(handle))
        if hasattr(function, "kernel"):  # of a library instead of a module
            how = _MAX_DYNAMIC_SHARED, size, handle, function.device.id
            error = library.cuKernelSetAttribute(*how)
        else:
            error = library.cuFuncSetAttribute(handle, _MAX_DYNAMIC_SHARED, size)
        if error:
            raise RuntimeError(
                f"the driver does not grant a block {size} bytes of shared memory (error {error})"
            )
    _allowed[kernel] = size


def synchronize():
    """Wait until the device has done what was launched."""
    cuda.synchronize()


def event_seconds(call):
    """What passes on the device between an event before `call` and one after; None
    simulated.
    """
    first, last = cuda.event(), cuda.event()
    first.record()
    call()
    last.record()
    last.synchronize()
    return None if SIMULATED else cuda.event_elapsed_time(first, last) / 1e3


def pinned(size, dtype):
    """A host array that stays where it is in memory: the device reads and writes it
    directly.
    """
    return cuda.pinned_array(size, dtype)
