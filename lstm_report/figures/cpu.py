"""The figures of notebook 04."""

import matplotlib.pyplot as plt
import numpy as np

from lstm_kernels.errors import counted

from ..experiments.divisions import gains
from . import plots
from .tables import speed

EPS = 2.0**-24  # half of the distance from 1 to the next float32
ZERO = np.log(np.finfo(np.float32).tiny)  # below, e^x has no more digits in float32


def roofline(points, peak, bandwidths):
    """Rates over operations per byte of weights; points: name -> (intensity, GFLOP/s).

    peak: GFLOP/s of the tile's loop. bandwidths: name -> GB/s.
    """
    figure, ax = plt.subplots(figsize=(8.5, 4.8))
    ax.set_ylim(0.005, 2.5 * peak)
    plots.roofline(ax, bandwidths, {"the tile's loop": peak})
    labels = []
    for name, (intensity, rate) in points.items():
        colour = plots.COLOURS.get(name, plots.BLACK)
        ax.plot(intensity, rate, "o", color=colour)
        labels.append((intensity, rate, f"{name} {rate:.3g}", colour))
    plots.label_lines(ax, labels, bbox={"fc": "white", "ec": "none", "pad": 0.5})
    best = max(points, key=lambda name: points[name][1])
    ax.set_title(f"{best} reaches {points[best][1] / peak:.0%} of the tile's loop")
    return figure


def tile(rows, vectors, lanes, registers):
    """The register tile: sums in the middle, a vector of weights above, a broadcast at
    the left.
    """
    figure, ax = plt.subplots(figsize=(8.5, 4.2))

    def box(x, y, width, height, colour, text):
        corner = x - width / 2, y - height / 2
        ax.add_patch(plt.Rectangle(corner, width, height, color=colour, alpha=0.55))
        ax.text(x, y, text, ha="center", va="center", fontsize=9)

    for r in range(rows):
        box(-0.5, -r - 0.5, 0.5, 0.7, plots.ORANGE, f"h[{r}, k]")
    for v, gate in enumerate("ifgo"[:vectors]):
        box(v + 0.5, 0.5, 0.9, 0.6, plots.GREEN, f"W[k, {gate}], {lanes} units")
        for r in range(rows):
            box(v + 0.5, -r - 0.5, 0.9, 0.9, plots.SKY, f"sum {gate}[{r}]")
    text = (
        f"for each k:\n{vectors} vector loads\n{rows} broadcasts\n"
        f"{rows * vectors} multiply-adds\n\n"
        f"registers:\n{rows * vectors} sums + {vectors} weights\n"
        f"+ 1 broadcast of {registers}\n\n"
        "after the last k:\nthe cell, on the sums\nof a row: i, f, g, o"
    )
    ax.text(vectors + 0.25, -rows / 2 + 0.4, text, va="center", fontsize=10)
    ax.set(xlim=(-1, vectors + 1.9), ylim=(-rows - 0.1, 1))
    ax.axis("off")
    ax.set_title(
        f"The register tile: {rows} samples by {vectors} gates of {lanes} hidden units"
    )
    return figure


def steps(table, ceiling):
    """Bars of rates, one idea after the other, ceilings as lines; table: GFLOP/s by
    name.
    """
    figure, ax = plt.subplots(figsize=(8.5, 3.6))
    rates = table["GFLOP/s"]
    plots.bars(ax, rates)
    for (name, value), side in zip(ceiling.items(), ("right", "left"), strict=True):
        ax.axvline(value, color=plots.GREY, linestyle="--", linewidth=1)
        place = {"xycoords": ax.get_xaxis_transform(), "ha": side}
        plots.note(ax, f"{name} {value:.0f}", (value, 1.01), (0, 0), **place)
    ax.set(xlabel="GFLOP/s, products only")
    gain = rates / rates.shift()
    name = gain.idxmax().removeprefix("+ ")
    ax.set_title(f"The largest gain: {name}, {speed(gain.max())}", pad=18)
    return figure


def accuracy(x, curves):
    """Relative errors of tanh and sigmoid: `ablation.accuracy`."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8))
    drawn = {"tanh": (x > 0, plots.BLUE), "sigmoid": (x > ZERO, plots.RED)}
    for ax, (name, (part, colour)) in zip(axes, drawn.items(), strict=True):
        value, true = (array[part] for array in curves[name])
        error = np.abs(value / true - 1)
        # A quarter of a million points: as pixels, or the SVG takes seconds to open.
        ax.plot(x[part], error / EPS, ",", color=colour, rasterized=True)
        ax.set(xlabel="x", ylabel="relative error ($2^{-24}$)")
        ax.set_title(f"{name}: largest relative error {error.max():.1e}")
    axes[0].set_xscale("log")
    axes[1].set_xlim(-90, 25)
    return figure


def divisions(found):
    """Which division of an inference is fastest, and how many times as fast as one
    thread: units over samples, a panel for each number of layers. found: of
    `divisions.table`.
    """
    gain, fastest = gains(found.xs("forward").droplevel(["T", "D"]))
    layers = sorted(set(gain.index.get_level_values("L")))
    figure, axes = plt.subplots(
        1, len(layers), figsize=(4.8 * len(layers), 4.2), sharey=True, squeeze=False
    )
    for ax, L in zip(axes.flat, layers, strict=True):
        table = gain.xs(L).unstack("B")
        text = fastest.xs(L).unstack("B") + "\n" + table.map(speed)
        top = max(2.0, gain.max())
        plots.heat(ax, table, text, cmap="cividis", vmin=1, vmax=top)
        ax.set(title=f"{counted(L, 'layer')}", xlabel="samples")
    axes[0, 0].set_ylabel("hidden units")
    alone = int((fastest == "one thread").sum())
    figure.suptitle(f"One thread is fastest in {alone} of {len(fastest)} shapes")
    return figure
