"""The register tiles of `numba-fused`: a matrix product, and what becomes of its sums.

Arguments are addresses, strides in bytes and counts: `rows` samples, or rows (t,
sample); `row`, `x_row`, `dh_row`: from sample to sample of h and c, x, dh; J unit
blocks of gradients, `block` from one to the next. A tile checks nothing; the tests run
its callers with tiles that do.
"""

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np

from ..cells import CELLS
from . import activations, registers, simd
from .layout import Layout


class Tiles(Layout):
    """The tiles of a cell, for float32 or float64 and a network of `hidden` units."""

    def form(self, name):
        """What the code of a tile depends on: networks of many sizes share it."""
        wide = name in ("back", "through_U", "through_W") or len(self.cell.gates) == 1
        hidden = self.wide_units if wide else 4 * self.lanes
        return replace(self, hidden=hidden, wide_vectors=None)

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

    def multiply(
        self, m, sums, A, row, k_stride, B, B_row, count, offsets=None, ahead=None
    ):
        """sums[i][n] += sum over k < count of A[i, k] * B[k, n]: the loop all time is
        spent in.

        Rows of B are whole vectors, aligned. Of the operands of a k the fewer stay in
        registers: 3 rows of 4 vectors take 12 + 3 + 1, and 12 + 4 + 1 would be one more
        than AVX2 has. ahead: bytes from A[0, k] to what is prefetched, where k is a
        sample, too far for the CPU's own.
        """
        offsets = offsets or [n * self.vector_bytes for n in range(len(sums[0]))]

        def multiply(k):
            if ahead is not None:
                m.prefetch(A + k * k_stride + ahead)  # A[0, some k later]

            def number(i):
                return m.broadcast(A + k * k_stride + i * row)  # A[i, k]

            def vector(n):
                return m.load_aligned(B + k * B_row + offsets[n])  # B[k, n]

            def add(i, n, a_i, b_n):
                m.set(sums[i][n], m.fma(a_i, b_n, m.get(sums[i][n])))

            rows, columns = range(len(sums)), range(len(offsets))
            if len(rows) < len(columns):
                a = [number(i) for i in rows]
                for n in columns:
                    b_n = vector(n)
                    for i in rows:
                        add(i, n, a[i], b_n)
            else:
                b = [vector(n) for n in columns]
                for i in rows:
                    a_i = number(i)
                    for n in columns:
                        add(i, n, a_i, b[n])

        # Two k at a time: half of the counting, which takes turns with the
        # multiply-adds (4 % with AVX2, 3 % with AVX-512, Xeon of 2023). Taller tiles
        # need the registers for addresses, and so do products that are not fused.
        fused = registers.vector_registers().fused
        if len(sums) == 1 or (fused and len(sums[0]) >= 4):
            m.tiles(count, 2, lambda first, n: [multiply(first + i) for i in range(n)])
        else:
            m.loop(count, multiply)

    def _feed(self, m, sums, matrix, A, A_row, B, count):
        """Add A B to the sums of the gates that a packed matrix feeds; sums: by offset,
        of rows.
        """
        fed = self.offsets(matrix)
        chosen = [[row_sums[o] for o in fed] for row_sums in sums]
        size, B_row = self.dtype.itemsize, len(fed) * self.vector_bytes
        self.multiply(m, chosen, A, A_row, size, B, B_row, count)

    def _feed_back(self, m, sums, matrix, da, blocks, block, MT):
        """Add da M^T to sums of a wide unit block: over the unit blocks of gradients,
        and in each over the gates that M feeds.
        """
        runs, size = self.runs(matrix), self.dtype.itemsize
        line, width = self.wide_units * size, sum(count for _, count in runs)  # of M^T

        def one_block(j):
            done = 0
            for first, count in runs:
                a = da + j * block + first * size  # row 0 of block j, the run
                b = MT + (j * width + done) * line  # the row of M^T that it begins with
                self.multiply(m, sums, a, self.row, size, b, line, count)
                done += count

        m.loop(blocks, one_block)

    def inputs(self):
        """a = b + x U of a unit block, for the rows of some steps."""

        def inputs(m, rows, x, x_row, D, U, b, a):
            self._forward(m, rows, "U", a, b=b, from_x=(x, x_row, D, U))

        return inputs

    def step(self, keep=True):
        """a + h W of a unit block, then the cell while the sums are in registers.

        h: the whole rows of the state before it, H of their numbers counted. c, c_new,
        h_new: this unit block in the row of the first sample, before the step and
        after. keep: store the gates in a.
        """

        def step(m, rows, h, H, W, a, c, c_new, h_new, row):
            cell = c, c_new, h_new, row
            self._forward(m, rows, "W", a, from_h=(h, row, H, W), cell=cell, keep=keep)

        return step

    def whole(self, keep=True):
        """Both, and the pre-activations are never stored."""

        def whole(m, rows, x, x_row, D, U, b, h, H, W, a, c, c_new, h_new, row):
            products = {"from_x": (x, x_row, D, U), "from_h": (h, row, H, W)}
            cell = c, c_new, h_new, row
            self._forward(m, rows, "b", a, b=b, **products, cell=cell, keep=keep)

        return whole

    def _forward(
        self, m, rows, matrix, a, *, b=None, from_x=(), from_h=(), cell=(), keep=True
    ):
        """Sums that begin with b, or else with a; plus the products that there are; to
        the cell or to a. matrix: its gates are those that are fed.
        """
        fed = self.offsets(matrix)

        def tile(first, count):
            a_rows = [a + first * self.row + i * self.row for i in range(count)]
            begins = a_rows if b is None else [b] * count
            sums = [{o: m.variable(m.load(begin + o)) for o in fed} for begin in begins]
            for operand, weights in ((from_x, "U"), (from_h, "W")):
                if operand:
                    A, A_row, count_k, packed = operand
                    A_first = A + first * A_row
                    self._feed(m, sums, weights, A_first, A_row, packed, count_k)
            if cell:
                self.apply(m, sums, keep, a_rows[0], first, *cell)
                return
            for row_sums, a_i in zip(sums, a_rows, strict=True):
                for o in self.offsets("b"):  # what W alone feeds begins with b
                    total = m.get(row_sums[o]) if o in row_sums else m.load(b + o)
                    m.store(a_i + o, total)

        m.tiles(rows, registers.tile_rows(len(fed)), tile)

    def apply(self, m, sums, keep, a, first, c, c_new, h_new, row):
        """The cell on finished sums of rows from `first` on; pre-activations that are
        not among them are in a, the gates of row `first`.
        """
        forward, _ = self.cell.make(*activations.functions(m))
        for (i, row_sums), v in product(enumerate(sums), range(self.vectors)):
            a_i = a + i * self.row  # gates of row first + i
            unit = first * row + i * row + v * self.vector_bytes  # its units, vector v
            offsets = self.of_gates(v)
            bars = [
                m.get(row_sums[o]) if o in row_sums else m.load(a_i + o)
                for o in offsets
            ]
            *gates, h_value, c_value = forward(*bars, m.load(c + unit))
            m.store(h_new + unit, h_value)
            if c_value is not h_value:
                m.store(c_new + unit, c_value)
            if keep:
                for o, gate in zip(offsets, gates, strict=True):
                    m.store(a_i + o, gate)

    def back(self):
        """dy + dh + da_next W^T, then the cell backwards while the sums are in
        registers.

        da_next: gradients of step t+1, J unit blocks of them, none at the last step;
        block: from one to the next. a, da: gates and gradients of step t, from this
        wide unit block's first unit block on. dy, dh, dc, c, c_new: this wide unit
        block, c before the step and c_new after; dc is read and written over.
        """

        def back(
            m, rows, da_next, J, block, WT, dy, dh, dh_row, row, a, da, dc, c, c_new
        ):
            _, backward = self.cell.make(*activations.functions(m))

            def tile(first, count):
                def place(i, v, row):  # of row first + i, vector v
                    return first * row + (i * row + v * self.vector_bytes)

                vectors = [*product(range(count), range(self.wide_vectors))]
                sums = [[None] * self.wide_vectors for _ in range(count)]
                for i, v in vectors:
                    dh_i = m.load(dh + place(i, v, dh_row))
                    sums[i][v] = m.variable(m.load(dy + place(i, v, row)) + dh_i)
                da_first = da_next + first * self.row  # step t+1 from row `first` on
                self._feed_back(m, sums, "W", da_first, J, block, WT)
                for i, v in vectors:
                    j, inner = divmod(v, self.vectors)
                    unit = place(i, v, row)
                    # The gates of its unit block, and their gradients.
                    gate = block * j + (first * self.row + i * self.row)
                    offsets = self.of_gates(inner)
                    *bars, dc_before = backward(
                        m.get(sums[i][v]),
                        m.load(dc + unit),
                        *(m.load(a + gate + o) for o in offsets),
                        m.load(c + unit),
                        m.load(c_new + unit),
                    )
                    for o, bar in zip(offsets, bars, strict=True):
                        m.store(da + gate + o, bar)
                    m.store(dc + unit, dc_before)

            m.tiles(rows, registers.tile_rows(self.wide_vectors), tile)

        return back

    def through(self, matrix):
        """out = da M^T for a wide unit block: the gradient of what M multiplied, U or
        W.
        """

        def through(m, rows, da, J, block, MT, out, row):
            zero, vectors = m.constant(0.0), range(self.wide_vectors)

            def tile(first, count):
                sums = [[m.variable(zero) for _ in vectors] for _ in range(count)]
                da_first = da + first * self.row  # from row `first` on
                self._feed_back(m, sums, matrix, da_first, J, block, MT)
                for i, v in product(range(count), vectors):
                    out_i = out + first * row + i * row  # row first + i
                    m.store(out_i + v * self.vector_bytes, m.get(sums[i][v]))

            m.tiles(rows, registers.tile_rows(self.wide_vectors), tile)

        through.__name__ = f"through_{matrix}"
        return through

    def few(self):
        """out = da U^T for a few inputs, a dot product for each: `through` would
        compute a wide unit block of inputs, nearly all of them padding. U: packed.
        """
        fed = self.offsets("U")

        def few(m, rows, D, da, J, block, U, U_block, out, row):
            zero = m.constant(0.0)

            def tile(first, count):
                def one_input(d):
                    sums = [m.variable(zero) for _ in range(count)]

                    def one_block(j):
                        # Unit block j from row `first` on, and of input d.
                        a = da + j * block + first * self.row
                        u = U + j * U_block + d * len(fed) * self.vector_bytes
                        for n, o in enumerate(fed):  # vectors
                            u_n = m.load_aligned(u + n * self.vector_bytes)
                            for i, total in enumerate(sums):  # rows
                                a_n = m.load(a + (i * self.row + o))
                                m.set(total, m.fma(a_n, u_n, m.get(total)))

                    m.loop(J, one_block)
                    for i, total in enumerate(sums):
                        out_i = out + first * row + i * row  # row first + i
                        place = out_i + d * self.dtype.itemsize
                        m.store_number(place, m.total(m.get(total)))

                m.loop(D, one_input)

            m.tiles(rows, 4, tile)

        return few

    def gradient(self, matrix):
        """out += rate z^T da for a unit block of a packed matrix, over `count` rows of
        z and da.

        Rows of the tile are rows of the matrix, whose inputs lie `step` bytes apart in
        a row of z, and `z_row` from sample to sample. b: a weight whose input is 1.
        """
        offsets = self.offsets(matrix)
        width = len(offsets) * self.vector_bytes  # bytes of a row of the matrix

        def gradient(m, rows, z, step, z_row, count, da, out, rate):
            zero = m.constant(0.0)

            def tile(first, height):
                sums = [[m.variable(zero) for _ in offsets] for _ in range(height)]
                z_first = z + first * step  # what row `first` multiplied, sample 0
                da_of = da, self.row, count, offsets
                self.multiply(m, sums, z_first, step, z_row, *da_of, ahead=64)
                for i, n in product(range(height), range(len(offsets))):
                    place = out + first * width + (i * width + n * self.vector_bytes)
                    m.store(place, m.fma(rate, m.get(sums[i][n]), m.load(place)))

            m.tiles(rows, registers.tile_rows(len(offsets)), tile)

        gradient.__name__ = f"gradient_{matrix}"
        return gradient

    def transpose(self):
        """Squares of lanes x lanes: out[c][r] = a[r][c], for `count` squares along a
        row of a.
        """
        lanes = self.lanes

        def transpose(m, count, a, a_row, out, out_row):
            def square(s):
                begin = a + s * self.vector_bytes  # vector s of each of the rows
                rows = [m.load(begin + r * a_row) for r in range(lanes)]
                # A perfect shuffle of rows, log2 times
                for _ in range(lanes.bit_length() - 1):
                    pairs = zip(rows[: lanes // 2], rows[lanes // 2 :], strict=True)
                    rows = [half for x, y in pairs for half in m.interleave(x, y)]
                for c, column in enumerate(rows):
                    m.store(out + (s * lanes + c) * out_row, column)

            m.loop(count, square)

        return transpose


# Tiles by their address, for compiled code: those of every cell are called alike.
_TILES = Tiles(CELLS["rnn"], np.dtype(np.float32), 1).all()
inputs = simd.caller(_TILES["inputs"])
step = simd.caller(_TILES["step"])
whole = simd.caller(_TILES["whole"])
back = simd.caller(_TILES["back"])
through = simd.caller(_TILES["through_U"])
few = simd.caller(_TILES["few"])
gradient = simd.caller(_TILES["gradient_U"])
transpose = simd.caller(_TILES["transpose"])

# Tiles that differ where the gates are kept for a backward pass.
_KEEPING = ("step", "whole")


@cache
def _code(tiles, name, keep):
    label = f"{tiles.name}_{keep}" if name in _KEEPING else tiles.name
    return simd.compiled(tiles.all(keep)[name], tiles.dtype, tiles.lanes, label)


def codes(tiles, *names, keep=True):
    """The addresses of tiles' machine code, by name; each is compiled when first asked
    for.
    """
    return {
        name: _code(tiles.form(name), name, keep or name not in _KEEPING)
        for name in names
    }
