"""How the texts of GPU kernels become kernels: free names are filled in, then they are
compiled.

A kernel is compiled for a cell, a dtype and the sizes of a network: with these as
literals the compiler unrolls loops and folds addresses, which halves the instructions
of a hot loop.
"""

import inspect
import types
from functools import cache, partial

import numba
import numpy as np

from .. import kernels
from ..cells import CELLS
from . import device_functions, layout
from .device import SIMULATED, cuda
from .device_functions import written_out

# Nothing but the grid's barrier is linked to the kernels, and compiled in one go they
# are what `make ptx` records.
OPTIONS = {"lto": False} if getattr(cuda, "implementation", "") == "NVIDIA" else {}
# Functions of tuples that do not depend on K or R.
OF_FOUR = ("add_rows", "clipped")
OF_K = ("zeros", "strided", "add", "dot")
OF_R = ("start", "quads", "add_quads", "add_samples", "dot_samples")


def functions(cell, dtype, modules, sizes, **names):
    """The functions of kernel modules with their free names filled in, in Python: a
    dict of globals.

    sizes: `layout.Sizes` of the network; its T and B do not matter. names: further free
    names; `where` is the name of a function.
    """
    real, K = np.dtype(dtype).type, len(cell.gates)
    literals = sizes.literals() | names
    # Numba's cache on disk knows a kernel by this label: each filling needs its own.
    label = "_".join(
        [cell.name, real.__name__, *(f"{k}_{v}" for k, v in sorted(literals.items()))]
    )
    P = layout.packed_size(sizes, K)
    constants = {
        "cuda": cuda,
        "K": K,
        "P": P,
        "TRANSPOSED": P + -P % 4,
        "R": 1,
    } | literals
    constants |= {"real": real, "number": numba.from_dtype(np.dtype(real))}
    for name, gates in (
        ("U_gates", cell.input_gates),
        ("W_gates", cell.recurrent_gates),
    ):
        constants[name] = tuple(
            k in gates for k in range(K)
        )  # whether the matrix feeds them
    space = kernels.fill([device_functions, layout, *modules], constants, label)
    counts = (
        dict.fromkeys(OF_FOUR, 4)
        | dict.fromkeys(OF_K, K)
        | dict.fromkeys(OF_R, space["R"])
    )
    texts = [written_out(name, name, count) for name, count in counts.items()]
    exec("".join(texts), space)
    space |= {name: space[names[name]] for name in ("where",) if name in names}
    if SIMULATED:
        space["u"] = lambda i: i
    space["quad"], space["store_quad"] = _in_python() if SIMULATED else _intrinsics()
    return space


def _in_python():
    """What `_intrinsics` compiles, for the simulator; an address that would fault there
    does so.
    """

    def aligned(at):
        if at % 4:
            raise IndexError(f"at: got {at}, want a multiple of four")
        return range(at, at + 4)

    def quad(a, at):
        return tuple(a[i] for i in aligned(at))

    def store_quad(a, at, values):
        for i, value in zip(aligned(at), values, strict=False):
            a[i] = value

    return quad, store_quad


@cache
def _intrinsics():
    """Loads and stores of four numbers that begin at a multiple of four, 16 bytes at a
    time.
    """
    from llvmlite import ir
    from numba.core import cgutils
    from numba.cuda.extending import intrinsic

    def vectors(context, builder, signature, array, at):
        """Pointers to the vectors of 16 bytes that the four numbers are, and a vector's
        lanes.
        """
        data = context.make_array(signature.args[0])(context, builder, array).data
        number = context.get_value_type(signature.args[0].dtype)
        lanes = 16 // context.get_abi_sizeof(number)
        kind = ir.VectorType(number, lanes).as_pointer()
        for first in range(0, 4, lanes):
            place = builder.add(at, ir.Constant(at.type, first))
            yield (
                builder.bitcast(builder.gep(data, [place]), kind),
                ir.VectorType(number, lanes),
            )

    def lane(i):
        return ir.Constant(ir.IntType(32), i)

    @intrinsic
    def quad(typingctx, a, at):
        def emit(context, builder, signature, args):
            numbers = []
            for pointer, kind in vectors(context, builder, signature, *args):
                vector = builder.load(pointer, align=16)
                numbers += [
                    builder.extract_element(vector, lane(i)) for i in range(kind.count)
                ]
            return context.make_tuple(builder, signature.return_type, numbers)

        return numba.types.UniTuple(a.dtype, 4)(a, numba.types.int64), emit

    @intrinsic
    def store_quad(typingctx, a, at, values):
        def emit(context, builder, signature, args):
            numbers = cgutils.unpack_tuple(builder, args[2])
            for pointer, kind in vectors(context, builder, signature, *args[:2]):
                vector = ir.Constant(kind, ir.Undefined)
                for i in range(kind.count):
                    vector = builder.insert_element(vector, numbers.pop(0), lane(i))
                builder.store(vector, pointer, align=16)
            return context.get_dummy_value()

        return numba.types.void(a, numba.types.int64, values), emit

    return quad, store_quad


asked = 0  # kernels that this process compiled, or took from the disk


@cache
def build(cell, dtype, modules, entries, sizes, *, compile=None, **names):
    """Compile the kernels `entries` of modules; returns name -> kernel.

    The other functions become part of them. cell: its name. sizes, names: as of
    `functions`. compile: takes a function and its signature; None compiles for the
    device here.
    """
    global asked
    cell, asked = CELLS[cell], asked + len(entries)
    space = functions(cell, dtype, modules, sizes, **names)
    own = {name: f for name, f in space.items() if isinstance(f, types.FunctionType)}
    own = {name: f for name, f in own.items() if f.__module__.startswith(__package__)}
    device = (lambda f: f) if SIMULATED else partial(cuda.jit, device=True, **OPTIONS)
    space |= {name: device(f) for name, f in own.items() if name not in entries}
    cells = cell.make(space["tanh"], space["sigmoid"])
    space["cell_forward"], space["cell_backward"] = map(device, cells)
    compile = compile or _compile
    return {
        name: compile(own[name], signature(own[name], space["real"]))
        for name in entries
    }


PLACES = 2 + len(layout.Places._fields)  # T, B and where arrays begin


def signature(kernel, real):
    """The types of a kernel's arguments, which their names stand for; arrays are
    flat.
    """
    real, int64 = numba.from_dtype(np.dtype(real)), numba.int64
    known = {
        "n": numba.types.UniTuple(int64, PLACES),
        "rate": real,
        "order": int64[::1],
    }
    known |= dict.fromkeys(("T", "B", "tile", "first", "blocks", "batch"), int64)
    return tuple(
        known.get(name, real[::1]) for name in inspect.signature(kernel).parameters
    )


def _compile(function, types):
    if SIMULATED:
        return cuda.jit(function)
    return kernels.cached(partial(cuda.jit, types, **OPTIONS), function)
