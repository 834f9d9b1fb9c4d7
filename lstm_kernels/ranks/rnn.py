"""Inference of one layer whose hidden units several ranks share, each always the same
ones; h lies in a window, memory that all of them read.

Ranks run the loop of the threads that divide a pass of `numba-fused` by units
(`cpu/run.py`), on counters in the window. But they are all there: none takes what is
another's. Bits are those of one thread: the same code computes the same sums, whoever
runs it.
"""

from functools import partial

import numpy as np

from ..cpu.divisions import Division
from ..cpu.plans import Plan, Stage
from ..cpu.steps import forward_row
from ..cpu.workspace import Space
from ..errors import check_type, counted
from ..params import Params
from ..readout import log_softmax
from ..schedules import Graph
from ..versions.numba_fused import NumbaFused, Pass
from .world import World

UNITS = Division("units")


class Units:
    """One layer whose unit blocks are shared by the ranks of a World. Every method is
    collective: all ranks call it, in the same order and with the same arguments.

    params: Params of one layer, float32 or float64. Raises TypeError for what is no
    Params or World, ValueError for more layers, for more workers than unit blocks, or
    where ranks disagree about the values; on every rank.
    """

    def __init__(self, params: Params, world: World):
        self.world = check_type("world", world, World)
        world.agreed(lambda: self._checked(params), same=True)

    def _checked(self, params):
        self._net = net = NumbaFused(params, threads=1)
        if params.num_layers != 1:
            raise ValueError(f"params: got {params.num_layers} layers, want 1")
        if net.tiles.blocks < (size := self.world.size):
            got = counted(net.tiles.blocks, "unit block")
            raise ValueError(f"params: got {got}, want one for each of {size} ranks")
        return {"params.cell": params.cell} | net.params().arrays()

    def forward(self, x: np.ndarray) -> np.ndarray:
        """y (T, B, H) of x (T, B, D), from a zero state. Raises as `Network.forward`,
        on every rank, and ValueError for ranks whose x differ.
        """
        bound = self.bound(x)
        bound()
        return bound.h[1:, :, : self._net.tiles.hidden].copy()

    def bound(self, x: np.ndarray, division: Division = UNITS) -> Pass:
        """The compiled Pass over x (T, B, D), from a zero state, with memory of its
        own: it can be run again, and its h read, whatever is bound later. Raises as
        `forward`.

        division: who computes what, by units; ValueError for one that has not work for
        every rank.
        """
        world, tiles = self.world, self._net.tiles

        def checked():
            array, ranks = self._net.checked_input("bound", x), world.size
            graph = Graph(1, len(array), blocks=tiles.blocks, samples=array.shape[1])
            schedule = division.schedule(graph, ranks)
            if schedule.workers != ranks:
                got = f"{division} for {counted(schedule.workers, 'worker')}"
                raise ValueError(f"division: got {got}, want {ranks}, one a rank")
            return {"x": array, "division": schedule}

        x, schedule = world.agreed(checked, same=True).values()
        plan = Plan([Stage(forward_row, schedule)])
        T, B, _ = x.shape
        shape = T + 1, B, tiles.padded
        memory = world.window(plan.words + int(np.prod(shape)) * tiles.dtype.itemsize)
        plan.shared = world.rank, memory[: plan.words]
        h = memory[plan.words :].view(tiles.dtype).reshape(shape)
        space = Space(self._net, T, B, "inference")  # of its own
        space.begin(x, top=h)
        return Pass(partial(self._run, space, plan, (x, memory)), space, h)

    def _run(self, space, plan, arrays):
        with self._net._held("run"):  # a pass counts in words of its own
            # Not to be left: the other ranks would wait. A signal ends their job.
            space.work.run(plan, (space, arrays))


def outputs(params: Params, y: np.ndarray) -> np.ndarray:
    """softmax(y V + b_out), (T, B, O)."""
    return np.exp(log_softmax(y, params.V, params.b_out))
