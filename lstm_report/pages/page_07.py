"""Page 07: what it costs to hand a value to another core by each mechanism, and from
which size on two workers gain from sharing every step of one sequence.
"""

import pandas as pd
from matplotlib.figure import Figure

from lstm_kernels.ranks import launch
from lstm_kernels.schedules import Graph, by_samples, by_units, timed, wavefront

from .. import plots
from ..experiments import handover
from ..measure.evidence import Interval, at_least, digits, intervals, ratios, seconds

GOALS = {
    "faster with shared memory (OpenMP)": (
        "one sequence of an RNN of {units} units, two threads over one: by counters"
        " {threads}, by OpenMP {openmp}",
        "reached",
    ),
    "faster with CUDA": ("{card}", "not reached"),
    "faster with messages (MPI)": ("{units} units: {messages}", "reached"),
    "the cheapest way: memory, messages or a tier of caches": (
        "memory: a cache line, {line}; in one job a message takes {message} as long as"
        " a line; one tier of caches measured",
        "partly",
    ),
    "a framework's RNN for comparison": (
        "the packages compared are of LSTMs ([03](03_cpu_ladder.ipynb))",
        "not measured",
    ),
}
MECHANISMS = {
    "line": "cache line, two threads",
    "window": "cache line, two ranks",
    "message": "message",
    "openmp": "OpenMP region",
    "message from Python": "message from Python",
}
WAYS = {
    "threads": "threads, counters",
    "openmp": "threads, OpenMP",
    "window": "ranks, window",
    "messages": "ranks, messages",
}
COLOURS = {
    "line": plots.BLUE,
    "threads": plots.BLUE,
    "openmp": plots.GREEN,
    "window": plots.BLACK,
    "message": plots.RED,
    "messages": plots.RED,
}


def measure_mechanisms(few: bool) -> pd.DataFrame:
    """The rows of `handover.both`, of a job of two ranks; of threads alone where no
    jobs run.
    """
    if launch.why_unavailable():
        return handover.both(None, few)
    return launch.run(handover.__name__, "both", 2, {"few": few}, threads=2)


def figure_partitions() -> Figure:
    """Who computes what, and what crosses, where two workers share a pass: of a
    schedule each, a bar for what a worker does without the other.
    """
    panels = {
        "unit blocks": (by_units(Graph(1, 6, blocks=2), 2), "each step"),
        "samples": (by_samples(Graph(1, 6, samples=2), 2), "never"),
        "layers": (wavefront(Graph(2, 6), 2, chunk=2), "each chunk"),
    }
    figure, axes = plots.panels(1, 2, ncols=3)
    for ax, (shared, (schedule, often)) in zip(axes, panels.items(), strict=True):
        for part, begin, end, _ in timed(
            schedule, lambda _, part: part.stop - part.start
        ):
            row = schedule.tasks[part.task].worker
            colour = (plots.SKY, plots.ORANGE)[row]
            style = {"height": 0.94, "color": colour, "edgecolor": "white"}
            ax.barh(row, end - begin, left=begin, **style)
            if part.start == 0:
                box = {"color": colour, "pad": 1}
                ax.text(begin + 0.3, row, f"worker {row}", va="center", bbox=box)
        ax.set(ylabel=shared, xlim=(0, 8), xticks=[], yticks=range(2))
        ax.set_xlabel("time (steps)")
        ax.set_title(f"h crosses\n{often}", fontsize=11)
        ax.grid(visible=False)
    said = (f"{shared}, h crosses {often}" for shared, (_, often) in panels.items())
    figure.alt = f"Two workers share a pass by {'; by '.join(said)}."
    return figure


def relative(rows: pd.DataFrame, least: int = 8) -> pd.DataFrame:
    """How many times as long as a line of two threads each mechanism takes for so many
    bytes: a row per process. A region hands none over.
    """
    part = rows[(rows["stage"] == "hand over") & rows["bytes"].isin([0, least])]
    times = 1 / ratios(part, "line")
    return times[[name for name in MECHANISMS if name in times]]


def times_as_long(values: pd.Series) -> str:
    """Of ratios of time, one of each process: "4.1 times (2 to 4.5)"."""
    low, middle, high = map(digits, Interval.of(values))
    return f"{middle} times ({low} to {high})"


def figure_mechanisms(rows: pd.DataFrame) -> Figure:
    """How many times as long as a cache line each mechanism takes."""
    times = relative(rows)
    table = intervals(times.drop(columns="line") if len(times.columns) > 1 else times)
    figure, ax = plots.panels(1, 0.9 + 0.4 * len(table))
    ax.set(xlabel="times as long as a cache line (8 bytes, one way; log axis)")
    low, high = min(0.9, table["low"].min()), table["high"].max()
    shown = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
    plots.ticks(ax, "x", [value for value in shown if low / 1.5 < value < 2 * high])
    text = [digits(middle) for middle in table["middle"]]
    colours = [COLOURS[name.removesuffix(" from Python")] for name in table.index]
    plots.dots(ax, table.rename(MECHANISMS), text=text, colours=colours)
    ax.set_title("A message takes longer than a cache line")
    return figure


def of_size(rows: pd.DataFrame, H: int) -> pd.DataFrame:
    """The rows of the passes of H units."""
    return rows[(rows["stage"] == "forward") & (rows["H"] == H)]


def sizes(rows: pd.DataFrame) -> list[int]:
    """The hidden units of the passes, increasing."""
    return sorted(map(int, rows.loc[rows["stage"] == "forward", "H"].unique()))


def gain(
    rows: pd.DataFrame, H: int, way: str, baseline: str = handover.ONE
) -> Interval | None:
    """How many times as fast as a baseline a way is with H units; None where one of
    them was not measured.
    """
    part = of_size(rows, H)
    if not {way, baseline} <= set(part["case"]):
        return None
    return Interval.of(ratios(part, baseline)[way])


def every(found: list[Interval | None], least: float) -> bool | None:
    """Whether each is at least so large in every process; None where one was not
    measured.
    """
    if None in found:
        return None
    return all(at_least(one, least) for one in found if one is not None)


def exchange(rows: pd.DataFrame, way: str) -> Interval:
    """Seconds of what a step of PRICED units exchanges, without its work."""
    part = of_size(rows, handover.PRICED)
    return Interval.of(seconds(part)[f"{way}{handover.BARE}"] / part["T"].iloc[0])


def figure_speed(rows: pd.DataFrame) -> Figure:
    """Speed over one thread against the hidden units."""
    parts = []
    for H in sizes(rows):
        table = ratios(of_size(rows, H), handover.ONE).rename_axis(columns="case")
        parts.append(table.melt(ignore_index=False, value_name="speed").assign(H=H))
    table = pd.concat(parts).reset_index()
    order = [way for way in WAYS if way in set(table["case"])]
    table = table[table["case"].isin(order)]
    table = table.assign(case=pd.Categorical(table["case"], order, ordered=True))
    figure, ax = plots.panels(1, 4.2)
    shown = sizes(rows)
    ax.set(xlabel="hidden units (log axis)", ylabel="times as fast as one thread")
    plots.ticks(ax, "x", shown)
    ax.set(xlim=(0.9 * shown[0], 1.1 * shown[-1]))
    ax.set(ylim=(0, max(2.2, 1.08 * table["speed"].max())))
    plots.level(ax, 1, linestyle="--")
    plots.level(ax, 2, "twice as fast")
    plots.lines(ax, table, "H", "speed", "case", names=WAYS, colours=COLOURS, spread=1)
    ax.set_title("Two workers share a step: from 256 units on each way gains")
    return figure
