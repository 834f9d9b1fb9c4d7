"""Kernels in which a thread computes a sample from its first step to its last, and back.

n = (L, T, B, D, H, O). Arrays are those of `layout`, each apart, with the sample as the last axis:
neighbouring threads read neighbouring addresses.
"""

from .device_functions import own_row, store, sum_over_blocks, total, u
from .layout import layer_at, parameter_count, readout_at

cuda = K = G = real = number = SKIP = where = U_gates = W_gates = None
cell_forward = cell_backward = input_weights = recurrent_weights = None
load = add = dot = zeros = None

UNITS = 8  # of which a block adds up the gradients over its threads at a time


def no_position():
    """First sample and stride without thread positioning: one thread takes them all."""
    return 0, 1


def position():
    """First sample and stride of a thread: a sample each."""
    return cuda.grid(1), cuda.gridsize(1)


def slot_at(n, index, slot, s):
    """Where h and c of a layer have unit 0 of sample s in a slot; the next unit lies B further."""
    _, T, B, _, H, _ = n
    return (index * (T + 1) + slot) * H * B + s


def gates_at(n, index, t, s):
    """Where gates and da of a layer have gate 0 of unit 0 of sample s at step t."""
    _, T, B, _, H, _ = n
    return (index * T + t) * K * H * B + s


def forward_sample(s, n, x, theta, h, c, gates):
    """All steps of all layers of sample s, from the states in slot 0."""
    L, T, B, D, H, _ = n
    for index in range(L):
        U, W, b, inputs = layer_at(index, D, H)
        for t in range(T):
            old, new = slot_at(n, index, t, s), slot_at(n, index, t + 1, s)  # before t, after it
            below = slot_at(n, index - 1, t + 1, s)  # step t, a layer down
            row = gates_at(n, index, t, s)
            for j in range(H):
                a = load(theta, b + j, H)  # bias of unit j
                for k in range(inputs):
                    # input k at step t: of x, or unit k of the layer below
                    value = x[u((t * D + k) * B + s)] if index == 0 else h[u(below + k * B)]
                    w = input_weights(theta, U + k * G * H + j, H)  # U: row k, unit j
                    a = add(a, value, w)
                for k in range(H):
                    w = recurrent_weights(theta, W + k * G * H + j, H)  # W: row k, unit j
                    a = add(a, h[u(old + k * B)], w)  # unit k before step t
                out = cell_forward(*a, c[old + j * B])  # unit j before step t
                store(gates, row + j * B, H * B, out)  # gates of unit j at step t
                h[new + j * B], c[new + j * B] = out[K], out[K + 1]  # unit j after step t


def backward_sample(s, n, theta, c, gates, dy, dstate, da, dx):
    """All steps back: dy becomes the layer below's, dstate that of the initial state."""
    L, T, B, D, H, _ = n
    for index in range(L - 1, -1, -1):
        U, W, _, inputs = layer_at(index, D, H)
        dh, dc = index * H * B + s, (L + index) * H * B + s  # the layer's in dstate, unit 0
        for t in range(T - 1, -1, -1):
            old, new = slot_at(n, index, t, s), slot_at(n, index, t + 1, s)  # before t, after it
            row, out_at = gates_at(n, index, t, s), t * H * B + s  # of da; of dy, unit 0 at step t
            for j in range(H):
                unit = j * B  # from unit 0 to unit j
                out = cell_backward(
                    dy[out_at + unit] + dstate[dh + unit],  # gradients of h of unit j
                    dstate[dc + unit],  # of c
                    *load(gates, row + unit, H * B),
                    c[old + unit],  # c before step t
                    c[new + unit],  # c after step t
                )
                store(da, row + unit, H * B, out)
                dstate[dc + unit] = out[K]  # dc before step t
            for j in range(H):
                a = zeros()
                for i in range(H):
                    w = recurrent_weights(theta, W + j * G * H + i, H)  # W: row j, unit i
                    a = dot(a, load(da, row + i * B, H * B), w)  # da of unit i at step t
                dstate[dh + j * B] = total(a)  # dh of unit j before step t
            for k in range(inputs):
                a = zeros()
                for i in range(H):
                    w = input_weights(theta, U + k * G * H + i, H)  # U: row k, unit i
                    a = dot(a, load(da, row + i * B, H * B), w)  # da of unit i at step t
                if index == 0:
                    dx[(t * D + k) * B + s] = total(a)  # input k at step t
                else:
                    dy[out_at + k * B] = total(a)  # unit k of the layer below at step t


def readout_sample(s, n, theta, h, target, dy, d_out):
    """d_out of sample s, and dy: zero but for the last step, which the read-out uses."""
    L, T, B, _, H, O = n
    V, last = readout_at(n), slot_at(n, L - 1, T, s)  # the top layer after the last step
    scale = real(2) / real(B * O)
    for k in range(T * H):
        dy[k * B + s] = real(0)  # every step and unit
    for o in range(O):
        error = theta[V + H * O + o] - target[o * B + s]  # b_out and target of output o
        for k in range(H):
            error += h[last + k * B] * theta[V + k * O + o]  # V: row k, output o
        d_out[o * B + s] = error * scale  # output o
        for k in range(H):
            dy[((T - 1) * H + k) * B + s] += error * scale * theta[V + k * O + o]  # last step


def layer_gradients(index, n, x, h, da, partial):
    """The block's part of dU, dW and db: a row of the weights and eight units at a time.

    Each thread sums over its own samples; then a thread adds up one gate of one unit over the
    threads, in their order.
    """
    _, T, B, D, H, _ = n
    U, _, _, inputs = layer_at(index, D, H)
    sums, me, threads = cuda.shared.array(0, number)[SKIP:], cuda.threadIdx.x, cuda.blockDim.x
    width = threads + 1  # of a row of sums, one more than needed: gates lie in different banks
    first, stride = where()
    for r in range(inputs + H + 1):
        for j0 in range(0, H, UNITS):
            for j in range(j0, min(j0 + UNITS, H)):
                a = zeros()
                for s in range(first, B, stride):
                    for t in range(T):
                        old = slot_at(n, index, t, s)
                        if r == inputs + H:
                            value = real(1)
                        elif r >= inputs:
                            value = h[u(old + (r - inputs) * B)]  # unit r - inputs before step t
                        elif index == 0:
                            value = x[u((t * D + r) * B + s)]  # input r at step t
                        else:
                            value = h[u(old - (T * H - r) * B)]  # unit r of the layer below
                        d = load(da, gates_at(n, index, t, s) + j * B, H * B)  # unit j at step t
                        a = add(a, value, d)
                for k in range(K):
                    sums[(k * UNITS + j - j0) * width + me] = a[k]  # gate k of unit j, this thread
            cuda.syncthreads()
            for i in range(me, K * UNITS, threads):
                k, j = i // UNITS, j0 + i % UNITS
                gates = W_gates if r >= inputs else U_gates
                gate = k if r == inputs + H else gates[k]
                if j < H and gate >= 0:
                    value = real(0)
                    for thread in range(threads):
                        value += sums[i * width + thread]  # gate k of unit j, of each thread
                    partial[U + (r * G + gate) * H + j] = value  # row r of U over W over b, unit j
            cuda.syncthreads()


def readout_gradients(n, h, d_out, partial):
    """The block's part of dV, db_out and the loss; a thread for each of these few numbers."""
    L, T, B, _, H, O = n
    V, me, threads = readout_at(n), cuda.threadIdx.x, cuda.blockDim.x
    first, stride = where()
    for p in range(me, (H + 1) * O + 1, threads):
        value = real(0)
        for s0 in range(first - me, B, stride):
            for s in range(s0, min(s0 + threads, B)):
                if p < H * O:  # row p // O of V, output p % O
                    hidden = h[slot_at(n, L - 1, T, s) + p // O * B]  # after the last step
                    value += hidden * d_out[(p % O) * B + s]  # output p % O
                elif p < (H + 1) * O:
                    value += d_out[(p - H * O) * B + s]  # output p - H O
                else:
                    for o in range(O):
                        error = d_out[o * B + s] * real(B * O) / real(2)  # output o
                        value += error * error / real(B * O)
        partial[V + p] = value


def gradients(n, x, h, da, partials, counters, grads):
    """Add the layers' gradients up within the block, then over the blocks, into grads."""
    partial = partials[own_row(n) :]
    cuda.syncthreads()
    for index in range(n[0]):
        layer_gradients(index, n, x, h, da, partial)
    if sum_over_blocks(n, partials, counters):
        for p in range(cuda.threadIdx.x, parameter_count(n) + 1, cuda.blockDim.x):
            grads[p] = partials[p]


def forward(n, x, state, theta, h, c, gates, y):
    """Kernel: y and the final state, over the initial one in `state`."""
    L, T, B, _, H, _ = n
    first, stride = where()
    for s in range(first, B, stride):
        for index in range(L):
            for j in range(H):
                slot, at = slot_at(n, index, 0, s) + j * B, (index * H + j) * B + s  # unit j
                h[slot], c[slot] = state[at], state[L * H * B + at]  # of h, of c
        forward_sample(s, n, x, theta, h, c, gates)
        for index in range(L):
            for j in range(H):
                slot, at = slot_at(n, index, T, s) + j * B, (index * H + j) * B + s  # unit j
                state[at], state[L * H * B + at] = h[slot], c[slot]  # of h, of c
        for k in range(T * H):
            y[k * B + s] = h[slot_at(n, L - 1, 1, s) + k * B]  # the top layer's, from step 0 on


def backward(n, x, theta, h, c, gates, dy, dstate, da, dx, partials, counters, grads):
    """Kernel: grads from dy and dstate, which becomes the gradient of the initial state."""
    first, stride = where()
    for s in range(first, n[2], stride):
        backward_sample(s, n, theta, c, gates, dy, dstate, da, dx)
    partial = partials[own_row(n) :]
    for p in range(readout_at(n) + cuda.threadIdx.x, parameter_count(n) + 1, cuda.blockDim.x):
        partial[p] = real(0)  # y does not depend on the read-out
    gradients(n, x, h, da, partials, counters, grads)


def step(n, x, target, theta, h, c, gates, dy, dstate, da, dx, d_out, partials, counters, grads):
    """Kernel: a mini-batch, forward and back: grads, behind them the mean squared error."""
    L, _, B, _, H, _ = n
    first, stride = where()
    for s in range(first, B, stride):
        for index in range(L):
            for j in range(H):
                slot, at = slot_at(n, index, 0, s) + j * B, (index * H + j) * B + s  # unit j
                h[slot] = c[slot] = dstate[at] = dstate[L * H * B + at] = real(0)  # of h, of c
        forward_sample(s, n, x, theta, h, c, gates)
        readout_sample(s, n, theta, h, target, dy, d_out)
        backward_sample(s, n, theta, c, gates, dy, dstate, da, dx)
    cuda.syncthreads()
    readout_gradients(n, h, d_out, partials[own_row(n) :])
    gradients(n, x, h, da, partials, counters, grads)
