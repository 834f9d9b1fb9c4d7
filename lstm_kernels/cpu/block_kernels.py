"""What a task does: steps of a layer, block by block, as calls of tiles with their
addresses.

A JOB and its LAYERs (`records.py`) have the addresses of all that a tile (`tiles.py`)
reads or writes and of the tiles themselves, so these functions are compiled once for
every cell. Free names are filled in by `machine_code.py`; with checked tiles, all this
runs as plain Python (tests/test_fused.py). Who runs what when: `fused_kernels.py`,
`wavefront_kernels.py`.

l is a layer, t a step, n a row (t, sample), j a unit block or, where it says so, a wide
one; first, last bound the samples. What an address points to stands at the line's end.
"""

GRAIN = 64  # rows (t, sample) of a weight gradient at once, in L1
ROWS = 96  # rows (t, sample) of dx at once
FEW = 4  # inputs up to which dx is a dot product for each

# The free names: tiles called by their address, records and arrays at addresses, the
# dtype.
inputs = step = whole = back = through = gradient = transpose = few = real = read = None
layer_at = array = array_of_indices = None


def forward_steps(job, l, start, stop, first, last):
    """Steps start, ..., stop-1 of layer l for some samples, until told to leave. Blocks
    go up and down in turns: a step begins with the weights that the last one left in
    the cache.
    """
    for t in range(start, stop):
        if read(job.stop):
            return
        begin = t - (t - start) % job.input_steps
        end = min(begin + job.input_steps, stop)
        if l == 0 and t == begin:
            for k in range(begin, end):
                round_rows(job, k * job.B + first, k * job.B + last)
        for k in range(job.J):
            j = k if t % 2 == 0 else job.J - 1 - k
            forward_block(job, l, j, t, begin, end, first, last)


def backward_steps(job, l, start, stop, first, last):
    """The same back through time, and the gradients of the layer's input and initial
    h.
    """
    layer = layer_at(job.layers, l)
    together = (
        max(1, ROWS // job.B) if last - first == job.B else 1
    )  # steps whose rows are a run
    for t in range(stop - 1, start - 1, -1):
        if read(job.stop):
            return
        for k in range(job.J_wide):
            j = k if t % 2 == 0 else job.J_wide - 1 - k
            back_block(job, l, j, t, first, last)
        if layer.dx and (t - start) % together == 0:
            end = min(t + together, stop)
            through_rows(job, l, t * job.B + first, (end - 1) * job.B + last)
    if job.dh0 and start == 0:
        initial_rows(job, l, first, last)


def input_rows(job):
    """Rows of x that are made operands of a product beforehand: none, they are used as
    they are.
    """
    return 0


def round_rows(job, first, last):
    """Rows first, ..., last-1 of x as operands; as above."""


def forward_block(job, l, j, t, begin, end, first, last):
    """Step t of unit block j; the inputs of steps begin, ..., end-1 are multiplied at
    the first of them. The last step copies the final state to where the caller wants
    it.
    """
    layer, n, rows = layer_at(job.layers, l), t * job.B + first, last - first
    n_kept = (
        n if job.keeps else n - begin * job.B
    )  # inference keeps these steps of a alone
    unit = (
        first * job.row + j * job.unit_bytes
    )  # within (B, P): sample first, unit block j
    x = layer.x + n * layer.x_row  # x of step t, sample first
    a = (
        layer.a + j * job.a_block + n_kept * job.a_row
    )  # a of block j, step t, sample first
    U = layer.U + j * layer.U_block  # weights of block j, input 0
    W = layer.W + j * job.W_block  # weights of block j, unit 0 of h
    b = layer.b + j * job.a_row  # biases of block j
    h = layer.h + t * job.B * job.row + unit  # h of step t, sample first, block j
    c = layer.c + t * job.c_step + unit  # c of step t, sample first, block j
    h_row, Z = job.h_row, job.H_words
    kept = (
        layer.h_all + n * h_row + j * (job.unit_bytes // job.numbers)
    )  # h as an operand
    if t == 0:
        h_prev = job.h0 + (l * job.B + first) * h_row  # initial h, sample first, unit 0
        c_prev = job.c0 + l * job.B * job.row + unit  # initial c, sample first, block j
        Z = Z * job.starts  # without an initial state there is no product
    else:
        h_prev = (
            layer.h_all + (n - job.B) * h_row
        )  # h of step t-1, sample first, unit 0
        c_prev = c - job.c_step  # c of step t-1, sample first, block j
    if job.input_steps == 1:
        whole(
            *(
                job.whole,
                rows,
                x,
                layer.x_row,
                layer.D_words,
                U,
                b,
                h_prev,
                h_row,
                Z,
                W,
                a,
            ),
            *(c_prev, c, h, job.row, kept),
        )
    else:
        if t == begin:
            inputs(
                job.inputs,
                (end - begin) * job.B,
                x,
                layer.x_row,
                layer.D_words,
                U,
                b,
                a,
            )
        step(job.step, rows, h_prev, h_row, Z, W, a, c_prev, c, h, job.row, kept)
    if t == job.T - 1:
        keep_state(job, l, j, h, c, first, last)


def keep_state(job, l, j, h, c, first, last):
    """Copy the final state of unit block j, at h and c for sample first, to the
    caller's arrays.
    """
    units = job.unit_bytes // job.size
    count = min(units, job.H - j * units)
    for part in range(job.states):
        for s in range(first, last):
            row = (
                part * job.L + l
            ) * job.B + s  # of the state (states, L, B, H): sample s
            source = (h if part == 0 else c) + (
                s - first
            ) * job.row  # sample s, block j
            units_s = array(source, (count,))
            state = array(
                job.state + row * job.H * job.size + j * job.unit_bytes, (count,)
            )  # same
            for k in range(count):
                state[k] = units_s[k]


def back_block(job, l, j, t, first, last):
    """Step t of the backward pass for wide unit block j."""
    layer, n, rows, row = (
        layer_at(job.layers, l),
        t * job.B + first,
        last - first,
        job.row,
    )
    unit = first * row + j * job.wide_bytes  # within (B, P): sample first, wide block j
    state = l * job.B * row + unit  # within (L, B, P): the same of layer l
    block = j * (job.wide_bytes // job.unit_bytes)  # wide block j's first unit block
    a = layer.a + block * job.a_block + n * job.a_row  # its gates, step t, sample first
    da = layer.da + block * job.da_block + n * job.da_row  # their gradients
    da_next = (
        layer.da + (n + job.B) * job.da_row
    )  # unit block 0, step t+1, sample first
    WT = layer.WT + j * job.WT_block  # weights of wide block j
    dy = layer.dy + t * job.B * row + unit  # dy of step t, sample first, wide block j
    dc = job.dc + state  # dc of sample first, wide block j
    c = layer.c + t * job.c_step + unit  # c of step t, sample first, wide block j
    c_prev = c - job.c_step if t else job.c0 + state  # c of step t-1, or the initial c
    if t == job.T - 1:
        blocks, dh_row = 0, job.dh_row
        dh = (
            job.dh + (l * job.B + first) * dh_row + j * job.wide_bytes
        )  # of the final h, the same
    else:
        blocks, dh_row = job.J, 0
        dh = job.zero + j * job.wide_bytes  # zeros, for every sample
    back(
        job.back,
        rows,
        da_next,
        blocks,
        job.da_block,
        WT,
        dy,
        dh,
        dh_row,
        row,
        a,
        da,
        dc,
        c_prev,
        c,
    )


def through_rows(job, l, first, last):
    """dx for rows first, ..., last-1 of (t, sample)."""
    layer = layer_at(job.layers, l)
    dx_row = layer.D_wide * job.wide_bytes
    for n in range(first, last, ROWS):
        rows = min(ROWS, last - n)
        da = layer.da + n * job.da_row  # unit block 0, row n
        dx = layer.dx + n * dx_row  # row n, input 0
        if layer.D <= FEW:
            few(
                job.few,
                rows,
                layer.D,
                da,
                job.J,
                job.da_block,
                layer.U,
                layer.U_block,
                dx,
                dx_row,
            )
        else:
            for j in range(layer.D_wide):
                UT = (
                    layer.UT + j * job.UT_block
                )  # weights of wide block j of the inputs
                dx_j = dx + j * job.wide_bytes  # row n, its inputs
                through(job.through_U, rows, da, job.J, job.da_block, UT, dx_j, dx_row)


def initial_rows(job, l, first, last):
    """The gradient of the initial h of some samples, through step 0."""
    layer = layer_at(job.layers, l)
    da = layer.da + first * job.da_row  # unit block 0, step 0, sample first
    for j in range(job.J_wide):
        WT = layer.WT + j * job.WT_block  # weights of wide block j
        dh0 = (
            job.dh0 + (l * job.B + first) * job.row + j * job.wide_bytes
        )  # sample first, block j
        through(job.through_W, last - first, da, job.J, job.da_block, WT, dh0, job.row)


def gradient_block(job, l, j):
    """gU, gW, gb += rate times the gradients of unit block j, and a descent's operands;
    without descent from zero or on top of those of passes before, and, if wanted, to
    plain matrices.
    """
    layer = layer_at(job.layers, l)
    gU = layer.gU + j * layer.gU_block  # gradients of U, block j, input 0
    gW = layer.gW + j * job.gW_block  # of W, block j, unit 0 of h
    gb = layer.gb + j * job.a_row  # of b, block j
    if job.from_zero:
        clear(job, gU, layer.D * job.U_row)
        clear(job, gW, job.H * job.W_row)
        clear(job, gb, job.a_row)
    add_gradients(job, l, j, gU, gW, gb)
    if job.descend:
        pack_operands(job, l, j)
    elif job.plain:
        unpack(job, j, gU, job.U_row, layer.D, job.plain + layer.dU)
        unpack(job, j, gW, job.W_row, job.H, job.plain + layer.dW)
        unpack(job, j, gb, job.a_row, 1, job.plain + layer.db)


def paired_rows(job):
    """Rows (t, sample) of x and h that are put together in pairs before gradients:
    none.
    """
    return 0


def pair_rows(job, l, first, last):
    """Those pairs of rows of layer l that begin at rows first, ..., last-1; as
    above.
    """


def add_gradients(job, l, j, gU, gW, gb):
    """The sums over rows (t, sample) for unit block j."""
    layer, N, rate = layer_at(job.layers, l), job.T * job.B, job.rate
    da = layer.da + j * job.da_block  # block j, row 0
    for n in range(0, N, GRAIN):
        count = min(GRAIN, N - n)
        x = layer.x + n * layer.x_row  # x of row n
        da_n = da + n * job.da_row  # da of row n, block j
        gradient(
            job.gradient_U, layer.D, x, job.size, layer.x_row, count, da_n, gU, rate
        )
        gradient(job.gradient_b, 1, job.one, 0, 0, count, da_n, gb, rate)
    if job.starts:
        h0 = job.h0 + l * job.B * job.h_row  # initial h of layer l, sample 0, unit 0
        gradient(job.gradient_W, job.H, h0, job.size, job.h_row, job.B, da, gW, rate)
    for n in range(0, N - job.B, GRAIN):
        count = min(GRAIN, N - job.B - n)
        h = layer.h_all + n * job.h_row  # h of row n: it multiplies W in the next step
        da_next = da + (n + job.B) * job.da_row  # da of that step, block j
        gradient(
            job.gradient_W, job.H, h, job.size, job.h_row, count, da_next, gW, rate
        )


def clear(job, address, count):
    """So many bytes of zeros."""
    numbers = array(address, (count // job.size,))
    for k in range(len(numbers)):
        numbers[k] = 0


def unpack(job, j, block, row, rows, matrix):
    """Rows of a packed block (rows, G, units), `row` bytes each, to a matrix (rows,
    G*H).
    """
    units, G = job.unit_bytes // job.size, row // job.unit_bytes
    packed, plain = array(block, (rows, G, units)), array(matrix, (rows, G, job.H))
    begin, count = j * units, min(units, job.H - j * units)
    for r in range(rows):
        for g in range(G):
            for k in range(count):
                plain[r, g, begin + k] = packed[r, g, k]


def pack_operands(job, l, j):
    """The parts of UT and WT that belong to unit block j, from U and W."""
    layer = layer_at(job.layers, l)
    U = layer.U + j * layer.U_block  # block j, input 0
    W = layer.W + j * job.W_block  # block j, unit 0 of h
    transpose_block(job, j, layer.D_wide, U, job.U_row, layer.UT, job.UT_block)
    transpose_block(job, j, job.J_wide, W, job.W_row, layer.WT, job.WT_block)


def transpose_block(job, j, wide_blocks, weights, row, transposed, block):
    """Rows of unit block j, `row` bytes each, to columns of wide blocks `block` bytes
    apart, a vector of rows at a time.
    """
    wide, gates = job.wide_bytes // job.size, row // job.size  # gates * units of a row
    for k in range(0, wide_blocks * wide, job.lanes):
        rows = weights + k * row  # row k of block j
        column = (
            transposed + k // wide * block + k % wide * job.size
        )  # column k, line 0
        column += j * gates * job.wide_bytes  # column k, the first line of block j
        transpose(job.transpose, gates // job.lanes, rows, row, column, job.wide_bytes)


def gather(job, k, first, last):
    """Examples of the data set into mini-batch k: samples first, ..., last-1."""
    layer, T, B, O = layer_at(job.layers, 0), job.T, job.B, job.O
    D = layer.D
    order = array_of_indices(job.order + k * B * 8, (B,))  # examples of mini-batch k
    source, labels = array(job.source, (T, job.N, D)), array(job.labels, (job.N, O))
    x, target = array(job.x, (T, B, D)), array(job.target, (B, O))
    for s in range(first, last):
        example = order[s]
        for t in range(T):
            for d in range(D):
                x[t, s, d] = source[t, example, d]
        for o in range(O):
            target[s, o] = labels[example, o]


def begin_backward(job, first, last):
    """error = y V + b_out - target of some samples, and what their backward pass begins
    with: dy of the last step and dc.
    """
    top, L, B, H, O = layer_at(job.layers, job.L - 1), job.L, job.B, job.H, job.O
    last_step, P = (job.T - 1) * B * job.row, job.row // job.size
    y = array(top.h + last_step, (B, P))  # h of the last step
    dy = array(top.dy + last_step, (B, P))  # its gradient
    V, b_out, dc = (
        array(job.V, (H, O)),
        array(job.b_out, (O,)),
        array(job.dc, (L, B, P)),
    )
    target, error = array(job.target, (B, O)), array(job.error, (B, O))
    scale = real(2) / real(B * O)
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


def readout_gradient(job):
    """gV, gb_out += rate times their gradients; the mean squared error."""
    top, B, H, O, loss = layer_at(job.layers, job.L - 1), job.B, job.H, job.O, real(0)
    y = array(
        top.h + (job.T - 1) * B * job.row, (B, job.row // job.size)
    )  # h of the last step
    error, gV, gb_out = (
        array(job.error, (B, O)),
        array(job.gV, (H, O)),
        array(job.gb_out, (O,)),
    )
    scale = real(2) / real(B * O) * real(job.rate)
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
