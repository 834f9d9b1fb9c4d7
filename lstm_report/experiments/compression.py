"""Notebook 06's low-rank weights: what a rank costs in loss, on two tasks with an
optimum or a baseline to compare with.

A network is trained with dense weights, its weights are cut to a rank
(`low_rank.factor`), and it is trained on at that rank (fine-tuned). All losses are of
examples that no training saw.
"""

import time
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from lstm_kernels import data
from lstm_kernels.data import Dataset
from lstm_kernels.low_rank import factor, full_rank
from lstm_kernels.params import Params
from lstm_kernels.strings import SYMBOLS, NextSymbol, Reber, one_hot, outer_accuracy
from lstm_kernels.training import train
from lstm_kernels.versions import network
from lstm_kernels.versions.factored import FactoredNetwork

DENSE, FACTORED = "numba-fused", "factored"


@dataclass(frozen=True)
class Task:
    """Something to learn: sizes of the network, and how it is trained by Adam.

    H: hidden units. epochs, tuning: of training, and of fine-tuning at a rank.
    """

    H: int
    epochs: int
    tuning: int
    batch_size: int
    learning_rate: float

    def start(self, seed):
        """Params before training."""
        sizes = self.training.x.shape[2], self.H
        return Params.init(*sizes, output_size=self.outputs, seed=seed)

    def train(self, net, epochs, rate, seed):
        """Train a network; the seconds it took."""
        start = time.perf_counter()
        options = {"optimizer": "adam", "seed": seed, "progress": False}
        model = self.model(net)
        train(model, self.training, epochs, self.batch_size, rate, **options)
        return time.perf_counter() - start


@dataclass(frozen=True)
class Airline(Task):
    """The next month's growth from twelve before it: trained on 1949-1958, judged on
    1959-1960.

    Loss: mean squared error of the scaled growth. Without a network: the mean growth.
    """

    name, outputs, window, first = "airline", 1, 12, 120

    @cached_property
    def _growth(self):
        passengers = data.airline().to_numpy(float)
        return data.LogDifference.fit(passengers[: self.first]).forward(passengers)

    @cached_property
    def training(self):
        return data.windows(self._growth[: self.first - 1], self.window)

    @cached_property
    def held_out(self):
        every = data.windows(self._growth, self.window)
        new = np.arange(len(every)) >= len(self.training)
        return Dataset(np.ascontiguousarray(every.x[:, new]), every.target[new])

    def model(self, net):
        return net

    def judge(self, net):
        """The loss, and NaN: nothing to be right or wrong."""
        error = net.predict(self.held_out.x) - self.held_out.target
        return float(np.mean(error * error)), np.nan

    @property
    def reference(self):
        """The loss of the mean growth of the training years."""
        return float(np.mean(self.held_out.target**2))


@dataclass(frozen=True)
class Grammar(Task):
    """The next symbol of embedded Reber strings of `least` symbols or more, which have
    to carry the second symbol to the last but one.

    Loss: cross-entropy per symbol, nats. The least there is: that of the grammar
    itself. The bias of the forget gate begins larger by two, so that the cell state
    lasts (Gers et al. 2000).
    """

    strings: int = 4000
    least: int = 25

    name, outputs = "reber", len(SYMBOLS)

    def start(self, seed):
        params = super().start(seed)
        for layer in params.layers:
            layer.b[self.H : 2 * self.H] += 2  # of gate f
        return params

    @cached_property
    def training(self):
        return one_hot(Reber(self.least).strings(self.strings, seed=1))

    @cached_property
    def _held_out(self):
        return Reber(self.least).strings(512, seed=2)

    @cached_property
    def held_out(self):
        return one_hot(self._held_out)

    def model(self, net):
        return NextSymbol(net)

    def judge(self, net):
        """The loss, and the share of strings whose outer symbol is predicted."""
        model = NextSymbol(net)
        return model.loss(self.held_out.x), outer_accuracy(model, self._held_out)

    @property
    def reference(self):
        """The loss of the grammar's own probabilities on the same strings."""
        return Reber(self.least).cross_entropy(self._held_out)


# S4's width; and small ones for the smoke preset.
TASKS = {
    "paper": (Airline(256, 60, 20, 16, 1e-3), Grammar(256, 20, 5, 32, 2e-3)),
    "smoke": (
        Airline(16, 5, 2, 16, 3e-3),
        Grammar(16, 2, 1, 32, 5e-3, strings=64, least=9),
    ),
}
RANKS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192)


def ranks_up_to(full, ranks=RANKS):
    """Those of `ranks` below full, and full."""
    return [*(rank for rank in ranks if rank < full), full]


def compress(task, *, ranks=RANKS, seed=0):
    """Train dense, then at each rank cut and fine-tune; a row for each state of the
    network.

    Columns: variant (the task), version, stage ("trained", "cut", "tuned"), repeat (the
    seed), low_rank, parameters (of the layers), loss, accuracy, seconds (of the
    training before), max_err (relative error of the outputs on held-out examples,
    against those of the dense network). The dense network is tuned as long as the
    others: stage "tuned" of `numba-fused`.
    """
    net, x, rows = network(DENSE, task.start(seed)), task.held_out.x, []
    seconds = task.train(net, task.epochs, task.learning_rate, seed)
    trained, want = net.params(), net.forward(x)[0]

    def row(net, stage, seconds, rank, count):
        loss, accuracy = task.judge(net)
        off = np.linalg.norm(net.forward(x)[0] - want) / np.linalg.norm(want)
        version = DENSE if rank is None else FACTORED
        results = {"loss": loss, "accuracy": accuracy, "max_err": off}
        sizes = {"low_rank": rank, "parameters": count, "seconds": seconds}
        rows.append({"version": version, "stage": stage} | sizes | results)

    def tuned(net, rank, count):
        rate = task.learning_rate / 2
        row(net, "tuned", task.train(net, task.tuning, rate, seed + 100), rank, count)

    count = sum(a.size for layer in trained.layers for a in vars(layer).values())
    row(net, "trained", seconds, None, count)
    tuned(net, None, count)
    for rank in ranks_up_to(full_rank(trained), ranks):
        factors = factor(trained, rank)
        low = FactoredNetwork(factors)
        row(low, "cut", 0.0, rank, factors.count)
        tuned(low, rank, factors.count)
    T, _, D = task.training.x.shape
    sizes = {"L": 1, "T": T, "B": task.batch_size, "D": D, "H": task.H}
    about = sizes | {"variant": task.name, "repeat": seed, "dtype": "float32"}
    return pd.DataFrame(rows).assign(**about, threads=net._threads)


def study(preset, seeds=3, ranks=RANKS):
    """`compress` of every task of a preset and every seed: rows of a results file."""
    cases = [(task, seed) for task in TASKS[preset] for seed in range(seeds)]
    parts = [compress(task, ranks=ranks, seed=seed) for task, seed in cases]
    return pd.concat(parts, ignore_index=True)
