"""Bad input gets an error that names the argument, what it got and what it wants."""

import numpy as np
import pytest
from conftest import example

import lstm_kernels as lk
from lstm_kernels import data, lab

SHAPE = (2, 4, 3, 2, 5)


def bad(a, at, value):
    a = a.copy()
    a.flat[at] = value
    return a


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda x: x[0], ValueError, r"x: got 2 axes, shape \(3, 2\), want shape \(T, B, 2\)"),
        (lambda x: x[..., :1], ValueError, r"x: got shape \(4, 3, 1\), want \(T, B, 2\)"),
        (lambda x: x[:0], ValueError, r"x: got shape \(0, 3, 2\), want \(T, B, 2\) and no empty"),
        (lambda x: x[:, :0], ValueError, r"x: got shape \(4, 0, 2\)"),
        (lambda x: x.astype(np.float64), TypeError, "x: got dtype float64, want float32"),
        (lambda x: x.astype(np.int32), TypeError, "x: got dtype int32, want float32"),
        (lambda x: x.tolist(), TypeError, "x: got list, want a NumPy array"),
        (lambda x: bad(x, 5, np.nan), ValueError, r"x: got nan at index \[0, 2, 1\], want finite"),
        (lambda x: bad(x, 0, np.inf), ValueError, r"x: got inf at index \[0, 0, 0\]"),
    ],
)
def test_x(version, change, error, message):
    params, x, target = example(SHAPE)
    net = lk.network(version, params)
    for call in (
        lambda x: net.forward(x),
        lambda x: net.loss_and_grads(x, target),
        lambda x: net.step(x, target, 0.1),
    ):
        with pytest.raises(error, match=message):
            call(change(x))


def test_state_dy_and_target(version, cell):
    params, x, target = example(SHAPE, cell)
    net = lk.network(version, params)
    state = tuple(np.zeros((2, 3, 5), np.float32) for _ in range(2 if cell == "lstm" else 1))
    with pytest.raises(TypeError, match="state: got list, want a tuple"):
        net.forward(x, list(state))
    with pytest.raises(TypeError, match="state: got a tuple of 3"):
        net.forward(x, (*state, *state, *state)[:3])
    with pytest.raises(ValueError, match=r"state.h: got shape \(1, 3, 5\), want \(2, 3, 5\)"):
        net.forward(x, tuple(a[:1] for a in state))
    with pytest.raises(RuntimeError, match=r"want forward\(x, training=True\)"):
        net.backward(np.zeros((4, 3, 5), np.float32))
    net.forward(x, training=True)
    with pytest.raises(ValueError, match=r"dy: got shape \(4, 2, 5\), want \(4, 3, 5\)"):
        net.backward(np.zeros((4, 2, 5), np.float32))
    with pytest.raises(ValueError, match=r"dstate.h: got nan"):
        net.backward(np.zeros((4, 3, 5), np.float32), tuple(a * np.nan for a in state))
    with pytest.raises(ValueError, match=r"target: got shape \(3, 1\), want \(3, 2\)"):
        net.loss_and_grads(x, target[:, :1])
    with pytest.raises(ValueError, match="learning_rate: got -1, want a finite number above zero"):
        net.step(x, target, -1)
    with pytest.raises(TypeError, match="learning_rate: got 'fast'"):
        net.step(x, target, "fast")


def test_backward_does_not_use_the_tape_of_old_parameters(version):
    params, x, target = example(SHAPE)
    net = lk.network(version, params)
    y, _ = net.forward(x, training=True)
    net.step(x, target, 0.1)
    with pytest.raises(RuntimeError, match="training=True"):
        net.backward(np.zeros_like(y))


def test_a_network_without_read_out_has_no_loss(version):
    params, x, target = example(SHAPE, output_size=None)
    with pytest.raises(ValueError, match="no read-out"):
        lk.network(version, params).step(x, target, 0.1)


def test_names_and_sizes():
    params, _, _ = example(SHAPE)
    with pytest.raises(ValueError, match="name: got 'cudnn', want one of 'sequential'"):
        lk.network("cudnn", params)
    with pytest.raises(TypeError, match="params: got dict"):
        lk.network("numpy", {})
    with pytest.raises(ValueError, match="cell: got 'mamba', want one of 'rnn', 'lstm', 'gru'"):
        lk.Params.init(1, 2, cell="mamba")
    with pytest.raises(ValueError, match="hidden_size: got 0, want an integer of at least 1"):
        lk.Params.init(1, 0)
    with pytest.raises(TypeError, match=r"input_size: got 1.5, want an integer"):
        lk.Params.init(1.5, 2)
    with pytest.raises(TypeError, match="dtype: got float16, want float32 or float64"):
        lk.Params.init(1, 2, dtype=np.float16)
    with pytest.raises(ValueError, match="PRESET: got 'quick', want one of 'smoke', 'paper'"):
        lab.Notebook("quick")


@pytest.mark.parametrize("threads", [0, -1, 1.5, "two"])
def test_threads(version, threads):
    with pytest.raises((ValueError, TypeError), match="threads: got"):
        lk.network(version, example(SHAPE)[0], threads=threads)


def test_more_threads_than_numba_started_with():
    with pytest.raises(ValueError, match="threads: got 4096, want at most"):
        lk.network("numba-sample", example(SHAPE)[0], threads=4096)


def test_params_of_the_wrong_shape_are_refused(version):
    for name, change in (
        ("U", lambda a: a[:, :-1]),
        ("W", lambda a: a.T.copy()),
        ("b", lambda a: a[:-1]),
        ("W", lambda a: bad(a, 3, np.nan)),
        ("b", lambda a: a.astype(np.float64)),
    ):
        params = example(SHAPE)[0].copy()
        setattr(params.layers[1], name, change(getattr(params.layers[1], name)))
        with pytest.raises((ValueError, TypeError), match=rf"params.layers\[\d\].{name}: got"):
            lk.network(version, params)


def test_assign_refuses_another_form():
    net = lk.network("numpy", example(SHAPE)[0])
    with pytest.raises(ValueError, match="params: got another cell, shape or dtype"):
        net.assign(example((1, 4, 3, 2, 5))[0])


def test_windows_and_data_sets():
    with pytest.raises(ValueError, match=r"length: got 12 for a series of shape \(12,\)"):
        data.windows(np.arange(12.0), 12)
    with pytest.raises(ValueError, match="length: got 0"):
        data.windows(np.arange(12.0), 0)
    with pytest.raises(ValueError, match="x: got nan"):
        data.windows(np.array([1, 2, np.nan, 3, 4]), 2)
    x, target = np.zeros((4, 3, 1), np.float32), np.zeros((2, 1), np.float32)
    with pytest.raises(ValueError, match=r"target: got shape \(2, 1\), want \(3, O\)"):
        lk.Dataset(x, target)
    with pytest.raises(ValueError, match=r"x: got shape \(4, 0, 1\)"):
        lk.Dataset(x[:, :0], target[:0])
