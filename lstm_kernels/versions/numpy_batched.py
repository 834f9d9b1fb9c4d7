"""`numpy`: combined products, the input product of all steps in one GEMM: the reference on threads.

What changed from `numpy-naive`: the gates stand side by side in one matrix, so a step is one GEMM;
the inputs of all steps, which depend on nothing, are multiplied at once, and so are the weight
gradients. Parallel: the panels of each product. Bounded by the recurrent GEMM of one step and by
the point-wise passes over memory.
"""

from functools import partial

from .. import reference
from ..blas import product
from .base import Network


class NumpyBatched(Network):
    def __init__(self, params, threads=None):
        super().__init__(params, threads)
        on_threads = partial(product, threads=self._threads)
        self.layer_forward = partial(reference.layer_forward, product=on_threads)
        self.layer_backward = partial(reference.layer_backward, product=on_threads)
