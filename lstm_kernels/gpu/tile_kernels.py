"""Kernels in which a block computes a tile of samples from its first step to its last, and back.

A thread computes one unit of R samples at a step: it reads the unit's weights from shared memory
once for all of them. n = (L, T, B, D, H, O); all arrays but the parameters are those of `layout`,
in `work`. A tile's samples are s0, s0 + 1, ...: `count` of them, and zeros up to `tile`.
"""

from .device_functions import first_place, next_place, own_row, store, sum_over_blocks, total
from .gradient_kernels import descend, gates_at, gradients, readout, slot_at
from .layout import INDEX, layer_at, parameter_count, places, readout_at

cuda = K = G = R = RESIDENT = ATOMIC = real = number = int64 = SKIP = None
cell_forward = cell_backward = load = zeros = None
input_weights = recurrent_weights = start = add_rows = dot_rows = None


def look_up(n, at):
    """Write `places` to shared memory, so that nobody keeps eleven numbers in registers."""
    if cuda.threadIdx.x == 0:
        values = places(n, cuda.gridDim.x * (parameter_count(n) + 1), K)
        for i in range(len(values)):
            at[i] = values[i]
    cuda.syncthreads()


def copy_rows(shared, to, pitch, source, at, width, rows, count):
    """`count` rows of `width` numbers into shared memory, `pitch` apart, and zeros up to `rows`."""
    row, column, down, right = first_place(width)
    while row < rows:
        value = source[at + row * width + column] if row < count else real(0)
        shared[to + row * pitch + column] = value
        row, column = next_place(row, column, down, right, width)


def weights_of(index, n, theta, shared, fetch):
    """Bring a layer's weights into shared memory; where the state of a tile begins behind them.

    fetch: false when they are there from the layer that was computed before.

    A row there is one number longer than in theta: units read a column in different banks.
    """
    L, _, _, D, H, _ = n
    if not RESIDENT:
        return 0
    width = G * H
    if fetch:
        U, _, b, inputs = layer_at(index, D, H)
        rows = inputs + H  # of U, then of W
        cuda.syncthreads()
        copy_rows(shared, 0, width + 1, theta, U, width, rows, rows)
        copy_rows(shared, rows * (width + 1), K * H, theta, b, K * H, 1, 1)  # b, behind W
    # Behind the weights of the layer with the most inputs.
    return ((D if L == 1 else max(D, H)) + H) * (width + 1) + K * H


def forward_layer(index, n, tile, s0, theta, shared, work, at, fetch):
    """All steps of a layer for a tile."""
    _, T, B, D, H, _ = n
    U, _, b, inputs = layer_at(index, D, H)
    state = weights_of(index, n, theta, shared, fetch)
    h, c, gates = work[at[INDEX.h] :], work[at[INDEX.c] :], work[at[INDEX.gates] :]
    if RESIDENT:  # where rows of U over W begin, from row to row, where b begins
        weights, top, row, bias = shared, 0, G * H + 1, (inputs + H) * (G * H + 1)
    else:
        weights, top, row, bias = theta, U, G * H, b
    count, width = min(tile, B - s0), inputs + H  # of a sample in the tile's [x_t, h_{t-1}]
    cells = state + 2 * tile * width  # the tile's c, behind two buffers of these
    old = slot_at(n, index, 0, s0)  # the initial state of sample s0
    source = work[at[INDEX.x] :] if index == 0 else h
    below = s0 * D if index == 0 else slot_at(n, index - 1, 1, s0)  # inputs of s0 at step 0
    copy_rows(shared, cells, H, c, old, H, tile, count)
    copy_rows(shared, state + inputs, width, h, old, H, tile, count)
    copy_rows(shared, state, width, source, below, inputs, tile, count)
    g0, j0, down, right = first_place(H)
    for t in range(T):
        cuda.syncthreads()
        now = state + t % 2 * tile * width  # [x_t, h_{t-1}]
        then = state + (1 - t % 2) * tile * width  # [x_{t+1}, h_t]
        if t + 1 < T:
            x = below + (t + 1) * B * inputs  # inputs of s0 at step t + 1
            copy_rows(shared, then, width, source, x, inputs, tile, count)
        g, j = g0, j0
        while g < tile // R:
            a, z = start(load(weights, bias + j, H)), now + g * R * width  # z: sample g R
            for k in range(inputs):
                w = input_weights(weights, top + k * row + j, H)  # U: row k, unit j
                a = add_rows(a, shared, z + k, width, w)  # input k
            for k in range(H):
                w = recurrent_weights(weights, top + (inputs + k) * row + j, H)  # W: row k, unit j
                a = add_rows(a, shared, z + inputs + k, width, w)  # unit k before step t
            for r in range(R):
                s = g * R + r
                out = cell_forward(*a[r], shared[cells + s * H + j])  # c of unit j before step t
                shared[cells + s * H + j] = out[K + 1]  # after step t
                shared[then + s * width + inputs + j] = out[K]  # h of unit j after it
                if s < count:
                    new = old + ((t + 1) * B + s) * H + j  # unit j of sample s0 + s after step t
                    h[new], c[new] = out[K], out[K + 1]
                    store(gates, gates_at(n, index, t, s0 + s) + j, H, out)  # gates of unit j
            g, j = next_place(g, j, down, right, H)
    cuda.syncthreads()


def backward_layer(index, n, tile, s0, theta, shared, work, at, below, fetch):
    """All steps back. below: whether the gradient of the layer's input is wanted."""
    L, T, B, D, H, _ = n
    U, W, _, inputs = layer_at(index, D, H)
    P, count = parameter_count(n), min(tile, B - s0)
    c, gates, da = work[at[INDEX.c] :], work[at[INDEX.gates] :], work[at[INDEX.da] :]
    dy, state, dx = work[at[INDEX.dy] :], work[at[INDEX.state] :], work[at[INDEX.dx] :]
    dh = weights_of(index, n, theta, shared, fetch)  # of the tile; behind it dc, two buffers of da
    dc, buffers = dh + tile * H, dh + 2 * tile * H
    # Where U and W begin, from row to row, and from unit to unit; a gate is H units.
    if RESIDENT:
        weights, at_U, at_W, row, unit_U, unit_W = shared, 0, inputs * (G * H + 1), G * H + 1, 1, 1
    else:  # their transposes
        weights, at_U, at_W, row, unit_U, unit_W = theta, U + P, W + P, 1, inputs, H
    g0, j0, down, right = first_place(H)
    i0, k0, down_U, right_U = first_place(inputs)
    first = (index * B + s0) * H  # dh of sample s0 in state; dc lies L B H further
    copy_rows(shared, dh, H, state, first, H, tile, count)
    copy_rows(shared, dc, H, state, L * B * H + first, H, tile, count)
    cuda.syncthreads()
    for t in range(T - 1, -1, -1):
        now, out_at = buffers + t % 2 * tile * K * H, (t * B + s0) * H  # da; dy of s0 at step t
        old, new = slot_at(n, index, t, s0), slot_at(n, index, t + 1, s0)  # before t, after it
        entry = gates_at(n, index, t, s0)  # gate 0 of unit 0 of s0 at step t
        g, j = g0, j0
        while g < tile // R:
            for r in range(R):
                s = g * R + r
                unit, to = s * H + j, now + s * K * H + j  # unit j of sample s; its da in the tile
                if s < count:
                    out = cell_backward(
                        dy[out_at + unit] + shared[dh + unit],  # gradients of h of unit j
                        shared[dc + unit],  # of c
                        *load(gates, entry + s * K * H + j, H),  # its gates at step t
                        c[old + unit],  # c before step t
                        c[new + unit],  # c after step t
                    )
                    store(da, entry + s * K * H + j, H, out)  # da of unit j
                    store(shared, to, H, out)
                    shared[dc + unit] = out[K]  # dc before step t
                else:
                    store(shared, to, H, zeros())
            g, j = next_place(g, j, down, right, H)
        cuda.syncthreads()
        g, j = g0, j0
        while g < tile // R:
            a, z = start(zeros()), now + g * R * K * H  # z: da of sample g R
            for i in range(H):
                w = recurrent_weights(weights, at_W + j * row + i * unit_W, H * unit_W)
                a = dot_rows(a, shared, z + i, K * H, H, w)  # row j of W, unit i
            for r in range(R):
                shared[dh + (g * R + r) * H + j] = total(a[r])  # dh of unit j before t
            g, j = next_place(g, j, down, right, H)
        g, k = i0, k0
        while below and g < tile // R:
            a, z = start(zeros()), now + g * R * K * H  # z: da of sample g R
            for i in range(H):
                w = input_weights(weights, at_U + k * row + i * unit_U, H * unit_U)
                a = dot_rows(a, shared, z + i, K * H, H, w)  # row k of U, unit i
            for r in range(R):
                s = g * R + r
                if s < count:
                    if index == 0:
                        dx[(t * B + s0 + s) * D + k] = total(a[r])  # input k at step t
                    else:
                        dy[out_at + s * H + k] = total(a[r])  # unit k of the layer below
            g, k = next_place(g, k, down_U, right_U, inputs)
    cuda.syncthreads()
    for i in range(cuda.threadIdx.x, count * H, cuda.blockDim.x):  # dh, dc of the initial state
        state[first + i], state[L * B * H + first + i] = shared[dh + i], shared[dc + i]


def through_layers(n, tile, s0, theta, shared, work, at, fetch):
    """Forward from the states in slot 0; fetch: false when the only layer's weights are there."""
    cuda.syncthreads()
    for index in range(n[0]):
        forward_layer(index, n, tile, s0, theta, shared, work, at, n[0] > 1 or fetch)


def back_through(n, tile, s0, theta, shared, work, at, partial, fresh, below, fetch):
    """The layers from the top down, and the tile's share of the gradients.

    fetch: whether the top layer's weights have to be fetched.
    """
    L = n[0]
    for index in range(L - 1, -1, -1):
        want, need = index > 0 or below, index < L - 1 or fetch
        backward_layer(index, n, tile, s0, theta, shared, work, at, want, need)
    gradients(n, tile, s0, work, at, partial, fresh)


def forward(n, tile, theta, work):
    """Kernel: the tape from x and state; the final state over the initial one."""
    L, T, B, _, H, _ = n
    shared, at = cuda.shared.array(0, number)[SKIP:], cuda.shared.array(0, int64)
    look_up(n, at)
    me, threads = cuda.threadIdx.x, cuda.blockDim.x
    h, c, state = work[at[INDEX.h] :], work[at[INDEX.c] :], work[at[INDEX.state] :]
    for s0 in range(cuda.blockIdx.x * tile, B, cuda.gridDim.x * tile):
        count = min(tile, B - s0)
        for index in range(L):
            slot, row = slot_at(n, index, 0, s0), (index * B + s0) * H  # unit 0 of sample s0
            for i in range(me, count * H, threads):
                h[slot + i], c[slot + i] = state[row + i], state[L * B * H + row + i]  # h, c
        through_layers(n, tile, s0, theta, shared, work, at, s0 == cuda.blockIdx.x * tile)
        for index in range(L):
            slot, row = slot_at(n, index, T, s0), (index * B + s0) * H  # after the last step
            for i in range(me, count * H, threads):
                state[row + i], state[L * B * H + row + i] = h[slot + i], c[slot + i]  # h, c


def backward(n, tile, theta, work, counters):
    """Kernel: gradients, at the start of work, from dy and state; then the initial state's."""
    L, _, B, _, _, _ = n
    shared, at = cuda.shared.array(0, number)[SKIP:], cuda.shared.array(0, int64)
    look_up(n, at)
    P, partial = parameter_count(n), work[own_row(n) :]
    for s0 in range(cuda.blockIdx.x * tile, B, cuda.gridDim.x * tile):
        fresh = s0 == cuda.blockIdx.x * tile
        back_through(n, tile, s0, theta, shared, work, at, partial, fresh, True, L > 1 or fresh)
    for p in range(readout_at(n) + cuda.threadIdx.x, P + 1, cuda.blockDim.x):
        partial[p] = real(0)  # y does not depend on the read-out
    sum_over_blocks(n, work, counters)


def step(n, tile, first, order, x, target, theta, work, counters, losses, batch, rate):
    """Kernel: a mini-batch, the B examples order[first:] of x (T, N, D) and target (N, O).

    losses[batch] becomes their mean squared error, the parameters take a step of `rate`. With a
    rate of zero they stay; the gradients lie at the start of work, and dx and state hold those of
    the input and of the initial state.
    """
    L, T, B, D, H, _ = n
    shared, at = cuda.shared.array(0, number)[SKIP:], cuda.shared.array(0, int64)
    look_up(n, at)
    P, partial = parameter_count(n), work[own_row(n) :]
    me, threads, N = cuda.threadIdx.x, cuda.blockDim.x, x.size // (T * D)
    rows = order[first : first + B]  # the examples of the mini-batch
    for s0 in range(cuda.blockIdx.x * tile, B, cuda.gridDim.x * tile):
        count, fresh = min(tile, B - s0), s0 == cuda.blockIdx.x * tile
        for i in range(me, count * D, threads):
            example = rows[s0 + i // D] * D + i % D  # input i % D of that example at step 0
            for t in range(T):
                work[at[INDEX.x] + (t * B + s0) * D + i] = x[t * N * D + example]  # step t of it
        for index in range(L):
            slot = slot_at(n, index, 0, s0)  # the initial state of sample s0
            row = at[INDEX.state] + (index * B + s0) * H  # in state
            for i in range(me, count * H, threads):
                work[at[INDEX.h] + slot + i] = work[at[INDEX.c] + slot + i] = real(0)
                work[row + i] = work[row + L * B * H + i] = real(0)  # dh, dc
        through_layers(n, tile, s0, theta, shared, work, at, fresh)
        readout(n, tile, s0, theta, target, rows, work, at, partial, fresh)
        back_through(n, tile, s0, theta, shared, work, at, partial, fresh, rate == 0, False)
    if sum_over_blocks(n, work, counters):
        if me == 0:
            losses[batch] = work[P]  # behind the gradients
        if rate != 0:
            descend(n, theta, work, rate)
            if ATOMIC:
                cuda.syncthreads()
                for p in range(me, P + 1, threads):
                    work[p] = real(0)  # for the next launch to add to
