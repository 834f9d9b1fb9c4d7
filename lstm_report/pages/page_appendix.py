"""The appendix: the goals of all projects, `numba-fused` compared with PyTorch by
machine, what compilers gain and cost, how exact differences and the vector code's tanh
are.
"""

from dataclasses import asdict

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numba import njit

from lstm_kernels.cpu import activations, simd

from .. import differences, plots
from ..measure import comparer, provenance, results
from ..measure.evidence import digits, speed
from ..measure.timing import summary
from ..measure.workloads import MODELS

SIZES = ["L", "T", "D", "H", "B"]
COMPILERS = {  # version -> what it compiles, and what runs that call by call
    "jax-scan": ("JAX, a scan", "jax-eager"),
    "jax-unrolled": ("JAX, unrolled", "jax-eager"),
    "pytorch-compiled": ("PyTorch", "pytorch-eager"),
}
NAMES = {
    "numpy": "NumPy, this package",
    "numba-fused": "numba-fused",
    "pytorch-eager": "PyTorch, call by call",
    "pytorch-compiled": "PyTorch, compiled",
    "jax-eager": "JAX, call by call",
    "jax-scan": "JAX, a scan compiled",
    "jax-unrolled": "JAX, unrolled and compiled",
}
WEIGHTS = "layers.0.W"  # of which differences are drawn


# Machines.


def compared_with_pytorch(rows: pd.DataFrame) -> pd.DataFrame:
    """How many times as fast numba-fused is as PyTorch, by machine, stage and sizes:
    the median of the ratios round by round.
    """
    public = rows["variant"].isna() | (rows["version"] != "numba-fused")
    part = rows[public & rows["stage"].isin(["forward", "step"])]
    found = []
    keys = ["machine", "stage", *SIZES]
    for key, group in part.groupby(keys, sort=False):
        if {"numba-fused", "pytorch"} <= set(group["version"]):
            table = summary(group, "pytorch", by="version")
            found.append((*key, table["ratio"]["numba-fused"]))
    return pd.DataFrame(found, columns=[*keys, "ratio"])


def labels(machines: list[str], folder: results.Folder = None) -> dict[str, str]:
    """What each folder of results is called in a figure: the machine by what it can do,
    that of the pages marked.
    """
    here, found = provenance.machine_name(), {}
    for name in machines:
        about = results.record("peers", name, folder) | {"recorded": False}
        told = results.label(about).replace(" a core, ", " a core,\n")
        found[name] = told + (" (the pages' machine)" if name == here else "")
    return found


def figure_machines(table: pd.DataFrame, names: dict[str, str]) -> Figure:
    """The ratio of each workload by machine, inference and training step."""
    works = list(dict.fromkeys(map(tuple, table[SIZES].to_numpy())))
    told = [f"{L:.0f}x{H:.0f}, {T:.0f} steps, B {B:.0f}" for L, T, _, H, B in works]
    height = 1.6 + 0.35 * len(told) + 0.2 * len(names)
    figure, axes = plots.panels(1, height, ncols=2, sharey=True)
    for ax, (stage, title) in zip(
        axes, [("forward", "Inference"), ("step", "Training")], strict=True
    ):
        ax.set_xscale("log")
        ax.axvline(1, color=plots.GREY, linewidth=1)
        own = table[table["stage"] == stage]
        for mark, (machine, name) in zip("os^Dvph", names.items(), strict=False):
            part = own[own["machine"] == machine]
            places = [works.index(tuple(row)) for row in part[SIZES].to_numpy()]
            ax.plot(part["ratio"], places, mark, markersize=6, label=name)
        ax.set_title(title)
        plots.ticks(ax, "x", [1, 2, 5, 10])
        ax.set_xlabel("times as fast as PyTorch")
    title = "numba-fused is far ahead of PyTorch on small networks"
    figure.suptitle(title, x=0.01, ha="left", weight="bold", size=12)
    axes[0].set_yticks(range(len(told)), told)
    axes[0].set_ylim(len(told) - 0.5, -0.5)
    handles, texts = axes[0].get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside lower left")
    return figure


def captions(machines: list[str], folder: results.Folder = None) -> str:
    """A list of the machines, with what measured their rows."""
    records = (results.record("peers", name, folder) for name in machines)
    return "\n".join(f"- {results.caption(record)}." for record in records)


def inside_pytorch(rows: pd.DataFrame) -> pd.DataFrame:
    """Milliseconds of a model of PyTorch with the layer of `lstm_kernels.torch`, and
    how many times as fast it is as with torch.nn's, and with that after
    `torch.set_flush_denormal(True)`; how many times as fast as that model a training
    step of `numba-fused` is by itself. A row for each model and number of threads.
    """
    names = {tuple(asdict(work).values()): name for name, work in MODELS.items()}
    own, theirs = "pytorch-fused", {"torch.nn": "pytorch", "flushed": "pytorch-flush"}
    lines = []
    for (*sizes, threads), part in rows.groupby([*"LTDHB", "threads"], sort=False):
        line = {"model": names[tuple(sizes)], "threads": str(threads)}
        for stage, told in (("step", "training step"), ("forward", "inference")):
            times = part[part["stage"] == stage]
            median = summary(times, by="version")["median"][own]
            line[f"{told}: ms"] = digits(1e3 * median)
            for name, peer in theirs.items():
                ratio = summary(times, peer, by="version")["ratio"][own]
                line[f"{told}: over {name}"] = speed(ratio)
        steps = summary(part[part["stage"] == "step"], "pytorch", by="version")
        line["numba-fused by itself"] = speed(steps["ratio"]["numba-fused"])
        lines.append(line)
    return pd.DataFrame(lines).set_index("model")


# Compilers.


def table_compilers(rows: pd.DataFrame, size: int) -> pd.DataFrame:
    """Seconds to compile and to load, milliseconds a pass and memory beyond that of the
    imported package, at a hidden size.
    """
    by = rows[rows["H"] == size].groupby(["version", "stage"])
    seconds, held = by["seconds"].median().unstack(), by["bytes"].median().unstack()
    table = pd.DataFrame(
        {
            "first process (s)": seconds["compile"],
            "next process (s)": seconds.get("load"),
            "a pass (ms)": 1e3 * seconds["forward"],
            "memory (MiB)": (held["memory"] - held["import"]) / 2**20,
            "while compiling (MiB)": (held["compiling"] - held["import"]) / 2**20,
        }
    )
    table = table.reindex(list(NAMES)).dropna(how="all").rename(index=NAMES)
    shown = table.map(lambda value: "-" if pd.isna(value) else digits(value))
    return shown.rename_axis("version")


def gains(rows: pd.DataFrame, passes: int = 0) -> pd.DataFrame:
    """How many times as fast as call by call each compiler's code is, by H (rows) and
    compiler (columns); passes: of so many with what compiling takes, 0 of one without.
    """
    by = rows.groupby(["version", "stage", "H"])["seconds"].median().unstack("stage")
    spent = by["forward"]
    if passes:
        spent = by["compile"] + passes * by["forward"]
    return pd.DataFrame(
        {name: spent[before] / spent[name] for name, (_, before) in COMPILERS.items()}
    )


def figure_gains(rows: pd.DataFrame, passes: int) -> Figure:
    """What compiling gains over the hidden size, of a pass and of so many passes
    together with the compiling itself.
    """
    figure, axes = plots.panels(2, 6.4, sharex=True)
    colours = dict(zip(COMPILERS, (plots.BLUE, plots.GREEN, plots.RED), strict=True))
    titles = (
        "A pass, once compiled: the gain falls with size",
        f"{passes:,} passes and compiling: PyTorch's gain grows",
    )
    for ax, title, of_passes in zip(axes, titles, (0, passes), strict=True):
        table = gains(rows, of_passes)
        many = table.index.max()
        ax.set(ylabel="times as fast as call by call", title=title)
        plots.ticks(ax, "y", [0.1, 1, 10])
        ax.set_xscale("log")
        ax.set_xlim(table.index.min() / 1.2, many * 4.5)
        plots.level(ax, 1)
        for name in table:
            ax.plot(table.index, table[name], "o-", markersize=4, color=colours[name])
        ax.set_ylim(0.05, 100)
        ends_of = [(many, table[n][many], COMPILERS[n][0], colours[n]) for n in table]
        plots.label_lines(ax, ends_of)
    ticks = [int(size) for size in table.index if size != 16]  # which 10 is close to
    plots.ticks(axes[1], "x", ticks)
    axes[1].set_xlabel("hidden units")
    return figure


# Differences, and tanh.


def errors_of_differences(rng: np.random.Generator, decades: float) -> pd.DataFrame:
    """Errors of the gradient of WEIGHTS, a column for each rule of a difference, by its
    step; decades: between two steps. ValueError where the complex step is not exact.
    """
    loss, named, by_hand = differences.case("lstm", 5, rng)
    wide = {name: array + 0j for name, array in named.items()}
    weights, want = {WEIGHTS: wide[WEIGHTS]}, {WEIGHTS: by_hand[WEIGHTS]}
    etas = 10.0 ** -np.arange(1, 13, decades)
    found: dict[str, list[float]] = {name: [] for name in differences.RULES}
    for name, rule in differences.RULES.items():
        for eta in etas:
            numeric = differences.gradients(
                lambda p: loss(wide | p), weights, rule, eta
            )
            found[name].append(comparer.compare(want, numeric, tolerance=np.inf))
    within(min(found["complex"]), 1e-13)
    return pd.DataFrame(found, index=etas)


def figure_differences(curves: pd.DataFrame) -> Figure:
    """Errors of a gradient by the rule of the difference over its step."""
    figure, ax = plots.panels()
    ax.set(xscale="log", yscale="log", xlabel="step $\\eta$ (no unit)")
    ax.set_ylabel("largest error of dW, relative")
    beside = {"one-sided": (8, 4), "central": (-50, -16), "complex": (-20, 8)}
    middle = len(curves) * 2 // 3
    for name in curves:
        (line,) = ax.plot(curves.index, curves[name], "o-", markersize=3)
        place = curves.index[middle], curves[name].iloc[middle]
        plots.note(ax, name, place, beside[name], color=line.get_color())
    best = curves["central"].idxmin()
    ax.set_title(f"A central difference is best at a step of {best:.0e}")
    return figure


def within(error: float, most: float) -> float:
    """An error that is at most so large; ValueError for a larger one."""
    if not error <= most:
        raise ValueError(f"error: got {error:.3g}, want at most {most:g}")
    return error


def gru_error(rng: np.random.Generator) -> float:
    """The largest error of the GRU's gradients against differences."""
    return within(differences.error(*differences.case("gru", 4, rng)), 1e-8)


def tanh_error(count: int) -> float:
    """The largest error of the vector code's tanh in float32, over so many magnitudes
    of both signs; at most two units in the last place of a number just below one.
    """
    grid = np.geomspace(1e-30, 80, count, dtype=np.float32)
    x = np.concatenate([-grid, grid])
    of_number = simd.of_numbers(activations.tanh, np.dtype(np.float32))

    @njit
    def ours(x, out):
        for k in range(len(x)):
            out[k] = of_number(x[k])

    ours(x, out := np.empty_like(x))
    return within(np.abs(out - np.tanh(x.astype(np.float64))).max(), 1.2e-7)
