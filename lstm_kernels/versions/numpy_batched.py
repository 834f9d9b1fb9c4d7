"""`numpy`: combined products, the input product of all steps in one GEMM: the reference
on threads.

What changed from `numpy-naive`: the gates stand side by side in one matrix, so a step
is one GEMM; the inputs of all steps, which depend on nothing, are multiplied at once,
and so are the weight gradients. Parallel: the panels of each product. Bounded by the
recurrent GEMM of one step and by the point-wise passes over memory.
"""

from .. import reference
from .numpy_naive import NumpyNaive


class NumpyBatched(NumpyNaive):
    name = "numpy"
    layer_forward = staticmethod(reference.layer_forward)
    layer_backward = staticmethod(reference.layer_backward)
