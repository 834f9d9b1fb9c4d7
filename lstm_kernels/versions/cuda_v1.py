"""`cuda-v1`: the quick port. The kernel runs on the GPU, on one thread.

What changed from `numpy`: the loops over samples, steps and units run in a kernel.
NumPy arrays are passed as they are, so Numba copies each of them to the device before a
launch and back after it. A mini-batch is one launch, and a second for its gradients,
which are sums over all samples. Nothing is parallel: bounded by the latency of one
thread, which waits for every load.
"""

import inspect

import numpy as np

from ..gpu import device, sample_kernels
from ..gpu.build import SAMPLES, build
from ..gpu.layout import (
    Sizes,
    collect,
    gradient_array,
    pack,
    state_array,
    unpack,
)
from .base import Network

KERNELS = "forward", "backward", "step", "gradients"


def sample_last(a):
    """(..., B, n) to (..., n, B): neighbouring samples are neighbours."""
    return a.swapaxes(-1, -2).copy()  # a copy: kernels write over some


class CudaV1(Network):
    """A network whose kernels compute a sample from end to end; V2 and V3 change one
    thing each.
    """

    name = "cuda-v1"
    where = "one_thread"
    threads = 1
    tapes = False

    def __init__(self, params, threads=None):
        super().__init__(params, threads)
        self._device = device.Device(self.name)
        sizes = Sizes.of(params, 0, 0)
        arguments = params.cell, self._dtype, SAMPLES, KERNELS, sizes
        self._kernels = build(*arguments, where=self.where)

    def _blocks(self, count):
        """Blocks of a launch for so many samples, or gradients."""
        return 1

    def _pass(self, name, host):
        """What a kernel gets for an array of the host: here the array itself."""
        return host

    def _result(self, name, shape):
        """What a kernel gets for an array that it fills."""
        return np.zeros(shape, self._dtype)

    def _take(self, array):
        """A passed array or a result as it is after the launch, on the host."""
        return array

    def _forward(self, x, state, training):
        n = Sizes.of(self._params, *x.shape[:2])
        passed = {
            "x": self._pass("x", sample_last(x)),
            "theta": self._pass("theta", pack(self._params)),
        }
        state = sample_last(state_array(n, self._dtype, state))
        state = self._pass("state", state)
        y = self._result("y", n.shape("y", sample_last=True))
        self._launch("forward", n, **passed, state=state, y=y)
        y = sample_last(self._take(y))
        state = sample_last(self._take(state))
        return y, tuple(state[: len(self._cell.state)]), (passed, n)

    def _backward(self, tape, dy, dstate, inputs):
        passed, n = tape
        dstate = sample_last(gradient_array(n, self._dtype, dstate))
        dstate = self._pass("state", dstate)
        dx = self._result("dx", n.shape("dx", sample_last=True))
        dy = self._pass("dy", sample_last(dy))
        self._launch("backward", n, **passed, dy=dy, state=dstate, dx=dx)
        flat = self._gradients(n, passed["x"])
        return self._grads(flat, self._take(dx), self._take(dstate))

    def _descent(self, x, target):
        _, flat = self._launch_step(x, target)
        return float(flat[-1]), unpack(flat, self._params)

    def _loss_and_grads(self, x, target):
        n, flat = self._launch_step(x, target)
        dx, dstate = (
            self._device.copy_from(array, np.empty(array.shape, self._dtype))
            for array in (self._scratch(n, "dx"), self._scratch(n, "state"))
        )
        return float(flat[-1]), self._grads(flat, dx, dstate)

    def _launch_step(self, x, target):
        """The sizes, and the gradients with the loss behind them."""
        n = Sizes.of(self._params, *x.shape[:2])
        x = self._pass("x", sample_last(x))
        target = self._pass("target", sample_last(target))
        theta = self._pass("theta", pack(self._params))
        self._launch("step", n, x=x, target=target, theta=theta)
        return n, self._gradients(n, x)

    def _gradients(self, n, x):
        """The gradients of the pass before, and its loss, by a launch of their own."""
        gradients = self._result("gradients", (n.P + 1,))
        self._launch("gradients", n, x=x, gradients=gradients)
        return self._take(gradients)

    def _launch(self, name, n, **passed):
        """Run a kernel. Arrays that are not passed are the device's: the tape, and what
        a step writes for itself.
        """
        names = inspect.signature(getattr(sample_kernels, name)).parameters
        arrays = [passed[a] if a in passed else self._scratch(n, a) for a in names]
        blocks = self._blocks(n.P + 1 if name == "gradients" else n.B)
        self._device.launch(self._kernels[name], blocks, self.threads, 0, *arrays)

    def _scratch(self, n, name):
        shape = n.shape(name, sample_last=True)
        return self._device.array(f"scratch {name}", shape, self._dtype)

    def _grads(self, flat, dx, dstate):
        return collect(self._params, flat, sample_last(dx), sample_last(dstate))
