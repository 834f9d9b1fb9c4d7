"""`cuda-v2`: a thread for each sample of a mini-batch.

What changed from `cuda-v1`: threads ask for their position and take the sample of that
number; blocks of 32 threads, a warp, spread over the multiprocessors. Nothing else: the
kernel's text is V1's. Bounded by the chain of one sample's multiply-adds, and by
Numba's copies of every array.
"""

from ..gpu.device import SIMULATED
from .cuda_v1 import CudaV1

THREADS = (
    4 if SIMULATED else 32
)  # of a block: a warp; the simulator's threads are Python's


class CudaV2(CudaV1):
    name, where, threads = "cuda-v2", "position", THREADS

    def _blocks(self, B):
        return -(-B // THREADS)
