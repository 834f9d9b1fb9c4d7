"""`cuda-v2`: a thread for each sample of a mini-batch.

What changed from `cuda-v1`: the grid. A kernel is launched for as many threads as the
mini-batch has samples, or as all rows of a layer's parameters have units, in blocks of
32, a warp, which spread over the multiprocessors. Nothing else: the kernels are V1's.
Bounded by the chain of one sample's multiply-adds, and by Numba's copies of every
array.
"""

from ..gpu.device import SIMULATED, Grid
from .cuda_v1 import CudaV1

WARP = 4 if SIMULATED else 32  # the simulator's threads are Python's


class CudaV2(CudaV1):
    name = "cuda-v2"

    def grid(self, count):
        return Grid(-(-count // WARP), WARP)
