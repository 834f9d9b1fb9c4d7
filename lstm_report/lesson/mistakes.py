"""Wrong on purpose, for the notebooks to catch: parallelisations that do not work, and
cells with the slips of a source.
"""

from dataclasses import replace

import numpy as np
from numba import prange

from lstm_kernels import reference
from lstm_kernels.cells import CELLS, lstm
from lstm_kernels.params import expand
from lstm_kernels.versions.numba_sample import (
    NumbaSample,
    add_product,
    compiled,
    forward_units,
)

from ..measure.comparer import TOLERANCE, MismatchError, compare


def forward_steps(x, U, W, b, h, c, gates):
    """WRONG: `forward_samples` with prange over the steps, although step t reads what
    step t-1 writes.
    """
    T, B, _ = x.shape
    for t in prange(T):
        for s in range(B):
            a = gates[t, s]
            a[:] = b
            add_product(a, x[t, s], U)
            add_product(a, h[t, s], W)
            forward_units(a, h[t + 1, s], c[t, s], c[t + 1, s])


def parallel_over_time(params, x):
    """Outputs (T, B, H) of a one-layer network whose steps run at the same time: a race
    between threads, right when each happens to start after the one before has ended.
    """
    cell = CELLS[params.cell]
    layer, (T, B, _) = expand(cell, params.layers[0]), x.shape
    h, c = np.zeros((2, T + 1, B, params.hidden_size), x.dtype)
    gates = np.empty((T, B, layer.W.shape[1]), x.dtype)
    compiled(forward_steps, cell, x.dtype)(x, layer.U, layer.W, layer.b, h, c, gates)
    return h[1:]


def second_half_first(params, x):
    """Outputs of two threads whose second runs ahead, on one thread: its half of the
    steps begins with the zeros that stand where the first half has not put its last
    state yet.
    """
    net, middle = NumbaSample(params, threads=1), len(x) // 2
    return np.concatenate([net.forward(half)[0] for half in (x[:middle], x[middle:])])


def caught(got, want):
    """What the comparer says about outputs `got`, or None where it finds no fault."""
    try:
        compare({"y": got}, {"y": want}, TOLERANCE[want.dtype])
    except MismatchError as error:
        return str(error)
    return None


def races(params, x, y, runs=20):
    """What the comparer says of `second_half_first`, and how many of so many runs of
    `parallel_over_time` it caught; y: the right outputs. Raises AssertionError where it
    finds no fault in the first.
    """
    ahead = caught(second_half_first(params, x), y)
    assert ahead
    assert not caught(y, y)
    wrong = (caught(parallel_over_time(params, x), y) for _ in range(runs))
    return ahead, sum(said is not None for said in wrong)


def sigmoid_g(tanh, sigmoid):
    """WRONG: `lstm` with a sigmoid in g, as Optim-LSTM prints it."""

    def forward(i_bar, f_bar, g_bar, o_bar, c_prev):
        i, f, g, o = (sigmoid(bar) for bar in (i_bar, f_bar, g_bar, o_bar))
        c = f * c_prev + i * g
        return i, f, g, o, o * tanh(c), c

    return forward, lstm(tanh, sigmoid)[1]


def late_c(tanh, sigmoid):
    """WRONG: `lstm` whose h shows the cell state of the step before, as Optim-LSTM
    prints it.
    """

    def forward(i_bar, f_bar, g_bar, o_bar, c_prev):
        i, f, g, o, _, c = lstm(tanh, sigmoid)[0](i_bar, f_bar, g_bar, o_bar, c_prev)
        return i, f, g, o, o * tanh(c_prev), c

    return forward, lstm(tanh, sigmoid)[1]


def layer_forward_of(make):
    """`reference.layer_forward` with the forward function of `make` in the place of its
    cell's.
    """
    return lambda cell, *rest: reference.layer_forward(replace(cell, make=make), *rest)
