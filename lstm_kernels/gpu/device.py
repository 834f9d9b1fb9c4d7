"""The GPU as the versions see it, and the one module that imports numba.cuda.

It says why there is no GPU, launches kernels, and counts every byte that crosses
between host and device. With NUMBA_ENABLE_CUDASIM=1 in the environment the same kernels
run in Numba's simulator, on the host and slowly.
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
    _broken = f"{type(error).__name__}: {error}"

# numba-cuda asks for a name that NumPy 2.5 removed.
vars(np).setdefault("row_stack", np.vstack)

SIMULATED = cuda is not None and bool(numba.config.ENABLE_CUDASIM)
SHARED = 48 << 10  # bytes of shared memory that every device grants a block
FIRST_OF_CUDA_13 = (7, 5)  # the oldest capability that CUDA 13 compiles for
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


@cache
def why_unavailable():
    """None when kernels can run here, on a device or simulated, else the reason, and
    what to do: a kernel was launched, once a process, and its result looked at.
    """
    if cuda is None:
        return f"numba.cuda cannot be imported ({_broken.splitlines()[0]})"
    if not os.path.exists(f"{os.path.splitext(__file__)[0]}.py"):
        return "lstm_kernels is without its sources, from which GPU kernels are written"
    if SIMULATED:
        return None
    try:
        if not cuda.is_available() or not len(cuda.gpus):
            reason = first_line(cuda.cuda_error() or "no device was found")
            return f"there is no CUDA device ({reason.rstrip(':').strip()})"
        cuda.get_current_device()
    except Exception as error:
        return f"the CUDA driver does not work ({told(error)})"
    return why_not(lambda: launch("across_block"))


@cache
def why_not_together(oldest=(6, 0)):
    """The same for launches whose blocks wait for each other; oldest: the capability
    that has the instructions for it.
    """
    if SIMULATED or why_unavailable():
        return why_unavailable()
    device = cuda.get_current_device()
    if tuple(device.compute_capability) < oldest:
        got, want = _number(device.compute_capability), _number(oldest)
        return f"{_name(device)} has compute capability {got}, want {want} or newer"
    return why_not(lambda: launch("across_grid", together=True))


def why_not(launch):
    """None when `launch()` works on the device here, else what is wrong and what to
    do.
    """
    try:
        launch()
    except Exception as error:
        device, said = cuda.get_current_device(), str(error).lower()
        name, capability = _name(device), tuple(device.compute_capability)
        wrong, wanted = f"kernels do not run on {name}", "restart Python, then try anew"
        if "ptx_version" in said or "unsupported .version" in said:
            driver = driver_version()
            wrong = f"the driver, of CUDA {_number(driver)}, is older than the compiler"
            wanted = f"pip install 'numba-cuda[cu{driver[0]}]', or a newer driver"
        elif "cudadevrt" in said:
            wrong = "blocks cannot wait for each other: libcudadevrt was not found"
            wanted = (
                f"install the CUDA toolkit, {named_toolkit() or 'or set CUDA_HOME'}"
            )
        elif "nvvm" in said:
            place = named_toolkit() or "any usual place"
            wrong = f"the CUDA compiler (NVVM) was not found in {place}"
            wanted = "pip install 'numba-cuda[cu13]', or set CUDA_HOME"
        elif "support" in said and capability < FIRST_OF_CUDA_13:
            old = f"{name} has compute capability {_number(capability)}"
            wrong = f"{old}, too old for CUDA 13"
            wanted = "pip install 'numba-cuda[cu12]'"
        return f"{wrong}: {wanted} ({told(error)})"
    return None


def launch(kernel, together=False):
    """Run a kernel of `first_kernels` on two blocks, with as much shared memory as one
    may have; RuntimeError for a wrong result.
    """
    from . import first_kernels

    device, count = Device("the first kernel"), 64
    made = cuda.jit((numba.float32[::1],))(getattr(first_kernels, kernel))
    out = device.send("out", np.full(count, -1, np.float32))
    device.configure(made, 2, count // 2, device.shared, together=together)(out)
    got = device.copy_from(out, np.empty(count, np.float32))
    want = np.arange(count, dtype=np.float32).reshape(-1, count if together else 32)
    if not np.array_equal(got, want[:, ::-1].ravel()):
        raise RuntimeError(f"a first kernel gave {got[:4]}, want {want[0, :-5:-1]}")


def _name(device):
    return device.name.decode() if isinstance(device.name, bytes) else str(device.name)


def _number(pair):
    return ".".join(map(str, pair))


def driver_version():
    """The CUDA release that the driver is of, (major, minor)."""
    number = ctypes.c_int()
    Device.load_driver().cuDriverGetVersion(ctypes.byref(number))
    return divmod(number.value // 10, 100)  # 12040 is 12.4


def first_line(error):
    return (str(error).strip().splitlines() or ["no message"])[0]


def told(error):
    return f"{type(error).__name__}: {first_line(error)}"


def select(number):
    """Let this thread use device number % count, if there are devices."""
    if cuda is not None and cuda.is_available() and (count := len(cuda.gpus)):
        cuda.select_device(number % count)


def describe():
    """The device as a dict: name, capability, multiprocessors, memory, clocks, shared
    memory.
    """
    device = cuda.get_current_device()
    memory = cuda.current_context().get_memory_info()[1]
    return {
        "name": _name(device),
        "capability": _number(device.compute_capability),
        "multiprocessors": device.MULTIPROCESSOR_COUNT,
        "memory_gib": round(memory / 2**30, 1),
        "clock_mhz": device.CLOCK_RATE / 1000,
        "memory_clock_mhz": device.MEMORY_CLOCK_RATE / 1000,
        "memory_bus_bits": device.GLOBAL_MEMORY_BUS_WIDTH,
        "shared_kib_per_block": device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN / 1024,
    }


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
