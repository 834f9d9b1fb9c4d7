"""`cuda-epoch`: an epoch is one launch.

What changed from `cuda-fused`: the loop over mini-batches is in the kernel. Where a
launch ended, all blocks wait for each other: once when the gradients lie in memory,
once when the parameters are new. So the host launches once for an epoch instead of
twice for a step. All blocks have to be on the device at the same time; a network whose
blocks are not is refused. Bounded by the latency of a step and of its two barriers.
"""

from ..gpu.available import why_not_together
from ..gpu.device import SIMULATED
from .cuda_fused import CudaFused


class CudaEpoch(CudaFused):
    name = "cuda-epoch"
    why_unavailable = staticmethod(why_not_together)
    kernels = "forward", "backward", "update", "epoch"

    def __init__(self, params, threads=None):
        super().__init__(params, threads)
        if SIMULATED:  # one block after another: none can wait for the next
            self._device.multiprocessors = 1

    def _launch_steps(self, order, batch_size, losses, rate):
        x, target = self._examples
        run = self._pass(x.shape[0], min(batch_size, order.size))
        arrays = order, x, target, self._theta, run.work(), losses
        run.launch("epoch", run.plan.tile, *arrays, rate)
