"""What the compiler made of a tile: its inner loops, counted by kind of instruction."""

import re
from typing import NamedTuple

FUSED = re.compile(r"vfn?madd|fmla|fmls")
MULTIPLY = re.compile(r"v?mulp[sd]|fmul\s+v")  # where no instruction does both
BROADCAST = re.compile(r"v?broadcast|vbroadcast|ld1r|v?movddup|v?movs[sd]\s.*\(")
LOAD = re.compile(r"v?mov[au]p[sd]\s+-?\w*\(|ld[rpu]+\s+q|ldp\s+q")
STACK = re.compile(r"\(%rsp|\[sp")
STORE = re.compile(r"v?mov\w*\s+%\w+, .*\(|st[rp]\s")


class Loop(NamedTuple):
    """An innermost loop of a tile: its instructions, and how many of them are of a kind.

    multiply_adds counts a multiplication and an addition as one where the CPU has no fused
    instruction; stack counts those that read or write a register spilled to memory.
    """

    lines: list
    multiply_adds: int
    from_memory: int  # of the multiply-adds, with an operand in memory
    loads: int
    broadcasts: int
    stack: int


def inner_loops(text):
    """The loops over k of x86-64 or aarch64 assembly: innermost, multiplying, storing nothing."""
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    labels = {line[:-1]: n for n, line in enumerate(lines) if re.match(r"\.?L\w+:$", line)}
    spans = []
    for n, line in enumerate(lines):
        jump = re.match(r"(?:j\w+|b\.?\w*|cbn?z\s+\w+,|tbn?z\s+\w+,.*,)\s+(\.?L\w+)$", line)
        start = labels.get(jump[1], n) if jump else n
        if start < n:
            spans.append((start, n))
    inner = [
        (a, b) for a, b in spans if not any(a <= c and d <= b for c, d in spans if (c, d) != (a, b))
    ]
    loops = [[x for x in lines[a : b + 1] if x and x[0] != "." and x[-1] != ":"] for a, b in inner]
    return [loop for loop in map(_count, loops) if loop.multiply_adds and not _stores(loop)]


def _stores(loop):
    """Whether results are written in a loop: then it is one over rows, with a cell or a sum."""
    return any(STORE.match(line) and not STACK.search(line) for line in loop.lines)


def _count(lines):
    matching = lambda kind: [line for line in lines if kind.match(line)]  # noqa: E731
    multiply = matching(FUSED) or matching(MULTIPLY)
    return Loop(
        lines,
        len(multiply),
        sum("(" in line for line in multiply),
        len(matching(LOAD)),
        len(matching(BROADCAST)),
        sum(bool(STACK.search(line)) for line in lines),
    )
