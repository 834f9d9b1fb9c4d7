"""Kernels of a network: copies of the kernel modules' functions with its constants.

A kernel is compiled for a cell, a dtype and the sizes of a network: with these as
literals the compiler unrolls loops and folds addresses, which halves the instructions
of a hot loop.
"""

import ast
import inspect
import types
from functools import cache, partial

import numba
import numpy as np

from .. import kernels
from ..cells import CELLS
from . import device_functions, layout, sample_kernels, tile_kernels
from . import gradient_kernels as gradient
from .device import SIMULATED, cuda

# Nothing but the grid's barrier is linked to the kernels, and compiled in one go they
# are what `make ptx` records.
OPTIONS = {"lto": False} if getattr(cuda, "implementation", "") == "NVIDIA" else {}
SHARED = device_functions, layout
TILES = *SHARED, gradient, tile_kernels
SAMPLES = *SHARED, sample_kernels


def functions(cell, dtype, modules, sizes, **constants):
    """The functions of kernel modules, made anew with the constants of a network, in
    Python: a dict of their globals.

    sizes: `layout.Sizes` of the network; its T and B do not matter. constants: R, or
    where, the name of a function.
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
    space = kernels.fill(modules, chosen, label)
    if "where" in chosen:
        space["where"] = space[chosen["where"]]
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


class _WrittenOut(ast.NodeTransformer):
    """Replaces `tuple(f(k) for k in range(3))` by `(f(0), f(1), f(2))`."""

    def __init__(self, space):
        self.space = space
        self.names = {}  # of the loops around a node: name -> value

    def visit_Name(self, node):
        known = node.id in self.names
        return ast.Constant(self.names[node.id]) if known else node

    def visit_Call(self, node):
        called = getattr(node.func, "id", "")
        if called != "tuple" or not isinstance(node.args[0], ast.GeneratorExp):
            return self.generic_visit(node)
        entry = node.args[0].elt
        (loop,) = node.args[0].generators
        count = eval(ast.unparse(loop.iter.args[0]), self.space)
        entries = []
        for k in range(count):
            self.names[loop.target.id] = k
            copy = ast.parse(ast.unparse(entry), mode="eval").body
            entries.append(self.visit(copy))
        del self.names[loop.target.id]
        return ast.Tuple(entries, ast.Load())


def written_out(function):
    """The function with its tuples written out."""
    space = function.__globals__
    tree = ast.parse(inspect.getsource(function.__code__))
    tree = ast.fix_missing_locations(_WrittenOut(space).visit(tree))
    scope = {}
    exec(compile(tree, function.__code__.co_filename, "exec"), space, scope)
    return scope[function.__code__.co_name]


@cache
def _intrinsics():
    """`quad` and `store_quad`, 16 bytes at a time, from a multiple of four on."""
    from llvmlite import ir
    from numba.core import cgutils
    from numba.cuda.extending import intrinsic

    def vectors(context, builder, signature, array, i):
        """Pointers to the vectors of 16 bytes that the four numbers are, and their
        type.
        """
        data = context.make_array(signature.args[0])(context, builder, array).data
        number = context.get_value_type(signature.args[0].dtype)
        lanes = 16 // context.get_abi_sizeof(number)
        kind = ir.VectorType(number, lanes)
        for first in range(0, 4, lanes):
            place = builder.add(i, ir.Constant(i.type, first))
            pointer = builder.gep(data, [place])
            yield builder.bitcast(pointer, kind.as_pointer()), kind

    def lane(i):
        return ir.Constant(ir.IntType(32), i)

    @intrinsic
    def quad(typingctx, a, i):
        def emit(context, builder, signature, args):
            numbers = []
            for pointer, kind in vectors(context, builder, signature, *args):
                vector = builder.load(pointer, align=16)
                for k in range(kind.count):
                    numbers.append(builder.extract_element(vector, lane(k)))
            return context.make_tuple(builder, signature.return_type, numbers)

        return numba.types.UniTuple(a.dtype, 4)(a, numba.types.int64), emit

    @intrinsic
    def store_quad(typingctx, a, i, values):
        def emit(context, builder, signature, args):
            numbers = cgutils.unpack_tuple(builder, args[2])
            for pointer, kind in vectors(context, builder, signature, *args[:2]):
                vector = ir.Constant(kind, ir.Undefined)
                for k in range(kind.count):
                    vector = builder.insert_element(vector, numbers.pop(0), lane(k))
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
    kinds = {
        "n": numba.types.NamedUniTuple(
            int64, len(layout.Places._fields), layout.Places
        ),
        "rate": real,
        "order": int64[::1],
    }
    kinds |= dict.fromkeys(("tile", "first", "blocks", "batch"), int64)
    for name, array in layout.ARRAYS.items():
        kinds[name] = numba.types.Array(real, len(array.shape), "C")
    return tuple(
        kinds.get(name, real[::1]) for name in inspect.signature(kernel).parameters
    )


def _compile(function, types):
    if SIMULATED:
        return cuda.jit(function)
    return kernels.cached(partial(cuda.jit, types, **OPTIONS), function)
