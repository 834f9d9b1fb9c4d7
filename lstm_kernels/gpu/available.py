"""Whether a GPU can be used, by using it: a first kernel is launched, and its result
looked at. The reason that is given otherwise says what to do.
"""

import ctypes
import os
from contextlib import suppress
from functools import cache, partial

import numba
import numpy as np

from . import device
from .device import cuda, numbered, told

NO_DEVICE = "choose a runtime with a GPU, or see what nvidia-smi says"
FIRST_OF_CUDA_13 = (7, 5)  # the oldest capability that CUDA 13 compiles for
# A word of an error, what is wrong then, and what to do; the last is for all others.
OLD_DRIVER = "the driver, of CUDA {driver}, is older than the compiler"
NEWER = "pip install 'numba-cuda[cu{major}]', or a newer driver"
TOOLKIT = "pip install 'numba-cuda[cu{major}]', or set CUDA_HOME"
UNLINKED = "blocks cannot wait for each other: libcudadevrt was not found"
TOO_OLD = "{name} has compute capability {capability}, too old for CUDA 13"
REASONS = (
    ("ptx_version", OLD_DRIVER, NEWER),
    ("unsupported .version", OLD_DRIVER, NEWER),
    ("cudadevrt", UNLINKED, "install the CUDA toolkit, or set CUDA_HOME"),
    ("libnvvm", "the CUDA compiler (NVVM) was not found in {place}", TOOLKIT),
    ("capability", TOO_OLD, "pip install 'numba-cuda[cu12]'"),
    ("", "kernels do not run on {name}", "restart Python, then try anew"),
)


@cache
def why_unavailable():
    """None when kernels can run here, on a device or simulated, else the reason."""
    if device.cuda is None:
        return f"numba.cuda cannot be imported ({device.broken.splitlines()[0]})"
    if not os.path.exists(f"{os.path.splitext(__file__)[0]}.py"):
        return "lstm_kernels is without its sources, from which GPU kernels are written"
    if device.SIMULATED:
        return None
    try:
        if not device.cuda.is_available() or not len(device.cuda.gpus):
            said = device.cuda.cuda_error() or "no device was found"
            said = device.first_line(said).rstrip(": ")
            return f"there is no CUDA device ({said}): {NO_DEVICE}"
        device.cuda.get_current_device()
    except Exception as error:
        return f"the CUDA driver does not work ({told(error)}): {NO_DEVICE}"
    return why_not(partial(launch, across_block))


@cache
def why_not_together(oldest=(6, 0)):
    """The same for launches whose blocks wait for each other; oldest: the capability
    that has the instructions for it.
    """
    if device.SIMULATED or why_unavailable():
        return why_unavailable()
    card = device.cuda.get_current_device()
    if tuple(card.compute_capability) < oldest:
        has = f"has compute capability {numbered(card.compute_capability)}"
        return f"{device.name_of(card)} {has}, want {numbered(oldest)} or newer"
    return why_not(partial(launch, across_grid, together=True))


def why_not(launch):
    """None when `launch()` works on the device here, else what is wrong and what to
    do.
    """
    try:
        launch()
    except Exception as error:
        said, is_old = str(error).lower(), False
        known = {"name": "the device", "driver": "?", "major": 13}
        known["place"] = device.named_toolkit() or "any usual place"
        with suppress(Exception):  # a driver that does not even say what there is
            card = device.cuda.get_current_device()
            known["name"] = device.name_of(card)
            known["capability"] = numbered(card.compute_capability)
            is_old = tuple(card.compute_capability) < FIRST_OF_CUDA_13
            known["driver"], known["major"] = release_of_driver()
        fitting = (
            r for r in REASONS if r[0] in said and (is_old or r[0] != "capability")
        )
        why = ": ".join(next(fitting)[1:]).format_map(known)
        return f"{why} ({told(error)})"
    return None


def release_of_driver():
    """The CUDA release that the driver is of, a text, and its first number."""
    number = ctypes.c_int()  # 12040 is 12.4
    device.Device.load_driver().cuDriverGetVersion(ctypes.byref(number))
    major, minor = divmod(number.value // 10, 100)
    return f"{major}.{minor}", major


def launch(kernel, together=False):
    """Run a kernel on two blocks, with as much shared memory as one may have;
    RuntimeError for a wrong result.
    """
    used, count = device.Device("the first kernel"), 64
    made = device.cuda.jit((numba.float32[::1],))(kernel)
    out = used.send("out", np.full(count, -1, np.float32))
    used.configure(made, 2, count // 2, used.shared, together=together)(out)
    got = used.copy_from(out, np.empty(count, np.float32))
    want = np.arange(count).reshape(-1, count if together else count // 2)[:, ::-1]
    if not np.array_equal(got, want.ravel()):
        raise RuntimeError(f"a first kernel gave {got[:4]}, want {want[0, :4]}")


def across_block(out):
    """Kernel: out is the number of the thread opposite, by the block's shared
    memory.
    """
    shared = cuda.shared.array(0, numba.float32)
    shared[cuda.threadIdx.x] = cuda.grid(1)
    cuda.syncthreads()
    out[cuda.grid(1)] = shared[cuda.blockDim.x - 1 - cuda.threadIdx.x]


def across_grid(out):
    """Kernel: the same over all blocks, by device memory."""
    grid, i = cuda.cg.this_grid(), cuda.grid(1)
    out[i] = i
    grid.sync()
    opposite = out[cuda.gridsize(1) - 1 - i]
    grid.sync()
    out[i] = opposite
