"""The figures and tables of notebook 03. A figure's `alt` says in words what it shows."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from .. import data
from ..versions import versions
from . import plots


def ladder(result, epochs, cores):
    """Bars of the time of `epochs` training epochs; result: median, q1, q3, ratio by version."""
    notes = {
        name: f"{1e3 * row['median']:.4g} ms, {row['ratio']:.0f}x"
        for name, row in result.iterrows()
    }
    figure, ax = plt.subplots(figsize=(8, 3.4))
    label = f"milliseconds for {epochs} epochs (median and quartiles)"
    plots.bars(ax, result, label=label, note=notes)
    fastest = result["ratio"].iloc[-1]
    ax.set_title(f"From plain loops to register tiles: {fastest:.0f} times on {cores} cores")
    figure.alt = "Time of training epochs for each version on a log axis: "
    figure.alt += "; ".join(f"{name} {note}" for name, note in notes.items()) + "."
    return figure


def pieces(parts):
    """Stacked bars of microseconds per training step; parts: version x piece."""
    figure, ax = plt.subplots(figsize=(8, 2.8))
    left = np.zeros(len(parts))
    for name, colour in zip(parts.columns, (plots.SKY, plots.BLUE, plots.GREY), strict=True):
        ax.barh(parts.index, parts[name], left=left, color=colour, label=name)
        left += parts[name].to_numpy()
    ax.set(xlabel="microseconds per training step")
    ax.invert_yaxis()
    ax.legend(ncols=3, loc="lower right")
    costlier = (parts["backward"] > parts["forward"]).sum()
    ax.set_title(f"Backward costs more than forward in {costlier} of {len(parts)} versions")
    figure.alt = "Stacked bars of the microseconds of a training step, forward, backward and rest: "
    figure.alt += (
        "; ".join(f"{name} {row.sum():.0f} in all" for name, row in parts.iterrows()) + "."
    )
    return figure


def race(error):
    """The error of h at each step of a network whose steps did not wait for each other."""
    figure, ax = plt.subplots(figsize=(8, 3.2))
    ax.plot(np.arange(1, len(error) + 1), error, color=plots.RED, marker="o", markersize=3)
    ax.set(xlabel="step t", ylabel="largest error of h")
    ax.set_title("The error starts where another thread starts: it has no state to start from")
    figure.alt = (
        f"Largest error of the hidden state at each of {len(error)} steps when steps do not wait "
        "for each other: it jumps where another thread's share begins and fades as the network "
        "forgets."
    )
    return figure


def gradient_forms(against):
    """Speed against numpy of both forms of the weight gradients; against: (H, B) x form."""
    figure, ax = plt.subplots(figsize=(8, 3.8))
    places = np.arange(len(against))
    for form, colour, marker in zip(against, (plots.ORANGE, plots.RED), "sD", strict=True):
        ax.plot(places, against[form], color=colour, marker=marker)
        plots.label_line(ax, places[-1], against[form].iloc[-1], form, colour)
    ax.axhline(1, color=plots.BLACK, linewidth=1)
    ax.annotate("numpy", (0, 1), (0, 4), textcoords="offset points")
    ax.set_xticks(places, [f"H {H}\nB {B}" for H, B in against.index])
    ax.set(ylabel="times as fast as numpy, one step")
    ax.margins(x=0.28)
    least = against.min()
    ax.set_title(f"A buffer per sample falls to {least.iloc[0]:.2f} times the speed of numpy")
    figure.alt = "Speed of a training step against numpy over growing hidden size and mini-batch: "
    figure.alt += "; ".join(f"{form} at least {value:.2f}" for form, value in least.items()) + "."
    return figure


def source():
    """The table of the course project as published: recorded there, not measured here."""
    table = pd.read_csv(data.FOLDER / "source_table.csv", index_col="version")
    return with_ratios(table, "Sequential (plain Python)", "NumPy")


def ours(seconds):
    """Our times, seconds by version, under the source's columns."""
    yes = {True: "yes", False: "no"}
    rows = {
        v.name: {
            "mini-batch": v.mini_batch_on,
            "data sample": v.sample_on,
            "thread positioning": yes[v.thread_positioning],
            "transfer optimised": yes[v.transfer_optimised],
            "seconds": seconds[v.name],
        }
        for v in versions()
        if v.name in seconds.index
    }
    table = with_ratios(pd.DataFrame.from_dict(rows, orient="index"), "sequential", "numpy-sample")
    return table.round({"seconds": 4})


def with_ratios(table, sequential, numpy):
    """The table with its speeds in per cent of the rows `sequential` and `numpy`."""
    speed = 1 / table["seconds"]
    percent = {"vs sequential": speed / speed[sequential], "vs NumPy": speed / speed[numpy]}
    return table.assign(**{name: ratio.map("{:.0%}".format) for name, ratio in percent.items()})
