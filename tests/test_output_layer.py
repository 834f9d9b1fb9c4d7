"""Output layers and their losses: against finite differences, at the ends of the range,
left out.
"""

import numpy as np
import pytest

from lstm_kernels.output_layer import (
    back,
    cross_entropy_and_dz,
    log_softmax,
    squared_error_and_dz,
)
from lstm_report.measure.comparer import compare

T, B, H, O = 4, 3, 5, 6
COUNT = 10


def example(dtype=np.float64):
    """y (T, B, H), V (H, O), b_out (O,), symbols (T, B), of which five are left out,
    target.
    """
    rng = np.random.default_rng(0)
    y, V, b_out, target = (
        rng.standard_normal(s) for s in ((T, B, H), (H, O), (O,), (B, O))
    )
    symbols = rng.integers(0, O, (T, B))
    symbols[2:, 1], symbols[1:, 2] = -1, -7
    return [a.astype(dtype) for a in (y, V, b_out)], symbols, target.astype(dtype)


def with_grads(loss_and_dz):
    """The loss and the gradients of y, V and b_out, as a stage of a pipeline has
    them.
    """

    def loss_and_grads(y, V, b_out, wanted, count):
        loss, dz = loss_and_dz(y, V, b_out, wanted, count)
        return loss, *back(y, V, dz)

    return loss_and_grads


squared_error_and_grads = with_grads(squared_error_and_dz)
cross_entropy_and_grads = with_grads(cross_entropy_and_dz)


def finite_differences(loss, arrays):
    """The gradient of loss() by each number of arrays, in their own shapes."""
    want = {name: np.zeros_like(a) for name, a in arrays.items()}
    for name, a in arrays.items():
        for at in np.ndindex(a.shape):
            middle, eps = a[at], 1e-6
            a[at] = middle + eps
            up = loss()
            a[at] = middle - eps
            want[name][at] = (up - loss()) / (2 * eps)
            a[at] = middle
    return want


def check_grads(loss_and_grads, loss, wanted):
    """Loss and gradients against the definition, and that the inputs are as they
    were.
    """
    arrays, *_ = example()
    named = dict(zip(("y", "V", "b_out"), arrays, strict=True))
    want = {"loss": loss(*arrays)} | finite_differences(lambda: loss(*arrays), named)
    kept = [a.copy() for a in (*arrays, wanted)]
    got = loss_and_grads(*arrays, wanted, COUNT)
    compare(dict(zip(("loss", *named), got, strict=True)), want, 1e-8)
    for a, before in zip((*arrays, wanted), kept, strict=True):
        np.testing.assert_array_equal(a, before)


def test_cross_entropy_against_its_definition():
    _, symbols, _ = example()

    def loss(y, V, b_out):
        nats = 0.0
        for t, b in np.argwhere(symbols >= 0):
            z = y[t, b] @ V + b_out
            nats -= np.log(np.exp(z[symbols[t, b]]) / np.exp(z).sum())
        return nats / COUNT

    check_grads(cross_entropy_and_grads, loss, symbols)


def test_squared_error_against_its_definition():
    *_, target = example()

    def loss(y, V, b_out):
        total = 0.0
        for b, o in np.ndindex(B, O):
            total += (y[-1, b] @ V[:, o] + b_out[o] - target[b, o]) ** 2
        return total / COUNT

    check_grads(squared_error_and_grads, loss, target)


def test_pre_activations_where_exp_has_no_number():
    """Pre-activations of 10 000 and of -10 000, where exp has neither."""
    for dtype in (np.float32, np.float64):
        z = np.array([1e4, -1e4, 0, 1e4 - 1], dtype)
        y, V = np.ones((1, 1, 1), dtype), np.zeros((1, 4), dtype)
        log_p = log_softmax(y, V, z)
        assert log_p.dtype == dtype
        top = -np.log1p(np.exp(-1.0))
        want = np.array([0, -2e4, -1e4, -1]) + top
        compare({"p": log_p[0, 0]}, {"p": want}, 1e-6)
        same = log_softmax(y, V, -np.full(4, 1e4, dtype))
        compare({"p": same[0, 0]}, {"p": np.full(4, -np.log(4))}, 1e-6)
        loss, dy, dV, db_out = cross_entropy_and_grads(y, V, z, np.array([[1]]), 1)
        assert loss == pytest.approx(2e4 - top, rel=1e-6)
        db = np.exp(want) - [0, 1, 0, 0]
        compare({"b_out": db_out, "V": dV[0]}, {"b_out": db, "V": db}, 1e-6)
        assert not dy.any(), "V is zero"


def test_steps_without_a_symbol_are_left_out():
    """Steps without a symbol have no gradient and no part in any, even where they are
    not finite: here the output layer of y = 2 is beyond float32.
    """
    y = np.ones((2, 1, 1), np.float32)
    V, b_out = np.array([[2e38, -2e38]], np.float32), np.zeros(2, np.float32)
    symbols = np.array([[0], [-1]])
    want = cross_entropy_and_grads(y, V, b_out, symbols, 1)
    y[1] = 2
    got = cross_entropy_and_grads(y, V, b_out, symbols, 1)
    names = "loss", "y", "V", "b_out"
    compare(dict(zip(names, got, strict=True)), dict(zip(names, want, strict=True)), 0)
    arrays, symbols, _ = example()
    loss, *grads = cross_entropy_and_grads(*arrays, np.full_like(symbols, -1), COUNT)
    assert loss == 0
    assert not any(a.any() for a in grads)
    dy = cross_entropy_and_grads(*arrays, symbols, COUNT)[1]
    np.testing.assert_array_equal(dy.any(axis=2), symbols >= 0)


def test_a_loss_that_is_not_finite():
    """No warning, the loss as it is, and gradients of zero."""
    (y, V, b_out), symbols, target = example(np.float32)
    V[...] = 3e38
    for function, wanted in (
        (cross_entropy_and_grads, symbols),
        (squared_error_and_grads, target),
    ):
        loss, *grads = function(np.abs(y), V, b_out, wanted, COUNT)
        assert not np.isfinite(loss)
        for a, like in zip(grads, (y, V, b_out), strict=True):
            np.testing.assert_array_equal(a, np.zeros_like(like))
