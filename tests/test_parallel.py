"""A model over the ranks of a job, in one process: what it refuses, and what is left of
a step that was interrupted.
"""

import re
import sys
from contextlib import suppress

import numpy as np
import pytest
import rank_programs

import lstm_kernels as lk
from lstm_kernels.ranks import launch
from lstm_kernels.ranks.parallel import Parallel
from lstm_kernels.ranks.world import whole_world
from lstm_report.studies import strings

pytestmark = pytest.mark.skipif(
    bool(launch.why_unavailable()), reason=f"no jobs here: {launch.why_unavailable()}"
)
RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((4, 5, 2)).astype(np.float32)
TARGET = RNG.standard_normal((5, 3)).astype(np.float32)
PARAMS = lk.Params.init(2, 8, num_layers=2, output_size=3)
STRINGS = strings.one_hot(strings.reber(3))
X, LENGTHS = STRINGS.x, STRINGS.target


def test_it_is_trained_as_a_network_is():
    rank_programs.models(whole_world())
    dataset, model = lk.Dataset(ROWS, TARGET), Parallel(PARAMS)
    end = lambda history, _: history.epochs == 2  # noqa: E731
    assert lk.train(model, dataset, 9, 2, 0.1, on_epoch=end).epochs == 2


def test_assign_takes_all_or_nothing():
    model = Parallel(PARAMS)
    loss, _ = model.loss_and_grads(ROWS, TARGET)
    named = lk.Params.init(2, 8, num_layers=2, output_size=3, seed=1).arrays()
    for wrong, message in (
        (named | {"V": named["V"][:, :2]}, "V: got shape (8, 2), want (8, 3)"),
        (named | {"b_out": np.full_like(named["b_out"], np.nan)}, "b_out: got nan"),
        ({"V": named["V"]}, "params: got V, want layers.0.U"),
    ):
        like = type(model.params()).from_arrays(wrong, "lstm")
        with pytest.raises(ValueError, match=re.escape(message)):
            model.assign(like)
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
        if event == "line":
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


def test_an_embedding_is_a_product_with_one_hot_rows():
    params = lk.Params.init(5, 8, num_layers=2, output_size=7)
    E = np.random.default_rng(0).standard_normal((7, 5)).astype(np.float32)
    U = params.layers[0].U
    product = lk.Params.from_arrays(params.arrays() | {"layers.0.U": E @ U}, "lstm")
    want_loss, grads = rank_programs.next_symbol(product, X)
    model = Parallel(params, embedding=E, loss="symbols", micro_batches=2)
    padded = np.concatenate([X, np.zeros_like(X)])
    loss, got = model.loss_and_grads(padded, LENGTHS)
    assert loss == pytest.approx(want_loss, rel=1e-5)
    dEU = grads["layers.0.U"]
    want = grads | {"layers.0.U": E.T @ dEU, "E": dEU @ U.T}
    for name, gradient in got.arrays().items():
        near = {"rtol": 1e-4, "atol": 1e-6, "err_msg": name}
        np.testing.assert_allclose(gradient, want[name], **near)
