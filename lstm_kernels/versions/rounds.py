"""Rounds of tasks: how threads share work inside one parallel region, without locks.

Work is a sequence of rounds, each of some tasks that do not depend on each other; a round begins
when every task of the one before is done. Participants *claim* tasks: each first those of its own
share, whose weights its cache holds, then what others have left. Nobody is waited for who has not
claimed something, so a thread that comes late, or never gets a core, costs time and not the result;
and since a task computes the same numbers whoever claims it, the bits depend on nobody.

`sync` is an integer array (participants + 1, rounds): how many tasks of each share are claimed, and
in its last row, first column, how many tasks are done in all. Zero before a region is entered.
"""

import ctypes
import os

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

SPINS = 4000  # some 50 us of waiting, then the core is offered to others

library = ctypes.windll.kernel32 if os.name == "nt" else ctypes.CDLL(None)
_yield = library.SwitchToThread if os.name == "nt" else library.sched_yield
_NAME = "lstm_kernels_yield"  # compiled code finds it under this name, from the cache too
llvmlite.binding.add_symbol(_NAME, ctypes.cast(_yield, ctypes.c_void_p).value)


def _element(context, builder, signature, args):
    kind, (array, row, column) = signature.args[0], args[:3]
    view = context.make_array(kind)(context, builder, array)
    return cgutils.get_item_pointer(context, builder, kind, view, [row, column])


@intrinsic
def add_one(typing, array, row, column):
    """array[row, column] += 1, as one step that no other thread sees halfway; the value before."""

    def generate(context, builder, signature, args):
        pointer = _element(context, builder, signature, args)
        return builder.atomic_rmw("add", pointer, ir.Constant(ir.IntType(64), 1), "acq_rel")

    return types.int64(array, types.intp, types.intp), generate


@intrinsic
def read(typing, array, row, column):
    """array[row, column] as it is in memory now, before anything that is read later."""

    def generate(context, builder, signature, args):
        return builder.load_atomic(_element(context, builder, signature, args), "acquire", 8)

    return types.int64(array, types.intp, types.intp), generate


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


@intrinsic
def offer_core(typing):
    """Let another thread run, if one is ready."""

    def generate(context, builder, signature, args):
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, _NAME), [])
        return context.get_dummy_value()

    return types.void(), generate


@njit
def claim(sync, turn, me, tasks):
    """A task of round `turn` that nobody has, for participant `me`; -1 when all are claimed."""
    groups = len(sync) - 1
    for i in range(groups):
        group = (me + i) % groups
        first, last = tasks * group // groups, tasks * (group + 1) // groups
        if read(sync, group, turn) < last - first:
            task = add_one(sync, group, turn)
            if task < last - first:  # to and fro: first what the last round left in the cache
                return first + task if turn % 2 == 0 else last - 1 - task
    return -1


@njit
def finish(sync):
    """The task that was claimed last is done."""
    add_one(sync, len(sync) - 1, 0)


@njit
def wait(sync, done):
    """Wait until `done` tasks are done since the region was entered."""
    spins = 0
    while read(sync, len(sync) - 1, 0) < done:
        spins += 1
        if spins < SPINS:
            pause()
        else:
            offer_core()


def new_sync(participants, rounds):
    """Zeros for a region: rows on cache lines of their own."""
    return np.zeros((participants + 1, -(-rounds // 8) * 8 + 8), np.int64)
