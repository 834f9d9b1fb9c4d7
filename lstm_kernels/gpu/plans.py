"""How a launch of the tile kernels is cut into blocks, and a pass that is launched
so.
"""

from typing import NamedTuple

import numpy as np

from .build import TILES, build
from .device import SIMULATED
from .layout import Sizes, four

MOST_SAMPLES = 32  # of a block
# Of a block: units along x, threads in all.
MOST_UNITS, MOST_THREADS = (2, 4) if SIMULATED else (256, 256)


class Plan(NamedTuple):
    """Blocks for tiles of `tile` samples; their threads: x units by y groups of R
    samples.
    """

    blocks: int
    x: int
    y: int
    tile: int
    R: int
    shared: int  # bytes of a block
    all_blocks: int  # that the end of a mini-batch is shared among


def shared_size(n, dtype, tile):
    """Bytes of shared memory: the state of a tile."""
    inputs = n.D if n.L == 1 else max(n.D, n.H)
    forward = tile * (2 * (four(inputs) + four(n.H)) + n.H)  # two buffers of [x, h], c
    backward = four(2 * tile * n.H) + 2 * tile * four(n.H * n.K)  # dh, dc, twice da
    return max(forward, backward, MOST_THREADS) * np.dtype(dtype).itemsize


def plan(
    n,
    dtype,
    *,
    multiprocessors,
    shared,
    most_threads=MOST_THREADS,
    most_units=MOST_UNITS,
):
    """The Plan for Sizes n on a device of so many multiprocessors, each block with so
    many bytes of shared memory.

    Few samples are spread over the multiprocessors; many fill tiles, whose threads take
    four samples each. Raises ValueError where not even a sample's state fits.
    """
    tile = min(MOST_SAMPLES, -(-n.B // multiprocessors))
    tile = four(tile) if tile > 3 else tile
    while tile > 1 and shared_size(n, dtype, tile) > shared:
        tile = 1 << (tile - 1).bit_length() - 1  # the next smaller power of two
    size = shared_size(n, dtype, tile)
    if size > shared:
        raise ValueError(
            f"params: hidden_size {n.H} takes {size} bytes of shared memory for the "
            f"state of one sample, the device has {shared} for a block, want a smaller "
            "hidden_size or input_size"
        )
    # Four samples share the weights that a thread loads: 5/4 numbers for a multiply-add
    # become 1/2. In float64, or with more gates, they need more registers than it has.
    many = tile % 4 == 0 and np.dtype(dtype).itemsize == 4 and n.K <= 4
    x = -(-n.H // -(-n.H // most_units))  # units are spread evenly over the rounds
    blocks = min(-(-n.B // tile), multiprocessors)  # a multiprocessor holds one
    all_blocks = min(multiprocessors, max(blocks, -(-(n.P + 1) // x)))
    y = max(1, most_threads // x)
    return Plan(blocks, x, y, tile, 4 if many else 1, size, all_blocks)


class Pass:
    """Passes of T steps and B samples of a network on a `device.Device`: what its
    kernels need.

    All passes of a device share the array `work`, which holds everything but the
    parameters: what one leaves there is good until the next.
    """

    def __init__(self, device, params, T, B, entries):
        self._device = device
        self._dtype = params.dtype
        self.n = n = Sizes.of(params, T, B)
        limits = {"multiprocessors": device.multiprocessors, "shared": device.shared}
        self.plan = plan(n, params.dtype, **limits)
        self.places = n.places(self.plan.blocks)
        same = n._replace(T=0, B=0)  # networks of these sizes share their kernels
        arguments = params.cell, params.dtype, TILES, entries, same
        self._kernels = build(*arguments, R=self.plan.R)

    def work(self):
        return self._device.array("work", (self.places.end,), self._dtype)

    def send(self, **arrays):
        """Copy arrays into their places of `work`."""
        for name, array in arrays.items():
            first = getattr(self.places, name)
            self._device.copy_to(self.work()[first : first + array.size], array)

    def fetch(self, name, shape, skip=0):
        """An array of `work` on the host, or a part of it, from `skip` numbers on."""
        first = getattr(self.places, name) + skip
        host = np.empty(shape, self._dtype)
        return self._device.copy_from(self.work()[first : first + host.size], host)

    def kernel(self, name):
        """A kernel with its grid."""
        plan = self.plan
        together = name == "epoch"
        blocks = plan.all_blocks if together or name == "update" else plan.blocks
        grid = blocks, (plan.x, plan.y), plan.shared
        return self._device.configure(self._kernels[name], *grid, together=together)
