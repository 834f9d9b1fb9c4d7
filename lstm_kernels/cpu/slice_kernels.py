"""Unit blocks of a layer that several processes share, in memory that all of them have.

A step of a unit block needs h of every block after the step before. So each process
counts the steps it has done in a word of its own, and looks at the others' words before
it goes on.
"""

from ..kernels import part
from .block_kernels import forward_block
from .instructions import exchange, integers, offer_core, pause, read
from .rounds import LINE, SPINS


@part
def await_steps(word, steps):
    """Wait until the process whose word this is has done so many steps."""
    spins = 0
    while read(word) < steps:
        spins += 1
        if spins < SPINS:
            pause()
        else:
            offer_core()


@part
def slice_steps(p, turn, job):
    """Steps `start` to `stop` - 1 of unit blocks `low` to `high` - 1 of layer 0, for
    every sample.

    job.tasks: start, stop, low, high; the address of the processes' words, a line of
    memory each, 0 if nobody waits; how many they are, and which is this one's; steps
    done before this pass.
    """
    order = integers(job.tasks, 8)
    start, stop, low, high = order[0], order[1], order[2], order[3]
    words, processes, rank, before = order[4], order[5], order[6], order[7]
    for t in range(start, stop):
        if words:
            for k in range(processes):
                await_steps(words + k * LINE, before + t)
        begin = t - t % job.input_steps
        end = min(begin + job.input_steps, job.T)
        for j in range(low, high):
            forward_block(job, 0, j, t, begin, end, 0, job.B)
        if words:
            exchange(words + rank * LINE, before + t + 1)
    if words:
        for k in range(processes):
            await_steps(words + k * LINE, before + stop)
    return turn
