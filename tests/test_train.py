"""Training: it learns, a seed repeats it, a resumed run has the bits of an uninterrupted one."""

import math

import numpy as np
import pytest
from conftest import SIMULATED, example

import lstm_kernels as lk
from lstm_kernels import data


@pytest.fixture
def dataset():
    return data.windows(np.sin(np.arange(60) / 3), 8)


def network(version="numpy", seed=0):
    return lk.network(version, lk.Params.init(1, 9, 1, 1, seed=seed))


def same(a, b):
    for name, value in a.params().arrays().items():
        np.testing.assert_array_equal(value, b.params().arrays()[name], err_msg=name)


@pytest.mark.parametrize(("optimizer", "rate"), [("sgd", 0.2), ("adam", 0.02)])
def test_the_loss_falls(version, dataset, optimizer, rate):
    if version in ("sequential", "numpy-sample"):
        dataset = lk.Dataset(dataset.x[:, :16].copy(), dataset.target[:16].copy())
    if SIMULATED and version.startswith("cuda"):
        dataset = lk.Dataset(dataset.x[6:, :5].copy(), dataset.target[:5].copy())
    history = lk.train(network(version), dataset, 25, 5, rate, optimizer=optimizer)
    assert history.epochs == len(history.seconds) == 25
    assert history.loss[-1] < 0.5 * history.loss[0]


@pytest.mark.parametrize("batch_size", [1, 5, 52])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_resumed_run_has_the_same_bits(tmp_path, dataset, optimizer, batch_size):
    options = {"batch_size": batch_size, "learning_rate": 0.01, "optimizer": optimizer, "seed": 3}
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
        def step(self, x, target, learning_rate):
            seen.append(target[:, 0].copy())
            return float(len(target))

    history = lk.train(Spy(lk.Params.init(1, 1, 1, 1)), dataset, 1, 5, 0.1)
    assert [len(batch) for batch in seen] == [5] * 10 + [2]
    np.testing.assert_array_equal(np.sort(np.concatenate(seen)), np.sort(dataset.target[:, 0]))
    assert history.loss == [(10 * 5 * 5 + 2 * 2) / 52]


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_parameters(dataset):
    good = network()
    lk.train(good, dataset, 2, 5, 0.01)

    class Failing(type(good)):
        count = 0

        def step(self, x, target, learning_rate):
            self.count += 1
            loss = super().step(x, target, learning_rate)
            return math.nan if self.count == 2 * 11 + 4 else loss

    net = Failing(lk.Params.init(1, 9, 1, 1))
    with pytest.raises(lk.DivergedError, match="loss is nan at epoch 2, step 3") as caught:
        lk.train(net, dataset, 5, 5, 0.01)
    assert (caught.value.epoch, caught.value.step, caught.value.history.epochs) == (2, 3, 2)
    same(net, good)


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_learning_rate_that_diverges(version, dataset, optimizer):
    dataset = lk.Dataset(dataset.x[:, :4].copy(), dataset.target[:4].copy())
    net = network(version)
    with pytest.raises(lk.DivergedError, match="learning_rate: "):
        lk.train(net, dataset, 50, 2, 1e38, optimizer=optimizer)
    assert all(np.isfinite(a).all() for a in net.params().arrays().values())


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"epochs": 0}, ValueError, "epochs: got 0"),
        ({"batch_size": 0}, ValueError, "batch_size: got 0"),
        ({"batch_size": 53}, ValueError, "batch_size: got 53, want at most 52"),
        ({"batch_size": 2.5}, TypeError, "batch_size: got 2.5"),
        ({"learning_rate": 0}, ValueError, "learning_rate: got 0"),
        ({"learning_rate": math.nan}, ValueError, "learning_rate: got nan"),
        ({"optimizer": "rmsprop"}, ValueError, "optimizer: got 'rmsprop', want one of 'sgd'"),
        ({"seed": -1}, ValueError, "seed: got -1"),
        ({"dataset": (1, 2)}, TypeError, "dataset: got tuple, want lstm_kernels.Dataset"),
        ({"resume": True}, ValueError, "checkpoint: got None, want the path to resume from"),
    ],
)
def test_bad_arguments(dataset, change, error, message):
    good = {"dataset": dataset, "epochs": 1, "batch_size": 5, "learning_rate": 0.1}
    with pytest.raises(error, match=message):
        lk.train(network(), **good | change)


def test_checkpoints_are_guarded(tmp_path, dataset, monkeypatch):
    path = tmp_path / "run.npz"
    lk.train(network(), dataset, 1, 5, 0.1, checkpoint=path)
    before = path.read_bytes()
    with pytest.raises(FileExistsError, match=r"checkpoint: .* exists, want resume=True"):
        lk.train(network(), dataset, 1, 5, 0.1, checkpoint=path)
    with pytest.raises(ValueError, match=r"another run, got {'learning_rate': 0.1}, want"):
        lk.train(network(), dataset, 2, 5, 0.2, checkpoint=path, resume=True)
    other = lk.network("numpy", lk.Params.init(1, 4, 1, 1))
    with pytest.raises(ValueError, match="another cell, shape or dtype"):
        lk.train(other, dataset, 2, 5, 0.1, checkpoint=path, resume=True)
    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", lambda file, **_: file.write(b"half") and 1 / 0)
        with pytest.raises(ZeroDivisionError):
            lk.train(network(), dataset, 2, 5, 0.1, checkpoint=path, resume=True)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["run.npz"]
    path.write_bytes(before[: len(before) // 2])
    with pytest.raises(ValueError, match="is not a whole file"):
        lk.train(network(), dataset, 2, 5, 0.1, checkpoint=path, resume=True)
    example((1, 1, 1, 1, 1))[0].save(path)
    with pytest.raises(ValueError, match=r"has format 'lstm_kernels.params/1', want"):
        lk.train(network(), dataset, 2, 5, 0.1, checkpoint=path, resume=True)
    with pytest.raises(FileNotFoundError):
        lk.train(network(), dataset, 2, 5, 0.1, checkpoint=tmp_path / "none.npz", resume=True)


def test_on_epoch_sees_every_epoch(dataset):
    seen = []
    lk.train(network(), dataset, 3, 5, 0.1, on_epoch=lambda h, net: seen.append(h.epochs))
    assert seen == [1, 2, 3]
