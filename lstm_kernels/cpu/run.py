"""Who computes what: one loop that runs the tasks of a pass, for every division.

A pass is a box of layers x steps x unit blocks x samples, row after row: a row is a
layer's pass, or what comes between, such as the read-out. A *task* is a sub-box
(`schedules.py`). Where several tasks share each step of a row, a task is done in
*parts*, a block of a step each; else it is one part.

A part waits for two counters: of its own row, until all blocks of the steps before are
counted, and of the row below, until the steps it reads are. They suffice: nothing of a
step begins before all of the last one is counted. A part belongs to who *claims* it,
with a word of its task that counts parts. Only a claimed part is waited for; whoever
waits, helps: a thread that comes late, or never, costs time and not the result.

Words and counters only grow: an *edition* of a pass ends where the next one begins. A
participant that was held up finds all its parts claimed, and all it waits for counted.

A pass is left between two steps when `leave` of its PROGRESS is set; what it has
written is lost then. Nobody leaves while parameters change.
"""

from ..kernels import part
from .arrays import PROGRESS, ROW, TASK
from .instructions import (
    add,
    exchange,
    exchange_fp_env,
    integers,
    offer_core,
    pause,
    perform,
    read,
    record_at,
    swap,
)
from .team import LINE, SPINS, clock

row_at, task_at = map(record_at, (ROW, TASK))
progress_at = record_at(PROGRESS)
# Bytes to words of it that change while threads read them
LEAVE, LAST = (PROGRESS.fields[name][1] for name in ("leave", "last"))
NOTHING, DONE, WAITS = range(3)  # what became of an attempt
POLLS = 50  # looks at what one waits for, before a look at anything else


@part
def counter(row, group):
    """The address of what counts the blocks that are done for a group of samples."""
    return row.counters + group * LINE


@part
def ready_below(plan, task, edition):
    """Are the steps done that a task reads from the row below its own?"""
    if task.row == 0:
        return True
    row, below = row_at(plan.rows, task.row), row_at(plan.rows, task.row - 1)
    steps = edition * below.steps + (task.stop if row.stepwise else below.steps)
    for group in range(task.first_below, task.last_below):
        if read(counter(below, group)) < steps * below.blocks:
            return False
    return True


@part
def blocks_of(row, task):
    """How many parts a step of a task has."""
    return task.last_block - task.first_block if row.shared else 1


@part
def next_part(plan, k, edition):
    """The part of task k that nobody has, as a number, and how many there are."""
    task = task_at(plan.tasks, k)
    row = row_at(plan.rows, task.row)
    parts = (task.stop - task.start) * blocks_of(row, task) if row.shared else 1
    return read(plan.claims + k * LINE) - edition * parts, parts


@part
def can_begin(plan, k, i, edition):
    """Is all there for part i of task k?"""
    task = task_at(plan.tasks, k)
    row = row_at(plan.rows, task.row)
    blocks = blocks_of(row, task)
    if blocks == 0 or i % blocks > 0:
        return True  # somebody has begun with this step
    steps = edition * row.steps + task.start + i // blocks
    if read(counter(row, task.group)) < steps * row.blocks:
        return False
    return i > 0 or ready_below(plan, task, edition)


@part
def attempt(plan, k, edition, p):
    """Do the next parts of task k, of one step, if they can be done: whether some were
    DONE, it WAITS, or there is NOTHING left.
    """
    i, parts = next_part(plan, k, edition)
    if i >= parts:
        return NOTHING
    if not can_begin(plan, k, i, edition):
        return WAITS
    task, word = task_at(plan.tasks, k), plan.claims + k * LINE
    row, done = row_at(plan.rows, task.row), 0
    blocks, first = blocks_of(row, task), edition * parts
    step = i // blocks
    end = (step + 1) * blocks  # of the parts of this step
    while i < end:
        if not swap(word, first + i, first + i + 1):  # somebody has it
            i = read(word) - first
            continue
        up = i - step * blocks
        if do_part(plan, task, row, k, task.start + step, up, p):
            return WAITS  # it was left
        done, i = done + 1, i + 1
    size = 1 if row.shared else (task.stop - task.start) * row.blocks
    add(counter(row, task.group), done * size)
    return DONE if done else WAITS


@part
def serpentine(step, i, first, last):
    """The i-th block of a step: up and down in turns, so that a step begins with the
    weights that the last one left in the cache.
    """
    return first + i if step % 2 == 0 else last - 1 - i


@part
def do_box(plan, row, task, start, stop, low, high):
    """Some steps and blocks of a task; whether they were left."""
    offset, samples = row.offset, (task.first, task.last)
    of_task = row.layer, task.start + offset, task.stop + offset
    box = start + offset, stop + offset, low, high
    return perform(row.perform, plan.job, *of_task, *box, *samples) != 0


@part
def do_part(plan, task, row, k, step, up, p):
    """A block of a step of task k, or all of it; whether it was left."""
    box, number = (task.start, task.stop, task.first_block, task.last_block), 0
    if row.shared:
        j = serpentine(step, up, task.first_block, task.last_block)
        box = step, step + 1, j, j + 1
        number = (step - task.start) * (task.last_block - task.first_block) + up
    start = clock() if plan.spans else 0
    if do_box(plan, row, task, *box):
        return True
    if plan.spans:
        span = integers(plan.spans + (task.span + number) * LINE, 8)
        span[0], span[1], span[2], span[3] = k, p, start, clock()
        span[4], span[5], span[6], span[7] = box
    return False


@part
def help_out(plan, edition, p, first, last):
    """Do a part of one of some tasks; whether there was one that could be done."""
    done, k = False, first
    while k < last and not done:
        done = attempt(plan, k, edition, p) == DONE
        k += 1
    return done


@part
def all_done(plan, edition):
    """Is the last row done?"""
    row = row_at(plan.rows, plan.row_count - 1)
    for group in range(row.groups):
        if read(counter(row, group)) < (edition + 1) * row.steps * row.blocks:
            return False
    return True


@part
def wait(plan, edition, p, row, k, waits):
    """Wait a while for what task k, or for the end if that is -1, needs, or help out;
    the number of waits on end, 0 after help.

    Other tasks of a row whose steps are shared are tried soon, the rest late: a thread
    that takes another's block or layer finds none of its weights in the cache.
    """
    first, last = row.first_task, row.last_task
    for _ in range(POLLS):
        if k < 0:
            over = all_done(plan, edition)
        else:
            i, _ = next_part(plan, k, edition)
            over = can_begin(plan, k, i, edition)
        if over:
            return waits
        pause()
    if plan.helps and row.shared and help_out(plan, edition, p, first, last):
        return 0
    if waits * POLLS >= SPINS:
        late = waits * POLLS >= 2 * SPINS
        # What it waits for is among these
        if not (plan.helps and late and help_out(plan, edition, p, 0, last)):
            offer_core()
    return waits + 1


@part
def is_left(plan, edition, row):
    """Are all to leave, and may they? Once all is there for a row that changes
    parameters, somebody may have begun with it.
    """
    if not read(plan.progress + LEAVE):
        return False
    task = task_at(plan.tasks, row.first_task)
    return not (row.changes and ready_below(plan, task, edition))


@part
def run_alone(plan):
    """All tasks by one thread, which claims nothing and keeps no times; whether all is
    done.
    """
    count = integers(plan.bounds, 2)[1]
    lists = integers(plan.lists, count)
    for k in lists:
        task = task_at(plan.tasks, k)
        row = row_at(plan.rows, task.row)
        if read(plan.progress + LEAVE):
            return False
        box = task.start, task.stop, task.first_block, task.last_block
        if do_box(plan, row, task, *box):
            return False
    return True


@part
def run_shared(plan, edition, p):
    """The tasks of participant p, and what others leave; whether all is done."""
    bounds = integers(plan.bounds, p + 2)
    lists = integers(plan.lists, bounds[p + 1])
    for k in lists[bounds[p] :]:
        if read(plan.progress + LEAVE):
            return False
        row, waits = row_at(plan.rows, task_at(plan.tasks, k).row), 0
        while True:
            found = attempt(plan, k, edition, p)
            if found == NOTHING:
                break
            if found == DONE:
                waits = 0
            elif is_left(plan, edition, row):
                return False
            else:
                waits = wait(plan, edition, p, row, k, waits)
    row, waits = row_at(plan.rows, plan.row_count - 1), 0
    while not all_done(plan, edition):
        if is_left(plan, edition, row):
            return False
        waits = wait(plan, edition, p, row, -1, waits)
    return True


@part
def end_after(job, count):
    """So many passes of a call are enough. The others may still be in earlier ones, and
    are to go through all of them: else the next call would count from there.
    """
    last = job.progress + LAST
    exchange(last, min(read(last), count))


@part
def run(p, edition, plan):
    """What participant p does of the passes that PROGRESS says, at least of one; the
    number of the next edition. Every participant computes in the same floating-point
    environment, whatever its thread has otherwise: else bits would tell who did what.
    """
    before = exchange_fp_env(plan.fp_env)
    edition = run_passes(p, edition, plan)
    exchange_fp_env(before)
    return edition


@part
def run_passes(p, edition, plan):
    """The passes of `run`."""
    step = progress_at(plan.progress, 0).first
    while True:
        if plan.workers == 1 and not plan.spans:
            done = run_alone(plan)
        else:
            done = run_shared(plan, edition, plan.first + p)
        if not done:
            return edition
        edition, step = edition + 1, step + 1
        if step >= read(plan.progress + LAST):
            return edition
