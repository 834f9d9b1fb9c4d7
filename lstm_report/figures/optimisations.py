"""Figures and tables of low-rank weights."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from ..experiments import compression
from ..measure.timing import summary
from . import plots
from .tables import speed

# Optim-LSTM's claim for low-rank weights: milliseconds before and after at 256 units,
# 100 steps.
CLAIM = (42.8, 8.36)


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
