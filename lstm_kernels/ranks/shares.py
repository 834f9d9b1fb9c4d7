"""Unit blocks of one layer that several workers share, threads or ranks, each always
the same ones.

A step of a unit block needs h of every block after the step before. In memory that all
workers have, h needs no copy: each worker counts the steps it has done in a word of its
own, and looks at the others' words before it goes on.

Ranks are all there. A region of threads promises none but its caller (`team.py`): so
who has waited long for a share takes its step, if nobody has begun it.
"""

import numpy as np

from ..cpu.block_kernels import forward_block
from ..cpu.instructions import (
    exchange,
    offer_core,
    pause,
    read,
    record_at,
    swap,
)
from ..cpu.rounds import LINE, SPINS
from ..kernels import part

# Bytes from one worker's word to the next: a core may fetch a line's neighbour with it.
APART = 2 * LINE
# What a worker reads of a pass that is shared; JOB.tasks is its address.
SHARING = np.dtype(
    [
        ("shares", np.int64),
        ("first", np.int64),  # the share of participant 0: this rank; 0 for threads
        ("helps", np.int64),  # may a participant take steps of other shares?
        ("words", np.int64),  # address of the shares' words: steps done, steps begun
        ("before", np.int64),  # steps that the words have counted before this pass
    ]
)
sharing_at = record_at(SHARING)


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
def take_step(job, s, t, share):
    """Step t of a share, unless somebody has begun it."""
    word, steps = s.words + share * APART, s.before + t + 1
    begun = read(word + 8)
    if begun < steps and swap(word + 8, begun, steps):
        share_of_step(job, t, share, s.shares)
        exchange(word, steps)


@part
def await_share(job, s, t, share):
    """Wait until step t of a share is done; whether it is, or all are to leave."""
    word, spins = s.words + share * APART, 0
    while read(word) < s.before + t + 1:
        if read(job.progress):
            return False
        spins += 1
        if spins < SPINS:
            pause()
        else:
            if s.helps:
                take_step(job, s, t, share)
            offer_core()
    return True


@part
def steps_in_memory(p, turn, job):
    """The steps of participant p; h lies where every worker reads it."""
    s = sharing_at(job.tasks, 0)
    for t in range(job.T):
        take_step(job, s, t, s.first + p)
        for k in range(s.shares):
            if not await_share(job, s, t, k):
                return turn
    return turn
