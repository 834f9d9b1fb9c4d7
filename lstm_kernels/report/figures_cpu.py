"""The figures of notebook 04, drawn from results."""

import matplotlib.pyplot as plt
import numpy as np

from . import plots

EPS = 2.0**-24  # half of the distance from 1 to the next float32
ZERO = np.log(np.finfo(np.float32).tiny)  # below, e^x has no more digits in float32


def roofline(points, peak, roofs):
    """Rates over operations per byte of weights; points: name -> (intensity, GFLOP/s).

    peak: GFLOP/s of the FMA units. roofs: name -> GB/s.
    """
    figure, ax = plt.subplots(figsize=(8.5, 4.8))
    x = np.logspace(-1, 2.3, 200)
    for (name, speed), style in zip(roofs.items(), ("-", "--"), strict=True):
        ax.plot(x, np.minimum(peak, speed * x), color=plots.GREY, linestyle=style, linewidth=1.2)
        ax.annotate(
            f"{name}, {speed:.0f} GB/s",
            (0.13, speed * 0.13),
            (0, 6),
            textcoords="offset points",
            color=plots.GREY,
            fontsize=9,
            rotation=24,
        )
    ax.annotate(
        f"multiply-adds, {peak:.0f} GFLOP/s", (0.13, peak * 1.1), color=plots.GREY, fontsize=9
    )
    lowest = 0.0  # labels that would overlap move down
    for name, (intensity, rate) in sorted(points.items(), key=lambda item: item[1][1]):
        colour = plots.COLOURS.get(name, plots.BLACK)
        ax.plot(intensity, rate, "o", color=colour)
        at = max(rate * 0.9, 1.6 * lowest) if intensity > 1 else rate
        lowest = at if intensity > 1 else lowest
        label = {"textcoords": "offset points", "color": colour, "fontsize": 9, "va": "center"}
        ax.annotate(f"{name} {rate:.3g}", (intensity, at), (8, 0), **label)
    ax.set(xscale="log", yscale="log", xlim=(0.1, 400), ylim=(0.005, 2 * peak))
    ax.set(xlabel="operations per byte of weights read (by count)", ylabel="GFLOP/s")
    best = max(rate for _, rate in points.values())
    ax.set_title(
        f"From {min(r for _, r in points.values()) / peak:.2%} to {best / peak:.0%} of the machine"
    )
    figure.alt = (
        f"Roofline with a ceiling of {peak:.0f} GFLOP/s. "
        + "; ".join(
            f"{name}: {i:.3g} operations per byte, {r:.3g} GFLOP/s"
            for name, (i, r) in points.items()
        )
        + "."
    )
    return figure


def tile(rows, vectors, lanes, registers):
    """The register tile: sums in the middle, a vector of weights above, a broadcast at the left."""
    figure, ax = plt.subplots(figsize=(8.5, 4.2))
    gates = ("i", "f", "g", "o")[:vectors]
    for r in range(rows):
        ax.add_patch(plt.Rectangle((-0.75, -r - 1 + 0.15), 0.5, 0.7, color=plots.ORANGE, alpha=0.6))
        ax.text(-0.5, -r - 0.5, f"h[{r}, k]", ha="center", va="center", fontsize=9)
        for v in range(vectors):
            ax.add_patch(
                plt.Rectangle((v + 0.05, -r - 0.95), 0.9, 0.9, color=plots.SKY, alpha=0.55)
            )
            ax.text(v + 0.5, -r - 0.5, f"sum {gates[v]}[{r}]", ha="center", va="center", fontsize=9)
    for v in range(vectors):
        ax.add_patch(plt.Rectangle((v + 0.05, 0.2), 0.9, 0.6, color=plots.GREEN, alpha=0.5))
        ax.text(
            v + 0.5, 0.5, f"W[k, {gates[v]}], {lanes} units", ha="center", va="center", fontsize=9
        )
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


def steps(table, ceiling, title):
    """Bars of rates, one idea after the other, ceilings as lines; table: GFLOP/s by name."""
    figure, ax = plt.subplots(figsize=(8.5, 3.6))
    rates = table["GFLOP/s"]
    ax.barh(rates.index, rates, color=plots.SKY)
    for position, rate in enumerate(rates):
        ax.annotate(
            f"{rate:.0f}", (rate, position), (5, 0), textcoords="offset points", va="center"
        )
    for (name, value), side in zip(ceiling.items(), ("right", "left"), strict=True):
        ax.axvline(value, color=plots.GREY, linestyle="--", linewidth=1)
        place = {"transform": ax.get_xaxis_transform(), "ha": side, "va": "bottom"}
        ax.text(value, 1.01, f" {name} {value:.0f} ", color=plots.GREY, fontsize=9, **place)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set(xlabel="GFLOP/s, products only")
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
    """Measured over predicted times, a mark per schedule."""
    figure, ax = plt.subplots(figsize=(6.5, 4.6))
    marks = {
        "one thread": (plots.GREY, "o"),
        "samples": (plots.RED, "s"),
        "hidden units": (plots.BLUE, "D"),
    }
    for kind, part in table.groupby("divided by"):
        colour, marker = marks[kind]
        ax.plot(part["predicted"], part["measured"], marker, color=colour, label=kind, markersize=5)
    ends = np.array([table["predicted"].min() / 1.5, table["predicted"].max() * 1.5])
    ax.plot(ends, ends, color=plots.GREY, linewidth=1)
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="predicted (microseconds)",
        ylabel="measured (microseconds)",
    )
    off = np.median(np.abs(table["measured"] / table["predicted"] - 1))
    ax.set_title(f"The model errs by {off:.0%} (median)")
    ax.legend(title="divided by")
    figure.alt = (
        f"Measured against predicted time of {len(table)} schedules on log axes, along the "
        f"diagonal; median deviation {off:.0%}."
    )
    return figure


def peers(ratios, stage, machine):
    """Speed of numba-fused compared with each peer's, on one machine; ratios: `peer_ratios`."""
    figure, ax = plt.subplots(figsize=(8.5, 4.6))
    colours = {"pytorch": plots.RED, "jax": plots.GREEN, "onnxruntime": plots.ORANGE}
    names = list(ratios.index)
    for (name, colour), dy in zip(colours.items(), (-0.22, 0, 0.22), strict=True):
        if name in ratios:
            ax.plot(ratios[name], np.arange(len(names)) + dy, "o", color=colour, label=name)
    ax.axvline(1, color=plots.BLACK, linewidth=1)
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set(xscale="log", xlabel="time of the peer / time of numba-fused", xlim=(0.9, None))
    ticks = [1, 1.5, 2, 3, 5, 10, 15]
    ax.set_xticks(ticks, map(str, ticks))
    ax.minorticks_off()
    behind = ratios.min(axis=1) < 1
    where = f"ahead of the best peer at {(~behind).sum()} of {len(names)} workloads"
    ax.set_title(f"{stage}, {machine}:\n{where}")
    ax.legend()
    figure.alt = (
        f"{stage} on {machine}: "
        + "; ".join(
            f"{name}: " + ", ".join(f"{peer} {value:.2f}" for peer, value in line.dropna().items())
            for name, line in ratios.iterrows()
        )
        + " times the time of numba-fused."
    )
    return figure
