"""How `numba-fused` packs weights, and the sizes that follow.

Hidden units are cut into J *unit blocks*, one or a few vectors wide. Packed weights are
rows of K gates x units: of each layer those of U for one unit block after another, then
those of W, and of b. So a micro-kernel reads one stream of weights, and the gradient of
packed weights has their layout. For the backward pass the transposes of U and W lie in
panels of a *wide unit block*, a few unit blocks, whose units are a row.

    theta  (R, K units)         R = J (D + H + 1) of each layer
    panels (N, J K units, wide) N wide unit blocks: of each layer those of the inputs,
                                then those of the hidden units; rows as theta's columns
"""

import math
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from ..cells import Cell
from . import registers


@dataclass(unsafe_hash=True)
class Layout:
    """The layout for a cell, float32 or float64, and layers of `hidden` units."""

    cell: Cell
    dtype: np.dtype
    hidden: int
    wide_vectors: int | None = None  # vectors of a wide unit block; None: 4 or 2
    of_registers = staticmethod(registers.vector_registers)  # a study has narrower ones

    def __post_init__(self):
        K = len(self.cell.gates)
        self.lanes = self.of_registers().bytes // self.dtype.itemsize
        used = -(-self.hidden // self.lanes)
        if self.wide_vectors is None:  # whichever pads `hidden` less
            self.wide_vectors = 4 if -(-used // 4) * 4 <= -(-used // 2) * 2 else 2
        # Vectors per gate in a unit block: one, or an RNN would have too few to fill a
        # tile.
        self.vectors = self.wide_vectors if K == 1 else 1
        self.units = self.vectors * self.lanes
        self.wide = self.wide_vectors * self.lanes
        self.padded = self.pad(self.hidden)
        self.blocks = -(-self.hidden // self.units)  # without those of padding alone
        self.row = K * self.units  # numbers of a row of gates
        # Which gates U, W and b feed.
        fed = self.cell.input_gates, self.cell.recurrent_gates, tuple(range(K))
        self.gates = dict(zip("UWb", fed, strict=True))
        # Tells code of this layout from other code in a file name.
        parts = self.cell.name, self.dtype.name, f"{self.lanes}x{self.wide_vectors}"
        self.name = "_".join(parts)

    @property
    def wide_gates(self):
        """Of each vector of a wide unit block's gates its unit block, and which vector
        of that one's row it is.
        """
        gates = product(range(len(self.cell.gates)), range(self.wide_vectors))
        blocks = ((g, *divmod(v, self.vectors)) for g, v in gates)
        return [(j, g * self.vectors + v) for g, j, v in blocks]

    def fed(self):
        """Of U, W, b the block of a plain matrix that a gate has, or -1, (3, K)."""
        gates = range(len(self.cell.gates))
        fed = [self.gates[M] for M in "UWb"]
        return np.array([[f.index(g) if g in f else -1 for g in gates] for f in fed])

    def pad(self, size):
        """A number of inputs or units with padding to whole wide unit blocks."""
        return -(-size // self.wide) * self.wide

    def columns(self, matrix):
        """Which vectors of a row of a unit block are of gates that a matrix feeds."""
        pairs = product(self.gates[matrix], range(self.vectors))
        return [g * self.vectors + v for g, v in pairs]

    def alike(self, matrix):
        """The first matrix that feeds the same gates."""
        return next(m for m in "UWb" if self.gates[m] == self.gates[matrix])

    def tile_rows(self, matrix):
        """The tallest tile of a matrix's gates."""
        return registers.tile_rows(len(self.columns(matrix)))

    def runs(self, matrix):
        """The gates that a matrix feeds as runs (first number, numbers) of a unit
        block's row; neighbours are one run.
        """
        runs = []
        for g in self.gates[matrix]:
            if runs and sum(runs[-1]) == g * self.units:
                runs[-1] = runs[-1][0], runs[-1][1] + self.units
            else:
                runs.append((g * self.units, self.units))
        return runs


class Weights:
    """The parameters of a network, packed. theta, panels: as above; V (H, O), b_out
    (O,): the output layer. offsets (L, 5): of each layer the first rows of U, W and b
    in theta, the first panels of U^T and W^T. `panels` is older than theta until
    `transpose`.
    """

    def __init__(self, layout, params):
        self._layout, self._form = layout, params
        self.inputs = [len(layer.U) for layer in params.layers]  # D of each layer
        self._plain = [s for layer in params.layers for s in self.plain_shapes(layer)]
        ends = [0, *np.cumsum([*map(math.prod, self._plain)]).tolist()]
        self._plain_parts = [slice(*pair) for pair in pairwise(ends)]
        self.plain_size = ends[-1]
        self.plain_first = np.reshape(ends[:-1], (len(self.inputs), -1))
        H, J, line = layout.hidden, layout.blocks, 64 // layout.dtype.itemsize
        offsets, rows, panels = [], 0, 0
        for D in self.inputs:
            W, W_T = rows + J * D, panels + layout.pad(D) // layout.wide
            offsets.append((rows, W, W + J * H, panels, W_T))
            rows, panels = W + J * (H + 1), W_T + layout.padded // layout.wide
        self.offsets = np.array(offsets, np.int64)
        output = [] if params.V is None else [params.V.shape, params.b_out.shape]
        self._shapes = [(rows, layout.row), *output]
        sizes = [-(-math.prod(shape) // line) * line for shape in self._shapes]
        self._starts = np.cumsum([0, *sizes])
        self._all = aligned((self._starts[-1],), layout.dtype)
        self.theta, self.V, self.b_out = self._parts(self._all)
        self.panels = aligned((panels, J * layout.row, layout.wide), layout.dtype)
        self.assign(params)

    @staticmethod
    def plain_shapes(layer):
        """The shapes of a layer's gradients, as a caller gets them."""
        return layer.U.shape, layer.W.shape, layer.b.shape

    def _parts(self, flat):
        """Views of one array: theta, V, b_out; None for those that are not."""
        pairs = zip(self._starts, self._shapes, strict=False)
        parts = [flat[n : n + math.prod(s)].reshape(s) for n, s in pairs]
        return parts if len(parts) == 3 else (*parts, None, None)

    def _blocks(self, theta, params):
        """Pairs of views (rows, units), of theta and of a gate in a layer's matrix."""
        units, J = self._layout.units, self._layout.blocks
        for layer, rows in zip(params.layers, self.offsets.tolist(), strict=True):
            for row, name in zip(rows, "UWb", strict=False):
                gates = self._layout.gates[name]
                matrix = np.atleast_2d(getattr(layer, name))
                plain = matrix.reshape(len(matrix), len(gates), -1)
                packed = theta[row : row + J * len(matrix)]
                packed = packed.reshape(J, len(matrix), -1, units)
                for j, (n, gate) in product(range(J), enumerate(gates)):
                    part = plain[:, n, j * units : (j + 1) * units]  # the last: fewer
                    yield packed[j, :, gate, : part.shape[1]], part

    def assign(self, params):
        """Take over Params: all in one copy, which no interrupt divides."""
        # Its padding is zero: a descent may leave NaN in this
        new = np.zeros_like(self._all)
        theta, V, b_out = self._parts(new)
        for packed, plain in self._blocks(theta, params):
            packed[...] = plain
        if V is not None:
            V[...], b_out[...] = params.V, params.b_out
        self.transposed = False
        self._all[...] = new

    def params(self):
        """Params, a copy."""
        params = self._form.copy()
        for packed, plain in self._blocks(self.theta, params):
            plain[...] = packed
        if self.V is not None:
            params.V[...], params.b_out[...] = self.V, self.b_out
        return params

    def plain(self):
        """Room for gradients of the plain matrices: one array, and views of it."""
        flat = np.empty(self.plain_size, self.theta.dtype)
        parts = zip(self._plain_parts, self._plain, strict=True)
        return flat, [flat[part].reshape(shape) for part, shape in parts]

    def transpose(self):
        """Let `panels` be the transposes of what theta has."""
        if self.transposed:
            return
        wide, J = self._layout.wide, self._layout.blocks
        for U, W, b, U_T, W_T in self.offsets.tolist():
            for M, n in (self.theta[U:W], U_T), (self.theta[W:b], W_T):
                M = M.reshape(J, -1, M.shape[1])
                for k in range(0, M.shape[1], wide):
                    part = M[:, k : k + wide].transpose(0, 2, 1)
                    part = part.reshape(-1, part.shape[2])
                    self.panels[n + k // wide, :, : part.shape[1]] = part
        self.transposed = True


def aligned(shape, dtype):
    """Zeros that begin at a cache line."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)
