"""Whether a GPU can be used, by using it: a first kernel is launched, and its result
looked at. The reason that is given otherwise says what to do.
"""

import os
from functools import cache, partial

import numba
import numpy as np

from . import device
from .device import cuda, numbered, told

CHOOSE = "want an NVIDIA GPU and its driver, which nvidia-smi shows"
DRIVER = "install a newer driver, or pip install 'numba-cuda[cu12]'"
# A word of an error, and what to do; the last is for all others.
REMEDIES = {
    "ptx_version": DRIVER,
    "unsupported .version": DRIVER,
    "cudadevrt": "install the CUDA toolkit, or set CUDA_HOME",
    "libnvvm": "pip install 'numba-cuda[cu12]' or [cu13], or set CUDA_HOME",
    "capability": "pip install 'numba-cuda[cu12]' for a card older than 7.5",
    "": "restart Python, then try anew",
}


@cache
def why_unavailable():
    """None when kernels can run here, on a device or simulated, else the reason."""
    if device.cuda is None:
        return f"numba.cuda cannot be imported ({device.broken.splitlines()[0]})"
    if not os.path.exists(f"{os.path.splitext(__file__)[0]}.py"):
        return "lstm_kernels is without its sources, from which GPU kernels are written"
    if device.SIMULATED:
        return None
    return why_not(device.cuda, partial(launch, across_block))


@cache
def why_not_together(oldest=(6, 0)):
    """The same for launches whose blocks wait for each other; oldest: the capability
    that has the instructions for it.
    """
    if device.SIMULATED or why_unavailable():
        return why_unavailable()
    return why_not(device.cuda, partial(launch, across_grid, together=True), oldest)


def why_not(cuda, launch, oldest=(0, 0)):
    """None when `launch()` works on numba.cuda's device, else what is wrong."""
    name = "the device"
    try:
        if not cuda.is_available() or not len(cuda.gpus):
            said = str(cuda.cuda_error() or "no device was found").strip().splitlines()
            return f"there is no CUDA device ({said[0].rstrip(': ')}): {CHOOSE}"
        card = cuda.get_current_device()
        name, capability = device.name_of(card), tuple(card.compute_capability)
        if capability < oldest:
            has = f"{name} has compute capability {numbered(capability)}"
            return f"{has}, want {numbered(oldest)} or newer"
        launch()
    except Exception as error:
        said = str(error).lower()
        remedy = next(do for word, do in REMEDIES.items() if word in said)
        return f"kernels do not run on {name} ({told(error)}): {remedy}"
    return None


def launch(kernel, together=False):
    """Run a kernel on two blocks, with as much shared memory as one may have;
    RuntimeError for a wrong result.
    """
    used, count = device.Device("the first kernel"), 64
    compiled = device.cuda.jit((numba.float32[::1],))(kernel)
    out = used.send("out", np.full(count, -1, np.float32))
    used.launch(compiled, device.Grid(2, count // 2, used.shared, together), out)
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
