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
the result.

Claims and counters only grow: a *generation* of a pass begins where the last one
ended. A worker that was held up finds all its items claimed and all it waits for done.

A pass is cancelled between two steps when its CANCEL word is set; what it has written
is lost then. Nobody stops while parameters change.
"""

from typing import NamedTuple

import numba
import numpy as np

from ..kernels import part
from .atomics import atomic_add, compare_and_swap, load_acquire
from .entries import call_stage, loader
from .fp_mode import exchange_fp_mode
from .intrinsics import pause, sched_yield
from .thread_pool import LINE, SPINS, clock

# Words of `control`: is the pass cancelled?; the generation that ends the call, sooner
# than was asked for where a loss is not finite.
CANCEL, LAST = 0, LINE
NOTHING, DONE, WAITS = range(3)  # what became of an attempt
POLLS = 50  # looks at what one waits for, before a look at anything else


class Row(NamedTuple):
    """A row of `Plan.rows`. offset: its first counter, one for each group of samples.
    stepwise: does a step wait for the same steps of the row below, or for all? shared:
    do tasks share its steps? changes: does it change parameters?
    """

    stage: int  # the address of what does a task of it
    layer: int
    steps: int
    blocks: int
    groups: int
    offset: int
    stepwise: int
    shared: int
    changes: int
    first_task: int
    last_task: int


class Task(NamedTuple):
    """A row of `Plan.tasks`, a box of a row: steps in the order of the pass, blocks,
    samples; which group those are, and which groups of the row below they are in; the
    place of its first item's time.
    """

    row: int
    start: int
    stop: int
    low: int
    high: int
    first: int
    last: int
    group: int
    first_below: int
    last_below: int
    span: int


class Plan(NamedTuple):
    """What workers do, and the words with which they agree."""

    arguments: int  # the address of the stages' Arguments
    fp_mode: int  # that all compute in
    first_worker: int  # of this process, where the others are ranks
    steals: int  # do workers steal?
    tasks: np.ndarray  # (N, fields of Task)
    rows: np.ndarray  # (R, fields of Row)
    order: np.ndarray  # (N,): tasks, as each worker does them
    bounds: np.ndarray  # (workers + 1,): where those of each begin in it
    claims: np.ndarray  # (N LINE,): items of each task that are claimed
    counters: np.ndarray  # (C LINE,): blocks of steps that are done
    control: np.ndarray  # (2 LINE,)
    spans: np.ndarray  # (items, 8): when each ran; empty if that is not wanted


_INTS = [np.zeros(shape, np.int64) for shape in [(0, 0)] * 2 + [0] * 5 + [(0, 0)]]
plan_at = loader(numba.typeof(Plan(0, 0, 0, 0, *_INTS)))


@part
def task_at(address, k):
    plan = plan_at(address)
    t = plan.tasks[k]
    return Task(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9], t[10])


@part
def row_at(address, k):
    plan = plan_at(address)
    r = plan.rows[k]
    return Row(r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7], r[8], r[9], r[10])


@part
def done_blocks(address, row, group):
    """Blocks of steps of a row that are done for a group of samples, ever."""
    plan = plan_at(address)
    return load_acquire(plan.counters, (row.offset + group) * LINE)


@part
def ready_below(address, task, row, generation):
    """Are the steps done that a task reads from the row below its own?"""
    if task.row == 0:
        return True
    below = row_at(address, task.row - 1)
    steps = generation * below.steps + (task.stop if row.stepwise else below.steps)
    for group in range(task.first_below, task.last_below):
        if done_blocks(address, below, group) < steps * below.blocks:
            return False
    return True


@part
def item_count(task, row):
    """Of a task, the items of a step, and all."""
    if row.shared:
        blocks = task.high - task.low
        return blocks, (task.stop - task.start) * blocks
    return 1, 1


@part
def next_item(address, k, generation):
    """The item of task k that nobody has; as many as there are when all are claimed."""
    plan = plan_at(address)
    task = task_at(address, k)
    _, items = item_count(task, row_at(address, task.row))
    return load_acquire(plan.claims, k * LINE) - generation * items


@part
def can_begin(address, k, i, generation):
    """Is all there for item i of task k?"""
    task = task_at(address, k)
    row = row_at(address, task.row)
    blocks, _ = item_count(task, row)
    if blocks == 0 or i % blocks > 0:
        return True  # somebody has begun with this step
    steps = generation * row.steps + task.start + i // blocks
    if done_blocks(address, row, task.group) < steps * row.blocks:
        return False
    return i > 0 or ready_below(address, task, row, generation)


@part
def try_next(address, k, generation, number, p):
    """Do the next items of task k, of one step, if they can be done: whether some were
    DONE, it WAITS, or there is NOTHING left.
    """
    plan = plan_at(address)
    task = task_at(address, k)
    row = row_at(address, task.row)
    blocks, items = item_count(task, row)
    claimed = generation * items
    i = load_acquire(plan.claims, k * LINE) - claimed
    if i >= items:
        return NOTHING
    if not can_begin(address, k, i, generation):
        return WAITS
    step, done = i // blocks, 0
    end = (step + 1) * blocks  # of the items of this step
    while i < end:
        if not compare_and_swap(plan.claims, k * LINE, claimed + i, claimed + i + 1):
            i = load_acquire(plan.claims, k * LINE) - claimed  # another has it
            continue
        start, stop, low, high = task.start, task.stop, task.low, task.high
        if row.shared:
            low = serpentine(start + step, i - step * blocks, low, high)
            start, stop, high = start + step, start + step + 1, low + 1
        if run_item(address, task, row, k, i, number, p, start, stop, low, high):
            return WAITS  # it was cancelled
        done, i = done + 1, i + 1
    size = 1 if row.shared else (task.stop - task.start) * row.blocks
    atomic_add(plan.counters, (row.offset + task.group) * LINE, done * size)
    return DONE if done else WAITS


@part
def serpentine(step, i, first, last):
    """The i-th block of a step: up and down in turns, so that a step begins with the
    weights that the last one left in the cache.
    """
    return first + i if step % 2 == 0 else last - 1 - i


@part
def run_item(address, task, row, k, i, number, p, start, stop, low, high):
    """Call the stage; whether it was cancelled."""
    plan = plan_at(address)
    timed = len(plan.spans) > 0
    begin = clock() if timed else 0
    box = number, row.layer, task.start, task.stop, start, stop, low, high
    if call_stage(row.stage, plan.arguments, *box, task.first, task.last):
        return True
    if timed:
        span = plan.spans[task.span + i]
        span[0], span[1], span[2], span[3] = k, p, begin, clock()
        span[4], span[5], span[6], span[7] = start, stop, low, high
    return False


@part
def steal(address, generation, number, p, first, last):
    """Do an item of one of some tasks; whether there was one that could be done."""
    for k in range(first, last):
        if try_next(address, k, generation, number, p) == DONE:
            return True
    return False


@part
def all_done(address, generation):
    """Is the last row done?"""
    plan = plan_at(address)
    row = row_at(address, len(plan.rows) - 1)
    for group in range(row.groups):
        blocks = (generation + 1) * row.steps * row.blocks
        if done_blocks(address, row, group) < blocks:
            return False
    return True


@part
def wait(address, generation, number, p, row, k, waits):
    """Wait a while for what task k, or for the end if that is -1, needs, or steal; the
    number of waits in a row, 0 after a theft.

    Other tasks of a row whose steps are shared are tried soon, the rest late: a thread
    that takes another's block or layer finds none of its weights in the cache.
    """
    plan = plan_at(address)
    for _ in range(POLLS):
        if k < 0:
            over = all_done(address, generation)
        else:
            over = can_begin(address, k, next_item(address, k, generation), generation)
        if over:
            return waits
        pause()
    first, last = row.first_task, row.last_task
    if (
        plan.steals
        and row.shared
        and steal(address, generation, number, p, first, last)
    ):
        return 0
    if waits * POLLS >= SPINS:
        late = waits * POLLS >= 2 * SPINS
        # What it waits for is among these
        if not (
            plan.steals and late and steal(address, generation, number, p, 0, last)
        ):
            sched_yield()
    return waits + 1


@part
def may_stop(address, generation, row):
    """Is the pass cancelled, and may workers stop? Once all is there for a row that
    changes parameters, somebody may have begun with it.
    """
    plan = plan_at(address)
    if not load_acquire(plan.control, CANCEL):
        return False
    task = task_at(address, row.first_task)
    return not (row.changes and ready_below(address, task, row, generation))


@part
def run_pass(address, generation, number, p):
    """The tasks of worker p, and what others leave; whether all is done."""
    plan = plan_at(address)
    for at in range(plan.bounds[p], plan.bounds[p + 1]):
        k, waits = plan.order[at], 0
        row = row_at(address, task_at(address, k).row)
        if load_acquire(plan.control, CANCEL):
            return False
        while True:
            outcome = try_next(address, k, generation, number, p)
            if outcome == NOTHING:
                break
            if outcome == DONE:
                waits = 0
            elif may_stop(address, generation, row):
                return False
            else:
                waits = wait(address, generation, number, p, row, k, waits)
    row, waits = row_at(address, len(plan.rows) - 1), 0
    while not all_done(address, generation):
        if may_stop(address, generation, row):
            return False
        waits = wait(address, generation, number, p, row, -1, waits)
    return True


def run(p, first, last, address):
    """Passes first, ..., last-1 as worker p, or up to the one that ends the call; the
    next generation. Every worker computes in the same floating-point mode, whatever its
    thread has otherwise: else bits would tell who did what.
    """
    plan = plan_at(address)
    before, generation = exchange_fp_mode(plan.fp_mode), first
    while generation < min(last, load_acquire(plan.control, LAST)):
        if not run_pass(address, generation, generation - first, plan.first_worker + p):
            break  # it was cancelled
        generation += 1
    exchange_fp_mode(before)
    return generation
