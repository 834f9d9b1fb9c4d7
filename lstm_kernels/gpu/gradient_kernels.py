"""Device functions of the tile kernels for the end of a mini-batch: read-out, gradients, descent.

A block adds its tiles' gradients up in a row of its own; the rows are added up when all blocks are
done, in a fixed order, and the block that ends last descends.
"""

from .device_functions import first_place, next_place, u
from .layout import INDEX, layer_at, parameter_count, readout_at

cuda = K = G = RESIDENT = ATOMIC = real = load = zeros = add_bands = U_gates = W_gates = None

ROWS = 4  # of a weight matrix whose gradients a thread sums at a time


def slot_at(n, index, slot, s):
    """Where h and c of a layer have unit 0 of sample s in a slot."""
    _, T, B, _, H, _ = n
    return ((index * (T + 1) + slot) * B + s) * H


def gates_at(n, index, t, s):
    """Where gates and da of a layer have gate 0 of unit 0 of sample s at step t."""
    _, T, B, _, H, _ = n
    return ((index * T + t) * B + s) * K * H


def put(partial, at, value, fresh):
    """Set, or add to, an entry of the block's own gradients; with atomics add to all blocks'."""
    if ATOMIC:
        cuda.atomic.add(partial, at, value)
    else:
        partial[at] = value if fresh else partial[at] + value


def outer_product(partial, at, gates, source, first, rows, da, row, n, count, fresh):
    """partial (rows, G*H) from `at` on: the sum over steps and samples of source times da.

    A thread takes four rows and the K gates of a unit. gates: the place of each among G, or -1.
    source[first], da[row]: sample s0 at the first step.
    """
    _, T, B, _, H, _ = n
    band, j, down, right = first_place(H)
    while band * ROWS < rows:
        r = band * ROWS
        most = rows - 1 - r  # a row past the last is read as the last, and not kept
        a = zeros(), zeros(), zeros(), zeros()
        for t in range(T):
            for s in range(count):
                d = load(da, row + (t * B + s) * K * H + j, H)  # unit j of sample s0 + s at step t
                z = first + (t * B + s) * rows + r  # row r of that sample and step
                a = add_bands(a, source, z, most, d)
        for i in range(ROWS):
            for k in range(K):
                if i <= most and gates[k] >= 0:
                    entry = at + ((r + i) * G + gates[k]) * H + j  # row r + i, gate k, unit j
                    put(partial, entry, a[i][k], fresh)
        band, j = next_place(band, j, down, right, H)


def gradients(n, tile, s0, work, at, partial, fresh):
    """Add the tile's share of dU, dW and db of every layer to the block's."""
    L, T, B, D, H, _ = n
    count = min(tile, B - s0)
    x, h, da = work[at[INDEX.x] :], work[at[INDEX.h] :], work[at[INDEX.da] :]
    cuda.syncthreads()
    for index in range(L):
        U, W, b, _ = layer_at(index, D, H)
        row, first = gates_at(n, index, 0, s0), slot_at(n, index, 0, s0)  # step 0; before it
        if index == 0:
            outer_product(partial, U, U_gates, x, s0 * D, D, da, row, n, count, fresh)
        else:
            below = slot_at(n, index - 1, 1, s0)  # the layer below after step 0
            outer_product(partial, U, U_gates, h, below, H, da, row, n, count, fresh)
        outer_product(partial, W, W_gates, h, first, H, da, row, n, count, fresh)
        for q in range(cuda.threadIdx.x, K * H, cuda.blockDim.x):
            value = real(0)
            for t in range(T):
                for s in range(count):
                    value += da[u(row + (t * B + s) * K * H + q)]  # gate and unit q at step t
            put(partial, b + q, value, fresh)


def readout(n, tile, s0, theta, target, rows, work, at, partial, fresh):
    """d_out and dy of the tile's samples, and its share of dV, db_out and the loss.

    rows: the sample's place in `target` (N, O).
    """
    L, T, B, _, H, O = n
    me, threads, count = cuda.threadIdx.x, cuda.blockDim.x, min(tile, B - s0)
    h, dy, d_out = work[at[INDEX.h] :], work[at[INDEX.dy] :], work[at[INDEX.d_out] :]
    V, last = readout_at(n), slot_at(n, L - 1, T, s0)  # sample s0 in the top layer's last slot
    scale = real(2) / real(B * O)
    for i in range(me, count * O, threads):
        s, o = i // O, i % O
        error = theta[V + H * O + o] - target[rows[s0 + s] * O + o]  # b_out and target of output o
        for k in range(H):
            error += h[last + s * H + k] * theta[V + k * O + o]  # unit k; V: row k, output o
        d_out[(s0 + s) * O + o] = error * scale  # output o of sample s0 + s
    cuda.syncthreads()
    for i in range(me, count * H, threads):
        s, k = i // H, i % H
        value = real(0)
        for o in range(O):
            value += d_out[(s0 + s) * O + o] * theta[V + k * O + o]  # output o; V: row k, output o
        for t in range(T - 1):
            dy[(t * B + s0) * H + i] = real(0)  # unit k of sample s0 + s at step t
        dy[((T - 1) * B + s0) * H + i] = value  # at the last step
    for p in range(me, (H + 1) * O + 1, threads):
        value = real(0)
        for s in range(count):
            out = (s0 + s) * O  # output 0 of sample s0 + s
            if p < H * O:  # row p // O of V, output p % O
                value += h[last + s * H + p // O] * d_out[out + p % O]
            elif p < (H + 1) * O:
                value += d_out[out + p - H * O]  # output p - H O
            else:
                for o in range(O):
                    error = d_out[out + o] / scale  # output o
                    value += error * error / real(B * O)
        put(partial, V + p, value, fresh)
    cuda.syncthreads()


def descend(n, theta, gradient, rate):
    """theta -= rate * gradient, by the threads of one block; transposed weights follow."""
    L, _, _, D, H, _ = n
    P = parameter_count(n)
    for p in range(cuda.threadIdx.x, P, cuda.blockDim.x):
        theta[p] -= rate * gradient[p]
    if not RESIDENT:
        cuda.syncthreads()
        for index in range(L):
            U, W, _, inputs = layer_at(index, D, H)
            transpose(theta, U, U + P, inputs, G * H)
            transpose(theta, W, W + P, H, G * H)


def transpose(a, at, to, rows, columns):
    """The matrix (rows, columns) at `at`, transposed to `to`."""
    for i in range(cuda.threadIdx.x, rows * columns, cuda.blockDim.x):
        a[to + i % columns * rows + i // columns] = a[at + i]  # row i // columns of the original
