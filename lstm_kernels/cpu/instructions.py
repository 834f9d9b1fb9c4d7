"""What compiled code can say that Python cannot: words that threads share, arrays and
records at addresses, calls of machine code and of C.
"""

import ctypes
import hashlib
import inspect
import sys
from functools import reduce
from types import FunctionType

import llvmlite.binding
import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model
from numba.np.arrayobj import make_array, populate_array

WORD, BYTE = ir.IntType(64), ir.IntType(8)
if sys.platform == "win32":
    library = ctypes.windll.kernel32
    _yield = library.SwitchToThread
else:
    library = ctypes.CDLL(None)
    _yield = library.sched_yield


def instruction(result, *kinds, names=None):
    """A decorator: emit(builder, *values), which emits LLVM code, becomes a function
    for compiled code. result, kinds: its Numba types; None: it returns nothing. names:
    of its arguments, for those who call it by keyword.
    """
    names = names or [f"a{k}" for k in range(len(kinds))]

    def decorate(emit):
        def typing(context, *arguments, **named):
            def generate(context, builder, signature, values):
                value = emit(builder, *values)
                return context.get_dummy_value() if result is None else value

            return (result or types.void)(*kinds), generate

        # Numba finds the arguments there
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        typing.__signature__ = inspect.Signature(
            [inspect.Parameter(n, kind) for n in ("context", *names)]
        )
        typing.__name__ = typing.__qualname__ = emit.__name__
        return intrinsic(typing)

    return decorate


def function_of(text, name, module, file, **names):
    """The function that the text of a lambda makes, whose free names are `names`: one
    that encloses compiled code would never be found in Numba's cache. name, module,
    file: what the cache knows it by.
    """
    names["__name__"] = module
    code = eval(text, names).__code__.replace(co_filename=file, co_name=name)
    return FunctionType(code, names, name)


def call_address(builder, result, address, values):
    """Emit a call of machine code at an address."""
    kind = ir.FunctionType(result, [value.type for value in values])
    return builder.call(builder.inttoptr(address, kind.as_pointer()), values)


def on_stack(builder, values):
    """Emit the address of words that hold values: Numba's wrapper of a C function would
    hand each of a dozen arguments over once more, 20 ns.
    """
    words = cgutils.alloca_once(builder, WORD, len(values))
    for k, value in enumerate(values):
        place = cgutils.gep_inbounds(builder, words, k)
        builder.store(value, builder.bitcast(place, value.type.as_pointer()))
    return builder.ptrtoint(words, WORD)


@instruction(types.int64, *[types.int64] * 4)
def call(builder, function, *numbers):
    """function(p, turn, job), of machine code at an address; all are integers."""
    return call_address(builder, WORD, function, numbers)


@instruction(types.int64, *[types.int64] * 11)
def perform(builder, function, job, *numbers):
    """function(job, place) likewise, of nine integers at an address: a part of a task
    (`steps.py`).
    """
    return call_address(builder, WORD, function, [job, on_stack(builder, numbers)])


def foreign(name, function, result, *arguments):
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
    return instruction(types.int64 if result else None, *[types.int64] * len(kinds))(
        emit
    )


# Let another thread run, if one is ready.
offer_core = foreign("yield", _yield, 32)


@instruction(None)
def pause(builder):
    """Tell the core that this is a waiting loop."""
    if builder.module.triple.startswith(("x86_64", "i686", "i386")):
        kind = ir.FunctionType(ir.VoidType(), [])
        name = "llvm.x86.sse2.pause"
        builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])


# By architecture: what stores and loads the register of the floating-point
# environment, at an address, and what that clobbers; its flags, which are no mode; its
# values that round to nearest, trap nothing, and keep subnormal numbers, as where C
# begins, or flush them to zero (FTZ and DAZ; FPCR.FZ).
_ARM = "mrs x9, fpcr\nstr x9, [$0]", "ldr x9, [$0]\nmsr fpcr, x9", "x9", 0, 0, 1 << 24
_FP_REGISTERS = {
    "x86_64": ("stmxcsr ($0)", "ldmxcsr ($0)", "", 0x3F, 0x1F80, 0x9FC0),
    "aarch64": _ARM,
    "arm64": _ARM,
}
_FP_REGISTER = _FP_REGISTERS.get(llvmlite.binding.get_process_triple().split("-")[0])
KEEP, FLUSH = _FP_REGISTER[4:] if _FP_REGISTER else (0, 0)
llvmlite.binding.initialize_native_asmparser()


@instruction(types.int64, types.int64)
def exchange_fp_env(builder, wanted):
    """Switch this thread to a floating-point environment: KEEP, FLUSH, or what an
    earlier call returned, which is the one before. Another architecture keeps its own.
    """
    if not _FP_REGISTER:
        return wanted
    store, load, clobbered, flags, *_ = _FP_REGISTER
    place = cgutils.alloca_once_value(builder, WORD(0))
    kind = ir.FunctionType(ir.VoidType(), [place.type])
    clobbers = "r,~{memory}" + (f",~{{{clobbered}}}" if clobbered else "")
    builder.asm(kind, store, clobbers, [place], side_effect=True)
    before = builder.load(place)
    differ = builder.and_(builder.xor(before, wanted), WORD(~flags))
    with builder.if_then(builder.icmp_unsigned("!=", differ, WORD(0))):
        builder.store(wanted, place)
        builder.asm(kind, load, clobbers, [place], side_effect=True)
    return before


def _word(builder, address):
    return builder.inttoptr(address, WORD.as_pointer())


@instruction(types.int64, types.int64)
def read(builder, address):
    """The word at an address as it is in memory now, before anything that is read
    later.
    """
    return builder.load_atomic(_word(builder, address), "acquire", 8)


@instruction(types.int64, types.int64, types.int64)
def add(builder, address, number):
    """The word at an address += number, as one step that no thread sees halfway; its
    old value.
    """
    return builder.atomic_rmw("add", _word(builder, address), number, "seq_cst")


@instruction(types.int64, types.int64, types.int64)
def exchange(builder, address, number):
    """The word at an address = number, before anything that is read later; its old
    value.
    """
    return builder.atomic_rmw("xchg", _word(builder, address), number, "seq_cst")


@instruction(types.boolean, types.int64, types.int64, types.int64)
def swap(builder, address, old, new):
    """If the word at an address is `old`, make it `new`: whether it was."""
    pair = builder.cmpxchg(_word(builder, address), old, new, "seq_cst", "acquire")
    return builder.extract_value(pair, 1)


@instruction(types.int64)
def two_words(builder):
    """The address of two words on the stack."""
    return builder.ptrtoint(cgutils.alloca_once(builder, WORD, 2), WORD)


def _array_at(context, builder, kind, address, shape):
    """Emit the array of a Numba type and a shape at an address."""
    made, strides = make_array(kind)(context, builder), [WORD(kind.dtype.bitwidth // 8)]
    for size in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], size))
    start = builder.inttoptr(address, made.data.type)
    populate_array(made, start, shape, strides, strides[-1], None)
    return made._getvalue()


@intrinsic
def integers(context, address, count):
    """The array of `count` integers at an address."""
    kind = types.Array(types.int64, 1, "C")

    def emit(context, builder, signature, values):
        return _array_at(context, builder, kind, values[0], values[1:])

    return kind(types.int64, types.int64), emit


@intrinsic
def array(context, job, address, shape):
    """The array of some shape at an address, of the dtype that a JOB is made for."""
    kind = types.Array(job.typeof("real"), len(shape), "C")

    def emit(context, builder, signature, values):
        shape = cgutils.unpack_tuple(builder, values[2])
        return _array_at(context, builder, kind, values[1], shape)

    numbers = types.UniTuple(types.int64, len(shape))
    return kind(job, types.int64, numbers), emit


def views(table):
    """A function for compiled code: the arrays of some names, divided by spaces, to
    which a record or else the JOB leads; shapes are those of a table of Arrays
    (`arrays.py`).
    """

    @intrinsic(prefer_literal=True)
    def arrays(context, job, record, names):
        if not isinstance(names, types.StringLiteral):
            return None
        real, found = job.typeof("real"), names.literal_value.split()
        kinds = [types.Array(real, len(table[name].axes), "C") for name in found]
        result = kinds[0] if len(kinds) == 1 else types.BaseTuple.from_types(kinds)

        def emit(context, builder, signature, values):
            def word(field):
                pairs = (record, values[1]), (job, values[0])
                kind, value = next(pair for pair in pairs if field in pair[0].fields)
                place = kind.offset(field)
                return builder.load(
                    cgutils.get_record_member(builder, value, place, WORD)
                )

            def total(axis):
                words = [WORD(int(s)) if s.isdigit() else word(s) for s in axis]
                return reduce(builder.add, words)

            made = []
            for name, kind in zip(found, kinds, strict=True):
                shape = [total(axis) for axis in table[name].axes]
                made.append(_array_at(context, builder, kind, word(name), shape))
            if len(made) == 1:
                return made[0]
            return context.make_tuple(builder, result, made)

        return result(job, record, names), emit

    return arrays


@intrinsic
def number(context, job, value):
    """A number of the dtype that a JOB is made for."""
    real = job.typeof("real")

    def emit(context, builder, signature, values):
        return context.cast(builder, values[1], value, real)

    return real(job, value), emit


@intrinsic
def place(context, array, index):
    """The address of an element, or of what an index of fewer axes begins with."""

    def emit(context, builder, signature, values):
        made = make_array(array)(context, builder, values[0])
        address = builder.ptrtoint(made.data, WORD)
        indices = cgutils.unpack_tuple(builder, values[1])
        strides = cgutils.unpack_tuple(builder, made.strides)
        for i, stride in zip(indices, strides, strict=False):
            address = builder.add(address, builder.mul(i, stride))
        return address

    return types.int64(array, index), emit


class StableRecord(types.Record):
    """A record that functions are named after by what is in it.

    Numba names them after the number that a type has in this process. Code in the cache
    comes from many processes: two functions for different records would have one name,
    and the linker takes the first it meets.
    """

    @property
    def mangling_args(self):
        digest = hashlib.sha256(self.name.encode()).hexdigest()
        return "Record", (int(digest[:15], 16),)


register_model(StableRecord)(models.RecordModel)


def record_at(dtype):
    """A function for compiled code: the k-th record at an address, of a structured
    dtype.
    """
    plain = numba.from_dtype(dtype)
    fields = [(name, field._asdict()) for name, field in plain.fields.items()]
    kind = StableRecord(fields, plain.size, plain.aligned)

    @instruction(kind, types.int64, types.int64)
    def record(builder, address, k):
        offset = builder.mul(k, ir.Constant(WORD, dtype.itemsize))
        place = builder.add(address, offset)  # the first byte of record k
        return builder.inttoptr(place, ir.ArrayType(BYTE, dtype.itemsize).as_pointer())

    return record
