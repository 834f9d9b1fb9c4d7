"""MPI called from compiled code, and the steps of ranks that hand h over by messages.

The functions are those of the library that mpi4py has loaded; handles are integers.
"""

import ctypes
from functools import cache

from mpi4py import MPI

from ..cpu.block_kernels import layer_at
from ..cpu.instructions import array, foreign, place
from ..kernels import part
from .shares import blocks_of, share_of_step, sharing_at

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


def handle(thing):
    """The integer by which C knows a communicator or a datatype."""
    return MPI._handleof(thing)


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
    s = sharing_at(job.tasks, 0)
    me, shares, kind = s.first, s.shares, s.kind
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
    s = sharing_at(job.tasks, 0)
    h = array(job, layer_at(job.layers, 0).h, (job.T + 1, job.B, job.P))
    for t in range(job.T):
        share_of_step(job, t, s.first, s.shares)
        all_units = place(h, (t + 1,)), s.counts, s.starts, s.kind
        s.error |= gather_shares(IN_PLACE, 0, s.kind, *all_units, s.comm)
    return turn
