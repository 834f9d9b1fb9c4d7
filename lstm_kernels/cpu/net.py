"""The arrays of a pass, which compiled code is given, and their shapes.

T, B, D, H, L  steps, samples, inputs, hidden units, layers; O outputs
J              unit blocks; K units: numbers of a row of gates (`packing.py`)
P              hidden units with padding, X: inputs with padding
A              steps whose gates are kept: T, or in inference `input_steps`

A row is (t, sample): row t B + s of step t and sample s. Slot 0 of h and c is the
initial state; step t reads slot t and writes slot t + 1, so it writes row (t + 1) B +
s.
"""

from typing import NamedTuple

import numpy as np

# Columns of `offsets`: the first rows of U, W and b in theta, the first panels of U^T
# and W^T.
U_ROW, W_ROW, B_ROW, U_PANEL, W_PANEL = range(5)


class Kernels(NamedTuple):
    """Addresses of micro-kernels; 0 where the pass needs none."""

    inputs: int = 0
    forward: int = 0
    backward: int = 0
    times_transpose_U: int = 0
    times_transpose_W: int = 0
    small_input_gradient: int = 0
    gradient_U: int = 0
    gradient_W: int = 0
    gradient_b: int = 0
    transpose: int = 0


class Net(NamedTuple):
    """The arrays of a pass. Those that it does not need are empty."""

    T: int
    B: int
    H: int
    J: int
    units: int  # of a unit block
    wide: int  # of a wide unit block
    lanes: int  # of a vector
    input_steps: int  # steps whose inputs are multiplied at once
    back_steps: int  # likewise, of gradients from the layer above
    keeps_gates: int  # of all steps, as training needs them?
    has_c: int  # else c is h
    starts: int  # has the first step a product with W? not of zeros, for LSTM and GRU
    descends: int  # are gradients added to the parameters?
    input_gradient: int  # is the gradient of x wanted?
    state_gradient: int  # is that of the initial state?
    has_loss: int  # does dy come from a loss? else it is the caller's
    kernels: Kernels

    control: np.ndarray  # (16,): words of the scheduler (`scheduler.py`)
    x: np.ndarray  # (T B, D)
    theta: np.ndarray  # (R, K units)
    panels: np.ndarray  # (N, J K units, wide)
    offsets: np.ndarray  # (L, 5): where each layer begins in theta and panels
    h: np.ndarray  # (L, (T + 1) B, P)
    c: np.ndarray  # the same; h itself for a cell without c
    a: np.ndarray  # (L, P / units, A B, K units): gates
    fed: np.ndarray  # (3, K): of U, W, b the block of a plain matrix, or -1, of a gate

    da: np.ndarray  # (L, P / units, T B, K units): gradients of pre-activations
    dy: np.ndarray  # (L, T B, P): gradients of h from above
    dh: np.ndarray  # (L, B, P): of the final h
    dc: np.ndarray  # (L, B, P): of c, or of h where that is c; from the final one on
    dh0: np.ndarray  # (L, B, P): of the initial h
    dx: np.ndarray  # (T B, X)
    zeros: np.ndarray  # (1, wide)
    ones: np.ndarray  # (GRAIN, 1): the input of the bias
    gradient: np.ndarray  # (R, K units): of theta, or theta itself
    plain: np.ndarray  # gradients of the plain matrices U, W, b, one behind another
    plain_first: np.ndarray  # (L, 3): where each begins; in PyTorch's form (L, 4)

    target: np.ndarray  # (B, O)
    V: np.ndarray  # (H, O)
    b_out: np.ndarray  # (O,)
    gV: np.ndarray  # gradients of V and b_out, or V and b_out themselves
    gb_out: np.ndarray
    error: np.ndarray  # (B, O)
    scale: np.ndarray  # (1,): of gradients: minus the learning rate, or 1
    losses: np.ndarray  # (steps of a call,)
    # Of an epoch: the examples of the data set, their labels, and the order, steps x B
    # indices; empty where x and target are there already.
    source: np.ndarray  # (T, N, D)
    labels: np.ndarray  # (N, O)
    order: np.ndarray
