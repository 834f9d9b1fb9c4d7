"""The register tiles of `numba-fused`: a matrix product, and what becomes of its sums.

All arguments are addresses, strides in bytes and counts: `rows` samples, or rows (t, sample);
`row`, `x_row`, `dh_row`: from sample to sample of h and c, x, dh; `blocks` unit blocks of
gradients, `block` from one to the next. A tile checks nothing (its callers' records are tested with
`checked.Checked`, which does).
"""

from itertools import product

from . import activations, registers
from .layout import Layout


class Tiles(Layout):
    """The tiles of a cell, for float32 or float64 and a network of `hidden` units."""

    def form(self, name):
        """What the code of a tile depends on: networks of many sizes share it."""
        wide = name in ("back", "through_U", "through_W") or len(self.cell.gates) == 1
        return Tiles(self.cell, self.dtype, self.wide_units if wide else 4 * self.lanes)

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

    def multiply(self, m, sums, A, row, k_stride, B, B_row, count, offsets=None, ahead=None):
        """sums[i][n] += sum over k < count of A[i, k] * B[k, n]: the loop all time is spent in.

        Rows of B are whole vectors, aligned: packed, or gradients. Of the operands of a k the fewer
        stay in registers while the others come one at a time: 3 rows of 4 vectors take 12 + 3 + 1
        registers, and 12 + 4 + 1 the other way would be one more than AVX2 has. ahead: bytes from
        A[0, k] to what is fetched for later. Where k is a sample, numbers of A lie a row apart,
        further than the CPU's own prefetcher looks.
        """
        offsets = offsets or [n * self.vector_bytes for n in range(len(sums[0]))]

        def multiply(k):
            if ahead is not None:
                m.prefetch(A + k * k_stride + ahead)  # A[0, some k later]
            number = lambda i: m.broadcast(A + k * k_stride + i * row)  # noqa: E731 - A[i, k]
            vector = lambda n: m.load_aligned(B + k * B_row + offsets[n])  # noqa: E731 - B[k, n]
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

    def _feed(self, m, sums, matrix, A, A_row, count, B):
        """Add A B to the sums of the gates that a packed matrix feeds; sums: by offset, of rows."""
        fed = self.offsets(matrix)
        chosen = [[row_sums[o] for o in fed] for row_sums in sums]
        self.multiply(
            m, chosen, A, A_row, self.dtype.itemsize, B, len(fed) * self.vector_bytes, count
        )

    def _feed_back(self, m, sums, matrix, da, blocks, block, MT):
        """Add da M^T to sums of a wide unit block: over the unit blocks of gradients, and in each
        over the gates that M feeds.
        """
        runs, line = (
            self.runs(matrix),
            self.wide_units * self.dtype.itemsize,
        )  # bytes of a row of M^T
        width = sum(units for _, units in runs)

        def one_block(j):
            done = 0
            for first, units in runs:
                a = (
                    da + j * block + first * self.dtype.itemsize
                )  # unit block j of row 0, from the run on
                b = MT + (j * width + done) * line  # the row of M^T that it begins with
                self.multiply(m, sums, a, self.row, self.dtype.itemsize, b, line, units)
                done += units

        m.loop(blocks, one_block)

    def inputs(self):
        """a = b + x U for a unit block, of D inputs."""
        fed = self.offsets("U")
        left = [o for o in self.offsets("b") if o not in fed]

        def inputs(m, rows, x, x_row, D, U, b, a):
            def tile(first, count):
                sums = [{o: m.variable(m.load(b + o)) for o in fed} for _ in range(count)]
                self._feed(m, sums, "U", x + first * x_row, x_row, D, U)  # x from row `first` on
                for i in range(count):
                    a_i = a + first * self.row + i * self.row  # row first + i
                    for o, total in sums[i].items():
                        m.store(a_i + o, m.get(total))
                    for o in left:  # fed by W alone
                        m.store(a_i + o, m.load(b + o))

            m.tiles(rows, registers.tile_rows(len(fed)), tile)

        return inputs

    def step(self, keep):
        """a + h_prev W, then the cell while the sums are in registers.

        h, c: this unit block in the row of the first sample, before the step and after. h_all: the
        whole rows of h_prev, H of them counted. keep: store the gates over a.
        """
        fed = self.offsets("W")

        def step(m, rows, h_all, row, H, W, a, c_prev, c, h):
            def tile(first, count):
                a_first, starts = a + first * self.row, range(0, count * self.row, self.row)
                sums = [{o: m.variable(m.load(a_first + (i + o))) for o in fed} for i in starts]
                self._feed(m, sums, "W", h_all + first * row, row, H, W)  # h_prev from `first` on
                self.apply(m, sums, keep, a_first, row, c_prev, c, h, first)

            m.tiles(rows, registers.tile_rows(len(fed)), tile)

        return step

    def whole(self, keep):
        """b + x U + h_prev W, then the cell: a step whose pre-activations are never stored.

        Arguments as of `inputs` and `step`; `a` takes the gates.
        """
        every = self.offsets("b")

        def whole(m, rows, x, x_row, D, U, b, h_all, row, H, W, a, c_prev, c, h):
            def tile(first, count):
                sums = [{o: m.variable(m.load(b + o)) for o in every} for _ in range(count)]
                self._feed(m, sums, "U", x + first * x_row, x_row, D, U)  # x from row `first` on
                self._feed(m, sums, "W", h_all + first * row, row, H, W)  # h_prev from `first` on
                self.apply(m, sums, keep, a + first * self.row, row, c_prev, c, h, first)

            m.tiles(rows, registers.tile_rows(len(every)), tile)

        return whole

    def apply(self, m, sums, keep, a, row, c_prev, c, h, first):
        """The cell on finished sums; pre-activations that are not among them are in a."""
        forward, _ = self.cell.make(*activations.functions(m))
        for (i, row_sums), v in product(enumerate(sums), range(self.vectors)):
            a_i = a + i * self.row  # gates of row first + i
            unit = first * row + i * row + v * self.vector_bytes  # vector v of its units in h and c
            offsets = self.of_gates(v)
            bars = [m.get(row_sums[o]) if o in row_sums else m.load(a_i + o) for o in offsets]
            *gates, h_new, c_new = forward(*bars, m.load(c_prev + unit))
            m.store(h + unit, h_new)
            if c_new is not h_new:
                m.store(c + unit, c_new)
            if keep:
                for o, gate in zip(offsets, gates, strict=True):
                    m.store(a_i + o, gate)

    def back(self):
        """dy + dh + da_next W^T, then the cell backwards while the sums are in registers.

        da_next: gradients of step t+1; no blocks at the last step. gates, da: those of step t, from
        this wide unit block's first unit block on. dy, dh, dc, c_prev, c: this wide unit block; dc
        is read and written over.
        """

        def back(
            m, rows, da_next, blocks, block, WT, dy, dh, dh_row, row, gates, da, dc, c_prev, c
        ):
            _, backward = self.cell.make(*activations.functions(m))

            def tile(first, count):
                def unit(i, v, row):
                    return first * row + (
                        i * row + v * self.vector_bytes
                    )  # vector v of row first + i

                def sum_of(i, v):
                    return m.variable(
                        m.load(dy + unit(i, v, row)) + m.load(dh + unit(i, v, dh_row))
                    )

                vectors = range(self.wide_vectors)
                sums = [[sum_of(i, v) for v in vectors] for i in range(count)]
                da_first = da_next + first * self.row  # step t+1 from row `first` on
                self._feed_back(m, sums, "W", da_first, blocks, block, WT)
                for i, v in product(range(count), vectors):
                    j, inner = divmod(v, self.vectors)
                    here, there = unit(i, v, row), block * j + (first * self.row + i * self.row)
                    offsets = self.of_gates(inner)
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
        """out = da M^T for a wide unit block: the gradient of what M multiplied, U or W."""

        def through(m, rows, da, blocks, block, MT, out, row):
            zero, vectors = m.constant(0.0), range(self.wide_vectors)

            def tile(first, count):
                sums = [[m.variable(zero) for _ in vectors] for _ in range(count)]
                da_first = da + first * self.row  # from row `first` on
                self._feed_back(m, sums, matrix, da_first, blocks, block, MT)
                for i, v in product(range(count), vectors):
                    place = (
                        out + first * row + i * row + v * self.vector_bytes
                    )  # row first + i, vector v
                    m.store(place, m.get(sums[i][v]))

            m.tiles(rows, registers.tile_rows(self.wide_vectors), tile)

        through.__name__ = f"through_{matrix}"
        return through

    def few(self):
        """out = da U^T for a few inputs: a dot product for each, along the gates of all blocks.

        `through` would compute a wide unit block of inputs, nearly all of them padding. U: packed,
        row by row.
        """
        fed = self.offsets("U")

        def few(m, rows, D, da, blocks, block, U, U_block, out, row):
            zero = m.constant(0.0)

            def tile(first, count):
                def one_input(d):
                    sums = [m.variable(zero) for _ in range(count)]

                    def one_block(j):
                        a = da + j * block + first * self.row  # unit block j from row `first` on
                        u = (
                            U + j * U_block + d * len(fed) * self.vector_bytes
                        )  # its weights of input d
                        for n, o in enumerate(fed):
                            u_n = m.load_aligned(u + n * self.vector_bytes)  # the n-th vector fed
                            for i, total in enumerate(sums):
                                a_n = m.load(a + (i * self.row + o))  # its gradients, row first + i
                                m.set(total, m.fma(a_n, u_n, m.get(total)))

                    m.loop(blocks, one_block)
                    for i, total in enumerate(sums):
                        place = (
                            out + first * row + i * row + d * self.dtype.itemsize
                        )  # row first + i, d
                        m.store_number(place, m.total(m.get(total)))

                m.loop(D, one_input)

            m.tiles(rows, 4, tile)

        return few

    def gradient(self, matrix):
        """out += rate z^T da for a unit block of a packed matrix, over `count` rows of z and da.

        Rows of the tile are rows of the matrix: the number of z that one of them multiplied, `step`
        bytes from row to row and `z_row` from sample to sample. b: a weight whose input is 1.
        """
        offsets = self.offsets(matrix)
        width = len(offsets) * self.vector_bytes  # bytes of a row of the matrix

        def gradient(m, rows, z, step, z_row, count, da, out, rate):
            zero = m.constant(0.0)

            def tile(first, height):
                sums = [[m.variable(zero) for _ in offsets] for _ in range(height)]
                z_first = z + first * step  # what row `first` multiplied, sample 0
                self.multiply(m, sums, z_first, step, z_row, da, self.row, count, offsets, ahead=64)
                for i, n in product(range(height), range(len(offsets))):
                    place = (
                        out + first * width + (i * width + n * self.vector_bytes)
                    )  # row first + i
                    m.store(place, m.fma(rate, m.get(sums[i][n]), m.load(place)))

            m.tiles(rows, registers.tile_rows(len(offsets)), tile)

        gradient.__name__ = f"gradient_{matrix}"
        return gradient

    def transpose(self):
        """Squares of lanes x lanes: out[c][r] = a[r][c], for `count` squares along a row of a."""
        lanes = self.lanes

        def transpose(m, count, a, a_row, out, out_row):
            def square(s):
                # Vector s of each of the rows.
                rows = [m.load(a + s * self.vector_bytes + r * a_row) for r in range(lanes)]
                for _ in range(lanes.bit_length() - 1):  # a perfect shuffle of rows, log2 times
                    pairs = zip(rows[: lanes // 2], rows[lanes // 2 :], strict=True)
                    rows = [half for x, y in pairs for half in m.interleave(x, y)]
                for c, column in enumerate(rows):
                    m.store(out + (s * lanes + c) * out_row, column)  # the row of column c

            m.loop(count, square)

        return transpose
