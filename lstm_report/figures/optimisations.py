"""The figures and tables of notebook 06: five switches, and low-rank weights."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from lstm_kernels.cells import CELLS

from ..experiments import compression, optimisations
from ..experiments.optimisations import cumulative, gains, name
from ..experiments.switches import BASELINE, EVERY, SWITCHES
from ..measure.timing import summary
from . import plots
from .tables import speed

# Published speed-ups over a baseline of eight products, forward, 512 units, 64 samples:
# Optim-LSTM on a GTX 1080 (4 layers, 100 steps); cuDNN 5 on an M40, Appleyard et al.,
# as remembered: the paper was not at hand. Its last step also multiplies the inputs of
# several steps at once.
ALONE = dict(zip(SWITCHES, (2.0, 1.82, 1.2, 1.063, 1.3), strict=True))
TOGETHER = dict(zip(cumulative(), (2.0, 3.74, 6.21, 6.55, 7.98), strict=True))
CUDNN = dict(zip(cumulative(), (2.1, 2.8, 5.5, 6.3, 11.1), strict=True))
GTX_1080 = 8.19e6  # operations in a microsecond at most, as Optim-LSTM gives it
K = 4  # gates
# Optim-LSTM's claim for low-rank weights: milliseconds before and after at 256 units,
# 100 steps.
CLAIM = (42.8, 8.36)
PUBLISHED = {
    "Optim-LSTM, GTX 1080": (ALONE, TOGETHER),
    "cuDNN 5, M40": ({"combine": 2.1}, CUDNN),
}


def source_table(table):
    """Each switch alone, in the source's order one after the other, and the best
    combination: speed-ups here and as published; table: `optimisations.by_combination`.
    """
    measured, rows = gains(table), {}
    for switch in SWITCHES:
        published = [alone.get(switch) for alone, _ in PUBLISHED.values()]
        rows["alone", switch] = [measured[switch], *published]
    for on in cumulative()[1:]:
        published = [together.get(on) for _, together in PUBLISHED.values()]
        rows["in turn", f"+ {on[-1]}"] = [measured[name(on)], *published]
    best = measured.idxmax()
    rows["best here", best] = [measured[best], None, None]
    columns = ["here", *PUBLISHED]
    shown = pd.DataFrame(rows, index=columns, dtype=float).T
    return shown.map(speed).replace("not measured", "")


def combinations(table, fused):
    """Every combination's speed-up, one column for each number of switches; fused: that
    of `numba-fused`.
    """
    speed_up = gains(table)
    best = speed_up.idxmax()
    figure, ax = plt.subplots(figsize=(8.5, 4.6))
    ax.set(xlabel="switches that are on", ylabel="times as fast as the baseline")
    ax.set(xlim=(-0.3, 5.6))
    labels = []
    for combination, gain in speed_up.items():
        count = 0 if combination == name(BASELINE) else combination.count("+") + 1
        ends = combination in (name(BASELINE), name(EVERY), best)
        colour = plots.RED if combination == best else plots.BLUE
        ax.plot(count, gain, "o", color=colour, markersize=6 if ends else 4)
        if count == 1:
            labels.append((count, gain, combination, colour))
    plots.label_lines(ax, labels)
    place = (best.count("+") + 1, speed_up[best])
    plots.note(ax, best, place, (-6, 0), color=plots.RED, ha="right", va="center")
    plots.level(ax, fused, f"numba-fused {speed(fused)}", color=plots.BLACK)
    plots.level(ax, 1, linestyle="--")
    ax.set_ylim(top=1.06 * max(fused, speed_up.max()))
    ax.set_title(f"The best combination is {speed(speed_up[best])} faster than none")
    return figure


EFFECT_TICKS = (0.25, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 4)


def effects(table):
    """Main effects and interactions with their intervals; table:
    `optimisations.effects`.
    """
    figure, ax = plt.subplots(figsize=(8.5, 5.2))
    for y, row in enumerate(table.itertuples()):
        colour = plots.BLUE if row.Index in SWITCHES else plots.GREY
        ax.plot([row.low, row.high], [y, y], color=colour)
        ax.plot(row.factor, y, "o", color=colour)
        place = {"va": "center", "fontsize": 8, "color": colour}
        plots.note(ax, f"{row.factor:.2f}", (row.high, y), (5, 0), **place)
    low = min(0.8, table["low"].min())
    high = max(1.25, table["high"].max())
    plots.ticks(ax, "x", [tick for tick in EFFECT_TICKS if low <= tick <= high])
    ax.set_xlim(low / 1.02, high * 1.1)
    ax.set_yticks(range(len(table)), table.index)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.axvline(1, color=plots.BLACK, linewidth=1)
    ax.set_xlabel(
        "factor by which the pass gets faster; of a pair: by which each helps the other"
    )
    top = table.loc[list(SWITCHES), "factor"].idxmax()
    gain = speed(table.loc[top, "factor"])
    ax.set_title(f"On average over the other switches, {top} gains most: {gain}")
    return figure


class _Counted:
    """Counts the array operations that are done with it."""

    def __init__(self, counts):
        self._counts = counts

    def _count(self, name, *others):
        self._counts.append(
            (name, 1 + sum(isinstance(other, _Counted) for other in others))
        )
        return _Counted(self._counts)

    def __add__(self, other):
        return self._count("add", other)

    def __mul__(self, other):
        return self._count("multiply", other)

    __radd__, __rmul__ = __add__, __mul__


def pointwise_operations():
    """The passes over memory of the unfused cell: (operations, arrays read or written).
    The text of the cell, called with objects that count.
    """
    counts = []
    tanh = lambda value: value._count("tanh")  # noqa: E731
    half = lambda value: 0.5 * tanh(0.5 * value) + 0.5  # noqa: E731 - `sigmoid_of`
    forward, _ = CELLS["lstm"].make(tanh, half)
    forward(*(_Counted(counts) for _ in range(5)))
    sums = 2 * 4  # of x, h and the bias, for each gate
    return len(counts) + sums, sum(read + 1 for _, read in counts) + 3 * sums


def counted(work, peak):
    """What a cell of a workload does, counted: a row per seam. peak: GFLOP/s of the
    products.
    """
    flop = 2 * work.B * work.H * work.H
    operations, arrays = pointwise_operations()
    size = 4 * work.B * work.H
    lasts = [f"{flop / rate:.3g}" for rate in (1e3 * peak, GTX_1080)]
    rows = {
        "a product of the eight": (f"{flop / 1e6:.3g} MFLOP", *lasts),
        "products of a pass": (
            f"{8 * work.L * work.T}, combined {work.L * work.T}",
            "",
            "",
        ),
        "point-wise operations of a cell": (f"{operations}, fused 1", "", ""),
        "what they read and write": (
            f"{arrays * size / 2**20:.3g} MiB, fused {(K + 3) * size / 2**20:.3g} MiB",
            *("", ""),
        ),
        "weights of a layer": (f"{32 * work.H**2 / 2**20:.3g} MiB", "", ""),
    }
    columns = ["count", "us here at the loop's rate", "us on a GTX 1080 at its peak"]
    return pd.DataFrame(rows, index=columns).T


def best_of(rows):
    """Of rows of `all_combinations`: the best combination, its and the baseline's and
    `numba-fused`'s median seconds, as a dict.
    """
    table = optimisations.by_combination(rows)
    best, medians = gains(table).idxmax(), table.median()
    fused = rows[rows["version"] == optimisations.FUSED]["seconds"].median()
    return {
        "best": best,
        "seconds": medians[best],
        "baseline": medians[name(BASELINE)],
        "fused": fused,
        "fused gain": medians[name(BASELINE)] / fused,
        "gain": gains(table)[best],
        "fused over best": medians[best] / fused,
    }


def rank_speeds(rows):
    """Median times of factored layers: a row per (B, rank), columns seconds and speed
    over the dense layer; rows: of `optimisations.ranks_of`.
    """
    lines = []
    for B, part in rows[rows["stage"] == "forward"].groupby("B"):
        part = part.assign(case=part["low_rank"].fillna(0).astype(int))
        table = summary(part, 0, by="case").drop(index=0)
        for rank, line in table.sort_index().iterrows():
            lines.append((B, rank, line["median"], line["ratio"]))
    columns = ["B", "rank", "seconds", "speed"]
    return pd.DataFrame(lines, columns=columns).set_index(["B", "rank"])


def draw_speeds(table, H):
    """Speed over the dense layer against rank, and the published claim; table:
    `rank_speeds`.
    """
    claim = CLAIM[0] / CLAIM[1]
    batches = table.index.levels[0]
    ranks = table.index.levels[1]
    figure, ax = plt.subplots(figsize=(8.5, 4.2))
    ax.set(xlabel="rank", ylabel="times as fast as the dense layer")
    plots.ticks(ax, "x", [*ranks])
    plots.ticks(ax, "y", [0.5, 1, 2, 3, 5, 10, 20])
    ax.set_xlim(ranks[0] / 1.1, ranks[-1] * 1.6)
    plots.level(ax, claim, f"Optim-LSTM's claim, {claim:.3g}x", linestyle="--")
    plots.level(ax, 1, color=plots.BLACK)
    names = {B: "one sample" if B == 1 else f"{B} samples" for B in batches}
    colours = dict(zip(batches, (plots.RED, plots.BLUE), strict=False))
    rows = table["speed"].reset_index()
    plots.over(ax, rows, "rank", "speed", "B", names=names, colours=colours)
    at = [f"{speed(table['speed'][B, H // 8])} (B = {B})" for B in batches]
    ax.set_title(f"At rank {H // 8} of {H} units: {' and '.join(at)} faster than dense")
    return figure


def rank_losses(rows):
    """Losses by task, state ("cut" or "tuned") and rank, medians over seeds and their
    range; the dense network's with rank 0. rows: of `compression.study`.
    """
    rows = rows[rows["loss"].notna()].assign(
        rank=rows["low_rank"].fillna(0).astype(int)
    )
    keys = ["variant", "stage", "rank"]
    table = rows.groupby(keys)["loss"].agg(["median", "min", "max"])
    rest = rows.groupby(keys)[["accuracy", "parameters", "max_err"]].median()
    return table.join(rest)


def cut_table(rows):
    """What `compression.compress` returned, for reading."""
    columns = ["version", "stage", "low_rank", "parameters", "loss", "max_err"]
    names = {"max_err": "change of outputs", "low_rank": "rank"}
    shown = rows[columns].astype({"low_rank": "Int64"}).rename(columns=names)
    return shown.set_index(["version", "stage"]).round(4)


def draw_losses(table):
    """Loss against rank for each task, cut and fine-tuned, beside the dense network's;
    table: `rank_losses`.
    """
    figure, axes = plt.subplots(1, len(TASKS), figsize=(10, 4.2))
    for ax, (task, title) in zip(axes, TASKS.items(), strict=True):
        part = table.loc[task]
        ax.set(xscale="log", yscale="log", xlabel="rank", ylabel=LOSSES[task])
        for stage, label, colour in (
            ("cut", "cut", plots.ORANGE),
            ("tuned", "fine-tuned", plots.BLUE),
        ):
            curve = _shown(task, part.loc[stage].drop(index=0, errors="ignore"))
            ax.plot(curve["median"], "o-", color=colour, markersize=4)
            ax.fill_between(
                curve.index, curve["min"], curve["max"], color=colour, alpha=0.2
            )
            place = (curve.index[0], curve["median"].iloc[0])
            plots.note(ax, label, place, (6, 2), color=colour)
        levels = {"dense": _shown(task, part.loc[("tuned", 0), "median"])}
        if task == "airline":
            levels["mean growth"] = reference(task)
        for text, level in levels.items():
            plots.level(ax, level, f"{text} {level:.2g}", linestyle="--")
        plots.ticks(ax, "x", [r for r in curve.index if r & (r - 1) == 0])
        shown = _shown(task, part)
        _loss_ticks(ax, shown["median"].min(), shown["max"].max())
        enough = enough_rank(table, task)
        ax.set_title(f"{title}: rank {enough} of {curve.index[-1]} is enough")
    return figure


TASKS = {"airline": "Airline", "reber": "Reber grammar"}
LOSSES = {
    "airline": "mean squared error, held-out",
    "reber": "nats above the grammar's own, held-out",
}


def _loss_ticks(ax, low, high):
    """Ticks of a logarithmic axis of losses, more of them where it is short."""
    steps = (1, 1.5, 2, 3, 5) if high < 20 * low else (1, 2, 5)
    ticks = (round(step * 10.0**power, 4) for power in range(-4, 2) for step in steps)
    plots.ticks(ax, "y", [t for t in ticks if 0.5 * low <= t <= 1.2 * high])


def reference(task):
    """The loss of a task that its networks are compared with."""
    (found,) = (known for known in compression.TASKS["paper"] if known.name == task)
    return found.reference


def _shown(task, loss):
    """A loss as it is drawn: of the grammar, what it is above the least there is."""
    return loss - reference(task) if task == "reber" else loss


def enough_rank(table, task, excess=0.02):
    """The least rank from which on the fine-tuned loss is within `excess` of the dense
    network's, tuned as long.
    """
    tuned = table.loc[task].loc["tuned", "median"]
    good = tuned.drop(index=0) <= (1 + excess) * tuned[0]
    bad = good.index[~good]
    return int(good.index[good.index > (bad.max() if len(bad) else 0)].min())


def claimed(speeds, losses):
    """Where Optim-LSTM's claim lies: by task and mini-batch the largest rank with that
    speed here, and what it costs in loss, as text.
    """
    claim = CLAIM[0] / CLAIM[1]
    rows = {}
    for B in speeds.index.levels[0]:
        by_rank = speeds["speed"][B]
        ranks = by_rank.index[by_rank >= claim]
        rank = int(ranks.max()) if len(ranks) else None
        line = {"largest rank": rank or "none"}
        line["speed"] = speed(by_rank.get(rank, by_rank.max()))
        for task, title in TASKS.items():
            tuned = losses.loc[task].loc["tuned", "median"]
            excess = f"{tuned[rank] / tuned[0] - 1:+.1%}" if rank in tuned else ""
            line[f"{title}: loss"] = excess
        rows[f"{B} samples" if B > 1 else "one sample"] = line
    return pd.DataFrame(rows).T


def pareto(speeds, losses, B):
    """Loss over speed for each rank, the front drawn through; both as of this width."""
    figure, axes = plt.subplots(1, len(TASKS), figsize=(10, 4.2))
    claim = CLAIM[0] / CLAIM[1]
    for ax, (task, title) in zip(axes, TASKS.items(), strict=True):
        tuned = losses.loc[task].loc["tuned", "median"]
        columns = {"speed": speeds["speed"][B], "loss": tuned.drop(index=0)}
        points = pd.DataFrame(columns).dropna()
        points.loc[0] = 1.0, tuned[0]
        order = points.sort_values("speed", ascending=False)
        front = order[order["loss"] < order["loss"].cummin().shift(fill_value=np.inf)]
        shown = points.assign(loss=_shown(task, points["loss"]))
        ax.set(xlabel="times as fast as dense", ylabel=LOSSES[task])
        ax.plot(*shown.loc[front.index].to_numpy().T, color=plots.BLUE, linewidth=1)
        for index, (rank, place) in enumerate(shown.iterrows()):
            colour = plots.BLUE if rank in front.index else plots.GREY
            colour = colour if rank else plots.BLACK
            ax.plot(*place, "o" if rank else "s", color=colour, markersize=5)
            offset = (-3, 6) if index % 2 else (-3, -13)  # neighbours are close
            text = str(rank or "dense")
            plots.note(ax, text, tuple(place), offset, fontsize=8, color=colour)
        ax.axvline(claim, color=plots.GREY, linestyle="--", linewidth=1)
        top = (claim, shown["loss"].max())
        plots.note(ax, f"claim {claim:.3g}x ", top, (0, 0), va="top", ha="right")
        plots.ticks(ax, "x", [0.5, 1, 2, 5, 10, 20])
        low, high = shown["loss"].min(), shown["loss"].max()
        _loss_ticks(ax, low, high)
        ax.set_ylim(0.75 * low, 1.3 * high)
        best = front[front["speed"] >= claim]["loss"].min() / tuned[0] - 1
        ax.set_title(f"{title}: {best:+.1%} loss at {claim:.3g}x")
    return figure
