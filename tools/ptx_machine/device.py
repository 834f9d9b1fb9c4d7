"""Stands in for numba.cuda in the package's GPU code: its host code runs unchanged, its
kernels as their PTX on the machine."""

import hashlib
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import version
from math import prod
from pathlib import Path
from types import FunctionType, SimpleNamespace
from unittest.mock import patch

import numpy as np
import ptx
from numba import cuda, from_dtype, types

import lstm_kernels as lk
from lstm_kernels.gpu import available, build, device

from . import machine
from .parse import Program

CAPABILITY = (9, 0)
# All are there before `device.cuda` is another: their kernels are real CUDA.
VERSIONS = [
    import_module(f"lstm_kernels.versions.{row.name.replace('-', '_')}")
    for row in lk.versions()
    if row.target == "gpu"
]


def sources():
    """What kernels are made of and by: a key of compiled kernels."""
    package = Path(device.__file__).parents[1]
    paths = sorted(package.glob("gpu/*.py"))
    paths += [package / "cells.py", package / "kernels.py"]
    texts = [path.read_bytes() for path in paths]
    return b"".join([*texts, version("numba-cuda").encode()])


def compiled(function, signature, capability):
    """The PTX of a Python function."""
    with ptx.stand_in(capability):
        return cuda.compile_ptx(function, signature, cc=capability)[0]


@cache
def program_at(path):
    name = path.name.rpartition("-")[0]
    return Program(path.read_text(), machine.OPCODES, name)


def program_of(function, signature, capability, key):
    """The Program of a kernel, whose PTX is kept under its name, its types and key."""
    name = f"{function.__module__}.{function.__qualname__} {signature} {capability}"
    name = hashlib.sha256(key + name.encode()).hexdigest()[:16]

    def make(path):
        path.write_text(compiled(function, signature, capability))

    return program_at(machine.kept(f"{function.__name__}-{name}.ptx", make))


class Array:
    """An array of the machine, contiguous, as numba.cuda's."""

    def __init__(self, owner, address, shape, dtype):
        self.owner, self.address = owner, address
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.size, self.ndim = prod(shape), len(shape)
        self.nbytes = self.size * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self):
        return {"data": (self.address, False)}

    def __getitem__(self, key):
        whole = self.owner.view(self.address, self.size, self.dtype)
        part = whole.reshape(self.shape)[key]
        if not part.flags.c_contiguous:
            raise NotImplementedError(f"{key}: want a contiguous part")
        address = self.address + part.ctypes.data - whole.ctypes.data
        return Array(self.owner, address, part.shape, self.dtype)

    def reshape(self, *shape):
        shape = shape[0] if isinstance(shape[0], tuple) else shape
        return Array(self.owner, self.address, shape, self.dtype)

    def copy_to_device(self, host):
        if (host.shape, host.dtype) != (self.shape, self.dtype):
            got = f"got {host.shape} of {host.dtype}"
            raise ValueError(f"host: {got}, want {self.shape}")
        self.owner.write(self.address, host)

    def copy_to_host(self, host=None):
        read = self.owner.read(self.address, self.size, self.dtype).reshape(self.shape)
        if host is None:
            return read
        host[:] = read
        return host


class Kernel:
    """A compiled kernel as numba.cuda's dispatcher, of one signature."""

    def __init__(self, owner, program, signature, name):
        self.owner, self.program, self.signature = owner, program, signature
        self.name = name
        self.overloads = {signature: self}

    def max_cooperative_grid_blocks(self, threads, shared=0):
        return self.owner.device.MULTIPROCESSOR_COUNT

    def __getitem__(self, grid):
        return Launch(self, *grid)

    def run(self, blocks, threads, shared, arguments):
        memory = self.owner.memory
        mark, values, copies = memory.next * 4, [], []
        for kind, argument in zip(self.signature, arguments, strict=True):
            values += self._bits(kind, argument, copies)
        memory.launch(self.program, blocks, threads, shared, values)
        for host, array in copies:
            found = memory.view(array.address, array.size, array.dtype)
            host[:] = found.reshape(host.shape)
        memory.release(mark)

    def _bits(self, kind, argument, copies):
        """What of an argument becomes parameters in PTX."""
        if isinstance(kind, types.BaseTuple):
            return [
                bits
                for each, entry in zip(kind, argument, strict=True)
                for bits in self._bits(each, entry, copies)
            ]
        if not isinstance(kind, types.Array):
            value = np.array(argument, str(kind))
            return [int(value.view(f"u{value.itemsize}"))]
        if isinstance(argument, np.ndarray):  # there before the launch, back after it
            array = self.owner.device_array(argument.shape, argument.dtype)
            array.copy_to_device(argument)
            copies.append((argument, array))
            argument = array
        if (str(kind.dtype), kind.ndim) != (str(argument.dtype), argument.ndim):
            raise TypeError(f"{self.name}: got {argument.dtype}, want {kind}")
        size, shape = argument.dtype.itemsize, argument.shape
        strides = [size * prod(shape[axis + 1 :]) for axis in range(len(shape))]
        return [0, 0, argument.size, size, argument.address, *shape, *strides]


class Untyped:
    """A kernel of arrays whose types are found at its launch, of a function that calls
    the stand-in `cuda`.
    """

    def __init__(self, owner, function):
        space = function.__globals__ | {"cuda": cuda}
        self.function = FunctionType(function.__code__, space, function.__name__)
        self.owner, self.kernels = owner, {}

    def __getitem__(self, grid):
        def launch(*arrays):
            kinds = tuple(types.Array(from_dtype(a.dtype), a.ndim, "C") for a in arrays)
            if kinds not in self.kernels:
                self.kernels[kinds] = self.owner.kernel(self.function, kinds)
            self.kernels[kinds][grid](*arrays)

        return launch


class Launch:
    """A kernel with its grid, as numba.cuda's."""

    def __init__(self, kernel, blocks, threads, stream=0, shared=0):
        self.dispatcher, self.sharedmem = kernel, shared
        self.griddim, self.blockdim = triple(blocks), triple(threads)

    def __call__(self, *arguments):
        how = prod(self.griddim), self.blockdim, self.sharedmem, arguments
        self.dispatcher.run(*how)


def triple(size):
    return (*size, 1, 1)[:3] if isinstance(size, tuple) else (size, 1, 1)


class Cuda:
    """What the package uses of numba.cuda, on a Machine `memory`."""

    pinned_array = staticmethod(np.zeros)

    def __init__(
        self,
        memory,
        multiprocessors=4,
        shared=machine.MOST_SHARED,
        capability=CAPABILITY,
    ):
        self.memory, self.capability = memory, capability
        self.device = SimpleNamespace(
            name="PTX machine",
            MULTIPROCESSOR_COUNT=multiprocessors,
            MAX_SHARED_MEMORY_PER_BLOCK_OPTIN=shared,
            CLOCK_RATE=1_000_000,
            MEMORY_CLOCK_RATE=1_000_000,
            GLOBAL_MEMORY_BUS_WIDTH=64,
            compute_capability=capability,
        )
        self.gpus = [self.device]

    def is_available(self):
        return True

    def get_current_device(self):
        return self.device

    def device_array(self, shape, dtype=np.float64):
        shape = shape if isinstance(shape, tuple) else (shape,)
        size = prod(shape) * np.dtype(dtype).itemsize
        return Array(self.memory, self.memory.allocate(size), shape, dtype)

    def to_device(self, host):
        array = self.device_array(host.shape, host.dtype)
        array.copy_to_device(host)
        return array

    def synchronize(self):
        pass

    def current_context(self):
        deallocations = SimpleNamespace(clear=lambda: None)
        return SimpleNamespace(
            device=self.device,
            memory_manager=SimpleNamespace(deallocations=deallocations),
            get_memory_info=lambda: (1 << 30, 1 << 30),
        )

    def jit(self, signature):
        if isinstance(signature, FunctionType):
            return Untyped(self, signature)
        return lambda function: self.kernel(function, signature, sources())

    def kernel(self, function, signature, key=None):
        """A kernel of a Python function for the machine."""
        if key is None:
            text = compiled(function, signature, self.capability)
            program = Program(text, machine.OPCODES)
        else:
            program = program_of(function, signature, self.capability, key)
        return Kernel(self, program, signature, function.__name__)


@contextmanager
def stand_in(stand):
    """While inside, the package's GPU code sees a Cuda as its device."""
    key = sources()
    host = device, *(module for module in VERSIONS if hasattr(module, "cuda"))
    with ExitStack() as stack:
        for module, name, value in (
            *((module, "cuda", stand) for module in host),
            (device, "allow_shared", lambda *how: None),
            (build, "_compile", lambda *both: stand.kernel(*both, key=key)),
        ):
            stack.enter_context(patch.object(module, name, value))
        # Kernels belong to one machine, and what runs there.
        for known in (
            build.build,
            available.why_unavailable,
            available.why_not_together,
        ):
            known.cache_clear()
            stack.callback(known.cache_clear)
        yield stand
