"""One plot style: a colour for each thing, labels on the lines, white ground."""

import matplotlib.pyplot as plt
import numpy as np
from cycler import cycler
from scipy.optimize import isotonic_regression

# Okabe & Ito's palette, which colour-blind readers can tell apart.
BLACK, ORANGE, SKY, GREEN = "#000000", "#e69f00", "#56b4e9", "#009e73"
YELLOW, BLUE, RED, PURPLE = "#f0e442", "#0072b2", "#d55e00", "#cc79a7"
GREY = "#777777"
COLOURS = {
    "sequential": GREY,
    "numpy-sample": ORANGE,
    "numpy-naive": PURPLE,
    "numpy": BLUE,
    "numba-sample": RED,
    "numba-wavefront": GREEN,
    "numba-fused": BLACK,
    "cuda-v1": SKY,
    "cuda-v2": YELLOW,
    "cuda-v3": ORANGE,
    "cuda-fused": RED,
    "truth": BLACK,
    "LSTM": RED,
    "Holt–Winters": BLUE,
    "seasonal-naive": GREEN,
    "persistence": ORANGE,
}


def style():
    """Set the style of every figure that follows."""
    plt.rcParams.update(
        {
            "figure.figsize": (8, 4.2),
            "figure.facecolor": "white",
            "figure.dpi": 110,
            "figure.constrained_layout.use": True,
            "savefig.facecolor": "white",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlelocation": "left",
            "axes.titleweight": "bold",
            "axes.titlesize": 12,
            "axes.grid": True,
            "axes.axisbelow": True,
            "axes.prop_cycle": cycler(color=[BLUE, RED, GREEN, ORANGE, PURPLE, SKY, BLACK]),
            "grid.color": "#e6e6e6",
            "font.size": 10.5,
            "legend.frameon": False,
            "lines.linewidth": 1.8,
            "svg.hashsalt": "lstm_kernels",  # the same drawing gives the same file
            "svg.fonttype": "none",
        }
    )


def label_line(ax, x, y, text, colour, **how):
    """Label a line at its end, in its own colour."""
    place = {"xytext": (5, how.pop("dy", 0)), "textcoords": "offset points", "va": "center"}
    ax.annotate(text, (x, y), color=colour, **place, **how)


def label_lines(ax, labels, *, lines=1, **how):
    """Label lines at their ends, apart: `labels` holds (x, y, text, colour), `lines` of text each.

    The labels move up and down as little as keeps them apart. Set scales and limits before.
    """
    size = how.setdefault("fontsize", 9)
    ax.autoscale_view()  # else limits that nobody set are those before the last line
    ends = ax.transData.transform([(ax.convert_xunits(x), y) for x, y, *_ in labels])
    ends = ax.transAxes.inverted().transform(ends)
    order = np.argsort(ends[:, 1])
    height = ax.get_window_extent().height * 72 / ax.figure.dpi  # in points
    apart = 1.25 * size * lines / height * np.arange(len(labels))
    places = isotonic_regression(ends[order, 1] - apart).x + apart
    for index, place in zip(order, places, strict=True):
        x, _, text, colour = labels[index]
        ax.annotate(
            text,
            (x, place),
            (5, 0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            color=colour,
            va="center",
            **how,
        )


ARROW = {"arrowstyle": "->", "shrinkA": 17, "shrinkB": 18}


def graph(rounds, marked):
    """The dependency graph of `rounds` (layers, steps); cells of the round `marked` are yellow."""
    layers, steps = rounds.shape
    figure, ax = plt.subplots(figsize=(8, 4.2))
    for (layer, step), value in np.ndenumerate(rounds):
        box = {"boxstyle": "round,pad=0.5", "fc": YELLOW if value == marked else "white"}
        ax.text(step, layer, f"{layer}, {step}", ha="center", va="center", bbox=box)
        for before in ((step, layer - 1), (step - 1, layer)):
            ax.annotate("", (step, layer), before, arrowprops=ARROW)
    ax.set(xlim=(-1, steps - 0.5), ylim=(-1, layers - 0.5), xlabel="step $t$", ylabel="layer $l$")
    ax.set(xticks=range(steps), yticks=range(layers))
    ax.set_title("Cells on a diagonal do not need each other")
    ax.grid(visible=False)
    figure.alt = (
        f"Grid of {layers} layers by {steps} steps; arrows lead to each cell from the cell below "
        "and from the cell before; one diagonal is marked."
    )
    return figure
