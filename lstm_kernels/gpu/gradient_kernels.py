"""Device functions of the tile kernels for the end of a mini-batch: read-out,
gradients, descent.

Gradients are computed in one of two ways, whichever is less work (`plans.plan`). A
small network: each block adds its tiles' up in a row of its own, then all blocks share
the numbers among them and add up the rows, in a fixed order. A large one, PRODUCT:
nothing is added up; when the tape is complete, all blocks share the parameters among
them and compute each over all samples.
"""

from .device_functions import lane, load
from .layout import d_out_at, da_at, dy_at, h_at, layer_at, x_at

cuda = L = D = H = O = K = P = TRANSPOSED = RESIDENT = ATOMIC = PRODUCT = real = None
zeros = quad = add_rows = clipped = U_gates = W_gates = None


def team():
    """Who computes gradients together, the threads of the block or of all: the first
    band of rows of a thread and how many further its next one is, its number and how
    many there are.
    """
    me, threads = lane()
    if PRODUCT:
        block, blocks = cuda.blockIdx.x, cuda.gridDim.x
        y, down = block * cuda.blockDim.y + cuda.threadIdx.y, blocks * cuda.blockDim.y
        return y, down, block * threads + me, blocks * threads
    return cuda.threadIdx.y, cuda.blockDim.y, me, threads


def put(end, p, turned, value, fresh):
    """Gradient p: set in the block's own row, or added to it; with atomics added to all
    blocks'.
    """
    work = end[1]
    if PRODUCT:
        descend(end, p, turned, value)
    elif ATOMIC:
        cuda.atomic.add(work, p, value)
    else:
        at = cuda.blockIdx.x * (P + 1) + p
        work[at] = value if fresh else work[at] + value


def descend(end, p, turned, gradient):
    """Let parameter p take its step; number P is the loss. With a rate of zero, keep
    the gradient.

    turned: where p is among the transposed weights, negative for a number that is not a
    layer's. end: theta, work, losses, the number of the mini-batch, the rate.
    """
    theta, work, losses, batch, rate = end
    if p == P:
        losses[batch] = gradient
    elif rate == 0:
        work[p] = gradient
    else:
        theta[p] -= rate * gradient
        if not RESIDENT and turned >= 0:
            theta[TRANSPOSED + turned] = theta[p]


def transposed_at(p):
    """Where the number p of the layers is when U and W are transposed."""
    index = 0 if p < layer_at(1) else 1 + (p - layer_at(1)) // ((2 * H + 1) * H * K)
    inputs, at = (D if index == 0 else H), layer_at(index)
    W, b = at + inputs * H * K, at + (inputs + H) * H * K
    if p >= b:
        return p
    first, rows = (W, H) if p >= W else (at, inputs)
    row, j, k = (p - first) // (H * K), (p - first) // K % H, (p - first) % K
    return first + (j * rows + row) * K + k


def four_rows(source, at, width, most):
    """The numbers of four rows of a matrix; a row past the last is read as the last."""
    return quad(source, at) if width % 4 == 0 else clipped(source, at, most, 1)


def outer_product(n, count, p, gates, source, width, da, end, fresh):
    """Gradients p and on, of a matrix (width, H, K): the sum over steps and `count`
    samples of source times da, which lie there for the first sample at the first step.

    A thread takes four rows and the K gates of a unit. gates: whether the matrix feeds
    each gate.
    """
    T, B, work = n[0], n[1], end[1]
    band, down, _, _ = team()
    while band * 4 < width:
        r, j = band * 4, cuda.threadIdx.x
        most = width - 1 - r
        while j < H:
            a = zeros(), zeros(), zeros(), zeros()
            s = 0
            while s < count:
                z, d = source + s * width + r, da + (s * H + j) * K
                t = 0
                while t < T:
                    a = add_rows(a, four_rows(work, z, width, most), load(work, d))
                    z, d, t = z + B * width, d + B * H * K, t + 1  # the next step
                s += 1
            for i in range(4):
                for k in range(K):
                    if i <= most:
                        value = a[i][k] if gates[k] else real(0)
                        at, turned = (
                            ((r + i) * H + j) * K + k,
                            (j * width + r + i) * K + k,
                        )
                        put(end, p + at, p + turned, value, fresh)
            j += cuda.blockDim.x
        band += down


def gradients(n, s0, count, end, fresh):
    """Gradients of all parameters and the loss, of `count` samples from s0 on."""
    T, B, work = n[0], n[1], end[1]
    for index in range(L):
        at, h, da = layer_at(index), h_at(n, index, 0, s0), da_at(n, index, 0, s0)
        inputs = D if index == 0 else H
        below = (
            x_at(n, 0, s0) if index == 0 else h_at(n, index - 1, 1, s0)
        )  # inputs at step 0
        outer_product(n, count, at, U_gates, below, inputs, da, end, fresh)
        outer_product(n, count, at + inputs * H * K, W_gates, h, H, da, end, fresh)
        _, _, q, threads = team()
        while q < H * K:
            value = real(0)
            for t in range(T):
                for s in range(count):
                    value += work[
                        da + (t * B + s) * H * K + q
                    ]  # gate and unit q at step t
            b = at + (inputs + H) * H * K
            put(end, b + q, b + q, value, fresh)
            q += threads
    _, _, q, threads = team()
    last = h_at(n, L - 1, T, s0)
    while q < (H + 1) * O + 1:  # V, b_out, the loss
        value = real(0)
        for s in range(count):
            out = d_out_at(n, s0 + s)
            if q < H * O:  # row q // O of V, output q % O
                value += work[last + s * H + q // O] * work[out + q % O]
            elif q < (H + 1) * O:
                value += work[out + q - H * O]  # output q - H O
            else:
                for o in range(O):
                    error = work[out + o] * real(B * O) / real(2)  # output o
                    value += error * error / real(B * O)
        put(end, layer_at(L) + q, -1, value, fresh)
        q += threads


def readout(n, s0, count, theta, target, order, first, work):
    """d_out and dy of the tile's samples, order[first + s0:] of target (N, O)."""
    T, B, V, last = n[0], n[1], layer_at(L), h_at(n, L - 1, n[0], s0)
    me, threads = lane()
    scale = real(2) / real(B * max(1, O))
    for i in range(me, count * O, threads):
        s, o = i // O, i % O
        # b_out and target of output o
        error = theta[V + H * O + o] - target[order[first + s0 + s] * O + o]
        for k in range(H):
            error += (
                work[last + s * H + k] * theta[V + k * O + o]
            )  # unit k; V: row k, output o
        work[d_out_at(n, s0 + s) + o] = error * scale
    cuda.syncthreads()
    s = cuda.threadIdx.y
    while s < count:
        k = cuda.threadIdx.x
        while k < H:
            value = real(0)
            for o in range(O):
                value += (
                    work[d_out_at(n, s0 + s) + o] * theta[V + k * O + o]
                )  # V: row k, output o
            for t in range(T - 1):
                work[dy_at(n, t, s0 + s) + k] = real(0)  # unit k at step t
            work[dy_at(n, T - 1, s0 + s) + k] = value  # at the last step
            k += cuda.blockDim.x
        s += cuda.blockDim.y
    cuda.syncthreads()


def finish(n, blocks, shared, end):
    """The end of a mini-batch, by all blocks: sums, loss, and a step of the
    parameters.
    """
    if PRODUCT:
        gradients(n, 0, n[1], end, True)
    else:
        sum_rows(1 if ATOMIC else blocks, shared, end)


def sum_rows(rows, shared, end):
    """Add up `rows` rows of gradients; a block takes its share of them, a thread some
    rows.

    Which numbers meet depends on the grid alone: the same bits on every run.
    """
    size, work, rate = P + 1, end[1], end[4]
    share = (size + cuda.gridDim.x - 1) // cuda.gridDim.x
    first = cuda.blockIdx.x * share
    last = min(first + share, size)
    me, _ = lane()
    while first < last:
        p, row = first + cuda.threadIdx.x, cuda.threadIdx.y
        value = real(0)
        while p < last and row < rows:
            value += work[row * size + p]
            row += cuda.blockDim.y
        shared[me] = value
        cuda.syncthreads()
        if cuda.threadIdx.y == 0 and p < last:
            for y in range(1, cuda.blockDim.y):
                value += shared[y * cuda.blockDim.x + me]  # of the same p
            turned = -1 if RESIDENT or p >= layer_at(L) else transposed_at(p)
            descend(end, p, turned, value)
            if ATOMIC and (rate != 0 or p == P):
                work[p] = real(0)  # for the next mini-batch to add to
        cuda.syncthreads()
        first += cuda.blockDim.x
