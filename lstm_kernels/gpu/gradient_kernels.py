"""Device functions of the tile kernels for the end of a mini-batch: read-out, gradients, descent.

Arrays are those of `tile_kernels`. A block adds its tiles' gradients up in a row of its own; the
rows are added up when all blocks are done, in a fixed order, and the block that ends last descends.
"""

cuda = K = G = RESIDENT = ATOMIC = real = put = u = None
layer_at = readout_at = sum_over_blocks = arrived = flipped_at = None
X = HIDDEN = DY = DA = D_OUT = None
add = load = zeros = input_blocks = recurrent_blocks = None

ROWS = 4  # of a weight matrix whose gradients a thread sums at a time


def put_stored(partial, at, value, fresh):
    """Set, or add to, an entry of the block's own gradients."""
    partial[at] = value if fresh else partial[at] + value


def put_atomic(partial, at, value, fresh):
    """Add to an entry of the one gradient that all blocks share, in the order of arrival."""
    cuda.atomic.add(partial, at, value)


def add_four(a, d, z, at, offsets):
    """a + d z, for four rows of the inputs and the K gradients of a unit."""
    return (
        add(a[0], z[u(at)], d),
        add(a[1], z[u(at + offsets[0])], d),
        add(a[2], z[u(at + offsets[1])], d),
        add(a[3], z[u(at + offsets[2])], d),
    )


def outer_product(partial, at, recurrent, source, first, rows, da, row, n, count, fresh):
    """partial (rows, G*H) from `at` on: the sum over steps and samples of source times da.

    A thread takes four rows and the K gates of a unit. source[first]: sample s0 at the first step,
    (T, B, rows). recurrent: whether it is W's gradient or U's, which not every gate has.
    """
    _, T, B, _, H, _ = n
    block, j = cuda.threadIdx.x // H, cuda.threadIdx.x % H
    down, right = cuda.blockDim.x // H, cuda.blockDim.x % H
    while block * ROWS < rows:
        r = block * ROWS
        most = rows - 1 - r  # a row past the last is read as the last, and not kept
        offsets = min(1, most), min(2, most), min(3, most)
        a = zeros(), zeros(), zeros(), zeros()
        for t in range(T):
            for s in range(count):
                d = load(da, row + (t * B + s) * K * H + j, H)
                a = add_four(a, d, source, first + (t * B + s) * rows + r, offsets)
        for i in range(ROWS):
            for k in range(K):
                gate = recurrent_blocks[k] if recurrent else input_blocks[k]
                if i <= most and gate >= 0:
                    put(partial, at + ((r + i) * G + gate) * H + j, a[i][k], fresh)
        block, j = block + down, j + right
        if j >= H:
            block, j = block + 1, j - H


def gradients(n, tile, s0, work, at, partial, fresh):
    """Add the tile's share of dU, dW and db of every layer to the block's."""
    L, T, B, D, H, _ = n
    count = min(tile, B - s0)
    x, h, da = work[at[X] :], work[at[HIDDEN] :], work[at[DA] :]
    cuda.syncthreads()
    for index in range(L):
        U, W, b, _ = layer_at(index, D, H)
        row, first = (index * T * B + s0) * K * H, (index * (T + 1) * B + s0) * H
        if index == 0:
            outer_product(partial, U, False, x, s0 * D, D, da, row, n, count, fresh)
        else:
            below = first - T * B * H
            outer_product(partial, U, False, h, below, H, da, row, n, count, fresh)
        outer_product(partial, W, True, h, first, H, da, row, n, count, fresh)
        for q in range(cuda.threadIdx.x, K * H, cuda.blockDim.x):
            value = real(0)
            for t in range(T):
                for s in range(count):
                    value += da[u(row + (t * B + s) * K * H + q)]
            put(partial, b + q, value, fresh)


def readout(n, tile, s0, theta, target, rows, work, at, partial, fresh):
    """d_out and dy of the tile's samples, and its share of dV, db_out and the loss.

    rows: the sample's place in `target` (N, O).
    """
    L, T, B, D, H, O = n
    me, threads, count = cuda.threadIdx.x, cuda.blockDim.x, min(tile, B - s0)
    h, dy, d_out = work[at[HIDDEN] :], work[at[DY] :], work[at[D_OUT] :]
    V, last = readout_at(L, D, H), ((L * (T + 1) - 1) * B + s0) * H
    scale = real(2) / real(B * O)
    for i in range(me, count * O, threads):
        s, o = i // O, i % O
        error = theta[V + H * O + o] - target[rows[s0 + s] * O + o]
        for k in range(H):
            error += h[last + s * H + k] * theta[V + k * O + o]
        d_out[(s0 + s) * O + o] = error * scale
    cuda.syncthreads()
    for i in range(me, count * H, threads):
        s, k = i // H, i % H
        value = real(0)
        for o in range(O):
            value += d_out[(s0 + s) * O + o] * theta[V + k * O + o]
        for t in range(T - 1):
            dy[(t * B + s0) * H + i] = real(0)
        dy[((T - 1) * B + s0) * H + i] = value
    for p in range(me, (H + 1) * O + 1, threads):
        value = real(0)
        for s in range(count):
            if p < H * O:
                value += h[last + s * H + p // O] * d_out[(s0 + s) * O + p % O]
            elif p < (H + 1) * O:
                value += d_out[(s0 + s) * O + p - H * O]
            else:
                for o in range(O):
                    error = d_out[(s0 + s) * O + o] / scale
                    value += error * error / real(B * O)
        put(partial, V + p, value, fresh)
    cuda.syncthreads()


def descend(n, theta, gradient, rate):
    """theta -= rate * gradient, by the threads of one block; transposed weights follow."""
    L, _, _, D, H, _ = n
    me, threads, end = cuda.threadIdx.x, cuda.blockDim.x, flipped_at(n)
    for p in range(me, end, threads):
        theta[p] -= rate * gradient[p]
    if not RESIDENT:
        cuda.syncthreads()
        for index in range(L):
            U, W, _, inputs = layer_at(index, D, H)
            flip(theta, U, U + end, inputs, G * H)
            flip(theta, W, W + end, H, G * H)


def flip(a, at, to, rows, columns):
    """The matrix (rows, columns) at `at`, transposed to `to`."""
    for i in range(cuda.threadIdx.x, rows * columns, cuda.blockDim.x):
        a[to + i % columns * rows + i // columns] = a[at + i]


def summed(n, partials, counters):
    """True in the last block, which then finds the sum over all blocks at the start of partials."""
    L, _, _, D, H, O = n
    if ATOMIC:
        return arrived(counters, 0, cuda.gridDim.x)
    return sum_over_blocks(partials, readout_at(L, D, H) + (H + 1) * O + 1, counters)
