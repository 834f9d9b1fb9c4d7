"""How a launch of the tile kernels is cut into blocks; a pass that is launched so."""

from types import ModuleType
from typing import NamedTuple

import numpy as np

from .build import TILES, build
from .device import Grid
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

    tile, R, parts, size = cut(min(MOST_SAMPLES, -(-n.B // multiprocessors)))
    while tile > 1 and size > shared:
        tile, R, parts, size = cut(1 << (tile - 1).bit_length() - 1)  # a power of two
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
    kernels, `entries` of `modules`, need.

    All passes of a device share the array `work`, which holds everything but the
    parameters: what one leaves there is good until the next. A subclass for kernels
    that are planned another way replaces `modules`, `constants`, `planned` and `grid`.
    """

    modules: tuple[ModuleType, ...] = TILES
    # Of the plan, that kernels are compiled for.
    constants: tuple[str, ...] = "R", "parts"

    def __init__(self, device, params, T, B, entries):
        self._device, self._dtype = device, params.dtype
        self.n = Sizes.of(params, T, B)
        self.plan, rows, behind = self.planned(device)
        self.places = self.n.places(rows)
        self._size = self.places.end + behind
        same = self.n._replace(T=0, B=0)  # networks of these sizes share their kernels
        constants = {name: getattr(self.plan, name) for name in self.constants}
        how = params.cell, params.dtype, self.modules, entries, same
        self._kernels = build(*how, **constants)

    def planned(self, device):
        """The plan, how many rows of partials there are, numbers behind all arrays."""
        names = "multiprocessors", "shared", "threads"
        limits = {name: getattr(device, name) for name in names}
        cut = plan(self.n, self._dtype, **limits)
        return cut, cut.blocks, 0

    def grid(self, name):
        """The Grid of a kernel."""
        plan, together = self.plan, name == "epoch"
        blocks = plan.all_blocks if together or name == "update" else plan.blocks
        return Grid(blocks, (plan.x, plan.y), plan.shared, together)

    def work(self):
        return self._device.array("work", (self._size,), self._dtype)

    def send(self, **arrays):
        """Copy arrays into their places of `work`."""
        for name, array in arrays.items():
            self._device.copy_to(self._part(name, array.size), array)

    def fetch(self, name, shape, skip=0):
        """An array of `work` on the host, or a part of it, from `skip` numbers on."""
        host = np.empty(shape, self._dtype)
        return self._device.copy_from(self._part(name, host.size, skip), host)

    def _part(self, name, size, skip=0):
        first = getattr(self.places, name) + skip
        return self.work()[first : first + size]

    def launch(self, name, *arguments):
        """Run a kernel on its Grid; arguments: those behind n."""
        where = self.grid(name)
        self._device.launch(self._kernels[name], where, self.places, *arguments)
