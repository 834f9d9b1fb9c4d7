"""`cuda-v1`: the quick port. The kernel runs on the GPU, on one thread.

What changed from `numpy`: the loops over samples, steps and units run in a kernel. NumPy arrays are
passed as they are, so Numba copies each of them to the device before a launch and back after it.
Nothing is parallel: bounded by the latency of one thread, which waits for every load.
"""

import numpy as np

from ..gpu import device, sample_kernels
from ..gpu.device_functions import HEAD
from ..gpu.layout import Places, Sizes, collect, pair
from .base import Network


def sample_last(a):
    """(..., B, n) to (..., n, B), flat: neighbouring samples are neighbours."""
    return a.swapaxes(-1, -2).copy().reshape(-1)  # a copy: kernels write over some


def sample_first(flat, *shape):
    """The inverse: (..., B, n), contiguous, of an array flat in the order (..., n, B)."""
    return flat.reshape(shape).swapaxes(-1, -2).copy()


class CudaV1(Network):
    """A network whose kernels compute a sample from end to end; V2 and V3 change one thing each."""

    name, where, threads = "cuda-v1", "no_position", 1

    def __init__(self, params, threads=None):
        super().__init__(params, threads)
        self._device = device.Device(self.name)
        modules = (sample_kernels,)
        self._kernels = device.build(params.cell, self._dtype, modules, where=self.where)
        self._theta = np.empty(sum(a.size for a in self._params.arrays().values()), self._dtype)

    def _forget(self):
        self._device.refuse_fork()

    def _blocks(self, B):
        """Blocks of a launch."""
        return 1

    def _pass(self, name, host):
        """What a kernel gets for an array of the host, flat: here the array itself."""
        return host

    def _result(self, name, size):
        """What a kernel gets for an array that it fills."""
        return np.zeros(size, self._dtype)

    def _take(self, array, size):
        """A passed array or a result as it is after the launch, on the host."""
        return array

    def _forward(self, x, state, training):
        n = Sizes.of(self._params, *x.shape[:2])
        passed = self._pass("x", sample_last(x))
        both = pair(n, self._dtype, state and (state[0], state[-1]))  # without c, c is h
        both, y = self._pass("state", sample_last(both)), self._result("y", n.T * n.H * n.B)
        tape = self._scratch(n, "h", "c", "gates")
        self._launch("forward", n, passed, both, self._parameters(), *tape, y)
        y = self._take(y, n.T * n.H * n.B)
        both = sample_first(self._take(both, 2 * n.L * n.H * n.B), 2, n.L, n.H, n.B)
        state = tuple(both[: len(self._cell.state)])
        return sample_first(y, n.T, n.H, n.B), state, (passed, n)

    def _backward(self, kept, dy, dstate):
        passed, n = kept
        dy, both = self._pass("dy", sample_last(dy)), sample_last(pair(n, self._dtype, dstate))
        both, dx = self._pass("state", both), self._result("dx", n.T * n.D * n.B)
        flat = self._result("grads", len(self._theta) + 1)
        *tape, da, partials = self._scratch(n, "h", "c", "gates", "da", "partials")
        arguments = passed, self._parameters(), *tape, dy, both, da, dx, partials
        self._launch("backward", n, *arguments, self._device.counters(self._blocks(n.B)), flat)
        flat, dx = self._take(flat, len(self._theta) + 1), self._take(dx, n.T * n.D * n.B)
        return self._grads(n, flat, dx, self._take(both, 2 * n.L * n.H * n.B))

    def _descent(self, x, target):
        _, flat = self._launch_step(x, target)
        return float(flat[-1]), self._params.cut(flat)

    def _loss_and_grads(self, x, target):
        n, flat = self._launch_step(x, target)
        places = self._places(n)
        dx, both = (
            self._device.fetch(array, np.empty(places.size(name), self._dtype))
            for name, array in zip(("dx", "state"), self._scratch(n, "dx", "state"), strict=True)
        )
        return float(flat[-1]), self._grads(n, flat, dx, both)

    def _launch_step(self, x, target):
        """The sizes, and the gradients with the loss behind them, from one launch."""
        n = Sizes.of(self._params, *x.shape[:2])
        passed = self._pass("x", sample_last(x)), self._pass("target", sample_last(target))
        flat = self._result("grads", len(self._theta) + 1)
        names = "h", "c", "gates", "dy", "state", "da", "dx", "d_out", "partials"
        scratch = *self._scratch(n, *names), self._device.counters(self._blocks(n.B))
        self._launch("step", n, *passed, self._parameters(), *scratch, flat)
        return n, self._take(flat, len(self._theta) + 1)

    def _launch(self, kernel, n, *arguments):
        rows = len(self._cell.gates) * sample_kernels.UNITS * (self.threads + 1)
        how = self._blocks(n.B), self.threads, HEAD + rows * self._dtype.itemsize
        self._device.launch(self._kernels[kernel], *how, tuple(n), *arguments)

    def _parameters(self):
        """The parameters one after another, in the order of `Params.arrays`, for a kernel."""
        np.concatenate([a.reshape(-1) for a in self._params.arrays().values()], out=self._theta)
        return self._pass("theta", self._theta)

    def _places(self, n):
        return Places.of(n, self._blocks(n.B), len(self._theta), self._cell)

    def _scratch(self, n, *names):
        """Device arrays that never leave it: the tape, and what a step writes for itself."""
        places, device = self._places(n), self._device
        return [device.array(f"scratch {name}", places.size(name), self._dtype) for name in names]

    def _grads(self, n, flat, dx, both):
        x, both = sample_first(dx, n.T, n.D, n.B), sample_first(both, 2, n.L, n.H, n.B)
        return collect(self._params, self._cell, flat, x, both)
