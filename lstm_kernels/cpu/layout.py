"""How the arrays of `numba-fused` lie in memory: unit blocks, and the sizes that follow
from them.

Hidden units are cut into *unit blocks* of `units`, one or a few vectors wide.
Pre-activations, gates and their gradients are `[unit block][row][K gates][units]` with
rows (t, sample), packed weights `[unit block][k][G gates][units]`: a tile reads one
stream of weights, it writes whole cache lines, and the gradient of a packed matrix has
the matrix's layout, so descent needs no packing. Transposed weights, for the backward
pass, are `[wide unit block][k][wide_units]`, k over (unit block, gate, unit) as in a
row of gradients.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np

from ..cells import Cell
from . import registers


@dataclass(unsafe_hash=True)
class Layout:
    """The layout for a cell, float32 or float64, and a network of `hidden` units."""

    cell: Cell
    dtype: np.dtype
    hidden: int
    wide_vectors: int | None = None  # vectors of a wide unit block; None: 4 or 2

    def __post_init__(self):
        K = len(self.cell.gates)
        self.vector_bytes = registers.vector_registers().bytes
        self.lanes = self.vector_bytes // self.dtype.itemsize
        used = -(-self.hidden // self.lanes)
        if self.wide_vectors is None:  # whichever pads `hidden` less
            self.wide_vectors = 4 if -(-used // 4) * 4 <= -(-used // 2) * 2 else 2
        # Vectors per gate in a unit block: one, or an RNN would have too few to fill a
        # tile.
        self.vectors = self.wide_vectors if K == 1 else 1
        self.units = self.vectors * self.lanes
        self.wide_units = self.wide_vectors * self.lanes
        self.padded = self.pad(self.hidden)
        self.blocks = -(-self.hidden // self.units)  # without those of padding alone
        self.row = K * self.vectors * self.vector_bytes  # bytes
        # Which pre-activations U, W and b feed.
        fed = self.cell.input_gates, self.cell.recurrent_gates, tuple(range(K))
        self.gates = dict(zip("UWb", fed, strict=True))
        # Tells these tiles from others in a file name.
        of_units = f"{self.lanes}x{self.wide_vectors}"
        self.name = f"{self.cell.name}_{self.dtype.name}_{of_units}"

    def sizes(self):
        """The sizes of `arrays.py` that are those of every layer."""
        U_row, W_row, row = (self.units * len(self.gates[m]) for m in "UWb")
        return {
            "H": self.hidden,
            "P": self.padded,
            "J": self.blocks,
            "J_padded": self.padded // self.units,
            "J_wide": self.padded // self.wide_units,
            "units": self.units,
            "wide": self.wide_units,
            "lanes": self.lanes,
            "size": self.dtype.itemsize,
            "row": row,
            "U_row": U_row,
            "W_row": W_row,
            "U_lines": self.blocks * U_row,
            "W_lines": self.blocks * W_row,
        }

    def layer_sizes(self, D):
        """Those of a layer of D inputs."""
        return {
            "D": D,
            "D_padded": self.pad(D),
            "D_wide": self.pad(D) // self.wide_units,
        }

    def pad(self, size):
        """A number of inputs or units with padding to whole wide unit blocks."""
        return -(-size // self.wide_units) * self.wide_units

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
