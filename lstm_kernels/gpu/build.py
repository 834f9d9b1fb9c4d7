"""Kernels of a network: copies of the kernel modules' functions with its constants.

A kernel is compiled for a cell, a dtype and the sizes of a network: with these as
literals the compiler unrolls loops and folds addresses, which halves the instructions
of a hot loop.
"""

import inspect
import re
import types
from functools import cache, partial

import numba
import numpy as np

from .. import kernels
from ..cells import CELLS
from . import device_functions, gradient_kernels, layout, tile_kernels
from .device import SIMULATED, cuda

# Nothing but the grid's barrier is linked to the kernels, and compiled in one go they
# are what `make ptx` records.
OPTIONS = {"lto": False} if getattr(cuda, "implementation", "") == "NVIDIA" else {}
TILES = device_functions, layout, gradient_kernels, tile_kernels


def functions(cell, dtype, modules, sizes, **constants):
    """The functions of kernel modules, made anew with the constants of a network, in
    Python: a dict of their globals.

    sizes: `layout.Sizes` of the network; its T and B do not matter. constants: such as
    R and parts.
    """
    real = np.dtype(dtype).type
    chosen = {axis: getattr(sizes, axis) for axis in "LDHOK"} | constants
    # Numba's cache on disk knows a kernel by this label: each set of constants needs
    # its own.
    values = [f"{name}_{value}" for name, value in sorted(chosen.items())]
    label = "_".join([cell.name, real.__name__, *values])
    chosen |= {"P": sizes.P, "real": real, "number": numba.from_dtype(np.dtype(real))}
    for name, fed in (("U", cell.input_gates), ("W", cell.recurrent_gates)):
        chosen[f"{name}_gates"] = tuple(k in fed for k in range(sizes.K))
    origins = [cell.make.__module__]
    space = kernels.fill(modules, chosen, label, origins=origins)
    for name, function in space.items():
        if is_ours(function) and "tuple" in function.__code__.co_names:
            space[name] = written_out(function)
    cells = cell.make(space["tanh"], space["sigmoid"])
    space["cell_forward"], space["cell_backward"] = cells
    if SIMULATED:
        space["u"] = lambda i: i
    else:
        space["quad"], space["store_quad"] = _intrinsics()
    return space


def is_ours(value):
    return isinstance(value, types.FunctionType) and value.__module__.startswith(
        __package__
    )


TUPLE = re.compile(r"tuple\((.+) for (\w+) in range\((\w+)\)\)")


def written_out(function):
    """The function with `tuple(f(k) for k in range(3))` as `(f(0), f(1), f(2))`."""
    space, code = function.__globals__, function.__code__

    def entries(match):
        entry, name, count = match.groups()
        name = re.compile(rf"\b{name}\b")
        texts = [name.sub(str(k), entry) for k in range(eval(count, space))]
        return f"({', '.join(texts)},)"

    scope = {}
    text = TUPLE.sub(entries, inspect.getsource(code))
    exec(compile(text, code.co_filename, "exec"), space, scope)
    return scope[code.co_name]


@cache
def _intrinsics():
    """`quad` and `store_quad`, 16 bytes at a time, from a multiple of four on."""
    from llvmlite import ir
    from numba.core import cgutils
    from numba.cuda.extending import intrinsic

    lanes = [ir.Constant(ir.IntType(32), k) for k in range(4)]

    def four(context, builder, kind, array, i):
        """A pointer to four numbers of an array, as a vector."""
        data = context.make_array(kind)(context, builder, array).data
        vector = ir.VectorType(context.get_value_type(kind.dtype), 4)
        return builder.bitcast(builder.gep(data, [i]), vector.as_pointer())

    @intrinsic
    def quad(typingctx, a, i):
        def emit(context, builder, signature, args):
            vector = builder.load(four(context, builder, a, *args), align=16)
            numbers = [builder.extract_element(vector, k) for k in lanes]
            return context.make_tuple(builder, signature.return_type, numbers)

        return numba.types.UniTuple(a.dtype, 4)(a, numba.types.int64), emit

    @intrinsic
    def store_quad(typingctx, a, i, values):
        def emit(context, builder, signature, args):
            pointer = four(context, builder, a, *args[:2])
            numbers = cgutils.unpack_tuple(builder, args[2])[:4]
            kind = ir.VectorType(context.get_value_type(a.dtype), 4)
            vector = ir.Constant(kind, ir.Undefined)
            for k, value in zip(lanes, numbers, strict=True):
                vector = builder.insert_element(vector, value, k)
            builder.store(vector, pointer, align=16)
            return context.get_dummy_value()

        return numba.types.void(a, numba.types.int64, values), emit

    return quad, store_quad


@cache
def build(cell, dtype, modules, entries, sizes, *, compile=None, **constants):
    """Compile the kernels `entries` of modules; returns name -> kernel.

    The other functions become part of them. cell: its name. sizes, constants: as of
    `functions`. compile: takes a function and its signature; None compiles for the
    device here.
    """
    cell = CELLS[cell]
    space = functions(cell, dtype, modules, sizes, **constants)
    compile = compile or _compile
    device = (lambda f: f) if SIMULATED else partial(cuda.jit, device=True, **OPTIONS)
    made = {name: space[name] for name in entries}
    for name, function in space.items():
        if is_ours(function) and name not in entries:
            space[name] = device(function)
    cells = cell.make(space["tanh"], space["sigmoid"])
    space["cell_forward"], space["cell_backward"] = map(device, cells)
    return {
        name: compile(function, signature(function, space["real"]))
        for name, function in made.items()
    }


def signature(kernel, real):
    """The types of a kernel's arguments, which their names stand for."""
    real, int64 = numba.from_dtype(np.dtype(real)), numba.int64
    places = len(layout.Places._fields), layout.Places
    kinds = {"n": numba.types.NamedUniTuple(int64, *places), "order": int64[::1]}
    kinds |= {"rate": real, "x": real[:, :, ::1], "target": real[:, ::1]}
    kinds |= dict.fromkeys(("tile", "first", "blocks", "batch"), int64)
    names = inspect.signature(kernel).parameters
    return tuple(kinds.get(name, real[::1]) for name in names)


def _compile(function, types):
    if SIMULATED:
        return cuda.jit(function)
    made = kernels.cached(cuda.jit, function, **OPTIONS)
    made.compile(types)
    made.disable_compile()
    made._specialized = True  # as `cuda.jit` with types: launches do not look at them
    return made
