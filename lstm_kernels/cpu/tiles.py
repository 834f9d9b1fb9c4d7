"""The register tiles of `numba-fused`: a matrix product, and what becomes of its sums.

Arguments are addresses, strides in bytes and counts: `rows` samples, or rows (t,
sample); `row`, `x_row`, `dh_row`: from sample to sample of h and c, x, dh; `blocks`
unit blocks of gradients, `block` from one to the next. A tile checks nothing; the tests
run its callers with tiles that do.
"""

from dataclasses import replace
from itertools import product

from . import activations
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
            **{name: self.forward(name, keep) for name in ("inputs", "step", "whole")},
            "single": self.single(keep),
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
        spent in; k counts words, each one number or, in bfloat16, two.

        Rows of B are whole vectors, aligned. Of the operands of a k the fewer stay in registers:
        3 rows of 4 vectors take 12 + 3 + 1, and 12 + 4 + 1 would be one more than AVX2 has. ahead:
        bytes from A[0, k] to what is prefetched, where k is a sample, too far for the CPU's own.
        """
        offsets = offsets or [n * self.vector_bytes for n in range(len(sums[0]))]

        def multiply(k):
            if ahead is not None:
                m.prefetch(A + k * k_stride + ahead)  # A[0, some k later]

            def number(i):
                return self.operand(
                    m, m.broadcast(A + k * k_stride + i * row)
                )  # A[i, k]

            def vector(n):
                return self.operand(
                    m, m.load_aligned(B + k * B_row + offsets[n])
                )  # B[k, n]

            rows, columns = range(len(sums)), range(len(offsets))
            if len(rows) < len(columns):
                a = [number(i) for i in rows]
                pairs = (
                    (i, n, a[i], b_n)
                    for n in columns
                    for b_n in [vector(n)]
                    for i in rows
                )
            else:
                b = [vector(n) for n in columns]
                pairs = (
                    (i, n, a_i, b[n])
                    for i in rows
                    for a_i in [number(i)]
                    for n in columns
                )
            for i, n, a_i, b_n in pairs:
                m.set(sums[i][n], self.product(m, a_i, b_n, m.get(sums[i][n])))

        # One row waits for what it loads: with two k at a time there are fewer
        # instructions around.
        if len(sums) == 1:
            m.tiles(count, 2, lambda first, n: [multiply(first + i) for i in range(n)])
        else:
            m.loop(count, multiply)

    def operand(self, m, word):
        """What is in registers of an operand that lies in memory as a word."""
        return word

    def product(self, m, a, b, total):
        """total + a b."""
        return m.fma(a, b, total)

    def store_operand(self, m, address, vector):
        """Store numbers as operands of products."""
        m.store(address, vector)

    def keep_h(self, m, kept, first, i, v, h):
        """Store vector v of row first + i of h once more, where operands are not h
        itself.
        """

    def _feed(self, m, sums, matrix, A, A_row, count, B):
        """Add A B to the sums of the gates that a packed matrix feeds; sums: by offset,
        of rows.
        """
        fed = self.offsets(matrix)
        chosen = [[row_sums[o] for o in fed] for row_sums in sums]
        self.multiply(
            m,
            chosen,
            A,
            A_row,
            self.dtype.itemsize,
            B,
            len(fed) * self.vector_bytes,
            count,
        )

    def _feed_back(self, m, sums, matrix, da, blocks, block, MT):
        """Add da M^T to sums of a wide unit block: over the unit blocks of gradients,
        and in each over the gates that M feeds.
        """
        runs, line = (
            self.runs(matrix),
            self.wide_units * self.dtype.itemsize,
        )  # of a row of M^T
        width = sum(words for _, words in runs)

        def one_block(j):
            done = 0
            for first, words in runs:
                a = (
                    da + j * block + first * self.dtype.itemsize
                )  # row 0 of block j, the run
                b = MT + (j * width + done) * line  # the row of M^T that it begins with
                self.multiply(
                    m, sums, a, self.da_row, self.dtype.itemsize, b, line, words
                )
                done += words

        m.loop(blocks, one_block)

    def forward(self, name, keep=True):
        """A forward step of a unit block, or one of the two halves of it.

        "inputs": a = b + x U of D inputs, for the rows of some steps. "step": a +
        h_prev W, then the cell while the sums are in registers. "whole": both, and the
        pre-activations are never stored. h, c: this unit block in the row of the first
        sample, before the step and after. h_all: the whole rows of h_prev as operands,
        H words of them counted; kept: this unit block of h as an operand, where that is
        not h itself; rows of both h_row apart. keep: store the gates in a.
        """
        every = self.offsets("b")
        fed = self.offsets({"inputs": "U", "step": "W", "whole": "b"}[name])

        def whole(
            m, rows, x, x_row, D, U, b, h_all, h_row, H, W, a, c_prev, c, h, row, kept
        ):
            def tile(first, count):
                a_rows = [
                    a + first * self.row + i * self.row for i in range(count)
                ]  # first + i
                begins = a_rows if name == "step" else [b] * count
                sums = [
                    {o: m.variable(m.load(begin + o)) for o in fed} for begin in begins
                ]
                if name != "step":
                    self._feed(
                        m, sums, "U", x + first * x_row, x_row, D, U
                    )  # x from `first` on
                if name != "inputs":
                    self._feed(
                        m, sums, "W", h_all + first * h_row, h_row, H, W
                    )  # h_prev, the same
                    self.apply(
                        m,
                        sums,
                        keep,
                        a_rows[0],
                        row,
                        c_prev,
                        c,
                        h,
                        first,
                        (kept, h_row),
                    )
                    return
                for row_sums, a_i in zip(sums, a_rows, strict=True):
                    for o in every:  # what is fed by W alone begins with b
                        m.store(
                            a_i + o,
                            m.get(row_sums[o]) if o in row_sums else m.load(b + o),
                        )

            m.tiles(rows, self.tile_rows(len(fed)), tile)

        # A half takes its own arguments alone: with few samples, passing the others
        # takes long.
        def inputs(m, rows, x, x_row, D, U, b, a):
            whole(m, rows, x, x_row, D, U, b, *[None] * 4, a, *[None] * 5)

        def step(m, rows, h_all, h_row, H, W, a, c_prev, c, h, row, kept):
            whole(m, rows, *[None] * 5, h_all, h_row, H, W, a, c_prev, c, h, row, kept)

        return {"inputs": inputs, "step": step, "whole": whole}[name]

    def single(self, keep=True):
        """A forward step of one row z of N numbers, all unit blocks in one call: a = b
        + z W, then the cell, with the bits of "whole". One sample waits for its
        weights: here one stream.

        b, a, c_prev, c, h: of unit block 0.
        """
        fed, units = self.offsets("W"), self.units * self.dtype.itemsize

        def single(m, blocks, z, N, W, W_block, b, a, a_block, c_prev, c, h):
            def one_block(j):
                sums = {o: m.variable(m.load(b + j * self.row + o)) for o in fed}
                self._feed(m, [sums], "W", z, 0, N, W + j * W_block)  # block j
                places = [place + j * units for place in (c_prev, c, h)]  # its units
                self.apply(m, [sums], keep, a + j * a_block, 0, *places, 0)

            m.loop(blocks, one_block)

        return single

    def apply(self, m, sums, keep, a, row, c_prev, c, h, first, kept=None):
        """The cell on finished sums; pre-activations that are not among them are in a.
        kept: where operands of h go, and the bytes from row to row of them.
        """
        forward, _ = self.cell.make(*activations.functions(m))
        for (i, row_sums), v in product(enumerate(sums), range(self.vectors)):
            a_i = a + i * self.row  # gates of row first + i
            unit = (
                first * row + i * row + v * self.vector_bytes
            )  # vector v of its units in h and c
            offsets = self.of_gates(v)
            bars = [
                m.get(row_sums[o]) if o in row_sums else m.load(a_i + o)
                for o in offsets
            ]
            *gates, h_new, c_new = forward(*bars, m.load(c_prev + unit))
            m.store(h + unit, h_new)
            self.keep_h(m, kept, first, i, v, h_new)
            if c_new is not h_new:
                m.store(c + unit, c_new)
            if keep:
                for o, gate in zip(offsets, gates, strict=True):
                    m.store(a_i + o, gate)

    def back(self, source=None):
        """dy + dh + da_next W^T, then the cell backwards while the sums are in
        registers.

        source: the Tiles of da_next and W where they are another layer's; with as wide
        blocks.

        da_next: gradients of step t+1; no blocks at the last step; block: from one of
        their unit blocks to the next. gates, da: those of step t, from this wide unit
        block's first unit block on. dy, dh, dc, c_prev, c: this wide unit block; dc is
        read and written over.
        """

        def back(
            m,
            rows,
            da_next,
            blocks,
            block,
            WT,
            dy,
            dh,
            dh_row,
            row,
            gates,
            da,
            dc,
            c_prev,
            c,
        ):
            _, backward = self.cell.make(*activations.functions(m))
            before = source or self

            def tile(first, count):
                def place(i, v, row):  # of row first + i, vector v
                    return first * row + (i * row + v * self.vector_bytes)

                places = [*product(range(count), range(self.wide_vectors))]
                sums = [[None] * self.wide_vectors for _ in range(count)]
                for i, v in places:
                    dh_i = m.load(dh + place(i, v, dh_row))
                    sums[i][v] = m.variable(m.load(dy + place(i, v, row)) + dh_i)
                da_first = (
                    da_next + first * before.da_row
                )  # step t+1 from row `first` on
                before._feed_back(m, sums, "W", da_first, blocks, block, WT)
                for i, v in places:
                    j, inner = divmod(v, self.vectors)
                    unit = place(i, v, row)
                    # Its unit block's gates, and their gradients.
                    gate = block * (j * self.numbers) + (
                        first * self.row + i * self.row
                    )
                    d_gate = block * j + (first * self.da_row + i * self.da_row)
                    offsets = self.of_gates(inner)
                    *bars, dc_prev = backward(
                        m.get(sums[i][v]),
                        m.load(dc + unit),
                        *(m.load(gates + gate + o) for o in offsets),
                        m.load(c_prev + unit),
                        m.load(c + unit),
                    )
                    for o, bar in zip(offsets, bars, strict=True):
                        self.store_operand(m, da + d_gate + o // self.numbers, bar)
                    m.store(dc + unit, dc_prev)

            m.tiles(rows, self.tile_rows(self.wide_vectors), tile)

        return back

    def through(self, matrix):
        """out = da M^T for a wide unit block: the gradient of what M multiplied, U or
        W.
        """

        def through(m, rows, da, blocks, block, MT, out, row):
            zero, vectors = m.constant(0.0), range(self.wide_vectors)

            def tile(first, count):
                sums = [[m.variable(zero) for _ in vectors] for _ in range(count)]
                da_first = da + first * self.da_row  # from row `first` on
                self._feed_back(m, sums, matrix, da_first, blocks, block, MT)
                for i, v in product(range(count), vectors):
                    out_i = out + first * row + i * row  # row first + i
                    m.store(out_i + v * self.vector_bytes, m.get(sums[i][v]))

            m.tiles(rows, self.tile_rows(self.wide_vectors), tile)

        through.__name__ = f"through_{matrix}"
        return through

    def few(self):
        """out = da U^T for a few inputs, a dot product for each: `through` would
        compute a wide unit block of inputs, nearly all of them padding. U: packed.
        """
        fed = self.offsets("U")

        def few(m, rows, D, da, blocks, block, U, U_block, out, row):
            zero = m.constant(0.0)

            def tile(first, count):
                def one_input(d):
                    sums = [m.variable(zero) for _ in range(count)]

                    def one_block(j):
                        a = (
                            da + j * block + first * self.row
                        )  # unit block j from row `first` on
                        u = (
                            U + j * U_block + d * len(fed) * self.vector_bytes
                        )  # of input d
                        for n, o in enumerate(fed):
                            u_n = m.load_aligned(
                                u + n * self.vector_bytes
                            )  # the n-th vector fed
                            for i, total in enumerate(sums):
                                a_n = m.load(
                                    a + (i * self.row + o)
                                )  # its gradients, row first + i
                                m.set(total, m.fma(a_n, u_n, m.get(total)))

                    m.loop(blocks, one_block)
                    for i, total in enumerate(sums):
                        out_i = out + first * row + i * row  # row first + i
                        m.store_number(
                            out_i + d * self.dtype.itemsize, m.total(m.get(total))
                        )

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
                self.multiply(
                    m,
                    sums,
                    z_first,
                    step,
                    z_row,
                    da,
                    self.row,
                    count,
                    offsets,
                    ahead=64,
                )
                for i, n in product(range(height), range(len(offsets))):
                    place = (
                        out + first * width + (i * width + n * self.vector_bytes)
                    )  # first + i
                    m.store(place, m.fma(rate, m.get(sums[i][n]), m.load(place)))

            m.tiles(rows, self.tile_rows(len(offsets)), tile)

        gradient.__name__ = f"gradient_{matrix}"
        return gradient

    def transpose(self):
        """Squares of lanes x lanes: out[c][r] = a[r][c], for `count` squares along a
        row of a.
        """
        lanes = self.lanes

        def transpose(m, count, a, a_row, out, out_row):
            def square(s):
                # Vector s of each of the rows.
                rows = [
                    m.load(a + s * self.vector_bytes + r * a_row) for r in range(lanes)
                ]
                for _ in range(
                    lanes.bit_length() - 1
                ):  # a perfect shuffle of rows, log2 times
                    pairs = zip(rows[: lanes // 2], rows[lanes // 2 :], strict=True)
                    rows = [half for x, y in pairs for half in m.interleave(x, y)]
                for c, column in enumerate(rows):
                    m.store(
                        out + (s * lanes + c) * out_row, column
                    )  # the row of column c

            m.loop(count, square)

        return transpose
