"""The figures and tables of notebook 09: replicas, pipelines, partitions, buckets, many
ranks.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns

from lstm_kernels.ranks.planner import predict
from lstm_kernels.ranks.world import CORES
from lstm_kernels.schedules import PIPELINES, Costs, Graph, pipeline
from lstm_kernels.simulate import pipeline_bound, simulate
from lstm_kernels.strings import Reber, borders, equal_borders, waste

from ..experiments.rank_speed import ALONE
from ..experiments.scaling import ModelCosts, errors, layer_parallel, sweep
from . import plots
from .tables import digits, speed

KINDS = {"best borders": borders, "equal borders": equal_borders}
PIPE, LOOPED = "8 fill-drain", "8 fill-drain 2 loops"
LOOPS = "fill-drain in two loops"
DATA, AFTER, UNSUMMED = "data", "data after", "data unsummed"


def orders(stages, micro_batches):
    """Who runs which micro-batch when, forward and backward, by both orders, and in two
    loops; a stage's backward pass takes twice as long as its forward pass.
    """
    lines = {}
    for name, order, loops in [
        *((name, name, 1) for name in PIPELINES),
        (LOOPS, PIPELINES[0], 2),
    ]:
        S = stages * loops
        graph = Graph(S, 1, micro_batches, training=True)
        costs = Costs((1 / loops,) * S + (2 / loops,) * S)
        lines[name] = simulate(pipeline(graph, stages, order, loops), costs)
    figure, axes = plt.subplots(
        len(lines), figsize=(9, 1.8 * len(lines) + 0.4), sharex=True
    )
    for ax, (name, line) in zip(axes, lines.items(), strict=True):
        for span in line.spans:
            task = line.schedule.tasks[span.task]
            colour = (
                plots.ORANGE if line.schedule.graph.goes_back(task.layer) else plots.SKY
            )
            how = {
                "color": colour,
                "edgecolor": "white",
                "linewidth": 0.6,
                "height": 0.84,
            }
            bar = ax.barh(span.worker, span.stop - span.start, left=span.start, **how)
            ax.bar_label(bar, [task.part], label_type="center", fontsize=8)
        ax.set(yticks=range(stages), yticklabels=[f"rank {p}" for p in range(stages)])
        ax.set_title(f"{name}: {line.makespan:.0f} steps, idle {line.idle:.0%}")
        ax.grid(axis="y", visible=False)
        ax.invert_yaxis()
    axes[-1].set_xlabel(
        "time; a number is a micro-batch, blue forward, orange backward"
    )
    titles = (ax.get_title("left") for ax in axes)
    figure.alt = f"Micro-batches over time, a lane per rank. {'; '.join(titles)}."
    return figure


def steps(rows, variant=None):
    """Seconds of training steps by round (rows) and way (columns); variant: of a
    link.
    """
    rows = rows[rows["stage"] == "step"]
    own = rows["variant"].isna() if variant is None else rows["variant"] == variant
    return rows[own].pivot_table(
        index="repeat", columns="version", values="seconds", sort=False
    )


def ways(table):
    """What `steps` returns as text: ms, quartiles, and the speed over one rank."""
    lines, gain = {}, gains(table)
    for name, times in table.items():
        q1, median, q3 = 1e3 * times.quantile([0.25, 0.5, 0.75])
        lines[name] = [
            digits(median),
            f"{digits(q1)} to {digits(q3)}",
            speed(gain[name]),
        ]
    columns = ["ms", "quartiles (ms)", "speed (one rank = 1)"]
    return pd.DataFrame.from_dict(lines, orient="index", columns=columns)


def gains(table, baseline=ALONE):
    """The speed of every way over a baseline, the median of the ratios of rounds."""
    return table.rdiv(table[baseline], axis=0).median()


def hidden(table):
    """The share of the time of the sums that overlapping hides: 1 when a step with sums
    takes as long as one without; the median over rounds, and the seconds of the sums
    themselves.
    """
    taken = table[AFTER] - table[UNSUMMED]
    return ((table[AFTER] - table[DATA]) / taken).median(), taken.median()


def layer_costs(rows, names):
    """Median milliseconds of each layer forward and backward for a micro-batch, what
    the end of a step adds, and the MiB of its gradients; rows of `costs`.
    """
    own = rows[rows["version"] == "layer"]
    times = 1e3 * own.groupby(["variant", "stage"])["seconds"].median().unstack()
    table = times[["forward", "backward"]].map(digits).add_suffix(" (ms)")
    ends = times.get("last", times["backward"]) - times["backward"] + times["descent"]
    table["end of a step (ms)"] = ends.map(digits)
    table["gradients (MiB)"] = (own.groupby("variant")["bytes"].first() / 2**20).map(
        digits
    )
    return table.loc[names].rename_axis(index=None, columns=None)


def predicted(rows, names, samples, micro_batches, link, order=PIPELINES[0]):
    """A function: counts of a partition to the seconds of a step; and the LayerCosts
    and seconds of a hand-over that it tells them from. link: of `scaling`, for what is
    handed over.
    """
    costs = ModelCosts.from_rows(rows[rows["version"] == "layer"], names)
    parts, hand = costs.parts(samples), link.seconds(costs.hand * samples)

    def seconds(counts, loops=1):
        plan = predict(
            parts, counts, micro_batches, hand=hand, order=order, loops=loops
        )
        return plan.seconds + costs.end(counts) * loops

    return seconds, parts, hand


def by_partition(rows, ranks=2):
    """Seconds of a step by partition: median and quartiles, of pipelines on so many
    ranks.
    """
    own = rows[(rows["version"] == "pipeline") & (rows["stage"] == "step")]
    times = own[own["ranks"] == ranks].groupby("variant")["seconds"]
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
    how = {"marker": "o", "linestyle": "", "capsize": 3}
    ax.errorbar(
        x, 1e3 * table["median"], 1e3 * bars, color=plots.BLUE, label="measured", **how
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
    own = rows[rows["stage"] == "memory"]
    sizes = own.groupby("ranks")["bytes"].agg(["max", "sum"]) / 2**20
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
    own = rows.astype({"variant": int, "ranks": int}).rename(
        columns={"version": "borders"}
    )
    times = own.groupby(["ranks", "borders", "variant"])["seconds"].quantile(
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
    own = rows[rows["stage"] == "held out"].set_index("version")
    best = Reber(least).cross_entropy(Reber(least).strings(held_out, seed=seed))
    lines = {
        name.upper(): [digits(row["loss"]), f"{row['accuracy']:.0%}"]
        for name, row in own.iterrows()
    }
    lines["the grammar itself"] = [digits(best), "100%"]
    columns = ["cross-entropy (nats)", "outer symbols predicted"]
    return pd.DataFrame.from_dict(lines, orient="index", columns=columns)


def many_ranks(tables):
    """Predicted speed-up against the ranks, a panel for each link: name -> table of
    `sweep`.
    """
    figure, axes = plt.subplots(1, len(tables), figsize=(9.5, 4), sharey=True)
    colours = {"data": plots.BLUE, "layer": plots.ORANGE, "mixed": plots.RED}
    for ax, (name, table) in zip(np.atleast_1d(axes), tables.items(), strict=True):
        ranks = table["ranks"].unique()
        ax.plot(ranks, ranks, color=plots.GREY, linewidth=1)
        for way, own in table.groupby("way", sort=False):
            how = {
                "color": colours[way],
                "ls": "--",
                "marker": ".",
                "label": f"{way}, predicted",
            }
            ax.plot(own["ranks"], own["speedup"], **how)
        plots.ticks(ax, "xy", [int(n) for n in ranks if n in (1, 4, 16, 64, 256, 1024)])
        last = table[table["ranks"] == ranks[-1]].set_index("way")["speedup"]
        ax.set(
            xlabel="ranks",
            title=f"{name}\n{ranks[-1]} ranks: mixed {speed(last['mixed'])}",
        )
        ax.title.set_fontsize(10)
    axes = np.atleast_1d(axes)
    axes[0].set_ylabel("predicted speed (one rank = 1)")
    axes[0].legend()
    return figure


def model_errors(rows, costs, link, add):
    """Steps on 1, 2 and 4 ranks of this machine, measured and predicted, as text, and
    the largest error where every rank had a core of its own, and where ranks took
    turns. rows: of the experiment "scaling"; others as of `scaling.sweep`.
    """
    steps = rows[rows["stage"] == "step"]
    measured = steps.assign(
        way=steps["version"].map({"data after": "data", PIPE: "layer"})
    )
    measured.loc[measured["version"] == ALONE, "way"] = "data"
    measured.loc[measured["version"].str.contains("+", regex=False), "way"] = "mixed"
    batch, cores = int(steps["B"].iloc[0]), len(CORES) or 1
    how = {
        "link": link,
        "add": add,
        "cores": cores,
        "micro_batches": (8,),
        "overlap": False,
    }
    table = sweep(costs, batch, ranks=(1, 2, 4), **how)
    # Mixed is measured as two stages, whatever would be the best.
    grid = {"ranks": 4, "replicas": 2, "link": link, "add": add, "cores": cores}
    two = layer_parallel(costs, batch, micro_batches=8, **grid)
    table.loc[(table["way"] == "mixed") & (table["ranks"] == 4), "seconds"] = (
        two.seconds
    )
    found = errors(measured, table)
    shown = pd.DataFrame({"way": found["way"], "ranks": found["ranks"]})
    for name in ("measured", "predicted"):
        shown[f"{name} (ms)"] = (1e3 * found[name]).map(digits)
    shown["error"] = found["error"].map("{:+.1%}".format)
    off = found["error"].abs().groupby(found["ranks"] > cores).max()
    return shown.set_index(["way", "ranks"]), (off.get(False, 0.0), off.get(True, 0.0))


# Claims: a sentence, whether it holds, and the numbers that it rests on.


def claim_replicas(table):
    one, network = (gains(table, name)[AFTER] for name in (ALONE, "network"))
    sentence = (
        "Two ranks that share the samples train at least 1.8 times as fast as one."
    )
    return (
        sentence,
        one >= 1.8,
        f"{speed(one)}; compared with the network's own {speed(network)}",
    )


def claim_hidden(share):
    sentence = "On a slow link, summing layer by layer hides at least 60 % of the sums."
    return sentence, share >= 0.6, f"{share:.0%}"


def claim_pipeline(table):
    gain, bounds = gains(table), {PIPE: (8, 2), LOOPED: (8, 2, 2)}
    sentence = "A pipeline of two ranks trains at least 1.7 times as fast as one, in two loops."
    told = (
        f"{name}: {speed(gain[name])}, at most {speed(pipeline_bound(*bound))} by the bound"
        for name, bound in bounds.items()
    )
    return sentence, gain[LOOPED] >= 1.7, "; ".join(told)


def claim_predicted(table, guess):
    """guess: seconds by name of the way."""
    real = {name: table[name].median() for name in guess}
    sentence = "It takes within 10 % of what is predicted from measured costs."
    told = (
        f"{name}: {1e3 * seconds:.4g} ms predicted, {1e3 * real[name]:.4g} ms measured"
        for name, seconds in guess.items()
    )
    return (
        sentence,
        all(abs(real[n] / s - 1) <= 0.1 for n, s in guess.items()),
        "; ".join(told),
    )


def claim_plan(table, chosen):
    """table: of `by_partition`."""
    ms, fastest = 1e3 * table["median"], table["median"].idxmin()
    sentence = (
        "No partition that was run is faster than the planner's beyond the quartiles."
    )
    told = f"{chosen} {digits(ms[chosen])} ms, the fastest {fastest} {digits(ms[fastest])} ms"
    return sentence, table["q1"][chosen] <= table["q3"][fastest], told


def claim_memory(rows):
    sizes = rows[rows["stage"] == "memory"].groupby("ranks")["bytes"].max()
    sentence = "The largest rank takes less memory the more ranks there are."
    told = "; ".join(
        f"{ranks}: {size / 2**20:.0f} MiB" for ranks, size in sizes.items()
    )
    return sentence, sizes.is_monotonic_decreasing, told


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
    sentence = "The LSTM predicts more than 95 % of the outer symbols, the RNN fewer than 60 %."
    told = f"{right['lstm']:.0%} and {right['rnn']:.0%}; guessing has 50 %"
    return sentence, right["lstm"] > 0.95 and right["rnn"] < 0.6, told


def claim_model(off, fitted):
    """off: of `model_errors`. fitted: the error of the fit of messages."""
    alone, turns = off
    sentence = "The model is at most 10 % off where every rank has a core, and else at most 25 %."
    told = f"{alone:.0%}; where ranks take turns {turns:.0%}; the fit of a message {fitted:.0%}"
    return sentence, alone <= 0.1 and turns <= 0.25, told
