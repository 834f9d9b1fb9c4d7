"""Tiles whose lanes are chunks of one sequence: `numba-chunks`.

Each lane is a chunk at the same step of its own, so a layer of a few units fills whole
vectors. Rows of lanes are `[step][unit]`; weights are numbers that all lanes
share. A sum takes a vector of h and broadcasts a weight, where `tiles.py` takes a
vector of weights and broadcasts h; both add in the same order. Several vectors are one
wide one, whose parts LLVM computes in turns: the chain of a cell's instructions is
longer than a core looks ahead.

Arguments are addresses and counts; `row`: bytes from one row of lanes to the next.
Every gate is fed by U and W (`params.expand`): U (H, D, K), W (H, H, K), b (H, K).
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from ..cells import CELLS, Cell
from . import activations, registers, simd

MOST_UNITS = 4  # of a tile: the rest of each size is compiled too


@dataclass(frozen=True)
class ChunkTiles:
    """The tile of a cell, for float32 or float64, and groups of so many vectors of
    lanes, 1, 2 or 4.
    """

    cell: Cell
    dtype: np.dtype
    vectors: int

    @property
    def lanes(self):
        """Of a group."""
        return self.vectors * registers.vector_registers().bytes // self.dtype.itemsize

    @property
    def has_c(self):
        return len(self.cell.state) == 2

    def _multiply(self, m, sums, a, row, weights, count):
        """sums[i][g] += sum over k < count of a[k] times number (k, g) of the weights
        of unit i, (count, len(sums[i])), which lie one behind another.
        """
        size = self.dtype.itemsize
        apart = count * (len(sums[0]) * size)  # bytes from a unit to the next

        def multiply(k):
            lanes = m.load(a + k * row)
            for i, gates in enumerate(sums):
                line = weights + i * apart + k * (len(gates) * size)
                for g, total in enumerate(gates):
                    weight = m.broadcast(line + g * size)
                    m.set(total, m.fma(lanes, weight, m.get(total)))

        m.loop(count, multiply)

    def forward(self):
        """Steps of a layer: b + x U + h W, then the cell. h: of the slot before the
        first step; c: where the cell has one, which stays where it is.
        """
        K, size, has_c = len(self.cell.gates), self.dtype.itemsize, self.has_c
        room = registers.vector_registers().number - self.vectors - 2
        most = max(1, min(MOST_UNITS, room // (K * self.vectors)))

        def forward(m, steps, x, D, U, b, h, H, W, c, row):
            cell, _ = self.cell.make(*activations.functions(m))

            def one_step(t):
                h_t, h_new = h + t * H * row, h + (t + 1) * H * row
                c_t = c if has_c else h_t

                def some_units(first, count):
                    sums = [
                        [
                            m.variable(m.broadcast(b + first * K * size + n * size))
                            for n in range(i * K, (i + 1) * K)
                        ]
                        for i in range(count)
                    ]
                    U_first = U + first * (D * (K * size))
                    W_first = W + first * (H * (K * size))
                    self._multiply(m, sums, x + t * D * row, row, U_first, D)
                    self._multiply(m, sums, h_t, row, W_first, H)
                    for i, gates in enumerate(sums):
                        unit = (first + i) * row
                        *_, h_i, c_i = cell(*map(m.get, gates), m.load(c_t + unit))
                        m.store(h_new + unit, h_i)
                        if has_c:
                            m.store(c + unit, c_i)

                m.tiles(H, most, some_units)

            m.loop(steps, one_step)

        return forward


@cache
def code(tiles):
    """The address of the tile's machine code, compiled when first asked for."""
    form = f"{tiles.cell.name}_{tiles.dtype.name}_{tiles.vectors}"
    return simd.compiled(tiles.forward(), tiles.dtype, tiles.lanes, form)


# The tile by its address, for compiled code.
_TILES = ChunkTiles(CELLS["lstm"], np.dtype(np.float32), 1)
forward = simd.caller(_TILES.forward())
