"""One sequence as chunks that run at the same time, and the seams between them.

T steps are C chunks of n, each a lane of vectors (`chunk_tiles.py`). A *sweep* runs
every chunk from a guess of the state it starts from. Then the seams are looked at: does
the end of a chunk differ from the start of the next one? If one does, the next sweep
starts where the chunks before ended. Chunk i is exact after i + 1 sweeps, as the first
one starts from what is given. A *run-up*, some steps before each seam, makes the first
guess. Backward is the same from the last chunk to the first, with the gradient of the
state.

C n may be more than T: the steps before the first one are padding, and the given state
enters chunk `entry // n` at its step `entry % n`.

p is a participant (`passes.py`), g a group of lanes, q a chunk, `lane` the first one of
a group. A state is two rows of lanes for each unit, (2, H, C): h and c, or for a cell
without c twice h; backward what comes through h and what comes through c.
"""

import math

import numpy as np

from ..kernels import part
from .arrays import PROGRESS_WORD, record
from .chunk_tiles import backward as backward_tile
from .chunk_tiles import forward as forward_tile
from .instructions import array, integers, place, read
from .passes import claimed
from .rounds import wait
from .tiles import transpose

STEPS = 16  # of a call of a tile: between two, a pass can be left

# K gates; `tasks` groups of `width` lanes, in vectors of `lanes`; `ahead` steps of the
# run-up; is every c kept?; is this the pass back?; sweeps there may be.
SIZES = "C n D H K lanes width tasks entry ahead kept back sweeps"
# tolerance: one number. given: the state that enters, (2, H), or its gradient.
# ..._rows: (step, numbers), as a caller has them.
ADDRESSES = "address layers sync groups progress tolerance given x_rows y_rows dy_rows"
ADDRESSES += " da_rows x h c a dy da starts ends U W b WT forward backward transpose"
JOBS = {
    np.dtype(real): record(SIZES, ADDRESSES, real=real)[0]
    for real in (np.float32, np.float64)
}
WORD = record(SIZES, ADDRESSES)[1]
# Compiled code takes constants.
LEAVE, EXACT = PROGRESS_WORD.leave, PROGRESS_WORD.exact
SWEEPS, LAST = PROGRESS_WORD.sweeps, PROGRESS_WORD.last_sweep


@part
def word(job, which):
    """A word of PROGRESS, as it is now."""
    return read(job.progress + 8 * which)


@part
def swap_axes(job, a, out):
    """out = a.T, in squares of vectors, then the rest."""
    rows, columns = a.shape
    squares, whole = columns // job.lanes, rows - rows % job.lanes
    for r in range(0, whole, job.lanes):
        a_r, out_r = place(a, (r, 0)), place(out, (0, r))
        transpose(job.transpose, squares, a_r, a.strides[0], out_r, out.strides[0])
        for c in range(squares * job.lanes, columns):
            for i in range(r, r + job.lanes):
                out[c, i] = a[i, c]
    for r in range(whole, rows):
        for c in range(columns):
            out[c, r] = a[r, c]


@part
def to_lanes(job, rows, lanes, count, g):
    """Of a group, rows (step, `count` numbers) to lanes (step, number, chunk)."""
    source = array(job, rows, (job.C, job.n * count))
    target = array(job, lanes, (job.n * count, job.C))
    first, last = g * job.width, (g + 1) * job.width
    swap_axes(job, source[first:last], target[:, first:last])


@part
def to_rows(job, lanes, rows, count, g):
    """The inverse."""
    source = array(job, lanes, (job.n * count, job.C))
    target = array(job, rows, (job.C, job.n * count))
    first, last = g * job.width, (g + 1) * job.width
    swap_axes(job, source[:, first:last], target[first:last])


@part
def copy(source, target):
    """target[:] = source, of two axes."""
    rows, columns = source.shape
    for r in range(rows):
        for c in range(columns):
            target[r, c] = source[r, c]


@part
def enters(job, lane):
    """Does the given state enter this group?"""
    return lane <= job.entry // job.n < lane + job.width


@part
def run(job, g, first):
    """Steps first, ..., n-1 of a group, from its starts to its ends."""
    H, n, lane, end = job.H, job.n, g * job.width, (g + 1) * job.width
    h = array(job, job.h, (n + 1, H, job.C))
    c = array(job, job.c, (n * job.kept + 1, H, job.C))
    starts = array(job, job.starts, (2, H, job.C))
    ends = array(job, job.ends, (2, H, job.C))
    given = array(job, job.given, (2, H))
    copy(starts[0, :, lane:end], h[first, :, lane:end])
    copy(starts[1, :, lane:end], c[first * job.kept, :, lane:end])
    q, entry = job.entry // n, job.entry % n
    if enters(job, lane) and first <= entry:
        steps(job, lane, first, entry)
        for j in range(H):
            h[entry, j, q] = given[0, j]
            c[entry * job.kept, j, q] = given[1, j]
        first = entry
    steps(job, lane, first, n)
    copy(h[n, :, lane:end], ends[0, :, lane:end])
    copy(c[n * job.kept, :, lane:end], ends[1, :, lane:end])


@part
def steps(job, lane, first, last):
    """Steps first, ..., last-1 of the group at a lane, until told to leave."""
    H, n = job.H, job.n
    x = array(job, job.x, (n, job.D, job.C))
    h = array(job, job.h, (n + 1, H, job.C))
    c = array(job, job.c, (n * job.kept + 1, H, job.C))
    a = array(job, job.a, (n, H * job.K, job.C))
    row, c_step = h.strides[1], h.strides[0] * job.kept
    for t in range(first, last, STEPS):
        if word(job, LEAVE):
            return
        count = min(STEPS, last - t)
        from_x = place(x, (t, 0, lane)), job.D, job.U, job.b
        from_h = place(h, (t, 0, lane)), H, job.W
        c_t, a_t = place(c, (t * job.kept, 0, lane)), place(a, (t, 0, lane))
        forward_tile(job.forward, count, *from_x, *from_h, c_t, c_step, a_t, row)


@part
def run_back(job, g, last):
    """Steps last-1, ..., 0 of a group, back through time, from its starts to its
    ends.
    """
    H, lane, end = job.H, g * job.width, (g + 1) * job.width
    starts = array(job, job.starts, (2, H, job.C))
    ends = array(job, job.ends, (2, H, job.C))
    given = array(job, job.given, (2, H))
    for s in range(2):
        copy(starts[s, :, lane:end], ends[s, :, lane:end])
    q, entry = job.entry // job.n, job.entry % job.n
    if enters(job, lane) and entry < last:
        steps_back(job, lane, entry, last)
        for s in range(2):
            for j in range(H):
                given[s, j] = ends[s, j, q]
                ends[s, j, q] = 0
        last = entry
    steps_back(job, lane, 0, last)


@part
def steps_back(job, lane, first, last):
    """Steps last-1, ..., first of the group at a lane; the gradient of its state is in
    `ends`.
    """
    H, n = job.H, job.n
    dy = array(job, job.dy, (n, H, job.C))
    c = array(job, job.c, (n + 1, H, job.C))
    a = array(job, job.a, (n, H * job.K, job.C))
    da = array(job, job.da, (n, H * job.K, job.C))
    ends = array(job, job.ends, (2, H, job.C))
    dh, dc = place(ends, (0, 0, lane)), place(ends, (1, 0, lane))
    for end in range(last, first, -STEPS):
        if word(job, LEAVE):
            return
        t = max(first, end - STEPS)
        from_h = place(dy, (t, 0, lane)), job.WT, H
        c_t, a_t = place(c, (t, 0, lane)), place(a, (t, 0, lane))
        da_t = place(da, (t, 0, lane))
        row = ends.strides[1]
        backward_tile(job.backward, end - t, *from_h, c_t, a_t, da_t, dh, dc, row)


@part
def at_seams(job):
    """The ends before and the starts behind each seam, (2, H, seams), the first seam on
    the way first; chunks that are all padding have none.
    """
    starts = array(job, job.starts, (2, job.H, job.C))
    ends = array(job, job.ends, (2, job.H, job.C))
    first = job.entry // job.n
    if job.back:
        return ends[:, :, :first:-1], starts[:, :, first:-1][:, :, ::-1]
    return ends[:, :, first:-1], starts[:, :, first + 1 :]


@part
def hand_on(job):
    """The next sweep starts where the chunks before ended."""
    ends, starts = at_seams(job)
    for s in range(2):
        copy(ends[s], starts[s])


@part
def largest(numbers):
    most = abs(numbers[0])
    for number in numbers:
        most = max(most, abs(number))
    return most


@part
def holding(ends, starts, tolerance, signs):
    """How many seams hold, from the first on: numbers (2, H, seams) on both sides are
    the same within the tolerance.

    The tolerance is relative to the number itself, or, where that is small, to what is
    usual for it: the largest of its unit at any seam, but of no other unit, and no more
    than the largest of any unit at this seam. So neither a large unit nor a large
    moment hides what is small; h and c are apart. Without a tolerance a state is the
    same to the bit: zeros have signs, where `signs` says so.
    """
    _, H, seams = ends.shape
    for i in range(seams):
        for s in range(2):
            for j in range(H):
                end, start = ends[s, j, i], starts[s, j, i]
                moved = abs(end - start)
                holds = moved <= tolerance * abs(end)  # not where one is NaN
                if not holds:
                    usual = min(largest(ends[s, :, i]), largest(ends[s, j]))
                    holds = moved <= tolerance * usual
                if signs and tolerance == 0:
                    holds &= math.copysign(1, end) == math.copysign(1, start)
                if not holds:
                    return i
    return seams


@part
def look(job):
    """Look at the seams after a sweep, and set where the next one starts."""
    words, chunks = integers(job.progress, LAST + 1), job.C - job.entry // job.n
    tolerance = array(job, job.tolerance, (1,))[0]
    ends, starts = at_seams(job)
    # Gradients may differ in the signs of zeros, which move no sum.
    words[EXACT] = 1 + holding(ends, starts, tolerance, job.back == 0)
    words[SWEEPS] += 1
    if words[EXACT] == chunks:
        words[LAST] = words[SWEEPS]
    else:
        hand_on(job)


@part
def is_exact(job, g):
    """Is every chunk of a group exact already?"""
    exact, lane = word(job, EXACT), g * job.width
    if job.back:
        return lane >= job.C - exact
    return lane + job.width <= job.entry // job.n + exact


@part
def begin(job, g):
    """What a caller gave, to the lanes of a group; its run-up."""
    if job.back:
        to_lanes(job, job.dy_rows, job.dy, job.H, g)
        if job.ahead > 0:
            run_back(job, g, job.ahead)
    else:
        if job.x_rows:
            to_lanes(job, job.x_rows, job.x, job.D, g)
        if job.ahead > 0:
            run(job, g, job.n - job.ahead)


@part
def compute(job, g):
    """All steps of a group, and what a caller gets."""
    if job.back:
        run_back(job, g, job.n)
        to_rows(job, job.da, job.da_rows, job.H * job.K, g)
    else:
        run(job, g, 0)
        h = array(job, job.h, (job.n + 1, job.H, job.C))
        to_rows(job, place(h, (1,)), job.y_rows, job.H, g)


@part
def sweep(p, turn, job):
    """A layer forward, or back through time: the run-up, and sweeps until every seam
    holds, or as many as there may be.
    """
    sync, groups = job.sync, job.groups
    for g in claimed(sync, groups, turn, p, job.tasks):
        begin(job, g)
    turn = wait(sync, groups, turn, job.tasks)
    for _ in claimed(sync, groups, turn, p, job.ahead > 0):
        hand_on(job)
    turn = wait(sync, groups, turn, job.ahead > 0)
    for done in range(1, job.sweeps + 1):
        for g in claimed(sync, groups, turn, p, job.tasks):
            if not is_exact(job, g):
                compute(job, g)
        turn = wait(sync, groups, turn, job.tasks)
        for _ in claimed(sync, groups, turn, p, 1):
            look(job)
        turn = wait(sync, groups, turn, 1)
        # Of this sweep: a participant that was held up may see what later ones found.
        if word(job, LAST) == done or word(job, LEAVE):
            break
    return turn
