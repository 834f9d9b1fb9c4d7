"""`numba-chunks`: one sequence in parallel, in the direction of time.

What changed from `numba-fused`: for a mini-batch of one sample time becomes the batch.
The sequence is cut into chunks, which run side by side as lanes of vectors
(`cpu/chunk_kernels.py`), or for large layers as samples, each from a guess of the state
it starts from; then each starts anew from the end of the one before, until no seam
moves. So the answer is that of the sequence step by step, bit by bit, and it is
verified: where it is not reached, the sequence is computed step by step. Bounded by
what a step of a chunk costs, by the steps that the network remembers, and for large
layers by the products, which one sample had to wait for and a batch has to compute.

How a sequence is cut changes no bit, so the first calls try which cut is fastest.
Training and mini-batches of more samples are those of `numba-fused`. ARCHITECTURE.md
says how x gets through.
"""

from functools import partial
from time import perf_counter
from typing import NamedTuple

import numpy as np

from ..cpu.chunk_tiles import ChunkTiles
from ..cpu.chunks import ChunkedLayer, Chunking, lane_weights
from ..cpu.divisions import Choice, Trial
from ..cpu.registers import tile_rows
from ..errors import check_int
from ..params import Params
from .numba_fused import NumbaFused

# What is tried: groups of so many vectors for each thread, or, of layers of so many
# units, so many samples; run-ups of so many steps; chunks of so many steps at least.
VECTORS, WIDE, SHORTEST = (1, 2), 64, 8
RUN_UPS = (60, 120)


class Seams(NamedTuple):
    """What became of a sequence: chunks of so many steps; the sweeps of each layer;
    whether every seam held. Where one did not, all was computed step by step.
    """

    chunks: int
    steps: int
    sweeps: tuple[int, ...]
    converged: bool


class NumbaChunks(NumbaFused):
    """A network that cuts one sequence into chunks.

    chunks: how many, at most T; None tries some, and step by step. They fill vectors
    where they are a multiple of what vectors hold. run_up: steps before each seam that
    make the first guess; None tries some. sweeps: at most; None is a quarter of the
    chunks and one. Raises TypeError or ValueError. `seams` tells of the last forward
    pass, None if that was not cut. The rest is as of `NumbaFused`.
    """

    name = "numba-chunks"
    seams: Seams | None = None

    def __init__(
        self,
        params: Params,
        threads: int | None = None,
        *,
        chunks: int | None = None,
        run_up: int | None = None,
        sweeps: int | None = None,
    ):
        super().__init__(params, threads)
        self._chunks = None if chunks is None else check_int("chunks", chunks)
        self._run_up = None if run_up is None else check_int("run_up", run_up, 0)
        self._sweeps = None if sweeps is None else check_int("sweeps", sweeps)
        self._made_with |= {"chunks": chunks, "run_up": run_up, "sweeps": sweeps}
        self._layers: dict[tuple, ChunkedLayer] = {}
        self._trials: dict[int, Trial] = {}
        self._weights = None  # of each layer, as lanes read them; None: they changed

    def _change(self, why):
        super()._change(why)
        self._weights = None

    def _now_in_lanes(self):
        if self._weights is None:
            layers = self._now().layers
            self._weights = [lane_weights(self._cell, layer) for layer in layers]
        return self._weights

    def division(self, T: int, B: int, call: str = "forward") -> Choice:
        """As of `NumbaFused`; of one sequence that is not trained on: how it is cut."""
        division, T = super().division(T, B, call), int(T)
        return division if B > 1 or call != "forward" else self._trial_of(T).choice()

    def _trial_of(self, T):
        if T not in self._trials:
            self._trials[T] = Trial(self._chunkings(T))
        return self._trials[T]

    def _chunkings(self, T):
        """What is tried for a sequence."""
        run_ups = RUN_UPS if self._run_up is None else (self._run_up,)
        found = [
            Chunking(count, min(steps, T // count - 1), vectors)
            for count, vectors in self._counts(T)
            for steps in run_ups
        ]
        if not self._chunks or self._chunks == 1:
            found.append(Chunking(1))
        return [*dict.fromkeys(found)]

    def _counts(self, T):
        """Numbers of chunks to try, each with the vectors of a group of lanes; 0:
        samples.
        """
        lanes = ChunkTiles(self._cell, self._dtype, 1).lanes
        all_lanes, count = lanes * self._threads, self._chunks
        wide = self._params.hidden_size >= WIDE
        if count == 1:
            return []
        if count is not None:
            if count > T:
                raise ValueError(f"chunks: got {count}, want at most T, here {T}")
            if count % lanes or (wide and count < all_lanes):
                return [(count, 0)]
            fits = [v for v in VECTORS if not count % (v * all_lanes)]
            return [(count, max(fits, default=1))]
        counts = [(vectors * all_lanes, vectors) for vectors in VECTORS]
        if wide:
            rows = tile_rows(len(self.tiles.offsets("W")))  # of a tile
            counts += [(rows, 0), (2 * rows, 0)]
        return [(count, vectors) for count, vectors in counts if SHORTEST * count <= T]

    def _forward(self, x, state, training):
        self.seams = None
        if x.shape[1] > 1 or training:
            return super()._forward(x, state, training)
        trial = self._trial_of(len(x))
        chunking = trial.division
        layers = self._layers_of(chunking, len(x))  # what is compiled now is not timed
        start = perf_counter()
        result = self._cut(layers, x, state, chunking)
        trial.record(chunking, perf_counter() - start)
        return result

    def _layers_of(self, chunking, T):
        """The room of each layer, none for chunks as samples."""
        C, _, vectors = chunking

        def room(D):
            tiles = ChunkTiles(self._cell, self._dtype, vectors)
            sizes = C, T, D, self._params.hidden_size
            return ChunkedLayer(tiles, *sizes, self._threads)

        # Layers of as many inputs share it.
        return [
            self._kept(self._layers, (C, vectors, T, D), partial(room, D))
            for D in self.inputs
            if vectors
        ]

    def _cut(self, layers, x, state, chunking):
        """What `_forward` returns."""
        forward, count = super()._forward, chunking.chunks
        if count == 1:
            return forward(x, state, False)
        most = min(self._sweeps or count // 4 + 1, count)
        if layers:
            n, run = layers[0].n, self._as_lanes(layers, x, state, chunking, most)
        else:
            n = len(x) // count
            run = self._as_samples(forward, x, state, chunking, most)
        y, final, sweeps = run
        self.seams = Seams(count, n, tuple(sweeps), y is not None)
        return forward(x, state, False) if y is None else (y, final, None)

    def _as_lanes(self, layers, x, state, chunking, most):
        """y, the final state, and the sweeps of each layer; None for y where a seam
        moves. Steps behind the last one fill up its chunk, and those behind it.
        """
        sweeps, ends, T = [], [], len(x)
        rows, length = x[:, 0], layers[0].n * chunking.chunks
        if length > T:
            rows = np.zeros((length, x.shape[2]), self._dtype)
            rows[:T] = x[:, 0]
        for l, weights in enumerate(self._now_in_lanes()):
            given = 0 if state is None else [s[l, 0] for s in state]
            run = layers[l].run(weights, rows, given, chunking.run_up, most)
            rows, end, held = run
            sweeps.append(held or most)
            if not held:
                return None, None, sweeps
            ends.append(end)
        final = tuple(
            np.array(of_layers)[:, None] for of_layers in zip(*ends, strict=True)
        )
        return rows[:T, None], final, sweeps

    def _as_samples(self, forward, x, state, chunking, most):
        """The same; the sweeps are those of all layers. Steps that are left over come
        before the chunks.
        """
        count, rest = chunking.chunks, len(x) % chunking.chunks
        y = np.empty((len(x), 1, self._params.hidden_size), self._dtype)
        if rest:
            y[:rest], state, _ = forward(x[:rest], state, False)
        chunks = x[rest:].reshape(count, -1, x.shape[2]).swapaxes(0, 1)
        chunks = np.ascontiguousarray(chunks)
        run_up = chunks[-max(1, chunking.run_up) :]
        _, ends, _ = forward(run_up, None, False)
        starts = [np.zeros_like(end) for end in ends]
        for start, given in zip(starts, state or (), strict=False):
            start[:, :1] = given
        for sweep in range(1, most + 1):
            for start, end in zip(starts, ends, strict=True):
                start[:, 1:] = end[:, :-1]
            rows, ends, _ = forward(chunks, starts, False)
            if all(map(same_at_seams, starts, ends)):
                y[rest:].reshape(count, *rows[:, 0].shape)[:] = rows.swapaxes(0, 1)
                return y, tuple(end[:, -1:].copy() for end in ends), [sweep]
        return None, None, [most]


def same_at_seams(starts, ends):
    """Are the ends of samples the starts of the next ones, (L, samples, H), as
    `chunk_kernels.holding` has it?
    """
    start, end = starts[:, 1:], ends[:, :-1]
    return bool(((start == end) & (np.signbit(start) == np.signbit(end))).all())
