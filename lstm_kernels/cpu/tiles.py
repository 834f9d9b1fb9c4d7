"""The register tiles of `numba-fused`: matrix products, and what becomes of their sums.

A tile keeps rows x vectors of sums in registers. It is traced from these loops by a
machine `m` (`simd.py`). Arguments are addresses, strides in bytes and counts: `rows`
samples, or rows (t, sample); `row`, `x_row`: from sample to sample of h and c, of x; J
unit blocks of gradients, `block` from one to the next. A tile checks nothing; the tests
run its callers with tiles that do.
"""

from copy import copy
from dataclasses import replace
from functools import cache, partial
from itertools import product

import numpy as np

from ..cells import CELLS
from . import activations, registers, simd
from .layout import Layout


class Rows:
    """An operand in memory: rows of numbers, `row` bytes apart, from the first one's
    address. chosen: which vectors of a row it has; None is all.
    """

    def __init__(self, m, address, row, chosen=None):
        self.m, self.address, self.row, self.chosen = m, address, row, chosen
        self.size, self.stride = m.dtype.itemsize, row  # stride: from row to row
        self.vector_bytes = m.lanes * self.size

    def __getitem__(self, first):
        """The rows from one on."""
        found = copy(self)
        found.address = self.address + first * self.stride
        return found

    def of(self, first, count):
        """What a group of samples, from `first` on, has of it."""
        return self[first]

    def number(self, down, k):
        """Number k of the row that begins `down` bytes below, in every lane."""
        return self.m.broadcast(self.address + k * self.size + down)

    def _place(self, i, n):
        n = n if self.chosen is None else self.chosen[n]
        return self.address + i * self.row + n * self.vector_bytes

    def vector(self, i, n):
        """Vector n of row i."""
        return self.m.load(self._place(i, n))

    def put(self, i, n, vector):
        self.m.store(self._place(i, n), vector)


class Panel(Rows):
    """Rows of whole vectors, aligned: packed weights."""

    def of(self, first, count):
        return self

    def vector(self, i, n):
        return self.m.load_aligned(self._place(i, n))


class Columns(Rows):
    """The transpose of rows whose numbers are `step` bytes apart. Far ahead of what is
    read it is fetched: further than the CPU does by itself.
    """

    def __init__(self, m, address, row, step):
        super().__init__(m, address, row)
        self.stride = step

    def number(self, down, k):
        place = self.address + k * self.row + down
        if isinstance(down, int):  # of row 0
            self.m.prefetch(place + 64)
        return self.m.broadcast(place)


class Gates(Rows):
    """Gates of the unit blocks of a wide one, `block` bytes apart, as rows of gates of
    that.
    """

    def __init__(self, m, address, row, block, tiles):
        super().__init__(m, address, row)
        self.block, self.tiles = block, tiles

    def _place(self, i, n):
        gate, v = divmod(n, self.tiles.wide_vectors)
        j, v = divmod(v, self.tiles.vectors)
        n = gate * self.tiles.vectors + v  # of unit block j
        return self.address + j * self.block + i * self.row + n * self.vector_bytes


def begun(m, z, rows, columns):
    """Sums in registers that begin with an operand."""
    return [[m.variable(z.vector(i, n)) for n in columns] for i in rows]


def put(m, sums, out):
    """Store sums."""
    for i, row in enumerate(sums):
        for n, total in enumerate(row):
            out.put(i, n, m.get(total))


def multiply(m, sums, A, count, B):
    """sums[i][n] += sum over k < count of A[i, k] B[k, n]: the loop all time is spent
    in.

    Of the operands of a k the fewer stay in registers, and come first: 3 rows of 4
    vectors take 12 + 3 + 1, and 12 + 4 + 1 would be one more than AVX2 has. Two k at a
    time halve the counting, which takes turns with the multiply-adds (4 % with AVX2, 3
    % with AVX-512, Xeon of 2023). Taller tiles need the registers for addresses, and so
    do products that are not fused; a long row's sums would be moved to and fro.
    """
    rows, columns = range(len(sums)), range(len(sums[0]))
    pairs = [(i, n) for i in rows for n in columns]
    if len(rows) < len(columns):
        pairs = [(i, n) for n in columns for i in rows]
    fused, long = registers.vector_registers().fused, len(columns) > 8
    twice = not long if len(rows) == 1 else fused and len(columns) >= 4
    down = [0]  # bytes to each row; an address takes 2, 4 or 8 times a register
    for i in rows[1:]:
        down.append(m.apart(i * A.stride) if i % 2 else down[i // 2] * 2)
    for first, some in m.groups(count, 2 if twice else 1):
        for k in (first + step for step in range(some)):
            a, b = cache(partial(A.number, k=k)), cache(partial(B.vector, k))
            few, those = (a, down) if len(rows) < len(columns) else (b, columns)
            for one in those:
                few(one)
            for i, n in pairs:
                m.set(sums[i][n], m.fma(a(down[i]), b(n), m.get(sums[i][n])))


class Tiles(Layout):
    """The tiles of a cell, for float32 or float64 and a network of `hidden` units."""

    def form(self, name):
        """What the code of a tile depends on: networks of many sizes share it."""
        wide = name in ("backward", "through_U", "through_W")
        wide = wide or len(self.cell.gates) == 1
        hidden = self.wide_units if wide else 4 * self.lanes
        return replace(self, hidden=hidden, wide_vectors=None)

    def all(self, keep=True):
        """Every tile by its name; keep: does the forward step keep the gates?"""
        return {
            "inputs": self.inputs(),
            "forward": self.forward(keep),
            "backward": self.backward(),
            **{f"through_{m}": self.through(m) for m in "UW"},
            "few": self.few(),
            **{f"gradient_{m}": self.gradient(m) for m in "UWb"},
            "transpose": self.transpose(),
        }

    def _weights(self, m, matrix, address):
        """A packed matrix of a unit block."""
        return Panel(m, address, len(self.columns(matrix)) * self.vector_bytes)

    def _fed(self, sums, matrix):
        """Of sums of a unit block those that a matrix feeds."""
        return [[row[n] for n in self.columns(matrix)] for row in sums]

    def inputs(self):
        """a = b + x U of a unit block, for the rows of some steps."""
        vectors, height = range(len(self.columns("b"))), self.tile_rows("b")

        def inputs(m, rows, x, x_row, D, U, b, a):
            x, a, b = Rows(m, x, x_row), Rows(m, a, self.row), Rows(m, b, 0)
            U = self._weights(m, "U", U)
            for first, count in m.groups(rows, height):
                sums = begun(m, b, range(count), vectors)
                multiply(m, self._fed(sums, "U"), x[first], D, U)
                put(m, sums, a[first])

        return inputs

    def forward(self, keep=True):
        """begin + x U + h W of a unit block, then the cell while the sums are in
        registers.

        begin: the bias, 0 bytes from row to row, or where the inputs were multiplied
        before. x, h: whole rows, of which D and H numbers are counted. c, c_new, h_new:
        this unit block in the row of the first sample, before the step and after. keep:
        store the gates in a.
        """
        height = self.tile_rows("b")

        def forward(
            m, rows, begin, begin_row, x, x_row, D, U, h, H, W, a, c, c_new, h_new, row
        ):
            begin, x, a = (
                Rows(m, begin, begin_row),
                Rows(m, x, x_row),
                Rows(m, a, self.row),
            )
            h, c, c_new, h_new = (Rows(m, z, row) for z in (h, c, c_new, h_new))
            U, W = self._weights(m, "U", U), self._weights(m, "W", W)
            products = begin, x, D, U, h, H, W
            self._step(m, rows, height, products, keep, a, c, c_new, h_new)

        return forward

    def _step(self, m, count, most, products, *kept):
        """A forward step, for groups of up to `most` of `count` samples."""
        for group in m.groups(count, most):
            self._apply(m, group, self._multiplied(m, group, *products), *kept)

    def _multiplied(self, m, group, begin, x, D, U, h, H, W):
        """The sums of a group (first, count) of samples."""
        rows, columns, _ = self._sums(group[1])
        begin, x, U, h, W = (z.of(*group) for z in (begin, x, U, h, W))
        sums = begun(m, begin, rows, columns)
        multiply(m, self._fed(sums, "U"), x, D, U)
        multiply(m, self._fed(sums, "W"), h, H, W)
        return sums

    def _apply(self, m, group, sums, keep, a, c, c_new, h_new):
        """The cell on finished sums; keep: store the gates in a."""
        cell, _ = self.cell.make(*activations.functions(m))
        a, c, c_new, h_new = (z.of(*group) for z in (a, c, c_new, h_new))
        for i, v, gates in self._sums(group[1])[2]:
            bars = [m.get(sums[i][n]) for n in gates]
            *values, h_i, c_i = cell(*bars, c.vector(i, v))
            h_new.put(i, v, h_i)
            if c_i is not h_i:
                c_new.put(i, v, c_i)
            if keep:
                for n, value in zip(gates, values, strict=True):
                    a.put(i, n, value)

    def _sums(self, count):
        """Of `count` samples: rows and columns of their sums, and for each vector of
        units its row, its number and the columns of its gates.
        """
        rows, columns = range(count), self.columns("b")
        cells = product(rows, range(self.vectors))
        return rows, columns, [(i, v, columns[v :: self.vectors]) for i, v in cells]

    def _multiply_back(self, m, sums, matrix, da, blocks, block, MT):
        """Add da M^T to sums of a wide unit block: over the unit blocks of gradients,
        and in each over the gates that M feeds.
        """
        runs, size = self.runs(matrix), self.dtype.itemsize
        line, width = self.wide_units * size, sum(count for _, count in runs)  # of M^T
        for j in m.each(blocks):
            done = 0
            for gate, count in runs:
                A = Rows(m, da + j * block + gate * size, self.row)  # block j, the run
                B = Panel(m, MT + (j * width + done) * line, line)
                multiply(m, sums, A, count, B)
                done += count

    def backward(self):
        """begin + da_next W^T of a wide unit block, then the cell backwards while the
        sums are in registers.

        begin: gradients of h that come from above. da_next: gradients of step t+1, J
        unit blocks of them, none at the last step; block: from one to the next. a, da:
        gates and gradients of step t, from this wide unit block's first unit block on.
        dc, c, c_new: this wide unit block, c before the step and c_new after; dc is
        read and written over.
        """
        wide, height = self.wide_vectors, registers.tile_rows(self.wide_vectors)
        K = len(self.cell.gates)

        def backward(
            m, rows, begin, begin_row, da_next, J, WT, block, a, da, dc, c, c_new, row
        ):
            begin = Rows(m, begin, begin_row)
            a, da = (Gates(m, z, self.row, block, self) for z in (a, da))
            dc, c, c_new = (Rows(m, z, row) for z in (dc, c, c_new))
            for first, count in m.groups(rows, height):
                sums = begun(m, begin[first], range(count), range(wide))
                down = first * self.row  # to row `first` of a unit block
                self._multiply_back(m, sums, "W", da_next + down, J, block, WT)
                cells = product(range(count), range(wide))
                cells = [(i, v, [g * wide + v for g in range(K)]) for i, v in cells]
                self._apply_back(m, (first, count), sums, cells, a, da, dc, c, c_new)

        return backward

    def _apply_back(self, m, group, sums, cells, a, da, dc, c, c_new):
        """The cell backwards on finished sums; cells: as the last of `_sums`."""
        _, cell = self.cell.make(*activations.functions(m))
        a, da, dc, c, c_new = (z.of(*group) for z in (a, da, dc, c, c_new))
        for i, v, gates in cells:
            values = [a.vector(i, n) for n in gates]
            states = c.vector(i, v), c_new.vector(i, v)
            *bars, dc_before = cell(
                m.get(sums[i][v]), dc.vector(i, v), *values, *states
            )
            for n, bar in zip(gates, bars, strict=True):
                da.put(i, n, bar)
            dc.put(i, v, dc_before)

    def through(self, matrix):
        """out = begin + da M^T for a wide unit block: the gradient of what M
        multiplied, U or W.
        """
        wide, height = self.wide_vectors, registers.tile_rows(self.wide_vectors)

        def through(m, rows, begin, begin_row, da, J, block, MT, out, row):
            begin, out = Rows(m, begin, begin_row), Rows(m, out, row)
            for first, count in m.groups(rows, height):
                sums = begun(m, begin[first], range(count), range(wide))
                down = first * self.row
                self._multiply_back(m, sums, matrix, da + down, J, block, MT)
                put(m, sums, out[first])

        return through

    def few(self):
        """out = da U^T for a few inputs, a dot product for each: `through` would
        compute a wide unit block of inputs, nearly all of them padding. U: packed.
        """
        fed = self.columns("U")

        def few(m, rows, D, da, J, block, U, U_block, out, row):
            zero = m.constant(0.0)
            for first, count in m.groups(rows, 4):
                for d in m.each(D):
                    sums = [m.variable(zero) for _ in range(count)]
                    for j in m.each(J):
                        a = Rows(m, da + j * block, self.row, fed)[first]
                        u = self._weights(m, "U", U + j * U_block)[d]
                        for n, i in product(range(len(fed)), range(count)):
                            u_n = u.vector(0, n)
                            m.set(sums[i], m.fma(a.vector(i, n), u_n, m.get(sums[i])))
                    for i, total in enumerate(sums):
                        place = out + first * row + i * row  # row first + i
                        place = place + d * self.dtype.itemsize
                        m.store_number(place, m.total(m.get(total)))

        return few

    def gradient(self, matrix):
        """out += rate z^T da for a unit block of a packed matrix, over `count` rows of
        z and da.

        Rows of the tile are rows of the matrix, whose inputs lie `step` bytes apart in
        a row of z, and `z_row` from sample to sample. b: a weight whose input is 1.
        """
        fed, height = self.columns(matrix), self.tile_rows(matrix)
        vectors = range(len(fed))

        def gradient(m, rows, z, step, z_row, count, da, out, rate):
            zero, out = m.constant(0.0), self._weights(m, matrix, out)
            z, da = Columns(m, z, z_row, step), Panel(m, da, self.row, fed)
            for first, high in m.groups(rows, height):
                sums = [[m.variable(zero) for _ in vectors] for _ in range(high)]
                multiply(m, sums, z[first], count, da)
                for i, n in product(range(high), vectors):
                    old = out[first].vector(i, n)
                    out[first].put(i, n, m.fma(rate, m.get(sums[i][n]), old))

        return gradient

    def transpose(self):
        """Squares of lanes x lanes: out[c][r] = a[r][c], for `count` squares along a
        row of a.
        """
        lanes = self.lanes

        def transpose(m, count, a, a_row, out, out_row):
            a, out = Rows(m, a, a_row), Rows(m, out, out_row)
            for s in m.each(count):
                rows = [a.vector(r, s) for r in range(lanes)]
                # A perfect shuffle of rows, log2 times
                for _ in range(lanes.bit_length() - 1):
                    pairs = zip(rows[: lanes // 2], rows[lanes // 2 :], strict=True)
                    rows = [half for x, y in pairs for half in m.interleave(x, y)]
                for c, column in enumerate(rows):
                    out[s * lanes].put(c, 0, column)

        return transpose


# Tiles by their address, for compiled code: those of every cell are called alike.
_TILES = Tiles(CELLS["rnn"], np.dtype(np.float32), 1).all()
inputs = simd.caller(_TILES["inputs"])
forward = simd.caller(_TILES["forward"])
backward = simd.caller(_TILES["backward"])
through = simd.caller(_TILES["through_U"])
few = simd.caller(_TILES["few"])
gradient = simd.caller(_TILES["gradient_U"])
transpose = simd.caller(_TILES["transpose"])


@cache
def _code(tiles, name, keep):
    label = f"{tiles.name}_{name}_{keep}"
    return simd.compiled(tiles.all(keep)[name], tiles.dtype, tiles.lanes, label)


def codes(tiles, *names, keep=True):
    """The addresses of tiles' machine code, by name; each is compiled when first asked
    for. Matrices that feed the same gates have the same code.
    """
    found = {}
    for name in names:
        kind, _, matrix = name.partition("_")
        alike = f"{kind}_{tiles.alike(matrix)}" if matrix else name
        kept = keep or name != "forward"
        found[name] = _code(tiles.form(alike), alike, kept)
    return found
