"""The kernels of `numba-fused`, block by block: what a task of a region does.

A JOB points to a LAYER for each layer of the network (`records.py`), with the addresses of
everything a tile reads or writes and of the tiles themselves, so that the kernels are compiled once
for every cell. Free names are filled in by `machine_code.py`; filled in with checked tiles, all
this runs as plain Python. `first`, `last` are samples of the mini-batch, j is a unit block or a
wide unit block.
"""

GRAIN = 64  # rows of (t, sample) of a weight gradient at once, in L1
FEW = 4  # inputs up to which dx is a dot product for each

# The free names: tiles called by their address, records and arrays at addresses, the dtype.
inputs = step = whole = back = through = gradient = transpose = few = real = None
layer_at = array = array_of_indices = None


def to_and_fro(k, count, t):
    """The k-th of `count` blocks: upwards in every other step, downwards in between, so that a step
    begins with the weights that the step before left in the cache.
    """
    return k if t % 2 == 0 else count - 1 - k


def forward_block(job, l, j, t, begin, end, first, last):
    """Step t of hidden block j of layer l: inputs and all, or those of steps begin, ..., end-1 at
    the first of them. The last step leaves the final state where the caller wants it.
    """
    q = layer_at(job.layers, l)
    rows, start, x = last - first, first * q.row, q.x + (t * q.B + first) * q.x_row
    now, unit = t * q.B * q.row + start, j * q.unit
    a = q.a + j * q.a_block + ((t if q.keeps else t - begin) * q.B + first) * q.a_row
    U, W, b = q.U + j * q.U_block, q.W + j * q.W_block, q.b + j * q.a_row
    c, h, H = q.c + t * q.c_step + start + unit, q.h + now + unit, q.H
    if t == 0:
        h_prev, c_prev, H = q.h0 + start, q.c0 + start + unit, H * q.starts
    else:
        h_prev = q.h + now - q.B * q.row
        c_prev = q.c + (t - 1) * q.c_step + start + unit
    if q.input_steps == 1:
        whole(q.whole, rows, x, q.x_row, q.D, U, b, h_prev, q.row, H, W, a, c_prev, c, h)
    else:
        if t == begin:
            inputs(q.inputs, (end - begin) * q.B, x, q.x_row, q.D, U, b, a)
        step(q.step, rows, h_prev, q.row, H, W, a, c_prev, c, h)
    if t == q.T - 1:
        keep_state(job, q, l, j, first, last)


def keep_state(job, q, l, j, first, last):
    """Copy the final state of block j of layer l out."""
    units = q.unit // q.size
    count, row = min(units, q.H - j * units), q.H * q.size  # bytes of a sample in the state
    h = q.h + (q.T - 1) * q.B * q.row + j * q.unit
    c = q.c + (q.T - 1) * q.c_step + j * q.unit
    state = job.state + l * q.B * row + j * q.unit
    for s in range(first, last):
        copy(h + s * q.row, state + s * row, count)
        if job.states == 2:
            copy(c + s * q.row, state + (job.L * q.B + s) * row, count)


def copy(source, target, count):
    """So many numbers from one address to another."""
    numbers, places = array(source, (count,)), array(target, (count,))
    for k in range(count):
        places[k] = numbers[k]


def back_block(q, j, t, first, last):
    """Step t of the backward pass for wide block j."""
    at, n = first * q.row + j * q.line, t * q.B + first
    blocks = 0 if t == q.T - 1 else q.J
    here = j * q.a_wide + n * q.a_row
    WT = q.WT + j * q.WT_block
    dy = q.dy + t * q.B * q.row + at
    c_prev = q.c0 + at if t == 0 else q.c + (t - 1) * q.c_step + at
    c = q.c + t * q.c_step + at
    da_next = q.da + (n + q.B) * q.a_row
    if t == q.T - 1:
        dh, dh_row = q.dh + first * q.dh_row + j * q.line, q.dh_row
    else:
        dh, dh_row = q.zero + j * q.line, 0
    a, da, dc, row, rows = q.a + here, q.da + here, q.dc + at, q.row, last - first
    back(q.back, rows, da_next, blocks, q.a_block, WT, dy, dh, dh_row, row, a, da, dc, c_prev, c)


def through_rows(q, first, last):
    """dx for rows first, ..., last-1 of (t, sample)."""
    da = q.da + first * q.a_row
    if q.D <= FEW:
        dx = q.dx + first * q.dx_row
        few(q.few, last - first, q.D, da, q.J, q.a_block, q.U, q.U_block, dx, q.dx_row)
        return
    for j in range(q.D_wide):
        UT = q.UT + j * q.UT_block
        dx = q.dx + first * q.dx_row + j * q.line
        through(q.through_U, last - first, da, q.J, q.a_block, UT, dx, q.dx_row)


def gradient_task(q, j, rate, descend):
    """gU, gW, gb += rate times the gradients of block j; for a descent also its transposes, else
    from zero, and to plain matrices as well.
    """
    N = q.T * q.B
    da = q.da + j * q.a_block
    gU, gW, gb = q.gU + j * q.U_block, q.gW + j * q.W_block, q.gb + j * q.a_row
    if not descend:
        clear(q, gU, q.D * q.U_row)
        clear(q, gW, q.H * q.W_row)
        clear(q, gb, q.a_row)
    for n in range(0, N, GRAIN):
        count = min(GRAIN, N - n)
        here = da + n * q.a_row
        gradient(q.gradient_U, q.D, q.x + n * q.x_row, q.size, q.x_row, count, here, gU, rate)
        gradient(q.gradient_b, 1, q.one, 0, 0, count, here, gb, rate)
    if q.starts:
        gradient(q.gradient_W, q.H, q.h0, q.size, q.row, q.B, da, gW, rate)
    for n in range(0, N - q.B, GRAIN):  # h of a step multiplies W in the next
        count = min(GRAIN, N - q.B - n)
        here = da + (q.B + n) * q.a_row
        gradient(q.gradient_W, q.H, q.h + n * q.row, q.size, q.row, count, here, gW, rate)
    if descend:
        pack_transposes(q, j)
    else:
        unpack(q, j, gU, q.U_row, q.D, q.dU)
        unpack(q, j, gW, q.W_row, q.H, q.dW)
        unpack(q, j, gb, q.a_row, 1, q.db)


def clear(q, address, count):
    """So many bytes of zeros."""
    numbers = array(address, (count // q.size,))
    for k in range(len(numbers)):
        numbers[k] = 0


def unpack(q, j, block, row, rows, matrix):
    """Rows of a packed block (rows, G, units), `row` bytes each, to a matrix (rows, G*H)."""
    units, G = q.unit // q.size, row // q.unit
    packed, plain = array(block, (rows, G, units)), array(matrix, (rows, G, q.H))
    begin = j * units
    count = min(units, q.H - begin)
    for r in range(rows):
        for g in range(G):
            for k in range(count):
                plain[r, g, begin + k] = packed[r, g, k]


def pack_transposes(q, j):
    """The parts of UT and WT that belong to block j, from U and W, a strip of rows at a time."""
    width = q.lanes * q.size
    for strip in range(0, q.D_wide * q.wide, q.lanes):
        U = q.U + j * q.U_block + strip * q.U_row
        UT = q.UT + strip // q.wide * q.UT_block + strip % q.wide * q.size
        UT += j * (q.U_row // q.size) * q.line
        transpose(q.transpose, q.U_row // width, U, q.U_row, UT, q.line)
    for strip in range(0, q.J_wide * q.wide, q.lanes):
        W = q.W + j * q.W_block + strip * q.W_row
        WT = q.WT + strip // q.wide * q.WT_block + strip % q.wide * q.size
        WT += j * (q.W_row // q.size) * q.line
        transpose(q.transpose, q.W_row // width, W, q.W_row, WT, q.line)


def readout(job, first, last):
    """error = y V + b_out - target, and dy, of some samples; y, dy (B, padded H): the last step."""
    q = layer_at(job.layers, job.L - 1)
    B, O, H, padded = job.B, job.O, q.H, q.row // q.size
    y, dy = array(q.h + (q.T - 1) * B * q.row, (B, padded)), array(job.dy, (B, padded))
    V, b_out = array(job.V, (H, O)), array(job.b_out, (O,))
    target, error, scale = (
        array(job.target, (B, O)),
        array(job.error, (B, O)),
        real(2) / real(B * O),
    )
    for s in range(first, last):
        for k in range(H):
            dy[s, k] = 0
        for o in range(O):
            total = b_out[o] - target[s, o]
            for k in range(H):
                total += y[s, k] * V[k, o]
            error[s, o] = total
            for k in range(H):
                dy[s, k] += scale * total * V[k, o]


def readout_gradient(job, rate):
    """gV, gb_out += rate times their gradients; the mean squared error."""
    q = layer_at(job.layers, job.L - 1)
    B, O, H, loss = job.B, job.O, q.H, real(0)
    y, error = array(q.h + (q.T - 1) * B * q.row, (B, q.row // q.size)), array(job.error, (B, O))
    gV, gb_out, scale = array(job.gV, (H, O)), array(job.gb_out, (O,)), real(2) / real(B * O) * rate
    for o in range(O):
        total = real(0)
        for s in range(B):
            total += error[s, o]
            loss += error[s, o] * error[s, o]
        gb_out[o] += scale * total
        for k in range(H):
            total = real(0)
            for s in range(B):
                total += y[s, k] * error[s, o]
            gV[k, o] += scale * total
    return loss / real(B * O)


def start_rows(q, first, last):
    """The gradient of the initial h of some samples, through step 0."""
    da = q.da + first * q.a_row
    for j in range(q.J_wide):
        WT = q.WT + j * q.WT_block
        dh0 = q.dh0 + first * q.row + j * q.line
        through(q.through_W, last - first, da, q.J, q.a_block, WT, dh0, q.row)


def gather(job, k, first, last):
    """Examples of the data set into mini-batch k: samples first, ..., last-1."""
    D = layer_at(job.layers, 0).D
    order = array_of_indices(job.order, (job.count * job.B,))
    source, labels = array(job.source, (job.T, job.N, D)), array(job.labels, (job.N, job.O))
    x, target = array(job.x, (job.T, job.B, D)), array(job.target, (job.B, job.O))
    for s in range(first, last):
        example = order[k * job.B + s]
        for t in range(job.T):
            for d in range(D):
                x[t, s, d] = source[t, example, d]
        for o in range(job.O):
            target[s, o] = labels[example, o]


def start(job, first, last):
    """The read-out of some samples, and the gradients that a backward pass of them begins with."""
    readout(job, first, last)
    padded = layer_at(job.layers, 0).row // layer_at(job.layers, 0).size
    dc = array(job.dc, (job.L, job.B, padded))
    for l in range(job.L):
        for s in range(first, last):
            for k in range(padded):
                dc[l, s, k] = 0
