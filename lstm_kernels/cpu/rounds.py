"""Rounds of tasks: how threads share work inside one parallel region, without locks.

Work is a sequence of rounds, each of some tasks that do not depend on each other; a round begins
when every task of the one before is done. Participants *claim* tasks: each first those of its own
group, whose weights its cache holds, then what others have left. Only a thread that has claimed a
task is waited for, so one that comes late, or never gets a core, costs time and not the result;
and since a task computes the same numbers whoever claims it, the bits depend on nobody.

Rounds are numbered, and the numbers of a `sync` only grow. A word holds the round it was last used
for and a count, `round << COUNT_BITS | count`: how many tasks of a group are claimed, or how many
of all groups are done. So nothing is ever reset, a few words serve any number of rounds, and a
participant that was held up somewhere sees from a larger number that its round is long over: it
claims nothing and leaves.
"""

import ctypes
import inspect
import os

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

SPINS = 1000  # pauses, some 20 us of waiting, then the core is offered to others
COUNT_BITS = 24
COUNT = (1 << COUNT_BITS) - 1
LINE, SLOTS = 64, 8  # bytes of a cache line; its words, of which each round uses the next

_WORD = ir.IntType(64)
library = ctypes.windll.kernel32 if os.name == "nt" else ctypes.CDLL(None)


def foreign(name, function, result, *arguments):
    """A function for compiled code that calls a C function of integers; bits of each, 0 for none.

    Compiled code finds it as lstm_kernels_<name>, from the cache too.
    """
    symbol, kinds = f"lstm_kernels_{name}", [ir.IntType(bits) for bits in arguments]
    llvmlite.binding.add_symbol(symbol, ctypes.cast(function, ctypes.c_void_p).value)
    returned = types.int64 if result else types.void

    def call(typing, *given):
        def generate(context, builder, signature, args):
            kind = ir.FunctionType(ir.IntType(result) if result else ir.VoidType(), kinds)
            callee = cgutils.get_or_insert_function(builder.module, kind, symbol)
            narrow = [
                a if k == _WORD else builder.trunc(a, k) for a, k in zip(args, kinds, strict=True)
            ]
            value = builder.call(callee, narrow)
            if not result:
                return context.get_dummy_value()
            return value if result == 64 else builder.sext(value, _WORD)

        return returned(*[types.int64] * len(kinds)), generate

    names = ["typing", *(f"a{k}" for k in range(len(kinds)))]
    call.__signature__ = inspect.Signature(
        [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
    )
    call.__name__ = call.__qualname__ = name
    return intrinsic(call)


# Let another thread run, if one is ready.
offer_core = foreign(
    "yield", library.SwitchToThread if os.name == "nt" else library.sched_yield, 32
)


def _word(builder, address):
    return builder.inttoptr(address, _WORD.as_pointer())


@intrinsic
def add(typing, address, number):
    """The word at an address += number, as one step that no thread sees halfway; its old value."""

    def generate(context, builder, signature, args):
        return builder.atomic_rmw("add", _word(builder, args[0]), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def exchange(typing, address, number):
    """The word at an address = number, before anything that is read later; its old value."""

    def generate(context, builder, signature, args):
        return builder.atomic_rmw("xchg", _word(builder, args[0]), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def swap(typing, address, old, new):
    """If the word at an address is `old`, make it `new`: whether it was."""

    def generate(context, builder, signature, args):
        pair = builder.cmpxchg(_word(builder, args[0]), *args[1:], "seq_cst", "acquire")
        return builder.extract_value(pair, 1)

    return types.boolean(types.int64, types.int64, types.int64), generate


@intrinsic
def read(typing, address):
    """The word at an address as it is in memory now, before anything that is read later."""

    def generate(context, builder, signature, args):
        return builder.load_atomic(_word(builder, args[0]), "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic
def pause(typing):
    """Tell the core that this is a waiting loop."""

    def generate(context, builder, signature, args):
        if builder.module.triple.startswith(("x86_64", "i686", "i386")):
            kind = ir.FunctionType(ir.VoidType(), [])
            name = "llvm.x86.sse2.pause"
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])
        return context.get_dummy_value()

    return types.void(), generate


@njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
def claim(sync, groups, turn, me, tasks):
    """A task of round `turn` that nobody has, for participant `me`; -1 when all are claimed."""
    for i in range(groups):
        group = (me + i) % groups
        first, last = tasks * group // groups, tasks * (group + 1) // groups
        word = sync + group * LINE + turn % SLOTS * 8  # of this group and round
        while True:
            old = read(word)
            if old >> COUNT_BITS > turn:
                return -1  # the round is over
            task = old & COUNT if old >> COUNT_BITS == turn else 0
            if task >= last - first:
                break
            if swap(word, old, turn << COUNT_BITS | task + 1):
                # To and fro: first what the last round left in the cache.
                return first + task if turn % 2 == 0 else last - 1 - task
    return -1


@njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
def finish(sync, groups, turn):
    """A task of round `turn` that was claimed is done."""
    word = sync + groups * LINE + turn % SLOTS * 8
    while True:
        old = read(word)
        done = old & COUNT if old >> COUNT_BITS == turn else 0
        if swap(word, old, turn << COUNT_BITS | done + 1):
            return


@njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
def wait(sync, groups, turn, tasks):
    """Wait until the `tasks` tasks of round `turn` are done; the number of the next round."""
    word, spins = sync + groups * LINE + turn % SLOTS * 8, 0
    while tasks and read(word) < turn << COUNT_BITS | tasks:
        spins += 1
        if spins < SPINS:
            pause()
        else:
            offer_core()
    return turn + 1


def new_sync(buffer, groups):
    """A region's words: a line for each group, one for what is done, one for the next round."""
    sync = buffer(groups + 2, SLOTS, dtype=np.int64)
    sync[-1, 0] = 2  # rounds are even and odd, from the first that no word can hold by itself
    return sync
