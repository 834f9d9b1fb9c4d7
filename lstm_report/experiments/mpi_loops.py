"""MPI called from compiled code: messages to and fro between two ranks, and the same
from Python; and a layer whose ranks send each other their units of h.

The functions are those of the library that mpi4py has loaded; handles are integers.
"""

import ctypes
from dataclasses import replace
from functools import cache, partial

import numpy as np
from mpi4py import MPI

from lstm_kernels.cpu.entries import address
from lstm_kernels.cpu.intrinsics import address_of, c_function, view
from lstm_kernels.kernels import native, part

from ..measure.comparer import MismatchError
from .shares import blocks_of, compiled, prepared, share_of_step

_library = ctypes.CDLL(MPI.__file__)  # it looks in what it is linked with, too
_BUFFER = 64, 32, 64  # bits of an address, a count and a datatype
send = c_function("MPI_Send", _library.MPI_Send, 32, *_BUFFER, 32, 32, 64)
receive = c_function("MPI_Recv", _library.MPI_Recv, 32, *_BUFFER, 32, 32, 64, 64)
send_receive = c_function(
    "MPI_Sendrecv",
    _library.MPI_Sendrecv,
    *(32, *_BUFFER, 32, 32, *_BUFFER, 32, 32, 64, 64),
)
STATUS_WORDS = 8
handle = MPI._handleof  # the integer by which C knows a communicator or a datatype


@cache
def unit_kind(char, samples, units):
    """The datatype of one hidden unit of all samples, in an array (samples, units)."""
    number = MPI._typedict[char]
    if samples == 1:
        return number
    column = number.Create_vector(samples, 1, units)
    return column.Create_resized(0, number.Get_size()).Commit()


@part
def units_of(net, t, share, shares):
    """The address of a share's units after step t, and how many there are."""
    low, high = blocks_of(net, share, shares)
    h = view(
        net.h, (0, (t + 1) * net.h.shape[1] // (net.T + 1), low * net.units), (1, 1)
    )
    return address_of(h), (high - low) * net.units


def steps_by_messages(me, shares, kind, status, comm, net):
    """The steps of a rank, which sends its units to each other one and takes theirs; 0
    for success. kind: MPI's datatype of one hidden unit of all samples. status: the
    address of room for an MPI_Status.
    """
    error = 0
    for t in range(net.T):
        share_of_step(net, t, me, shares)
        ours, count = units_of(net, t, me, shares)
        for k in range(1, shares):
            to, other = (me + k) % shares, (me - k) % shares
            theirs, number = units_of(net, t, other, shares)
            out, back = (ours, count, kind, to, 0), (theirs, number, kind, other, 0)
            error |= send_receive(*out, *back, comm, status)
    return error


def bound(params, world, x):
    """The Pass over x (T, B, D) of ranks that share the units of one layer, each with
    an h of its own, and send each other their units.
    """
    way, status = prepared(params, x), np.zeros(STATUS_WORDS, np.int64)
    kind = unit_kind(way.h.dtype.char, x.shape[1], way.workspace.net.h.shape[2])
    run = as_function(compiled(steps_by_messages, way), 6)
    calls = world.rank, world.size, handle(kind), address(status)
    calls += handle(world.comm), way.workspace.arguments.address

    def checked(_=(way, status)):  # which must live as long
        if error := run(*calls):
            raise MPI.Exception(error)

    return replace(way, run=checked)


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


def as_function(code, count):
    """Machine code of `count` integers as a function, which lets other threads run."""
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * count)(code)


class Messages:
    """Loops of `turns` messages of `count` bytes there and back between two ranks."""

    def __init__(self, world, count, turns):
        self._world, self._count, self._turns = world, count, turns
        self._ours = np.full(count, world.rank + 1, np.uint8)
        self._theirs = np.zeros(count, np.uint8)

    def cases(self):
        """The loops by name."""
        rank, status = self._world.rank, np.zeros(STATUS_WORDS, np.int64)
        run = as_function(native(messages, "mpi"), messages.__code__.co_argcount)
        places = address(self._ours), address(self._theirs)
        arguments = *places, self._count, self._turns, 1 - rank, 1 - rank
        handles = handle(self._world.comm), handle(MPI.BYTE)

        def compiled_loop():
            return run(*arguments, *handles, address(status))

        return {
            "message": partial(self._checked, compiled_loop),
            "message from Python": partial(self._checked, self._from_python),
        }

    def _checked(self, loop):
        self._theirs[:] = 0
        if error := loop():
            raise MPI.Exception(error)
        if not (self._theirs == 2 - self._world.rank).all():
            got = self._theirs[0]
            raise MismatchError(f"hand over: got {got}, want the other rank's number")

    def _from_python(self):
        comm, rank = self._world.comm, self._world.rank
        for _ in range(self._turns):
            if rank == 0:
                comm.Send(self._ours, 1)
            comm.Recv(self._theirs, 1 - rank)
            if rank:
                comm.Send(self._ours, 0)
