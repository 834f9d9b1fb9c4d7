"""What the compiler made of a tile: its inner loops, and counts of their
instructions.
"""

import re

import numba

from lstm_kernels.cpu import micro_kernels
from lstm_kernels.kernels import OPTIONS, fill

FUSED = re.compile(r"vfn?madd|fmla|fmls")
MULTIPLY = re.compile(r"v?mulp[sd]|fmul\s+v")  # where no instruction does both
BROADCAST = re.compile(r"v?broadcast|vbroadcast|ld1r|v?movddup|v?movs[sd]\s.*\(")
LOAD = re.compile(r"v?mov[au]p[sd]\s+-?\w*\(|ld[rpu]+\s+q|ldp\s+q")
STACK = re.compile(r".*(\(%rsp|\[sp)")
DIVIDE = re.compile(r"v?div|fdiv")
STORE = re.compile(r"(v?mov\w*\s+%\w+, .*\(|st[rp]\s)(?!.*(\(?%rsp|\[sp))")
JUMP = re.compile(r"(?:j\w+|b\.?\w*|cbn?z\s+\w+,|tbn?z\s+\w+,.*,)\s+(\.?L\w+)$")


def counts(lines):
    """How many instructions of a loop are of a kind.

    A multiplication and an addition count as one multiply-add where the CPU has no
    fused instruction; a read or write of the stack is a register spilled to memory.
    """
    matching = lambda kind: [line for line in lines if kind.match(line)]  # noqa: E731
    multiply = matching(FUSED) or matching(MULTIPLY)
    kinds = {
        "multiply-adds": len(multiply),
        "of these with an operand from memory": sum("(" in line for line in multiply),
        "vector loads": len(matching(LOAD)),
        "broadcasts": len(matching(BROADCAST)),
        "reads and writes of the stack": len(matching(STACK)),
    }
    others = (
        len(lines) - sum(kinds.values()) + kinds["of these with an operand from memory"]
    )
    return kinds | {"everything else": others}


def inner_loops(text):
    """The loops over k of x86-64 or aarch64 assembly, each as its instructions:
    innermost ones that multiply and store no results, which one over rows does, nor
    divide, as a cell does.
    """
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    labels = {
        line[:-1]: n for n, line in enumerate(lines) if re.match(r"\.?L\w+:$", line)
    }
    jumps = {n: jump[1] for n, line in enumerate(lines) if (jump := JUMP.match(line))}
    spans = [(labels[to], n) for n, to in jumps.items() if labels.get(to, n) < n]
    loops = []
    for first, last in spans:
        inside = [
            x for x in lines[first : last + 1] if x and x[0] != "." and x[-1] != ":"
        ]
        innermost = not any(
            first <= start and stop <= last and (start, stop) != (first, last)
            for start, stop in spans
        )
        more = any(STORE.match(line) or DIVIDE.match(line) for line in inside)
        if innermost and not more and counts(inside)["multiply-adds"]:
            loops.append(inside)
    return loops


def assembly(micro_kernel, dtype, lanes):
    """The machine code of a micro-kernel as assembly, compiled for the purpose."""
    names = {"traced": micro_kernels.trace(micro_kernel, dtype, lanes)}
    function = fill([micro_kernels._call], names, "assembly")["_call"]
    code = numba.cfunc(micro_kernels.SIGNATURE, **OPTIONS)(function)
    return code._library.get_asm_str()
