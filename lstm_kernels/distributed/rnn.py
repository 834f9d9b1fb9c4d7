"""Inference of one network by several processes, and by threads: who hands h over, and how.

The source is a plain RNN, h_t = tanh(b + h_{t-1} W + x_t U), o_t = softmax(c + h_t V); every cell of
`cells.py` runs alike. Processes share

- the hidden units: each computes some unit blocks of a step, and all need h of every block before
  the next, so h is handed over T times: in a window of shared memory (MPI_Win_allocate_shared), by
  messages from each to each, or by a collective (MPI_Allgather);
- the samples of a mini-batch: nothing is handed over;
- the layers of a stack: a chunk of steps of h is handed up as soon as it is there.

Every process has read the same x, and its part of the outputs remains with it.
"""

import numpy as np

from ..cpu.rounds import LINE
from ..cpu.workspace import at
from ..errors import check_choice, check_int
from ..params import Params
from ..readout import log_softmax
from ..versions.numba_fused import NumbaFused

MEANS = ("window", "messages", "collective")


class Slices:
    """One layer whose unit blocks are shared by the ranks of a World.

    params: Params of one layer, float32 or float64, the same on every rank. means: of MEANS, how h
    is handed over. Raises ValueError for more layers, or more ranks than unit blocks.
    """

    def __init__(self, params, world, means):
        self.world, self.means = world, check_choice("means", means, MEANS)
        if params.num_layers != 1:
            raise ValueError(f"params: got {params.num_layers} layers, want 1")
        self.net = NumbaFused(params, threads=1)
        tiles, (P, r) = self.net.tiles, (world.size, world.rank)
        if tiles.blocks < P:
            raise ValueError(f"world: got {P} ranks for {tiles.blocks} unit blocks, want fewer")
        ends = [tiles.blocks * k // P for k in range(P + 1)]
        self.units = [slice(a * tiles.units, b * tiles.units) for a, b in zip(ends, ends[1:])]
        self._order = np.array([0, 0, ends[r], ends[r + 1], 0, P, r, 0])
        self._shape, self._window, self._done = None, None, 0

    def forward(self, x):
        """y (T, B, H) of x (T, B, D), from a zero state; a view that the next call overwrites."""
        T, B, _ = x.shape
        net, tiles = self.net, self.net.tiles
        space = net._space(T, B, "inference")
        self._prepare(T, B)
        space.begin(None)
        final = np.empty(space.final_shape, x.dtype)
        space.work.aim(x, self._y, final)
        order = self._order
        order[0], order[1], order[7] = 0, T, self._done
        space.work.run_tasks(order, 1)
        if self.means == "window":
            self._done += T
            self._run(space)
        else:
            hand = self._messages if self.means == "messages" else self._collective
            for t in range(T):
                order[0], order[1] = t, t + 1
                self._run(space)
                hand(self._y[t])
        return self._y[..., : tiles.hidden]

    def _run(self, space):
        self.net.kernels.run(1, "slice_steps", space.work, space)

    def _prepare(self, T, B):
        """Room for h (T, B, padded H): in a window, with a line of memory for each rank's word."""
        if self._shape == (T, B):
            return
        tiles, world, P = self.net.tiles, self.world, self.world.size
        shape, size = (T, B, tiles.padded), tiles.dtype.itemsize
        if self.means != "window":
            self._y = np.zeros(shape, tiles.dtype)
            # What a collective takes: every rank's units, one behind another.
            widths = [u.stop - u.start for u in self.units]
            self._counts = [B * w for w in widths]
            self._flat = np.empty(B * tiles.padded, tiles.dtype)
        else:
            bytes_ = (P + 1) * LINE + int(np.prod(shape)) * size
            MPI = world.MPI
            self._window = MPI.Win.Allocate_shared(
                bytes_ if world.rank == 0 else 0, 1, comm=world.comm
            )
            memory = np.frombuffer(self._window.Shared_query(0)[0], np.uint8, bytes_)
            start = -memory.ctypes.data % LINE
            words = memory[start : start + P * LINE].view(np.int64)
            self._order[4] = at(words)
            first = start + P * LINE
            self._y = (
                memory[first : first + bytes_ - (P + 1) * LINE].view(tiles.dtype).reshape(shape)
            )
            if world.rank == 0:
                memory[:] = 0
            self._done, self._words = 0, words
            world.comm.Barrier()
        self._shape = T, B

    def _messages(self, h):
        """Give every rank this one's units of h (B, padded H), and get theirs."""
        comm, own = self.world.comm, self.units[self.world.rank]
        mine = np.ascontiguousarray(h[:, own])
        got, requests = [], []
        for rank, units in enumerate(self.units):
            if rank != self.world.rank:
                block = np.empty((len(h), units.stop - units.start), h.dtype)
                got.append((units, block))
                requests += [comm.Irecv(block, rank), comm.Isend(mine, rank)]
        self.world.MPI.Request.Waitall(requests)
        for units, block in got:
            h[:, units] = block

    def _collective(self, h):
        own = self.units[self.world.rank]
        self.world.comm.Allgatherv(np.ascontiguousarray(h[:, own]), [self._flat, self._counts])
        start = 0
        for units, count in zip(self.units, self._counts, strict=True):
            h[:, units] = self._flat[start : start + count].reshape(len(h), -1)
            start += count


def outputs(params: Params, y):
    """softmax(y V + b_out), (T, B, O)."""
    return np.exp(log_softmax(y, params.V, params.b_out))


def chunks(T, count):
    """Bounds of `count` runs of steps, as equal as can be."""
    count = check_int("chunks", count, 1, T)
    return [(T * k // count, T * (k + 1) // count) for k in range(count)]
