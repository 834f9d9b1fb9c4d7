"""Micro-kernels of the report's own, called from Python."""

import ctypes
import timeit
from functools import partial

import numpy as np

from lstm_kernels.cells import CELLS
from lstm_kernels.cpu import registers
from lstm_kernels.cpu.entries import address
from lstm_kernels.cpu.micro_kernels import MicroKernels, compiled, parameters, passes
from lstm_kernels.cpu.packing import aligned


def for_python(micro_kernel, dtype, lanes, label):
    """A micro-kernel as a function of arrays that Python can call, without its lock."""
    code = ctypes.CFUNCTYPE(None, ctypes.c_int64)(
        compiled(micro_kernel, dtype, lanes, label)
    )
    passed = parameters(micro_kernel)

    def run(*operands):
        words = []
        for array, fields in zip(operands, passed.values(), strict=True):
            *_, rows, columns = array.shape
            known = {"rows": rows, "columns": columns, "stride": array.strides[-2]}
            known |= {"blocks": array.shape[0], "block": array.strides[0]}
            words += [address(array), *(known[field] for field in fields)]
        place = (ctypes.c_int64 * len(words))(*words)
        code(ctypes.addressof(place))

    return run


def register_peak(rounds=20_000, repeats=200):
    """GFLOP/s of one core in multiply-adds on registers alone: clock x units x lanes x
    2.
    """
    dtype, count = np.dtype(np.float32), registers.vector_registers().number - 4
    layout = MicroKernels(CELLS["lstm"], dtype, 1)
    values, turns = aligned((count, layout.lanes), dtype), np.empty((rounds, 0), dtype)
    values[:] = 0.1

    def sums(m, turns: passes("rows"), values: passes("stride")):
        """As many sums as registers, enough to hide the latency of a multiply-add."""
        x = values.vector(0, 0)
        totals = [m.variable(values.vector(k, 0)) for k in range(count)]
        for _ in m.each(turns.rows):
            for total in totals:
                m.set(total, m.fma(x, x, m.get(total)))
        for k, total in enumerate(totals):
            values.store(k, 0, m.get(total))

    call = for_python(sums, dtype, layout.lanes, "peak_of_registers")
    best = min(timeit.repeat(partial(call, turns, values), number=1, repeat=repeats))
    return 2 * rounds * values.size / best / 1e9
