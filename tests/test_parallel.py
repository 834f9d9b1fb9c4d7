"""A model over the ranks of a job, in one process: what it refuses, and what is left of
a step that was interrupted.
"""

import re
import sys

import numpy as np
import pytest
import rank_programs

import lstm_kernels as lk
from lstm_kernels.ranks import launch
from lstm_kernels.ranks.parallel import Parallel
from lstm_kernels.ranks.world import whole_world
from lstm_kernels.strings import Bucketed, NextSymbol, Reber, one_hot

pytestmark = pytest.mark.skipif(
    bool(launch.why_unavailable()), reason=f"no jobs here: {launch.why_unavailable()}"
)


def example():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 5, 2)).astype(np.float32)
    return x, rng.standard_normal((5, 3)).astype(np.float32)


PARAMS = lk.Params.init(2, 8, num_layers=2, output_size=3)
E = np.arange(6, dtype=np.float32).reshape(3, 2)
SYMBOLS = {"loss": "symbols"}
STRINGS = one_hot(Reber().strings(3, seed=0))
X, LENGTHS = STRINGS.x, STRINGS.target
NAN = np.full_like(example()[1], np.nan)
GAP = np.concatenate([X[:3], np.zeros_like(X[:1]), X[4:]])
TWO = X.copy()
TWO[0] = 1
NOISE = np.random.default_rng(0).random(X.shape, np.float32)


@pytest.mark.parametrize(
    ("loss", "x", "target", "message"),
    [
        ("last", example()[0], example()[1][:, :1], r"target: got shape (5, 1), want"),
        ("last", example()[0], example()[1][:4], r"target: got shape (4, 3), want (5,"),
        ("last", example()[0], NAN, "target: got nan"),
        ("last", example()[0][..., :1], example()[1], "x: got shape (4, 5, 1), want"),
        ("symbols", X, LENGTHS + 1, "target: got"),
        ("symbols", X, -LENGTHS, "target: got -"),
        ("symbols", X, LENGTHS[:2], "target: got shape (2, 1), want (3, 1)"),
        ("symbols", NOISE, LENGTHS, "x: got ["),
        ("symbols", TWO, LENGTHS, "x: got ["),
        ("symbols", GAP, LENGTHS, "x: got ["),
        ("symbols", X[..., :6], LENGTHS, "x: got shape"),
    ],
)
def test_examples_are_checked_as_a_network_checks_them(loss, x, target, message):
    last = loss == "last"
    params = PARAMS if last else lk.Params.init(7, 8, output_size=7)
    model = Parallel(params, loss=loss)
    for call in (model.loss_and_grads, lambda x, t: model.step(x, t, 0.1)):
        with pytest.raises(ValueError, match=re.escape(message)):
            call(x, target)
        for wrong in (None, target.tolist(), target.astype(np.float64)):
            with pytest.raises(TypeError, match="target: got"):
                call(example()[0] if last else X, wrong)


@pytest.mark.parametrize(
    ("order", "batch_size", "error", "message"),
    [
        ([-1, 0], 2, ValueError, "order: got indices -1 to 0, want 0 to 4"),
        ([99], 2, ValueError, "order: got indices 99 to 99"),
        ([0.0], 2, TypeError, "order: got shape (1,) of float64"),
        ([0, 1], -1, ValueError, "batch_size: got -1"),
    ],
)
def test_an_order_is_checked_as_a_network_checks_it(order, batch_size, error, message):
    dataset = lk.Dataset(*example())
    with pytest.raises(error, match=re.escape(message)):
        Parallel(PARAMS).epoch(dataset, np.array(order), batch_size, 0.1)


def test_strings_of_several_lengths_have_no_last_step():
    lengths = LENGTHS[:, 0].astype(int)
    bucketed = Bucketed(STRINGS, sorted(set(lengths.tolist())))
    model = Parallel(lk.Params.init(7, 8, output_size=1))
    with pytest.raises(TypeError, match="dataset: got Bucketed"):
        model.epoch(bucketed, np.arange(3), 2, 0.1)


@pytest.mark.parametrize(
    ("params", "options", "message"),
    [
        (lk.Params.init(2, 8), {}, "params: got no read-out"),
        (PARAMS, {"loss": "first"}, "loss: got 'first', want one of"),
        (PARAMS, SYMBOLS, "params: got 2 inputs and 3 outputs"),
        (PARAMS, {"micro_batches": 0}, "micro_batches: got 0"),
        (PARAMS, {"stages": [2]}, "stages: got [2], want 3 layers in all"),
        (PARAMS, {"stages": [1, 2]}, "stages: got 2 on 1 ranks, want a divisor"),
        (PARAMS, {"stages": [3, 0]}, "stages: got 0, want an integer"),
        (PARAMS, {"embedding": E}, "loss: got 'last' with an embedding"),
        (PARAMS, {"embedding": E[:, :1], **SYMBOLS}, "embedding: got shape (3, 1)"),
        (PARAMS, {"embedding": E[:2], **SYMBOLS}, "params: got 2 inputs and 3 out"),
    ],
)
def test_models_that_cannot_be(params, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Parallel(params, **options)


def test_training_of_several_ranks_has_no_validation():
    dataset = lk.Dataset(*example())
    want = "validation: got a Dataset for Parallel, which has no predict, want None"
    with pytest.raises(TypeError, match=want):
        lk.train(Parallel(PARAMS), dataset, 2, 2, 0.1, validation=dataset)
    end = lambda history, _: history.epochs == 2  # noqa: E731
    assert lk.train(Parallel(PARAMS), dataset, 9, 2, 0.1, on_epoch=end).epochs == 2


def test_assign_takes_all_or_nothing():
    model, before = Parallel(PARAMS), None
    loss, _ = model.loss_and_grads(*example())
    before = model.params().arrays()
    named = lk.Params.init(2, 8, num_layers=2, output_size=3, seed=1).arrays()
    for wrong, message in (
        (named | {"V": named["V"][:, :2]}, "V: got shape (8, 2), want (8, 3)"),
        (named | {"b_out": np.full_like(named["b_out"], np.nan)}, "b_out: got nan"),
        ({"V": named["V"]}, "params: got V, want layers.0.U"),
    ):
        like = type(model.params()).from_arrays(wrong, "lstm")
        with pytest.raises(ValueError, match=re.escape(message)):
            model.assign(like)
        for name, array in model.params().arrays().items():
            np.testing.assert_array_equal(array, before[name])
        assert model.loss_and_grads(*example())[0] == loss


def lines_of_a_step(stop):
    """Raise KeyboardInterrupt at line number `stop` that a step runs in `ranks/`; how
    many lines ran.
    """
    model, count = Parallel(PARAMS, micro_batches=2), 0
    old = model.params().arrays()

    def tracer(frame, event, _):
        nonlocal count
        if "lstm_kernels/ranks/" not in frame.f_code.co_filename.replace("\\", "/"):
            return None
        if event == "line":
            count += 1
            if count == stop:
                raise KeyboardInterrupt
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        model.step(*example(), 0.5)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return model, old, count


def test_an_interrupted_step_leaves_old_parameters_or_new_ones():
    """And the next step computes with those and with no gradient of the last one."""
    whole, old, count = lines_of_a_step(0)
    new = whole.params().arrays()
    losses = {}
    for name, named in (("old", old), ("new", new)):
        other = Parallel(PARAMS, micro_batches=2)
        other.assign(type(other.params()).from_arrays(named, "lstm"))
        losses[name] = other.loss_and_grads(*example())
    assert count > 100
    met = set()
    for stop in range(1, count + 1):
        model, _, _ = lines_of_a_step(stop)
        now = model.params().arrays()
        same = [
            name
            for name, named in (("old", old), ("new", new))
            if all(np.array_equal(now[n], a) for n, a in named.items())
        ]
        assert same, f"line {stop}: parameters are neither old nor new"
        met.add(same[0])
        loss, grads = model.loss_and_grads(*example())
        want, gradients = losses[same[0]]
        assert loss == want
        for name, array in grads.arrays().items():
            np.testing.assert_array_equal(array, gradients.arrays()[name])
    assert "old" in met


def test_an_embedding_is_a_product_with_one_hot_rows():
    params = lk.Params.init(5, 8, num_layers=2, output_size=7)
    E = np.random.default_rng(0).standard_normal((7, 5)).astype(np.float32)
    U = params.layers[0].U
    product = lk.Params.from_arrays(params.arrays() | {"layers.0.U": E @ U}, "lstm")
    net = NextSymbol(lk.network("numpy", product))
    want_loss, grads = net.loss_and_grads(X, LENGTHS)
    model = Parallel(params, embedding=E, loss="symbols", micro_batches=2)
    loss, got = model.loss_and_grads(X, LENGTHS)
    assert loss == pytest.approx(want_loss, rel=1e-5)
    dEU = grads.layers[0].U
    want = grads.arrays() | {"layers.0.U": E.T @ dEU, "E": dEU @ U.T}
    for name, gradient in got.arrays().items():
        near = {"rtol": 1e-4, "atol": 1e-6, "err_msg": name}
        np.testing.assert_allclose(gradient, want[name], **near)


def test_one_rank_trains_as_a_network_does():
    rank_programs.models(whole_world())
