"""`cuda-v1`: the quick port. The kernels run on the GPU, on one thread.

What changed from `numpy`: the loops over samples, steps and units run in a kernel.
NumPy arrays are passed as they are, so Numba copies each of them to the device before a
launch and back after it; what one launch leaves for the next, the tape and the
gradients, stays there. A mini-batch is one launch, and a second for its gradients,
which are sums over all samples. Nothing is parallel: bounded by the latency of one
thread, which waits for every load.
"""

import warnings
from functools import partial

import numpy as np

from ..gpu.device import Device
from ..gpu.layout import unpack
from ..gpu.plans import plan
from .base import Network
from .cuda_fused import CudaFused


class Host(Device):
    """A device whose arrays are NumPy's, but for `work`: each launch copies those it is
    given.
    """

    def allocate(self, name, size, dtype):
        if name == "work":
            return super().allocate(name, size, dtype)
        return np.empty(size, dtype)

    def configure(self, *how, **options):
        return partial(self._launch, super().configure(*how, **options))

    def _launch(self, kernel, *arguments):
        copied = sum(a.nbytes for a in arguments if isinstance(a, np.ndarray))
        self.sent += copied
        self.fetched += copied
        # These copies are counted: they are what V1 and V2 show.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Host array used in CUDA kernel")
            kernel(*arguments)

    def copy_to(self, array, host):
        if not isinstance(array, np.ndarray):
            return super().copy_to(array, host)
        array[:] = host.reshape(array.shape)
        return array

    def copy_from(self, array, host):
        if not isinstance(array, np.ndarray):
            return super().copy_from(array, host)
        host[:] = array.reshape(host.shape)
        return host


class CudaV1(CudaFused):
    """The parameters and the descent stay on the host; V2 and V3 change one thing
    each.
    """

    name = "cuda-v1"
    kernels = "forward", "backward", "step", "update"
    device = Host
    limits = ("multiprocessors", 1), ("threads", 1)
    plan = staticmethod(partial(plan, by_sample=True))
    _step = Network._step
    _epoch = Network._epoch

    def _descent(self, x, target):
        loss, run = self._launch_step(x, target)
        return loss, unpack(run.fetch("partials", (run.n.P,)), self._params)
