"""Kernels in which a block computes a tile of samples from its first step to its last,
and back.

A block's threads are a matrix. In products, units are along x; along y are groups of R
samples, for which a thread loads a weight once, and for each group `parts` threads that
compute a part of every sum: with few samples they would wait. The rest of the work, a
number of the tile at a time, is dealt out to all threads.

n are the `layout.Places` of a pass in `work`. A tile's samples are s0, s0 + 1, ...:
`count` of them, and zeros up to `tile`.
"""

from .device import cuda
from .device_functions import (
    clear,
    gate_at,
    lane,
    slot_at,
    state_at,
    step_at,
    sum_numbers,
    sum_values,
    total,
    transposed_at,
    weight_at,
)
from .gradient_kernels import gradients, readout, sum_rows
from .layout import Places, four, net
from .registers import add_four, add_number, add_products, load, store


def copy(to, i, source, k, size):
    """Numbers from k on to those from i on."""
    me, threads = lane()
    while me < size:
        to[i + me] = source[k + me]
        me += threads


def copy_rows(shared, to, pitch, work, i, width, count):
    """Rows of `width` numbers into shared memory, `pitch` apart: by the last threads
    first, since the first ones compute cells meanwhile.
    """
    row = cuda.blockDim.y - 1 - cuda.threadIdx.y
    while row < count:
        k = cuda.threadIdx.x
        while k < width:
            shared[to + row * pitch + k] = work[i + row * width + k]
            k += cuda.blockDim.x
        row += cuda.blockDim.y


def product(theta, w, row, shared, z, step, count, part):
    """A part of R sums of `count` numbers in `shared`, of sample r from z + r step on,
    times weights from w on, `row` apart.
    """
    a = net.sums
    k = 4 * part
    while k + 3 < count:
        i = w + k * row
        # All four are under way before the first is used.
        w0 = load(net.zeros, theta, i)
        w1 = load(net.zeros, theta, i + row)
        w2 = load(net.zeros, theta, i + 2 * row)
        w3 = load(net.zeros, theta, i + 3 * row)
        a = add_four(a, shared, z + k, step, w0, w1, w2, w3)
        k += 4 * net.parts
    k = count // 4 * 4 + part
    while k < count:
        w0 = load(net.zeros, theta, w + k * row)
        a = add_number(a, shared, z + k, step, w0)
        k += net.parts
    return a


def product_back(theta, w, row, shared, z, step, part):
    """A part of R sums over H units of da in `shared`, of sample r from z + r step on,
    times weights from w on, `row` apart; K numbers, whose `total` it is.
    """
    a = net.sums
    j = 4 * part
    d = z + j * net.K
    i = w + j * row
    while j + 3 < net.H:
        for q in range(4):
            w0 = load(net.zeros, theta, i + q * row)
            a = add_products(a, shared, d + q * net.K, step, w0)
        j += 4 * net.parts
        d += 4 * net.parts * net.K
        i += 4 * net.parts * row
    j = net.H // 4 * 4 + part
    while j < net.H:
        w0 = load(net.zeros, theta, w + j * row)
        a = add_products(a, shared, z + j * net.K, step, w0)
        j += net.parts
    return a


def products_back(theta, w, row, columns, shared, tile, sums):
    """The parts of the tile's da times `columns` columns of weights: (parts, tile,
    columns), from `sums` on.
    """
    part = cuda.threadIdx.y % net.parts
    step = net.H * net.K
    s = cuda.threadIdx.y // net.parts * net.R
    while s < tile:
        k = cuda.threadIdx.x
        while k < columns:
            i = w + k * net.K
            a = product_back(theta, i, row, shared, s * step, step, part)
            for r in range(net.R):
                shared[sums + (part * tile + s + r) * columns + k] = total(a[r])
            k += cuda.blockDim.x
        s += cuda.blockDim.y // net.parts * net.R


def forward_layer(l, inputs, n, tile, s0, theta, shared, work):
    """All steps of a layer for a tile, from `state`."""
    count = min(tile, n.B - s0)
    me, threads = lane()
    last = inputs + net.H  # of a sample's [x_t, h_{t-1}, 1]
    width = four(last + 1)
    row = net.H * net.K  # of theta
    cells = tile * width  # the tile's c
    sums = cells + four(tile * net.H)  # of its pre-activations
    h, c = state_at(n, 0, l, s0), state_at(n, 1, l, s0)
    copy(work, slot_at(n, n.h, l, 0, s0), work, h, count * net.H)
    copy(work, slot_at(n, n.c, l, 0, s0), work, c, count * net.H)
    clear(shared, 0, cells)
    cuda.syncthreads()
    copy_rows(shared, inputs, width, work, h, net.H, count)
    copy(shared, cells, work, c, count * net.H)
    below = step_at(n, n.x, 0, s0, net.D) if l == 0 else slot_at(n, n.h, l - 1, 1, s0)
    copy_rows(shared, 0, width, work, below, inputs, count)
    s = me
    while s < tile:
        shared[s * width + last] = net.one  # times b
        s += threads
    t = 0
    while t < n.T:
        cuda.syncthreads()
        part = cuda.threadIdx.y % net.parts
        s = cuda.threadIdx.y // net.parts * net.R
        while s < tile:
            j = cuda.threadIdx.x
            while j < net.H:
                w, z = weight_at(l, 0, j), s * width
                a = product(theta, w, row, shared, z, width, last + 1, part)
                for r in range(net.R):
                    i = sums + ((part * tile + s + r) * net.H + j) * net.K
                    store(net.zeros, shared, i, a[r])
                j += cuda.blockDim.x
            s += cuda.blockDim.y // net.parts * net.R
        cuda.syncthreads()
        below += n.B * inputs
        if t + 1 < n.T:
            copy_rows(shared, 0, width, work, below, inputs, count)
        h, c = slot_at(n, n.h, l, t + 1, s0), slot_at(n, n.c, l, t + 1, s0)
        gates = gate_at(n, n.gates, l, t, s0)
        i = me  # unit i % H of sample i // H
        while i < count * net.H:
            a = sum_values(shared, sums + i * net.K, net.parts, tile * net.H * net.K)
            out = net.forward(*a, shared[cells + i])
            shared[cells + i] = out[-1]
            shared[i // net.H * width + inputs + i % net.H] = out[-2]
            work[h + i] = out[-2]
            work[c + i] = out[-1]
            store(net.zeros, work, gates + i * net.K, out)
            i += threads
        t += 1
    cuda.syncthreads()


def taped(n, l, t, s0, i, work):
    """dy, the gates, c before and after step t, of unit i % H of sample s0 + i // H."""
    return (
        work[step_at(n, n.dy, t, s0, net.H) + i],
        load(net.zeros, work, gate_at(n, n.gates, l, t, s0) + i * net.K),
        work[slot_at(n, n.c, l, t, s0) + i],
        work[slot_at(n, n.c, l, t + 1, s0) + i],
    )


def backward_layer(l, inputs, n, tile, s0, theta, shared, work, below):
    """All steps back. below: whether the gradient of the layer's input is wanted."""
    count = min(tile, n.B - s0)
    me, threads = lane()
    dc = tile * net.H * net.K  # behind the tile's da
    sums = dc + tile * net.H  # of dh
    sums_below = sums + net.parts * tile * net.H  # of the gradient of the layer's input
    U = transposed_at(l)
    W = U + inputs * net.K
    row = (inputs + net.H + 1) * net.K
    dh_outside, dc_outside = state_at(n, 0, l, s0), state_at(n, 1, l, s0)
    clear(shared, 0, sums_below)
    cuda.syncthreads()
    copy(shared, sums, work, dh_outside, count * net.H)
    copy(shared, dc, work, dc_outside, count * net.H)
    t = n.T - 1
    ahead = taped(n, l, t, s0, min(me, count * net.H - 1), work)
    while t >= 0:
        da = gate_at(n, n.da, l, t, s0)
        i = me
        while i < count * net.H:
            dy, gates, c_before, c = ahead
            # The next number's are under way from here on, over the barriers, too.
            same = i + threads < count * net.H
            where = i + threads if same else me
            ahead = taped(n, l, t if same else max(t - 1, 0), s0, where, work)
            dh = dy + sum_numbers(shared, sums + i, net.parts, tile * net.H)
            out = net.backward(dh, shared[dc + i], *gates, c_before, c)
            store(net.zeros, work, da + i * net.K, out)
            store(net.zeros, shared, i * net.K, out)
            shared[dc + i] = out[-1]
            i += threads
        cuda.syncthreads()
        products_back(theta, W, row, net.H, shared, tile, sums)
        if below:
            products_back(theta, U, row, inputs, shared, tile, sums_below)
        cuda.syncthreads()
        to = step_at(n, n.dx if l == 0 else n.dy, t, s0, inputs)
        i = me
        while below and i < count * inputs:
            work[to + i] = sum_numbers(shared, sums_below + i, net.parts, tile * inputs)
            i += threads
        t -= 1
    i = me
    while i < count * net.H:
        work[dh_outside + i] = sum_numbers(shared, sums + i, net.parts, tile * net.H)
        work[dc_outside + i] = shared[dc + i]
        i += threads
    cuda.syncthreads()


def forward_layers(n, tile, s0, theta, shared, work):
    """All layers of a tile."""
    cuda.syncthreads()
    for l in range(net.L):
        inputs = net.D if l == 0 else net.H
        forward_layer(l, inputs, n, tile, s0, theta, shared, work)


def backward_layers(n, tile, s0, theta, shared, work, below):
    """The layers from the top down, then the tile's share of the gradients."""
    for l in range(net.L - 1, -1, -1):
        inputs = net.D if l == 0 else net.H
        backward_layer(l, inputs, n, tile, s0, theta, shared, work, l > 0 or below)
    gradients(n, s0, min(tile, n.B - s0), work, s0 == cuda.blockIdx.x * tile)


def gather(n, s0, count, order, first, x, work):
    """The tile's examples, order[first + s0:] of x (T, N, D), to their place; zeros for
    the states and all gradients of the outputs.
    """
    t = cuda.threadIdx.y
    while t < n.T:
        i = cuda.threadIdx.x
        while i < count * net.D:
            value = x[t, order[first + s0 + i // net.D], i % net.D]
            work[step_at(n, n.x, t, s0, net.D) + i] = value
            i += cuda.blockDim.x
        j = cuda.threadIdx.x
        while j < count * net.H:
            work[step_at(n, n.dy, t, s0, net.H) + j] = net.zero
            j += cuda.blockDim.x
        t += cuda.blockDim.y
    for l in range(net.L):
        clear(work, state_at(n, 0, l, s0), count * net.H)
        clear(work, state_at(n, 1, l, s0), count * net.H)


def mini_batch(n, tile, order, first, x, target, theta, shared, work, below):
    """The B examples order[first:] of x (T, N, D) and target (N, O), forward and
    back.
    """
    s0 = cuda.blockIdx.x * tile
    while s0 < n.B:
        count = min(tile, n.B - s0)
        gather(n, s0, count, order, first, x, work)
        forward_layers(n, tile, s0, theta, shared, work)
        readout(n, s0, count, order, first, target, theta, work)
        backward_layers(n, tile, s0, theta, shared, work, below)
        s0 += cuda.gridDim.x * tile


def forward(n, tile, theta, work):
    """Kernel: the tape from x and state; the final state over the initial one."""
    shared = cuda.shared.array(0, net.number)
    s0 = cuda.blockIdx.x * tile
    while s0 < n.B:
        size = min(tile, n.B - s0) * net.H
        forward_layers(n, tile, s0, theta, shared, work)
        for l in range(net.L):
            h, c = slot_at(n, n.h, l, n.T, s0), slot_at(n, n.c, l, n.T, s0)
            copy(work, state_at(n, 0, l, s0), work, h, size)
            copy(work, state_at(n, 1, l, s0), work, c, size)
        s0 += cuda.gridDim.x * tile


def backward(n, tile, theta, work):
    """Kernel: the tiles' gradients from dy and state, then the initial state's; for
    `update`.
    """
    shared = cuda.shared.array(0, net.number)
    s0 = cuda.blockIdx.x * tile
    while s0 < n.B:
        count = min(tile, n.B - s0)
        # y does not depend on the read-out.
        clear(work, n.d_out + s0 * net.O, count * net.O)
        backward_layers(n, tile, s0, theta, shared, work, True)
        s0 += cuda.gridDim.x * tile


def step(n, tile, first, order, x, target, theta, work, rate):
    """Kernel: a mini-batch, the B examples order[first:] of x (T, N, D) and target (N,
    O).

    The blocks' gradients and losses are for `update`. With a rate of zero dx and state
    hold the gradients of the input and of the initial state.
    """
    shared = cuda.shared.array(0, net.number)
    mini_batch(n, tile, order, first, x, target, theta, shared, work, rate == 0)


def update(n, blocks, theta, work, losses, batch, rate):
    """Kernel: add up what `blocks` blocks left, and let the parameters take a step of
    `rate`.

    losses[batch] becomes the mean squared error. With a rate of zero the parameters
    stay, and the gradients are the first row of partials.
    """
    shared = cuda.shared.array(0, net.number)
    sum_rows(n, blocks, shared, theta, work, losses, batch, rate)


def epoch(n, tile, order, x, target, theta, work, losses, rate):
    """Kernel: `step` and `update` for each mini-batch of B examples of `order`, in one
    launch.

    All blocks run at the same time and wait for each other where the other versions end
    a launch.
    """
    shared = cuda.shared.array(0, net.number)
    grid = cuda.cg.this_grid()
    first = 0
    batch = 0
    while first < order.size:
        B = min(n.B, order.size - first)
        m = Places(n.T, B, *n[2:])
        mini_batch(m, tile, order, first, x, target, theta, shared, work, rate == 0)
        grid.sync()
        blocks = min(cuda.gridDim.x, (B + tile - 1) // tile)
        sum_rows(m, blocks, shared, theta, work, losses, batch, rate)
        grid.sync()
        first += B
        batch += 1
