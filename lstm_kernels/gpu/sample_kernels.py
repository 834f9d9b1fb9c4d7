"""Kernels in which a thread computes a sample from its first step to its last, and
back.

Arrays are those of `layout`, each apart, with the sample as the last axis: neighbouring
threads read neighbouring addresses.
"""

from .device_functions import load, total, u
from .layout import layer_at

cuda = L = D = H = O = K = P = real = number = where = U_gates = W_gates = None
cell_forward = cell_backward = add = dot = zeros = strided = add_rows = clipped = None

UNITS = 8  # of which a block adds up the gradients over its threads at a time


def no_position():
    """First sample and stride without thread positioning: one thread takes them all."""
    return 0, 1


def position():
    """First sample and stride of a thread: a sample each."""
    return cuda.grid(1), cuda.gridsize(1)


def slot_at(T, B, index, slot, s):
    """Where h and c of a layer have unit 0 of sample s in a slot; the next unit lies B
    further.
    """
    return (index * (T + 1) + slot) * H * B + s


def tape_at(T, B, index, t, s):
    """Where gates and da of a layer have gate 0 of unit 0 of sample s at step t; the
    next gate lies B further, the next unit K B.
    """
    return (index * T + t) * H * K * B + s


def product(a, theta, w, source, z, B, count):
    """a plus `count` numbers of source, from z on and B apart, times rows of weights
    from w on.
    """
    k = 0
    while k < count:
        a = add(a, source[u(z + k * B)], load(theta, w + k * H * K))
        k += 1
    return a


def product_back(theta, w, da, d, B, units):
    """The sum over units of da, from d on, times the row of weights from w on.

    units: H, but not known to the compiler, which would write all of the loop out.
    """
    a = zeros()
    i = 0
    while i < units:
        a = dot(a, strided(da, d + i * K * B, B), load(theta, w + i * K))
        i += 1
    return total(a)


def forward_sample(s, T, B, x, theta, h, c, gates):
    """All steps of all layers of sample s, from the states in slot 0."""
    for index in range(L):
        inputs = D if index == 0 else H
        for t in range(T):
            # Before step t, after it, and step t of the layer below.
            old, new = slot_at(T, B, index, t, s), slot_at(T, B, index, t + 1, s)
            below, row = slot_at(T, B, index - 1, t + 1, s), tape_at(T, B, index, t, s)
            for j in range(H):
                w = layer_at(index) + j * K  # row 0 of U, unit j
                a = load(theta, w + (inputs + H) * H * K)  # b
                if index == 0:
                    a = product(a, theta, w, x, t * D * B + s, B, D)
                else:
                    a = product(a, theta, w, h, below, B, H)
                a = product(a, theta, w + inputs * H * K, h, old, B, H)  # W
                out = cell_forward(*a, c[old + j * B])
                for k in range(K):
                    gates[u(row + (j * K + k) * B)] = out[k]
                h[new + j * B], c[new + j * B] = out[K], out[K + 1]


def backward_sample(s, T, B, theta, c, gates, dy, dstate, da, dx):
    """All steps back: dy becomes the layer below's, dstate that of the initial
    state.
    """
    units = dy.size // (T * B)
    for index in range(L - 1, -1, -1):
        inputs = D if index == 0 else H
        U = layer_at(index)
        W = U + inputs * H * K
        dh, dc = (
            index * H * B + s,
            (L + index) * H * B + s,
        )  # the layer's in dstate, unit 0
        for t in range(T - 1, -1, -1):
            old, new = slot_at(T, B, index, t, s), slot_at(T, B, index, t + 1, s)
            row, out_at = (
                tape_at(T, B, index, t, s),
                t * H * B + s,
            )  # of da; of dy at step t
            for j in range(H):
                unit = j * B  # from unit 0 to unit j
                out = cell_backward(
                    dy[out_at + unit] + dstate[dh + unit],  # gradients of h of unit j
                    dstate[dc + unit],  # of c
                    *strided(gates, row + unit * K, B),
                    c[old + unit],  # c before step t
                    c[new + unit],  # c after step t
                )
                for k in range(K):
                    da[u(row + (j * K + k) * B)] = out[k]
                dstate[dc + unit] = out[K]  # dc before step t
            for j in range(H):
                dstate[dh + j * B] = product_back(
                    theta, W + j * H * K, da, row, B, units
                )
            for k in range(inputs):
                value = product_back(theta, U + k * H * K, da, row, B, units)
                if index == 0:
                    dx[(t * D + k) * B + s] = value  # input k at step t
                else:
                    dy[out_at + k * B] = value  # unit k of the layer below at step t


def readout_sample(s, T, B, theta, h, target, dy, d_out):
    """d_out of sample s, and dy: zero but for the last step, which the read-out
    uses.
    """
    V, last = (
        layer_at(L),
        slot_at(T, B, L - 1, T, s),
    )  # the top layer after the last step
    scale = real(2) / real(B * O)
    for k in range(T * H):
        dy[k * B + s] = real(0)  # every step and unit
    for o in range(O):
        error = theta[V + H * O + o] - target[o * B + s]  # b_out and target of output o
        for k in range(H):
            error += h[last + k * B] * theta[V + k * O + o]  # V: row k, output o
        d_out[o * B + s] = error * scale
        for k in range(H):
            dy[((T - 1) * H + k) * B + s] += (
                error * scale * theta[V + k * O + o]
            )  # last step


def outer_product(T, B, p, gates, source, z, width, da, d, partials):
    """The block's gradients p and on, of a matrix (width, H, K): the sum over steps and
    samples of source times da, which lie there for sample 0 at the first step.

    Four rows, eight units and their gates at a time: each thread sums over its own
    samples; then a thread adds up one of these 32 K numbers over the threads, in their
    order.
    """
    sums, me, threads = cuda.shared.array(0, number), cuda.threadIdx.x, cuda.blockDim.x
    row = threads + 1  # of sums, one more than needed: numbers lie in different banks
    first, stride = where()
    for r in range(0, width, 4):
        most = width - 1 - r  # a row past the last is read as the last, and not kept
        for j0 in range(0, H, UNITS):
            for j in range(j0, min(j0 + UNITS, H)):
                a = zeros(), zeros(), zeros(), zeros()
                s = first
                while s < B:
                    t = 0
                    while t < T:
                        v = clipped(source, z + (t * width + r) * B + s, most, B)
                        a = add_rows(a, v, strided(da, d + (t * H + j) * K * B + s, B))
                        t += 1
                    s += stride
                for i in range(4):
                    for k in range(K):
                        sums[(((j - j0) * 4 + i) * K + k) * row + me] = a[i][k]
            cuda.syncthreads()
            for q in range(me, UNITS * 4 * K, threads):
                j, i, k = j0 + q // (4 * K), q // K % 4, q % K
                if j < H and i <= most:
                    value = real(0)
                    if gates[k]:
                        for thread in range(threads):
                            value += sums[q * row + thread]
                    partials[
                        cuda.blockIdx.x * (P + 1) + p + ((r + i) * H + j) * K + k
                    ] = value
            cuda.syncthreads()


def gradients(T, B, x, h, da, d_out, partials):
    """The block's part of every gradient, and of the loss."""
    cuda.syncthreads()
    me, threads, mine = cuda.threadIdx.x, cuda.blockDim.x, cuda.blockIdx.x * (P + 1)
    first, stride = where()
    for index in range(L):
        U, d, z = (
            layer_at(index),
            tape_at(T, B, index, 0, 0),
            slot_at(T, B, index, 0, 0),
        )
        inputs = D if index == 0 else H
        if index == 0:
            outer_product(T, B, U, U_gates, x, 0, D, da, d, partials)
        else:
            below = slot_at(T, B, index - 1, 1, 0)
            outer_product(T, B, U, U_gates, h, below, H, da, d, partials)
        outer_product(T, B, U + inputs * H * K, W_gates, h, z, H, da, d, partials)
        for q in range(me, H * K, threads):
            value = real(0)
            for s0 in range(first - me, B, stride):
                for s in range(s0, min(s0 + threads, B)):
                    for t in range(T):
                        value += da[
                            u(d + (t * H * K + q) * B + s)
                        ]  # gate and unit q at step t
            partials[mine + U + (inputs + H) * H * K + q] = value  # b
    last = slot_at(T, B, L - 1, T, 0)  # of the top layer
    for q in range(me, (H + 1) * O + 1, threads):  # V, b_out, the loss
        value = real(0)
        for s0 in range(first - me, B, stride):
            for s in range(s0, min(s0 + threads, B)):
                if q < H * O:  # row q // O of V, output q % O
                    value += h[last + q // O * B + s] * d_out[(q % O) * B + s]
                elif q < (H + 1) * O:
                    value += d_out[(q - H * O) * B + s]  # output q - H O
                else:
                    for o in range(O):
                        error = d_out[o * B + s] * real(B * O) / real(2)  # output o
                        value += error * error / real(B * O)
        partials[mine + layer_at(L) + q] = value


def forward(T, B, x, state, theta, h, c, gates, y):
    """Kernel: y and the final state, over the initial one in `state`."""
    first, stride = where()
    for s in range(first, B, stride):
        for index in range(L):
            for j in range(H):
                slot, at = (
                    slot_at(T, B, index, 0, s) + j * B,
                    (index * H + j) * B + s,
                )  # unit j
                h[slot], c[slot] = state[at], state[L * H * B + at]  # of h, of c
        forward_sample(s, T, B, x, theta, h, c, gates)
        for index in range(L):
            for j in range(H):
                slot, at = (
                    slot_at(T, B, index, T, s) + j * B,
                    (index * H + j) * B + s,
                )  # unit j
                state[at], state[L * H * B + at] = h[slot], c[slot]  # of h, of c
        for k in range(T * H):
            y[k * B + s] = h[
                slot_at(T, B, L - 1, 1, s) + k * B
            ]  # the top layer's, from step 0 on


def backward(T, B, x, theta, h, c, gates, dy, dstate, da, dx, d_out, partials):
    """Kernel: each block's gradients, from dy and dstate, which becomes the initial
    state's.
    """
    first, stride = where()
    for s in range(first, B, stride):
        for o in range(O):
            d_out[o * B + s] = real(0)  # y does not depend on the read-out
        backward_sample(s, T, B, theta, c, gates, dy, dstate, da, dx)
    gradients(T, B, x, h, da, d_out, partials)


def step(T, B, x, target, theta, h, c, gates, dy, dstate, da, dx, d_out, partials):
    """Kernel: a mini-batch, forward and back: each block's gradients and loss."""
    first, stride = where()
    for s in range(first, B, stride):
        for index in range(L):
            for j in range(H):
                slot, at = (
                    slot_at(T, B, index, 0, s) + j * B,
                    (index * H + j) * B + s,
                )  # unit j
                h[slot] = c[slot] = dstate[at] = dstate[L * H * B + at] = real(
                    0
                )  # of h, of c
        forward_sample(s, T, B, x, theta, h, c, gates)
        readout_sample(s, T, B, theta, h, target, dy, d_out)
        backward_sample(s, T, B, theta, c, gates, dy, dstate, da, dx)
    gradients(T, B, x, h, da, d_out, partials)


def add_up(blocks, partials, grads):
    """Kernel: the gradients and the loss of all blocks, added up in the order of the
    blocks.
    """
    first, stride = where()
    for p in range(first, P + 1, stride):
        value = real(0)
        for block in range(blocks):
            value += partials[block * (P + 1) + p]
        grads[p] = value
