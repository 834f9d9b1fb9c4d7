"""Mini-batch training: gradient descent, Adam, seeded shuffles, checkpoint and resume."""

import itertools
import math
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from tqdm import tqdm

from .data import Dataset
from .errors import DivergedError, check_choice, check_int, check_rate
from .params import Params, read_npz, write_npz

FORMAT = "lstm_kernels.checkpoint/1"


@dataclass
class History:
    """Per epoch: the mean loss over its examples, each before its step, and the seconds it took."""

    loss: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def epochs(self):
        return len(self.loss)

    def loss_after(self, seconds):
        """The loss of the last epoch that ended within `seconds`; ValueError if none did."""
        ended = sum(time <= seconds for time in itertools.accumulate(self.seconds))
        if not ended:
            raise ValueError(f"seconds: got {seconds}, want at least {self.seconds[:1]}, one epoch")
        return self.loss[ended - 1]


class GradientDescent:
    """theta -= learning_rate * gradient, inside the network."""

    def __init__(self, net):
        self.net = net

    def epoch(self, dataset, order, batch_size, learning_rate):
        return self.net.epoch(dataset, order, batch_size, learning_rate)

    def arrays(self):
        return {}

    def restore(self, named):
        pass


class Adam:
    """Adam (Kingma & Ba 2015, algorithm 1) with its default decay rates, on the host."""

    beta1, beta2, epsilon = 0.9, 0.999, 1e-8

    def __init__(self, net):
        self.net, self.theta, self.count = net, net.params(), 0
        self.m = {name: np.zeros_like(a) for name, a in self.theta.arrays().items()}
        self.v = {name: np.zeros_like(a) for name, a in self.theta.arrays().items()}

    def epoch(self, dataset, order, batch_size, learning_rate):
        """A step for each mini-batch; ends early when a loss is not finite."""
        step = partial(self.step, learning_rate=learning_rate)
        return dataset.each_batch(order, batch_size, step)

    def step(self, x, target, learning_rate):
        loss, grads = self.net.loss_and_grads(x, target)
        if not math.isfinite(loss):
            return loss
        self.count += 1
        scale = math.sqrt(1 - self.beta2**self.count) / (1 - self.beta1**self.count)
        gradients = grads.arrays()
        for name, value in self.theta.arrays().items():
            g, m, v = gradients[name], self.m[name], self.v[name]
            m += (1 - self.beta1) * (g - m)
            v += (1 - self.beta2) * (g * g - v)
            value -= learning_rate * scale * m / (np.sqrt(v) + self.epsilon)
        self.net.assign(self.theta)
        return loss

    def arrays(self):
        moments = {f"m.{n}": a for n, a in self.m.items()} | {
            f"v.{n}": a for n, a in self.v.items()
        }
        return moments | {"count": np.array(self.count)}

    def restore(self, named):
        self.theta, self.count = self.net.params(), int(named["count"])
        for name in self.m:
            self.m[name][...], self.v[name][...] = named[f"m.{name}"], named[f"v.{name}"]


OPTIMIZERS = {"sgd": GradientDescent, "adam": Adam}


def train(
    net,
    dataset,
    epochs,
    batch_size,
    learning_rate,
    *,
    optimizer="sgd",
    seed=0,
    progress=None,
    checkpoint=None,
    resume=False,
    on_epoch=None,
):
    """Train `net` on `dataset` up to `epochs` epochs; returns the History.

    batch_size: examples per step; 1 is stochastic, len(dataset) full-batch gradient descent. The
    last mini-batch of an epoch is smaller when the sizes do not divide. learning_rate: step length.
    optimizer: "sgd" or "adam". seed: of the shuffles; epoch e is shuffled by (seed, e), so a
    resumed run sees the order of an uninterrupted one. progress: show a bar; None shows it on a
    terminal.
    checkpoint: a path, written after each epoch (beside, then renamed). resume: go on from it; the
    result has the bits of an uninterrupted run. Without resume an existing file is an error.
    on_epoch: called as on_epoch(history, net) after each epoch, outside its measured time.
    Raises TypeError or ValueError for bad input or a checkpoint of another run, FileExistsError,
    and DivergedError when the loss is not finite: the network then holds the parameters of the last
    epoch that ended well.
    """
    if not isinstance(dataset, Dataset):
        raise TypeError(f"dataset: got {type(dataset).__name__}, want lstm_kernels.Dataset")
    epochs, batch_size = check_int("epochs", epochs), check_int("batch_size", batch_size)
    if batch_size > len(dataset):
        raise ValueError(f"batch_size: got {batch_size}, want at most {len(dataset)}, the examples")
    learning_rate = check_rate("learning_rate", learning_rate)
    seed = check_int("seed", seed, low=0)
    rule = OPTIMIZERS[check_choice("optimizer", optimizer, OPTIMIZERS)](net)
    run = {
        "optimizer": optimizer,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "seed": seed,
        "examples": len(dataset),
    }
    history = History()
    if resume:
        if checkpoint is None:
            raise ValueError("checkpoint: got None, want the path to resume from")
        history = _restore(checkpoint, run, net, rule)
    elif checkpoint is not None and Path(checkpoint).exists():
        raise FileExistsError(f"checkpoint: {checkpoint} exists, want resume=True or another path")

    good, sizes = net.params(), np.diff([*range(0, len(dataset), batch_size), len(dataset)])
    hidden = not (sys.stderr.isatty() if progress is None else progress)
    bar = tqdm(range(history.epochs, epochs), unit="epoch", disable=hidden)
    for epoch in bar:
        start = time.perf_counter()
        order = np.random.default_rng([seed, epoch]).permutation(len(dataset))
        losses = np.array(rule.epoch(dataset, order, batch_size, learning_rate))
        seconds = time.perf_counter() - start
        if not np.isfinite(losses).all():
            step = int(np.argmin(np.isfinite(losses)))
            _diverged(net, good, history, epoch, step, f"the loss is {losses[step]}")
        now, step = net.params(), len(losses) - 1
        if not all(np.isfinite(a).all() for a in now.arrays().values()):
            _diverged(net, good, history, epoch, step, "a parameter is not finite")
        good = now
        history.loss.append(float(losses @ sizes / len(dataset)))
        history.seconds.append(seconds)
        if not hidden:
            bar.set_postfix(loss=f"{history.loss[-1]:.4g}")
        if checkpoint is not None:
            _save(checkpoint, run, good, rule, history)
        if on_epoch is not None:
            on_epoch(history, net)
    return history


def _diverged(net, good, history, epoch, step, what):
    net.assign(good)
    raise DivergedError(
        f"learning_rate: {what} at epoch {epoch}, step {step}; the parameters are those after "
        f"{history.epochs} epochs; want a smaller learning_rate",
        epoch=epoch,
        step=step,
        history=history,
    )


def _save(path, run, params, rule, history):
    header = {"format": FORMAT, "cell": params.cell, "run": run}
    series = {"history.loss": np.array(history.loss), "history.seconds": np.array(history.seconds)}
    state = {f"optimizer.{name}": a for name, a in rule.arrays().items()}
    write_npz(path, header, {f"params.{n}": a for n, a in params.arrays().items()} | state | series)


def _restore(path, run, net, rule):
    header, named = read_npz(path, FORMAT)
    different = [key for key in run if header.get("run", {}).get(key) != run[key]]
    if different:
        got = {key: header.get("run", {}).get(key) for key in different}
        want = {key: run[key] for key in different}
        raise ValueError(f"checkpoint: {path} is of another run, got {got}, want {want}")
    try:
        part = {n.removeprefix("params."): a for n, a in named.items() if n.startswith("params.")}
        net.assign(Params.from_arrays(part, header["cell"]))
        rule.restore({n.removeprefix("optimizer."): a for n, a in named.items()})
        return History(named["history.loss"].tolist(), named["history.seconds"].tolist())
    except KeyError as error:
        raise ValueError(f"checkpoint: {path} lacks {error}") from None
