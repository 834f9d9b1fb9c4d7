"""Work that several processes share, in memory that all of them have, and handing over
in it.

A step of a unit block needs h of every block after the step before. So each process
counts the steps it has done in a word of its own, and looks at the others' words before
it goes on.
"""

from ..kernels import part
from .instructions import exchange, offer_core, pause, read
from .rounds import LINE, SPINS

# The free names: functions of `block_kernels.py`.
forward_block = job_at = array_of_indices = None


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


def slice_steps(p, turn, address):
    """Steps `start` to `stop` - 1 of unit blocks `low` to `high` - 1 of layer 0, for
    every sample.

    job.tasks: start, stop, low, high; the address of the processes' words, a line of
    memory each, 0 if nobody waits; how many they are, and which is this one's; steps
    done before this pass.
    """
    job = job_at(address, 0)
    order = array_of_indices(job.tasks, (8,))
    start, stop, low, high = order[0], order[1], order[2], order[3]
    words, processes, own, before = order[4], order[5], order[6], order[7]
    for t in range(start, stop):
        if words:
            for k in range(processes):
                await_steps(words + k * LINE, before + t)
        begin = t - t % job.input_steps
        for j in range(low, high):
            forward_block(
                job, 0, j, t, begin, min(begin + job.input_steps, job.T), 0, job.B
            )
        if words:
            exchange(words + own * LINE, before + t + 1)
    if words:
        for k in range(processes):
            await_steps(words + k * LINE, before + stop)
    return turn
