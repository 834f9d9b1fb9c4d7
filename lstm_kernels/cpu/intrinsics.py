"""What compiled code can say that Python cannot: calls of C functions and of machine
code, words of memory, and hints for a core.
"""

import ctypes
import inspect
import sys

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

WORD, BYTE = ir.IntType(64), ir.IntType(8)
WORDS = types.Array(types.int64, 1, "C")
if sys.platform == "win32":
    library = ctypes.windll.kernel32
    _yield = library.SwitchToThread
else:
    library = ctypes.CDLL(None)
    _yield = library.sched_yield


def with_signature(typing, name, *parameters):
    """A typing function of any arguments as an intrinsic of named ones, where Numba
    looks for them.
    """
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = ("context", *parameters)
    typing.__signature__ = inspect.Signature(
        [inspect.Parameter(n, kind) for n in names]
    )
    typing.__name__ = typing.__qualname__ = name
    return intrinsic(typing)


def instruction(result, *kinds):
    """A decorator: emit(builder, *values), which emits LLVM code, becomes a function
    for compiled code. result, kinds: its Numba types; None: it returns nothing.
    """

    def decorate(emit):
        def typing(context, *arguments):
            def generate(context, builder, signature, values):
                value = emit(builder, *values)
                return context.get_dummy_value() if result is None else value

            return (result or types.void)(*kinds), generate

        return with_signature(
            typing, emit.__name__, *(f"a{k}" for k in range(len(kinds)))
        )

    return decorate


def call_address(builder, result, address, values):
    """Emit a call of machine code at an address."""
    kind = ir.FunctionType(result, [value.type for value in values])
    return builder.call(builder.inttoptr(address, kind.as_pointer()), values)


def on_stack(builder, values):
    """Emit the address of words that hold values: Numba's wrapper of a C function would
    copy each of a dozen arguments once more, 20 ns.
    """
    words = cgutils.alloca_once(builder, WORD, len(values))
    for k, value in enumerate(values):
        place = cgutils.gep_inbounds(builder, words, k)
        builder.store(value, builder.bitcast(place, value.type.as_pointer()))
    return builder.ptrtoint(words, WORD)


@instruction(types.int64, *[types.int64] * 5)
def call_worker(builder, code, *numbers):
    """Call kernel(p, first, last, arguments), machine code at an address."""
    return call_address(builder, WORD, code, numbers)


def c_function(name, function, result, *arguments):
    """A function for compiled code that calls a C function of integers; bits of each, 0
    for none. Cached code finds it as lstm_kernels_<name>.
    """
    symbol, kinds = f"lstm_kernels_{name}", [ir.IntType(bits) for bits in arguments]
    llvmlite.binding.add_symbol(symbol, ctypes.cast(function, ctypes.c_void_p).value)

    def emit(builder, *values):
        kind = ir.FunctionType(ir.IntType(result) if result else ir.VoidType(), kinds)
        callee = cgutils.get_or_insert_function(builder.module, kind, symbol)
        value = builder.call(callee, list(map(builder.trunc, values, kinds)))
        return builder.sext(value, WORD) if result else None

    emit.__name__ = name
    result_kind = types.int64 if result else None
    return instruction(result_kind, *[types.int64] * len(kinds))(emit)


sched_yield = c_function("yield", _yield, 32)


@instruction(None)
def pause(builder):
    """Tell the core that this is a waiting loop."""
    if builder.module.triple.startswith(("x86_64", "i686", "i386")):
        kind = ir.FunctionType(ir.VoidType(), [])
        name = "llvm.x86.sse2.pause"
        builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])


@intrinsic
def words_at(context, address, count):
    """The array of `count` words at an address."""

    def generate(context, builder, signature, values):
        array = make_array(WORDS)(context, builder)
        start = builder.inttoptr(values[0], array.data.type)
        populate_array(array, start, values[1:], [WORD(8)], WORD(8), None)
        return array._getvalue()

    return WORDS(types.int64, types.int64), generate


@intrinsic
def address_of(context, array):
    """The address of an array's first element, for a C function."""

    def generate(context, builder, signature, values):
        data = make_array(array)(context, builder, values[0]).data
        return builder.ptrtoint(data, WORD)

    return types.int64(array), generate


@instruction(types.int64)
def two_words(builder):
    """The address of two words on the stack."""
    return builder.ptrtoint(cgutils.alloca_once(builder, WORD, 2), WORD)


@intrinsic
def view(context, array, start, shape):
    """The part of an array of some shape from element `start` on; the axes that the
    shape lacks are the first ones.

    A slice of Python's would also look for negative indices, and cut bounds off at the
    array's end: that takes longer than the smallest product. A view is not checked in
    compiled code; where the tests run its callers as Python, it is.
    """
    if not isinstance(array, types.Array):
        return None
    kind = types.Array(array.dtype, len(shape), "A")

    def generate(context, builder, signature, values):
        whole = make_array(array)(context, builder, values[0])
        strides = cgutils.unpack_tuple(builder, whole.strides)
        data, indices = whole.data, cgutils.unpack_tuple(builder, values[1])
        for index, stride in zip(indices, strides, strict=True):
            data = cgutils.pointer_add(builder, data, builder.mul(index, stride))
        part = make_array(kind)(context, builder)
        sizes = cgutils.unpack_tuple(builder, values[2])
        rest = strides[array.ndim - len(shape) :]
        populate_array(part, data, sizes, rest, whole.itemsize, None)
        return part._getvalue()

    return kind(array, start, shape), generate
