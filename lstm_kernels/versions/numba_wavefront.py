"""`numba-wavefront`: threads over layers.

What changed from `numba-sample`: a thread runs a block of steps of one layer and then waits only
for the blocks that its next one needs (`flow.py`), so layers run at the same time, forward and
backward, with a mini-batch of one sample as well as with many. Which thread runs which block is a
schedule (`lstm_kernels/schedules.py`), picked by simulation from the costs of this machine. Blocks
are computed by the tiles of `numba-fused`, of which this is a relative: that one divides a step
among the threads, this one never does. Bounded by the layers, L T / (T + (L-1) C) for blocks of C
steps, and for one sample by reading a layer's weights in every step.
"""

from functools import partial

import numpy as np

from ..cpu import cost, flow, machine_code
from ..cpu.interrupts import LONG, interruptible
from ..cpu.team import team
from ..cpu.workspace import Space
from ..schedules import Graph, check
from ..simulate import choose
from .numba_fused import NumbaFused, machine_costs


class NumbaWavefront(NumbaFused):
    """A network whose layers run at the same time.

    schedules: a function of a Graph that returns its Schedule, checked before it is used; None
    picks a wavefront for the shape. The rest is as of `NumbaFused`.
    """

    name = "numba-wavefront"
    make_kernels = staticmethod(machine_code.wavefront)

    def __init__(self, params, threads=None, *, schedules=None):
        self._given = schedules
        super().__init__(params, threads)
        self._made_with["schedules"] = schedules

    def graph(self, T, backward=False):
        return Graph(self._params.num_layers, T, backward=backward)

    def pick(self, graph, B):
        """The schedule for mini-batches of B samples: the given, or the fastest by simulation."""
        if self._given is None:
            costs = machine_costs(self._dtype, self._threads)
            costs = cost.task_costs(costs, self.tiles, self.sizes, B)
            return choose(graph, self._threads, costs)
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
        chunk = 1 if whole else max(1, min(found[0].longest, cost.INPUT_ROWS // B))
        threads = self._threads
        space = Space(self, T, B, training, cost.WorkSplit(threads, 0, chunk, 1), together=True)
        space.flows = [flow.Flow(schedule) for schedule in found]
        return space

    def forward_code(self, shares):
        return 0  # a pass is a flow of tasks

    backward_code = forward_code

    def timeline(self, T, B, training=False, backward=False):
        """When each task of the last pass of that shape ran, a Timeline; ValueError if none ran."""
        with self._held("timeline"):
            space = self._spaces.get((T, B, training))
            line = space and space.flows[backward].timeline()
        if line is None:
            way = "backward" if backward else "forward"
            raise ValueError(f"timeline: got T {T}, B {B}, want a shape whose {way} pass is kept")
        return line

    def _flow(self, space, backward, work):
        running, name = space.flows[backward], "backward_task" if backward else "forward_task"
        work.run_tasks(running.tasks, running.schedule.graph.parts)
        space.enter()  # which may renew the records that all of these point into
        participants, code = min(self._threads, running.workers), self.kernels.address(name)
        owner = space, work.layers, work.job, work.sync, work.stop
        run = partial(running.run, participants, code, work.address, owner, work.stop)
        if space.operations < LONG:
            space.leave(run())
        else:
            work.stop[0] = 0
            space.leave(interruptible(run, work.stop, team().drain))

    def _infer(self, space, x, y, final):
        space.work.aim(x, y, final)
        self._flow(space, False, space.work)

    def _back(self, space, work):
        self._flow(space, True, work)
        self._run(space, "gradient_rounds", work)

    def _train(self, space, work, x, target, count):
        """As of `NumbaFused`, a mini-batch at a time; interrupted, it has ended a whole number."""
        losses = self._begin_training(space, work, x, target, count)
        for k in range(count):
            self.kernels.run(1, "fetch", work, space)
            self._flow(space, False, work)
            self.kernels.run(1, "turn_back", work, space)
            self._back(space, work)
            if not np.isfinite(losses[k]):
                break
        return losses
