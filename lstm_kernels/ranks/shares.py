"""Unit blocks of one layer that several workers share, threads or ranks, each always
the same ones.

A step of a unit block needs h of every block after the step before. In memory that all
workers have, h needs no copy: each worker counts the steps it has done in a word of its
own, and looks at the others' words before it goes on.
"""

import numpy as np

from ..cpu.block_kernels import forward_block
from ..cpu.instructions import exchange, offer_core, pause, read, record_at
from ..cpu.rounds import LINE, SPINS
from ..kernels import part

# Bytes from one worker's word to the next: a core may fetch a line's neighbour with it.
APART = 2 * LINE
# What a worker reads of a pass that is shared; JOB.tasks is its address.
SHARING = np.dtype(
    [
        ("shares", np.int64),
        ("first", np.int64),  # the share of participant 0: this rank; 0 for threads
        ("words", np.int64),  # address of the shares' words
        ("before", np.int64),  # steps that the words have counted before this pass
        ("comm", np.int64),  # of messages: MPI's communicator
        ("kind", np.int64),  # and MPI's datatype of one hidden unit of all samples
        ("counts", np.int64),  # address of the shares' hidden units, int32 (shares,)
        ("starts", np.int64),  # address of the first of each, int32 (shares,)
        ("status", np.int64),  # address of room for an MPI_Status
        ("error", np.int64),  # what MPI returned, 0 for success
    ]
)
sharing_at = record_at(SHARING)


@part
def await_steps(word, steps):
    """Wait until the worker whose word this is has done so many steps."""
    spins = 0
    while read(word) < steps:
        spins += 1
        if spins < SPINS:
            pause()
        else:
            offer_core()


@part
def blocks_of(job, share, shares):
    """The bounds of the unit blocks of a share."""
    return job.J * share // shares, job.J * (share + 1) // shares


@part
def share_of_step(job, t, share, shares):
    """Step t of one share of the unit blocks, for every sample."""
    begin = t - t % job.input_steps
    end = min(begin + job.input_steps, job.T)
    low, high = blocks_of(job, share, shares)
    for j in range(low, high):
        forward_block(job, 0, j, t, begin, end, 0, job.B)


@part
def steps_in_memory(p, turn, job):
    """The steps of participant p; h lies where every worker reads it."""
    s = sharing_at(job.tasks, 0)
    share, before = s.first + p, s.before
    for t in range(job.T):
        share_of_step(job, t, share, s.shares)
        exchange(s.words + share * APART, before + t + 1)
        for k in range(s.shares):
            await_steps(s.words + k * APART, before + t + 1)
    return turn
