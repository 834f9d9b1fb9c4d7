"""The GPU as the versions see it, and the one module that imports numba.cuda.

It says why there is no GPU, fills kernels in and compiles them, launches them, and counts every
byte that crosses between host and device. With NUMBA_ENABLE_CUDASIM=1 in the environment the same
kernels run in Numba's simulator, on the host and slowly.
"""

import inspect
import types
import warnings
from functools import cache, partial

import numba
import numpy as np

from .. import kernels
from ..cells import CELLS
from ..errors import LowOccupancyWarning
from . import device_functions, layout
from .device_functions import written_out

try:
    from numba import cuda
except Exception as error:  # a broken installation must not break the import of this package
    cuda, _broken = None, f"{type(error).__name__}: {error}"

SIMULATED = cuda is not None and bool(numba.config.ENABLE_CUDASIM)
# Nothing is linked to the kernels, and compiled in one go they are what `make ptx` records.
OPTIONS = {"lto": False} if getattr(cuda, "implementation", "") == "NVIDIA" else {}
KERNELS = ("forward", "backward", "step")  # of each module of kernels
SHARED = 48 << 10  # bytes of shared memory that every device grants a block
FIRST_OF_CUDA_13 = (7, 5)  # the oldest capability that CUDA 13 compiles for
# numba-cuda calls np.row_stack, which NumPy 2.5 removed.
NUMPY_TOO_NEW = "numba-cuda does not work with NumPy 2.5 or newer: install numpy<2.5"
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
            reason = str(cuda.cuda_error() or "no device was found").strip().splitlines()[0]
            return f"there is no CUDA device ({reason.rstrip(':').strip()})"
        device = cuda.get_current_device()
    except Exception as error:
        return f"the CUDA driver does not work ({type(error).__name__}: {first_line(error)})"
    return why_not_compiled(_name(device), tuple(device.compute_capability), _compile_nothing)


def _name(device):
    return device.name.decode() if isinstance(device.name, bytes) else str(device.name)


def why_not_compiled(name, capability, compile):
    """None when `compile(capability)` works, else what is wrong, and what to install."""
    try:
        compile(capability)
    except Exception as error:
        if "row_stack" in str(error):
            return NUMPY_TOO_NEW
        major, minor = capability
        if capability < FIRST_OF_CUDA_13:
            return (
                f"{name} has compute capability {major}.{minor}, which CUDA 13 no longer compiles "
                f"for: install lstm-kernels[cuda12] ({first_line(error)})"
            )
        return f"kernels do not compile for {name} ({type(error).__name__}: {first_line(error)})"
    return None


def first_line(error):
    return (str(error).strip().splitlines() or ["no message"])[0]


def _compile_nothing(capability):
    def nothing(a):
        a[0] = 0

    cuda.compile_ptx(nothing, (numba.types.float32[::1],), cc=capability)


def functions(cell, dtype, modules, **names):
    """The functions of kernel modules with their free names filled in for a Cell and a dtype: a
    dict of globals, in Python. names: further free names; `where` is the name of a function.
    """
    real, K = np.dtype(dtype).type, len(cell.gates)
    # Numba's cache on disk knows a kernel by this label: each filling needs its own.
    label = "_".join([cell.name, real.__name__, *(f"{k}_{v}" for k, v in sorted(names.items()))])
    constants = {"cuda": cuda, "K": K, "G": len(cell.input_gates), "R": 1, "ATOMIC": False} | names
    constants |= {"real": real, "number": numba.from_dtype(np.dtype(real)), "int64": numba.int64}
    constants |= {"SKIP": device_functions.HEAD // real().itemsize}
    for matrix, gates in (("U", cell.input_gates), ("W", cell.recurrent_gates)):
        # The place of each gate among the G of the matrix, or -1.
        constants[f"{matrix}_gates"] = tuple(gates.index(k) if k in gates else -1 for k in range(K))
    space = kernels.fill([device_functions, layout, *modules], constants, label)
    sizes = dict.fromkeys(("zeros", "load", "add", "dot"), range(K)) | {"add_bands": range(4)}
    sizes |= dict.fromkeys(("start", "add_rows", "dot_rows"), range(constants["R"]))
    texts = [written_out(name, name, places) for name, places in sizes.items()]
    texts += [written_out("input_weights", "load", space["U_gates"])]
    texts += [written_out("recurrent_weights", "load", space["W_gates"])]
    exec("".join(texts), space)
    space |= {name: space[names[name]] for name in ("where",) if name in names}
    if SIMULATED:
        space["u"] = lambda i: i
    return space


@cache
def build(cell, dtype, modules, *, compile=None, **names):
    """Compile the KERNELS of modules for the name of a cell and a dtype; returns name -> kernel.

    The other functions become part of them. names: as of `functions`. compile: takes a function and
    its signature; None compiles for the device here.
    """
    cell = CELLS[cell]
    space = functions(cell, dtype, modules, **names)
    own = {name: f for name, f in space.items() if isinstance(f, types.FunctionType)}
    own = {name: f for name, f in own.items() if f.__module__.startswith(__package__)}
    device = (lambda f: f) if SIMULATED else partial(cuda.jit, device=True, **OPTIONS)
    space |= {name: device(f) for name, f in own.items() if name not in KERNELS}
    cells = cell.make(space["tanh"], space["sigmoid"])
    space["cell_forward"], space["cell_backward"] = map(device, cells)
    compile = compile or _compile
    return {name: compile(own[name], signature(own[name], space["real"])) for name in KERNELS}


def signature(kernel, real):
    """The types of a kernel's arguments, which their names stand for; arrays are flat."""
    real, int64 = numba.from_dtype(np.dtype(real)), numba.int64
    known = {"n": numba.types.UniTuple(int64, 6), "rate": real, "order": int64[::1]}
    known |= {"counters": numba.int32[::1]} | dict.fromkeys(("first", "tile", "batch"), int64)
    return tuple(known.get(name, real[::1]) for name in inspect.signature(kernel).parameters)


def _compile(function, types):
    if SIMULATED:
        return cuda.jit(function)
    return kernels.cached(partial(cuda.jit, types, **OPTIONS), function)


def describe():
    """The device as a dict: name, capability, multiprocessors, memory, clocks, shared memory."""
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

    `sent` and `fetched` count the bytes copied to and from the device since the network was made.
    """

    def __init__(self, version):
        self.version, self.sent, self.fetched = version, 0, 0
        self._arrays, self._configured, self._warned = {}, {}, False
        context = cuda.current_context()
        self.free = lambda: context.get_memory_info()[0]
        self.multiprocessors, self.most_shared = 4, SHARED
        if not SIMULATED:
            self.multiprocessors = context.device.MULTIPROCESSOR_COUNT
            self.most_shared = max(SHARED, context.device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)

    def refuse_fork(self):
        """Raise where a child has no device: it cannot use the context of its parent."""
        if not SIMULATED:
            raise RuntimeError(
                f"{self.version}: the process was forked, and a child cannot use its parent's "
                "device, want a network made in a process that was spawned"
            )

    def configure(self, kernel, blocks, threads, shared):
        """The kernel with its grid; Numba's warning of few blocks is explained, once for a network.

        Raises RuntimeError where the device does not grant so much shared memory.
        """
        key = kernel, blocks, threads, shared
        if SIMULATED:
            return kernel[blocks, threads, 0, shared]
        if key not in self._configured:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                configured = kernel[blocks, threads, 0, shared]
            if shared > SHARED:
                _allow(kernel, shared)
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

    def launch(self, kernel, blocks, threads, shared, *arguments):
        """Run a kernel. A NumPy array among the arguments is copied to the device and back."""
        for a in arguments:
            if isinstance(a, np.ndarray):
                self.sent, self.fetched = self.sent + a.nbytes, self.fetched + a.nbytes
        with warnings.catch_warnings():  # these copies are counted: they are what V1 and V2 show
            warnings.filterwarnings("ignore", message="Host array used in CUDA kernel")
            self.configure(kernel, blocks, threads, shared)(*arguments)

    def array(self, name, size, dtype, zero=False):
        """A device array that is kept for the next call of that name, of at least `size` entries.

        What it holds is undefined, or zero when it is new and `zero`. Raises ValueError if the
        device has no room for it.
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

    def counters(self, blocks):
        """Zeros that blocks count themselves in by: `device_functions.sum_over_blocks`."""
        return self.array("counters", blocks + 1, np.int32, zero=True)

    def kept(self, name):
        """The device array of that name."""
        return self._arrays[name]

    def send(self, name, host):
        """Copy an array, flat, to the start of the device array `name`; returns that part of it."""
        return self.send_into(self.array(name, host.size, host.dtype), 0, host)[: host.size]

    def send_into(self, array, at, host):
        """Copy an array, flat, into a device array from entry `at` on."""
        array[at : at + host.size].copy_to_device(host.reshape(-1))
        self.sent += host.nbytes
        return array

    def fetch(self, array, host):
        """Copy the first entries of a device array into `host`, a flat array, and return it."""
        array[: host.size].copy_to_host(host)
        self.fetched += host.nbytes
        return host


def _allow(kernel, size):
    """Ask for more dynamic shared memory than every device grants a kernel unasked."""
    from numba.cuda.cudadrv import driver

    for overload in kernel.overloads.values():
        function = overload._codelibrary.get_cufunc()
        if hasattr(function, "kernel"):  # numba-cuda's
            attribute = driver.binding.CUfunction_attribute(_MAX_DYNAMIC_SHARED)
            driver.driver.cuKernelSetAttribute(attribute, size, function.handle, function.device.id)
        elif driver.driver.lib.cuFuncSetAttribute(function.handle, _MAX_DYNAMIC_SHARED, size):
            raise RuntimeError(f"the driver does not grant a block {size} bytes of shared memory")


def synchronize():
    """Wait until the device has done what was launched."""
    cuda.synchronize()


def pinned(size, dtype):
    """A host array that stays where it is in memory: the device reads and writes it directly."""
    return cuda.pinned_array(size, dtype)
