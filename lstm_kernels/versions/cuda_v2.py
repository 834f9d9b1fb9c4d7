"""`cuda-v2`: a thread for each sample of a mini-batch.

What changed from `cuda-v1`: threads ask for their position and take the sample of that
number, or the gradient; blocks of 32 threads, a warp, spread over the multiprocessors.
Nothing else: the kernel's text is V1's. Bounded by the chain of one sample's
multiply-adds, and by Numba's copies of every array.
"""

from ..gpu.device import SIMULATED
from .cuda_v1 import CudaV1

# Of a block: a warp; the simulator's threads are Python's.
THREADS = 4 if SIMULATED else 32


class CudaV2(CudaV1):
    name = "cuda-v2"
    where = "position"
    threads = THREADS

    def _blocks(self, count):
        return -(-count // THREADS)
