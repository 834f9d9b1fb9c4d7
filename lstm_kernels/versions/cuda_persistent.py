"""`cuda-persistent`: weights stay on the chip.

What changed from `cuda-fused`: who keeps what. There a block computes some samples with
all weights, which it loads anew at each step; here it computes some hidden units of a
layer, and keeps their recurrent weights in shared memory from the first step to the
last. What the other blocks compute, h going forward and da going back, comes through
device memory, with a counter for each layer that says how far it is. All layers run at
the same time, each a step behind the one below. Meant for 128 hidden units and more. A
network whose weights do not fit into the multiprocessors is refused. Bounded by
multiply-adds; for few samples by loading weights from shared memory and by the way of h
from block to block.
"""

from functools import partial
from typing import NamedTuple

import numpy as np

from ..gpu import persistent_kernels, products
from ..gpu.available import why_not_together
from ..gpu.build import TILES
from ..gpu.device import SIMULATED, Grid
from ..gpu.layout import four
from ..gpu.persistent_kernels import CHUNK, COUNTERS_APART
from ..gpu.plans import Pass
from ..gpu.products import ROWS, eight
from .cuda_fused import CudaFused

OLDEST = (7, 0)  # compute capability: it has release and acquire
MOST_BUFFER = 64 * (64 + 4)  # numbers of a buffer: rows of 64, four apart
PLAIN = 2 if SIMULATED else 256  # threads of kernels that wait for memory only
MODULES = products, persistent_kernels
KERNELS = "examples", "forward", "loss", "backward", "parameter_gradients", "update"


class Plan(NamedTuple):
    """Blocks of x by y threads for `units` hidden units and `tile` samples."""

    blocks: int
    x: int
    y: int
    units: int
    tile: int
    R: int  # rows of a product for a thread
    buffer: int  # numbers
    shared: int  # bytes of a block


def numbers(n, units, R, threads):
    """Numbers of shared memory for a block's weights, forward or transposed, back; and
    of a buffer at least: there are four, which also hold the sums of a product.
    """
    pitch = four(units * n.K) + 4
    kept = max(eight(n.H) * pitch, eight(n.H * n.K) * four(units))
    return kept, max(12 * ROWS, R * threads, 8 * pitch)


def cost(n, units, tile, R):
    """Clocks of a step, up to a factor: 64 multiply-adds take one, and so do 16 numbers
    that are loaded.
    """
    columns = four(units * n.K) + n.K * four(units)
    chunk = max(1, min(CHUNK, ROWS // tile)) if tile == n.B else 1
    loaded = tile * (2 + 2 * n.K) + 2 * units * n.K / chunk
    multiplied = 2 * -(-tile // R) * R * columns
    return multiplied / 64 + loaded / 16


def plan(n, dtype, *, multiprocessors, shared, simulated=None):
    """The Plan for Sizes n on a device of so many multiprocessors, each with so many
    bytes of shared memory for a block. simulated: whether for a simulator, with few
    threads; None is as the kernels run here.

    Raises ValueError where the weights do not fit.
    """
    size = np.dtype(dtype).itemsize
    few = SIMULATED if simulated is None else simulated
    x, y = (2, max(2, -(-n.H * n.K // 8))) if few else (16, 16)
    candidates, least = [], None
    for units in range(1, min(n.H, 4 * x * y // n.K) + 1):
        shares = n.L * -(-n.H // units)
        if shares > multiprocessors:
            continue
        tile = -(-n.B // (multiprocessors // shares))
        R = 1 if tile < 4 else 4 if tile < 32 or size > 4 else 8
        kept, buffer = numbers(n, units, R, x * y)
        least = least or (kept + 4 * buffer) * size
        buffer = min(MOST_BUFFER, max(buffer, (shared // size - kept) // 16 * 4))
        all_numbers = (kept + 4 * buffer) * size
        if all_numbers <= shared:
            blocks = shares * -(-n.B // tile)
            candidate = Plan(blocks, x, y, units, tile, R, buffer, all_numbers)
            candidates.append((cost(n, units, tile, R), candidate))
    if not candidates:
        has = f"{multiprocessors} multiprocessors"
        if least:
            has += f" with {shared} bytes of shared memory, not the {least} that"
            has += " each takes"
        raise ValueError(
            f"params: {n.L} layers of hidden_size {n.H} do not fit: the device has "
            f"{has}; want fewer layers or a smaller hidden_size"
        )
    return min(candidates)[1]


class PersistentPass(Pass):
    """A pass as `cuda-fused` has it, with counters behind the arrays of `work`."""

    modules = *TILES, *MODULES
    constants = "R", "units", "buffer"

    def planned(self, device):
        limits = {"multiprocessors": device.multiprocessors, "shared": device.shared}
        candidate = plan(self.n, self._dtype, **limits)
        counters = self.n.L * -(-self.n.B // candidate.tile)
        return candidate, 1, counters * COUNTERS_APART

    def grid(self, name):
        plan, blocks = self.plan, self._device.multiprocessors
        threads, shared = (plan.x, plan.y), plan.shared
        together = name in ("forward", "backward")
        if together:
            blocks = plan.blocks
        elif name != "parameter_gradients":
            blocks = blocks if name == "update" else min(blocks, self.n.B)
            threads, shared = (PLAIN, 1), PLAIN * self._dtype.itemsize
        # The simulator runs one block after another: it takes the layers in turn.
        return Grid(1 if SIMULATED else blocks, threads, shared, together)


class CudaPersistent(CudaFused):
    """As `cuda-fused` to its user. Needs compute capability 7.0."""

    name = "cuda-persistent"
    why_unavailable = staticmethod(partial(why_not_together, OLDEST))
    kernels = KERNELS
    pass_of = PersistentPass

    def __init__(self, params, threads=None):
        super().__init__(params, threads)
        if SIMULATED:  # a block for each layer, which keeps all its weights
            self._device.multiprocessors = params.num_layers
            self._device.shared = 1 << 30

    def _backward(self, run, dy, dstate, inputs):
        run.send(d_out=np.zeros(run.n.shape("d_out"), self._dtype))
        return super()._backward(run, dy, dstate, inputs)

    def _forward_and_back(self, run, first, order, rate):
        x, target = self._examples
        theta, work, tile = self._theta, run.work(), run.plan.tile
        run.launch("examples", first, order, x, work)
        run.launch("forward", tile, theta, work)
        run.launch("loss", first, order, target, theta, work)
        run.launch("backward", tile, theta, work)

    def _end(self, run, losses, batch, rate):
        """The gradients from the tapes, and descent."""
        theta, work = self._theta, run.work()
        run.launch("parameter_gradients", theta, work, rate)
        run.launch("update", 1, theta, work, losses, batch, rate)
