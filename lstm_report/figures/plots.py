"""One plot style: a colour for each thing, labels on the lines, white ground; figures
in words.
"""

import re

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from cycler import cycler
from matplotlib.ticker import NullLocator
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
    "numba-bf16": SKY,
    "cuda-v1": SKY,
    "cuda-v2": YELLOW,
    "cuda-v3": ORANGE,
    "cuda-fused": RED,
    "cuda-epoch": BLUE,
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
            "axes.prop_cycle": cycler(
                color=[BLUE, RED, GREEN, ORANGE, PURPLE, SKY, BLACK]
            ),
            "grid.color": "#e6e6e6",
            "font.size": 10.5,
            "legend.frameon": False,
            "lines.linewidth": 1.8,
            "svg.hashsalt": "lstm_kernels",  # the same drawing gives the same file
            "svg.fonttype": "path",  # the same everywhere, whatever fonts there are
        }
    )


def label_line(ax, x, y, text, colour, **how):
    """Label a line at its end, in its own colour."""
    place = {
        "xytext": (5, how.pop("dy", 0)),
        "textcoords": "offset points",
        "va": "center",
    }
    ax.annotate(text, (x, y), color=colour, **place, **how)


def label_lines(ax, labels, *, lines=1, **how):
    """Label lines at their ends, apart: `labels` holds (x, y, text, colour), `lines` of
    text each.

    The labels move up and down as little as keeps them apart. Set scales and limits
    before.
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


MATHTEXT = re.compile(r"\\mathdefault|[${}\\]")


def ticks(ax, axes, values):
    """Ticks at `values` alone, as they are, on logarithmic axes `axes`: "x" or "xy"."""
    for name in axes:
        axis = getattr(ax, f"{name}axis")
        axis.axes.set(**{f"{name}scale": "log"})
        axis.set_ticks(values, labels=map(str, values))
        axis.set_minor_locator(NullLocator())


def lines(ax, curves, **how):
    """Draw curves, pairs (x, y), and label each at its end with its key; set limits
    before.
    """
    drawn = {name: ax.plot(x, y, **how)[0] for name, (x, y) in curves.items()}
    ends = {name: (x[-1], y[-1]) for name, (x, y) in curves.items()}
    label_lines(
        ax, [(*ends[name], name, line.get_color()) for name, line in drawn.items()]
    )


def words(figure):
    """A drawn figure in words: of each panel its title, its axes and the names on them,
    its labels and its legend.
    """
    said = [figure.get_suptitle()]
    for ax in figure.axes:
        axes, legend = [], ax.get_legend()
        for axis in (ax.yaxis, ax.xaxis):
            names = [tick.get_text() for tick in axis.get_ticklabels()]
            named = (
                f" ({', '.join(names)})"
                if any(name[:1].isalpha() for name in names)
                else ""
            )
            on = " on a log axis" if axis.get_scale() == "log" else ""
            axes.append(axis.get_label_text() + named + on)
        labels = [
            text.get_text()
            for text in (*ax.texts, *(legend.get_texts() if legend else ()))
        ]
        said += [
            ax.get_title("left") or ax.get_title(),
            " against ".join(filter(None, axes)),
        ]
        said += [f"Labels: {'; '.join(labels)}"] if labels else []
    said = (" ".join(part.split()) for part in said)
    return MATHTEXT.sub("", ". ".join(filter(None, said))) + "."


def rounds(grids):
    """The round, from 0, in which each cell is computed; grids: order -> array (layers,
    steps).
    """
    figure, axes = plt.subplots(
        len(grids), figsize=(8, 2.3 * len(grids)), squeeze=False
    )
    titles = [f"{order}: {grid.max() + 1} rounds" for order, grid in grids.items()]
    for ax, title, grid in zip(axes.flat, titles, grids.values(), strict=True):
        sns.heatmap(grid, annot=True, fmt="d", cmap="cividis", cbar=False, ax=ax)
        ax.set(title=title, xlabel="step $t$", ylabel="layer $l$")
        ax.invert_yaxis()
    figure.alt = f"Layers over steps, with the round of each cell. {'; '.join(titles)}."
    return figure
