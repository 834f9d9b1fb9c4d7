"""What a task does in the second orientation, where lanes are samples
(`lane_tiles.py`): whole layers of some samples.

What goes in and comes out are the arrays of the other orientation: x and dy are turned
into lanes, h, c and the gradients of the gates back into rows. So what reads these,
such as the gradients of the weights, is the same for both.
"""

import math

from ..kernels import part
from .instructions import array, place, read
from .lane_tiles import backward_lanes, forward_lanes
from .run import LEAVE, end_after, progress_at
from .steps import arrays, layer_at
from .tiles import transpose

STEPS = 16  # of a call of a tile: between two, a pass can be left


@part
def turn(job, a, out):
    """out = a.T in squares, then the rest."""
    rows, columns = a.shape
    squares, whole = columns // job.lanes, rows - rows % job.lanes
    for r in range(0, whole, job.lanes):
        if squares:
            a_r, out_r = place(a, (r, 0)), place(out, (0, r))
            transpose(job.transpose, squares, a_r, a.strides[0], out_r, out.strides[0])
        for c in range(squares * job.lanes, columns):
            for i in range(r, r + job.lanes):
                out[c, i] = a[i, c]
    for r in range(whole, rows):
        for c in range(columns):
            out[c, r] = a[r, c]


@part
def to_lanes(job, rows, lanes, first, last):
    """Some samples of (B, units and padding) to (units, B)."""
    units = min(rows.shape[1], lanes.shape[0])
    turn(job, rows[first:last, :units], lanes[:units, first:last])


@part
def to_rows(job, lanes, rows, units, first, last):
    """So many units and their padding, of some samples, back to rows: squares."""
    count = (last - first) // job.lanes
    for unit in range(0, units, job.lanes):
        a, out = place(lanes, (unit, first)), place(rows, (first, unit))
        transpose(job.transpose, count, a, lanes.strides[0], out, rows.strides[0])


@part
def outputs(job, h, first, last):
    """y of some samples, (T, B, H), or of chunks (B, T, H).

    Rows of a square may be longer than what is left of H: the rows and squares that
    come later are written over that, on memory of these samples alone.
    """
    T, H, count = job.T, job.H, (last - first) * job.H
    if job.chunked:
        units = array(job, place(h, (1,)), (T * H, job.B))
        y = array(job, job.y, (job.B, T * H))
        turn(job, units[:, first:last], y[first:last])
        return
    y = array(job, job.y, (T, job.B * H))
    rows = array(job, job.lanes_y, (job.B * job.P,))
    begin, squares = first * job.P, (last - first) // job.lanes
    for t in range(T):
        for i in range((H - 1) // job.lanes, -1, -1):
            unit = i * job.lanes
            a, out = place(h, (t + 1, unit, first)), place(rows, (begin + unit,))
            transpose(job.transpose, squares, a, h.strides[1], out, H * job.size)
        for k in range(count):
            y[t, first * H + k] = rows[begin + k]


@part
def chunks_row(job, l, start, stop, step, end, low, high, first, last):
    """x of some chunks of one sequence in lanes."""
    layer = layer_at(job.layers, 0)
    numbers = job.T * layer.D
    rows = array(job, layer.x, (job.B, numbers))
    lanes = array(job, layer.lanes_x, (numbers, job.B))
    turn(job, rows[first:last], lanes[:, first:last])
    return 0


@part
def seams_row(job, l, start, stop, step, end, low, high, first, last):
    """How many seams hold, from the first on: to PROGRESS. Then each chunk starts where
    the one before ended.
    """
    held = job.B - 1
    for l in range(job.L):
        layer = layer_at(job.layers, l)
        for state in arrays(job, layer, "lanes_h lanes_c"):
            ends, starts = state[job.T, :, :-1], state[0, :, 1:]
            held = min(held, holding(ends, starts))
            for unit in range(job.H):
                for seam in range(job.B - 1):
                    starts[unit, seam] = ends[unit, seam]
    progress = progress_at(job.progress, 0)
    progress.held = held
    progress.done += 1
    if held == job.B - 1:
        end_after(job, progress.done)
    return 0


@part
def holding(ends, starts):
    """How many seams hold, from the first on: numbers (H, seams) on both sides are the
    same to the bit. Zeros have signs; NaN is nothing's same.
    """
    H, seams = ends.shape
    held = seams
    for j in range(H):
        for i in range(held):
            end, start = ends[j, i], starts[j, i]
            if end != start or math.copysign(1, end) != math.copysign(1, start):
                held = i
                break
    return held


@part
def begin_lanes(job, l, start, first, last):
    """x of the first layer in lanes, and the state that the first of these steps starts
    from: the initial one, or zeros.
    """
    layer = layer_at(job.layers, l)
    h, c = arrays(job, layer, "lanes_h lanes_c")
    if job.chunked:  # these have the state of each chunk already
        for unit in range(job.H if start > 0 else 0):
            for s in range(first, last):
                h[start, unit, s] = c[start, unit, s] = 0
        return
    if l == 0 and layer.lanes_x != layer.x:
        rows, x = arrays(job, layer, "x lanes_x")
        for t in range(job.T):
            to_lanes(job, rows[t], x[t], first, last)
    h_rows, c_rows = arrays(job, layer, "h c")
    to_lanes(job, h_rows[0], h[0], first, last)
    to_lanes(job, c_rows[0], c[0], first, last)


@part
def forward_lanes_row(job, l, start, stop, step, end, low, high, first, last):
    """Steps of a layer for some samples; whether all are to leave."""
    layer = layer_at(job.layers, l)
    U, W, b, x, h, c, a = arrays(job, layer, "U W b lanes_x lanes_h lanes_c lanes_a")
    begin_lanes(job, l, start, first, last)
    c_step = c.strides[0] if job.lane_slots > 1 else 0
    for s in range(first, last, job.width):
        t = start
        while t < stop:
            if read(job.progress + LEAVE):
                return 1
            # From zeros the first step has no product with W.
            alone = t == start and (start > 0 or not job.starts)
            count = 1 if alone or job.J > 1 else min(STEPS, stop - t)
            H, slot = 0 if alone else job.H, t if job.keeps else 0
            c_slot = t if job.lane_slots > 1 else 0
            for j in range(job.J):
                unit = j * job.units
                units = min(job.units, job.H - unit)
                forward_lanes(
                    job.forward_lanes,
                    count,
                    place(b, (j, 0)),
                    place(x, (t, 0, s)),
                    x.strides[0],
                    D=layer.D,
                    U=place(U, (j, 0)),
                    h=place(h, (t, 0, s)),
                    h_step=h.strides[0],
                    H=H,
                    W=place(W, (j, 0)),
                    a=place(a, (slot, 0, s)),
                    a_step=a.strides[0],
                    c=place(c, (c_slot, unit, s)),
                    c_step=c_step,
                    h_new=place(h, (t + 1, unit, s)),
                    units=units,
                    line=h.strides[1],
                )
            t += count
    if l == job.L - 1 and job.y and start == 0:
        outputs(job, h, first, last)
    if job.chunked:
        return 0
    h_rows, c_rows = arrays(job, layer, "h c")
    every = job.keeps or not job.y  # else y has them, and the last is of the state
    for t in range(0 if every else job.T - 1, job.T):
        to_rows(job, h[t + 1], h_rows[t + 1], job.H, first, last)
    if layer.c != layer.h:
        last_slot = c[job.lane_slots - 1]
        to_rows(job, last_slot, c_rows[job.c_slots - 1], job.H, first, last)
    return 0


@part
def backward_lanes_row(job, l, start, stop, step, end, low, high, first, last):
    """The same back through time."""
    layer = layer_at(job.layers, l)
    above = layer_at(job.layers, min(l + 1, job.L - 1))
    T, da_above = job.T, arrays(job, above, "lanes_da")
    c, a, da, da_rows = arrays(job, layer, "lanes_c lanes_a lanes_da da")
    dy_rows, dh_rows, dc_rows = arrays(job, layer, "dy dh dc")
    dy, dc = arrays(job, layer, "lanes_dy lanes_dc")  # slot T of dy is zero
    is_top = l == job.L - 1
    from_caller = is_top and not job.losses  # else dy is zero before the last step
    to_lanes(job, dc_rows, dc, first, last)
    if is_top:
        to_lanes(job, dy_rows[T - 1], dy[T + 1], first, last)
    else:
        to_lanes(job, dh_rows, dy[T + 1], first, last)
    if from_caller:
        for t in range(T - 1):
            to_lanes(job, dy_rows[t], dy[t], first, last)
    for s in range(first, last, job.width):
        t = T - 1
        while t >= 0:
            if read(job.progress + LEAVE):
                return 1
            is_last = t == T - 1  # no step comes after it
            count = 1 if is_last else min(STEPS, t + 1)
            begin = T + 1 if is_last else (t if from_caller else T)
            begin_slot = dy.strides[0] if from_caller else 0
            H_above, H_next = 0 if is_top else job.H, 0 if is_last else job.H
            backward_lanes(
                job.backward_lanes,
                count,
                place(dy, (begin, 0, s)),
                begin_slot,
                above=place(da_above, (t, 0, s)),
                H_above=H_above,
                UT=above.UT,
                a=place(a, (t, 0, s)),
                da=place(da, (t, 0, s)),
                a_slot=a.strides[0],
                H=job.H,
                H_next=H_next,
                WT=layer.WT,
                dc=place(dc, (0, s)),
                c=place(c, (t, 0, s)),
                c_slot=c.strides[0],
                line=dc.strides[0],
            )
            t -= count
    for t in range(T):
        for unit in range(0, job.row, job.units):
            rows = da_rows[0, t, :, unit : unit + job.units]
            to_rows(job, da[t, unit : unit + job.units], rows, job.H, first, last)
    to_rows(job, dc, dc_rows, job.H, first, last)
    return 0
