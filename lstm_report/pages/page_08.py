"""Page 08: two ranks that train one network, by sharing samples or layers."""

from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lstm_kernels.schedules import Costs, fill_and_drain
from lstm_kernels.simulate import Timeline, simulate

from .. import plots
from ..experiments.devices import MICRO, PARTITIONS, Example, job
from ..measure import evidence, results
from ..measure.evidence import Interval, digits, intervals, percent, ratios
from ..studies import planner

Counts = list[int]  # of the layers of each stage
COUNT, ALTERNATING, ENDS = [5, 5], [1] * 10, [1, 8, 1]
GOALS = {
    "a pipeline of layers on several devices": (
        "two processes over one: {pipeline}; sharing the samples: {replicas}; not run"
        " on GPUs",
        "partly",
    ),
    "balance the load": (
        "planned by seconds, over equal counts: {balance}",
        "reached",
    ),
    "keep neighbours together": (
        "alternating layers, over the planned border: {alternating}",
        "reached",
    ),
    "less memory a device": ("{memory}", "reached"),
    "buckets": (
        "one program for all; four over one with {few}, with {many}",
        "partly",
    ),
    "text: Penn Treebank, translation": (
        "random symbols, strings of a grammar",
        "not measured",
    ),
}
NAMES = {
    "round 1+1+1+1+1+1+1+1+1+1": "alternating",
    "round 1+8+1": "1+8+1 (ends together)",
    "replicas": "replicas",
    "one rank": "one rank",
}
ONE, PIECES = "one rank", "one rank in pieces"


def measure_devices(few: bool, process: int) -> pd.DataFrame:
    """The rows of `devices.job`."""
    return job(few, process)


def recorded_on(rows: pd.DataFrame) -> str:
    """Machine and date of recorded rows; "" of rows that were measured now."""
    if "machine" not in rows:
        return ""
    return results.label(results.record("devices", rows["machine"].iloc[0]))


def timeline(
    counts: Counts, forward, backward, *, micro: int, ranks: int = 2, hand: float = 0.0
) -> Timeline:
    """What each rank runs, the Timeline of a `fill_and_drain`.

    counts: the layers of each stage. forward, backward: seconds of each layer. hand: of
    a message.
    """
    ends = [*pairwise(accumulate(counts, initial=0))]
    ahead, back = ([sum(each[i:j]) for i, j in ends] for each in (forward, backward))
    costs = Costs((*ahead, *back[::-1]), hand=hand)
    return simulate(fill_and_drain(len(counts), ranks, micro), costs)


def messages(counts: Counts, micro: int = MICRO) -> int:
    """How many messages a step of training sends: each border, both ways."""
    return 2 * micro * (len(counts) - 1)


def sent(counts: Counts, model: dict[str, Any]) -> int:
    """Bytes that cross between two ranks in a step, wherever they compute: at each
    border y and its gradient; of one stage, which is on both, all gradients and sums.

    model: the sizes of an Example.
    """
    if len(counts) == 1:
        layers = Example(**model).arrays.values()
        return 2 * sum(a.nbytes for layer in layers for a in layer.values())
    y = model["steps"] * model["batch"] * model["hidden"] * np.dtype("f").itemsize
    return 2 * y * (len(counts) - 1)


def figure_order(layers=4, micro=4):
    """Two placements of equal layers on two ranks, where messages take no time."""
    placements = {
        "Neighbours together": [layers // 2] * 2,
        "Alternating": [1] * layers,
    }
    figure, axes = plots.panels(2, 3.6, sharex=True)
    for ax, (name, counts) in zip(axes, placements.items(), strict=True):
        drawn = timeline(counts, [1] * layers, [2] * layers, micro=micro)
        for span in drawn.spans:
            task = drawn.schedule.tasks[span.task]
            colour = plots.SKY if task.layer < len(counts) else plots.ORANGE
            style = {"left": span.start, "color": colour, "edgecolor": "white"}
            bar = ax.barh(span.worker, span.stop - span.start, **style)
            ax.bar_label(bar, [task.samples[0]], label_type="center")
        idle = percent(round(drawn.idle, 2))
        ax.set_title(f"{name}: {messages(counts, micro)} messages, idle {idle}")
        plots.named_rows(ax, ["rank 0", "rank 1"])
    axes[1].set_xlabel("time (forward passes of a layer); blue forward, orange back")
    titles = "; ".join(ax.get_title("left") for ax in axes)
    figure.alt = f"Which micro-batch each rank runs over time. {titles}."
    return figure


def by_layer(rows: pd.DataFrame) -> pd.DataFrame:
    """Median seconds of each layer for a micro-batch, forward, backward and in descent,
    and its bytes.
    """
    part = rows[rows["version"] == "layer"]
    table = part.groupby(["variant", "stage"])["seconds"].median().unstack()
    table["bytes"] = part.groupby("variant")["bytes"].first()
    inner = [f"layer {k}" for k in range(len(table) - 2)]
    return table.loc[["embedding", *inner, "output layer"]]


def predicted(counts: Counts, costs: pd.DataFrame, hand: float = 0.0) -> float:
    """Seconds of a step: the passes, and the descent of the slower rank."""
    forward, backward = costs["forward"].to_list(), costs["backward"].to_list()
    passes = timeline(counts, forward, backward, micro=MICRO, hand=hand).makespan
    ends, descent = list(accumulate(counts, initial=0)), [0.0, 0.0]
    for v in range(len(counts)):
        descent[v % 2] += costs["descent"].iloc[ends[v] : ends[v + 1]].sum()
    return passes + max(descent)


def planned(costs: pd.DataFrame, rows: pd.DataFrame) -> Counts:
    """The planner's border by seconds; where that was not run, the best of those that
    were, as predicted.
    """
    layers = [
        planner.LayerCost(name, forward, backward)
        for name, forward, backward in costs[["forward", "backward"]].itertuples()
    ]
    plan = list(planner.plan(layers, ranks=2, micro_batches=MICRO).counts)
    if name_of(plan) in set(rows["version"]):
        return plan
    return min(PARTITIONS, key=lambda counts: predicted(counts, costs))


def name_of(counts: Counts) -> str:
    """What rows call a placement."""
    name = "+".join(map(str, counts))
    return name if len(counts) == 2 else f"round {name}"


def pipelines(rows: pd.DataFrame) -> dict[str, Counts]:
    """Those that were run, by name: of one border, then with more stages."""
    names = rows["version"].unique()
    found = {
        name: [int(n) for n in name.removeprefix("round ").split("+")]
        for name in names
        if "+" in name
    }
    return dict(sorted(found.items(), key=lambda item: (len(item[1]) > 2, item[1])))


def gain(rows: pd.DataFrame, name: str, baseline: str) -> Interval:
    """How many times as fast as a baseline a way is, over the jobs."""
    return Interval.of(ratios(rows, baseline, "version")[name])


def medians(rows: pd.DataFrame) -> pd.DataFrame:
    """Seconds of a step: a row a job, a column a way."""
    return evidence.seconds(rows, "version")


def figure_placements(
    rows: pd.DataFrame, costs: pd.DataFrame, plan: Counts, hand: float
) -> Figure:
    """Milliseconds of a step by placement, measured and predicted. plan: the counts
    that are balanced by seconds; hand: seconds of a message.
    """
    table = 1e3 * intervals(medians(rows))
    order = [*pipelines(rows), "replicas", ONE]
    marks = {name_of(COUNT): " (by count)", name_of(plan): " (by seconds)"}
    labels = [NAMES.get(name, name + marks.get(name, "")) for name in order]
    figure, ax = plots.panels(1, 4.6)
    shown = table.loc[order].set_axis(labels)
    colours = {name_of(plan): plots.RED, ONE: plots.GREY}
    chosen = [colours.get(name, plots.BLUE) for name in order]
    plots.dots(ax, shown, text=[""] * len(order), colours=chosen, reference=None)
    for row, name in enumerate(order):
        middle, end = table.loc[name, "middle"], table.loc[name, "high"]
        if counts := pipelines(rows).get(name):
            guess = 1e3 * predicted(counts, costs, hand)
            ax.plot(guess, row, "D", color="none", markeredgecolor=plots.BLACK)
            end = max(end, guess)
        style = {"va": "center", "color": chosen[row]}
        plots.note(ax, f"{digits(middle)} ms", (end, row), (8, 0), **style)
    ax.set(xlabel="ms for a training step; diamonds are predicted", ylabel="placement")
    ax.set_xlim(left=max(0, ax.get_xlim()[0]))
    title = "Replicas are fastest; of the pipelines, the planned one"
    figure.suptitle(title, x=0.01, ha="left", weight="bold", size=12)
    return figure
