"""Inference of one network by several ranks: what each does, and how h is handed over.

The source is a plain RNN, h_t = tanh(b + h_{t-1} W + x_t U), o_t = softmax(c + h_t V);
every cell of `cells.py` runs alike. Ranks share

- the hidden units (`Units`): each computes some unit blocks of a step, and all need h
  of every block before the next, so h is handed over T times: in a window of shared
  memory, by messages from each to each, or by a collective;
- the samples of a mini-batch (`Samples`): nothing is handed over;
- the layers (`Layers`): a chunk of steps of h is handed up as soon as it is there.

Every rank has read the same x, and its part of the outputs remains with it.
"""

from itertools import pairwise

import numpy as np

from ..cpu.rounds import LINE
from ..cpu.slice_kernels import slice_steps
from ..cpu.workspace import at, point
from ..errors import check_choice, check_int
from ..params import Params
from ..readout import log_softmax
from ..versions.numba_fused import NumbaFused

MEANS = ("window", "messages", "collective")


class Units:
    """One layer whose unit blocks are shared by the ranks of a World.

    params: Params of one layer, float32 or float64, the same on every rank. means: of
    MEANS, how h is handed over. Raises ValueError for more layers, or more ranks than
    unit blocks.
    """

    def __init__(self, params, world, means):
        self.world, self.means = world, check_choice("means", means, MEANS)
        if params.num_layers != 1:
            raise ValueError(f"params: got {params.num_layers} layers, want 1")
        self.net = NumbaFused(params, threads=1)
        tiles, P = self.net.tiles, world.size
        if tiles.blocks < P:
            got = f"{P} ranks for {tiles.blocks} unit blocks"
            raise ValueError(f"world: got {got}, want fewer")
        ends = [tiles.blocks * k // P for k in range(P + 1)]
        places = [end * tiles.units for end in ends[:-1]] + [tiles.padded]
        self.units = [slice(a, b) for a, b in pairwise(places)]  # of each rank
        # What `slice_steps` reads: start, stop, this rank's blocks, the address of the
        # ranks' words, how many they are, which is this one's, steps done before.
        low, high = ends[world.rank : world.rank + 2]
        self._order = np.array([0, 0, low, high, 0, P, world.rank, 0])

    def forward(self, x):
        """y (T, B, H) of x (T, B, D), from a zero state."""
        T, B, _ = x.shape
        tiles = self.net.tiles
        shape = T + 1, B, tiles.padded
        if self.means == "window":
            h = self._window(shape)
            self._run(x, h, 0, T)
        else:
            h = np.zeros(shape, tiles.dtype)
            hand_over = self._hand_over(h[0])
            for t in range(T):
                self._run(x, h, t, t + 1)
                hand_over(h[t + 1])
        return h[1:, :, : tiles.hidden].copy()

    def _run(self, x, h, start, stop):
        """Steps `start` to `stop` - 1 of this rank's unit blocks; slot 0 of h is the
        initial state.
        """
        space = self.net._space(*x.shape[:2], "inference")
        if start == 0:
            space.begin(x, top=h)
            point(space.work.job, tasks=self._order)
        self._order[:2] = start, stop
        space.work.run(slice_steps, 1, (space, x, h, self._order))

    def _window(self, shape):
        """h (T + 1, B, padded H) in a window, after a line for each rank's word."""
        world, dtype = self.world, self.net.tiles.dtype
        lines = world.size * LINE
        memory = world.window(lines + int(np.prod(shape)) * dtype.itemsize)
        words = memory[:lines].view(np.int64)[:: LINE // 8]
        h = memory[lines:].view(dtype).reshape(shape)
        self._order[4] = at(memory)
        words[world.rank] = 0
        h[0, :, self.units[world.rank]] = 0
        world.comm.Barrier()  # every rank's word and slot 0 are zero
        return h

    def _hand_over(self, like):
        """A function of h (B, padded H) of one step, an array like `like`: it gives
        every rank this one's units, and takes theirs.
        """
        counts = [like[:, units].size for units in self.units]
        blocks = np.split(np.empty(sum(counts), like.dtype), np.cumsum(counts)[:-1])
        exchange = {"messages": self._messages, "collective": self._collective}

        def hand_over(h):
            rank = self.world.rank
            blocks[rank][:] = h[:, self.units[rank]].ravel()
            exchange[self.means](blocks)
            for units, block in zip(self.units, blocks, strict=True):
                h[:, units] = block.reshape(len(h), -1)

        return hand_over

    def _messages(self, blocks):
        """Send this rank's block to each other rank, and receive theirs."""
        comm, rank = self.world.comm, self.world.rank
        others = [k for k in range(self.world.size) if k != rank]
        requests = [comm.Irecv(blocks[k], k) for k in others]
        requests += [comm.Isend(blocks[rank], k) for k in others]
        self.world.MPI.Request.Waitall(requests)

    def _collective(self, blocks):
        """The same by one call; blocks: the parts of one array."""
        counts = [block.size for block in blocks]
        gathered = [blocks[0].base, counts]
        self.world.comm.Allgatherv(self.world.MPI.IN_PLACE, gathered)


class Samples:
    """A network of which each rank computes a share of the samples."""

    def __init__(self, params, world):
        self.world, self.net = world, NumbaFused(params, threads=1)

    def forward(self, x):
        """y (T, b, H) of this rank's share of x (T, B, D); None where there are fewer
        samples than ranks and it has none.
        """
        low, high = self.world.share(x.shape[1])
        if low == high:
            return None
        return self.net.forward(np.ascontiguousarray(x[:, low:high]))[0]


class Layers:
    """A stack whose neighbouring layers are shared by the ranks, in chunks of steps.

    chunks: into how many the steps are cut. Raises ValueError for more ranks than
    layers.
    """

    def __init__(self, params, world, chunks):
        L, P = params.num_layers, world.size
        if P > L:
            got = f"{P} ranks for {L} layers"
            raise ValueError(f"world: got {got}, want at most one for each")
        self.world, self.chunks = world, check_int("chunks", chunks)
        low, high = world.share(L)
        layers = Params(params.layers[low:high], cell=params.cell)
        self.net, self._D = NumbaFused(layers, threads=1), layers.input_size

    def forward(self, x):
        """y (T, B, H) of the last layers, on the last rank; None on others."""
        (T, B, _), comm, rank = x.shape, self.world.comm, self.world.rank
        is_last = rank == self.world.size - 1
        state, requests, chunks = None, [], []
        count = min(self.chunks, T)
        for a, b in pairwise(T * k // count for k in range(count + 1)):
            value = x[a:b]
            if rank:
                value = np.empty((b - a, B, self._D), x.dtype)
                comm.Recv(value, rank - 1)
            y, state = self.net.forward(value, state)
            chunks.append(y)
            if not is_last:
                requests.append(comm.Isend(y, rank + 1))
        self.world.MPI.Request.Waitall(requests)
        return np.concatenate(chunks) if is_last else None


def outputs(params, y):
    """softmax(y V + b_out), (T, B, O)."""
    return np.exp(log_softmax(y, params.V, params.b_out))
