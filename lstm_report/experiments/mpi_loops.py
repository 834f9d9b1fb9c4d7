"""Messages to and fro and collectives between two ranks, in compiled loops and in loops
of Python.
"""

import ctypes
from functools import partial

import numpy as np
from mpi4py import MPI

from lstm_kernels.cpu.workspace import at
from lstm_kernels.kernels import native
from lstm_kernels.ranks.messages import (
    STATUS_WORDS,
    gather,
    handle,
    receive,
    send,
)

from ..measure.comparer import MismatchError


def messages(ours, theirs, count, turns, first, other, comm, byte, status):
    """Send `count` bytes and receive as many, `turns` times; 0 for success."""
    error = 0
    for _ in range(turns):
        if first:
            error |= send(ours, count, byte, other, 0, comm)
        error |= receive(theirs, count, byte, other, 0, comm, status)
        if not first:
            error |= send(ours, count, byte, other, 0, comm)
    return error


def collectives(ours, all_, count, turns, comm, byte):
    """Give every rank `count` bytes of each, `turns` times; 0 for success."""
    error = 0
    for _ in range(turns):
        error |= gather(ours, count, byte, all_, count, byte, comm)
    return error


def _compiled(function):
    count = function.__code__.co_argcount
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * count)
    return kind(native(function, "mpi"))


class Loops:
    """Loops of `turns` hand-overs of `count` bytes between two ranks."""

    def __init__(self, world, count, turns):
        self._world, self._count, self._turns = world, count, turns
        self._ours = np.full(count, world.rank + 1, np.uint8)
        self._all = np.zeros(2 * count, np.uint8)
        self._status = np.zeros(STATUS_WORDS, np.int64)

    def cases(self):
        """The loops by name, each with the hand-overs of a turn."""
        handles = handle(self._world.comm), handle(MPI.BYTE)
        rank, ours, turns = self._world.rank, at(self._ours), (self._count, self._turns)
        other = 1 - rank
        theirs = at(self._all) + other * self._count
        there = ours, theirs, *turns, other, other, *handles, at(self._status)
        everywhere = ours, at(self._all), *turns, *handles
        there = partial(self._checked, _compiled(messages), there)
        everywhere = partial(self._checked, _compiled(collectives), everywhere)
        return {
            "message": (there, 2),
            "collective": (everywhere, 1),
            "message from Python": (self._messages_from_python, 2),
            "collective from Python": (self._collectives_from_python, 1),
        }

    def _checked(self, loop, arguments):
        if error := loop(*arguments):
            raise MPI.Exception(error)
        if (other := self._all[(1 - self._world.rank) * self._count]) == 0:
            raise MismatchError(f"hand over: got {other}, want the other rank's number")

    def _messages_from_python(self):
        comm, rank = self._world.comm, self._world.rank
        theirs = self._all[(1 - rank) * self._count :][: self._count]
        for _ in range(self._turns):
            if rank == 0:
                comm.Send(self._ours, 1)
            comm.Recv(theirs, 1 - rank)
            if rank:
                comm.Send(self._ours, 0)

    def _collectives_from_python(self):
        for _ in range(self._turns):
            self._world.comm.Allgather(self._ours, self._all)
