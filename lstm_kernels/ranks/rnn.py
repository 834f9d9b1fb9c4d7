"""Inference of one network by several ranks: what each does, and how h is handed over.

The source is a plain RNN, h_t = tanh(b + h_{t-1} W + x_t U), o_t = softmax(c + h_t V);
every cell of `cells.py` runs alike. Ranks share

- the hidden units (`Units`): each computes some unit blocks of a step, and all need h of every
  block before the next, so h is handed over T times: in a window of shared memory, by messages from
  each to each, or by a collective;
- the samples of a mini-batch (`Samples`): nothing is handed over;
- the layers (`Layers`): a chunk of steps of h is handed up as soon as it is there.

Every rank has read the same x, and its part of the outputs remains with it.
"""

from functools import partial
from itertools import pairwise

import numba
import numpy as np

from lstm_report.measure.comparer import TOLERANCE, compare
from lstm_report.measure.timing import interleaved, together
from lstm_report.measure.workloads import Workload

from .. import reference
from ..cpu.rounds import LINE
from ..cpu.workspace import at
from ..errors import check_choice, check_int, check_ints
from ..gpu.device import SIMULATED
from ..params import Params
from ..readout import log_softmax
from ..versions import network, versions
from ..versions.numba_fused import NumbaFused
from .world import take_cores

MEANS = ("window", "messages", "collective")
ONE, THREADS = "one rank", "threads"
GPU_VERSIONS = ("cuda-v2", "cuda-v3", "cuda-fused")


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
        tiles, (P, r) = self.net.tiles, (world.size, world.rank)
        if tiles.blocks < P:
            raise ValueError(
                f"world: got {P} ranks for {tiles.blocks} unit blocks, want fewer"
            )
        ends = [tiles.blocks * k // P for k in range(P + 1)]
        places = [end * tiles.units for end in ends[:-1]] + [tiles.padded]
        self.units = [slice(a, b) for a, b in pairwise(places)]
        self._order = np.array([0, 0, ends[r], ends[r + 1], 0, P, r, 0])
        self._shape, self._window, self._done = None, None, 0

    def forward(self, x):
        """y (T, B, H) of x (T, B, D), from a zero state; a view that the next call
        overwrites.
        """
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
        """Room for h (T, B, padded H): in a window, after a line of memory for each
        rank's word.
        """
        if self._shape == (T, B):
            return
        tiles, P = self.net.tiles, self.world.size
        shape, size = (T, B, tiles.padded), T * B * tiles.padded * tiles.dtype.itemsize
        if self.means == "window":
            memory, self._window = self.world.window(P * LINE + size)
            self._order[4], self._done = at(memory), 0
            self._y = memory[P * LINE :].view(tiles.dtype).reshape(shape)
        else:
            self._y = np.zeros(shape, tiles.dtype)
            # Of each rank its units, and what hands this one's over again and again.
            sizes = [(B, units.stop - units.start) for units in self.units]
            self._blocks = [np.empty(size, tiles.dtype) for size in sizes]
            comm, own = self.world.comm, self._blocks[self.world.rank]
            self._requests = []
            if self.means == "collective":
                counts = [block.size for block in self._blocks]
                self._flat = np.empty(B * tiles.padded, tiles.dtype)
                ends = np.cumsum(counts)[:-1]
                parts = zip(np.split(self._flat, ends), sizes, strict=True)
                self._blocks = [part.reshape(size) for part, size in parts]
                self._own, self._all = own, [self._flat, counts]
            else:
                for rank, block in enumerate(self._blocks):
                    if rank != self.world.rank:
                        self._requests += [
                            comm.Recv_init(block, rank),
                            comm.Send_init(own, rank),
                        ]
        self._shape = T, B

    def _messages(self, h):
        """Give every rank this one's units of h (B, padded H), and get theirs."""
        self._blocks[self.world.rank][:] = h[:, self.units[self.world.rank]]
        self.world.MPI.Prequest.Startall(self._requests)
        self.world.MPI.Prequest.Waitall(self._requests)
        self._take(h)

    def _collective(self, h):
        self._own[:] = h[:, self.units[self.world.rank]]
        self.world.comm.Allgatherv(self._own, self._all)
        self._take(h)

    def _take(self, h):
        for rank, (units, block) in enumerate(
            zip(self.units, self._blocks, strict=True)
        ):
            if rank != self.world.rank:
                h[:, units] = block


class Samples:
    """A network of which each rank computes a share of the samples."""

    def __init__(self, params, world):
        self.world, self.net = world, NumbaFused(params, threads=1)

    def forward(self, x):
        """y (T, b, H) of this rank's share of x (T, B, D); there may be fewer samples
        than ranks: None where it has none.
        """
        low, high = self.world.share(x.shape[1])
        return (
            self.net.forward(np.ascontiguousarray(x[:, low:high]))[0]
            if high > low
            else None
        )


class Layers:
    """A stack whose neighbouring layers are shared by the ranks, in chunks of steps.

    chunks: into how many the steps are cut. Raises ValueError for more ranks than
    layers.
    """

    def __init__(self, params, world, chunks):
        P, r, L = world.size, world.rank, params.num_layers
        if P > L:
            raise ValueError(
                f"world: got {P} ranks for {L} layers, want at most one for each"
            )
        self.world, self.chunks = world, check_int("chunks", chunks)
        own = params.layers[L * r // P : L * (r + 1) // P]
        self.net = NumbaFused(Params(own, cell=params.cell), threads=1)

    def forward(self, x):
        """y (T, B, H) of the last layers, on the last rank; None on others."""
        (T, B, _), comm, rank = x.shape, self.world.comm, self.world.rank
        last, state, sent, found = rank == self.world.size - 1, None, [], []
        count = min(self.chunks, T)
        for k in range(count):
            a, b = T * k // count, T * (k + 1) // count
            value = x[a:b]
            if rank:
                value = np.empty((b - a, B, self.net._params.input_size), x.dtype)
                comm.Recv(value, rank - 1)
            y, state = self.net.forward(value, state)
            found.append(y)
            if not last:
                sent.append(comm.Isend(y, rank + 1))
        self.world.MPI.Request.Waitall(sent)
        return np.concatenate(found) if last else None


def outputs(params, y):
    """softmax(y V + b_out), (T, B, O)."""
    return np.exp(log_softmax(y, params.V, params.b_out))


def inference(
    world,
    hidden="128,256,512,1024,2048",
    batch=1,
    layers=1,
    steps=200,
    chunks=10,
    repeats=20,
    seed=0,
):
    """Time inference of RNNs by one rank, by its threads, by a GPU where there is one,
    and by all ranks in every way that fits: a row per way, hidden units and repeat.

    Each way is compared with the reference before and after; `max_err` is its largest
    error.
    """
    parts = []
    for H in check_ints("hidden", hidden):
        work = Workload(L=layers, T=steps, D=H, H=H, B=batch)
        sizes = {"num_layers": layers, "output_size": H, "cell": "rnn", "seed": seed}
        params, (x, _) = Params.init(H, H, **sizes), work.example(seed)
        ways = _of_one(world, params) | _of_all(world, params, work, chunks)
        want = reference.forward(params.astype(np.float64), x.astype(np.float64))[0]
        check = partial(_errors, world, ways, x, want)
        errors = check()
        cases = {
            name: partial(world.timed, partial(way, x)) for name, way in ways.items()
        }
        rows = interleaved(cases, repeats=repeats, least=0, own=True)
        check()
        rows = rows.rename(columns={"case": "version"}).assign(
            stage="forward", **work.columns()
        )
        parts.append(rows.assign(max_err=rows["version"].map(errors)))
        parts.append(_read_outs(world, params, work, repeats).assign(**work.columns()))
    alone = (rows := together(parts))["version"].isin([ONE, THREADS, *GPU_VERSIONS])
    threads = np.where(rows["version"] == THREADS, most_threads(world), 1)
    return rows.assign(ranks=np.where(alone, 1, world.size), threads=threads)


def _read_outs(world, params, work, repeats):
    """Time the read-out of all steps on one rank, and with the steps shared by all."""
    y = (
        np.random.default_rng(0)
        .standard_normal((work.T, work.B, work.H))
        .astype(params.dtype)
    )
    low, high = world.share(work.T)
    alone = partial(outputs, params, y) if world.rank == 0 else lambda: None
    ways = {ONE: alone, "steps": partial(outputs, params, y[low:high])}
    cases = {name: partial(world.timed, way) for name, way in ways.items()}
    rows = interleaved(cases, repeats=repeats, least=0, own=True)
    return rows.rename(columns={"case": "version"}).assign(stage="read-out")


def most_threads(world):
    """As many as there are ranks, if the job was given so many (`launch.run`)."""
    return min(world.size, numba.get_num_threads())


def _of_one(world, params):
    """Ways of rank 0, while the others sleep: functions of x."""
    ways, count = {}, most_threads(world)
    if world.rank == 0:
        ways = {ONE: NumbaFused(params, threads=1).forward}
        if count > 1:
            net = NumbaFused(params, threads=count)
            ways[THREADS] = partial(_on_every_core, world, net.forward)
        for version in versions():
            if (
                version.name in GPU_VERSIONS
                and not version.why_unavailable
                and not SIMULATED
            ):
                ways[version.name] = network(version.name, params).forward
    names = world.comm.bcast(list(ways))
    return {name: ways.get(name, lambda x: None) for name in names}


def _on_every_core(world, call, x):
    take_cores()
    try:
        return call(x)
    finally:
        take_cores(*world.near)


def _of_all(world, params, work, chunks):
    """Ways of all ranks that this workload has: functions of x."""
    ways = {}
    if work.L == 1 and NumbaFused(params, threads=1).tiles.blocks >= world.size:
        ways |= {means: Units(params, world, means).forward for means in MEANS}
    if 1 < world.size <= work.L:
        ways["layers"] = Layers(params, world, chunks).forward
    if 1 < world.size <= work.B:
        ways["samples"] = Samples(params, world).forward
    return ways


def _errors(world, ways, x, want):
    """Of each way the largest error of any rank; raises MismatchError on a rank that
    differs.
    """
    errors, (low, high) = {}, world.share(x.shape[1])
    for name, way in ways.items():
        got, error = way(x), 0.0
        if got is not None:
            y = got[0] if isinstance(got, tuple) else got
            own = want[:, low:high] if name == "samples" else want
            error = compare({"y": y}, {"y": own}, TOLERANCE[x.dtype])
        errors[name] = world.comm.allreduce(error, world.MPI.MAX)
    return errors
