"""One sequence as chunks that run at the same time, and the seams between them.

T steps are C chunks of n, each a lane of vectors (`chunk_tiles.py`). A *sweep* runs
every chunk from a guess of the state it starts from. Then the seams are looked at: does
the end of a chunk differ from the start of the next one? What they say is where the
next sweep starts. Chunk i is exact after i + 1 sweeps, as the first one starts from
what is given. A *run-up*, some steps before each seam, makes the first guess. Backward
is the same from the last chunk to the first, with the gradient of the state.

C n may be more than T: the steps before the first one are padding, and the given state
enters chunk `entry // n` at its step `entry % n`.

p is a participant (`passes.py`), g a group of lanes, q a chunk, `lane` the first one of
a group. A state lies as rows of lanes, h and then c: (states, H, C).
"""

import math

import numpy as np

from ..kernels import part
from .arrays import record
from .chunk_tiles import backward as backward_tile
from .chunk_tiles import forward as forward_tile
from .chunk_tiles import tangents as tangents_tile
from .instructions import array, integers, number, place, read
from .passes import claimed
from .rounds import wait
from .tiles import transpose

STEPS = 16  # of a call of a tile: between two, a pass can be left

# `rate` is the tolerance. R: inputs of W for a unit; N tangents; `tasks` groups of
# `width` lanes; steps of the run-up; is every c kept?; sweeps there may be.
SIZES = "C n D H K R N states lanes width tasks entry ahead kept sweeps"
# given: the state that enters, or its gradient. ..._rows: (step, numbers), as a caller
# has them.
ADDRESSES = "address layers sync groups stop given x_rows y_rows dy_rows da_rows"
ADDRESSES += " x h c a dy da dh dc starts ends tangents following change"
ADDRESSES += " U W b WT forward backward tangents_tile transpose"
JOBS = {
    np.dtype(real): record(SIZES, ADDRESSES, real=real)[0]
    for real in (np.float32, np.float64)
}
WORD = record(SIZES, ADDRESSES)[1]
# Of the words at `stop`, which a region has for itself: how many chunks are exact, how
# many sweeps there were, and which was the last, 0 while there is another one.
EXACT, SWEEPS, LAST = 4, 5, 6


@part
def swap_axes(job, rows, columns, source, source_row, target, target_row):
    """target[c][r] = source[r][c]; addresses, and how many numbers a row of each has.
    Squares of vectors, then the rest.
    """
    a = array(job, source, ((rows - 1) * source_row + columns,))
    out = array(job, target, ((columns - 1) * target_row + rows,))
    a_row, out_row = a.strides[0] * source_row, out.strides[0] * target_row
    squares, whole = columns // job.lanes, rows - rows % job.lanes
    for r in range(0, whole, job.lanes):
        a_r, out_r = place(a, (r * source_row,)), place(out, (r,))
        transpose(job.transpose, squares, a_r, a_row, out_r, out_row)
        for c in range(squares * job.lanes, columns):
            for i in range(r, r + job.lanes):
                out[c * target_row + i] = a[i * source_row + c]
    for r in range(whole, rows):
        for c in range(columns):
            out[c * target_row + r] = a[r * source_row + c]


@part
def to_lanes(job, rows, lanes, width, g):
    """Of a group, rows (step, numbers) to lanes (step, number, chunk)."""
    plain = array(job, rows, (job.C, job.n * width))
    out = array(job, lanes, (job.n * width, job.C))
    lane = g * job.width
    rows_g, lanes_g = place(plain, (lane, 0)), place(out, (0, lane))
    swap_axes(job, job.width, job.n * width, rows_g, job.n * width, lanes_g, job.C)


@part
def to_rows(job, lanes, rows, width, g):
    """The inverse."""
    plain = array(job, rows, (job.C, job.n * width))
    source = array(job, lanes, (job.n * width, job.C))
    lane = g * job.width
    rows_g, lanes_g = place(plain, (lane, 0)), place(source, (0, lane))
    swap_axes(job, job.n * width, job.width, lanes_g, job.C, rows_g, job.n * width)


@part
def enters(job, lane):
    """Does the given state enter this group?"""
    return lane <= job.entry // job.n < lane + job.width


@part
def run(job, g, first, N):
    """Steps first, ..., n-1 of a group, and N tangents."""
    H, n, lane = job.H, job.n, g * job.width
    h = array(job, job.h, (n + 1, H, job.C))
    c = array(job, job.c, (n * job.kept + 1, H, job.C))
    starts = array(job, job.starts, (job.states, H, job.C))
    ends = array(job, job.ends, (job.states, H, job.C))
    given = array(job, job.given, (job.states, H))
    for j in range(H):
        for q in range(lane, lane + job.width):
            h[first, j, q] = starts[0, j, q]
            if job.states == 2:
                c[first * job.kept, j, q] = starts[1, j, q]
    if N > 0:
        begin_tangents(job, lane)
    entry = job.entry % n
    if enters(job, lane) and first <= entry:
        steps(job, lane, first, entry, N)
        q = job.entry // n
        for j in range(H):
            h[entry, j, q] = given[0, j]
            if job.states == 2:
                c[entry * job.kept, j, q] = given[1, j]
        first = entry
    steps(job, lane, first, n, N)
    for j in range(H):
        for q in range(lane, lane + job.width):
            ends[0, j, q] = h[n, j, q]
            if job.states == 2:
                ends[1, j, q] = c[n * job.kept, j, q]


@part
def steps(job, lane, first, last, N):
    """Steps first, ..., last-1 of the group at a lane, until told to leave."""
    H, n = job.H, job.n
    x = array(job, job.x, (n, job.D, job.C))
    h = array(job, job.h, (n + 1, H, job.C))
    c = array(job, job.c, (n * job.kept + 1, H, job.C))
    a = array(job, job.a, (n, H * job.K, job.C))
    row = h.strides[1]
    for t in range(first, last, STEPS):
        if read(job.stop):
            return
        count = min(STEPS, last - t)
        from_x = place(x, (t, 0, lane)), job.D, job.U, job.b
        from_h = place(h, (t, 0, lane)), H, job.W, job.R
        c_t, a_t = place(c, (t * job.kept, 0, lane)), place(a, (t, 0, lane))
        c_step = h.strides[0] * job.kept
        forward_tile(job.forward, count, *from_x, *from_h, c_t, c_step, a_t, row)
        if N > 0:
            tangents = array(job, job.tangents, (job.states, N * H, job.C))
            room = array(job, job.following, (N * H, job.C))
            dh, dc = (
                place(tangents, (0, 0, lane)),
                place(tangents, (job.states - 1, 0, lane)),
            )
            of_layer = H, job.W, job.R, c_t, a_t
            room = place(room, (0, lane))
            tangents_tile(job.tangents_tile, count, *of_layer, N, dh, dc, room, row)


@part
def begin_tangents(job, lane):
    """The derivative of a state by itself: one for each number; where W is diagonal all
    units are carried together.
    """
    R, N = job.R, job.N
    tangents = array(job, job.tangents, (job.states, N, job.H, job.C))
    for s in range(job.states):
        for i in range(N):
            for j in range(job.H):
                own = i // R == s and (R == 1 or i % R == j)
                for q in range(lane, lane + job.width):
                    tangents[s, i, j, q] = number(job, own)


@part
def run_back(job, g, last):
    """Steps last-1, ..., 0 of a group, back through time."""
    H, lane = job.H, g * job.width
    dh = array(job, job.dh, (H, job.C))
    dc = array(job, job.dc, (H, job.C))
    starts = array(job, job.starts, (job.states, H, job.C))
    ends = array(job, job.ends, (job.states, H, job.C))
    given = array(job, job.given, (job.states, H))
    for j in range(H):
        for q in range(lane, lane + job.width):
            dh[j, q] = starts[0, j, q]
            dc[j, q] = starts[1, j, q] if job.states == 2 else number(job, 0)
    entry = job.entry % job.n
    if enters(job, lane) and entry < last:
        steps_back(job, lane, entry, last)
        q = job.entry // job.n
        for j in range(H):
            if job.states == 2:
                given[0, j], given[1, j] = dh[j, q], dc[j, q]
            else:
                given[0, j] = dh[j, q] + dc[j, q]
            dh[j, q], dc[j, q] = 0, 0
        last = entry
    steps_back(job, lane, 0, last)
    for j in range(H):
        for q in range(lane, lane + job.width):
            if job.states == 2:
                ends[0, j, q], ends[1, j, q] = dh[j, q], dc[j, q]
            else:
                ends[0, j, q] = dh[j, q] + dc[j, q]


@part
def steps_back(job, lane, first, last):
    """Steps last-1, ..., first of the group at a lane."""
    H, n = job.H, job.n
    dy = array(job, job.dy, (n, H, job.C))
    c = array(job, job.c, (n + 1, H, job.C))
    a = array(job, job.a, (n, H * job.K, job.C))
    da = array(job, job.da, (n, H * job.K, job.C))
    dh = array(job, job.dh, (H, job.C))
    dc = array(job, job.dc, (H, job.C))
    for end in range(last, first, -STEPS):
        if read(job.stop):
            return
        t = max(first, end - STEPS)
        weights = place(dy, (t, 0, lane)), job.WT, H
        of_step = (
            place(c, (t, 0, lane)),
            place(a, (t, 0, lane)),
            place(da, (t, 0, lane)),
        )
        state = place(dh, (0, lane)), place(dc, (0, lane)), dh.strides[0]
        backward_tile(job.backward, end - t, *weights, *of_step, *state)


@part
def ways(job, back):
    """How many seams there are; the chunks whose end and whose start are at the first
    of them, counted from the first chunk.
    """
    first = job.entry // job.n
    seams = job.C - 1 - first
    return (seams, first + 1, first) if back else (seams, first, first + 1)


@part
def hand_on(job, back):
    """The next sweep starts where the chunks before ended."""
    starts = array(job, job.starts, (job.states, job.H, job.C))
    ends = array(job, job.ends, (job.states, job.H, job.C))
    seams, end, start = ways(job, back)
    for s in range(job.states):
        for j in range(job.H):
            for i in range(seams):
                starts[s, j, start + i] = ends[s, j, end + i]


@part
def compare(job, back):
    """How many chunks, the first on the way, start within the tolerance of where the
    one before ended.

    The tolerance is relative to the number itself, or, where that is small, to what is
    usual for it: the largest of its unit at any seam, but of no other unit, and no more
    than the largest of any unit at this seam. So neither a large unit nor a large
    moment hides what is small; h and c are apart. Without a tolerance a state is the
    same to the bit: zeros have signs. (Gradients may differ in those of zeros, which
    move no sum.)
    """
    starts = array(job, job.starts, (job.states, job.H, job.C))
    ends = array(job, job.ends, (job.states, job.H, job.C))
    of_unit = array(job, job.change, (2, job.states, job.H))[0]
    seams, end, start = ways(job, back)
    exact = seams + 1
    for s in range(job.states):
        for j in range(job.H):
            of_unit[s, j] = 0
            for i in range(seams):
                of_unit[s, j] = max(of_unit[s, j], abs(ends[s, j, end + i]))
        for i in range(seams):
            of_seam = number(job, 0)
            for j in range(job.H):
                of_seam = max(of_seam, abs(ends[s, j, end + i]))
            for j in range(job.H):
                own = abs(ends[s, j, end + i])
                most = job.rate * max(own, min(of_seam, of_unit[s, j]))
                moved = abs(ends[s, j, end + i] - starts[s, j, start + i])
                if job.rate == 0 and not back and moved == 0:
                    sign = math.copysign(1, ends[s, j, end + i])
                    moved += sign != math.copysign(1, starts[s, j, start + i])
                if not moved <= most:  # NaN too
                    exact = min(exact, seams - i if back else i + 1)
    return exact


@part
def correct(job, back):
    """Newton's next guess: chunk after chunk, the end changes as its start did, to
    first order. Forward, h is kept within one, and c within twice what it was.
    """
    H, C, S = job.H, job.C, job.states
    starts = array(job, job.starts, (S, H, C))
    ends = array(job, job.ends, (S, H, C))
    change = array(job, job.change, (2, S, H))
    most_c = number(job, 1)
    for j in range(H):
        for q in range(job.entry // job.n, C):
            most_c = max(most_c, 2 * abs(ends[S - 1, j, q]))
    change[0] = 0
    seams, end, start = ways(job, back)
    for i in range(seams):
        seam = seams - 1 - i if back else i
        before, after = change[i % 2], change[(i + 1) % 2]
        for s in range(S):
            most = most_c if s else number(job, 1)
            for j in range(H):
                plain = ends[s, j, end + seam]
                value = plain + product(job, s, j, end + seam, before, back)
                if not back:
                    value = min(max(value, -most), most)
                    value = plain if value != value else value  # NaN
                after[s, j] = value - starts[s, j, start + seam]
                starts[s, j, start + seam] = value


@part
def product(job, s, j, q, change, back):
    """Number (s, j) of the derivative of chunk q, backward of its transpose, times a
    change of state (S, H). Where W is diagonal, a tangent is of a unit's own numbers.
    """
    S, R = job.states, job.R
    tangents = array(job, job.tangents, (S, job.N, job.H, job.C))
    total = number(job, 0)
    for r in range(S):
        for k in range(R):
            unit = j if R == 1 else k
            if back:
                by = s * R + (0 if R == 1 else j)
                total += tangents[r, by, unit, q] * change[r, unit]
            else:
                total += tangents[s, r * R + k, j, q] * change[r, unit]
    return total


@part
def seams(job, back):
    """Look at the seams after a sweep, and set where the next one starts."""
    words = integers(job.stop, 8)
    words[EXACT] = compare(job, back)
    words[SWEEPS] += 1
    if words[EXACT] == job.C - job.entry // job.n:
        words[LAST] = words[SWEEPS]
    elif job.N > 0:
        correct(job, back)
    else:
        hand_on(job, back)


@part
def is_exact(job, g, back):
    """Is every chunk of a group exact already?"""
    exact, lane = integers(job.stop, 8)[EXACT], g * job.width
    if back:
        return lane >= job.C - exact
    return lane + job.width <= job.entry // job.n + exact


@part
def sweep(p, turn, job, back):
    """Sweeps until every seam holds, or as many as there may be."""
    for done in range(1, job.sweeps + 1):
        for g in claimed(job.sync, job.groups, turn, p, job.tasks):
            if not is_exact(job, g, back):
                if back:
                    run_back(job, g, job.n)
                    to_rows(job, job.da, job.da_rows, job.H * job.K, g)
                else:
                    run(job, g, 0, job.N)
                    if job.y_rows:
                        h = array(job, job.h, (job.n + 1, job.H, job.C))
                        to_rows(job, place(h, (1,)), job.y_rows, job.H, g)
        turn = wait(job.sync, job.groups, turn, job.tasks)
        for _ in claimed(job.sync, job.groups, turn, p, 1):
            seams(job, back)
        turn = wait(job.sync, job.groups, turn, 1)
        # Of this sweep: a participant that was held up may see what later ones found.
        if read(job.stop + 8 * LAST) == done or read(job.stop):
            break
    return turn


@part
def begin(p, turn, job, back):
    """What a caller gave, to lanes; the run-up."""
    for g in claimed(job.sync, job.groups, turn, p, job.tasks):
        if back:
            to_lanes(job, job.dy_rows, job.dy, job.H, g)
        elif job.x_rows:
            to_lanes(job, job.x_rows, job.x, job.D, g)
        if job.ahead > 0:
            if back:
                run_back(job, g, job.ahead)
            else:
                run(job, g, job.n - job.ahead, 0)
    turn = wait(job.sync, job.groups, turn, job.tasks)
    for _ in claimed(job.sync, job.groups, turn, p, job.ahead > 0):
        hand_on(job, back)
    return wait(job.sync, job.groups, turn, job.ahead > 0)


@part
def forward(p, turn, job):
    """A layer forward."""
    turn = begin(p, turn, job, False)
    return sweep(p, turn, job, False)


@part
def backward(p, turn, job):
    """A layer back through time."""
    turn = begin(p, turn, job, True)
    return sweep(p, turn, job, True)
