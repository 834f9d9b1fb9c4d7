"""The floating-point mode of a thread: rounding, traps, and what becomes of subnormal
numbers.
"""

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils

from .intrinsics import WORD, instruction

# By architecture: what stores and loads the register of the mode, at an address, and
# what that clobbers; its flags, which are no mode; its values that round to nearest,
# trap nothing, and keep subnormal numbers, as where C begins, or flush them to zero
# (FTZ and DAZ; FPCR.FZ).
_ARM = "mrs x9, fpcr\nstr x9, [$0]", "ldr x9, [$0]\nmsr fpcr, x9", "x9", 0, 0, 1 << 24
_REGISTERS = {
    "x86_64": ("stmxcsr ($0)", "ldmxcsr ($0)", "", 0x3F, 0x1F80, 0x9FC0),
    "aarch64": _ARM,
    "arm64": _ARM,
}
_REGISTER = _REGISTERS.get(llvmlite.binding.get_process_triple().split("-")[0])
KEEP, FLUSH = _REGISTER[4:] if _REGISTER else (0, 0)
llvmlite.binding.initialize_native_asmparser()


@instruction(types.int64, types.int64)
def exchange_fp_mode(builder, mode):
    """Switch this thread to a floating-point mode: KEEP, FLUSH, or what an earlier call
    returned, the mode before. Another architecture keeps its own.
    """
    if not _REGISTER:
        return mode
    store, load, clobbered, flags, *_ = _REGISTER
    place = cgutils.alloca_once_value(builder, WORD(0))
    kind = ir.FunctionType(ir.VoidType(), [place.type])
    clobbers = "r,~{memory}" + (f",~{{{clobbered}}}" if clobbered else "")
    builder.asm(kind, store, clobbers, [place], side_effect=True)
    before = builder.load(place)
    differ = builder.and_(builder.xor(before, mode), WORD(~flags))
    with builder.if_then(builder.icmp_unsigned("!=", differ, WORD(0))):
        builder.store(mode, place)
        builder.asm(kind, load, clobbers, [place], side_effect=True)
    return before
