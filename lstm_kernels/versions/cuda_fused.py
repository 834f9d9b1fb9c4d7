"""`cuda-fused`: the network lives on the device.

What changed from `cuda-v3`: the parameters, the data set and the descent stay on the device, so
nothing is copied inside an epoch; and a block computes a tile of samples, a thread per unit, with
the weights in shared memory: one launch runs a mini-batch forward, back and updates. Gradients are
summed over blocks in a fixed order, without atomics. Bounded by the latency of a step, which is a
chain of inputs and units long, and for many samples by reading shared memory.
"""

import weakref

import numpy as np

from ..errors import check_choice
from ..gpu import device
from ..gpu.layout import collect, pair
from ..gpu.plans import Pass
from ..params import Params
from .base import Network


class CudaFused(Network):
    """sums: "ordered" gives the same bits on every run, "atomic" adds in the order of arrival.

    After a failed launch the device's parameters are lost; those of the host are what the last call
    of `params`, `assign` or `predict` saw.
    """

    name = "cuda-fused"

    def __init__(self, params, threads=None, sums="ordered"):
        super().__init__(params, threads)
        self._made_with["sums"] = sums
        self._atomic = check_choice("sums", sums, ("ordered", "atomic")) == "atomic"
        self._device, self._passes = device.Device(self.name), {}
        self._dataset = lambda: None  # the data set whose examples are on the device
        self._size = sum(a.size for a in self._params.arrays().values())
        self._replace(self._params)

    def _forget(self):
        self._device.refuse_fork()

    def _replace(self, params):
        """Parameters, and behind them the same with every U and W transposed."""
        flat = [a.reshape(-1) for a in params.arrays().values()]
        flat += [
            a.T.reshape(-1) if name.endswith((".U", ".W")) else a.reshape(-1)
            for name, a in params.arrays().items()
        ]
        self._on_host = False  # from here on the device's count, the old ones or the new
        self._device.send("theta", np.concatenate(flat))
        self._params = params
        self._on_host = True

    def _now(self):
        """The host's parameters, brought up to date once all of them have arrived."""
        if not self._on_host:
            named = self._params.cut(self._fetch("theta", self._size))
            self._params = Params.from_arrays(named, self._cell.name)
            self._on_host = True
        return self._params

    def _forward(self, x, state, training):
        run = self._pass(*x.shape[:2])
        L, T, B, _, H, _ = n = run.n
        both = pair(n, self._dtype, state and (state[0], state[-1]))  # without c, c is h
        run.send(x=x, state=both)
        run.launch("forward")
        first = run.places.h + ((L - 1) * (T + 1) + 1) * B * H  # of the top layer, slot 1
        y = run.work()[first : first + T * B * H]
        y = self._device.fetch(y, np.empty(T * B * H, self._dtype)).reshape(T, B, H)
        both = run.fetch("state").reshape(both.shape)
        return y, tuple(both[: len(self._cell.state)]), run

    def _backward(self, run, dy, dstate):
        run.send(dy=dy, state=pair(run.n, self._dtype, dstate))
        run.launch("backward", run.counters())
        return self._grads(run)

    def _loss_and_grads(self, x, target):
        return self._step(x, target, 0.0), self._grads(self._pass(*x.shape[:2]))

    def _step(self, x, target, rate):
        device, B = self._device, x.shape[1]
        self._dataset = lambda: None
        self._examples = device.send("x", x), device.send("target", target)
        self._stepper(self._pass(*x.shape[:2]), device.send("order", np.arange(B)), 1, rate)(0, 0)
        return float(self._fetch("losses", 1)[0])

    def _epoch(self, dataset, order, batch_size, rate):
        """A step for each mini-batch of `order`, with no transfer in between.

        The data set is copied to the device once and kept until another one is used: its arrays
        must not change. Losses come back at the end: the steps after one that is not finite are
        computed, but not returned.
        """
        device = self._device
        if self._dataset() is not dataset:
            x, target = self._check_example(dataset.x, dataset.target)
            self._dataset = lambda: None
            self._examples = device.send("x", x), device.send("target", target)
            self._dataset = weakref.ref(dataset)
        T, N, firsts = dataset.x.shape[0], len(order), range(0, len(order), batch_size)
        order = device.send("order", order)
        for batch, first in enumerate(firsts):
            B = min(batch_size, N - first)
            if batch == 0 or batch_size > B:  # the last one may be smaller
                step = self._stepper(self._pass(T, B), order, len(firsts), rate)
            step(first, batch)
        losses = self._fetch("losses", len(firsts))
        good = np.isfinite(losses)
        return losses[: len(losses) if good.all() else good.argmin() + 1].tolist()

    def _pass(self, T, B):
        if (T, B) not in self._passes:
            self._passes[T, B] = Pass(self._device, self._params, T, B, self._atomic)
        return self._passes[T, B]

    def _stepper(self, run, order, batches, rate):
        """A function (first, batch) that launches a step on the examples order[first:]."""
        kernel, rate = run.kernel("step"), self._dtype.type(rate)
        self._on_host &= rate == 0
        (x, target), theta = self._examples, self._device.kept("theta")
        losses = self._device.array("losses", batches, self._dtype)
        n, tile, work, counters = tuple(run.n), run.plan.tile, run.work(), run.counters()

        def step(first, batch):
            kernel(n, tile, first, order, x, target, theta, work, counters, losses, batch, rate)

        return step

    def _fetch(self, name, size):
        return self._device.fetch(self._device.kept(name), np.empty(size, self._dtype))

    def _grads(self, run):
        n, flat = run.n, self._fetch("work", self._size)
        x, both = run.fetch("dx").reshape(n.T, n.B, n.D), run.fetch("state")
        return collect(self._params, self._cell, flat, x, both.reshape(2, n.L, n.B, n.H))
