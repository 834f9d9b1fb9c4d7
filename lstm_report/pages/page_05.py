"""Page 05: stacks whose layers run at the same time; what two threads lose; layers
compared with dividing each step; a GPU and the cores of its host.
"""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numba import config

from lstm_kernels import cores
from lstm_kernels.schedules import (
    Costs,
    Graph,
    Schedule,
    layer_by_layer,
    wavefront,
)
from lstm_kernels.schedules import check as check_schedule
from lstm_kernels.simulate import simulate
from lstm_kernels.versions.numba_wavefront import NumbaWavefront

from .. import plots
from ..experiments.handover import on_two_threads
from ..experiments.timelines import waits
from ..measure.comparer import TOLERANCE, MismatchError, compare, truth
from ..measure.evidence import Interval
from ..measure.timing import interleaved, together, wait_until_idle
from ..measure.workloads import Workload

GOALS = {
    "good speed-up, given layers and cores (100 %)": (
        "forward, one sample: 8 layers on two cores {two}; {layers} layers on {cores}"
        " cores of another machine {many}, where its chunks allow {bound}",
        "partly",
    ),
    "some speed-up over layers (75 %)": ("8 layers on two cores: {two}", "reached"),
    "CPU compared with GPU (100 %)": (
        "{cores} cores are {ahead} times as fast as untuned kernels on an {card}",
        "partly",
    ),
    "backpropagation in parallel (125 %)": (
        "{back}, without the weight gradients",
        "reached",
    ),
    "one GPU compared with several (125 %)": (
        "built and tested, a process a device ([08](08_devices.ipynb))",
        "not measured",
    ),
}
CHUNK = 24  # steps, where the length of a chunk is not what is compared
SHORTEST = 32  # chunks of a sequence, the most that are autotuned
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

    "one": one thread, layer after layer; "workers": two threads; "streams": two
    independent passes at the same time, each on one thread in chunks. The last of
    `layers` is measured with every length of chunk; passes of one length are
    neighbours in each round.
    """
    deepest = layers[-1]
    keys = [("one", L, 1, T) for L in layers]
    keys += [("workers", L, 2, CHUNK) for L in layers[:-1]]
    keys += [("workers", deepest, 2, C) for C in lengths]
    streams = ("streams", deepest, 1, CHUNK)
    nets = {key: _network(key, T, H) for key in keys}
    pair = [_network(streams, T, H) for _ in range(2)]
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
    wait_until_idle()
    parts = []
    for stage in ("forward", "backward"):
        back = stage == "backward"
        lines: dict[tuple, list] = {key: [] for key in (*keys, streams)}

        def run(key, back=back, lines=lines):
            net = nets[key]
            net.backward(dy) if back else net.forward(x)
            lines[key].append(net.timeline(T, 1, back, back))
            return lines[key][-1].makespan

        def run_pair(lines=lines):
            on_two_threads(lambda first: pair[first].forward(x))
            both = [net.timeline(T, 1) for net in pair]
            lines[streams].append(both[0])
            return (both[0].makespan + both[1].makespan) / 2

        if back:
            for net in nets.values():
                net.forward(x, training=True)
        cases = {key: partial(run, key) for key in keys}
        cases |= {} if back else {streams: run_pair}
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


# The arguments of `measure_stacks`, and of `partitions.measure` for the map.
STACKS: dict[str, Any] = {
    "layers": (4, 8),
    "lengths": (6, 24, 80),
    "T": 240,
    "H": 256,
    "repeats": 9,
}
SMALL_STACKS: dict[str, Any] = {
    "layers": (2, 4),
    "lengths": (6, 24),
    "T": 96,
    "H": 16,
    "repeats": 2,
}
MAP: dict[str, Any] = {"layers": (4,), "units": (64, 128, 256, 512), "samples": (1, 8)}
MAP |= {"T": 30, "repeats": 3}
SMALL_MAP: dict[str, Any] = {"layers": (4,), "units": (32, 64), "samples": (1, 2)}
SMALL_MAP |= {"T": 10, "repeats": 2}


def part(rows, way, stage="forward", L=None, C=None) -> pd.DataFrame:
    """The rows of one case, of the deepest stack unless L is given."""
    found = rows[(rows["way"] == way) & (rows["stage"] == stage)]
    found = found[found["L"] == (L or rows["L"].max())]
    return found if C is None else found[found["C"] == C]


def workload(rows) -> str:
    """Its sizes, in words."""
    T, H, L = rows["T"].iloc[0], rows["H"].iloc[0], rows["L"].max()
    return f"{L} layers, {T} steps, {H} hidden units, one sample"


def gain(rows, stage="forward", L=None, C=CHUNK) -> Interval:
    """How many times as fast two threads are as one, layer after layer, over processes;
    of the deepest stack unless L is given.
    """
    keys = ["process", "repeat"]
    one = part(rows, "one", stage, L).set_index(keys)["seconds"]
    many = part(rows, "workers", stage, L, C).set_index(keys)["seconds"]
    return Interval.of((one / many).groupby("process").median())


def hand_over(rows) -> Interval:
    """Seconds from the end of a task to the start of one that waited for it on another
    thread, median of each process.
    """
    every = part(rows, "workers").groupby("process")["line"].agg(list)
    return Interval.of(
        [np.median([gap for line in lines for gap in waits(line)]) for lines in every]
    )


def losses(rows) -> dict[str, float]:
    """Seconds of the deepest stack forward on two threads, in parts that add up, of the
    pass of median length.
    """
    L, T = rows["L"].max(), rows["T"].iloc[0]
    one = part(rows, "one").groupby("process")["seconds"].median()
    passes = part(rows, "workers", C=CHUNK).sort_values("seconds")
    middle = passes.iloc[len(passes) // 2]
    alone, line, most = one[middle["process"]], middle["line"], bound(L, 2, T, CHUNK)
    busy = sum(span.stop - span.start for span in line.spans)
    parts = {
        "half of one thread's time": alone / 2,
        "idle ends: the bound": alone / most - alone / 2,
        "longer tasks": (busy - alone) / most,
        "synchronisation": sum(waits(line)) / 2,
    }
    rest = line.makespan - sum(parts.values())
    return parts | {"waits for a longer task": rest}


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


def figure_schedules(L=4, T=48, lengths=(48, 24, 4)) -> Figure:
    """A Gantt chart for each length of chunk, in steps: L layers of T steps on two
    workers, two layers at a time. To hand over takes a tenth of a step.
    """
    charts, costs = {}, Costs((1.0,) * L, hand=0.1)
    for C in lengths:
        plan = wavefront(Graph(L, T), 2, C, together=2, costs=costs)
        charts[f"Chunks of {C} steps"] = simulate(plan, costs), plots.by_layer(L)
    return plots.gantt(charts, "worker", "a number is the layer of a task")


def on_host(rows: pd.DataFrame) -> pd.DataFrame:
    """What the cores of a GPU's host gain by L over one layer after the other on one
    core, by median seconds; and the bound with the shortest chunk that is autotuned.
    """
    timed = rows[rows["version"] == "numba-wavefront"]
    took = timed.groupby("L")["seconds"].median()
    layers, T = took.index.to_numpy(int), int(timed["T"].iloc[0])
    table = pd.DataFrame({"gain": layers * took.loc[1] / took}, layers)
    table["bound"] = [bound(L, L, T, -(-T // SHORTEST)) for L in layers]
    return table


def figure_cores(rows, host) -> Figure:
    """Speed-up over the layers of a stack: points with their range here, points of the
    host, and the bounds. host: as `on_host` gives it.
    """
    figure, ax = plots.panels(1, 4.2)
    shown, T = (1, 2, 4, 8, 16), rows["T"].iloc[0]
    ax.set(xlabel="layers (log axis)", ylabel="times as fast as one core (log axis)")
    plots.ticks(ax, "xy", shown)
    ax.set(xlim=(0.93, 34), ylim=(0.85, 14))
    two = [1.0, *(bound(L, 2, T, CHUNK) for L in shown[1:])]
    ax.plot(shown, two, "--", color=plots.BLUE, linewidth=1)
    ax.plot(host["bound"], "--", color=plots.RED, linewidth=1)
    ax.plot(host["gain"], "^", color=plots.RED)
    for L in sorted(rows.loc[rows["way"] == "workers", "L"].unique()):
        one = gain(rows, L=L)
        bars = [[one.middle - one.low], [one.high - one.middle]]
        ax.errorbar(L, one.middle, bars, fmt="o", color=plots.BLUE, capsize=3)
    labels = [
        (16, two[-1], "bound, 2 cores", plots.BLUE),
        (16, host["bound"].iloc[-1], "bound, 16 cores", plots.RED),
        (16, host["gain"].iloc[-1], "16 cores", plots.RED),
    ]
    plots.label_lines(ax, labels)
    ax.set_title("Two cores come close to their bound, sixteen do not")
    return figure


def figure_map(table) -> Figure:
    """How many times as fast layers are as the best partition of a step; table: an
    interval for each shape (L, H, B), of one L.
    """
    table = table.droplevel("L")
    every = [Interval(*one) for one in table.itertuples(index=False)]
    words = ["no clear\ndifference" if x.level else f"{x.middle:.2f}x" for x in every]
    ratios = [1.0 if x.level else x.middle for x in every]
    text = table.assign(text=words)["text"].unstack("H")
    value = np.log2(table.assign(ratio=ratios)["ratio"].unstack("H"))
    reach = max(1.0, value.abs().to_numpy().max())
    figure, ax = plots.panels()
    plots.heat(ax, value, text, cmap="PuOr", vmin=-reach, vmax=reach)
    ax.set(xlabel="hidden units", ylabel="samples")
    ax.set_title("One sample and few units: layers are faster")
    return figure


def refused(schedule: Schedule) -> str:
    """The checker's message about a wrong schedule; AssertionError if it accepts it."""
    try:
        check_schedule(schedule)
    except ValueError as error:
        return str(error)
    raise AssertionError("the checker accepted a wrong schedule")
