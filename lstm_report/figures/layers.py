"""The figures and tables of notebook 05."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns

from lstm_kernels.schedules import Costs, Graph, wavefront
from lstm_kernels.simulate import simulate

from ..measure import results
from . import plots
from .tables import WORDS, median_times, speed

TWO = "Not measured in this run: this takes two threads, and this process has one core."
DEEP = "deep, one sample"  # the workload of eight layers


def gantt(lines, unit=1e3, label="milliseconds"):
    """What each worker runs over time; a colour for each layer. lines: title ->
    Timeline.
    """
    figure, axes = plt.subplots(
        len(lines), figsize=(8.5, 1.5 * len(lines) + 0.4), sharex=True, squeeze=False
    )
    shades = plt.get_cmap("cividis")
    longest = unit * max(line.makespan for line in lines.values())
    for ax, (title, line) in zip(axes.flat, lines.items(), strict=True):
        last = max(1, line.schedule.graph.layers - 1)
        for span in line.spans:
            layer = line.schedule.tasks[span.task].layer
            shade, width = 0.15 + 0.8 * layer / last, unit * (span.stop - span.start)
            how = {"color": shades(shade), "edgecolor": "white", "linewidth": 0.4}
            bar = ax.barh(span.worker, width, left=unit * span.start, height=0.8, **how)
            if width > 0.02 * longest:
                ink = "white" if shade < 0.55 else "black"
                ax.bar_label(bar, [layer], label_type="center", color=ink, fontsize=8)
        workers = range(line.schedule.workers)
        ax.set(yticks=workers, yticklabels=[f"worker {p}" for p in workers])
        ax.grid(axis="y", visible=False)
        ax.invert_yaxis()
        ax.set_title(
            f"{title}: {unit * line.makespan:.3g} {label}, idle {line.idle:.1%}"
        )
    ax.set_xlabel(f"{label}; a number is the layer of a task")
    titles = (ax.get_title("left") for ax in figure.axes)
    figure.alt = f"Tasks over time, a lane per worker. {'; '.join(titles)}."
    return figure


def explorer():
    """The first case of the schedule explorer as a Gantt chart, and how a hand-over's
    cost changes the best chunk, in words. All is counted in steps.
    """

    def line(L, workers, chunk, hand, T=48):
        costs = Costs((1.0,) * L, hand=hand)
        return simulate(wavefront(Graph(L, T), workers, chunk, costs=costs), costs)

    def best(hand):
        steps = {chunk: line(8, 8, chunk, hand).makespan for chunk in range(1, 49)}
        chunk = min(steps, key=steps.get)
        plural = "s" if chunk > 1 else ""
        return f"{chunk} step{plural} ({steps[chunk]:.3g} in all; chunks of one: {steps[1]:.3g})"

    still = {"4 layers, 48 steps, chunks of 4": line(4, 2, 4, 0.1)}
    said = f"""8 layers of 48 steps on 8 workers: the best chunk has {best(0.0)} when a hand-over
    costs nothing, and {best(2.0)} when it costs 2 steps."""
    return gantt(still, unit=1, label="steps"), " ".join(said.split())


def _beside(table, x, y, colour, values, ax, **how):
    """Measured values with quartiles, predicted ones dashed; x to the base of two."""
    kinds = ["measured", "predicted"]
    rows = table.melt([x, colour], kinds, var_name="", value_name=y)
    styles = {
        "style": "",
        "style_order": kinds,
        "markers": ["o", "."],
        "dashes": ["", (3, 2)],
    }
    quartiles = {"estimator": "median", "errorbar": ("pi", 50), "err_style": "bars"}
    colours = {
        "hue": colour,
        "palette": [plots.BLUE, plots.RED][: rows[colour].nunique()],
    }
    sns.lineplot(rows, x=x, y=y, ax=ax, **styles, **quartiles, **colours, **how)
    plots.ticks(ax, "x", values)


def speedups(table):
    """Speed-up of two threads over layers, measured and predicted, forward and
    backward; table: of `layer_speedups`.
    """
    figure, ax = plt.subplots(figsize=(8, 4.2))
    layers, y = sorted(table["layers"].unique()), "speed (one thread = 1)"
    _beside(table, "layers", y, "way", layers, ax)
    ax.axhline(2, color=plots.GREY, linewidth=1)
    ax.set_ylim(0, 2.3)
    least = min(4, layers[-1])
    many = (
        table[table["layers"] >= least].groupby(["way", "layers"])["measured"].median()
    )
    ends = " to ".join(map(speed, (many.min(), many.max())))
    ax.set_title(f"Two threads with {least} or more layers: {ends}")
    return figure


def chunks(table, best):
    """Milliseconds over the length of a chunk, by way and order, measured and
    predicted.

    table: of a `layers.Sweep`. best: way -> the length that the model predicts to be
    fastest.
    """
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 4), sharey=True)
    table = table[table["sweep"] == "chunks"].rename(
        columns={"size": "steps in a chunk"}
    )
    for ax, (way, part) in zip(axes, table.groupby("way", sort=False), strict=True):
        sizes, y = (
            sorted(part["steps in a chunk"].unique()),
            "milliseconds, two threads",
        )
        _beside(part, "steps in a chunk", y, "how", sizes, ax, legend=ax is axes[0])
        ax.axvline(best[way], color=plots.GREEN, linestyle=":")
        place = {
            "transform": ax.get_xaxis_transform(),
            "va": "top",
            "color": plots.GREEN,
        }
        ax.text(best[way], 0.97, f" model's best: {best[way]}", **place)
        fastest = part.loc[part["measured"].idxmin(), "steps in a chunk"]
        ax.set_title(f"{way}: fastest measured with {fastest} steps")
    ax.set_ylim(0)  # once both have drawn: they share an axis
    return figure


def grid(table):
    """Speed of layer-parallel over parallel inside a layer: ratios, rows B, columns
    H.
    """
    figure, ax = plt.subplots(figsize=(7.5, 4))
    values = np.log2(table.astype(float))
    reach = max(0.5, values.abs().to_numpy().max())
    how = {"cmap": "PuOr", "vmin": -reach, "vmax": reach, "cbar": False, "ax": ax}
    sns.heatmap(values, annot=table, fmt=".2f", **how)
    ax.set(xlabel="hidden units", ylabel="samples")
    ax.invert_yaxis()
    ax.tick_params("y", rotation=0)
    share = (table.to_numpy() > 1).mean()
    ax.set_title(f"Layers in parallel are faster in {share:.0%} of the shapes")
    return figure


def many_cores(table):
    """Predicted speed-up over cores, a line per number of layers."""
    figure, ax = plt.subplots(figsize=(8, 4.4))
    cores, end = table.index.to_numpy(), table.index[-1]
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="cores",
        ylabel="predicted speed (one core = 1)",
    )
    plots.ticks(ax, "xy", cores)
    lines = {
        f"{layers} layers": (cores, line.to_numpy()) for layers, line in table.items()
    }
    plots.lines(
        ax,
        {"as many times as cores": (cores, cores)} | lines,
        ls="--",
        marker="o",
        ms=4,
    )
    told = ", ".join(
        f"{layers} layers {v:.3g}x" for layers, v in table.iloc[-1].items()
    )
    ax.set_title(f"Predicted, not measured: on {end} cores\n{told}")
    return figure


def layer_speedups(sweep):
    """Speed-up of two threads over one by way and number of layers, of a
    `layers.Sweep`: a row per round, measured and predicted.
    """
    times = sweep.times.pivot(index="repeat", columns="case", values="seconds")
    table, parts = (
        sweep.table.set_index(["sweep", "way", "how", "size"])["predicted"],
        [],
    )
    for kind, way, threads, count in sweep.passes:
        if kind == "layers" and threads == 2:
            one, two = ((kind, way, n, count) for n in (1, 2))
            ratios = {"measured": times[str(one)] / times[str(two)]}
            ratios["predicted"] = table[one] / table[two]
            parts.append(pd.DataFrame({"way": way, "layers": count} | ratios))
    return pd.concat(
        parts or [pd.DataFrame(columns=["way", "layers", "measured", "predicted"])]
    )


def chunk_lengths(table):
    """By way, the chunk length that the model picks, and in a sentence its time
    compared with the fastest measured; table: the rows of `layers.Sweep` on chunk
    lengths.
    """
    best, said = {}, []
    for way, part in table[table["how"] == "point-to-point"].groupby("way", sort=False):
        pick, fast = (
            part.loc[part[kind].idxmin()] for kind in ("predicted", "measured")
        )
        best[way] = int(pick["size"])
        said.append(
            f"{way} the model picks chunks of {pick['size']} steps, {pick['measured']:.3g} ms "
            f"measured; the fastest measured are {fast['size']}, {fast['measured']:.3g} ms"
        )
    return best, f"{'; '.join(said).capitalize()}." if said else TWO


def deep_peers():
    """Median milliseconds of eight layers and one sample by machine and stage, as
    recorded, and the speed of `numba-wavefront` compared with PyTorch's, as text.
    """
    times = {}
    for machine, part in results.read("peers").groupby("machine"):
        label = results.label(results.record("peers", machine))
        for stage, what in WORDS.items():
            medians = median_times(part, stage)
            if DEEP in medians.index:
                times[label, what] = medians.loc[DEEP]
    table = pd.DataFrame(times).T.reindex(
        columns=["numba-wavefront", "numba-fused", "pytorch"]
    )
    ratio = (table["pytorch"] / table["numba-wavefront"]).map(speed)
    return (
        (1e3 * table)
        .map("{:.3g}".format)
        .assign(**{"numba-wavefront vs PyTorch": ratio})
    )
