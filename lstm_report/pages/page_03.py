"""Page 3, the ladder on a CPU: its rungs, every factor between them, its table."""

import ast
import inspect
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

import lstm_kernels as lk
from lstm_kernels import Version
from lstm_kernels.cells import CELLS
from lstm_kernels.cpu import registers
from lstm_kernels.cpu.micro_kernels import multiply_add
from lstm_kernels.schedules import Graph, by_samples, layer_by_layer

from .. import plots
from ..experiments import rungs
from ..lesson import mistakes
from ..measure import compare_to_reference
from ..measure.comparer import TOLERANCE, compare
from ..measure.evidence import (
    Interval,
    ahead,
    digits,
    intervals,
    ratios,
    seconds,
    speed,
)
from ..measure.timing import interleaved, summary, together
from ..measure.workloads import AIRLINE, Workload, airline_dataset
from ..notebook import Shared

RATE = 1e-3
RUNGS: tuple[Any, ...] = (
    "sequential",
    "numpy-sample",
    "numpy-naive",
    "numpy",
    "numba-sample",
    "numba-tile",
    "numba-fused",
)
# From plain loops to the last rung, each idea added to the ones before it: what a
# training step runs without it, and with it.
IDEAS = {
    "loops compiled": ("sequential", "loops"),
    "cell in vector code": ("loops", "vector cell"),
    "eight rows at a time": ("vector cell", "numba-sample"),
    "four samples at a time": ("numba-sample", "numba-tile"),
    "one call a step": ("numba-tile", "one call"),
    "no gradient of x": ("one call", "no dx"),
    "memory kept": ("no dx", "kept"),
    "one call an epoch": ("kept", "epoch"),
    "weights in panels": ("epoch", "panels"),
    "sums in registers": ("panels", "stored"),
    "cell on registers": ("stored", "numba-fused"),
}
FIRST = next(iter(IDEAS))
LEFT = "left over"
# Three ideas that end what a call from Python costs.
CALLS = "one call a step", "memory kept", "one call an epoch"


def largest_errors(names: tuple[Any, ...] = RUNGS) -> float:
    """The largest relative error of versions, three cells forward and backward from
    random states, beside the reference in float64; MismatchError beyond the tolerance.
    """
    x = np.random.default_rng(0).standard_normal((6, 5, 3)).astype(np.float32)
    cells: Any = CELLS
    stacks = [lk.Params.init(3, 17, num_layers=2, cell=cell) for cell in cells]
    return max(compare_to_reference(n, params, x) for n in names for params in stacks)


def wrong_over_time(runs: int = 50) -> dict[str, Any]:
    """Threads over time, which is wrong: what the comparer says where the second half
    of the steps runs first, the last step that is right, and how many of so many runs
    on this machine's threads it catches. Raises AssertionError where it sees nothing.
    """
    params = lk.Params.init(1, 32, seed=1)
    x = np.random.default_rng(0).standard_normal((48, 16, 1)).astype(np.float32)
    right, _ = lk.network("numpy", params).forward(x)
    late = mistakes.second_half_first(params, x)
    said = mistakes.caught(late, right)
    assert said
    assert not mistakes.caught(right, right)
    found = [mistakes.parallel_over_time(params, x) for _ in range(runs)]
    return {
        "said": said,
        "last": int(np.argmax(np.abs(late - right).max(axis=(1, 2)) > 1e-3)) - 1,
        "caught": sum(mistakes.caught(y, right) is not None for y in found),
        "runs": runs,
    }


def heart() -> str:
    """`multiply_add` without its docstring, the loop that all time is spent in."""
    function = ast.parse(inspect.getsource(multiply_add)).body[0]
    assert isinstance(function, ast.FunctionDef)
    lines = inspect.getsource(multiply_add).splitlines()
    return "\n".join([lines[0], *lines[function.body[0].end_lineno :]])


def chain(params: lk.Params, work: Workload, count: int) -> dict[str, Callable]:
    """What runs `count` training steps on one thread, by the names in IDEAS; compared
    with the reference after its first steps.
    """
    many = work.dataset(count * work.B)
    xs = many.x.reshape(work.T, count, work.B, work.D).swapaxes(0, 1).copy()
    targets, order = many.target.reshape(count, work.B, 1), np.arange(len(many))

    def by_steps(net):
        for x, target in zip(xs, targets, strict=True):
            net.step(x, target, RATE)

    nets: dict[str, Any] = {}
    nets |= {name: lk.network(name, params, threads=1) for name in RUNGS[1:]}
    nets |= {
        "loops": rungs.Loops(params, 1),
        "vector cell": rungs.VectorCell(params, 1),
    }
    nets["stored"] = rungs.StoredFused(params, 1)
    cases: dict[str, Callable] = {}
    cases |= {name: partial(by_steps, net) for name, net in nets.items()}
    for name in ("stored", "numba-fused"):
        cases[name] = partial(nets[name].epoch, many, order, work.B, RATE)
    widths = {"panels": rungs.PANEL}
    steps = {
        name: rungs.Steps(params, xs, targets, RATE, widths.get(name))
        for name in ("one call", "no dx", "kept", "epoch", "panels")
    }
    cases["one call"] = steps["one call"].one_call_a_step
    cases["no dx"] = partial(steps["no dx"].one_call_a_step, inputs=False)
    cases["kept"] = partial(steps["kept"].one_call_with, steps["kept"].kept())
    for name in ("epoch", "panels"):
        cases[name] = partial(steps[name].epoch, steps[name].kept())
    for case in cases.values():
        case()
    want = nets["numpy"].params().arrays()
    found = {name: net.params().arrays() for name, net in nets.items()}
    for got in (found | {name: one.arrays() for name, one in steps.items()}).values():
        compare(got, want, TOLERANCE[np.dtype(np.float32)])
    return cases


def measure_ladder(
    works: dict[str, Workload],
    windows: tuple[int, ...],
    repeats: int,
    rounds: tuple[int, int],
    least: tuple[float, float],
) -> pd.DataFrame:
    """Seconds in one process, a row a repeat, by `part` of the page, `work`, `case`.

    works: by name, the first the airline network, the second too large for plain loops,
    which take a sample and two steps of it. windows: sizes of data sets. rounds: of the
    factors at both sizes: many, for a core is slower now and then, and a pair is short.
    least: seconds for which a case runs at a time. Of the factors: so long that caches
    which another case has filled do not count. Of compiled loops beside plain ones:
    as long as these take, so that both find the core at its mean speed.
    """
    parts = []

    def timed(work, groups, repeats=repeats, least=2e-3):
        """Cases by part in one loop, so that its drift meets all parts alike; those of
        a part are neighbours in each round.
        """
        cases = {
            (part, c): f for part, group in groups.items() for c, f in group.items()
        }
        blocks = [[(part, c) for c in group] for part, group in groups.items()]
        times = interleaved(cases, repeats=repeats, least=least, blocks=blocks)
        times["part"], times["case"] = times["case"].str[0], times["case"].str[1]
        parts.append(times.assign(work=work))

    small, _ = works
    for (name, work), count in zip(works.items(), rounds, strict=True):
        params, share = work.params(), replace(work, T=2, B=1)
        cases = chain(params, work, count=TIMED // work.B if name == small else 2)
        x, target = (work if name == small else share).example()
        plain: dict[str, Callable] = {
            "sequential": partial(
                lk.network("sequential", params).step, x, target, RATE
            ),
            "loops": partial(rungs.Loops(params, 1).step, x, target, RATE),
        }
        rest = (idea for idea in IDEAS if idea != FIRST)
        groups = {idea: {case: cases[case] for case in IDEAS[idea]} for idea in rest}
        others = RUNGS[1:] if name == small else ("numpy", "numba-fused")
        groups["whole"] = {case: cases[case] for case in ("loops", *others)}
        timed(name, groups, count, least[0])
        timed(name, {FIRST: plain}, 2 * repeats, least[1])

    airline = works[small]
    params, (x, target) = airline.params(), airline.example()
    nets = {rung: lk.network(rung, params, threads=1) for rung in RUNGS}
    groups = {
        stage: {rung: call(net, stage, x, target) for rung, net in nets.items()}
        for stage in ("forward", "gradients", "step")
    }
    timed(small, groups)
    nets["all cores"] = lk.network("numba-fused", params)
    for N in windows:
        many = airline.dataset(N)
        for words, B in (("16 samples a step", 16), ("8 steps", N // 8)):
            of_size = {
                f"{rung}, {words}": epoch(nets[rung], many, B)
                for rung in ("numpy", "numba-fused", "all cores")
            }
            timed(small, {"size": of_size})
            parts[-1]["windows"] = N
    return together(parts)


TIMED = 96  # windows, six steps of the airline network


def epoch(net: Any, dataset: Any, batch_size: int) -> Callable:
    """Steps on the windows of a data set."""
    return partial(net.epoch, dataset, np.arange(len(dataset)), batch_size, RATE)


def call(net: Any, stage: str, x: np.ndarray, target: np.ndarray) -> Callable:
    """A forward pass for training, or all gradients, or a whole training step."""
    calls = {
        "forward": partial(net.forward, x, training=True),
        "gradients": partial(net.loss_and_grads, x, target),
        "step": partial(net.step, x, target, RATE),
    }
    return calls[stage]


SMALL, LARGE = "32 units", "512 units"
WIDE = Workload(L=1, T=4, D=512, H=512, B=16)
LADDER = Shared(
    measure_ladder,
    smoke={
        "works": {SMALL: AIRLINE, LARGE: Workload(1, 2, 512, 512, 4)},
        "windows": (64, 128),
        "repeats": 2,
        "rounds": (2, 2),
        "least": (2e-3, 2e-3),
    },
    paper={
        "works": {SMALL: AIRLINE, LARGE: WIDE},
        "windows": (128, 512, 2048),
        "repeats": 5,
        "rounds": (25, 10),
        "least": (0.02, 0.15),
    },
)


def of_part(rows: pd.DataFrame, name: str, work: str = SMALL) -> pd.DataFrame:
    return rows[(rows["part"] == name) & (rows["work"] == work)]


def factors(rows: pd.DataFrame, work: str) -> pd.DataFrame:
    """The gain of each idea, with it compared with without it: a row a process."""
    found = {
        idea: ratios(of_part(rows, idea, work), without)[with_it]
        for idea, (without, with_it) in IDEAS.items()
    }
    return pd.DataFrame(found)


def over_plain(rows: pd.DataFrame, work: str = SMALL) -> pd.DataFrame:
    """How many times as fast as plain loops each case of the whole trains, a row a
    process: what compiled loops gain, times how many times as fast as these it is.
    Plain loops take long, and are timed beside compiled ones alone.
    """
    plain, compiled = IDEAS[FIRST]
    loops = ratios(of_part(rows, FIRST, work), plain)[compiled]
    table = ratios(of_part(rows, "whole", work), compiled).mul(loops, axis="index")
    return table.assign(**{plain: 1.0})


def wholes(rows: pd.DataFrame, work: str) -> pd.Series:
    """How many times as fast as plain loops the last rung trains, by process."""
    return over_plain(rows, work)["numba-fused"]


def whole(rows: pd.DataFrame, work: str = SMALL) -> Interval:
    """The Interval over processes of that."""
    return Interval.of(wholes(rows, work))


def over_numpy(rows: pd.DataFrame, work: str = SMALL) -> Interval:
    """How many times as fast as `numpy` the last rung trains, on one thread."""
    return Interval.of(ratios(of_part(rows, "whole", work), "numpy")["numba-fused"])


def waterfall(rows: pd.DataFrame, work: str) -> pd.DataFrame:
    """Intervals of the factors in order, and of what is left over: the whole over their
    product. Its middle is that of the medians, which a reader multiplies.
    """
    found = factors(rows, work)
    table = intervals(found)
    middle = whole(rows, work).middle / table["middle"].prod()
    left = [middle, *(wholes(rows, work) / found.prod(axis=1))]
    table.loc[LEFT] = min(left), middle, max(left)
    return table


def gain(rows: pd.DataFrame, idea: str, work: str = SMALL) -> Interval:
    return Interval(*waterfall(rows, work).loc[idea])


def price_of_calls(rows: pd.DataFrame, work: str = SMALL) -> Interval:
    """What the ideas of CALLS gain together."""
    return Interval.of(factors(rows, work)[list(CALLS)].prod(axis=1))


def off(rows: pd.DataFrame, work: str) -> float:
    """How far the product of the factors is from the whole, as a fraction of it."""
    return abs(1 / gain(rows, LEFT, work).middle - 1)


def accounted(rows: pd.DataFrame, within: float) -> bool:
    """Whether it is at most so much, at both sizes."""
    return all(off(rows, work) <= within for work in (SMALL, LARGE))


def calls_and_tile(rows: pd.DataFrame) -> bool:
    """Whether calls gain more than the tile at the small size, less at the large one,
    in every process.
    """
    tile = "four samples at a time"
    small = ahead(price_of_calls(rows), gain(rows, tile))
    return small and ahead(gain(rows, tile, LARGE), price_of_calls(rows, LARGE))


def largest(rows: pd.DataFrame, work: str, count: int = 3) -> str:
    """The ideas that gain most, with their gains, in words."""
    table = waterfall(rows, work).drop(LEFT).sort_values("middle", ascending=False)
    return ", ".join(
        f"{idea} {speed(Interval(*line))}" for idea, line in table[:count].iterrows()
    )


def draw_waterfall(ax: Any, table: pd.DataFrame) -> None:
    """Bars that begin where the last one ended, the first idea at the top."""
    at = 1.0
    for row, (idea, (low, middle, high)) in enumerate(table.iterrows()):
        same = low <= 1 <= high
        colour = plots.GREY if idea == LEFT or same else plots.BLUE
        start, stop = sorted((at, at * middle))
        ax.barh(row, stop - start, left=start, color=colour, height=0.7, linewidth=0)
        ax.plot([at * low, at * high], [row, row], color="black", linewidth=1)
        text = f"{digits(middle)}x, level" if same else speed(middle)
        plots.note(ax, text, (max(stop, at * high), row), (4, 0), va="center")
        at *= middle
    plots.named_rows(ax, table.index)
    ax.set_xlim(0.7, 500 * at)


def figure_waterfall(rows: pd.DataFrame) -> Figure:
    """From plain loops to the last rung, a bar an idea, at two sizes."""
    figure, axes = plots.panels(1, 4.6, ncols=2, sharey=True)
    said = []
    for ax, work in zip(axes, (SMALL, LARGE), strict=True):
        table = waterfall(rows, work)
        ax.set_xscale("log")
        draw_waterfall(ax, table)
        plots.ticks(ax, "x", [1, 10, 100, 1000])
        ax.set_title(f"{work}: {digits(whole(rows, work).middle)}x in all")
        ax.set_xlabel("times as fast as plain loops")
        gains = (f"{idea} {speed(line['middle'])}" for idea, line in table.iterrows())
        said.append(f"{ax.get_title('left')}: {', '.join(gains)}")
    figure.alt = f"Waterfalls of gains, idea after idea. {'. '.join(said)}."
    return figure


def rate(rows: pd.DataFrame, works: dict[str, Workload], case: str) -> Interval:
    """GFLOP/s of training the large network, products only; two steps were timed."""
    taken = seconds(of_part(rows, "whole", LARGE))[case] / 2
    return Interval.of(works[LARGE].step_gflop / taken)


def phases(rows: pd.DataFrame) -> pd.DataFrame:
    """The share of a training step of each rung that its forward pass takes, its
    backward pass, and descent; medians over processes. Descent is what a step takes
    beyond the gradients.
    """
    stages = ("forward", "gradients", "step")
    taken = {s: seconds(of_part(rows, s)).median() for s in stages}
    steps = pd.DataFrame(taken).reindex(RUNGS)
    steps["step"] = steps.max(axis=1)  # noise where descent takes next to nothing
    shares = pd.DataFrame(
        {
            "forward pass": steps["forward"],
            "backward pass": (steps["gradients"] - steps["forward"]).clip(lower=0),
            "descent": (steps["step"] - steps["gradients"]).clip(lower=0),
        }
    )
    return shares.div(shares.sum(axis=1), axis=0)


def figure_phases(rows: pd.DataFrame) -> Figure:
    """Stacked bars of the phases, a rung a bar."""
    table = phases(rows)
    figure, ax = plots.panels(1, 3.2)
    begin = np.zeros(len(table))
    for name, colour in zip(table, (plots.SKY, plots.ORANGE, plots.GREY), strict=True):
        share = 100 * table[name].to_numpy()
        ax.barh(range(len(table)), share, left=begin, color=colour)
        row = int(share.argmax())
        if name == "descent":  # too narrow for its name
            plots.note(ax, name, (100, row), (4, 0), va="center")
        else:
            middle = begin[row] + share[row] / 2
            ax.text(middle, row, name, ha="center", va="center", color="black")
        begin += share
    plots.named_rows(ax, table.index)
    ax.set(xlabel="% of a training step", xlim=(0, 118))
    backward = table["backward pass"]
    low, high = (f"{100 * value:.0f}" for value in (backward.min(), backward.max()))
    ax.set_title(f"The backward pass takes {low} to {high} % of a step")
    return figure


def turns(graph, tasks) -> tuple[np.ndarray, np.ndarray]:
    """In which turn of its thread each sample has each step, and the thread."""
    turn, thread = np.zeros((2, graph.samples, graph.steps), int)
    free: Counter[int] = Counter()
    for task in tasks:
        _, steps, _, samples = graph.box(task)
        for t in range(steps.start, steps.stop):
            turn[samples, t], thread[samples, t] = free[task.worker], task.worker
            free[task.worker] += 1
    return turn, thread


def figure_who() -> Figure:
    """Who computes what, by sample and step: turn and thread."""
    graph = Graph(1, 6, samples=8)
    alone, step_by_step = by_samples(graph, 8).tasks, graph.tasks(1)
    tasks = {
        "numpy: a product a step": layer_by_layer(graph).tasks,
        "numba-sample: a sample a turn": [
            task._replace(worker=task.worker // 4) for task in alone
        ],
        "numba-tile: four samples a turn": by_samples(graph, 2, 4).tasks,
        "WRONG: threads over steps": [
            task._replace(worker=task.start // 3, samples=(s, s + 1))
            for task in step_by_step
            for s in range(8)
        ],
    }
    panels = {title: turns(graph, of) for title, of in tasks.items()}
    figure, axes = plots.panels(2, 5.4, ncols=2, sharex=True)
    colours = ListedColormap([plots.SKY, plots.ORANGE])
    for ax, (title, (turn, thread)) in zip(axes.flat, panels.items(), strict=True):
        plots.heat(ax, pd.DataFrame(thread), turn, cmap=colours, vmin=0, vmax=1)
        ax.invert_yaxis()
        ax.set_title(title, fontsize=10.5)
    axes[1, 1].axvline(2.5, color=plots.RED, linewidth=3)
    axes[1, 1].title.set_color(plots.RED)
    for ax in axes[1]:
        ax.set_xlabel("step t")
    for ax in axes[:, 0]:
        ax.set_ylabel("sample s")
    figure.alt = (
        "Eight samples by six steps, the number in a cell is the turn, its colour the"
        " thread. numpy computes all samples of a step in one turn on one thread;"
        " numba-sample one sample after the other on two threads; numba-tile four"
        " samples at a time. In the wrong form thread 1 starts at step 3, whose state"
        " before it nobody has computed."
    )
    return figure


def loads() -> dict[str, float]:
    """Loads, broadcasts and stores for one vector multiply-add, counted."""
    height = registers.tile_rows(4)
    return {
        "numba-sample": (8 + 2) / 8,
        "numba-tile": (4 + 4 + 4) / 16,
        "numba-fused": (height + 4) / (4 * height),
    }


def five_epochs(rows: pd.DataFrame, of_card: pd.Series) -> pd.Series:
    """Seconds of five epochs of the airline network by version: from medians of what is
    measured here on one core, and those of a GPU's versions.
    """
    windows = len(airline_dataset())
    took = seconds(of_part(rows, "whole")).median()[list(RUNGS[1:])]
    step = seconds(of_part(rows, FIRST)).median()["sequential"]
    took["sequential"] = step * TIMED / AIRLINE.B
    took *= 5 * windows / TIMED
    return pd.concat([took, of_card[of_card.index.str.startswith("cuda")]])


def on_card(rows: pd.DataFrame) -> pd.Series:
    """Seconds of five epochs of the airline network by version, from `cards.rows`:
    medians of a GPU's versions, and of plain loops and NumPy on its host.
    """
    table = rows[(rows["variant"] == "table") & rows["stage"].notna()]
    return table.groupby("version")["seconds"].median().astype(float)


THEIRS = {  # rows of the project's table, and the versions here that do the same
    "Sequential (plain Python)": "sequential",
    "NumPy": "numpy-sample",
    "Parallel V1": "cuda-v1",
    "Parallel V2": "cuda-v2",
    "Parallel V3": "cuda-v3",
}


def over_each(
    rows: pd.DataFrame, took: pd.Series, of_card: pd.Series
) -> dict[str, pd.Series]:
    """How many times as fast as plain loops, and as NumPy a sample at a time, each
    version is: of what is measured here the median ratio of the processes, the same
    numbers as elsewhere on the page; of a GPU's versions over those of its host.
    """
    found = {}
    for base in ("sequential", "numpy-sample"):
        if base == "sequential":
            here = over_plain(rows)
        else:
            here = ratios(of_part(rows, "whole"), base)
            here["sequential"] = 1 / over_plain(rows)[base]
        there = of_card.get(base, np.nan) / of_card
        found[base] = here.median().combine_first(there).reindex(took.index)
    return found


def version_table(
    rows: pd.DataFrame,
    of_card: pd.Series,
    theirs: pd.DataFrame,
    versions: tuple[Version, ...],
) -> pd.DataFrame:
    """The project's table, joined by version: four properties, five epochs, speed over
    plain loops and over NumPy a sample at a time, theirs and ours; of_card: as of
    `on_card`.
    """
    took = five_epochs(rows, of_card)
    named = theirs["version"].map(THEIRS)
    seconds_of = pd.Series(theirs["seconds"].to_numpy(float), named)
    bases = ("sequential", "numpy-sample")
    published = {base: seconds_of[base] / seconds_of for base in bases}
    sides = {
        "theirs": (seconds_of, published),
        "here": (took, over_each(rows, took, of_card)),
    }
    lines = {}
    names = [*THEIRS.values(), "numpy", "numba-sample", "numba-fused"]
    for version in (one for name in names for one in versions if one.name == name):
        line = {
            "mini-batch, sample on": f"{version.mini_batch_on}, {version.sample_on}",
            "threads placed": "yes" if version.thread_positioning else "no",
            "transfers by hand": "yes" if version.transfer_optimised else "no",
        }
        for whose, (times, over) in sides.items():
            known = version.name in times
            shown = [speed(over[base][version.name]) for base in bases if known]
            line[f"{whose}: five epochs"] = (
                f"{digits(times[version.name])} s" if known else ""
            )
            for base, text in zip(("loops", "NumPy"), shown or ["", ""], strict=True):
                line[f"{whose}: over {base}"] = text
        lines[f"`{version.name}`"] = line
    return pd.DataFrame.from_dict(lines, orient="index").rename_axis("version")


HOW = "8 steps", "16 samples a step"


def exponents(rows: pd.DataFrame) -> pd.DataFrame:
    """The Interval of the exponent of time over windows, by case."""
    of_size = of_part(rows, "size")
    medians = of_size.groupby(["case", "process", "windows"], sort=False)["seconds"]
    logs = np.log(medians.median().unstack())
    slope = logs.apply(lambda row: np.polyfit(np.log(logs.columns), row, 1)[0], axis=1)
    return slope.unstack("process").T.pipe(intervals)


def exponent(rows: pd.DataFrame, case: str) -> Interval:
    return Interval(*exponents(rows).loc[case])


def figure_sizes(rows: pd.DataFrame) -> Figure:
    """Milliseconds of an epoch over the windows of a data set, a line a case."""
    found = exponents(rows)["middle"]
    kept = [case for case in found.index if not case.startswith("all cores, 16")]
    shown = of_part(rows, "size").assign(ms=lambda r: 1e3 * r["seconds"])
    shown = shown[shown["case"].isin(kept)]
    names = {case: f"{case}: {found[case]:.2f}" for case in kept}
    shades = plots.BLUE, plots.BLACK, plots.SKY, plots.ORANGE, plots.RED
    colours = dict(zip(kept, shades, strict=True))
    figure, ax = plots.panels(1, 4.2)
    sizes = sorted(shown["windows"].unique().astype(int))
    ax.set(xlabel="windows in the data set", ylabel="milliseconds for an epoch")
    plots.ticks(ax, "x", sizes)
    ax.set(yscale="log", xlim=(sizes[0] / 1.15, 20 * sizes[-1]))
    median = shown.groupby(["case", "windows"])["ms"].median()
    ax.set_ylim(median.min() / 2, median.max() * 3)
    plots.lines(ax, shown, "windows", "ms", "case", names=names, colours=colours)
    p, q = (found[f"numpy, {how}"] for how in reversed(HOW))
    ax.set_title(f"numpy: time grows as N^{p:.2f}, with 8 steps as N^{q:.2f}")
    return figure


def threads_gain(rows: pd.DataFrame) -> Interval:
    """What all cores gain on the largest data set in eight steps."""
    of_size = of_part(rows, "size")
    top = of_size[of_size["windows"] == of_size["windows"].max()]
    found = ratios(top, "numba-fused, 8 steps")["all cores, 8 steps"]
    return Interval.of(found)


def largest_batch(rows: pd.DataFrame) -> int:
    return int(of_part(rows, "size")["windows"].max()) // 8


def against_torch(rows: pd.DataFrame, work: Workload) -> dict[str, Any]:
    """What recorded rows say of PyTorch on a workload: how many times as fast a
    training step is here, and the share of PyTorch's forward pass that its products
    would take at the rate of an SGEMM there.
    """
    ours = rows[rows["variant"].isna() | (rows["version"] == "pytorch")]
    median = ours.groupby(["stage", "L", "H", "B", "version"])["seconds"].median()
    sgemm = rows.loc[rows["version"] == "sgemm", "seconds"].median()
    rate = 2 * 4096**3 / 1e9 / sgemm
    of_step = ours[(ours["stage"] == "step") & (ours["L"] == work.L)]
    of_step = of_step[(of_step["H"] == work.H) & (of_step["B"] == work.B)]
    torch = median["forward", work.L, work.H, work.B, "pytorch"]
    return {
        "gain": summary(of_step, "pytorch", by="version")["ratio"]["numba-fused"],
        "products": work.gflop / rate / torch,
    }
