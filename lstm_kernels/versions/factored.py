"""Inference and training with factored weights (`low_rank.py`), in the tiles of
`numba-fused`.

A layer has two products a step where a dense one has one, and R (D + H + K H) weights
in place of (D + H) K H. The sums s between them never leave the cache; the second
product and the cell are one tile, as in `numba-fused`. Threads share the samples; one
sample is computed by one thread. The passes are in `cpu/factored_kernels.py`.
"""

from functools import cache, partial

import numpy as np

from ..cells import CELLS, Cell
from ..cores import cores
from ..low_rank import Factored, FactoredGrads, FactoredLayer
from ..versions.base import Network
from . import machine_code, simd
from .cost import INPUT_ROWS
from .records import FACTORED_JOB, FACTORED_LAYER
from .team import MOST_THREADS
from .tiles import Tiles
from .workspace import Region, Work, buffer, codes, point

LEAST_SHARED = (
    2e6  # operations of a pass from which threads share it: some 20 us of one
)


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
    result = buffer(
        tiles.padded // tiles.units, rows, gates, tiles.units, dtype=matrix.dtype
    )
    result[...] = whole.reshape(rows, gates, -1, tiles.units).transpose(2, 0, 1, 3)
    return result


def unpacked(weights, rows, units):
    """The matrix (rows, G*units) of a packed one, a copy."""
    _, padded, G, _ = weights.shape
    whole = weights.transpose(1, 2, 0, 3).reshape(padded, G, -1)
    return whole[:rows, :, :units].copy().reshape(rows, G * units)


def transposed(weights, wide):
    """Packed weights as (wide blocks of rows, lines, wide), a line for each column."""
    J, rows, G, units = weights.shape
    result = buffer(rows // wide, J * G * units, wide, dtype=weights.dtype)
    result[...] = (
        weights.transpose(0, 2, 3, 1).reshape(-1, rows // wide, wide).swapaxes(0, 1)
    )
    return result


class FactoredNetwork(Network):
    """A network with factored weights: the methods of every network, on
    low_rank.Factored.
    """

    name = "factored"
    tapes = False
    parameters = Factored

    def __init__(self, params, threads=None):
        super().__init__(params, threads)
        if self._threads is not None and self._threads > MOST_THREADS:
            raise ValueError(f"threads: got {threads}, want at most {MOST_THREADS}")
        self._threads, params = (
            min(self._threads or cores(), MOST_THREADS),
            self._params,
        )
        sizes = params.dtype, params.hidden_size, params.rank
        self.tiles, self.sums = tiles_of(self._cell, *sizes)
        self.kernels = machine_code.kernels(params.dtype)
        self._forget()

    def _forget(self):
        self._weights, self._space = None, None

    def _replace(self, params):
        # Weights are packed when they are next needed.
        self._params, self._weights = params, None

    def _guard(self):
        return self._lock

    def _packed(self, training):
        """Of each layer the packed weights by their names in FACTORED_LAYER; where a
        backward pass follows, the transposed ones too. They are those of `_params` at
        this moment.
        """
        source, kept = self._params, self._weights
        if kept is None or kept[0] is not source:
            kept = self._weights = (
                source,
                [self._pack(layer) for layer in source.layers],
                False,
            )
        if training and not kept[2]:
            wide = self.tiles.wide_units
            more = [
                w | {f"{n}T": transposed(w[n], wide) for n in ("Px", "Ph", "Q")}
                for w in kept[1]
            ]
            kept = self._weights = (source, more, True)
        return kept[1]

    def _pack(self, layer):
        tiles, sums, K = self.tiles, self.sums, len(self._cell.gates)
        Px, Ph = np.split(layer.P, [len(layer.P) - tiles.hidden])
        return {
            "Px": packed(Px, sums, tiles.pad(len(Px)), 1),
            "Ph": packed(Ph, sums, tiles.padded, 1),
            "Q": packed(layer.Q, tiles, sums.padded, K),
            "b": packed(layer.b[None], tiles, 1, K),
        }

    def _prepare(self, T, B, training):
        """The Space for mini-batches (T, B), with the weights of now."""
        space, weights = self._space, self._packed(training)
        if space is None or space.key != (T, B, training):
            space = self._space = Space(self, T, B, training)
        if space.weights is not weights:
            for record, named in zip(space.work.layers, weights, strict=True):
                point(record, **named)
            space.weights = weights  # which its records point to
        return space

    def _run(self, space, name, passes):
        space.enter()
        operations = space.operations * passes
        name = f"factored_{name}"
        space.leave(
            self.kernels.run(space.threads, name, space.work, space, operations)
        )

    def _forward(self, x, state, training):
        space, H = self._prepare(*x.shape[:2], training), self.tiles.hidden
        h = space.begin(x, state)
        self._run(space, "forward", 1)
        final = (
            np.stack([layer[-1, :, :H] for layer in h]),
            space.c[:, -1, :, :H].copy(),
        )
        y = h[-1][1:, :, :H]  # the caller's own if it is not the space's
        y = y.copy() if h[-1] is space.h[-1] else y
        return y, final[: len(self._cell.state)], (x, space)

    def _backward(self, tape, dy, dstate, inputs):
        x, space = tape
        space.begin_backward(dy, dstate)
        self._run(space, "backward", 2)
        return space.collect(x.shape[2], self._params)

    def _loss_and_grads(self, x, target):
        y, _, tape = self._forward(x, None, True)
        V, b_out = self._params.V, self._params.b_out
        error = y[-1] @ V + b_out - target
        d_out, dy = error * (2 / error.size), np.zeros_like(y)
        dy[-1] = d_out @ V.T
        grads = self._backward(tape, dy, None, True)
        grads.V, grads.b_out = y[-1].T @ d_out, d_out.sum(axis=0)
        return float(np.mean(error * error)), grads


class Space(Region):
    """The arrays of passes over mini-batches (T, B), and the Work that points to
    them.
    """

    def __init__(self, net, T, B, training):
        tiles, sums, params = net.tiles, net.sums, net._params
        L, H, R, D = params.num_layers, tiles.hidden, params.rank, params.input_size
        K, dtype = len(net._cell.gates), params.dtype
        size, wide, new = dtype.itemsize, tiles.wide_units, partial(buffer, dtype=dtype)
        P = max(tiles.padded, sums.padded)  # numbers of a row of h, c and s
        self.key, self.weights, self._H, self._R = (T, B, training), None, H, R
        self.operations = 2 * T * B * (params.count + 50 * L * H)
        shares = min(net._threads, B) if self.operations >= LEAST_SHARED else 1
        self.threads, steps = shares, T if training else 1
        input_steps = max(1, min(T, INPUT_ROWS // B)) if shares == 1 else 1
        self.h = [new(T + 1, B, P) for _ in range(L)]
        self.c, self.s = new(L, steps + training, B, P), new(L, steps, B, P)
        self.zero, self.one = new(P), np.ones(1, dtype)
        rows = T * B if training else 1  # of gates that are kept
        self.a = new(L, tiles.padded // tiles.units, rows, K * tiles.units)
        self.ahead = new(sums.padded // sums.units, input_steps * B, sums.units)
        self.fresh = not training and P == H  # y needs no copy
        layers, job = np.zeros(L, FACTORED_LAYER), np.zeros(1, FACTORED_JOB)
        for l, layer in enumerate(layers):
            inputs = H if l else D
            point(layer, D=inputs, D_wide=tiles.pad(inputs) // wide)
            point(
                layer, x_row=P * size if l else D * size, ahead=self.ahead, a=self.a[l]
            )
            point(layer, Px_block=tiles.pad(inputs) * sums.units * size)
            point(layer, h=self.h[l], c=self.c[l], s=self.s[l])
            if l:
                point(layer, x=self.h[l - 1][1:])
        point(job, L=L, T=T, B=B, H=H, R=R, J=tiles.blocks, I=sums.padded // wide)
        point(job, J_wide=tiles.padded // wide, size=size, row=P * size)
        point(job, unit_bytes=tiles.units * size, wide_bytes=wide * size)
        point(
            job,
            c_step=self.c[0, 0].nbytes * training,
            s_step=self.s[0, 0].nbytes * training,
        )
        point(job, a_row=tiles.row, a_block=self.a[0, 0].nbytes, s_row=sums.row)
        point(job, ahead_block=self.ahead[0].nbytes)
        point(job, Ph_block=tiles.padded * sums.row, Q_block=sums.padded * tiles.row)
        point(job, PT_block=sums.padded * wide * size)
        point(job, QT_block=tiles.padded * K * wide * size)
        point(job, shares=shares, input_steps=input_steps, zero=self.zero, one=self.one)
        linear = codes(sums, "inputs", "step", "whole", keep=False)
        point(job, inputs=linear["inputs"], step=linear["step"], both=linear["whole"])
        forward = codes(tiles, "whole", "single", keep=training)
        point(job, cell=forward["whole"], single=forward["single"])
        if training:
            self._prepare_training(tiles, sums, layers, job)
        self.work = Work(layers, job, shares)

    def _prepare_training(self, tiles, sums, layers, job):
        (T, B, _), L, P = self.key, len(layers), self.zero.size
        new = partial(buffer, dtype=tiles.dtype)
        self.da, self.ds = (
            new(*self.a.shape),
            new(L, sums.padded // sums.units, *self.a.shape[2:]),
        )
        self.dy, self.low = new(T, B, P), new(T, B, P)
        self.dx = new(T, B, tiles.pad(layers[0]["D"]))
        self.dh, self.dc, self.dh0 = new(L, B, P), new(L, B, P), new(L, B, P)
        K, I, J = (
            len(tiles.cell.gates),
            sums.padded // sums.units,
            tiles.padded // tiles.units,
        )
        self.gradients = []
        for l, layer in enumerate(layers):
            rows = tiles.pad(layer["D"])
            named = {
                "gPx": new(I, rows, 1, sums.units),
                "gPh": new(I, tiles.padded, 1, sums.units),
            }
            named |= {
                "gQ": new(J, sums.padded, K, tiles.units),
                "gb": new(J, 1, K, tiles.units),
            }
            self.gradients.append(named)
            dx = self.low if l else self.dx
            point(
                layer,
                da=self.da[l],
                ds=self.ds[l],
                dx=dx,
                dx_row=dx[0, 0].nbytes,
                **named,
            )
            point(layer, dy=self.low if l < L - 1 else self.dy)
        point(job, dh=self.dh, dc=self.dc, dh0=self.dh0)
        point(job, back=_back(tiles.form("back"), sums.form("back")))
        point(job, through_P=codes(sums, "through_U")["through_U"])
        point(job, through_Q=codes(tiles, "through_W")["through_W"])
        point(job, gradient_P=codes(sums, "gradient_U")["gradient_U"])
        for name, tile in (("Q", "gradient_W"), ("b", "gradient_b")):
            point(job, **{f"gradient_{name}": codes(tiles, tile)[tile]})

    def begin(self, x, state):
        """Take over the input and the initial state; h of each layer (T+1, B, row),
        where the top layer's is the caller's own if y needs no copy.
        """
        h, H, layers = [*self.h], self._H, self.work.layers
        if self.fresh:
            h[-1] = np.empty_like(h[-1])
        point(layers[0], x=x)
        point(layers[-1], h=h[-1])
        for l, layer in enumerate(h):
            layer[0] = 0
            layer[0, :, :H] = 0 if state is None else state[0][l]
        self.c[:, 0] = 0
        if state is not None and len(state) == 2:
            self.c[:, 0, :, :H] = state[1]
        return h

    def begin_backward(self, dy, dstate):
        """Take over the gradients of y and of the final state; those of the weights
        begin as 0.
        """
        self.dy[..., : dy.shape[2]] = dy
        self.dh[:], self.dc[:] = 0, 0
        for padded, array in zip((self.dh, self.dc), dstate or (), strict=False):
            padded[..., : array.shape[2]] = array
        for named in self.gradients:
            for array in named.values():
                array[:] = 0

    def collect(self, D, params):
        """The gradients as FactoredGrads, the caller's own."""
        H, R, layers = self._H, self._R, []
        for l, named in enumerate(self.gradients):
            Px = unpacked(named["gPx"], H if l else D, R)
            P = np.vstack([Px, unpacked(named["gPh"], H, R)])
            Q, b = unpacked(named["gQ"], R, H), unpacked(named["gb"], 1, H)[0]
            layers.append(FactoredLayer(P, Q, b))
        state = self.dh0[..., :H].copy(), self.dc[..., :H].copy()
        V = b_out = None
        if params.V is not None:
            V, b_out = np.zeros_like(params.V), np.zeros_like(params.b_out)
        state = state[: len(CELLS[params.cell].state)]
        return FactoredGrads(
            layers, V, b_out, params.cell, x=self.dx[..., :D].copy(), state=state
        )


@cache
def _back(tiles, sums):
    """The address of the tile of a backward step, whose gradients come through Ph."""
    return simd.compiled(
        tiles.back(sums), tiles.dtype, tiles.lanes, f"{tiles.name}_of_sums"
    )
