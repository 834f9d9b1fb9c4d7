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
from ..gpu.layout import Places, Sizes, collect, pair
from ..gpu.plans import MODULES, plan
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
        self._device = device.Device(self.name)
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
        n = L, T, B, _, H, _ = Sizes.of(self._params, *x.shape[:2])
        both = pair(n, self._dtype, state and (state[0], state[-1]))  # without c, c is h
        work = self._work(n, x=x, state=both)
        self._launch("forward", n)
        first = self._places(n).h + ((L - 1) * (T + 1) + 1) * B * H  # of the top layer, slot 1
        y = self._device.fetch(work[first : first + T * B * H], np.empty(T * B * H, self._dtype))
        both = self._part(n, "state").reshape(both.shape)
        return y.reshape(T, B, H), tuple(both[: len(self._cell.state)]), n

    def _backward(self, n, dy, dstate):
        self._work(n, dy=dy, state=pair(n, self._dtype, dstate))
        self._launch("backward", n, self._device.counters(self._plan(n).blocks))
        return self._grads(n)

    def _loss_and_grads(self, x, target):
        loss = self._step(x, target, 0.0)
        return loss, self._grads(Sizes.of(self._params, *x.shape[:2]))

    def _step(self, x, target, rate):
        n, device = Sizes.of(self._params, *x.shape[:2]), self._device
        self._dataset = lambda: None
        self._examples = device.send("x", x), device.send("target", target)
        order = device.send("order", np.arange(n.B))
        self._stepper(n, order, 1, rate)(0, 0)
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
                step = self._stepper(Sizes.of(self._params, T, B), order, len(firsts), rate)
            step(first, batch)
        losses = self._fetch("losses", len(firsts))
        good = np.isfinite(losses)
        return losses[: len(losses) if good.all() else good.argmin() + 1].tolist()

    def _plan(self, n):
        device = self._device
        return plan(n, self._cell, self._dtype, device.multiprocessors, device.most_shared)

    def _places(self, n):
        return Places.of(n, self._plan(n).blocks, self._size, self._cell)

    def _work(self, n, **arrays):
        """The device array of everything but the parameters; arrays: what to copy into it."""
        places = self._places(n)
        work = self._device.array("work", places.end, self._dtype)
        for name, a in arrays.items():
            self._device.send_into(work, getattr(places, name), a)
        return work

    def _kernel(self, name, n):
        """A kernel with its grid, and with atomics a sum of zero to add to."""
        plan, options = self._plan(n), {"ATOMIC": self._atomic}
        if self._atomic:
            self._work(n, partials=np.zeros(self._size + 1, self._dtype))
        options |= {"R": plan.R, "RESIDENT": plan.resident}
        kernel = device.build(self._cell.name, self._dtype, MODULES, **options)[name]
        return self._device.configure(kernel, plan.blocks, plan.threads, plan.shared)

    def _launch(self, name, n, *more):
        theta, work = self._device.kept("theta"), self._work(n)
        self._kernel(name, n)(tuple(n), self._plan(n).tile, theta, work, *more)

    def _stepper(self, n, order, batches, rate):
        """A function (first, batch) that launches a step on the examples order[first:]."""
        device, rate, kernel = self._device, self._dtype.type(rate), self._kernel("step", n)
        self._on_host &= rate == 0
        (x, target), theta = self._examples, device.kept("theta")
        work, counters = self._work(n), self._device.counters(self._plan(n).blocks)
        losses, tile = device.array("losses", batches, self._dtype), self._plan(n).tile
        sizes = tuple(n)

        def step(first, batch):
            kernel(sizes, tile, first, order, x, target, theta, work, counters, losses, batch, rate)

        return step

    def _fetch(self, name, size):
        return self._device.fetch(self._device.kept(name), np.empty(size, self._dtype))

    def _part(self, n, name):
        """An array of `work`, on the host."""
        part = self._work(n)[self._places(n).part(name)]
        return self._device.fetch(part, np.empty(part.size, self._dtype))

    def _grads(self, n):
        x = self._part(n, "dx").reshape(n.T, n.B, n.D)
        both = self._part(n, "state").reshape(2, n.L, n.B, n.H)
        return collect(self._params, self._cell, self._fetch("work", self._size), x, both)
