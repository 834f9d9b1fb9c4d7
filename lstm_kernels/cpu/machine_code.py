"""The passes of `numba-fused` and `numba-wavefront` as machine code: the free names of
their kernels filled in, once for a dtype. Nothing is compiled until it is needed.
"""

from functools import cache

import numpy as np

from ..cells import CELLS
from ..kernels import fill, native, part
from . import (
    bfloat16_kernels,
    block_kernels,
    factored_kernels,
    fused_kernels,
    instructions,
    records,
    rounds,
    simd,
    slice_kernels,
    wavefront_kernels,
)
from .bfloat16 import Bfloat16Tiles
from .instructions import array_at, record_at
from .interrupts import run_on
from .team import team
from .tiles import Tiles


class Kernels:
    """The kernels of a dtype, each compiled when its address is first asked for."""

    def __init__(self, functions, label):
        self._functions, self._label, self._addresses = functions, label, {}

    def address(self, name):
        if name not in self._addresses:
            self._addresses[name] = native(self._functions[name].py_func, self._label)
        return self._addresses[name]

    def run(self, participants, name, work, owner, operations=0):
        """Run a kernel on a Work, in a region of up to so many participants; whether
        one stayed. owner: what the Work's addresses point into, beside its own arrays.
        operations: about how many; if many, a signal can end it.
        """
        code, owner = self.address(name), (owner, work.arrays)
        return run_on(
            work,
            operations,
            team().run,
            participants,
            code,
            work.address,
            work.next_round,
            owner,
        )


@cache
def kernels(dtype, words=False):
    """The Kernels of a dtype; words: those whose operands are words of bfloat16
    numbers.
    """
    tiles = Tiles(CELLS["rnn"], dtype, 1).all()  # tiles of every cell are called alike
    alike = ("inputs", "step", "whole", "single", "back", "few", "transpose")
    names = {name: simd.caller(tiles[name]) for name in alike}
    names |= {name: simd.caller(tiles[f"{name}_U"]) for name in ("through", "gradient")}
    names |= {name: getattr(rounds, name) for name in ("claim", "finish", "wait")}
    shared = ("read", "exchange", "call", "pause", "offer_core")
    names |= {name: getattr(instructions, name) for name in shared}
    names |= {"layer_at": record_at(records.LAYER), "job_at": record_at(records.JOB)}
    names["factored_layer_at"] = record_at(records.FACTORED_LAYER)
    names["factored_job_at"] = record_at(records.FACTORED_JOB)
    names |= {
        "array": array_at(dtype),
        "array_of_indices": array_at(np.int64),
        "real": dtype.type,
    }
    modules = [
        fused_kernels,
        block_kernels,
        wavefront_kernels,
        factored_kernels,
        slice_kernels,
    ]
    label = dtype.name
    if words:
        tiles, label = Bfloat16Tiles(CELLS["rnn"], dtype, 1).all(), "bfloat16"
        names["round_numbers"] = simd.caller(tiles["round_numbers"])
        names["pair_rows_of"] = simd.caller(tiles["pair_numbers"])
        modules.append(
            bfloat16_kernels
        )  # its functions stand for those of the same name
    return Kernels(fill(modules, names, label, part), label)
