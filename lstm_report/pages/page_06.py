"""Page 06: the switches of Optim-LSTM alone, together and in its order; shares of the
peak; the rate over the batch size.
"""

import time
from dataclasses import replace

import numpy as np
import pandas as pd

from lstm_kernels import cores, network

from .. import plots
from ..experiments import switches
from ..experiments.switches import BASELINE, COMBINATIONS, EVERY, Variant
from ..measure import evidence, results
from ..measure.comparer import compare_outputs
from ..measure.evidence import Interval, digits, ms, percent, speed
from ..measure.timing import interleaved, settle, together, wait_until_idle
from ..measure.workloads import REFERENCE, SMALL_REFERENCE
from ..notebook import Shared

# Optim-LSTM, published: the gain of each switch alone, milliseconds of its baseline,
# GFLOP/s of its card, nominal, and of its code by batch size and at its plateau.
PUBLISHED = {
    "combine": 2.0,
    "concurrent": 1.82,
    "pointwise": 1.2,
    "layout": 1.063,
    "wavefront": 1.3,
}
OPTIM_MS, OPTIM_GAIN, OPTIM_PEAK, OPTIM_PLATEAU = 182.5, 7.98, 8190.0, 6350.0
OPTIM_RATES = {"baseline": {224: 2160.0}, "all": {32: 2440.0}}
OPTIM_START = REFERENCE.gflop / (OPTIM_MS / 1e3) / OPTIM_PEAK  # shares of its peak
OPTIM_END = OPTIM_GAIN * OPTIM_START
TIMED_BATCHES = "baseline", "all", "numba-fused"
COLOURS = {"baseline": plots.PURPLE, "all": plots.BLUE, "numba-fused": plots.BLACK}
WITHOUT = {
    "combine": ("pointwise", "layout", "wavefront", "kernel"),
    "pointwise": ("combine", "layout", "wavefront", "kernel"),
    "wavefront": ("combine", "pointwise", "layout", "kernel"),
    "kernel": ("combine", "pointwise", "layout", "wavefront"),
}
STEPS = {
    "baseline": (1.0, "baseline"),
    "combine": (2.0, "combine"),
    "+ concurrent": (3.74, "combine + concurrent"),
    "+ pointwise": (6.21, "combine + concurrent + pointwise"),
    "+ layout": (6.55, "combine + concurrent + pointwise + layout"),
    "+ wavefront, for concurrent": (7.98, "combine + pointwise + layout + wavefront"),
    "+ kernel: all": (None, "all"),
    "numba-fused": (None, "numba-fused"),
}


def name(on):
    """A combination in words; all switches that go together are "all"."""
    return {BASELINE: "baseline", EVERY: "all"}.get(on) or " + ".join(on)


def cases():
    """All combinations, by name."""
    return {name(on): on for on in COMBINATIONS}


def differ(work):
    """Compare every combination with the reference; the largest relative error as text.
    Raises MismatchError, and ValueError where two combinations run the same.
    """
    params, (x, _) = work.params(), work.example()
    variants = [Variant(params, on, threads=2) for on in COMBINATIONS]
    programs = {v.on: lambda v=v: v.forward(x) for v in variants}
    if len({v.runs(x) for v in variants}) < len(variants):
        raise ValueError("COMBINATIONS: two of them run the same")
    return digits(max(compare_outputs(programs, params, x).values()))


def measure_passes(work, batches, rounds):
    """Rows by `part`: "pass", of all cases at the batch of `work` and of TIMED_BATCHES
    at others; "rest", a pass without products; "peak", of 1e9 operations; "read", the
    weights of a step, each layer's again and again; "wake", a job given to every core.
    """
    params, count = work.params(), cores.cores()
    programs = {case: Variant(params, on).forward for case, on in cases().items()}
    net = network("numba-fused", params)
    programs["numba-fused"] = fused = lambda x: net.forward(x)[0]
    weights = params.layers[-1].U.size + params.layers[-1].W.size

    def check():
        x, _ = replace(work, T=4, B=min(16, work.B)).example(seed=1)
        compare_outputs({n: lambda p=p: p(x) for n, p in programs.items()}, params, x)

    def rested(program, x, **options):
        if program is fused:  # it tries how to divide its work
            settle(lambda: program(x))

        def seconds():
            wait_until_idle()
            start = time.perf_counter()
            program(x, **options)
            return time.perf_counter() - start

        return seconds

    def timed(part, names, B, **options):
        x, _ = replace(work, B=B).example()
        group = {n: rested(programs[n], x, **options) for n in names}
        times = interleaved(group, repeats=rounds, least=0, self_timed=True)
        parts.append(times.assign(part=part, B=B))

    def machine():
        of_machine = {
            "peak": lambda: 1 / switches.peak(count),
            "read": lambda: work.L * switches.reading(weights, count),
            "wake": lambda: switches.waking(count),
        }
        for part, measured in of_machine.items():
            found = [measured() for _ in range(3)]
            made = {"case": part, "repeat": range(3), "seconds": found}
            parts.append(pd.DataFrame(made).assign(part=part, B=0))

    parts = []
    check()
    machine()
    timed("pass", programs, work.B)
    timed("rest", ["baseline", "all"], work.B, products=False)
    for B in batches:  # of a large one `numba-fused` would try divisions for seconds
        timed("pass", TIMED_BATCHES if B <= work.B else TIMED_BATCHES[:2], B)
    machine()
    check()
    return together(parts)


WORK = replace(REFERENCE, T=16)
PASSES = Shared(
    measure_passes,
    smoke={"work": SMALL_REFERENCE, "batches": (1, 4), "rounds": 2},
    paper={"work": WORK, "batches": (1, 224), "rounds": 5},
)


def passes(rows):
    """The rows of passes at the batch at which all cases were timed."""
    timed = rows[rows["part"] == "pass"]
    return timed[timed["B"] == timed.loc[timed["case"] == "combine", "B"].iloc[0]]


def gain(rows, case, over="baseline"):
    """How many times as fast a case is."""
    return Interval.of(evidence.ratios(passes(rows), over)[case])


def gain_of_all(rows):
    """How many times as fast as the baseline all switches together are."""
    return gain(rows, "all")


def effects(rows):
    """A table of Intervals each: "alone", over the baseline, for the kernel over what
    it stands on; "taken away", of all over all without it.
    """
    alone = {switch: gain(rows, switch) for switch in PUBLISHED}
    alone["kernel, on layout"] = kernel_divided(rows)
    alone["kernel, on layout\nand wavefront"] = kernel_undivided(rows)
    missed = {n: gain(rows, "all", over=name(on)) for n, on in WITHOUT.items()}
    tables = {"alone": alone, "taken away": missed}
    return {
        which: pd.DataFrame.from_dict(found, "index", columns=Interval._fields)
        for which, found in tables.items()
    }


def kernel_divided(rows):
    """The kernel's gain where each of its products is divided among the cores."""
    return gain(rows, "layout + kernel", over="layout")


def kernel_undivided(rows):
    """The kernel's gain where each core has a cell of its own."""
    return gain(rows, "layout + wavefront + kernel", over="layout + wavefront")


def machine(rows, part):
    """Seconds of "peak", "read" or "wake", the best that each process saw."""
    return rows[rows["part"] == part].groupby("process")["seconds"].min()


def wake(rows):
    """Seconds in which a job is given to another core and waited for."""
    return Interval.of(machine(rows, "wake"))


def share_of_waking(rows, work):
    """Of a pass of layout + kernel: eight times a cell, that every core is given its
    part.
    """
    whole = evidence.seconds(passes(rows))["layout + kernel"]
    return Interval.of(8 * work.L * work.T * machine(rows, "wake") / whole)


def peak(rows):
    """GFLOP/s of all cores in the multiply loop of the tile."""
    return Interval.of(1 / machine(rows, "peak"))


def sentence_effects(found):
    """Which switches gain, are level or lose, with their intervals."""
    said = []
    for which, table in found.items():
        each = [(n.replace("\n", " "), Interval(*table.loc[n])) for n in table.index]
        gains = ", ".join(f"*{n}* {speed(i)}" for n, i in each if i.low > 1)
        levels = ", ".join(f"*{n}*" for n, i in each if i.level)
        losses = ", ".join(f"*{n}* {speed(i)}" for n, i in each if i.high < 1)
        words = {"alone": "Alone", "taken away": "In all, with over without"}[which]
        parts = {"gain": gains or "none", "level": levels, "slower": losses}
        told = "; ".join(f"{kind}: {names}" for kind, names in parts.items() if names)
        said.append(f"{words}, {told}.")
    return " ".join(said)


def figure_effects(found):
    figure, axes = plots.panels(2, 5.6, sharex=True, height_ratios=(7, 4))
    titles = {
        "alone": "Alone over the baseline, {} of {} gain",
        "taken away": "Taken from all: {} of {} lose speed",
    }
    for ax, (which, title) in zip(axes, titles.items(), strict=True):
        table = found[which]
        ax.set_xscale("log")
        plots.dots(ax, table, text=[""] * len(table))
        for row, line in enumerate(table.itertuples(index=False)):
            text = "level" if Interval(*line).level else speed(line.middle)
            across = {"xycoords": ax.get_yaxis_transform(), "ha": "right"}
            style = across | {"va": "center", "color": plots.BLUE}
            plots.note(ax, text, (1, row), (0, 0), **style)
        ax.set_title(title.format(int((table["low"] > 1).sum()), len(table)))
    highest = max(*PUBLISHED.values(), *(t["high"].max() for t in found.values()))
    lowest = min(0.9, *(t["low"].min() for t in found.values()))
    shown = [v for v in (0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8) if lowest <= v <= highest]
    plots.ticks(axes[1], "x", shown)
    axes[1].set_xlim(lowest / 1.05, highest * 1.9)
    style = {"marker": "D", "facecolors": "none", "edgecolors": plots.RED, "zorder": 3}
    axes[0].scatter([*PUBLISHED.values()], range(len(PUBLISHED)), s=40, **style)
    first = PUBLISHED["combine"], 0
    plots.note(axes[0], "GPU", first, (9, 0), color=plots.RED, va="center")
    axes[1].set_xlabel("times as fast with it as without it (log)")
    figure.alt = f"Times as fast with a switch as without. {sentence_effects(found)}"
    return figure


def table_order(rows, work):
    """Optim-LSTM's gains and milliseconds a step in its order, and ours."""
    ms = 1e3 / work.T * evidence.seconds(passes(rows)).median()
    lines = {}
    for label, (theirs, case) in STEPS.items():
        published = ("", "")
        if theirs:
            ms_then = digits(OPTIM_MS / REFERENCE.T / theirs)
            published = f"{digits(theirs)}x", ms_then
        ours = "1x" if case == "baseline" else speed(gain(rows, case))
        lines[label] = (*published, ours, digits(ms[case]))
    columns = ["Optim-LSTM", "its ms a step", "here", "ms a step here"]
    table = pd.DataFrame.from_dict(lines, orient="index", columns=columns)
    return table.rename_axis("optimisations, one after the other")


def shares(rows, work):
    """Shares of the peak, Intervals by case."""
    at_peak = work.gflop * machine(rows, "peak")  # seconds
    whole = evidence.seconds(passes(rows))
    return {case: Interval.of(at_peak / whole[case]) for case in TIMED_BATCHES}


def rest(rows, case):
    """What a pass takes without its products, a share of its time."""
    rests = evidence.seconds(rows[rows["part"] == "rest"])
    return Interval.of(rests[case] / evidence.seconds(passes(rows))[case])


def table_shares(rows, work):
    """Shares of the peak here and on Optim-LSTM's card."""
    theirs = {"baseline": percent(OPTIM_START), "all": percent(OPTIM_END)}
    table = {
        case: (percent(share), theirs.get(case, ""))
        for case, share in shares(rows, work).items()
    }
    columns = ["here", "Optim-LSTM's GTX 1080"]
    made = pd.DataFrame.from_dict(table, orient="index", columns=columns)
    return made.rename_axis("share of the machine's peak")


def start_and_end(rows, work):
    """Two factors that multiply to Optim-LSTM's gain over that of all here: how many
    times as busy the baseline is here, how many times as busy all is there.
    """
    found = shares(rows, work)
    start = Interval(*(value / OPTIM_START for value in found["baseline"]))
    end = Interval(*(OPTIM_END / value for value in reversed(found["all"])))
    return start, end


def most(rows, work):
    """The most that any order of its operations could gain over the baseline."""
    return Interval(*(1 / v for v in reversed(shares(rows, work)["baseline"])))


def at_one(rows, work):
    """Of one sample: seconds of a step of the baseline, and of reading all weights; how
    many times as fast the peak and reading allow a pass to be; how many times as fast
    all and `numba-fused` are.
    """
    timed = rows[(rows["part"] == "pass") & (rows["B"] == 1)]
    step = evidence.seconds(timed)["baseline"] / work.T
    at_peak = replace(work, B=1).gflop / work.T * machine(rows, "peak")
    read, gains = machine(rows, "read"), evidence.ratios(timed, "baseline")
    found = step, read, step / at_peak, step / read, gains["all"], gains["numba-fused"]
    return tuple(map(Interval.of, found))


def gain_of_many(rows):
    """The largest batch, and the gain of all there."""
    timed = rows[rows["part"] == "pass"]
    B = timed["B"].max()
    gains = evidence.ratios(timed[timed["B"] == B], "baseline")["all"]
    return int(B), Interval.of(gains)


def batch_shares(rows, work):
    """Share of the peak in per cent by case, batch and process."""
    timed = rows[(rows["part"] == "pass") & rows["case"].isin(TIMED_BATCHES)]
    medians = timed.groupby(["case", "B", "process"])["seconds"].median().reset_index()
    gflop = np.array([replace(work, B=B).gflop for B in medians["B"]])
    at_peak = medians["process"].map(machine(rows, "peak")) * gflop
    return medians.assign(share=100 * at_peak / medians["seconds"])


def figure_batches(rows, work):
    """Share of the peak over the batch size, and the roof of reading the weights."""
    shown = batch_shares(rows, work)
    figure, ax = plots.panels(1, 4.4)
    batches = sorted({*shown["B"], 32, 64, 224})
    plots.ticks(ax, "x", [B for B in batches if B != 32])
    plots.ticks(ax, "y", [1, 2, 5, 10, 20, 50, 100])
    ax.set(xlabel="batch, samples (log)", ylabel="share of the machine's peak, % (log)")
    ax.set_xlim(batches[0] / 1.2, batches[-1] * 3.6)
    ax.set_ylim(0.6 * min(1.0, shown["share"].min()), 160)
    one = replace(work, B=1).gflop / work.T * machine(rows, "peak").median()
    one *= 100 / machine(rows, "read").median()  # per cent, of one sample
    roof = np.array([1, max(1, 100 / one), 224])
    ax.plot(roof, np.minimum(100, one * roof), color=plots.GREY, linewidth=1.2)
    text = "roof: reading the weights, then the peak"
    plots.note(ax, text, (224, 100), ha="right")
    plateau = 100 * OPTIM_PLATEAU / OPTIM_PEAK
    plots.level(ax, plateau, color=plots.BLUE, linestyle="--")
    plots.note(ax, "GPU's plateau", (1.2, plateau), (0, -13), color=plots.BLUE)
    points = {"baseline": {64: OPTIM_START}, "all": {64: OPTIM_END}}
    for case, rates in OPTIM_RATES.items():
        points[case] |= {B: rate / OPTIM_PEAK for B, rate in rates.items()}
        y = [100 * share for share in points[case].values()]
        style = {"facecolors": "white", "edgecolors": COLOURS[case], "zorder": 3}
        ax.scatter([*points[case]], y, s=45, marker="D", **style)
    order = shown.set_index("case").loc[[*COLOURS]].reset_index()
    lines = plots.lines(ax, order, "B", "share", "case", colours=COLOURS, spread=1)
    low, high = lines["baseline"].iloc[[0, -1]]
    first, last = lines.index[[0, -1]]
    ends = f"{digits(low)} % ({first} sample) to {digits(high)} % ({last})"
    ax.set_title(f"Baseline: {ends} of the peak")
    return figure


EXAMPLE = (  # bits of NVIDIA's mask, in its order, and what each adds
    (1, "the gates' products combined"),
    (3, "streams"),
    (7, "point-wise operations in one pass"),
    (15, "weights transposed beforehand"),
    (31, "the inputs of two steps at once"),
)


def say_example(folder: results.Folder = None) -> str:
    """NVIDIA's code with none of the five, then one more at a time, as it was recorded;
    "" where it was not.
    """
    rows = results.recorded("example", folder)
    if rows.empty:
        return ""
    name = rows["machine"].iloc[-1]
    about = results.record("example", name, folder)
    took = rows[rows["machine"] == name].groupby("variant")["seconds"].median()
    if not {f"options {mask}" for mask, _ in ((0, ""), *EXAMPLE)} <= {*took.index}:
        return ""
    start = took["options 0"]
    steps = "; ".join(
        f"{what}, {ms(took[f'options {mask}'])}" for mask, what in EXAMPLE
    )
    return (
        f"NVIDIA's code of the five [2], compiled for one GPU ({about['gpu']['name']})"
        f" and run there on {about['date']}, takes {ms(start)} for the reference"
        f" workload with none of them, and with one more at a time: {steps}. The"
        f" fastest is {speed(start / took.min())} as fast as none."
    )


FORMS = "baseline", "combine", "concurrent", "wavefront"


def boxes(form):
    """What two cores do, schematically: core, start, width, text."""
    products = [f"{M}{gate}" for M in "UW" for gate in "ifgo"]
    if form == "combine":
        products = ["U", "W"]
    if form == "wavefront":
        for core in (0, 1):
            yield from ((core, 2 * k, 2, text) for k, text in enumerate(products))
            yield core, 16, 4, "point-wise"
        return
    width = 8 / len(products)
    for k, text in enumerate(products):
        if form == "concurrent":
            yield k % 2, k // 2 * 2, 2, text
        else:
            yield from ((core, k * width, width, text) for core in (0, 1))
    yield 0, 8, 4, "point-wise"


def figure_cores():
    figure, axes = plots.panels(4, 5, sharex=True)
    for ax, form in zip(axes, FORMS, strict=True):
        for core, start, width, text in boxes(form):
            colour = {"U": plots.SKY, "W": plots.ORANGE}.get(text[0], "#cccccc")
            style = {"color": colour, "edgecolor": "white", "height": 0.9}
            ax.barh(core, width, left=start, **style)
            middle = start + width / 2, core
            ax.text(*middle, text, ha="center", va="center")
        cells = "two cells, of two layers" if form == "wavefront" else "one cell"
        ax.set_title(f"{form}: {cells}")
        plots.named_rows(ax, ("core 0", "core 1"))
        ax.set(xticks=())
    axes[-1].set_xlabel("time, not to scale")
    figure.alt = (
        "Two cores over time. Baseline: eight products, each divided among both cores, "
        "then the point-wise operations on core 0. Combine: two longer products. "
        "Concurrent: products in pairs, one on each core. Wavefront: each core has a "
        "cell of another layer, its point-wise operations included."
    )
    return figure
