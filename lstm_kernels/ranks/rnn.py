"""Inference of one layer whose hidden units several workers share, each always the same
ones; h is where all of them read it.

The workers are threads of this process, or ranks, which have h in a window: memory that
they share. Bits are those of one thread: the same code computes the same sums, whoever
runs it.
"""

from functools import partial

import numpy as np

from ..cpu.workspace import Space, buffer, point
from ..errors import check_int, check_type
from ..params import Params
from ..readout import log_softmax
from ..versions.numba_fused import NumbaFused, Pass
from .shares import APART, SHARING, steps_in_memory
from .world import World


class Units:
    """One layer whose unit blocks are shared by the ranks of a World, or by threads.

    params: Params of one layer, float32 or float64, the same on every rank. threads:
    how many share where world is None. Raises TypeError for what is no Params or World,
    ValueError for more layers, or for more workers than unit blocks.
    """

    def __init__(self, params: Params, world: World | None = None, *, threads: int = 2):
        if world is not None:
            check_type("world", world, World)
        self.world = world
        self.shares = check_int("threads", threads) if world is None else world.size
        self._participants = threads if world is None else 1
        self.net = NumbaFused(params, threads=self._participants)
        if params.num_layers != 1:
            raise ValueError(f"params: got {params.num_layers} layers, want 1")
        blocks = self.net.tiles.blocks
        if blocks < self.shares:
            got = f"{self.shares} workers for {blocks} unit blocks"
            raise ValueError(f"shares: got {got}, want fewer")

    def forward(self, x: np.ndarray) -> np.ndarray:
        """y (T, B, H) of x (T, B, D), from a zero state. Raises as `Network.forward`,
        on every rank.
        """
        bound = self.bound(x)
        bound()
        return bound.h[1:, :, : self.net.tiles.hidden].copy()

    def bound(self, x: np.ndarray) -> Pass:
        """The compiled Pass over x (T, B, D), from a zero state. Raises as
        `Network.forward`, on every rank.

        In a window, its h is there until the next pass of any Units is bound.
        """
        world, tiles, sharing = self.world, self.net.tiles, np.zeros(1, SHARING)
        agreed = world.agreed if world else lambda call: call()
        x = agreed(lambda: self.net.checked_input("bound", x))
        T, B, _ = x.shape
        shape, words = (T + 1, B, tiles.padded), APART * self.shares
        size = words + int(np.prod(shape)) * tiles.dtype.itemsize
        if world is None:
            memory = buffer(size, dtype=np.uint8)
            point(sharing, first=0, helps=True)
        else:
            memory = world.window(size)
            if world.rank == 0:
                memory[:] = 0
            world.comm.Barrier()  # every word and h are zero
            point(sharing, first=world.rank, helps=False)
        point(sharing, shares=self.shares, words=memory)
        h = memory[words:].view(tiles.dtype).reshape(shape)
        space = Space(self.net, T, B, "inference")  # of its own
        space.begin(x, top=h)
        point(space.work.job, tasks=sharing)
        return Pass(partial(self._run, space, [sharing], (x, memory)), space, h)

    def _run(self, space, held, arrays):
        with self.net._held("run"):  # a pass counts its steps in words of its own
            (sharing,), work, job = held, space.work, space.work.job
            owner, done = (space, sharing, arrays), False
            # A rank that left would leave the others waiting: a signal ends their job.
            operations = space.operations if self.world is None else 0
            try:
                work.run(steps_in_memory, self._participants, owner, operations)
                done = work.job is job  # else a thread stayed behind
            finally:
                if not done:  # which may still read the records: it is to find nothing
                    if work.job is job:
                        work.renew()
                    held[0] = sharing = sharing.copy()
                    point(work.job, tasks=sharing)
                sharing["before"] += space.x_shape[0]


def outputs(params: Params, y: np.ndarray) -> np.ndarray:
    """softmax(y V + b_out), (T, B, O)."""
    return np.exp(log_softmax(y, params.V, params.b_out))
