"""The passes of a network with factored weights (`study/factored.py`), in
`numba-fused`'s tiles.

A step of a layer is two products: s = x Px + h Ph by a tile of the linear cell, which
leaves sums as they are, then a = s Q + b and the cell by a tile of the network's own.
Threads share the samples, and after a backward pass the unit blocks of the weight
gradients. As in `block_kernels.py`, l is a layer, t a step, n a row (t, sample), first
and last bound the samples; j is a unit block of h, i one of s, w a wide one. Slot t of
h and of c is the state before step t.
"""

# The free names: functions of `block_kernels.py` and `fused_kernels.py`, tiles by their
# address.
inputs = step = whole = single = back = through = gradient = claimed = wait = read = (
    None
)
factored_layer_at = factored_job_at = GRAIN = ROWS = None


def factored_forward(p, turn, address):
    """A forward pass, on shares of the samples."""
    job = factored_job_at(address, 0)
    for task in claimed(job.sync, job.groups, turn, p, job.shares):
        first, last = job.B * task // job.shares, job.B * (task + 1) // job.shares
        for l in range(job.L):
            layer = factored_layer_at(job.layers, l)
            for t in range(job.T):
                if read(job.stop) == 0:
                    factor_step(job, layer, t, first, last)
                    cell_step(job, layer, t, first, last)
    return wait(job.sync, job.groups, turn, job.shares)


def factor_step(job, layer, t, first, last):
    """s = x Px + h Ph of step t."""
    n, rows = t * job.B + first, last - first
    x = layer.x + n * layer.x_row  # x of step t, sample first
    h_prev = layer.h + n * job.row  # h before step t, sample first, unit 0
    begin = t % job.input_steps  # steps since inputs were multiplied
    for i in range(job.I):
        Px = layer.Px + i * layer.Px_block  # block i, input 0
        Ph = layer.Ph + i * job.Ph_block  # block i, unit 0 of h
        s = (
            layer.s + t * job.s_step + first * job.row + i * job.wide_bytes
        )  # t, first, block i
        row, zero = job.row, job.zero
        if job.input_steps == 1:
            whole(
                *(job.both, rows, x, layer.x_row, layer.D, Px, zero),
                *(h_prev, row, job.H, Ph, s, s, s, s, row, s),
            )
            continue
        ahead = (
            layer.ahead + i * job.ahead_block
        )  # the first step multiplied at once, block i
        if begin == 0:
            steps = min(job.input_steps, job.T - t)
            inputs(job.inputs, steps * job.B, x, layer.x_row, layer.D, Px, zero, ahead)
        ahead += begin * job.B * job.s_row  # step t
        step(job.step, rows, h_prev, row, job.H, Ph, ahead, s, s, s, row, s)


def cell_step(job, layer, t, first, last):
    """a = s Q + b and the cell of step t."""
    s = layer.s + t * job.s_step + first * job.row  # step t, sample first, column 0
    if last - first == 1:
        a = layer.a + (t * job.B + first) * job.a_row  # block 0, step t, sample first
        c_prev = layer.c + t * job.c_step + first * job.row  # c before step t, the same
        h = layer.h + ((t + 1) * job.B + first) * job.row  # h after it
        single(
            *(job.single, job.J, s, job.R, layer.Q, job.Q_block, layer.b),
            *(a, job.a_block, c_prev, c_prev + job.c_step, h),
        )
        return
    for j in range(job.J):
        unit = (
            first * job.row + j * job.unit_bytes
        )  # within (B, row): sample first, block j
        Q = layer.Q + j * job.Q_block  # block j, row 0
        b = layer.b + j * job.a_row  # biases of block j
        a = (
            layer.a + j * job.a_block + (t * job.B + first) * job.a_row
        )  # block j, step t, first
        c_prev = layer.c + t * job.c_step + unit  # c before step t
        h = layer.h + (t + 1) * job.B * job.row + unit  # h after it
        whole(
            *(job.cell, last - first, s, 0, 0, Q, b),
            *(s, job.row, job.R, Q, a, c_prev, c_prev + job.c_step, h, job.row, h),
        )


def factored_backward(p, turn, address):
    """A backward pass on shares of the samples, then the weight gradients block by
    block.
    """
    job = factored_job_at(address, 0)
    for task in claimed(job.sync, job.groups, turn, p, job.shares):
        first, last = job.B * task // job.shares, job.B * (task + 1) // job.shares
        for l in range(job.L - 1, -1, -1):
            layer = factored_layer_at(job.layers, l)
            for t in range(job.T - 1, -1, -1):
                if read(job.stop) == 0:
                    cell_back(job, layer, l, t, first, last)
                    factor_back(job, layer, l, t, first, last)
    turn, blocks = wait(job.sync, job.groups, turn, job.shares), job.J + job.I
    for task in claimed(job.sync, job.groups, turn, p, job.L * blocks):
        layer, block = factored_layer_at(job.layers, task // blocks), task % blocks
        if read(job.stop) == 0:
            if block < job.J:
                cell_gradients(job, layer, block)
            else:
                factor_gradients(job, layer, block - job.J)
    return wait(job.sync, job.groups, turn, job.L * blocks)


def cell_back(job, layer, l, t, first, last):
    """dh = dy + ds_next Ph^T of step t, then the cell backwards: da and dc."""
    n, row = t * job.B + first, job.row
    state = (l * job.B + first) * row  # within (L, B, row): layer l, sample first
    wide = job.wide_bytes // job.unit_bytes  # unit blocks of a wide one
    for w in range(job.J_wide):
        unit = w * job.wide_bytes  # wide block w of a sample
        gates = (
            w * wide * job.a_block + n * job.a_row
        )  # its first unit block, step t, first
        ds_next = layer.ds + (n + job.B) * job.s_row  # step t+1, sample first, block 0
        blocks, dh, dh_row = job.I, job.zero + unit, 0
        if t == job.T - 1:
            blocks, dh, dh_row = 0, job.dh + state + unit, row
        c_prev = layer.c + n * row + unit  # c before step t
        back(
            *(
                job.back,
                last - first,
                ds_next,
                blocks,
                job.a_block,
                layer.PhT + w * job.PT_block,
            ),
            *(
                layer.dy + n * row + unit,
                dh,
                dh_row,
                row,
                layer.a + gates,
                layer.da + gates,
            ),
            *(job.dc + state + unit, c_prev, c_prev + job.c_step),
        )


def factor_back(job, layer, l, t, first, last):
    """ds = da Q^T of step t, dx = ds Px^T; at the first step dh0 = ds Ph^T."""
    n, rows = t * job.B + first, last - first
    da, ds = (
        layer.da + n * job.a_row,
        layer.ds + n * job.s_row,
    )  # step t, sample first, block 0
    for i in range(job.I):
        QT, ds_i = layer.QT + i * job.QT_block, ds + i * job.a_block  # of block i
        through(job.through_Q, rows, da, job.J, job.a_block, QT, ds_i, job.s_row)
    for w in range(layer.D_wide):
        PxT = layer.PxT + w * job.PT_block  # wide block w of the inputs
        dx = layer.dx + n * layer.dx_row + w * job.wide_bytes  # row n, the same
        through(job.through_P, rows, ds, job.I, job.a_block, PxT, dx, layer.dx_row)
    if t == 0:
        for w in range(job.J_wide):
            PhT = layer.PhT + w * job.PT_block  # wide block w of h
            dh0 = (
                job.dh0 + (l * job.B + first) * job.row + w * job.wide_bytes
            )  # first, the same
            through(job.through_P, rows, ds, job.I, job.a_block, PhT, dh0, job.row)


def cell_gradients(job, layer, j):
    """gQ += s^T da and gb += da of unit block j."""
    N, rate = job.T * job.B, 1.0
    gQ, gb = layer.gQ + j * job.Q_block, layer.gb + j * job.a_row
    for n in range(0, N, GRAIN):
        count = min(GRAIN, N - n)
        s, da = (
            layer.s + n * job.row,
            layer.da + j * job.a_block + n * job.a_row,
        )  # row n
        gradient(job.gradient_Q, job.R, s, job.size, job.row, count, da, gQ, rate)
        gradient(job.gradient_b, 1, job.one, 0, 0, count, da, gb, rate)


def factor_gradients(job, layer, i):
    """gPx += x^T ds and gPh += h_prev^T ds of unit block i."""
    N, rate = job.T * job.B, 1.0
    gPx, gPh = layer.gPx + i * layer.Px_block, layer.gPh + i * job.Ph_block
    for n in range(0, N, GRAIN):
        count = min(GRAIN, N - n)
        ds = layer.ds + i * job.a_block + n * job.s_row  # row n, block i
        x, h_prev = layer.x + n * layer.x_row, layer.h + n * job.row  # row n
        gradient(
            job.gradient_P, layer.D, x, job.size, layer.x_row, count, ds, gPx, rate
        )
        gradient(job.gradient_P, job.H, h_prev, job.size, job.row, count, ds, gPh, rate)
