"""The figures and tables of notebook 10: products of bfloat16 numbers."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from ..bench import bfloat16 as bench
from ..bench.ceilings import SGEMM_GFLOP
from ..bench.comparer import format_error
from ..cpu.bfloat16 import rounded
from . import plots
from .tables import digits, speed

FORMATS = {"float32": (8, 23), "bfloat16": (8, 7), "float16": (5, 10)}
NAMES = {
    "pytorch": "PyTorch, float32",
    "pytorch/bfloat16": "PyTorch, bfloat16",
    "onnxruntime": "ONNX Runtime, float32",
    "numba-fused": "numba-fused",
    "numba-bf16/dot": "numba-bf16, dot product",
    "numba-bf16/widening": "numba-bf16, widening",
    "numba-wavefront": "numba-wavefront",
    "numba-bf16-wavefront": "numba-bf16, layers in parallel",
}
WORDS = {"y": "outputs y", "x": "of x", "weight_ih_l0": "of U", "weight_hh_l0": "of W"}
WORDS["bias_ih_l0"] = "of b"


def formats():
    """The bits of three formats."""
    figure, ax = plt.subplots(figsize=(8.5, 2.4))
    for row, (exponent, fraction) in enumerate(FORMATS.values()):
        starts = {"sign": (0, 1), "exponent": (1, exponent), "fraction": (1 + exponent, fraction)}
        for (part, (start, count)), colour in zip(
            starts.items(), (plots.GREY, plots.ORANGE, plots.SKY), strict=True
        ):
            for bit in range(start, start + count):
                ax.barh(row, 0.94, left=bit, height=0.7, color=colour, alpha=0.6)
            text = part if row == 0 and count > 1 else ""
            ax.text(start + count / 2, row - 0.55, text, ha="center", fontsize=9)
            ax.text(start + count / 2, row, count, ha="center", va="center", fontsize=9)
    ax.set(yticks=range(len(FORMATS)), yticklabels=FORMATS, xlim=(0, 33), xlabel="bits")
    ax.invert_yaxis()
    ax.grid(visible=False)
    ax.set_title("bfloat16 is the upper half of float32")
    return figure


def numbers(values):
    """Numbers, what bfloat16 makes of them, and how far that is, in parts of 2^-8."""
    values = np.asarray(values, np.float32)
    near = rounded(values)
    off = np.abs(near.astype(float) - values) / np.abs(values.astype(float)) * 2**8
    upper = [f"{bits >> 16:04x} {bits & 0xFFFF:04x}" for bits in values.view(np.uint32)]
    kept = [f"{bits >> 16:04x}" for bits in near.view(np.uint32)]
    table = {"float32, bits": upper, "bfloat16, bits": kept, "value": [f"{x:.9g}" for x in near]}
    table["relative error (2^-8)"] = [f"{x:.2g}" for x in off]
    return pd.DataFrame(table, index=pd.Index([f"{x:.9g}" for x in values], name="number"))


def layout():
    """How two rows of weights become one row of words."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 2.2), width_ratios=(1, 1))
    shades = plots.ORANGE, plots.SKY
    for ax, title in zip(
        axes, ("float32: a row for each k", "words: a row for two k"), strict=True
    ):
        for unit in range(4):
            for k in range(2):
                if ax is axes[0]:
                    corner, size = (unit, -k), (0.94, 0.8)
                else:
                    corner, size = (unit + k / 2, -0.5), (0.45, 0.8)
                ax.add_patch(plt.Rectangle(corner, *size, color=shades[k], alpha=0.6))
                centre = corner[0] + size[0] / 2, corner[1] + 0.4
                ax.text(*centre, f"W[{k}, {unit}]", ha="center", va="center", fontsize=8)
        ax.set(title=title, xlim=(-0.1, 4.1), ylim=(-1.2, 1))
        ax.axis("off")
    figure.alt = "Two rows of four weights each in float32; the same in one row of four words."
    return figure


def rates(table):
    """Bars of GFLOP/s of one core; table: by name, of instructions and of loops."""
    figure, ax = plt.subplots(figsize=(8.5, 0.55 * len(table) + 1))
    colours = [plots.SKY if "registers" in name else plots.BLUE for name in table]
    ax.bar_label(ax.barh(list(table), list(table.values()), color=colours), fmt=" {:.3g}")
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set(xlabel="GFLOP/s of one core")
    first, *others = (name for name in table if "registers" in name)
    gain = [f"{name.split(',')[0]} {speed(table[name] / table[first])}" for name in others]
    ax.set_title(f"Compared with multiply-adds: {'; '.join(gain)}" if gain else "No dot product")
    return figure


def roofline(points, roofs, slope):
    """Rates over operations per byte of weights; points: name -> (intensities, GFLOP/s, B).

    roofs: name -> GFLOP/s. slope: GB/s at which one sample's weights are read.
    """
    figure, ax = plt.subplots(figsize=(8.5, 4.6))
    top = 2 * max(roofs.values())
    ax.set(xscale="log", yscale="log", xlim=(0.4, 400), ylim=(0.3 * slope, top))
    ax.set(xlabel="operations per byte of weights read (by count)", ylabel="GFLOP/s")
    small = {"textcoords": "offset points", "fontsize": 9, "color": plots.GREY}
    x = np.logspace(-0.5, 2.6, 100)
    for (name, roof), style in zip(roofs.items(), ("-", "--"), strict=False):
        ax.plot(x, np.minimum(roof, slope * x), color=plots.GREY, linestyle=style, linewidth=1.2)
        ax.annotate(f"{name}, {digits(roof)} GFLOP/s", (0.45, roof), (0, 4), **small)
    labels = []
    for name, (intensity, rate, counts) in points.items():
        colour = plots.COLOURS[name]
        ax.plot(intensity, rate, "o-", ms=4, color=colour)
        labels.append((intensity[-1], rate[-1], name, colour))
        for place in (0, -1):
            text = f"B = {counts[place]}"
            ax.annotate(text, (intensity[place], rate[place]), (-4, -13), **small)
    plots.label_lines(ax, labels)
    fused, half = (points[name][1] for name in points)
    gain = f"{speed(half[0] / fused[0])} for one sample, {speed(half[-1] / fused[-1])} for many"
    ax.set_title(f"Products in bfloat16: {gain}")
    return figure


def errors(rows):
    """Largest error of the outputs and of the gradient of W over H, ours and PyTorch's; rows: of
    `bench.errors`, of one machine.
    """
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.9), sharey=True)
    shown = rows.assign(name=names(rows, own=NAMES | {"pytorch": "PyTorch, bfloat16"}))
    longest = rows["T"].max()
    for ax, stage in zip(axes, ("y", "weight_hh_l0"), strict=True):
        part = shown[(shown["stage"] == stage) & (shown["T"] == longest)]
        table = part.groupby(["name", "H"])["max_err"].median().unstack("name")
        ax.set(xlabel="hidden units H", yscale="log", xlim=(table.index[0] * 0.8, 3000))
        plots.ticks(ax, "x", table.index.to_numpy())
        curves = {name: (table.index.to_numpy(), table[name].to_numpy()) for name in table}
        size = {"y": lambda H: longest * 4 * H, "weight_hh_l0": lambda H: 4 * H * H}[stage]
        bound = np.array([format_error(1, longest, size(H)) for H in table.index])
        curves["explained by the format"] = table.index.to_numpy(), bound
        plots.lines(ax, curves, marker="o", ms=4)
        ax.set_title(f"{stage if stage == 'y' else 'gradient of W'}, {longest} steps")
    axes[0].set_ylabel("largest error, relative to the largest value")
    return figure


def names(rows, own=NAMES):
    """What each row is of: its version and variant, in words."""
    variant = rows["variant"].fillna("")
    keys = rows["version"] + np.where(variant == "", "", "/" + variant)
    return keys.map(lambda key: own.get(key, key))


def beside(rows, stage):
    """Median milliseconds by network, workload by workload, and compared with numba-fused."""
    part = rows[rows["stage"] == stage].assign(name=lambda r: names(r))
    sizes = {(w.L, w.T, w.D, w.H, w.B): name for name, w in bench.WORKS.items()}
    lines = {}
    for size, own in part.groupby(list("LTDHB"), sort=False):
        workload = sizes.get(tuple(map(int, size)), str(tuple(map(int, size))))
        times = own.pivot(index="repeat", columns="name", values="seconds")
        ratio = times.rdiv(times["numba-fused"], axis=0).median()
        for name in times:
            gain = "" if name == "numba-fused" else f", {speed(ratio[name])}"
            lines.setdefault(name, {})[workload] = digits(1e3 * times[name].median()) + gain
    order = [name for name in NAMES.values() if name in lines]
    return pd.DataFrame(lines).T.reindex(order).fillna("").rename_axis(f"{stage}, ms")


def ratios(rows, stage, name, baseline):
    """The speed of a network compared with another, by workload: medians of the rounds' ratios."""
    part = rows[rows["stage"] == stage].assign(name=lambda r: names(r))
    sizes = {(w.L, w.T, w.D, w.H, w.B): key for key, w in bench.WORKS.items()}
    result = {}
    for size, own in part.groupby(list("LTDHB"), sort=False):
        times = own.pivot(index="repeat", columns="name", values="seconds")
        if {name, baseline} <= set(times):
            result[sizes.get(tuple(map(int, size)))] = (times[baseline] / times[name]).median()
    return pd.Series(result)


def products(rows):
    """GFLOP/s of the large products of a recorded run, by name."""
    times = rows[rows["stage"] == "ceiling"].groupby("version")["seconds"].median()
    return (SGEMM_GFLOP / times.drop("copy", errors="ignore")).round(0)


def learned(rows):
    """Held-out losses by task and seed: trained in float32, trained with bfloat16 products."""
    part = rows[rows["stage"] == "trained"]
    return part.pivot(index=["variant", "repeat"], columns="version", values="loss")


def losses(table):
    """A point for each seed, the loss of one training against that of the other, by task."""
    tasks = table.index.get_level_values(0).unique()
    figure, axes = plt.subplots(1, len(tasks), figsize=(4.2 * len(tasks), 3.9), squeeze=False)
    for ax, task in zip(axes.flat, tasks, strict=True):
        own = table.loc[task]
        ax.plot(own[bench.FUSED], own[bench.BF16], "o", color=plots.BLUE)
        ends = own.to_numpy().min(), own.to_numpy().max()
        pad = 0.08 * (ends[1] - ends[0] or 1)
        span = ends[0] - pad, ends[1] + pad
        ax.plot(span, span, color=plots.GREY, linewidth=1)
        ax.set(xlim=span, ylim=span, xlabel="held-out loss, float32")
        ax.set(ylabel="held-out loss, bfloat16 products")
        off = (own[bench.BF16] / own[bench.FUSED] - 1).median()
        ax.set_title(f"{task}: median {off:+.1%}")
    return figure


def told_losses(table):
    """Each task's medians and spread over seeds, and the median change, as a table."""
    lines = {}
    for task, own in table.groupby(level=0):
        off = own[bench.BF16] / own[bench.FUSED] - 1
        spread = own[bench.FUSED].max() / own[bench.FUSED].min() - 1
        lines[task] = {
            "loss, float32": digits(own[bench.FUSED].median()),
            "loss, bfloat16 products": digits(own[bench.BF16].median()),
            "change, seed by seed": f"{off.min():+.1%} to {off.max():+.1%}",
            "apart between seeds, float32": f"{spread:.1%}",
        }
    return pd.DataFrame(lines).T
