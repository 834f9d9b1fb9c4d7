"""`cuda-v2`: a thread for each sample of a mini-batch.

What changed from `cuda-v1`: the kernels are launched for as many threads as the
mini-batch has samples, in blocks of 32, a warp, which spread over the multiprocessors.
A thread multiplies for its sample; what else a block has to do its threads share.
Nothing else: the kernels' text is V1's. Bounded by the chain of one sample's
multiply-adds, and by Numba's copies of every array.
"""

from ..gpu.device import SIMULATED
from .cuda_v1 import CudaV1


class CudaV2(CudaV1):
    name = "cuda-v2"
    # Of a block: a warp; the simulator's threads are Python's.
    limits = (("threads", 4 if SIMULATED else 32),)
