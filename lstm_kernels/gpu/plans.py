"""How a launch of the tile kernels is cut into blocks, for a network and a device."""

from functools import cache
from typing import NamedTuple

import numpy as np

from . import gradient_kernels, tile_kernels
from .device import SIMULATED
from .device_functions import HEAD

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


@cache
def plan(n, cell, dtype, multiprocessors, shared, most_threads=MOST_THREADS):
    """The Plan for Sizes n of a Cell on a device of so many multiprocessors, each block with so
    many bytes of shared memory.

    Few samples are spread over the multiprocessors; many fill tiles, whose threads take four
    samples each. Weights that do not fit into shared memory beside four samples are read from
    device memory, through the cache. Raises ValueError where not even a sample's state fits.
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
