"""Page 07: what a hand-over costs by each means, and from which size on two workers
gain from sharing every step of one sequence.
"""

import pandas as pd

from lstm_kernels.ranks import launch
from lstm_kernels.schedules import Graph, by_samples, by_units, timed, wavefront

from .. import cards, plots
from ..experiments import handover
from ..measure.evidence import (
    Interval,
    at_least,
    digits,
    intervals,
    mib,
    ns,
    ratios,
    seconds,
    speed,
    us,
)
from .facts import cache

MEANS = {
    "line": "cache line, two threads",
    "window": "window, two ranks",
    "message": "message",
    "collective": "collective",
    "openmp": "OpenMP region",
    "message from Python": "message from Python",
    "collective from Python": "collective from Python",
}
WAYS = {
    "threads": "threads, counters",
    "openmp": "threads, OpenMP",
    "window": "ranks, window",
    "messages": "ranks, messages",
    "collective": "ranks, collective",
}
COLOURS = {
    "line": plots.BLUE,
    "threads": plots.BLUE,
    "openmp": plots.GREEN,
    "window": plots.BLACK,
    "message": plots.RED,
    "messages": plots.RED,
    "collective": plots.PURPLE,
}


def measure_means(few: bool) -> pd.DataFrame:
    """The rows of `handover.both`, of a job of two ranks; of threads alone where no
    jobs run.
    """
    if launch.why_unavailable():
        return handover.both(None, few)
    return launch.run(handover.__name__, "both", 2, {"few": few}, threads=2)


def figure_partitions():
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


def relative(rows, least=8):
    """How many times as long as a line of two threads each means takes for so many
    bytes: a row per process. A region hands none over.
    """
    part = rows[(rows["stage"] == "hand over") & rows["bytes"].isin([0, least])]
    times = 1 / ratios(part, "line")
    return times[[name for name in MEANS if name in times]]


def figure_hand_overs(rows):
    """How many times as long as a cache line each means takes."""
    times = relative(rows)
    table = intervals(times.drop(columns="line") if len(times.columns) > 1 else times)
    figure, ax = plots.panels(1, 0.9 + 0.4 * len(table))
    ax.set(xlabel="times as long as a cache line (8 bytes, one way)")
    low, high = min(0.9, table["low"].min()), table["high"].max()
    shown = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
    plots.ticks(ax, "x", [value for value in shown if low / 1.5 < value < 2 * high])
    text = [f"{digits(middle)}x" for middle in table["middle"]]
    colours = [COLOURS[name.removesuffix(" from Python")] for name in table.index]
    plots.dots(ax, table.rename(MEANS), text=text, colours=colours)
    title = "Threads alone, without messages"
    if "message" in table.index:
        title = against_line(Interval(*table.loc["message"]))
    ax.set_title(title)
    values = (f"{MEANS[n]} {t}" for n, t in zip(table.index, text, strict=True))
    figure.alt = f"{title}. Dots on a log axis of ratios: {'; '.join(values)}."
    return figure


def against_line(ratio):
    """The finding in words: how long a message takes, compared with a line."""
    if ratio.level:
        return "A message and a cache line take as long"
    return f"A message takes {digits(ratio.middle)}x as long as a cache line"


def of_messages(rows):
    """How many times as long as a line and as a window a message takes."""
    times = relative(rows)
    if "message" not in times:
        return {}
    return {
        "a line": Interval.of(times["message"]),
        "a window": Interval.of(times["message"] / times["window"]),
    }


def as_long(found):
    """What `of_messages` found, in words."""
    said = (f"{_ratio(x)} as long as {name}" for name, x in found.items())
    return ", ".join(said) or "not measured"


def told(found):
    """Named Intervals of ratios in words."""
    return "; ".join(f"{name}: {_ratio(x)}" for name, x in found.items())


def _ratio(x):
    return f"{digits(x.middle)}x ({digits(x.low)}x to {digits(x.high)}x)"


def every(found, least):
    """Whether each of some Intervals by name is at least so large; None of none."""
    return all(at_least(x, least) for x in found.values()) if found else None


def say_hand_overs(rows):
    """What the figure says of attributions, in words; "" without ranks."""
    times, large = relative(rows), relative(rows, 1024)
    if "message" not in times:
        return "Messages were not measured."
    window = Interval.of(times["window"])
    python = Interval.of(times["message from Python"] / times["message"])
    both = Interval.of(large["message"])
    return (
        f"Line and window are the same loop: a window takes {_ratio(window)} as long. "
        f"From Python a message takes {_ratio(python)} as long as from compiled code. "
        f"With 1 KiB a message takes {_ratio(both)} as long as the loop of lines: by "
        "any means 16 more lines have to cross."
    )


def speeds(rows):
    """How many times as fast as one thread: a row per process, H and way."""
    parts = []
    for H in sizes(rows):
        ratio = ratios(of_size(rows, H), handover.ONE)
        ratio = ratio[[way for way in WAYS if way in ratio]].rename_axis(columns="case")
        parts.append(ratio.melt(ignore_index=False, value_name="speed").assign(H=H))
    return pd.concat(parts).reset_index()


def sizes(rows):
    """The hidden units of the passes, increasing."""
    return sorted(map(int, rows.loc[rows["stage"] == "forward", "H"].unique()))


def of_size(rows, H):
    """The rows of the passes of H units."""
    return rows[(rows["stage"] == "forward") & (rows["H"] == H)]


def gains(rows, H, ways=WAYS, baseline=handover.ONE):
    """The Interval of each way's speed at H, by the way's name in words."""
    table = ratios(of_size(rows, H), baseline)
    return {WAYS[w]: Interval.of(table[w]) for w in WAYS if w in ways and w in table}


def of_windows(rows, some):
    """How many times as fast as ranks with messages those with a window are, by H."""
    if "messages" not in set(rows["case"]):
        return {}
    found = {H: gains(rows, H, {"window"}, "messages") for H in some}
    return {f"H = {H}": x[WAYS["window"]] for H, x in found.items()}


def pays_from(rows):
    """Of each way, the H from which it is faster than one thread in every process, at
    every larger size too; None: at no size.
    """
    low = speeds(rows).groupby(["case", "H"])["speed"].min().unstack("H")
    found = {}
    for way in (name for name in WAYS if name in low.index):
        later = low.columns[(low.loc[way] > 1)[::-1].cummin()[::-1]]
        found[way] = int(later[0]) if len(later) else None
    return found


def where_it_pays(pays):
    """The finding in words: in memory that both share, and by messages."""
    memory = min(filter(None, map(pays.get, ("threads", "window"))), default=None)
    means = {"in memory": memory}
    if "messages" in pays:
        means["by messages"] = pays["messages"]
    if not any(means.values()):
        return "Sharing pays at no size in every job"
    said = (f"from H = {H} {how}" if H else f"never {how}" for how, H in means.items())
    return f"Sharing pays {', '.join(said).replace(', from H =', ',')}"


def figure_speed(rows):
    """Speed over one thread against the hidden units."""
    table = speeds(rows)
    order = [name for name in WAYS if name in set(table["case"])]
    table = table.assign(case=pd.Categorical(table["case"], order, ordered=True))
    figure, ax = plots.panels(1, 4.2)
    shown = sizes(rows)
    ax.set(xlabel="hidden units H", ylabel="speed (one thread = 1)")
    plots.ticks(ax, "x", shown)
    ax.set(xlim=(0.9 * shown[0], 1.1 * shown[-1]))
    ax.set(ylim=(0, 1.08 * table["speed"].max()))
    plots.level(ax, 1, linestyle="--")
    plots.level(ax, 2, "twice as fast")
    plots.lines(ax, table, "H", "speed", "case", names=WAYS, colours=COLOURS, spread=1)
    ax.set_title(where_it_pays(pays_from(rows)))
    pays = (f"{WAYS[way]}: {H or 'none'}" for way, H in pays_from(rows).items())
    figure.alt = (
        f"Speed compared with one thread over hidden units {shown[0]} to {shown[-1]}. "
        f"Faster in every job from H = ({'; '.join(pays)})."
    )
    return figure


def half_step(H, roof, line):
    """How long half of a step takes a core at least, in words. roof: its GFLOP/s;
    line: seconds of a hand-over, or None.
    """
    half = 2 * H * H / (1e9 * roof.middle)  # H squared multiply-adds
    text = f"Half of a step of {H} units has {H * H} multiply-adds, which take a core "
    text += f"at least {us(half)}"
    return f"{text}: {digits(half / line.middle)} hand-overs." if line else f"{text}."


def say_line(line):
    """Seconds of a hand-over in words; None where there is one core."""
    return "a time not measured on one core" if line is None else ns(line)


def say_window(rows):
    """Ranks with a window, compared with threads at the least and at the largest size;
    "" without ranks.
    """
    found = {H: gains(rows, H, {"window"}, "threads") for H in sizes(rows)}
    ends = [f"{speed(x[WAYS['window']])} at H = {H}" for H, x in found.items() if x]
    if not ends:
        return ""
    return (
        "Ranks with a window run the loop of the threads, but none does what another "
        f"has; compared with threads: {ends[0]}, {ends[-1]}."
    )


def say_caches(H):
    """What one core and each of two read in a step, and what its cache holds."""
    whole, size = 8 * H * H, cache()  # U and W, float32
    holds = mib(size) if size else "an unknown size"
    text = f"One core reads {mib(whole)} of weights in a step of {H} units, each of two"
    return f"{text} {mib(whole / 2)}; its second-level cache holds {holds}."


def parts(rows, H=handover.PRICED):
    """Seconds of a step of H units: a row per process, a column per case."""
    part = of_size(rows, H)
    return seconds(part) / part["T"].iloc[0]


def prices(rows):
    """Of each way: what a step exchanges, timed without work; what a shared step takes
    beyond half a step of one thread; from which H it pays.
    """
    steps, found = parts(rows), {}
    for way, pays in pays_from(rows).items():
        found[WAYS[way]] = {
            "exchange alone": ns(Interval.of(steps[f"{way}{handover.BARE}"])),
            "sharing adds": ns(Interval.of(steps[way] - steps[handover.ONE] / 2)),
            "faster from H, in every job": str(pays or "none of these"),
        }
    return pd.DataFrame(found).T.rename_axis("way")


def say_parts(rows):
    """What two halves add, what is left of what sharing adds, and whether exchanges
    order the ways as what sharing adds does.
    """
    steps = parts(rows)
    if handover.HALVES not in steps:
        return "The parts of a step of ranks were not measured."
    half = steps[handover.ONE] / 2
    both = steps[handover.HALVES] - half
    ways = [way for way in WAYS if way in steps]
    exchange = {way: steps[f"{way}{handover.BARE}"].median() for way in ways}
    adds = {way: (steps[way] - half).median() for way in ways}
    left = {
        WAYS[way]: (steps[way] - half - both - steps[f"{way}{handover.BARE}"]).median()
        for way in ways
    }
    least, most = min(left, key=left.get), max(left, key=left.get)
    same = sorted(ways, key=exchange.get) == sorted(ways, key=adds.get)
    return (
        "Two halves at the same time that exchange nothing add "
        f"{ns(Interval.of(both))}. What neither they nor the exchange account for is "
        f"{ns(left[least])} ({least}) to {ns(left[most])} ({most}). Both columns order "
        f"the ways {'alike' if same else 'differently'}."
    )


def say_crossing(rows):
    """A message of 8 bytes and a region, compared by a crossing alone and by the
    exchange of a step.
    """
    times, steps = relative(rows), parts(rows)
    bare = [f"{way}{handover.BARE}" for way in ("messages", "openmp")]
    if "message" not in times or not set(bare) <= set(steps):
        return ""
    alone = Interval.of(times["message"] / times["openmp"])
    step = Interval.of(steps[bare[0]] / steps[bare[1]])
    return (
        f"A message of 8 bytes takes {_ratio(alone)} as long as an OpenMP region; the "
        f"messages of a step, {handover.PRICED // 2} units each way, {_ratio(step)} as "
        "long as its region."
    )


def learned(rows):
    """From which H each way pays, in words."""
    pays = pays_from(rows).items()
    return "; ".join(f"{WAYS[way]}: {H or 'nowhere'}" for way, H in pays)


# Of a GPU, by `cards.rows`.

RUNS = {
    "rnn": "GPU, one block (ms)",
    "rnn_grid": "GPU, all blocks (ms)",
    "numba-fused": "CPU, all cores (ms)",
}


def on_gpu(rows: pd.DataFrame) -> pd.DataFrame:
    """Seconds of inference of an RNN, one sequence, by hidden units and version."""
    part = rows[rows["variant"] == "units"]
    table = part.groupby(["H", "version"])["seconds"].median().unstack()
    return table.reindex(columns=[name for name in RUNS if name in table])


def table_gpu(rows: pd.DataFrame) -> pd.DataFrame:
    """`on_gpu` in milliseconds, as a table of texts."""
    shown = (1e3 * on_gpu(rows)).map(digits).rename(columns=RUNS)
    shown.index = shown.index.astype(int).astype(str)
    return shown.rename_axis("hidden units")


def say_gpu(rows: pd.DataFrame) -> str:
    """What the table says of S3's question, or that it was not measured."""
    table = on_gpu(rows) if not rows.empty else rows
    if len({*RUNS} & {*table}) < len(RUNS) or (table := table.dropna()).empty:
        return f"On a GPU it was not timed ({cards.NONE})."
    grid = table["rnn"] / table["rnn_grid"]
    over = table["numba-fused"] / table["rnn_grid"]
    won = [f"{H:.0f}" for H, ratio in over.items() if ratio > 1]
    where = f"with {', '.join(won)} units" if won else "at no size"
    return (
        "On a GPU a hand-over is a barrier of a block, or of all blocks. All blocks"
        f" gain {speed(grid.min())} to {speed(grid.max())} over one. They are faster"
        f" than the host's cores {where}: those take {digits(over.min())} to"
        f" {digits(over.max())} times as long."
    )
