"""Kernels in which a block computes a tile of samples from its first step to its last,
and back.

A block's threads are a matrix: unit j along x, a group of R samples along y. A thread
loads a unit's weights once for its R samples. n = (T, B, *Places): the steps and
samples of a pass, and where its arrays begin in `work` (see `layout`). A tile's samples
are s0, s0 + 1, ...: `count` of them, and zeros up to `tile`.
"""

from .device_functions import load, store, total
from .gradient_kernels import finish, gradients, readout
from .layout import (
    c_at,
    d_out_at,
    da_at,
    dx_at,
    dy_at,
    gates_at,
    h_at,
    layer_at,
    state_at,
    x_at,
)

cuda = L = D = H = O = K = TRANSPOSED = R = RESIDENT = PRODUCT = real = number = None
cell_forward = cell_backward = zeros = start = quads = add_quads = add_samples = None
dot_samples = None


def four(size):
    """The next multiple of four: rows begin there, so that four numbers can be loaded
    at once.
    """
    return (size + 3) // 4 * 4


def pitch():
    """From row to row of the weights: in shared memory an odd number of units, so that
    threads that read a column do so from different banks.
    """
    return (H + 1 - H % 2) * K if RESIDENT else H * K


def copy_rows(shared, to, pitch, source, at, width, rows, count):
    """`count` rows of `width` numbers into shared memory, `pitch` apart, and zeros up
    to `rows`.
    """
    row = cuda.threadIdx.y
    while row < rows:
        column = cuda.threadIdx.x
        while column < width:
            value = source[at + row * width + column] if row < count else real(0)
            shared[to + row * pitch + column] = value
            column += cuda.blockDim.x
        row += cuda.blockDim.y


def weights_of(index, inputs, theta, shared, fetch):
    """Bring a layer's weights, the rows of U, W and b, into shared memory; where the
    state of a tile begins behind them. fetch: false when they are there.
    """
    if not RESIDENT:
        return 0
    if fetch:
        at, row = layer_at(index), cuda.threadIdx.y
        cuda.syncthreads()
        while row < inputs + H + 1:
            j = cuda.threadIdx.x
            while j < H:
                store(
                    shared, row * pitch() + j * K, load(theta, at + (row * H + j) * K)
                )
                j += cuda.blockDim.x
            row += cuda.blockDim.y
    # Behind the weights of the layer with the most inputs.
    return four(((D if L == 1 else max(D, H)) + H + 1) * pitch())


def product(a, weights, w, row, shared, z, step, count):
    """a plus `count` of the R samples' numbers in `shared` times rows of weights: of
    sample r from z + r step on, of the weights from w on, rows `row` apart.
    """
    k = 0
    while k + 3 < count:
        v, at = quads(shared, z + k, step), w + k * row
        w0, w1 = load(weights, at), load(weights, at + row)
        w2, w3 = load(weights, at + 2 * row), load(weights, at + 3 * row)
        a = add_quads(a, v, w0, w1, w2, w3)
        k += 4
    while k < count:
        a = add_samples(a, shared, z + k, step, load(weights, w + k * row))
        k += 1
    return a


def product_back(weights, w, row, shared, z, step):
    """The R samples' K sums over H units of da in `shared`, of sample r from z + r step
    on, times weights, units `row` apart.
    """
    a = start(zeros())
    if K == 1:
        return product(a, weights, w, row, shared, z, step, H)
    i = 0
    while i < H:
        a = dot_samples(a, shared, z + i * K, step, load(weights, w + i * row))
        i += 1
    return a


def forward_layer(index, inputs, n, tile, s0, theta, shared, work, fetch):
    """All steps of a layer for a tile; h and c in slot 0 are the initial state."""
    T, B = n[0], n[1]
    state = weights_of(index, inputs, theta, shared, fetch)
    weights, top = (shared, 0) if RESIDENT else (theta, layer_at(index))
    count, width = (
        min(tile, B - s0),
        four(inputs) + four(H),
    )  # of a sample's [x_t, h_{t-1}]
    cells = state + 2 * tile * width  # the tile's c, behind two buffers of these
    old = h_at(
        n, index, 0, s0
    )  # the initial state of sample s0; c lies c_at - h_at further
    to_c = c_at(n, index, 0, s0) - old
    below = (
        x_at(n, 0, s0) if index == 0 else h_at(n, index - 1, 1, s0)
    )  # inputs of s0 at step 0
    copy_rows(shared, cells, H, work, old + to_c, H, tile, count)
    copy_rows(shared, state + four(inputs), width, work, old, H, tile, count)
    copy_rows(shared, state, width, work, below, inputs, tile, count)
    t = 0
    while t < T:
        cuda.syncthreads()
        now = state + t % 2 * tile * width  # [x_t, h_{t-1}]
        then = state + (1 - t % 2) * tile * width  # [x_{t+1}, h_t]
        if t + 1 < T:
            x = below + (t + 1) * B * inputs  # inputs of s0 at step t + 1
            copy_rows(shared, then, width, work, x, inputs, tile, count)
        g = cuda.threadIdx.y
        while g * R < tile:
            z, j = now + g * R * width, cuda.threadIdx.x  # z: sample g R
            while j < H:
                w, row = top + j * K, pitch()  # w: row 0 of U, unit j
                a = start(load(weights, w + (inputs + H) * row))  # b of unit j
                a = product(a, weights, w, row, shared, z, width, inputs)
                w += inputs * row  # row 0 of W
                a = product(a, weights, w, row, shared, z + four(inputs), width, H)
                for r in range(R):
                    s = g * R + r
                    out = cell_forward(
                        *a[r], shared[cells + s * H + j]
                    )  # c of unit j before t
                    shared[cells + s * H + j] = out[K + 1]  # after step t
                    shared[then + s * width + four(inputs) + j] = out[
                        K
                    ]  # h of unit j after it
                    if s < count:
                        new = (
                            old + ((t + 1) * B + s) * H + j
                        )  # unit j of sample s0 + s after t
                        work[new], work[new + to_c] = out[K], out[K + 1]
                        store(work, gates_at(n, index, t, s0 + s) + j * K, out)
                j += cuda.blockDim.x
            g += cuda.blockDim.y
        t += 1
    cuda.syncthreads()


def backward_layer(index, inputs, n, tile, s0, theta, shared, work, below, fetch):
    """All steps back. below: whether the gradient of the layer's input is wanted."""
    T, B = n[0], n[1]
    count, width = min(tile, B - s0), four(H * K)  # of a sample's da
    dh = weights_of(
        index, inputs, theta, shared, fetch
    )  # of the tile; behind it dc, and then
    dc, buffers = dh + tile * H, dh + four(2 * tile * H)  # two buffers of da
    # Where U and W begin, from row to row, and from unit to unit; without room, their
    # transposes.
    weights, row, unit_U, unit_W = (
        (shared, pitch(), K, K) if RESIDENT else (theta, K, inputs * K, H * K)
    )
    U = 0 if RESIDENT else TRANSPOSED + layer_at(index)
    W = U + inputs * pitch()
    first, to_dc = (
        state_at(n, 0, index, s0),
        state_at(n, 1, 0, 0) - state_at(n, 0, 0, 0),
    )
    copy_rows(shared, dh, H, work, first, H, tile, count)
    copy_rows(shared, dc, H, work, first + to_dc, H, tile, count)
    cuda.syncthreads()
    t = T - 1
    while t >= 0:
        now, out_at = buffers + t % 2 * tile * width, dy_at(n, t, s0)
        old, new = (
            c_at(n, index, t, s0),
            c_at(n, index, t + 1, s0),
        )  # before t, after it
        entry, to_da = (
            gates_at(n, index, t, s0),
            da_at(n, 0, 0, 0) - gates_at(n, 0, 0, 0),
        )
        g = cuda.threadIdx.y
        while g * R < tile:
            j = cuda.threadIdx.x
            while j < H:
                for r in range(R):
                    s = g * R + r
                    unit, to = (
                        s * H + j,
                        now + s * width + j * K,
                    )  # unit j of s; its da in the tile
                    if s < count:
                        gates = entry + unit * K  # at step t
                        out = cell_backward(
                            work[out_at + unit]
                            + shared[dh + unit],  # gradients of h of unit j
                            shared[dc + unit],  # of c
                            *load(work, gates),
                            work[old + unit],  # c before step t
                            work[new + unit],  # c after step t
                        )
                        store(work, gates + to_da, out)  # da of unit j
                        store(shared, to, out)
                        shared[dc + unit] = out[K]  # dc before step t
                    else:
                        store(shared, to, zeros())
                j += cuda.blockDim.x
            g += cuda.blockDim.y
        cuda.syncthreads()
        g = cuda.threadIdx.y
        while g * R < tile:
            z, j = now + g * R * width, cuda.threadIdx.x  # z: da of sample g R
            while j < H:
                a = product_back(
                    weights, W + j * row, unit_W, shared, z, width
                )  # row j of W
                for r in range(R):
                    shared[dh + (g * R + r) * H + j] = total(
                        a[r]
                    )  # dh of unit j before t
                j += cuda.blockDim.x
            k = cuda.threadIdx.x
            while below and k < inputs:
                a = product_back(
                    weights, U + k * row, unit_U, shared, z, width
                )  # row k of U
                for r in range(R):
                    s = g * R + r
                    if s < count and index == 0:
                        work[dx_at(n, t, s0 + s) + k] = total(a[r])  # input k at step t
                    elif s < count:
                        work[out_at + s * H + k] = total(
                            a[r]
                        )  # dy: unit k of the layer below
                k += cuda.blockDim.x
            g += cuda.blockDim.y
        t -= 1
    cuda.syncthreads()
    g = cuda.threadIdx.y
    while g < count:  # dh and dc of the initial state
        j = cuda.threadIdx.x
        while j < H:
            work[first + g * H + j] = shared[dh + g * H + j]
            work[first + to_dc + g * H + j] = shared[dc + g * H + j]
            j += cuda.blockDim.x
        g += cuda.blockDim.y


def through_layers(n, tile, s0, theta, shared, work, fetch):
    """Forward from the states in slot 0; fetch: false when the only layer's weights are
    there.
    """
    cuda.syncthreads()
    for index in range(L):
        inputs = D if index == 0 else H
        forward_layer(index, inputs, n, tile, s0, theta, shared, work, L > 1 or fetch)


def back_through(n, tile, s0, theta, shared, work, below, fetch):
    """The layers from the top down, then the tile's share of the gradients.

    fetch: whether the top layer's weights have to be fetched.
    """
    for index in range(L - 1, -1, -1):
        inputs, want, need = (
            D if index == 0 else H,
            index > 0 or below,
            index < L - 1 or fetch,
        )
        backward_layer(index, inputs, n, tile, s0, theta, shared, work, want, need)
    if not PRODUCT:
        cuda.syncthreads()
        fresh = s0 == cuda.blockIdx.x * tile
        gradients(n, s0, min(tile, n[1] - s0), (theta, work, work, 0, real(0)), fresh)


def states(n, s0, count, slot, work, out):
    """Copy the initial state to slot 0 of the tape, or, `out`, a slot to where that
    was.
    """
    for index in range(L):
        h, c = h_at(n, index, slot, s0), c_at(n, index, slot, s0)
        dh, dc = state_at(n, 0, index, s0), state_at(n, 1, index, s0)
        s = cuda.threadIdx.y
        while s < count:
            j = cuda.threadIdx.x
            while j < H:
                i = s * H + j
                if out:
                    work[dh + i], work[dc + i] = work[h + i], work[c + i]
                else:
                    work[h + i], work[c + i] = work[dh + i], work[dc + i]
                j += cuda.blockDim.x
            s += cuda.blockDim.y


def gather(n, s0, count, order, first, x, work):
    """The tile's examples, order[first + s0:] of x (T, N, D), to their place; zeros for
    h, c, dh and dc.
    """
    T, B, N = n[0], n[1], x.size // (n[0] * D)
    s = cuda.threadIdx.y
    while s < count:
        example, k = order[first + s0 + s] * D, cuda.threadIdx.x
        while k < D:
            for t in range(T):
                work[x_at(n, t, s0 + s) + k] = x[t * N * D + example + k]  # step t
            k += cuda.blockDim.x
        j = cuda.threadIdx.x
        while j < H:
            for index in range(L):
                work[h_at(n, index, 0, s0 + s) + j] = work[
                    c_at(n, index, 0, s0 + s) + j
                ] = real(0)
                row = state_at(n, 0, index, s0 + s) + j
                work[row] = work[row + L * B * H] = real(0)
            j += cuda.blockDim.x
        s += cuda.blockDim.y


def mini_batch(n, tile, order, first, x, target, theta, shared, work, below):
    """The B examples order[first:] of x (T, N, D) and target (N, O), forward and
    back.
    """
    s0 = cuda.blockIdx.x * tile
    fetch = True
    while s0 < n[1]:
        count = min(tile, n[1] - s0)
        gather(n, s0, count, order, first, x, work)
        through_layers(n, tile, s0, theta, shared, work, fetch)
        readout(n, s0, count, theta, target, order, first, work)
        back_through(n, tile, s0, theta, shared, work, below, False)
        s0 += cuda.gridDim.x * tile
        fetch = False


def forward(n, tile, theta, work):
    """Kernel: the tape from x and state; the final state over the initial one."""
    shared = cuda.shared.array(0, number)
    s0 = cuda.blockIdx.x * tile
    fetch = True
    while s0 < n[1]:
        count = min(tile, n[1] - s0)
        states(n, s0, count, 0, work, False)
        through_layers(n, tile, s0, theta, shared, work, fetch)
        states(n, s0, count, n[0], work, True)
        s0 += cuda.gridDim.x * tile
        fetch = False


def backward(n, tile, theta, work):
    """Kernel: the tiles' gradients from dy and state, then the initial state's; for
    `update`.
    """
    shared = cuda.shared.array(0, number)
    s0 = cuda.blockIdx.x * tile
    fetch = True
    while s0 < n[1]:
        s = cuda.threadIdx.y
        while s < min(tile, n[1] - s0):  # y does not depend on the read-out
            o = cuda.threadIdx.x
            while o < O:
                work[d_out_at(n, s0 + s) + o] = real(0)
                o += cuda.blockDim.x
            s += cuda.blockDim.y
        back_through(n, tile, s0, theta, shared, work, True, L > 1 or fetch)
        s0 += cuda.gridDim.x * tile
        fetch = False


def step(n, tile, first, order, x, target, theta, work, rate):
    """Kernel: a mini-batch, the B examples order[first:] of x (T, N, D) and target (N,
    O).

    The tiles' gradients and losses are for `update`. With a rate of zero dx and state
    hold the gradients of the input and of the initial state.
    """
    shared = cuda.shared.array(0, number)
    mini_batch(n, tile, order, first, x, target, theta, shared, work, rate == 0)


def update(n, blocks, theta, work, losses, batch, rate):
    """Kernel: add up what `blocks` blocks left, and let the parameters take a step of
    `rate`.

    losses[batch] becomes the mean squared error. With a rate of zero the parameters
    stay, and the gradients lie at the start of work. Every block takes its share of the
    parameters.
    """
    shared = cuda.shared.array(0, number)
    finish(n, blocks, shared, (theta, work, losses, batch, rate))


def epoch(n, tile, order, x, target, theta, work, losses, rate):
    """Kernel: `step` and `update` for each mini-batch of B examples of `order`, in one
    launch.

    All blocks run at the same time and wait for each other where the other versions end
    a launch.
    """
    shared, grid = cuda.shared.array(0, number), cuda.cg.this_grid()
    first = batch = 0
    while first < order.size:
        B = min(n[1], order.size - first)
        m = (n[0], B, *n[2:])
        mini_batch(m, tile, order, first, x, target, theta, shared, work, rate == 0)
        grid.sync()
        blocks = min(cuda.gridDim.x, (B + tile - 1) // tile)
        finish(m, blocks, shared, (theta, work, losses, batch, rate))
        grid.sync()
        first += B
        batch += 1
