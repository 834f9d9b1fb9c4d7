"""`numpy`: combined products, the input product of all steps in one GEMM: the reference as a version.

What changed from `numpy-naive`: the gates stand side by side in one matrix, so a step is one GEMM; the
inputs of all steps, which depend on nothing, are multiplied at once, and so are the weight gradients.
Parallel: whatever the BLAS library's threads reach. Bounded by the recurrent GEMM of one step and by the
point-wise passes over memory.
"""

from .base import Network


class NumpyBatched(Network):
    """The layer functions are the reference's own."""
