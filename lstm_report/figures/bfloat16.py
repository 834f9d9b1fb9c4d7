"""The figures and tables of notebook 10: products of bfloat16 numbers."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from lstm_kernels.cpu.bfloat16 import rounded

from ..experiments.bfloat16 import BF16, FUSED, WORKS, format_error
from . import plots
from .tables import digits, speed

FORMATS = {"float32": (8, 23), "bfloat16": (8, 7), "float16": (5, 10)}
NAMES = {
    "pytorch": "PyTorch, float32",
    "pytorch/bfloat16": "PyTorch, bfloat16",
    "onnxruntime": "ONNX Runtime, float32",
    FUSED: FUSED,
    BF16: BF16,
}


def formats():
    """The bits of three formats."""
    figure, ax = plt.subplots(figsize=(8.5, 2.4))
    for row, (exponent, fraction) in enumerate(FORMATS.values()):
        parts = (
            ("sign", 0, 1, plots.GREY),
            ("exponent", 1, exponent, plots.ORANGE),
            ("fraction", 1 + exponent, fraction, plots.SKY),
        )
        for part, start, count, colour in parts:
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
    table = {
        "float32, bits": upper,
        "bfloat16, bits": [f"{bits >> 16:04x}" for bits in near.view(np.uint32)],
        "value": [f"{x:.9g}" for x in near],
        "relative error (2^-8)": [f"{x:.2g}" for x in off],
    }
    names = pd.Index([f"{x:.9g}" for x in values], name="number")
    return pd.DataFrame(table, index=names)


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
    titles = "float32: a row for each k", "words: a row for two k"
    for ax, title in zip(axes, titles, strict=True):
        for unit in range(4):
            for k in range(2):
                if ax is axes[0]:
                    corner, size = (unit, -k), (0.94, 0.8)
                else:
                    corner, size = (unit + k / 2, -0.5), (0.45, 0.8)
                ax.add_patch(plt.Rectangle(corner, *size, color=shades[k], alpha=0.6))
                centre = corner[0] + size[0] / 2, corner[1] + 0.4
                style = {"ha": "center", "va": "center", "fontsize": 8}
                ax.text(*centre, f"W[{k}, {unit}]", **style)
        ax.set(title=title, xlim=(-0.1, 4.1), ylim=(-1.2, 1))
        ax.axis("off")
    rows = "Two rows of four weights each in float32"
    figure.alt = f"{rows}; the same in one row of four words."
    return figure


def rates(table):
    """Bars of GFLOP/s of one core; table: by name, of instructions and of loops."""
    figure, ax = plt.subplots(figsize=(8.5, 0.55 * len(table) + 1))
    colours = [plots.SKY if "registers" in name else plots.BLUE for name in table]
    bars = ax.barh(list(table), list(table.values()), color=colours)
    ax.bar_label(bars, fmt=" {:.3g}")
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set(xlabel="GFLOP/s of one core")
    first, second, *_ = table.values()
    ax.set_title(f"Compared with multiply-adds: dot product {speed(second / first)}")
    return figure


def now(rows):
    """Of recorded rows, those of what is measured today, with a column `name`: earlier
    records hold training, gradients, layers in parallel, and a `numba-bf16` that
    widened words to float32.
    """
    rows = rows[rows["stage"].isin(("forward", "y")) & (rows["variant"] != "widening")]
    variant = rows["variant"].replace("dot", None).fillna("")
    key = rows["version"] + np.where(variant == "", "", "/" + variant)
    return rows.assign(name=key.map(NAMES)).dropna(subset="name")


def errors(rows):
    """Largest error of the outputs over H, ours and PyTorch's; rows: of
    `bfloat16.errors`, of one machine.
    """
    figure, ax = plt.subplots(figsize=(8.5, 3.9))
    T = rows["T"].max()
    table = error_medians(rows)[T]
    H = table.columns.to_numpy()
    ax.set(xlabel="hidden units H", yscale="log", xlim=(H[0] * 0.8, H[-1] * 8))
    ax.set(ylabel="largest error / largest value", ylim=(2e-3, 0.4))
    plots.ticks(ax, "x", H)
    labels = []
    for name, colour in zip(table.index, (plots.RED, plots.BLUE), strict=True):
        ax.plot(H, table.loc[name], "o-", ms=4, color=colour)
        labels.append((H[-1], table.loc[name].iloc[-1], name, colour))
    for steps, text in ((1, "one step"), (T, f"{T} steps, nothing forgotten")):
        bound = [format_error(1, steps, entries(T, units)) for units in H]
        ax.plot(H, bound, linestyle="--", linewidth=1, color=plots.GREY)
        labels.append((H[-1], bound[-1], text, plots.GREY))
    plots.label_lines(ax, labels)
    part, _ = explained(rows)
    ax.set_title(f"Errors are at most {part.max():.0%} of what one step explains")
    return figure


def entries(T, H, samples=4):
    """How many numbers y has in `bfloat16.errors`."""
    return T * samples * H


def error_medians(rows):
    """Medians over seeds of the errors of y: a row for ours and PyTorch's, columns T,
    H.
    """
    rows = now(rows).replace({"name": {"PyTorch, float32": "PyTorch, bfloat16"}})
    return rows.groupby(["name", "T", "H"])["max_err"].median().unstack(["T", "H"])


def error_table(rows):
    """`error_medians` as text."""
    table = error_medians(rows).map("{:.1e}".format, na_action="ignore")
    return table.fillna("").rename_axis(index="largest error")


def explained(rows):
    """Ours among recorded errors, in parts of what the format explains for one step;
    how many times as large PyTorch's are, a median.
    """
    keys = ["T", "H", "repeat"]
    rows = now(rows).set_index(keys)
    ours, theirs = (
        rows[rows["version"] == name]["max_err"] for name in (BF16, "pytorch")
    )
    one_step = [format_error(1, 1, entries(T, H)) for T, H, _ in ours.index]
    return ours / one_step, (theirs / ours).median()


def by_workload(rows):
    """(workload, seconds by round and network) for each workload of recorded rows."""
    known = {(w.L, w.T, w.D, w.H, w.B): name for name, w in WORKS.items()}
    for size, group in now(rows).groupby(list("LTDHB"), sort=False):
        size = tuple(map(int, size))
        times = group.pivot(index="repeat", columns="name", values="seconds")
        yield known.get(size, str(size)), times


def beside(rows):
    """Median milliseconds by network, workload by workload, and compared with
    numba-fused.
    """
    lines = {}
    for workload, times in by_workload(rows):
        ratios = times.rdiv(times[FUSED], axis=0).median()
        for name in times:
            gain = "" if name == FUSED else f", {speed(ratios[name])}"
            ms = digits(1e3 * times[name].median())
            lines.setdefault(name, {})[workload] = ms + gain
    order = [name for name in NAMES.values() if name in lines]
    table = pd.DataFrame(lines).T.reindex(order).fillna("")
    return table.rename_axis("inference, ms")


def ahead(rows, name=NAMES["pytorch/bfloat16"]):
    """The speed of `numba-bf16` compared with another's, by workload: medians of the
    rounds' ratios.
    """
    ratios = {work: (t[name] / t[BF16]).median() for work, t in by_workload(rows)}
    return pd.Series(ratios)


def told_passes(table):
    """`bfloat16.passes` as text."""
    forms = {name: "{:.0%}".format if "of its" in name else digits for name in table}
    return pd.DataFrame(
        {name: column.map(forms[name]) for name, column in table.items()}
    )
