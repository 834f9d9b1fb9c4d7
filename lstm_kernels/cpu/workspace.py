"""The arrays of `numba-fused`: packed parameters, and the space that a mini-batch needs."""

import ctypes
import itertools
import math
from functools import cache

import numpy as np

from ..params import Layer, Params
from . import block_kernels, records, rounds, simd
from .team import team

BACKWARD = ("back", "gradient_U", "gradient_W", "gradient_b", "transpose")
KEEPING = ("step", "whole")  # these differ where the gates are kept for a backward pass


@cache
def _code(tiles, name, keep):
    label = f"{tiles.name}_{keep}" if name in KEEPING else tiles.name
    return simd.compiled(tiles.all(keep)[name], tiles.dtype, tiles.lanes, label)


def address(tiles, name, keep=True):
    """Of the machine code of a tile, which is compiled when first asked for."""
    return _code(tiles.form(name), name, keep or name not in KEEPING)


_word_at, _HEAD = ctypes.c_int64.from_address, object.__basicsize__
_probe = np.zeros(1)
_QUICK = _word_at(id(_probe) + _HEAD).value == _probe.ctypes.data


def at(array):
    """The address of an array's numbers.

    NumPy's C API has it as the first field of an array object, in a tenth of the time that asking
    for it in Python takes: a small pass asks several times.
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


class Packed:
    """Parameters of the layers, or their gradients, in the layout of the tiles (`tiles.py`), and
    those of the read-out (H, O), (O,); all in one array, each from the beginning of a cache line.
    """

    def __init__(self, tiles, sizes, V=None, b_out=None):
        self._form = tiles, sizes, V, b_out
        gates, J, shapes = tiles.gates, tiles.padded // tiles.units, []
        for D in sizes:
            rows = {"U": tiles.pad(D), "W": tiles.padded, "b": 1}
            shapes += [(J, rows[m], len(gates[m]), tiles.units) for m in "UWb"]
        shapes += [] if V is None else [V.shape, b_out.shape]
        line = 64 // tiles.dtype.itemsize
        places = [0, *itertools.accumulate(-(-math.prod(s) // line) * line for s in shapes)]
        self.flat = buffer(places[-1], dtype=tiles.dtype)
        parts = [
            self.flat[first : first + math.prod(s)].reshape(s)
            for first, s in zip(places, shapes, strict=False)
        ]
        self.layers = [
            dict(zip("UWb", parts[k : k + 3], strict=True)) for k in range(0, 3 * len(sizes), 3)
        ]
        self.V, self.b_out = parts[3 * len(sizes) :] or (None, None)

    def _views(self, params):
        """Pairs of views (rows, gates, hidden units), of a packed array and of a layer's."""
        for mine, layer in zip(self.layers, params.layers, strict=True):
            for m in "UWb":
                packed, matrix = mine[m], np.atleast_2d(getattr(layer, m))
                J, _, G, units = packed.shape
                R, H = len(matrix), matrix.shape[1] // G
                for j in range(J):
                    first = j * units
                    count = min(units, H - first)
                    if count > 0:
                        theirs = matrix.reshape(R, G, H)[:, :, first : first + count]
                        yield packed[j, :R, :, :count], theirs

    def pack(self, params):
        """Take over Params: all in one copy, which no interrupt divides."""
        new = Packed(*self._form)  # its padding is zero: a diverged descent may leave NaN in mine
        for packed, matrix in new._views(params):
            packed[...] = matrix
        if self.V is not None:
            new.V[...], new.b_out[...] = params.V, params.b_out
        self.flat[...] = new.flat

    def unpack(self, like):
        """Params of the form of `like`."""
        params = Params.from_arrays(
            {name: np.empty_like(a) for name, a in like.arrays().items()}, like.cell
        )
        for packed, matrix in self._views(params):
            matrix[...] = packed
        if self.V is not None:
            params.V[...], params.b_out[...] = self.V, self.b_out
        return params


def point(records, fields):
    """Fill in records: a number, or the address of an array."""
    for name, value in fields.items():
        records[name] = at(value) if isinstance(value, np.ndarray) else value


def through(net, l):
    """The tile that gradients of layer l go through to its inputs."""
    name = "few" if net.sizes[l] <= block_kernels.FEW else "through_U"
    return {name: address(net.tiles, name)}


LAYER_WORD = {name: k for k, name in enumerate(records.LAYER.names)}
JOB_WORD = {name: k for k, name in enumerate(records.JOB.names)}
X, H, C, DH, DH_ROW, STARTS = (LAYER_WORD[n] for n in ("x", "h", "c", "dh", "dh_row", "starts"))
GRADIENTS = slice(LAYER_WORD["dU"], LAYER_WORD["db"] + 1)
STATE, LOSSES, TASKS, PARTS = (JOB_WORD[n] for n in ("state", "losses", "tasks", "parts"))


class Work:
    """The records of a region: a LAYER for each layer, the JOB, and the words of its rounds.

    Written between regions only, and never again once a thread may have stayed in one: `renew`.
    """

    def __init__(self, layers, job, groups):
        self.layers, self.job, self._groups = layers, job, groups
        self.sync = rounds.new_sync(buffer, self._groups)
        self.stop = buffer(8, dtype=np.int64)  # 1: leave; how many training steps to do
        self.next_round, self.address = at(self.sync[-1]), at(self.job)
        # The same memory as words, which Python fills in faster than fields of records.
        self.layer_words = self.layers.view(np.int64).reshape(len(self.layers), -1)
        self._job_words = self.job.view(np.int64)
        point(self.job, {"layers": self.layers, "sync": self.sync, "groups": self._groups})
        point(self.job, {"stop": self.stop})

    def renew(self):
        """Go over to copies, all at once: an interrupt finds the old records or the new."""
        new = self.copy()
        new.stop[1] = self.stop[1]
        vars(self).update(vars(new))

    def aim(self, x, y, final):
        """Let a forward pass read x (T, B, D), and write its outputs to y (T, B, padded H) and the
        final state to `final` (1 or 2, L, B, H).
        """
        layers, job, top = self.layer_words, self._job_words, at(y)
        layers[0, X], layers[-1, H], job[STATE] = at(x), top, at(final)
        if len(final) == 1:  # without c, c of a step is its h: it moves with it
            layers[-1, C] = top

    def read(self, x):
        """Let a backward pass without a loss read x (T, B, D)."""
        self.layer_words[0, X], self._job_words[LOSSES] = at(x), 0

    def run_tasks(self, tasks, parts):
        """Let a flow run `tasks` (n, 4), the samples cut into so many parts."""
        self._job_words[TASKS], self._job_words[PARTS] = at(tasks), parts

    def copy(self):
        return Work(self.layers.copy(), self.job.copy(), self._groups)


class Space:
    """The arrays that a network writes for mini-batches (T, B), and the records that point to them.

    training: whether h, c and the gates of all steps are kept. work: for inference, or for descent:
    gradients go into the parameters. together: whether layers run at the same time, so that none
    may use the arrays of another.
    """

    def __init__(self, net, T, B, training, split, together=False):
        tiles, params = net.tiles, net._params
        O, self.bytes, self._dtype = params.output_size or 1, 0, tiles.dtype
        L, H, padded = params.num_layers, params.hidden_size, tiles.padded
        J, K, size = padded // tiles.units, len(net._cell.gates), tiles.dtype.itemsize
        self.threads, self.shares, self.input_steps, splits = split
        self.T, self.B, self.started, self.y_shape = T, B, False, (T, B, H)
        self.padded, self.sizes = padded, net.sizes
        self._entered, self.without_c = False, len(net._cell.state) == 1
        # Of a forward pass, about; a task of a block takes as long as some thousand of them.
        each = [B * (2 * (D + H) * K * H + 100 * H) + 2000 * J for D in self.sizes]
        self.operations = T * sum(each)
        self.padded_y = training or padded != H  # y is a copy: its storage has padding, or is kept
        apart = training or together
        depth = max(1, L - 1) if apart else min(2, max(1, L - 1))
        two, steps = not self.without_c, T if training else self.input_steps
        self.h, self.top = self._new(depth, T, B, padded), self._new(T, B, padded)
        self.c = self._new(L, T if training else 1, B, padded) if two else None
        self.initial = self._new(2, L, B, padded)
        self.a = self._new(L if apart else 1, J, steps * B, K * tiles.units)
        self.one = np.ones(1, tiles.dtype)
        self.final_shape = (len(net._cell.state), L, B, H)
        layers, job = np.zeros(L, records.LAYER), np.zeros(1, records.JOB)
        row = padded * size
        forward_tiles = ("whole",) if self.input_steps == 1 else ("inputs", "step")
        for l, q in enumerate(layers):
            weights, transposed, D = net.packed.layers[l], net.transposed[l], net.sizes[l]
            h = self.top if l == L - 1 else self.h[l % depth]
            fields = {
                "T": T,
                "B": B,
                "D": D,
                "H": H,
                "J": tiles.blocks,
                "row": row,
                "J_wide": padded // tiles.wide_units,
                "D_wide": tiles.pad(D) // tiles.wide_units,
                "lanes": tiles.lanes,
                "wide": tiles.wide_units,
                "size": size,
                "unit": tiles.units * size,
                "line": tiles.wide_units * size,
                "a_row": tiles.row,
                "x_row": D * size if l == 0 else row,
                "a_block": self.a[0, 0].nbytes,
                "a_wide": self.a[0, 0].nbytes * (tiles.wide_units // tiles.units),
                **{f"{m}_row": weights[m][0, 0].nbytes for m in "UW"},
                **{f"{m}_block": weights[m][0].nbytes for m in "UW"},
                **{f"{m}T_block": transposed[m][0].nbytes for m in "UW"},
                "keeps": training,
                "c_step": B * row if training or not two else 0,
                "input_steps": self.input_steps,
                "splits": splits,
                **{name: address(tiles, name, training) for name in forward_tiles},
                "one": self.one,
                "a": self.a[l if apart else 0],
                "h": h,
                "c": self.c[l] if two else h,
                "h0": self.initial[0, l],
                "c0": self.initial[1 if two else 0, l],
                "UT": transposed["U"],
                "WT": transposed["W"],
                **{m: weights[m] for m in "UWb"},
                **({} if l == 0 else {"x": self.h[(l - 1) % depth]}),
            }
            point(q, fields)
        shares = "samples" if self.shares else "rounds"
        fields = {"L": L, "T": T, "B": B, "O": O, "shares": self.shares}
        fields |= {"states": len(net._cell.state)}
        fields |= {"forward": net.forward_code(shares), "backward": 0}
        point(job, fields)
        self.work, self._gradients = Work(layers, job, self.threads), None
        if training:
            self._prepare_descent(net, shares)

    def _prepare_descent(self, net, shares):
        T, B, L, padded, packed = self.T, self.B, len(self.work.layers), self.padded, net.packed
        O, new = net._params.output_size or 1, self._new
        self.x, self.target = new(T, B, self.sizes[0]), new(B, O)
        self.error, self.low, self.dy = new(B, O), new(T, B, padded), new(T, B, padded)
        self.dc, self.zero = new(L, B, padded), new(padded)
        self.steps_done, self.final = np.zeros(1, np.int64), new(*self.final_shape)
        for l, (q, weights) in enumerate(zip(self.work.layers, net.packed.layers, strict=True)):
            fields = {"da": self.a[l], "dc": self.dc[l], "dy": self.dy if l == L - 1 else self.low}
            fields |= {"dh": self.zero, "zero": self.zero, "dx_row": self.dy[0, 0].nbytes}
            fields |= {"dx": self.low} if l else {}
            fields |= {name: address(net.tiles, name) for name in BACKWARD}
            fields |= through(net, l) if l else {}
            point(q, fields | {f"g{m}": weights[m] for m in "UWb"})
        fields = {"backward": net.backward_code(shares), "gradients": net.gradients_code()}
        fields |= {"state": self.final, "dy": self.dy[-1], "dc": self.dc, "error": self.error}
        fields |= {"steps_done": self.steps_done, "descend": True}
        if packed.V is not None:
            fields |= {"V": packed.V, "gV": packed.V, "b_out": packed.b_out, "gb_out": packed.b_out}
        point(self.work.job, fields)

    def _new(self, *shape):
        """Zeros, counted in `bytes`."""
        found = buffer(*shape, dtype=self._dtype)
        self.bytes += found.nbytes
        return found

    def gradients(self, net):
        """What `Gradients` holds beside, made when first asked for."""
        if self._gradients is None:
            self._gradients = Gradients(self, net)
            self.bytes += self._gradients.packed.flat.nbytes
        return self._gradients

    def begin(self, state):
        """Take over the initial state, (h, c) or (h,) or None."""
        given = state is not None
        if not given and self.started is False:
            return
        changed, self.started = self.started is not given, None  # if interrupted, nobody knows
        if given:
            for mine, array in zip(self.initial, state, strict=False):
                mine[..., : array.shape[-1]] = array
        else:
            self.initial[:] = 0
        if changed:
            self.work.layers["starts"] = given
        self.started = given

    def enter(self):
        """A region begins that works on these arrays."""
        if self._entered:  # an interrupt came in the last one, or before its `leave`
            team().drain()
            self.leave(True)
        self._entered = True

    def leave(self, stayed):
        """It has ended. A thread that stayed behind keeps the records that it may still read."""
        if stayed:
            self.work.renew()
            if self._gradients is not None:
                self._gradients.work.renew()
        self._entered = False


class Gradients:
    """The records of a pass whose gradients leave the parameters alone, and where they go."""

    def __init__(self, space, net):
        new, L, T, B = space._new, len(space.work.layers), space.T, space.B
        tiles, size = net.tiles, net.tiles.dtype.itemsize
        self.packed, self.work = Packed(tiles, net.sizes), space.work.copy()
        self.da, self.dy = new(*space.a.shape), new(T, B, tiles.padded)
        self.dx = new(T, B, tiles.pad(net.sizes[0]))
        self.dh, self.dh0 = new(L, B, tiles.padded), new(L, B, tiles.padded)
        self.zero, self.dc = space.zero, space.dc
        # Of each gradient in one array: its place in bytes and shape; places (L, 3).
        self._places, self._numbers = [], 0
        for l, (q, packed) in enumerate(zip(self.work.layers, self.packed.layers, strict=True)):
            fields = {"da": self.da[l], "dh0": self.dh0[l]}
            fields |= {f"g{m}": packed[m] for m in "UWb"}
            fields |= {"dy": self.dy} if l == L - 1 else {}
            fields |= {} if l else {"dx": self.dx, "dx_row": self.dx[0, 0].nbytes}
            fields |= through(net, l) | {"through_W": address(tiles, "through_W")}
            point(q, fields)
            for m in "UWb":
                shape = getattr(net._params.layers[l], m).shape
                self._places.append((size * self._numbers, shape))
                self._numbers += math.prod(shape)
        self._offsets = np.array([place for place, _ in self._places]).reshape(L, 3)
        point(self.work.job, {"descend": False, "rate": 1.0, "losses": 0, "dy": self.dy[-1]})

    def begin(self, started, dy, dstate):
        """Zero gradients, but those of y and of the final state; returns the array (flat) that the
        parameters' gradients go to.
        """
        words = self.work.layer_words
        words[:, STARTS] = started
        if dy is None:
            self.dy[:-1] = 0
        else:
            self.dy[..., : dy.shape[2]] = dy
        self.dc.fill(0)
        words[:, DH], words[:, DH_ROW] = at(self.zero), 0
        if dstate is not None:
            for mine, array in zip((self.dh, self.dc), dstate, strict=False):
                mine[..., : array.shape[2]] = array
            words[:, DH] = at(self.dh) + self.dh[0].nbytes * np.arange(len(words))
            words[:, DH_ROW] = self.dh[0, 0].nbytes
        flat = np.empty(self._numbers, self.dy.dtype)
        words[:, GRADIENTS] = self._offsets + at(flat)
        return flat

    def collect(self, flat):
        """The gradients in `flat` as (U, W, b) of each layer, views."""
        parts = [np.ndarray(shape, flat.dtype, flat, place) for place, shape in self._places]
        return [Layer(*parts[k : k + 3]) for k in range(0, len(parts), 3)]
