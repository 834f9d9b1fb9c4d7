"""The figures and tables of notebook 08: handing over, and inference by threads, ranks
and GPUs.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from ..measure.timing import summary
from . import plots
from .tables import digits, speed

GPU_VERSIONS = ("cuda-v2", "cuda-v3", "cuda-fused")
ONE, THREADS = "one rank", "threads"
MEANS = {
    "cache line": "cache line, two threads",
    "window": "window of shared memory, two ranks",
    "message": "message, two ranks",
    "collective": "collective, two ranks",
    "thread barrier": "barrier of two threads",
    "barrier": "barrier of two ranks",
    "device": "copy to a GPU or from it",
}
WAYS = {
    THREADS: "threads",
    "window": "ranks, window",
    "messages": "ranks, messages",
    "collective": "ranks, collective",
    "samples": "ranks, samples",
    "layers": "ranks, layers",
} | {name: name for name in GPU_VERSIONS}
COLOURS = dict(
    zip(
        WAYS,
        (plots.BLUE, plots.RED, plots.ORANGE, plots.PURPLE, plots.GREEN, plots.SKY),
        strict=False,
    )
) | dict.fromkeys(GPU_VERSIONS, plots.BLACK)
OVERHEAD = 0.02  # a way pays from where it is so much faster than one rank


def divisions(ranks=2):
    """Who computes what, and what crosses: the three ways in which ranks share a
    pass.
    """
    parts, steps = 4, 8
    panels = {
        "hidden units": ("unit blocks", "all of $h_t$ crosses after each step"),
        "samples": ("samples", "nothing crosses"),
        "layers": ("layers", "chunks of $h$ go up"),
    }
    figure, axes = plt.subplots(1, len(panels), figsize=(9.5, 2.9))
    shades = plt.get_cmap("cividis")
    for ax, (title, (rows, crosses)) in zip(axes, panels.items(), strict=True):
        for part in range(parts):
            rank = part * ranks // parts
            late = (
                2 * rank if rows == "layers" else 0
            )  # it starts with the first chunk from below
            for t in range(steps):
                box = {"color": shades(0.2 + 0.6 * rank), "edgecolor": "white"}
                ax.barh(part, 1, left=t + late, height=0.94, **box)
        for rank in range(ranks):
            place = (0.2 + 2 * rank * (rows == "layers"), rank * parts / ranks)
            ink = "white" if rank == 0 else "black"
            ax.annotate(f"rank {rank}", place, color=ink, va="center", fontsize=9)
        ax.set(
            title=title,
            xlabel=f"steps of time;\n{crosses}",
            ylabel=rows,
            yticks=range(parts),
        )
        ax.grid(visible=False)
    figure.alt = "; ".join(
        f"{name} shared: {crosses}" for name, (_, crosses) in panels.items()
    )
    return figure


def by_means(rows):
    """Seconds of one way by means and bytes: median and quartiles; rows: of
    `handover`.
    """
    rows = rows[rows["stage"] == "hand over"]
    times = (
        rows.groupby(["version", "bytes"])["seconds"]
        .quantile([0.5, 0.25, 0.75])
        .unstack()
    )
    times.columns = ["median", "q1", "q3"]
    return times.reindex(
        [name for name in MEANS if name in set(rows["version"])], level=0
    )


def handovers(rows, step):
    """What handing over one value takes, by means: ns, and compared with `step`
    seconds.
    """
    times, lines = by_means(rows), {}
    for name, label in MEANS.items():
        if name not in times.index:
            lines[label] = ["not measured yet"] * 3
            continue
        least = times.loc[name].iloc[0]  # of the fewest bytes
        spread = f"{digits(1e9 * least['q1'])} to {digits(1e9 * least['q3'])}"
        part = (
            f"{least['median'] / step:.1%}"
            if least["median"] < 10 * step
            else "more than 10"
        )
        lines[label] = [digits(1e9 * least["median"]), spread, part]
    columns = ["ns", "quartiles (ns)", "of a step"]
    return pd.DataFrame.from_dict(lines, orient="index", columns=columns)


def sizes(rows):
    """Microseconds of a hand-over against its bytes, a line for each means."""
    times = by_means(rows)
    times = times[times.index.get_level_values("bytes") > 0]
    figure, ax = plt.subplots(figsize=(8, 4.2))
    ax.set(xscale="log", yscale="log", xlabel="bytes", ylabel="microseconds, one way")
    curves = {}
    for name, group in times.groupby(level="version", sort=False):
        count, median = (
            group.index.get_level_values("bytes").to_numpy(),
            1e6 * group["median"],
        )
        curves[name] = count, median.to_numpy()
        ax.fill_between(count, 1e6 * group["q1"], 1e6 * group["q3"], alpha=0.2)
    plots.lines(ax, curves, marker="o", ms=4)
    plots.ticks(ax, "x", times.index.get_level_values("bytes").unique().to_numpy())
    first = times.xs(times.index[0][1], level="bytes")["median"]
    ax.set_title(
        f"A few bytes: {first.idxmin()} is the cheapest, {1e9 * first.min():.3g} ns"
    )
    return figure


def speeds(rows):
    """Each way's speed over one rank by hidden units: median of the ratios of rounds,
    quartiles.
    """
    parts = {}
    for H, group in rows.groupby("H"):
        table = group.pivot_table(index="repeat", columns="version", values="seconds")
        ratios = table.rdiv(table[ONE], axis=0).drop(columns=ONE)
        parts[int(H)] = ratios.quantile([0.5, 0.25, 0.75]).T.set_axis(
            ["ratio", "q1", "q3"], axis=1
        )
    table = pd.concat(parts, names=["H", "version"]).dropna()
    return table.reindex(
        [name for name in WAYS if name in set(rows["version"])], level=1
    )


def over_units(rows, title):
    """Speed over one rank against the hidden units, a line for each way."""
    table = speeds(rows)
    units = sorted(table.index.get_level_values("H").unique())
    figure, ax = plt.subplots(figsize=(8, 4.2))
    ax.set(xscale="log", xlabel="hidden units", ylabel="speed (one rank = 1)")
    ends = []
    for name, group in table.groupby(level="version", sort=False):
        x, y = group.index.get_level_values("H").to_numpy(), group["ratio"].to_numpy()
        bars = np.abs(group[["q1", "q3"]].to_numpy().T - y)
        ax.errorbar(x, y, bars, color=COLOURS[name], marker="o", ms=4, capsize=2)
        ends.append((x[-1], y[-1], WAYS[name], COLOURS[name]))
    ranks = int(rows["ranks"].max())
    ax.axhline(1, color=plots.GREY, linestyle="--", linewidth=1)
    ax.axhline(ranks, color=plots.GREY, linewidth=1)
    ax.set_ylim(0, max(1.1 * ranks, 1.05 * table["q3"].max()))
    plots.ticks(ax, "x", units)
    plots.label_lines(ax, ends)
    best = table["ratio"].groupby("H").idxmax().iloc[-1]
    ax.set_title(
        f"{title}: {WAYS[best[1]]} {table['ratio'][best]:.2f}x with {best[0]} units"
    )
    return figure


def pays_from(rows):
    """Of each way the hidden units from which on it is faster than one rank, at every
    larger size too; None where it is not at the largest.
    """
    gained = {}
    for name, group in speeds(rows)["ratio"].groupby(level="version", sort=False):
        faster = (group > 1 + OVERHEAD).droplevel("version").sort_index()
        slow = faster.index[~faster]
        later = faster.index[faster.index > (slow.max() if len(slow) else 0)]
        gained[name] = int(later[0]) if len(later) else None
    return gained


def answer(rows):
    """From how many units on each way pays, as a table."""
    shown = {
        WAYS[name]: first or "at none of these"
        for name, first in pays_from(rows).items()
    }
    for name in GPU_VERSIONS:
        shown.setdefault(name, "not measured yet")
    return pd.DataFrame({"faster than one rank from H =": shown})


def steps(rows):
    """Median seconds of a step of one rank, by hidden units."""
    group = rows[rows["version"] == ONE]
    return (group["seconds"] / group["T"]).groupby(group["H"].astype(int)).median()


def read_out(rows):
    """What the read-out takes, in words: compared with the steps, and shared by the
    ranks.
    """
    group = rows[(rows["B"] == 1) & (rows["L"] == 1)]
    times = (
        group[group["version"] == ONE]
        .groupby(["H", "stage"])["seconds"]
        .median()
        .unstack()
    )
    H, last = int(times.index[-1]), times.iloc[-1]
    part = group[(group["stage"] == "read-out") & (group["H"] == H)]
    gain = summary(part, ONE, by="version")["ratio"]["steps"]
    return (
        f"At H = {H} the read-out takes {1e3 * last['read-out']:.3g} ms, the steps "
        f"{1e3 * last['forward']:.3g} ms; with the steps shared, ranks read out "
        f"{speed(gain)}."
    )


def medians(rows):
    """Milliseconds of every way by hidden units, with the speed over one rank."""
    table = {H: summary(group, ONE, by="version") for H, group in rows.groupby("H")}
    named = {int(H): t["median"].mul(1e3).map(digits) + " ms" for H, t in table.items()}
    return pd.DataFrame(named).rename(index=WAYS).add_prefix("H = ").fillna("")


def cases(rows):
    """Of the rows of `inference` those of one sample and one layer, of a mini-batch, of
    a stack.
    """
    rows = rows[rows["stage"] == "forward"]
    one, stack = rows["B"] == 1, rows["L"] > 1
    return rows[one & ~stack], rows[~one], rows[stack]
