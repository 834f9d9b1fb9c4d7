"""`cuda-fused`: the network lives on the device.

What changed from `cuda-v3`: the parameters, the data set and the descent stay on the
device, so nothing is copied inside an epoch; and threads are launched for the units of
a sample, too, with few samples for parts of their sums. A mini-batch is two launches:
forward and back, then sums over the blocks, in a fixed order, and descent. Bounded for
a small network by the host, which launches them; then by the latency of a step, and for
many samples by loading operands from the caches.
"""

import weakref

import numpy as np

from ..gpu.available import why_unavailable
from ..gpu.device import Device
from ..gpu.layout import Sizes, collect, pack, state_array, unpack
from ..gpu.plans import Pass
from .base import Network


class CudaFused(Network):
    """Gradients are summed in a fixed order: the same bits on every run.

    After a failed launch the device's parameters are lost; those of the host are what
    the last call of `params`, `assign` or `predict` saw.
    """

    name = "cuda-fused"
    kernels: tuple[str, ...] = "forward", "backward", "step", "update"
    device, pass_of = Device, Pass
    keeps_passes = False
    why_unavailable = staticmethod(why_unavailable)

    def __init__(self, params, threads=None):
        super().__init__(params, threads)
        self._device = self.device(self.name)
        self._kept_passes = {}
        self._dataset = lambda: None  # the data set whose examples are on the device
        self._replace(self._params)

    def _replace(self, params):
        # From here on the device's count, the old ones or the new.
        self._on_host = False
        self._theta = self._device.send("theta", pack(params))
        self._params = params
        self._on_host = True

    def _now(self):
        """The host's parameters, brought up to date once all of them have arrived."""
        if not self._on_host:
            size = Sizes.of(self._params, 0, 0).P
            self._params = unpack(self._fetch(self._theta[:size]), self._params)
            self._on_host = True
        return self._params

    def _forward(self, x, state, training):
        run = self._pass(*x.shape[:2])
        n = run.n
        # Without c, h is handed on in its place.
        parts = state and (state[0], state[-1])
        run.send(x=x, state=state_array(n, self._dtype, parts))
        run.launch("forward", run.plan.tile, self._theta, run.work())
        top = ((n.L - 1) * (n.T + 1) + 1) * n.B * n.H  # the top layer, slot 1
        y = run.fetch("h", n.shape("dy"), skip=top)
        state = run.fetch("state", n.shape("state"))
        return y, tuple(state[: len(self._cell.state)]), run

    def _backward(self, run, dy, dstate, inputs):
        run.send(dy=dy, state=state_array(run.n, self._dtype, dstate))
        run.launch("backward", run.plan.tile, self._theta, run.work())
        losses = self._device.array("losses", (1,), self._dtype)
        self._end(run, losses, 0, self._dtype.type(0))
        return self._grads(run)

    def _loss_and_grads(self, x, target):
        loss, run = self._launch_step(x, target)
        return loss, self._grads(run)

    def _step(self, x, target, rate):
        return self._launch_step(x, target, rate)[0]

    def _launch_step(self, x, target, rate=0.0):
        """The loss of a mini-batch, and its Pass."""
        self._dataset = lambda: None
        self._send_examples(x, target)
        T, B = x.shape[:2]
        (loss,) = self._steps(np.arange(B), B, rate)
        return float(loss), self._pass(T, B)

    def _send_examples(self, x, target):
        self._examples = self._device.send("x", x), self._device.send("target", target)

    def _epoch(self, dataset, x, target, order, batch_size, rate):
        """A step for each mini-batch of `order`, with no transfer in between.

        The data set is copied to the device once and kept until another one is used:
        its arrays must not change. Losses come back at the end: the steps after one
        that is not finite are computed, but not returned.
        """
        if self._dataset() is not dataset:
            self._dataset = lambda: None
            self._send_examples(x, target)
            self._dataset = weakref.ref(dataset)
        losses = self._steps(order, batch_size, rate)
        good = np.isfinite(losses)
        return losses[: len(losses) if good.all() else good.argmin() + 1].tolist()

    def _steps(self, order, batch_size, rate):
        """The losses of a step for each mini-batch of `order`."""
        shape = (-(-len(order) // batch_size),)
        losses = self._device.array("losses", shape, self._dtype)
        order = self._device.send("order", order)
        self._on_host &= rate == 0
        self._launch_steps(order, batch_size, losses, self._dtype.type(rate))
        return self._fetch(losses)

    def _launch_steps(self, order, batch_size, losses, rate):
        T = self._examples[0].shape[0]
        for batch, first in enumerate(range(0, order.size, batch_size)):
            run = self._pass(T, min(batch_size, order.size - first))
            self._forward_and_back(run, first, order, rate)
            self._end(run, losses, batch, rate)

    def _forward_and_back(self, run, first, order, rate):
        """A mini-batch, order[first:], up to its end."""
        arrays = order, *self._examples, self._theta, run.work()
        run.launch("step", run.plan.tile, first, *arrays, rate)

    def _end(self, run, losses, batch, rate):
        """The end of a step: sums over the blocks, and descent."""
        results = self._theta, run.work(), losses, batch, rate
        run.launch("update", run.plan.blocks, *results)

    def _pass(self, T, B):
        if (T, B) not in self._kept_passes:
            arguments = self._device, self._params, T, B, self.kernels
            self._kept_passes[T, B] = self.pass_of(*arguments)
        return self._kept_passes[T, B]

    def _fetch(self, array):
        return self._device.copy_from(array, np.empty(array.shape, self._dtype))

    def _grads(self, run):
        gradients = run.fetch("partials", (run.n.P,))
        dx = run.fetch("dx", run.n.shape("dx"))
        dstate = run.fetch("state", run.n.shape("state"))
        return collect(self._params, gradients, dx, dstate)
