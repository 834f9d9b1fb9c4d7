"""`numba-wavefront`: threads over layers.

What changed from `numba-sample`: a task is a chunk of steps of one layer, and a thread
waits only for the tasks that its next one needs (`cpu/flow.py`), so layers run at the
same time, forward and backward, with a mini-batch of one sample as well as with many.
Which thread runs which task is a schedule (`schedules.py`), picked by simulation from
the costs of this machine. Steps are computed by the tiles of `numba-fused`, of which
this is a relative: that one divides a step among the threads, this one never does.
Bounded by the layers, L T / (T + (L-1) C) for chunks of C steps, and for one sample by
reading a layer's weights in every step.
"""

import numpy as np

from ..cpu import cost, flow, passes
from ..cpu import wavefront_kernels as tasks
from ..cpu.arrays import JOB_WORD
from ..cpu.interrupts import run_on
from ..cpu.machine_code import address
from ..cpu.workspace import Space, at
from ..schedules import Graph, check
from ..simulate import choose
from .numba_fused import NumbaFused, machine_costs


class NumbaWavefront(NumbaFused):
    """A network whose layers run at the same time.

    schedules: a function of a Graph that returns its Schedule, which is checked; None
    picks a wavefront for the shape. The rest is as of `NumbaFused`.
    """

    name = "numba-wavefront"

    def __init__(self, params, threads=None, *, schedules=None):
        self._schedules = schedules
        super().__init__(params, threads)
        self._made_with["schedules"] = schedules

    def graph(self, T, backward=False):
        return Graph(self._params.num_layers, T, backward=backward)

    def pick(self, graph, B):
        """The schedule for mini-batches of B samples: as given, or the fastest by
        simulation.
        """
        if self._schedules is None:
            machine = machine_costs(self._dtype, self._threads)
            costs = cost.task_costs(machine, self.tiles, self.inputs, B)
            return choose(graph, self._threads, costs)
        schedule = self._schedules(graph)
        check(schedule)
        want = Graph(graph.layers, graph.steps, schedule.graph.parts, graph.backward)
        if schedule.graph != want:
            raise ValueError(f"schedules: got {schedule.graph}, want {want}")
        if want.parts > B:
            raise ValueError(
                f"schedules: got {want.parts} parts of a mini-batch of {B}"
            )
        return schedule

    def _new_space(self, T, B, purpose):
        directions = (False,) if purpose == "inference" else (False, True)
        schedules = [self.pick(self.graph(T, backward), B) for backward in directions]
        in_parts = any(schedule.graph.parts > 1 for schedule in schedules)
        input_steps = max(1, min(schedules[0].longest, cost.INPUT_ROWS // B))
        split = cost.WorkSplit(self._threads, 0, 1 if in_parts else input_steps, 1)
        space = Space(self, T, B, purpose, split, together=True)
        space.flows = [flow.Flow(schedule) for schedule in schedules]
        return space

    def timeline(self, T, B, training=False, backward=False):
        """When each task of the last pass of that shape ran, a Timeline; ValueError if
        none ran.
        """
        with self._held("timeline"):
            purpose = "gradients" if training else "inference"
            space = self._spaces.get((T, B, purpose))
            line = space and space.flows[backward].timeline()
        if line is None:
            direction = "backward" if backward else "forward"
            want = f"a shape whose {direction} pass was the last one"
            raise ValueError(f"timeline: got T {T}, B {B}, want {want}")
        return line

    def _run(self, space, kernel, forward_passes=1):
        """As of `NumbaFused`, but a pass is a flow of tasks."""
        if kernel is passes.infer:
            self._flow(space, space.flows[0], tasks.forward_task)
        else:
            self._flow(space, space.flows[1], tasks.backward_task)
            super()._run(space, passes.gradient_rounds)

    def _flow(self, space, running, task):
        work = space.work
        work.enter()  # which may renew the records
        work.job_words[JOB_WORD.tasks] = at(running.tasks)
        work.job_words[JOB_WORD.parts] = running.schedule.graph.parts
        participants = min(self._threads, running.workers)
        code, owner = address(task, work.job.dtype), (space, work.arrays)
        call = running.run, participants, code, work.address, work.stop, owner
        work.leave(run_on(work, space.operations, *call))

    def _steps(self, space, losses):
        """As of `NumbaFused`, a mini-batch at a time; interrupted, it has ended a whole
        number.
        """
        work = space.work
        for k in range(len(losses)):
            if work.job[0]["order"]:
                work.run(tasks.next_batch, 1, space)
            self._run(space, passes.infer)
            work.run(tasks.read_out, 1, space)
            self._run(space, passes.backward)
            if not np.isfinite(losses[k]):
                break
