"""Inference with factored weights (`low_rank.py`), in the tiles of `numba-fused`.

A layer has two products a step where a dense one has one, and R (D + H + K H) weights
in place of (D + H) K H. The sums s between them never leave the cache; the second
product and the cell are one tile, as in `numba-fused`. Threads share the samples; one
sample is computed by one thread. What trains goes through the dense weights: their
gradients become those of the factors.
"""

import numpy as np

from ..blas import single_threaded
from ..cells import Cell
from ..cpu import factored_kernels as kernels
from ..cpu.tiles import Tiles, codes
from ..cpu.workspace import INPUT_ROWS, Work, buffer, point
from ..low_rank import Factored, through_factors
from .base import Network
from .numba_fused import NumbaFused, chosen_threads, most_threads

LEAST_SHARED = 2e6  # operations of a pass that threads share: some 20 us of one


def linear(tanh, sigmoid):
    """The cell that leaves its pre-activation as it is."""

    def forward(s_bar, c_prev):
        return s_bar, s_bar, s_bar

    def backward(dh, dc, s, c_prev, c):
        return dh, dc

    return forward, backward


LINEAR = Cell("linear", ("s",), (0,), (0,), ("s",), linear)


def tiles_of(cell, dtype, hidden, rank):
    """The Tiles of the cell and of the linear one, with wide unit blocks of one
    width.
    """

    def padded(wide):
        return sum(Tiles(cell, dtype, size, wide).padded for size in (hidden, rank))

    wide = 4 if padded(4) <= padded(2) else 2
    return Tiles(cell, dtype, hidden, wide), Tiles(LINEAR, dtype, rank, wide)


def packed(matrix, tiles, rows, gates):
    """A matrix (k, G*units) as (unit blocks, rows, G, units of a block), with zeros
    around it.
    """
    plain = matrix.reshape(len(matrix), gates, -1)
    whole = np.zeros((rows, gates, tiles.padded), matrix.dtype)
    whole[: len(matrix), :, : plain.shape[2]] = plain
    blocks = tiles.padded // tiles.units
    result = buffer(blocks, rows, gates, tiles.units, dtype=matrix.dtype)
    result[...] = whole.reshape(rows, gates, -1, tiles.units).transpose(2, 0, 1, 3)
    return result


class FactoredNetwork(Network):
    """A network with factored weights: the methods of every network, on
    low_rank.Factored.
    """

    name = "factored"
    tapes = False
    params_class = Factored
    most_threads = staticmethod(most_threads)

    def __init__(self, params, threads=None):
        super().__init__(params, threads)
        self._threads = chosen_threads(self._threads)
        params = self._params
        sizes = params.dtype, params.hidden_size, params.rank
        self.tiles, self.sums = tiles_of(self._cell, *sizes)
        self._weights = self._space = self._dense = None

    def _replace(self, params):
        # Weights are packed when they are next needed.
        self._params, self._weights, self._dense = params, None, None

    def _guard(self):
        return self._lock  # which is held

    def _forward(self, x, state, training):
        if training:
            dense = self._dense_network()
            return *dense.forward(x, state, training=True), dense
        (T, B, _), H = x.shape, self.tiles.hidden
        if self._space is None or self._space.shape != (T, B):
            self._space, self._weights = Space(self, T, B), None
        space = self._space
        if self._weights is None:
            weights = [self._pack(layer) for layer in self._params.layers]
            for record, named in zip(space.work.layers, weights, strict=True):
                point(record, **named)
            self._weights = weights  # which the records point to
        top = space.begin(x, state)
        operations = space.operations
        alive = space, self._weights, x
        space.work.run(kernels.infer, space.threads, alive, operations)
        h = np.stack([layer[-1, :, :H] for layer in (*space.h[:-1], top)])
        final = h, space.c[:, -1, :, :H].copy()
        y = top[1:, :, :H]  # the caller's own if it is not the space's
        y = y.copy() if top is space.h[-1] else y
        return y, final[: len(self._cell.state)], None

    def _pack(self, layer):
        tiles, sums, K = self.tiles, self.sums, len(self._cell.gates)
        Px, Ph = np.split(layer.P, [len(layer.P) - tiles.hidden])
        return {
            "Px": packed(Px, sums, tiles.pad(len(Px)), 1),
            "Ph": packed(Ph, sums, tiles.padded, 1),
            "Q": packed(layer.Q, tiles, sums.padded, K),
            "b": packed(layer.b[None], tiles, 1, K),
        }

    def _dense_network(self):
        """A network with the factors multiplied out."""
        if self._dense is None:
            with single_threaded():
                dense = self._params.dense()
            self._dense = NumbaFused(dense, self._threads)
        return self._dense

    def _backward(self, dense, dy, dstate, inputs):
        grads = dense.backward(dy, dstate, inputs=inputs)
        with single_threaded():
            return through_factors(self._params, grads)

    def _loss_and_grads(self, x, target):
        loss, grads = self._dense_network().loss_and_grads(x, target)
        with single_threaded():
            return loss, through_factors(self._params, grads)


class Space:
    """The arrays of inference of mini-batches (T, B), and the Work that points to
    them.
    """

    def __init__(self, net, T, B):
        tiles, sums, params = net.tiles, net.sums, net._params
        L, H, D = params.num_layers, tiles.hidden, params.input_size
        K, dtype = len(net._cell.gates), params.dtype
        P = max(tiles.padded, sums.padded)  # numbers of a row of h, c and s
        self.shape, self._H = (T, B), H
        self.operations = 2 * T * B * (params.count + 50 * L * H)
        self.threads = min(net._threads, B) if self.operations >= LEAST_SHARED else 1
        input_steps = max(1, min(T, INPUT_ROWS // B)) if self.threads == 1 else 1
        self.h = [buffer(T + 1, B, P, dtype=dtype) for _ in range(L)]
        self.c = buffer(L, 2, B, P, dtype=dtype)
        self.fresh_y = P == H  # y needs no copy
        blocks = sums.padded // sums.units
        self.scratch = {
            "zero": buffer(P, dtype=dtype),
            "s": buffer(B, P, dtype=dtype),
            "a": buffer(tiles.padded // tiles.units, B, K * tiles.units, dtype=dtype),
            "ahead": buffer(blocks, input_steps * B, sums.units, dtype=dtype),
        }
        layers = np.zeros(L, kernels.LAYER)
        job = np.zeros(1, kernels.JOBS[dtype])
        for l, layer in enumerate(layers):
            inputs = H if l else D
            point(layer, D=inputs, D_padded=tiles.pad(inputs), x_width=P if l else D)
            point(layer, h=self.h[l], c=self.c[l])
            if l:
                point(layer, x=self.h[l - 1][1:])
        point(job, L=L, T=T, B=B, H=H, R=params.rank, P=P, J=tiles.blocks, I=blocks)
        point(job, units=tiles.units, wide=sums.units, row=K * tiles.units)
        point(job, R_padded=sums.padded, H_padded=tiles.padded, c_slots=2)
        point(job, shares=self.threads, input_steps=input_steps, **self.scratch)
        of_sums = codes(sums, "inputs", "step", "whole", keep=False)
        point(job, both=of_sums.pop("whole"), **of_sums)
        of_cell = codes(tiles, "whole", "single", keep=False)
        point(job, cell=of_cell["whole"], single=of_cell["single"])
        self.work = Work(layers, job, self.threads)

    def begin(self, x, state):
        """Take over the input and the initial state; h of the top layer (T+1, B, P),
        the caller's own if y needs no copy.
        """
        layers, H = self.work.layers, self._H
        top = np.empty_like(self.h[-1]) if self.fresh_y else self.h[-1]
        point(layers[0], x=x)
        point(layers[-1], h=top)
        for l, h in enumerate((*self.h[:-1], top)):
            h[0] = 0
            h[0, :, :H] = 0 if state is None else state[0][l]
        self.c[:, 0] = 0
        if state is not None and len(state) == 2:
            self.c[:, 0, :, :H] = state[1]
        return top
