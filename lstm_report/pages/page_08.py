"""Page 08: two ranks that train one network, by sharing samples or layers."""

from itertools import accumulate, pairwise

import numpy as np
import pandas as pd

from lstm_kernels.schedules import Costs, fill_and_drain
from lstm_kernels.simulate import simulate

from .. import plots
from ..experiments.devices import MICRO, PARTITIONS, ROUNDS, TOLERANCE, Example, job
from ..measure import results
from ..measure.evidence import (
    Interval,
    digits,
    intervals,
    mib,
    ms,
    percent,
    ratios,
    speed,
    us,
)
from ..measure.evidence import seconds as medians
from ..measure.timing import disturbance
from ..studies import planner, strings

COUNT, ALTERNATING, ENDS = [5, 5], [1] * 10, [1, 8, 1]
NAMES = {
    "round 1+1+1+1+1+1+1+1+1+1": "alternating",
    "round 1+8+1": "1+8+1 (ends together)",
    "replicas": "replicas",
    "one rank": "one rank",
}
ONE, PIECES = "one rank", "one rank in pieces"


def measure_devices(few: bool, process: int) -> pd.DataFrame:
    """The rows of `devices.job`."""
    return job(few, process)


def of_jobs(rows):
    """The rows with their job, which a record of rounds alone does not name."""
    if "process" not in rows or rows["process"].isna().all():
        rows = rows.assign(process=rows["repeat"] // ROUNDS)
    errors = rows["max_err"].dropna()
    if not (errors < TOLERANCE).all():
        raise ValueError(f"rows: got an error of {errors.max()} in gradients")
    return rows


def recorded_on(rows):
    """Machine and date of recorded rows; "" of rows that were measured now."""
    if "machine" not in rows:
        return ""
    return results.label(results.record("devices", rows["machine"].iloc[0]))


def steps_of(rows):
    """The rows of training steps."""
    return rows[(rows["stage"] == "step") & (rows["version"] != "memory")]


def timeline(counts, forward, backward, *, micro, ranks=2, hand=0.0):
    """What each rank runs, the Timeline of a `fill_and_drain`.

    counts: the layers of each stage. forward, backward: seconds of each layer. hand: of
    a message.
    """
    ends = [*pairwise(accumulate(counts, initial=0))]
    ahead, back = ([sum(each[i:j]) for i, j in ends] for each in (forward, backward))
    costs = Costs((*ahead, *back[::-1]), hand=hand)
    return simulate(fill_and_drain(len(counts), ranks, micro), costs)


def messages(counts, micro=MICRO):
    """How many messages a step of training sends: each border, both ways."""
    return 2 * micro * (len(counts) - 1)


def sent(counts, model):
    """Bytes that cross between two ranks in a step, wherever they compute: at each
    border y and its gradient; of one stage, which is on both, all gradients and sums.

    model: the sizes of an Example.
    """
    if len(counts) == 1:
        layers = Example(**model).arrays.values()
        return 2 * sum(a.nbytes for layer in layers for a in layer.values())
    y = model["steps"] * model["batch"] * model["hidden"] * np.dtype("f").itemsize
    return 2 * y * (len(counts) - 1)


def figure_order(layers=4, micro=4):
    """Two placements of equal layers on two ranks, where messages take no time."""
    placements = {
        "Neighbours together": [layers // 2] * 2,
        "Alternating": [1] * layers,
    }
    figure, axes = plots.panels(2, 3.6, sharex=True)
    for ax, (name, counts) in zip(axes, placements.items(), strict=True):
        drawn = timeline(counts, [1] * layers, [2] * layers, micro=micro)
        for span in drawn.spans:
            task = drawn.schedule.tasks[span.task]
            colour = plots.SKY if task.layer < len(counts) else plots.ORANGE
            style = {"left": span.start, "color": colour, "edgecolor": "white"}
            bar = ax.barh(span.worker, span.stop - span.start, **style)
            ax.bar_label(bar, [task.samples[0]], label_type="center")
        idle = percent(round(drawn.idle, 2))
        ax.set_title(f"{name}: {messages(counts, micro)} messages, idle {idle}")
        plots.named_rows(ax, ["rank 0", "rank 1"])
    axes[1].set_xlabel("time (forward passes of a layer); blue forward, orange back")
    titles = "; ".join(ax.get_title("left") for ax in axes)
    figure.alt = f"Which micro-batch each rank runs over time. {titles}."
    return figure


def by_layer(rows):
    """Median seconds of each layer for a micro-batch, forward, backward and in descent,
    and its bytes.
    """
    part = rows[rows["version"] == "layer"]
    table = part.groupby(["variant", "stage"])["seconds"].median().unstack()
    table["bytes"] = part.groupby("variant")["bytes"].first()
    inner = [f"layer {k}" for k in range(len(table) - 2)]
    return table.loc[["embedding", *inner, "output layer"]]


def kinds(costs):
    """The table of the three kinds of layers."""
    parts = {
        "embedding": costs.loc["embedding"],
        "an LSTM layer": costs.iloc[1:-1].median(),
        "output layer": costs.loc["output layer"],
    }
    ways = "forward", "backward", "descent"
    lines = {
        kind: {f"{way} (ms)": 1e3 * cost[way] for way in ways}
        | {"parameters (MiB)": cost["bytes"] / 2**20}
        for kind, cost in parts.items()
    }
    return pd.DataFrame.from_dict(lines, orient="index").rename_axis("layer")


def say_layers(costs):
    """What the MXNet page expects of the ends, and what they take, in words."""
    shares = pd.DataFrame({"time": costs["forward"] + costs["backward"]})
    shares["memory"] = costs["bytes"]
    shares /= shares.iloc[1:-1].median()
    first, last = shares.loc["embedding"], shares.loc["output layer"]
    less = "and" if last["time"] < 1 else "but"
    return (
        "The MXNet page expects encoder and decoder to take more memory and less time "
        f"than an LSTM layer. The embedding has {digits(first['memory'])} times its "
        f"parameters and takes {percent(first['time'])} of its time forward and back, "
        f"since it copies rows. The output layer has {digits(last['memory'])} times "
        f"its parameters {less} takes {percent(last['time'])} of its time."
    )


def say_alone(costs):
    """What a layer takes that is measured alone, in words; "" where it was not."""
    if "alone" not in costs:
        return ""
    inner = costs.iloc[1:-1].median()
    ratio = inner["alone"] / inner["forward"]
    less = f"{percent(1 - ratio)} less" if ratio < 1 else f"{percent(ratio)} of that"
    return (
        f"An LSTM layer that runs forward twice on the same values takes {less} the "
        "second time than in its place."
    )


def part_of(rows, name):
    """Median seconds of a part of a step: "sum" or "message"."""
    return rows.loc[rows["version"] == name, "seconds"].median()


def predicted(counts, costs, hand=0.0):
    """Seconds of a step: the passes, and the descent of the slower rank."""
    forward, backward = costs["forward"].to_list(), costs["backward"].to_list()
    passes = timeline(counts, forward, backward, micro=MICRO, hand=hand).makespan
    ends, descent = list(accumulate(counts, initial=0)), [0.0, 0.0]
    for v in range(len(counts)):
        descent[v % 2] += costs["descent"].iloc[ends[v] : ends[v + 1]].sum()
    return passes + max(descent)


def layer_costs(costs):
    """The layers as the planner takes them."""
    ways = ["forward", "backward"]
    return [planner.LayerCost(name, *costs.loc[name, ways]) for name in costs.index]


def planned(costs, rows):
    """The border by seconds: the planner's, or where that was not run, the best of
    those that were, as predicted. The drawn timelines are the planner's formula, else
    AssertionError.
    """
    layers = layer_costs(costs)
    forward, backward = costs["forward"].to_list(), costs["backward"].to_list()
    for counts in planner.partitions(len(layers), 2):
        drawn = timeline(counts, forward, backward, micro=MICRO).makespan
        want = planner.predict(layers, counts, MICRO).seconds
        np.testing.assert_allclose(drawn, want)
    plan = list(planner.plan(layers, ranks=2, micro_batches=MICRO).counts)
    if name_of(plan) in set(rows["version"]):
        return plan
    return min(PARTITIONS, key=lambda counts: predicted(counts, costs))


def name_of(counts):
    """What rows call a placement."""
    name = "+".join(map(str, counts))
    return name if len(counts) == 2 else f"round {name}"


def borders_of(rows):
    """The pipelines of one border, by name: their counts."""
    names = [name for name in rows["version"].unique() if name[0].isdigit()]
    found = {name: [int(n) for n in name.split("+")] for name in names}
    return dict(sorted(found.items(), key=lambda item: item[1]))


def gain_of(rows, name, baseline):
    """How many times as fast as a baseline a way is: the Interval of the jobs."""
    return Interval.of(ratios(rows, baseline, "version")[name])


def behind_fastest(rows, name):
    """How many times as long as the fastest border a border takes, in each job."""
    table = medians(rows, "version")
    return Interval.of(table[name] / table[list(borders_of(rows))].min(axis=1))


def say_behind(name, behind):
    """How much longer than the fastest border one takes, in words."""
    return f"{name} takes {percent(Interval(*(x - 1 for x in behind)))} longer"


def fastest_border(rows):
    """The name of the border with the least median of the jobs."""
    return medians(rows, "version")[list(borders_of(rows))].median().idxmin()


def guesses(rows, costs, hand):
    """Predicted seconds of each placement that was run, over those measured."""
    table = medians(rows, "version").median()
    placements = borders_of(rows) | {name_of(n): n for n in (ALTERNATING, ENDS)}
    return {
        name: predicted(counts, costs, hand) / table[name]
        for name, counts in placements.items()
    }


def figure_placements(rows, costs, plan, hand):
    """Milliseconds of a step by placement, measured and predicted. plan: the counts
    that are balanced by seconds.
    """
    table = 1e3 * intervals(medians(rows, "version"))
    order = [*borders_of(rows), *NAMES]
    marks = {name_of(COUNT): " (by count)", name_of(plan): " (by seconds)"}
    if plan == COUNT:
        marks = {name_of(plan): " (by both)"}
    labels = [NAMES.get(name, name + marks.get(name, "")) for name in order]
    figure, ax = plots.panels(1, 4.6)
    shown = table.loc[order].set_axis(labels)
    colours = {name_of(plan): plots.RED, ONE: plots.GREY}
    chosen = [colours.get(name, plots.BLUE) for name in order]
    texts = [f"{digits(middle)} ms" for middle in shown["middle"]]
    plots.dots(ax, shown, text=texts, colours=chosen, reference=None)
    for name, ratio in guesses(rows, costs, hand).items():
        place = ratio * table.loc[name, "middle"], order.index(name)
        ax.plot(*place, "D", color="none", markeredgecolor=plots.BLACK)
    ax.set(xlabel="ms for a training step; diamonds are predicted", ylabel="placement")
    ax.set_xlim(left=max(0, ax.get_xlim()[0]))
    gain = gain_of(rows, name_of(plan), name_of(COUNT))
    effect = "level" if gain.level else speed(gain.middle)
    title = f"Planned by seconds, compared with by count: {effect}"
    if plan == COUNT:
        title = "Planned by seconds and by count are the same here"
    figure.suptitle(title, x=0.01, ha="left", weight="bold", size=12)
    return figure


def say_predictions(rows, costs, plan, hand):
    """How far the predicted times are from those measured, in words."""
    off = guesses(rows, costs, hand)
    one_more = min(
        predicted([plan[0] + k, plan[1] - k], costs, hand)
        / predicted(plan, costs, hand)
        for k in (-1, 1)
    )
    gain = gain_of(rows, name_of(plan), name_of(COUNT))
    return (
        f"Predicted times are {percent(min(off.values()))} to "
        f"{percent(max(off.values()))} of those measured, over all placements. One "
        f"layer more or less on rank 0 than {name_of(plan)} is predicted to cost at "
        f"least {percent(one_more - 1)}. {name_of(plan)}, planned by seconds, compared "
        f"with {name_of(COUNT)}, by count: {speed(gain)}."
    )


def placements(costs, plan, model):
    """Of four placements: messages of a step and what they hold, counts, and the share
    of idle time, of equal layers, a count, and of the layers as they were measured.
    """
    found = {}
    for counts in [plan, *(n for n in (COUNT, ALTERNATING, ENDS) if n != plan)]:
        equal = timeline(counts, [1] * 10, [2] * 10, micro=MICRO)
        each = costs["forward"].to_list(), costs["backward"].to_list()
        measured = timeline(counts, *each, micro=MICRO)
        name = NAMES.get(name_of(counts), name_of(counts))
        found[name] = {
            "messages": messages(counts),
            "sent": mib(sent(counts, model)),
            "idle, equal layers": percent(equal.idle),
            "idle, as measured": percent(measured.idle),
        }
    return pd.DataFrame(found).T.rename_axis("placement")


def say_neighbours(rows, costs, hand):
    """What the order of layers brings, and what its messages cost, in words."""
    layer = costs["forward"].iloc[1:-1].median()
    gain = gain_of(rows, name_of(ALTERNATING), name_of(COUNT))
    ends = gain_of(rows, name_of(ENDS), name_of(COUNT))
    sent = messages(ALTERNATING)
    return (
        f"Alternating layers compared with {name_of(COUNT)}: {speed(gain)}. A message "
        f"takes {us(hand)}, {percent(hand / layer)} of a layer's forward pass, and all "
        f"{sent} take {ms(sent * hand)}. Ends together compared with {name_of(COUNT)}: "
        f"{speed(ends)}."
    )


def say_ranks(costs, plan, model):
    """Who computes what, on which device, and what crosses between ranks, in words."""
    border, batch = plan[0], model["batch"]
    return (
        "With a GPU version rank r computes its LSTM layers on device r modulo their "
        f"number. With {name_of(plan)} rank 0 has {costs.index[0]} to "
        f"{costs.index[border - 1]}, rank 1 {costs.index[border]} to "
        f"{costs.index[-1]}; of two replicas each has all layers and {batch // 2} of "
        f"{batch} samples. Wherever they compute, {mib(sent(plan, model))} cross "
        f"between the stages in a step, and {mib(sent([len(costs)], model))} between "
        "the replicas."
    )


def say_losses(rows, costs, whole):
    """What replicas and pipelines lose, in words. whole: seconds of the sum."""
    replica = rows.loc[rows["version"] == "replicas", "seconds"].median()
    pieces = gain_of(rows, PIECES, ONE)
    text = f"takes {percent(1 / pieces.middle - 1)} longer than"
    if pieces.level:
        text = "is level with"
    elif pieces.middle > 1:
        text = "is faster than"
    return (
        f"Of a replica's step of {ms(replica)} the sum takes {ms(whole)} and the "
        f"descent, which each replica does whole, {ms(costs['descent'].sum())}. One "
        f"rank that computes the mini-batch in {MICRO} pieces {text} one that computes "
        "it whole."
    )


def memory(rows):
    """The bytes of the largest rank, by the number of ranks."""
    part = rows[rows["version"] == "memory"]
    return part.groupby(part["ranks"].astype(int))["bytes"].max()


def share_of_one(rows):
    """The largest rank of two, compared with one rank; None where not measured."""
    most = memory(rows)
    return most[2] / most[1] if {1, 2} <= set(most.index) else None


def say_share(share, costs):
    """The share of memory beside that of the parameters by count, in words."""
    if share is None:
        return ""
    first = costs["bytes"].iloc[: COUNT[0]].sum() / costs["bytes"].sum()
    stored = percent(max(first, 1 - first))
    return f"{percent(share)}; it stores {stored} of the parameters"


def say_memory(rows):
    """The MiB of the largest rank, by the number of ranks, in words."""
    most = memory(rows)
    if most.empty:
        return "Memory is not measured here: Linux alone tells it."
    texts = [f"{mib(x)} of {n}" for n, x in most.items()]
    return f"The larger rank of a pipeline takes {', '.join(texts)}."


def say_buckets(rows):
    """What four buckets save, by count and measured, in words."""
    part = rows[rows["version"] == "buckets"].astype({"variant": int})
    words = strings.reber(int(part["N"].iloc[0]))
    lengths = [len(word) for word in words]
    padding = {k: strings.waste(lengths, strings.borders(lengths, k)) for k in (1, 4)}
    gain = Interval.of(ratios(part, 1, "variant")[4])
    work = (1 - padding[1]) / (1 - padding[4])
    return (
        f"The {len(words)} strings have {min(lengths)} to {max(lengths)} symbols. With "
        f"one bucket {percent(padding[1])} of the steps are padding, with four "
        f"{percent(padding[4])}; {percent(work)} of the steps remain. Speed of an "
        f"epoch with four buckets compared with one: {speed(gain)}. Buckets make "
        "more mini-batches, some of few samples, so time falls less than steps."
    )


def noise_of(rows, stage="step"):
    """What disturbed the training steps, or the epochs, in words."""
    timed = rows[rows["version"] != "memory"]
    return disturbance(timed[timed["stage"] == stage])
