"""`numba-fused`: the machine's limit on a CPU.

What changed from `numba-sample`: weights are packed for vector registers, the cell is applied to
the sums of a register tile before they are stored (`simd.py`, `tiles.py`), and a whole pass, a
training step or an epoch runs in one region (`fused_kernels.py`) of threads of its own (`team.py`).
They share the samples of a mini-batch, or the hidden units of a step, or stay away: `cost.py`
predicts what is fastest. Bounded by the FMA units for a mini-batch of some samples; by reading the
weights once a step for a single sample; for the smallest networks by what a call costs.

A network keeps arrays for the shapes it was called with last, at most MOST_SPACES and MOST_BYTES;
nothing of them is ever returned.
"""

import math
from functools import cache, partial

import numba
import numpy as np

from ..cells import CELLS
from ..cores import cores
from ..cpu import cost, machine_code, records
from ..cpu.team import MOST_THREADS
from ..cpu.tiles import Tiles
from ..cpu.workspace import Packed, Space, Work, address, buffer, point
from ..params import Grads, Params
from .base import Network

MOST_SPACES, MOST_BYTES = 4, 1 << 30  # kept for later calls, beside those of the last one


@cache
def machine_costs(dtype, threads):
    """The costs of this machine (`cost.py`), measured at the first call: a few milliseconds."""

    def runner(H, B, T, split):
        net = NumbaFused(Params.init(1, H, dtype=dtype), threads=threads)
        space = Space(net, T, B, False, split)
        final = np.empty(space.final_shape, dtype)
        return partial(net._infer, space, np.zeros((T, B, 1), dtype), space.top, final)

    return cost.measure(runner, partial(Tiles, CELLS["lstm"], dtype), threads)


class NumbaFused(Network):
    """A network whose parameters live packed, and whose passes run in compiled code as a whole.

    A signal ends a long call between two steps, but not in the middle of changing the parameters:
    then the weight gradients of one mini-batch are waited for.
    """

    name = "numba-fused"
    make_kernels = staticmethod(machine_code.fused)

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
        self.packed = Packed(tiles, self.sizes, mine.V, mine.b_out)
        J = tiles.padded // tiles.units
        self.transposed = [
            {
                m: buffer(
                    layer[m].shape[1] // tiles.wide_units,
                    J * layer[m].shape[2] * tiles.units,
                    tiles.wide_units,
                    dtype=tiles.dtype,
                )
                for m in "UW"
            }
            for layer in self.packed.layers
        ]
        self.kernels = self.make_kernels(tiles.dtype)
        self._forget()
        self.packed.pack(mine)  # from now on these are the parameters: `_params` is their form

    def _forget(self):
        self._spaces, self._packing, self._transposes_are_old = {}, None, True

    def _now(self):
        return self.packed.unpack(self._params)

    def _replace(self, params):
        self._transposes_are_old = self._writing = True
        self.packed.pack(params)
        self._writing = False

    def bare_forward(self, x):
        """The compiled part of `forward(x)` as a function without arguments: what the benchmark
        takes from the public call to find that call's own cost.
        """
        with self._held("bare_forward"):
            space = self._space(*x.shape[:2], False)
        top = space.top if space.padded_y else np.empty(space.y_shape, x.dtype)
        final = np.empty(space.final_shape, x.dtype)
        return partial(self._infer, space, x, top, final)  # which keeps the arrays alive

    def _step(self, x, target, rate):
        space = self._space(*x.shape[:2], True)
        space.work.job["order"] = 0
        return float(self._descend(space, rate, x, target, 1)[0])

    def _epoch(self, dataset, order, batch_size, rate):
        data = self._check_example(dataset.x, dataset.target)
        T, cut, losses = len(data[0]), len(order) - len(order) % batch_size, []
        for part, B in ((order[:cut], batch_size), (order[cut:], len(order) - cut)):
            if len(part) and all(map(math.isfinite, losses[-1:])):  # it ends at one that is not
                space = self._space(T, B, True)
                chosen = {"source": data[0], "labels": data[1], "N": data[0].shape[1]}
                point(space.work.job, chosen | {"order": part})
                found = self._descend(space, rate, space.x, space.target, len(part) // B)
                losses += found[: space.steps_done[0]].tolist()
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
            fields = {"J": tiles.blocks, "lanes": tiles.lanes, "size": size}
            fields |= {"wide": tiles.wide_units, "J_wide": tiles.padded // tiles.wide_units}
            fields |= {"line": tiles.wide_units * size}
            fields |= {"D_wide": tiles.pad(self.sizes[l]) // tiles.wide_units}
            fields |= {f"{m}_row": weights[m][0, 0].nbytes for m in "UW"}
            fields |= {f"{m}_block": weights[m][0].nbytes for m in "UW"}
            fields |= {f"{m}T_block": transposed[m][0].nbytes for m in "UW"}
            fields |= {m: weights[m] for m in "UW"} | {f"{m}T": transposed[m] for m in "UW"}
            point(q, fields | {"transpose": address(tiles, "transpose")})
        job["L"] = len(layers)
        return Work(layers, job, 1)

    def _space(self, T, B, training):
        key, kept = (T, B, training), self._spaces
        space = kept.get(key)
        if space is None:
            while kept and (
                len(kept) >= MOST_SPACES or sum(s.bytes for s in kept.values()) > MOST_BYTES
            ):
                kept.pop(next(iter(kept)))
            space = kept[key] = self._new_space(T, B, training)
        if training and self._transposes_are_old:
            self.pack_transposes()
        return space

    def _new_space(self, T, B, training):
        return Space(self, T, B, training, self.work_split(T, B, training))

    def forward_code(self, shares):
        return self.kernels.address(f"forward_{shares}")

    def backward_code(self, shares):
        return self.kernels.address(f"backward_{shares}")

    def gradients_code(self):
        return self.kernels.address("gradient_rounds")

    def work_split(self, T, B, training=False):
        """How the work on mini-batches (T, B) is divided: what `cost.py` predicts to be fastest."""
        threads = self._threads
        if threads == 1:
            return cost.work_splits(self.tiles, T, B, 1)[0]
        costs = machine_costs(self._dtype, threads)
        return cost.choose(costs, self.tiles, self.sizes, T, B, training, threads)

    def _guard(self):
        return self._lock  # which is held: of contexts that do nothing more, the quickest

    def _run(self, space, name, work, passes=1):
        space.enter()
        operations = space.operations * passes
        space.leave(self.kernels.run(space.threads, name, work, space, operations))

    def _infer(self, space, x, y, final):
        space.work.aim(x, y, final)
        self._run(space, "infer", space.work)

    def _back(self, space, work):
        self._run(space, "backward", work, 2)

    def _forward(self, x, state, training):
        space = self._space(*x.shape[:2], training)
        space.begin(state)
        top = space.top if space.padded_y else np.empty(space.y_shape, x.dtype)
        final = np.empty(space.final_shape, x.dtype)
        self._infer(space, x, top, final)
        y = top[..., : self._hidden].copy() if space.padded_y else top
        return y, (final[0], final[1]) if len(final) == 2 else (final[0],), (x, space)

    def _backward(self, kept, dy, dstate):
        x, space = kept
        to = space.gradients(self)
        flat = to.begin(space.started, dy, dstate)
        to.work.read(x)
        self._back(space, to.work)
        V, b_out = self._no_readout() if self._params.V is not None else (None, None)
        return self._collect(space, flat, V, b_out)

    def _no_readout(self):
        """Gradients of the read-out, zero."""
        return [np.zeros(a.shape, a.dtype) for a in (self._params.V, self._params.b_out)]

    def _loss_and_grads(self, x, target):
        space = self._space(*x.shape[:2], True)
        space.begin(None)
        to = space.gradients(self)
        flat = to.begin(False, None, None)
        V, b_out = self._no_readout()
        point(to.work.job, {"gV": V, "gb_out": b_out, "order": 0})
        loss = self._train(space, to.work, x, target, 1)[0]
        return float(loss), self._collect(space, flat, V, b_out)

    def _descend(self, space, rate, x, target, count):
        space.begin(None)
        space.work.job["rate"] = -rate
        self._writing = True
        try:
            return self._train(space, space.work, x, target, count)
        finally:
            self._writing = False

    def _train(self, space, work, x, target, count):
        """`count` steps on the mini-batch x, target; where the job has an order, on what it names,
        taken over into these; the losses, `space.steps_done` of them: up to one not finite.
        """
        losses = self._begin_training(space, work, x, target, count)
        self._run(space, "train", work, 3 * count)
        return losses

    def _begin_training(self, space, work, x, target, count):
        losses, space.steps_done[0] = np.empty(count, self._dtype), 0
        work.aim(x, space.top, space.final)
        work.stop[1] = count
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
