"""The figures and tables of notebook 05. A figure's `alt` says in words what it shows."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from ..bench import results
from ..bench.timing import summary
from . import plots
from .tables import WORDS, of_grid

WORKERS = (plots.BLUE, plots.ORANGE, plots.GREEN, plots.RED)


def on_graph(lines):
    """Where and when: the cells of each schedule, coloured by worker, with the block's start.

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
        ax.set(xlim=(-0.7, graph.steps - 0.3), ylim=(-0.6, graph.layers - 0.4), ylabel="layer")
        ax.set(yticks=range(graph.layers), yticklabels=range(1, graph.layers + 1))
        ax.grid(visible=False)
        ax.set_title(f"{title}: {line.makespan:.0f} steps, workers idle {line.idle:.0%}")
        told.append(f"{title}, {line.makespan:.0f} steps and {line.idle:.0%} idle")
    axes = np.atleast_1d(axes)
    axes[-1].set(xlabel="step", xticks=range(graph.steps), xticklabels=range(1, graph.steps + 1))
    figure.alt = (
        f"The grid of {graph.layers} layers by {graph.steps} steps, blocks coloured by worker and "
        f"numbered by their start: {'; '.join(told)}."
    )
    return figure


def gantt(lines, unit=1e3, label="milliseconds"):
    """What each worker runs over time; a colour for each layer. lines: title -> Timeline."""
    figure, axes = plt.subplots(len(lines), 1, figsize=(8.5, 1.5 * len(lines) + 0.4), sharex=True)
    axes, told = np.atleast_1d(axes), []
    colours = plt.get_cmap("cividis")
    for ax, (title, line) in zip(axes, lines.items(), strict=True):
        layers = line.schedule.graph.layers
        for span in line.spans:
            layer = line.schedule.tasks[span.task].layer
            shade = 0.15 + 0.8 * layer / max(1, layers - 1)
            width = unit * (span.stop - span.start)
            ax.barh(
                span.worker,
                width,
                left=unit * span.start,
                height=0.8,
                color=colours(shade),
                edgecolor="white",
                linewidth=0.4,
            )
            if width > 0.02 * unit * line.makespan:
                ink = "white" if shade < 0.55 else "black"
                where = unit * (span.start + span.stop) / 2
                place = {"ha": "center", "va": "center", "fontsize": 8}
                ax.text(where, span.worker, layer + 1, color=ink, **place)
        workers = line.schedule.workers
        ax.set(yticks=range(workers), yticklabels=[f"worker {p + 1}" for p in range(workers)])
        ax.grid(axis="y", visible=False)
        ax.invert_yaxis()
        ax.set_title(f"{title}: {unit * line.makespan:.3g} {label}, idle {line.idle:.1%}")
        told.append(f"{title}, {unit * line.makespan:.3g} {label}, {line.idle:.1%} idle")
    axes[-1].set_xlabel(f"{label}; a number is the layer of a block")
    figure.alt = f"Blocks over time, a lane per worker: {'; '.join(told)}."
    return figure


def handover(waits):
    """How long hand-overs take: the share of them that is over after so many nanoseconds.

    waits: order -> nanoseconds; empty where two threads never ran at the same time.
    """
    figure, ax = plt.subplots(figsize=(8, 3.4))
    told = []
    seen = {order: values for order, values in waits.items() if len(values)}
    for (order, values), colour in zip(seen.items(), (plots.BLUE, plots.RED), strict=False):
        values, label = np.sort(values), f"{order}: median {np.median(values):.0f} ns"
        ax.plot(values, np.linspace(0, 1, len(values)), color=colour, label=label)
        told.append(f"{order} {np.median(values):.0f} ns in the median")
    ax.set(xscale="log", xlabel="nanoseconds from one task's end to the next one's start")
    ax.set(ylabel="share of hand-overs", xlim=(50, 5_000), ylim=(0, 1))
    if seen:
        ax.legend(loc="center right")
        slow = max(np.median(values) for values in seen.values())
        ax.set_title(f"Half of the hand-overs take at most {slow:.0f} ns")
    else:
        ax.set_title("No hand-overs: two threads never ran at the same time")
    figure.alt = f"Cumulative distribution of hand-over times: {'; '.join(told) or 'none seen'}."
    return figure


def speedups(table):
    """Speed-up of two threads over layers, measured and predicted, forward and backward.

    table: rows way, layers, q1, median, q3 (measured), predicted.
    """
    figure, ax = plt.subplots(figsize=(8, 4.2))
    layers = sorted(table["layers"].unique())
    for (way, part), colour, marker, shift in zip(
        table.groupby("way", sort=False), (plots.BLUE, plots.RED), "os", (0.97, 1.03), strict=True
    ):
        x = part["layers"] * shift
        low, high = part["median"] - part["q1"], part["q3"] - part["median"]
        how = {"fmt": marker, "color": colour, "capsize": 3}
        ax.errorbar(x, part["median"], [low, high], label=f"{way}, predicted dashed", **how)
        ax.plot(x, part["predicted"], "--", color=colour, linewidth=1)
    ax.axhline(2, color=plots.GREY, linewidth=1)
    ax.annotate("two threads", (layers[0], 2), (0, 4), textcoords="offset points", color=plots.GREY)
    ax.set(xscale="log", xlabel="layers", ylabel="times as fast as one thread", ylim=(0.9, 2.2))
    ax.set_xticks(layers, map(str, layers))
    ax.minorticks_off()
    ax.margins(x=0.15)
    ax.legend(loc="lower right")
    many = table[table["layers"] >= 4]["median"]
    ax.set_title(
        f"From four layers on, two threads are {many.min():.2f} to {many.max():.2f} times as fast"
    )
    rows = table.itertuples()
    figure.alt = (
        "Speed-up of two threads over one, measured with quartiles, predictions dashed: "
        + "; ".join(
            f"{row.way} {row.layers} layers {row.median:.2f}, predicted {row.predicted:.2f}"
            for row in rows
        )
        + "."
    )
    return figure


def chunks(table, best):
    """Milliseconds over the length of a block, by way and order, predictions as lines.

    best: way -> the length that the model predicts to be fastest.
    """
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 4), sharey=True)
    told = []
    for ax, (way, part) in zip(axes, table.groupby("way", sort=False), strict=True):
        for (order, some), colour, marker in zip(
            part.groupby("how", sort=False), (plots.BLUE, plots.RED), "os", strict=True
        ):
            ax.plot(some["size"], some["measured"], marker, color=colour, label=order)
            ax.plot(some["size"], some["predicted"], "--", color=colour, linewidth=1)
            low = some.loc[some["measured"].idxmin()]
            told.append(f"{way} {order} least {low['measured']:.1f} ms at {low['size']} steps")
        ax.axvline(best[way], color=plots.GREEN, linestyle=":")
        place = {"transform": ax.get_xaxis_transform(), "va": "top", "color": plots.GREEN}
        ax.text(best[way], 0.97, f" model's best: {best[way]}", **place)
        ax.set(xscale="log", xlabel="steps in a block", title=way)
        ax.set(ylim=(0, 1.1 * table["measured"].max()))
        sizes = sorted(part["size"].unique())
        ax.set_xticks(sizes, map(str, sizes))
        ax.minorticks_off()
    axes[0].set_ylabel("milliseconds, two threads")
    axes[0].legend(title="measured; predicted dashed", loc="lower left")
    figure.suptitle(
        "Short blocks cost reading, long ones cost waiting", x=0.01, ha="left", weight="bold"
    )
    figure.alt = (
        "Time of a pass over the length of its blocks, measured points and predicted lines: "
        + "; ".join(told)
        + f". The model's best lengths are {best}."
    )
    return figure


def grid(table):
    """Speed of layer-parallel over parallel inside a layer: ratios, rows B, columns H."""
    figure, ax = plt.subplots(figsize=(7.5, 4))
    values = np.log2(table.to_numpy())
    reach = max(0.5, np.abs(values).max())
    ax.imshow(values, cmap="PuOr", vmin=-reach, vmax=reach, aspect="auto", origin="lower")
    for (row, column), value in np.ndenumerate(table.to_numpy()):
        ink = "white" if abs(values[row, column]) > 0.6 * reach else "black"
        ax.text(column, row, f"{value:.2f}", ha="center", va="center", color=ink)
    ax.set_xticks(range(len(table.columns)), table.columns)
    ax.set_yticks(range(len(table.index)), table.index)
    ax.set(xlabel="hidden units", ylabel="samples")
    ax.grid(visible=False)
    share = (table.to_numpy() > 1).mean()
    ax.set_title(f"Layers in parallel win in {share:.0%} of the shapes")
    figure.alt = (
        "Speed of numba-wavefront over numba-fused by samples and hidden units: "
        + "; ".join(
            f"{B} samples: " + ", ".join(f"{H} units {v:.2f}" for H, v in row.items())
            for B, row in table.iterrows()
        )
        + "."
    )
    return figure


def many_cores(table, error):
    """Predicted speed-up over cores, a line per number of layers; error: of the model, worst."""
    figure, ax = plt.subplots(figsize=(8, 4.4))
    colours = (plots.BLUE, plots.RED, plots.GREEN, plots.ORANGE)
    ax.plot(table.index, table.index, color=plots.GREY, linewidth=1)
    end = table.index[-1]
    place = {"textcoords": "offset points", "color": plots.GREY, "ha": "right"}
    ax.annotate("as many times as cores", (end, end), (-16, -4), **place)
    for (layers, line), colour in zip(table.items(), colours, strict=False):
        ax.plot(table.index, line, "--", marker="o", color=colour, markersize=4)
        plots.label_line(ax, table.index[-1], line.iloc[-1], f"{layers} layers", colour)
    ax.set(xscale="log", yscale="log", xlabel="cores", ylabel="predicted times as fast as one core")
    ax.set_xticks(table.index, map(str, table.index))
    ax.set_yticks(table.index, map(str, table.index))
    ax.minorticks_off()
    ax.margins(x=0.15)
    ends = ", ".join(f"{v:.1f} with {L} layers" for L, v in table.iloc[-1].items())
    ax.set_title("Predicted, not measured: a stack uses no more cores than it has layers")
    figure.alt = (
        f"Predicted speed-up of the best wavefront from {table.index[0]} to {table.index[-1]} "
        f"cores: at the end {ends}. The model erred by at most {error:.0%} where it was measured."
    )
    return figure


def handovers(waits):
    """Quantiles of the hand-overs' nanoseconds, a row per order, and what one point to point takes,
    in words; waits: order -> nanoseconds, empty where two threads never ran at the same time.
    """
    levels = {0.05: "5 %", 0.25: "25 %", 0.5: "median", 0.75: "75 %", 0.95: "95 %"}
    found = {order: pd.Series(values).quantile(list(levels)) for order, values in waits.items()}
    table = pd.DataFrame(found).T.rename(columns=levels)
    median = table.loc["point-to-point", "median"]
    seen = f"takes {median:.0f} ns in the median"
    return table, "was not seen: no two threads ran at the same time" if pd.isna(median) else seen


def layer_speedups(found):
    """Speed-up of two threads over one by way and number of layers, a `layers.Sweep`: measured
    (median and quartiles of the ratios round by round) and predicted.
    """
    times = found.times.pivot(index="repeat", columns="case", values="seconds")
    table, rows = found.table.set_index(["sweep", "way", "how", "size"])["predicted"], []
    for key in found.passes:
        sweep, way, threads, count = key
        if sweep == "layers" and threads == 2:
            one = sweep, way, 1, count
            low, middle, high = (times[str(one)] / times[str(key)]).quantile((0.25, 0.5, 0.75))
            rows.append((way, count, low, middle, high, table[one] / table[key]))
    return pd.DataFrame(rows, columns=["way", "layers", "q1", "median", "q3", "predicted"])


def block_lengths(table):
    """By way, the block length that the model picks, and in a sentence what it takes beside the
    fastest measured; table: the rows of `layers.Sweep` on block lengths.
    """
    best, said = {}, []
    for way, part in table[table["how"] == "point-to-point"].groupby("way", sort=False):
        pick, fast = (part.loc[part[kind].idxmin()] for kind in ("predicted", "measured"))
        best[way] = int(pick["size"])
        said.append(
            f"{way} the model picks blocks of {pick['size']} steps, {pick['measured']:.1f} ms "
            f"measured; the fastest measured are {fast['size']}, {fast['measured']:.1f} ms"
        )
    return best, f"{'; '.join(said).capitalize()}."


def deep_peers():
    """`numba-wavefront` and PyTorch on eight layers and one sample, as recorded, in sentences."""
    rows = results.read("peers")
    name, said = "deep, one sample", []
    for machine, part in rows.groupby("machine"):
        for stage, what in WORDS.items():
            deep = of_grid(part, stage)
            deep = deep[deep["workload"] == name]
            times = 1e3 * deep.groupby("version")["seconds"].median()
            if {"numba-wavefront", "pytorch"} <= set(times.index):
                ratio = summary(deep, "numba-wavefront", by="version")["ratio"]
                said.append(
                    f"{machine}, {what}: `numba-wavefront` {times['numba-wavefront']:.1f} ms, "
                    f"`numba-fused` {times['numba-fused']:.1f} ms, PyTorch {times['pytorch']:.1f} "
                    f"ms, {1 / ratio['pytorch']:.2f} times the time of `numba-wavefront`."
                )
    return "\n\n".join(said) or "Not measured yet."


def gpu_schedule():
    """The wavefront on a GPU, as recorded, in a sentence."""
    try:
        rows = results.read("gpu").query("version == 'cuda-wavefront'")
    except ValueError:
        return "Not measured yet: no results of a GPU are recorded."
    times = rows.groupby(["machine", "L", "stage"])["seconds"].median() * 1e3
    said = "; ".join(f"{m}, {L} layers, {s}: {v:.2f} ms" for (m, L, s), v in times.items())
    return f"{said}." if said else "Not measured yet: the recorded results have no wavefront."
