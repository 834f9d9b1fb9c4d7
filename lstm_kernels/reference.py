"""The truth: a stacked recurrent network in NumPy, forward and back through time
(notation: NOTATION.md).

Shapes: x (T, B, D), y (T, B, H), state a tuple of (L, B, H). T steps, B samples, D
inputs, H hidden units, K pre-activations per unit. Every version is measured against
these functions, and most versions reuse the stack here with layer functions of their
own.
"""

from dataclasses import dataclass

import numpy as np

from .cells import CELLS, sigmoid_of
from .params import Grads, Layer, expand, fold

sigmoid = sigmoid_of(np.tanh)
# Numbers beyond the dtype's range become infinite, and what comes of them NaN, without
# NumPy's warnings: who asks, `training.train` too, looks at the results.
quietly = np.errstate(over="ignore", invalid="ignore")


@dataclass
class Tape:
    """What backward needs of a layer; slot 0 of h and c is the initial state."""

    x: np.ndarray  # (T, B, D)
    h: np.ndarray  # (T+1, B, H)
    c: np.ndarray  # (T+1, B, H)
    gates: np.ndarray  # (T, B, K*H)


def blocks(a, K):
    """The K gate blocks of the last axis, as views."""
    H = a.shape[-1] // K
    return [a[..., k * H : (k + 1) * H] for k in range(K)]


def layer_forward(cell, layer, x, h0, c0, *, product=np.matmul):
    """One layer over all steps: a_t = x_t U + h_{t-1} W + b, then the cell. Returns its
    Tape.
    """
    (T, B, D), H, K = x.shape, layer.W.shape[0], len(cell.gates)
    forward, _ = cell.make(np.tanh, sigmoid)
    h, c = np.empty((T + 1, B, H), x.dtype), np.empty((T + 1, B, H), x.dtype)
    h[0], c[0] = h0, c0
    # Of all steps at once.
    a = product(x.reshape(T * B, D), layer.U).reshape(T, B, K * H)
    for t in range(T):
        a[t] += product(h[t], layer.W)
        a[t] += layer.b
        *gates, h[t + 1], c[t + 1] = forward(*blocks(a[t], K), c[t])
        for block, gate in zip(blocks(a[t], K), gates, strict=True):
            block[...] = gate  # over the pre-activations, which nobody needs again
    return Tape(x, h, c, a)


def layer_backward(cell, layer, tape, dy, dh, dc, *, product=np.matmul):
    """One layer back through time. Returns (gradient of the layer, dx, dh0, dc0).

    dy (T, B, H) is the gradient of every output, dh and dc (B, H) that of the final
    state. The product with W cannot wait, the weight gradients can: they are one
    product over all steps and samples.
    """
    (T, B, D), H, K = tape.x.shape, layer.W.shape[0], len(cell.gates)
    _, backward = cell.make(np.tanh, sigmoid)
    da = np.empty_like(tape.gates)
    for t in reversed(range(T)):
        *d_bar, dc = backward(
            dy[t] + dh, dc, *blocks(tape.gates[t], K), tape.c[t], tape.c[t + 1]
        )
        for block, value in zip(blocks(da[t], K), d_bar, strict=True):
            block[...] = value
        dh = product(da[t], layer.W.T)
    da = da.reshape(T * B, K * H)
    dU = product(tape.x.reshape(T * B, D).T, da)
    dW = product(tape.h[:-1].reshape(T * B, H).T, da)
    db = da.sum(axis=0)
    dx = product(da, layer.U.T).reshape(T, B, D)
    return Layer(dU, dW, db), dx, dh, dc


@quietly
def forward(params, x, state=None, *, layer_forward=layer_forward):
    """The stack, layer by layer. Returns (y, state, tapes)."""
    cell, B, tapes = CELLS[params.cell], x.shape[1], []
    zeros = np.zeros((params.num_layers, B, params.hidden_size), x.dtype)
    h0 = zeros if state is None else state[0]
    c0 = h0 if len(cell.state) == 1 else zeros if state is None else state[1]
    for index in range(params.num_layers):
        full = expand(cell, params.layers[index])
        tapes.append(layer_forward(cell, full, x, h0[index], c0[index]))
        x = tapes[-1].h[1:]
    final = (np.stack([getattr(t, name)[-1] for t in tapes]) for name in cell.state)
    return x, tuple(final), tapes


@quietly
def backward(params, tapes, dy, dstate=None, *, layer_backward=layer_backward):
    """Back through the stack. dy (T, B, H), dstate a tuple of (L, B, H) or None.
    Returns Grads.
    """
    cell, L = CELLS[params.cell], params.num_layers
    zeros = np.zeros((L, dy.shape[1], params.hidden_size), dy.dtype)
    dh = zeros if dstate is None else dstate[0]
    dc = zeros if dstate is None or len(cell.state) == 1 else dstate[1]
    layers, dstates = [None] * L, [None] * L
    for index in reversed(range(L)):
        full = expand(cell, params.layers[index])
        grad, dy, dh0, dc0 = layer_backward(
            cell, full, tapes[index], dy, dh[index], dc[index]
        )
        layers[index] = fold(cell, grad)
        # Without c, c0 is h0.
        dstates[index] = (dh0, dc0) if len(cell.state) == 2 else (dh0 + dc0,)
    state = tuple(np.stack(parts) for parts in zip(*dstates, strict=True))
    grads = Grads(layers, cell=params.cell, x=dy, state=state)
    if params.V is not None:  # y does not depend on the output layer
        grads.V, grads.b_out = np.zeros_like(params.V), np.zeros_like(params.b_out)
    return grads


@quietly
def loss_and_grads(
    params, x, target, *, layer_forward=layer_forward, layer_backward=layer_backward
):
    """Mean squared error of y[-1] V + b_out against target (B, O), and its
    gradients.
    """
    y, _, tapes = forward(params, x, layer_forward=layer_forward)
    loss, dy, V, b_out = output_loss(params, y, target)
    grads = backward(params, tapes, dy, layer_backward=layer_backward)
    grads.V, grads.b_out = V, b_out
    return loss, grads


@quietly
def output_loss(params, y, target):
    """The same loss from y (T, B, H): a float, and its gradients of y, V and b_out."""
    error = y[-1] @ params.V + params.b_out - target  # (B, O)
    d_out = error * (2 / error.size)
    dy = np.zeros_like(y)
    dy[-1] = d_out @ params.V.T
    return float(np.mean(error * error)), dy, y[-1].T @ d_out, d_out.sum(axis=0)
