"""The tiles of `tiles.py` in their second orientation: lanes are samples.

A layer of a few units fills a quarter of a vector and less. Here a vector holds one
unit of as many samples as it has lanes. Rows of lanes are `[step][unit][sample]`, gates
`[step][gate][unit][sample]`; a sum takes a vector of x or h and a weight in every lane,
where the other orientation takes a number of x and a vector of weights. Both add in the
same order, and read the same packed weights.

`line`: bytes from one unit to the next; `_step` from step to step. Several vectors of
samples go together: the chain of a cell's instructions is longer than a core looks
ahead.
"""

from dataclasses import dataclass, replace

import numpy as np

from ..cells import CELLS
from . import registers, simd
from .tiles import Rows, Tiles, begun, multiply

MOST_UNITS = 4  # of a tile: the rest of each size is compiled too


class Lanes(Rows):
    """Units, `row` bytes apart, of samples side by side; gates `units` of them apart.
    first, count: of a group of units.
    """

    def __init__(self, m, address, row, units, first=0, count=1):
        super().__init__(m, address, row)
        self.units, self.first, self.count = units, first, count
        self.stride = self.vector_bytes

    def of(self, first, count):
        return type(self)(self.m, self.address, self.row, self.units, first, count)

    def number(self, down, k):
        """A vector of unit k: of all units, not of the group alone."""
        return self.m.load(self.address + k * self.row + down)

    def _place(self, i, n):
        gate, unit = divmod(n, self.count)
        unit = self.first + (gate * self.units + unit)
        return self.address + unit * self.row + i * self.vector_bytes


class Numbers(Lanes):
    """Weights, a number in every lane: rows `row` bytes apart."""

    def vector(self, k, n):
        gate, unit = divmod(n, self.count)
        unit = self.first + (gate * self.units + unit)
        return self.m.broadcast(self.address + k * self.row + unit * self.size)


@dataclass(unsafe_hash=True)
class LaneTiles(Tiles):
    """The tiles of a cell for groups of `together` vectors of samples."""

    together: int = 1

    def __post_init__(self):
        super().__post_init__()
        self.name += f"_lanes_{self.together}"

    def form(self, name):
        return replace(super().form(name), together=self.together)

    def all(self, keep=True):
        return {"forward": self.forward(keep), "backward": self.backward()}

    def _most(self, gates):
        """Units of a tile whose sums and operands fit the registers."""
        room = registers.vector_registers().number - self.together - 2
        return max(1, min(MOST_UNITS, room // (gates * self.together)))

    def _fed(self, sums, matrix):
        K, gates = len(self.cell.gates), self.gates[matrix]
        count = len(sums[0]) // K
        return [
            [row[g * count + u] for g in gates for u in range(count)] for row in sums
        ]

    def _sums(self, count):
        K, rows = len(self.cell.gates), range(self.together)
        cells = [
            (i, u, [g * count + u for g in range(K)])
            for i in rows
            for u in range(count)
        ]
        return rows, range(K * count), cells

    def _operands(self, m, line, *addresses):
        return [Lanes(m, address, line, self.units) for address in addresses]

    def forward(self, keep=True):
        """Steps of a unit block, one where there are more blocks: b + x U + h W, then
        the cell. x, h: whole rows of the first step, of which D and H units are
        counted. c: before it, h_new: after it, of the `units` of this block.
        """
        most, gate = self._most(len(self.cell.gates)), self.units * self.dtype.itemsize

        def forward(
            m,
            steps,
            b,
            x,
            x_step,
            D,
            U,
            h,
            h_step,
            H,
            W,
            a,
            a_step,
            c,
            c_step,
            h_new,
            units,
            line,
        ):
            fed = (U, len(self.gates["U"])), (W, len(self.gates["W"])), (b, 0)
            U, W, b = (Numbers(m, z, n * gate, self.units) for z, n in fed)
            for t in m.each(steps):
                h_t, c_t = h + t * h_step, c + t * c_step
                places = x + t * x_step, h_t, a + t * a_step, c_t
                x_, h_, a_, c_ = self._operands(m, line, *places)
                new = h_new + t * h_step, c_t + c_step
                h_new_, c_new = self._operands(m, line, *new)
                products = b, x_, D, U, h_, H, W
                self._step(m, units, most, products, keep, a_, c_, c_new, h_new_)

        return forward

    def _multiply_lanes(self, m, sums, matrix, da, H, MT, group, line):
        """Add da M^T to the sums of a group of units, over the gates that M feeds."""
        row = self.wide_units * self.dtype.itemsize
        for place, gate in enumerate(self.gates[matrix]):
            (A,) = self._operands(m, m.apart(line), da + (gate * self.units) * line)
            B = Numbers(m, MT + place * self.units * row, row, self.units)
            multiply(m, sums, A, H, B.of(*group))

    def backward(self):
        """Steps of a layer back through time: begin + da_above U^T + da_next W^T, then
        the cell backwards.

        begin, above, a, da, c: of the latest of these steps; `_slot`: bytes back to the
        one before. H_above, H_next: units of the layer above, of the step after, or 0.
        dc stays where it is.
        """
        most = self._most(1)

        def backward(
            m,
            steps,
            begin,
            begin_slot,
            above,
            H_above,
            UT,
            a,
            da,
            a_slot,
            H,
            H_next,
            WT,
            dc,
            c,
            c_slot,
            line,
        ):
            for t in m.each(steps):
                now, c_t = t * a_slot, c - t * c_slot
                next_da, above_t = da - now + a_slot, above - now
                places = (
                    begin - t * begin_slot,
                    a - now,
                    da - now,
                    dc,
                    c_t,
                    c_t + c_slot,
                )
                operands = self._operands(m, line, *places)
                for group in m.groups(H, most):
                    rows, units = range(self.together), range(group[1])
                    sums = begun(m, operands[0].of(*group), rows, units)
                    how = group, line
                    self._multiply_lanes(m, sums, "U", above_t, H_above, UT, *how)
                    self._multiply_lanes(m, sums, "W", next_da, H_next, WT, *how)
                    cells = self._sums(group[1])[2]
                    self._apply_back(m, group, sums, cells, *operands[1:])

        return backward


_TILES = LaneTiles(CELLS["lstm"], np.dtype(np.float32), 1).all()
forward_lanes = simd.caller(_TILES["forward"])
backward_lanes = simd.caller(_TILES["backward"])
