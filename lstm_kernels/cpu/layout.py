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
from typing import ClassVar

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
    numbers: ClassVar[int] = (
        1  # of a word, which is what a product takes of an operand at a time
    )

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
        self.units, self.wide_units = (
            self.vectors * self.lanes,
            self.wide_vectors * self.lanes,
        )
        self.padded = self.pad(
            self.hidden
        )  # what a row of h, c or a gradient of them holds
        self.blocks = -(
            -self.hidden // self.units
        )  # with hidden units; the padding may have more
        self.row = (
            K * self.vectors * self.vector_bytes
        )  # bytes of a row of a unit block
        self.da_row = (
            self.row // self.numbers
        )  # the same of the gradients, which are operands
        # Which pre-activations U, W and b feed.
        fed = self.cell.input_gates, self.cell.recurrent_gates, tuple(range(K))
        self.gates = dict(zip("UWb", fed, strict=True))
        # Tells these tiles from others in a file name.
        self.name = (
            f"{self.cell.name}_{self.dtype.name}_{self.lanes}x{self.wide_vectors}"
        )

    def pad(self, size):
        """A number of inputs or units with padding to whole wide unit blocks."""
        return -(-size // self.wide_units) * self.wide_units

    def offsets(self, matrix):
        """Bytes from a row of a unit block to each vector of the gates that a matrix
        feeds.
        """
        columns = product(self.gates[matrix], range(self.vectors))
        return [(g * self.vectors + v) * self.vector_bytes for g, v in columns]

    def of_gates(self, v):
        """Bytes from a row of a unit block to vector v of each of its K gates."""
        return self.offsets("b")[v :: self.vectors]

    def words(self, count):
        """How many words so many numbers take."""
        return -(-count // self.numbers)

    def runs(self, matrix):
        """The gates that a matrix feeds as runs (first word, words); neighbours are one
        run.
        """
        runs, words = [], self.words(self.units)
        for g in self.gates[matrix]:
            if runs and sum(runs[-1]) == g * words:
                runs[-1] = (runs[-1][0], runs[-1][1] + words)
            else:
                runs.append((g * words, words))
        return runs

    def tile_rows(self, vectors):
        """The tallest tile with `vectors` vectors a row."""
        return registers.tile_rows(vectors)
