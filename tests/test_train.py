"""Training: it learns, a seed repeats it, a resumed run has the bits of an
uninterrupted one.
"""

import io
import json
import math
import time
from contextlib import redirect_stderr

import numpy as np
import pytest
from conftest import IN_USE

import lstm_kernels as lk
from lstm_kernels import __main__ as command
from lstm_kernels import data, reference
from lstm_kernels.training import Adam

OPTIMIZERS = pytest.mark.parametrize("optimizer", ["sgd", "adam"])


@pytest.fixture
def dataset():
    return data.windows(np.sin(np.arange(60) / 3), 8)


@pytest.fixture
def validation():
    return data.windows(np.cos(np.arange(31) / 2), 11)  # 20 of another length


def start(**options):
    return lk.Params.init(1, 9, output_size=1, **options)


def network(version="numpy", seed=0):
    return lk.network(version, start(seed=seed))


Numpy = type(network())


def same(a, b):
    for name, value in a.params().arrays().items():
        np.testing.assert_array_equal(value, b.params().arrays()[name], err_msg=name)


@pytest.mark.parametrize(("optimizer", "rate"), [("sgd", 0.2), ("adam", 0.02)])
def test_the_loss_falls(dataset, optimizer, rate):
    history = lk.train(network(), dataset, 25, 5, rate, optimizer=optimizer)
    assert history.epochs == len(history.seconds) == 25
    assert history.loss[-1] < 0.5 * history.loss[0]


@pytest.mark.parametrize("version", IN_USE)
def test_an_epoch_reads_examples_of_any_layout(version, dataset):
    one, other = network(version), network(version)
    order = np.random.default_rng(0).permutation(len(dataset))
    want = one.epoch(dataset, order, 5, 0.1)
    for a in ("x", "target"):  # a Dataset checks what it is made of, not what it gets
        turned = np.repeat(np.asfortranarray(getattr(dataset, a)), 2, axis=1)[:, ::2]
        setattr(dataset, a, turned)
    assert other.epoch(dataset, order, 5, 0.1) == want
    same(one, other)


@pytest.mark.parametrize("batch_size", [5, 52])
@OPTIMIZERS
def test_a_resumed_run_has_the_same_bits(
    tmp_path, dataset, validation, optimizer, batch_size
):
    path = tmp_path / "run.npz"
    options = {"batch_size": batch_size, "learning_rate": 0.01, "seed": 3}
    options |= {"optimizer": optimizer, "validation": validation}
    whole, later = network(), network(seed=9)  # whose parameters are from the file
    history = lk.train(whole, dataset, 6, **options)
    lk.train(network(), dataset, 2, checkpoint=path, **options)
    with np.load(path) as file:
        assert file["history.validation"].tolist() == history.validation[:2]
    again = lk.train(later, dataset, 6, checkpoint=path, resume=True, **options)
    same(later, whole)
    assert (again.loss, again.validation) == (history.loss, history.validation)
    assert (len(again.seconds), again.rates) == (6, [0.01] * 6)
    assert [p.name for p in tmp_path.iterdir()] == ["run.npz"]


@OPTIMIZERS
def test_the_learning_rate_may_be_a_function_of_the_epoch(tmp_path, dataset, optimizer):
    rates, seen = [0.05, 0.02, 0.02, 0.004], []
    path, options = tmp_path / "run.npz", {"optimizer": optimizer, "seed": 2}

    class Spy(Numpy):
        def _step(self, x, target, rate):
            seen.append(rate)
            return super()._step(x, target, rate)

    whole, later = Spy(start()), network(seed=8)
    history = lk.train(whole, dataset, 4, 26, rates.__getitem__, **options)
    assert history.rates == rates
    assert seen == ([] if optimizer == "adam" else [r for r in rates for _ in "ab"])
    # A run of a number goes on by a function that is the same in the epochs before.
    options |= {"checkpoint": path}
    lk.train(network(), dataset, 1, 26, 0.05, **options)
    options["resume"] = True
    lk.train(network(), dataset, 3, 26, lambda epoch: rates[epoch], **options)
    before = path.read_bytes()
    for other, said in (
        (0.05, "got learning_rate 0.02 in epoch 1, want 0.05, which a function of"),
        (lambda epoch: 0.02, "got learning_rate 0.05 in epoch 0, want 0.02"),
    ):
        with pytest.raises(ValueError, match=f"run.npz: is of another run, {said}"):
            lk.train(later, dataset, 4, 26, other, **options)
    assert path.read_bytes() == before
    lk.train(later, dataset, 4, 26, rates.__getitem__, **options)
    same(later, whole)


def test_a_rate_is_looked_at_in_each_epoch(dataset):
    for rates, error, said in (
        ([-1], ValueError, r"learning_rate\(0\): got -1, want a finite number above"),
        ([0.1, "fast"], TypeError, r"learning_rate\(1\): got 'fast', want a number"),
        ([0.1, 1e39], ValueError, r"learning_rate\(1\): got 1e\+39, want .*float32"),
    ):
        net, trained = network(), network()
        with pytest.raises(error, match=f"^{said}") as caught:
            lk.train(net, dataset, 2, 52, rates.__getitem__)
        if len(rates) == 2:
            lk.train(trained, dataset, 1, 52, 0.1)
            assert caught.value.history.rates == [0.1]
        same(net, trained)


@pytest.mark.parametrize("calls", [[1, 1, 1, 1], [3, 1], [2, 2]])
def test_several_calls_shuffle_as_one(tmp_path, dataset, calls):
    rate, first = [0.3, 0.2, 0.1, 0.05].__getitem__, 0
    whole, parts = network(), network()
    losses = lk.train(whole, dataset, 4, 7, rate, seed=5).loss
    for count in calls:
        options = {"seed": 5, "first_epoch": first}
        history = lk.train(parts, dataset, count, 7, rate, **options)
        assert history.loss == losses[first : first + count]
        first += count
    same(parts, whole)
    far = lk.Dataset(dataset.x, np.float32(1e30) * dataset.target)
    with pytest.raises(lk.DivergedError, match="at epoch 4, step 0") as caught:
        lk.train(parts, far, 2, 7, 1, first_epoch=4)
    assert caught.value.epoch == 4


def test_on_epoch_has_a_history_of_its_own(tmp_path, dataset):
    def spoil(history, net):
        history.loss.append("none")
        history.seconds.clear()

    path, options = tmp_path / "run.npz", {"on_epoch": spoil}
    history = lk.train(network(), dataset, 3, 52, 0.1, checkpoint=path, **options)
    assert history.loss == lk.train(network(), dataset, 3, 52, 0.1).loss
    again = lk.train(network(), dataset, 3, 52, 0.1, checkpoint=path, resume=True)
    assert again == history


def test_seeds_decide_the_order_and_no_example_is_cut(dataset):
    """The loss of an epoch is the mean over its examples, of mini-batches of any size."""
    seen = []

    class Spy(Numpy):
        def _step(self, x, target, rate):
            seen.append(target[:, 0].copy())
            return float(len(target))

    orders = []
    for seed in (1, 1, 2):
        history = lk.train(Spy(start()), dataset, 2, 5, 0.1, seed=seed)
        assert [len(batch) for batch in seen] == [*[5] * 10, 2] * 2
        assert history.loss == [(10 * 5 * 5 + 2 * 2) / 52] * 2
        orders.append(np.concatenate(seen).reshape(2, 52))
        seen.clear()
    one, again, other = orders
    np.testing.assert_array_equal(one, again)
    assert len({tuple(order) for order in (*one, *other)}) == 4
    for order in (*one, *other):
        every = np.sort(dataset.target[:, 0])
        np.testing.assert_array_equal(np.sort(order), every)


class Counting(Numpy):
    """A network that notes its parameters before each step, and does something at the
    step `at`, of epochs of eleven.
    """

    def __init__(self, at, do):
        super().__init__(start())
        self.at, self.do, self.before = at, do, []

    def _count(self, loss):
        return self.do(loss) if len(self.before) == self.at else loss

    def loss_and_grads(self, x, target):
        self.before.append(self._now().copy())
        loss, grads = super().loss_and_grads(x, target)
        return self._count(loss), grads

    def _step(self, x, target, rate):
        self.before.append(self._now().copy())
        self._count(0)
        return self._count(super()._step(x, target, rate))


class Far(Numpy):
    """A network with one prediction that is not finite."""

    def predict(self, x):
        return np.full((x.shape[1], 1), np.inf)


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_parameters(
    dataset, validation
):
    good, net = network(), Counting(2 * 11 + 4, lambda loss: math.nan)
    lk.train(good, dataset, 2, 5, 0.01)
    with pytest.raises(lk.DivergedError, match="nan at epoch 2, step 3") as caught:
        lk.train(net, dataset, 5, 5, 0.01)
    error = caught.value
    assert (error.epoch, error.step, error.history.epochs) == (2, 3, 2)
    same(net, good)
    far, want = Far(start()), "the validation loss is inf at epoch 0, step 7"
    with pytest.raises(lk.DivergedError, match=want):
        lk.train(far, dataset, 2, 7, 0.1, validation=validation)
    same(far, network())


@OPTIMIZERS
def test_an_interrupt_leaves_whole_steps_and_whole_epochs(tmp_path, dataset, optimizer):
    def interrupt(loss):
        raise KeyboardInterrupt

    options = {"optimizer": optimizer, "seed": 1}
    kept = {"checkpoint": tmp_path / "run.npz", **options}
    net, later, whole = Counting(2 * 11 + 4, interrupt), network(), network()
    with pytest.raises(KeyboardInterrupt, match="stopped after 2 of 5 epochs"):
        lk.train(net, dataset, 5, 5, 0.01, **kept)
    for name, value in net.params().arrays().items():
        np.testing.assert_array_equal(value, net.before[-1].arrays()[name])
    assert lk.train(later, dataset, 2, 5, 0.01, resume=True, **kept).epochs == 2
    lk.train(whole, dataset, 2, 5, 0.01, **options)
    same(later, whole)


@pytest.mark.filterwarnings("ignore:overflow|invalid")
@pytest.mark.parametrize("version", IN_USE)
@pytest.mark.parametrize(
    ("optimizer", "rate", "size"), [("sgd", 3e37, 4), ("adam", 3.4e38, 2)]
)
def test_what_diverges_leaves_the_parameters_of_before(
    dataset, version, optimizer, rate, size
):
    few = lk.Dataset(dataset.x[:, :4].copy(), np.float32(1e5) * dataset.target[:4])
    net = network(version)
    want = r"^learning_rate: .* is (nan|inf|not finite) at epoch 0"
    with pytest.raises(lk.DivergedError, match=want):
        lk.train(net, few, 9, size, rate, optimizer=optimizer)
    same(net, network())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "epochs: got 0"),
        ({"batch_size": 53}, "batch_size: got 53, want an integer from 1 to 52"),
        ({"learning_rate": 1e39}, r"learning_rate: got 1e\+39, want .* in float32"),
        ({"optimizer": "Adam"}, "optimizer: got 'Adam', want .*; did you mean 'adam'"),
        ({"seed": -1}, "seed: got -1"),
        ({"first_epoch": 0.5}, "first_epoch: got 0.5, want an integer of at least 0"),
        ({"dataset": (1, 2)}, "dataset: got tuple, want lstm_kernels.Dataset"),
        ({"validation": 3}, "validation: got int, want lstm_kernels.Dataset"),
        ({"resume": True}, "checkpoint: got None, want the path to resume from"),
        ({"net": 3}, "net: got int, want a network"),
        ({"on_epoch": 3}, "on_epoch: got int, want a function of"),
        ({"checkpoint": 3}, "checkpoint: got 3, want the path of a file"),
    ],
)
def test_bad_arguments(dataset, change, message):
    good = {"dataset": dataset, "epochs": 1, "batch_size": 5, "learning_rate": 0.1}
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        lk.train(**{"net": network()} | good | change)


def test_what_is_no_validation_set(dataset, validation):
    x, y = validation.x, validation.target
    parts = {"epoch": None, "params": network().params}
    mute = type("Mute", (), parts)()  # it predicts nothing
    for net, *wrong, said in (
        (network(), x.astype(float), y.astype(float), r"\.x: got dtype float64"),
        (network(), x.repeat(2, axis=2), y, r"\.x: got shape \(11, 20, 2\), want"),
        (network(), x, y.repeat(2, axis=1), r"\.target: got shape \(20, 2\), want"),
        (mute, x, y, ": got a Dataset for Mute, which has no predict"),
    ):
        with pytest.raises((TypeError, ValueError), match=rf"^validation{said}"):
            lk.train(net, dataset, 1, 7, 0.1, validation=lk.Dataset(*wrong))


def test_checkpoints_are_guarded(tmp_path, dataset, validation):
    path, other = tmp_path / "run.npz", tmp_path / "other.npz"
    options = {"epochs": 2, "batch_size": 5, "learning_rate": 0.1, "optimizer": "adam"}

    def again(dataset=dataset, resume=True, file=path, cell="lstm", H=9, L=1, **change):
        sizes = {"num_layers": L, "output_size": 1, "cell": cell}
        net = lk.network("numpy", lk.Params.init(1, H, **sizes))
        lk.train(net, dataset, **options | change, resume=resume, checkpoint=file)

    again(resume=False, L=2)
    path.rename(other)  # of two layers
    again(resume=False)
    before = path.read_bytes()
    with np.load(path) as file:
        parts = dict(file)
    names = [name for name in parts if name.startswith("history.")]
    assert names == ["history.loss", "history.seconds", "history.rates"]
    rates = tmp_path / "rates.npz"
    header = json.loads(str(parts["header"]))
    header["run"]["beta2"] = 0.99
    np.savez(rates, **parts | {"header": np.array(json.dumps(header))})
    lk.Params.init(1, 1).save(tmp_path / "net.npz")
    moved = lk.Dataset(dataset.x, dataset.target + np.float32(1e-6))
    none = {"file": tmp_path / "none"}
    for change, error, message in (
        ({"resume": False}, FileExistsError, "checkpoint: .* exists, want resume=True"),
        ({"learning_rate": 0.2}, ValueError, "got learning_rate 0.1 in epoch 0, want"),
        ({"first_epoch": 2}, ValueError, "run, got {'first_epoch': 0}, want"),
        ({"epochs": 1}, ValueError, "run.npz: has 2 epochs, want at most 1"),
        ({"optimizer": "sgd"}, ValueError, "run, got {'beta1': 0.9.* 'adam'}, want"),
        ({"dataset": moved}, ValueError, r"run, got {'dataset': '\w{64}'}, want"),
        ({"validation": validation}, ValueError, "run, got {'validation': None}, want"),
        ({"H": 4}, ValueError, r"run.npz: params.layers.0.U: got shape \(1, 36\)"),
        ({"cell": "rnn"}, ValueError, "got {'cell': 'lstm'}, want {'cell': 'rnn'}"),
        ({"file": other}, ValueError, r"lacks or has too much \['optimizer.m.layers.1"),
        ({"L": 2}, ValueError, r"lacks or has too much \['optimizer.m.layers.1.U'"),
        (none, FileNotFoundError, "none"),
        ({"file": rates}, ValueError, "another run, got {'beta2': 0.99}, want"),
        ({"file": tmp_path / "net.npz"}, ValueError, "has format .*params/3', want"),
    ):
        with pytest.raises(error, match=message):
            again(**change)
    assert path.read_bytes() == before


class Linear:
    """A 'network' of parameters theta whose gradient is known: curvature theta cos(t /
    10).
    """

    curvature = np.array([1e-8, 1.0, 30.0, 1e-3])
    epoch = None

    def __init__(self, theta):
        self.theta, self.t, self.gradients = np.array(theta), 0, []

    def params(self):
        zero = np.zeros((1, 1))
        return lk.Params([lk.Layer(zero, zero, self.theta.copy())])

    def assign(self, params):
        self.theta = params.layers[0].b.copy()

    def loss_and_grads(self, x, target):
        self.t += 1
        g = self.curvature * self.theta * np.cos(0.1 * self.t)
        self.gradients.append(g)
        zero = np.zeros((1, 1))
        return 1.0, lk.Grads([lk.Layer(zero, zero, g)], x=zero, state=(zero, zero))


def steps_of_adam(theta, count, rate):
    net = Linear(theta)
    rule, examples = Adam(net), lk.Dataset(np.zeros((1, 4, 1)), np.zeros((4, 1)))
    for _ in range(0, count, 4):
        rule.epoch(examples, np.arange(min(count, 4)), 1, rate)
    return net, rule


# torch.optim.Adam(lr=0.01) of PyTorch 2 in float64, on the gradients of `Linear`.
PYTORCH = {
    1: "0.9950125208628857 -1.9900000000502511 0.49000000000670013 2.990000033500585",
    100: "0.9627862699448931 -1.9255877009204352 0.36579392563460106 2.931227372967298",
}


@pytest.mark.parametrize("count", PYTORCH)
def test_adam_is_pytorchs(count):
    net, rule = steps_of_adam([1.0, -2.0, 0.5, 3.0], count, 0.01)
    want = np.array(PYTORCH[count].split(), float)
    np.testing.assert_allclose(net.theta, want, rtol=1e-12)
    if count == 1:  # algorithm 1
        (g,) = net.gradients
        m, v = (rule.moments[f"{name}.layers.0.b"] for name in "mv")
        np.testing.assert_allclose(m, 0.1 * g, rtol=1e-12)
        np.testing.assert_allclose(v, 1e-3 * g * g, rtol=1e-12)


@pytest.mark.filterwarnings("ignore:overflow")  # of Linear
def test_adam_stops_at_parameters_and_moments_that_are_not_finite():
    for theta, rate in (([1.0] * 4, 1.7e308), ([1e200] * 4, 0.01)):
        net = Linear(theta)
        net.theta[1] *= -1
        before, rule = net.theta.copy(), Adam(net)
        examples = lk.Dataset(np.zeros((1, 9, 1)), np.zeros((9, 1)))
        with pytest.raises(lk.DivergedError, match="parameter or moment is") as caught:
            rule.epoch(examples, np.arange(9), 1, rate)
        assert caught.value.step == rule.count == net.t - 1
        assert rate > 1 or (net.theta == before).all()


@OPTIMIZERS
def test_training_goes_on_from_what_on_epoch_leaves(dataset, optimizer):
    seen, other = [], start(seed=5)

    def assign(history, net):
        seen.append((history.epochs, net.params()))
        net.assign(other)

    moved = network()
    lk.train(moved, dataset, 2, 52, 1e-30, optimizer=optimizer, on_epoch=assign)
    same(moved, lk.network("numpy", other))
    assert [epochs for epochs, _ in seen] == [1, 2]
    for name, value in seen[1][1].arrays().items():  # a step of 1e-30 from `other`
        np.testing.assert_allclose(value, other.arrays()[name], rtol=1e-6, err_msg=name)
    large = start(seed=5)
    large.V *= np.float32(1e38)  # whose loss is infinite: that epoch goes back to it
    options = {"optimizer": optimizer, "on_epoch": lambda _, n: n.assign(large)}
    with pytest.raises(lk.DivergedError, match="the loss is inf at epoch 1, step 0"):
        lk.train(moved, dataset, 2, 5, 0.01, **options)
    same(moved, lk.network("numpy", large))


@OPTIMIZERS
def test_what_another_rank_finds_stops_this_one_too(dataset, optimizer):
    """A network that several processes train answers for all of them."""

    class Shared(Numpy):
        verdicts = 0

        def on_every_rank(self, finite):
            self.verdicts += 1
            assert finite
            return self.verdicts < 31

    net = Shared(start())
    with pytest.raises(lk.DivergedError, match="is not finite") as caught:
        lk.train(net, dataset, 50, 5, 0.01, optimizer=optimizer)
    assert net.verdicts == 31
    # Two an epoch, of eleven steps: is it finite, does it go on; Adam: one a step, too.
    assert caught.value.epoch == (15 if optimizer == "sgd" else 2)


def test_validation_is_the_error_after_each_epoch(dataset, validation):
    """Of all examples alike, though mini-batches of 7 do not divide them."""
    want, wide = [], [a.astype(float) for a in (validation.x, validation.target)]

    def watch(history, net):
        want.append(reference.loss_and_grads(net.params().astype(float), *wide)[0])
        assert len(history.validation) == history.epochs

    options = {"batch_size": 7, "learning_rate": 0.05}
    more = {"validation": validation, "on_epoch": watch}
    history = lk.train(network(), dataset, 3, **options, **more)
    np.testing.assert_allclose(history.validation, want, rtol=1e-5)
    assert repr(history).endswith(f", last validation {history.validation[-1]:.4g}")
    plain = lk.train(network(), dataset, 3, **options)
    assert (plain.loss, plain.validation) == (history.loss, [])


def test_validation_takes_none_of_the_measured_time(dataset, validation):
    times = [time.perf_counter()]

    class Slow(Numpy):
        def predict(self, x):
            times.append(time.perf_counter())
            time.sleep(0.05)  # more than what is before the epoch
            return super().predict(x)

    history = lk.train(Slow(start()), dataset, 1, 7, 0.1, validation=validation)
    assert history.seconds[0] <= times[1] - times[0]


@pytest.mark.parametrize(
    ("answer", "epochs"),
    [(np.True_, 2), ("no", 5), (None, 5), (np.False_, 5)],
)
def test_on_epoch_ends_training_by_true_alone(tmp_path, dataset, answer, epochs):
    options = {"checkpoint": tmp_path / "run.npz", "seed": 4}
    end = lambda history, net: answer if history.epochs >= 2 else None  # noqa: E731
    history = lk.train(network(), dataset, 5, 7, 0.1, **options, on_epoch=end)
    assert history.epochs == epochs
    again, whole = network(), network()
    lk.train(again, dataset, 5, 7, 0.1, **options, resume=True)
    lk.train(whole, dataset, 5, 7, 0.1, seed=4)
    same(again, whole)


OTHER = lk.DivergedError("of another training", epoch=7, step=3)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, OTHER])
def test_whatever_ends_training_has_the_history(dataset, validation, error):
    other = start(seed=5)

    def stop(history, net):
        if history.epochs == 3:
            net.assign(other)
            raise error

    net = network()
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        lk.train(net, dataset, 9, 7, 0.1, on_epoch=stop, validation=validation)
    history = caught.value.history
    assert history.epochs == len(history.seconds) == len(history.validation) == 3
    same(net, lk.network("numpy", other))  # it is no divergence of this training
    assert error is not OTHER or caught.value is OTHER


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("progress", [None, True, False])
def test_a_bar_where_it_is_asked_for_and_can_be_shown(dataset, validation, progress):
    options = {"progress": progress, "validation": validation}
    for stream, shown in (
        (None, ()),  # as of a Python without a console
        (io.StringIO(), (True,)),
        (Terminal(), (None, True)),
    ):
        with redirect_stderr(stream):
            lk.train(network(), dataset, 2, 7, 0.1, **options)
        text = stream.getvalue() if stream else ""
        assert ("2/2" in text and "validation=" in text) == (progress in shown), text


def run(*words):
    """The exit status of the command line, 0 when it returns."""
    try:
        command.main(["train", "--version", "numpy", "--hidden", "3", *map(str, words)])
    except SystemExit as stop:
        return stop.code
    return 0


def test_the_command_line_trains_and_forecasts_the_months_after(tmp_path, capsys):
    """By hand: windows of growth up to 1958, and the network's growth after each."""
    path, y = tmp_path / "run.npz", data.airline().to_numpy(float)
    words = ("--seed", 7, "--batch-size", 40, "--learning-rate", 0.01)
    words += ("--optimizer", "sgd", "--checkpoint", path)
    assert run("--epochs", 1, *words) == 0
    assert run("--epochs", 2, *words) == 2  # exists
    assert run("--epochs", 2, *words, "--resume") == 0
    growth = np.diff(np.log(y))
    # The test years are no part of the scaling.
    mean, std = growth[:119].mean(), growth[:119].std()
    z = ((growth - mean) / std).astype(np.float32)
    rows = np.lib.stride_tricks.sliding_window_view(z, 13)[: 119 - 12]
    dataset = lk.Dataset(rows.T[:12, :, None], rows[:, 12:])
    net = lk.network("numpy", lk.Params.init(1, 3, output_size=1, seed=7))
    history = lk.train(net, dataset, 2, 40, 0.01, seed=7)
    with np.load(path) as file:
        named = {n: file[n] for n in file.files if n != "header"}
    assert named.pop("history.loss").tolist() == history.loss
    for name, value in net.params().arrays().items():
        np.testing.assert_array_equal(named[f"params.{name}"], value)
    # Month t comes after growth t-13, ..., t-2, that of month t-1.
    x = np.stack([z[t - 13 : t - 1] for t in range(120, 144)], axis=1)[..., None]
    error = y[119:143] * np.exp(net.predict(x)[:, 0] * std + mean) - y[120:]
    rmse, mae = np.sqrt((error**2).mean()), abs(error).mean()
    mape = 100 * (abs(error) / y[120:]).mean()
    want = f"RMSE {rmse:.2f}, MAE {mae:.2f}, MAPE {mape:.2f}"
    line = capsys.readouterr().out.splitlines()[-1]
    assert line == f"1959-1960, one month ahead: {want}"


def test_the_command_line_says_where_it_was_stopped(tmp_path, monkeypatch, capsys):
    epochs, epoch = iter([1, 2]), Numpy.epoch

    def stop(self, *args):
        if next(epochs, None) is None:
            raise KeyboardInterrupt
        return epoch(self, *args)

    monkeypatch.setattr(Numpy, "epoch", stop)
    path = tmp_path / "run.npz"
    assert run("--optimizer", "sgd", "--epochs", 9, "--checkpoint", path) == 130
    want = f"stopped after 2 of 9 epochs; --checkpoint {path} --resume goes on"
    assert capsys.readouterr().err == f"python -m lstm_kernels: {want}\n"


def test_the_command_line_answers_in_one_line(capsys):
    for words, said in (
        (("--hidden", 2**62), "Maximum allowed dimension exceeded"),
        (("--learning-rate", "1e39"), "learning_rate: got 1e+39, want"),
    ):
        assert run(*words) == 2
        out, err = capsys.readouterr()
        assert not out
        assert err.startswith("python -m lstm_kernels: ")
        assert said in err
        assert err.count("\n") == 1
