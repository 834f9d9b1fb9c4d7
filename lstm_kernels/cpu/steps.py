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
    exchange,
    integers,
    number,
    place,
    read,
    record_at,
    views,
)
from .run import LAST, LEAVE, progress_at, serpentine
from .tiles import backward, few, forward, gradient, inputs, through, transpose

GRAIN = 64  # rows (t, sample) of a weight gradient at once, in L1
ROWS = 96  # rows (t, sample) of dx at once
FEW = 4  # inputs up to which dx is a dot product for each

layer_at, arrays = record_at(LAYER), views(TABLE)


@part
def forward_row(job, l, start, stop, step, end, low, high, first, last):
    """Steps step, ..., end-1 of unit blocks low, ..., high-1; whether all are to leave.
    Inputs are multiplied for some steps of the task at once.
    """
    for t in range(step, end):
        if read(job.progress + LEAVE):
            return 1
        begin = t - (t - start) % job.input_steps
        until = min(begin + job.input_steps, stop)
        for i in range(high - low):
            j = serpentine(t, i, low, high)
            forward_block(job, l, j, t, begin, until, first, last)
    return 0


@part
def forward_block(job, l, j, t, begin, end, first, last):
    """Step t of unit block j, from slot t to slot t+1 of h and c; the inputs of steps
    begin, ..., end-1 are multiplied at the first of them.
    """
    layer = layer_at(job.layers, l)
    x, U, W, b, h, c, a = arrays(job, layer, "x U W b h c a")
    unit = j * job.units  # the block's first
    slot = t if job.gate_steps == job.T else t - begin  # of a
    last_slot = job.c_slots - 1  # in inference c has two: the initial one and the last
    rows, x_row, a_row = last - first, x.strides[1], a.strides[2]
    U_j, b_j, D = place(U, (j, 0)), place(b, (j, 0)), layer.D
    x_t, a_t = place(x, (t, first)), place(a, (j, slot, first))
    begins, begins_row = b_j, 0  # of the sums
    if job.input_steps > 1:
        begins, begins_row, D = a_t, a_row, 0
        if t == begin and rows == job.B:
            all_rows = (end - begin) * rows
            inputs(job.inputs, all_rows, x_t, x_row, layer.D, U_j, b_j, a_t)
        elif t == begin:  # rows of some samples are no run
            for later in range(end - begin):
                x_later = place(x, (t + later, first))
                a_later = place(a, (j, slot + later, first))
                inputs(job.inputs, rows, x_later, x_row, layer.D, U_j, b_j, a_later)
    forward(
        job.forward,
        rows,
        begin=begins,
        begin_row=begins_row,
        x=x_t,
        x_row=x_row,
        D=D,
        U=U_j,
        h=place(h, (t, first)),
        # Without an initial state the first step has no product with W.
        H=job.H if t > 0 or job.starts else 0,
        W=place(W, (j, 0)),
        a=a_t,
        c=place(c, (min(t, last_slot), first, unit)),
        c_new=place(c, (min(t + 1, last_slot), first, unit)),
        h_new=place(h, (t + 1, first, unit)),
        row=h.strides[1],
    )


@part
def backward_row(job, l, start, stop, step, end, low, high, first, last):
    """The same back through time, of wide unit blocks."""
    for s in range(step, end):
        if read(job.progress + LEAVE):
            return 1
        begin = s - (s - start) % job.back_steps
        until = min(begin + job.back_steps, stop)
        for i in range(high - low):
            w = serpentine(s, i, low, high)
            backward_block(job, l, w, s, begin, until, first, last)
    return 0


@part
def backward_block(job, l, w, step, begin, end, first, last):
    """A step of wide unit block w: the steps begin, ..., end-1 of this pass are
    multiplied by the weights above at the first of them.
    """
    t, low = job.T - 1 - step, job.T - end  # the first of these steps
    layer = layer_at(job.layers, l)
    c, a, da, WT = arrays(job, layer, "c a da WT")
    dy, dh, dc, zero = arrays(job, layer, "dy dh dc zero")
    unit = w * job.wide  # the wide block's first
    j = unit // job.units  # and its first unit block
    rows, row, block = last - first, dy.strides[1], da.strides[0]
    if l < job.L - 1 and step == begin:
        is_last = t == job.T - 1  # where the gradient of the final h comes in
        if is_last:
            begin_at = place(dh, (first, unit))
            from_above(job, l, w, t, t + 1, first, last, begin_at, row)
        zeros = place(zero, (unit,))
        from_above(job, l, w, low, t + 1 - is_last, first, last, zeros, 0)
    J, later = (job.J, t + 1) if t < job.T - 1 else (0, t)  # no step after the last
    backward(
        job.backward,
        rows,
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
        exchange(job.progress + LAST, 0)


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
