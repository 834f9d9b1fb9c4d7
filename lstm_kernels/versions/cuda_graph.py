"""`cuda-graph`: an epoch is one graph of launches.

What changed from `cuda-fused`: who launches. The two kernels of every step of an epoch
are recorded once, as a CUDA graph, and the host launches the graph; the device starts
each kernel when the one before has ended. A recording holds addresses, sizes and the
rate: an epoch that is not like the last one is launched kernel by kernel, and recorded
when it comes again. An epoch of one step is not recorded. Bounded by the latency of a
step and of starting its two kernels.
"""

from ..gpu import graph
from .cuda_fused import CudaFused


class CudaGraph(CudaFused):
    name = "cuda-graph"

    def __init__(self, params, threads=None):
        super().__init__(params, threads)
        self._last = self._graph = None  # what the last epoch was; its recording

    def _launch_steps(self, order, batch_size, losses, rate):
        how = order, batch_size, losses, rate
        if order.size <= batch_size:
            return super()._launch_steps(*how)
        now = self._baked(*how)
        if now != self._last:
            self._last = self._graph = None
            super()._launch_steps(*how)  # which loads the kernels
            self._last = now
        else:
            self._graph = self._graph or graph.record(self._launches(*how))
            self._graph.replay()

    def _baked(self, order, batch_size, losses, rate):
        """What a recording holds: the rate, the sizes, and where the arrays are."""
        T = self._examples[0].shape[0]
        for B in (batch_size, order.size % batch_size or batch_size):
            work = self._pass(T, B).work()  # as large as the larger one wants
        arrays = order, *self._examples, losses, self._theta, work
        places = [(array.shape, graph.address(array)) for array in arrays]
        return batch_size, float(rate), places
