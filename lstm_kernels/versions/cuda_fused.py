"""`cuda-fused`: the network lives on the device.

What changed from `cuda-v3`: the parameters, the data set and the descent stay on the
device, so nothing is copied inside an epoch; and a block computes a tile of samples, a
thread per unit, with the weights in shared memory. A mini-batch is two launches:
forward and back, then sums over the blocks, in a fixed order, and descent. Bounded for
a small network by the host, which launches them; then by the latency of a step, a chain
of inputs and units long, and for many samples by reading shared memory.
"""

import weakref

import numpy as np

from ..errors import check_choice
from ..gpu import device
from ..gpu.layout import Sizes, collect, pack, packed_size, pair, unpack
from ..gpu.plans import Pass
from ..params import Params
from .base import Network


class CudaFused(Network):
    """sums: "ordered" gives the same bits on every run, "atomic" adds in the order of
    arrival. Where all blocks share a large network's gradients, nothing is added up:
    both are the same.

    After a failed launch the device's parameters are lost; those of the host are what
    the last call of `params`, `assign` or `predict` saw.
    """

    name = "cuda-fused"
    tapes = False
    kernels = "forward", "backward", "step", "update"

    def __init__(self, params, threads=None, sums="ordered"):
        super().__init__(params, threads)
        self._made_with["sums"] = sums
        self._atomic = check_choice("sums", sums, ("ordered", "atomic")) == "atomic"
        self._device, self._passes = device.Device(self.name), {}
        self._dataset = lambda: None  # the data set whose examples are on the device
        self._replace(self._params)

    def _forget(self):
        self._device.refuse_fork()

    def _replace(self, params):
        self._on_host = (
            False  # from here on the device's count, the old ones or the new
        )
        self._device.send("theta", pack(params, transposed=True))
        self._params = params
        self._on_host = True

    def _now(self):
        """The host's parameters, brought up to date once all of them have arrived."""
        if not self._on_host:
            named = unpack(self._fetch("theta", self._size()), self._params)
            self._params = Params.from_arrays(named, self._cell.name)
            self._on_host = True
        return self._params

    def _forward(self, x, state, training):
        run = self._pass(*x.shape[:2])
        L, T, B, _, H, _ = n = run.n
        both = pair(
            n, self._dtype, state and (state[0], state[-1])
        )  # without c, c is h
        run.send(x=x, state=both)
        run.launch("forward", run.plan.tile, self._theta(), run.work())
        y = run.fetch(
            "h", (T, B, H), skip=((L - 1) * (T + 1) + 1) * B * H
        )  # the top layer, slot 1
        both = run.fetch("state", both.shape)
        return y, tuple(both[: len(self._cell.state)]), run

    def _backward(self, run, dy, dstate, inputs):
        run.send(dy=dy, state=pair(run.n, self._dtype, dstate))
        run.clear_sums()
        run.launch("backward", run.plan.tile, self._theta(), run.work())
        self._updater(run, self._device.array("losses", 1, self._dtype), 0.0)(0)
        return self._grads(run)

    def _loss_and_grads(self, x, target):
        return self._step(x, target, 0.0), self._grads(self._pass(*x.shape[:2]))

    def _step(self, x, target, rate):
        device, B = self._device, x.shape[1]
        self._dataset = lambda: None
        self._examples = device.send("x", x), device.send("target", target)
        losses, order = (
            device.array("losses", 1, self._dtype),
            device.send("order", np.arange(B)),
        )
        self._steps(len(x), order, B, losses, rate)
        return float(self._fetch("losses", 1)[0])

    def _epoch(self, dataset, order, batch_size, rate):
        """A step for each mini-batch of `order`, with no transfer in between.

        The data set is copied to the device once and kept until another one is used:
        its arrays must not change. Losses come back at the end: the steps after one
        that is not finite are computed, but not returned.
        """
        device = self._device
        if self._dataset() is not dataset:
            x, target = self._check_example(dataset.x, dataset.target)
            self._dataset = lambda: None
            self._examples = device.send("x", x), device.send("target", target)
            self._dataset = weakref.ref(dataset)
        count = -(-len(order) // batch_size)
        losses = device.array("losses", count, self._dtype)
        self._steps(
            dataset.x.shape[0], device.send("order", order), batch_size, losses, rate
        )
        losses = self._fetch("losses", count)
        good = np.isfinite(losses)
        return losses[: len(losses) if good.all() else good.argmin() + 1].tolist()

    def _steps(self, T, order, batch_size, losses, rate):
        """Launch a step for each mini-batch of `order`."""
        self._on_host &= rate == 0
        (x, target), theta, rate = self._examples, self._theta(), self._dtype.type(rate)
        for batch, first in enumerate(range(0, order.size, batch_size)):
            B = min(batch_size, order.size - first)
            if batch == 0 or batch_size > B:  # the last one may be smaller
                run = self._pass(T, B)
                run.clear_sums()
                step, update = run.kernel("step"), self._updater(run, losses, rate)
                n, tile, work = run.numbers, run.plan.tile, run.work()
            step(n, tile, first, order, x, target, theta, work, rate)
            update(batch)

    def _pass(self, T, B):
        if (T, B) not in self._passes:
            how = self._device, self._params, T, B, self._atomic, self.kernels
            self._passes[T, B] = Pass(*how)
        return self._passes[T, B]

    def _updater(self, run, losses, rate):
        """A function (batch) that launches the end of a step."""
        kernel, theta, work = run.kernel("update"), self._theta(), run.work()
        n, blocks, rate = run.numbers, run.plan.blocks, self._dtype.type(rate)
        return lambda batch: kernel(n, blocks, theta, work, losses, batch, rate)

    def _theta(self):
        return self._device.kept("theta")

    def _size(self):
        return packed_size(Sizes.of(self._params, 0, 0), len(self._cell.gates))

    def _fetch(self, name, size):
        return self._device.fetch(self._device.kept(name), np.empty(size, self._dtype))

    def _grads(self, run):
        n = run.n
        flat = run.fetch("partials", (self._size(),))
        x, both = (
            run.fetch("dx", (n.T, n.B, n.D)),
            run.fetch("state", (2, n.L, n.B, n.H)),
        )
        return collect(self._params, flat, x, both)
