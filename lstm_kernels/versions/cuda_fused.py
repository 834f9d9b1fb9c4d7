"""`cuda-fused`: the network lives on the device.

What changed from `cuda-v3`: the parameters, the data set and the descent stay on the device, so
nothing is copied inside an epoch; and a block computes a tile of samples, a thread per unit, with
the weights in shared memory: one launch runs a mini-batch forward, back and updates. Gradients are
summed over blocks in a fixed order, without atomics. Bounded by the latency of a step, which is a
chain of inputs and units long, and for many samples by reading shared memory.
"""

import weakref
from dataclasses import dataclass
from functools import cache

import numpy as np

from ..cells import CELLS
from ..errors import check_choice
from ..gpu import device, gradient_kernels, tile_kernels
from ..params import Grads, Params
from .base import Network

SIMULATED = device.SIMULATED
ARRAYS = ("partials", "x", "h", "c", "gates", "dy", "state", "da", "dx", "d_out")
KERNELS = ("forward", "backward", "step")
MODULES = tile_kernels, gradient_kernels
MOST_SAMPLES, MOST_THREADS = 32, 4 if SIMULATED else 256  # of a block


@dataclass(frozen=True)
class Plan:
    """How a launch is cut: blocks of `threads`, tiles of `tile` samples, R samples to a thread."""

    blocks: int
    threads: int
    tile: int
    R: int
    resident: bool
    shared: int  # bytes


def _names(R, resident, atomic):
    part = {"R": R, "RESIDENT": resident, "ATOMIC": atomic}
    part |= {
        name: getattr(tile_kernels, f"{name}{R}") for name in ("start", "add_rows", "dot_rows")
    }
    return part | {"put": gradient_kernels.put_atomic if atomic else gradient_kernels.put_stored}


@cache
def kernels(name, dtype, R, resident, atomic=False, compile=None):
    """The kernels for a cell, a dtype, R samples to a thread, weights in shared memory or not."""
    names = _names(R, resident, atomic)
    return device.build(CELLS[name], dtype, MODULES, KERNELS, compile=compile, **names)


@cache
def layout(name, dtype, resident):
    """The functions `places` and `shared_size` of the kernels, for the host."""
    names = _names(1, resident, False)
    space = device.functions(CELLS[name], dtype, MODULES, **names)
    return space["places"], space["shared_size"]


def plan(n, cell, dtype, multiprocessors, shared, most_threads=MOST_THREADS):
    """The Plan for sizes n = (L, T, B, D, H, O) on a device of so many multiprocessors, each block
    with so many bytes of shared memory.

    Few samples are spread over the multiprocessors; many fill tiles, whose threads take four
    samples each. Weights that do not fit into shared memory beside four samples are read from
    device memory, through the cache. Raises ValueError where not even a sample's state fits.
    """
    B, H = n[2], n[4]
    wanted = min(MOST_SAMPLES, -(-B // multiprocessors))
    tiles = [wanted + -wanted % 4] if wanted > 3 else [wanted]
    tiles += [tile for tile in (16, 8, 4, 2, 1) if tile < tiles[0]]
    itemsize = np.dtype(dtype).itemsize
    # A property of the network, not of B: only plans without it keep transposed weights up to date.
    resident = layout(cell, dtype, True)[1](n, 4) * itemsize <= shared
    for tile in tiles:
        need = layout(cell, dtype, resident)[1](n, tile) * itemsize
        if need <= shared:
            # Four samples of float64 need more registers than a thread has.
            R = 4 if tile % 4 == 0 and itemsize == 4 else 1
            items = tile // R * H
            threads = min(most_threads, max(128, items + -items % 32))
            blocks = min(-(-B // tile), multiprocessors)  # a multiprocessor holds one
            return Plan(blocks, threads, tile, R, resident, need)
    raise ValueError(
        f"params: hidden_size {H} takes {need} bytes of shared memory for the state of one sample, "
        f"the device has {shared} for a block, want a smaller hidden_size or input_size"
    )


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
        self._dataset, self._plans = (lambda: None), {}
        self._size = sum(a.size for a in self._params.arrays().values())
        self._upload(self._params)

    def _forget(self):
        self._device.refuse_fork()

    def _step(self, x, target, rate):
        return self._example(x, target, rate)

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
        order = device.send("order", order)
        T, whole, rest = dataset.x.shape[0], *divmod(len(order), batch_size)
        batches = whole + bool(rest)
        if whole:
            step = self._stepper(self._n(T, batch_size), order, batches, rate)
            for batch in range(whole):
                step(batch * batch_size, batch)
        if rest:
            step = self._stepper(self._n(T, rest), order, batches, rate)
            step(whole * batch_size, whole)
        losses = self._fetch("losses", batches)
        good = np.isfinite(losses)
        return losses[: len(losses) if good.all() else good.argmin() + 1].tolist()

    def _forward(self, x, state, training):
        n = L, T, B, _, H, _ = self._n(*x.shape[:2])
        both = np.zeros((2, L, B, H), self._dtype)
        if state is not None:
            both[0], both[1] = state[0], state[-1]
        self._work(n, x=x, state=both)
        self._launch("forward", n)
        first = self._places(n)["h"] + ((L - 1) * (T + 1) + 1) * B * H  # of the top layer, slot 1
        top = self._work(n)[first : first + T * B * H]
        y = self._device.fetch(top, np.empty(T * B * H, self._dtype)).reshape(T, B, H)
        both = self._part(n, "state").reshape(2, L, B, H)
        state = tuple(both[i].copy() for i in range(len(self._cell.state)))
        return y, state, n

    def _backward(self, n, dy, dstate):
        L, _, B, _, H, _ = n
        both = np.zeros((2, L, B, H), self._dtype)
        for i, a in enumerate(dstate or ()):
            both[i] = a
        self._work(n, dy=dy, state=both)
        self._launch("backward", n, self._counters(n))
        return self._grads(n)

    def _loss_and_grads(self, x, target):
        loss = self._example(x, target, 0.0)
        return loss, self._grads(self._n(*x.shape[:2]))

    def _example(self, x, target, rate):
        """A launch for one mini-batch from the host; its loss."""
        n, device = self._n(*x.shape[:2]), self._device
        self._dataset = lambda: None
        self._examples = device.send("x", x), device.send("target", target)
        order = device.send("order", np.arange(x.shape[1]))
        self._stepper(n, order, 1, rate)(0, 0)
        return float(self._fetch("losses", 1)[0])

    def _n(self, T, B):
        p = self._params
        return p.num_layers, T, B, p.input_size, p.hidden_size, p.output_size or 0

    def _plan(self, n):
        if n not in self._plans:
            device = self._device
            how = self._cell.name, self._dtype, device.multiprocessors, device.most_shared
            self._plans[n] = plan(n, *how)
        return self._plans[n]

    def _places(self, n):
        places = layout(self._cell.name, self._dtype, True)[0]
        return dict(zip((*ARRAYS, "end"), places(n, self._plan(n).blocks), strict=True))

    def _work(self, n, **arrays):
        """The device array of everything but the parameters; arrays: what to copy into it."""
        places = self._places(n)
        work = self._device.array("work", places["end"], self._dtype)
        for name, a in arrays.items():
            self._device.send_into(work, places[name], a)
        return work

    def _counters(self, n):
        return self._device.array("counters", self._plan(n).blocks + 1, np.int32, zero=True)

    def _kernel(self, name, n):
        """A kernel with its grid, and with atomics a sum of zero to add to."""
        chosen = self._plan(n)
        if self._atomic:
            self._work(n, partials=np.zeros(self._size + 1, self._dtype))
        how = chosen.R, chosen.resident, self._atomic
        kernel = kernels(self._cell.name, self._dtype, *how)[name]
        return self._device.configure(kernel, chosen.blocks, chosen.threads, chosen.shared)

    def _launch(self, name, n, *more):
        theta, work = self._device.kept("theta"), self._work(n)
        self._kernel(name, n)(n, self._plan(n).tile, theta, work, *more)

    def _stepper(self, n, order, batches, rate):
        """A function (first, batch) that launches a step on the examples order[first:]."""
        device, rate, kernel = self._device, self._dtype.type(rate), self._kernel("step", n)
        self._on_host &= rate == 0
        (x, target), theta = self._examples, device.kept("theta")
        work, counters = self._work(n), self._counters(n)
        losses, tile = device.array("losses", batches, self._dtype), self._plan(n).tile

        def step(first, batch):
            kernel(n, tile, first, order, x, target, theta, work, counters, losses, batch, rate)

        return step

    def _upload(self, params):
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

    _replace = _upload

    def _now(self):
        """The host's parameters, brought up to date once all of them have arrived."""
        if not self._on_host:
            named = self._params.cut(self._fetch("theta", self._size))
            self._params = Params.from_arrays(named, self._cell.name)
            self._on_host = True
        return self._params

    def _fetch(self, name, size):
        return self._device.fetch(self._device.kept(name), np.empty(size, self._dtype))

    def _part(self, n, name):
        """An array of `work`, on the host."""
        places = self._places(n)
        end = list(places.values())[list(places).index(name) + 1]
        part = self._work(n)[places[name] : end]
        return self._device.fetch(part, np.empty(end - places[name], self._dtype))

    def _grads(self, n):
        L, T, B, D, H, _ = n
        named = self._params.cut(self._part(n, "partials"))
        both = self._part(n, "state").reshape(2, L, B, H)
        state = tuple(both) if len(self._cell.state) == 2 else (both[0] + both[1],)
        p = Params.from_arrays(named, self._cell.name)
        x = self._part(n, "dx").reshape(T, B, D)
        return Grads(p.layers, p.V, p.b_out, p.cell, x=x, state=state)
