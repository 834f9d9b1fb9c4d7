"""The figures and tables of notebook 03."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns

from lstm_kernels import data

from ..experiments import ladder
from ..measure.timing import summary
from . import plots
from .tables import digits, speed

ALONE = (
    "sequential",
    "numpy-sample",
)  # they compute on one thread, whatever they are given
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
    rows["ms"] = 1e3 * times["seconds"]
    medians = rows.groupby(["version", "threads"])["ms"].median()
    order = medians.xs(1, level="threads").sort_values(ascending=False).index
    figure, ax = plt.subplots(figsize=(8, 4))
    how = {"estimator": "median", "errorbar": ("pi", 50), "order": order, "ax": ax}
    colours = [plots.SKY, plots.BLUE][: rows["threads"].nunique()]
    sns.barplot(rows, x="ms", y="version", hue="threads", palette=colours, **how)
    for bars in ax.containers:
        ax.bar_label(bars, fmt=digits, padding=10, fontsize=9)
    ax.set(xscale="log", xlabel="milliseconds (median and quartiles)")
    ax.grid(axis="y", visible=False)
    ax.margins(x=0.15)
    (first, last), most = (order[0], order[-1]), int(rows["threads"].max())
    ideas, threads = (
        medians[first, 1] / medians[last, 1],
        medians[last, 1] / medians[last, most],
    )
    title = f"On one thread, ideas alone make training {faster(ideas)}"
    ax.set_title(
        title
        + f";\n{most} threads make the last version {faster(threads)}" * (most > 1)
    )
    return figure


def who(version):
    """In which turn and on which thread each half of the pre-activations of a layer is
    computed.
    """
    figure, ax = plt.subplots(figsize=(7, 1.9))
    grid = [
        [WHO[version](s, t, u) for t in range(6) for u in range(2)] for s in range(4)
    ]
    turn, thread = np.moveaxis(np.array(grid), -1, 0)
    how = {
        "fmt": "d",
        "cmap": [plots.SKY, plots.ORANGE],
        "vmin": 0,
        "vmax": 1,
        "cbar": False,
    }
    sns.heatmap(
        thread, annot=turn, annot_kws={"color": "black"}, linewidths=2, ax=ax, **how
    )
    ax.set(xlabel="step $t$, its pre-activations in two halves", ylabel="sample")
    ax.set_xticks(range(1, 13, 2), range(6))
    ax.tick_params("y", rotation=0)
    turns, threads = (len(np.unique(values)) for values in (turn, thread))
    told = f"{turns} turns, {('one thread', 'two threads')[threads - 1]}"
    ax.set_title(f"{version}: {told}", fontsize=11)
    return figure


def rung(times, gflop, peak, version, module, below=None):
    """A version's times, compared with the rung below, and what its file says bounds
    it; times: as of `ladder`; gflop: operations of a case; peak: GFLOP/s of a core.
    """
    median = summary(times)["median"]
    one, said = median[version, 1], []
    if below:
        said.append(f"{faster(median[below, 1] / one)} than `{below}`")
    said.append(f"{2 * one / gflop:.3g} ns for a multiply-add")
    said.append(f"{100 * gflop / one / peak:.2g} % of a core's peak")
    for (name, threads), more in median.items():
        if name == version and threads > 1:
            said.append(
                f"on {threads} threads {1e3 * more:.3g} ms, {faster(one / more)}"
            )
    said = "; ".join(said)
    return f"**Time.** `{version}`: {1e3 * one:.3g} ms on one thread; {said}.\n\n{bound(module)}"


def bound(module):
    """What bounds a version, as the docstring of its file says."""
    after = " ".join(module.__doc__.split()).partition("Bounded by ")[2]
    return f"**Bound.** The rung is bounded by {after.partition('. ')[0].removesuffix('.')}."


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
    ax.set_title(
        f"Right up to step {first - 1}; step {first} starts from a state nobody computed"
    )
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
    ax.set_title(
        f"At worst a buffer per sample has {against.iloc[:, 0].min():.2g} of numpy's speed"
    )
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
        work = ladder.Workload(1, 12, 1, H, 4)
        rows = ladder.steps(["sequential", "numpy-sample"], work, repeats=repeats)
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
