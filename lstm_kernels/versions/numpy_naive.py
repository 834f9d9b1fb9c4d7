"""`numpy-naive`: a batch at a time, eight products per LSTM step, one for each gate of
x and of h.

What changed from `numpy-sample`: the samples of a mini-batch are the rows of a matrix,
so a product is a GEMM, and its panels run on threads. Bounded by small GEMMs: each
reads its weights for one step only, and every point-wise operation is a pass of its
own. It is the baseline of the optimisation study.
"""

from functools import partial

import numpy as np

from ..blas import product
from ..cores import cores
from ..params import Layer
from ..reference import Tape, blocks, sigmoid
from .base import Network


def layer_forward(cell, layer, x, h0, c0, *, product=np.matmul):
    """The reference's layer_forward with a product per gate, step and operand."""
    (T, B, _), H, K = x.shape, layer.W.shape[0], len(cell.gates)
    forward, _ = cell.make(np.tanh, sigmoid)
    U, W, b = (blocks(a, K) for a in (layer.U, layer.W, layer.b))
    h, c = np.empty((T + 1, B, H), x.dtype), np.empty((T + 1, B, H), x.dtype)
    gates = np.empty((T, B, K * H), x.dtype)
    h[0], c[0] = h0, c0
    for t in range(T):
        a = [product(x[t], U[k]) + product(h[t], W[k]) + b[k] for k in range(K)]
        *gate, h[t + 1], c[t + 1] = forward(*a, c[t])
        gates[t] = np.concatenate(gate, axis=1)
    return Tape(x, h, c, gates)


def layer_backward(cell, layer, tape, dy, dh, dc, *, product=np.matmul):
    """The reference's layer_backward with a product per gate, step and operand."""
    (T, _, _), K = tape.x.shape, len(cell.gates)
    _, backward = cell.make(np.tanh, sigmoid)
    grad = Layer(*(np.zeros_like(a) for a in (layer.U, layer.W, layer.b)))
    U, W = blocks(layer.U, K), blocks(layer.W, K)
    dU, dW, db = (blocks(a, K) for a in (grad.U, grad.W, grad.b))
    dx = np.empty_like(tape.x)
    for t in reversed(range(T)):
        gates = blocks(tape.gates[t], K)
        *da, dc = backward(dy[t] + dh, dc, *gates, tape.c[t], tape.c[t + 1])
        for k in range(K):
            dU[k] += product(tape.x[t].T, da[k])
            dW[k] += product(tape.h[t].T, da[k])
            db[k] += da[k].sum(axis=0)
        dh = sum(product(da[k], W[k].T) for k in range(K))
        dx[t] = sum(product(da[k], U[k].T) for k in range(K))
    return grad, dx, dh, dc


class NumpyNaive(Network):
    name = "numpy-naive"
    layer_forward = staticmethod(layer_forward)
    layer_backward = staticmethod(layer_backward)

    def __init__(self, params, threads=None):
        super().__init__(params, threads)
        self._threads = self._threads or cores()
        on_threads = partial(product, threads=self._threads)
        self.layer_forward = partial(self.layer_forward, product=on_threads)
        self.layer_backward = partial(self.layer_backward, product=on_threads)
