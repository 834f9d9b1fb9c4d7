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
from ..errors import check_type
from ..params import Params
from ..readout import log_softmax
from ..schedules import Graph
from ..versions.numba_fused import NumbaFused, Pass
from .world import World

UNITS = Division("units")


class Units:
    """One layer whose unit blocks are shared by the ranks of a World.

    params: Params of one layer, float32 or float64, the same on every rank. Raises
    TypeError for what is no Params or World, ValueError for more layers, or for more
    workers than unit blocks.
    """

    def __init__(self, params: Params, world: World):
        self.world = check_type("world", world, World)
        self.net = NumbaFused(params, threads=1)
        if params.num_layers != 1:
            raise ValueError(f"params: got {params.num_layers} layers, want 1")
        blocks = self.net.tiles.blocks
        if blocks < world.size:
            got = f"{world.size} workers for {blocks} unit blocks"
            raise ValueError(f"shares: got {got}, want fewer")

    def forward(self, x: np.ndarray) -> np.ndarray:
        """y (T, B, H) of x (T, B, D), from a zero state. Raises as `Network.forward`,
        on every rank.
        """
        bound = self.bound(x)
        bound()
        return bound.h[1:, :, : self.net.tiles.hidden].copy()

    def bound(self, x: np.ndarray, division: Division = UNITS) -> Pass:
        """The compiled Pass over x (T, B, D), from a zero state. Raises as
        `Network.forward`, on every rank.

        It is to be run until the next pass of any Units of this World is bound: that
        one has the window then. division: who computes what, by units.
        """
        world, tiles = self.world, self.net.tiles
        x = world.agreed(lambda: self.net.checked_input("bound", x))
        T, B, _ = x.shape
        graph = Graph(1, T, blocks=tiles.blocks, samples=B)
        stage = Stage(forward_row, division.schedule(graph, world.size))
        plan, shape = Plan([stage]), (T + 1, B, tiles.padded)
        size = plan.words + int(np.prod(shape)) * tiles.dtype.itemsize
        memory = world.window(size)
        if world.rank == 0:
            memory[:] = 0
        world.comm.Barrier()  # every word and h are zero
        plan.shared = world.rank, memory[: plan.words]
        h = memory[plan.words :].view(tiles.dtype).reshape(shape)
        space = Space(self.net, T, B, "inference")  # of its own
        space.begin(x, top=h)
        return Pass(partial(self._run, space, plan, (x, memory)), space, h)

    def _run(self, space, plan, arrays):
        with self.net._held("run"):  # a pass counts in words of its own
            # Not to be left: the other ranks would wait. A signal ends their job.
            space.work.run(plan, (space, arrays))


def outputs(params: Params, y: np.ndarray) -> np.ndarray:
    """softmax(y V + b_out), (T, B, O)."""
    return np.exp(log_softmax(y, params.V, params.b_out))
