"""Training: it learns, a seed repeats it, and a run that was stopped, resumed or
divided into calls has the bits of one without a break.
"""

import io
import math
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, suppress

import numpy as np
import pytest
from conftest import IN_USE
from hypothesis import given, settings
from hypothesis import strategies as st

import lstm_kernels as lk
from lstm_kernels import __main__ as command
from lstm_kernels import data, reference

DATASET = data.windows(np.sin(np.arange(60) / 3), 8)  # 52 examples
VALIDATION = data.windows(np.cos(np.arange(31) / 2), 11)  # 20 of another length


def start(**options):
    return lk.Params.init(1, 9, output_size=1, **options)


def network(version="numpy", seed=0):
    return lk.network(version, start(seed=seed))


Numpy = type(network())


def same(net, other):
    np.testing.assert_equal(net.params().arrays(), other.params().arrays())


def test_the_loss_falls():
    history = lk.train(network(), DATASET, 25, 5, 0.2)
    assert history.epochs == len(history.seconds) == 25
    assert history.loss[-1] < 0.5 * history.loss[0]


@settings(max_examples=20)
@given(st.data(), st.integers(5, 60), st.booleans())
def test_a_run_in_parts_has_the_bits_of_a_whole_one(
    tmp_path_factory, drawn, batch_size, validated
):
    """Resumed from a checkpoint, after an end by `on_epoch` too, and by calls that
    follow each other.
    """
    rates = drawn.draw(st.lists(st.sampled_from([0.03, 0.01]), min_size=2, max_size=5))
    first, count = drawn.draw(st.integers(0, 9)), len(rates)
    part = drawn.draw(st.integers(1, count))
    how = {"learning_rate": lambda epoch: rates[epoch - first], "seed": first + count}
    how |= {"dataset": DATASET, "batch_size": min(batch_size, 52)}
    how |= {"first_epoch": first}
    how |= {"validation": VALIDATION} if validated else {}
    whole, later = network(), network(seed=9)  # whose parameters are from the file
    history = lk.train(whole, epochs=count, **how)
    assert history.rates == rates
    how["checkpoint"] = tmp_path_factory.mktemp("run") / "run.npz"
    end = lambda history, net: history.epochs == part  # noqa: E731
    assert lk.train(network(), epochs=count, on_epoch=end, **how).epochs == part
    again = lk.train(later, epochs=count, resume=True, **how)
    same(later, whole)
    assert (again.loss, again.validation) == (history.loss, history.validation)
    assert (len(again.seconds), again.rates) == (count, rates)
    assert [p.name for p in how["checkpoint"].parent.iterdir()] == ["run.npz"]
    del how["checkpoint"]
    if part < count:
        net = network()
        losses = lk.train(net, epochs=part, **how).loss
        how["first_epoch"] += part
        losses += lk.train(net, epochs=count - part, **how).loss
        assert losses == history.loss
        same(net, whole)


def test_a_checkpoint_of_another_run_is_refused_and_nothing_changed(tmp_path):
    path, deep, adam = (tmp_path / f"{name}.npz" for name in ("run", "deep", "adam"))
    options = {"epochs": 2, "batch_size": 5, "learning_rate": 0.1}

    def again(dataset=DATASET, resume=True, file=path, cell="lstm", H=9, L=1, **change):
        sizes = {"num_layers": L, "output_size": 1, "cell": cell}
        net = lk.network("numpy", lk.Params.init(1, H, **sizes))
        before = net.params().arrays()
        try:
            lk.train(net, dataset, **options | change, resume=resume, checkpoint=file)
        finally:
            if resume:
                np.testing.assert_equal(net.params().arrays(), before)

    again(resume=False, L=2, file=deep)
    again(resume=False)
    with np.load(path) as archive:  # as an older version wrote it
        header = str(archive["header"]).replace('"sgd"', '"adam"')
        np.savez(adam, **{**archive, "header": np.array(header)})
    before = path.read_bytes()
    moved = lk.Dataset(DATASET.x, DATASET.target + np.float32(1e-6))
    for change, message in (
        ({"learning_rate": 0.2}, "got learning_rate 0.1 in epoch 0, want 0.2"),
        ({"first_epoch": 2}, "got {'first_epoch': 0}, want {'first_epoch': 2}"),
        ({"seed": 1}, "got {'seed': 0}, want"),
        ({"batch_size": 4}, "got {'batch_size': 5}, want"),
        ({"file": adam}, "got {'optimizer': 'adam'}, want {'optimizer': 'sgd'}"),
        ({"dataset": moved}, r"got {'dataset': '\w{64}'}, want"),
        ({"validation": VALIDATION}, "got {'validation': None}, want"),
        ({"cell": "rnn"}, "got {'cell': 'lstm'}, want"),
        ({"H": 4}, r"layers.0.U: got shape \(1, 36\), want \(1, 16\)"),
        ({"L": 2}, r"lacks or has too much \['params.layers.1.U'"),
        ({"file": deep}, r"lacks or has too much \['params.layers.1.U'"),
        ({"epochs": 1}, "has 2 epochs, want at most 1"),
    ):
        with pytest.raises(ValueError, match=rf"^checkpoint: .*\.npz: .*{message}"):
            again(**change)
    with pytest.raises(FileExistsError, match=r"^checkpoint: .* exists, want"):
        again(resume=False)
    with pytest.raises(FileNotFoundError, match="none"):
        again(file=tmp_path / "none")
    assert path.read_bytes() == before


def test_a_checkpoint_stays_in_the_folder_that_training_began_in(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run.npz").write_text("another's")
    monkeypatch.chdir(tmp_path)
    for epochs in (1, 2):
        on_epoch = lambda *_: os.chdir(tmp_path / "other")  # noqa: E731
        how = {"checkpoint": "run.npz", "resume": epochs > 1, "on_epoch": on_epoch}
        assert lk.train(network(), DATASET, epochs, 5, 0.1, **how).epochs == epochs
        monkeypatch.chdir(tmp_path)
    assert (tmp_path / "other" / "run.npz").read_text() == "another's"


def test_a_rate_is_looked_at_in_each_epoch():
    net, trained = network(), network()
    with pytest.raises(TypeError, match=r"^learning_rate\(1\): got 'fast'") as caught:
        lk.train(net, DATASET, 2, 52, [0.1, "fast"].__getitem__)
    lk.train(trained, DATASET, 1, 52, 0.1)
    assert caught.value.history.rates == [0.1]
    same(net, trained)


class Watched(Numpy):
    """A network that notes the targets, rate and parameters of each step, and does
    something at the step `place`.
    """

    def __init__(self, place=None, do=None):
        super().__init__(start())
        self.place, self.do = place, do
        self.targets, self.rates, self.before = [], [], []

    def _done(self, loss):
        return self.do(loss) if len(self.before) == self.place else loss

    def _step(self, x, target, rate):
        self.targets.append(target[:, 0].copy())
        self.rates.append(rate)
        self.before.append(self._now().copy())
        self._done(0)
        return self._done(super()._step(x, target, rate))


def test_seeds_decide_the_order_and_no_example_is_cut():
    orders = []
    for seed in (1, 1, 2):
        net = Watched()
        history = lk.train(net, DATASET, 2, 5, [0.1, 0.2].__getitem__, seed=seed)
        assert [len(batch) for batch in net.targets] == [*[5] * 10, 2] * 2
        assert net.rates == [0.1] * 11 + [0.2] * 11
        orders += np.concatenate(net.targets).reshape(2, 52).tolist()
    assert orders[:2] == orders[2:4]
    assert len({tuple(order) for order in orders}) == 4
    assert {(*sorted(order),) for order in orders} == {(*sorted(DATASET.target[:, 0]),)}
    # The loss of an epoch is the mean over its examples, each before its step.
    losses, net = [], network()
    for row in np.split(np.array(orders[-2]), range(5, 52, 5)):
        index = [np.flatnonzero(DATASET.target[:, 0] == value)[0] for value in row]
        losses += [net.step(*DATASET.batch(np.array(index)), 0.1)] * len(index)
    assert history.loss[0] == pytest.approx(np.mean(losses))


class Far(Numpy):
    """A network with predictions that are not finite."""

    def predict(self, x):
        return np.full((x.shape[1], 1), np.inf)


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_parameters():
    good, net = network(), Watched(2 * 11 + 4, lambda loss: math.nan)
    lk.train(good, DATASET, 2, 5, 0.01, first_epoch=3)
    with pytest.raises(lk.DivergedError, match="nan at epoch 5, step 3; the") as caught:
        lk.train(net, DATASET, 5, 5, 0.01, first_epoch=3)
    error = caught.value
    assert (error.epoch, error.step, error.history.epochs) == (5, 3, 2)
    same(net, good)
    far, want = Far(start()), "the validation loss is inf at epoch 0, step 7"
    with pytest.raises(lk.DivergedError, match=want) as caught:
        lk.train(far, DATASET, 2, 7, 0.1, validation=VALIDATION)
    assert caught.value.history == lk.History()
    same(far, network())


@pytest.mark.filterwarnings("ignore:overflow|invalid")
@pytest.mark.parametrize("version", IN_USE)
def test_what_diverges_leaves_the_parameters_of_before(version):
    few = lk.Dataset(DATASET.x[:, :4].copy(), np.float32(1e5) * DATASET.target[:4])
    net = network(version)
    want = r"^learning_rate: .* is (nan|inf|not finite) at epoch 0"
    with pytest.raises(lk.DivergedError, match=want):
        lk.train(net, few, 9, 3, 3e37)
    same(net, network())


def test_an_interrupt_leaves_whole_steps_and_whole_epochs(tmp_path):
    def interrupt(loss):
        raise KeyboardInterrupt

    options = {"seed": 1}
    kept = {"checkpoint": tmp_path / "run.npz", **options}
    net, later, whole = Watched(2 * 11 + 4, interrupt), network(), network()
    with pytest.raises(KeyboardInterrupt, match="stopped after 2 of 5 epochs"):
        lk.train(net, DATASET, 5, 5, 0.01, **kept)
    np.testing.assert_equal(net.params().arrays(), net.before[-1].arrays())
    assert lk.train(later, DATASET, 2, 5, 0.01, resume=True, **kept).epochs == 2
    lk.train(whole, DATASET, 2, 5, 0.01, **options)
    same(later, whole)


def test_training_goes_on_from_what_on_epoch_leaves():
    other, large = start(seed=5), start(seed=5)
    large.V *= np.float32(1e38)  # whose loss is infinite: that epoch goes back to it

    def assign(history, net):
        assert history.epochs == len(history.loss)
        history.loss.append("none")  # it is a copy
        net.assign(other)

    net, alone = network(), lk.network("numpy", other)
    history = lk.train(net, DATASET, 2, 52, 0.01, on_epoch=assign)
    same(net, alone)
    assert history.loss[1] == pytest.approx(
        alone.loss_and_grads(DATASET.x, DATASET.target)[0]
    )
    with pytest.raises(lk.DivergedError, match="the loss is inf at epoch 1, step 0"):
        lk.train(net, DATASET, 2, 5, 0.01, on_epoch=lambda _, net: net.assign(large))
    same(net, lk.network("numpy", large))


@pytest.mark.parametrize(
    ("answer", "epochs"), [(np.True_, 2), (True, 2), ("no", 5), (1, 5), (np.False_, 5)]
)
def test_on_epoch_ends_training_by_true_alone(answer, epochs):
    end = lambda history, net: answer if history.epochs >= 2 else None  # noqa: E731
    assert lk.train(network(), DATASET, 5, 7, 0.1, on_epoch=end).epochs == epochs


OTHER = lk.DivergedError("of another training", epoch=7, step=3)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, OTHER])
def test_whatever_ends_training_has_the_history(error):
    other = start(seed=5)

    def stop(history, net):
        if history.epochs == 3:
            net.assign(other)
            raise error

    net = network()
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        lk.train(net, DATASET, 9, 7, 0.1, on_epoch=stop, validation=VALIDATION)
    history = caught.value.history
    assert history.epochs == len(history.seconds) == len(history.validation) == 3
    same(net, lk.network("numpy", other))  # it is no divergence of this training
    assert error is not OTHER or caught.value is OTHER


def test_validation_is_the_error_after_each_epoch_and_in_no_measured_time():
    """Of all examples alike, though mini-batches of 7 do not divide them."""
    want, wide = [], [a.astype(float) for a in (VALIDATION.x, VALIDATION.target)]

    def watch(history, net):
        want.append(reference.loss_and_grads(net.params().astype(float), *wide)[0])
        assert len(history.validation) == history.epochs
        time.sleep(0.2)

    class Slow(Numpy):
        def predict(self, x):
            time.sleep(0.2)
            return super().predict(x)

    options = {"batch_size": 7, "learning_rate": 0.05}
    more, net = {"validation": VALIDATION, "on_epoch": watch}, Slow(start())
    began = time.perf_counter()
    history = lk.train(net, DATASET, 3, **options, **more)
    assert sum(history.seconds) <= time.perf_counter() - began - 3 * 4 * 0.2
    np.testing.assert_allclose(history.validation, want, rtol=1e-5)
    assert repr(history).endswith(f", last validation {history.validation[-1]:.4g}")
    plain = lk.train(network(), DATASET, 3, **options)
    assert (plain.loss, plain.validation) == (history.loss, [])


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("progress", [None, True, False])
def test_a_bar_where_it_is_asked_for_and_can_be_shown(progress):
    for stream, shown in (
        (None, ()),  # as of a Python without a console
        (io.StringIO(), (True,)),
        (Terminal(), (None, True)),
    ):
        with redirect_stderr(stream):
            lk.train(network(), DATASET, 2, 7, 0.1, progress=progress)
        text = stream.getvalue() if stream else ""
        assert ("2/2" in text and "loss " in text) == (progress in shown), text


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
    words += ("--checkpoint", path)
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
    loss = lk.train(net, dataset, 2, 40, 0.01, seed=7).loss[-1]
    with np.load(path) as file:
        for name, value in net.params().arrays().items():
            np.testing.assert_array_equal(file[f"params.{name}"], value)
    # Month t comes after growth t-13, ..., t-2, that of month t-1.
    x = np.stack([z[t - 13 : t - 1] for t in range(120, 144)], axis=1)[..., None]
    error = y[119:143] * np.exp(net.predict(x)[:, 0] * std + mean) - y[120:]
    rmse, mae = np.sqrt((error**2).mean()), abs(error).mean()
    mape = 100 * (abs(error) / y[120:]).mean()
    want = f"RMSE {rmse:.2f}, MAE {mae:.2f}, MAPE {mape:.2f}"
    *_, epochs, line = capsys.readouterr().out.splitlines()
    assert epochs.endswith(f"loss {loss:.4g}")
    assert line == f"1959-1960, one month ahead: {want}"


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_the_command_line_says_where_it_was_stopped(tmp_path):
    path = tmp_path / "run.npz"
    line = [sys.executable, "-m", "lstm_kernels", "train", "--version", "numpy"]
    line += ["--epochs", "100000", "--checkpoint", str(path)]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as process:
        while not path.exists() and process.poll() is None:
            time.sleep(0.05)
        said = None
        while said is None:  # Python loses an interrupt in a finaliser
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert said.startswith("python -m lstm_kernels: stopped after ")
    assert said.endswith(f" of 100000 epochs; --checkpoint {path} --resume goes on\n")


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
