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
from .arrays import LAYER
from .instructions import (
    array,
    exchange,
    integers,
    number,
    place,
    read,
    record_at,
)
from .run import LAST, LEAVE, progress_at, serpentine
from .tiles import backward, few, forward, gradient, inputs, through, transpose

GRAIN = 64  # rows (t, sample) of a weight gradient at once, in L1
ROWS = 96  # rows (t, sample) of dx at once
FEW = 4  # inputs up to which dx is a dot product for each

layer_at = record_at(LAYER)


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
    x = array(job, layer.x, (job.T, job.B, layer.x_width))
    U = array(job, layer.U, (job.J, layer.D_padded, job.U_row))
    W = array(job, layer.W, (job.J, job.P, job.W_row))
    b = array(job, layer.b, (job.J, job.row))
    h = array(job, layer.h, (job.T + 1, job.B, job.P))
    c = array(job, layer.c, (job.c_slots, job.B, job.P))
    a = array(job, layer.a, (job.J, job.gate_steps, job.B, job.row))
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
    t = job.T - 1 - step
    layer = layer_at(job.layers, l)
    above = layer_at(job.layers, min(l + 1, job.L - 1))
    c = array(job, layer.c, (job.c_slots, job.B, job.P))
    a = array(job, layer.a, (job.J, job.T, job.B, job.row))
    da = array(job, layer.da, (job.J, job.T, job.B, job.row))
    da_above = array(job, above.da, (job.J, job.T, job.B, job.row))
    dy = array(job, layer.dy, (job.T, job.B, job.P))
    dh = array(job, job.dh, (job.L, job.B, job.P))
    dc = array(job, job.dc, (job.L, job.B, job.P))
    WT = array(job, layer.WT, (job.J_wide, job.J * job.W_row, job.wide))
    zero = array(job, job.zero, (job.P,))
    unit = w * job.wide  # the wide block's first
    j = unit // job.units  # and its first unit block
    rows, row, block = last - first, dy.strides[1], da.strides[0]
    if l < job.L - 1 and step == begin:
        low = job.T - end  # the first of these steps
        UT = array(job, above.UT, (job.J_wide, job.J * job.U_row, job.wide))
        UT_w, zeros = place(UT, (w, 0)), place(zero, (unit,))
        if t == job.T - 1:  # where the gradient of the final h comes in
            dh_l, da_t = place(dh, (l, first, unit)), place(da_above, (0, t, first))
            how = dh_l, row, da_t, job.J, block, UT_w, place(dy, (t, first, unit)), row
            through(job.through_U, rows, *how)
        count = t - low + (t < job.T - 1)  # without that step
        if rows == job.B:
            da_t, out = place(da_above, (0, low, 0)), place(dy, (low, 0, unit))
            how = zeros, 0, da_t, job.J, block, UT_w, out, row
            through(job.through_U, count * rows, *how)
        else:
            for later in range(low, low + count):
                da_t = place(da_above, (0, later, first))
                out = place(dy, (later, first, unit))
                how = zeros, 0, da_t, job.J, block, UT_w, out, row
                through(job.through_U, rows, *how)
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
        dc=place(dc, (l, first, unit)),
        c=place(c, (t, first, unit)),
        c_new=place(c, (t + 1, first, unit)),
        row=row,
    )


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
    N = job.T * job.B
    da = array(job, layer.da, (job.J, N, job.row))
    dx = array(job, job.dx, (N, layer.D_padded))
    U = array(job, layer.U, (job.J, layer.D_padded, job.U_row))
    wide_blocks = layer.D_padded // job.wide
    UT = array(job, layer.UT, (wide_blocks, job.J * job.U_row, job.wide))
    zero = array(job, job.zero, (job.P,))
    rows, da_n = last - first, place(da, (0, first))
    block, row = da.strides[0], dx.strides[0]
    if layer.D <= FEW:
        U_0, out = place(U, (0,)), place(dx, (first,))
        few(job.few, rows, layer.D, da_n, job.J, block, U_0, U.strides[0], out, row)
    else:
        for w in range(wide_blocks):
            out, UT_w = place(dx, (first, w * job.wide)), place(UT, (w,))
            how = place(zero, (0,)), 0, da_n, job.J, block, UT_w, out, row
            through(job.through_U, rows, *how)


@part
def initial_gradient(job, l):
    """The gradient of the initial h, through step 0; and past it, where a cell has no
    c: what it hands over then is h.
    """
    layer = layer_at(job.layers, l)
    da = array(job, layer.da, (job.J, job.T, job.B, job.row))
    dc = array(job, job.dc, (job.L, job.B, job.P))
    dh0 = array(job, job.dh0, (job.L, job.B, job.P))
    WT = array(job, layer.WT, (job.J_wide, job.J * job.W_row, job.wide))
    zero = array(job, job.zero, (job.P,))
    da_0, block, row = place(da, (0, 0, 0)), da.strides[0], dh0.strides[1]
    for w in range(job.J_wide):
        unit = w * job.wide
        begin, begin_row = place(zero, (unit,)), 0
        if layer.c == layer.h:
            begin, begin_row = place(dc, (l, 0, unit)), row
        out, WT_w = place(dh0, (l, 0, unit)), place(WT, (w,))
        how = begin, begin_row, da_0, job.J, block, WT_w, out, row
        through(job.through_W, job.B, *how)


@part
def gradient_block(job, l, j):
    """gU, gW, gb += rate times the gradients of unit block j: of parameters that
    descend; else from zero, and then as plain matrices.
    """
    layer = layer_at(job.layers, l)
    gU = place(array(job, layer.gU, (job.J, layer.D_padded, job.U_row)), (j,))
    gW = place(array(job, layer.gW, (job.J, job.P, job.W_row)), (j,))
    gb = place(array(job, layer.gb, (job.J, job.row)), (j,))
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
    N = job.T * job.B
    rate = float(job.rate)
    x = array(job, layer.x, (N, layer.x_width))
    h = array(job, layer.h, (N, job.P))  # before the step of the same row
    da = array(job, layer.da, (job.J, N, job.row))
    for n in range(0, N, GRAIN):
        count = min(GRAIN, N - n)
        x_n, da_n, row = place(x, (n,)), place(da, (j, n)), x.strides[0]
        gradient(job.gradient_U, layer.D, x_n, job.size, row, count, da_n, gU, rate)
        gradient(job.gradient_b, 1, job.one, 0, 0, count, da_n, gb, rate)
    for n in range(0 if job.starts else job.B, N, GRAIN):
        count = min(GRAIN, N - n)
        h_n, da_n, row = place(h, (n,)), place(da, (j, n)), h.strides[0]
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
    T, B, N, O = job.T, job.B, job.N, job.O
    D = layer_at(job.layers, 0).D
    order = integers(job.order, (batch + 1) * B)
    source = array(job, job.source, (T, N, D))
    labels = array(job, job.labels, (N, O))
    x = array(job, job.x, (T, B, D))
    target = array(job, job.target, (B, O))
    for s in range(first, last):
        example = order[batch * B + s]
        for t in range(T):
            for d in range(D):
                x[t, s, d] = source[t, example, d]
        for o in range(O):
            target[s, o] = labels[example, o]
    return 0


@part
def readout_row(job, l, start, stop, step, end, low, high, first, last):
    """error = y V + b_out - target of some samples, and what their backward pass begins
    with: dy of the last step and dc.
    """
    L, T, B, H, P, O = job.L, job.T, job.B, job.H, job.P, job.O
    top = layer_at(job.layers, L - 1)
    y = array(job, top.h, (T + 1, B, P))[T]
    dy = array(job, top.dy, (T, B, P))[T - 1]
    dc = array(job, job.dc, (L, B, P))
    V = array(job, job.V, (H, O))
    b_out = array(job, job.b_out, (O,))
    target = array(job, job.target, (B, O))
    error = array(job, job.error, (B, O))
    scale = number(job, 2) / number(job, B * O)
    for s in range(first, last):
        for k in range(P):
            dy[s, k] = 0
            for l in range(L):
                dc[l, s, k] = 0
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
    L, T, B, H, P, O = job.L, job.T, job.B, job.H, job.P, job.O
    y = array(job, layer_at(job.layers, L - 1).h, (T + 1, B, P))[T]
    error = array(job, job.error, (B, O))
    gV = array(job, job.gV, (H, O))
    gb_out = array(job, job.gb_out, (O,))
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


@part
def add_final(p, turn, job):
    """To dy of the last step, the gradient of the final h of the top layer: not in
    NumPy, where the caller's mode of arithmetic could flush it to zero.
    """
    top, T, count = layer_at(job.layers, job.L - 1), job.T, job.B * job.P
    dy, dh = array(job, top.dy, (T, count)), array(job, job.dh, (job.L, count))
    for n in range(count):
        dy[T - 1, n] += dh[job.L - 1, n]
    return turn


@part
def transpose_all(p, turn, job):
    """All transposed weights."""
    for l in range(job.L):
        for j in range(job.J):
            transpose_weights(job, l, j)
    return turn
