"""What host code uses of numba.cuda, on a machine: with a Cuda in the place of `cuda`
it runs unchanged."""

from functools import partial
from types import FunctionType, SimpleNamespace

import numpy as np
from numba import cuda, from_dtype, types

from lstm_report.ptx_machine.arrays import Arguments, Array
from lstm_report.ptx_machine.compiler import CAPABILITY, compile_ptx
from lstm_report.ptx_machine.machine import MOST_SHARED
from lstm_report.ptx_machine.parse import Program


class Kernel:
    """A kernel as numba.cuda's dispatcher; of one signature, or of the types of each
    launch's arrays.
    """

    def __init__(self, owner, function, signature=None):
        self.owner, self.function, self.signature = owner, function, signature
        self.overloads = {}
        if signature:
            self.specialise(signature)

    def specialise(self, signature):
        if signature not in self.overloads:
            program = self.owner.program(self.function, signature)
            most = self.owner.device.MULTIPROCESSOR_COUNT
            self.overloads[signature] = SimpleNamespace(
                program=program, max_cooperative_grid_blocks=lambda *_: most
            )
        return self.overloads[signature].program

    def __getitem__(self, grid):
        blocks, threads, _, shared = (*grid, 0, 0)[:4]
        return partial(self.launch, blocks, threads, shared)

    def launch(self, blocks, threads, shared, *values):
        signature = self.signature or tuple(
            types.Array(from_dtype(a.dtype), len(a.shape), "C") for a in values
        )
        program, memory = self.specialise(signature), self.owner.memory
        mark = 4 * memory.next
        names = self.function.__code__.co_varnames[: len(values)]
        arguments = Arguments(memory, names, signature, values)
        memory.launch(program, blocks, threads, shared, arguments.bits)
        arguments.take_back()
        memory.release(mark)


class Cuda:
    """numba.cuda of a device that is a Machine, `memory`, of so many multiprocessors
    and bytes of shared memory for a block.

    compile: the Program of a Python function, its signature and the capability.
    """

    pinned_array = staticmethod(np.zeros)

    def __init__(
        self,
        memory,
        multiprocessors=4,
        shared=MOST_SHARED,
        capability=CAPABILITY,
        compile=lambda *kernel: Program(compile_ptx(*kernel), kernel[0].__name__),
    ):
        self.memory, self.compile = memory, compile
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
        self.device_array = partial(Array.new, memory)
        self.is_available, self.synchronize = lambda: True, lambda: None
        self.get_current_device = lambda: self.device
        deallocations = SimpleNamespace(clear=lambda: None)
        self.current_context = lambda: SimpleNamespace(
            device=self.device,
            memory_manager=SimpleNamespace(deallocations=deallocations),
            get_memory_info=lambda: (1 << 30, 1 << 30),
        )

    def to_device(self, host):
        array = self.device_array(host.shape, host.dtype)
        array.copy_to_device(host)
        return array

    def jit(self, signature, **options):
        if isinstance(signature, FunctionType):
            return Kernel(self, signature)
        return lambda function: Kernel(self, function, signature)

    def program(self, function, signature):
        space = function.__globals__
        if space.get("cuda") is self:  # a kernel calls the compiler's own names
            space, code = space | {"cuda": cuda}, function.__code__
            function = FunctionType(
                code, space, code.co_name, None, function.__closure__
            )
        return self.compile(function, signature, self.device.compute_capability)
