"""How a launch of the tile kernels is cut into blocks, and a pass that is launched
so.
"""

from typing import NamedTuple

import numpy as np

from .build import TILES, build
from .layout import Sizes, four

MOST_SAMPLES = 32  # of a block
MOST_PARTS = 8  # of a sum


class Plan(NamedTuple):
    """Blocks for tiles of `tile` samples; their threads: x units by y groups of R
    samples, or by `parts` of the sums of fewer groups.
    """

    blocks: int
    x: int
    y: int
    tile: int
    R: int
    parts: int
    shared: int  # bytes of a block
    all_blocks: int  # that the end of a mini-batch is shared among


def plan(n, dtype, *, multiprocessors, shared, threads):
    """The Plan for Sizes n on a device of so many multiprocessors, each block with so
    many bytes of shared memory and at most so many threads.

    Few samples are spread over the multiprocessors; many fill tiles, whose threads take
    four samples each. Raises ValueError where not even a sample's state fits.
    """
    # Four samples share the weights that a thread loads: 5/4 numbers for a multiply-add
    # become 1/2. In float64, or with more gates, they need more registers than it has.
    many = np.dtype(dtype).itemsize == 4 and n.K <= 4
    # Units are spread evenly over the rounds.
    x = -(-n.H // -(-n.H // threads))
    y = threads // x
    inputs = n.D if n.L == 1 else max(n.D, n.H)

    def cut(tile):
        """Samples to a block and to a thread, parts of a sum, bytes."""
        R = 4 if many and tile > 2 else 1
        tile = -(-tile // R) * R
        # Rows of threads without samples share the sums, four numbers at a time.
        parts = max(1, min(MOST_PARTS, y * R // tile, four(n.H) // 4))
        states = tile * four(inputs + n.H + 1) + four(tile * n.H)  # [x, h, 1]; c
        forward = states + parts * tile * n.H * n.K
        backward = tile * n.H * (n.K + 1) + parts * tile * (n.H + inputs)
        size = max(forward, backward, threads) * np.dtype(dtype).itemsize
        return tile, R, parts, size

    few = -(-n.B // multiprocessors)
    tile, R, parts, size = cut(min(MOST_SAMPLES, few))
    while tile > 1 and size > shared:
        smaller = 1 << (tile - 1).bit_length() - 1  # the next power of two
        tile, R, parts, size = cut(smaller)
    if size > shared:
        raise ValueError(
            f"params: hidden_size {n.H} takes {size} bytes of shared memory for the "
            f"state of one sample, the device has {shared} for a block, want a smaller "
            "hidden_size or input_size"
        )
    blocks = min(-(-n.B // tile), multiprocessors)  # a multiprocessor holds one
    all_blocks = min(multiprocessors, max(blocks, -(-(n.P + 1) // x)))
    return Plan(blocks, x, y // parts * parts, tile, R, parts, size, all_blocks)


class Pass:
    """Passes of T steps and B samples of a network on a `device.Device`: what its
    kernels need. plan: gives the Plan, as `plan` does.

    All passes of a device share the array `work`, which holds everything but the
    parameters: what one leaves there is good until the next.
    """

    def __init__(self, device, params, T, B, entries, plan=plan):
        self._device = device
        self._dtype = params.dtype
        self.n = n = Sizes.of(params, T, B)
        self.plan = plan(n, params.dtype, **device.limits)
        self.places = n.places(self.plan.blocks)
        same = n._replace(T=0, B=0)  # networks of these sizes share their kernels
        arguments = params.cell, params.dtype, TILES, entries, same
        self._kernels = build(*arguments, R=self.plan.R, parts=self.plan.parts)

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

    def launch(self, name, *arguments):
        """Run a kernel with its grid; arguments: those behind n."""
        self.kernel(name)(self.places, *arguments)

    def kernel(self, name):
        """A kernel with its grid."""
        plan = self.plan
        together = name == "epoch"
        blocks = plan.all_blocks if together or name == "update" else plan.blocks
        grid = blocks, (plan.x, plan.y), plan.shared
        return self._device.configure(self._kernels[name], *grid, together=together)
