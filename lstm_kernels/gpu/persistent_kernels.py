"""Kernels of which each block keeps its share of a layer's weights in shared memory.

A block's share of a pass is the steps of one layer, for `units` hidden units from j0 on
and `tile` samples from s0 on. What the other blocks of a layer have computed it takes
from the tape, once their counter in device memory says so (Diamos et al. 2016); all
blocks run at the same time, so the layers advance side by side. n are the
`layout.Places` of a pass in `work`, behind whose end the counters lie.

A block's shared memory begins with its weights; behind them it has what `products`
needs. Each thread computes cells of its own, from the sums that a product leaves.
"""

from .device import cuda
from .device_functions import (
    clear,
    gate_at,
    lane,
    layer_at,
    slot_at,
    state_at,
    step_at,
    sum_numbers,
    weight_at,
)
from .gradient_kernels import readout, readout_gradients
from .layout import four, net
from .products import (
    ROWS,
    Matrix,
    Rows,
    buffers_at,
    eight,
    kept_forward,
    multiply,
    rows_at_once,
    stage,
    transform,
)
from .ptx import add_release, load_acquire, wait_for_copies
from .registers import add, add_outer, load, store
from .tile_kernels import gather, taped

CHUNK = 8  # steps, at most, whose input products are computed at once
COUNTERS_APART = 32  # each has a line of the cache


def shares_of_layer():
    """Blocks that a layer's hidden units are divided among."""
    return (net.H + net.units - 1) // net.units


def chunk_of(n, tile):
    """Steps whose input products are computed at once: few samples share the matrix
    with those of other steps; where samples are divided, rows do not follow each other.
    """
    return 1 if tile < n.B else max(1, min(CHUNK, ROWS // tile))


# Counters between blocks.


def counter_at(n, tile, l, s0):
    """Where the counter of a layer is, for the samples from s0 on."""
    divisions = (n.B + tile - 1) // tile
    return n.end + (l * divisions + s0 // tile) * COUNTERS_APART


def clear_counters(n, tile, work):
    if cuda.blockIdx.x == 0:
        clear(work, n.end, counter_at(n, tile, net.L, 0) - n.end)


def arrive(counter, work):
    """Tell the other blocks that this one has written its share of a step."""
    cuda.syncthreads()
    me, _ = lane()
    if me == 0:
        add_release(work, counter)


def await_steps(counter, steps, work):
    """Wait until all blocks of a layer have written so many steps."""
    me, _ = lane()
    if me == 0:
        while load_acquire(work, counter) < steps * shares_of_layer():
            pass
    cuda.syncthreads()


# The passes.


def forward_share(l, s0, j0, n, tile, theta, work, shared):
    """All steps of a block's units and samples of a layer."""
    count = min(tile, n.B - s0)
    width = min(net.units, net.H - j0)
    inputs = net.D if l == 0 else net.H
    columns = four(net.units * net.K)
    row = net.H * net.K  # of theta
    W = Rows(weight_at(l, inputs, j0), row, net.H)
    pitch = kept_forward()
    stage(shared, 0, pitch, 1, theta, W, width * net.K, eight(net.H), columns, net.zero)
    kept = Matrix(0, pitch, 0, columns)
    U = Matrix(weight_at(l, 0, j0), row, 1, width * net.K)
    b = weight_at(l, inputs + net.H, j0)
    copy_states(l, s0, j0, count, width, 0, n, work, False)
    own = counter_at(n, tile, l, s0)
    arrive(own, work)
    chunk = chunk_of(n, tile)
    t = 0
    while t < n.T:
        if t % chunk == 0:
            steps = min(chunk, n.T - t)
            x = step_at(n, n.x, t, s0, net.D)
            if l > 0:
                x = slot_at(n, n.h, l - 1, t + 1, s0)
                await_steps(counter_at(n, tile, l - 1, s0), t + steps + 1, work)
            a = gate_at(n, n.gates, l, t, s0) + j0 * net.K
            rows = Rows(x, inputs, steps * count)
            transform(rows, inputs, U, columns, b, a, row, work, theta, shared)
        await_steps(own, t + 1, work)
        first = s0
        while first < s0 + count:
            some = min(s0 + count - first, rows_at_once(columns))
            h = Rows(slot_at(n, n.h, l, t, first), net.H, some)
            parts, step = multiply(h, net.H, kept, columns, work, theta, shared)
            i = cuda.threadIdx.y
            while i < some:
                s = first + i
                j = cuda.threadIdx.x
                while j < width:
                    gates = gate_at(n, n.gates, l, t, s) + (j0 + j) * net.K
                    a = load(net.zeros, work, gates)
                    sums = buffers_at() + i * columns + j * net.K
                    for part in range(parts):
                        a = add(a, load(net.zeros, shared, sums + part * step))
                    c = slot_at(n, n.c, l, t, s) + j0 + j
                    out = net.forward(*a, work[c])
                    work[slot_at(n, n.h, l, t + 1, s) + j0 + j] = out[-2]
                    work[slot_at(n, n.c, l, t + 1, s) + j0 + j] = out[-1]
                    store(net.zeros, work, gates, out)
                    j += cuda.blockDim.x
                i += cuda.blockDim.y
            first += some
        arrive(own, work)
        t += 1
    copy_states(l, s0, j0, count, width, n.T, n, work, True)


def copy_states(l, s0, j0, count, width, slot, n, work, final):
    """Copy the block's part of the initial state to slot 0 of h and c, or, `final`, a
    slot to where that was.
    """
    s = s0 + cuda.threadIdx.y
    while s < s0 + count:
        j = j0 + cuda.threadIdx.x
        while j < j0 + width:
            h = slot_at(n, n.h, l, slot, s) + j
            c = slot_at(n, n.c, l, slot, s) + j
            if final:
                work[state_at(n, 0, l, s) + j] = work[h]
                work[state_at(n, 1, l, s) + j] = work[c]
            else:
                work[h] = work[state_at(n, 0, l, s) + j]
                work[c] = work[state_at(n, 1, l, s) + j]
            j += cuda.blockDim.x
        s += cuda.blockDim.y


def backward_share(l, s0, j0, n, tile, theta, work, shared):
    """All steps back, to the gradient of the initial state, before which t is -1."""
    count = min(tile, n.B - s0)
    width = min(net.units, net.H - j0)
    inputs = net.D if l == 0 else net.H
    columns = four(net.units)
    row = net.H * net.K  # of theta: a unit's weights to all units' gates
    W = Rows(weight_at(l, inputs + j0, 0), row, width)
    stage(shared, 0, 1, columns, theta, W, row, columns, eight(row), net.zero)
    kept = Matrix(0, columns, 0, columns)
    own = counter_at(n, tile, l, s0)
    chunk = chunk_of(n, tile)
    t = n.T - 1
    while t >= -1:
        if l < net.L - 1 and t >= 0 and (n.T - 1 - t) % chunk == 0:
            steps = min(chunk, t + 1)
            earliest = t - steps + 1
            above = counter_at(n, tile, l + 1, s0)
            await_steps(above, n.T - earliest, work)
            rows = Rows(gate_at(n, n.da, l + 1, earliest, s0), row, steps * count)
            U = Matrix(weight_at(l + 1, j0, 0), 1, row, width)
            dy = step_at(n, n.dy, earliest, s0, net.H) + j0
            transform(rows, row, U, columns, 0, dy, net.H, work, theta, shared)
        await_steps(own, n.T - 1 - t, work)
        first = s0
        while first < s0 + count:
            some = min(s0 + count - first, rows_at_once(columns))
            parts, step = 0, 0
            if t < n.T - 1:
                da = Rows(gate_at(n, n.da, l, t + 1, first), row, some)
                parts, step = multiply(da, row, kept, columns, work, theta, shared)
            i = cuda.threadIdx.y
            while i < some:
                s = first + i
                j = j0 + cuda.threadIdx.x
                while j < j0 + width:
                    dh = state_at(n, 0, l, s) + j
                    dc = state_at(n, 1, l, s) + j
                    value = work[dh]
                    if t < n.T - 1:
                        sums = buffers_at() + i * columns + j - j0
                        value = sum_numbers(shared, sums, parts, step)
                    if t < 0:
                        work[dh] = value
                    else:
                        dy, gates, c_before, c = taped(n, l, t, s, j, work)
                        out = net.backward(value + dy, work[dc], *gates, c_before, c)
                        to = gate_at(n, n.da, l, t, s) + j * net.K
                        store(net.zeros, work, to, out)
                        work[dc] = out[-1]
                    j += cuda.blockDim.x
                i += cuda.blockDim.y
            first += some
        arrive(own, work)
        t -= 1


def share(i, n, tile):
    """Of share i, in the order in which the layers run: how many layers are before its
    own, its first sample, its first unit; the layers end where there is none.
    """
    divisions = (n.B + tile - 1) // tile
    of_layer = divisions * shares_of_layer()
    rest = i % of_layer
    s0 = rest // shares_of_layer() * tile
    return i // of_layer, s0, rest % shares_of_layer() * net.units


def forward(n, tile, theta, work):
    """Kernel: the tape from x and state; the final state over the initial one."""
    shared = cuda.shared.array(0, net.number)
    clear_counters(n, tile, work)
    cuda.cg.this_grid().sync()
    i = cuda.blockIdx.x
    l, s0, j0 = share(i, n, tile)
    while l < net.L:  # once, where the grid has a block for each share
        forward_share(l, s0, j0, n, tile, theta, work, shared)
        i += cuda.gridDim.x
        l, s0, j0 = share(i, n, tile)


def backward(n, tile, theta, work):
    """Kernel: da from dy, the tape and the gradient of the final state, which becomes
    that of the initial state.
    """
    shared = cuda.shared.array(0, net.number)
    clear_counters(n, tile, work)
    cuda.cg.this_grid().sync()
    i = cuda.blockIdx.x
    above, s0, j0 = share(i, n, tile)
    while above < net.L:
        backward_share(net.L - 1 - above, s0, j0, n, tile, theta, work, shared)
        i += cuda.gridDim.x
        above, s0, j0 = share(i, n, tile)


# The ends of a mini-batch.


def examples(n, first, order, x, work):
    """Kernel: the examples order[first:] of x (T, N, D) to their place, zeros for the
    states.
    """
    for s in range(cuda.blockIdx.x, n.B, cuda.gridDim.x):
        gather(n, s, 1, order, first, x, work)


def loss(n, first, order, target, theta, work):
    """Kernel: d_out and dy of target (N, O), zeros for the gradient of the final
    state.
    """
    for s in range(cuda.blockIdx.x, n.B, cuda.gridDim.x):
        readout(n, s, 1, order, first, target, theta, work)
        for l in range(net.L):
            clear(work, state_at(n, 0, l, s), net.H)
            clear(work, state_at(n, 1, l, s), net.H)


def matrix_gradients(tile, p, gates, at, width, rows, da, n, work, shared):
    """Gradients p and on of a matrix of `rows` rows: sums over steps and samples of
    `width` numbers from `at` on times the H K of da. A row that they lack is one of
    ones: the biases.

    The grid's blocks take tiles in turn, from `tile` on. Returns the tile of the next
    matrix that is this block's.
    """
    row, zero, one = net.H * net.K, net.zero, net.one
    down, across = 4 * cuda.blockDim.y, 4 * cuda.blockDim.x
    in_row = (row + across - 1) // across
    tiles = (rows + down - 1) // down * in_row
    piece = net.buffer // max(down, across) // 4 * 4
    left, right = buffers_at(), buffers_at() + 2 * net.buffer
    while tile < tiles:
        i0, q0 = tile // in_row * down, tile % in_row * across
        a = net.quad, net.quad, net.quad, net.quad
        first = -piece
        which = 1
        while first < n.T * n.B:
            wait_for_copies()
            cuda.syncthreads()
            begin = first + piece
            known = min(piece, n.T * n.B - begin)
            if known > 0:
                to = left + (1 - which) * net.buffer
                some = Rows(at + begin * width + i0, width, known)
                stage(shared, to, down, 1, work, some, width - i0, piece, down, one)
                to = right + (1 - which) * net.buffer
                some, width_of = Rows(da + begin * row + q0, row, known), row - q0
                stage(shared, to, across, 1, work, some, width_of, piece, across, zero)
            if first >= 0:
                v = left + which * net.buffer + 4 * cuda.threadIdx.y
                w = right + which * net.buffer + 4 * cuda.threadIdx.x
                k = 0
                while k < piece:
                    for q in range(4):
                        rows_of = load(net.quad, shared, v + (k + q) * down)
                        columns_of = load(net.quad, shared, w + (k + q) * across)
                        a = add_outer(a, rows_of, columns_of)
                    k += 4
            first = begin
            which = 1 - which
        for r in range(4):
            for c in range(4):
                i, q = i0 + 4 * cuda.threadIdx.y + r, q0 + 4 * cuda.threadIdx.x + c
                if i < rows and q < row:
                    fed = i == width or gates[q % net.K]
                    work[p + i * row + q] = a[r][c] if fed else zero
        tile += cuda.gridDim.x
    return tile - tiles


def parameter_gradients(n, theta, work, rate):
    """Kernel: gradients of all parameters and the loss from the finished tapes, into
    the first row of partials; with a rate of zero dx too.
    """
    shared = cuda.shared.array(0, net.number)
    tile = cuda.blockIdx.x
    for l in range(net.L):
        inputs = net.D if l == 0 else net.H
        U = n.partials + layer_at(l)
        x = n.x if l == 0 else slot_at(n, n.h, l - 1, 1, 0)
        h = slot_at(n, n.h, l, 0, 0)
        da = gate_at(n, n.da, l, 0, 0)
        W = U + inputs * net.H * net.K
        how = da, n, work, shared
        tile = matrix_gradients(tile, U, net.U_gates, x, inputs, inputs, *how)
        tile = matrix_gradients(tile, W, net.W_gates, h, net.H, net.H + 1, *how)
    if cuda.blockIdx.x == 0:
        readout_gradients(n, 0, n.B, work, True)
    row = net.H * net.K
    columns = 4 * cuda.blockDim.x
    rows = rows_at_once(columns)
    first = cuda.blockIdx.x * rows if rate == 0 else n.T * n.B
    while first < n.T * n.B:
        for k in range(0, net.D, columns):
            some = Rows(n.da + first * row, row, min(rows, n.T * n.B - first))
            U = Matrix(weight_at(0, k, 0), 1, row, min(columns, net.D - k))
            dx = n.dx + first * net.D + k
            transform(some, row, U, columns, 0, dx, net.D, work, theta, shared)
        first += cuda.gridDim.x * rows
