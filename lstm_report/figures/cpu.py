"""The figures of notebook 04."""

import matplotlib.pyplot as plt
import numpy as np

from . import plots
from .tables import speed

EPS = 2.0**-24  # half of the distance from 1 to the next float32
ZERO = np.log(np.finfo(np.float32).tiny)  # below, e^x has no more digits in float32


def roofline(points, peak, roofs):
    """Rates over operations per byte of weights; points: name -> (intensity, GFLOP/s).

    peak: GFLOP/s of the tile's loop. roofs: name -> GB/s.
    """
    figure, ax = plt.subplots(figsize=(8.5, 4.8))
    ax.set(xscale="log", yscale="log", xlim=(0.1, 400), ylim=(0.005, 2.5 * peak))
    ax.set(xlabel="operations per byte of weights read (by count)", ylabel="GFLOP/s")
    small = {"textcoords": "offset points", "fontsize": 9, "color": plots.GREY}
    x = np.logspace(-1, 2.3, 200)
    for (name, rate), style in zip(roofs.items(), ("-", "--"), strict=True):
        ax.plot(
            x,
            np.minimum(peak, rate * x),
            color=plots.GREY,
            linestyle=style,
            linewidth=1.2,
        )
        text = f"{name}, {rate:.0f} GB/s"
        ax.annotate(text, (0.13, rate * 0.13), (0, 6), rotation=24, **small)
    ax.annotate(f"the tile's loop, {peak:.0f} GFLOP/s", (0.13, peak), (0, 5), **small)
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
        f"registers:\n{rows * vectors} sums + {vectors} weights\n+ 1 broadcast of {registers}\n\n"
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
    ax.bar_label(ax.barh(rates.index, rates, color=plots.SKY), fmt=" {:.3g}")
    for (name, value), side in zip(ceiling.items(), ("right", "left"), strict=True):
        ax.axvline(value, color=plots.GREY, linestyle="--", linewidth=1)
        place = {"transform": ax.get_xaxis_transform(), "ha": side, "va": "bottom"}
        ax.text(
            value, 1.01, f" {name} {value:.0f} ", color=plots.GREY, fontsize=9, **place
        )
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set(xlabel="GFLOP/s, products only")
    gain = rates / rates.shift()
    ax.set_title(
        f"The largest gain: {gain.idxmax().removeprefix('+ ')}, {speed(gain.max())}",
        pad=18,
    )
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
