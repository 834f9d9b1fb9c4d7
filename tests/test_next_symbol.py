"""Next-symbol models: loss and gradients of padded strings, training, and what bad
input gets.
"""

import numpy as np
import pytest
from conftest import skip_slow
from planted import planted

import lstm_kernels as lk
from lstm_kernels import next_symbol, reference
from lstm_kernels.strings import Reber, one_hot
from lstm_kernels.next_symbol import NextSymbol, outer_accuracy
from lstm_report.measure.comparer import TOLERANCE, compare, tolerance

# Of unlike lengths, so that a mean over strings is not one over symbols.
STRINGS = ["BTBPTTVPSETE", "BPBTXSEPE", "BTB", "BPBTSSXXVVEPE"]


def parameters(cell="lstm", dtype=np.float64, H=3, **changed):
    return lk.Params.init(
        7, H, **{"output_size": 7, "cell": cell, "dtype": dtype} | changed
    )


def string_by_string(params, strings=STRINGS):
    """The loss, each string by itself and without padding, in the words of its
    definition.
    """
    nats, count = 0.0, 0
    for string in strings:
        x = symbols([string], dtype=params.dtype).x
        y, _, _ = reference.forward(params, x)
        for t in range(len(string) - 1):
            z = y[t, 0] @ params.V + params.b_out
            nats -= np.log(np.exp(z[x[t + 1, 0] == 1][0]) / np.exp(z).sum())
            count += 1
    return nats / count


def finite_differences(params):
    want = {}
    for name, a in params.arrays().items():
        want[name] = np.zeros_like(a)
        for at in np.ndindex(a.shape):
            middle, eps = a[at], 1e-5
            a[at] = middle + eps
            up = string_by_string(params)
            a[at] = middle - eps
            want[name][at] = (up - string_by_string(params)) / (2 * eps)
            a[at] = middle
    return want


PARAMS = parameters(num_layers=2)
WANT = finite_differences(PARAMS)


def of_parameters(grads, params):
    return {name: grads.arrays()[name] for name in params.arrays()}


def check_gradients(module, version="numpy"):
    model = module.NextSymbol(lk.network(version, PARAMS))
    dataset = symbols(STRINGS, dtype=np.float64)
    loss, grads = model.loss_and_grads(dataset.x, dataset.target)
    compare({"loss": loss}, {"loss": string_by_string(PARAMS)}, 1e-12)
    compare({"loss": model.loss(dataset.x)}, {"loss": loss}, 1e-12)
    compare(of_parameters(grads, PARAMS), WANT, 1e-7)


def check_padding(module, dtype=np.float64):
    params = parameters(dtype=dtype)
    model = module.NextSymbol(lk.network("numpy", params))
    dataset = symbols(STRINGS, dtype=dtype)
    padded = np.concatenate([dataset.x, np.zeros((5, 4, 7), dtype)])
    loss, grads = model.loss_and_grads(dataset.x, dataset.target)
    same, again = model.loss_and_grads(padded, dataset.target)
    compare({"loss": same}, {"loss": loss}, TOLERANCE[np.dtype(dtype)])
    compare(
        again.arrays(), grads.arrays(), TOLERANCE[np.dtype(dtype)]
    )  # x too: no longer
    compare({"loss": model.loss(padded)}, {"loss": loss}, TOLERANCE[np.dtype(dtype)])


def check_probabilities(module):
    """They sum to one, and give the loss; large read-outs do not overflow."""
    params = parameters(dtype=np.float32)
    params.V[...] *= 3000
    model = module.NextSymbol(lk.network("numpy", params))
    x = symbols(STRINGS).x
    p = model.probabilities(x)
    assert p.dtype == np.float32
    compare({"sum": p.sum(axis=2)}, {"sum": np.ones(x.shape[:2])}, 1e-6)
    small = module.NextSymbol(lk.network("numpy", parameters(dtype=np.float32)))
    p = small.probabilities(x)[:-1][x[1:] == 1]
    compare({"loss": -np.log(p).mean()}, {"loss": small.loss(x)}, 1e-6)


CHECKS = {
    "gradients": check_gradients,
    "padding": check_padding,
    "probabilities": check_probabilities,
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_model(check):
    check(next_symbol)


def test_gradients_of_the_sequential_version():
    check_gradients(next_symbol, "sequential")


def test_padding_in_float32():
    check_padding(next_symbol, np.float32)


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        ("gradients", "grads(x[:-1], x[1:])", "grads(x[:-1], x[:-1])"),
        ("gradients", "int(np.count_nonzero(target))", "target.shape[1]"),
        ("gradients", "grads.V, grads.b_out = dV, db_out", "grads.V = dV"),
        ("padding", "x = x[: lengths.max()]\n        return self", "return self"),
        (
            "gradients",
            "np.where(x.any(axis=2), x.argmax(axis=2), -1)",
            "x.argmax(axis=2)",
        ),
        ("padding", "probabilities(x[:-1]), numbers", "probabilities(x[1:]), numbers"),
        (
            "probabilities",
            "y, _ = self.net.forward(x)\n",
            "y = self.net.forward(x)[0][::-1]\n",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_these_tests_see_a_fault(check, right, wrong):
    module = planted(next_symbol, right, wrong)
    with pytest.raises((AssertionError, ValueError)):
        CHECKS[check](module)


def test_every_version_and_cell(version, cell):
    skip_slow(version, (1, 6, 2, 7, 5), cell)
    params = parameters(cell, np.float32, H=5, num_layers=2)
    dataset = symbols(["BTBPVP", "BTBT"])
    got, want = (
        NextSymbol(lk.network(name, params)).loss_and_grads(dataset.x, dataset.target)
        for name in (version, "numpy")
    )
    most = tolerance(lk.network(version, params), 6)
    compare(
        {"loss": got[0]} | got[1].arrays(), {"loss": want[0]} | want[1].arrays(), most
    )


def test_a_string_weighs_as_it_has_symbols():
    model = NextSymbol(lk.network("numpy", parameters()))
    each = [model.loss(symbols([string], dtype=np.float64).x) for string in STRINGS]
    counts = [len(string) - 1 for string in STRINGS]
    both = model.loss(symbols(STRINGS, dtype=np.float64).x)
    assert both == pytest.approx(np.average(each, weights=counts), rel=1e-12)
    assert both != pytest.approx(np.mean(each), rel=1e-3)


def test_a_descent_step_is_theta_less_rate_times_gradient():
    params, dataset = parameters(), symbols(STRINGS, dtype=np.float64)
    model = NextSymbol(lk.network("numpy", params))
    loss, grads = model.loss_and_grads(*dataset.batch(np.array([2, 0])))
    assert model.epoch(dataset, [2, 0], 2, 0.5) == [loss]
    want = {name: a - 0.5 * grads.arrays()[name] for name, a in params.arrays().items()}
    compare(model.params().arrays(), want, 1e-14)
    assert len(model.epoch(dataset, np.arange(4), 3, 0.5)) == 2
    assert model.epoch(dataset, np.array([], int), 3, 0.5) == []
    model.assign(params)
    compare(model.params().arrays(), params.arrays(), 0)


def train(epochs=15, optimizer="adam", rate=0.02, **options):
    """A small network of 14 units, trained on 1000 embedded strings."""
    model = NextSymbol(lk.network("numba-fused", parameters(dtype=np.float32, H=14)))
    dataset = symbols(Reber().strings(1000, seed=1))
    return model, lk.train(
        model, dataset, epochs, 16, rate, optimizer=optimizer, **options
    )


def test_a_small_lstm_comes_near_the_optimum_and_not_below():
    strings = Reber().strings(1000, seed=2)
    optimum, x = Reber().cross_entropy(strings), symbols(strings).x
    model, _ = train(epochs=1)
    assert model.loss(x) > 1.2 * optimum
    assert outer_accuracy(model, strings) < 0.8
    model, history = train()
    assert optimum < model.loss(x) < 1.04 * optimum
    assert outer_accuracy(model, strings) > 0.98
    assert history.loss[-1] == pytest.approx(optimum, rel=0.05)


@pytest.mark.parametrize(("optimizer", "rate"), [("sgd", 0.5), ("adam", 0.02)])
def test_a_resumed_run_has_the_same_bits(tmp_path, optimizer, rate):
    model, whole = train(epochs=3, optimizer=optimizer, rate=rate)
    train(epochs=2, optimizer=optimizer, rate=rate, checkpoint=tmp_path / "run.npz")
    options = {"checkpoint": tmp_path / "run.npz", "resume": True}
    other, resumed = train(epochs=3, optimizer=optimizer, rate=rate, **options)
    assert resumed.loss == whole.loss
    assert whole.loss[2] < whole.loss[0]
    for name, a in model.params().arrays().items():
        np.testing.assert_array_equal(a, other.params().arrays()[name])


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_learning_rate_that_diverges(optimizer):
    model = NextSymbol(lk.network("numpy", parameters(dtype=np.float32)))
    with pytest.raises(lk.DivergedError, match="learning_rate: "):
        lk.train(model, symbols(STRINGS), 50, 2, 1e38, optimizer=optimizer)
    assert all(np.isfinite(a).all() for a in model.params().arrays().values())


class Form(lk.Params):
    """Parameters of another class."""


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_parameters_of_another_class_stay_of_it(tmp_path, optimizer):
    class Other(type(lk.network("numpy", parameters()))):
        def params(self):
            return Form(**vars(super().params()))

        def assign(self, params):
            assert isinstance(params, Form)
            super().assign(params)

    dataset, path = symbols(STRINGS, dtype=np.float64), tmp_path / "run.npz"
    options = {"optimizer": optimizer, "checkpoint": path}
    lk.train(NextSymbol(Other(parameters())), dataset, 2, 2, 0.1, **options)
    model = NextSymbol(Other(parameters()))
    assert lk.train(model, dataset, 3, 2, 0.1, resume=True, **options).epochs == 3


def test_gradients_of_a_loss_that_is_not_finite_are_nan():
    params = parameters(dtype=np.float32)
    params.b_out[:2] = np.float32(3e38), np.float32(-3e38)
    model, dataset = NextSymbol(lk.network("numpy", params)), symbols(STRINGS)
    loss, grads = model.loss_and_grads(dataset.x, dataset.target)
    assert not np.isfinite(loss)
    assert all(np.isnan(a).all() for a in grads.arrays().values())


class Oracle(NextSymbol):
    """Knows the outer symbol, or takes T for P and P for T; elsewhere it knows
    nothing.
    """

    def __init__(self, right):
        super().__init__(lk.network("numpy", parameters(dtype=np.float32)))
        self.right = right

    def probabilities(self, x):
        p = np.zeros_like(x)
        outer = x[1] if self.right else x[1][:, [0, 2, 1, 3, 4, 5, 6]]
        lengths = x.sum(axis=(0, 2)).astype(int)
        p[lengths - 3, np.arange(x.shape[1])] = outer
        return p


def test_outer_accuracy_looks_at_the_outer_symbol_only():
    strings = Reber().strings(50, seed=3)
    assert outer_accuracy(Oracle(True), strings) == 1
    assert outer_accuracy(Oracle(False), strings) == 0


@pytest.mark.parametrize(
    ("net", "error", "message"),
    [
        (3, TypeError, "net: got int, want a network of lstm_kernels.network"),
        (parameters(), TypeError, "net: got Params, want a network"),
        (
            parameters(output_size=None),
            ValueError,
            "net: got no read-out, want V and b_out",
        ),
        (
            parameters(output_size=6),
            ValueError,
            "net: got 7 inputs and 6 outputs, want as many",
        ),
    ],
)
def test_networks_that_are_no_model(net, error, message):
    if error is ValueError:
        net = lk.network("numpy", net)
    with pytest.raises(error, match=message):
        NextSymbol(net)


def changed(at, value):
    x = symbols(["BTB", "BT"]).x
    x[at] = value
    return x


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (
            changed((0, 0, 0), 2),
            ValueError,
            r"x: got \[2.* at index \[0, 0\], want one-hot rows",
        ),
        (
            changed((0, 0, 0), 0.5),
            ValueError,
            r"x: got \[0.5 .* at index \[0, 0\], want one-hot",
        ),
        (
            changed((1, 1, 3), 1),
            ValueError,
            r"x: got .* at index \[1, 1\], want one-hot",
        ),
        (
            changed((0, 1, 0), 0),
            ValueError,
            r"at index \[1, 1\], want .* zero rows after a string",
        ),
        (
            changed((0, 1, slice(2)), (2, -1)),
            ValueError,
            r"x: got .* at index \[0, 1\]",
        ),
        (changed((0, 0, 0), np.nan), ValueError, "x: got nan at index"),
        (
            symbols(["BT"]).x[..., :6],
            ValueError,
            r"x: got shape \(2, 1, 6\), want \(T, B, 7\)",
        ),
        (symbols(["BT"]).x[0], ValueError, "x: got 2 axes"),
        (
            symbols(["BT"]).x.astype(float),
            TypeError,
            "x: got dtype float64, want float32",
        ),
        ([[[1]]], TypeError, "x: got list"),
    ],
)
def test_x_that_is_not_one_hot(x, error, message):
    model = NextSymbol(lk.network("numpy", parameters(dtype=np.float32)))
    target = np.array([[3], [2]], np.float32)
    for call in (
        model.probabilities,
        model.loss,
        lambda x: model.loss_and_grads(x, target),
    ):
        with pytest.raises(error, match=message):
            call(x)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"dataset": 3}, TypeError, "dataset: got int, want lstm_kernels.Dataset"),
        ({"order": [0, 4]}, ValueError, "order: got indices 0 to 4, want 0 to 3"),
        ({"order": [-1, 2]}, ValueError, "order: got indices -1 to 2"),
        (
            {"order": [0.0]},
            TypeError,
            r"order: got shape \(1,\) of float64, want indices",
        ),
        ({"order": 2}, TypeError, r"order: got shape \(\) of int"),
        ({"batch_size": 0}, ValueError, "batch_size: got 0"),
        ({"learning_rate": -1}, ValueError, "learning_rate: got -1"),
        ({"learning_rate": "1"}, TypeError, "learning_rate: got '1'"),
    ],
)
def test_epochs_of_bad_arguments(change, error, message):
    model = NextSymbol(lk.network("numpy", parameters(dtype=np.float32)))
    good = {
        "dataset": symbols(STRINGS),
        "order": [0, 1],
        "batch_size": 2,
        "learning_rate": 0.1,
    }
    with pytest.raises(error, match=message):
        model.epoch(**good | change)


def test_other_bad_input():
    model = NextSymbol(lk.network("numpy", parameters(dtype=np.float32)))
    dataset = symbols(["BTB", "BT"])
    with pytest.raises(
        ValueError, match=r"target: got 3.0 at index \[1, 0\], want length 2"
    ):
        model.loss_and_grads(dataset.x, dataset.target * 0 + 3)
    with pytest.raises(ValueError, match=r"target: got shape \(1, 1\), want \(2, 1\)"):
        model.loss_and_grads(dataset.x, dataset.target[:1])
    with pytest.raises(
        ValueError, match=r"x: got a string of 1 symbols? at .*, want at least 2"
    ):
        model.loss(symbols(["BT", "B"]).x)
    assert model.probabilities(symbols(["BT", "B"]).x).shape == (2, 2, 7)
    with pytest.raises(
        ValueError, match=r"x: got a string of 0 symbols at index \[:, 1\]"
    ):
        model.probabilities(changed((slice(None), 1), 0))
    with pytest.raises(TypeError, match="model: got int, want NextSymbol"):
        outer_accuracy(3, STRINGS)
    with pytest.raises(ValueError, match=r"strings\[2\]: got its end at position 3"):
        outer_accuracy(model, STRINGS)
    assert repr(model) == "next symbol of " + repr(model.net)
