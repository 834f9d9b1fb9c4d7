"""`cuda-v1`: the quick port. The kernel runs on the GPU, on one thread.

What changed from `numpy`: the loops over samples, steps and units run in a kernel.
NumPy arrays are passed as they are, so Numba copies each of them to the device before a
launch and back after it. A mini-batch is one launch, and a second that adds up the
gradients of its blocks. Nothing is parallel: bounded by the latency of one thread,
which waits for every load.
"""

import numpy as np

from ..gpu import device, sample_kernels
from ..gpu.build import build
from ..gpu.layout import Sizes, array_sizes, collect, pack, packed_size, pair, unpack
from .base import Network

KERNELS = "forward", "backward", "step", "add_up"


def sample_last(a):
    """(..., B, n) to (..., n, B), flat: neighbouring samples are neighbours."""
    return a.swapaxes(-1, -2).copy().reshape(-1)  # a copy: kernels write over some


def sample_first(flat, *shape):
    """The inverse: (..., B, n), contiguous, of an array flat in the order (..., n,
    B).
    """
    return flat.reshape(shape).swapaxes(-1, -2).copy()


class CudaV1(Network):
    """A network whose kernels compute a sample from end to end; V2 and V3 change one
    thing each.
    """

    name, where, threads = "cuda-v1", "no_position", 1
    tapes = False

    def __init__(self, params, threads=None):
        super().__init__(params, threads)
        self._device, sizes = device.Device(self.name), Sizes.of(params, 0, 0)
        how = params.cell, self._dtype, (sample_kernels,), KERNELS, sizes
        self._kernels = build(*how, where=self.where)
        self._size = packed_size(sizes, len(self._cell.gates))

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
        both = pair(
            n, self._dtype, state and (state[0], state[-1])
        )  # without c, c is h
        both, y = (
            self._pass("state", sample_last(both)),
            self._result("y", n.T * n.H * n.B),
        )
        tape = self._scratch(n, "h", "c", "gates")
        self._launch("forward", n, passed, both, self._parameters(), *tape, y)
        y = self._take(y, n.T * n.H * n.B)
        both = sample_first(self._take(both, 2 * n.L * n.H * n.B), 2, n.L, n.H, n.B)
        state = tuple(both[: len(self._cell.state)])
        return sample_first(y, n.T, n.H, n.B), state, (passed, n)

    def _backward(self, kept, dy, dstate, inputs):
        passed, n = kept
        dy, both = (
            self._pass("dy", sample_last(dy)),
            sample_last(pair(n, self._dtype, dstate)),
        )
        both, dx = self._pass("state", both), self._result("dx", n.T * n.D * n.B)
        *tape, da, d_out, partials = self._scratch(
            n, "h", "c", "gates", "da", "d_out", "partials"
        )
        how = passed, self._parameters(), *tape, dy, both, da, dx, d_out, partials
        self._launch("backward", n, *how)
        flat, dx = self._added_up(n, partials), self._take(dx, n.T * n.D * n.B)
        return self._grads(n, flat, dx, self._take(both, 2 * n.L * n.H * n.B))

    def _descent(self, x, target):
        _, flat = self._launch_step(x, target)
        return float(flat[-1]), unpack(flat, self._params)

    def _loss_and_grads(self, x, target):
        n, flat = self._launch_step(x, target)
        dx, both = (
            self._device.fetch(array, np.empty(array.size, self._dtype))
            for array in self._scratch(n, "dx", "state")
        )
        return float(flat[-1]), self._grads(n, flat, dx, both)

    def _launch_step(self, x, target):
        """The sizes, and the gradients with the loss behind them."""
        n = Sizes.of(self._params, *x.shape[:2])
        passed = (
            self._pass("x", sample_last(x)),
            self._pass("target", sample_last(target)),
        )
        names = "h", "c", "gates", "dy", "state", "da", "dx", "d_out", "partials"
        scratch = self._scratch(n, *names)
        self._launch("step", n, *passed, self._parameters(), *scratch)
        return n, self._added_up(n, scratch[-1])

    def _launch(self, kernel, n, *arguments):
        blocks, K = self._blocks(n.B), len(self._cell.gates)
        sums = 4 * sample_kernels.UNITS * K * (self.threads + 1) * self._dtype.itemsize
        self._device.launch(
            self._kernels[kernel], blocks, self.threads, sums, *n[1:3], *arguments
        )

    def _added_up(self, n, partials):
        """The gradients of all blocks, and the loss, by a launch of their own."""
        blocks, flat = self._blocks(n.B), self._result("grads", self._size + 1)
        how = self._kernels["add_up"], blocks, self.threads, 0
        self._device.launch(*how, blocks, partials, flat)
        return self._take(flat, self._size + 1)

    def _parameters(self):
        """The packed parameters, for a kernel."""
        return self._pass("theta", pack(self._params))

    def _scratch(self, n, *names):
        """Device arrays that never leave it: the tape, and what a step writes for
        itself.
        """
        sizes = array_sizes(n, len(self._cell.gates))
        sizes["partials"] = self._blocks(n.B) * (self._size + 1)
        device = self._device
        return [
            device.array(f"scratch {m}", sizes[m], self._dtype)[: sizes[m]]
            for m in names
        ]

    def _grads(self, n, flat, dx, both):
        x, both = sample_first(dx, n.T, n.D, n.B), sample_first(both, 2, n.L, n.H, n.B)
        return collect(self._params, flat, x, both)
