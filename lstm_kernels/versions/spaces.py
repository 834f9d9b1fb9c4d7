"""The arrays of `numba-fused`: packed parameters, and the space that a mini-batch needs."""

from functools import cache

import numpy as np

from . import fused_kernels, rounds, simd

BACKWARD = ("back", "through_U", "through_W", "gradient_U", "gradient_W", "gradient_b", "transpose")


@cache
def address(tiles, name, keep):
    """Of a tile's machine code."""
    tile = tiles.all(keep)[name]
    return simd.compiled(tile, tiles.dtype, tiles.lanes, f"{tiles.name}_{keep}")


def buffer(*shape, dtype):
    """Zeros that begin at a cache line."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


class Packed:
    """Parameters of the layers, or their gradients, in the layout of the tiles (`tiles.py`)."""

    def __init__(self, tiles, sizes):
        gates, J = tiles.gates, tiles.padded // tiles.UNITS
        self.layers = []
        for D in sizes:
            rows = {"U": tiles.pad(D), "W": tiles.padded, "b": 1}
            shapes = {m: (J, rows[m], len(gates[m]), tiles.UNITS) for m in "UWb"}
            self.layers.append({m: buffer(*s, dtype=tiles.dtype) for m, s in shapes.items()})

    def _views(self, layers):
        """Pairs of views (rows, gates, hidden units), of a packed array and of a layer's."""
        for mine, layer in zip(self.layers, layers, strict=True):
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

    def pack(self, layers):
        self.clear()  # also of NaN that a diverged descent may have left in the padding
        for packed, matrix in self._views(layers):
            packed[...] = matrix

    def unpack(self, layers):
        for packed, matrix in self._views(layers):
            matrix[...] = packed

    def clear(self):
        for layer in self.layers:
            for array in layer.values():
                array[...] = 0


class Space:
    """The arrays that a network writes for mini-batches (T, B), and the plans that point to them.

    training: whether h, c and the gates of all steps are kept. plan: for inference, or for descent:
    gradients go into the parameters. gradients: a plan that leaves the parameters alone. together:
    whether layers run at the same time, so that none may use the arrays of another.
    """

    def __init__(self, net, T, B, training, schedule, together=False):
        self.net, tiles, params = net, net.tiles, net._params
        L, H, padded = params.num_layers, params.hidden_size, tiles.padded
        J, K, size = padded // tiles.UNITS, len(net._cell.gates), tiles.dtype.itemsize
        self.threads, self.shares, self.chunk, splits = schedule
        self.T, self.B, self.started, self.y_shape = T, B, False, (T, B, H)
        self.without_c = len(net._cell.state) == 1
        self.padded_y = training or padded != H  # y is a copy: its storage has padding, or is kept
        self.rounds = (2 if training else 1) * L * (T + 1) + 4
        self.sync = rounds.new_sync(self.threads, self.rounds)
        apart = training or together
        depth = max(1, L - 1) if apart else min(2, max(1, L - 1))
        two, steps = len(net._cell.state) == 2, T if training else self.chunk
        self.h, self.top = self.new(depth, T, B, padded), self.new(T, B, padded)
        self.c = self.new(L, T if training else 1, B, padded) if two else self.new(1, 1, 1, 1)
        self.start = self.new(2, L, B, padded)
        self.a = self.new(L if apart else 1, J, steps * B, K * tiles.UNITS)
        self.one = np.ones(1, tiles.dtype)
        self.final = np.empty((len(net._cell.state), L, B, H), tiles.dtype)
        self.plan = np.zeros(L, fused_kernels.PLAN)
        row = padded * size
        for l, q in enumerate(self.plan):
            weights, transposed, D = net.packed.layers[l], net.transposed[l], net.sizes[l]
            h = self.top if l == L - 1 else self.h[l % depth]
            fields = {
                "T": T,
                "B": B,
                "D": D,
                "H": H,
                "J": tiles.blocks,
                "row": row,
                "J_wide": padded // tiles.WIDE,
                "D_wide": tiles.pad(D) // tiles.WIDE,
                "lanes": tiles.lanes,
                "wide": tiles.WIDE,
                "size": size,
                "unit": tiles.UNITS * size,
                "line": tiles.WIDE * size,
                "a_row": tiles.row,
                "x_row": D * size if l == 0 else row,
                "a_block": self.a[0, 0].nbytes,
                "a_wide": self.a[0, 0].nbytes * (tiles.WIDE // tiles.UNITS),
                **{f"{m}_row": weights[m][0, 0].nbytes for m in "UW"},
                **{f"{m}_block": weights[m][0].nbytes for m in "UW"},
                **{f"{m}T_block": transposed[m][0].nbytes for m in "UW"},
                "keeps": training,
                "c_step": B * row if training or not two else 0,
                "chunk": self.chunk,
                "splits": splits,
                **{name: address(tiles, name, training) for name in ("inputs", "step", "whole")},
                "one": self.one,
                "a": self.a[l if apart else 0],
                "h": h,
                "c": self.c[l] if two else h,
                "h0": self.start[0, l],
                "c0": self.start[1 if two else 0, l],
                "UT": transposed["U"],
                "WT": transposed["W"],
                **{m: weights[m] for m in "UWb"},
                **({} if l == 0 else {"x": self.h[(l - 1) % depth]}),
            }
            self.point(q, fields)
        if training:
            self.prepare_descent()

    def new(self, *shape):
        return buffer(*shape, dtype=self.net.tiles.dtype)

    @staticmethod
    def point(q, fields):
        """Fill in a plan: a number, or the address of an array."""
        for name, value in fields.items():
            q[name] = value.ctypes.data if isinstance(value, np.ndarray) else value

    def prepare_descent(self):
        L, T, B, padded = len(self.plan), self.T, self.B, self.net.tiles.padded
        O = self.net._params.output_size or 1
        self.x, self.target = self.new(T, B, self.net.sizes[0]), self.new(B, O)
        self.error, self.low = self.new(B, O), self.new(T, B, padded)
        self.dy, self.dc, self.zero = (
            self.new(T, B, padded),
            self.new(L, B, padded),
            self.new(padded),
        )
        for l, (q, weights) in enumerate(zip(self.plan, self.net.packed.layers, strict=True)):
            fields = {"da": self.a[l], "dc": self.dc[l], "dy": self.dy if l == L - 1 else self.low}
            fields |= {"dh": self.zero, "zero": self.zero, "dx_row": self.dy[0, 0].nbytes}
            fields |= {"dx": self.low} if l else {}
            fields |= {name: address(self.net.tiles, name, True) for name in BACKWARD}
            self.point(q, fields | {f"g{m}": weights[m] for m in "UWb"})

    def aim(self, x, y):
        """Let a forward pass read x (T, B, D) and write its outputs to y (T, B, padded H)."""
        self.plan["x"][0], self.plan["h"][-1] = x.ctypes.data, y.ctypes.data
        if self.without_c:  # c of a step is its h: it moves with it
            self.plan["c"][-1] = y.ctypes.data

    @property
    def gradients(self):
        """What `Gradients` holds beside, made when first asked for."""
        if not hasattr(self, "_gradients"):
            self._gradients = Gradients(self)
        return self._gradients

    def begin(self, state):
        """Take over the initial state, (h, c) or (h,) or None."""
        if state is not None:
            for mine, array in zip(self.start, state, strict=False):
                mine[..., : array.shape[-1]] = array
        elif self.started:
            self.start[:] = 0
        if self.started != (state is not None):
            self.started = state is not None
            self.plan["starts"] = self.started

    def sync_for(self, count):
        """Room for the rounds of `count` training steps."""
        if self.sync.shape[1] < self.rounds * count:
            self.sync = rounds.new_sync(self.threads, self.rounds * count)
        return self.sync


class Gradients:
    """A space's plan for gradients of their own, and where they go."""

    def __init__(self, space):
        net, new, L, T, B = space.net, space.new, len(space.plan), space.T, space.B
        tiles = net.tiles
        self.packed, self.plan = Packed(tiles, net.sizes), space.plan.copy()
        self.da, self.dy = new(*space.a.shape), new(T, B, tiles.padded)
        self.dx = new(T, B, tiles.pad(net.sizes[0]))
        self.dh, self.dh0 = new(L, B, tiles.padded), new(L, B, tiles.padded)
        for l, (q, mine) in enumerate(zip(self.plan, self.packed.layers, strict=True)):
            fields = {"da": self.da[l], "dh": self.dh[l], "dh_row": self.dh[0, 0].nbytes}
            fields |= {"dh0": self.dh0[l]} | {f"g{m}": mine[m] for m in "UWb"}
            fields |= {"dy": self.dy} if l == L - 1 else {}
            fields |= {} if l else {"dx": self.dx, "dx_row": self.dx[0, 0].nbytes}
            space.point(q, fields)
        self.space = space

    def begin(self, dy, dstate):
        """Zero gradients, but those of y and of the final state."""
        self.packed.clear()
        self.plan["starts"] = self.space.started
        self.dy[:], self.dh[:], self.space.dc[:] = 0, 0, 0
        if dy is not None:
            self.dy[..., : dy.shape[2]] = dy
        for mine, array in zip((self.dh, self.space.dc), dstate or (), strict=False):
            mine[..., : array.shape[2]] = array
