"""The kernels that show whether a device works: of ten lines each, with what the others
need of it.
"""

import numba

from .device import cuda


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
