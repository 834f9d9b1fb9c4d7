"""Page 09, weights of low rank: speed in NumPy and compiled, and loss."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import lstm_kernels as lk
from lstm_kernels import data, reference
from lstm_kernels.data import Dataset
from lstm_kernels.training import train

from .. import plots
from ..experiments import ideas
from ..measure import comparer, runner
from ..measure.evidence import intervals
from ..measure.timing import together
from ..measure.workloads import Workload
from ..studies.low_rank import CompiledCell, LowRank, cells, cut, factor

DENSE, RANKS = "dense", (64, 32, 16, 8, 2)
CASES = DENSE, *(f"rank {R}" for R in RANKS)
H, SIGNS_COUNT = 256, 64
COMPILED = "cell compiled"
WORKS: dict[str, tuple[Any, Any]] = {  # the dense version, that of low rank
    "NumPy": ("numpy", LowRank),
    COMPILED: ("numba-fused", lambda one: CompiledCell(one, ideas.compiled(cells))),
}
SPEED = {  # arguments of `measure_speed`
    "smoke": {"work": Workload(1, 4, 64, 64, 8), "repeats": 2},
    "paper": {"work": Workload(1, 100, H, H, 64), "repeats": 5},
}
BEFORE, AFTER = 42.8, 8.36  # Optim-LSTM's milliseconds
AIRLINE, SIGNS = "airline", "64 signs"
TRAINING = {  # epochs and learning rates of training, of fine-tuning; mini-batch
    AIRLINE: ((100, 0.1), (80, 0.01), 16),
    SIGNS: ((12, 8.0), (6, 4.0), 32),
}
LOSSES = {  # arguments of `measure_losses`
    "smoke": {"H": 32, "ranks": (8, 32), "small": True},
    "paper": {"H": H, "ranks": (8, 32, 64), "small": False},
}


def measure_speed(work: Workload, repeats: int) -> pd.DataFrame:
    """Rows of inference on one thread by `work` and case, dense and the ranks; verified
    before and after.
    """
    params, (x, _) = work.params(), work.example()
    largest = factor(params, max(RANKS))
    factored = {f"rank {R}": cut(largest, R) for R in RANKS}
    few, parts = np.ascontiguousarray(x[:3, :5]), []
    for name, (version, kind) in WORKS.items():
        nets: dict[str, Any] = {case: kind(one) for case, one in factored.items()}
        nets[DENSE] = runner.network(version, params, threads=1)

        def check(nets=nets):
            return {case: error(net, few) for case, net in nets.items()}

        cases = runner.each(nets, lambda net: net.forward(x))
        rows = runner.timed({name: cases}, check, repeats=repeats, wait=True)
        parts.append(rows.rename(columns={"stage": "work"}))
    return together(parts)


def error(net, x):
    """The largest relative error of a network, dense or factored, from the reference in
    float64; raises MismatchError.
    """
    params = net.params()
    dense = params.dense() if isinstance(net, LowRank) else params
    want = reference.forward(dense.astype(np.float64), x.astype(np.float64))[0]
    got = {"y": net.forward(x)[0]}
    return comparer.compare(got, {"y": want}, comparer.TOLERANCE[x.dtype])


def examples(task, small=False):
    """Training and held-out examples of a task."""
    if task == AIRLINE:
        passengers = data.airline().to_numpy(float)
        growth = data.LogDifference.fit(passengers[:96]).forward(passengers[:120])
        every, count = data.windows(growth, 12), 95 - 12  # windows that end by 1956
        cut = slice(count), slice(count, None)
        return [
            Dataset(np.ascontiguousarray(every.x[:, part]), every.target[part])
            for part in cut
        ]
    rng, signs = np.random.default_rng(1), 8 if small else SIGNS_COUNT
    sets = []
    for count in (64, 64) if small else (1024, 1024):
        target = rng.choice([-1, 1], (count, signs)).astype(np.float32)
        x = np.zeros((3, count, signs), np.float32)
        x[0] = target
        sets.append(Dataset(x, target))
    return sets


def measure_losses(
    process: int, H: int, ranks: tuple[int, ...], small: bool
) -> pd.DataFrame:
    """Rows of held-out losses of both tasks, with the number of the process as seed:
    trained dense, then fine-tuned dense and at each rank.
    """
    parts = (losses_of(task, process, H, ranks, small) for task in TRAINING)
    return pd.concat(parts).assign(repeat=0)


def losses_of(task, seed, H, ranks, small):
    """Rows task, case, loss, seconds."""
    training, held_out = examples(task, small)
    (epochs, rate), (more, lower), batch_size = TRAINING[task]
    sizes = training.x.shape[2], H
    params = lk.Params.init(*sizes, output_size=training.target.shape[1], seed=seed)
    params.layers[0].b[H : 2 * H] += 2  # the forget gate begins open
    net = lk.network("numba-fused", params)
    how = {"progress": False, "batch_size": batch_size}
    of_dense = {"epochs": 2 if small else epochs, "learning_rate": rate, "seed": seed}
    train(net, training, **of_dense, **how)
    trained, found = net.params(), []
    largest = factor(trained, max(ranks))
    nets = {f"rank {R}": LowRank(cut(largest, R)) for R in ranks}
    of_tuned = {"epochs": 1 if small else more, "learning_rate": lower}
    for case, one in (nets | {DENSE: net}).items():
        history = train(one, training, seed=seed + 100, **of_tuned, **how)
        loss = float(np.mean((one.predict(held_out.x) - held_out.target) ** 2))
        found.append((task, case, loss, sum(history.seconds)))
    return pd.DataFrame(found, columns=["task", "case", "loss", "seconds"])


def by_seed(losses: pd.DataFrame, task: str) -> pd.DataFrame:
    """Held-out losses of a task: a row a seed, a column a case."""
    part = losses[losses["task"] == task]
    return part.pivot(index="process", columns="case", values="loss")


def figure_cost(gains: pd.Series, losses: pd.DataFrame) -> Figure:
    """Loss over speed: dense and each rank, a line for each task. gains: how many times
    as fast as dense each case is.
    """
    figure, ax = plots.panels(1, 4.2)
    ax.set(xscale="log", yscale="log")
    ends = []
    for task, colour in ((AIRLINE, plots.BLUE), (SIGNS, plots.RED)):
        table = by_seed(losses, task)
        over = intervals(table.div(table[DENSE], axis=0))
        over = over.loc[[case for case in CASES if case in over.index]]
        x, middle = gains[over.index], over["middle"]
        bars = middle - over["low"], over["high"] - middle
        style = {"color": colour, "markersize": 5, "linewidth": 1.3, "capsize": 2}
        ax.errorbar(x, middle, bars, fmt="o-", **style)
        ends += [over["low"].min(), over["high"].max()]
        last = x.iloc[-1], middle.iloc[-1]
        plots.note(ax, task, last, (0, -18), color=colour, ha="center")
    for case in over.index[1:]:
        place = gains[case], middle[case]
        plots.note(ax, case, place, (-6, 5), color=plots.BLACK, ha="right")
    plots.note(ax, DENSE, (1, 1), (0, -18), color=plots.BLACK)
    plots.ticks(ax, "x", [1, 2, 3, 5, 10, 20])
    plots.ticks(ax, "y", [t for t in (0.5, 1, 2, 5, 10, 20, 50) if t <= 2 * max(ends)])
    ax.set_xlim(0.9, gains[over.index].max() * 1.4)
    ax.set_ylim(min(0.6, min(ends) / 1.3), max(ends) * 1.6)
    ax.set(xlabel="times as fast as dense, cell compiled (log axis)")
    ax.set(ylabel="held-out loss, dense = 1 (log axis)")
    ax.set_title("The same ranks cost little on one task, much on the other")
    return figure
