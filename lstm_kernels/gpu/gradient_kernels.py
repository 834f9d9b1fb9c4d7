"""Device functions of the tile kernels for the end of a mini-batch: read-out,
gradients, descent.

Each block adds up its tiles' gradients in a row of its own; then all blocks share the
numbers among them and add up the rows, in a fixed order: the same bits on every run.
"""

from .device import cuda
from .device_functions import add_rows, clipped, lane, load, quad, zeros
from .layout import (
    D,
    H,
    K,
    L,
    O,
    P,
    U_gates,
    W_gates,
    gate_at,
    layer_at,
    parameter,
    real,
    slot_at,
    step_at,
    transposed_at,
)


def readout(n, s0, count, order, first, target, theta, work):
    """d_out and dy of the tile's samples, order[first + s0:] of target (N, O)."""
    V = layer_at(L)
    me, threads = lane()
    scale = real(2) / real(n.B * max(1, O))
    for i in range(me, count * O, threads):
        s, o = i // O, i % O
        h = slot_at(n, n.h, L - 1, n.T, s0 + s)
        # b_out and target of output o
        error = theta[V + H * O + o] - target[order[first + s0 + s], o]
        for k in range(H):
            error += work[h + k] * theta[V + k * O + o]  # row k of V, output o
        work[n.d_out + (s0 + s) * O + o] = error * scale
    cuda.syncthreads()
    s = cuda.threadIdx.y
    while s < count:
        k = cuda.threadIdx.x
        while k < H:
            value = real(0)
            for o in range(O):
                value += work[n.d_out + (s0 + s) * O + o] * theta[V + k * O + o]
            for t in range(n.T - 1):
                work[step_at(n, n.dy, t, s0 + s, H) + k] = real(0)
            work[step_at(n, n.dy, n.T - 1, s0 + s, H) + k] = value
            k += cuda.blockDim.x
        s += cuda.blockDim.y
    cuda.syncthreads()


def put(n, work, p, value, fresh):
    """Set gradient p of the block's row, or, not fresh, add to it."""
    i = n.partials + cuda.blockIdx.x * (P + 1) + p
    work[i] = value if fresh else work[i] + value


def outer_product(n, count, p, gates, source, width, da, work, fresh):
    """Gradients p and on, of a matrix (width, H, K): the sum over steps and `count`
    samples of source times da, which lie there for the first sample at the first step.

    A thread takes four rows and the K gates of a unit. gates: whether the matrix feeds
    each gate.
    """
    row = cuda.threadIdx.y * 4
    while row < width:
        last = width - 1 - row
        j = cuda.threadIdx.x
        while j < H:
            a = zeros(), zeros(), zeros(), zeros()
            s = 0
            while s < count:
                z = source + s * width + row
                d = da + (s * H + j) * K
                t = 0
                while t < n.T:
                    v = quad(work, z) if width % 4 == 0 else clipped(work, z, last)
                    a = add_rows(a, v, load(work, d))
                    z += n.B * width  # the next step
                    d += n.B * H * K
                    t += 1
                s += 1
            for i in range(4):
                for k in range(K):
                    if i <= last:
                        value = a[i][k] if gates[k] else real(0)
                        put(n, work, p + ((row + i) * H + j) * K + k, value, fresh)
            j += cuda.blockDim.x
        row += cuda.blockDim.y * 4


def gradients(n, s0, count, work, fresh):
    """The block's gradients of all parameters and its loss, of `count` samples from s0
    on.
    """
    me, threads = lane()
    for l in range(L):
        inputs = D if l == 0 else H
        U = layer_at(l)
        W = U + inputs * H * K
        b = W + H * H * K
        below = step_at(n, n.x, 0, s0, D) if l == 0 else slot_at(n, n.h, l - 1, 1, s0)
        h = slot_at(n, n.h, l, 0, s0)
        da = gate_at(n, n.da, l, 0, s0)
        outer_product(n, count, U, U_gates, below, inputs, da, work, fresh)
        outer_product(n, count, W, W_gates, h, H, da, work, fresh)
        for q in range(me, H * K, threads):
            value = real(0)
            for t in range(n.T):
                for s in range(count):
                    value += work[gate_at(n, n.da, l, t, s0 + s) + q]
            put(n, work, b + q, value, fresh)
    for q in range(me, (H + 1) * O + 1, threads):  # V, b_out, the loss
        value = real(0)
        for s in range(s0, s0 + count):
            d_out = n.d_out + s * O
            if q < H * O:  # row q // O of V, output q % O
                h = slot_at(n, n.h, L - 1, n.T, s)
                value += work[h + q // O] * work[d_out + q % O]
            elif q < (H + 1) * O:
                value += work[d_out + q - H * O]
            else:
                for o in range(O):
                    error = work[d_out + o] * real(n.B * O) / real(2)
                    value += error * error / real(n.B * O)
        put(n, work, layer_at(L) + q, value, fresh)


def descend(n, p, gradient, theta, work, losses, batch, rate):
    """Let parameter p take its step; number P is the loss. With a rate of zero, keep
    the gradient, in the first row.
    """
    if p == P:
        losses[batch] = gradient
    elif rate == 0:
        work[n.partials + p] = gradient
    else:
        theta[p] -= rate * gradient
        if p < layer_at(L):
            l, row, j, k = parameter(p)
            inputs = D if l == 0 else H
            if row < inputs:
                theta[transposed_at(l) + (j * inputs + row) * K + k] = theta[p]
            elif row < inputs + H:
                i = inputs * H + j * H + row - inputs  # behind U
                theta[transposed_at(l) + i * K + k] = theta[p]


def sum_rows(n, rows, shared, theta, work, losses, batch, rate):
    """Add up `rows` rows of gradients, and let the parameters take their step. A block
    takes its share of the numbers, a thread some rows.

    Which numbers meet depends on the grid alone.
    """
    size = P + 1
    share = (size + cuda.gridDim.x - 1) // cuda.gridDim.x
    first = cuda.blockIdx.x * share
    end = min(first + share, size)
    me, _ = lane()
    while first < end:
        p = first + cuda.threadIdx.x
        value = real(0)
        row = cuda.threadIdx.y
        while p < end and row < rows:
            value += work[n.partials + row * size + p]
            row += cuda.blockDim.y
        shared[me] = value
        cuda.syncthreads()
        if cuda.threadIdx.y == 0 and p < end:
            for y in range(1, cuda.blockDim.y):
                value += shared[y * cuda.blockDim.x + me]  # of the same p
            descend(n, p, value, theta, work, losses, batch, rate)
        cuda.syncthreads()
        first += cuda.blockDim.x
