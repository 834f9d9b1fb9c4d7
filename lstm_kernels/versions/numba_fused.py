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
from ..cpu import cost, passes
from ..cpu.arrays import JOB_WORD
from ..cpu.team import MOST_THREADS
from ..cpu.tiles import Tiles
from ..cpu.workspace import Packed, Space, at, point, transposes
from ..params import Params
from .base import Network

MOST_SPACES, MOST_BYTES = 4, 1 << 30  # for later calls, beside those of the last one


@cache
def machine_costs(dtype, threads):
    """The costs of this machine (`cost.py`), measured at the first call: a few
    milliseconds.
    """

    def runner(H, B, T, split):
        net = NumbaFused(Params.init(1, H, dtype=dtype), threads)
        return net.bare_forward(np.zeros((T, B, 1), dtype), split)

    return cost.measure(runner, partial(Tiles, CELLS["lstm"], dtype), threads)


def chosen_threads(threads):
    """How many threads a network uses for its argument `threads`, checked; None: those
    that keep the cores busy.
    """
    most = min(numba.config.NUMBA_NUM_THREADS, MOST_THREADS)
    if threads is not None and threads > most:
        want = f"at most {most}, Numba's own number"
        raise ValueError(f"threads: got {threads}, want {want}")
    return threads or min(numba.get_num_threads(), cores(), most)


class NumbaFused(Network):
    """A network whose parameters live packed, and whose passes run in compiled code as
    a whole. A signal ends a long call between two steps, but waits while it changes the
    parameters.
    """

    name = "numba-fused"
    tiles_class = Tiles
    space_class = Space  # of the arrays for a mini-batch

    def __init__(self, params, threads=None):
        super().__init__(params, threads)
        self._threads = chosen_threads(self._threads)
        params = self._params
        sizes = self._cell, self._dtype, params.hidden_size
        self.tiles = self.tiles_class(*sizes)
        self.inputs = [len(layer.U) for layer in params.layers]
        self.packed = Packed(Tiles(*sizes), self.inputs, params.V, params.b_out)
        self._transposes = transposes(self.tiles, self.inputs)
        self._spaces, self._transposes_are_old = {}, True
        self.packed.pack(params)  # from now on the parameters: `_params` is their form

    def weights(self, l):
        """The packed arrays that products with the weights of layer l read, by name."""
        return self.packed.layers[l] | self._transposes[l]

    def _now(self):
        return self.packed.unpack(self._params)

    def _replace(self, params):
        self._transposes_are_old = True
        self.packed.pack(params)

    def bare_forward(self, x, split=None):
        """The compiled part of `forward(x)`, without arguments: it shows what a public
        call costs beside it. split: how the work is divided, a WorkSplit.
        """
        with self._held("bare_forward"):
            T, B, _ = x.shape
            if split is None:
                space = self._space(T, B, "inference", {})  # of its own
            else:
                space = self.space_class(self, T, B, "inference", split)
            outputs = space.begin(x)
        return partial(self._infer, space, x, outputs)  # which keeps the arrays alive

    def _infer(self, space, *arrays):
        self._run(space, passes.infer)

    def _run(self, space, kernel, forward_passes=1):
        """Run a kernel on a Space, about as long as so many forward passes."""
        operations = space.operations * forward_passes
        space.work.run(kernel, space.threads, space, operations)

    def _step(self, x, target, rate):
        space = self._space(*x.shape[:2], "descent")
        space.work.job_words[JOB_WORD.order] = 0
        return float(self._descend(space, rate, x, target, 1)[0])

    def _epoch(self, dataset, order, batch_size, rate):
        x, target = self._check_example(dataset.x, dataset.target)
        (T, N, _), losses = x.shape, []
        cut = len(order) - len(order) % batch_size
        for part, B in ((order[:cut], batch_size), (order[cut:], len(order) - cut)):
            if len(part) and all(map(math.isfinite, losses[-1:])):
                space = self._space(T, B, "descent")
                point(space.work.job, order=part, source=x, labels=target, N=N)
                batch = space.arrays["x"], space.arrays["target"]
                losses += self._descend(space, rate, *batch, len(part) // B).tolist()
        return losses

    def pack_transposes(self, space):
        """Write the transposed weights anew, on one thread; in a training step all
        threads do.
        """
        space.work.run(passes.pack_transposes, 1, space)
        self._transposes_are_old = False

    def _space(self, T, B, purpose, spaces=None):
        """The Space for mini-batches (T, B); spaces: of another tape than its own."""
        spaces, key = self._spaces if spaces is None else spaces, (T, B, purpose)
        space = spaces.get(key)
        if space is None:
            while spaces and (
                len(spaces) >= MOST_SPACES
                or sum(space.bytes for space in spaces.values()) > MOST_BYTES
            ):
                spaces.pop(next(iter(spaces)))
            space = spaces[key] = self._new_space(T, B, purpose)
        if purpose != "inference" and self._transposes_are_old:
            self.pack_transposes(space)
        return space

    def _new_space(self, T, B, purpose):
        split = self.work_split(T, B, purpose != "inference")
        return self.space_class(self, T, B, purpose, split)

    def work_split(self, T, B, training=False):
        """How the work on mini-batches (T, B) is divided: what `cost.py` predicts to be
        fastest.
        """
        threads = self._threads
        if threads == 1:
            return cost.work_splits(self.tiles, T, B, 1)[0]
        costs = machine_costs(self._dtype, threads)
        return cost.choose(costs, self.tiles, self.inputs, T, B, training, threads)

    def _guard(self):
        return self._lock  # which is held: of contexts that do nothing, the quickest

    def _forward(self, x, state, training, spaces=None):
        purpose = "gradients" if training else "inference"
        space = self._space(*x.shape[:2], purpose, spaces)
        top = space.begin(x, state)
        self._run(space, passes.infer)
        return *space.outputs(top), (x, space)  # x too: the records point to it

    def _backward(self, tape, dy, dstate, inputs):
        _, space = tape
        gradients = space.begin_backward(dy, dstate)
        dx = space.arrays["dx"] if inputs else 0
        point(space.work.layers[0], dx=dx)
        self._run(space, passes.backward, 2)
        return space.collect(gradients, inputs)

    def _loss_and_grads(self, x, target):
        space = self._space(*x.shape[:2], "gradients")
        gradients = space.begin_backward()
        point(space.work.layers[0], dx=space.arrays["dx"])
        loss = self._train(space, x, target, 1)[0]
        return float(loss), space.collect(gradients)

    def _descend(self, space, rate, x, target, count):
        space.work.job["rate"] = -rate
        return self._train(space, x, target, count)

    def _train(self, space, x, target, count):
        """`count` steps on the mini-batch x, target; where the job has an order, on
        what it names, taken over into these; the losses, up to one not finite.
        """
        losses, work = np.empty(count, self._dtype), space.work
        space.begin(x)
        work.stop[1] = count
        work.stop[2] = 0
        work.job_words[JOB_WORD.losses] = at(losses)
        work.job_words[JOB_WORD.target] = at(target)
        self._steps(space, losses)
        return losses[: space.work.stop[2]]

    def _steps(self, space, losses):
        self._run(space, passes.train, 3 * len(losses))
