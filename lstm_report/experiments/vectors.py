"""Micro-kernels of the report's own, called from Python."""

import ctypes

from lstm_kernels.cpu.entries import address
from lstm_kernels.cpu.micro_kernels import compiled, parameters


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
