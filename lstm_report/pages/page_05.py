"""Page 05: stacks whose layers run at the same time; what a schedule predicts and what
two threads lose; layers compared with dividing each step.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.figure import Figure
from numba import config

from lstm_kernels import cores
from lstm_kernels.errors import counted
from lstm_kernels.schedules import (
    Costs,
    Graph,
    Schedule,
    layer_by_layer,
    waits_for,
    wavefront,
)
from lstm_kernels.schedules import check as check_schedule
from lstm_kernels.simulate import Timeline, simulate
from lstm_kernels.versions import network
from lstm_kernels.versions.numba_wavefront import NumbaWavefront

from .. import cards, plots
from ..experiments import partitions
from ..experiments.handover import on_two_threads
from ..measure.comparer import TOLERANCE, MismatchError, compare, truth
from ..measure.evidence import Interval, ahead, at_least, at_most, digits, speed
from ..measure.runner import AFTER_BLAS
from ..measure.timing import interleaved, settle, together
from ..measure.workloads import Workload
from ..notebook import Shared

CHUNK = 24  # steps, where the length of a chunk is not what is compared
WORKERS = 1, 2, 4, 8, 16  # of the prediction; those that have cores are measured too
DRAWS = 5  # passes that a prediction is the mean of
KEYS = ["way", "L", "threads", "C"]


def several_cores() -> bool:
    """Whether two threads have a core each, and Numba may start them."""
    return min(cores.cores(), config.NUMBA_NUM_THREADS) > 1


def bound(L: int, P: int, T: int, C: int) -> float:
    """The most that a wavefront in chunks of C steps gains; min(L, P) divides L."""
    m = min(L, P)
    return m / (1 + m * (m - 1) * C / (L * T))


def check_bound(L, P, T, C):
    """Raise MismatchError unless the simulator finds the bound."""
    plan = wavefront(Graph(L, T), P, C, together=min(L, P))
    gained = L * T / simulate(plan, Costs((1.0,) * L)).makespan
    if not np.isclose(gained, bound(L, P, T, C)):
        raise MismatchError(f"simulate: got {gained}, want {bound(L, P, T, C)}")


def measure_stacks(layers, lengths, T, H, repeats):
    """Passes of stacks, one sample: rows with the Timeline in `line`, by `way`.

    "one": one thread, layer after layer; "workers": as many threads as are given;
    "streams": two independent passes at the same time, each on one thread in chunks.
    The last of `layers` is measured with every length of chunk; passes of one length
    are neighbours in each round.
    """
    deepest = layers[-1]
    many = [P for P in WORKERS if 1 < P <= min(cores.cores(), deepest)]
    keys = [("one", L, 1, T) for L in layers]
    keys += [("workers", L, 2, CHUNK) for L in layers[:-1]]
    keys += [("workers", deepest, P, C) for P in many for C in lengths]
    streams = [("streams", deepest, 1, C) for C in lengths]
    nets = {key: _network(key, T, H) for key in keys}
    pairs = {key: [_network(key, T, H) for _ in range(2)] for key in streams}
    x, dy = Workload(1, T, H, H, 1).example()[0], Workload(1, T, H, H, 1).dy()

    def check():
        """Every network's bits are those of one thread; gives those of the deepest."""
        for key, net in nets.items():
            y, _ = net.forward(x)
            net.forward(x, training=True)
            got = {"y": y} | net.backward(dy).arrays()
            same = first.setdefault(key[1], got)
            if not all(np.array_equal(got[name], same[name]) for name in got):
                raise MismatchError(f"{key}: other bits than one thread's")
        return first[deepest]

    first: dict[int, dict] = {}
    got, want = check(), truth(nets["one", deepest, 1, T].params(), x, dy)
    want["y"] = want["inference: y"]
    compare(got, {name: want[name] for name in got}, TOLERANCE[x.dtype])
    time.sleep(AFTER_BLAS)
    parts = []
    for stage in ("forward", "backward"):
        back = stage == "backward"
        lines: dict[tuple, list] = {key: [] for key in (*keys, *streams)}

        def run(key, back=back, lines=lines):
            net = nets[key]
            net.backward(dy) if back else net.forward(x)
            lines[key].append(net.timeline(T, 1, back, back))
            return lines[key][-1].makespan

        def run_pair(key, lines=lines):
            on_two_threads(lambda first: pairs[key][first].forward(x))
            both = [net.timeline(T, 1) for net in pairs[key]]
            spans = both[0].spans + both[1].spans
            lines[key].append(Timeline(both[0].schedule, spans))
            return (both[0].makespan + both[1].makespan) / 2

        if back:
            for net in nets.values():
                net.forward(x, training=True)
        cases = {key: partial(run, key) for key in keys}
        cases |= {} if back else {key: partial(run_pair, key) for key in streams}
        blocks = [[key for key in cases if key[3] == C] for C in sorted({T, *lengths})]
        how = {"repeats": repeats, "least": 0, "self_timed": True}
        rows = interleaved(cases, blocks=blocks, **how)
        # The first of them warmed up.
        taken = [lines[key][1 + k] for key, k in rows[["case", "repeat"]].to_numpy()]
        rows = rows.assign(stage=stage, line=taken, T=T, H=H)
        rows[KEYS] = rows["case"].to_list()
        parts.append(rows.drop(columns="case"))
    check()
    return together(parts)


def _network(key, T, H):
    way, L, threads, C = key

    def pick(graph):
        if way == "one":
            return layer_by_layer(graph)
        return wavefront(graph, threads, C, together=min(threads, L))

    return NumbaWavefront(Workload(L, T, H, H, 1).params(), threads, schedules=pick)


STACKS = Shared(
    measure_stacks,
    smoke={"layers": (2, 4), "lengths": (6, 24), "T": 96, "H": 16, "repeats": 2},
    paper={"layers": (4, 8), "lengths": (6, 24, 80), "T": 240, "H": 256}
    | {"repeats": 9},
)


# Of the map, and of a deeper stack with longer sequences
MAP = (
    {"layers": (4,), "units": (64, 128, 256, 512), "samples": (1, 8)}
    | {"T": 30, "repeats": 3},
    {"layers": (8,), "units": (256,), "samples": (1,), "T": 240, "repeats": 3},
)
SMALL_MAP = (
    {"layers": (4,), "units": (32, 64), "samples": (1, 2), "T": 10, "repeats": 2},
    {"layers": (8,), "units": (64,), "samples": (1,), "T": 96, "repeats": 2},
)


def measure_partitions(shapes, deep):
    """Inference by every division that `numba-fused` tries: of the shapes of the map,
    and of a deeper stack with longer sequences.
    """
    return together([partitions.measure(**shapes), partitions.measure(**deep)])


# What follows from the rows of stacks


def _part(rows, way, stage="forward", L=None, threads=None, C=None):
    """The rows of one case, of the deepest stack unless L is given."""
    found = rows[(rows["way"] == way) & (rows["stage"] == stage)]
    for name, value in (("L", L or rows["L"].max()), ("threads", threads), ("C", C)):
        found = found if value is None else found[found[name] == value]
    return found


def workload(rows) -> str:
    """Its sizes, in words."""
    T, H, L = rows["T"].iloc[0], rows["H"].iloc[0], rows["L"].max()
    return f"{L} layers, {T} steps, {H} hidden units, one sample"


def gain(rows, stage="forward", L=None, threads=2, C=CHUNK) -> Interval:
    """How many times as fast threads are as one, layer after layer, over processes; of
    the deepest stack unless L is given.
    """
    keys = ["process", "repeat"]
    one = _part(rows, "one", stage, L).set_index(keys)["seconds"]
    many = _part(rows, "workers", stage, L, threads, C).set_index(keys)["seconds"]
    return Interval.of((one / many).groupby("process").median())


def streams(rows) -> Interval:
    """How many times as many passes two cores finish as one in the same time, each on
    one thread, in chunks.
    """
    one = _part(rows, "one").groupby("process")["seconds"].median()
    both = _part(rows, "streams", C=CHUNK).groupby("process")["seconds"].median()
    return Interval.of(2 * one / both)


def share(rows) -> Interval:
    """The part of what two independent passes and the bound allow that two threads
    reach with the deepest stack.
    """
    L, T = rows["L"].max(), rows["T"].iloc[0]
    both = _part(rows, "streams", C=CHUNK).groupby("process")["seconds"].median()
    two = _part(rows, "workers", threads=2, C=CHUNK)
    ideal = both / bound(L, 2, T, CHUNK)
    return Interval.of(ideal / two.groupby("process")["seconds"].median())


def waits(line: Timeline) -> list[float]:
    """Seconds from the end of the last task waited for to the start of the one that
    waited on another thread, which was idle meanwhile.
    """
    found: list[float] = []
    free: dict[int, float] = {}
    for needed, span in zip(waits_for(line.schedule), line.spans, strict=True):
        before = [line.spans[i] for i in needed]
        last = max(before, key=lambda s: s.stop, default=span)
        if last.worker != span.worker and free.get(span.worker, 0.0) < last.stop:
            found.append(span.start - last.stop)
        free[span.worker] = span.stop
    return found


def hand_over(rows) -> Interval:
    """Seconds from the end of a task to the start of one that waited for it on another
    thread, median of each process.
    """
    of = _part(rows, "workers", threads=2)
    every = of.groupby("process")["line"].agg(list)
    return Interval.of(
        [np.median([gap for line in lines for gap in waits(line)]) for lines in every]
    )


def losses(rows) -> pd.DataFrame:
    """From one thread to two, the deepest stack forward, in the process of median gain
    and its pass of median length: milliseconds that add up, and the speed-up so far.
    """
    L, T = rows["L"].max(), rows["T"].iloc[0]
    one = _part(rows, "one").groupby("process")["seconds"].median()
    two = _part(rows, "workers", threads=2, C=CHUNK)
    chosen = (one / two.groupby("process")["seconds"].median()).sort_values()
    process = chosen.index[len(chosen) // 2]
    passes = two[two["process"] == process].sort_values("seconds")
    line, alone = passes["line"].iloc[len(passes) // 2], one[process]
    busy, most = sum(s.stop - s.start for s in line.spans), bound(L, 2, T, CHUNK)
    parts = {
        "half of one thread's time": alone / 2,
        "a chunk at each end: the bound": alone / most - alone / 2,
        "longer tasks": (busy - alone) / most,
        "hand-overs": sum(waits(line)) / 2,
    }
    parts["waits; one worker ends before the other"] = line.makespan - sum(
        parts.values()
    )
    table = pd.DataFrame({"ms": parts}) * 1e3
    table["speed-up so far"] = [speed(1e3 * alone / t) for t in table["ms"].cumsum()]
    total = line.makespan * 1e3, speed(alone / line.makespan)
    table.loc["sum = measured"] = total
    return table.rename_axis(f"{L} layers, two threads")


@dataclass(frozen=True)
class Drawn(Costs):
    """Costs whose tasks take, one after the other, what `draws` yields."""

    draws: Iterator[float] = field(default_factory=partial(iter, ()))

    def seconds(self, task, part):
        return next(self.draws)


def predicted(plan, tasks, hand) -> float:
    """Seconds that a schedule takes whose tasks last as long as some of the measured
    ones, drawn at random: the mean of some draws.
    """
    rng, taken = np.random.default_rng(0), []
    for _ in range(DRAWS):
        draws = iter(rng.choice(tasks, len(plan.tasks)).tolist())
        step = (0.0,) * plan.graph.layers
        taken.append(simulate(plan, Drawn(step, hand=hand, draws=draws)).makespan)
    return float(np.mean(taken))


def tasks_of(rows, by=("process", "C")):
    """By process and length of chunk: the seconds of the tasks of two independent
    passes at the same time, an array.
    """
    of = _part(rows, "streams")
    return {
        key: np.array([s.stop - s.start for line in part["line"] for s in line.spans])
        for key, part in of.groupby(list(by))
    }


def off(rows, equal=False) -> Interval:
    """Predicted over measured less one, of every process the median of its forward
    passes on several threads, each predicted from the tasks of its round; equal: with
    every task as long as the median one.
    """
    hand, found = hand_over(rows).middle, dict[int, list[float]]()
    of_round = ["process", "C", "repeat"]
    tasks, many = tasks_of(rows, of_round), rows[rows["way"] == "workers"]
    many = many[many["stage"] == "forward"]
    for (process, C, repeat), part in many.groupby(of_round):
        pool = tasks[process, C, repeat]
        pool = np.median(pool, keepdims=True) if equal else pool
        for line in part["line"]:
            error = predicted(line.schedule, pool, hand) / line.makespan - 1
            found.setdefault(process, []).append(error)
    return Interval.of([np.median(errors) for errors in found.values()])


def within(one: Interval, most: float) -> bool:
    """Whether it was, in every process, so close to zero."""
    return at_least(one, -most) and at_most(one, most)


def over_workers(rows, layers=(4, 8, 16)) -> pd.DataFrame:
    """Predicted speed-up over one thread with the fastest length of chunk, by layers
    (columns) and workers: medians of the processes.
    """
    T, hand, tasks = rows["T"].iloc[0], hand_over(rows).middle, tasks_of(rows)
    deepest = rows["L"].max()
    alone = _part(rows, "one").groupby("process")["seconds"].median() / deepest
    lengths = {C for _, C in tasks}
    found = {}
    for L in layers:
        for P in WORKERS:
            plans = {
                C: wavefront(Graph(L, T), P, C, together=min(P, L)) for C in lengths
            }
            ratios = [
                L * one / min(predicted(plans[C], tasks[p, C], hand) for C in lengths)
                for p, one in alone.items()
            ]
            found[P, L] = float(np.median(ratios))
    return pd.Series(found).unstack()


def table_gains(rows) -> pd.DataFrame:
    """The bound and what was measured, by layers and length of chunk."""
    T, found = rows["T"].iloc[0], {}
    two = rows[(rows["way"] == "workers") & (rows["threads"] == 2)]
    for L, C in sorted(set(zip(two["L"], two["C"], strict=True))):
        ways = {s: speed(gain(rows, s, L, C=C)) for s in ("forward", "backward")}
        found[f"{L} layers, chunks of {C}"] = {"bound": f"{bound(L, 2, T, C):.3g}x"}
        found[f"{L} layers, chunks of {C}"] |= ways
    return pd.DataFrame.from_dict(found, orient="index").rename_axis("stack")


# What follows from the rows of partitions


class Ways(NamedTuple):
    """One sample: layers over the best division of a step; layers, and units, over one
    thread.
    """

    layers_over_step: Interval
    layers: Interval
    units: Interval


def ways(rows, L, H, T) -> Ways:
    """The Ways of a shape."""
    one, shape = ("one thread",), rows[(rows["T"] == T) & (rows["B"] == 1)]
    pairs = (("layers",), partitions.STEP), (("layers",), one), (("units",), one)
    tables = (partitions.compared(shape, *pair) for pair in pairs)
    return Ways(*(Interval(*table.loc[(L, H, 1)]) for table in tables))


def better_and_slower(one: Interval, other: Interval) -> bool:
    """Whether one is above another in every process, and the other at most 1."""
    return ahead(one, other) and at_most(other, 1)


def map_of(rows, T) -> pd.DataFrame:
    """Layers over the best division of a step: an interval for each shape."""
    return partitions.compared(rows[rows["T"] == T], ("layers",), partitions.STEP)


def weights(units: int) -> int:
    """Bytes of W of a layer."""
    return 16 * units**2


def outgrown(units: int, size: int) -> bool:
    """Whether W of a layer does not fit into a cache that is known."""
    return 0 < size < weights(units)


# Figures


def figure_grid(L=4, T=12, C=3) -> Figure:
    """The cells of a stack with their diagonals, and its chunks on two workers."""
    figure, (top, low) = plots.panels(2, 5.2, sharex=True)
    plots.heat(top, pd.DataFrame(np.add.outer(range(L), range(T))), cmap="cividis")
    for d in range(L + T - 1):
        ends = np.array([max(0, d - L + 1), min(d, T - 1)])
        top.plot(ends, d - ends, color=plots.RED, linewidth=1, alpha=0.7)
    line = simulate(wavefront(Graph(L, T), 2, C, together=2), Costs((1.0,) * L))
    for task, span in zip(line.schedule.tasks, line.spans, strict=True):
        colour, ink = ((plots.BLUE, "white"), (plots.ORANGE, "black"))[task.worker]
        style = {"color": colour, "edgecolor": "white", "linewidth": 1, "height": 1}
        bar = low.barh(task.layer, C, left=task.start - 0.5, **style)
        text = f"worker {task.worker}\nat {span.start:.0f}"
        low.bar_label(bar, [text], label_type="center", color=ink, linespacing=0.9)
    for ax in (top, low):
        ax.set(ylim=(-0.5, L - 0.5), yticks=range(L), ylabel="layer")
        ax.grid(visible=False)
    top.set_title("Cells of one diagonal can run at the same time")
    low.set_title(f"Two workers take chunks of {C} steps along the diagonals")
    low.set_xlabel("step of the sequence")
    figure.alt = (
        f"A grid of {L} layers and {T} steps. Above, each cell has the number of its "
        f"diagonal, layer plus step. Below, chunks of {C} steps with the worker that "
        "computes them and when it starts."
    )
    return figure


def schedules(L=4, T=48, lengths=(48, 24, 4)) -> dict[int, Timeline]:
    """By length of chunk, in steps: L layers of T steps on two workers, where a
    hand-over takes a tenth of a step.
    """
    graph, costs = Graph(L, T), Costs((1.0,) * L, hand=0.1)
    return {C: simulate(wavefront(graph, 2, C, costs=costs), costs) for C in lengths}


def steps(lines) -> list[str]:
    """How many steps each Timeline lasts."""
    return [digits(line.makespan) for line in lines.values()]


def figure_schedules(lines) -> Figure:
    """A Gantt chart of Timelines by their length of chunk, a colour for each layer."""
    shades, charts = colormaps["cividis"], {}
    for C, line in lines.items():
        last = line.schedule.graph.layers - 1

        def of_task(task, last=last):
            return shades(0.15 + 0.8 * task.layer / last)[:3], task.layer

        charts[f"Chunks of {C} steps"] = line, of_task
    return plots.gantt(charts, "worker", "a number is the layer of a task")


def figure_workers(rows) -> Figure:
    """Speed-up over workers: predicted lines, measured points with their range."""
    found = over_workers(rows)
    figure, ax = plots.panels(1, 4.2)
    ax.set(xlabel="workers, a core each", ylabel="speed-up over one thread")
    plots.ticks(ax, "xy", WORKERS)
    ax.set(xlim=(0.93, 34), ylim=(0.8, 18))
    ax.plot(WORKERS, WORKERS, "--", color=plots.GREY, linewidth=1)
    plots.note(ax, "ideal", (5, 5), (-6, 4), ha="right")
    shown, labels = rows[rows["way"] == "workers"], []
    for L, colour in zip(found, (plots.BLUE, plots.RED, plots.GREEN), strict=True):
        line = found[L]
        ax.plot(line.index, line, color=colour)
        labels.append((line.index[-1], line.iloc[-1], f"{L} layers", colour))
        for P in sorted(set(shown.loc[shown["L"] == L, "threads"])):
            lengths = shown.loc[(shown["L"] == L) & (shown["threads"] == P), "C"]
            every = [gain(rows, L=L, threads=P, C=C) for C in lengths.unique()]
            one = max(every, key=lambda gain: gain.middle)
            bars = [[one.middle - one.low], [one.high - one.middle]]
            ax.errorbar(P, one.middle, bars, fmt="o", color=colour, capsize=3)
    plots.label_lines(ax, labels)
    L, P = found.columns[-1], found.index[-1]
    ax.set_title(f"Predicted: {L} layers on {P} cores, {speed(found.loc[P, L])}")
    return figure


def figure_map(table) -> Figure:
    """How many times as fast layers are as the best division of a step; table: an
    interval for each shape (L, H, B), of one L.
    """
    table = table.droplevel("L")
    every = [Interval(*one) for one in table.itertuples(index=False)]
    words = ["level" if one.level else f"{one.middle:.2f}x" for one in every]
    ratios = [1.0 if one.level else one.middle for one in every]
    text = table.assign(text=words)["text"].unstack("H")
    value = np.log2(table.assign(ratio=ratios)["ratio"].unstack("H"))
    reach = max(1.0, value.abs().to_numpy().max())
    figure, ax = plots.panels()
    plots.heat(ax, value, text, cmap="PuOr", vmin=-reach, vmax=reach)
    ax.set(xlabel="hidden units", ylabel="samples")
    layers = sum(one.low > 1 for one in every)
    steps = sum(one.high < 1 for one in every)
    level = len(every) - layers - steps
    won = f"Layers faster in {layers} of {len(every)} shapes"
    ax.set_title(f"{won}, steps in {steps}, level in {level}")
    return figure


def reached(one: Interval) -> str:
    """Whether a speed-up was reached in every process, and what it is."""
    return f"{'reached' if one.low > 1 else 'not reached'}, {speed(one)}"


def chosen(units: int) -> str:
    """What division of its work `numba-fused` keeps for four layers of 30 steps, one
    sample: its first calls try them all.
    """
    work = Workload(L=4, T=30, D=units, H=units, B=1)
    net: Any = network("numba-fused", work.params())
    x, _ = work.example()
    settle(partial(net.forward, x))
    return net.partition(work.T, work.B).fastest or "one thread"


def refused(schedule: Schedule) -> str:
    """What the checker says of a wrong schedule; AssertionError where it takes it."""
    try:
        check_schedule(schedule)
    except ValueError as error:
        return str(error)
    raise AssertionError("the checker took a wrong schedule")


# Of a GPU, by `cards.rows`.

RUNS = {  # of the parts "layers" and "deep"
    "layers_in_turn": "GPU, layers in turn",
    "wavefront": "GPU, layers at the same time",
    "cuda-persistent": "GPU, `cuda-persistent`",
    "pytorch": "GPU, PyTorch's cuDNN",
    "pytorch-graph": "GPU, the same in a CUDA graph",
    "numba-wavefront": "CPU, layers at the same time",
    "numba-fused": "CPU, `numba-fused`",
}


def on_gpu(rows: pd.DataFrame) -> pd.DataFrame:
    """Seconds of inference of one sample by L, a row for each of RUNS that was
    measured.
    """
    stages = (rows["variant"] == "layers") & (rows["stage"] == "inference")
    stages |= (rows["variant"] == "deep") & (rows["stage"] == "forward")
    table = rows[stages].groupby(["version", "L"])["seconds"].median().unstack()
    return table.reindex([name for name in RUNS if name in table.index])


def table_gpu(rows: pd.DataFrame) -> pd.DataFrame:
    """`on_gpu` in milliseconds, as a table of texts."""
    table = on_gpu(rows)
    shown = (1e3 * table).map(lambda ms: "-" if pd.isna(ms) else digits(ms))
    shown.columns = [f"{counted(int(L), 'layer')} (ms)" for L in shown]
    return shown.rename(index=RUNS).rename_axis("run")


def say_gpu(rows: pd.DataFrame) -> str:
    """What the table says of S2's question, CPU or GPU; that it was not measured."""
    needed = {"layers_in_turn", "wavefront", "numba-wavefront"}
    table = on_gpu(rows) if not rows.empty else rows
    if not needed <= {*table.index}:
        return f"not measured ({cards.NONE}); [04](04_gpu_ladder.ipynb) has the kernels"
    whole = table.loc[[name for name in RUNS if name in needed]].dropna(axis=1)
    if whole.empty:
        return f"not measured at one depth ({cards.NONE})"
    deepest = whole.columns.max()
    turn, wave, cpu = (table[deepest][name] for name in RUNS if name in needed)
    return (
        f"with {deepest:.0f} layers and one sample the GPU gains {speed(turn / wave)}"
        " by running them at the same time, a block each; all cores of its host,"
        f" compared with that: {speed(wave / cpu)}"
    )


def show_gpu(nb: Any, rows: pd.DataFrame) -> None:
    """Show the table, if anything was measured, and what it says."""
    if not rows.empty:
        nb.table(table_gpu(rows))
    nb.say(f"- CPU compared with GPU (100 %): {say_gpu(rows)}.")
