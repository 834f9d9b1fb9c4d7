"""Rounds of tasks: how threads share work inside one parallel region, without locks.

Work is a sequence of rounds of tasks that do not depend on each other; a round begins
when every task of the one before is done. Participants *claim* tasks: first those of
their own group, whose weights their cache holds, then what others have left. Only a
claimed task is waited for: a thread that comes late, or never, costs time and not the
result.

A word holds the round it was last used for and a count, `round << COUNT_BITS | count`:
tasks of a group that are claimed, or of all groups that are done. Rounds only grow:
nothing is ever reset, and a participant that was held up sees from a larger number that
its round is over, and leaves.

Memory of a `sync`, lines of 64 bytes: one for each group, its words the claims of a
round each in turn; one for what is done, likewise; one whose first word is the number
of the next round.
"""

import numpy as np

from ..kernels import part
from .instructions import offer_core, pause, read, swap

SPINS = 1000  # pauses, some 20 us of waiting, then the core is offered to others
COUNT_BITS = 24
COUNT = (1 << COUNT_BITS) - 1
# Bytes of a cache line; its words, of which each round uses the next
LINE, SLOTS = 64, 8


@part
def claim(sync, groups, turn, me, tasks):
    """Claim a task of round `turn` for participant `me`: its number; -1 when all are
    claimed.
    """
    for i in range(groups):
        group = (me + i) % groups
        first, last = tasks * group // groups, tasks * (group + 1) // groups
        # Claims of this group in this round
        word = sync + group * LINE + turn % SLOTS * 8
        while True:
            old = read(word)
            if old >> COUNT_BITS > turn:
                return -1  # the round is over
            task = old & COUNT if old >> COUNT_BITS == turn else 0
            if task >= last - first:
                break
            if swap(word, old, turn << COUNT_BITS | task + 1):
                # To and fro: first what the last round left in the cache.
                return first + task if turn % 2 == 0 else last - 1 - task
    return -1


@part
def finish(sync, groups, turn):
    """A task of round `turn` that was claimed is done."""
    # The line behind the groups': done in the round
    word = sync + groups * LINE + turn % SLOTS * 8
    while True:
        old = read(word)
        done = old & COUNT if old >> COUNT_BITS == turn else 0
        if swap(word, old, turn << COUNT_BITS | done + 1):
            return


@part
def wait(sync, groups, turn, tasks):
    """Wait until the `tasks` tasks of round `turn` are done; the number of the next
    round.
    """
    word, spins = sync + groups * LINE + turn % SLOTS * 8, 0  # done in the round
    while tasks and read(word) < turn << COUNT_BITS | tasks:
        spins += 1
        if spins < SPINS:
            pause()
        else:
            offer_core()
    return turn + 1


def new_sync(buffer, groups):
    """The words of a region, (groups + 2, SLOTS) from `buffer`, whose next round is the
    first.
    """
    sync = buffer(groups + 2, SLOTS, dtype=np.int64)
    # Rounds are even and odd, from the first that no word can hold by itself.
    sync[-1, 0] = 2
    return sync
