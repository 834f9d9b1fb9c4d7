"""Tuples of numbers in registers: a unit's K values, four neighbours, rows of either.

Numba knows no tuple of a generator, and a loop would put the numbers into memory. So
these functions are written once, for tuples of any size. In Numba's simulator they run
as they are; for a device they run while a kernel is compiled, on `Number`s, which stand
for registers, and what they add and multiply becomes instructions.
"""

import inspect

from .device import SIMULATED, cuda

COMPILED = not SIMULATED and cuda is not None
if COMPILED:
    from llvmlite import ir
    from numba import types
    from numba.cuda.extending import intrinsic


class Number:
    """A number of compiled code; an integer is an address."""

    def __init__(self, builder, value):
        self.builder, self.value = builder, value
        self.is_integer = isinstance(value.type, ir.IntType)

    def _with(self, other, operation):
        if not isinstance(other, Number):
            other = Number(self.builder, ir.Constant(self.value.type, other))
        name = operation if self.is_integer else f"f{operation}"
        combine = getattr(self.builder, name)
        return Number(self.builder, combine(self.value, other.value))

    def __add__(self, other):
        return self._with(other, "add")

    def __mul__(self, other):
        return self._with(other, "mul")

    def choose(self, this, that):
        """this where it is true, else that."""
        chosen = self.builder.select(self.value, this.value, that.value)
        return Number(self.builder, chosen)


class Memory:
    """An array of compiled code; width: of its rows, if it has two axes."""

    def __init__(self, builder, first, width):
        self.builder, self.first, self.width = builder, first, width
        self.four = ir.VectorType(first.type.pointee, 4)
        self.lanes = [ir.Constant(ir.IntType(32), k) for k in range(4)]

    def _place(self, i):
        if isinstance(i, tuple):
            i = self.width * i[0] + i[1]
        return self.builder.gep(self.first, [i.value])

    def _place_of_four(self, i):
        return self.builder.bitcast(self._place(i), self.four.as_pointer())

    def __getitem__(self, i):
        return Number(self.builder, self.builder.load(self._place(i)))

    def __setitem__(self, i, number):
        self.builder.store(number.value, self._place(i))

    def load_four(self, i):
        four = self.builder.load(self._place_of_four(i), align=16)
        numbers = (self.builder.extract_element(four, lane) for lane in self.lanes)
        return tuple(Number(self.builder, number) for number in numbers)

    def store_four(self, i, numbers):
        four = ir.Constant(self.four, ir.Undefined)
        for lane, number in zip(self.lanes, numbers, strict=True):
            four = self.builder.insert_element(four, number.value, lane)
        self.builder.store(four, self._place_of_four(i), align=16)


def traced(function):
    """A function as part of compiled code. What it returns has the type of its first
    argument; one that returns nothing is called for what it stores. Without a compiler
    it is the function itself, else `py_func` is.
    """
    if not COMPILED:
        return function

    def typed(typingctx, *kinds):
        kinds = [types.int64 if isinstance(k, types.Integer) else k for k in kinds]

        def emit(context, builder, signature, args):
            def opened(kind, value):
                if isinstance(kind, types.BaseTuple):
                    parts = (builder.extract_value(value, k) for k in range(len(kind)))
                    return tuple(map(opened, kind, parts))
                if isinstance(kind, types.Array):
                    array = context.make_array(kind)(context, builder, value)
                    width = builder.extract_value(array.shape, kind.ndim - 1)
                    return Memory(builder, array.data, Number(builder, width))
                return Number(builder, value)

            def closed(kind, value):
                if not isinstance(value, tuple):
                    return value.value
                return context.make_tuple(builder, kind, map(closed, kind, value))

            result = function(*map(opened, signature.args, args))
            if result is None:
                return context.get_dummy_value()
            return closed(signature.return_type, result)

        stores = function.__name__.startswith("store")
        return (types.void if stores else kinds[0])(*kinds), emit

    # Numba takes the names of the arguments from here.
    first = inspect.Parameter("typingctx", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    typed.__signature__ = inspect.Signature([first, *parameters])
    typed.__name__ = typed.__qualname__ = function.__name__
    made = intrinsic(typed)
    made.py_func = function
    return made


def neighbours(a, i, count):
    """Numbers i to i + count - 1 of an array; four at once, from a multiple of four
    on.
    """
    if count == 4 and isinstance(a, Memory):
        return a.load_four(i)
    if count == 4:
        check_multiples(i)
    return tuple(a[i + k] for k in range(count))


def check_multiples(*places):
    """Raise IndexError where a device would trap: four numbers are loaded at once."""
    if any(i % 4 for i in places):
        raise IndexError(f"got {places}, want multiples of four")


@traced
def load(like, a, i):
    """As many numbers as `like` has, from i on."""
    return neighbours(a, i, len(like))


@traced
def store(like, a, i, values):
    """Let as many numbers as `like` has, from i on, be the first of the values."""
    if len(like) == 4 and isinstance(a, Memory):
        a.store_four(i, values[:4])
        return
    if len(like) == 4:
        check_multiples(i)
    for k, _ in enumerate(like):
        a[i + k] = values[k]


@traced
def column(like, a, j):
    """The first numbers of column j of a matrix, as many as `like` has."""
    return tuple(a[k, j] for k, _ in enumerate(like))


@traced
def add(a, b):
    return tuple(x + y for x, y in zip(a, b, strict=True))


@traced
def fed(a, gates, zero):
    """a, but zero for the gates that are not fed."""
    pairs = zip(a, gates, strict=True)
    if isinstance(zero, Number):
        return tuple(gate.choose(x, zero) for x, gate in pairs)
    return tuple(x if gate else zero for x, gate in pairs)


def outer(a, v, w):
    """a[r] + v[r] w: rows of an outer product."""
    return tuple(
        tuple(x + v_r * y for x, y in zip(row, w, strict=True))
        for row, v_r in zip(a, v, strict=True)
    )


add_outer = traced(outer)

# Rows of a product: of R samples, whose operands lie `step` apart.


@traced
def add_number(a, source, i, step, w):
    """a[r] plus one number of sample r times w."""
    return outer(a, [source[i + step * r] for r in range(len(a))], w)


@traced
def add_four(a, source, i, step, w0, w1, w2, w3):
    """a[r] plus four numbers of sample r, one after the other, times the rows of w."""
    samples = [neighbours(source, i + step * r, 4) for r in range(len(a))]
    for q, w in enumerate((w0, w1, w2, w3)):
        a = outer(a, [v[q] for v in samples], w)
    return a


@traced
def add_products(a, source, i, step, w):
    """a[r] plus the K numbers of sample r, each times the one of w."""
    samples = [neighbours(source, i + step * r, len(w)) for r in range(len(a))]
    return tuple(
        tuple(x + y * z for x, y, z in zip(row, v, w, strict=True))
        for row, v in zip(a, samples, strict=True)
    )
