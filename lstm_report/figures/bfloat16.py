"""The figures and tables of notebook 10: products of bfloat16 numbers."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from lstm_kernels.cpu.bfloat16 import rounded

from ..experiments import bfloat16 as bench
from ..measure.ceilings import SGEMM_GFLOP
from ..measure.comparer import format_error
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
TASKS = {"airline": "Airline", "reber": "Reber strings"}


def formats():
    """The bits of three formats."""
    figure, ax = plt.subplots(figsize=(8.5, 2.4))
    for row, (exponent, fraction) in enumerate(FORMATS.values()):
        starts = {
            "sign": (0, 1),
            "exponent": (1, exponent),
            "fraction": (1 + exponent, fraction),
        }
        for (part, (start, count)), colour in zip(
            starts.items(), (plots.GREY, plots.ORANGE, plots.SKY), strict=True
        ):
            for bit in range(start, start + count):
                ax.barh(row, 0.94, left=bit, height=0.7, color=colour, alpha=0.6)
            text = part if row == 0 and count > 1 else ""
            ax.text(start + count / 2, row - 0.55, text, ha="center", fontsize=9)
            ax.text(start + count / 2, row, count, ha="center", va="center", fontsize=9)
    ax.set(yticks=range(len(FORMATS)), yticklabels=FORMATS, xlim=(0, 33), xlabel="bits")
    ax.set_ylim(2.5, -0.9)
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
    table = {
        "float32, bits": upper,
        "bfloat16, bits": kept,
        "value": [f"{x:.9g}" for x in near],
    }
    table["relative error (2^-8)"] = [f"{x:.2g}" for x in off]
    return pd.DataFrame(
        table, index=pd.Index([f"{x:.9g}" for x in values], name="number")
    )


def largest_rounding(count=1_000_000):
    """The largest relative error of so many random numbers of all sizes, in parts of
    2^-8.
    """
    x = np.exp2(np.random.default_rng(0).uniform(-120, 120, count)).astype(np.float32)
    return np.abs(rounded(x).astype(np.float64) / x - 1).max() * 2**8, count


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
                ax.text(
                    *centre, f"W[{k}, {unit}]", ha="center", va="center", fontsize=8
                )
        ax.set(title=title, xlim=(-0.1, 4.1), ylim=(-1.2, 1))
        ax.axis("off")
    figure.alt = (
        "Two rows of four weights each in float32; the same in one row of four words."
    )
    return figure


def rates(table):
    """Bars of GFLOP/s of one core; table: by name, of instructions and of loops."""
    figure, ax = plt.subplots(figsize=(8.5, 0.55 * len(table) + 1))
    colours = [plots.SKY if "registers" in name else plots.BLUE for name in table]
    ax.bar_label(
        ax.barh(list(table), list(table.values()), color=colours), fmt=" {:.3g}"
    )
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set(xlabel="GFLOP/s of one core")
    first, *others = (name for name in table if "registers" in name)
    gain = [
        f"{name.split(',')[0]} {speed(table[name] / table[first])}" for name in others
    ]
    ax.set_title(
        f"Compared with multiply-adds: {'; '.join(gain)}" if gain else "No dot product"
    )
    return figure


def roofline(points, roofs):
    """Rates over operations per byte of weights; points: of `bench.by_samples`.

    roofs: name -> GFLOP/s. The slope is the rate at which the first reads the first
    one's weights.
    """
    intensity, rate, _ = next(iter(points.values()))
    slope = rate[0] / intensity[0]
    figure, ax = plt.subplots(figsize=(8.5, 4.6))
    top = 2 * max(roofs.values())
    ax.set(xscale="log", yscale="log", xlim=(0.4, 400), ylim=(0.3 * slope, top))
    ax.set(xlabel="operations per byte of weights read (by count)", ylabel="GFLOP/s")
    small = {"textcoords": "offset points", "fontsize": 9, "color": plots.GREY}
    last = max(intensity[-1] for intensity, *_ in points.values())
    x = np.geomspace(0.4, last, 100)  # the labels' names follow
    for (name, roof), style in zip(roofs.items(), ("-", "--"), strict=False):
        ax.plot(
            x,
            np.minimum(roof, slope * x),
            color=plots.GREY,
            linestyle=style,
            linewidth=1.2,
        )
        text = f"{name}, {digits(roof)} GFLOP/s"
        ax.annotate(text, (0.42, roof), (0, 4), **small)
    labels = []
    for name, (intensity, rate, counts) in points.items():
        colour = plots.COLOURS[name]
        ax.plot(intensity, rate, "o-", ms=4, color=colour)
        labels.append((intensity[-1], rate[-1], name, colour))
        left = (
            (-4, -13) if len(labels) == 1 else (-32, 4)
        )  # the first line runs below the others
        for place, offset in ((0, left), (-1, (-4, -13))):
            text = f"B = {counts[place]}"
            ax.annotate(text, (intensity[place], rate[place]), offset, **small)
    plots.ticks(ax, "y", [n for n in (12, 25, 50, 100, 200, 400, 800, 1600) if n < top])
    plots.label_lines(ax, labels, bbox={"fc": "white", "ec": "none", "pad": 0.5})
    fused, half = (points[name][1] for name in points)
    gain = f"{speed(half[0] / fused[0])} for one sample, {speed(half[-1] / fused[-1])} for many"
    ax.set_title(f"Products in bfloat16: {gain}")
    return figure


def error_names(rows):
    """What each row of recorded errors is of; ways of the same bits are one."""
    return rows["version"].map(
        {"pytorch": "PyTorch, bfloat16", "numba-bf16": "numba-bf16"}
    )


def errors(rows):
    """Largest error of the outputs and of the gradient of W over H, ours and PyTorch's;
    rows: of `bench.errors`, of one machine.
    """
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.9), sharey=True)
    T = rows["T"].max()
    shown = rows[rows["T"] == T].assign(name=error_names(rows))
    for ax, stage in zip(axes, ("y", "weight_hh_l0"), strict=True):
        part = shown[shown["stage"] == stage]
        table = part.groupby(["name", "H"])["max_err"].median().unstack("name")
        H = table.index.to_numpy()
        ax.set(xlabel="hidden units H", yscale="log", xlim=(H[0] * 0.8, H[-1] * 8))
        ax.set_ylim(2e-3, 0.4)
        plots.ticks(ax, "x", H)
        labels = []
        for name, colour in zip(table, (plots.RED, plots.BLUE), strict=True):
            ax.plot(H, table[name], "o-", ms=4, color=colour)
            labels.append((H[-1], table[name].iloc[-1], name, colour))
        for steps, text in ((1, "one step"), (T, f"{T} steps, nothing forgotten")):
            bound = [format_error(1, steps, n) for n in entries(stage, T, H)]
            ax.plot(H, bound, linestyle="--", linewidth=1, color=plots.GREY)
            labels.append((H[-1], bound[-1], text, plots.GREY))
        plots.label_lines(ax, labels)
        ax.set_title(f"{stage if stage == 'y' else 'gradient of W'}, {T} steps")
    axes[0].set_ylabel("largest error / largest value")
    return figure


def entries(stage, T, H, samples=4):
    """How many numbers there are in y or in a gradient, by PyTorch's name; bounded by
    that.
    """
    return T * samples * H if stage in ("y", "x") else 4 * H * H


def error_table(rows):
    """Medians over seeds of every array, by T and H, as text."""
    table = rows.assign(name=error_names(rows)).groupby(
        ["stage", "name", "T", "H"], sort=False
    )
    table = table["max_err"].median().unstack(["T", "H"]).rename(WORDS, level=0)
    table = table.map("{:.1e}".format, na_action="ignore").fillna("")
    return table.rename_axis(index=["largest error", ""])


def explained(rows):
    """Ours among recorded errors, in parts of what the format explains for one step;
    how many times as large PyTorch's are, a median.
    """
    ours, theirs = (rows[rows["version"] == name] for name in (bench.BF16, "pytorch"))
    counts = [
        entries(*row) for row in ours[["stage", "T", "H"]].itertuples(index=False)
    ]
    part = ours["max_err"] / [format_error(1, 1, count) for count in counts]
    keys = ["stage", "T", "H", "repeat"]
    first = ours[ours["variant"] == ours["variant"].iloc[0]].set_index(keys)["max_err"]
    return part, (theirs.set_index(keys)["max_err"] / first).median()


def names(rows):
    """What each row is of: its version and variant, in words."""
    variant = rows["variant"].fillna("")
    keys = rows["version"] + np.where(variant == "", "", "/" + variant)
    return keys.map(lambda key: NAMES.get(key, key))


def by_workload(rows, stage):
    """(workload, seconds by round and network) for each workload of a stage."""
    part = rows[rows["stage"] == stage].assign(name=lambda r: names(r))
    known = {(w.L, w.T, w.D, w.H, w.B): name for name, w in bench.WORKS.items()}
    for size, own in part.groupby(list("LTDHB"), sort=False):
        size = tuple(map(int, size))
        times = own.pivot(index="repeat", columns="name", values="seconds")
        yield known.get(size, str(size)), times


def beside(rows, stage):
    """Median milliseconds by network, workload by workload, and compared with
    numba-fused.
    """
    lines = {}
    for workload, times in by_workload(rows, stage):
        ratio = (
            times.rdiv(times[bench.FUSED], axis=0).median()
            if bench.FUSED in times
            else {}
        )
        for name in times:
            gain = (
                f", {speed(ratio[name])}"
                if name != bench.FUSED and name in ratio
                else ""
            )
            lines.setdefault(name, {})[workload] = (
                digits(1e3 * times[name].median()) + gain
            )
    order = [name for name in NAMES.values() if name in lines]
    return pd.DataFrame(lines).T.reindex(order).fillna("").rename_axis(f"{stage}, ms")


def ahead(rows, stage):
    """Our speed compared with PyTorch's in bfloat16, by workload: medians of the
    rounds' ratios; by the faster way, which is the one that is chosen.
    """
    way = (
        rows[rows["version"] == bench.BF16]
        .groupby("variant")["seconds"]
        .median()
        .idxmin()
    )
    ours, theirs = NAMES[f"{bench.BF16}/{way}"], NAMES["pytorch/bfloat16"]
    return pd.Series(
        {
            workload: (times[theirs] / times[ours]).median()
            for workload, times in by_workload(rows, stage)
        }
    )


def products(rows):
    """GFLOP/s of the large products of a recorded run, by name."""
    times = rows[rows["stage"] == "ceiling"].groupby("version")["seconds"].median()
    return (SGEMM_GFLOP / times.drop("copy", errors="ignore")).round(0)


def learned(rows):
    """Held-out losses by task and seed: trained in float32, trained with bfloat16
    products.
    """
    part = rows[rows["stage"] == "trained"]
    return part.pivot(index=["variant", "repeat"], columns="version", values="loss")


def losses(table):
    """A point for each seed, the loss of one training against that of the other, by
    task.
    """
    tasks = table.index.get_level_values(0).unique()
    figure, axes = plt.subplots(
        1, len(tasks), figsize=(4.2 * len(tasks), 3.9), squeeze=False
    )
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
        ax.set_title(f"{TASKS[task]}: median {off:+.1%}")
    return figure


def told_losses(table):
    """Each task's medians and spread over seeds, and the median change, as a table."""
    lines = {}
    for task, own in table.groupby(level=0):
        off = own[bench.BF16] / own[bench.FUSED] - 1
        spread = own[bench.FUSED].max() / own[bench.FUSED].min() - 1
        lines[TASKS[task]] = {
            "loss, float32": digits(own[bench.FUSED].median()),
            "loss, bfloat16 products": digits(own[bench.BF16].median()),
            "change, seed by seed": f"{off.min():+.1%} to {off.max():+.1%}",
            "apart between seeds, float32": f"{spread:.1%}",
        }
    return pd.DataFrame(lines).T


def changes(table):
    """By task: how far bfloat16 products move a loss, a median over seeds; the standard
    deviation between seeds; both relative to the loss.
    """
    off = (table[bench.BF16] / table[bench.FUSED] - 1).abs().groupby(level=0).median()
    losses_ = table[bench.FUSED].groupby(level=0)
    return off, losses_.std() / losses_.mean()


def outer_symbols(rows):
    """How many outer symbols of Reber strings are predicted, in a sentence."""
    part = rows[(rows["stage"] == "trained") & (rows["variant"] == "reber")]
    share = part.groupby("version")["accuracy"].median()
    told = f"{share[bench.FUSED]:.0%} in float32, {share[bench.BF16]:.0%} with bfloat16 products"
    return f"Outer symbols of Reber strings that are predicted, medians over seeds: {told}."


def told_passes(table):
    """`bench.passes` as text."""
    return pd.DataFrame(
        {
            column: own.map("{:.0%}".format if "of its" in column else digits)
            for column, own in table.items()
        }
    )


def told_bounds(table):
    """`bench.halved` as text."""
    ms = ["ms", "of these, inputs", "the rest"]
    shown = table[ms].map(digits).astype(object)
    for name in ("speed", "bound"):
        shown[name] = table[name].map(speed)
    shown.loc[bench.FUSED, "bound"] = ""
    return shown
