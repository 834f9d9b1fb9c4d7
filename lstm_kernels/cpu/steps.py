"""What a task does: blocks of steps of a row (`run.py`), as calls of tiles.

A JOB and its LAYERs (`arrays.py`) have the addresses of all that a tile (`tiles.py`)
reads or writes and of the tiles' machine code, so these functions are compiled once for
every cell. Rows are machine code of their own: what a network does not use is not
compiled.

l is a layer, t a step, n a row (t, sample), j a unit block, w a wide one, k a unit.
start and stop bound a task's steps in the order of the pass, step and end those of a
part of it, low and high its blocks, first and last its samples.
"""

from ..kernels import part
from .arrays import LAYER, TABLE
from .instructions import (
    array,
    integers,
    number,
    place,
    read,
    record_at,
    views,
)
from .run import LEAVE, end_after, progress_at, serpentine
from .tiles import backward, few, forward, gradient, inputs, through, transpose

GRAIN = 64  # rows (t, sample) of a weight gradient at once, in L1
ROWS = 96  # rows (t, sample) of dx at once
FEW = 4  # inputs up to which dx is a dot product for each

layer_at, arrays = record_at(LAYER), views(TABLE)


@part
def forward_row(job, l, start, stop, step, end, low, high, first, last):
    """Steps step, ..., end-1 of unit blocks low, ..., high-1, each from slot t to slot
    t+1 of h and c; whether all are to leave.
    """
    layer = layer_at(job.layers, l)
    x, U, W, b, h, c, a = arrays(job, layer, "x U W b h c a")
    last_slot = job.c_slots - 1  # in inference c has two: the initial one and the last
    ahead = job.input_steps > 1  # are inputs of some steps multiplied at once?
    for t in range(step, end):
        if read(job.progress + LEAVE):
            return 1
        begin = t - (t - start) % job.input_steps
        until = min(begin + job.input_steps, stop)
        slot = t if job.keeps else t - begin  # of a
        # Without an initial state the first step has no product with W.
        H = job.H if t > 0 or job.starts else 0
        for i in range(high - low):
            j = serpentine(t, i, low, high)
            if ahead and t == begin:
                multiply_inputs(job, l, j, t, until, slot, first, last)
            a_t, unit = place(a, (j, slot, first)), j * job.units  # its first
            begins, begins_row, D = place(b, (j, 0)), 0, layer.D  # of the sums
            if ahead:
                begins, begins_row, D = a_t, a.strides[2], 0
            forward(
                job.forward,
                last - first,
                begin=begins,
                begin_row=begins_row,
                x=place(x, (t, first)),
                x_row=x.strides[1],
                D=D,
                U=place(U, (j, 0)),
                h=place(h, (t, first)),
                H=H,
                W=place(W, (j, 0)),
                a=a_t,
                c=place(c, (min(t, last_slot), first, unit)),
                c_new=place(c, (min(t + 1, last_slot), first, unit)),
                h_new=place(h, (t + 1, first, unit)),
                row=h.strides[1],
            )
    return 0


@part
def multiply_inputs(job, l, j, low, high, slot, first, last):
    """a = b + x U of steps low, ..., high-1, of unit block j, from a slot of a on."""
    layer = layer_at(job.layers, l)
    x, U, b, a = arrays(job, layer, "x U b a")
    count, rows = high - low, last - first
    if rows == job.B:  # of all samples they are one run
        count, rows = 1, count * rows
    for t in range(count):
        x_t, a_t = place(x, (low + t, first)), place(a, (j, slot + t, first))
        how = x_t, x.strides[1], layer.D, place(U, (j, 0)), place(b, (j, 0)), a_t
        inputs(job.inputs, rows, *how)


@part
def backward_row(job, l, start, stop, step, end, low, high, first, last):
    """The same back through time, of wide unit blocks."""
    layer, T = layer_at(job.layers, l), job.T
    c, a, da, WT = arrays(job, layer, "c a da WT")
    dy, dh, dc, zero = arrays(job, layer, "dy dh dc zero")
    row, block = dy.strides[1], da.strides[0]
    for s in range(step, end):
        if read(job.progress + LEAVE):
            return 1
        t, is_last = T - 1 - s, s == 0  # no step comes after the last
        at_once = (s - start) % job.back_steps == 0 and l < job.L - 1
        until = max(T - stop, t + 1 - job.back_steps)  # the first of these steps
        J, later = (0, t) if is_last else (job.J, t + 1)
        for i in range(high - low):
            w = serpentine(s, i, low, high)
            unit = w * job.wide  # the wide block's first
            j = unit // job.units  # and its first unit block
            if at_once:
                dh_l, zeros = place(dh, (first, unit)), place(zero, (unit,))
                if is_last:  # where the gradient of the final h comes in
                    from_above(job, l, w, t, t + 1, first, last, dh_l, row)
                from_above(job, l, w, until, t + 1 - is_last, first, last, zeros, 0)
            backward(
                job.backward,
                last - first,
                begin=place(dy, (t, first, unit)),
                begin_row=row,
                da_next=place(da, (0, later, first)),
                J=J,
                WT=place(WT, (w, 0)),
                block=block,
                a=place(a, (j, t, first)),
                da=place(da, (j, t, first)),
                dc=place(dc, (first, unit)),
                c=place(c, (t, first, unit)),
                c_new=place(c, (t + 1, first, unit)),
                row=row,
            )
    return 0


@part
def from_above(job, l, w, low, high, first, last, begin, begin_row):
    """dy of steps low, ..., high-1, of wide unit block w: begin + da_above UT."""
    layer, above = layer_at(job.layers, l), layer_at(job.layers, l + 1)
    dy, (da, UT) = arrays(job, layer, "dy"), arrays(job, above, "da UT")
    count, rows = high - low, last - first
    if rows == job.B:  # of all samples they are one run
        count, rows = min(count, 1), count * rows
    for t in range(low, low + count):
        da_t, out = place(da, (0, t, first)), place(dy, (t, first, w * job.wide))
        how = da_t, job.J, da.strides[0], place(UT, (w, 0)), out, dy.strides[1]
        through(job.through_U, rows, begin, begin_row, *how)


@part
def gradients_row(job, l, start, stop, step, end, low, high, first, last):
    """Some parts of what can wait until after a backward pass: a unit block of a
    layer's weights each, the read-out, rows of dx, initial states (`plans.py`).
    """
    blocks, of_inputs = job.L * job.J, (job.T * job.B + ROWS - 1) // ROWS
    for i in range(low, high):
        if i < blocks:
            gradient_block(job, i // job.J, i % job.J)
        elif i == blocks:
            if job.losses:
                note_loss(job)
        elif i <= blocks + of_inputs:
            if job.dx:
                n = (i - blocks - 1) * ROWS
                input_gradient(job, n, min(n + ROWS, job.T * job.B))
        else:
            initial_gradient(job, i - blocks - of_inputs - 1)
    return 0


@part
def note_loss(job):
    """The read-out's gradients, and the loss among those of this call."""
    loss = readout_gradient(job)
    progress = progress_at(job.progress, 0)
    done = progress.done
    array(job, job.losses, (done + 1,))[done] = loss
    progress.done = done + 1
    if loss - loss != 0:  # it is not finite: this was the last step
        end_after(job, done + 1)


@part
def input_gradient(job, first, last):
    """dx for rows first, ..., last-1 of (t, sample)."""
    layer = layer_at(job.layers, 0)
    da, dx, U, UT, zero = arrays(job, layer, "da dx U UT zero")
    t, s = first // job.B, first % job.B
    rows, da_n = last - first, place(da, (0, t, s))
    block, row = da.strides[0], dx.strides[1]
    if layer.D <= FEW:
        U_0, out = place(U, (0,)), place(dx, (t, s))
        few(job.few, rows, layer.D, da_n, job.J, block, U_0, U.strides[0], out, row)
    else:
        for w in range(layer.D_wide):
            out, UT_w = place(dx, (t, s, w * job.wide)), place(UT, (w,))
            how = place(zero, (0,)), 0, da_n, job.J, block, UT_w, out, row
            through(job.through_U, rows, *how)


@part
def initial_gradient(job, l):
    """The gradient of the initial h, through step 0; and past it, where a cell has no
    c: what it hands over then is h.
    """
    layer = layer_at(job.layers, l)
    da, dc, dh0, WT, zero = arrays(job, layer, "da dc dh0 WT zero")
    da_0, block, row = place(da, (0, 0, 0)), da.strides[0], dh0.strides[0]
    for w in range(job.J_wide):
        unit = w * job.wide
        begin, begin_row = place(zero, (unit,)), 0
        if layer.c == layer.h:
            begin, begin_row = place(dc, (0, unit)), row
        out, WT_w = place(dh0, (0, unit)), place(WT, (w,))
        how = begin, begin_row, da_0, job.J, block, WT_w, out, row
        through(job.through_W, job.B, *how)


@part
def gradient_block(job, l, j):
    """gU, gW, gb += rate times the gradients of unit block j: of parameters that
    descend; else from zero, and then as plain matrices.
    """
    layer = layer_at(job.layers, l)
    gUs, gWs, gbs = arrays(job, layer, "gU gW gb")
    gU, gW, gb = place(gUs, (j,)), place(gWs, (j,)), place(gbs, (j,))
    if not job.descend:
        clear(job, gU, layer.D * job.U_row)
        clear(job, gW, job.H * job.W_row)
        clear(job, gb, job.row)
    add_gradients(job, l, j, gU, gW, gb)
    if job.descend:
        transpose_weights(job, l, j)
        return
    unpack(job, j, gU, layer.D, job.U_row, job.plain + layer.dU)
    unpack(job, j, gW, job.H, job.W_row, job.plain + layer.dW)
    unpack(job, j, gb, 1, job.row, job.plain + layer.db)


@part
def clear(job, address, count):
    """Zeros."""
    numbers = array(job, address, (count,))
    for i in range(count):
        numbers[i] = 0


@part
def add_gradients(job, l, j, gU, gW, gb):
    """The sums over rows (t, sample) for unit block j."""
    layer = layer_at(job.layers, l)
    x, h, da = arrays(job, layer, "x h da")  # slot t of h is from before step t
    N, B, rate = job.T * job.B, job.B, float(job.rate)
    for n in range(0, N, GRAIN):
        count, t, s = min(GRAIN, N - n), n // B, n % B
        x_n, da_n, row = place(x, (t, s)), place(da, (j, t, s)), x.strides[1]
        gradient(job.gradient_U, layer.D, x_n, job.size, row, count, da_n, gU, rate)
        gradient(job.gradient_b, 1, job.one, 0, 0, count, da_n, gb, rate)
    for n in range(0 if job.starts else B, N, GRAIN):
        count, t, s = min(GRAIN, N - n), n // B, n % B
        h_n, da_n, row = place(h, (t, s)), place(da, (j, t, s)), h.strides[1]
        gradient(job.gradient_W, job.H, h_n, job.size, row, count, da_n, gW, rate)


@part
def unpack(job, j, block, rows, columns, matrix):
    """Rows of a packed block (rows, G*units), to a matrix (rows, G*H); addresses."""
    units = job.units
    G = columns // units
    packed = array(job, block, (rows, G, units))
    plain = array(job, matrix, (rows, G, job.H))
    begin = j * units
    count = min(units, job.H - begin)
    for r in range(rows):
        for g in range(G):
            for k in range(count):
                plain[r, g, begin + k] = packed[r, g, k]


@part
def transpose_weights(job, l, j):
    """The lines of UT and WT that belong to unit block j, from U and W."""
    layer = layer_at(job.layers, l)
    transpose_block(job, j, layer.U, layer.D_padded, job.U_row, layer.UT)
    transpose_block(job, j, layer.W, job.P, job.W_row, layer.WT)


@part
def transpose_block(job, j, weights, rows, columns, transposed):
    """Rows of unit block j of packed weights to columns of wide blocks, a vector of
    rows at a time.
    """
    M = array(job, weights, (job.J, rows, columns))
    MT = array(job, transposed, (rows // job.wide, job.J * columns, job.wide))
    for k in range(0, rows, job.lanes):
        out = place(MT, (k // job.wide, j * columns, k % job.wide))
        squares, M_k = columns // job.lanes, place(M, (j, k))
        transpose(job.transpose, squares, M_k, M.strides[1], out, MT.strides[1])


@part
def examples_row(job, l, start, stop, step, end, low, high, first, last):
    """Examples of the data set into a mini-batch: samples first, ..., last-1."""
    if not job.order:
        return 0  # they are there
    batch = progress_at(job.progress, 0).done
    order = integers(job.order, (batch + 1) * job.B)
    layer = layer_at(job.layers, 0)
    source, labels, x, target = arrays(job, layer, "source labels x_batch target")
    for s in range(first, last):
        example = order[batch * job.B + s]
        for t in range(job.T):
            for d in range(layer.D):
                x[t, s, d] = source[t, example, d]
        for o in range(job.O):
            target[s, o] = labels[example, o]
    return 0


@part
def readout_row(job, l, start, stop, step, end, low, high, first, last):
    """error = y V + b_out - target of some samples, and what their backward pass begins
    with: dy of the last step and dc.
    """
    T, B, H, O, top = job.T, job.B, job.H, job.O, layer_at(job.layers, job.L - 1)
    slots, dys, V, b_out = arrays(job, top, "h dy V b_out")
    target, error = arrays(job, top, "target error")
    y, dy = slots[T], dys[T - 1]
    scale = number(job, 2) / number(job, B * O)
    for s in range(first, last):
        for k in range(job.P):
            dy[s, k] = 0
            for l in range(job.L):
                arrays(job, layer_at(job.layers, l), "dc")[s, k] = 0
        for o in range(O):
            total = b_out[o] - target[s, o]
            for k in range(H):
                total += y[s, k] * V[k, o]
            error[s, o] = total
            for k in range(H):
                dy[s, k] += scale * total * V[k, o]
    return 0


@part
def readout_gradient(job):
    """gV, gb_out += rate times their gradients; the mean squared error."""
    T, B, H, O, top = job.T, job.B, job.H, job.O, layer_at(job.layers, job.L - 1)
    slots, error, gV, gb_out = arrays(job, top, "h error gV gb_out")
    y = slots[T]
    scale = number(job, 2) / number(job, B * O) * number(job, job.rate)
    loss = number(job, 0)
    for o in range(O):
        total = number(job, 0)
        for s in range(B):
            total += error[s, o]
            loss += error[s, o] * error[s, o]
        gb_out[o] += scale * total
        for k in range(H):
            total = number(job, 0)
            for s in range(B):
                total += y[s, k] * error[s, o]
            gV[k, o] += scale * total
    return loss / number(job, B * O)
