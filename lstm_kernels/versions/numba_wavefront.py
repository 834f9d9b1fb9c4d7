"""`numba-wavefront`: threads over layers.

What changed from `numba-sample`: a thread runs a block of steps of one layer and then waits only
for the blocks that its next one needs (`flow.py`), so layers run at the same time, forward and
backward, with a mini-batch of one sample as well as with many. Which thread runs which block is a
schedule (`lstm_kernels/schedules.py`), picked by simulation from the costs of this machine. Blocks
are computed by the tiles of `numba-fused`, of which this is a relative: that one divides a step
among the threads, this one never does. Bounded by the layers, L T / (T + (L-1) C) for blocks of C
steps, and for one sample by reading a layer's weights in every step.
"""

from functools import cache
from types import SimpleNamespace

import numpy as np

from ..schedules import Graph, check, choose
from . import cost, flow, wavefront_kernels
from .compiled import fill
from .fused_kernels import ROWS
from .numba_fused import NumbaFused, machine_costs
from .numba_fused import kernels as fused
from .spaces import Space


@cache
def kernels(dtype):
    """What `numba-fused` has, `wavefront_kernels`, and flows of its tasks, forward and backward."""
    found = vars(fused(dtype))
    names = found | {"ROWS": ROWS, "real": dtype.type}
    mine = fill(wavefront_kernels, names, dtype.name, ("gradients",))
    flows = {
        f"{name}_flow": fill(flow, {"perform": task}, f"{dtype.name}_{name}", ("enter",)).enter
        for name, task in (("forward", mine.forward_task), ("backward", mine.backward_task))
    }
    return SimpleNamespace(**found, **vars(mine), **flows)


class NumbaWavefront(NumbaFused):
    """A network whose layers run at the same time.

    schedules: a function of a Graph that returns its Schedule, checked before it is used; None
    picks a wavefront for the shape. The rest is as of `NumbaFused`.
    """

    def __init__(self, params, threads=None, *, schedules=None):
        self._given = schedules
        super().__init__(params, threads)
        self.kernels = kernels(self.tiles.dtype)

    def graph(self, T, backward=False):
        return Graph(self._params.num_layers, T, backward=backward)

    def pick(self, graph, B):
        """The schedule for mini-batches of B samples: the given, or the fastest by simulation."""
        if self._given is None:
            costs = machine_costs(self._dtype, self.most_threads())
            costs = cost.of_blocks(costs, self.tiles, self.sizes, B)
            return choose(graph, self.most_threads(), costs)
        found = self._given(graph)
        check(found)
        want = Graph(graph.layers, graph.steps, found.graph.parts, graph.backward)
        if found.graph != want:
            raise ValueError(f"schedules: got {found.graph}, want {want}")
        if want.parts > B:
            raise ValueError(f"schedules: got {want.parts} parts of a mini-batch of {B}")
        return found

    def _new_space(self, T, B, training):
        found = [self.pick(self.graph(T), B)]
        found += [self.pick(self.graph(T, backward=True), B)] if training else []
        whole = any(s.graph.parts > 1 for s in found)
        chunk = 1 if whole else max(1, min(found[0].longest, cost.CHUNK_ROWS // B))
        threads = self.most_threads()
        space = Space(self, T, B, training, cost.Schedule(threads, 0, chunk, 1), together=True)
        space.flows = [flow.Flow(schedule) for schedule in found]
        return space

    def timeline(self, T, B, training=False, backward=False):
        """When each task of the last pass of that shape ran, a Timeline."""
        return self._space(T, B, training).flows[backward].timeline()

    def _flow(self, enter, space, way, *work):
        running = space.flows[way]
        threads = min(self.most_threads(), running.workers)
        work = (work[0], running.tasks, running.schedule.graph.parts, *work[1:])
        self.run_alone(threads, running.run, enter, threads, work)

    def _infer(self, space, x, out):
        space.aim(x, out[1])
        self._flow(self.kernels.forward_flow, space, False, space.plan, *out)

    def _back(self, space, plan, x, rate=1.0, descend=False, head=None):
        plan["x"][0] = x.ctypes.data
        self._flow(self.kernels.backward_flow, space, True, plan)
        nothing = np.empty((0, 0), x.dtype)
        head = (nothing, nothing, nothing, nothing[0:0].ravel()) if head is None else head
        call = self.kernels.gradients, plan, space.sync, space.threads, rate, descend, *head
        return self.run_alone(space.threads, *call)

    def _train(self, space, plan, rate, descend, data, order, batch, dy, grads, count):
        """As of `NumbaFused`, a mini-batch at a time; interrupted, it has ended a whole number."""
        (V, b_out), (x, target, error), B = (self._params.V, self._params.b_out), batch, space.B
        losses = np.empty(count, V.dtype)
        for k in range(count):
            if len(order):
                chosen = order[k * B : (k + 1) * B]
                x[:], target[:] = data[0][:, chosen], data[1][chosen]
            space.begin(None)
            self._infer(space, x, (space.h, space.top, space.c, space.final))
            y, space.dc[:] = space.top[-1], 0
            self.kernels.readout(0, B, y, V, b_out, target, error, dy)
            losses[k] = self._back(space, plan, x, rate, descend, (y, error, *grads))
        return losses
