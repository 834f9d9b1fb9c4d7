"""Tiles whose lanes are chunks of one sequence: `numba-chunks`.

Each lane is a chunk at the same step of its own, so a layer of a few units fills whole
vectors. Rows of lanes are `[step][unit][gate]`; weights are numbers that all lanes
share. A sum takes a vector of h and broadcasts a weight, where `tiles.py` takes a
vector of weights and broadcasts h; both add in the same order. Several vectors are one
wide one, whose parts LLVM computes in turns: the chain of a cell's instructions is
longer than a core looks ahead.

Arguments are addresses and counts; `row`: bytes from one row of lanes to the next.
Every gate is fed by U and W (`params.expand`): U (H, D, K), W (H, H, K), b (H, K), and
WT (H, H K), the weights that unit j's h is multiplied by.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from ..cells import CELLS, Cell
from . import activations, registers, simd

MOST_UNITS = 4  # of a tile: the rest of each size is compiled too


@dataclass(frozen=True)
class ChunkTiles:
    """The tiles of a cell, for float32 or float64, and groups of so many vectors of
    lanes, 1, 2 or 4. keep: are the gates and every c kept, for a backward pass?
    """

    cell: Cell
    dtype: np.dtype
    vectors: int
    keep: bool = False

    @property
    def lanes(self):
        """Of a group."""
        return self.vectors * registers.vector_registers().bytes // self.dtype.itemsize

    @property
    def K(self):
        return len(self.cell.gates)

    @property
    def has_c(self):
        return len(self.cell.state) == 2

    def _units(self, sums):
        """How many units, of so many sums each, the registers hold."""
        room = registers.vector_registers().number - self.vectors - 2
        return max(1, min(MOST_UNITS, room // (sums * self.vectors)))

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
        """Steps of a layer: a = b + x U + h W, then the cell. h and c: before the first
        step; a step finds c `c_step` bytes on: 0 where it is not kept.
        """
        K, size = self.K, self.dtype.itemsize

        def forward(m, steps, x, D, U, b, h, H, W, c, c_step, a, row):
            cell, _ = self.cell.make(*activations.functions(m))

            def one_step(t):
                h_t, c_t, a_t = h + t * H * row, c + t * c_step, a + t * H * K * row

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
                        c_i = m.load(c_t + unit)
                        *gates, h_i, c_i = cell(*map(m.get, gates), c_i)
                        m.store(h_t + H * row + unit, h_i)
                        if self.has_c:
                            m.store(c_t + c_step + unit, c_i)
                        for g, gate in enumerate(gates if self.keep else ()):
                            m.store(a_t + unit * K + g * row, gate)

                m.tiles(H, self._units(K), some_units)

            m.loop(steps, one_step)

        return forward

    def backward(self):
        """The same steps back through time, from the last to the first: da from dy and
        the gates a; dh and dc, of the state after the last step, become those of the
        state before the first.
        """
        K = self.K

        def backward(m, steps, dy, WT, H, c, a, da, dh, dc, row):
            _, cell = self.cell.make(*activations.functions(m))

            def one_step(i):
                t = steps + (i + 1) * -1
                dy_t, c_t, a_t, da_t = (
                    start + t * H * count * row
                    for start, count in ((dy, 1), (c, 1), (a, K), (da, K))
                )

                def one_unit(j):
                    unit = j * row
                    gates = [m.load(a_t + unit * K + g * row) for g in range(K)]
                    c_before, c_after = m.load(c_t + unit), m.load(c_t + H * row + unit)
                    dh_j = m.load(dy_t + unit) + m.load(dh + unit)
                    dc_j = m.load(dc + unit)
                    *bars, dc_j = cell(dh_j, dc_j, *gates, c_before, c_after)
                    for g, bar in enumerate(bars):
                        m.store(da_t + unit * K + g * row, bar)
                    m.store(dc + unit, dc_j)

                def through_W(first, count):
                    zero = m.constant(0.0)
                    sums = [[m.variable(zero)] for _ in range(count)]
                    WT_first = WT + first * (H * (K * self.dtype.itemsize))
                    self._multiply(m, sums, da_t, row, WT_first, H * K)
                    for i, (total,) in enumerate(sums):
                        m.store(dh + first * row + i * row, m.get(total))

                m.loop(H, one_unit)
                m.tiles(H, self._units(1), through_W)

            m.loop(steps, one_step)

        return backward


@cache
def code(tiles, name):
    """The address of a tile's machine code, compiled when first asked for."""
    form = f"{tiles.cell.name}_{tiles.dtype.name}_{tiles.vectors}_{tiles.keep:d}"
    return simd.compiled(getattr(tiles, name)(), tiles.dtype, tiles.lanes, form)


# Tiles by their address, for compiled code.
_TILES = ChunkTiles(CELLS["lstm"], np.dtype(np.float32), 1)
forward = simd.caller(_TILES.forward())
backward = simd.caller(_TILES.backward())
