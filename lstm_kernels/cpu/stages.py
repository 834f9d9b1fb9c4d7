"""The stages of a pass on arrays (`net.py`): what a task does for its box of steps,
unit blocks and samples, as calls of micro-kernels.

A stage is given a Net and does a work item (`entries.Item`): of pass `number` of a
call, steps start, ..., stop-1 of a layer, unit blocks low, ..., high-1 (in a backward
pass wide ones) and samples first, ..., last-1. Steps are in the order of the pass. It
returns whether the pass was cancelled.

l is a layer, t a step, n a row (t, sample), j a unit block, w a wide one, k a unit;
`width` are the numbers of a row of gates.
"""

from ..kernels import part
from .atomics import atomic_exchange, load_acquire
from .intrinsics import view
from .micro_kernels import (
    backward,
    forward,
    gradient,
    inputs,
    small_input_gradient,
    times_transpose,
    transpose,
)
from .net import B_ROW, U_PANEL, U_ROW, W_PANEL, W_ROW
from .scheduler import CANCEL, LAST, serpentine

GRAIN = 64  # rows of a weight gradient at once, in L1
ROWS = 96  # rows of dx, and of dy from the layer above, at once
FEW = 4  # inputs up to which dx is a dot product for each


def forward_stage(net, item):
    """Each step from slot t to slot t + 1 of h and c."""
    B, H, units, width = net.B, net.H, net.units, net.theta.shape[1]
    l, low, high, first, last = item.layer, item.low, item.high, item.first, item.last
    x = net.x if l == 0 else view(net.h, (l - 1, B, 0), (net.T * B, H))
    size, D, code = last - first, x.shape[1], net.kernels.forward
    ahead = net.input_steps > 1  # are inputs of some steps multiplied at once?
    # Read once, or each micro-kernel's call would have them read again
    theta, h, c, gates = net.theta, net.h, net.c, net.a
    U_row, W_row = net.offsets[l, U_ROW], net.offsets[l, W_ROW]
    b_row, input_code = net.offsets[l, B_ROW], net.kernels.inputs
    for t in range(item.start, item.stop):
        if load_acquire(net.control, CANCEL):
            return 1
        offset = (t - item.task_start) % net.input_steps  # of the step among those
        until = min(t + net.input_steps, item.task_stop)
        n, m = t * B + first, (t if net.keeps_gates else offset) * B + first
        # Without an initial state the first step has no product with W.
        D_t, H_t = 0 if ahead else D, H if t > 0 or net.starts else 0
        h_t, x_t = view(h, (l, n, 0), (size, H_t)), view(x, (n, 0), (size, D_t))
        for i in range(high - low):
            j = serpentine(t, i, low, high)
            k = j * units
            U = view(theta, (U_row + j * D, 0), (D, width))
            W = view(theta, (W_row + j * H, 0), (H, width))
            b = view(theta, (b_row + j, 0), (1, width))
            a_t = view(gates, (l, j, m, 0), (size, width))
            if ahead and offset == 0:
                a = view(gates, (l, j, m - first, 0), ((until - t) * B, width))
                input_products(input_code, x, U, b, a, t, until, B, first, last)
            initial = a_t if ahead else b
            c_t = view(c, (l, n, k), (size, units))
            c_new = view(c, (l, n + B, k), (size, units))
            h_new = view(h, (l, n + B, k), (size, units))
            forward(code, initial, x_t, U, h_t, W, a_t, c_t, c_new, h_new)
    return 0


@part
def input_products(code, x, U, b, a, t, until, B, first, last):
    """a = b + x U of steps t, ..., until-1."""
    count, size = until - t, last - first
    if size == B:  # of all samples they are one run of rows
        count, size = 1, count * B
    for s in range(count):
        x_t = view(x, ((t + s) * B + first, 0), (size, x.shape[1]))
        inputs(code, x_t, U, b, view(a, (s * B + first, 0), (size, a.shape[1])))


def backward_stage(net, item):
    """Each step back through time: reads da of step t + 1, writes da of step t and dc.
    Blocks are wide ones.
    """
    l, low, high, first, last = item.layer, item.low, item.high, item.first, item.last
    T, B, J, wide, size = net.T, net.B, net.J, net.wide, last - first
    width, panels, panel_rows = net.theta.shape[1], net.panels, net.panels.shape[1]
    c, dy, dc, da, gates = net.c, net.dy, net.dc, net.da, net.a
    W_panel, code = net.offsets[l, W_PANEL], net.kernels.backward
    for s in range(item.start, item.stop):
        if load_acquire(net.control, CANCEL):
            return 1
        t, is_last = T - 1 - s, s == 0  # no step comes after the last
        at_once = (s - item.task_start) % net.back_steps == 0 and l < len(net.h) - 1
        t_first = max(T - item.task_stop, t + 1 - net.back_steps)
        n = t * B + first
        if is_last:
            da_next = view(da, (l, 0, n, 0), (0, size, width))
        else:
            da_next = view(da, (l, 0, n + B, 0), (J, size, width))
        for i in range(high - low):
            w = serpentine(s, i, low, high)
            k = w * wide  # the wide block's first unit
            j = k // net.units  # and its first unit block
            if at_once:
                if is_last:  # where the gradient of the final h comes in
                    initial = view(net.dh, (l, first, k), (size, wide))
                    from_above(net, l, w, initial, t, t + 1, first, last)
                initial = view(net.zeros, (0, 0), (1, wide))
                from_above(net, l, w, initial, t_first, t + 1 - is_last, first, last)
            backward(
                code,
                view(dy, (l, n, k), (size, wide)),
                da_next,
                view(panels, (W_panel + w, 0, 0), (panel_rows, wide)),
                view(gates, (l, j, n, 0), (wide // net.units, size, width)),
                view(da, (l, j, n, 0), (wide // net.units, size, width)),
                view(dc, (l, first, k), (size, wide)),
                view(c, (l, n, k), (size, wide)),
                view(c, (l, n + B, k), (size, wide)),
            )
    return 0


@part
def from_above(net, l, w, initial, t_first, t_end, first, last):
    """dy of steps t_first, ..., t_end-1, of wide unit block w: initial + da_above
    U^T.
    """
    B, J, wide = net.B, net.J, net.wide
    width, panel_rows = net.theta.shape[1], net.panels.shape[1]
    count, size = t_end - t_first, last - first
    if size == B:  # of all samples they are one run of rows
        count, size = min(count, 1), count * B
    for t in range(t_first, t_first + count):
        n = t * B + first
        times_transpose(
            net.kernels.times_transpose_U,
            initial,
            view(net.da, (l + 1, 0, n, 0), (J, size, width)),
            view(
                net.panels, (net.offsets[l + 1, U_PANEL] + w, 0, 0), (panel_rows, wide)
            ),
            view(net.dy, (l, n, w * wide), (size, wide)),
        )


def weights_stage(net, item):
    """Gradients of the parameters, in parts: a unit block of a layer each, then those
    of the output layer and the loss (`plan.py`).
    """
    for i in range(item.low, item.high):
        if i < len(net.h) * net.J:
            weight_gradient(net, i // net.J, i % net.J)
        elif net.has_loss:
            note_loss(net, item.number)
    return 0


def inputs_stage(net, item):
    """Gradients of x and of the initial states, in parts: some rows of x, then a layer
    each.
    """
    N = net.T * net.B
    of_inputs = (N + ROWS - 1) // ROWS
    for i in range(item.low, item.high):
        if i >= of_inputs:
            if net.state_gradient:
                state_gradient(net, i - of_inputs)
        elif net.input_gradient:
            input_gradient(net, i * ROWS, min(i * ROWS + ROWS, N))
    return 0


@part
def note_loss(net, number):
    """The output layer's gradients, and the loss. One that is not finite ends the
    call.
    """
    loss = output_gradient(net)
    net.losses[number] = loss
    if loss - loss != 0:
        last = load_acquire(net.control, LAST)
        done = last - len(net.losses) + number + 1
        atomic_exchange(net.control, LAST, done)


@part
def input_gradient(net, n, end):
    """dx of rows n, ..., end-1."""
    J, D, wide, width = net.J, net.x.shape[1], net.wide, net.theta.shape[1]
    da = view(net.da, (0, 0, n, 0), (J, end - n, width))
    if D <= FEW:
        dx = view(net.dx, (n, 0), (end - n, D))
        U = view(net.theta, (0, 0), (J * D, width))
        small_input_gradient(net.kernels.small_input_gradient, da, U, dx)
        return
    zeros = view(net.zeros, (0, 0), (1, wide))
    for w in range(net.dx.shape[1] // wide):
        U_T = view(net.panels, (w, 0, 0), (net.panels.shape[1], wide))
        dx = view(net.dx, (n, w * wide), (end - n, wide))
        times_transpose(net.kernels.times_transpose_U, zeros, da, U_T, dx)


@part
def state_gradient(net, l):
    """The gradient of the initial h, through step 0; and past it, where a cell has no
    c: what it hands over then is h.
    """
    B, wide, rows = net.B, net.wide, net.panels.shape[1]
    da = view(net.da, (l, 0, 0, 0), (net.J, B, net.theta.shape[1]))
    for w in range(net.dh0.shape[2] // wide):
        initial = view(net.zeros, (0, 0), (1, wide))
        if not net.has_c:
            initial = view(net.dc, (l, 0, w * wide), (B, wide))
        W_T = view(net.panels, (net.offsets[l, W_PANEL] + w, 0, 0), (rows, wide))
        dh0 = view(net.dh0, (l, 0, w * wide), (B, wide))
        times_transpose(net.kernels.times_transpose_W, initial, da, W_T, dh0)


@part
def weight_gradient(net, l, j):
    """gradient += scale times that of unit block j: of parameters that descend; else
    from zero, and then as plain matrices.
    """
    B, H, N, width = net.B, net.H, net.T * net.B, net.theta.shape[1]
    x = net.x if l == 0 else view(net.h, (l - 1, B, 0), (N, H))
    D = x.shape[1]
    gU = view(net.gradient, (net.offsets[l, U_ROW] + j * D, 0), (D, width))
    gW = view(net.gradient, (net.offsets[l, W_ROW] + j * H, 0), (H, width))
    gb = view(net.gradient, (net.offsets[l, B_ROW] + j, 0), (1, width))
    if not net.descends:
        for packed in (gU, gW, gb):
            clear(packed)
    scale, codes = net.scale[0], net.kernels
    for n in range(0, N, GRAIN):
        count = min(GRAIN, N - n)
        da = view(net.da, (l, j, n, 0), (count, width))
        gradient(codes.gradient_U, view(x, (n, 0), (count, D)), da, gU, scale)
        gradient(codes.gradient_b, view(net.ones, (0, 0), (count, 1)), da, gb, scale)
    # Slot t of h is from before step t; without an initial state slot 0 is zeros.
    for n in range(0 if net.starts else B, N, GRAIN):
        count = min(GRAIN, N - n)
        da = view(net.da, (l, j, n, 0), (count, width))
        gradient(codes.gradient_W, view(net.h, (l, n, 0), (count, H)), da, gW, scale)
    if net.descends:
        transpose_block(net, gU, net.offsets[l, U_PANEL], j)
        transpose_block(net, gW, net.offsets[l, W_PANEL], j)
    else:
        count = net.plain_first.shape[1]
        for m in range(count):  # U, W and b, or PyTorch's two biases, of U and of W
            fed, begin = m % 2 if count > 3 else m, net.plain_first[l, m]
            packed = gU if m == 0 else gW if m == 1 else gb
            unpack(packed, net.fed, fed, net.plain, begin, j, H, count > 3)


@part
def clear(out):
    """Zeros."""
    for r in range(out.shape[0]):
        for k in range(out.shape[1]):
            out[r, k] = 0


@part
def unpack(packed, fed, matrix, plain, begin, j, H, transposed):
    """Rows of unit block j (rows, K units), to a plain matrix (rows, G, H) that begins
    somewhere in `plain`, or to its transpose (G, H, rows). fed: of U, W, b which of the
    G a gate is, or -1, (3, K).
    """
    rows, K = packed.shape[0], fed.shape[1]
    units, G = packed.shape[1] // K, 0
    for gate in range(K):
        G += fed[matrix, gate] >= 0
    to_row, to_unit = (1, rows) if transposed else (G * H, 1)
    for r in range(rows):
        for gate in range(K):
            if fed[matrix, gate] >= 0:
                n = fed[matrix, gate] * H + j * units
                for k in range(min(units, H - j * units)):
                    place = begin + r * to_row + (n + k) * to_unit
                    plain[place] = packed[r, gate * units + k]


@part
def transpose_block(net, M, first, j):
    """Rows of unit block j of packed weights (rows, K units), to the columns of panels
    `first`, ...: in squares, then what is left of the rows.
    """
    (rows, n), lanes, panels, wide = M.shape, net.lanes, net.panels, net.wide
    squares = rows - rows % lanes
    for r in range(0, squares, lanes):
        out = view(panels, (first + r // wide, j * n, r % wide), (n, lanes))
        transpose(net.kernels.transpose, view(M, (r, 0), (lanes, n)), out)
    for r in range(squares, rows):
        for k in range(n):
            panels[first + r // wide, j * n + k, r % wide] = M[r, k]


def examples_stage(net, item):
    """Examples of the data set into a mini-batch."""
    B, batch = net.B, item.number * net.B
    if len(net.order) == 0:
        return 0  # they are there
    for s in range(item.first, item.last):
        example = net.order[batch + s]
        for t in range(net.T):
            for d in range(net.x.shape[1]):
                net.x[t * B + s, d] = net.source[t, example, d]
        for o in range(net.target.shape[1]):
            net.target[s, o] = net.labels[example, o]
    return 0


def output_stage(net, item):
    """error = y V + b_out - target, and what the backward pass begins with: dy of the
    last step and dc.
    """
    top, H, (B, O) = len(net.h) - 1, net.H, net.error.shape
    n, m = net.T * B, (net.T - 1) * B  # rows of the last y and its gradient
    scale = net.scale.dtype.type(2) / net.scale.dtype.type(B * O)
    for s in range(item.first, item.last):
        for k in range(net.dy.shape[2]):
            net.dy[top, m + s, k] = 0
            for layer in range(top + 1):
                net.dc[layer, s, k] = 0
        for o in range(O):
            total = net.b_out[o] - net.target[s, o]
            for k in range(H):
                total += net.h[top, n + s, k] * net.V[k, o]
            net.error[s, o] = total
            for k in range(H):
                net.dy[top, m + s, k] += scale * total * net.V[k, o]
    return 0


@part
def output_gradient(net):
    """gV, gb_out += scale times their gradients; the mean squared error."""
    top, n, H, (B, O) = len(net.h) - 1, net.T * net.B, net.H, net.error.shape
    real = net.scale.dtype.type
    scale = real(2) / real(B * O) * net.scale[0]
    loss = real(0)
    for o in range(O):
        total = real(0)
        for s in range(B):
            total += net.error[s, o]
            loss += net.error[s, o] * net.error[s, o]
        net.gb_out[o] += scale * total
        for k in range(H):
            total = real(0)
            for s in range(B):
                total += net.h[top, n + s, k] * net.error[s, o]
            net.gV[k, o] += scale * total
    return loss / real(B * O)
