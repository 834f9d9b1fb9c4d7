"""The figures and tables of notebook 03."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap

from lstm_kernels import data

from ..experiments import ladder as measured
from ..measure.timing import summary
from . import plots
from .tables import digits, speed

# Who computes what, by sample s, step t and half u of the pre-activations: turn and
# thread.
WHO = {
    "sequential": lambda s, t, u: (12 * s + 2 * t + u, 0),
    "numpy-sample": lambda s, t, u: (6 * s + t, 0),
    "numpy-naive": lambda s, t, u: (2 * t + u, 0),
    "numpy": lambda s, t, u: (t, u),
    "numba-sample": lambda s, t, u: (6 * (s % 2) + t, s // 2),
    "numba-fused": lambda s, t, u: (t, s // 2),
}


def ladder(times):
    """Bars of the times of versions on one thread and on more; times: seconds by repeat
    and by case, a tuple (version, threads).
    """
    rows = pd.DataFrame(times["case"].to_list(), columns=["version", "threads"])
    rows["ms"] = 1e3 * times["seconds"].to_numpy()
    quartiles = rows.groupby(["version", "threads"])["ms"].quantile([0.25, 0.5, 0.75])
    table = quartiles.unstack()
    one = table.xs(1, level="threads").sort_values(0.5, ascending=False)
    most = int(rows["threads"].max())
    figure, ax = plt.subplots(figsize=(8, 4))
    ax.set(xscale="log", xlabel="milliseconds (median and quartiles)")
    height = 0.8 if most == 1 else 0.4
    shades = {1: plots.SKY, most: plots.BLUE} if most > 1 else {1: plots.SKY}
    for number, (threads, colour) in enumerate(shades.items()):
        part = table.xs(threads, level="threads").reindex(one.index)
        places = np.arange(len(part)) + height * (number - 0.5 * (most > 1))
        ends = [part[0.5] - part[0.25], part[0.75] - part[0.5]]
        label = f"{threads} thread{'s' if threads > 1 else ''}"
        style = {"color": colour, "height": height, "label": label}
        drawn = ax.barh(places, part[0.5], xerr=ends, ecolor=plots.GREY, **style)
        text = ["" if np.isnan(ms) else digits(ms) for ms in part[0.5]]
        ax.bar_label(drawn, text, padding=6, fontsize=9)
    ax.set_yticks(range(len(one)), one.index)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.margins(x=0.15)
    ax.legend()
    first, last = one.index[0], one.index[-1]
    ideas = one.loc[first, 0.5] / one.loc[last, 0.5]
    title = f"On one thread, ideas alone make training {faster(ideas)}"
    if most > 1:
        gain = one.loc[last, 0.5] / table.loc[(last, most), 0.5]
        title += f";\n{most} threads make the last version {faster(gain)}"
    ax.set_title(title)
    return figure


def who(version):
    """In which turn and on which thread each half of the pre-activations of a layer is
    computed.
    """
    figure, ax = plt.subplots(figsize=(7, 1.9))
    cells = [
        [WHO[version](s, t, u) for t in range(6) for u in range(2)] for s in range(4)
    ]
    turn, thread = np.moveaxis(np.array(cells), -1, 0)
    colours = ListedColormap([plots.SKY, plots.ORANGE])
    plots.heat(ax, pd.DataFrame(thread), turn, cmap=colours, vmin=0, vmax=1)
    ax.invert_yaxis()
    ax.set(xlabel="step $t$, its pre-activations in two halves", ylabel="sample")
    ax.set_xticks(np.arange(0.5, 12, 2), range(6))
    ax.set_xticks(np.arange(-0.5, 12), minor=True)
    ax.set_yticks(np.arange(-0.5, 4), minor=True)
    ax.grid(which="minor", visible=True, color="white", linewidth=2)
    turns, threads = (len(np.unique(values)) for values in (turn, thread))
    on = ("one thread", "two threads")[threads - 1]
    ax.set_title(f"{version}: {turns} turns, {on}", fontsize=11)
    return figure


def rung(times, gflop, peak, version, module, below=None):
    """A version's times, compared with the rung below, and what its file says bounds
    it; times: as of `ladder`; gflop: operations of a case; peak: GFLOP/s of a core.
    """
    median = summary(times)["median"]
    one = median[version, 1]
    parts = [f"{1e3 * one:.3g} ms on one thread"]
    if below:
        parts.append(f"{faster(median[below, 1] / one)} than `{below}`")
    parts.append(f"{2 * one / gflop:.3g} ns for a multiply-add")
    parts.append(f"{100 * gflop / one / peak:.2g} % of a core's peak")
    for (name, threads), seconds in median.items():
        if name == version and threads > 1:
            gain = faster(one / seconds)
            parts.append(f"on {threads} threads {1e3 * seconds:.3g} ms, {gain}")
    return f"**Time.** `{version}`: {'; '.join(parts)}.\n\n{bound(module)}"


def bound(module):
    """What bounds a version, as the docstring of its file says."""
    after = " ".join(module.__doc__.split()).partition("Bounded by ")[2]
    reason = after.partition(". ")[0].removesuffix(".")
    return f"**Bound.** The rung is bounded by {reason}."


def faster(ratio):
    """A ratio of speeds in words."""
    return f"{speed(ratio)} faster" if ratio >= 1 else speed(ratio)


def race(error):
    """The error of h at each step of a network whose steps did not wait for each
    other.
    """
    figure, ax = plt.subplots(figsize=(8, 3.2))
    ax.plot(np.arange(len(error)), error, color=plots.RED, marker="o", markersize=3)
    ax.set(xlabel="step t", ylabel="largest error of h")
    first = int(np.argmax(error > 1e-3))  # far above rounding
    what = f"step {first} starts from a state nobody computed"
    ax.set_title(f"Right up to step {first - 1}; {what}")
    return figure


def gradient_forms(against):
    """Speed compared with numpy of both forms of the weight gradients; against: (H, B)
    x form.
    """
    table = against.set_axis([f"H {H}\nB {B}" for H, B in against.index])
    ax = table.plot(
        figsize=(8, 3.8), style=["s-", "D-"], color=[plots.ORANGE, plots.RED]
    )
    ax.axhline(1, color=plots.BLACK, linewidth=1, label="numpy")
    ax.set(ylabel="speed of a training step (numpy = 1)", ylim=(0, None))
    ax.legend()
    worst = against.iloc[:, 0].min()
    ax.set_title(f"At worst a buffer per sample has {worst:.2g} of numpy's speed")
    return ax.figure


def source():
    """The table of the course project as published: recorded there, not measured
    here.
    """
    table = pd.read_csv(data.FOLDER / "source_table.csv", index_col="version")
    return with_ratios(table, "Sequential (plain Python)", "NumPy")


def with_ratios(table, sequential, numpy):
    """The table with its speeds as multiples of the rows `sequential` and `numpy`."""
    rate = 1 / table["seconds"]
    ratios = {"vs sequential": rate / rate[sequential], "vs NumPy": rate / rate[numpy]}
    shown = {name: ratio.map(speed) for name, ratio in ratios.items()}
    return table.assign(**shown).rename(columns={"seconds": "time (s)"})


def ours(times):
    """The best medians of versions, in the source's columns that differ; times: as of
    `ladder`.
    """
    median = summary(times)["median"]
    median.index = pd.MultiIndex.from_tuples(median.index, names=["version", "threads"])
    best = median.unstack().min(axis=1).sort_values(ascending=False)
    return with_ratios(best.to_frame("seconds"), "sequential", "numpy-sample")


def per_step(units, repeats=3):
    """Seconds that plain loops and NumPy sample by sample train on a sample's step, by
    units.
    """
    table = {}
    for H in units:
        work = measured.Workload(1, 12, 1, H, 4)
        rows = measured.steps(["sequential", "numpy-sample"], work, repeats=repeats)
        median = summary(rows[rows["stage"] == "step"], by="version")["median"]
        table[H] = median / (work.T * work.B)
    return pd.DataFrame(table).T


def source_size(steps, ratio, seconds):
    """The hidden units H at which NumPy leads plain loops by `ratio`, and on how many
    steps of samples plain loops of that size train in `seconds`; steps: of `per_step`.
    """
    lead = np.log(steps["sequential"] / steps["numpy-sample"]).cummax()
    H = np.exp(np.interp(np.log(ratio), lead, np.log(lead.index)))
    cost = np.interp(np.log(H), np.log(lead.index), np.log(steps["sequential"]))
    return H, seconds / np.exp(cost)
