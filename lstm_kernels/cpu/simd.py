"""Vector code, written once as Python and traced into LLVM instructions.

A *micro-kernel* is a function of an emitter `m`: it asks `m` for loads, fused
multiply-adds, loops, and becomes straight-line vector code inside a Numba function.

A register tile keeps `rows` x `vectors` sums of C = A B in registers: for each k it
loads `vectors` vectors of B and broadcasts `rows` numbers of A, with 6 x 4 that is 10
loads for 24 FMAs. Its bounds are the registers (24 + 4 + 1 of the 32 of AVX-512) and
the latency of an FMA (4 cycles: fewer sums than 4 for each FMA begun per cycle leave
units idle). B is packed: in a row-major matrix the vectors of k and k + 1 lie on
different pages; packed, they are one stream, aligned to cache lines. The cell is
applied to the sums before they are stored, which saves a pass over memory.
"""

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils

from .intrinsics import BYTE, WORD, instruction


class Number:
    """An integer known when the code runs."""

    def __init__(self, emitter, value):
        self.emitter, self.value = emitter, value

    def __add__(self, other):
        return Number(self.emitter, self.emitter.builder.add(self.value, _int(other)))

    def __mul__(self, other):
        return Number(self.emitter, self.emitter.builder.mul(self.value, _int(other)))

    def __sub__(self, other):
        return Number(self.emitter, self.emitter.builder.sub(self.value, _int(other)))

    __radd__, __rmul__ = __add__, __mul__


def _int(value):
    return value.value if isinstance(value, Number) else ir.Constant(WORD, int(value))


class Vector:
    """A vector register; its operators emit instructions, so that a cell can be traced
    with it.

    A product waits until it is added to something: the two become one fused
    multiply-add. The compiler could fuse another of two products from tile to tile, and
    change the last bit.
    """

    def __init__(self, emitter, value=None, factors=None):
        self.emitter, self._value, self._factors = emitter, value, factors

    @property
    def value(self):
        if self._value is None:
            self._value = self.emitter.builder.fmul(*(f.value for f in self._factors))
        return self._value

    def __mul__(self, other):
        return Vector(self.emitter, factors=(self, other))

    def __add__(self, other):
        product, term = (self, other) if self._factors else (other, self)
        if product._factors:
            return self.emitter.fma(*product._factors, term)
        return Vector(self.emitter, self.emitter.builder.fadd(self.value, other.value))

    def __sub__(self, other):
        if other._factors:
            x, y = other._factors
            return self.emitter.fma(-x, y, self)
        if self._factors:
            return self.emitter.fma(*self._factors, -other)
        return Vector(self.emitter, self.emitter.builder.fsub(self.value, other.value))

    def __neg__(self):
        return Vector(self.emitter, self.emitter.builder.fneg(self.value))

    def __truediv__(self, other):
        return Vector(self.emitter, self.emitter.builder.fdiv(self.value, other.value))


class Emitter:
    """Emits vector code through an llvmlite builder; for numbers, with
    one lane.
    """

    def __init__(self, builder, dtype, lanes):
        self.builder, self.dtype, self.lanes = builder, np.dtype(dtype), lanes
        self.scalar = ir.FloatType() if self.dtype == np.float32 else ir.DoubleType()
        self.type = self._wide(self.scalar)

    def argument(self, value):
        """What a tile gets for an argument of its compiled function: a Number or a
        Vector.
        """
        if value.type == WORD:
            return Number(self, value)
        return self.splat(self.builder.fptrunc(value, self.scalar))

    def load(self, address):
        return Vector(self, self._load(address, self.type))

    def load_aligned(self, address):
        """Of an address that is a multiple of the vector's size: it may be an operand
        itself.
        """
        vector = self._load(address, self.type)
        vector.align = self.lanes * self.dtype.itemsize
        return Vector(self, vector)

    def store(self, address, vector):
        self.store_number(address, vector.value)

    def prefetch(self, address):
        """Fetch the cache line of an address that will be read soon; it need not
        exist.
        """
        byte, flag = self._pointer(address, BYTE), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte.type, flag, flag, flag])
        module, name = self.builder.module, "llvm.prefetch.p0"
        callee = cgutils.get_or_insert_function(module, kind, name)
        self.builder.call(callee, [byte, *(ir.Constant(flag, v) for v in (0, 3, 1))])

    def broadcast(self, address):
        return self.splat(self._load(address, self.scalar))

    def splat(self, number):
        """Every lane holds a scalar of the emitter's dtype."""
        zero = ir.Constant(ir.IntType(32), 0)
        empty = ir.Constant(self.type, ir.Undefined)
        vector = self.builder.insert_element(empty, number, zero)
        return Vector(self, self._shuffle(vector, vector, [0] * self.lanes))

    def constant(self, number):
        return Vector(self, self._constant(self.scalar, number))

    def fma(self, x, y, z):
        """x * y + z, rounded once where the CPU has an instruction for it: elsewhere
        `llvm.fma` would call the C library for each number.
        """
        return self._call("fmuladd", x, y, z)

    def magnitude(self, x):
        return self._call("fabs", x)

    def copysign(self, x, sign):
        """The magnitude of x with the sign of another vector."""
        return self._call("copysign", x, sign)

    def clamp(self, x, low, high):
        """x within [low, high]; NaN stays."""
        for bound, worse in ((self.constant(high), "<"), (self.constant(low), ">")):
            beyond = self.builder.fcmp_ordered(worse, bound.value, x.value)
            x = Vector(self, self.builder.select(beyond, bound.value, x.value))
        return x

    def exponent(self, x):
        """The power of two whose exponent's bits are the last bits of x."""
        whole = ir.IntType(8 * self.dtype.itemsize)
        bits = self.builder.bitcast(x.value, self._wide(whole))
        bits = self.builder.shl(bits, self._constant(whole, np.finfo(self.dtype).nmant))
        return Vector(self, self.builder.bitcast(bits, self.type))

    def interleave(self, x, y):
        """(x0, y0, x1, y1, ...) as two vectors."""
        n = self.lanes
        order = [i for k in range(n) for i in (k, n + k)]
        halves = order[:n], order[n:]
        return [Vector(self, self._shuffle(x.value, y.value, half)) for half in halves]

    def total(self, x):
        """The sum of a vector's numbers, a scalar: halves are added until one is
        left.
        """
        value, count = x.value, self.lanes
        while count > 1:
            count //= 2
            halves = [*range(count)], [*range(count, 2 * count)]
            low, high = (self._shuffle(value, value, half) for half in halves)
            value = self.builder.fadd(low, high)
        return self.builder.extract_element(value, ir.Constant(ir.IntType(32), 0))

    def store_number(self, address, number):
        place = self.builder.store(number, self._pointer(address, number.type))
        place.align = self.dtype.itemsize

    def opaque(self, number):
        """A number that stays in a register of its own: LLVM would add up multiples of
        a stride one after the other, in every turn of a loop (5 % of a product with
        AVX-512, Xeon of 2023).
        """
        if isinstance(number, int):
            return number
        kind = ir.FunctionType(WORD, [WORD])
        same = self.builder.asm(kind, "", "=r,0", [number.value], side_effect=False)
        return Number(self, same)

    def variable(self, vector):
        """A register that changes in a loop: use `get` and `set`."""
        slot = cgutils.alloca_once(self.builder, self.type)
        self.builder.store(vector.value, slot)
        return slot

    def get(self, slot):
        return Vector(self, self.builder.load(slot))

    def set(self, slot, vector):
        self.builder.store(vector.value, slot)

    def each(self, count, step=1):
        """for i in m.each(count): i = 0, step, ... below count, a Number; the body is
        traced once. LLVM must not unroll it: the tile has chosen how many sums and
        operands fit the registers.
        """
        build, count, zero = self.builder, _int(count), ir.Constant(WORD, 0)
        before, inside = build.block, build.append_basic_block("loop")
        after = build.append_basic_block("after")
        build.cbranch(build.icmp_signed("<", zero, count), inside, after)
        build.position_at_end(inside)
        index = build.phi(WORD)
        index.add_incoming(zero, before)
        yield Number(self, index)
        following = build.add(index, ir.Constant(WORD, step))
        index.add_incoming(following, build.block)
        again = build.cbranch(build.icmp_signed("<", following, count), inside, after)
        again.set_metadata("llvm.loop", self._never_unrolled())
        build.position_at_end(after)

    def groups(self, count, size):
        """for first, some in m.groups(count, size): `size` at a time, then the rest;
        some: an int.
        """
        build, count, size_ = self.builder, _int(count), ir.Constant(WORD, size)
        full = build.sub(count, build.urem(count, size_))
        for first in self.each(Number(self, full), size):
            yield first, size
        rest = build.sub(count, full)
        for r in range(1, size):
            with build.if_then(build.icmp_signed("==", rest, ir.Constant(WORD, r))):
                yield Number(self, full), r

    def _never_unrolled(self):
        """The metadata of a loop: a node that names itself, as LLVM wants it."""
        module = self.builder.module
        option = module.add_metadata(["llvm.loop.unroll.disable"])
        node = ir.values.MDValue(module, [option], name=str(len(module.metadata)))
        node.operands = (node, option)
        return node

    def _wide(self, kind):
        return ir.VectorType(kind, self.lanes) if self.lanes > 1 else kind

    def _constant(self, kind, number):
        number = ir.Constant(kind, number)
        if self.lanes == 1:
            return number
        return ir.Constant(self._wide(kind), [number] * self.lanes)

    def _call(self, name, *vectors):
        """An intrinsic of LLVM that takes and returns vectors of the emitter."""
        lanes = f"v{self.lanes}" if self.lanes > 1 else ""
        function = ir.FunctionType(self.type, [self.type] * len(vectors))
        name = f"llvm.{name}.{lanes}f{8 * self.dtype.itemsize}"
        callee = cgutils.get_or_insert_function(self.builder.module, function, name)
        return Vector(self, self.builder.call(callee, [v.value for v in vectors]))

    def _pointer(self, address, kind):
        return self.builder.inttoptr(_int(address), kind.as_pointer())

    def _load(self, address, kind):
        value = self.builder.load(self._pointer(address, kind))
        value.align = self.dtype.itemsize
        return value

    def _shuffle(self, x, y, order):
        mask = ir.Constant(ir.VectorType(ir.IntType(32), len(order)), order)
        return self.builder.shuffle_vector(x, y, mask)


def of_numbers(function, dtype):
    """A function for Numba code that does to a number what `function(m, x)` does to a
    vector.
    """
    kind = numba.from_dtype(np.dtype(dtype))

    def emit(builder, x):
        m = Emitter(builder, dtype, 1)
        return function(m, Vector(m, x)).value

    return instruction(kind, kind)(emit)
