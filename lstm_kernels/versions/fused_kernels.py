"""The kernels of `numba-fused`: which tile runs when, in rounds of tasks.

A plan is a record per layer: sizes, strides, and the addresses of everything a tile reads or writes
and of the tiles themselves, so that the kernels are compiled once for every cell. Free names are
filled in by `numba_fused.kernels`; filled in with checked tiles, all this runs as plain Python.
`first`, `last` are samples of the mini-batch; p is a participant of `rounds.py`.
"""

import numpy as np
from numba import prange

GRAIN, ROWS = 64, 96  # rows of (t, sample): of a weight gradient at once, in L1; of a task of dx

PLAN = np.dtype(
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
            *("chunk", "splits", "keeps", "starts"),
            # addresses, forward: x (T, B, D), packed U, W, b; h, c (T, B, padded H) after each step
            *("x", "U", "W", "b", "a", "h", "c", "h0", "c0"),
            # backward: transposed weights, gradients, zeros, a number 1, targets; the tiles
            *("UT", "WT", "da", "dy", "dh", "dc", "dx", "dh0", "zero", "one", "gU", "gW", "gb"),
            *("inputs", "step", "whole", "back", "through_U", "through_W"),
            *("gradient_U", "gradient_W", "gradient_b", "transpose"),
        )
    ]
)

# The free names: calls of a tile by its address, rounds, the dtype.
inputs = step = whole = back = through = gradient = transpose = claim = finish = wait = real = None


def to_and_fro(k, count, t):
    """The k-th of `count` blocks: upwards in every other step, downwards in between, so that a step
    begins with the weights that the step before left in the cache.
    """
    return k if t % 2 == 0 else count - 1 - k


def forward_block(q, j, t, begin, end, first, last):
    """Step t of hidden block j: inputs and all, or those of steps begin, ..., end-1 at the first of
    them.
    """
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
    if q.chunk == 1:
        whole(q.whole, rows, x, q.x_row, q.D, U, b, h_prev, q.row, H, W, a, c_prev, c, h)
    else:
        if t == begin:
            inputs(q.inputs, (end - begin) * q.B, x, q.x_row, q.D, U, b, a)
        step(q.step, rows, h_prev, q.row, H, W, a, c_prev, c, h)


def back_block(q, j, t, first, last):
    """Step t back in time for wide block j."""
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
    for j in range(q.D_wide):
        UT = q.UT + j * q.UT_block
        dx = q.dx + first * q.dx_row + j * q.line
        through(q.through_U, last - first, da, q.J, q.a_block, UT, dx, q.dx_row)


def gradient_task(q, j, rate, descend):
    """gU, gW, gb += rate times the gradients of block j; for a descent also its transposes."""
    N = q.T * q.B
    da = q.da + j * q.a_block
    gU, gW = q.gU + j * q.U_block, q.gW + j * q.W_block
    for n in range(0, N, GRAIN):
        count = min(GRAIN, N - n)
        here = da + n * q.a_row
        gradient(q.gradient_U, q.D, q.x + n * q.x_row, q.size, q.x_row, count, here, gU, rate)
        gradient(q.gradient_b, 1, q.one, 0, 0, count, here, q.gb + j * q.a_row, rate)
    if q.starts:
        gradient(q.gradient_W, q.H, q.h0, q.size, q.row, q.B, da, gW, rate)
    for n in range(0, N - q.B, GRAIN):  # h of a step multiplies W in the next
        count = min(GRAIN, N - q.B - n)
        here = da + (q.B + n) * q.a_row
        gradient(q.gradient_W, q.H, q.h + n * q.row, q.size, q.row, count, here, gW, rate)
    if descend:
        pack_transposes(q, j)


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


def readout(first, last, y, V, b_out, target, error, dy):
    """error = y V + b_out - target, and dy, of some samples; y, dy (B, padded H): the last step."""
    (H, O), scale = V.shape, real(2) / real(error.size)
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


def readout_gradient(y, error, gV, gb_out, rate):
    """gV, gb_out += rate times their gradients; the mean squared error."""
    (B, O), H, loss = error.shape, gV.shape[0], real(0)
    scale = real(2) / real(error.size) * real(rate)
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
    return loss / real(error.size)


def keep_state(plan, l, first, last, out):
    """Copy the final state of layer l out.

    out: h of the lower layers (buffers, T, B, padded H), of the last layer (T, B, padded H), c of
    all (L, steps, B, padded H), and the state (1 or 2, L, B, H).
    """
    h, top, c, state = out
    H, T = state.shape[3], plan[l].T
    y = top if l == len(plan) - 1 else h[l % len(h)]
    for s in range(first, last):
        for k in range(H):
            state[0, l, s, k] = y[T - 1, s, k]
        if len(state) == 2:
            for k in range(H):
                state[1, l, s, k] = c[l, c.shape[1] - 1, s, k]


def start_rows(q, first, last):
    """The gradient of the initial h of some samples, through step 0."""
    da = q.da + first * q.a_row
    for j in range(q.J_wide):
        WT = q.WT + j * q.WT_block
        dh0 = q.dh0 + first * q.row + j * q.line
        through(q.through_W, last - first, da, q.J, q.a_block, WT, dh0, q.row)


def forward_samples(plan, first, last, out):
    """Every layer and step of some samples; no other thread has to be waited for."""
    for l in range(len(plan)):
        q = plan[l]
        for t in range(q.T):
            begin = t - t % q.chunk
            for k in range(q.J):
                j = to_and_fro(k, q.J, t)
                forward_block(q, j, t, begin, min(begin + q.chunk, q.T), first, last)
        keep_state(plan, l, first, last, out)


def backward_samples(plan, first, last):
    """The same back through time."""
    for l in range(len(plan) - 1, -1, -1):
        q = plan[l]
        for t in range(q.T - 1, -1, -1):
            for k in range(q.J_wide):
                back_block(q, to_and_fro(k, q.J_wide, t), t, first, last)
            if q.dx:
                through_rows(q, t * q.B + first, t * q.B + last)
        if q.dh0:
            start_rows(q, first, last)


def forward_rounds(p, plan, sync, turn, done, out):
    """Every layer and step in rounds of hidden blocks; returns the next round and tasks done."""
    for l in range(len(plan)):
        q = plan[l]
        for t in range(q.T):
            begin = t - t % q.chunk
            task = claim(sync, turn, p, q.J)
            while task >= 0:
                forward_block(q, task, t, begin, min(begin + q.chunk, q.T), 0, q.B)
                finish(sync)
                task = claim(sync, turn, p, q.J)
            turn, done = turn + 1, done + q.J
            wait(sync, done)
        if claim(sync, turn, p, 1) == 0:
            keep_state(plan, l, 0, q.B, out)
            finish(sync)
        turn, done = turn + 1, done + 1
        wait(sync, done)
    return turn, done


def backward_rounds(p, plan, sync, turn, done):
    """The same back through time, in rounds of wide blocks of some of the samples."""
    for l in range(len(plan) - 1, -1, -1):
        q = plan[l]
        tasks = q.J_wide * q.splits
        for t in range(q.T - 1, -1, -1):
            task = claim(sync, turn, p, tasks)
            while task >= 0:
                j, s = task // q.splits, task % q.splits
                back_block(q, j, t, q.B * s // q.splits, q.B * (s + 1) // q.splits)
                finish(sync)
                task = claim(sync, turn, p, tasks)
            turn, done = turn + 1, done + tasks
            wait(sync, done)
        tasks = (q.T * q.B + ROWS - 1) // ROWS if q.dx else 1
        task = claim(sync, turn, p, tasks)
        while task >= 0:
            if q.dx:
                through_rows(q, task * ROWS, min(task * ROWS + ROWS, q.T * q.B))
            if q.dh0 and task == 0:
                start_rows(q, 0, q.B)
            finish(sync)
            task = claim(sync, turn, p, tasks)
        turn, done = turn + 1, done + tasks
        wait(sync, done)
    return turn, done


def infer_part(p, plan, sync, shares, out):
    """What participant p does of a forward pass: shares of the samples, or (0) hidden blocks."""
    if shares == 0:
        forward_rounds(p, plan, sync, np.intp(0), np.intp(0), out)
        return
    task = claim(sync, 0, p, shares)
    while task >= 0:
        first, last = plan[0].B * task // shares, plan[0].B * (task + 1) // shares
        forward_samples(plan, first, last, out)
        finish(sync)
        task = claim(sync, 0, p, shares)


def gradient_rounds(p, plan, sync, turn, done, rate, descend):
    """All weight gradients in one round, a block of a layer per task."""
    tasks = len(plan) * plan[0].J
    task = claim(sync, turn, p, tasks)
    while task >= 0:
        gradient_task(plan[task // plan[0].J], task % plan[0].J, rate, descend)
        finish(sync)
        task = claim(sync, turn, p, tasks)
    turn, done = turn + 1, done + tasks
    wait(sync, done)
    return turn, done


def backward_part(p, plan, sync, shares):
    """What participant p does of a backward pass and its weight gradients."""
    turn = done = np.intp(0)
    if shares == 0:
        turn, done = backward_rounds(p, plan, sync, turn, done)
    else:
        task = claim(sync, 0, p, shares)
        while task >= 0:
            first, last = plan[0].B * task // shares, plan[0].B * (task + 1) // shares
            backward_samples(plan, first, last)
            finish(sync)
            task = claim(sync, 0, p, shares)
        turn, done = 1, shares
        wait(sync, done)
    gradient_rounds(p, plan, sync, turn, done, real(1), False)


def gather(source, labels, chosen, first, last, x, target):
    """Examples `chosen` (B,) of a data set into a mini-batch: samples first, ..., last-1."""
    for s in range(first, last):
        for t in range(x.shape[0]):
            for d in range(x.shape[2]):
                x[t, s, d] = source[t, chosen[s], d]
        for o in range(target.shape[1]):
            target[s, o] = labels[chosen[s], o]


def train_part(p, plan, sync, shares, rate, descend, work):
    """What participant p does of len(losses) training steps, one mini-batch of `order` each.

    work: x (T, N, D) and target (N, O) of the data set; `order`, and if that is empty the
    mini-batch is there already; x (T, B, D), target, error (B, O) of the mini-batch; the four of
    `keep_state`; dy of the last step (B, padded H), dc (L, B, padded H); V, b_out, and where their
    gradients go; the losses, filled in.
    """
    source, labels, order, x, target, error = work[:6]
    out, (dy, dc, V, b_out, gV, gb_out, losses) = work[6:10], work[10:]
    y = out[1][len(x) - 1]
    B, turn, done = len(error), np.intp(0), np.intp(0)
    for k in range(len(losses)):
        tasks = max(shares, 1)
        task = claim(sync, turn, p, tasks)
        while task >= 0:
            first, last = B * task // tasks, B * (task + 1) // tasks
            if len(order):
                gather(source, labels, order[k * B : (k + 1) * B], first, last, x, target)
            if shares:
                forward_samples(plan, first, last, out)
                readout(first, last, y, V, b_out, target, error, dy)
                dc[:, first:last] = 0
                backward_samples(plan, first, last)
            finish(sync)
            task = claim(sync, turn, p, tasks)
        turn, done = turn + 1, done + tasks
        wait(sync, done)
        if shares == 0:
            turn, done = forward_rounds(p, plan, sync, turn, done, out)
            if claim(sync, turn, p, 1) == 0:
                readout(0, B, y, V, b_out, target, error, dy)
                dc[:] = 0
                finish(sync)
            turn, done = turn + 1, done + 1
            wait(sync, done)
            turn, done = backward_rounds(p, plan, sync, turn, done)
        if claim(sync, turn, p, 1) == 0:
            losses[k] = readout_gradient(y, error, gV, gb_out, rate)
            finish(sync)
        turn, done = turn + 1, done + 1
        turn, done = gradient_rounds(p, plan, sync, turn, done, rate, descend)


def pack(plan):
    """Write all transposed weights."""
    for l in range(len(plan)):
        for j in range(plan[l].J):
            pack_transposes(plan[l], j)


def infer(plan, sync, threads, shares, out):
    sync[:] = 0
    if threads == 1:
        infer_part(np.intp(0), plan, sync, shares, out)
    else:
        for p in prange(threads):
            infer_part(np.intp(p), plan, sync, shares, out)


def backward(plan, sync, threads, shares, x):
    plan[0].x = x.ctypes.data
    sync[:] = 0
    if threads == 1:
        backward_part(np.intp(0), plan, sync, shares)
    else:
        for p in prange(threads):
            backward_part(np.intp(p), plan, sync, shares)


def train(plan, sync, threads, shares, rate, descend, work):
    plan[0].x = work[3].ctypes.data
    sync[:] = 0
    if threads == 1:
        train_part(np.intp(0), plan, sync, shares, rate, descend, work)
    else:
        for p in prange(threads):
            train_part(np.intp(p), plan, sync, shares, rate, descend, work)
