"""`numba-chunks`: one sequence in parallel, in the direction of time.

What changed from `numba-fused`: for a mini-batch of one sample time becomes the batch.
The sequence is cut into chunks, which run side by side as lanes of vectors
(`cpu/chunk_kernels.py`), each from a guess of the state it starts from; then each
starts anew from the end of the one before, until no seam moves. So the answer is that
of the sequence step by step, bit by bit, and it is verified: where it is not reached,
the version goes on step by step from the last seam that holds. Backward is the same
with the gradient of the state. Bounded by what a step of a chunk costs, by the steps
that the network remembers, and for large layers by the products, which one sample had
to wait for and a batch has to compute.

How a sequence is cut changes no bit of a forward pass, so the first calls try which cut
is fastest. Sums over time, as the gradients of the weights, are added in an order of
their own: for training the sizes alone decide the cut, and a call repeats its bits.

A mini-batch of more samples is one of `numba-fused`. ARCHITECTURE.md says how x gets
through.
"""

from time import perf_counter
from typing import NamedTuple

import numpy as np

from .. import reference
from ..blas import single_threaded
from ..cpu.chunk_tiles import ChunkTiles
from ..cpu.chunks import ChunkedLayer, Chunking, lane_weights
from ..cpu.divisions import Choice, Trial
from ..cpu.registers import tile_rows
from ..errors import REAL, check_int, check_type
from ..params import Grads, Params
from .base import Network
from .numba_fused import NumbaFused

# What is tried: groups of so many vectors for each thread, or, of layers that fill
# vectors, so many samples; run-ups of so many steps; chunks of so many steps at least.
VECTORS, WIDE, SHORTEST = (1, 2), 64, 8
RUN_UPS = (60, 120)
# For training: layers of at most so many units, chunks of so many steps at least, at
# most so many groups of lanes. Shorter chunks, or wider layers, gain nothing.
FEW_UNITS, LONG, MOST_GROUPS = 4, 256, 16


class Seams(NamedTuple):
    """What became of a sequence: chunks of so many steps; the sweeps of each layer;
    whether every seam held; the step from which the rest was computed step by step, T
    where nothing was.
    """

    chunks: int
    steps: int
    sweeps: tuple[int, ...]
    converged: bool
    alone_from: int


class Stack:
    """The layers of a network over T steps, as lanes."""

    def __init__(self, net, T, training, chunking):
        H, tiles = net._params.hidden_size, net._tiles(chunking.vectors, training)
        self.layers, below, self.weights = [], None, None
        for D in net.inputs:
            of_layer = T, D, H, chunking, net._threads, below, net._tolerance
            below = ChunkedLayer(tiles, *of_layer)
            self.layers.append(below)
        self.bytes = sum(layer.bytes for layer in self.layers)

    def aim(self, weights):
        """Take over the weights of each layer."""
        if self.weights is not weights:
            for layer, arrays in zip(self.layers, weights, strict=True):
                layer.aim(arrays)
            self.weights = weights


class NumbaChunks(NumbaFused):
    """A network that cuts one sequence into chunks.

    chunks: how many, at most T; None tries some, and step by step. run_up: steps before
    each seam that make the first guess; None tries some. sweeps: at most; None is a
    quarter of the chunks and one. tolerance: how far seams may move, relative to each
    number of a state (`chunk_kernels.holding`); 0 asks for the same bits. With more,
    the last bits can differ from call to call, unless `chunks` and `run_up` are given.
    Raises TypeError or ValueError. `seams` tells of the last forward pass, None if that
    was not cut. The rest is as of `NumbaFused`.
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
        tolerance: float = 0.0,
        sweeps: int | None = None,
    ):
        super().__init__(params, threads)
        self._chunks = None if chunks is None else check_int("chunks", chunks)
        self._run_up = None if run_up is None else check_int("run_up", run_up, 0)
        self._sweeps = None if sweeps is None else check_int("sweeps", sweeps)
        want = "a number from zero to less than one"
        check_type("tolerance", tolerance, REAL, want)
        if isinstance(tolerance, bool) or not 0 <= tolerance < 1:
            raise ValueError(f"tolerance: got {tolerance}, want {want}")
        self._tolerance = self._dtype.type(tolerance)
        self._made_with |= {"chunks": chunks, "run_up": run_up, "sweeps": sweeps}
        self._made_with["tolerance"] = tolerance
        self._stacks: dict[tuple, Stack] = {}
        self._trials: dict[tuple, Trial] = {}
        self._weights = None  # of each layer, as lanes read them; None: they changed

    def _change(self, why):
        super()._change(why)
        self._weights = None

    def _replace(self, params):
        self._weights = None
        super()._replace(params)

    def _now_in_lanes(self):
        if self._weights is None:
            layers = self._now().layers
            self._weights = [lane_weights(self._cell, layer) for layer in layers]
        return self._weights

    def _tiles(self, vectors, training=False):
        return ChunkTiles(self._cell, self._dtype, vectors, keep=training)

    def division(self, T: int, B: int, call: str = "forward") -> Choice:
        """As of `NumbaFused`; of one sequence: how it is cut."""
        division = super().division(T, B, call)
        return division if B > 1 else self._trial_of(T, call != "forward").choice()

    def _trial_of(self, T, training):
        key = T, training
        if key not in self._trials:
            self._trials[key] = Trial(self._chunkings(*key))
        return self._trials[key]

    def _chunkings(self, T, training):
        """What is tried for a sequence. For training it is one, which the sizes alone
        decide: sums over time have the same order in every call.
        """
        run_ups = RUN_UPS[-1:] if training else RUN_UPS
        if self._run_up is not None:
            run_ups = (self._run_up,)
        found = [
            Chunking(count, min(steps, T // count - 1), vectors)
            for count, vectors in self._counts(T, training)
            for steps in run_ups
        ]
        if not found or not (self._chunks or training):
            found.append(Chunking(1))
        return [*dict.fromkeys(found)]

    def _counts(self, T, training):
        """Numbers of chunks to try, each with the vectors of a group of lanes; 0:
        samples.
        """
        lanes, H = self._tiles(1).lanes, self._params.hidden_size
        all_lanes, as_samples = lanes * self._threads, H >= WIDE and not training
        if (count := self._chunks) is not None:
            if count > T:
                raise ValueError(f"chunks: got {count}, want at most T, here {T}")
            if as_samples and count < all_lanes:
                return [(count, 0)] if count > 1 else []
            fits = [v for v in VECTORS if v * all_lanes <= count]
            return [(count, max(fits, default=1))] if count > 1 else []
        if training:
            groups = min(MOST_GROUPS, T // (LONG * lanes)) if H <= FEW_UNITS else 0
            return [(groups * lanes, 1)] if groups else []
        counts = [(vectors * all_lanes, vectors) for vectors in VECTORS]
        if as_samples:
            rows = tile_rows(len(self.tiles.offsets("W")))  # of a tile
            counts += [(rows, 0), (2 * rows, 0)]
        return [(count, vectors) for count, vectors in counts if SHORTEST * count <= T]

    def _most_sweeps(self, chunking):
        return min(self._sweeps or chunking.chunks // 4 + 1, chunking.chunks)

    def _forward(self, x, state, training):
        self.seams = None
        if x.shape[1] > 1:
            return super()._forward(x, state, training)
        trial = self._trial_of(len(x), training)
        chunking = trial.division
        if chunking.vectors:  # what is compiled now is not timed
            stack = self._stack(len(x), training, chunking)
        start = perf_counter()
        if chunking.chunks == 1:
            result = super()._forward(x, state, training)
        elif chunking.vectors:
            result = self._as_lanes(stack, x, state, training, chunking)
        else:
            result = self._as_samples(x, state, chunking)
        trial.record(chunking, perf_counter() - start)
        return result

    def _stack(self, T, training, chunking):
        key = T, training, chunking
        stack = self._kept(self._stacks, key, lambda: Stack(self, *key))
        stack.aim(self._now_in_lanes())
        return stack

    def _as_lanes(self, stack, x, state, training, chunking):
        """What `_forward` returns."""
        xs, T, most = [x[:, 0]], len(x), self._most_sweeps(chunking)
        for l, layer in enumerate(stack.layers):
            given = 0 if state is None else [s[l, 0] for s in state]
            xs.append(layer.forward(None if l else xs[0], given, most))
            held = layer.exact == layer.chunks
            if not held:
                break
        sweeps = tuple(layer.sweeps for layer in stack.layers[: l + 1])
        alone = T
        if not held:  # a layer alone goes on from its last seam that holds
            alone = 0 if training or len(stack.layers) > 1 else layer.exact_steps
        self.seams = Seams(chunking.chunks, layer.n, sweeps, held, alone)
        if alone == 0:
            return super()._forward(x, state, training)
        state = self._states(layer.exact_state for layer in stack.layers)
        if held:
            y = xs[-1][:, None]
            return y.copy() if training else y, state, (stack, xs)
        rest, state, _ = super()._forward(x[alone:], state, False)
        return np.concatenate([xs[-1][:alone, None], rest]), state, None

    def _states(self, layers):
        """The state of the network, arrays (L, 1, H), from those of its layers, each
        (2, H).
        """
        states = np.stack([*layers], axis=1)[:, :, None]
        return tuple(states[: len(self._cell.state)])

    def _as_samples(self, x, state, chunking):
        """What `_forward` returns. Steps that are left over come before the chunks."""
        forward, count = super()._forward, chunking.chunks
        n, rest = divmod(len(x), count)
        result = np.empty((len(x), 1, self._params.hidden_size), self._dtype)
        if rest:
            result[:rest], state, _ = forward(x[:rest], state, False)
        cut = np.ascontiguousarray(x[rest:, 0].reshape(count, n, -1).swapaxes(0, 1))
        _, ends, _ = forward(cut[n - max(1, chunking.run_up) :], None, False)
        starts = [np.zeros_like(end) for end in ends]
        for start, given in zip(starts, state or (), strict=False):
            start[:, :1] = given
        exact = sweep = 0
        while exact < count and sweep < self._most_sweeps(chunking):
            for start, end in zip(starts, ends, strict=True):
                start[:, 1:] = end[:, :-1]
            y, ends, _ = forward(cut, starts, False)
            sweep += 1
            held = np.append(self._held_seams(starts, ends), False)
            exact = 1 + int(np.argmin(held))
        alone = rest + exact * n
        result[rest:].reshape(count, n, -1)[...] = y.swapaxes(0, 1)
        final = tuple(end[:, exact - 1 : exact].copy() for end in ends)
        self.seams = Seams(count, n, (sweep,), exact == count, alone)
        if exact < count:
            result[alone:], final, _ = forward(x[alone:], final, False)
        return result, final, None

    def _held_seams(self, starts, ends):
        """Which seams between samples hold, (count - 1,), as `chunk_kernels.holding`
        has it; starts, ends: h and c, each (L, count, H).
        """
        held = True
        for start, end in zip(starts, ends, strict=True):
            own, moved = abs(end[:, :-1]), abs(end[:, :-1] - start[:, 1:])
            usual = np.minimum(own.max(1, keepdims=True), own.max(2, keepdims=True))
            close = moved <= self._tolerance * own  # not where one is NaN
            close |= moved <= self._tolerance * usual
            if self._tolerance == 0:  # zeros have signs
                close &= np.signbit(end[:, :-1]) == np.signbit(start[:, 1:])
            held = close.all(axis=(0, 2)) & held
        return held

    def _backward(self, tape, dy, dstate, inputs):
        stack, xs = tape
        if not isinstance(stack, Stack):
            return super()._backward(tape, dy, dstate, inputs)
        grads, dstates, dy = [], [], dy[:, 0]
        with single_threaded(), np.errstate(over="ignore", invalid="ignore"):
            for l, layer in reversed([*enumerate(stack.layers)]):
                dfinal = () if dstate is None else [s[l, 0] for s in dstate]
                grad, dy, dinitial = layer.backward(xs[l], xs[l + 1], dy, dfinal)
                if len(self._cell.state) == 1:  # c is h
                    dinitial[0] += dinitial[1]
                grads.insert(0, grad)
                dstates.insert(0, dinitial)
        state = self._states(dstates)
        result = Grads(grads, cell=self._cell.name, x=dy[:, None], state=state)
        if self._params.V is not None:  # y does not depend on the read-out
            result.V = np.zeros_like(self._params.V)
            result.b_out = np.zeros_like(self._params.b_out)
        return result

    def _loss_and_grads(self, x, target):
        if x.shape[1] > 1:
            return super()._loss_and_grads(x, target)
        y, _, tape = self._forward(x, None, True)
        with single_threaded():
            loss, dy, gV, gb_out = reference.readout_loss(self._now(), y, target)
        grads = self._backward(tape, dy, None, True)
        grads.V, grads.b_out = gV, gb_out
        return loss, grads

    def _step(self, x, target, rate):
        kind = NumbaFused if x.shape[1] > 1 else Network
        return kind._step(self, x, target, rate)

    def _epoch(self, dataset, order, batch_size, rate):
        kind = NumbaFused if batch_size > 1 else Network
        return kind._epoch(self, dataset, order, batch_size, rate)
