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


def _over(ax, rows, x, y, *, by="name", **options):
    """A line for each name over sizes; their medians, a column each."""
    plots.ticks(ax, "x", sorted(int(value) for value in set(rows[x])))
    style = {"names": NAMES, "colours": COLOURS}
    return plots.over(ax, rows, x, y, by, **style, **options)


def _ends(values, form):
    """The least and the largest of values by name, as text: each once."""
    ends = values.sort_values().iloc[[0, -1]]
    texts = [f"{form(value)} ({NAMES[name]})" for name, value in ends.items()]
    return " to\n".join(dict.fromkeys(texts))


def rates(rows):
    """GFLOP/s against the batch, with the SGEMM, the roof of reading each weight once a
    step, and the knee where they meet; rows: of `batches.sweep`.

    `numba-fused` may lie above the roof: for small batches it multiplies the inputs of
    several steps at once, and reads U more rarely.
    """
    forward = _of(rows, "forward")
    table = batches.rates(forward)
    figure, ax = plt.subplots(figsize=(8.5, 4.8))
    ax.set(xscale="log", yscale="log", xlabel="batch (samples)", ylabel="GFLOP/s")
    first = table["B"].min()
    peak = batches.peak(rows)
    bandwidth = batches.bandwidth(rows)
    below = ""
    if peak > 0:
        plots.level(ax, peak, f"SGEMM, {digits(peak)} GFLOP/s")
    if peak > 0 and bandwidth > 0:
        knee = batches.knee(peak, bandwidth)
        x = np.array([first, knee])
        ax.plot(x, x * bandwidth / 2, color=plots.GREY, linestyle="--", linewidth=1)
        ax.axvline(knee, color=plots.GREY, linestyle=":", linewidth=1)
        text = f"knee: {knee:.2g} samples,\nweights read at {digits(bandwidth)} GB/s"
        across = ax.get_xaxis_transform()
        plots.note(ax, text, (knee, 0.02), (4, 0), xycoords=across)
        below = f"; below {knee:.2g}, reading the weights bounds a step"
    medians = _over(ax, table, "B", "gflops")
    last = medians.index[-1]
    reached = medians.loc[last].dropna().sort_values()
    share = [f"{digits(rate)} GFLOP/s" for rate in reached]
    if peak > 0:
        share = [f"{rate / peak:.0%} of the SGEMM" for rate in reached]
    names = [NAMES.get(name, name) for name in reached.index]
    ends = ",\n".join(dict.fromkeys(f"{names[n]} {share[n]}" for n in (-1, 0)))
    ax.set_title(f"With {counted(last, 'sample')} {ends}{below}")
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
    plots.level(ax, 1)
    medians = _over(ax, table, "H", "ratio", by="version")
    ends = []
    for H in medians.index[[0, -1]]:
        extremes = map(speed, (medians.loc[H].min(), medians.loc[H].max()))
        ends.append(f"{' to '.join(dict.fromkeys(extremes))} at {H} units")
    ends = ", ".join(dict.fromkeys(ends))
    ax.set_title(f"Compiled compared with not compiled:\n{ends}")
    _absent(ax, forward, COMPILERS)
    return figure


def compile_times(rows):
    """Seconds that the first call takes beyond a later one, with an empty and a filled
    cache, and the calls after which compiling is earned back, against the cell size;
    rows: of `compilers.speeds` and `compilers.compile_times`.
    """
    compiled = _of(rows, "compile").query("version in @COMPILED")
    loaded = rows[(rows["stage"] == "load") & rows["version"].isin(COMPILED)]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.6))
    left.set(yscale="log", xlabel="hidden units", ylabel="seconds beyond a later call")
    for name, part in loaded.astype({"H": int}).groupby("version"):
        middle = part.groupby("H")["seconds"].median()
        left.plot(middle, "--", color=COLOURS[name], linewidth=1)
    _over(left, compiled, "H", "seconds", by="version")
    medians = compiled.groupby("version")["seconds"].median()
    ends = _ends(medians, lambda value: f"{digits(value)} s")
    dashed = "" if loaded.empty else "; dashed: found compiled"
    left.set_title(f"Compiling takes {ends}{dashed}", fontsize=10.5)
    _absent(left, compiled, COMPILED)
    _break_even(right, compilers.break_even(rows))
    return figure


def _break_even(ax, calls):
    """Calls until compiling is earned back, against the cell size."""
    finite = calls[np.isfinite(calls["calls"])]
    ax.set(xlabel="hidden units", ylabel="calls until compiling is earned back")
    if finite.empty:
        ax.set_title("Compiling is earned back nowhere", fontsize=10.5)
        return
    ax.set_yscale("log")
    _over(ax, finite, "H", "calls", by="version")
    ends = [
        f"{row.calls:,.0f} ({NAMES[row.version]}, {row.H:.0f} units)"
        for row in finite.sort_values("calls").iloc[[0, -1]].itertuples()
    ]
    between = " to\n".join(dict.fromkeys(ends))
    title = f"Earned back after {between} calls"
    never = calls[np.isinf(calls["calls"])].groupby("version")["H"].agg(list)
    for name, sizes in never.items():
        units = ", ".join(f"{H:.0f}" for H in sizes)
        title += f";\nnever by {NAMES[name]} at {units} units"
    ax.set_title(title, fontsize=10.5)
