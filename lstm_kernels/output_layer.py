"""Output layers z = y V + b_out and their losses, forward and back.

A loss of several mini-batches, or of the shares of one, is a sum: each is divided by
the `count` of all of them, not by its own.
"""

import numpy as np

from .blas import single_threaded


def log_softmax(y, V, b_out):
    """log softmax(y V + b_out), (T, B, O), stable: no exponent is above zero."""
    with single_threaded(), np.errstate(over="ignore", invalid="ignore"):
        z = (_rows(y) @ V + b_out).reshape(*y.shape[:2], -1)
        z -= z.max(axis=2, keepdims=True)
        return z - np.log(np.exp(z).sum(axis=2, keepdims=True))


def cross_entropy_and_dz(y, V, b_out, symbols, count):
    """The sum of -log p of `symbols` (T, B), integers, over `count`; negative ones are
    left out. And the gradient of z (T, B, O), None where the loss is not finite.
    """
    log_p, places = log_softmax(y, V, b_out), np.nonzero(symbols >= 0)
    with np.errstate(over="ignore"):
        loss = float(-log_p[*places, symbols[places]].sum() / count)
    if not np.isfinite(loss):
        return loss, None
    dz = np.exp(log_p)
    dz[*places, symbols[places]] -= 1
    dz[symbols < 0] = 0  # not a product: what is left out may be NaN
    dz /= count
    return loss, dz


def squared_error_and_dz(y, V, b_out, target, count):
    """The squares of z[-1] - target (B, O), summed over outputs and samples, over
    `count` numbers; and the gradient of z[-1] (B, O), None where the loss is not
    finite.
    """
    with single_threaded(), np.errstate(over="ignore", invalid="ignore"):
        error = y[-1] @ V + b_out - target
        loss = float(np.vdot(error, error) / count)
        return loss, error * (2 / count) if np.isfinite(loss) else None


def back(y, V, dz):
    """The gradients of y, V and b_out from that of z, (T, B, O), or of z[-1], (B, O);
    None: zeros.
    """
    if dz is None:
        return np.zeros_like(y), np.zeros_like(V), np.zeros_like(V[0])
    with single_threaded(), np.errstate(over="ignore", invalid="ignore"):
        if dz.ndim == 2:
            dy = np.zeros_like(y)
            dy[-1] = dz @ V.T
            return dy, y[-1].T @ dz, dz.sum(axis=0)
        dy = (_rows(dz) @ V.T).reshape(y.shape)
        return dy, _rows(y).T @ _rows(dz), _rows(dz).sum(axis=0)


def _rows(a):
    """(T, B, n) as (T * B, n)."""
    return a.reshape(-1, a.shape[2])
