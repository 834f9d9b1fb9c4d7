"""Kernels in which a thread computes a sample from its first step to its last, and
back; then a thread computes a parameter's gradient.

Arrays are those of `layout`, the sample their last axis: neighbouring threads read
neighbouring addresses.
"""

from .device import cuda
from .device_functions import add, cell_backward, cell_forward, dot, load, total, zeros
from .layout import (
    D,
    H,
    K,
    L,
    O,
    P,
    U_gates,
    W_gates,
    layer_at,
    parameter,
    real,
    weight_at,
)


def one_thread():
    """First item and stride without thread positioning: one thread takes them all."""
    return 0, 1


def position():
    """First item and stride of a thread: one each, as long as there are enough."""
    return cuda.grid(1), cuda.gridsize(1)


where = position  # `build` sets it: cuda-v1 has one_thread


def forward_sample(s, x, theta, h, c, gates):
    """All steps of all layers of sample s, from the state in slot 0 of h and c."""
    for l in range(L):
        inputs = D if l == 0 else H
        for t in range(x.shape[0]):
            for j in range(H):
                a = load(theta, weight_at(l, inputs + H, j))  # b of unit j
                for k in range(inputs):
                    v = x[t, k, s] if l == 0 else h[l - 1, t + 1, k, s]
                    a = add(a, v, load(theta, weight_at(l, k, j)))
                for k in range(H):
                    w = load(theta, weight_at(l, inputs + k, j))
                    a = add(a, h[l, t, k, s], w)
                out = cell_forward(*a, c[l, t, j, s])
                for k in range(K):
                    gates[l, t, j, k, s] = out[k]
                h[l, t + 1, j, s] = out[K]
                c[l, t + 1, j, s] = out[K + 1]


def values(a, l, t, j, s):
    """The K numbers of unit j of gates or da."""
    return tuple(a[l, t, j, k, s] for k in range(K))


def product_back(theta, l, row, da, t, s):
    """The sum over units of sample s of da of step t times a row of weights."""
    a = zeros()
    for j in range(da.shape[2]):  # H, as a literal, would be written out
        a = dot(a, values(da, l, t, j, s), load(theta, weight_at(l, row, j)))
    return total(a)


def backward_sample(s, theta, c, gates, dy, state, da, dx):
    """All steps back: dy becomes the layer below's, the gradients in `state` those of
    the initial state.
    """
    for l in range(L - 1, -1, -1):
        inputs = D if l == 0 else H
        for t in range(dy.shape[0] - 1, -1, -1):
            for j in range(H):
                out = cell_backward(
                    dy[t, j, s] + state[0, l, j, s],  # dh
                    state[1, l, j, s],  # dc
                    *values(gates, l, t, j, s),
                    c[l, t, j, s],
                    c[l, t + 1, j, s],
                )
                for k in range(K):
                    da[l, t, j, k, s] = out[k]
                state[1, l, j, s] = out[K]
            for j in range(H):
                state[0, l, j, s] = product_back(theta, l, inputs + j, da, t, s)
            for k in range(inputs):
                value = product_back(theta, l, k, da, t, s)
                if l == 0:
                    dx[t, k, s] = value
                else:
                    dy[t, k, s] = value


def readout_sample(s, target, theta, h, dy, d_out):
    """d_out of sample s, and dy: zero but for the last step, which the read-out
    uses.
    """
    V, T = layer_at(L), dy.shape[0]
    scale = real(2) / real(dy.shape[2] * O)
    for k in range(H):
        for t in range(T):
            dy[t, k, s] = real(0)
    for o in range(O):
        error = theta[V + H * O + o] - target[o, s]  # b_out and target of output o
        for k in range(H):
            error += h[L - 1, T, k, s] * theta[V + k * O + o]  # row k of V, output o
        d_out[o, s] = error * scale
        for k in range(H):
            dy[T - 1, k, s] += error * scale * theta[V + k * O + o]


def forward(x, theta, h, c, gates, state, y):
    """Kernel: y, and the final state over the initial one in `state`."""
    first, stride = where()
    T = x.shape[0]
    for s in range(first, x.shape[2], stride):
        for l in range(L):
            for j in range(H):
                h[l, 0, j, s] = state[0, l, j, s]
                c[l, 0, j, s] = state[1, l, j, s]
        forward_sample(s, x, theta, h, c, gates)
        for j in range(H):
            for l in range(L):
                state[0, l, j, s] = h[l, T, j, s]
                state[1, l, j, s] = c[l, T, j, s]
            for t in range(T):
                y[t, j, s] = h[L - 1, t + 1, j, s]


def backward(theta, c, gates, dy, state, da, dx, d_out):
    """Kernel: da and dx from dy and from the gradients in `state`, which become the
    initial state's.
    """
    first, stride = where()
    for s in range(first, dy.shape[2], stride):
        for o in range(O):
            d_out[o, s] = real(0)  # y does not depend on the read-out
        backward_sample(s, theta, c, gates, dy, state, da, dx)


def step(x, target, theta, h, c, gates, dy, state, da, dx, d_out):
    """Kernel: a mini-batch, forward and back, for `gradients`."""
    first, stride = where()
    for s in range(first, x.shape[2], stride):
        for l in range(L):
            for j in range(H):
                h[l, 0, j, s] = c[l, 0, j, s] = real(0)
                state[0, l, j, s] = state[1, l, j, s] = real(0)
        forward_sample(s, x, theta, h, c, gates)
        readout_sample(s, target, theta, h, dy, d_out)
        backward_sample(s, theta, c, gates, dy, state, da, dx)


def layer_gradient(p, x, h, da):
    """Number p of the layers' gradients, a sum over steps and samples in order."""
    l, row, j, k = parameter(p)
    inputs = D if l == 0 else H
    T, B = da.shape[1], da.shape[4]
    value = real(0)
    for t in range(T):
        for s in range(B):
            d = da[l, t, j, k, s]
            if row == inputs + H:  # b
                value += d
            elif row >= inputs:
                value += h[l, t, row - inputs, s] * d
            elif l == 0:
                value += x[t, row, s] * d
            else:
                value += h[l - 1, t + 1, row, s] * d
    fed = row == inputs + H or (U_gates[k] if row < inputs else W_gates[k])
    return value if fed else real(0)


def readout_gradient(q, h, d_out):
    """Number q of V's and b_out's gradients, and behind them the loss."""
    T, B = h.shape[1] - 1, d_out.shape[1]
    value = real(0)
    for s in range(B):
        if q < H * O:  # row q // O of V, output q % O
            value += h[L - 1, T, q // O, s] * d_out[q % O, s]
        elif q < (H + 1) * O:
            value += d_out[q - H * O, s]
        else:
            for o in range(O):
                error = d_out[o, s] * real(B * O) / real(2)
                value += error * error / real(B * O)
    return value


def gradients(x, h, da, d_out, gradients):
    """Kernel: the gradient of each parameter, and the loss behind them."""
    first, stride = where()
    for p in range(first, P + 1, stride):
        if p < layer_at(L):
            gradients[p] = layer_gradient(p, x, h, da)
        else:
            gradients[p] = readout_gradient(p - layer_at(L), h, d_out)
