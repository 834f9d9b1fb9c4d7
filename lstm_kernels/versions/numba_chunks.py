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
from ..cpu.chunks import ChunkedLayer, Chunking, LaneWeights, is_diagonal
from ..cpu.divisions import Choice, Trial
from ..errors import REAL, check_int, check_type
from ..params import Grads
from .base import Network
from .numba_fused import NumbaFused

# What is tried: groups of so many vectors for each thread, or, of layers that fill
# vectors, so many samples; run-ups of so many steps; chunks of so many steps at least.
VECTORS, WIDE, SHORTEST = (1, 2), 64, 8
RUN_UPS = (60, 120)
# For training: layers of at most so many units, chunks of so many steps at least, at
# most so many groups of lanes. Shorter chunks, or wider layers, gain nothing.
FEW_UNITS, LONG, MOST_GROUPS = 4, 256, 16


MOST = 1 << 40  # chunks and sweeps: as many steps are no sequence


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
    """The layers of a network over T steps."""

    def __init__(self, net, T, training, chunking):
        sizes = net._cell, net._dtype, chunking.vectors, net.diagonal
        tiles = ChunkTiles(*sizes, keep=training or net.newton)
        how = {"trains": training, "newton": net.newton}
        self.layers, H = [], net._params.hidden_size
        for D in net.inputs:
            below = self.layers[-1] if self.layers else None
            of_layer = T, D, H, chunking, net._threads, below
            self.layers.append(ChunkedLayer(tiles, *of_layer, **how))
        self.bytes = sum(layer.bytes for layer in self.layers)
        self.edition = None  # of the parameters that the layers have
        self.fresh = True  # of which the first pass compiles, and meets new memory


def by_state(layers):
    """The state of a network, arrays (L, 1, H), from that of each layer (S, H)."""
    if len(layers) == 1:
        return tuple(layers[0][:, None, None])
    return tuple(np.stack(layers, axis=1)[:, :, None])


class NumbaChunks(NumbaFused):
    """A network that cuts one sequence into chunks.

    chunks: how many, at most T; None tries some, and step by step. run_up: steps before
    each seam that make the first guess; None tries some. sweeps: at most; None is a
    quarter of the chunks and one. tolerance: how far seams may move, relative to each
    number of a state (`chunk_kernels.compare`); 0 asks for the same bits. With more,
    the last bits can differ from call to call, unless `chunks` and `run_up` are given.
    Raises TypeError or ValueError. `seams` tells of the last forward pass, None if that
    was not cut. The rest is as of `NumbaFused`.
    """

    name = "numba-chunks"
    newton = False
    roundings = 0  # the tolerance by default, times the last place of one

    def __init__(
        self,
        params,
        threads=None,
        *,
        chunks=None,
        run_up=None,
        tolerance=None,
        sweeps=None,
    ):
        super().__init__(params, threads)
        chosen = {"chunks": chunks, "sweeps": sweeps}
        for name, value in chosen.items():
            chosen[name] = None if value is None else check_int(name, value, 1, MOST)
        chosen["run_up"] = None if run_up is None else check_int("run_up", run_up, 0)
        if tolerance is not None:
            want = "a number from zero to less than one"
            check_type("tolerance", tolerance, REAL, want)
            if isinstance(tolerance, bool) or not 0 <= tolerance < 1:
                raise ValueError(f"tolerance: got {tolerance}, want {want}")
        chosen["tolerance"] = tolerance
        self._made_with |= chosen
        self._chosen, self.seams = chosen, None
        if tolerance is None:
            tolerance = self.roundings * float(np.finfo(self._dtype).eps)
        self._tolerance, self._stacks, self._tried = float(tolerance), {}, {}
        self._edition, self._weights_of = 0, None  # of the parameters
        self.diagonal = False  # is W, of every gate and layer?

    def _change(self, why):
        super()._change(why)
        self._edition += 1

    def _replace(self, params):
        super()._replace(params)
        self._edition += 1

    def _chunkings(self, T, training):
        """What is tried for a sequence; for training one, which the sizes decide."""
        chunks, run_up = self._chosen["chunks"], self._chosen["run_up"]
        if chunks is not None and chunks > T:
            raise ValueError(f"chunks: got {chunks}, want at most T, here {T}")
        lanes, one_cut = self._lanes(1), training or self.newton
        as_samples = self._params.hidden_size >= WIDE and not one_cut
        ways = [(lanes * vectors * self._threads, vectors) for vectors in VECTORS]
        if chunks is not None:
            fits = [vectors for count, vectors in ways if count <= chunks]
            few = as_samples and chunks < lanes * self._threads
            ways = [(chunks, 0 if few else max(fits, default=1))]
        elif one_cut:
            small = self._params.hidden_size <= FEW_UNITS
            groups = min(MOST_GROUPS, T // (LONG * lanes)) if small else 0
            ways = [(groups * lanes, 1)] if groups else []
        elif as_samples:
            rows = self.tiles.tile_rows(len(self.tiles.offsets("W")))  # of a tile
            ways += [(rows, 0), (2 * rows, 0)]
        run_ups = RUN_UPS[-1:] if one_cut else RUN_UPS
        found = [
            Chunking(count, min(steps, T // count - 1), vectors)
            for count, vectors in ways
            for steps in (run_ups if run_up is None else (run_up,))
            if chunks or SHORTEST * count <= T
        ]
        alone = [] if chunks or (one_cut and found) else [Chunking(1)]
        return [*dict.fromkeys(found), *alone]

    def _lanes(self, vectors):
        """Lanes of so many vectors."""
        return ChunkTiles(self._cell, self._dtype, vectors).lanes

    def division(self, T: int, B: int, call: str = "forward") -> Choice:
        """As of `NumbaFused`; of one sequence: how it is cut."""
        division = super().division(T, B, call)
        return division if B > 1 else self._trial_of(T, call != "forward").choice()

    def _trial_of(self, T, training):
        if (T, training) not in self._tried:
            self._tried[T, training] = Trial(self._chunkings(T, training))
        return self._tried[T, training]

    def _take_weights(self):
        layers = self._now().layers
        self.diagonal = all(map(is_diagonal, layers))
        self._lane_weights = [LaneWeights(self._cell, l, self.diagonal) for l in layers]
        self._weights_of = self._edition

    def _forward(self, x, state, training, spaces=None):
        if x.shape[1] > 1:
            self.seams = None
            return super()._forward(x, state, training, spaces)
        trial = self._trial_of(len(x), training)
        chunking, start, fresh = trial.division, perf_counter(), False
        if chunking.count == 1:
            self.seams = None
            result = super()._forward(x, state, training, spaces)
        elif chunking.vectors == 0:
            result = self._as_samples(x, state, chunking)
        else:
            result, fresh = self._as_lanes(x, state, training, chunking, spaces)
        if fresh:
            Trial.tried += not trial.decided
        else:
            trial.record(chunking, perf_counter() - start)
        return result

    def _as_lanes(self, x, state, training, chunking, spaces):
        """What `_forward` returns; was its memory new?"""
        T = len(x)
        if self._weights_of != self._edition:
            self._take_weights()
        spaces = self._stacks if spaces is None else spaces
        key = T, training, chunking, self.diagonal
        stack = self._kept(spaces, key, lambda: Stack(self, T, training, chunking))
        fresh, stack.fresh = stack.fresh, False
        if stack.edition != self._edition:
            for layer, weights in zip(stack.layers, self._lane_weights, strict=True):
                layer.aim(weights, self._tolerance)
            stack.edition = self._edition
        most, warm = self._most_sweeps(chunking), self._chosen.get("warm_start", False)
        warm = warm and not fresh
        finals, sweeps, y = [], [], x[:, 0]
        for l, layer in enumerate(stack.layers):
            given = 0 if state is None else [s[l, 0] for s in state]
            y, final, exact, swept = layer.forward(None if l else y, given, most, warm)
            finals.append(final)
            sweeps.append(swept)
            if exact < layer.chunks:
                break
        held = exact == layer.chunks
        alone = T
        if not held:
            steps, at = layer.exact(exact)
            alone = 0 if training or len(stack.layers) > 1 else steps
        self.seams = Seams(chunking.count, layer.n, tuple(sweeps), held, alone)
        if held:
            y = y[:, None].copy() if training else y[:, None]
            return (y, by_state(finals), (stack, x)), fresh
        if alone == 0:
            return super()._forward(x, state, training, spaces), fresh
        state = tuple(at[:, None, None])
        y_rest, state, _ = super()._forward(x[alone:], state, False)
        return (np.concatenate([y[:alone, None], y_rest]), state, None), fresh

    def _most_sweeps(self, chunking):
        return self._chosen["sweeps"] or chunking.count // 4 + 1

    def _as_samples(self, x, state, chunking):
        """What `_forward` returns. Steps that are left over come before the chunks."""
        forward, count = super()._forward, chunking.count
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
        """Which seams between samples hold, (count - 1,), as
        `chunk_kernels.compare` has it; starts, ends: h and c, each (L, count, H).
        """
        held = True
        for start, end in zip(starts, ends, strict=True):
            own, moved = abs(end[:, :-1]), abs(end[:, :-1] - start[:, 1:])
            usual = np.minimum(own.max(1, keepdims=True), own.max(2, keepdims=True))
            close = moved <= self._tolerance * np.maximum(own, usual)
            if self._tolerance == 0:  # zeros have signs
                close &= np.signbit(end[:, :-1]) == np.signbit(start[:, 1:])
            held = close.all(axis=(0, 2)) & held
        return held

    def _backward(self, tape, dy, dstate, inputs):
        stack, x = tape
        if not isinstance(stack, Stack):
            return super()._backward(tape, dy, dstate, inputs)
        L = len(stack.layers)
        grads, dstates, dy = [None] * L, [None] * L, dy[:, 0]
        with single_threaded(), np.errstate(over="ignore", invalid="ignore"):
            for l in reversed(range(L)):
                layer, below = stack.layers[l], stack.layers[l - 1]
                x_l = below.arrays["y_rows"][below.padding :] if l else x[:, 0]
                dfinal = 0 if dstate is None else [s[l, 0] for s in dstate]
                grads[l], dy, dstates[l] = layer.backward(x_l, dy, dfinal)
        state = by_state(dstates)
        result = Grads(grads, cell=self._cell.name, x=dy[:, None], state=state)
        if self._params.V is not None:
            result.V, result.b_out = map(
                np.zeros_like, (self._params.V, self._params.b_out)
            )
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
        if x.shape[1] > 1:
            return super()._step(x, target, rate)
        self._params = self._now()
        return Network._step(self, x, target, rate)

    def _epoch(self, dataset, order, batch_size, rate):
        if batch_size > 1:
            return super()._epoch(dataset, order, batch_size, rate)
        return Network._epoch(self, dataset, order, batch_size, rate)
