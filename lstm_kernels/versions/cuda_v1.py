"""`cuda-v1`: the quick port. The kernel runs on the GPU, on one thread.

What changed from `numpy`: the loops over samples, steps and units run in a kernel. NumPy arrays are
passed as they are, so Numba copies each of them to the device before a launch and back after it.
Nothing is parallel: bounded by the latency of one thread, which waits for every load.
"""

from functools import cache

import numpy as np

from ..cells import CELLS
from ..gpu import device, sample_kernels
from ..gpu.device_functions import HEAD
from ..gpu.sample_kernels import UNITS, no_position
from ..params import Grads, Params
from .base import Network

KERNELS = ("forward", "backward", "step")


@cache
def kernels(name, dtype, where, compile=None):
    """The kernels for a cell and a dtype; where: which samples a thread takes."""
    modules = (sample_kernels,)
    return device.build(CELLS[name], dtype, modules, KERNELS, compile=compile, where=where)


def sample_last(a):
    """(T, B, n) to (T, n, B) or (B, n) to (n, B), flat: neighbouring samples are neighbours."""
    return a.swapaxes(-1, -2).copy().reshape(-1)  # a copy: kernels write over some


class CudaV1(Network):
    """A network whose kernels compute a sample from end to end; V2 and V3 change one thing each."""

    name, where, threads = "cuda-v1", staticmethod(no_position), 1

    def __init__(self, params, threads=None):
        super().__init__(params, threads)
        self._device = device.Device(self.name)
        self._kernels = kernels(params.cell, self._dtype, type(self).where)
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
        n = L, T, B, _, H, _ = self._n(x)
        passed, both = self._pass("x", sample_last(x)), self._states(state, n)
        both, y = self._pass("state", both), self._result("y", T * H * B)
        tape = self._scratch(n, "h", "c", "gates")
        self._launch("forward", n, passed, both, self._parameters(), *tape, y)
        y = self._take(y, T * H * B).reshape(T, H, B).swapaxes(1, 2).copy()
        both = self._take(both, 2 * L * H * B).reshape(2, L, H, B).swapaxes(2, 3)
        state = tuple(both[i].copy() for i in range(len(self._cell.state)))
        return y, state, (passed, n)

    def _backward(self, kept, dy, dstate):
        passed, n = kept
        _, T, B, D, _, _ = n
        dy, both = self._pass("dy", sample_last(dy)), self._states(dstate, n, twice=False)
        both, dx = self._pass("state", both), self._result("dx", T * D * B)
        flat = self._result("grads", len(self._theta) + 1)
        scratch = self._scratch(n, "h", "c", "gates", "da", "partials")
        arguments = (passed, self._parameters(), *scratch[:3], dy, both, scratch[3], dx)
        self._launch("backward", n, *arguments, scratch[4], self._counters(n), flat)
        return self._grads(n, *(self._take(a, size) for a, size in self._sizes(n, flat, dx, both)))

    def _descent(self, x, target):
        _, flat = self._launch_step(x, target)
        return float(flat[-1]), self._params.cut(flat)

    def _loss_and_grads(self, x, target):
        n, flat = self._launch_step(x, target)
        device = self._device
        dx, both = (
            device.fetch(a, np.empty(size, self._dtype))
            for a, size in self._sizes(n, flat, *self._scratch(n, "dx", "dstate"))[1:]
        )
        return float(flat[-1]), self._grads(n, flat, dx, both)

    def _launch_step(self, x, target):
        """The sizes, and the gradients with the loss behind them, from one launch."""
        n = self._n(x)
        passed = self._pass("x", sample_last(x)), self._pass("target", sample_last(target))
        flat = self._result("grads", len(self._theta) + 1)
        names = "h", "c", "gates", "dy", "dstate", "da", "dx", "d_out", "partials"
        scratch = self._scratch(n, *names), self._counters(n)
        self._launch("step", n, *passed, self._parameters(), *scratch[0], scratch[1], flat)
        return n, self._take(flat, len(self._theta) + 1)

    def _launch(self, kernel, n, *arguments):
        kernel, blocks = self._kernels[kernel], self._blocks(n[2])
        rows = len(self._cell.gates) * UNITS * (self.threads + 1)
        shared = HEAD + rows * self._dtype.itemsize
        self._device.launch(kernel, blocks, self.threads, shared, n, *arguments)

    def _n(self, x):
        (T, B, D), p = x.shape, self._params
        return p.num_layers, T, B, D, p.hidden_size, p.output_size or 0

    def _parameters(self):
        """The parameters one after another, in the order of `Params.arrays`, for a kernel."""
        np.concatenate([a.reshape(-1) for a in self._params.arrays().values()], out=self._theta)
        return self._pass("theta", self._theta)

    def _scratch(self, n, *names):
        """Device arrays that never leave it: the tape, and what a step writes for itself."""
        L, T, B, D, H, O = n
        states, gates = L * (T + 1) * H * B, L * T * len(self._cell.gates) * H * B
        sizes = {"h": states, "c": states, "gates": gates, "da": gates, "dy": T * H * B}
        sizes |= {"dstate": 2 * L * H * B, "dx": T * D * B, "d_out": O * B}
        sizes |= {"partials": self._blocks(B) * (len(self._theta) + 1)}
        return [self._device.array(f"scratch {name}", sizes[name], self._dtype) for name in names]

    def _counters(self, n):
        return self._device.array("counters", self._blocks(n[2]) + 1, np.int32, zero=True)

    def _states(self, state, n, twice=True):
        """(2, L, H, B), flat, of a state or its gradient; twice: without c, c is h."""
        L, _, B, _, H, _ = n
        both = np.zeros((2, L, H, B), self._dtype)
        if state is not None:
            both[0], both[1] = state[0].swapaxes(1, 2), 0
            if twice or len(state) == 2:
                both[1] = state[-1].swapaxes(1, 2)
        return both.reshape(-1)

    @staticmethod
    def _sizes(n, flat, dx, both):
        L, T, B, D, H, _ = n
        return (flat, len(flat)), (dx, T * D * B), (both, 2 * L * H * B)

    def _grads(self, n, flat, dx, both):
        L, T, B, D, H, _ = n
        both = both.reshape(2, L, H, B).swapaxes(2, 3)
        state = tuple(both.copy()) if len(self._cell.state) == 2 else (both[0] + both[1],)
        p = Params.from_arrays(self._params.cut(flat), self._cell.name)
        x = dx.reshape(T, D, B).swapaxes(1, 2).copy()
        return Grads(p.layers, p.V, p.b_out, p.cell, x=x, state=state)
