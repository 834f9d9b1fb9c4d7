"""`sequential`: plain Python loops over samples, steps and units, the first row of the
source's table.

Nothing is parallel. Bounded by the interpreter: some 30 ns for each multiply-add. It
computes in Python's floats, which are float64, and rounds its results to the
parameters' dtype.
"""

import math

import numpy as np

from ..cells import sigmoid_of
from ..params import Layer
from ..reference import Tape
from .base import Network

sigmoid = sigmoid_of(math.tanh)


def add_product(out, vector, matrix):
    """out += vector @ matrix, on lists."""
    for value, row in zip(vector, matrix, strict=True):
        for j in range(len(out)):
            out[j] += value * row[j]


def add_outer(out, column, row):
    """out += outer(column, row), on lists."""
    for value, line in zip(column, out, strict=True):
        for j in range(len(line)):
            line[j] += value * row[j]


def layer_forward(cell, layer, x, h0, c0):
    """The reference's layer_forward, sample by sample, step by step, unit by unit."""
    (T, B, _), H = x.shape, layer.W.shape[0]
    forward, _ = cell.make(math.tanh, sigmoid)
    U, W, b, steps = layer.U.tolist(), layer.W.tolist(), layer.b.tolist(), x.tolist()
    h, c = ([a.tolist(), *([None] * B for _ in range(T))] for a in (h0, c0))
    gates = [[None] * B for _ in range(T)]
    for s in range(B):
        for t in range(T):
            a = b.copy()
            add_product(a, steps[t][s], U)
            add_product(a, h[t][s], W)
            h[t + 1][s], c[t + 1][s] = [0.0] * H, [0.0] * H
            for j in range(H):
                *gate, h[t + 1][s][j], c[t + 1][s][j] = forward(*a[j::H], c[t][s][j])
                a[j::H] = gate
            gates[t][s] = a
    return Tape(x, *(np.array(values, x.dtype) for values in (h, c, gates)))


def layer_backward(cell, layer, tape, dy, dh, dc):
    """The reference's layer_backward, sample by sample, step by step, unit by unit."""
    (T, B, D), H, K = tape.x.shape, layer.W.shape[0], len(cell.gates)
    _, backward = cell.make(math.tanh, sigmoid)
    U_T, W_T = layer.U.T.tolist(), layer.W.T.tolist()
    x, h, c, gates, dy = (a.tolist() for a in (tape.x, tape.h, tape.c, tape.gates, dy))
    dU = np.zeros((D, K * H)).tolist()
    dW = np.zeros((H, K * H)).tolist()
    db = [0.0] * (K * H)
    dx, dh, dc = np.zeros((T, B, D)).tolist(), dh.tolist(), dc.tolist()
    for s in range(B):
        for t in reversed(range(T)):
            da = [0.0] * (K * H)
            for j in range(H):
                *da[j::H], dc[s][j] = backward(
                    dy[t][s][j] + dh[s][j],
                    dc[s][j],
                    *gates[t][s][j::H],
                    c[t][s][j],
                    c[t + 1][s][j],
                )
            dh[s] = [0.0] * H
            add_product(dh[s], da, W_T)
            add_product(dx[t][s], da, U_T)
            add_outer(dU, x[t][s], da)
            add_outer(dW, h[t][s], da)
            for k in range(K * H):
                db[k] += da[k]
    dU, dW, db, dx, dh, dc = (
        np.array(a, tape.x.dtype) for a in (dU, dW, db, dx, dh, dc)
    )
    return Layer(dU, dW, db), dx, dh, dc


class Sequential(Network):
    name, parallel = "sequential", False
    layer_forward = staticmethod(layer_forward)
    layer_backward = staticmethod(layer_backward)
