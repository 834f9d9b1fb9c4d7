"""How the arrays of `numba-fused` lie in memory: unit blocks, and the sizes that follow from them.

Hidden units are cut into *unit blocks* of `units`, one or a few vectors wide. What belongs to a
unit block lies together: pre-activations, gates and their gradients are
`[unit block][row][K gates][units]` with rows (t, sample), packed weights
`[unit block][k][G gates][units]`. So the tile that writes a unit block reads one stream of weights
and writes whole cache lines, and the gradient of a packed weight matrix comes out of its tile in
the layout of that matrix: descent needs no packing.

The transposed weights, for the backward pass, are `[wide unit block][k][wide_units]`, with k over
(unit block, gate, unit): the order in which a row of gradients is stored.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from ..cells import Cell
from . import registers


@dataclass(frozen=True)
class Layout:
    """The layout for a cell, float32 or float64, and a network of `hidden` units."""

    cell: Cell
    dtype: np.dtype
    hidden: int

    @property
    def vector_bytes(self):
        """Bytes of a vector register."""
        return registers.vector_registers().bytes

    @property
    def row(self):
        """Bytes of a row of a unit block: its K gates."""
        return len(self.cell.gates) * self.vectors * self.vector_bytes

    @cached_property
    def lanes(self):
        return self.vector_bytes // self.dtype.itemsize

    @cached_property
    def wide_vectors(self):
        """Vectors of a wide unit block: 4 or 2, whichever pads `hidden` less."""
        vectors = -(-self.hidden // self.lanes)
        return 4 if -(-vectors // 4) * 4 <= -(-vectors // 2) * 2 else 2

    @property
    def vectors(self):
        """Vectors per gate in a unit block: one, or an RNN would have too few to fill a tile."""
        return self.wide_vectors if len(self.cell.gates) == 1 else 1

    @property
    def wide_units(self):
        return self.wide_vectors * self.lanes

    @property
    def units(self):
        return self.vectors * self.lanes

    @property
    def padded(self):
        """Hidden units with padding: what a row of h, c or a gradient of them holds."""
        return self.pad(self.hidden)

    @property
    def blocks(self):
        """Unit blocks that hold hidden units; the padding may have more."""
        return -(-self.hidden // self.units)

    def pad(self, size):
        """A number of inputs or units with padding to whole wide unit blocks."""
        return -(-size // self.wide_units) * self.wide_units

    @property
    def gates(self):
        """Which pre-activations U, W and b feed."""
        K = tuple(range(len(self.cell.gates)))
        return {"U": self.cell.input_gates, "W": self.cell.recurrent_gates, "b": K}

    @property
    def name(self):
        """Tells these tiles from others in a file name."""
        return f"{self.cell.name}_{self.dtype.name}_{self.lanes}x{self.wide_vectors}"

    def offsets(self, matrix):
        """Bytes from a row of a unit block to each vector of the gates that a matrix feeds."""
        columns = product(self.gates[matrix], range(self.vectors))
        return [(g * self.vectors + v) * self.vector_bytes for g, v in columns]

    def of_gates(self, v):
        """Bytes from a row of a unit block to vector v of each of its K gates."""
        return self.offsets("b")[v :: self.vectors]

    def runs(self, matrix):
        """The gates that a matrix feeds as runs (first unit, units); neighbours are one run."""
        runs = []
        for g in self.gates[matrix]:
            if runs and sum(runs[-1]) == g * self.units:
                runs[-1] = (runs[-1][0], runs[-1][1] + self.units)
            else:
                runs.append((g * self.units, self.units))
        return runs
