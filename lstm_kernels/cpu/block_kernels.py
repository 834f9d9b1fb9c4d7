"""What a task does: steps of a layer, block by block, as calls of tiles.

A JOB and its LAYERs (`arrays.py`) have the addresses of all that a tile (`tiles.py`)
reads or writes and of the tiles' machine code, so these functions are compiled once for
every cell. Who runs what when: `passes.py`.

l is a layer, t a step, n a row (t, sample), j a unit block, w a wide one, k a unit;
first and last bound the samples.
"""

from ..kernels import part
from .arrays import LAYER, PROGRESS
from .instructions import array, integers, number, place, read, record_at
from .tiles import back, few, gradient, inputs, step, through, transpose, whole

GRAIN = 64  # rows (t, sample) of a weight gradient at once, in L1
ROWS = 96  # rows (t, sample) of dx at once
FEW = 4  # inputs up to which dx is a dot product for each

layer_at = record_at(LAYER)
progress_at = record_at(PROGRESS)
# Bytes to words of it that change while threads read them
LEAVE, LAST = (PROGRESS.fields[name][1] for name in ("leave", "last"))


@part
def forward_steps(job, l, start, stop, first, last):
    """Steps start, ..., stop-1 of layer l for some samples, until told to leave. Blocks
    go up and down in turns: a step begins with the weights that the last one left in
    the cache.
    """
    for t in range(start, stop):
        if read(job.progress + LEAVE):
            return
        begin = t - (t - start) % job.input_steps
        end = min(begin + job.input_steps, stop)
        for i in range(job.J):
            j = i if t % 2 == 0 else job.J - 1 - i
            forward_block(job, l, j, t, begin, end, first, last)


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
    x_row, row, rows = x.strides[1], h.strides[1], last - first
    # Without an initial state the first step has no product with W.
    H = job.H if t > 0 or job.starts else 0
    U_j, W_j, b_j = place(U, (j, 0)), place(W, (j, 0)), place(b, (j, 0))
    x_t, h_t = place(x, (t, first)), place(h, (t, first))
    a_t = place(a, (j, slot, first))
    c_t = place(c, (min(t, last_slot), first, unit))
    c_new = place(c, (min(t + 1, last_slot), first, unit))
    h_new = place(h, (t + 1, first, unit))
    if job.input_steps == 1:
        whole(
            job.whole,
            rows,
            x=x_t,
            x_row=x_row,
            D=layer.D,
            U=U_j,
            b=b_j,
            h=h_t,
            H=H,
            W=W_j,
            a=a_t,
            c=c_t,
            c_new=c_new,
            h_new=h_new,
            row=row,
        )
        return
    if t == begin and rows == job.B:
        all_rows = (end - begin) * rows
        inputs(job.inputs, all_rows, x_t, x_row, layer.D, U_j, b_j, a_t)
    elif t == begin:  # rows of some samples are no run
        for later in range(end - begin):
            x_later = place(x, (t + later, first))
            a_later = place(a, (j, slot + later, first))
            inputs(job.inputs, rows, x_later, x_row, layer.D, U_j, b_j, a_later)
    step(job.step, rows, h_t, H, W_j, a_t, c_t, c_new, h_new, row)


@part
def backward_steps(job, l, start, stop, first, last):
    """Steps stop-1, ..., start of layer l back through time, and the gradients of the
    layer's input and initial h.
    """
    layer = layer_at(job.layers, l)
    # Steps whose rows are a run.
    together = max(1, ROWS // job.B) if last - first == job.B else 1
    for t in range(stop - 1, start - 1, -1):
        if read(job.progress + LEAVE):
            return
        for i in range(job.J_wide):
            w = i if t % 2 == 0 else job.J_wide - 1 - i
            back_block(job, l, w, t, first, last)
        if layer.dx and (t - start) % together == 0:
            end = min(t + together, stop)
            input_gradient(job, l, t * job.B + first, (end - 1) * job.B + last)
    if job.dh0 and start == 0:
        initial_gradient(job, l, first, last)


@part
def back_block(job, l, w, t, first, last):
    """Step t of the backward pass for wide unit block w."""
    layer = layer_at(job.layers, l)
    c = array(job, layer.c, (job.c_slots, job.B, job.P))
    a = array(job, layer.a, (job.J, job.T, job.B, job.row))
    da = array(job, layer.da, (job.J, job.T, job.B, job.row))
    dy = array(job, layer.dy, (job.T, job.B, job.P))
    dh = array(job, job.dh, (job.L, job.B, job.P))
    dc = array(job, job.dc, (job.L, job.B, job.P))
    WT = array(job, layer.WT, (job.J_wide, job.J * job.W_row, job.wide))
    zero = array(job, job.zero, (job.P,))
    unit = w * job.wide  # the wide block's first
    j = unit // job.units  # and its first unit block
    row = dy.strides[1]
    if t == job.T - 1:
        J, da_next = 0, place(da, (0, t, first))  # there is no step after it
        dh_final, dh_row = place(dh, (l, first, unit)), row
    else:
        J, da_next = job.J, place(da, (0, t + 1, first))
        dh_final, dh_row = place(zero, (unit,)), 0  # zeros, for every sample
    back(
        job.back,
        last - first,
        da_next,
        J,
        block=da.strides[0],
        WT=place(WT, (w, 0)),
        dy=place(dy, (t, first, unit)),
        dh=dh_final,
        dh_row=dh_row,
        row=row,
        a=place(a, (j, t, first)),
        da=place(da, (j, t, first)),
        dc=place(dc, (l, first, unit)),
        c=place(c, (t, first, unit)),
        c_new=place(c, (t + 1, first, unit)),
    )


@part
def input_gradient(job, l, first, last):
    """dx for rows first, ..., last-1 of (t, sample)."""
    layer = layer_at(job.layers, l)
    N = job.T * job.B
    da = array(job, layer.da, (job.J, N, job.row))
    dx = array(job, layer.dx, (N, layer.D_padded))
    U = array(job, layer.U, (job.J, layer.D_padded, job.U_row))
    wide_blocks = layer.D_padded // job.wide
    UT = array(job, layer.UT, (wide_blocks, job.J * job.U_row, job.wide))
    for n in range(first, last, ROWS):
        rows = min(ROWS, last - n)
        da_n, block, row = place(da, (0, n)), da.strides[0], dx.strides[0]
        if layer.D <= FEW:
            U_0, out = place(U, (0,)), place(dx, (n,))
            few(job.few, rows, layer.D, da_n, job.J, block, U_0, U.strides[0], out, row)
        else:
            for w in range(wide_blocks):
                out = place(dx, (n, w * job.wide))
                UT_w = place(UT, (w,))
                through(job.through_U, rows, da_n, job.J, block, UT_w, out, row)


@part
def initial_gradient(job, l, first, last):
    """The gradient of the initial h of some samples, through step 0."""
    layer = layer_at(job.layers, l)
    da = array(job, layer.da, (job.J, job.T, job.B, job.row))
    dh0 = array(job, job.dh0, (job.L, job.B, job.P))
    WT = array(job, layer.WT, (job.J_wide, job.J * job.W_row, job.wide))
    da_0, block = place(da, (0, 0, first)), da.strides[0]
    rows, row = last - first, dh0.strides[1]
    for w in range(job.J_wide):
        out = place(dh0, (l, first, w * job.wide))
        WT_w = place(WT, (w,))
        through(job.through_W, rows, da_0, job.J, block, WT_w, out, row)


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
def gather(job, batch, first, last):
    """Examples of the data set into a mini-batch: samples first, ..., last-1."""
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


@part
def begin_backward(job, first, last):
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
