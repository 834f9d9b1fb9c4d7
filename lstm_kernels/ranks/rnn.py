"""Inference of one layer whose hidden units several ranks share; h lies in a window.

Ranks run the scheduler loop of the threads that partition a pass of `numba-fused` by
units (`cpu/scheduler.py`), on counters in the window, but none steals. Bits are those
of one thread: the same code computes the same sums, whoever runs it.
"""

from functools import partial

import numpy as np

from ..cpu import plan
from ..cpu.partitions import Partition
from ..errors import check_type, counted
from ..output_layer import log_softmax
from ..params import Params
from ..schedules import Graph
from ..versions.numba_fused import NumbaFused, Pass
from .world import World

UNITS = Partition("units")


class Units:
    """One layer whose unit blocks are shared by the ranks of a World. Every method is
    collective. params: Params of one layer. Raises TypeError, or ValueError for more
    layers, for more ranks than unit blocks, or where ranks disagree; on every rank.
    """

    def __init__(self, params: Params, world: World):
        self.world = check_type("world", world, World)
        world.agreed(lambda: self._checked(params), same=True)

    def _checked(self, params):
        self._net = net = NumbaFused(params, threads=1)
        if params.num_layers != 1:
            raise ValueError(f"params: got {params.num_layers} layers, want 1")
        if net.layout.blocks < (size := self.world.size):
            got = counted(net.layout.blocks, "unit block")
            raise ValueError(f"params: got {got}, want one for each of {size} ranks")
        return {"params.cell": params.cell} | net.params().arrays()

    def forward(self, x: np.ndarray) -> np.ndarray:
        """y (T, B, H) of x (T, B, D), from a zero state. Raises as `Network.forward`
        and for ranks whose x differ, on every rank.
        """
        bound = self.bound(x)
        bound()
        return bound.h[1:, :, : self._net.layout.hidden].copy()

    def bound(self, x: np.ndarray, partition: Partition = UNITS) -> Pass:
        """The compiled Pass over x (T, B, D), from a zero state, with memory of its
        own: it can be run again, and its h read, whatever is bound later. partition:
        who computes what; it must have work for every rank. Raises as `forward`.
        """
        world, blocks = self.world, self._net.layout.blocks

        def checked():
            array, ranks = self._net.checked_input("bound", x), world.size
            graph = Graph(1, len(array), blocks=blocks, samples=array.shape[1])
            schedule = partition.schedule(graph, ranks)
            if schedule.workers != ranks:
                got = f"{partition} for {counted(schedule.workers, 'worker')}"
                raise ValueError(f"partition: got {got}, want {ranks}, one a rank")
            return {"x": array, "partition": schedule}

        x, schedule = world.agreed(checked, same=True).values()
        workspace = self._net.bare_forward(x).workspace
        stages = plan.forward(workspace.shape, lambda graph: schedule)
        # The words that count what is done, then h.
        words, shape = plan.Pass.words(stages), workspace.net.h.shape
        memory = world.window(8 * words + int(np.prod(shape)) * x.itemsize)
        h = memory[8 * words :].view(x.dtype).reshape(shape)
        workspace.arguments.set("h", h)
        if not workspace.net.has_c:
            workspace.arguments.set("c", h)
        shared = world.rank, memory[: 8 * words].view(np.int64)
        mode = workspace.fp_mode
        compiled = plan.Pass(stages, workspace.arguments, mode, shared=shared)
        # Not to be cancelled: the other ranks would wait. A signal ends their job.
        run = partial(compiled.run, 1, (x, memory))
        return Pass(run, workspace, h.reshape(len(x) + 1, x.shape[1], -1))


def outputs(params: Params, y: np.ndarray) -> np.ndarray:
    """softmax(y V + b_out), (T, B, O)."""
    return np.exp(log_softmax(y, params.V, params.b_out))
