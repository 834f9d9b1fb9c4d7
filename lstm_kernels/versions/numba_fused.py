"""`numba-fused`: the machine's limit on a CPU.

What changed from `numba-sample`: weights are packed for vector registers, the cell is
applied to the sums of a register tile before they are stored, and a whole pass, a
training step or an epoch runs in one region of threads of its own. They share the
samples of a mini-batch, or the hidden units of a step, or stay away: `cost.py` predicts
what is fastest. Bounded by the FMA units for a mini-batch of some samples; by reading
the weights once a step for a single sample; for the smallest networks by what a call
costs.

Who computes what changes no bit: the order of additions is fixed in `tiles.py` and
`block_kernels.py`. README says how x gets through these rooms.

A network keeps arrays for the shapes it was called with last, at most MOST_SPACES and
MOST_BYTES; nothing of them is ever returned.
"""

import math
from functools import cache, partial

import numba
import numpy as np

from ..cells import CELLS
from ..cores import cores
from ..cpu import cost, machine_code
from ..cpu.team import MOST_THREADS
from ..cpu.tiles import Tiles
from ..cpu.workspace import Packed, Space, buffer, point
from ..params import Params
from .base import Network

MOST_SPACES, MOST_BYTES = (
    4,
    1 << 30,
)  # kept for later calls, beside those of the last one


@cache
def machine_costs(dtype, threads):
    """The costs of this machine (`cost.py`), measured at the first call: a few
    milliseconds.
    """
    make = partial(NumbaFused, threads=threads)
    return measured(make, partial(Tiles, CELLS["lstm"], dtype), dtype, threads)


def measured(make, tiles, dtype, threads):
    """The costs of networks that `make(params)` makes, whose tiles for a size are
    tiles(H).
    """

    def runner(H, B, T, split):
        net = make(Params.init(1, H, dtype=dtype))
        space = net.space(net, T, B, "inference", split)
        return partial(net._infer, space, np.zeros((T, B, 1), dtype), *space.outputs())

    return cost.measure(runner, tiles, threads)


class NumbaFused(Network):
    """A network whose parameters live packed, and whose passes run in compiled code as
    a whole. A signal ends a long call between two steps, but waits while it changes the
    parameters.
    """

    name = "numba-fused"
    space = Space  # the class of its arrays for a mini-batch

    def __init__(self, params, threads=None):
        super().__init__(params, threads)
        most = min(numba.config.NUMBA_NUM_THREADS, MOST_THREADS)
        if threads is not None and self._threads > most:
            raise ValueError(
                f"threads: got {threads}, want at most {most}, Numba's own number"
            )
        self._threads = self._threads or min(numba.get_num_threads(), cores(), most)
        params = self._params
        self.tiles = self._choose_tiles()
        self.sizes = [layer.U.shape[0] for layer in params.layers]
        self.packed = Packed(self.tiles, self.sizes, params.V, params.b_out)
        self.operands, self.kernels = self._operands(), self._choose_kernels()
        self._forget()
        self.packed.pack(
            params
        )  # from now on these are the parameters: `_params` is their form

    def _choose_tiles(self):
        return Tiles(self._cell, self._dtype, self._params.hidden_size)

    def _choose_kernels(self):
        return machine_code.kernels(self._dtype)

    def _operands(self):
        """Of each layer U and W, as products take them, and room for their transposes
        (wide unit blocks, J * G * units, wide).
        """
        wide, layers = self.tiles.wide_units, []
        for packed in self.packed.layers:
            layer = {m: packed[m] for m in "UW"}
            for m, (J, rows, G, units) in {m: packed[m].shape for m in "UW"}.items():
                shape = rows // wide, J * G * units, wide
                layer[f"{m}T"] = buffer(*shape, dtype=self._dtype)
            layers.append(layer)
        return layers

    def _forget(self):
        self._spaces, self._transposes_are_old = {}, True

    def _now(self):
        return self.packed.unpack(self._params)

    def _replace(self, params):
        self._transposes_are_old = self._writing = True
        self.packed.pack(params)
        self._writing = False

    def bare_forward(self, x):
        """The compiled part of `forward(x)`, without arguments: the benchmark finds
        what the public call costs beside it.
        """
        with self._held("bare_forward"):
            space = self._space(*x.shape[:2], "inference")
        return partial(
            self._infer, space, x, *space.outputs()
        )  # which keeps the arrays alive

    def _step(self, x, target, rate):
        space = self._space(*x.shape[:2], "descent")
        space.work.job["order"] = 0
        return float(self._descend(space, rate, x, target, 1)[0])

    def _epoch(self, dataset, order, batch_size, rate):
        data = self._check_example(dataset.x, dataset.target)
        T, cut, losses = len(data[0]), len(order) - len(order) % batch_size, []
        for part, B in ((order[:cut], batch_size), (order[cut:], len(order) - cut)):
            if len(part) and all(
                map(math.isfinite, losses[-1:])
            ):  # it ends at one that is not
                space = self._space(T, B, "descent")
                examples = {"source": data[0], "labels": data[1], "N": data[0].shape[1]}
                point(space.work.job, order=part, **examples)
                steps = self._descend(
                    space, rate, space.x, space.target, len(part) // B
                )
                losses += steps[: space.steps_done[0]].tolist()
        return losses

    def pack_transposes(self, space):
        """Write the transposed weights anew, on one thread; in a training step all
        threads do.
        """
        self.kernels.run(1, "pack", space.work, space)
        self._transposes_are_old = False

    def _space(self, T, B, purpose, rooms=None):
        spaces, key = self._spaces if rooms is None else rooms, (T, B, purpose)
        space = spaces.get(key)
        if space is None:
            while spaces and (
                len(spaces) >= MOST_SPACES
                or sum(s.bytes for s in spaces.values()) > MOST_BYTES
            ):
                spaces.pop(next(iter(spaces)))
            space = spaces[key] = self._new_space(T, B, purpose)
        if purpose != "inference" and self._transposes_are_old:
            self.pack_transposes(space)
        return space

    def _new_space(self, T, B, purpose):
        return self.space(
            self, T, B, purpose, self.work_split(T, B, purpose != "inference")
        )

    def work_split(self, T, B, training=False):
        """How the work on mini-batches (T, B) is divided: what `cost.py` predicts to be
        fastest.
        """
        threads = self._threads
        if threads == 1:
            return cost.work_splits(self.tiles, T, B, 1)[0]
        costs = self.machine_costs()
        return cost.choose(costs, self.tiles, self.sizes, T, B, training, threads)

    def machine_costs(self):
        """What its tiles cost on this machine, MachineCosts."""
        return machine_costs(self._dtype, self._threads)

    def _guard(self):
        return (
            self._lock
        )  # which is held: of contexts that do nothing more, the quickest

    def _run(self, space, name, passes=1):
        """Run a kernel on a Space, about as long as so many forward passes."""
        space.enter()
        operations = space.operations * passes
        space.leave(
            self.kernels.run(space.threads, name, space.work, space, operations)
        )

    def _infer(self, space, x, y, final):
        space.work.aim(x, y, final)
        self._run(space, "infer")

    def _forward(self, x, state, training, rooms=None):
        space = self._space(
            *x.shape[:2], "gradients" if training else "inference", rooms
        )
        space.begin(state)
        y, final = space.outputs()
        self._infer(space, x, y, final)
        if space.padded_y:
            y = y[..., : self.tiles.hidden].copy()
        state = (
            (final[0], final[1]) if len(final) == 2 else (final[0],)
        )  # tuple(final) is slower
        return y, state, (x, space)  # x too: the records point to it

    def _backward(self, tape, dy, dstate, inputs):
        return self._backward_summed(None, False, tape, dy, dstate, inputs)

    def _backward_summed(self, sums, more, tape, dy, dstate, inputs):
        _, space = tape
        parts = space.begin_backward(dy, dstate, more)
        space.aim_gradients(self, sums)
        point(space.work.layers[0], dx=space.dx if inputs else 0)
        self._run(space, "backward", 2)
        return space.collect(self, parts, inputs)

    def _loss_and_grads(self, x, target):
        space = self._space(*x.shape[:2], "gradients")
        parts = space.begin_backward()
        space.aim_gradients(self)
        point(space.work.layers[0], dx=space.dx)
        loss = self._train(space, x, target, 1)[0]
        return float(loss), space.collect(self, parts)

    def _descend(self, space, rate, x, target, count):
        space.work.job["rate"] = -rate
        self._writing = True
        try:
            return self._train(space, x, target, count)
        finally:
            self._writing = False

    def _train(self, space, x, target, count):
        """`count` steps on the mini-batch x, target; where the job has an order, on
        what it names, taken over into these; the losses, `space.steps_done` of them: up
        to one not finite.
        """
        space.begin(None)
        losses, work, space.steps_done[0] = np.empty(count, self._dtype), space.work, 0
        work.aim(x, space.top, space.final)
        work.stop[1] = count
        point(work.job, losses=losses, target=target)
        self._steps(space, losses)
        return losses

    def _steps(self, space, losses):
        self._run(space, "train", 3 * len(losses))
