"""`numba-fused`: the machine's limit on a CPU.

What changed from `numba-sample`: weights are packed for vector registers, the cell is applied to
the sums of a register tile before they are stored (`simd.py`, `tiles.py`), and a whole pass, a
training step or an epoch runs in one region (`fused_kernels.py`) of threads of its own (`team.py`).
They share the samples of a mini-batch, or the hidden units of a step, or stay away: `cost.py`
predicts what is fastest. Bounded by the FMA units for a mini-batch of some samples; by reading the
weights once a step for a single sample; for the smallest networks by what a call costs.

A network keeps arrays for the shapes it was called with last; nothing of them is ever returned.
"""

import threading
from functools import cache, partial

import numba
import numpy as np

from ..cells import CELLS
from ..cores import cores
from ..errors import check_rate
from ..params import Grads, Params
from ..reference import Tape
from . import block_kernels, cost, fused_kernels, records, rounds, simd
from .base import Network
from .compiled import array_at, fill, native, record_at
from .spaces import Packed, Space, Work, address, buffer, point
from .team import MOST_THREADS, call, team
from .tiles import Tiles

MOST_SPACES = 4


@cache
def machine_costs(dtype, threads):
    """The costs of this machine (`cost.py`), measured at the first call: a few milliseconds."""

    def runner(H, B, T, split):
        net = NumbaFused(Params.init(1, H, dtype=dtype), threads=threads)
        space = Space(net, T, B, False, split)
        final = np.empty(space.final_shape, dtype)
        return partial(net._infer, space, np.zeros((T, B, 1), dtype), space.top, final)

    return cost.measure(runner, partial(Tiles, CELLS["lstm"], dtype), threads)


class Kernels:
    """The kernels as machine code for a dtype and whatever tiles a plan names, each compiled when
    its address is first asked for.
    """

    def __init__(self, functions, label):
        self._functions, self._label, self._found = functions, label, {}

    def address(self, name):
        if name not in self._found:
            function = getattr(self._functions, name).py_func
            self._found[name] = native(function, self._label, function.__globals__)
        return self._found[name]

    def run(self, participants, name, work, owner):
        """Run a kernel on a Work, in a region of up to so many participants; whether one stayed."""
        owner = owner, work.layers, work.job, work.sync
        return team().run(participants, self.address(name), work.address, work.next_round, owner)


def names(dtype):
    """The free names of `fused_kernels` and `block_kernels`."""
    tiles = Tiles(CELLS["rnn"], dtype, 1).all()  # tiles of every cell are called alike
    found = {
        name: simd.caller(tiles[name])
        for name in ("inputs", "step", "whole", "back", "few", "transpose")
    }
    found |= {name: simd.caller(tiles[f"{name}_U"]) for name in ("through", "gradient")}
    found |= {"claim": rounds.claim, "finish": rounds.finish, "wait": rounds.wait, "call": call}
    found |= {"layer_at": record_at(records.LAYER), "job_at": record_at(records.JOB)}
    found |= {"array": array_at(dtype), "array_of_indices": array_at(np.int64)}
    return found | {"real": dtype.type}


@cache
def kernels(dtype):
    return Kernels(fill(fused_kernels, names(dtype), dtype.name, block_kernels), dtype.name)


def _plain(array):
    """The array, or a copy where its numbers do not lie at multiples of their size."""
    return array if array.flags.aligned else array.copy()


class NumbaFused(Network):
    """A network whose parameters live packed, and whose passes run in compiled code as a whole.

    Several Python threads may use one network: each call waits for the one before. `backward`
    belongs to the thread that ran `forward(training=True)`.
    """

    make_kernels = staticmethod(kernels)

    def __init__(self, params, threads=None):
        super().__init__(params, threads)
        most = min(numba.config.NUMBA_NUM_THREADS, MOST_THREADS)
        if threads is not None and self._threads > most:
            raise ValueError(
                f"threads: got {threads}, want at most {most}, what Numba started with"
            )
        self._threads = self._threads or min(numba.get_num_threads(), cores(), most)
        mine = self._params
        self._hidden = mine.hidden_size
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
        self.kernels, self._lock, self._spaces = (
            self.make_kernels(tiles.dtype),
            threading.RLock(),
            {},
        )
        self._transposes_are_old, self._packing = True, None
        self.packed.pack(mine.layers)

    def assign(self, params):
        with self._lock:
            super().assign(params)
            self.packed.pack(self._params.layers)
            self._transposes_are_old = True

    def params(self):
        with self._lock:
            self.packed.unpack(self._params.layers)
            return super().params()

    def bare_forward(self, x):
        """The compiled part of `forward(x)` as a function without arguments: what the benchmark
        takes from the public call to find that call's own cost.
        """
        space = self._space(*x.shape[:2], False)
        top = space.top if space.padded_y else np.empty(space.y_shape, x.dtype)
        final = np.empty(space.final_shape, x.dtype)
        return partial(self._infer, space, x, top, final)  # which keeps the arrays alive

    def step(self, x, target, learning_rate):
        learning_rate = check_rate("learning_rate", learning_rate)
        x, target = self._check_example(x, target)
        with self._lock:
            self._tapes = None
            space = self._space(*x.shape[:2], True)
            space.work.job["order"] = 0
            return float(self._descend(space, learning_rate, _plain(x), _plain(target), 1)[0])

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
                    chosen = {"source": data[0], "labels": data[1], "N": data[0].shape[1]}
                    point(space.work.job, chosen | {"order": part})
                    count = len(part) // B
                    losses += self._descend(
                        space, learning_rate, space.x, space.target, count
                    ).tolist()
        return losses

    def pack_transposes(self):
        """Write the transposed weights anew, on one thread; in a training step all threads do."""
        if self._packing is None:
            self._packing = self._packing_work()
        self.kernels.run(1, "pack", self._packing, self)
        self._transposes_are_old = False

    def _packing_work(self):
        tiles, size = self.tiles, self.tiles.dtype.itemsize
        layers, job = np.zeros(len(self.sizes), records.LAYER), np.zeros(1, records.JOB)
        for l, q in enumerate(layers):
            weights, transposed = self.packed.layers[l], self.transposed[l]
            fields = {"J": tiles.blocks, "lanes": tiles.lanes, "wide": tiles.WIDE, "size": size}
            fields |= {"J_wide": tiles.padded // tiles.WIDE, "line": tiles.WIDE * size}
            fields |= {"D_wide": tiles.pad(self.sizes[l]) // tiles.WIDE}
            fields |= {f"{m}_row": weights[m][0, 0].nbytes for m in "UW"}
            fields |= {f"{m}_block": weights[m][0].nbytes for m in "UW"}
            fields |= {f"{m}T_block": transposed[m][0].nbytes for m in "UW"}
            fields |= {m: weights[m] for m in "UW"} | {f"{m}T": transposed[m] for m in "UW"}
            point(q, fields | {"transpose": address(tiles, "transpose")})
        job["L"] = len(layers)
        return Work(layers, job, 1)

    def _space(self, T, B, training):
        key = T, B, training
        space = self._spaces.get(key)
        if space is None:
            while len(self._spaces) >= MOST_SPACES:
                self._spaces.pop(next(iter(self._spaces)))
            space = self._spaces[key] = self._new_space(T, B, training)
        if training and self._transposes_are_old:
            self.pack_transposes()
        return space

    def _new_space(self, T, B, training):
        return Space(self, T, B, training, self.schedule(T, B, training))

    def forward_code(self, shares):
        return self.kernels.address(f"forward_{shares}")

    def backward_code(self, shares):
        return self.kernels.address(f"backward_{shares}")

    def gradients_code(self):
        return self.kernels.address("gradient_rounds")

    def schedule(self, T, B, training=False):
        """How the work on mini-batches (T, B) is divided: what `cost.py` predicts to be fastest."""
        threads = self._threads
        if threads == 1:
            return cost.schedules(self.tiles, T, B, 1)[0]
        costs = machine_costs(self._dtype, threads)
        return cost.choose(costs, self.tiles, self.sizes, T, B, training, threads)

    def _limit(self):
        return self._lock

    def _run(self, space, name, work):
        space.enter()
        space.leave(self.kernels.run(space.threads, name, work, space))

    def _infer(self, space, x, y, final):
        space.work.aim(x, y, final)
        self._run(space, "infer", space.work)

    def _back(self, space, work):
        self._run(space, "backward", work)

    def _forward(self, x, state, training):
        x, space = _plain(x), self._space(*x.shape[:2], training)
        space.begin(state)
        top = space.top if space.padded_y else np.empty(space.y_shape, x.dtype)
        final = np.empty(space.final_shape, x.dtype)
        self._infer(space, x, top, final)
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
        to = space.gradients(self)
        flat = to.begin(space.started, dy, dstate)
        to.work.read(x)
        self._back(space, to.work)
        V, b_out = self._params.V, self._params.b_out
        if V is not None:
            V, b_out = np.zeros(V.shape, V.dtype), np.zeros(b_out.shape, V.dtype)
        return self._collect(space, flat, V, b_out)

    def _loss_and_grads(self, x, target):
        space = self._space(*x.shape[:2], True)
        space.begin(None)
        to = space.gradients(self)
        flat = to.begin(False, None, None)
        V, b_out = (np.zeros(a.shape, a.dtype) for a in (self._params.V, self._params.b_out))
        point(to.work.job, {"gV": V, "gb_out": b_out, "order": 0})
        loss = self._train(space, to.work, _plain(x), _plain(target), 1)[0]
        return float(loss), self._collect(space, flat, V, b_out)

    def _descend(self, space, learning_rate, x, target, count):
        space.begin(None)
        space.work.job["rate"] = -learning_rate
        return self._train(space, space.work, x, target, count)

    def _train(self, space, work, x, target, count):
        """`count` steps on the mini-batch x, target; where the job has an order, on what it names,
        taken over into these.
        """
        losses = self._begin_training(space, work, x, target, count)
        self._run(space, "train", work)
        return losses

    def _begin_training(self, space, work, x, target, count):
        losses, space.steps_done[0] = np.empty(count, self._dtype), 0
        work.aim(x, space.top, space.final)
        point(work.job, {"losses": losses, "count": count, "x": x, "target": target})
        return losses

    def _collect(self, space, flat, V, b_out):
        """The gradients of a space as Grads, the caller's own."""
        to, mine, H = space.gradients(self), self._params, self._hidden
        dh0, dc0 = to.dh0[..., :H], space.dc[..., :H]
        two = len(self._cell.state) == 2
        state = (dh0.copy(), dc0.copy()) if two else (dh0 + dc0,)  # without c, c0 is h0
        x = to.dx[..., : self.sizes[0]].copy()
        return Grads(to.collect(flat), V, b_out, mine.cell, x=x, state=state)
