"""Mini-batch gradient descent: seeded shuffles, checkpoint and resume."""

import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .data import Dataset
from .errors import (
    DivergedError,
    check_array,
    check_int,
    check_rate,
    check_type,
)
from .files import check_place, read_npz, write_npz

FORMAT = "lstm_kernels.checkpoint/6"


@dataclass(repr=False)
class History:
    """Per epoch: the mean loss over its examples, each before its step, its seconds,
    its learning rate, and, with `validation`, the mean squared error of those after it.
    """

    loss: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)

    @property
    def epochs(self) -> int:
        return len(self.loss)

    def __repr__(self) -> str:
        text = f"History: {self.epochs} epochs in {sum(self.seconds):.3g} s"
        for name in ("loss", "validation"):
            text += "".join(f", last {name} {a:.4g}" for a in getattr(self, name)[-1:])
        return text


class Checkpoint:
    """A file that holds the state of training after an epoch: it is whole, or the one
    before.
    """

    def __init__(self, path):
        check_place("checkpoint", path)
        self.path = Path(path).absolute()  # wherever `on_epoch` goes
        self.run = {}  # what else must be the same to go on

    def save(self, header, named):
        write_npz(self.path, header, named)

    def load(self, build):
        """build(header, arrays by name) of what `save` wrote."""
        return read_npz(self.path, FORMAT, build, name="checkpoint")


def train(
    net: Any,
    dataset: Dataset,
    epochs: int,
    batch_size: int,
    learning_rate: float | Callable[[int], float],
    *,
    seed: int = 0,
    first_epoch: int = 0,
    validation: Dataset | None = None,
    progress: bool | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    on_epoch: Callable[[History, Any], object] | None = None,
) -> History:
    """Train `net` on `dataset` up to `epochs` epochs by mini-batch gradient descent;
    returns the History.

    batch_size: examples per step; the last mini-batch of an epoch may be smaller.
    learning_rate: a number, or a function of the epoch alone, counted from
    `first_epoch`. seed: of the shuffling, of which each epoch has its own; what goes on
    after k epochs in another call has first_epoch=k. validation: a Dataset, whose mean
    squared error is noted after each epoch, in no measured time. progress: show a bar;
    None shows it on a terminal. checkpoint: the path of a file, replaced after each
    epoch by one that is whole. resume: go on from it, with the same version to the bits
    of a run without a break; without it an existing file is an error. on_epoch: called
    as on_epoch(history, net), a copy, after each epoch and its checkpoint, in no
    measured time; the next epoch starts from the parameters that it leaves in `net`,
    which are not in that checkpoint; when it returns True, training ends with this
    epoch. Of several ranks each may have its own or none, and one ends all.

    Raises TypeError or ValueError for bad input, a checkpoint that is damaged, longer
    than `epochs`, or of another run, network, data set or learning rates so far;
    FileExistsError; OSError, before the first epoch, where the checkpoint cannot be
    written; DivergedError when a loss or a parameter is not finite: the network then
    holds the parameters of the start of that epoch. After a KeyboardInterrupt, which
    says how many epochs had ended, it holds those after the last whole step. Any
    exception raised during training, by `on_epoch` too, carries `.history`, that of the
    epochs that ended.

    To keep the best parameters, and to stop when ten epochs brought no better ones:

    >>> from lstm_kernels import Params, data, network
    >>> wave = np.sin(np.arange(80))
    >>> dataset, validation = data.windows(wave[:60], 8), data.windows(wave[52:], 8)
    >>> net = network("numpy", Params.init(1, 4, output_size=1))
    >>> kept = {}
    >>> def on_epoch(history, net):
    ...     losses = history.validation
    ...     best = losses.index(min(losses))
    ...     if best == len(losses) - 1:
    ...         kept["best"] = net.params()  # a copy
    ...     return best < len(losses) - 10
    >>> watched = {"validation": validation, "on_epoch": on_epoch}
    >>> history = train(net, dataset, 30, 16, 0.05, **watched)
    >>> net.assign(kept["best"])
    """
    from tqdm import tqdm  # imported when used

    if not (hasattr(net, "epoch") and hasattr(net, "params")):
        check_type("net", net, (), "a network of lstm_kernels.network")
    good, everywhere = net.params(), lambda call, same=False: call()
    if hasattr(net, "world"):  # of several ranks: they go through the same epochs
        everywhere = net.world.agreed
    # What must be the same to go on from a checkpoint; older ones may be of Adam.
    run = {"cell": good.cell, "optimizer": "sgd"}

    def rate(epoch):
        """The learning rate of an epoch, checked."""
        name, number = "learning_rate", learning_rate
        if callable(learning_rate):
            name, number = f"{name}({epoch})", learning_rate(epoch)
        return check_rate(name, number, good.dtype)

    def told():
        """What `on_epoch` answers; of several ranks, some may have none."""
        numbers = vars(history).values()
        return on_epoch and on_epoch(History(*map(list, numbers)), net)

    def checked():
        """What must be the same on every rank, to begin."""
        check_type("dataset", dataset, Dataset)
        check_type("on_epoch", on_epoch, Callable | None, "a function")
        run["batch_size"] = check_int("batch_size", batch_size, 1, len(dataset))
        run["seed"] = check_int("seed", seed, low=0)
        run["first_epoch"] = check_int("first_epoch", first_epoch, low=0)
        if validation is not None:
            _check_validation(validation, net, good)
            run["validation"] = validation.sha256()
        if resume and checkpoint is None:
            raise ValueError("checkpoint: got None, want the path to resume from")
        others = {"epochs": check_int("epochs", epochs), "resume": resume}
        others |= {"checkpoint": str(checkpoint), "learning_rate": rate(first_epoch)}
        return run | others | vars(dataset)

    epochs = everywhere(checked, same=True)["epochs"]
    history, file = History(), None
    if checkpoint is not None:  # of several ranks, one file for all
        file = getattr(net, "checkpoint", Checkpoint)(checkpoint)
        run |= {"dataset": dataset.sha256(), **file.run}
        if resume:
            history = _restore(file, run, net, epochs, rate)
            good = net.params()
        elif file.path.exists():
            want = "resume=True or another path"
            raise FileExistsError(f"checkpoint: {file.path} exists, want {want}")

    left = range(first_epoch + history.epochs, first_epoch + epochs)
    hidden = None if progress is None else not progress  # None: but on a terminal
    try:
        # Python without a console has no standard error.
        with tqdm(left, unit="epoch", disable=not sys.stderr or hidden) as bar:
            for epoch in bar:
                history.rates.append(everywhere(lambda epoch=epoch: rate(epoch)))
                good = _epoch(net, dataset, run, history, validation, good)
                bar.set_postfix_str(repr(history).partition(", last ")[2])
                if file is not None:
                    header = {"format": FORMAT, "run": run, "history": vars(history)}
                    file.save(header, _saved(good))
                answer = everywhere(told)
                good = good if on_epoch is None else net.params()
                ends = isinstance(answer, bool | np.bool_) and bool(answer)
                if not _on_every_rank(net, not ends):
                    break
    except BaseException as error:
        for numbers in vars(history).values():
            del numbers[history.epochs :]  # of an epoch that was interrupted
        if isinstance(error, KeyboardInterrupt):
            done = first_epoch + history.epochs
            error.args = (f"stopped after {done} of {left.stop} epochs",)
        error.history = history  # type: ignore[attr-defined]
        raise
    return history


def _check_validation(validation, net, params):
    """Refuse a validation set that `net` cannot predict."""
    check_type("validation", validation, Dataset)
    if not hasattr(net, "predict"):
        got = f"a Dataset for {type(net).__name__}, which has no predict"
        raise TypeError(f"validation: got {got}, want None")
    shape, dtype = ("T", "N", params.input_size), params.dtype
    check_array("validation.x", validation.x, shape, dtype=dtype)
    shape = "N", params.output_size or "O"
    check_array("validation.target", validation.target, shape, dtype=dtype)


def _epoch(net, dataset, run, history, validation, before):
    """The next epoch, of which `history` takes note: the parameters after it. A
    DivergedError leaves the network the parameters `before`.
    """
    start, batch_size, losses = time.perf_counter(), run["batch_size"], ()
    epoch = run["first_epoch"] + history.epochs
    order = np.random.default_rng([run["seed"], epoch]).permutation(len(dataset))
    try:
        losses = np.array(net.epoch(dataset, order, batch_size, history.rates[-1]))
        seconds, params = time.perf_counter() - start, net.params()
        numbers = losses, *params.arrays().values()
        if not _on_every_rank(net, *map(np.isfinite, numbers)):
            whole = np.isfinite(losses[-1])  # else it ended there
            what = "a parameter is not finite" if whole else f"the loss is {losses[-1]}"
            raise DivergedError(what)
        if validation is not None:
            error = _squared_error(net, validation, batch_size)
            if not math.isfinite(error):
                raise DivergedError(f"the validation loss is {error}")
            history.validation.append(error)
    except DivergedError as error:
        net.assign(before)
        error.epoch = epoch
        error.step = len(losses) - 1 if error.step is None else error.step
        said = f"learning_rate: {error} at epoch {epoch}, step {error.step}; the "
        said += f"parameters are those after {epoch} epochs; want a smaller one"
        error.args = (said,)
        raise
    sizes = [len(index) for index in dataset.batches(order, batch_size)]
    history.seconds.append(seconds)
    history.loss.append(float(losses @ sizes / len(dataset)))  # last: it counts
    return params


def _squared_error(net, dataset, batch_size):
    """The mean squared error of the network's predictions, over all numbers."""
    total = 0.0
    for index in dataset.batches(np.arange(len(dataset)), batch_size):
        x, target = dataset.batch(index)
        error = np.subtract(net.predict(x), target, dtype=np.float64)
        total += float(np.vdot(error, error))
    return total / dataset.target.size


def _on_every_rank(net, *conditions):
    """Whether conditions hold: on every rank, of a network that several train."""
    hold = all(np.all(condition) for condition in conditions)
    return net.on_every_rank(hold) if hasattr(net, "on_every_rank") else hold


def _saved(params):
    """What a checkpoint holds, by name."""
    return {f"params.{name}": a for name, a in params.arrays().items()}


def _restore(file, run, net, most, rate):
    """The History of a Checkpoint, of at most so many epochs, whose parameters the
    network takes over, once everything is checked.
    """
    params = net.params()

    def build(header, named):
        saved, arrays = header["run"], _saved(params)
        every = sorted(run | saved)
        if other := [k for k in every if run.get(k) != saved.get(k)]:
            got, want = ({k: d.get(k) for k in other} for d in (saved, run))
            raise ValueError(f"is of another run, got {got}, want {want}")
        if other := arrays.keys() ^ named.keys():
            raise ValueError(f"lacks or has too much {sorted(other)}")
        for name, a in arrays.items():
            arrays[name] = check_array(name, named[name], a.shape, dtype=a.dtype)
        history = History(**header["history"])
        if history.epochs > most:
            raise ValueError(f"has {history.epochs} epochs, want at most {most}")
        for epoch, used in enumerate(history.rates, run["first_epoch"]):
            if rate(epoch) != used:
                got, want = f"learning_rate {used} in epoch {epoch}", rate(epoch)
                raise ValueError(f"is of another run, got {got}, want {want}")
        return history, arrays

    history, arrays = file.load(build)
    named = {name.removeprefix("params."): a for name, a in arrays.items()}
    net.assign(params.from_arrays(named, params.cell))
    return history
