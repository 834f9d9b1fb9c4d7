"""The passes of the fused rungs as machine code: their free names filled in, addresses by name."""

from functools import cache, partial

import numpy as np

from ..cells import CELLS
from ..kernels import fill, native, part
from . import block_kernels, fused_kernels, instructions, records, rounds, simd, wavefront_kernels
from .instructions import array_at, record_at
from .interrupts import LONG, interruptible
from .team import team
from .tiles import Tiles


class Kernels:
    """The kernels as machine code for a dtype and whatever tiles a plan names, each compiled when
    its address is first asked for.
    """

    def __init__(self, functions, label):
        self._functions, self._label, self._found = functions, label, {}

    def address(self, name):
        if name not in self._found:
            self._found[name] = native(self._functions[name].py_func, self._label)
        return self._found[name]

    def run(self, participants, name, work, owner, operations=0):
        """Run a kernel on a Work, in a region of up to so many participants; whether one stayed.

        operations: about how many it takes; if many, a signal can end it.
        """
        owner = owner, work.layers, work.job, work.sync, work.stop
        what = participants, self.address(name), work.address, work.next_round, owner
        if operations < LONG:
            return team().run(*what)
        work.stop[0] = 0
        return interruptible(partial(team().run, *what), work.stop, team().drain)


def names(dtype):
    """The free names of `fused_kernels` and `block_kernels`."""
    tiles = Tiles(CELLS["rnn"], dtype, 1).all()  # tiles of every cell are called alike
    found = {
        name: simd.caller(tiles[name])
        for name in ("inputs", "step", "whole", "back", "few", "transpose")
    }
    found |= {name: simd.caller(tiles[f"{name}_U"]) for name in ("through", "gradient")}
    found |= {name: getattr(rounds, name) for name in ("claim", "finish", "wait")}
    found |= {name: getattr(instructions, name) for name in ("read", "exchange", "call")}
    found |= {"layer_at": record_at(records.LAYER), "job_at": record_at(records.JOB)}
    found |= {"array": array_at(dtype), "array_of_indices": array_at(np.int64)}
    return found | {"real": dtype.type}


@cache
def fused(dtype):
    """The kernels of `numba-fused`."""
    functions = fill([fused_kernels, block_kernels], names(dtype), dtype.name, part)
    return Kernels(functions, dtype.name)


@cache
def wavefront(dtype):
    """What `numba-fused` has, and the tasks of flows, forward and backward."""
    modules = fused_kernels, block_kernels, wavefront_kernels
    return Kernels(fill(modules, names(dtype), dtype.name, part), dtype.name)
