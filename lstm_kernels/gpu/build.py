"""Kernels of a network: copies of the kernel modules' functions, with `net` filled in.

A kernel is compiled for a cell, a dtype and the sizes of a network: with these as
literals the compiler unrolls loops and folds addresses, which halves the instructions
of a hot loop.
"""

import inspect
import math
import types
from functools import cache

import numba
import numpy as np

from .. import kernels
from ..cells import CELLS
from . import device_functions, gradient_kernels, tile_kernels
from .device import SIMULATED, cuda
from .layout import Net, Places

# Nothing but the grid's barrier is linked to the kernels, and compiled in one go they
# are what `make ptx` records.
OPTIONS = {"lto": False} if getattr(cuda, "implementation", "") == "NVIDIA" else {}
TILES = device_functions, gradient_kernels, tile_kernels


def of_device(function):
    """A function as part of a kernel."""
    if SIMULATED or cuda is None:
        return function
    return cuda.jit(function, device=True, **OPTIONS)


def sigmoid_for(real):
    """The logistic function of numbers of a dtype."""
    zero, one = real(0), real(1)

    def sigmoid(x):
        """By e^-|x|, which never overflows, in Python neither: right at both ends."""
        small = math.exp(-abs(x))
        return (one if x >= zero else small) / (one + small)

    return sigmoid


def cell_functions(cell, real, part):
    """Forward and backward of a cell; part: as of `net_of`."""

    def tanh(x):
        return math.tanh(x)

    return map(part, cell.make(part(tanh), part(sigmoid_for(real))))


def net_of(cell, dtype, sizes, *, R=1, parts=1, units=0, buffer=0, part=of_device):
    """The Net of a cell, a dtype and `layout.Sizes`, whose T and B do not matter; part:
    what becomes of the cell's functions.
    """
    real = np.dtype(dtype).type
    zero, one = real(0), real(1)
    zeros, quad = (zero,) * sizes.K, (zero,) * 4
    feeds = cell.input_gates, cell.recurrent_gates
    return Net(
        *(sizes.L, sizes.D, sizes.H, sizes.O, sizes.K, sizes.P),
        *(R, parts, units, buffer),
        *(tuple(k in fed for k in range(sizes.K)) for fed in feeds),
        *(real, numba.from_dtype(np.dtype(real)), zero, one),
        *(zeros, (zeros,) * R, quad, (quad,) * R),
        *cell_functions(cell, real, part),
    )


def functions(cell, dtype, modules, sizes, **constants):
    """The functions of kernel modules, made anew for a network, in Python: a dict of
    their globals. sizes, constants: as of `net_of`.
    """
    net = net_of(cell, dtype, sizes, **constants)
    # Numba's cache on disk knows a kernel by this label: each Net needs its own.
    numbers = zip(net._fields, net, strict=True)
    values = [f"{name}_{value}" for name, value in numbers if isinstance(value, int)]
    label = "_".join([cell.name, net.real.__name__, *values])
    origins = [cell.make.__module__, __name__]
    return kernels.fill(modules, {"net": net}, label, origins=origins)


@cache
def build(cell, dtype, modules, entries, sizes, *, compile=None, **constants):
    """Compile the kernels `entries` of modules; returns name -> kernel.

    The other functions become part of them. cell: its name. sizes, constants: as of
    `functions`. compile: takes a function and its signature; None compiles for the
    device here.
    """
    space = functions(CELLS[cell], dtype, modules, sizes, **constants)
    compile = compile or _compile
    made = {name: space[name] for name in entries}
    for name, function in space.items():
        of_gpu = getattr(function, "__module__", "").startswith(__package__)
        is_part = isinstance(function, types.FunctionType) and of_gpu
        if is_part and name not in entries:
            space[name] = of_device(function)
    return {
        name: compile(function, signature(function, space["net"].number))
        for name, function in made.items()
    }


# Axes of arrays in the arguments of kernels, where it is not one.
AXES = dict.fromkeys(("target", "b", "h0", "c0", "dh", "dc"), 2)
AXES |= dict.fromkeys(("x", "U", "W", "h", "c", "dy", "dx", "rows"), 3)
AXES |= {"gates": 4, "da": 4}


def signature(kernel, real):
    """The types of a kernel's arguments, which their names stand for; real: of its
    numbers.
    """
    int64 = numba.int64
    n = numba.types.NamedUniTuple(int64, len(Places._fields), Places)
    kinds = {"n": n, "order": int64[::1], "rate": real}
    kinds |= dict.fromkeys(("tile", "first", "blocks", "batch"), int64)
    return tuple(
        kinds.get(name, numba.types.Array(real, AXES.get(name, 1), "C"))
        for name in inspect.signature(kernel).parameters
    )


def _compile(function, types):
    if SIMULATED:
        return cuda.jit(function)
    made = kernels.cached(cuda.jit, function, **OPTIONS)
    made.compile(types)
    made.disable_compile()
    made._specialized = True  # as `cuda.jit` with types: launches do not look at them
    return made
