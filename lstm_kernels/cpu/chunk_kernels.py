"""One sequence as chunks that run at the same time, and the seams between them.

T steps are C chunks of n, each a lane of vectors (`chunk_tiles.py`); what is missing to
C n is zeros behind the last step. A *sweep* runs every chunk from a guess of the state
it starts from. Then the seams are looked at: does the end of a chunk differ from the
start of the next one? If one does, the next sweep starts where the chunks before ended.
Chunk i is exact after i + 1 sweeps, as the first one starts from what is given. A
*run-up*, some steps before each seam, makes the first guess.

p is a participant (`passes.py`), g a group of lanes, `lane` the first of them. A state
is a row of lanes for each unit, (S, H, C): h, and where the cell has one, c.
"""

import math

import numpy as np

from ..kernels import part
from .arrays import PROGRESS_WORD, record
from .chunk_tiles import forward as forward_tile
from .instructions import array, integers, place, read
from .passes import claimed
from .rounds import wait
from .tiles import transpose

STEPS = 16  # of a call of a tile: between two, a pass can be left

# `tasks` groups of `width` lanes, in vectors of `lanes`; `ahead` steps of the run-up;
# sweeps there may be; the sequence ends after step `end - 1` of chunk `last`.
SIZES = "C n S D H lanes width tasks ahead sweeps last end"
# x_rows, y_rows: (C n, numbers), as a caller has them. c_end: c at the sequence's end.
ADDRESSES = "address layers sync groups progress x_rows y_rows x h c c_end starts ends"
ADDRESSES += " U W b forward transpose"
JOBS = {
    np.dtype(real): record(SIZES, ADDRESSES, real=real)[0]
    for real in (np.float32, np.float64)
}
WORD = record(SIZES, ADDRESSES)[1]
# Compiled code takes constants.
LEAVE, EXACT, LAST = PROGRESS_WORD.leave, PROGRESS_WORD.exact, PROGRESS_WORD.last_sweep


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
def to_lanes(job, g):
    """Of a group, x from rows (step, number) to lanes (step, number, chunk)."""
    rows = array(job, job.x_rows, (job.C, job.n * job.D))
    lanes = array(job, job.x, (job.n * job.D, job.C))
    first, last = g * job.width, (g + 1) * job.width
    swap_axes(job, rows[first:last], lanes[:, first:last])


@part
def to_rows(job, g):
    """h of a group, from the first step on, from lanes to rows: y."""
    slots = array(job, job.h, (job.n + 1, job.H, job.C))
    lanes = array(job, place(slots, (1,)), (job.n * job.H, job.C))
    rows = array(job, job.y_rows, (job.C, job.n * job.H))
    first, last = g * job.width, (g + 1) * job.width
    swap_axes(job, lanes[:, first:last], rows[first:last])


@part
def copy(source, target):
    """target[:] = source, of two axes."""
    rows, columns = source.shape
    for r in range(rows):
        for c in range(columns):
            target[r, c] = source[r, c]


@part
def run(job, g, first):
    """Steps first, ..., n-1 of a group, from its starts to its ends, until told to
    leave.
    """
    H, C, n, lane = job.H, job.C, job.n, g * job.width
    end, t = lane + job.width, first
    x = array(job, job.x, (n, job.D, C))
    h = array(job, job.h, (n + 1, H, C))
    c = array(job, job.c, (H, C))
    starts = array(job, job.starts, (job.S, H, C))
    ends = array(job, job.ends, (job.S, H, C))
    copy(starts[0, :, lane:end], h[first, :, lane:end])
    if job.S == 2:
        copy(starts[1, :, lane:end], c[:, lane:end])
    while t < n:
        if word(job, LEAVE):
            return
        count = min(STEPS, n - t)
        if t < job.end:
            count = min(count, job.end - t)
        from_x = place(x, (t, 0, lane)), job.D, job.U, job.b
        from_h = place(h, (t, 0, lane)), H, job.W
        c_t, row = place(c, (0, lane)), h.strides[1]
        forward_tile(job.forward, count, *from_x, *from_h, c_t, row)
        t += count
        if t == job.end and job.S == 2 and lane <= job.last < end:
            copy(c[:, job.last : job.last + 1], array(job, job.c_end, (H, 1)))
    copy(h[n, :, lane:end], ends[0, :, lane:end])
    if job.S == 2:
        copy(c[:, lane:end], ends[1, :, lane:end])


@part
def holding(ends, starts):
    """How many seams hold, from the first on: numbers (S, H, seams) on both sides are
    the same to the bit. Zeros have signs; NaN is nothing's same.
    """
    S, H, seams = ends.shape
    for i in range(seams):
        for s in range(S):
            for j in range(H):
                end, start = ends[s, j, i], starts[s, j, i]
                signed = math.copysign(1, end) == math.copysign(1, start)
                if end != start or not signed:
                    return i
    return seams


@part
def hand_on(job):
    """The next sweep starts where the chunks before ended."""
    starts = array(job, job.starts, (job.S, job.H, job.C))
    ends = array(job, job.ends, (job.S, job.H, job.C))
    for s in range(job.S):
        copy(ends[s, :, :-1], starts[s, :, 1:])


@part
def look(job, done):
    """Look at the seams after sweep `done`, and set where the next one starts."""
    words = integers(job.progress, LAST + 1)
    starts = array(job, job.starts, (job.S, job.H, job.C))
    ends = array(job, job.ends, (job.S, job.H, job.C))
    words[EXACT] = 1 + holding(ends[:, :, :-1], starts[:, :, 1:])
    if words[EXACT] == job.C:
        words[LAST] = done
    else:
        hand_on(job)


@part
def sweep(p, turn, job):
    """A layer: the run-up, and sweeps until every seam holds, or as many as there may
    be.
    """
    sync, groups = job.sync, job.groups
    for g in claimed(sync, groups, turn, p, job.tasks):
        to_lanes(job, g)
        if job.ahead > 0:
            run(job, g, job.n - job.ahead)
    turn = wait(sync, groups, turn, job.tasks)
    for _ in claimed(sync, groups, turn, p, job.ahead > 0):
        hand_on(job)
    turn = wait(sync, groups, turn, job.ahead > 0)
    for done in range(1, job.sweeps + 1):
        for g in claimed(sync, groups, turn, p, job.tasks):
            if (g + 1) * job.width > word(job, EXACT):
                run(job, g, 0)
                to_rows(job, g)
        turn = wait(sync, groups, turn, job.tasks)
        for _ in claimed(sync, groups, turn, p, 1):
            look(job, done)
        turn = wait(sync, groups, turn, 1)
        # Of this sweep: a participant that was held up may see what later ones found.
        if word(job, LAST) == done or word(job, LEAVE):
            break
    return turn
