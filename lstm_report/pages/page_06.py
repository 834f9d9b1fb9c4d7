"""Page 06: every combination of Optim-LSTM's switches, shares of the peak, and the rate
over the batch size.
"""

import time
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lstm_kernels import cores, network

from .. import cards, plots
from ..experiments import switches
from ..experiments.switches import BASELINE, COMBINATIONS, EVERY, Variant
from ..measure import evidence, results
from ..measure.comparer import compare_outputs
from ..measure.evidence import Interval, digits, speed
from ..measure.timing import interleaved, settle, together, wait_until_idle
from ..measure.workloads import REFERENCE, SMALL_REFERENCE, Workload
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
NONE, MASKS = 0, (0, 1, 3, 7, 15, 31)  # of NVIDIA's code: no optimisation, those run
TIMED_BATCHES = "baseline", "all", "numba-fused"
COLOURS = {"baseline": plots.PURPLE, "all": plots.BLUE, "numba-fused": plots.BLACK}
# Label: Optim-LSTM's gain so far, the combination here, the mask of NVIDIA's code.
STEPS = {
    "baseline": (1.0, "baseline", 0),
    "combine": (2.0, "combine", 1),
    "+ concurrent": (3.74, "combine + concurrent", 3),
    "+ pointwise": (6.21, "combine + concurrent + pointwise", 7),
    "+ layout": (6.55, "combine + concurrent + pointwise + layout", 15),
    "+ wavefront (here in place of concurrent)": (
        7.98,
        "combine + pointwise + layout + wavefront",
        None,
    ),
    "+ two steps' inputs at once": (None, None, 31),
    "+ kernel: all": (None, "all", None),
}

GOALS = {
    "five optimisations, alone and together; theirs gained 7.98x": (
        "four of their five on a CPU {five}, with a kernel the best of {count}"
        " combinations {best}; NVIDIA's code, four of them, on an H100 {card}",
        "partly",
    ),
    "the rate over the batch size": ("figure 6.3, with their points", "reached"),
    "weights of low rank: 42.8 to 8.36 ms": (
        "[09](09_bytes.ipynb): ranks with their losses; theirs are not known",
        "partly",
    ),
    "what a compiler gains and costs": ("[appendix](appendix.ipynb)", "reached"),
    "a faster backward pass": (
        "[03](03_cpu_ladder.ipynb): by versions, not by single optimisations",
        "partly",
    ),
    "a small language for new cells (given up)": (
        "[01](01_cell.ipynb): a cell is two functions, which every version runs",
        "reached",
    ),
    "a trained network of a framework": (
        "parameters from PyTorch and Keras; no link to their gradients",
        "partly",
    ),
}


def name(on: tuple[str, ...]) -> str:
    """A combination in words; all switches that go together are "all"."""
    return {BASELINE: "baseline", EVERY: "all"}.get(on) or " + ".join(on)


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
    """Rows by `part`: "pass", of all combinations at the batch of `work` and of
    TIMED_BATCHES at others; "peak", of 1e9 operations; "wake", a job given to every
    core.
    """
    params, count = work.params(), cores.cores()
    programs = {name(on): Variant(params, on).forward for on in COMBINATIONS}
    net = network("numba-fused", params)
    programs["numba-fused"] = fused = lambda x: net.forward(x)[0]

    def check():
        x, _ = replace(work, T=4, B=min(16, work.B)).example(seed=1)
        compare_outputs({n: lambda p=p: p(x) for n, p in programs.items()}, params, x)

    def rested(program, x):
        if program is fused:  # it tries how to divide its work
            settle(lambda: program(x))

        def seconds():
            wait_until_idle()
            start = time.perf_counter()
            program(x)
            return time.perf_counter() - start

        return seconds

    def timed(names, B):
        x, _ = replace(work, B=B).example()
        group = {n: rested(programs[n], x) for n in names}
        times = interleaved(group, repeats=rounds, least=0, self_timed=True)
        parts.append(times.assign(part="pass", B=B))

    def machine():
        of_machine = {
            "peak": lambda: 1 / switches.peak(count),
            "wake": lambda: switches.waking(count),
        }
        for part, measured in of_machine.items():
            found = [measured() for _ in range(3)]
            made = {"case": part, "repeat": range(3), "seconds": found}
            parts.append(pd.DataFrame(made).assign(part=part, B=0))

    parts = []
    check()
    machine()
    timed(programs, work.B)
    for B in batches:  # of a large one `numba-fused` would try divisions for seconds
        timed(TIMED_BATCHES if B <= work.B else TIMED_BATCHES[:2], B)
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


def machine(rows: pd.DataFrame, part: str) -> pd.Series:
    """Seconds of "peak" or "wake", the best that each process saw."""
    return rows[rows["part"] == part].groupby("process")["seconds"].min()


def share(rows: pd.DataFrame, work: Workload, case: str) -> Interval:
    """Of the peak of this machine, that a case reaches in a pass."""
    at_peak = work.gflop * machine(rows, "peak")  # seconds
    return Interval.of(at_peak / evidence.seconds(passes(rows))[case])


def shares(
    rows: pd.DataFrame, work: Workload, card: pd.Series, peak: float, case: str
) -> pd.DataFrame:
    """Of the peak, at the start and at the end, and the gain, by machine: Intervals
    here, with the baseline and `case`, and numbers of two cards.

    card, peak: as `nvidia` gives them.
    """
    gain = Interval.of(evidence.ratios(passes(rows), "baseline")[case])
    optim = REFERENCE.gflop / (OPTIM_MS / 1e3) / OPTIM_PEAK
    h100 = REFERENCE.gflop / card.reindex(MASKS) / peak
    lines = {
        "this CPU": (share(rows, work, "baseline"), share(rows, work, case), gain),
        "GTX 1080, Optim-LSTM": (optim, OPTIM_GAIN * optim, OPTIM_GAIN),
        "H100, NVIDIA's code": (h100[NONE], h100.max(), h100.max() / h100[NONE]),
    }
    columns = ["start", "end", "gain"]
    table = pd.DataFrame.from_dict(lines, orient="index", columns=columns)
    return table.rename_axis("share of the peak")


def effects(gains: pd.DataFrame) -> pd.DataFrame:
    """What each switch gains with each combination of the others: switch, with (those
    others), low, middle, high.

    gains: how many times as fast as the baseline, a row a process.
    """
    found = []
    for on in COMBINATIONS:
        for switch in on:
            off = tuple(other for other in on if other != switch)
            if off in COMBINATIONS:
                both = Interval.of(gains[name(on)] / gains[name(off)])
                found.append((switch, off, *both))
    return pd.DataFrame(found, columns=["switch", "with", *Interval._fields])


def figure_effects(found: pd.DataFrame) -> Figure:
    """A dot for each combination of the others, in the row of its switch."""
    figure, ax = plots.panels(1, 4.2)
    ax.axvline(1, color=plots.GREY, linewidth=1)
    for row, switch in enumerate(switches.SWITCHES):
        part = found[found["switch"] == switch].sort_values("middle")
        kernel = ["kernel" in {switch, *on} for on in part["with"]]
        for is_on, colour, lift in (
            (False, plots.BLUE, 0.13),
            (True, plots.RED, -0.13),
        ):
            values = part["middle"][[one == is_on for one in kernel]]
            ax.plot(values, [row + lift] * len(values), "o", color=colour, alpha=0.7)
        if switch in PUBLISHED:
            at = PUBLISHED[switch], row
            style = {"facecolors": "none", "edgecolors": "black", "zorder": 3}
            ax.scatter(*at, s=45, marker="D", **style)
    plots.named_rows(ax, switches.SWITCHES)
    plots.ticks(ax, "x", [0.7, 0.8, 0.9, 1, 1.2, 1.5, 2])
    ax.set_xlim(0.68, 2.15)
    ax.set_xlabel("times as fast with the switch as without it (log axis)")
    ax.set_title("Three switches spare the kernel its wake-ups")
    at_left = {"ha": "left", "va": "center"}
    plots.note(
        ax, "library's product", (0.69, 1.13), (0, 0), color=plots.BLUE, **at_left
    )
    plots.note(ax, "kernel", (0.69, 0.87), (0, 0), color=plots.RED, **at_left)
    plots.note(
        ax, "alone, on a GTX 1080", (2.0, 0.5), (6, 0), ha="right", color="black"
    )
    return figure


def nvidia(folder: results.Folder = None) -> tuple[pd.Series, float]:
    """Median seconds of NVIDIA's code on a GPU by mask, recorded, and the GFLOP/s of
    the card in float32, nominal; an empty series where there is none.
    """
    rows = results.recorded("example", folder)
    if rows.empty:
        return pd.Series(dtype=float), np.nan
    last = rows[rows["machine"] == rows["machine"].iloc[-1]]
    took = last.groupby("variant")["seconds"].median()
    by_mask = took.rename(index=lambda text: int(text.removeprefix("options ")))
    return by_mask, cards.rates(last, folder)[0]


def _gain(gains, case):
    return speed(Interval.of(gains[case])) if case else ""


def table_order(gains: pd.DataFrame, card: pd.Series) -> pd.DataFrame:
    """Gains one optimisation after the other, Optim-LSTM's, here, and on a card."""
    lines = {}
    for label, (theirs, here, mask) in STEPS.items():
        lines[label] = (
            f"{digits(theirs)}x" if theirs else "",
            "1x" if label == "baseline" else _gain(gains, here),
            speed(card[NONE] / card[mask]) if mask in card else "",
        )
    columns = ["Optim-LSTM, GTX 1080", "here", "NVIDIA's code, H100"]
    table = pd.DataFrame.from_dict(lines, orient="index", columns=columns)
    return table.rename_axis("optimisations, one after the other")


def batch_shares(rows: pd.DataFrame, work: Workload) -> pd.DataFrame:
    """Share of the peak in per cent by case, batch and process."""
    timed = rows[(rows["part"] == "pass") & rows["case"].isin(TIMED_BATCHES)]
    medians = timed.groupby(["case", "B", "process"])["seconds"].median().reset_index()
    gflop = np.array([replace(work, B=B).gflop for B in medians["B"]])
    at_peak = medians["process"].map(machine(rows, "peak")) * gflop
    return medians.assign(share=100 * at_peak / medians["seconds"])


def figure_batches(rows: pd.DataFrame, work: Workload) -> Figure:
    """Share of the peak over the batch size, here and on Optim-LSTM's card."""
    shown = batch_shares(rows, work)
    figure, ax = plots.panels(1, 4.2)
    batches = sorted({*shown["B"], 64, 224})
    plots.ticks(ax, "x", batches)
    plots.ticks(ax, "y", [5, 10, 20, 50, 100])
    ax.set(xlabel="batch, samples (log axis)", ylabel="share of the peak, % (log axis)")
    ax.set_xlim(batches[0] / 1.2, batches[-1] * 4)
    ax.set_ylim(0.6 * min(5.0, shown["share"].min()), 130)
    start = REFERENCE.gflop / (OPTIM_MS / 1e3)  # GFLOP/s
    points = {"baseline": {64: start}, "all": {64: start * OPTIM_GAIN}}
    for case, filled in (("baseline", "white"), ("all", plots.GREY)):
        rates = points[case] | OPTIM_RATES[case]
        y = [100 * rate / OPTIM_PEAK for rate in rates.values()]
        style = {"facecolors": filled, "edgecolors": plots.GREY, "zorder": 3}
        ax.scatter([*rates], y, s=45, marker="D", **style)
    plots.note(ax, "GTX 1080, baseline", (64, 7.18), (8, -4))
    plots.note(ax, "GTX 1080, all", (32, 29.8), (8, -4))
    order = shown.set_index("case").loc[[*COLOURS]].reset_index()
    plots.lines(ax, order, "B", "share", "case", colours=COLOURS, spread=1)
    ax.set_title("One sample leaves most of the machine unused")
    return figure


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
