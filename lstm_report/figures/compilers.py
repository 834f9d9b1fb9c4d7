"""The figures of rates against the batch, and of compilers; rows: of one machine's
results file, as `bench.batches` and `bench.compilers` measure them. ValueError where
none of a stage are there.
"""

import matplotlib.pyplot as plt
import numpy as np

from lstm_kernels.errors import counted

from ..experiments import batches, compilers
from ..experiments.compilers import COMPILED, COMPILERS
from . import plots
from .tables import LABELS, digits, speed

NAMES = {
    "numpy": "NumPy",
    "numba-fused": "numba-fused",
    "jax-eager": "JAX without jit",
    "jax-scan": "JAX, jit of a scan",
    "jax-unrolled": "JAX, jit unrolled",
    "pytorch-eager": "PyTorch eager",
    "pytorch-compiled": "torch.compile",
} | LABELS
COLOURS = {
    "numba-fused": plots.BLACK,
    "jax-scan": plots.GREEN,
    "jax-unrolled": plots.BLUE,
    "pytorch-compiled": plots.RED,
    "pytorch": plots.RED,
    "onnxruntime": plots.PURPLE,
    "baseline": plots.GREY,
}
MARKERS = dict(zip(COLOURS, "os^DDvP", strict=True))


def _of(rows, stage):
    """The rows of a stage, sizes as integers."""
    if missing := {"version", "stage", "seconds"} - set(rows):
        raise ValueError(f"rows: got columns {list(rows)}, want {sorted(missing)} too")
    part = rows[rows["stage"] == stage]
    if part.empty:
        raise ValueError(f"rows: got none of stage {stage!r}, want some")
    return part.astype({"H": int})


def _absent(ax, rows, names):
    """Name what was not measured, below the axis."""
    missing = [NAMES[name] for name in names if name not in set(rows["version"])]
    if missing:
        ax.set_xlabel(f"{ax.get_xlabel()}\nNot measured: {', '.join(missing)}.")


def _curves(ax, table, x, y, *, key="name", **how):
    """A line for each name, medians with quartile bars, with its label at its end;
    quartiles only where there is more than one row.
    """
    labels = []
    for name, part in table.groupby(key, sort=False):
        quartiles = part.groupby(x)[y].quantile([0.25, 0.5, 0.75]).unstack()
        low, middle, high = (quartiles[q].to_numpy() for q in (0.25, 0.5, 0.75))
        colour = COLOURS.get(name, plots.SKY)
        marker = {"marker": MARKERS.get(name, "X"), "markersize": 4, "color": colour}
        bars = np.array([middle - low, high - middle])
        ax.errorbar(
            quartiles.index, middle, bars, capsize=2, elinewidth=1, **marker, **how
        )
        labels.append((quartiles.index[-1], middle[-1], NAMES.get(name, name), colour))
    return labels


def _sizes(ax, values):
    """A logarithmic axis of sizes with a tick at each of them."""
    plots.ticks(ax, "x", sorted(int(value) for value in set(values)))


def rates(rows):
    """GFLOP/s against the batch, with the SGEMM, the roof of reading each weight once a
    step, and the knee where they meet; rows: of `batches.sweep`.

    `numba-fused` may lie above the roof: for small batches it multiplies the inputs of
    several steps at once, and reads U more rarely.
    """
    forward = _of(rows, "forward")
    table = batches.rates(forward)
    figure, ax = plt.subplots(figsize=(8.5, 4.8))
    ax.set(yscale="log", xlabel="batch (samples)", ylabel="GFLOP/s")
    _sizes(ax, table["B"])
    labels = _curves(ax, table, "B", "gflops")
    peak, bandwidth = batches.peak(rows), batches.bandwidth(rows)
    medians = table.groupby(["B", "name"])["gflops"].median().unstack()
    last = medians.index[-1]
    ends = medians.loc[last].dropna().sort_values()
    share = ends / peak if peak > 0 else ends
    form = "{:.0%} of the SGEMM".format if peak > 0 else "{:.3g} GFLOP/s".format
    told = [
        f"{NAMES.get(name, name)} {form(value)}"
        for name, value in share.iloc[[-1, 0]].items()
    ]
    title = f"With {counted(last, 'sample')} {', '.join(dict.fromkeys(told))}"
    grey = {"color": plots.GREY, "fontsize": 9}
    if peak > 0:
        ax.axhline(peak, color=plots.GREY, linewidth=1)
        text = f"SGEMM, {digits(peak)} GFLOP/s"
        ax.annotate(
            text, (table["B"].min(), peak), (0, 4), textcoords="offset points", **grey
        )
    if peak > 0 and bandwidth > 0:
        knee = batches.knee(peak, bandwidth)
        x = np.array([table["B"].min(), knee])
        ax.plot(x, x * bandwidth / 2, color=plots.GREY, linestyle="--", linewidth=1)
        ax.axvline(knee, color=plots.GREY, linestyle=":", linewidth=1)
        place = {"xycoords": ax.get_xaxis_transform(), "textcoords": "offset points"}
        text = f"knee: {knee:.2g} samples,\nweights read at {digits(bandwidth)} GB/s"
        ax.annotate(text, (knee, 0.02), (4, 0), va="bottom", **place, **grey)
        title += f";\nbelow {knee:.2g}, reading the weights bounds a step"
    ax.set_title(title)
    plots.label_lines(ax, labels)
    _absent(ax, forward, batches.COMPARED)
    return figure


def speedups(rows):
    """Speed of each compiled form compared with its own uncompiled one, against the
    cell size; rows: of `compilers.speeds`.
    """
    forward = _of(rows, "forward")
    table = compilers.speedups(forward)
    if table.empty:
        raise ValueError(
            "rows: got no compiled form beside its uncompiled one, want some"
        )
    figure, ax = plt.subplots(figsize=(8.5, 4.4))
    ax.set(yscale="log", xlabel="hidden units (inputs as many)")
    ax.set_ylabel("speed (same package, not compiled = 1)")
    _sizes(ax, table["H"])
    ax.axhline(1, color=plots.GREY, linewidth=1)
    labels = _curves(ax, table, "H", "ratio", key="version")
    medians = table.groupby(["H", "version"])["ratio"].median().unstack()
    ends = [
        f"{_between(medians.loc[H].dropna())} at {H} units"
        for H in medians.index[[0, -1]]
    ]
    ax.set_title(
        "Compiled compared with not compiled:\n" + ", ".join(dict.fromkeys(ends))
    )
    plots.label_lines(ax, labels)
    _absent(ax, forward, COMPILERS)
    return figure


def _between(ratios):
    """The least and the largest of some ratios of speeds, as text."""
    return " to ".join(dict.fromkeys(map(speed, (ratios.min(), ratios.max()))))


def compile_times(rows):
    """Seconds that the first call takes beyond a later one, with an empty and a filled
    cache, and the calls after which compiling is earned back, against the cell size;
    rows: of `compilers.speeds` and `compilers.compile_times`.
    """
    compiled = _of(rows, "compile").query("version in @COMPILED")
    calls = compilers.break_even(rows)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.6))
    left.set(yscale="log", xlabel="hidden units", ylabel="seconds beyond a later call")
    _sizes(left, compiled["H"])
    labels = _curves(left, compiled, "H", "seconds", key="version")
    loaded = rows[(rows["stage"] == "load") & rows["version"].isin(COMPILED)]
    if not loaded.empty:
        _curves(
            left,
            loaded.astype({"H": int}),
            "H",
            "seconds",
            key="version",
            linestyle="--",
        )
    medians = compiled.groupby("version")["seconds"].median().sort_values()
    ends = [
        f"{digits(value)} s ({NAMES[name]})"
        for name, value in medians.iloc[[0, -1]].items()
    ]
    between = " to\n".join(dict.fromkeys(ends))
    dashed = "; dashed: found compiled" * (len(loaded) > 0)
    left.set_title(f"Compiling takes {between}{dashed}", fontsize=10.5)
    plots.label_lines(left, labels)
    _absent(left, compiled, COMPILED)
    _break_even(right, calls)
    return figure


def _break_even(ax, calls):
    """Calls until compiling is earned back, against the cell size."""
    finite = calls[np.isfinite(calls["calls"])]
    ax.set(xlabel="hidden units", ylabel="calls until compiling is earned back")
    if finite.empty:
        ax.set_title("Compiling is earned back nowhere", fontsize=10.5)
        return
    ax.set_yscale("log")
    _sizes(ax, calls["H"])
    labels = _curves(ax, finite, "H", "calls", key="version")
    ends = finite.sort_values("calls").iloc[[0, -1]]
    told = [
        f"{row.calls:,.0f} ({NAMES[row.version]}, {row.H:.0f} units)"
        for row in ends.itertuples()
    ]
    between = " to\n".join(dict.fromkeys(told))
    title = f"Earned back after {between} calls"
    never = calls[np.isinf(calls["calls"])].groupby("version")["H"].agg(list)
    for name, sizes in never.items():
        title += (
            f";\nnever by {NAMES[name]} at {', '.join(f'{H:.0f}' for H in sizes)} units"
        )
    ax.set_title(title, fontsize=10.5)
    plots.label_lines(ax, labels)
