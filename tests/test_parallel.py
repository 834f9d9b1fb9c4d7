"""A model over the ranks of a job, in one process: what it refuses, and what is left of
a step that was interrupted.
"""

import linecache
import re
import sys
from contextlib import suppress

import numpy as np
import pytest

import lstm_kernels as lk
from lstm_kernels import reference
from lstm_kernels.ranks import launch
from lstm_kernels.ranks.parallel import Parallel
from lstm_report.studies import strings

pytestmark = pytest.mark.skipif(
    bool(launch.why_unavailable()), reason=f"no jobs here: {launch.why_unavailable()}"
)
RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((4, 5, 2)).astype(np.float32)
TARGET = RNG.standard_normal((5, 3)).astype(np.float32)
PARAMS = lk.Params.init(2, 8, num_layers=2, output_size=3)
E = np.arange(6, dtype=np.float32).reshape(3, 2)
SYMBOLS = {"loss": "symbols"}
STRINGS = strings.one_hot(strings.reber(3))
X, LENGTHS = STRINGS.x, STRINGS.target
GAP = np.concatenate([X[:3], np.zeros_like(X[:1]), X[4:]])
TWO = X.copy()
TWO[0] = 1
NOISE = np.random.default_rng(0).random(X.shape, np.float32)


def refused(call, message, error=ValueError):
    with pytest.raises(error, match=re.escape(message)):
        call()


@pytest.mark.parametrize(
    ("x", "target", "message"),
    [
        (ROWS, TARGET[:, :1], "target: got shape (5, 1), want"),
        (ROWS, np.full_like(TARGET, np.nan), "target: got nan"),
        (ROWS[..., :1], TARGET, "x: got shape (4, 5, 1), want"),
        (X, LENGTHS - 1, "x: got ["),
        (X, LENGTHS - 0.5, "target: got"),
        (X, LENGTHS + 99, "target: got"),
        (X[:1], np.ones_like(LENGTHS), "target: got 1.0, want"),
        (X, LENGTHS[:2], "target: got shape (2, 1), want (3, 1)"),
        (NOISE, LENGTHS, "x: got ["),
        (TWO, LENGTHS, "x: got ["),
        (GAP, LENGTHS, "x: got ["),
        (X[..., :6], LENGTHS, "x: got shape"),
    ],
)
def test_examples_are_checked(x, target, message):
    model = Parallel(PARAMS)
    if x.shape[1] != 5:
        model = Parallel(lk.Params.init(7, 8, output_size=7), **SYMBOLS)
    refused(lambda: model.loss_and_grads(x, target), message)
    refused(lambda: model.step(x, target, 0.1), message)


@pytest.mark.parametrize(
    ("params", "options", "message"),
    [
        (lk.Params.init(2, 8), {}, "params: got no output layer"),
        (PARAMS, {"loss": "first"}, "loss: got 'first', want one of"),
        (PARAMS, SYMBOLS, "params: got 2 inputs, want 3"),
        (PARAMS, {"micro_batches": 0}, "micro_batches: got 0"),
        (PARAMS, {"stages": [2]}, "stages: got [2], want 3 layers in all"),
        (PARAMS, {"stages": [1, 2]}, "stages: got 2, want a divisor of 1"),
        (PARAMS, {"stages": [3, 0]}, "stages: got 0, want an integer"),
        (PARAMS, {"embedding": E}, "loss: got 'last' with an embedding"),
        (PARAMS, {"embedding": E[:, :1], **SYMBOLS}, "embedding: got shape (3, 1)"),
        (PARAMS, {"embedding": E[:2], **SYMBOLS}, "embedding: got shape (2, 2)"),
    ],
)
def test_models_that_cannot_be(params, options, message):
    refused(lambda: Parallel(params, **options), message)


def test_it_is_trained_as_a_network_is():
    dataset, model = lk.Dataset(ROWS, TARGET), Parallel(PARAMS, micro_batches=3)
    alone = lk.network("numpy", PARAMS)
    losses, want = (lk.train(net, dataset, 2, 4, 0.1).loss for net in (model, alone))
    np.testing.assert_allclose(losses, want, rtol=1e-5)
    for name, array in alone.params().arrays().items():
        np.testing.assert_allclose(model.gather()[name], array, rtol=1e-4, atol=1e-6)
    refused(lambda: model.step(ROWS, [[1.0]], 0.1), "target: got list", TypeError)
    refused(lambda: model.epoch(dataset, [-1], 2, 0.1), "order: got indices -1 to -1")
    want = "validation: got a Dataset for Parallel, which has no predict, want None"
    validated = {"validation": dataset}
    refused(lambda: lk.train(model, dataset, 2, 2, 0.1, **validated), want, TypeError)
    end = lambda history, _: history.epochs == 2  # noqa: E731
    assert lk.train(model, dataset, 9, 2, 0.1, on_epoch=end).epochs == 2


def test_assign_takes_all_or_nothing():
    model = Parallel(PARAMS)
    loss, _ = model.loss_and_grads(ROWS, TARGET)
    refused(lambda: model.assign([TARGET]), "params: got list, want Stage", TypeError)
    refused(lambda: Parallel(PARAMS, 2), "world: got int, want lstm_k", TypeError)
    named = lk.Params.init(2, 8, num_layers=2, output_size=3, seed=1).arrays()
    for wrong, message in (
        (named | {"V": named["V"][:, :2]}, "V: got shape (8, 2), want (8, 3)"),
        (named | {"b_out": np.full_like(named["b_out"], np.nan)}, "b_out: got nan"),
        ({"V": named["V"]}, "params: got ['V'], want ['layers.0.U"),
    ):
        like = type(model.params()).from_arrays(wrong, "lstm")
        refused(lambda like=like: model.assign(like), message)
        assert same(model.params().arrays(), PARAMS.arrays())
        assert model.loss_and_grads(ROWS, TARGET)[0] == loss


def same(named, others):
    return all(np.array_equal(named[name], a) for name, a in others.items())


def interrupted(stop):
    """Raise KeyboardInterrupt at line number `stop` that a step runs in `ranks/`: the
    model, and how many lines ran.
    """
    model, count = Parallel(PARAMS, micro_batches=2), 0
    before = sys.gettrace()

    def tracer(frame, event, _):
        nonlocal count
        if "lstm_kernels/ranks/" not in frame.f_code.co_filename.replace("\\", "/"):
            return None
        # As a `with` ends Python takes no signal, but shows its line.
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and "with self.network" not in text:
            count += 1
            if count == stop:
                raise KeyboardInterrupt
        return tracer

    sys.settrace(tracer)
    try:
        with suppress(KeyboardInterrupt):
            model.step(ROWS, TARGET, 0.5)
    finally:
        sys.settrace(before)
    return model, count


def test_an_interrupted_step_leaves_old_parameters_or_new_ones():
    """And the next step computes with those and with no gradient of the last one."""
    whole, count = interrupted(0)
    wants = []  # of the old parameters and of the new ones
    for named in (PARAMS.arrays(), whole.params().arrays()):
        other = Parallel(PARAMS, micro_batches=2)
        other.assign(type(other.params()).from_arrays(named, "lstm"))
        loss, grads = other.loss_and_grads(ROWS, TARGET)
        wants.append((named, loss, grads.arrays()))
    assert count > 100
    for stop in range(1, count + 1):
        model, _ = interrupted(stop)
        now = model.params().arrays()
        found = [want for want in wants if same(now, want[0])]
        assert found, f"line {stop}: parameters are neither old nor new"
        assert stop > 1 or found[0] is wants[0]
        loss, grads = model.loss_and_grads(ROWS, TARGET)
        assert loss == found[0][1]
        assert same(grads.arrays(), found[0][2])


def next_symbol(params, x):
    """The mean cross-entropy of the symbols after the first, of one-hot rows x (T, B,
    S), and its gradients: from the definition and the reference.
    """
    y, _, tapes = reference.forward(params, x[:-1])
    p = np.exp(y @ params.V + params.b_out)
    p /= p.sum(axis=2, keepdims=True)
    count = x[1:].sum()
    dz = (p * x[1:].sum(axis=2, keepdims=True) - x[1:]) / count
    grads = reference.backward(params, tapes, dz @ params.V.T)
    grads.V, grads.b_out = np.einsum("tbh,tbo->ho", y, dz), dz.sum(axis=(0, 1))
    return -np.log(p[x[1:] == 1]).sum() / count, grads.arrays()


def test_an_embedding_is_a_product_with_one_hot_rows():
    params = lk.Params.init(5, 8, num_layers=2, output_size=7)
    E = np.random.default_rng(0).standard_normal((7, 5)).astype(np.float32)
    U = params.layers[0].U
    product = lk.Params.from_arrays(params.arrays() | {"layers.0.U": E @ U}, "lstm")
    want_loss, grads = next_symbol(product, X)
    model = Parallel(params, embedding=E, loss="symbols", micro_batches=2)
    padded = np.concatenate([X, np.zeros_like(X)])
    loss, got = model.loss_and_grads(padded, LENGTHS)
    assert loss == pytest.approx(want_loss, rel=1e-5)
    dEU = grads["layers.0.U"]
    want = grads | {"layers.0.U": E.T @ dEU, "E": dEU @ U.T}
    for name, gradient in got.arrays().items():
        near = {"rtol": 1e-4, "atol": 1e-6, "err_msg": name}
        np.testing.assert_allclose(gradient, want[name], **near)
