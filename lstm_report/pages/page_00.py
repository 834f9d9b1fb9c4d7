"""Page 0, the summary: what five projects hoped for and what is found here, from the
rows of the pages that answer them; and which division of the work wins where.
"""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import lstm_kernels as lk

from .. import plots
from ..measure.comparer import compare_to_reference
from ..measure.evidence import Interval, at_least, digits, intervals, ratios, speed
from ..measure.timing import interleaved, together
from ..measure.workloads import Workload
from . import page_03, page_05, page_06

SHAPES = (  # L, T, H, B
    (1, 12, 32, 16),
    (1, 100, 128, 64),
    (2, 50, 256, 4),
    (1, 100, 64, 1),
    (1, 100, 512, 1),
    (8, 100, 256, 1),
)
SMALL_FORMS = {"shapes": SHAPES[:2], "rnn": 96, "repeats": 2}
FORMS = {"shapes": SHAPES, "rnn": 1024, "repeats": 5}
RNN = "inference of an RNN"
PROJECTS = {  # name: what it is and hopes for, the pages that answer it
    "CSC14116": (
        "a course's LSTM by hand, trained on a series: 5x, then 10x, by a GPU",
        "[03](03_cpu_ladder.ipynb), [04](04_gpu_ladder.ipynb)",
    ),
    "Layer-parallel": (
        "a stack's layers at the same time in C++: good, given the cores",
        "[05](05_layers.ipynb)",
    ),
    "15-418": (
        "a course's RNN inference by OpenMP, CUDA, MPI: which hand-over is cheapest",
        "[07](07_handover.ipynb)",
    ),
    "Optim-LSTM": (
        "five optimisations of eight products a cell on a GTX 1080: 7.98x",
        "[06](06_optimisations.ipynb), [09](09_bytes.ipynb)",
    ),
    "MXNet page": (
        "a tutorial: groups of layers on several GPUs, as a pipeline",
        "[08](08_devices.ipynb)",
    ),
}
WORDS = {
    "one thread": "one thread",
    "samples": "by samples",
    "units": "by units of a step",
    "layers": "by layers",
}


NO_SECOND = "not measured: it takes two cores", "open"


def measure_forms(
    shapes: tuple[tuple[int, ...], ...], rnn: int, repeats: int
) -> pd.DataFrame:
    """Seconds of inference by `numba-fused` on one thread and on two, by `network`;
    `found`: the division of the work that it chose. rnn: units of one sequence's RNN.
    """
    parts = []
    for L, T, H, B in (*shapes, (1, 100, rnn, 1)):
        cell: Any = "rnn" if rnn == H else "lstm"
        work = Workload(L=L, T=T, D=H, H=H, B=B)
        name = f"{L} x {H} units, {T} steps, {B} sample{'s' * (B > 1)}"
        params, (x, _) = work.params(cell=cell), work.example()
        nets: dict[str, Any] = {
            f"{t}": lk.network("numba-fused", params, threads=t) for t in (1, 2)
        }
        for net in nets.values():
            compare_to_reference(net, params, np.ascontiguousarray(x[:5, :2]))
        passes = {case: partial(net.forward, x) for case, net in nets.items()}
        times = interleaved(passes, repeats=repeats, wait=True)
        fastest = nets["2"].partition(T, B, "forward").fastest or "one thread"
        name = RNN if rnn == H else name
        parts.append(times.assign(network=name, found=fastest.partition(",")[0]))
    return together(parts)


def two_threads(rows: pd.DataFrame, network: str = RNN) -> Interval:
    """How many times as fast two threads are."""
    return Interval.of(ratios(rows[rows["network"] == network], "1")["2"])


def networks(rows: pd.DataFrame) -> list[str]:
    """Those of the table, in order."""
    return [name for name in rows["network"].unique() if name != RNN]


def worst(rows: pd.DataFrame) -> Interval:
    """Of two threads' gains that with the least top."""
    found = (two_threads(rows, name) for name in networks(rows))
    return min(found, key=lambda interval: interval.high)


def best(rows: pd.DataFrame) -> Interval:
    """Of two threads' gains that with the largest bottom."""
    found = (two_threads(rows, name) for name in networks(rows))
    return max(found, key=lambda interval: interval.low)


def level_or_faster(one: Interval) -> bool:
    """Whether it is not slower in every process."""
    return one.high >= 1


def choices(rows: pd.DataFrame, network: str) -> pd.Series:
    """How many processes chose each division, the most first."""
    part = rows[rows["network"] == network]
    return part.groupby("process")["found"].first().value_counts()


def table_forms(rows: pd.DataFrame) -> pd.DataFrame:
    """For each network the division that processes chose, and what two threads gain."""
    lines = {}
    for network in networks(rows):
        chosen = choices(rows, network)
        words = [f"{WORDS[name]} ({count})" for name, count in chosen.items()]
        words = words if len(chosen) > 1 else [WORDS[str(chosen.index[0])]]
        lines[network] = ", ".join(words), speed(two_threads(rows, network))
    columns = ["chosen division", "two threads, compared with one"]
    frame = pd.DataFrame.from_dict(lines, orient="index", columns=columns)
    return frame.rename_axis("network (inference)")


def rules(rows: pd.DataFrame) -> str:
    """A list in Markdown: each division, and the networks most of whose processes
    chose it.
    """
    found: dict[str, list[str]] = {}
    for network in networks(rows):
        found.setdefault(str(choices(rows, network).index[0]), []).append(network)
    lines = (f"- {WORDS[way]}: {'; '.join(names)}" for way, names in found.items())
    return "\n".join(f"{line}." for line in lines)


def answers(
    ladder: pd.DataFrame,
    stacks: pd.DataFrame | None,
    forms: pd.DataFrame | None,
    passes: pd.DataFrame,
) -> pd.DataFrame:
    """The table of the projects: hope, what is found here, a verdict, pages. stacks,
    forms: None on one core.
    """
    fused, over = page_03.whole(ladder), page_03.over_numpy(ladder)
    every = page_06.gain_of_all(passes)
    found = {
        "CSC14116": (
            f"on one core {speed(fused)} over plain loops, {speed(over)} over NumPy",
            "reached" if at_least(fused, 10) else "not reached",
        ),
        "Layer-parallel": NO_SECOND,
        "15-418": NO_SECOND,
        "Optim-LSTM": (
            f"all of them, on a CPU: {speed(every)}",
            "reached" if at_least(every, 7.98) else "a CPU gains less",
        ),
        "MXNet page": (
            "less memory a process; the pipeline idles at its ends",
            "on processes, not on GPUs",
        ),
    }
    if stacks is not None and forms is not None:
        layers, rnn = page_05.gain(stacks), two_threads(forms)
        found["Layer-parallel"] = (
            f"8 layers on two threads: {speed(layers)}",
            "reached on two cores" if at_least(layers, 1.6) else "partly",
        )
        found["15-418"] = (
            f"one sequence on two threads: {speed(rnn)}; writing where the other core"
            " reads is the cheapest hand-over",
            "threads pay" if rnn.low > 1 else "threads do not pay here",
        )
    lines = {
        name: (hope, *found[name], pages) for name, (hope, pages) in PROJECTS.items()
    }
    columns = ["hoped for", "found here", "verdict", "page"]
    frame = pd.DataFrame.from_dict(lines, orient="index", columns=columns)
    return frame.rename_axis("project")


def learned(table: pd.DataFrame) -> str:
    """The table as a list in Markdown."""
    lines = zip(table.index, table["found here"], table["verdict"], strict=True)
    return "\n".join(f"- **{name}**: {found} ({held})." for name, found, held in lines)


def figure_ladder(ladder: pd.DataFrame) -> Figure:
    """Training by each rung on one thread, over plain loops."""
    shown = intervals(page_03.over_plain(ladder)[list(page_03.RUNGS)])
    figure, ax = plots.panels(1, 0.6 + 0.42 * len(shown))
    ax.set_xscale("log")
    colours = [plots.COLOURS.get(name, plots.BLUE) for name in shown.index]
    plots.dots(ax, shown, colours=colours)
    ax.set_xlabel("times as fast as plain loops (log axis)")
    best = digits(shown["middle"].max())
    ax.set_title(f"One core: {best} times as fast as plain loops")
    return figure
