"""Page 3, the ladder on a CPU: its versions, every factor between them, its table."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import lstm_kernels as lk
from lstm_kernels.cells import CELLS
from lstm_kernels.cpu import registers
from lstm_kernels.schedules import Graph, by_samples, layer_by_layer

from .. import plots
from ..experiments import ideas
from ..lesson import mistakes
from ..measure import compare_to_reference
from ..measure.comparer import TOLERANCE, compare
from ..measure.evidence import Interval, digits, intervals, ratios, seconds, speed
from ..measure.timing import interleaved, together
from ..measure.workloads import AIRLINE, REFERENCE, Workload, airline_dataset
from ..notebook import Shared

RATE = 1e-3
VERSIONS: tuple[Any, ...] = (
    "sequential",
    "numpy-sample",
    "numpy-naive",
    "numpy",
    "numba-sample",
    "numba-tile",
    "numba-fused",
)
# From plain loops to the last version, each idea added to the ones before it: what a
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
    "cell on registers": ("stored", "narrow"),
    "widest vectors": ("narrow", "numba-fused"),
}
FIRST = next(iter(IDEAS))
LEFT = "left over"
GOALS = {
    "by a GPU: faster (75 %), 5x (100 %), 10x (125 %)": (
        "V3 on an H100: {card} over plain loops on its host, where NumPy is faster"
        " still; one core here: {fast}, and {over} over NumPy",
        "reached",
    ),
    "an LSTM by hand, forward and backward": (
        "[01](01_cell.ipynb), checked by differences",
        "reached",
    ),
    "the forecast beside the truth": (
        "[02](02_forecast.ipynb): simple rules forecast as well",
        "reached",
    ),
    "time that grows more slowly than the data (150 %)": (
        "`numpy`: as the windows to the power {power}, with larger batches",
        "reached",
    ),
    "versions with their properties and times": ("all in one table", "reached"),
    "why the versions' times differ": (
        "every factor on a CPU; on the GPU the counts of [04](04_gpu_ladder.ipynb)",
        "partly",
    ),
}


def largest_errors(names: tuple[Any, ...] = VERSIONS) -> float:
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
    nets |= {name: lk.network(name, params, threads=1) for name in VERSIONS[1:]}
    nets |= {
        "loops": ideas.Loops(params, 1),
        "vector cell": ideas.VectorCell(params, 1),
    }
    nets |= {
        "stored": ideas.StoredFused(params, 1),
        "narrow": ideas.NarrowFused(params, 1),
    }
    cases: dict[str, Callable] = {}
    cases |= {name: partial(by_steps, net) for name, net in nets.items()}
    for name in ("stored", "narrow", "numba-fused"):
        cases[name] = partial(nets[name].epoch, many, order, work.B, RATE)
    widths = {"panels": ideas.PANEL}
    steps = {
        name: ideas.Steps(params, xs, targets, RATE, widths.get(name))
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

    works: by name, the first the airline network, the second too large for plain loops.
    windows: sizes of data sets. rounds: of the factors at both sizes: many, for a core
    is slower now and then, and a pair is short. least: seconds for which a case runs at
    a time. Of the factors: so long that caches which another case has filled do not
    count. Of what is compared with plain loops: as long as these take, so that both
    find the core at its mean speed.
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

    small, large = works
    for (name, work), count in zip(works.items(), rounds, strict=True):
        params = work.params()
        cases = chain(params, work, count=TIMED // work.B if name == small else 2)
        rest = (idea for idea in IDEAS if idea != FIRST)
        groups = {idea: {case: cases[case] for case in IDEAS[idea]} for idea in rest}
        others = VERSIONS[1:] if name == small else ("numpy", "numba-fused")
        groups["versions"] = {case: cases[case] for case in ("loops", *others)}
        if name == large:
            groups["whole"] = {case: cases[case] for case in ("loops", "numba-fused")}
        timed(name, groups, count, least[0])
        if name == small:
            x, target = work.example()
            one = {
                "sequential": lk.network("sequential", params),
                "loops": ideas.Loops(params, 1),
            }
            plain = {n: partial(net.step, x, target, RATE) for n, net in one.items()}
            last = {"numba-fused": cases["numba-fused"]}
            whole = {"sequential": plain["sequential"]} | last
            timed(name, {FIRST: plain, "whole": whole}, repeats + 1, least[1])

    airline = works[small]
    params, (x, target) = airline.params(), airline.example()
    nets = {name: lk.network(name, params, threads=1) for name in VERSIONS}
    groups = {
        stage: {name: call(net, stage, x, target) for name, net in nets.items()}
        for stage in ("forward", "step")
    }
    timed(small, groups)
    nets["all cores"] = lk.network("numba-fused", params)
    for N in windows:
        many = airline.dataset(N)
        for words, B in (("16 samples a step", 16), ("8 steps", N // 8)):
            of_size = {
                f"{name}, {words}": epoch(nets[name], many, B)
                for name in ("numpy", "numba-fused", "all cores")
            }
            timed(small, {"size": of_size})
            parts[-1]["windows"] = N
    return together(parts)


TIMED = 96  # windows, six steps of the airline network


def epoch(net: Any, dataset: Any, batch_size: int) -> Callable:
    """Steps on the windows of a data set."""
    return partial(net.epoch, dataset, np.arange(len(dataset)), batch_size, RATE)


def call(net: Any, stage: str, x: np.ndarray, target: np.ndarray) -> Callable:
    """A forward pass for training, or a whole training step."""
    calls = {
        "forward": partial(net.forward, x, training=True),
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
        "rounds": (11, 9),
        "least": (0.01, 0.15),
    },
)


def of_part(rows: pd.DataFrame, name: str, work: str = SMALL) -> pd.DataFrame:
    return rows[(rows["part"] == name) & (rows["work"] == work)]


def factors(rows: pd.DataFrame, work: str) -> pd.DataFrame:
    """The gain of each idea, with it compared with without it: a row a process. Of the
    large network from compiled loops on.
    """
    found = {
        idea: ratios(of_part(rows, idea, work), without)[with_it]
        for idea, (without, with_it) in IDEAS.items()
        if len(of_part(rows, idea, work))
    }
    return pd.DataFrame(found)


def wholes(rows: pd.DataFrame, work: str = SMALL) -> pd.Series:
    """How many times as fast the last version trains as what the ideas start from,
    timed by itself, by process. A call of plain loops is one step of those that a call
    of the last version takes.
    """
    begin, steps = ("sequential", TIMED // AIRLINE.B) if work == SMALL else ("loops", 1)
    return steps * ratios(of_part(rows, "whole", work), begin)["numba-fused"]


def whole(rows: pd.DataFrame, work: str = SMALL) -> Interval:
    """The Interval over processes of that."""
    return Interval.of(wholes(rows, work))


def over_plain(rows: pd.DataFrame) -> pd.DataFrame:
    """How many times as fast as plain loops each version trains the airline network, a
    row a process: what compiled loops gain, times what they are beaten by.
    """
    plain, compiled = IDEAS[FIRST]
    loops = ratios(of_part(rows, FIRST), plain)[compiled]
    table = ratios(of_part(rows, "versions"), compiled).mul(loops, axis="index")
    return table.assign(**{plain: 1.0, "numba-fused": wholes(rows)})


def over_numpy(rows: pd.DataFrame, work: str = SMALL) -> Interval:
    """How many times as fast as `numpy` the last version trains, on one thread."""
    part = of_part(rows, "versions", work)
    return Interval.of(ratios(part, "numpy")["numba-fused"])


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


def draw_waterfall(ax: Any, table: pd.DataFrame) -> None:
    """Bars that begin where the last one ended, the first idea at the top."""
    at, names = 1.0, [*IDEAS, LEFT]
    for idea, (low, middle, high) in table.iterrows():
        row, same = names.index(idea), low <= 1 <= high
        colour = plots.BLUE if middle > 1 else plots.ORANGE
        colour = plots.GREY if idea == LEFT or same else colour
        start, stop = sorted((at, at * middle))
        ax.barh(row, stop - start, left=start, color=colour, height=0.7, linewidth=0)
        ax.plot([at * low, at * high], [row, row], color="black", linewidth=1)
        place = max(stop, at * high), row
        style = {"va": "center", "color": "black"}
        plots.note(ax, f"{digits(middle)}x", place, (4, 0), **style)
        at *= middle
    plots.named_rows(ax, names)
    ax.set_xlim(0.7, 8 * at)


def figure_waterfall(
    rows: pd.DataFrame, works: tuple[str, ...] = (SMALL, LARGE)
) -> Figure:
    """From plain loops to the last version, a bar an idea, at each size."""
    options = {"ncols": len(works), "sharey": True, "squeeze": False}
    figure, axes = plots.panels(1, 4.8, **options)
    said = []
    for ax, work in zip(axes.flat, works, strict=True):
        table = waterfall(rows, work)
        ax.set_xscale("log")
        draw_waterfall(ax, table)
        plots.ticks(ax, "x", [1, 10, 100, 1000] if work == SMALL else [1, 2, 5, 10])
        ax.set_title(f"{work}: {digits(whole(rows, work).middle)}x in all")
        start = "plain" if work == SMALL else "compiled"
        ax.set_xlabel(f"times as fast as {start} loops")
        gains = (f"{idea} {speed(line['middle'])}" for idea, line in table.iterrows())
        said.append(f"{ax.get_title('left')}: {', '.join(gains)}")
    figure.alt = f"Waterfalls of gains, idea after idea. {'. '.join(said)}."
    return figure


def forward_shares(rows: pd.DataFrame) -> pd.DataFrame:
    """Of a training step of each version that its forward pass takes: Intervals."""
    taken = {stage: seconds(of_part(rows, stage)) for stage in ("forward", "step")}
    return intervals(taken["forward"] / taken["step"]).loc[[*VERSIONS]]


def figure_phases(rows: pd.DataFrame) -> Figure:
    """Bars of a training step, a version a bar: the forward pass and the rest."""
    table = 100 * forward_shares(rows)
    figure, ax = plots.panels(1, 3.2)
    ax.barh(range(len(table)), 100, color=plots.ORANGE)
    ax.barh(range(len(table)), table["middle"], color=plots.SKY)
    for row, (low, middle, high) in enumerate(table.to_numpy()):
        ax.plot([low, high], [row, row], color="black", linewidth=1)
        text = {"ha": "center", "va": "center", "color": "black"}
        ax.text(middle / 2, row, f"{digits(middle)} %", **text)
    plots.named_rows(ax, table.index)
    ax.set(xlabel="% of a training step: forward pass, then backward pass and descent")
    ax.set_xlim(0, 100)
    ax.set_title("The forward pass takes less than half of most steps")
    return figure


class Held(NamedTuple):
    """What a version's innermost loop does: rows of the weights and vectors of them
    that it loads, samples that share them, and whether sums stay in registers.
    """

    rows: int
    vectors: int
    samples: int
    kept: bool

    @property
    def accesses(self) -> float:
        """Loads, broadcasts and stores for one vector multiply-add."""
        sums = 0 if self.kept else 2 * self.vectors * self.samples
        broadcasts = self.samples if self.kept else 0  # else before the loop
        loaded = self.rows * self.vectors + self.rows * broadcasts
        return (loaded + sums) / (self.rows * self.vectors * self.samples)


HELD = {
    "numba-sample": Held(rows=8, vectors=1, samples=1, kept=False),
    "numba-tile": Held(rows=4, vectors=1, samples=4, kept=False),
    "numba-fused": Held(rows=1, vectors=4, samples=registers.tile_rows(4), kept=True),
}


def figure_held() -> Figure:
    """Of three versions the weights that the innermost loop loads, and its sums: a box
    is a vector.
    """
    figure, axes = plots.panels(1, 3.4, ncols=3, sharey=True)
    for ax, (name, held) in zip(axes, HELD.items(), strict=True):
        for row in range(held.rows):
            for column in range(held.vectors):
                ax.add_patch(Rectangle((column, 9 - row), 0.9, 0.85, fc=plots.SKY))
        for sample in range(held.samples):
            for column in range(held.vectors):
                fill = plots.BLACK if held.kept else plots.ORANGE
                ax.add_patch(Rectangle((column, -sample), 0.9, 0.85, fc=fill))
        ax.set(xlim=(-0.2, 4.2), ylim=(-8, 10.2), xticks=(), yticks=())
        ax.set_title(f"{name}:\n{held.accesses:.2f} accesses", fontsize=10.5)
        ax.spines[["left", "bottom"]].set_visible(False)
    plots.note(axes[0], "weights", (1.1, 5.5), (0, 0), color=plots.BLUE)
    plots.note(
        axes[0], "sums, loaded\nand stored", (1.1, -0.9), (0, 0), color="#a86f00"
    )
    plots.note(axes[2], "sums, kept", (0, -7.8), (0, 0), color="black")
    figure.alt = (
        "Boxes are vectors. numba-sample loads eight rows of weights for one vector of"
        " sums, which it loads and stores; numba-tile four rows for the sums of four"
        " samples; numba-fused one row of four vectors for"
        f" {HELD['numba-fused'].samples} samples, whose sums stay in registers."
    )
    return figure


def has_512_bits() -> bool:
    """Whether this CPU has the vectors whose width `measure_width` compares."""
    return registers.vector_registers().bytes >= 64


def measure_width(works: dict[str, Workload], repeats: int) -> pd.DataFrame:
    """Seconds of training by the register tile, in vectors as this process's compiler
    chooses them, and by `numba-fused` in vectors of 256 and of 512 bits, on a CPU that
    has them.
    """
    parts = []
    for name, work in works.items():
        params, many = work.params(), work.dataset(2 * work.B)
        xs = many.x.reshape(work.T, 2, work.B, work.D).swapaxes(0, 1).copy()
        targets, order = many.target.reshape(2, work.B, 1), np.arange(len(many))
        tile = ideas.Steps(params, xs, targets, RATE)
        nets = {
            "256 bits": ideas.HalfFused(params, 1),
            "512 bits": lk.network("numba-fused", params, threads=1),
        }
        cases = {"tile": partial(tile.epoch, tile.kept())}
        for case, net in nets.items():
            cases[case] = partial(net.epoch, many, order, work.B, RATE)
        for train in cases.values():
            train()
        for net in nets.values():
            got = net.params().arrays()
            compare(got, tile.arrays(), TOLERANCE[np.dtype(np.float32)])
        times = interleaved(cases, repeats=repeats, least=0.02)
        parts.append(times.assign(work=name, bits=8 * ideas.compiler_bytes()))
    return together(parts)


def width_gains(narrow: pd.DataFrame, wide: pd.DataFrame) -> pd.DataFrame:
    """How many times as fast 512 bits are as 256, by version and network: Intervals. Of
    the tile, which one process has in one width alone, both are compared with
    `numba-fused`.

    narrow, wide: rows of processes whose compiler chose 256 and 512 bits.
    """
    lines = {}
    for work in narrow["work"].unique():
        of_work = [rows[rows["work"] == work] for rows in (narrow, wide)]
        tile_256, tile_512 = (ratios(rows, "512 bits")["tile"] for rows in of_work)
        lines[work] = {
            "register tile": Interval.of(tile_512 / tile_256),
            "numba-fused": Interval.of(ratios(of_work[1], "256 bits")["512 bits"]),
        }
    return pd.DataFrame(lines).T


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


THEIRS = {  # rows of the project's table, and the versions here that do the same
    "Sequential (plain Python)": "sequential",
    "NumPy": "numpy-sample",
    "Parallel V1": "cuda-v1",
    "Parallel V2": "cuda-v2",
    "Parallel V3": "cuda-v3",
}
LISTED = [*THEIRS.values(), "cuda-fused", "cuda-epoch", "numpy", "numba-fused"]


def version_table(
    rows: pd.DataFrame, of_card: pd.DataFrame, theirs: pd.DataFrame
) -> pd.DataFrame:
    """The project's table, joined by version: properties, seconds of five epochs and
    how many times as fast as plain loops: theirs, here on one core, and on a GPU and
    all cores of its host.

    of_card: rows of `cards.rows`.
    """
    windows = len(airline_dataset())
    here = seconds(of_part(rows, "versions")).median() * 5 * windows / TIMED
    steps = seconds(of_part(rows, FIRST))["sequential"].median()
    here["sequential"] = steps * 5 * windows / AIRLINE.B
    there = (
        of_card[of_card["variant"] == "table"].groupby("version")["seconds"].median()
    )
    published = pd.Series(theirs["seconds"].to_numpy(), theirs["version"].map(THEIRS))
    sides = {
        "theirs": (published, published.get("sequential") / published),
        "this core": (here, over_plain(rows).median()),
        "GPU and its host": (there, there.get("sequential", np.nan) / there),
    }
    known: dict[str, Any] = {version.name: version for version in lk.versions()}
    lines = {}
    for name in LISTED:
        version = known[name]
        marks = version.thread_positioning, version.transfer_optimised
        line = {
            "mini-batch on": version.mini_batch_on,
            "GPU threads, transfers by hand": ", ".join(
                "yes" if mark else "no" for mark in marks
            ),
        }
        for whose, (took, over) in sides.items():
            if name in took:
                line[whose] = f"{digits(took[name])} s, {speed(over[name])}"
        lines[f"`{name}`"] = line
    table = pd.DataFrame.from_dict(lines, orient="index").fillna("")
    return table.rename_axis("version")


def roofline(rows: pd.DataFrame, works: dict[str, Workload], of_card: pd.DataFrame):
    """GFLOP/s of each version over the operations for each byte of weights that it
    reads, by count: samples that share what is read, times two operations, over four
    bytes. On this core a training step of the large network, on a GPU one of the
    airline's size and inference of the reference workload.
    """
    large = works[LARGE]
    shared = {"numba-sample": 1, "numba-tile": 4}
    shared |= {"numpy": large.B, "numba-fused": large.B}
    taken = pd.concat(
        [of_part(rows, part, LARGE) for part in (*IDEAS, "versions")]
    ).pipe(seconds)
    points = [
        (name, "CPU", samples / 2, 2 * large.step_gflop / taken[name].median())
        for name, samples in shared.items()
    ]
    steps = -(-5 * len(airline_dataset()) // AIRLINE.B)
    of_gpu = (
        ("table", "5 epochs", steps * AIRLINE.step_gflop, SHARED_SMALL),
        ("large", "forward on device", REFERENCE.gflop, SHARED_LARGE),
    )
    for variant, stage, gflop, names in of_gpu:
        part = of_card[(of_card["variant"] == variant) & (of_card["stage"] == stage)]
        medians = part.groupby("version")["seconds"].median()
        points += [
            (name, "GPU", samples / 2, gflop / medians[name])
            for name, samples in names.items()
            if name in medians
        ]
    return pd.DataFrame(points, columns=["version", "where", "intensity", "rate"])


# Samples for which a GPU's version loads a weight once, as it is planned on an H100;
# `cuda-persistent` loads U alone, for all samples of a step, and keeps W.
SHARED_SMALL = {"cuda-v1": 1, "cuda-v2": 1, "cuda-v3": 1, "cuda-epoch": 1}
SHARED_LARGE = {"cuda-fused": 1, "cuda-persistent": 2 * REFERENCE.B}


def figure_roofline(
    points: pd.DataFrame, peak: float, reading: float, gpu: tuple[float, float]
) -> Figure:
    """Rates over intensity, under the roofs of this core, measured, and of a GPU,
    nominal: GFLOP/s and GB/s each.
    """
    figure, ax = plots.panels(1, 4.4)
    for top, slope, colour in ((peak, reading, plots.BLUE), (*gpu, plots.RED)):
        x = np.array([0.1, top / slope, 1e3])
        ax.plot(x, np.minimum(top, slope * x), color=colour, linewidth=1.2)
    ax.set(xscale="log", yscale="log", xlim=(0.01, 3e3))
    ax.set(xlabel="operations for each byte of weights that is read, by count")
    ax.set_ylabel("GFLOP/s")
    offsets = {"numba-sample": (4, -15), "cuda-epoch": (-7, -4), "cuda-v2": (7, -9)}
    offsets |= {"numba-tile": (6, -10), "numpy": (7, -6), "numba-fused": (7, -9)}
    for version, where, intensity, rate in points.itertuples(index=False):
        colour = plots.BLUE if where == "CPU" else plots.RED
        ax.plot(intensity, rate, "o" if where == "CPU" else "s", color=colour)
        offset = offsets.get(version, (7, -4))
        side = {"ha": "right" if offset[0] < 0 else "left", "color": colour}
        plots.note(ax, version, (intensity, rate), offset, **side)
    plots.note(ax, "this core", (1e3, peak), ha="right", color=plots.BLUE)
    plots.note(ax, "H100", (1e3, gpu[0]), ha="right", color=plots.RED)
    ax.set_title("numba-fused comes near the roof of its core")
    return figure


def exponents(rows: pd.DataFrame) -> pd.DataFrame:
    """The Interval of the exponent of time over windows, by case."""
    of_size = of_part(rows, "size")
    medians = of_size.groupby(["case", "process", "windows"], sort=False)["seconds"]
    logs = np.log(medians.median().unstack())
    slope = logs.apply(lambda row: np.polyfit(np.log(logs.columns), row, 1)[0], axis=1)
    return slope.unstack("process").T.pipe(intervals)


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
    p, q = (found[f"numpy, {how}"] for how in ("16 samples a step", "8 steps"))
    ax.set_title(f"numpy: time grows as N^{p:.2f}, with 8 steps as N^{q:.2f}")
    return figure
