"""MPI called from compiled code: messages to and fro and collectives between two ranks,
beside the same from Python, and a layer whose ranks hand h over so.

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
gather = c_function("MPI_Allgather", _library.MPI_Allgather, 32, *_BUFFER, *_BUFFER, 64)
gather_shares = c_function(
    "MPI_Allgatherv", _library.MPI_Allgatherv, 32, *_BUFFER, 64, 64, 64, 64, 64
)
IN_PLACE, STATUS_WORDS = int(MPI.IN_PLACE), 8
handle = MPI._handleof  # the integer by which C knows a communicator or a datatype
load = None  # a Net from its address, which `shares.compiled` fills in


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


def steps_by_messages(me, shares, arguments, kind, counts, starts, status, comm):
    """The steps of a rank, which sends its units to each other one and takes theirs; 0
    for success. kind: MPI's datatype of one hidden unit of all samples. status: the
    address of room for an MPI_Status.
    """
    net, error = load(arguments), 0
    for t in range(net.T):
        share_of_step(net, t, me, shares)
        ours, count = units_of(net, t, me, shares)
        for k in range(1, shares):
            to, other = (me + k) % shares, (me - k) % shares
            theirs, number = units_of(net, t, other, shares)
            out, back = (ours, count, kind, to, 0), (theirs, number, kind, other, 0)
            error |= send_receive(*out, *back, comm, status)
    return error


def steps_by_collective(me, shares, arguments, kind, counts, starts, status, comm):
    """The same by one call a step. counts, starts: addresses of the shares' units and
    of the first of each, int32 (shares,).
    """
    net, error = load(arguments), 0
    for t in range(net.T):
        share_of_step(net, t, me, shares)
        h = view(net.h, (0, (t + 1) * net.h.shape[1] // (net.T + 1), 0), (1, 1))
        all_units = address_of(h), counts, starts, kind
        error |= gather_shares(IN_PLACE, 0, kind, *all_units, comm)
    return error


def bound(params, world, x, kernel):
    """The Pass over x (T, B, D) of ranks that share the units of one layer, each with
    an h of its own. kernel: steps_by_messages or steps_by_collective.
    """
    shares, way = world.size, prepared(params, x)
    net = way.workspace.net
    ends = np.arange(shares + 1) * net.J // shares * net.units
    counts, starts = np.diff(ends).astype(np.int32), ends[:-1].astype(np.int32)
    status = np.zeros(STATUS_WORDS, np.int64)
    kind = unit_kind(way.h.dtype.char, x.shape[1], net.h.shape[2])
    run = as_function(compiled(kernel, way), 8)
    places = address(counts), address(starts), address(status)
    arguments = way.workspace.arguments.address
    calls = world.rank, shares, arguments, handle(kind), *places, handle(world.comm)

    def checked(_=(way, counts, starts, status)):  # which must live as long
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


def collectives(ours, all_, count, turns, comm, byte):
    """Give every rank `count` bytes of each, `turns` times; 0 for success."""
    error = 0
    for _ in range(turns):
        error |= gather(ours, count, byte, all_, count, byte, comm)
    return error


def as_function(code, count):
    """Machine code of `count` integers as a function, which lets other threads run."""
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * count)(code)


def _compiled(function):
    return as_function(native(function, "mpi"), function.__code__.co_argcount)


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
        rank, ours, turns = (
            self._world.rank,
            address(self._ours),
            (self._count, self._turns),
        )
        other = 1 - rank
        theirs = address(self._all) + other * self._count
        there = ours, theirs, *turns, other, other, *handles, address(self._status)
        everywhere = ours, address(self._all), *turns, *handles
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
