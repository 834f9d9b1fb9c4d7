"""How a launch of the tile kernels is cut into blocks, and a pass that is launched
so.
"""

from typing import NamedTuple

import numpy as np

from ..cells import CELLS
from . import gradient_kernels, tile_kernels
from .build import build
from .device import SIMULATED
from .layout import Places, Sizes, packed_size
from .tile_kernels import four

MODULES = tile_kernels, gradient_kernels
MOST_SAMPLES = 32  # of a block
MOST_UNITS, MOST_THREADS = (
    (2, 4) if SIMULATED else (256, 256)
)  # of a block: along x, in all


class Plan(NamedTuple):
    """Blocks for tiles of `tile` samples; their threads: x units by y groups of R
    samples.
    """

    blocks: int
    x: int
    y: int
    tile: int
    R: int
    resident: bool  # a layer's weights lie in shared memory
    product: bool  # gradients are computed by all blocks when the tape is complete
    shared: int  # bytes
    all_blocks: int  # that the end of a mini-batch is shared among

    @property
    def threads(self):
        return self.x * self.y


def shared_size(n, cell, dtype, tile, resident):
    """Bytes of shared memory: a layer's weights where they fit, then the state of a
    tile.
    """
    K, H = len(cell.gates), n.H
    inputs = n.D if n.L == 1 else max(n.D, H)
    weights = four((inputs + H + 1) * (H + 1 - H % 2) * K) if resident else 0
    forward = tile * (2 * (four(inputs) + four(H)) + H)  # two buffers of [x, h], c
    backward = four(2 * tile * H) + 2 * tile * four(H * K)  # dh, dc, two buffers of da
    return (weights + max(forward, backward, MOST_THREADS)) * np.dtype(dtype).itemsize


def rounds(n, cell, blocks, all_blocks, threads):
    """How often a thread goes through its loop for the gradients of a mini-batch, in
    either way: by tile and then summed over the blocks, or by all blocks when the tape
    is complete.

    A turn of the loop is a step of a sample for four rows of weights and a unit; or, of
    the sum over the blocks, a number. The first way keeps as many threads busy as its
    blocks have, but writes and reads every gradient once for each block.
    """
    bands = -(-n.D // 4) + -(-n.H // 4) + 1 + (n.L - 1) * (2 * -(-n.H // 4) + 1)
    P, steps = packed_size(n, len(cell.gates)), n.T * n.B
    by_tile = -(-bands * n.H // threads) * -(-steps // blocks)
    by_tile += -(-(P + 1) * blocks // (all_blocks * threads))
    return by_tile, -(-bands * n.H // (all_blocks * threads)) * steps


def plan(
    n,
    cell,
    dtype,
    multiprocessors,
    shared,
    most_threads=MOST_THREADS,
    most_units=MOST_UNITS,
):
    """The Plan for Sizes n of a Cell on a device of so many multiprocessors, each block
    with so many bytes of shared memory.

    Few samples are spread over the multiprocessors; many fill tiles, whose threads take
    four samples each. Weights that do not fit into shared memory with the state of four
    samples are read from device memory, through the cache. Raises ValueError where not
    even a sample's state fits.
    """
    wanted = min(MOST_SAMPLES, -(-n.B // multiprocessors))
    tiles = [four(wanted)] if wanted > 3 else [wanted]
    tiles += [tile for tile in (16, 8, 4, 2, 1) if tile < tiles[0]]
    # A property of the network, not of B: only plans without it keep transposed weights
    # up to date.
    resident = shared_size(n, cell, dtype, 4, True) <= shared
    x = -(-n.H // -(-n.H // most_units))  # units are spread evenly over the rounds
    y = max(1, most_threads // x)
    for tile in tiles:
        need = shared_size(n, cell, dtype, tile, resident)
        if need <= shared:
            # Four samples of float64 need more registers than a thread has.
            R = 4 if tile % 4 == 0 and np.dtype(dtype).itemsize == 4 else 1
            blocks = min(-(-n.B // tile), multiprocessors)  # a multiprocessor holds one
            numbers = -(-(packed_size(n, len(cell.gates)) + 1) // x)
            all_blocks = min(multiprocessors, max(blocks, numbers))
            by_tile, product = rounds(n, cell, blocks, all_blocks, x * y)
            return Plan(
                blocks, x, y, tile, R, resident, product < by_tile, need, all_blocks
            )
    raise ValueError(
        f"params: hidden_size {n.H} takes {need} bytes of shared memory for the state of one "
        f"sample, the device has {shared} for a block, want a smaller hidden_size or input_size"
    )


class Pass:
    """Passes of T steps and B samples of a network on a `device.Device`: what its
    kernels need.

    atomic: whether gradients are summed by atomics. All passes of a device share the
    array `work`, which holds everything but the parameters: what one leaves there is
    good until the next.
    """

    def __init__(self, device, params, T, B, atomic, entries):
        cell, dtype = CELLS[params.cell], params.dtype
        self._device, self._dtype, self.n = device, dtype, Sizes.of(params, T, B)
        self.plan = plan(
            self.n, cell, dtype, device.multiprocessors, device.most_shared
        )
        self.atomic = atomic and not self.plan.product
        rows = 1 if self.atomic or self.plan.product else self.plan.blocks
        self.places = Places.of(self.n, rows, len(cell.gates))
        options = {"R": self.plan.R, "RESIDENT": self.plan.resident}
        options |= {"PRODUCT": self.plan.product, "ATOMIC": self.atomic}
        sizes = self.n._replace(
            T=0, B=0
        )  # networks of the same sizes share their kernels
        self._kernels = build(cell.name, dtype, MODULES, entries, sizes, **options)

    @property
    def numbers(self):
        """n of the kernels."""
        return (self.n.T, self.n.B, *self.places)

    def work(self):
        return self._device.array("work", self.places.end, self._dtype)

    def send(self, **arrays):
        """Copy arrays into their places of `work`."""
        for name, a in arrays.items():
            self._device.send_into(self.work(), getattr(self.places, name), a)

    def fetch(self, name, shape, skip=0):
        """An array of `work` on the host, or a part of it, from `skip` numbers on."""
        first, size = getattr(self.places, name) + skip, int(np.prod(shape))
        part = self.work()[first : first + size]
        return self._device.fetch(part, np.empty(size, self._dtype)).reshape(shape)

    def clear_sums(self):
        """Zeros for atomics to add to."""
        if self.atomic:
            self.send(partials=np.zeros(self.places.x, self._dtype))

    def kernel(self, name):
        """A kernel with its grid."""
        plan, together = self.plan, name == "epoch"
        blocks = plan.all_blocks if together or name == "update" else plan.blocks
        how = blocks, (plan.x, plan.y), plan.shared
        return self._device.configure(self._kernels[name], *how, together=together)

    def launch(self, name, *more):
        self.kernel(name)(self.numbers, *more)
