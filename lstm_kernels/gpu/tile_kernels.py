"""Kernels in which a block computes a tile of samples from its first step to its last, and back.

A thread computes one unit of R samples at a step: it reads the unit's weights from shared memory
once for all of them. Arrays are flat, in the reference's order: x, dx (T, B, D); h, c (L, T+1, B,
H), slot 0 the initial state; gates, da (L, T, B, K, H); dy (T, B, H); state (2, L, B, H): h and c;
d_out (B, O). n = (L, T, B, D, H, O). All but the parameters lie in one array, `work`: a launch
costs the host time for each array it passes.
"""

cuda = K = G = R = RESIDENT = ATOMIC = real = number = None
HEAD = int64 = cell_forward = cell_backward = load = store = add = dot = total = zeros = u = None
input_weights = recurrent_weights = layer_at = readout_at = None
start = add_rows = dot_rows = gradients = readout = descend = summed = None

# The order of the arrays in `work`, behind the gradients.
X, HIDDEN, CELLS, GATES, DY, STATE, DA, DX, D_OUT = range(1, 10)


def start1(a):
    """A tuple for each of R samples, all the same."""
    return (a,)


def start4(a):
    return a, a, a, a


def add_rows1(a, z, at, step, w):
    """For each of R samples `step` apart: a + z w."""
    return (add(a[0], z[u(at)], w),)


def add_rows4(a, z, at, step, w):
    return (
        add(a[0], z[u(at)], w),
        add(a[1], z[u(at + step)], w),
        add(a[2], z[u(at + 2 * step)], w),
        add(a[3], z[u(at + 3 * step)], w),
    )


def dot_rows1(a, v, at, step, stride, w):
    """For each of R samples `step` apart: a + v w, gate by gate."""
    return (dot(a[0], load(v, at, stride), w),)


def dot_rows4(a, v, at, step, stride, w):
    return (
        dot(a[0], load(v, at, stride), w),
        dot(a[1], load(v, at + step, stride), w),
        dot(a[2], load(v, at + 2 * step, stride), w),
        dot(a[3], load(v, at + 3 * step, stride), w),
    )


def places(n, blocks):
    """Where the arrays in `work` begin: gradients, x, h, c, gates, dy, state, da, dx, d_out."""
    L, T, B, D, H, O = n
    x = blocks * (readout_at(L, D, H) + (H + 1) * O + 1)
    h = x + T * B * D
    c = h + L * (T + 1) * B * H
    gates = c + L * (T + 1) * B * H
    dy = gates + L * T * B * K * H
    state = dy + T * B * H
    da = state + 2 * L * B * H
    dx = da + L * T * B * K * H
    d_out = dx + T * B * D
    return 0, x, h, c, gates, dy, state, da, dx, d_out, d_out + B * O


def shared_size(n, tile):
    """Numbers in shared memory: weights of a layer where they fit, then the state of a tile."""
    L, _, _, D, H, _ = n
    inputs = D if L == 1 else max(D, H)
    weights = (inputs + H) * (G * H + 1) + K * H if RESIDENT else 0
    return HEAD + weights + max(tile * (2 * (inputs + H) + H), tile * (2 * H + 2 * K * H))


def weights_of(index, n, theta, shared, fetch):
    """Bring a layer's weights into shared memory; where the state of a tile begins behind them.

    fetch: false when they are there from the layer that was computed before.

    A row there is one number longer than in theta: units read a column in different banks.
    """
    L, _, _, D, H, _ = n
    if not RESIDENT:
        return 0
    most = D if L == 1 else max(D, H)
    if not fetch:
        return (most + H) * (G * H + 1) + K * H
    U, _, b, inputs = layer_at(index, D, H)
    width, rows = G * H, inputs + H
    cuda.syncthreads()
    row, column = cuda.threadIdx.x // width, cuda.threadIdx.x % width
    down, right = cuda.blockDim.x // width, cuda.blockDim.x % width
    while row < rows:
        shared[row * (width + 1) + column] = theta[U + row * width + column]
        row, column = row + down, column + right
        if column >= width:
            row, column = row + 1, column - width
    for i in range(cuda.threadIdx.x, K * H, cuda.blockDim.x):
        shared[rows * (width + 1) + i] = theta[b + i]
    return (most + H) * (width + 1) + K * H


def forward_layer(index, n, tile, s0, theta, shared, work, at, fetch):
    """All steps of a layer for the samples s0, s0 + 1, ..., of which `tile` fit into a block."""
    _, T, B, D, H, _ = n
    U, _, b, inputs = layer_at(index, D, H)
    state = weights_of(index, n, theta, shared, fetch)
    h, c, gates = work[at[HIDDEN] :], work[at[CELLS] :], work[at[GATES] :]
    source = work[at[X] :] if index == 0 else h
    if RESIDENT:
        weights, top, row, bias = shared, 0, G * H + 1, (inputs + H) * (G * H + 1)
    else:
        weights, top, row, bias = theta, U, G * H, b
    me, threads, width, count = cuda.threadIdx.x, cuda.blockDim.x, inputs + H, min(tile, B - s0)
    cells, old = state + 2 * tile * width, (index * (T + 1) * B + s0) * H
    below = s0 * D if index == 0 else ((index - 1) * (T + 1) * B + B + s0) * H
    j0, g0 = me % H, me // H
    right, down = threads % H, threads // H
    for i in range(me, tile * H, threads):
        shared[cells + i] = c[old + i] if i < count * H else real(0)
    g, j = g0, j0
    while g < tile:
        shared[state + g * width + inputs + j] = h[old + g * H + j] if g < count else real(0)
        g, j = g + down, j + right
        if j >= H:
            g, j = g + 1, j - H
    inputs_into(shared, state, width, source, below, inputs, tile, count)
    for t in range(T):
        cuda.syncthreads()
        now, then = state + (t % 2) * tile * width, state + (1 - t % 2) * tile * width
        if t + 1 < T:
            at_x = below + (t + 1) * B * inputs
            inputs_into(shared, then, width, source, at_x, inputs, tile, count)
        g, j = g0, j0
        while g < tile // R:
            a, z = start(load(weights, bias + j, H)), now + g * R * width
            for k in range(inputs):
                w = input_weights(weights, top + k * row + j, H)
                a = add_rows(a, shared, z + k, width, w)
            for k in range(H):
                w = recurrent_weights(weights, top + (inputs + k) * row + j, H)
                a = add_rows(a, shared, z + inputs + k, width, w)
            for r in range(R):
                s = g * R + r
                out = cell_forward(*a[r], shared[cells + s * H + j])
                shared[cells + s * H + j] = out[K + 1]
                shared[then + s * width + inputs + j] = out[K]
                if s < count:
                    new = old + ((t + 1) * B + s) * H + j
                    h[new], c[new] = out[K], out[K + 1]
                    store(gates, ((index * T + t) * B + s0 + s) * K * H + j, H, out)
            g, j = g + down, j + right
            if j >= H:
                g, j = g + 1, j - H
    cuda.syncthreads()


def inputs_into(shared, to, width, source, at, inputs, tile, count):
    """The tile's inputs of one step, from the arrays of the device; rows past the last are zero."""
    threads = cuda.blockDim.x
    s, k = cuda.threadIdx.x // inputs, cuda.threadIdx.x % inputs
    down, right = threads // inputs, threads % inputs
    while s < tile:
        shared[to + s * width + k] = source[at + s * inputs + k] if s < count else real(0)
        s, k = s + down, k + right
        if k >= inputs:
            s, k = s + 1, k - inputs


def backward_layer(index, n, tile, s0, theta, shared, work, at, below, fetch):
    """All steps back. below: whether the gradient of the layer's input is wanted."""
    L, T, B, D, H, _ = n
    U, W, _, inputs = layer_at(index, D, H)
    dh, count = weights_of(index, n, theta, shared, fetch), min(tile, B - s0)
    c, gates, da = work[at[CELLS] :], work[at[GATES] :], work[at[DA] :]
    dy, state, dx = work[at[DY] :], work[at[STATE] :], work[at[DX] :]
    # For unit j: where its weights begin, from one entry of da to the next, from gate to gate.
    if RESIDENT:
        weights, at_W, unit, step, gate = shared, inputs * (G * H + 1), G * H + 1, 1, H
        at_U, unit_U, step_U, gate_U = 0, G * H + 1, 1, H
    else:
        weights, at_W, unit, step, gate = theta, W + flipped_at(n), 1, H, H * H
        at_U, unit_U, step_U, gate_U = U + flipped_at(n), 1, inputs, H * inputs
    me, threads, dc, buffers = cuda.threadIdx.x, cuda.blockDim.x, dh + tile * H, dh + 2 * tile * H
    j0, g0, right, down = me % H, me // H, threads % H, threads // H
    k0, i0, right_U, down_U = me % inputs, me // inputs, threads % inputs, threads // inputs
    first = (index * B + s0) * H
    for i in range(me, tile * H, threads):
        shared[dh + i] = state[first + i] if i < count * H else real(0)
        shared[dc + i] = state[L * B * H + first + i] if i < count * H else real(0)
    cuda.syncthreads()
    for t in range(T - 1, -1, -1):
        now, out_at = buffers + (t % 2) * tile * K * H, (t * B + s0) * H
        old = ((index * (T + 1) + t) * B + s0) * H
        row = ((index * T + t) * B + s0) * K * H
        g, j = g0, j0
        while g < tile // R:
            for r in range(R):
                s = g * R + r
                if s < count:
                    here, entry = s * H + j, row + s * K * H + j
                    out = cell_backward(
                        dy[out_at + here] + shared[dh + here],
                        shared[dc + here],
                        *load(gates, entry, H),
                        c[old + here],
                        c[old + B * H + here],
                    )
                    store(da, entry, H, out)
                    store(shared, now + s * K * H + j, H, out)
                    shared[dc + here] = out[K]
                else:
                    store(shared, now + s * K * H + j, H, zeros())
            g, j = g + down, j + right
            if j >= H:
                g, j = g + 1, j - H
        cuda.syncthreads()
        g, j = g0, j0
        while g < tile // R:
            a = start(zeros())
            for i in range(H):
                w = recurrent_weights(weights, at_W + j * unit + i * step, gate)
                a = dot_rows(a, shared, now + g * R * K * H + i, K * H, H, w)
            for r in range(R):
                shared[dh + (g * R + r) * H + j] = total(a[r])
            g, j = g + down, j + right
            if j >= H:
                g, j = g + 1, j - H
        if below:
            g, k = i0, k0
            while g < tile // R:
                a = start(zeros())
                for i in range(H):
                    w = input_weights(weights, at_U + k * unit_U + i * step_U, gate_U)
                    a = dot_rows(a, shared, now + g * R * K * H + i, K * H, H, w)
                for r in range(R):
                    s = g * R + r
                    if s < count:
                        if index == 0:
                            dx[(t * B + s0 + s) * D + k] = total(a[r])
                        else:
                            dy[out_at + s * H + k] = total(a[r])
                g, k = g + down_U, k + right_U
                if k >= inputs:
                    g, k = g + 1, k - inputs
    cuda.syncthreads()
    for i in range(me, count * H, threads):
        state[first + i], state[L * B * H + first + i] = shared[dh + i], shared[dc + i]


def flipped_at(n):
    """Where the transposed weights begin behind the parameters: W of a layer at W + flipped_at."""
    L, _, _, D, H, O = n
    return readout_at(L, D, H) + (H + 1) * O


def look_up(n, at):
    """Write `places` to shared memory, so that nobody keeps eleven numbers in registers."""
    if cuda.threadIdx.x == 0:
        found = places(n, cuda.gridDim.x)
        for i in range(len(found)):
            at[i] = found[i]
    cuda.syncthreads()


def own_gradients(n):
    """Where the gradients that this block writes begin and end: its own, or with atomics all's."""
    size = places(n, 1)[X]
    first = 0 if ATOMIC else cuda.blockIdx.x * size
    return first, first + size


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
    shared = cuda.shared.array(0, number)[HEAD:]
    at = cuda.shared.array(0, int64)
    look_up(n, at)
    h, c, state = work[at[HIDDEN] :], work[at[CELLS] :], work[at[STATE] :]
    me, threads = cuda.threadIdx.x, cuda.blockDim.x
    for s0 in range(cuda.blockIdx.x * tile, B, cuda.gridDim.x * tile):
        count = min(tile, B - s0)
        for index in range(L):
            slot, row = (index * (T + 1) * B + s0) * H, (index * B + s0) * H
            for i in range(me, count * H, threads):
                h[slot + i], c[slot + i] = state[row + i], state[row + L * B * H + i]
        through_layers(n, tile, s0, theta, shared, work, at, s0 == cuda.blockIdx.x * tile)
        for index in range(L):
            slot, row = ((index * (T + 1) + T) * B + s0) * H, (index * B + s0) * H
            for i in range(me, count * H, threads):
                state[row + i], state[row + L * B * H + i] = h[slot + i], c[slot + i]


def backward(n, tile, theta, work, counters):
    """Kernel: gradients, at the start of work, from dy and state; then the initial state's."""
    L, _, B, D, H, O = n
    shared = cuda.shared.array(0, number)[HEAD:]
    at = cuda.shared.array(0, int64)
    look_up(n, at)
    mine, end = own_gradients(n)
    partial = work[mine:end]
    for s0 in range(cuda.blockIdx.x * tile, B, cuda.gridDim.x * tile):
        fresh = s0 == cuda.blockIdx.x * tile
        back_through(n, tile, s0, theta, shared, work, at, partial, fresh, True, L > 1 or fresh)
    V = readout_at(L, D, H)
    for p in range(cuda.threadIdx.x, (H + 1) * O + 1, cuda.blockDim.x):
        partial[V + p] = real(0)  # y does not depend on the read-out
    summed(n, work, counters)


def step(n, tile, first, order, x, target, theta, work, counters, losses, batch, rate):
    """Kernel: a mini-batch, the B examples order[first:] of x (T, N, D) and target (N, O).

    losses[batch] becomes their mean squared error, the parameters take a step of `rate`. With a
    rate of zero they stay; the gradients lie at the start of work, and dx and state hold those of
    the input and of the initial state.
    """
    L, T, B, D, H, _ = n
    shared = cuda.shared.array(0, number)[HEAD:]
    at = cuda.shared.array(0, int64)
    look_up(n, at)
    mine, end = own_gradients(n)
    partial, rows = work[mine:end], order[first : first + B]
    me, threads, N = cuda.threadIdx.x, cuda.blockDim.x, x.size // (T * D)
    for s0 in range(cuda.blockIdx.x * tile, B, cuda.gridDim.x * tile):
        count, fresh = min(tile, B - s0), s0 == cuda.blockIdx.x * tile
        for i in range(me, count * D, threads):
            example = rows[s0 + i // D] * D + i % D
            for t in range(T):
                work[at[X] + (t * B + s0) * D + i] = x[t * N * D + example]
        for index in range(L):
            slot, row = (index * (T + 1) * B + s0) * H, at[STATE] + (index * B + s0) * H
            for i in range(me, count * H, threads):
                work[at[HIDDEN] + slot + i] = work[at[CELLS] + slot + i] = real(0)
                work[row + i] = work[row + L * B * H + i] = real(0)
        through_layers(n, tile, s0, theta, shared, work, at, fresh)
        readout(n, tile, s0, theta, target, rows, work, at, partial, fresh)
        back_through(n, tile, s0, theta, shared, work, at, partial, fresh, rate == 0, False)
    if summed(n, work, counters):
        if me == 0:
            losses[batch] = work[end - mine - 1]
        if rate != 0:
            descend(n, theta, work, rate)
            if ATOMIC:
                cuda.syncthreads()
                for p in range(me, end - mine, threads):
                    work[p] = real(0)  # for the next launch to add to
