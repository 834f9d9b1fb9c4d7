"""Training: it learns, a seed repeats it, a resumed run has the bits of an
uninterrupted one.
"""

import io
import math
import pickle
import sys
import warnings

import numpy as np
import pytest
from conftest import SIMULATED, example

import lstm_kernels as lk
from lstm_kernels import __main__ as command
from lstm_kernels import data, reference, training
from lstm_kernels.training import Adam


@pytest.fixture
def dataset():
    return data.windows(np.sin(np.arange(60) / 3), 8)


def network(version="numpy", seed=0):
    return lk.network(version, lk.Params.init(1, 9, output_size=1, seed=seed))


def same(a, b):
    for name, value in a.params().arrays().items():
        np.testing.assert_array_equal(value, b.params().arrays()[name], err_msg=name)


@pytest.mark.parametrize(("optimizer", "rate"), [("sgd", 0.2), ("adam", 0.02)])
def test_the_loss_falls(version, dataset, optimizer, rate):
    if version in ("sequential", "numpy-sample"):
        dataset = lk.Dataset(dataset.x[:, :16].copy(), dataset.target[:16].copy())
    if SIMULATED and version.startswith("cuda"):
        if version != "cuda-epoch":
            pytest.skip("slow in the simulator; test_versions compares its steps")
        dataset = lk.Dataset(dataset.x[6:, :5].copy(), dataset.target[:5].copy())
    history = lk.train(network(version), dataset, 25, 5, rate, optimizer=optimizer)
    assert history.epochs == len(history.seconds) == 25
    assert history.loss[-1] < 0.5 * history.loss[0]


@pytest.mark.parametrize("batch_size", [1, 5, 52])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_resumed_run_has_the_same_bits(tmp_path, dataset, optimizer, batch_size):
    options = {"batch_size": batch_size, "learning_rate": 0.01, "seed": 3}
    options["optimizer"] = optimizer
    whole, path = network(), tmp_path / "run.npz"
    history = lk.train(whole, dataset, 6, **options)
    lk.train(network(), dataset, 2, checkpoint=path, **options)
    later = network(seed=9)  # other parameters: they come from the checkpoint
    again = lk.train(later, dataset, 6, checkpoint=path, resume=True, **options)
    same(later, whole)
    assert again.loss == history.loss
    assert again.epochs == 6
    assert [p.name for p in tmp_path.iterdir()] == ["run.npz"]


def test_seeds_decide_the_order_of_examples(dataset):
    one, same_seed, other = network(), network(), network()
    lk.train(one, dataset, 2, 5, 0.1, seed=1)
    lk.train(same_seed, dataset, 2, 5, 0.1, seed=1)
    lk.train(other, dataset, 2, 5, 0.1, seed=2)
    same(one, same_seed)
    with pytest.raises(AssertionError):
        same(one, other)


def test_no_example_is_cut_and_the_loss_is_their_mean(dataset):
    seen = []

    class Spy(type(network())):
        def _step(self, x, target, rate):
            seen.append(target[:, 0].copy())
            return float(len(target))

    history = lk.train(Spy(lk.Params.init(1, 1, output_size=1)), dataset, 1, 5, 0.1)
    assert [len(batch) for batch in seen] == [5] * 10 + [2]
    np.testing.assert_array_equal(
        np.sort(np.concatenate(seen)), np.sort(dataset.target[:, 0])
    )
    assert history.loss == [(10 * 5 * 5 + 2 * 2) / 52]


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_parameters(dataset):
    good = network()
    lk.train(good, dataset, 2, 5, 0.01)

    class Failing(type(good)):
        count = 0

        def _step(self, x, target, rate):
            self.count += 1
            loss = super()._step(x, target, rate)
            return math.nan if self.count == 2 * 11 + 4 else loss

    net = Failing(lk.Params.init(1, 9, output_size=1))
    with pytest.raises(lk.DivergedError, match="nan at epoch 2, step 3") as caught:
        lk.train(net, dataset, 5, 5, 0.01)
    error = caught.value
    assert (error.epoch, error.step, error.history.epochs) == (2, 3, 2)
    same(net, good)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_learning_rate_that_diverges(version, dataset, optimizer):
    dataset = lk.Dataset(dataset.x[:, :4].copy(), dataset.target[:4].copy())
    net = network(version)
    with warnings.catch_warnings():
        if version.startswith("cuda"):  # the threads of the simulator warn
            warnings.simplefilter("ignore")
        with pytest.raises(lk.DivergedError, match="learning_rate: "):
            lk.train(net, dataset, 50, 2, 1e38, optimizer=optimizer)
    assert all(np.isfinite(a).all() for a in net.params().arrays().values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "epochs: got 0"),
        ({"epochs": True}, "epochs: got True, want an integer"),
        ({"batch_size": 0}, "batch_size: got 0"),
        ({"batch_size": 53}, "batch_size: got 53, want an integer from 1 to 52"),
        ({"batch_size": 2.5}, "batch_size: got 2.5"),
        ({"learning_rate": 0}, "learning_rate: got 0"),
        ({"learning_rate": math.nan}, "learning_rate: got nan"),
        ({"learning_rate": 1e39}, r"learning_rate: got 1e\+39, want .* in float32"),
        ({"optimizer": "rmsprop"}, "optimizer: got 'rmsprop', want one of 'sgd'"),
        ({"optimizer": ["sgd"]}, r"optimizer: got \['sgd'\], want one of 'sgd'"),
        ({"seed": -1}, "seed: got -1"),
        ({"dataset": (1, 2)}, "dataset: got tuple, want lstm_kernels.Dataset"),
        ({"resume": True}, "checkpoint: got None, want the path to resume from"),
        ({"net": 3}, "net: got int, want a network"),
        ({"on_epoch": 3}, "on_epoch: got 3, want a function"),
        ({"checkpoint": ""}, "checkpoint: got '', want the path of a file"),
        ({"checkpoint": 3}, "checkpoint: got 3, want the path of a file"),
    ],
)
def test_bad_arguments(dataset, change, message):
    good = {"dataset": dataset, "epochs": 1, "batch_size": 5, "learning_rate": 0.1}
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        lk.train(**{"net": network()} | good | change)


def test_checkpoints_are_guarded(tmp_path, dataset):
    path = tmp_path / "run.npz"
    options = {"epochs": 2, "batch_size": 5, "learning_rate": 0.1, "checkpoint": path}

    def again(
        version="numpy", dataset=dataset, resume=True, cell="lstm", H=9, **change
    ):
        net = lk.network(version, lk.Params.init(1, H, output_size=1, cell=cell))
        lk.train(net, dataset, **options | change, resume=resume)

    again(resume=False)
    before = path.read_bytes()
    moved = lk.Dataset(dataset.x, dataset.target + np.float32(1e-6))
    turned = lk.Dataset(dataset.x[:, ::-1], dataset.target)
    for change, error, message in (
        ({"resume": False}, FileExistsError, "checkpoint: .* exists, want resume=True"),
        ({"learning_rate": 0.2}, ValueError, "run, got {'learning_rate': 0.1}, want"),
        ({"dataset": moved}, ValueError, r"run, got {'dataset': '\w{64}'}, want"),
        ({"dataset": turned}, ValueError, r"run, got {'dataset': '\w{64}'}, want"),
        ({"H": 4}, ValueError, r"run.npz: params.layers.0.U: got shape \(1, 36\)"),
        ({"cell": "rnn"}, ValueError, "got {'cell': 'lstm'}, want {'cell': 'rnn'}"),
        ({"checkpoint": tmp_path / "none"}, FileNotFoundError, "none"),
    ):
        with pytest.raises(error, match=message):
            again(**change)
    assert path.read_bytes() == before
    example((1, 1, 1, 1, 1))[0].save(path)
    with pytest.raises(ValueError, match=r"has format 'lstm_kernels.params/3', want"):
        again()


def test_a_run_of_other_decay_rates_is_another_run(tmp_path, dataset, monkeypatch):
    options = {"optimizer": "adam", "checkpoint": tmp_path / "run.npz"}
    lk.train(network(), dataset, 1, 5, 0.1, **options)
    constants = {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8}
    monkeypatch.setattr(Adam, "constants", constants)
    with pytest.raises(ValueError, match=r"another run, got {'beta2': 0.999}, want"):
        lk.train(network(), dataset, 2, 5, 0.1, **options, resume=True)


@pytest.mark.parametrize("place", ["none/run.npz", "file/run.npz", "."])
def test_a_place_that_cannot_be_written_is_known_before_the_first_epoch(
    tmp_path, dataset, place
):
    (tmp_path / "file").touch()
    net = network()
    net.epoch = None  # not reached
    for resume in (False, True):
        options = {"checkpoint": tmp_path / place, "resume": resume}
        with pytest.raises((OSError, ValueError), match="checkpoint: "):
            lk.train(net, dataset, 1, 5, 0.1, **options)


class Linear:
    """A 'network' of parameters theta whose gradient is known: curvature theta cos(t /
    10).
    """

    curvature = np.array([1e-8, 1.0, 30.0, 1e-3])

    def __init__(self, theta):
        self.theta, self.t, self.gradients = np.array(theta), 0, []

    def params(self):
        return lk.Params(
            [lk.Layer(np.zeros((1, 1)), np.zeros((1, 1)), self.theta.copy())]
        )

    def assign(self, params):
        self.theta = params.layers[0].b.copy()

    def loss_and_grads(self, x, target):
        self.t += 1
        g = self.curvature * self.theta * np.cos(0.1 * self.t)
        self.gradients.append(g)
        zero = np.zeros((1, 1))
        return 1.0, lk.Grads([lk.Layer(zero, zero, g)], x=zero, state=(zero, zero))

    epoch = None


def steps_of_adam(theta, count, rate):
    net = Linear(theta)
    rule, examples = Adam(net), lk.Dataset(np.zeros((1, 4, 1)), np.zeros((4, 1)))
    for _ in range(0, count, 4):
        rule.epoch(examples, np.arange(min(count, 4)), 1, rate)
    return net, rule


def test_the_first_step_of_adam_is_algorithm_1():
    net, rule = steps_of_adam([1.0, -2.0, 0.5, 3.0], 1, 0.01)
    g = net.gradients[0]
    np.testing.assert_allclose(rule.moments["m.layers.0.b"], 0.1 * g, rtol=1e-12)
    np.testing.assert_allclose(rule.moments["v.layers.0.b"], 1e-3 * g * g, rtol=1e-12)
    want = [1.0, -2.0, 0.5, 3.0] - 0.01 * g / (np.abs(g) + 1e-8)
    np.testing.assert_allclose(net.theta, want, rtol=1e-14)


# torch.optim.Adam(lr=0.01) of PyTorch 2 in float64, on the gradients of `Linear`.
PYTORCH = {
    1: "0.9950125208628857 -1.9900000000502511 0.49000000000670013 2.990000033500585",
    100: "0.9627862699448931 -1.9255877009204352 0.36579392563460106 2.931227372967298",
}


@pytest.mark.parametrize("count", PYTORCH)
def test_adam_is_pytorchs(count):
    net, _ = steps_of_adam([1.0, -2.0, 0.5, 3.0], count, 0.01)
    want = np.array(PYTORCH[count].split(), float)
    np.testing.assert_allclose(net.theta, want, rtol=1e-12)


def test_adam_against_pytorch_itself():
    torch = pytest.importorskip("torch")
    theta = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64, requires_grad=True)
    rule = torch.optim.Adam([theta], lr=0.01)
    net, _ = steps_of_adam(theta.tolist(), 100, 0.01)
    for t in range(100):
        slope = torch.from_numpy(Linear.curvature * np.cos(0.1 * (t + 1)))
        theta.grad = slope * theta.detach()
        rule.step()
    np.testing.assert_allclose(net.theta, theta.tolist(), rtol=1e-12)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_goes_on_from_what_on_epoch_leaves(dataset, optimizer):
    start = lk.Params.init(1, 9, output_size=1, seed=5)
    moved, plain = network(), lk.network("numpy", start)
    seen = []

    def assign(history, net):
        seen.append(net.params())
        net.assign(start)

    lk.train(moved, dataset, 2, 52, 1e-30, optimizer=optimizer, on_epoch=assign)
    same(moved, plain)
    for name, value in seen[1].arrays().items():  # a step of 1e-30 from `start`
        np.testing.assert_allclose(value, start.arrays()[name], rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_what_on_epoch_leaves_is_what_a_diverged_epoch_goes_back_to(dataset, optimizer):
    start = lk.network("numpy", lk.Params.init(1, 9, output_size=1, seed=5))
    net = network()
    large = start.params()
    large.V *= np.float32(1e38)  # whose loss is infinite
    options = {"optimizer": optimizer, "on_epoch": lambda _, n: n.assign(large)}
    with pytest.raises(lk.DivergedError, match="the loss is inf at epoch 1, step 0"):
        lk.train(net, dataset, 2, 5, 0.01, **options)
    same(net, lk.network("numpy", large))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_what_another_rank_finds_stops_this_one_too(dataset, optimizer):
    """A network that several processes train answers for all of them."""

    class Shared(type(network())):
        verdicts = 0

        def on_every_rank(self, finite):
            self.verdicts += 1
            assert finite
            return self.verdicts < 31

    net = Shared(lk.Params.init(1, 9, output_size=1))
    with pytest.raises(lk.DivergedError, match="is not finite") as caught:
        lk.train(net, dataset, 50, 5, 0.01, optimizer=optimizer)
    assert net.verdicts == 31
    # Two an epoch, of eleven steps: is it finite, does it go on; with Adam one a step, too.
    assert caught.value.epoch == (15 if optimizer == "sgd" else 2)


def test_each_epoch_has_an_order_of_its_own(dataset):
    net, orders = network(), []
    net.epoch = lambda dataset, order, *_: orders.append(order) or [1.0] * 11
    lk.train(net, dataset, 3, 5, 0.1)
    assert all(sorted(order) == list(range(52)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3


@pytest.mark.parametrize("version", ["numpy", "numba-fused"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("batch_size", [2, 4])
def test_parameters_and_losses_that_overflow_leave_those_of_before(
    dataset, version, optimizer, batch_size
):
    few = lk.Dataset(dataset.x[:, :4].copy(), np.float32(1e5) * dataset.target[:4])
    net = network(version)
    before = net.params().arrays()
    rate = 3e37 if optimizer == "sgd" else 3.4e38
    with pytest.raises(lk.DivergedError, match=r"is (nan|inf|not finite) at epoch"):
        lk.train(
            net, few, 1 if batch_size == 2 else 9, batch_size, rate, optimizer=optimizer
        )
    if optimizer == "sgd" or batch_size == 2:  # Adam's first step is finite at any rate
        for name, value in net.params().arrays().items():
            np.testing.assert_array_equal(value, before[name], err_msg=name)
    assert all(np.isfinite(a).all() for a in net.params().arrays().values())


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


def test_a_history_of_before_there_was_validation_is_read():
    old = lk.History([1.5], [0.1])
    del old.validation
    got = pickle.loads(pickle.dumps(old))
    assert got.validation == []
    assert repr(got) == "History: 1 epochs in 0.1 s, last loss 1.5"


def test_a_divergence_that_on_epoch_raises_is_not_that_of_this_training(dataset):
    net = lk.network("numpy", lk.Params.init(1, 4, output_size=1))
    other = lk.Params.init(1, 4, output_size=1, seed=5)

    def on_epoch(history, net):
        net.assign(other)
        raise lk.DivergedError("of another training", epoch=7, step=3)

    with pytest.raises(lk.DivergedError, match=r"^of another training$") as caught:
        lk.train(net, dataset, 3, 4, 1e-3, on_epoch=on_epoch, progress=False)
    assert (caught.value.epoch, caught.value.history.epochs) == (7, 1)
    for name, a in net.params().arrays().items():
        assert (a == other.arrays()[name]).all()


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_an_interrupt_leaves_whole_steps_and_whole_epochs(tmp_path, dataset, optimizer):
    path, options = tmp_path / "run.npz", {"optimizer": optimizer, "seed": 1}
    after = []  # parameters after each step

    class Interrupted(type(network())):
        steps = 0

        def loss_and_grads(self, x, target):
            self.count()
            return super().loss_and_grads(x, target)

        def _step(self, x, target, rate):
            self.count()
            return super()._step(x, target, rate)

        def count(self):
            after.append(self._now().copy())
            self.steps += 1
            if self.steps == 2 * 11 + 4:
                raise KeyboardInterrupt

    net = Interrupted(lk.Params.init(1, 9, output_size=1))
    with pytest.raises(KeyboardInterrupt, match="stopped in epoch 2 of 5"):
        lk.train(net, dataset, 5, 5, 0.01, checkpoint=path, **options)
    for name, value in net.params().arrays().items():
        np.testing.assert_array_equal(value, after[-1].arrays()[name])
    later, whole = network(), network()
    again = {"checkpoint": path, "resume": True, **options}
    assert lk.train(later, dataset, 2, 5, 0.01, **again).epochs == 2
    lk.train(whole, dataset, 2, 5, 0.01, **options)
    same(later, whole)


def test_on_epoch_sees_every_epoch(dataset):
    seen = []
    note = lambda history, net: seen.append(history.epochs)  # noqa: E731
    lk.train(network(), dataset, 3, 5, 0.1, on_epoch=note)
    assert seen == [1, 2, 3]


@pytest.fixture
def validation():
    return data.windows(np.cos(np.arange(31) / 2), 11)  # 20 of another length


def test_validation_is_the_error_after_each_epoch(dataset, validation):
    """Of all examples alike, though mini-batches of 7 do not divide them."""
    want, wide = [], [a.astype(float) for a in (validation.x, validation.target)]

    def watch(history, net):
        want.append(reference.loss_and_grads(net.params().astype(float), *wide)[0])
        assert len(history.validation) == history.epochs

    options = {"batch_size": 7, "learning_rate": 0.05}
    net, plain = network(), network()
    history = lk.train(
        net, dataset, 3, **options, validation=validation, on_epoch=watch
    )
    np.testing.assert_allclose(history.validation, want, rtol=1e-5)
    assert repr(history).endswith(f", last validation {history.validation[-1]:.4g}")
    assert lk.train(plain, dataset, 3, **options).loss == history.loss
    assert lk.train(plain, dataset, 1, **options).validation == []


def test_validation_takes_none_of_the_measured_time(dataset, validation, monkeypatch):
    class Clocked(type(network())):
        now = 0.0

        def epoch(self, *arguments):
            Clocked.now += 2
            return super().epoch(*arguments)

        def predict(self, x):
            Clocked.now += 50
            return super().predict(x)

    monkeypatch.setattr(training.time, "perf_counter", lambda: Clocked.now)
    net = Clocked(lk.Params.init(1, 3, output_size=1))
    assert lk.train(net, dataset, 2, 7, 0.1, validation=validation).seconds == [2, 2]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_checkpoint_holds_the_validation(tmp_path, dataset, validation, optimizer):
    path = tmp_path / "run.npz"
    options = {"batch_size": 7, "learning_rate": 0.01, "optimizer": optimizer}
    whole = lk.train(network(), dataset, 5, **options, validation=validation)
    options["checkpoint"] = path
    lk.train(network(), dataset, 2, **options, validation=validation)
    with np.load(path) as file:
        assert file["history.validation"].tolist() == whole.validation[:2]
    options["resume"] = True
    again = lk.train(network(), dataset, 5, **options, validation=validation)
    assert (again.loss, again.validation) == (whole.loss, whole.validation)
    for other in (None, dataset):
        want = r"of another run, got {'validation': '\w{64}'}, want {'validation'"
        with pytest.raises(ValueError, match=want):
            lk.train(network(), dataset, 6, **options, validation=other)


def test_a_checkpoint_without_validation_is_as_it_always_was(
    tmp_path, dataset, validation
):
    options = {"batch_size": 7, "learning_rate": 0.01, "checkpoint": tmp_path / "a.npz"}
    lk.train(network(), dataset, 2, **options)
    with np.load(options["checkpoint"]) as file:
        names = [name for name in file.files if name.startswith("history.")]
        assert names == ["history.loss", "history.seconds"]
        assert "validation" not in str(file["header"])
    options["resume"] = True
    assert lk.train(network(), dataset, 3, **options).validation == []
    with pytest.raises(
        ValueError, match=r"another run, got {'validation': None}, want"
    ):
        lk.train(network(), dataset, 4, **options, validation=validation)


def test_what_is_no_validation_set(dataset, validation):
    other = lk.Dataset(validation.x.repeat(2, axis=2), validation.target)
    wide = lk.Dataset(*(a.astype(float) for a in (validation.x, validation.target)))
    two = lk.Dataset(validation.x, validation.target.repeat(2, axis=1))

    class Model:  # as `train` takes it, without predict
        epoch, params = None, network().params

    for net, wrong, said in (
        (network(), 3, "got int, want lstm_kernels.Dataset"),
        (network(), (validation.x, validation.target), "got tuple, want lstm_kernels"),
        (network(), wide, "x: got dtype float64, want float32"),
        (network(), other, r"x: got shape \(11, 20, 2\), want \(T, N, 1\), time first"),
        (network(), two, r"target: got shape \(20, 2\), want \(20, 1\)"),
        (Model(), validation, "got a Dataset for Model, which has no predict, want"),
    ):
        with pytest.raises((TypeError, ValueError), match=rf"^validation[:.] ?{said}"):
            lk.train(net, dataset, 1, 7, 0.1, validation=wrong)


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_validation_that_is_not_finite_is_a_divergence(dataset, validation):
    class Far(type(network())):
        def predict(self, x):
            return super().predict(x) * np.float32(np.inf)

    net = Far(lk.Params.init(1, 9, output_size=1))
    want = "the validation loss is (inf|nan) at epoch 0, step 7"
    with np.errstate(invalid="ignore"), pytest.raises(lk.DivergedError, match=want):
        lk.train(net, dataset, 2, 7, 0.1, validation=validation)
    same(net, network())


@pytest.mark.parametrize(
    ("answer", "epochs"),
    [(True, 2), (np.True_, 2), (1, 5), ("no", 5), (None, 5), (False, 5), ([0], 5)],
)
def test_on_epoch_ends_training_by_true_alone(tmp_path, dataset, answer, epochs):
    path, net = tmp_path / "run.npz", network()
    options = {"checkpoint": path, "seed": 4}
    end = lambda history, net: answer if history.epochs >= 2 else None  # noqa: E731
    history = lk.train(net, dataset, 5, 7, 0.1, **options, on_epoch=end)
    assert history.epochs == epochs
    again, whole = network(), network()
    lk.train(again, dataset, 5, 7, 0.1, **options, resume=True)
    lk.train(whole, dataset, 5, 7, 0.1, seed=4)
    same(again, whole)


class Slotted(BaseException):
    __slots__ = ()


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, ZeroDivisionError, SystemExit, Slotted]
)
def test_whatever_ends_training_has_the_history(dataset, validation, error):
    def stop(history, net):
        if history.epochs == 3:
            raise error

    with pytest.raises(error) as caught:
        lk.train(network(), dataset, 9, 7, 0.1, on_epoch=stop, validation=validation)
    history = caught.value.history
    assert history.epochs == len(history.seconds) == len(history.validation) == 3


def test_an_interrupt_between_two_notes_leaves_a_whole_history(
    dataset, validation, monkeypatch
):
    class Interrupted(list):
        def append(self, number):
            if len(self) == 2:
                raise KeyboardInterrupt
            super().append(number)

    for name in ("loss", "seconds", "validation"):
        start = {name: Interrupted()}
        monkeypatch.setattr(
            training, "History", lambda start=start: lk.History(**start)
        )
        with pytest.raises(
            KeyboardInterrupt, match="stopped in epoch 2 of 4"
        ) as caught:
            lk.train(network(), dataset, 4, 7, 0.1, validation=validation)
        history = caught.value.history
        assert history.epochs == len(history.seconds) == len(history.validation) == 2


class Write:
    """A standard error of a window, of which only `write` is there."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [lambda: None, closed, Write])
@pytest.mark.parametrize("progress", [None, True, False])
def test_training_needs_no_standard_error(dataset, monkeypatch, stream, progress):
    monkeypatch.setattr(sys, "stderr", stream())
    assert lk.train(network(), dataset, 2, 7, 0.1, progress=progress).epochs == 2
    if isinstance(sys.stderr, Write):
        assert not sys.stderr.text


def test_a_bar_where_it_is_asked_for(dataset, validation, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for stream, progress, shown in (
        (Terminal, None, True),
        (Terminal, False, False),
        (io.StringIO, None, False),
        (io.StringIO, True, True),
    ):
        monkeypatch.setattr(sys, "stderr", stream())
        options = {"progress": progress, "validation": validation}
        lk.train(network(), dataset, 2, 7, 0.1, **options)
        text = sys.stderr.getvalue()
        assert ("2/2" in text and "validation=" in text) == shown, text


def run(*words):
    """The exit status of the command line, 0 when it returns."""
    try:
        command.main(["train", "--version", "numpy", "--hidden", "3", *map(str, words)])
    except SystemExit as stop:
        return stop.code
    return 0


def test_the_command_line_passes_what_it_is_given(tmp_path, monkeypatch):
    calls, fitted = [], []

    def spy(net, dataset, *args, **options):
        calls.append((net.params(), args, options))
        return lk.train(net, dataset, *args, **options)

    def fit(passengers, fit=data.LogDifference.fit):
        fitted.append(len(passengers))
        return fit(passengers)

    monkeypatch.setattr(command, "train", spy)
    monkeypatch.setattr(data.LogDifference, "fit", fit)
    path = tmp_path / "run.npz"
    words = ("--seed", 7, "--batch-size", 40, "--learning-rate", 0.01)
    words += ("--optimizer", "sgd")
    assert run("--epochs", 1, *words, "--checkpoint", path) == 0
    assert run("--epochs", 2, *words, "--checkpoint", path) == 2  # exists
    assert run("--epochs", 2, *words, "--checkpoint", path, "--resume") == 0
    assert fitted == [120] * 3  # the test years are no part of the scaling
    assert [args for _, args, _ in calls] == [(e, 40, 0.01) for e in (1, 2, 2)]
    for resume, (params, _, options) in zip((False, False, True), calls, strict=True):
        want = {"optimizer": "sgd", "seed": 7, "checkpoint": str(path)}
        assert options == want | {"resume": resume}
        drawn = lk.Params.init(1, 3, output_size=1, seed=7)
        np.testing.assert_array_equal(params.V, drawn.V)


def test_the_command_line_compares_forecasts_with_the_months_that_they_are_of(
    tmp_path, capsys
):
    """Against forecasts made by hand: the network's growth after each run of twelve."""
    path, y = tmp_path / "run.npz", data.airline().to_numpy(float)
    assert run("--epochs", 1, "--checkpoint", path) == 0
    line = capsys.readouterr().out.splitlines()[1]
    with np.load(path) as file:
        named = {
            n.removeprefix("params."): file[n] for n in file.files if "params" in n
        }
    net = lk.network("numpy", lk.Params.from_arrays(named, "lstm"))
    growth = np.diff(np.log(y))
    mean, std = growth[:119].mean(), growth[:119].std()
    z = ((growth - mean) / std).astype(np.float32)
    # Month t comes after growth t-13, ..., t-2, that of month t-1.
    x = np.stack([z[t - 13 : t - 1] for t in range(120, 144)], axis=1)[..., None]
    forecast = y[119:143] * np.exp(net.predict(x)[:, 0] * std + mean)
    error = forecast - y[120:]
    figures = (
        np.sqrt((error**2).mean()),
        abs(error).mean(),
        (abs(error) / y[120:]).mean(),
    )
    want = "RMSE {:.2f}, MAE {:.2f}, MAPE {:.2f}".format(*figures[:2], 100 * figures[2])
    assert line == f"1959-1960, one month ahead: {want}"


def test_the_command_line_says_where_it_was_stopped(tmp_path, monkeypatch, capsys):
    epochs, kind = [], type(network())
    epoch = kind.epoch

    def stop(self, *args):
        epochs.append(1)
        if len(epochs) == 3:
            raise KeyboardInterrupt
        return epoch(self, *args)

    monkeypatch.setattr(kind, "epoch", stop)
    path = tmp_path / "run.npz"
    assert run("--optimizer", "sgd", "--epochs", 9, "--checkpoint", path) == 130
    want = f"stopped in epoch 2 of 9; --checkpoint {path} --resume goes on"
    assert capsys.readouterr().err == f"python -m lstm_kernels: {want}\n"
    monkeypatch.setattr(sys.modules["lstm_kernels.data"], "airline", lambda: 1 / 0)
    assert run() == 2
    assert capsys.readouterr().err == "python -m lstm_kernels: division by zero\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--hidden", 2**62), "Maximum allowed dimension exceeded"),
        (("--checkpoint", ""), "checkpoint: got '', want the path of a file"),
        (("--learning-rate", "1e39"), "learning_rate: got 1e+39, want"),
        (("--version", "cudnn"), "name: got 'cudnn', want one of"),
    ],
)
def test_the_command_line_answers_in_one_line(capsys, words, said):
    assert run(*words) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("python -m lstm_kernels: ")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("error", [MemoryError(), MemoryError("2.62 TiB")])
def test_too_large_a_network_is_answered_in_one_line(monkeypatch, capsys, error):
    def init(*_, **__):
        raise error

    monkeypatch.setattr(lk.Params, "init", init)
    assert run() == 2
    assert capsys.readouterr().err.endswith(f": {str(error) or 'out of memory'}\n")


def test_the_commands_say_what_their_options_are(capsys):
    for words, said in (
        (["--version"], f"lstm_kernels {lk.__version__}\n"),
        (["train", "--help"], "windows of a mini-batch (default: 16)"),
        (["train", "--help"], "a name of the ladder (default: numba-fused)"),
    ):
        with pytest.raises(SystemExit) as end:
            command.main(words)
        assert end.value.code == 0
        assert said in " ".join(capsys.readouterr().out.split(" "))
