"""The memory of `numba-fused`: packed parameters, and the space that a mini-batch
needs.

What is written here as an address is followed without a check: an array that a record
points to stays where it is as long as the record (tests/test_fused.py looks every
address up).
"""

import ctypes
import itertools
import math
from functools import cache

import numpy as np

from ..params import Grads, Layer
from . import block_kernels, records, rounds, simd
from .records import JOB_WORD, LAYER_WORD
from .team import team

# Tiles that differ where the gates are kept for a backward pass.
KEEPING = ("step", "whole", "single")
BACKWARD = ("back", "gradient_U", "gradient_W", "gradient_b", "transpose")


@cache
def _code(tiles, name, keep):
    label = f"{tiles.name}_{keep}" if name in KEEPING else tiles.name
    return simd.compiled(tiles.all(keep)[name], tiles.dtype, tiles.lanes, label)


def codes(tiles, *names, keep=True):
    """The addresses of tiles' machine code, by name; each is compiled when first asked
    for.
    """
    return {
        name: _code(tiles.form(name), name, keep or name not in KEEPING)
        for name in names
    }


_word_at, _HEAD = ctypes.c_int64.from_address, object.__basicsize__
_probe = np.zeros(1)
_QUICK = _word_at(id(_probe) + _HEAD).value == _probe.ctypes.data


def at(array):
    """The address of an array's numbers: the first field of NumPy's array object, which
    takes a tenth of the time of asking in Python. A small pass asks several times.
    """
    if _QUICK:
        return _word_at(id(array) + _HEAD).value
    return array.ctypes.data


def buffer(*shape, dtype):
    """Zeros that begin at a cache line."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def places(shapes, multiple=1):
    """Where arrays of these shapes begin, one behind another, each at a multiple; and
    the end.
    """
    sizes = (-(-math.prod(shape) // multiple) * multiple for shape in shapes)
    return [0, *itertools.accumulate(sizes)]


def views(flat, starts, shapes):
    """The arrays of these shapes that begin at these places of a flat one."""
    size = flat.itemsize
    return [
        np.ndarray(s, flat.dtype, flat, size * n)
        for n, s in zip(starts, shapes, strict=False)
    ]


class Packed:
    """Parameters, or gradients, in the layout of the tiles (`layout.py`), and those of
    the read-out (H, O), (O,); all in one array, each from the beginning of a cache
    line.
    """

    def __init__(self, tiles, sizes, V=None, b_out=None):
        self._form = tiles, sizes, V, b_out
        gates, J, shapes = tiles.gates, tiles.padded // tiles.units, []
        for D in sizes:
            rows = {"U": tiles.pad(D), "W": tiles.padded, "b": 1}
            shapes += [(J, rows[m], len(gates[m]), tiles.units) for m in "UWb"]
        shapes += [] if V is None else [V.shape, b_out.shape]
        starts = places(shapes, 64 // tiles.dtype.itemsize)
        self.flat = buffer(starts[-1], dtype=tiles.dtype)
        parts = iter(views(self.flat, starts, shapes))
        self.layers = [{m: next(parts) for m in "UWb"} for _ in sizes]
        self.V, self.b_out = next(parts, None), next(parts, None)

    def _views(self, params):
        """Pairs of views (rows, gates, hidden units), of a packed array and of a
        layer's.
        """
        for weights, layer in zip(self.layers, params.layers, strict=True):
            for m, packed in weights.items():
                J, _, G, units = packed.shape
                matrix = np.atleast_2d(getattr(layer, m))
                plain = matrix.reshape(len(matrix), G, -1)
                for j in range(J):
                    block = plain[
                        :, :, j * units : (j + 1) * units
                    ]  # the last: fewer, or none
                    yield packed[j, : len(matrix), :, : block.shape[2]], block

    def pack(self, params):
        """Take over Params: all in one copy, which no interrupt divides."""
        new = Packed(
            *self._form
        )  # its padding is zero: a diverged descent may leave NaN in this
        for packed, plain in new._views(params):
            packed[...] = plain
        if self.V is not None:
            new.V[...], new.b_out[...] = params.V, params.b_out
        self.flat[...] = new.flat

    def unpack(self, like):
        """Params of the form of `like`."""
        params = like.copy()
        for packed, plain in self._views(params):
            plain[...] = packed
        if self.V is not None:
            params.V[...], params.b_out[...] = self.V, self.b_out
        return params


def point(record, **fields):
    """Fill in fields of a record: a number, or the address of an array."""
    for name, value in fields.items():
        record[name] = at(value) if isinstance(value, np.ndarray) else value


def describe(net):
    """The LAYERs (L,) and the JOB (1,) of a network, with what no mini-batch
    changes.
    """
    tiles, size = net.tiles, net.tiles.dtype.itemsize
    layers, job = np.zeros(len(net.sizes), records.LAYER), np.zeros(1, records.JOB)
    row, h_row, wide = (
        tiles.padded * size,
        tiles.words(tiles.padded) * size,
        tiles.wide_units,
    )
    for l, (D, weights) in enumerate(zip(net.sizes, net.packed.layers, strict=True)):
        operands = net.operands[
            l
        ]  # U and W, as products take them, and their transposes
        point(layers[l], b=weights["b"], D=D, D_words=tiles.words(D), **operands)
        point(layers[l], x_row=h_row if l else D * size, D_wide=tiles.pad(D) // wide)
        point(
            layers[l], U_block=operands["U"][0].nbytes, gU_block=weights["U"][0].nbytes
        )
        point(layers[l], U_numbers=weights["U"], W_numbers=weights["W"])
    point(
        job, L=len(layers), H=tiles.hidden, J=tiles.blocks, J_wide=tiles.padded // wide
    )
    point(job, lanes=tiles.lanes, size=size, row=row, h_row=h_row)
    point(job, a_row=tiles.row, da_row=tiles.da_row)
    point(job, numbers=tiles.numbers, H_words=tiles.words(tiles.hidden))
    point(job, unit_bytes=tiles.units * size, wide_bytes=wide * size)
    # As of every layer, and so on.
    point(job, W_block=operands["W"][0].nbytes, gW_block=weights["W"][0].nbytes)
    point(job, **{f"{m}_row": weights[m][0, 0].nbytes for m in "UW"})
    point(job, **{f"{m}T_block": operands[f"{m}T"][0].nbytes for m in "UW"})
    return layers, job


class Work:
    """The records of a region: a LAYER for each layer, the JOB, and the words of its
    rounds.

    Written between regions only, and never again once a thread may have stayed in one:
    `renew`.
    """

    def __init__(self, layers, job, groups):
        self.layers, self.job, self._groups = layers, job, groups
        self.sync = rounds.new_sync(buffer, groups)
        self.stop = buffer(8, dtype=np.int64)  # 1: leave; how many training steps to do
        self.arrays = layers, job, self.sync, self.stop  # what `address` leads to
        self.next_round, self.address = at(self.sync[-1]), at(job)
        # Do products take x and h as they are?
        self.as_they_are = "numbers" not in job.dtype.names or job[0]["numbers"] == 1
        # The same memory as words, which Python fills in faster than fields of records.
        self.layer_words = layers.view(np.int64).reshape(len(layers), -1)
        self.job_words = job.view(np.int64)
        point(job, layers=layers, sync=self.sync, groups=groups, stop=self.stop)

    def renew(self):
        """Go over to copies, all at once: an interrupt finds the old records or the
        new.
        """
        new = Work(self.layers.copy(), self.job.copy(), self._groups)
        new.stop[1] = self.stop[1]
        vars(self).update(vars(new))

    def aim(self, x, y, final):
        """Let a forward pass read x (T, B, D), and write its outputs to y (T, B, padded
        H) and the final state to `final` (1 or 2, L, B, H).
        """
        layers, job, place, top = self.layer_words, self.job_words, at(x), at(y)
        job[JOB_WORD.x], job[JOB_WORD.state], layers[-1, LAYER_WORD.h] = (
            place,
            at(final),
            top,
        )
        if self.as_they_are:
            layers[0, LAYER_WORD.x], layers[-1, LAYER_WORD.h_all] = place, top
        if len(final) == 1:  # without c, c of a step is its h: it moves with it
            layers[-1, LAYER_WORD.c] = top

    def run_tasks(self, tasks, parts):
        """Let a flow run `tasks` (n, 4), the samples cut into so many parts."""
        self.job_words[JOB_WORD.tasks], self.job_words[JOB_WORD.parts] = (
            at(tasks),
            parts,
        )


class Region:
    """What a region of threads works on: a Work, and what its addresses lead to."""

    work, _entered = None, False

    def enter(self):
        """A region begins that works on these arrays."""
        if self._entered:  # an interrupt came in the last one, or before its `leave`
            team().drain()
            self.leave(True)
        self._entered = True

    def leave(self, stayed):
        """It has ended. A thread that stayed behind keeps the records that it may still
        read.
        """
        if stayed:
            self.work.renew()
        self._entered = False


class Space(Region):
    """The arrays that a network writes for mini-batches (T, B), and the Work that
    points to them.

    purpose: "inference"; or h, c and the gates of all steps are kept, for "gradients",
    which go to the caller, or for "descent", whose gradients go into the parameters.
    split: how the work is divided, a WorkSplit. together: whether layers run at the
    same time, so that none may use the arrays of another. bytes: of the arrays.
    """

    def __init__(self, net, T, B, purpose, split, together=False):
        tiles, L, states = net.tiles, len(net.sizes), len(net._cell.state)
        H, P, K = tiles.hidden, tiles.padded, len(net._cell.gates)
        training, self._descent = purpose != "inference", purpose == "descent"
        self.threads, shares, input_steps, splits = split
        self.bytes, self._dtype, self.started = 0, tiles.dtype, False
        self.y_shape, self.final_shape = (T, B, H), (states, L, B, H)
        self.padded_y = (
            training or P != H
        )  # y is a copy: its storage has padding, or is kept
        # Of a forward pass, about; a task of a block takes as long as some thousand of
        # them.
        each = [
            B * (2 * (D + H) * K * H + 100 * H) + 2000 * (P // tiles.units)
            for D in net.sizes
        ]
        self.operations = T * sum(each)
        apart, steps = training or together, T if training else input_steps
        depth = max(1, L - 1) if apart else min(2, max(1, L - 1))
        self.h, self.top = self._new(depth, T, B, P), self._new(T, B, P)
        self.c = self._new(L, T if training else 1, B, P) if states == 2 else None
        self.initial = self._new(2, L, B, P)
        self.a = self._new(
            L if apart else 1, P // tiles.units, steps * B, K * tiles.units
        )
        layers, job = describe(net)
        outputs = [*(self.h[l % depth] for l in range(L - 1)), self.top]
        for l, (layer, h) in enumerate(zip(layers, outputs, strict=True)):
            point(
                layer,
                a=self.a[l if apart else 0],
                h=h,
                c=h if self.c is None else self.c[l],
            )
        point(
            job, T=T, B=B, O=net._params.output_size or 1, states=states, keeps=training
        )
        point(job, shares=shares, input_steps=input_steps, splits=splits)
        point(job, c0=self.initial[states - 1], a_block=self.a[0, 0].nbytes)
        point(
            job,
            c_step=B * P * tiles.dtype.itemsize if training or self.c is None else 0,
        )
        step = ("whole",) if input_steps == 1 else ("inputs", "step")
        point(job, **codes(tiles, *step, keep=training))
        if not together:  # where layers run together, a pass is a flow of tasks
            form, passes = "samples" if shares else "rounds", ("forward", "backward")
            for name in passes if training else passes[:1]:
                point(job, **{name: net.kernels.address(f"{name}_{form}")})
        self._aim_operands(net, layers, job, outputs)
        self.work = Work(layers, job, self.threads)
        if training:
            self._prepare_training(net)

    def _aim_operands(self, net, layers, job, outputs):
        """What products multiply in a forward pass: x and h."""
        point(job, h0=self.initial[0])
        for l, (layer, h) in enumerate(zip(layers, outputs, strict=True)):
            point(layer, h_all=h)
            if l:
                point(layer, x=outputs[l - 1])

    def _gradients_of_gates(self):
        """Room for them, as operands, (L, unit blocks, T*B, K*units)."""
        return self.a if self._descent else self._new(*self.a.shape)

    def _prepare_training(self, net):
        (T, B, _), L, P, D = (
            self.y_shape,
            len(net.sizes),
            net.tiles.padded,
            net.sizes[0],
        )
        new, job, O = self._new, self.work.job, net._params.output_size or 1
        self.low, self.dy, self.dc = new(T, B, P), new(T, B, P), new(L, B, P)
        self.zero, self.one, self.error = new(P), np.ones(1, self._dtype), new(B, O)
        self.steps_done, self.final = np.zeros(1, np.int64), new(*self.final_shape)
        if self._descent:
            self.packed, dx = net.packed, 0
            self.x, self.target = new(T, B, D), new(B, O)
        else:
            self.packed = self.own = None  # packed gradients; see `aim_gradients`
            self.dx = dx = new(T, B, net.tiles.pad(D))
            self.dh, self.dh0 = new(L, B, P), new(L, B, P)
            # Plain gradients of the parameters lie in one array, a new one for each
            # call.
            self._shapes = [array.shape for array in net._params.arrays().values()]
            self._places = places(self._shapes)
            point(job, dh0=self.dh0, rate=1.0, **codes(net.tiles, "through_W"))
        self.da = da = self._gradients_of_gates()
        point(job, da_block=da[0, 0].nbytes)
        for l, layer in enumerate(self.work.layers):
            point(layer, da=da[l], dx=self.low if l else dx)
            point(layer, dy=self.low if l < L - 1 else self.dy)
            if not self._descent:
                dU, dW, db = (
                    self.dy.itemsize * n for n in self._places[3 * l : 3 * l + 3]
                )
                point(layer, dU=dU, dW=dW, db=db)
        point(
            job,
            **codes(net.tiles, *BACKWARD, *self._through(net.sizes[self._descent :])),
        )
        point(
            job, gradients=net.kernels.address("gradient_rounds"), descend=self._descent
        )
        if self._descent:
            self._aim(self.packed)
        point(
            job,
            state=self.final,
            dc=self.dc,
            dh=self.zero,
            zero=self.zero,
            one=self.one,
        )
        point(job, error=self.error, steps_done=self.steps_done)
        if net.packed.V is not None:
            V, b_out = net.packed.V, net.packed.b_out
            point(job, V=V, gV=V, b_out=b_out, gb_out=b_out)

    def _through(self, sizes):
        """The tiles that gradients go through to inputs of these sizes."""
        return {"few" if D <= block_kernels.FEW else "through_U" for D in sizes}

    def _aim(self, packed):
        """Let gradients of the parameters be added to these."""
        self.packed = packed
        for layer, own in zip(self.work.layers, packed.layers, strict=True):
            point(layer, **{f"g{m}": array for m, array in own.items()})

    def aim_gradients(self, net, sums=None):
        """Let gradients begin as zero, in the space's own array; or be added to those
        of `sums`, which all passes share, the first of which begins there.
        """
        if sums is None:
            packed, begins = self.own or Packed(net.tiles, net.sizes), True
            if self.own is None:
                self.own, self.bytes = packed, self.bytes + packed.flat.nbytes
        else:
            sums.room = packed = sums.room or Packed(net.tiles, net.sizes)
            begins = not sums.begun
        if packed is not self.packed:
            self._aim(packed)
        self.work.job_words[JOB_WORD.from_zero] = begins

    def _new(self, *shape):
        """Zeros, counted in `bytes`."""
        array = buffer(*shape, dtype=self._dtype)
        self.bytes += array.nbytes
        return array

    def outputs(self):
        """Arrays for y (T, B, padded H) and the final state: the caller's own, if y is
        no copy.
        """
        y = self.top if self.padded_y else np.empty(self.y_shape, self._dtype)
        return y, np.empty(self.final_shape, self._dtype)

    def begin(self, state):
        """Take over the initial state, (h, c) or (h,) or None."""
        starts = state is not None
        if not starts and self.started is False:
            return
        self.started = None  # if interrupted, nobody knows
        if starts:
            for initial, array in zip(self.initial, state, strict=False):
                initial[..., : array.shape[-1]] = array
        else:
            self.initial[:] = 0
        self._begin_operands()
        self.work.job_words[JOB_WORD.starts] = self.started = starts

    def _begin_operands(self):
        """The initial h as an operand: it is one."""

    def begin_backward(self, dy=None, dstate=None, more=False):
        """Take over the gradients of y and of the final state for a pass without a
        loss; all others begin as zero. Returns the arrays that gradients of the
        parameters go to; none with `more`.
        """
        job = self.work.job_words
        if dy is None:
            self.dy[:-1] = 0
        else:
            self.dy[..., : dy.shape[2]] = dy
        self.dc.fill(0)
        job[JOB_WORD.dh], job[JOB_WORD.dh_row], job[JOB_WORD.losses] = (
            at(self.zero),
            0,
            0,
        )
        if dstate is not None:
            for padded, array in zip((self.dh, self.dc), dstate, strict=False):
                padded[..., : array.shape[2]] = array
            job[JOB_WORD.dh], job[JOB_WORD.dh_row] = at(self.dh), job[JOB_WORD.row]
        if more:
            job[JOB_WORD.plain] = 0
            return []
        flat = np.empty(self._places[-1], self._dtype)
        job[JOB_WORD.plain], parts = at(flat), views(flat, self._places, self._shapes)
        readout = parts[3 * len(self.work.layers) :]
        for word, gradient in zip(
            (JOB_WORD.gV, JOB_WORD.gb_out), readout, strict=False
        ):
            gradient.fill(0)
            job[word] = at(gradient)
        return parts

    def collect(self, net, parts, inputs=True):
        """The gradients as Grads, the caller's own; parts: what `begin_backward`
        returned. inputs: whether with that of x.
        """
        H, D, L = net.tiles.hidden, net.sizes[0], len(net.sizes)
        dh0, dc0 = self.dh0[..., :H], self.dc[..., :H]
        two = len(net._cell.state) == 2
        state = (dh0.copy(), dc0.copy()) if two else (dh0 + dc0,)  # without c, c0 is h0
        layers = [Layer(*parts[k : k + 3]) for k in range(0, 3 * L if parts else 0, 3)]
        V, b_out = parts[3 * L :] or (None, None)
        x = self.dx[..., :D].copy() if inputs else None
        return Grads(layers, V, b_out, net._cell.name, x=x, state=state)
