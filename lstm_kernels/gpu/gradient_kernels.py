"""Device functions of the kernels for the end of a mini-batch: read-out, gradients,
descent.

Each block adds up its tiles' gradients in a row of its own; then all blocks share the
numbers among them and add up the rows, in a fixed order: the same bits on every run.
"""

from .device import cuda
from .device_functions import (
    gate_at,
    lane,
    layer_at,
    parameter,
    rows,
    slot_at,
    step_at,
    transposed_at,
)
from .layout import four, net
from .registers import add, add_outer, fed, load, store


def readout(n, s0, count, order, first, target, theta, work):
    """d_out of the tile's samples, order[first + s0:] of target (N, O), and dy of their
    last step.
    """
    V = layer_at(net.L)
    me, threads = lane()
    scale = net.real(2) / net.real(n.B * max(1, net.O))
    i = me
    while i < count * net.O:
        s, o = i // net.O, i % net.O
        h = slot_at(n, n.h, net.L - 1, n.T, s0 + s)
        # b_out and target of output o
        error = theta[V + net.H * net.O + o] - target[order[first + s0 + s], o]
        for k in range(net.H):
            error += work[h + k] * theta[V + k * net.O + o]  # row k of V, output o
        work[n.d_out + s0 * net.O + i] = error * scale
        i += threads
    cuda.syncthreads()
    i = me
    while i < count * net.H:
        s, k = i // net.H, i % net.H
        value = net.zero
        for o in range(net.O):
            value += work[n.d_out + (s0 + s) * net.O + o] * theta[V + k * net.O + o]
        work[step_at(n, n.dy, n.T - 1, s0, net.H) + i] = value
        i += threads
    cuda.syncthreads()


def outer_product(n, count, row, p, gates, source, width, da, work, fresh):
    """Gradients p and on, of a matrix (width, H, K): the sum over steps and `count`
    samples of source times da, which lie there for the first sample at the first step.
    Without a source, of width 0, one row of ones: b.

    A thread takes four rows, from `row` on, and the K gates of a unit. gates: whether
    the matrix feeds each gate.
    """
    last = max(width, 1)
    whole = width > 0 and width % 4 == 0
    while row < last:
        j = cuda.threadIdx.x
        while j < net.H:
            a = net.zeros, net.zeros, net.zeros, net.zeros
            s = 0
            while s < count:
                z = source + s * width + row
                d = da + (s * net.H + j) * net.K
                t = 0
                while t < n.T:
                    v = load(net.quad, work, z) if whole else rows(work, z, width - row)
                    a = add_outer(a, v, load(net.zeros, work, d))
                    z += n.B * width  # the next step
                    d += n.B * net.H * net.K
                    t += 1
                s += 1
            for q in range(4):
                if row + q < last:
                    value = fed(a[q], gates, net.zero) if width > 0 else a[q]
                    i = partial_at(n, p + ((row + q) * net.H + j) * net.K)
                    if not fresh:
                        value = add(value, load(net.zeros, work, i))
                    store(net.zeros, work, i, value)
            j += cuda.blockDim.x
        row += cuda.blockDim.y * 4


def gradients(n, s0, count, work, fresh):
    """The block's gradients of all parameters and its loss, of `count` samples from s0
    on.
    """
    for l in range(net.L):
        inputs = net.D if l == 0 else net.H
        U = layer_at(l)
        W = U + inputs * net.H * net.K
        b = W + net.H * net.H * net.K
        below = (
            step_at(n, n.x, 0, s0, net.D) if l == 0 else slot_at(n, n.h, l - 1, 1, s0)
        )
        h = slot_at(n, n.h, l, 0, s0)
        da = gate_at(n, n.da, l, 0, s0)
        y = cuda.threadIdx.y * 4
        up = (cuda.blockDim.y - 1) * 4 - y  # the last threads: the first ones have b
        outer_product(n, count, up, U, net.U_gates, below, inputs, da, work, fresh)
        outer_product(n, count, y, W, net.W_gates, h, net.H, da, work, fresh)
        outer_product(n, count, y, b, net.W_gates, 0, 0, da, work, fresh)
    readout_gradients(n, s0, count, work, fresh)


def readout_gradients(n, s0, count, work, fresh):
    """Those of V and b_out, and the loss."""
    me, threads = lane()
    for q in range(me, (net.H + 1) * net.O + 1, threads):
        value = net.zero
        for s in range(s0, s0 + count):
            d_out = n.d_out + s * net.O
            if q < net.H * net.O:  # row q // O of V, output q % O
                h = slot_at(n, n.h, net.L - 1, n.T, s)
                value += work[h + q // net.O] * work[d_out + q % net.O]
            elif q < (net.H + 1) * net.O:
                value += work[d_out + q - net.H * net.O]
            else:
                for o in range(net.O):
                    error = work[d_out + o] * net.real(n.B * net.O) / net.real(2)
                    value += error * error / net.real(n.B * net.O)
        i = partial_at(n, layer_at(net.L) + q)
        work[i] = value if fresh else work[i] + value


def partial_at(n, p):
    """Where the block's row has gradient p."""
    return n.partials + cuda.blockIdx.x * four(net.P + 1) + p


def descend(n, p, gradient, theta, work, losses, batch, rate):
    """Let parameter p take its step; number P is the loss. With a rate of zero, keep
    the gradient, in the first row.
    """
    if p == net.P:
        losses[batch] = gradient
    elif rate == 0:
        work[n.partials + p] = gradient
    else:
        theta[p] -= rate * gradient
        if p < layer_at(net.L):
            l, row, j, k = parameter(p)
            last = (net.D if l == 0 else net.H) + net.H + 1
            theta[transposed_at(l) + (j * last + row) * net.K + k] = theta[p]


def sum_rows(n, blocks, shared, theta, work, losses, batch, rate):
    """Add up the gradients of `blocks` blocks, and let the parameters take their step.
    A block takes its share of the numbers, in columns of its threads, which share the
    rows if there are fewer numbers than threads.

    Which numbers meet depends on the grid alone.
    """
    share = (net.P + cuda.gridDim.x) // cuda.gridDim.x  # of P + 1
    first = cuda.blockIdx.x * share
    end = min(first + share, net.P + 1)
    me, threads = lane()
    columns = min(threads, (share + 31) // 32 * 32)
    lines = threads // columns
    while first < end:
        p = first + me % columns
        value = net.zero
        row = me // columns
        while p < end and row + 3 * lines < blocks:
            i = n.partials + row * four(net.P + 1) + p
            step = lines * four(net.P + 1)
            # All four are under way before the first is used.
            value += work[i] + work[i + step] + work[i + 2 * step] + work[i + 3 * step]
            row += 4 * lines
        while p < end and row < blocks:
            value += work[n.partials + row * four(net.P + 1) + p]
            row += lines
        shared[me] = value
        cuda.syncthreads()
        if me < columns and p < end:
            for line in range(1, lines):
                value += shared[line * columns + me]  # of the same p
            descend(n, p, value, theta, work, losses, batch, rate)
        cuda.syncthreads()
        first += columns
