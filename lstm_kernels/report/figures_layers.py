"""The figures and tables of notebook 05. A figure's `alt` says in words what it shows."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns

from ..bench import results
from ..bench.timing import summary
from . import plots
from .tables import WORDS, of_grid, speed

WORKERS = (plots.BLUE, plots.ORANGE, plots.GREEN, plots.RED)
TWO = "Not measured in this run: this takes two threads, and this process has one core."


def on_graph(lines):
    """Where and when: the cells of each schedule, coloured by worker, with the start of each task.

    lines: title -> Timeline, counted in steps.
    """
    figure, axes = plt.subplots(len(lines), 1, figsize=(8.5, 1.9 * len(lines)), sharex=True)
    told = []
    for ax, (title, line) in zip(np.atleast_1d(axes), lines.items(), strict=True):
        graph = line.schedule.graph
        for span in line.spans:
            task = line.schedule.tasks[span.task]
            width, colour = task.stop - task.start, WORKERS[span.worker % len(WORKERS)]
            corner = task.start - 0.47, task.layer - 0.42
            ax.add_patch(plt.Rectangle(corner, width - 0.06, 0.84, color=colour, alpha=0.35))
            middle = task.start + (width - 1) / 2
            ax.text(middle, task.layer, f"{span.start:.0f}", ha="center", va="center", fontsize=9)
        ax.set(xlim=(-0.7, graph.steps - 0.3), ylim=(-0.6, graph.layers - 0.4), ylabel="layer $l$")
        ax.set(xticks=range(graph.steps), yticks=range(graph.layers))
        ax.grid(visible=False)
        told.append(f"{title}: {line.makespan:.0f} steps, workers idle {line.idle:.0%}")
        ax.set_title(told[-1])
    ax.set_xlabel("step $t$")
    figure.alt = (
        f"The grid of {graph.layers} layers by {graph.steps} steps, chunks coloured by worker and "
        f"numbered by their start. {'; '.join(told)}."
    )
    return figure


def gantt(lines, unit=1e3, label="milliseconds"):
    """What each worker runs over time; a colour for each layer. lines: title -> Timeline."""
    figure, axes = plt.subplots(len(lines), 1, figsize=(8.5, 1.5 * len(lines) + 0.4), sharex=True)
    told, shades = [], plt.get_cmap("cividis")
    longest = unit * max(line.makespan for line in lines.values())
    for ax, (title, line) in zip(np.atleast_1d(axes), lines.items(), strict=True):
        last, end = max(1, line.schedule.graph.layers - 1), unit * line.makespan
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
        told.append(f"{title}: {end:.3g} {label}, idle {line.idle:.1%}")
        ax.set_title(told[-1])
    ax.set_xlabel(f"{label}; a number is the layer of a task")
    figure.alt = f"Tasks over time, a lane per worker. {'; '.join(told)}."
    return figure


def handover(waits):
    """How long hand-overs take: the share of them that is over after so many nanoseconds.

    waits: order -> nanoseconds; empty where two threads never ran at the same time.
    """
    figure, ax = plt.subplots(figsize=(8, 3.4))
    rows = pd.concat([pd.DataFrame({"ns": ns, "order": order}) for order, ns in waits.items()])
    medians = rows.groupby("order", sort=False)["ns"].median()
    ax.set_title("No hand-overs: two threads never ran at the same time")
    if len(medians):
        sns.ecdfplot(rows, x="ns", hue="order", palette=[plots.BLUE, plots.RED][: len(medians)])
        ax.set_title(f"Half of the hand-overs take at most {medians.max():.0f} ns")
    ax.set(xscale="log", xlabel="nanoseconds from one task's end to the next one's start")
    ax.set(ylabel="share of hand-overs", xlim=(50, None), ylim=(0, 1))
    told = "; ".join(f"{order} {median:.0f} ns in the median" for order, median in medians.items())
    figure.alt = f"Cumulative distribution of hand-over times: {told or 'none seen'}."
    return figure


def speedups(table):
    """Speed-up of two threads over layers, measured and predicted, forward and backward; table: of
    `layer_speedups`.
    """
    figure, ax = plt.subplots(figsize=(8, 4.2))
    how = {"x": "layers", "hue": "way", "palette": [plots.BLUE, plots.RED], "ax": ax}
    marks = {"markers": ["o", "s"], "linestyle": "none", "dodge": 0.06, "capsize": 0.03}
    scale = {"native_scale": True, "log_scale": (2, None)}
    quartiles = {"estimator": "median", "errorbar": ("pi", 50), "err_kws": {"linewidth": 1.8}}
    sns.pointplot(table, y="measured", **marks, **scale, **quartiles, **how)
    sns.lineplot(table, y="predicted", ls="--", lw=1, errorbar=None, legend=False, **how)
    ax.axhline(2, color=plots.GREY, linewidth=1)
    layers = sorted(table["layers"].unique())
    ax.set(xlabel="layers", ylabel="speed (one thread = 1)", ylim=(0, 2.3))
    ax.set_xticks(layers, map(str, layers))
    ax.minorticks_off()
    ax.legend(title="measured; predicted dashed")
    medians = table.groupby(["way", "layers"], sort=False)[["measured", "predicted"]].median()
    many = medians.query(f"layers >= {min(4, layers[-1])}")["measured"]
    ends = " to ".join(map(speed, (many.min(), many.max())))
    ax.set_title(f"Two threads with {min(4, layers[-1])} or more layers: {ends}")
    told = "; ".join(
        f"{way} {count} layers {row['measured']:.2f}, predicted {row['predicted']:.2f}"
        for (way, count), row in medians.iterrows()
    )
    figure.alt = f"Speed-up of two threads with quartiles, predictions dashed: {told}."
    return figure


def chunks(table, best):
    """Milliseconds over the length of a chunk, by way and order, predictions as lines.

    table: of a `layers.Sweep`. best: way -> the length that the model predicts to be fastest.
    """
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 4), sharey=True)
    table = table[table["sweep"] == "chunks"]
    ways = table.groupby("way", sort=False)
    fastest = {way: part.set_index("size")["measured"].idxmin() for way, part in ways}
    for ax, (way, part) in zip(axes, ways, strict=True):
        how = {"hue": "how", "palette": [plots.BLUE, plots.RED], "ax": ax, "legend": ax is axes[0]}
        marks = {"style": "how", "markers": ["o", "s"], "s": 45}
        sns.lineplot(part, x="size", y="predicted", ls="--", lw=1, **(how | {"legend": False}))
        sns.scatterplot(part, x="size", y="measured", **marks, **how)
        ax.axvline(best[way], color=plots.GREEN, linestyle=":")
        place = {"transform": ax.get_xaxis_transform(), "va": "top", "color": plots.GREEN}
        ax.text(best[way], 0.97, f" model's best: {best[way]}", **place)
        ax.set(xscale="log", xlabel="steps in a chunk", ylabel="milliseconds, two threads")
        ax.set(title=way, ylim=(0, 1.1 * table["measured"].max()))
        sizes = sorted(part["size"].unique())
        ax.set_xticks(sizes, map(str, sizes))
        ax.minorticks_off()
    axes[0].legend(title="measured; predicted dashed")
    title = f"Fastest measured: {', '.join(f'{w} {size} steps' for w, size in fastest.items())}"
    figure.suptitle(title, x=0.01, ha="left", weight="bold")
    figure.alt = (
        "Time of a pass over the length of its chunks, measured points and predicted lines. "
        f"{title}. The model's best lengths are {best}."
    )
    return figure


def grid(table):
    """Speed of layer-parallel over parallel inside a layer: ratios, rows B, columns H."""
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
    told = "; ".join(f"{H} units, {B} samples {v:.2f}" for (H, B), v in table.unstack().items())
    figure.alt = f"Speed of numba-wavefront compared with numba-fused: {told}."
    return figure


def many_cores(table, error):
    """Predicted speed-up over cores, a line per number of layers; error: of the model, worst."""
    figure, ax = plt.subplots(figsize=(8, 4.4))
    end, colours = table.index[-1], (plots.BLUE, plots.RED, plots.GREEN, plots.ORANGE)
    ax.plot(table.index, table.index, color=plots.GREY, linewidth=1)
    place = {"textcoords": "offset points", "color": plots.GREY, "ha": "right"}
    ax.annotate("as many times as cores", (end, end), (-16, -4), **place)
    for (layers, line), colour in zip(table.items(), colours, strict=False):
        ax.plot(table.index, line, "--", marker="o", color=colour, markersize=4)
        plots.label_line(ax, end, line.iloc[-1], f"{layers} layers", colour)
    ax.set(xscale="log", yscale="log", xlabel="cores", ylabel="predicted speed (one core = 1)")
    ax.set_xticks(table.index, map(str, table.index))
    ax.set_yticks(table.index, map(str, table.index))
    ax.minorticks_off()
    ax.margins(x=0.15)
    told = ", ".join(f"{L} layers {v:.3g}x" for L, v in table.iloc[-1].items())
    ax.set_title(f"Predicted, not measured: on {end} cores\n{told}")
    figure.alt = (
        f"Predicted speed-up of the best wavefront from {table.index[0]} to {end} cores: at the "
        f"end {told}. The model erred by at most {error:.0%} where it was measured."
    )
    return figure


def took(waits):
    """What a hand-over takes, in words; waits: nanoseconds, empty where none was seen."""
    if not len(waits):
        return "was not seen: no two threads ran at the same time"
    return f"takes {np.median(waits):.0f} ns in the median"


def layer_speedups(sweep):
    """Speed-up of two threads over one by way and number of layers, of a `layers.Sweep`: a row per
    round, measured and predicted.
    """
    times = sweep.times.pivot(index="repeat", columns="case", values="seconds")
    table, parts = sweep.table.set_index(["sweep", "way", "how", "size"])["predicted"], []
    for kind, way, threads, count in sweep.passes:
        if kind == "layers" and threads == 2:
            one, two = ((kind, way, n, count) for n in (1, 2))
            ratios = {"measured": times[str(one)] / times[str(two)]}
            ratios["predicted"] = table[one] / table[two]
            parts.append(pd.DataFrame({"way": way, "layers": count} | ratios))
    return pd.concat(parts or [pd.DataFrame(columns=["way", "layers", "measured", "predicted"])])


def chunk_lengths(table):
    """By way, the chunk length that the model picks, and in a sentence its time compared with the
    fastest measured; table: the rows of `layers.Sweep` on chunk lengths.
    """
    best, said = {}, []
    for way, part in table[table["how"] == "point-to-point"].groupby("way", sort=False):
        pick, fast = (part.loc[part[kind].idxmin()] for kind in ("predicted", "measured"))
        best[way] = int(pick["size"])
        said.append(
            f"{way} the model picks chunks of {pick['size']} steps, {pick['measured']:.3g} ms "
            f"measured; the fastest measured are {fast['size']}, {fast['measured']:.3g} ms"
        )
    return best, f"{'; '.join(said).capitalize()}." if said else TWO


def deep_peers():
    """`numba-wavefront` and PyTorch on eight layers and one sample, as recorded, in sentences."""
    said = []
    for machine, part in results.read("peers").groupby("machine"):
        label = results.label(results.record("peers", machine))
        for stage, what in WORDS.items():
            deep = of_grid(part, stage)
            deep = deep[deep["workload"] == "deep, one sample"]
            if {"numba-wavefront", "pytorch"} <= set(deep["version"]):
                table = summary(deep, "pytorch", by="version")
                ms = ", ".join(f"`{v}` {1e3 * s:.3g} ms" for v, s in table["median"].items())
                ratio = speed(table["ratio"]["numba-wavefront"])
                said.append(
                    f"> {label}, {what}: {ms}. `numba-wavefront` compared with PyTorch: {ratio}."
                )
    return "\n\n".join(said) or "Not measured yet."
