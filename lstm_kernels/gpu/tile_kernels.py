"""Kernels in which a block computes a tile of samples from its first step to its last,
and back.

A block's threads are a matrix: unit j along x, a group of R samples along y. A thread
loads a unit's weights once for its R samples. n are the `layout.Places` of a pass in
`work`. A tile's samples are s0, s0 + 1, ...: `count` of them, and zeros up to `tile`.
"""

from .device import cuda
from .device_functions import (
    add_numbers,
    add_samples,
    cell_backward,
    cell_forward,
    copies,
    dot_samples,
    load,
    quads,
    store,
    total,
    zeros,
)
from .gradient_kernels import gradients, readout, sum_rows
from .layout import (
    D,
    H,
    K,
    L,
    O,
    Places,
    R,
    four,
    gate_at,
    number,
    real,
    slot_at,
    state_at,
    step_at,
    transposed_at,
    weight_at,
)


def copy_rows(shared, to, pitch, source, i, width, rows, count):
    """`count` rows of `width` numbers into shared memory, `pitch` apart, and zeros up
    to `rows`.
    """
    row = cuda.threadIdx.y
    while row < rows:
        column = cuda.threadIdx.x
        while column < width:
            value = source[i + row * width + column] if row < count else real(0)
            shared[to + row * pitch + column] = value
            column += cuda.blockDim.x
        row += cuda.blockDim.y


def product(a, theta, w, row, shared, z, step, count):
    """a plus `count` of the R samples' numbers in `shared` times rows of weights: of
    sample r from z + r step on, of the weights from w on, rows `row` apart.
    """
    k = 0
    while k + 3 < count:
        v = quads(shared, z + k, step)
        i = w + k * row
        w0 = load(theta, i)  # all four are under way before the first is used
        w1 = load(theta, i + row)
        w2 = load(theta, i + 2 * row)
        w3 = load(theta, i + 3 * row)
        a = add_samples(a, v, 0, w0)
        a = add_samples(a, v, 1, w1)
        a = add_samples(a, v, 2, w2)
        a = add_samples(a, v, 3, w3)
        k += 4
    while k < count:
        a = add_numbers(a, shared, z + k, step, load(theta, w + k * row))
        k += 1
    return a


def product_back(theta, w, row, shared, z, step):
    """The R samples' K sums over H units of da in `shared`, of sample r from z + r step
    on, times weights, units `row` apart.
    """
    a = copies(zeros())
    if K == 1:
        return product(a, theta, w, row, shared, z, step, H)
    j = 0
    while j < H:
        a = dot_samples(a, shared, z + j * K, step, load(theta, w + j * row))
        j += 1
    return a


def forward_layer(l, inputs, n, tile, s0, theta, shared, work):
    """All steps of a layer for a tile; h and c in slot 0 are the initial state."""
    count = min(tile, n.B - s0)
    width = four(inputs) + four(H)  # of a sample's [x_t, h_{t-1}]
    cells = 2 * tile * width  # the tile's c, behind two buffers of these
    copy_rows(shared, cells, H, work, slot_at(n, n.c, l, 0, s0), H, tile, count)
    h = four(inputs)  # of sample 0 in the first buffer
    copy_rows(shared, h, width, work, slot_at(n, n.h, l, 0, s0), H, tile, count)
    below = step_at(n, n.x, 0, s0, D) if l == 0 else slot_at(n, n.h, l - 1, 1, s0)
    copy_rows(shared, 0, width, work, below, inputs, tile, count)
    t = 0
    while t < n.T:
        cuda.syncthreads()
        current = t % 2 * tile * width  # [x_t, h_{t-1}]
        following = (1 - t % 2) * tile * width  # [x_{t+1}, h_t]
        if t + 1 < n.T:
            x = below + (t + 1) * n.B * inputs
            copy_rows(shared, following, width, work, x, inputs, tile, count)
        group = cuda.threadIdx.y
        while group * R < tile:
            z = current + group * R * width  # sample group R
            j = cuda.threadIdx.x
            while j < H:
                w = weight_at(l, 0, j)
                a = copies(load(theta, weight_at(l, inputs + H, j)))  # b
                a = product(a, theta, w, H * K, shared, z, width, inputs)
                w = weight_at(l, inputs, j)
                a = product(a, theta, w, H * K, shared, z + four(inputs), width, H)
                for r in range(R):
                    s = group * R + r
                    out = cell_forward(*a[r], shared[cells + s * H + j])
                    shared[cells + s * H + j] = out[K + 1]
                    shared[following + s * width + four(inputs) + j] = out[K]
                    if s < count:
                        work[slot_at(n, n.h, l, t + 1, s0 + s) + j] = out[K]
                        work[slot_at(n, n.c, l, t + 1, s0 + s) + j] = out[K + 1]
                        store(work, gate_at(n, n.gates, l, t, s0 + s) + j * K, out)
                j += cuda.blockDim.x
            group += cuda.blockDim.y
        t += 1
    cuda.syncthreads()


def backward_layer(l, inputs, n, tile, s0, theta, shared, work, below):
    """All steps back. below: whether the gradient of the layer's input is wanted."""
    count = min(tile, n.B - s0)
    width = four(H * K)  # of a sample's da
    dc = tile * H  # the tile's, behind its dh
    buffers = four(2 * tile * H)  # two of the tile's da
    U = transposed_at(l)
    W = U + inputs * H * K
    copy_rows(shared, 0, H, work, state_at(n, 0, l, s0), H, tile, count)
    copy_rows(shared, dc, H, work, state_at(n, 1, l, s0), H, tile, count)
    cuda.syncthreads()
    t = n.T - 1
    while t >= 0:
        current = buffers + t % 2 * tile * width
        group = cuda.threadIdx.y
        while group * R < tile:
            j = cuda.threadIdx.x
            while j < H:
                for r in range(R):
                    s = group * R + r
                    da = current + s * width + j * K
                    if s < count:
                        dy = work[step_at(n, n.dy, t, s0 + s, H) + j]
                        out = cell_backward(
                            dy + shared[s * H + j],
                            shared[dc + s * H + j],
                            *load(work, gate_at(n, n.gates, l, t, s0 + s) + j * K),
                            work[slot_at(n, n.c, l, t, s0 + s) + j],
                            work[slot_at(n, n.c, l, t + 1, s0 + s) + j],
                        )
                        store(work, gate_at(n, n.da, l, t, s0 + s) + j * K, out)
                        store(shared, da, out)
                        shared[dc + s * H + j] = out[K]
                    else:
                        store(shared, da, zeros())
                j += cuda.blockDim.x
            group += cuda.blockDim.y
        cuda.syncthreads()
        group = cuda.threadIdx.y
        while group * R < tile:
            z = current + group * R * width
            j = cuda.threadIdx.x
            while j < H:  # dh of unit j before step t: column j of W transposed
                a = product_back(theta, W + j * K, H * K, shared, z, width)
                for r in range(R):
                    shared[(group * R + r) * H + j] = total(a[r])
                j += cuda.blockDim.x
            k = cuda.threadIdx.x
            while below and k < inputs:
                a = product_back(theta, U + k * K, inputs * K, shared, z, width)
                for r in range(R):
                    s = group * R + r
                    if s < count and l == 0:
                        work[step_at(n, n.dx, t, s0 + s, D) + k] = total(a[r])
                    elif s < count:
                        work[step_at(n, n.dy, t, s0 + s, H) + k] = total(a[r])
                k += cuda.blockDim.x
            group += cuda.blockDim.y
        t -= 1
    cuda.syncthreads()
    s = cuda.threadIdx.y
    while s < count:
        j = cuda.threadIdx.x
        while j < H:
            work[state_at(n, 0, l, s0 + s) + j] = shared[s * H + j]
            work[state_at(n, 1, l, s0 + s) + j] = shared[dc + s * H + j]
            j += cuda.blockDim.x
        s += cuda.blockDim.y


def forward_layers(n, tile, s0, theta, shared, work):
    """All layers of a tile, from the states in slot 0."""
    cuda.syncthreads()
    for l in range(L):
        inputs = D if l == 0 else H
        forward_layer(l, inputs, n, tile, s0, theta, shared, work)


def backward_layers(n, tile, s0, theta, shared, work, below):
    """The layers from the top down, then the tile's share of the gradients."""
    for l in range(L - 1, -1, -1):
        inputs = D if l == 0 else H
        backward_layer(l, inputs, n, tile, s0, theta, shared, work, l > 0 or below)
    cuda.syncthreads()
    gradients(n, s0, min(tile, n.B - s0), work, s0 == cuda.blockIdx.x * tile)


def copy_states(n, s0, count, slot, work, final):
    """Copy the initial state to slot 0 of h and c, or, `final`, a slot to where that
    was.
    """
    for l in range(L):
        s = cuda.threadIdx.y
        while s < count:
            j = cuda.threadIdx.x
            while j < H:
                h = slot_at(n, n.h, l, slot, s0 + s) + j
                c = slot_at(n, n.c, l, slot, s0 + s) + j
                h_outside = state_at(n, 0, l, s0 + s) + j
                c_outside = state_at(n, 1, l, s0 + s) + j
                if final:
                    work[h_outside] = work[h]
                    work[c_outside] = work[c]
                else:
                    work[h] = work[h_outside]
                    work[c] = work[c_outside]
                j += cuda.blockDim.x
            s += cuda.blockDim.y


def gather(n, s0, count, order, first, x, work):
    """The tile's examples, order[first + s0:] of x (T, N, D), to their place; zeros for
    the states and their gradients.
    """
    s = cuda.threadIdx.y
    while s < count:
        k = cuda.threadIdx.x
        while k < D:
            for t in range(n.T):
                work[step_at(n, n.x, t, s0 + s, D) + k] = x[t, order[first + s0 + s], k]
            k += cuda.blockDim.x
        j = cuda.threadIdx.x
        while j < H:
            for l in range(L):
                work[slot_at(n, n.h, l, 0, s0 + s) + j] = real(0)
                work[slot_at(n, n.c, l, 0, s0 + s) + j] = real(0)
                work[state_at(n, 0, l, s0 + s) + j] = real(0)
                work[state_at(n, 1, l, s0 + s) + j] = real(0)
            j += cuda.blockDim.x
        s += cuda.blockDim.y


def mini_batch(n, tile, order, first, x, target, theta, shared, work, below):
    """The B examples order[first:] of x (T, N, D) and target (N, O), forward and
    back.
    """
    s0 = cuda.blockIdx.x * tile
    while s0 < n.B:
        count = min(tile, n.B - s0)
        gather(n, s0, count, order, first, x, work)
        forward_layers(n, tile, s0, theta, shared, work)
        readout(n, s0, count, order, first, target, theta, work)
        backward_layers(n, tile, s0, theta, shared, work, below)
        s0 += cuda.gridDim.x * tile


def forward(n, tile, theta, work):
    """Kernel: the tape from x and state; the final state over the initial one."""
    shared = cuda.shared.array(0, number)
    s0 = cuda.blockIdx.x * tile
    while s0 < n.B:
        count = min(tile, n.B - s0)
        copy_states(n, s0, count, 0, work, False)
        forward_layers(n, tile, s0, theta, shared, work)
        copy_states(n, s0, count, n.T, work, True)
        s0 += cuda.gridDim.x * tile


def backward(n, tile, theta, work):
    """Kernel: the tiles' gradients from dy and state, then the initial state's; for
    `update`.
    """
    shared = cuda.shared.array(0, number)
    s0 = cuda.blockIdx.x * tile
    while s0 < n.B:
        s = cuda.threadIdx.y
        while s < min(tile, n.B - s0):  # y does not depend on the read-out
            o = cuda.threadIdx.x
            while o < O:
                work[n.d_out + (s0 + s) * O + o] = real(0)
                o += cuda.blockDim.x
            s += cuda.blockDim.y
        backward_layers(n, tile, s0, theta, shared, work, True)
        s0 += cuda.gridDim.x * tile


def step(n, tile, first, order, x, target, theta, work, rate):
    """Kernel: a mini-batch, the B examples order[first:] of x (T, N, D) and target (N,
    O).

    The blocks' gradients and losses are for `update`. With a rate of zero dx and state
    hold the gradients of the input and of the initial state.
    """
    shared = cuda.shared.array(0, number)
    mini_batch(n, tile, order, first, x, target, theta, shared, work, rate == 0)


def update(n, blocks, theta, work, losses, batch, rate):
    """Kernel: add up what `blocks` blocks left, and let the parameters take a step of
    `rate`.

    losses[batch] becomes the mean squared error. With a rate of zero the parameters
    stay, and the gradients are the first row of partials.
    """
    shared = cuda.shared.array(0, number)
    sum_rows(n, blocks, shared, theta, work, losses, batch, rate)


def epoch(n, tile, order, x, target, theta, work, losses, rate):
    """Kernel: `step` and `update` for each mini-batch of B examples of `order`, in one
    launch.

    All blocks run at the same time and wait for each other where the other versions end
    a launch.
    """
    shared = cuda.shared.array(0, number)
    grid = cuda.cg.this_grid()
    first = 0
    batch = 0
    while first < order.size:
        B = min(n.B, order.size - first)
        # A zero that the compiler does not know: else it computes the addresses of all
        # phases before the loop, more than there are registers for.
        zero = cuda.syncthreads_count(0)
        m = Places(n.T + zero, B, *n[2:])
        weights = theta[zero:]
        tape = work[zero:]
        samples = tile + zero
        mini_batch(
            m, samples, order, first, x, target, weights, shared, tape, rate == 0
        )
        grid.sync()
        blocks = min(cuda.gridDim.x, (B + tile - 1) // tile)
        sum_rows(m, blocks, shared, theta, work, losses, batch, rate)
        grid.sync()
        first += B
        batch += 1
