"""The kernels of `numba-fused`: which tile runs when, in rounds of tasks.

A region (`team.py`) runs one of the functions at the end with the address of a JOB, which points to
a LAYER for each layer of the network: sizes, strides, and the addresses of everything a tile reads
or writes and of the tiles themselves, so that the kernels are compiled once for every cell, and
each only when something needs it. Free names are filled in by `numba_fused.kernels`; filled in with
checked tiles, all this runs as plain Python. `first`, `last` are samples of the mini-batch, j is a
unit block or a wide unit block, p a participant, `turn` the number of a round (`rounds.py`).

A job that a thread may still read is never written: a pass that finds one takes new records.
"""

import numpy as np

GRAIN, ROWS = 64, 96  # rows of (t, sample): of a weight gradient at once, in L1; of a task of dx
FEW = 4  # inputs up to which dx is a dot product for each

LAYER = np.dtype(
    [
        (name, np.int64)
        for name in (
            # sizes; J hidden blocks, and how many wide blocks of hidden units and of inputs
            *("T", "B", "D", "H", "J", "J_wide", "D_wide", "lanes", "wide", "size"),
            # bytes between: samples of h, x, dx, dh; samples, blocks and wide blocks of a
            *("row", "x_row", "dx_row", "dh_row", "a_row", "a_block", "a_wide", "c_step"),
            # bytes: units of a block, of a wide block; rows and blocks of the packed weights
            *("unit", "line", "U_row", "W_row", "U_block", "W_block", "UT_block", "WT_block"),
            # schedule: steps of inputs at once, shares backward; are all steps in `a`; is h0 given?
            *("input_steps", "splits", "keeps", "starts"),
            # addresses, forward: x (T, B, D), packed U, W, b; h, c (T, B, padded H) after each step
            *("x", "U", "W", "b", "a", "h", "c", "h0", "c0"),
            # backward: transposed weights, gradients, zeros, a number 1, packed gradients
            *("UT", "WT", "da", "dy", "dh", "dc", "dx", "dh0", "zero", "one", "gU", "gW", "gb"),
            # where those go as plain matrices (D, G*H), (H, G*H), (K*H,); 0: nowhere
            *("dU", "dW", "db"),
            # tiles
            *("inputs", "step", "whole", "back", "through_U", "through_W", "few"),
            *("gradient_U", "gradient_W", "gradient_b", "transpose"),
        )
    ],
    align=True,
)

JOB = np.dtype(
    [
        *(
            (name, np.int64)
            for name in (
                # layers, steps, samples, outputs; shares of the samples, or 0 for hidden blocks
                *("L", "T", "B", "O", "shares"),
                # the records of the layers; words of the rounds, and their groups
                *("layers", "sync", "groups"),
                # machine code: a forward and a backward pass (`_samples` or `_rounds`), gradients
                *("forward", "backward", "gradients"),
                # final state (1 or 2, L, B, H)
                *("states", "state"),
                # data set x (T, N, D) and target (N, O), the examples chosen (count * B), 0: the
                # mini-batch is there already; x (T, B, D), target, error (B, O) of the mini-batch
                *("N", "source", "labels", "order", "count", "x", "target", "error"),
                # gradient of y at the last step (B, padded H), of the final c (L, B, padded H)
                *("dy", "dc"),
                # read-out (H, O), (O,), where its gradients go; losses (count,) or 0; how many yet
                *("V", "b_out", "gV", "gb_out", "losses", "steps_done"),
                "descend",  # are the gradients added to the parameters?
                # of `numba-wavefront`: layer, start, stop, part of each task; parts of the samples
                *("tasks", "parts"),
            )
        ),
        ("rate", np.float64),
    ],
    align=True,
)

# The free names: tiles called by their address, rounds, records and arrays at addresses, the dtype.
inputs = step = whole = back = through = gradient = transpose = few = claim = finish = wait = (
    real
) = None
layer_at = job_at = array = array_of_indices = call = None


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


# What follows runs as machine code of its own, which others call by its address.


def forward_samples(first, last, address):
    """Every layer and step of some samples; no other thread has to be waited for."""
    job = job_at(address, 0)
    for l in range(job.L):
        q = layer_at(job.layers, l)
        for t in range(q.T):
            begin = t - t % q.input_steps
            end = min(begin + q.input_steps, q.T)
            for k in range(q.J):
                forward_block(job, l, to_and_fro(k, q.J, t), t, begin, end, first, last)
    return 0


def backward_samples(first, last, address):
    """The same back through time."""
    job = job_at(address, 0)
    for l in range(job.L - 1, -1, -1):
        q = layer_at(job.layers, l)
        for t in range(q.T - 1, -1, -1):
            for k in range(q.J_wide):
                back_block(q, to_and_fro(k, q.J_wide, t), t, first, last)
            if q.dx:
                through_rows(q, t * q.B + first, t * q.B + last)
        if q.dh0:
            start_rows(q, first, last)
    return 0


def forward_rounds(p, turn, address):
    """Every layer and step in rounds of hidden blocks; returns the next round."""
    job = job_at(address, 0)
    sync, groups = job.sync, job.groups
    for l in range(job.L):
        q = layer_at(job.layers, l)
        for t in range(q.T):
            begin = t - t % q.input_steps
            end = min(begin + q.input_steps, q.T)
            j = claim(sync, groups, turn, p, q.J)
            while j >= 0:
                forward_block(job, l, j, t, begin, end, 0, q.B)
                finish(sync, groups, turn)
                j = claim(sync, groups, turn, p, q.J)
            turn = wait(sync, groups, turn, q.J)
    return turn


def backward_rounds(p, turn, address):
    """The same back through time, in rounds of wide blocks of some of the samples."""
    job = job_at(address, 0)
    sync, groups = job.sync, job.groups
    for l in range(job.L - 1, -1, -1):
        q = layer_at(job.layers, l)
        tasks = q.J_wide * q.splits
        for t in range(q.T - 1, -1, -1):
            task = claim(sync, groups, turn, p, tasks)
            while task >= 0:
                j, s = task // q.splits, task % q.splits
                back_block(q, j, t, q.B * s // q.splits, q.B * (s + 1) // q.splits)
                finish(sync, groups, turn)
                task = claim(sync, groups, turn, p, tasks)
            turn = wait(sync, groups, turn, tasks)
        dx_tasks = (q.T * q.B + ROWS - 1) // ROWS if q.dx else 0
        tasks = dx_tasks + (q.dh0 != 0)
        task = claim(sync, groups, turn, p, tasks)
        while task >= 0:
            if task < dx_tasks:
                through_rows(q, task * ROWS, min(task * ROWS + ROWS, q.T * q.B))
            else:
                start_rows(q, 0, q.B)
            finish(sync, groups, turn)
            task = claim(sync, groups, turn, p, tasks)
        turn = wait(sync, groups, turn, tasks)
    return turn


def gradient_rounds(p, turn, address):
    """All weight gradients in one round, a block of a layer per task, and those of the read-out."""
    job = job_at(address, 0)
    sync, groups, J = job.sync, job.groups, layer_at(job.layers, 0).J
    blocks = job.L * J
    tasks = blocks + (job.losses != 0)
    task = claim(sync, groups, turn, p, tasks)
    while task >= 0:
        if task < blocks:
            gradient_task(layer_at(job.layers, task // J), task % J, job.rate, job.descend)
        else:
            step = array_of_indices(job.steps_done, (1,))
            array(job.losses, (job.count,))[step[0]] = readout_gradient(job, real(job.rate))
            step[0] += 1
        finish(sync, groups, turn)
        task = claim(sync, groups, turn, p, tasks)
    return wait(sync, groups, turn, tasks)


def infer(p, turn, address):
    """A forward pass."""
    job = job_at(address, 0)
    if job.shares == 0:
        return call(job.forward, p, turn, address)
    sync, groups, shares = job.sync, job.groups, job.shares
    task = claim(sync, groups, turn, p, shares)
    while task >= 0:
        call(job.forward, job.B * task // shares, job.B * (task + 1) // shares, address)
        finish(sync, groups, turn)
        task = claim(sync, groups, turn, p, shares)
    return wait(sync, groups, turn, shares)


def backward(p, turn, address):
    """A backward pass and the weight gradients."""
    job = job_at(address, 0)
    sync, groups, shares = job.sync, job.groups, job.shares
    if shares == 0:
        turn = call(job.backward, p, turn, address)
    else:
        task = claim(sync, groups, turn, p, shares)
        while task >= 0:
            call(job.backward, job.B * task // shares, job.B * (task + 1) // shares, address)
            finish(sync, groups, turn)
            task = claim(sync, groups, turn, p, shares)
        turn = wait(sync, groups, turn, shares)
    return call(job.gradients, p, turn, address)


def train(p, turn, address):
    """`count` training steps, one mini-batch of `order` each."""
    job = job_at(address, 0)
    sync, groups, B, tasks = job.sync, job.groups, job.B, max(job.shares, 1)
    for k in range(job.count):
        task = claim(sync, groups, turn, p, tasks)
        while task >= 0:
            first, last = B * task // tasks, B * (task + 1) // tasks
            if job.order:
                gather(job, k, first, last)
            if job.shares:
                call(job.forward, first, last, address)
                start(job, first, last)
                call(job.backward, first, last, address)
            finish(sync, groups, turn)
            task = claim(sync, groups, turn, p, tasks)
        turn = wait(sync, groups, turn, tasks)
        if job.shares == 0:
            turn = call(job.forward, p, turn, address)
            if claim(sync, groups, turn, p, 1) == 0:
                start(job, 0, B)
                finish(sync, groups, turn)
            turn = wait(sync, groups, turn, 1)
            turn = call(job.backward, p, turn, address)
        turn = call(job.gradients, p, turn, address)
    return turn


def fetch(p, turn, address):
    """The next mini-batch of `order`."""
    job = job_at(address, 0)
    if job.order:
        gather(job, array_of_indices(job.steps_done, (1,))[0], 0, job.B)
    return turn


def turn_back(p, turn, address):
    """The read-out of a mini-batch, and what its backward pass begins with."""
    job = job_at(address, 0)
    start(job, 0, job.B)
    return turn


def pack(p, turn, address):
    """Write all transposed weights."""
    job = job_at(address, 0)
    for l in range(job.L):
        q = layer_at(job.layers, l)
        for j in range(q.J):
            pack_transposes(q, j)
    return turn
