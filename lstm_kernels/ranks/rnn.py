"""Inference of one layer whose hidden units several workers share, each always the same
ones; h goes from all to all after each step.

The workers are threads of this process, or ranks. Threads have one memory. Ranks hand h
over in a window, memory that they share, or by messages from each to each, or by a
collective. Bits are those of one thread: the same code computes the same sums, whoever
runs it.
"""

from functools import partial

import numpy as np

from ..cpu.workspace import buffer, point
from ..errors import check_choice, check_int, check_type
from ..params import Params
from ..readout import log_softmax
from ..versions.numba_fused import NumbaFused, Pass
from .shares import APART, SHARING, steps_in_memory
from .world import World

MEANS = ("window", "messages", "collective")


class Units:
    """One layer whose unit blocks are shared by the ranks of a World, or by threads.

    params: Params of one layer, float32 or float64, the same on every rank. means: of
    MEANS, how ranks hand h over. threads: how many share where world is None. Raises
    TypeError for what is no Params or World, ValueError for more layers, or for more
    workers than unit blocks.
    """

    def __init__(
        self,
        params: Params,
        world: World | None = None,
        means: str = "window",
        *,
        threads: int = 2,
    ):
        if world is not None:
            check_type("world", world, World)
        self.world, self.means = world, check_choice("means", means, MEANS)
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
        agreed = (lambda call: call()) if self.world is None else self.world.agreed
        x = agreed(lambda: self.net.checked_input("bound", x))
        T, B, _ = x.shape
        shape, dtype = (T + 1, B, self.net.tiles.padded), self.net.tiles.dtype
        is_message = self.world is not None and self.means != "window"
        words = 0 if is_message else APART * self.shares
        size = words + int(np.prod(shape)) * dtype.itemsize
        if self.world is None or is_message:
            memory = buffer(size, dtype=np.uint8)
        else:
            memory = self.world.window(size)
            if self.world.rank == 0:
                memory[:] = 0
            self.world.comm.Barrier()  # every word and h are zero
        sharing = np.zeros(1, SHARING)
        first = 0 if self.world is None else self.world.rank
        point(sharing, shares=self.shares, first=first, words=memory)
        point(sharing, helps=self.world is None)
        kernel, kept = steps_in_memory, memory
        if is_message:
            kernel, kept = self._messages(sharing, B)
        h = memory[words:].view(dtype).reshape(shape)
        space = self.net._space(T, B, "inference", {})  # of its own
        space.begin(x, top=h)
        point(space.work.job, tasks=sharing)
        space.sharing = sharing
        return Pass(partial(self._run, kernel, space, (x, h, kept)), space, h)

    def _messages(self, sharing, B):
        """Let `sharing` say what MPI is called with; the kernel, and the arrays that it
        reads.
        """
        from . import messages  # which needs mpi4py

        tiles, comm = self.net.tiles, self.world.comm
        ends = np.arange(self.shares + 1) * tiles.blocks // self.shares * tiles.units
        counts, starts = np.diff(ends).astype(np.int32), ends[:-1].astype(np.int32)
        status = np.zeros(messages.STATUS_WORDS, np.int64)
        kind = messages.unit_kind(tiles.dtype.char, B, tiles.padded)
        handles = {"comm": messages.handle(comm), "kind": messages.handle(kind)}
        point(sharing, **handles, counts=counts, starts=starts, status=status)
        kernels = messages.steps_by_messages, messages.steps_by_collective
        return kernels[self.means == "collective"], (counts, starts, status)

    def _run(self, kernel, space, arrays):
        with self.net._held("run"):  # a pass counts its steps in words of its own
            sharing, work, job = space.sharing, space.work, space.work.job
            owner, done = (space, sharing, arrays), False
            # A rank that left would leave the others waiting: a signal ends their job.
            operations = space.operations if self.world is None else 0
            try:
                work.run(kernel, self._participants, owner, operations)
                done = work.job is job  # else a thread stayed behind
            finally:
                if not done:  # which may still read the records: it is to find nothing
                    if work.job is job:
                        work.renew()
                    space.sharing = sharing = sharing.copy()
                    point(work.job, tasks=sharing)
                sharing["before"] += space.x_shape[0]
            if error := int(sharing["error"][0]):
                raise self.world.MPI.Exception(error)


def outputs(params: Params, y: np.ndarray) -> np.ndarray:
    """softmax(y V + b_out), (T, B, O)."""
    return np.exp(log_softmax(y, params.V, params.b_out))
