"""Kernels in which a thread computes a sample from its first step to its last, and back.

Arrays are flat and the sample is their last axis: neighbouring threads read neighbouring addresses.
n = (L, T, B, D, H, O). x, dx (T, D, B); h, c (L, T+1, H, B), slot 0 the initial state; gates, da
(L, T, K, H, B); dy, y (T, H, B); state, dstate (2, L, H, B): h and c; target, d_out (O, B).
"""

cuda = K = G = real = number = where = None
cell_forward = cell_backward = None
load = store = add = dot = total = zeros = u = None
input_weights = recurrent_weights = layer_at = readout_at = sum_over_blocks = None
input_blocks = recurrent_blocks = None
HEAD = None

UNITS = 8  # of which a block adds up the gradients over its threads at a time


def no_position():
    """First sample and stride without thread positioning: one thread takes them all."""
    return 0, 1


def position():
    """First sample and stride of a thread: a sample each."""
    return cuda.grid(1), cuda.gridsize(1)


def forward_sample(s, n, x, theta, h, c, gates):
    """All steps of all layers of sample s, from the states in slot 0."""
    L, T, B, D, H, _ = n
    for index in range(L):
        U, W, b, inputs = layer_at(index, D, H)
        for t in range(T):
            old = ((index * (T + 1) + t) * H) * B + s
            new, below = old + H * B, old - T * H * B  # below: the same step, a layer down
            row = ((index * T + t) * K * H) * B + s
            for j in range(H):
                a = load(theta, b + j, H)
                for k in range(inputs):
                    value = x[u((t * D + k) * B + s)] if index == 0 else h[u(below + k * B)]
                    a = add(a, value, input_weights(theta, U + k * G * H + j, H))
                for k in range(H):
                    a = add(a, h[u(old + k * B)], recurrent_weights(theta, W + k * G * H + j, H))
                out = cell_forward(*a, c[old + j * B])
                store(gates, row + j * B, H * B, out)
                h[new + j * B], c[new + j * B] = out[K], out[K + 1]


def backward_sample(s, n, theta, c, gates, dy, dstate, da, dx):
    """All steps back: dy becomes the layer below's, dstate that of the initial state."""
    L, T, B, D, H, _ = n
    for index in range(L - 1, -1, -1):
        U, W, _, inputs = layer_at(index, D, H)
        dh, dc = index * H * B + s, ((L + index) * H) * B + s
        for t in range(T - 1, -1, -1):
            old = ((index * (T + 1) + t) * H) * B + s
            row, out_at = ((index * T + t) * K * H) * B + s, t * H * B + s
            for j in range(H):
                at = j * B
                out = cell_backward(
                    dy[out_at + at] + dstate[dh + at],
                    dstate[dc + at],
                    *load(gates, row + at, H * B),
                    c[old + at],
                    c[old + H * B + at],
                )
                store(da, row + at, H * B, out)
                dstate[dc + at] = out[K]
            for j in range(H):
                a = zeros()
                for i in range(H):
                    w = recurrent_weights(theta, W + j * G * H + i, H)
                    a = dot(a, load(da, row + i * B, H * B), w)
                dstate[dh + j * B] = total(a)
            for k in range(inputs):
                a = zeros()
                for i in range(H):
                    w = input_weights(theta, U + k * G * H + i, H)
                    a = dot(a, load(da, row + i * B, H * B), w)
                if index == 0:
                    dx[(t * D + k) * B + s] = total(a)
                else:
                    dy[out_at + k * B] = total(a)


def readout_sample(s, n, theta, h, target, dy, d_out):
    """d_out of sample s, and dy: zero but for the last step, which the read-out uses."""
    L, T, B, D, H, O = n
    V = readout_at(L, D, H)
    last, scale = ((L * (T + 1) - 1) * H) * B + s, real(2) / real(B * O)
    for k in range(T * H):
        dy[k * B + s] = real(0)
    for o in range(O):
        error = theta[V + H * O + o] - target[o * B + s]
        for k in range(H):
            error += h[last + k * B] * theta[V + k * O + o]
        d_out[o * B + s] = error * scale
        for k in range(H):
            dy[((T - 1) * H + k) * B + s] += error * scale * theta[V + k * O + o]


def layer_gradients(index, n, x, h, da, partial):
    """The block's part of dU, dW and db: a row of the weights and eight units at a time.

    Each thread sums over its own samples; then a thread adds up one gate of one unit over the
    threads, in their order.
    """
    _, T, B, D, H, _ = n
    U, W, b, inputs = layer_at(index, D, H)
    sums, me, threads = cuda.shared.array(0, number)[HEAD:], cuda.threadIdx.x, cuda.blockDim.x
    row = threads + 1  # one more than needed: gates lie in different banks
    first, stride = where()
    for r in range(inputs + H + 1):
        for j0 in range(0, H, UNITS):
            for j in range(j0, min(j0 + UNITS, H)):
                a = zeros()
                for s in range(first, B, stride):
                    for t in range(T):
                        old = ((index * (T + 1) + t) * H) * B + s
                        if r == inputs + H:
                            value = real(1)
                        elif r >= inputs:
                            value = h[u(old + (r - inputs) * B)]
                        elif index == 0:
                            value = x[u((t * D + r) * B + s)]
                        else:
                            value = h[u(old - (T * H - r) * B)]
                        a = add(a, value, load(da, ((index * T + t) * K * H + j) * B + s, H * B))
                for k in range(K):
                    sums[(k * UNITS + j - j0) * row + me] = a[k]
            cuda.syncthreads()
            for i in range(me, K * UNITS, threads):
                k, j = i // UNITS, j0 + i % UNITS
                if r == inputs + H:
                    at = b + k * H
                elif r >= inputs:
                    at = -1 if recurrent_blocks[k] < 0 else W + (r - inputs) * G * H
                    at += recurrent_blocks[k] * H
                else:
                    at = -1 if input_blocks[k] < 0 else U + r * G * H
                    at += input_blocks[k] * H
                if j < H and at >= 0:
                    value = real(0)
                    for thread in range(threads):
                        value += sums[i * row + thread]
                    partial[at + j] = value
            cuda.syncthreads()


def readout_gradients(n, h, d_out, partial):
    """The block's part of dV, db_out and the loss; a thread for each of these few numbers."""
    L, T, B, D, H, O = n
    V = readout_at(L, D, H)
    me, threads = cuda.threadIdx.x, cuda.blockDim.x
    first, stride = where()
    for p in range(me, (H + 1) * O + 1, threads):
        value = real(0)
        for s0 in range(first - me, B, stride):
            for s in range(s0, min(s0 + threads, B)):
                if p < H * O:
                    hidden = h[((L * (T + 1) - 1) * H + p // O) * B + s]
                    value += hidden * d_out[(p % O) * B + s]
                elif p < (H + 1) * O:
                    value += d_out[(p - H * O) * B + s]
                else:
                    for o in range(O):
                        error = d_out[o * B + s] * real(B * O) / real(2)
                        value += error * error / real(B * O)
        partial[V + p] = value


def blocks_gradients(n, x, h, da, partials, counters, grads):
    """Add the layers' gradients up within the block, then over the blocks, into grads."""
    L, _, _, D, H, O = n
    size = readout_at(L, D, H) + (H + 1) * O + 1
    mine = partials[cuda.blockIdx.x * size : (cuda.blockIdx.x + 1) * size]
    cuda.syncthreads()
    for index in range(L):
        layer_gradients(index, n, x, h, da, mine)
    if sum_over_blocks(partials, size, counters):
        for p in range(cuda.threadIdx.x, size, cuda.blockDim.x):
            grads[p] = partials[p]


def forward(n, x, state, theta, h, c, gates, y):
    """Kernel: y and the final state, over the initial one in `state`."""
    L, T, B, _, H, _ = n
    first, stride = where()
    for s in range(first, B, stride):
        for index in range(L):
            for j in range(H):
                slot, at = (index * (T + 1) * H + j) * B + s, (index * H + j) * B + s
                h[slot], c[slot] = state[at], state[L * H * B + at]
        forward_sample(s, n, x, theta, h, c, gates)
        for index in range(L):
            for j in range(H):
                slot, at = ((index * (T + 1) + T) * H + j) * B + s, (index * H + j) * B + s
                state[at], state[L * H * B + at] = h[slot], c[slot]
        for k in range(T * H):
            y[k * B + s] = h[((L - 1) * (T + 1) * H + H + k) * B + s]


def backward(n, x, theta, h, c, gates, dy, dstate, da, dx, partials, counters, grads):
    """Kernel: grads from dy and dstate, which becomes the gradient of the initial state."""
    L, _, B, D, H, O = n
    first, stride = where()
    for s in range(first, B, stride):
        backward_sample(s, n, theta, c, gates, dy, dstate, da, dx)
    V, size = readout_at(L, D, H), readout_at(L, D, H) + (H + 1) * O + 1
    for p in range(V + cuda.threadIdx.x, size, cuda.blockDim.x):
        partials[cuda.blockIdx.x * size + p] = real(0)  # y does not depend on the read-out
    blocks_gradients(n, x, h, da, partials, counters, grads)


def step(n, x, target, theta, h, c, gates, dy, dstate, da, dx, d_out, partials, counters, grads):
    """Kernel: a mini-batch, forward and back: grads, behind them the mean squared error."""
    L, T, B, D, H, O = n
    first, stride = where()
    for s in range(first, B, stride):
        for index in range(L):
            for j in range(H):
                slot, at = (index * (T + 1) * H + j) * B + s, (index * H + j) * B + s
                h[slot] = c[slot] = dstate[at] = dstate[L * H * B + at] = real(0)
        forward_sample(s, n, x, theta, h, c, gates)
        readout_sample(s, n, theta, h, target, dy, d_out)
        backward_sample(s, n, theta, c, gates, dy, dstate, da, dx)
    cuda.syncthreads()
    size = readout_at(L, D, H) + (H + 1) * O + 1
    mine = partials[cuda.blockIdx.x * size : (cuda.blockIdx.x + 1) * size]
    readout_gradients(n, h, d_out, mine)
    blocks_gradients(n, x, h, da, partials, counters, grads)
