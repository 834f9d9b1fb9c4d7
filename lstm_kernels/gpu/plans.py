"""How a launch of the tile kernels is cut into blocks, and a pass that is launched so."""

from typing import NamedTuple

import numpy as np

from ..cells import CELLS
from . import gradient_kernels, tile_kernels
from .device import SIMULATED, build
from .device_functions import HEAD
from .layout import Places, Sizes

MODULES = tile_kernels, gradient_kernels
MOST_SAMPLES, MOST_THREADS = 32, 4 if SIMULATED else 256  # of a block


class Plan(NamedTuple):
    """Blocks of `threads`, tiles of `tile` samples, R samples to a thread; resident: whether a
    layer's weights lie in shared memory.
    """

    blocks: int
    threads: int
    tile: int
    R: int
    resident: bool
    shared: int  # bytes


def shared_size(n, cell, dtype, tile, resident):
    """Bytes of shared memory: a layer's weights where they fit, then the state of a tile."""
    K, G, H = len(cell.gates), len(cell.input_gates), n.H
    inputs = n.D if n.L == 1 else max(n.D, H)
    weights = (inputs + H) * (G * H + 1) + K * H if resident else 0
    forward, backward = 2 * (inputs + H) + H, 2 * H + 2 * K * H  # two buffers, c; dh, dc, two of da
    return HEAD + (weights + tile * max(forward, backward)) * np.dtype(dtype).itemsize


def plan(n, cell, dtype, multiprocessors, shared, most_threads=MOST_THREADS):
    """The Plan for Sizes n of a Cell on a device of so many multiprocessors, each block with so
    many bytes of shared memory.

    Few samples are spread over the multiprocessors; many fill tiles, whose threads take four
    samples each. Weights that do not fit into shared memory with the state of four samples are read
    from device memory, through the cache. Raises ValueError where not even a sample's state fits.
    """
    wanted = min(MOST_SAMPLES, -(-n.B // multiprocessors))
    tiles = [wanted + -wanted % 4] if wanted > 3 else [wanted]
    tiles += [tile for tile in (16, 8, 4, 2, 1) if tile < tiles[0]]
    # A property of the network, not of B: only plans without it keep transposed weights up to date.
    resident = shared_size(n, cell, dtype, 4, True) <= shared
    for tile in tiles:
        need = shared_size(n, cell, dtype, tile, resident)
        if need <= shared:
            # Four samples of float64 need more registers than a thread has.
            R = 4 if tile % 4 == 0 and np.dtype(dtype).itemsize == 4 else 1
            items = tile // R * n.H
            threads = min(most_threads, max(128, items + -items % 32))
            blocks = min(-(-n.B // tile), multiprocessors)  # a multiprocessor holds one
            return Plan(blocks, threads, tile, R, resident, need)
    raise ValueError(
        f"params: hidden_size {n.H} takes {need} bytes of shared memory for the state of one "
        f"sample, the device has {shared} for a block, want a smaller hidden_size or input_size"
    )


class Pass:
    """Passes of T steps and B samples of a network on a `device.Device`: what its kernels need.

    atomic: whether gradients are summed by atomics. All passes of a device share the array `work`,
    which holds everything but the parameters: what one leaves there is good until the next.
    """

    def __init__(self, device, params, T, B, atomic):
        cell, dtype = CELLS[params.cell], params.dtype
        self._device, self._atomic, self.n = device, atomic, Sizes.of(params, T, B)
        self.plan = plan(self.n, cell, dtype, device.multiprocessors, device.most_shared)
        self._P = sum(a.size for a in params.arrays().values())
        self.places = Places.of(self.n, self.plan.blocks, self._P, cell)
        options = {"R": self.plan.R, "RESIDENT": self.plan.resident, "ATOMIC": atomic}
        self._kernels = build(cell.name, dtype, MODULES, **options)
        self._dtype = dtype

    def work(self):
        return self._device.array("work", self.places.end, self._dtype)

    def counters(self):
        return self._device.counters(self.plan.blocks)

    def send(self, **arrays):
        """Copy arrays into their places of `work`."""
        for name, a in arrays.items():
            self._device.send_into(self.work(), getattr(self.places, name), a)

    def fetch(self, name):
        """An array of `work` on the host, flat."""
        part = self.work()[self.places.part(name)]
        return self._device.fetch(part, np.empty(part.size, self._dtype))

    def kernel(self, name):
        """A kernel with its grid, and with atomics a sum of zero to add to."""
        if self._atomic:
            self.send(partials=np.zeros(self._P + 1, self._dtype))
        grid = self.plan.blocks, self.plan.threads, self.plan.shared
        return self._device.configure(self._kernels[name], *grid)

    def launch(self, name, *more):
        theta, work = self._device.kept("theta"), self.work()
        self.kernel(name)(tuple(self.n), self.plan.tile, theta, work, *more)
