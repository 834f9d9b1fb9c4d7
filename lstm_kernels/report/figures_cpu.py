"""The figures of notebook 04, drawn from results."""

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns

from . import plots
from .tables import speed

EPS = 2.0**-24  # half of the distance from 1 to the next float32
ZERO = np.log(np.finfo(np.float32).tiny)  # below, e^x has no more digits in float32


def roofline(points, peak, roofs):
    """Rates over operations per byte of weights; points: name -> (intensity, GFLOP/s).

    peak: GFLOP/s of the tile's loop. roofs: name -> GB/s.
    """
    figure, ax = plt.subplots(figsize=(8.5, 4.8))
    small = {"textcoords": "offset points", "fontsize": 9}
    x = np.logspace(-1, 2.3, 200)
    for (name, rate), style in zip(roofs.items(), ("-", "--"), strict=True):
        ax.plot(x, np.minimum(peak, rate * x), color=plots.GREY, linestyle=style, linewidth=1.2)
        at, text = (0.13, rate * 0.13), f"{name}, {rate:.0f} GB/s"
        ax.annotate(text, at, (0, 6), color=plots.GREY, rotation=24, **small)
    text = f"the tile's loop, {peak:.0f} GFLOP/s"
    ax.annotate(text, (0.13, peak), (0, 5), color=plots.GREY, **small)
    lowest = 0.0  # labels that would overlap move down
    for name, (intensity, rate) in sorted(points.items(), key=lambda item: item[1][1]):
        colour = plots.COLOURS.get(name, plots.BLACK)
        ax.plot(intensity, rate, "o", color=colour)
        at = max(rate * 0.9, 1.6 * lowest) if intensity > 1 else rate
        lowest = at if intensity > 1 else lowest
        text = f"{name} {rate:.3g}"
        clear = {"fc": "white", "ec": "none", "pad": 0.5}  # above the roofs
        ax.annotate(text, (intensity, at), (8, 0), color=colour, va="center", bbox=clear, **small)
    ax.set(xscale="log", yscale="log", xlim=(0.1, 400), ylim=(0.005, 2.5 * peak))
    ax.set(xlabel="operations per byte of weights read (by count)", ylabel="GFLOP/s")
    shares = {name: rate / peak for name, (_, rate) in points.items()}
    best = max(shares, key=shares.get)
    ax.set_title(f"{best} reaches {shares[best]:.0%} of the tile's loop")
    told = "; ".join(f"{n}: {i:.3g} operations per byte, {r:.3g}" for n, (i, r) in points.items())
    figure.alt = f"Roofline with a ceiling of {peak:.0f} GFLOP/s. {told} GFLOP/s."
    return figure


def tile(rows, vectors, lanes, registers):
    """The register tile: sums in the middle, a vector of weights above, a broadcast at the left."""
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
    ax.set_title(f"The register tile: {rows} samples by {vectors} gates of {lanes} hidden units")
    figure.alt = (
        f"A grid of {rows} by {vectors} vector registers with sums; above each column a vector "
        f"of {lanes} weights of one gate, left of each row one number of h that is broadcast."
    )
    return figure


def steps(table, ceiling):
    """Bars of rates, one idea after the other, ceilings as lines; table: GFLOP/s by name."""
    figure, ax = plt.subplots(figsize=(8.5, 3.6))
    rates = table["GFLOP/s"]
    ax.bar_label(ax.barh(rates.index, rates, color=plots.SKY), fmt=" {:.3g}")
    for (name, value), side in zip(ceiling.items(), ("right", "left"), strict=True):
        ax.axvline(value, color=plots.GREY, linestyle="--", linewidth=1)
        place = {"transform": ax.get_xaxis_transform(), "ha": side, "va": "bottom"}
        ax.text(value, 1.01, f" {name} {value:.0f} ", color=plots.GREY, fontsize=9, **place)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set(xlabel="GFLOP/s, products only")
    gain = rates / rates.shift()
    title = f"The largest gain: {gain.idxmax().removeprefix('+ ')}, {speed(gain.max())}"
    ax.set_title(title, pad=18)
    figure.alt = title + ": " + "; ".join(f"{n} {r:.0f} GFLOP/s" for n, r in rates.items()) + "."
    return figure


def accuracy(x, curves):
    """Relative errors of tanh and sigmoid, and how far they stay from 1: `ablation.accuracy`."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.8))
    colours, words = {"tanh": plots.BLUE, "sigmoid": plots.RED}, []
    drawn = {"tanh": (left, x > 0), "sigmoid": (middle, x > ZERO)}
    for name, (ax, part) in drawn.items():
        value, true = (array[part] for array in curves[name])
        error = np.abs(value / true - 1)
        # A quarter of a million points: as pixels, or the SVG takes seconds to open.
        ax.plot(x[part], error / EPS, ",", color=colours[name], rasterized=True)
        ax.set(xlabel="x", ylabel="relative error ($2^{-24}$)")
        ax.set_title(f"{name}: largest relative error {error.max():.1e}")
        words.append(f"the largest relative error of {name} drawn is {error.max():.1e}")
    left.set_xscale("log")
    middle.set_xlim(-90, 25)
    for name, (value, true) in curves.items():
        rest = 1 - true.astype(np.float64)
        near = (x > 0) & (rest > EPS / 64)
        right.plot(x[near], rest[near], color=plots.GREY, linewidth=1)
        gap = 1 - value.astype(np.float64)
        some = (x > 0) & (gap > 0)
        right.plot(x[some], gap[some], ",", color=colours[name], rasterized=True)
        closed = x[value < 1].max()
        right.annotate(name, (closed, 8 * EPS), (-4, 4), textcoords="offset points", fontsize=9)
        words.append(f"{name} is 1 above {closed:.3g}")
    right.set(yscale="log", xlabel="x", ylabel="distance from 1", title="Closed is 1, not almost 1")
    figure.alt = "Three panels: " + "; ".join(words) + "."
    return figure


def predictions(table):
    """Measured against predicted times, a mark per schedule; table: of `ablation.schedule_table`,
    with a column `off`: measured over predicted.
    """
    figure, ax = plt.subplots(figsize=(6.5, 4.6))
    axes = {"x": "predicted", "y": "measured", "hue": "divided by", "style": "divided by"}
    colours = {"one thread": plots.GREY, "samples": plots.RED, "hidden units": plots.BLUE}
    sns.scatterplot(table, **axes, palette=colours, s=45, ax=ax)
    ends = np.array([table["predicted"].min() / 1.5, table["predicted"].max() * 1.5])
    ax.plot(ends, ends, color=plots.GREY, linewidth=1)
    ax.set(xscale="log", yscale="log")
    ax.set(xlabel="predicted (microseconds)", ylabel="measured (microseconds)")
    low, middle, high = table["off"].quantile([0, 0.5, 1])
    told = f"{low:.2g} to {high:.2g} times the prediction, median {middle:.2g}"
    ax.set_title(f"Measured: {told}")
    figure.alt = f"Measured against predicted time of {len(table)} schedules on log axes: {told}."
    return figure


def peers(ratios, stage, machine):
    """Speed of numba-fused compared with each peer's, on one machine; ratios: `peer_ratios`."""
    figure, ax = plt.subplots(figsize=(8.5, 4.6))
    rows = ratios.melt(var_name="peer", ignore_index=False).reset_index(names="workload")
    colours = {"pytorch": plots.RED, "jax": plots.GREEN, "onnxruntime": plots.ORANGE}
    how = {"palette": colours, "dodge": True, "jitter": False, "ax": ax}
    sns.stripplot(rows.dropna(), x="value", y="workload", hue="peer", **how)
    ax.axvline(1, color=plots.BLACK, linewidth=1)
    ax.set(xscale="log", xlabel="speed of numba-fused (peer = 1)", ylabel="")
    ticks = [1, 1.5, 2, 3, 5, 10, 15]
    ax.set_xticks(ticks, map(str, ticks))
    ax.minorticks_off()
    ahead = (
        f"ahead of the best peer at {(ratios.min(axis=1) >= 1).sum()} of {len(ratios)} workloads"
    )
    ax.set_title(f"{machine}:\n{stage}, {ahead}")
    told = "; ".join(
        f"{name}: " + ", ".join(f"{peer} {value:.2f}" for peer, value in line.dropna().items())
        for name, line in ratios.iterrows()
    )
    figure.alt = f"{stage} on {machine}, speed compared with each peer's. {told}."
    return figure
