"""`numba-wavefront`: threads over layers.

What changed from `numba-sample`: a task is a chunk of steps of one layer, and a thread
waits only for the steps that its next one needs (`cpu/scheduler.py`), so layers run at
the same time, forward and backward, with a mini-batch of one sample as well as with
many. Which thread runs which task is a schedule (`schedules.py`), a wavefront whose
chunks the first calls autotune. Steps are computed as by `numba-fused`, of which this
is the partition by layers alone. Bounded by the layers, L T / (T + (L-1) C) for chunks
of C steps, and for one sample by reading a layer's weights in every step.
"""

from ..cpu.partitions import Partition, by_layers
from ..cpu.stages import backward_stage, forward_stage
from .numba_fused import NumbaFused


class NumbaWavefront(NumbaFused):
    """A network whose layers run at the same time.

    schedules: a function of a Graph that returns its Schedule, which is checked; of
    more workers than threads, each thread does what several do. None autotunes
    wavefronts.
    The rest is as of `NumbaFused`.
    """

    name = "numba-wavefront"

    def __init__(self, params, threads=None, *, schedules=None, subnormals=False):
        if not (schedules is None or callable(schedules)):
            want = "a function of a Graph"
            raise TypeError(f"schedules: got {schedules!r}, want {want}")
        self._schedules = schedules
        super().__init__(params, threads, subnormals=subnormals)
        self._made_with["schedules"] = schedules

    def _partitions(self, T, B):
        L = self._params.num_layers
        if self._schedules is not None:
            return [Partition("layers")]
        if min(L, self._threads) == 1:  # a task for each layer
            return [Partition("layers", T, L)]
        return by_layers(L, T, self._threads)

    def _schedule(self, graph, partition):
        if self._schedules is None:
            return super()._schedule(graph, partition)
        return self._schedules(graph)

    def timeline(self, T, B, training=False, backward=False):
        """When each part of the last whole pass of that shape ran, a Timeline;
        ValueError if none ran.
        """
        with self._held("timeline"):
            purpose = "gradients" if training else "inference"
            kernel, line = backward_stage if backward else forward_stage, None
            for workspace in self._workspaces():
                if workspace.shape[1:3] == (T, B) and workspace.purpose == purpose:
                    line = workspace.timeline(kernel) or line
        if not line:
            direction = "backward" if backward else "forward"
            want = f"a shape whose {direction} pass was the last one"
            raise ValueError(f"timeline: got T {T}, B {B}, want {want}")
        return line
