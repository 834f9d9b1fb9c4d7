"""MPI called from compiled code: messages to and fro and collectives between two ranks,
beside the same from Python, and a layer whose ranks hand h over so.

The functions are those of the library that mpi4py has loaded; handles are integers.
"""

import ctypes
from dataclasses import replace
from functools import cache, partial

import numpy as np
from mpi4py import MPI

from lstm_kernels.cpu import arrays
from lstm_kernels.cpu.instructions import array, foreign, place, record_at
from lstm_kernels.cpu.memory import at, point
from lstm_kernels.cpu.steps import layer_at
from lstm_kernels.kernels import native, part

from ..measure.comparer import MismatchError
from .shares import blocks_of, prepared, share_of_step

_library = ctypes.CDLL(MPI.__file__)  # it looks in what it is linked with, too
_BUFFER = 64, 32, 64  # bits of an address, a count and a datatype
send = foreign("MPI_Send", _library.MPI_Send, 32, *_BUFFER, 32, 32, 64)
receive = foreign("MPI_Recv", _library.MPI_Recv, 32, *_BUFFER, 32, 32, 64, 64)
send_receive = foreign(
    "MPI_Sendrecv",
    _library.MPI_Sendrecv,
    *(32, *_BUFFER, 32, 32, *_BUFFER, 32, 32, 64, 64),
)
gather = foreign("MPI_Allgather", _library.MPI_Allgather, 32, *_BUFFER, *_BUFFER, 64)
gather_shares = foreign(
    "MPI_Allgatherv", _library.MPI_Allgatherv, 32, *_BUFFER, 64, 64, 64, 64, 64
)
IN_PLACE, STATUS_WORDS = int(MPI.IN_PLACE), 8
handle = MPI._handleof  # the integer by which C knows a communicator or a datatype
# What a rank reads of a pass whose h goes by messages (`shares.prepared`): how many
# ranks there are, which it is, their communicator; MPI's datatype of one hidden unit of
# all samples; addresses of the ranks' hidden units and of the first of each, int32
# (shares,), and of room for an MPI_Status; what MPI returned, 0 for success.
MESSAGES, _ = arrays.record("shares me comm kind counts starts status error")
messages_at = record_at(MESSAGES)


@cache
def unit_kind(char, samples, units):
    """The datatype of one hidden unit of all samples, in an array (samples, units)."""
    number = MPI._typedict[char]
    if samples == 1:
        return number
    column = number.Create_vector(samples, 1, units)
    return column.Create_resized(0, number.Get_size()).Commit()


@part
def units_of(job, h, t, share, shares):
    """The first unit of a share after step t, its address, and how many there are."""
    low, high = blocks_of(job, share, shares)
    return place(h, (t + 1, 0, low * job.units)), (high - low) * job.units


@part
def steps_by_messages(p, turn, job):
    """The steps of a rank, which sends its units to each other one and takes theirs."""
    s = messages_at(job.order, 0)
    me, shares, kind = s.me, s.shares, s.kind
    h = array(job, layer_at(job.layers, 0).h, (job.T + 1, job.B, job.P))
    for t in range(job.T):
        share_of_step(job, t, me, shares)
        ours, count = units_of(job, h, t, me, shares)
        for k in range(1, shares):
            to, other = (me + k) % shares, (me - k) % shares
            theirs, number = units_of(job, h, t, other, shares)
            out, back = (ours, count, kind, to, 0), (theirs, number, kind, other, 0)
            s.error |= send_receive(*out, *back, s.comm, s.status)
    return turn


@part
def steps_by_collective(p, turn, job):
    """The same by one call a step."""
    s = messages_at(job.order, 0)
    h = array(job, layer_at(job.layers, 0).h, (job.T + 1, job.B, job.P))
    for t in range(job.T):
        share_of_step(job, t, s.me, s.shares)
        all_units = place(h, (t + 1,)), s.counts, s.starts, s.kind
        s.error |= gather_shares(IN_PLACE, 0, s.kind, *all_units, s.comm)
    return turn


def bound(params, world, x, kernel):
    """The Pass over x (T, B, D) of ranks that share the units of one layer, each with
    an h of its own. kernel: steps_by_messages or steps_by_collective.
    """
    shares, record = world.size, np.zeros(1, MESSAGES)
    way = prepared(params, x, record)
    blocks, units, padded = (way.space.sizes[name] for name in ("J", "units", "P"))
    ends = np.arange(shares + 1) * blocks // shares * units
    counts, starts = np.diff(ends).astype(np.int32), ends[:-1].astype(np.int32)
    status = np.zeros(STATUS_WORDS, np.int64)
    kind = unit_kind(way.h.dtype.char, x.shape[1], padded)
    point(record, shares=shares, me=world.rank, counts=counts, starts=starts)
    point(record, comm=handle(world.comm), kind=handle(kind), status=status)

    def run():
        way.space.work.run_kernel(kernel, (way, record, counts, starts, status))
        if error := int(record["error"][0]):
            raise MPI.Exception(error)

    return replace(way, run=run)


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
