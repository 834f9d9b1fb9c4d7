"""`numba-chunks`: one sequence in parallel, in the direction of time.

What changed from `numba-fused`: for a mini-batch of one sample time becomes the batch.
The sequence is cut into chunks, which run side by side as samples of a mini-batch, in
lanes of vectors or, for large layers, in rows of a product: each from a guess of the
state it starts from; then each starts anew from the end of the one before, until no
seam moves. So the answer is that of the sequence step by step, bit by bit, and it is
verified: where it is not reached, the sequence is computed step by step. A *run-up*,
some steps before each seam, makes the first guess. Bounded by what a step of a chunk
costs, by the steps that the network remembers, and for large layers by the products,
which one sample had to wait for and a batch has to compute.

How a sequence is cut changes no bit, so the first calls try which cut is fastest.
Training and mini-batches of more samples are those of `numba-fused`.
"""

from functools import partial
from time import perf_counter
from typing import NamedTuple

import numpy as np

from ..cpu.arrays import PROGRESS_WORD
from ..cpu.divisions import Choice, Division, Trial
from ..cpu.workspace import Space
from ..errors import check_int, counted
from ..params import Params
from .numba_fused import NumbaFused

# What is tried: so many vectors of chunks at once for each thread, or, of layers of so
# many units, so many tiles of samples; run-ups of so many steps; chunks of so many
# steps at least.
VECTORS, WIDE, SHORTEST = (1, 2), 64, 8
RUN_UPS = (60, 120)


class Chunking(NamedTuple):
    """A sequence as so many chunks, after a run-up of so many steps: lanes in groups of
    so many vectors, or without vectors samples of a mini-batch. One chunk is no cut.
    """

    chunks: int
    run_up: int = 0
    vectors: int = 0

    @property
    def by(self):
        return "one thread" if self.chunks == 1 else "chunks"

    def __str__(self):
        lanes = (
            f"lanes of {counted(self.vectors, 'vector')}" if self.vectors else "samples"
        )
        how = f"{self.chunks} chunks as {lanes}, run-up {self.run_up}"
        return how if self.chunks > 1 else "step by step"


class Seams(NamedTuple):
    """What became of a sequence: chunks of so many steps; the sweeps; whether every
    seam held. Where one did not, all was computed step by step.
    """

    chunks: int
    steps: int
    sweeps: int
    converged: bool


class NumbaChunks(NumbaFused):
    """A network that cuts the sequence of one sample into chunks, in `forward` without
    training; other calls are as of `NumbaFused`.

    chunks: how many, at most T; None tries some, and step by step. They fill vectors
    where they are a multiple of what vectors hold. run_up: steps before each seam that
    make the first guess; None tries some. sweeps: at most; None is a quarter of the
    chunks and one. Raises TypeError or ValueError. `seams` tells of the last forward
    pass, None if that was not cut.
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
        subnormals: bool = False,
    ):
        super().__init__(params, threads, subnormals=subnormals)
        self._chunks = None if chunks is None else check_int("chunks", chunks)
        self._run_up = None if run_up is None else check_int("run_up", run_up, 0)
        self._sweeps = None if sweeps is None else check_int("sweeps", sweeps)
        self._made_with |= {"chunks": chunks, "run_up": run_up, "sweeps": sweeps}
        self._trials: dict[int, Trial] = {}

    def division(self, T: int, B: int, call: str = "forward") -> Choice:
        """As of `NumbaFused`; of one sequence that is not trained on: how it is cut."""
        division, T = super().division(T, B, call), int(T)
        return division if B > 1 or call != "forward" else self._trial_of(T).choice()

    def _trial_of(self, T):
        found = self._trials.pop(T, None) or Trial(self._chunkings(T))
        self._trials[T] = found  # the last one asked for
        if len(self._trials) > 64:  # lengths are remembered
            self._trials.pop(next(iter(self._trials)))
        return found

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
        lanes, count = self.tiles.lanes, self._chunks
        all_lanes, wide = lanes * self._threads, self._params.hidden_size >= WIDE
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
            rows = self.tiles.tile_rows("W")
            counts += [(rows, 0), (2 * rows, 0)]
        return [(count, vectors) for count, vectors in counts if SHORTEST * count <= T]

    def _forward(self, x, state, training):
        self.seams = None
        if x.shape[1] > 1 or training:
            return super()._forward(x, state, training)
        trial = self._trial_of(len(x))
        chunking = trial.division
        if chunking.vectors and not trial.decided:
            self._space_of(chunking, len(x))  # what is compiled now is not timed
        start, result = perf_counter(), None
        if chunking.chunks > 1:
            cut = self._as_lanes if chunking.vectors else self._as_samples
            result = cut(x, state, chunking)
        if result is None:  # it is not cut, or a seam still moves
            result = super()._forward(x, state, False)
        trial.record(chunking, perf_counter() - start)
        return result

    def _most(self, count):
        """How many sweeps there may be."""
        return min(self._sweeps or count // 4 + 1, count)

    def _space_of(self, chunking, T):
        """The Space of chunks in lanes, with the Plans of the first sweep and of a
        later one.
        """
        count, run_up, vectors = chunking
        key = -(-T // count), count, vectors, "chunks"
        make = partial(Space, self, *key[:2], "inference", chunked=True)
        space = self._kept(self._spaces, key, make)
        space.work.settle()
        if run_up not in space.sweeps:
            lanes = vectors * self.tiles.lanes
            by = "samples" if min(count // lanes, self._threads) > 1 else "one thread"
            division = Division(by, lanes=lanes)
            schedule = partial(self._checked_schedule, division)
            plans = [space.plan("sweep", division, schedule, n) for n in (run_up, None)]
            space.use(plans[0])
            space.sweeps[run_up] = plans
        return space, *space.sweeps[run_up]

    def _as_lanes(self, x, state, chunking):
        """What `_forward` returns, None where a seam moves after the last sweep. Steps
        behind the last one are zeros, whose outputs are left out.
        """
        T, count = len(x), chunking.chunks
        space, first, later = self._space_of(chunking, T)
        n, H = space.x_shape[0], self._params.hidden_size
        if n * count > T:
            x = np.concatenate([x, np.zeros((n * count - T, *x.shape[1:]), x.dtype)])
        y = np.empty((n * count, 1, H), x.dtype)
        slots, word, held = space.begin_chunks(x, y, state), PROGRESS_WORD, False
        for plan, most in ((first, 1), (later, self._most(count) - 1)):
            if most and not held:
                done = space.work.progress[word.done]
                space.work.repeat(done, done + most)
                space.work.run(plan, (space, x, y), (1 + most) * space.operations)
                held = bool(space.work.progress[word.held] == count - 1)
        sweeps = int(space.work.progress[word.done]) - (chunking.run_up > 0)
        self.seams = Seams(count, n, sweeps, held)
        if not held:
            return None
        last, end = divmod(T - 1, n)  # the last step's chunk, and in that
        final = tuple(slot[:, end + 1, None, :, last].copy() for slot in slots)
        return y if len(y) == T else y[:T].copy(), final, None

    def _as_samples(self, x, state, chunking):
        """The same in rows of a mini-batch. Steps that are left over come before the
        chunks.
        """
        forward, count = super()._forward, chunking.chunks
        n, rest = divmod(len(x), count)
        y = np.empty((len(x), 1, self._params.hidden_size), self._dtype)
        if rest:
            y[:rest], state, _ = forward(x[:rest], state, False)
        chunks = x[rest:].reshape(count, n, x.shape[2]).swapaxes(0, 1)
        chunks = np.ascontiguousarray(chunks)
        _, ends, _ = forward(chunks[-max(1, chunking.run_up) :], None, False)
        starts = [np.zeros_like(end) for end in ends]
        for start, given in zip(starts, state or (), strict=False):
            start[:, :1] = given
        for sweep in range(1, self._most(count) + 1):
            for start, end in zip(starts, ends, strict=True):
                start[:, 1:] = end[:, :-1]
            rows, ends, _ = forward(chunks, starts, False)
            pairs = zip(starts, ends, strict=True)
            if all(same(start[:, 1:], end[:, :-1]) for start, end in pairs):
                y[rest:].reshape(count, *rows[:, 0].shape)[:] = rows.swapaxes(0, 1)
                self.seams = Seams(count, n, sweep, True)
                return y, tuple(end[:, -1:].copy() for end in ends), None
        self.seams = Seams(count, n, sweep, False)
        return None


def same(a, b):
    """Have two arrays the same bits? Then all that follows has."""
    return a.tobytes() == b.tobytes()
