"""The figures and tables of notebook 05."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

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
    shades = plt.get_cmap("cividis")
    charts = {}
    for title, line in lines.items():
        last = max(1, line.schedule.graph.layers - 1)

        def of_task(task, last=last):
            return shades(0.15 + 0.8 * task.layer / last)[:3], task.layer

        charts[title] = (line, of_task)
    what = "a number is the layer of a task"
    return plots.gantt(charts, "worker", what, unit=unit, label=label)


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
        length = f"{chunk} step{'s' if chunk > 1 else ''}"
        return f"{length} ({steps[chunk]:.3g} in all; chunks of one: {steps[1]:.3g})"

    case = {"4 layers, 48 steps, chunks of 4": line(4, 2, 4, 0.1)}
    sentence = (
        f"8 layers of 48 steps on 8 workers: the best chunk has {best(0.0)} when a "
        f"hand-over costs nothing, and {best(2.0)} when it costs 2 steps."
    )
    return gantt(case, unit=1, label="steps"), sentence


def _beside(ax, table, x, by):
    """Lines of `measured` over x, and of `predicted` dashed in the same colours."""
    names = table[by].unique()
    colours = dict(zip(names, (plots.BLUE, plots.RED), strict=False))
    for name, part in table.groupby(by, sort=False):
        predicted = part.groupby(x)["predicted"].median()
        ax.plot(predicted, ".--", color=colours[name], linewidth=1)
    plots.ticks(ax, "x", sorted(table[x].unique()))
    return plots.over(ax, table, x, "measured", by, colours=colours)


def speedups(table):
    """Speed-up of two threads over layers, measured and predicted, forward and
    backward; table: of `layer_speedups`.
    """
    figure, ax = plt.subplots(figsize=(8, 4.2))
    ax.set(xlabel="layers", ylabel="speed (one thread = 1); dashed: predicted")
    plots.level(ax, 2)
    ax.set_ylim(0, 2.3)
    medians = _beside(ax, table, "layers", "way")
    least = min(4, medians.index[-1])
    many = medians[medians.index >= least]
    ends = " to ".join(map(speed, (many.min().min(), many.max().max())))
    ax.set_title(f"Two threads with {least} or more layers: {ends}")
    return figure


def chunks(table, best):
    """Milliseconds over the length of a chunk, by way and order, measured and
    predicted.

    table: of a `layers.Sweep`. best: way -> the length that the model predicts to be
    fastest.
    """
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 4), sharey=True)
    table = table[table["sweep"] == "chunks"]
    top = 1.05 * table[["measured", "predicted"]].max().max()
    for ax, (way, part) in zip(axes, table.groupby("way", sort=False), strict=True):
        ax.set(xlabel="steps in a chunk", ylim=(0, top))
        ax.axvline(best[way], color=plots.GREEN, linestyle=":")
        place = {"xycoords": ax.get_xaxis_transform(), "color": plots.GREEN}
        text = f" model's best: {best[way]}"
        plots.note(ax, text, (best[way], 0.03), (0, 0), **place)
        medians = _beside(ax, part, "size", "how")
        fastest = medians.min(axis=1).idxmin()
        ax.set_title(f"{way}: fastest measured with {fastest} steps")
    axes[0].set_ylabel("milliseconds, two threads; dashed: predicted")
    return figure


def grid(table):
    """Speed of layer-parallel over parallel inside a layer: ratios, rows B, columns
    H.
    """
    figure, ax = plt.subplots(figsize=(7.5, 4))
    values = np.log2(table.astype(float))
    reach = max(0.5, values.abs().to_numpy().max())
    text = table.map("{:.2f}".format)
    plots.heat(ax, values, text, cmap="PuOr", vmin=-reach, vmax=reach)
    ax.set(xlabel="hidden units", ylabel="samples")
    share = (table.to_numpy() > 1).mean()
    ax.set_title(f"Layers in parallel are faster in {share:.0%} of the shapes")
    return figure


def many_cores(table):
    """Predicted speed-up over cores, a line per number of layers."""
    figure, ax = plt.subplots(figsize=(8, 4.4))
    cores = table.index.to_numpy()
    ax.set(xlabel="cores", ylabel="predicted speed (one core = 1)")
    plots.ticks(ax, "xy", cores)
    curves = {"as many times as cores": (cores, cores)}
    curves |= {f"{n} layers": (cores, line.to_numpy()) for n, line in table.items()}
    plots.lines(ax, curves, ls="--", marker="o", ms=4)
    ends = ", ".join(f"{n} layers {v:.3g}x" for n, v in table.iloc[-1].items())
    ax.set_title(f"Predicted, not measured: on {cores[-1]} cores\n{ends}")
    return figure


def layer_speedups(sweep):
    """Speed-up of two threads over one by way and number of layers, of a
    `layers.Sweep`: a row per round, measured and predicted.
    """
    times = sweep.times.pivot(index="repeat", columns="case", values="seconds")
    keys = ["sweep", "way", "how", "size"]
    predicted = sweep.table.set_index(keys)["predicted"]
    parts = [pd.DataFrame(columns=["way", "layers", "measured", "predicted"])]
    for kind, way, threads, count in sweep.passes:
        if kind == "layers" and threads == 2:
            one, two = ((kind, way, n, count) for n in (1, 2))
            part = pd.DataFrame({"measured": times[str(one)] / times[str(two)]})
            ratio = predicted[one] / predicted[two]
            parts.append(part.assign(way=way, layers=count, predicted=ratio))
    return pd.concat(parts if len(parts) == 1 else parts[1:])


def chunk_lengths(table):
    """By way, the chunk length that the model picks, and in a sentence its time
    compared with the fastest measured; table: the rows of `layers.Sweep` on chunk
    lengths.
    """
    best, sentences = {}, []
    for way, part in table[table["how"] == "point-to-point"].groupby("way", sort=False):
        pick = part.loc[part["predicted"].idxmin()]
        fastest = part.loc[part["measured"].idxmin()]
        best[way] = int(pick["size"])
        sentences.append(
            f"{way} the model picks chunks of {pick['size']} steps, "
            f"{pick['measured']:.3g} ms measured; the fastest measured are "
            f"{fastest['size']}, {fastest['measured']:.3g} ms"
        )
    return best, f"{'; '.join(sentences).capitalize()}." if sentences else TWO


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
    columns = ["numba-wavefront", "numba-fused", "pytorch"]
    table = pd.DataFrame(times).T.reindex(columns=columns)
    ratio = (table["pytorch"] / table["numba-wavefront"]).map(speed)
    shown = (1e3 * table).map("{:.3g}".format)
    return shown.assign(**{"numba-wavefront vs PyTorch": ratio})
