"""`numba-fused`: the machine's limit on a CPU.

What changed from `numba-sample`: weights are packed for vector registers, the cell is applied to
the sums of a register tile before they are stored (`simd.py`, `tiles.py`), and a whole pass, a
training step or an epoch runs in one parallel region (`fused_kernels.py`, `rounds.py`). Threads
share the samples of a mini-batch, or the hidden units of a step, or stay away: `cost.py` predicts
what is fastest. Bounded by the FMA units for a mini-batch of some samples; by reading the weights
once a step for a single sample; for the smallest networks by entering the parallel region.

A network keeps arrays for the shapes it was called with last; nothing of them is ever returned.
"""

import os
import threading
import timeit
from contextlib import nullcontext
from functools import cache, partial

import numba
import numpy as np

from ..cells import CELLS
from ..errors import check_rate
from ..params import Grads, Layer, Params
from ..reference import Tape
from . import cost, fused_kernels, rounds, simd
from .base import Network
from .compiled import fill
from .spaces import Packed, Space, buffer
from .tiles import Tiles

ENTRIES = ("infer", "backward", "train", "pack", "readout")
MOST_SPACES = 4

_region = threading.Lock()  # one parallel region at a time: it takes every core anyway
_entered = _forked = False


@cache
def machine_costs(dtype, threads):
    """The costs of this machine (`cost.py`), measured at the first call: a few milliseconds."""

    def seconds(H, B, T, schedule):
        net = NumbaFused(Params.init(1, H, dtype=dtype), threads=threads)
        space = Space(net, T, B, False, schedule)
        x, out = np.zeros((T, B, 1), dtype), (space.h, space.top, space.c, space.final)
        call = partial(net._infer, space, x, out)
        return min(timeit.repeat(call, number=1, repeat=15))

    return cost.measure(seconds, partial(Tiles, CELLS["lstm"], dtype), threads)


def _threads():
    """Numba's own number of threads, 1 in a child of a process that ran a parallel region."""
    return 1 if _forked else numba.get_num_threads()


class _Team:
    """The context in which Numba uses `count` threads."""

    def __init__(self, count):
        self._count = count

    def __enter__(self):
        self._before = numba.get_num_threads()
        numba.set_num_threads(self._count)

    def __exit__(self, *error):
        numba.set_num_threads(self._before)


def _after_fork():
    global _region, _forked
    _region, _forked = threading.Lock(), _entered


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@cache
def kernels(dtype):
    """infer, backward, train and pack, compiled for a dtype and whatever tiles a plan names."""
    tiles = Tiles(CELLS["rnn"], dtype, 1).all()  # tiles of every cell are called alike
    names = {
        name: simd.caller(tiles[name]) for name in ("inputs", "step", "whole", "back", "transpose")
    }
    names |= {name: simd.caller(tiles[f"{name}_U"]) for name in ("through", "gradient")}
    names |= {"claim": rounds.claim, "finish": rounds.finish, "wait": rounds.wait}
    names |= {"real": dtype.type}
    return fill(fused_kernels, names, dtype.name, ENTRIES)


NO_ORDER = np.empty(0, np.int64)


def _plain(array):
    """The array, or a copy where Numba would compile anew: for a read-only or unaligned one."""
    return array if array.flags.carray else array.copy()


class NumbaFused(Network):
    """A network whose parameters live packed, and whose passes run in compiled code as a whole.

    Several Python threads may use one network: each call waits for the one before. `backward`
    belongs to the thread that ran `forward(training=True)`. In a child made by fork after a
    parallel region ran, one thread computes: OpenMP's do not survive a fork.
    """

    def __init__(self, params, threads=None):
        super().__init__(params, threads)
        if threads is not None and self._threads > numba.config.NUMBA_NUM_THREADS:
            most = numba.config.NUMBA_NUM_THREADS
            raise ValueError(
                f"threads: got {threads}, want at most {most}, what Numba started with"
            )
        # Numba's own number of threads is touched only where another one is asked for.
        self._hidden = self._params.hidden_size
        self._team = nullcontext() if threads in (None, _threads()) else _Team(threads)
        self._threads = self._threads or _threads()
        mine = self._params
        self.tiles = tiles = Tiles(self._cell, mine.dtype, mine.hidden_size)
        self.sizes = [layer.U.shape[0] for layer in mine.layers]
        self.packed, J = Packed(tiles, self.sizes), tiles.padded // tiles.UNITS
        self.transposed = [
            {
                m: buffer(
                    layer[m].shape[1] // tiles.WIDE,
                    J * layer[m].shape[2] * tiles.UNITS,
                    tiles.WIDE,
                    dtype=tiles.dtype,
                )
                for m in "UW"
            }
            for layer in self.packed.layers
        ]
        self.kernels, self._lock, self._spaces = kernels(tiles.dtype), threading.RLock(), {}
        self._packing = Space(self, 1, 1, True, cost.schedules(tiles, 1, 1, 1)[0])
        self._pack()

    def most_threads(self):
        return 1 if _forked else self._threads

    def assign(self, params):
        with self._lock:
            super().assign(params)
            self._pack()

    def params(self):
        with self._lock:
            self.packed.unpack(self._params.layers)
            return super().params()

    def bare_forward(self, x):
        """The compiled part of `forward(x)` as a function without arguments: what the benchmark
        takes from the public call to find that call's own cost.
        """
        space = self._space(*x.shape[:2], False)
        top, final = np.empty(space.y_shape, x.dtype), np.empty(space.final.shape, x.dtype)
        out = space.h, space.top if space.padded_y else top, space.c, final
        return partial(self._infer, space, x, out)

    def step(self, x, target, learning_rate):
        learning_rate = check_rate("learning_rate", learning_rate)
        x, target = self._check_example(x, target)
        with self._lock:
            self._tapes = None
            space = self._space(*x.shape[:2], True)
            batch = _plain(x), _plain(target), space.error
            return float(self._descend(space, learning_rate, batch[:2], NO_ORDER, batch, 1)[0])

    def epoch(self, dataset, order, batch_size, learning_rate):
        learning_rate = check_rate("learning_rate", learning_rate)
        order, batch_size = self._check_order(dataset, order, batch_size)
        data = tuple(map(_plain, self._check_example(dataset.x, dataset.target)))
        T, cut, losses = len(data[0]), len(order) - len(order) % batch_size, []
        with self._lock:
            self._tapes = None
            for part, B in ((order[:cut], batch_size), (order[cut:], len(order) - cut)):
                if len(part):
                    space = self._space(T, B, True)
                    batch, count = (space.x, space.target, space.error), len(part) // B
                    losses += self._descend(space, learning_rate, data, part, batch, count).tolist()
        return losses

    def _pack(self):
        self.packed.pack(self._params.layers)
        self.pack_transposes()

    def pack_transposes(self):
        """Write the transposed weights anew, on one thread; in a training step all threads do."""
        self.kernels.pack(self._packing.plan)

    def _space(self, T, B, training):
        key = T, B, training, self.most_threads()
        space = self._spaces.get(key)
        if space is None:
            while len(self._spaces) >= MOST_SPACES:
                self._spaces.pop(next(iter(self._spaces)))
            space = self._spaces[key] = self._new_space(T, B, training)
        return space

    def _new_space(self, T, B, training):
        return Space(self, T, B, training, self.schedule(T, B, training))

    def schedule(self, T, B, training=False):
        """How the work on mini-batches (T, B) is divided: what `cost.py` predicts to be fastest."""
        threads = self.most_threads()
        if threads == 1:
            return cost.schedules(self.tiles, T, B, 1)[0]
        costs = machine_costs(self._dtype, threads)
        return cost.choose(costs, self.tiles, self.sizes, T, B, training, threads)

    def _limit(self):
        return self._lock

    def run_kernel(self, kernel, plan, sync, space, *rest):
        return self.run_alone(space.threads, kernel, plan, sync, space.threads, space.shares, *rest)

    def run_alone(self, threads, call, *rest):
        """Call something that uses so many threads; with several, when no other region runs."""
        global _entered
        if threads == 1:
            return call(*rest)
        with _region:
            _entered = True
            with self._team:
                return call(*rest)

    def _infer(self, space, x, out):
        space.aim(x, out[1])
        self.run_kernel(self.kernels.infer, space.plan, space.sync, space, out)

    def _back(self, space, plan, x):
        self.run_kernel(self.kernels.backward, plan, space.sync, space, x)

    def _forward(self, x, state, training):
        x, space = _plain(x), self._space(*x.shape[:2], training)
        space.begin(state)
        top = space.top if space.padded_y else np.empty(space.y_shape, x.dtype)
        final = np.empty(space.final.shape, x.dtype)
        self._infer(space, x, (space.h, top, space.c, final))
        y = top[..., : self._hidden].copy() if space.padded_y else top
        tapes = [Tape(x, None, None, None)] if training else None
        self._owner = threading.get_ident()
        return y, (final[0], final[1]) if len(final) == 2 else (final[0],), tapes

    def _backward(self, dy, dstate):
        if self._owner != threading.get_ident():
            raise RuntimeError(
                "backward: the last forward(x, training=True) ran in another Python thread, want "
                "it in this one: a network keeps one pass"
            )
        x = self._tapes[0].x
        space = self._space(*x.shape[:2], True)
        to = space.gradients
        to.begin(dy, dstate)
        self._back(space, to.plan, x)
        V, b_out = self._params.V, self._params.b_out
        V, b_out = (None, None) if V is None else (np.zeros_like(V), np.zeros_like(b_out))
        return self._collect(space, V, b_out)

    def _loss_and_grads(self, x, target):
        space = self._space(*x.shape[:2], True)
        to = space.gradients
        to.begin(None, None)
        V, b_out = np.zeros_like(self._params.V), np.zeros_like(self._params.b_out)
        batch = _plain(x), _plain(target), space.error
        losses = self._train(
            space, to.plan, 1.0, False, batch[:2], NO_ORDER, batch, to.dy[-1], (V, b_out), 1
        )
        return float(losses[0]), self._collect(space, V, b_out)

    def _descend(self, space, learning_rate, data, order, batch, count):
        head, dy = (self._params.V, self._params.b_out), space.dy[-1]
        return self._train(
            space, space.plan, -learning_rate, True, data, order, batch, dy, head, count
        )

    def _train(self, space, plan, rate, descend, data, order, batch, dy, grads, count):
        mine, losses = self._params, np.empty(count, self._params.dtype)
        space.begin(None)
        sync = space.sync_for(count)
        work = (*data, order, *batch, space.h, space.top, space.c, space.final, dy, space.dc)
        work += (mine.V, mine.b_out, *grads, losses)
        self.run_kernel(self.kernels.train, plan, sync, space, rate, descend, work)
        return losses

    def _collect(self, space, V, b_out):
        """The gradients of a space as Grads, copies."""
        to, mine, H = space.gradients, self._params, self._params.hidden_size
        layers = [Layer(*(np.empty_like(getattr(l, m)) for m in "UWb")) for l in mine.layers]
        to.packed.unpack(layers)
        dh0, dc0 = to.dh0[..., :H], space.dc[..., :H]
        two = len(self._cell.state) == 2
        state = (dh0.copy(), dc0.copy()) if two else (dh0 + dc0,)  # without c, c0 is h0
        x = to.dx[..., : self.sizes[0]].copy()
        return Grads(layers, V, b_out, mine.cell, x=x, state=state)
