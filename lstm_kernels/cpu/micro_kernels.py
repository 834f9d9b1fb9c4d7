"""The micro-kernels of `numba-fused`: matrix products whose accumulators stay in
registers, and what their epilogues make of them.

A micro-kernel keeps rows x vectors of accumulators in registers. It is traced from
these loops by an emitter `m` (`simd.py`), compiled once for a cell, a dtype and a
width, and called at its address by functions of the same names (at the end). Its
arguments are operands, matrices whose rows are samples or rows (t, sample). Shapes are
not checked in compiled code: the tests run the callers as Python on NumPy, where they
are (tests/test_stages.py).
"""

import inspect
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.np.arrayobj import make_array

from ..cells import CELLS
from ..kernels import native
from . import activations, registers
from .intrinsics import WORD, call_address, instruction, on_stack, with_signature
from .packing import Layout
from .simd import Emitter, Number


@dataclass
class Matrix:
    """An operand: rows of numbers in memory. Of an operand of three axes it is the
    first matrix; the next one begins `block` bytes later.
    """

    m: Emitter
    address: Number
    rows: Number | None = None
    columns: Number | None = None
    stride: Number | int | None = None  # bytes from row to row; 0: one row, repeated
    blocks: Number | None = None
    block: Number | None = None
    vectors: list | None = None  # those of a row that it has; None: all

    @classmethod
    def of(cls, matrix, **changes):
        """The same operand as another class, or with changes."""
        return cls(**vars(matrix) | changes)

    def moved(self, bytes):
        """The operand that begins so many bytes later."""
        return self.of(self, address=self.address + bytes)

    def __getitem__(self, first):
        """The rows from one on."""
        return self.moved(first * self.stride)

    @property
    def size(self):
        return self.m.dtype.itemsize

    @property
    def row_step(self):
        """Bytes from row to row, of `number`."""
        return self.stride

    @property
    def vector_bytes(self):
        return self.m.lanes * self.size

    def number(self, down, k):
        """Number k of the row that begins `down` bytes below, in every lane."""
        return self.m.broadcast(self.address + k * self.size + down)

    def place(self, i, n):
        """The address of vector n of row i."""
        n = n if self.vectors is None else self.vectors[n]
        return self.address + i * self.stride + n * self.vector_bytes

    def vector(self, i, n):
        """Vector n of row i."""
        return self.m.load(self.place(i, n))

    def store(self, i, n, vector):
        self.m.store(self.place(i, n), vector)


class Panel(Matrix):
    """Packed weights: rows of whole vectors, aligned."""

    def vector(self, i, n):
        return self.m.load_aligned(self.place(i, n))


class Transposed(Matrix):
    """The transpose of a matrix: its rows are the columns. Far ahead of what is read it
    is prefetched: further than the CPU does by itself.
    """

    row_step = Matrix.size

    def __getitem__(self, first):
        return self.moved(first * self.size)

    def number(self, down, k):
        address = self.address + k * self.stride + down
        if isinstance(down, int):  # of row 0
            self.m.prefetch(address + 64)
        return self.m.broadcast(address)


class Gates(Matrix):
    """Gates of the unit blocks of a wide one, as rows of gates of that. vectors: a
    Layout's `wide_gates`.
    """

    def place(self, i, n):
        j, n = self.vectors[n]
        address = self.address + j * self.block
        return address + i * self.stride + n * self.vector_bytes


def passes(*fields):
    """The annotation of an operand: what a micro-kernel is passed of it beside the
    address, names of Matrix's fields. Each word is a store to the stack, and a load
    whose address has the same low 12 bits waits for that store (4 KiB aliasing).
    """
    return fields


def load_accumulators(m, z, rows, columns):
    """Accumulators that begin with an operand."""
    return [[m.variable(z.vector(i, n)) for n in columns] for i in rows]


def store_accumulators(m, sums, out):
    for i, row in enumerate(sums):
        for n, total in enumerate(row):
            out.store(i, n, m.get(total))


def multiply_add(m, sums, A, count, B):
    """sums[i][n] += sum over k < count of A[i, k] B[k, n]: the loop all time is spent
    in.

    Of each k the shorter operand is loaded first and kept in registers: 3 rows of 4
    vectors take 12 + 3 + 1 of them, where 12 + 4 + 1 would be one more than AVX2 has.
    Unrolling by two k halves the loop's counting, which takes slots of the
    multiply-adds (4 % with AVX2, 3 % with AVX-512, Xeon of 2023). Taller tiles need
    those registers for addresses, and so do products that are not fused; long rows
    would spill.
    """
    rows, columns = range(len(sums)), range(len(sums[0]))
    pairs = [(i, n) for i in rows for n in columns]
    if len(rows) < len(columns):
        pairs = [(i, n) for n in columns for i in rows]
    fused, long = registers.vector_registers().fused, len(columns) > 8
    twice = not long if len(rows) == 1 else fused and len(columns) >= 4
    down = [0]  # bytes to each row; x86 scales an index by 2, 4 or 8
    for i in rows[1:]:
        down.append(m.opaque(i * A.row_step) if i % 2 else down[i // 2] * 2)
    for first, some in m.groups(count, 2 if twice else 1):
        for k in (first + step for step in range(some)):
            a, b = cache(partial(A.number, k=k)), cache(partial(B.vector, k))
            load, operands = (a, down) if len(rows) < len(columns) else (b, columns)
            for operand in operands:
                load(operand)
            for i, n in pairs:
                m.set(sums[i][n], m.fma(a(down[i]), b(n), m.get(sums[i][n])))


class MicroKernels(Layout):
    """The micro-kernels of a cell, for float32 or float64 and layers of `hidden` units.

    A subclass may override the epilogues, `cell_forward` and `cell_backward`; a network
    has it as its `micro_kernels`. Numba's cache knows the code by the class and `name`:
    to that goes whatever else the code depends on.
    """

    def normalised(self, name):
        """The same with `hidden` normalised to what the code of one depends on:
        networks of all sizes share it.
        """
        wide = name in ("backward", "times_transpose_U", "times_transpose_W")
        wide = wide or len(self.cell.gates) == 1
        hidden = self.wide if wide else 4 * self.lanes
        return replace(self, hidden=hidden, wide_vectors=None)

    def all(self, keep=True):
        """Each by its name; keep: does the forward step keep the gates?"""
        return {
            "inputs": self.inputs(),
            "forward": self.forward(keep),
            "backward": self.backward(),
            **{f"times_transpose_{M}": self.times_transpose(M) for M in "UW"},
            "small_input_gradient": self.small_input_gradient(),
            **{f"gradient_{M}": self.gradient(M) for M in "UWb"},
            "transpose": self.transpose(),
        }

    def _panel(self, operand, matrix="b"):
        """Rows of a unit block as aligned vectors, of the gates that a matrix feeds.
        What is known here need not be computed: bytes of a row.
        """
        vectors = self.columns(matrix)
        return Panel.of(operand, stride=self.row * operand.size, vectors=vectors)

    def _fed(self, sums, matrix):
        """Of accumulators of a unit block those that a matrix feeds."""
        return [[row[n] for n in self.columns(matrix)] for row in sums]

    def inputs(self):
        """a = b + x U of a unit block, for rows (t, sample)."""
        vectors, height = range(len(self.columns("b"))), self.tile_rows("b")

        def inputs(
            m,
            x: passes("columns", "stride"),
            U: passes(),
            b: passes(),
            a: passes("rows"),
        ):
            U, a, b = self._panel(U, "U"), self._panel(a), Matrix.of(b, stride=0)
            for first, count in m.groups(a.rows, height):
                sums = load_accumulators(m, b, range(count), vectors)
                multiply_add(m, self._fed(sums, "U"), x[first], x.columns, U)
                store_accumulators(m, sums, a[first])

        return inputs

    def forward(self, keep=True):
        """begin + x U + h W of a unit block, then the cell as fused epilogue.

        begin: the bias, a row, or where the inputs were multiplied before; then x has
        no column. c, c_new, h_new: this unit block, before the step and after, with the
        same stride. keep: store the gates in a.
        """
        columns, height = self.columns("b"), self.tile_rows("b")

        def forward(
            m,
            begin: passes("stride"),
            x: passes("columns", "stride"),
            U: passes(),
            h: passes("columns", "stride"),
            W: passes(),
            a: passes(),
            c: passes("rows", "stride"),
            c_new: passes(),
            h_new: passes(),
        ):
            U, W, a = self._panel(U, "U"), self._panel(W, "W"), self._panel(a)
            c_new, h_new = (Matrix.of(z, stride=c.stride) for z in (c_new, h_new))
            for first, count in m.groups(c.rows, height):
                rows = range(count)
                sums = load_accumulators(m, begin[first], rows, range(len(columns)))
                multiply_add(m, self._fed(sums, "U"), x[first], x.columns, U)
                multiply_add(m, self._fed(sums, "W"), h[first], h.columns, W)
                cells = [
                    (i, v, columns[v :: self.vectors])
                    for i, v in product(rows, range(self.vectors))
                ]
                operands = (z[first] for z in (a, c, c_new, h_new))
                self.cell_forward(m, sums, cells, keep, *operands)

        return forward

    def cell_forward(self, m, sums, cells, keep, a, c, c_new, h_new):
        """The epilogue: the cell on accumulators. cells: of each vector of units its
        row, its number, and its gates.
        """
        cell, _ = self.cell.make(*activations.functions(m))
        for i, v, gates in cells:
            bars = [m.get(sums[i][n]) for n in gates]
            *values, h_i, c_i = cell(*bars, c.vector(i, v))
            h_new.store(i, v, h_i)
            if c_i is not h_i:
                c_new.store(i, v, c_i)
            if keep:
                for n, value in zip(gates, values, strict=True):
                    a.store(i, n, value)

    def _multiply_transpose(self, m, sums, matrix, da, M_T):
        """Add da M^T to accumulators of a wide unit block: over the unit blocks of
        gradients, and in each over the gates that M feeds.
        """
        line = self.wide * da.size  # bytes of a row of a panel
        for j in m.each(da.blocks):
            for gate, count in self.runs(matrix):
                A = da.moved(j * da.block + gate * da.size)
                B = Panel.of(M_T, stride=line).moved((j * self.row + gate) * line)
                multiply_add(m, sums, A, count, B)

    def backward(self):
        """begin + da_next W^T of a wide unit block, then the cell backwards as fused
        epilogue.

        begin: gradients of h that come from above. da_next: gradients of step t+1, of
        all unit blocks, or none at the last step. a, da: gates and gradients of step t,
        from this wide unit block's first unit block on. dc, c, c_new: this wide unit
        block, c before the step and c_new after; dc is read and overwritten. begin, dc,
        c and c_new have the same stride.
        """
        wide, height = self.wide_vectors, registers.tile_rows(self.wide_vectors)
        K = len(self.cell.gates)

        def backward(
            m,
            begin: passes(),
            da_next: passes("blocks", "block"),
            W_T: passes(),
            a: passes("block"),
            da: passes("block"),
            dc: passes("rows", "stride"),
            c: passes(),
            c_new: passes(),
        ):
            begin, c, c_new = (
                Matrix.of(z, stride=dc.stride) for z in (begin, c, c_new)
            )
            gates = {"stride": self.row * a.size, "vectors": self.wide_gates}
            a, da = Gates.of(a, **gates), Gates.of(da, **gates)
            da_next = self._panel(da_next)
            for first, count in m.groups(dc.rows, height):
                sums = load_accumulators(m, begin[first], range(count), range(wide))
                self._multiply_transpose(m, sums, "W", da_next[first], W_T)
                pairs = product(range(count), range(wide))
                cells = [(i, v, [g * wide + v for g in range(K)]) for i, v in pairs]
                operands = (z[first] for z in (a, da, dc, c, c_new))
                self.cell_backward(m, sums, cells, *operands)

        return backward

    def cell_backward(self, m, sums, cells, a, da, dc, c, c_new):
        """The epilogue of the backward pass; cells: as of `cell_forward`."""
        _, cell = self.cell.make(*activations.functions(m))
        for i, v, gates in cells:
            values = [a.vector(i, n) for n in gates]
            states = c.vector(i, v), c_new.vector(i, v)
            *bars, dc_before = cell(
                m.get(sums[i][v]), dc.vector(i, v), *values, *states
            )
            for n, bar in zip(gates, bars, strict=True):
                da.store(i, n, bar)
            dc.store(i, v, dc_before)

    def times_transpose(self, matrix):
        """out = begin + da M^T for a wide unit block: the gradient of what M
        multiplied, U or W.
        """
        wide, height = self.wide_vectors, registers.tile_rows(self.wide_vectors)

        def times_transpose(
            m,
            begin: passes("stride"),
            da: passes("blocks", "block"),
            M_T: passes(),
            out: passes("rows", "stride"),
        ):
            da = self._panel(da)
            for first, count in m.groups(out.rows, height):
                sums = load_accumulators(m, begin[first], range(count), range(wide))
                self._multiply_transpose(m, sums, matrix, da[first], M_T)
                store_accumulators(m, sums, out[first])

        return times_transpose

    def small_input_gradient(self):
        """out = da U^T for a few inputs, a dot product for each: `times_transpose`
        would compute a wide unit block of inputs, nearly all of them padding.
        """
        count_fed = len(self.columns("U"))

        def small_input_gradient(
            m,
            da: passes("blocks", "block"),
            U: passes(),
            out: passes("rows", "columns", "stride"),
        ):
            zero, da, U = m.constant(0.0), self._panel(da, "U"), self._panel(U, "U")
            for first, count in m.groups(out.rows, 4):
                for d in m.each(out.columns):
                    sums = [m.variable(zero) for _ in range(count)]
                    for j in m.each(da.blocks):
                        a, u = da[first].moved(j * da.block), U[j * out.columns + d]
                        for n, i in product(range(count_fed), range(count)):
                            u_n = u.vector(0, n)
                            m.set(sums[i], m.fma(a.vector(i, n), u_n, m.get(sums[i])))
                    for i, total in enumerate(sums):
                        address = out[first].address + i * out.stride + d * out.size
                        m.store_number(address, m.total(m.get(total)))

        return small_input_gradient

    def gradient(self, matrix):
        """out += rate z^T da for rows of a unit block's packed matrix, over rows (t,
        sample) of z and da.
        """
        vectors, height = range(len(self.columns(matrix))), self.tile_rows(matrix)

        def gradient(
            m, z: passes("stride"), da: passes("rows"), out: passes("rows"), rate: float
        ):
            zero, out = m.constant(0.0), self._panel(out, matrix)
            z_T, da_fed = Transposed.of(z), self._panel(da, matrix)
            for first, high in m.groups(out.rows, height):
                sums = [[m.variable(zero) for _ in vectors] for _ in range(high)]
                multiply_add(m, sums, z_T[first], da.rows, da_fed)
                for i, n in product(range(high), vectors):
                    old = out[first].vector(i, n)
                    out[first].store(i, n, m.fma(rate, m.get(sums[i][n]), old))

        return gradient

    def transpose(self):
        """out = a.T, in squares of lanes x lanes: `lanes` rows of a, and as many
        columns of out.
        """
        lanes = self.lanes

        def transpose(m, a: passes("columns", "stride"), out: passes("stride")):
            for column in m.each(a.columns, lanes):
                square = a.moved(column * a.size)
                rows = [square.vector(r, 0) for r in range(lanes)]
                # A perfect shuffle of rows, log2 times
                for _ in range(lanes.bit_length() - 1):
                    pairs = zip(rows[: lanes // 2], rows[lanes // 2 :], strict=True)
                    rows = [half for x, y in pairs for half in m.interleave(x, y)]
                for c, vector in enumerate(rows):
                    out[column].store(c, 0, vector)

        return transpose


def parameters(micro_kernel):
    """The annotations of a micro-kernel's parameters after m, by name: of an operand
    what it is passed (`passes`), of a number float.
    """
    _, *rest = inspect.signature(micro_kernel).parameters.values()
    return {p.name: p.annotation for p in rest}


def trace(micro_kernel, dtype, lanes):
    """A function for compiled code that traces a micro-kernel, of the address of its
    arguments as words (`caller`).
    """

    def emit(builder, address):
        m, count = Emitter(builder, dtype, lanes), 0

        def word(kind=WORD):
            nonlocal count
            place = builder.add(address, ir.Constant(WORD, 8 * count))
            count += 1
            return m.argument(builder.load(builder.inttoptr(place, kind.as_pointer())))

        arguments = []
        for fields in parameters(micro_kernel).values():
            if fields is float:
                arguments.append(word(ir.DoubleType()))
            else:
                operand = Matrix(m, word())
                told = {field: word() for field in fields}
                arguments.append(Matrix.of(operand, **told))
        micro_kernel(m, *arguments)

    return instruction(None, types.intp)(emit)


def _call(words):
    traced(words)  # noqa: F821


SIGNATURE = types.void(types.intp)


def compiled(micro_kernel, dtype, lanes, label, origins=()):
    """The address of a micro-kernel as machine code, compiled or from Numba's cache.
    label: tells those of one name apart there. origins: names of the modules it is
    traced from, beside its own.
    """
    names = {"traced": trace(micro_kernel, dtype, lanes)}
    label = f"{micro_kernel.__name__}_{label}"
    return native(_call, label, SIGNATURE, (micro_kernel.__module__, *origins), names)


def _operand(context, builder, kind, value, fields):
    """An array of at least two axes as words: its address, and fields of Matrix."""
    array = make_array(kind)(context, builder, value)
    shape = cgutils.unpack_tuple(builder, array.shape)
    strides = cgutils.unpack_tuple(builder, array.strides)
    # Of one row the stride means nothing: 0 lets it be broadcast, as in NumPy.
    single = builder.icmp_signed("==", shape[-2], WORD(1))
    stride = builder.select(single, WORD(0), strides[-2])
    words = {"rows": shape[-2], "columns": shape[-1], "stride": stride}
    words |= {"blocks": shape[0], "block": strides[0]}
    return [builder.ptrtoint(array.data, WORD), *(words[field] for field in fields)]


def caller(micro_kernel):
    """A function for compiled code that calls a micro-kernel of these parameters: its
    address, then arrays and numbers. The last axis of an array is contiguous.
    """
    passed = parameters(micro_kernel)

    def typing(context, code, *kinds):
        def generate(context, builder, signature, values):
            words = []
            triples = zip(kinds, values[1:], passed.values(), strict=True)
            for kind, value, fields in triples:
                if fields is float:
                    words.append(context.cast(builder, value, kind, types.float64))
                else:
                    words += _operand(context, builder, kind, value, fields)
            place = on_stack(builder, words)
            call_address(builder, ir.VoidType(), values[0], [place])
            return context.get_dummy_value()

        return types.void(code, *kinds), generate

    return with_signature(typing, micro_kernel.__name__, "code", *passed)


# Callers for compiled code: of this instance only the parameters count, which those of
# every cell have; what is called is the code at the address that is passed.
_ALL = MicroKernels(CELLS["rnn"], np.dtype(np.float32), 1).all()
inputs = caller(_ALL["inputs"])
forward = caller(_ALL["forward"])
backward = caller(_ALL["backward"])
times_transpose = caller(_ALL["times_transpose_U"])
small_input_gradient = caller(_ALL["small_input_gradient"])
gradient = caller(_ALL["gradient_U"])
transpose = caller(_ALL["transpose"])


@cache
def _code(kernels, name, keep):
    kind = type(kernels)  # which may override what is called
    label = f"{kind.__qualname__}_{kernels.name}_{name}_{keep}"
    bases = [base.__module__ for base in kind.__mro__ if base is not object]
    origins = *bases, kernels.cell.make.__module__
    kernel = kernels.all(keep)[name]
    return compiled(kernel, kernels.dtype, kernels.lanes, label, origins)


def codes(kernels, *names, keep=True):
    """The addresses of micro-kernels' machine code, by name; each is compiled when
    first asked for. Matrices that feed the same gates have the same code.
    """
    addresses = {}
    for name in names:
        kind, _, matrix = name.rpartition("_")
        alike = f"{kind}_{kernels.alike(matrix)}" if matrix in "UWb" else name
        addresses[name] = _code(
            kernels.normalised(alike), alike, keep or name != "forward"
        )
    return addresses
