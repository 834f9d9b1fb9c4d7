"""The figures and tables of notebook 09: replicas, pipelines, partitions, buckets."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns

from lstm_kernels.ranks.planner import LayerCost, predict
from lstm_kernels.simulate import pipeline_bound
from lstm_kernels.strings import Reber, borders, equal_borders, waste

from ..experiments.rank_speed import ALONE, NETWORK, REPLICAS
from . import plots
from .tables import digits, speed

KINDS = {"best borders": borders, "equal borders": equal_borders}
PIPE = "8 fill-drain"
WAYS = {
    REPLICAS: "replicas",
    PIPE: "pipeline, 8 micro-batches",
    ALONE: "one rank",
    NETWORK: "the network itself",
}


def order(stages, micro_batches):
    """Who runs which micro-batch when, forward and backward; a stage's backward pass
    takes twice as long as its forward pass.
    """
    figure, ax = plt.subplots(figsize=(9, 2.2))
    turns = stages + micro_batches - 1
    for p in range(stages):
        for m in range(micro_batches):
            back = turns + 2 * (stages - 1 - p + m)
            for left, width, colour in ((p + m, 1, plots.SKY), (back, 2, plots.ORANGE)):
                bar = ax.barh(p, width, left=left, color=colour, edgecolor="white")
                ax.bar_label(bar, [m], label_type="center", fontsize=8)
    idle = 1 - micro_batches / turns
    ax.set(yticks=range(stages), yticklabels=[f"rank {p}" for p in range(stages)])
    ax.set_xlabel("time; a number is a micro-batch, blue forward, orange backward")
    ax.set_title(f"Fill and drain: {3 * turns} steps, idle {idle:.0%}")
    ax.grid(axis="y", visible=False)
    ax.invert_yaxis()
    title = ax.get_title("left")
    figure.alt = f"Micro-batches over time, a lane per rank. {title}."
    return figure


def steps(rows):
    """Seconds of training steps by round (rows) and way (columns), those of WAYS."""
    table = rows[rows["stage"] == "step"].pivot_table(
        index="repeat", columns="version", values="seconds", sort=False
    )
    return table[[name for name in WAYS if name in table]]


def ways(table):
    """What `steps` returns as text: ms, quartiles, and the speed over one rank."""
    lines, gain = {}, gains(table)
    for name, times in table.items():
        q1, median, q3 = 1e3 * times.quantile([0.25, 0.5, 0.75])
        spread = f"{digits(q1)} to {digits(q3)}"
        lines[WAYS[name]] = [digits(median), spread, speed(gain[name])]
    columns = ["ms", "quartiles (ms)", "speed (one rank = 1)"]
    return pd.DataFrame.from_dict(lines, orient="index", columns=columns)


def gains(table, baseline=ALONE):
    """The speed of every way over a baseline, the median of the ratios of rounds."""
    return table.rdiv(table[baseline], axis=0).median()


def layer_costs(rows, names):
    """Median milliseconds of each layer forward and backward for a micro-batch and of
    its descent, and the MiB of its gradients; rows of `costs`.
    """
    selected = rows[rows["version"] == "layer"]
    times = 1e3 * selected.groupby(["variant", "stage"])["seconds"].median().unstack()
    table = times[["forward", "backward"]].map(digits).add_suffix(" (ms)")
    table["end of a step (ms)"] = times["descent"].map(digits)
    sizes = selected.groupby("variant")["bytes"].first() / 2**20
    table["gradients (MiB)"] = sizes.map(digits)
    return table.loc[names].rename_axis(index=None, columns=None)


def predicted(rows, names, micro_batches):
    """A function: counts of a partition to the seconds of a step, with the descent of
    the slowest rank; and the LayerCosts that it tells them from. rows: of `costs`.
    """
    selected = rows[rows["version"] == "layer"]
    medians = selected.groupby(["variant", "stage"])["seconds"].median().unstack()
    layers = [
        LayerCost(name, *medians.loc[name, ["forward", "backward"]].tolist())
        for name in names
    ]

    def seconds(counts):
        parts = np.split(medians.loc[names, "descent"], np.cumsum(counts)[:-1])
        descent = max(part.sum() for part in parts)
        return predict(layers, counts, micro_batches).seconds + descent

    return seconds, layers


def by_partition(rows, ranks=2):
    """Seconds of a step by partition: median and quartiles, of pipelines on so many
    ranks.
    """
    selected = rows[(rows["version"] == "pipeline") & (rows["stage"] == "step")]
    times = selected[selected["ranks"] == ranks].groupby("variant")["seconds"]
    table = (
        times.quantile([0.5, 0.25, 0.75])
        .unstack()
        .set_axis(["median", "q1", "q3"], axis=1)
    )
    return table.loc[
        sorted(table.index, key=lambda name: [int(n) for n in name.split("+")])
    ]


def partitions(table, predicted, best, others):
    """Milliseconds of a step by partition, measured and predicted; best: the planner's.
    others: name -> seconds of ways that are no partition of this kind.
    """
    figure, ax = plt.subplots(figsize=(8.5, 4.2))
    x = np.arange(len(table))
    bars = np.abs(table[["q1", "q3"]].to_numpy().T - table["median"].to_numpy())
    style = {"marker": "o", "linestyle": "", "capsize": 3}
    ax.errorbar(
        x,
        1e3 * table["median"],
        1e3 * bars,
        color=plots.BLUE,
        label="measured",
        **style,
    )
    guess = 1e3 * pd.Series(predicted)[table.index]
    ax.plot(x, guess, color=plots.GREY, marker=".", linestyle="--", label="predicted")
    place = list(table.index).index(best)
    ax.plot(
        place,
        1e3 * table["median"][best],
        "o",
        color=plots.RED,
        ms=9,
        label="the planner's",
    )
    ends = [
        (x[-1], 1e3 * seconds, name, plots.BLACK) for name, seconds in others.items()
    ]
    for _, value, _, _ in ends:
        ax.axhline(value, color=plots.BLACK, linewidth=0.8, linestyle=":")
    ax.set(xticks=x, xticklabels=table.index, ylabel="ms for a training step")
    ax.set_xlabel(
        "layers on rank 0 + on rank 1, the embedding and the read-out among them"
    )
    ax.set_ylim(0)
    plots.label_lines(ax, ends)
    ax.legend(loc="lower center")
    order = table["median"].rank()[best]
    ax.set_title(
        f"The planner's partition {best}: place {order:.0f} of {len(table)} measured"
    )
    return figure


def memory(rows):
    """MiB that the ranks of a pipeline take, by the number of ranks."""
    selected = rows[rows["stage"] == "memory"]
    sizes = selected.groupby("ranks")["bytes"].agg(["max", "sum"]) / 2**20
    table = sizes.rename(
        columns={"max": "largest rank (MiB)", "sum": "all ranks (MiB)"}
    )
    return table.rename_axis("ranks").map(digits)


def bucket_waste(lengths, counts):
    """The share of steps that is padding, by the number of buckets (rows) and kind of
    borders.
    """
    table = {
        kind: [waste(lengths, choose(lengths, count)) for count in counts]
        for kind, choose in KINDS.items()
    }
    return pd.DataFrame(table, index=pd.Index(counts, name="buckets"))


def buckets(wasted, rows):
    """Padding and the time of an epoch against the number of buckets; rows: of
    `bucketing`.
    """
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.8))
    colours = dict(zip(KINDS, (plots.BLUE, plots.ORANGE), strict=True))
    for kind, share in wasted.items():
        axes[0].plot(
            share.index, 100 * share, marker="o", ms=4, color=colours[kind], label=kind
        )
    axes[0].set(ylabel="% of the steps that is padding", xlabel="buckets", ylim=0)
    axes[0].legend()
    axes[0].set_title(f"Padding: {wasted.iloc[0, 0]:.0%} to {wasted.iloc[-1, 0]:.1%}")
    selected = rows.astype({"variant": int, "ranks": int}).rename(
        columns={"version": "borders"}
    )
    times = selected.groupby(["ranks", "borders", "variant"])["seconds"].quantile(
        [0.5, 0.25, 0.75]
    )
    ends = []
    for (ranks, kind), part in times.unstack().groupby(level=["ranks", "borders"]):
        x, y = part.index.get_level_values("variant"), 1e3 * part[0.5].to_numpy()
        bars = np.abs(1e3 * part[[0.25, 0.75]].to_numpy().T - y)
        line = "-" if ranks == 1 else "--"
        axes[1].errorbar(
            x, y, bars, color=colours[kind], ls=line, marker="o", ms=4, capsize=2
        )
        if kind == "best borders":
            plural = "rank" if ranks == 1 else "ranks"
            ends.append((x[-1], y[-1], f"{ranks} {plural}", plots.BLACK))
    axes[1].set(xlabel="buckets", ylabel="ms for an epoch")
    axes[1].set_ylim(0)
    plots.label_lines(axes[1], ends)
    gain = times.xs(0.5, level=-1).xs("best borders", level="borders")[1]
    axes[1].set_title(
        f"Time on one rank: {speed(gain.iloc[0] / gain.min())} with buckets"
    )
    return figure


def lengths_of(strings):
    """The lengths of strings, and how often each comes, as a bar for each length."""
    lengths = np.array([len(string) for string in strings])
    figure, ax = plt.subplots(figsize=(8, 2.8))
    sns.histplot(lengths, discrete=True, color=plots.BLUE, ax=ax)
    ax.set(xlabel="symbols in a string", ylabel="strings")
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_title(
        f"{len(lengths)} strings of {lengths.min()} to {lengths.max()} symbols"
    )
    return figure


def learned(rows, least, held_out, seed=1):
    """What each cell has learned: the loss of held-out strings, and the outer symbols
    predicted; the least loss that there is.
    """
    selected = rows[rows["stage"] == "held out"].set_index("version")
    grammar = Reber(least)
    best = grammar.cross_entropy(grammar.strings(held_out, seed=seed))
    lines = {
        name.upper(): [digits(row["loss"]), f"{row['accuracy']:.0%}"]
        for name, row in selected.iterrows()
    }
    lines["the grammar itself"] = [digits(best), "100%"]
    columns = ["cross-entropy (nats)", "outer symbols predicted"]
    return pd.DataFrame.from_dict(lines, orient="index", columns=columns)


# Claims: a sentence, whether it holds, and the numbers that it rests on.


def claim_replicas(table):
    one, network = (gains(table, name)[REPLICAS] for name in (ALONE, NETWORK))
    sentence = (
        "Two ranks that share the samples train at least 1.8 times as fast as one."
    )
    numbers = f"{speed(one)}; compared with the network's own {speed(network)}"
    return sentence, one >= 1.8, numbers


def claim_pipeline(table):
    gain, bound = gains(table)[PIPE], pipeline_bound(8, 2)
    sentence = "A pipeline of two ranks comes within a tenth of its bound."
    numbers = f"{speed(gain)}, at most {speed(bound)} by the bound"
    return sentence, gain >= 0.9 * bound, numbers


def claim_predicted(table, seconds):
    """seconds: predicted of the pipeline."""
    real = table[PIPE].median()
    sentence = "It takes within 10 % of what is predicted from measured costs."
    numbers = f"{1e3 * seconds:.4g} ms predicted, {1e3 * real:.4g} ms measured"
    return sentence, abs(real / seconds - 1) <= 0.1, numbers


def claim_plan(table, chosen):
    """table: of `by_partition`."""
    ms, fastest = 1e3 * table["median"], table["median"].idxmin()
    sentence = (
        "No partition that was run is faster than the planner's beyond the quartiles."
    )
    best = f"the fastest {fastest} {digits(ms[fastest])} ms"
    numbers = f"{chosen} {digits(ms[chosen])} ms, {best}"
    return sentence, table["q1"][chosen] <= table["q3"][fastest], numbers


def claim_memory(rows):
    sizes = rows[rows["stage"] == "memory"].groupby("ranks")["bytes"].max()
    sentence = "The largest rank takes less memory the more ranks there are."
    text = "; ".join(
        f"{ranks}: {size / 2**20:.0f} MiB" for ranks, size in sizes.items()
    )
    return sentence, sizes.is_monotonic_decreasing, text


def claim_buckets(wasted):
    best, equal = (wasted[kind] for kind in KINDS)
    sentence = (
        "Four buckets with the best borders leave less than half of the padding of one."
    )
    return (
        sentence,
        best[4] < best[1] / 2,
        (f"{best[1]:.0%} and {best[4]:.0%}; equal borders {equal[4]:.0%}"),
    )


def claim_learned(rows):
    right = rows.dropna(subset="accuracy").set_index("version")["accuracy"]
    sentence = "The LSTM predicts more than 95 % of the outer symbols, "
    sentence += "the RNN fewer than 60 %."
    text = f"{right['lstm']:.0%} and {right['rnn']:.0%}; guessing has 50 %"
    return sentence, right["lstm"] > 0.95 and right["rnn"] < 0.6, text
