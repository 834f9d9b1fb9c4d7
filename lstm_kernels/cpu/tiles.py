"""The register tiles of `numba-fused`: a matrix product, and what becomes of its sums.

Layout. Hidden units are cut into *blocks* of `units`, one or a few vectors wide. What belongs to a
block lies together: pre-activations, gates and their gradients are `[block][row][K gates][units]`
with rows (t, sample), packed weights `[block][k][G gates][units]`. So the tile that writes a block
reads one stream of weights and writes whole cache lines, and the gradient of a packed weight matrix
comes out of its tile in the layout of that matrix: descent needs no packing.

The transposed weights, for the backward pass, are `[wide block][k][wide_units]`, with k over
(block, gate, unit): the order in which a row of gradients is stored. All arguments are addresses,
strides in bytes and counts; a tile checks nothing (its callers' records are tested with
`checked.Checked`, which does).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..cells import Cell
from . import activations, registers


@dataclass(frozen=True)
class Tiles:
    """The tiles of a cell, for float32 or float64 and a network of `hidden` units."""

    cell: Cell
    dtype: np.dtype
    hidden: int

    def form(self, name):
        """What the code of a tile depends on: networks of many sizes share it."""
        wide = name in ("back", "through_U", "through_W") or len(self.cell.gates) == 1
        return Tiles(self.cell, self.dtype, self.wide_units if wide else 4 * self.lanes)

    @cached_property
    def lanes(self):
        return registers.vector_registers().bytes // self.dtype.itemsize

    @cached_property
    def wide_vectors(self):
        """Vectors of a wide block: 4 or 2, whichever pads `hidden` less."""
        vectors = -(-self.hidden // self.lanes)
        return 4 if -(-vectors // 4) * 4 <= -(-vectors // 2) * 2 else 2

    @property
    def vectors(self):
        """Vectors per gate in a block: one, but for an RNN, whose one gate would fill no tile."""
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
        """Blocks that hold hidden units; the padding may have more."""
        return -(-self.hidden // self.units)

    def pad(self, size):
        """A number of inputs or units with padding to whole wide blocks."""
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

    def all(self, keep=True):
        """Every tile by its name; keep: does the forward step keep the gates?"""
        return {
            "inputs": self.inputs(),
            "step": self.step(keep),
            "whole": self.whole(keep),
            "back": self.back(),
            **{f"through_{m}": self.through(m) for m in "UW"},
            "few": self.few(),
            **{f"gradient_{m}": self.gradient(m) for m in "UWb"},
            "transpose": self.transpose(),
        }

    def _offsets(self, gates):
        """Byte offsets, in a row of a block, of the vectors of some gates."""
        size = self.lanes * self.dtype.itemsize
        return [(g * self.vectors + v) * size for g in gates for v in range(self.vectors)]

    def _segments(self, gates):
        """The same as runs (first unit, units): gates that lie side by side are one run."""
        runs = []
        for g in gates:
            if runs and sum(runs[-1]) == g * self.units:
                runs[-1] = (runs[-1][0], runs[-1][1] + self.units)
            else:
                runs.append((g * self.units, self.units))
        return runs

    def multiply(self, m, sums, A, row, k_stride, B, B_row, count, offsets=None, ahead=None):
        """sums[i][n] += sum over k < count of A[i, k] * B[k, n]: the loop all time is spent in.

        Rows of B are whole vectors, aligned: packed, or gradients. Of the operands of a k the fewer
        stay in registers while the others come one at a time: 3 rows of 4 vectors take 12 + 3 + 1
        registers, and 12 + 4 + 1 the other way would be one more than AVX2 has. ahead: bytes from
        A[0, k] to what is fetched for later. Where k is a sample, numbers of A lie a row apart,
        further than the CPU's own prefetcher looks.
        """
        size = self.lanes * self.dtype.itemsize
        offsets = offsets or [n * size for n in range(len(sums[0]))]

        def multiply(k):
            if ahead is not None:
                m.prefetch(A + k * k_stride + ahead)
            number = lambda i: m.broadcast(A + k * k_stride + i * row)  # noqa: E731
            vector = lambda n: m.load_aligned(B + k * B_row + offsets[n])  # noqa: E731
            rows, columns = range(len(sums)), range(len(offsets))
            if len(rows) < len(columns):
                a = [number(i) for i in rows]
                pairs = ((i, n, a[i], b_n) for n in columns for b_n in [vector(n)] for i in rows)
            else:
                b = [vector(n) for n in columns]
                pairs = ((i, n, a_i, b[n]) for i in rows for a_i in [number(i)] for n in columns)
            for i, n, a_i, b_n in pairs:
                m.set(sums[i][n], m.fma(a_i, b_n, m.get(sums[i][n])))

        m.loop(count, multiply)

    def _backwards(self, m, sums, A, blocks, block, B, gates):
        """The same product with A a row of gradients: over blocks, and in each over its gates."""
        size = self.dtype.itemsize
        segments, line = self._segments(gates), self.wide_units * size
        width = sum(units for _, units in segments)

        def one_block(j):
            done = 0
            for first, units in segments:
                a, b = A + j * block + first * size, B + (j * width + done) * line
                self.multiply(m, sums, a, self.row, size, b, line, units)
                done += units

        m.loop(blocks, one_block)

    @property
    def row(self):
        return len(self.cell.gates) * self.units * self.dtype.itemsize

    def inputs(self):
        """a = b + x U for a block: `rows` rows of x (`x_row` bytes apart), D inputs."""
        size, gates = self.lanes * self.dtype.itemsize, self.gates
        fed = self._offsets(gates["U"])
        left = [o for o in self._offsets(gates["b"]) if o not in fed]

        def inputs(m, rows, x, x_row, D, U, b, a):
            def tile(first, count):
                sums = [[m.variable(m.load(b + o)) for o in fed] for _ in range(count)]
                self.multiply(
                    m, sums, x + first * x_row, x_row, self.dtype.itemsize, U, len(fed) * size, D
                )
                for i in range(count):
                    out = a + first * self.row + i * self.row
                    for o, total in zip(fed, sums[i], strict=True):
                        m.store(out + o, m.get(total))
                    for o in left:  # fed by W alone
                        m.store(out + o, m.load(b + o))

            m.tiles(rows, registers.tile_rows(len(fed)), tile)

        return inputs

    def step(self, keep):
        """a + h_prev W, then the cell while the sums are in registers.

        h, c: this block's units in the row of the first sample, before the step and after; `row`
        bytes from sample to sample. h_all: the whole rows of h_prev, H of them counted. keep: store
        the gates over a.
        """
        fed = self._offsets(self.gates["W"])

        def step(m, rows, h_all, row, H, W, a, c_prev, c, h):
            def tile(first, count):
                a_first = a + first * self.row
                sums = [
                    {o: m.variable(m.load(a_first + (i * self.row + o))) for o in fed}
                    for i in range(count)
                ]
                self._recur(m, sums, h_all + first * row, row, H, W)
                self.apply(m, sums, keep, a_first, row, c_prev, c, h, first)

            m.tiles(rows, registers.tile_rows(len(fed)), tile)

        return step

    def whole(self, keep):
        """b + x U + h_prev W, then the cell: a step whose pre-activations are never stored.

        Arguments as of `inputs` and `step`; `a` takes the gates.
        """
        size = self.lanes * self.dtype.itemsize
        everything, fed = self._offsets(self.gates["b"]), self._offsets(self.gates["U"])

        def whole(m, rows, x, x_row, D, U, b, h_all, row, H, W, a, c_prev, c, h):
            def tile(first, count):
                sums = [{o: m.variable(m.load(b + o)) for o in everything} for _ in range(count)]
                inputs = [[row_sums[o] for o in fed] for row_sums in sums]
                x_first = x + first * x_row
                self.multiply(m, inputs, x_first, x_row, self.dtype.itemsize, U, len(fed) * size, D)
                self._recur(m, sums, h_all + first * row, row, H, W)
                self.apply(m, sums, keep, a + first * self.row, row, c_prev, c, h, first)

            m.tiles(rows, registers.tile_rows(len(everything)), tile)

        return whole

    def _recur(self, m, sums, h, row, H, W):
        """Add h W to the sums, by offset, of the gates that W feeds."""
        fed, size = self._offsets(self.gates["W"]), self.lanes * self.dtype.itemsize
        chosen = [[row_sums[o] for o in fed] for row_sums in sums]
        self.multiply(m, chosen, h, row, self.dtype.itemsize, W, len(fed) * size, H)

    def apply(self, m, sums, keep, a, row, c_prev, c, h, first):
        """The cell on finished sums; pre-activations that are not among them are in a."""
        size, K = self.lanes * self.dtype.itemsize, len(self.cell.gates)
        forward, _ = self.cell.make(*activations.functions(m))
        for i, row_sums in enumerate(sums):
            a_i, at = a + i * self.row, first * row + i * row
            for v in range(self.vectors):
                offsets, here = [self._offsets((k,))[v] for k in range(K)], at + v * size
                bars = [m.get(row_sums[o]) if o in row_sums else m.load(a_i + o) for o in offsets]
                *kept, h_new, c_new = forward(*bars, m.load(c_prev + here))
                m.store(h + here, h_new)
                if c_new is not h_new:
                    m.store(c + here, c_new)
                if keep:
                    for o, gate in zip(offsets, kept, strict=True):
                        m.store(a_i + o, gate)

    def back(self):
        """dy + dh + da_next W^T, then the cell backwards while the sums are in registers.

        da_next: gradients of step t+1, `blocks` blocks `block` bytes apart; no blocks at the last
        step. gates, da: those of step t, from this wide block's first block on. dy, dc, c_prev, c:
        this wide block's units, `row` bytes from sample to sample; dc is read and written over. dh:
        the same, `dh_row` bytes from sample to sample.
        """
        size, K = self.lanes * self.dtype.itemsize, len(self.cell.gates)

        def back(
            m, rows, da_next, blocks, block, WT, dy, dh, dh_row, row, gates, da, dc, c_prev, c
        ):
            _, backward = self.cell.make(*activations.functions(m))

            def tile(first, count):
                at = first * row
                ends = dh + first * dh_row
                sums = [
                    [
                        m.variable(
                            m.load(dy + at + i * row + v * size)
                            + m.load(ends + i * dh_row + v * size)
                        )
                        for v in range(self.wide_vectors)
                    ]
                    for i in range(count)
                ]
                A = da_next + first * self.row
                self._backwards(m, sums, A, blocks, block, WT, self.gates["W"])
                for i in range(count):
                    for v in range(self.wide_vectors):
                        j, inner = divmod(v, self.vectors)
                        here = at + i * row + v * size
                        there = block * j + (first * self.row + i * self.row)
                        offsets = [self._offsets((k,))[inner] for k in range(K)]
                        *bars, dc_prev = backward(
                            m.get(sums[i][v]),
                            m.load(dc + here),
                            *(m.load(gates + there + o) for o in offsets),
                            m.load(c_prev + here),
                            m.load(c + here),
                        )
                        for o, bar in zip(offsets, bars, strict=True):
                            m.store(da + there + o, bar)
                        m.store(dc + here, dc_prev)

            m.tiles(rows, registers.tile_rows(self.wide_vectors), tile)

        return back

    def through(self, matrix):
        """out = da M^T for a wide block: the gradient of what `matrix` multiplied, U or W."""
        size, gates = self.lanes * self.dtype.itemsize, self.gates[matrix]

        def through(m, rows, da, blocks, block, MT, out, row):
            zero = m.constant(0.0)

            def tile(first, count):
                sums = [[m.variable(zero) for _ in range(self.wide_vectors)] for _ in range(count)]
                self._backwards(m, sums, da + first * self.row, blocks, block, MT, gates)
                for i in range(count):
                    for v in range(self.wide_vectors):
                        m.store(out + first * row + i * row + v * size, m.get(sums[i][v]))

            m.tiles(rows, registers.tile_rows(self.wide_vectors), tile)

        through.__name__ = f"through_{matrix}"
        return through

    def few(self):
        """out = da U^T for a few inputs: a dot product for each, along the gates of all blocks.

        `through` would compute a wide block of inputs, nearly all of them padding. U: packed, row
        by row; out: `row` bytes from sample to sample.
        """
        size, fed = self.lanes * self.dtype.itemsize, self._offsets(self.gates["U"])

        def few(m, rows, D, da, blocks, block, U, U_block, out, row):
            zero = m.constant(0.0)

            def tile(first, count):
                def one_input(d):
                    sums = [m.variable(zero) for _ in range(count)]

                    def one_block(j):
                        a, u = (
                            da + j * block + first * self.row,
                            U + j * U_block + d * len(fed) * size,
                        )
                        for n, offset in enumerate(fed):
                            u_n = m.load_aligned(u + n * size)
                            for i, total in enumerate(sums):
                                a_n = m.load(a + (i * self.row + offset))
                                m.set(total, m.fma(a_n, u_n, m.get(total)))

                    m.loop(blocks, one_block)
                    for i, total in enumerate(sums):
                        at = out + first * row + i * row + d * self.dtype.itemsize
                        m.store_number(at, m.total(m.get(total)))

                m.loop(D, one_input)

            m.tiles(rows, 4, tile)

        return few

    def gradient(self, matrix):
        """out += rate z^T da for a block of a packed matrix, over `count` rows of z and da.

        Rows of the tile are rows of the matrix: the number of z that one of them multiplied, `step`
        bytes from row to row and `z_row` from sample to sample. b: a weight whose input is 1.
        """
        size, gates = self.lanes * self.dtype.itemsize, self.gates[matrix]
        offsets = self._offsets(gates)

        def gradient(m, rows, z, step, z_row, count, da, out, rate):
            width = len(offsets) * size
            zero = m.constant(0.0)

            def tile(first, height):
                sums = [[m.variable(zero) for _ in offsets] for _ in range(height)]
                z_first = z + first * step
                self.multiply(m, sums, z_first, step, z_row, da, self.row, count, offsets, ahead=64)
                for i in range(height):
                    for n, total in enumerate(sums[i]):
                        at = out + first * width + (i * width + n * size)
                        m.store(at, m.fma(rate, m.get(total), m.load(at)))

            m.tiles(rows, registers.tile_rows(len(offsets)), tile)

        gradient.__name__ = f"gradient_{matrix}"
        return gradient

    def transpose(self):
        """Squares of lanes x lanes: out[c][r] = a[r][c], for `count` squares along a row of a."""
        lanes, size = self.lanes, self.lanes * self.dtype.itemsize

        def transpose(m, count, a, a_row, out, out_row):
            def square(s):
                rows = [m.load(a + s * size + r * a_row) for r in range(lanes)]
                for _ in range(lanes.bit_length() - 1):  # a perfect shuffle of rows, log2 times
                    pairs = zip(rows[: lanes // 2], rows[lanes // 2 :], strict=True)
                    rows = [half for x, y in pairs for half in m.interleave(x, y)]
                for c, column in enumerate(rows):
                    m.store(out + (s * lanes + c) * out_row, column)

            m.loop(count, square)

        return transpose
