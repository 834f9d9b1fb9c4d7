"""The scheduler loop: each worker runs its tasks, then steals what others have left.

A pass is a box of layers x steps x unit blocks x samples, row after row: a row is a
layer's stage, or a stage between, such as the output layer. A *task* is a sub-box
(`schedules.py`). Where several tasks share each step of a row, a task's *work items*
are a block of a step each; else it is one item.

An item waits for two counters: of its own row, until all blocks of the steps before are
done, and of the row below, until the steps it reads are. They suffice: nothing of a
step begins before all of the last one is done. An item belongs to the worker that
claims it, with a word of its task that counts items. Only a claimed item is waited for,
and a worker that waits, steals: a thread that comes late, or never, costs time and not
the result. (Ranks do not steal: they are all there.)

Claims and counters only grow: a *generation* of a pass begins where the last one
ended. A worker that was held up finds all its items claimed and all it waits for done.

A pass is cancelled between two steps when its CANCEL word is set; what it has written
is lost then. Cancelling is ignored once a task that changes parameters is ready.
"""

from typing import NamedTuple

import numba
import numpy as np
from numba import types

from ..kernels import part
from .atomics import atomic_add, compare_and_swap, load_acquire
from .entries import Reference, call_stage, integers
from .fp_mode import exchange_fp_mode
from .intrinsics import WORD, instruction, pause, sched_yield
from .thread_pool import LINE, SPINS, clock

# Words of `control`: is the pass cancelled?; the generation that ends the call, sooner
# than was asked for where a loss is not finite.
CANCEL, LAST = 0, LINE
NOTHING, DONE, WAITS = range(3)  # what became of an attempt
POLLS = 50  # looks at what one waits for, before a look at anything else


class Task(NamedTuple):
    """A row of `Plan.tasks`: what its stage is given, and what it waits for."""

    stage: int  # the address of what does an item
    layer: int
    start: int  # steps, in the order of the pass
    stop: int
    low: int  # unit blocks
    high: int
    first: int  # samples
    last: int
    shared: int  # do tasks share the steps of its row?
    items: int
    counter: int  # of its row and samples: blocks of steps that are done
    row_blocks: int  # blocks of a step of its row
    row_size: int  # blocks of all steps
    below: int  # the counters of the row below that have its samples: the first,
    below_end: int  # and the one after the last
    need: int  # blocks of steps that it reads there
    below_size: int  # as `row_size`, of the row below
    row_first: int  # the tasks of its row
    row_last: int
    changes: int  # does it change parameters?
    span: int  # the place of its first item's time


class Plan(NamedTuple):
    """What workers do, and the words with which they agree."""

    arguments: int  # the address of the stages' Arguments
    fp_mode: int  # that all compute in
    first_worker: int  # of this process, where the others are ranks
    steals: int  # do workers steal?
    tasks: int  # the address of the Tasks, words in a row
    last: int  # the last of them
    order: np.ndarray  # (N,): tasks, as each worker does them
    bounds: np.ndarray  # (workers + 1,): where those of each begin in it
    claims: np.ndarray  # (N LINE,): items of each task that are claimed
    counters: np.ndarray  # (C LINE,)
    control: np.ndarray  # (2 LINE,)
    spans: np.ndarray  # (items, 8): when each ran; empty if that is not wanted


_INTS = [np.zeros(shape, np.int64) for shape in (0, 0, 0, 0, 0, (0, 0))]
_PLAN = Reference(numba.typeof(Plan(*range(6), *_INTS)))
SIGNATURE = types.int64(*[types.int64] * 3, _PLAN)


@instruction(integers(Task), types.int64, types.int64)
def task_at(builder, tasks, k):
    """Task k of those at an address, a Reference."""
    size = 8 * len(Task._fields)
    return builder.add(tasks, builder.mul(k, WORD(size)))


@part
def ready_below(plan, task, generation):
    """Are the steps done that a task reads from the row below its own?"""
    need = generation * task.below_size + task.need
    for counter in range(task.below, task.below_end):
        if load_acquire(plan.counters, counter * LINE) < need:
            return False
    return True


@part
def can_begin(plan, k, generation):
    """Are the next item's dependencies of task k met, or is nothing left to claim?"""
    task = task_at(plan.tasks, k)
    i = load_acquire(plan.claims, k * LINE) - generation * task.items
    blocks = task.high - task.low if task.shared else 1
    if i >= task.items or i % blocks > 0:
        return True  # somebody has begun with this step
    before = generation * task.row_size + (task.start + i // blocks) * task.row_blocks
    if load_acquire(plan.counters, task.counter * LINE) < before:
        return False
    return i > 0 or ready_below(plan, task, generation)


@part
def try_next(plan, k, generation, number, p):
    """Do the next items of task k, of one step, if they can be done: whether some were
    DONE, it WAITS, or there is NOTHING left.
    """
    task = task_at(plan.tasks, k)
    blocks, claimed = task.high - task.low, generation * task.items
    i = load_acquire(plan.claims, k * LINE) - claimed
    if i >= task.items:
        return NOTHING
    if not can_begin(plan, k, generation):
        return WAITS
    size = blocks if task.shared else 1
    step, done = i // size, 0
    end = (step + 1) * size  # one past this step's last item
    while i < end:
        if not compare_and_swap(plan.claims, k * LINE, claimed + i, claimed + i + 1):
            i = load_acquire(plan.claims, k * LINE) - claimed  # another has it
            continue
        start, stop, low, high = task.start, task.stop, task.low, task.high
        if task.shared:
            low = serpentine(start + step, i - step * size, low, high)
            start, stop, high = start + step, start + step + 1, low + 1
        if run_item(plan, task, k, i, number, p, start, stop, low, high):
            return WAITS  # it was cancelled
        done, i = done + 1, i + 1
    size = 1 if task.shared else (task.stop - task.start) * task.row_blocks
    atomic_add(plan.counters, task.counter * LINE, done * size)
    return DONE if done else WAITS


@part
def serpentine(step, i, first, last):
    """The i-th block of a step: up and down in turns, so that a step begins with the
    weights that the last one left in the cache.
    """
    return first + i if step % 2 == 0 else last - 1 - i


@part
def run_item(plan, task, k, i, number, p, start, stop, low, high):
    """Call the stage; whether it was cancelled."""
    timed = len(plan.spans) > 0
    begin = clock() if timed else 0
    item = number, task.layer, task.start, task.stop, start, stop, low, high
    if call_stage(task.stage, plan.arguments, *item, task.first, task.last):
        return True
    if timed:
        span = plan.spans[task.span + i]
        span[0], span[1], span[2], span[3] = k, p, begin, clock()
    return False


@part
def steal(plan, generation, number, p, first, last):
    """Do items of one of some tasks; whether there were some that could be done."""
    for k in range(first, last):
        if try_next(plan, k, generation, number, p) == DONE:
            return True
    return False


@part
def all_done(plan, generation):
    """Is the last row done?"""
    last = task_at(plan.tasks, plan.last)
    for k in range(last.row_first, last.row_last):
        task = task_at(plan.tasks, k)
        done = load_acquire(plan.counters, task.counter * LINE)
        if done < (generation + 1) * task.row_size:
            return False
    return True


@part
def wait(plan, generation, number, p, k, at_end, waits):
    """Wait a while for what task k needs, or for the end of the pass, or steal; the
    number of waits in a row, 0 after a theft.

    Other tasks of a row whose steps are shared are tried soon, the rest late: a thread
    that takes another's block or layer finds none of its weights in the cache.
    """
    for _ in range(POLLS):
        if all_done(plan, generation) if at_end else can_begin(plan, k, generation):
            return waits
        pause()
    task, steals = task_at(plan.tasks, k), plan.steals
    first, last = task.row_first, task.row_last
    if steals and task.shared and steal(plan, generation, number, p, first, last):
        return 0
    late = waits * POLLS >= 2 * SPINS
    # What it waits for is among these
    if steals and late and steal(plan, generation, number, p, 0, last):
        return 0
    if waits * POLLS >= SPINS:
        sched_yield()
    return waits + 1


@part
def may_stop(plan, generation, k):
    """Is the pass cancelled, and may workers stop? Once all is there for a row that
    changes parameters, somebody may have begun with it.
    """
    if not load_acquire(plan.control, CANCEL):
        return False
    task = task_at(plan.tasks, k)
    return not (task.changes and ready_below(plan, task, generation))


@part
def run_pass(plan, generation, number, p):
    """The tasks of worker p, and what others leave; whether all is done."""
    for at in range(plan.bounds[p], plan.bounds[p + 1]):
        k, waits = plan.order[at], 0
        if load_acquire(plan.control, CANCEL):
            return False
        while True:
            outcome = try_next(plan, k, generation, number, p)
            if outcome == NOTHING:
                break
            if outcome == DONE:
                waits = 0
            elif may_stop(plan, generation, k):
                return False
            else:
                waits = wait(plan, generation, number, p, k, False, waits)
    k, waits = plan.last, 0
    while not all_done(plan, generation):
        if may_stop(plan, generation, k):
            return False
        waits = wait(plan, generation, number, p, k, True, waits)
    return True


def run(p, first, last, plan):
    """Passes first, ..., last-1 as worker p, or up to the one that ends the call; the
    next generation. Every worker computes in the same floating-point mode, whatever its
    thread has otherwise: else bits would tell who did what.
    """
    before, generation = exchange_fp_mode(plan.fp_mode), first
    while generation < min(last, load_acquire(plan.control, LAST)):
        if not run_pass(plan, generation, generation - first, plan.first_worker + p):
            break  # it was cancelled
        generation += 1
    exchange_fp_mode(before)
    return generation
