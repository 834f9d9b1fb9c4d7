"""`cuda-v3`: transfers by hand.

What changed from `cuda-v2`: who copies. What a kernel only reads goes to the device
once, the tape stays there, and results come back, through pinned memory, which the
device reads and writes directly. Bounded by the chain of one sample's multiply-adds.
"""

import numpy as np

from ..gpu.device import Device, cuda
from .cuda_v2 import CudaV2


class Pinned(Device):
    """A device that reads and writes arrays of the host which stay where they are in
    memory.
    """

    def __init__(self, version):
        super().__init__(version)
        self._staging = np.empty(0, np.uint8)

    def _staged(self, host):
        """Pinned memory for an array of the host, kept for the next one."""
        if self._staging.size < host.nbytes:
            self._staging = cuda.pinned_array(host.nbytes, np.uint8)
        return self._staging[: host.nbytes].view(host.dtype).reshape(host.shape)

    def copy_to(self, array, host):
        staging = self._staged(host)
        np.copyto(staging, host)
        return super().copy_to(array, staging)

    def copy_from(self, array, host):
        np.copyto(host, super().copy_from(array, self._staged(host)))
        return host


class CudaV3(CudaV2):
    """Its arrays on the device are kept for the next call, which asks for as many in
    the same order.
    """

    name = "cuda-v3"
    device = Pinned

    def _forward(self, x, state, training):
        self._asked_for = 0
        return super()._forward(x, state, training)

    def _loss_and_grads(self, x, target):
        self._asked_for = 0
        return super()._loss_and_grads(x, target)

    def layer_backward(self, cell, layer, tape, dy, dh, dc):
        before = self._asked_for
        results = super().layer_backward(cell, layer, tape, dy, dh, dc)
        self._asked_for = before  # all is on the host: the next layer has the same ones
        return results

    def there(self, array):
        return self._device.copy_to(self.empty(*array.shape), array)

    def empty(self, *shape):
        self._asked_for += 1
        return self._device.array(f"array {self._asked_for}", shape, self._dtype)

    def back(self, array):
        return self._device.copy_from(array, np.empty(array.shape, self._dtype))
