"""Page 4, the ladder on a GPU: kernels on a toy network, what is copied and who has
work by count, the records of the executed code, and times where a device is found.

Import it after `provenance.simulate_without_gpu`.
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

import lstm_kernels as lk
from lstm_kernels.cells import CELLS
from lstm_kernels.gpu import build, device, plain_kernels, plans
from lstm_kernels.gpu.layout import Sizes
from lstm_kernels.versions import cuda_persistent

from .. import cards, plots
from ..experiments import gpu, gpu_bounds, gpu_torch
from ..experiments.gpu import Count, bytes_copied
from ..measure import comparer, evidence, results, runner
from ..measure.evidence import Interval, digits
from ..measure.workloads import Workload

LSTM = CELLS["lstm"]
GPU: list[Any] = [version.name for version in lk.versions() if version.target == "gpu"]
MULTIPROCESSORS, SHARED = 132, 227 << 10  # of an H100; bytes that it grants a block
STEPS, SAMPLES, INPUTS, UNITS = 3, 7, 2, 5  # of the toy network
OF_PAGE = "kernels of this page"
OUTCOMES = "reported", "wrong result", "harmless"
Judged = tuple[bool | None, str]
NOT_MEASURED: Judged = None, cards.NONE
CPU = "numpy-sample", "numpy", "numba-sample", "numba-fused"
TORCH = [*gpu_torch.KINDS]


def target() -> str:
    """Where the kernels of this run run."""
    simulated = "Numba's simulator, on the CPU; a simulator's time says nothing"
    return simulated if device.SIMULATED else "this machine's GPU"


# The toy network.


def kernel(name: str) -> Any:
    """A kernel of `plain_kernels`, compiled for the LSTM; no warning that its grids are
    small and its arrays on the host.
    """
    warnings.filterwarnings("ignore", message="Grid size|Host array")
    sizes = Sizes.of_cell(LSTM)
    return build.build("lstm", np.float32, (plain_kernels,), (name,), sizes)[name]


def device_function(name: str) -> Any:
    """A function that kernels call: one of `plain_kernels`, or "cell"."""
    if name == "cell":
        forward, _ = build.cell_functions(LSTM, np.float32, build.of_device)
        return forward
    how = "lstm", np.float32, (plain_kernels,), (name,), Sizes.of_cell(LSTM)
    return build.build(*how, compile=lambda part, _: build.of_device(part))[name]


def example() -> np.ndarray:
    """x (T, B, D) of the toy network."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((STEPS, SAMPLES, INPUTS)).astype(np.float32)


def by_gates(params: lk.Params) -> tuple[np.ndarray, ...]:
    """U (D, 4, H), W (H, 4, H) and b (4, H) of the first layer."""
    layer = params.layers[0]
    D, H = len(layer.U), len(layer.W)
    return layer.U.reshape(D, 4, H), layer.W.reshape(H, 4, H), layer.b.reshape(4, H)


def tape() -> tuple[np.ndarray, ...]:
    """h and c, their slot 0 zero, and the gates: room for every step."""
    both = np.zeros((2, STEPS + 1, SAMPLES, UNITS), np.float32)
    return *both, np.zeros((STEPS, SAMPLES, UNITS, 4), np.float32)


def caught(compare: Callable, got: comparer.Arrays, want: comparer.Arrays) -> str:
    """What the comparer says of a wrong result; AssertionError for nothing."""
    try:
        compare(got, want, 1e-5)
    except comparer.MismatchError as error:
        return f"Caught: {error}."
    raise AssertionError("got agreement, want a mismatch: the comparer missed it")


def worst_errors(params: lk.Params) -> dict[str, float]:
    """The largest relative error of each GPU version that runs here: passes, gradients,
    parameters after a step; MismatchError beyond rounding.
    """
    x, y = example()[:2, :3].copy(), np.ones((3, 1), np.float32)
    errors: dict[str, float] = {}
    for name in runner.available("gpu"):
        nets = lk.network(name, params), lk.network("numpy", params)
        for net in nets:
            net.step(x, y, 0.1)
        got, want = (net.params().arrays() for net in nets)
        step = comparer.compare(got, want, 1e-5)
        errors[name] = max(step, comparer.compare_to_reference(name, params, x))
    return errors


def cannot() -> str:
    """The GPU versions that cannot run here, with the reason of each; "" for none."""
    told = [
        f"`{version.name}` cannot run here: {results.plain(version.why_unavailable)}."
        for version in lk.versions()
        if version.target == "gpu" and version.why_unavailable
    ]
    return " ".join(told)


def figure_who(samples: int = 8, units: int = 4, block: int = 4, tile: int = 2):
    """Who computes what: samples across, units down; a colour for each block, in each
    cell the number of the thread in it.
    """
    shades = ListedColormap([plots.SKY, plots.ORANGE, plots.YELLOW, plots.PURPLE])
    unit, sample = np.mgrid[:units, :samples]
    of_fused = sample // tile, sample % tile * units + unit
    panels = {
        "V1: one thread": (0 * unit, 0 * unit),
        f"V2, V3: a thread a sample, {block} to a block": divmod(sample, block),
        f"fused, epoch: a thread a unit, {tile} samples a block": of_fused,
    }
    figure, axes = plots.panels(3, 5.4, sharex=True)
    for ax, (title, (block_of, thread)) in zip(axes, panels.items(), strict=True):
        plots.heat(ax, pd.DataFrame(block_of), thread, cmap=shades, vmin=0, vmax=3)
        ax.invert_yaxis()
        ax.set(ylabel="unit", title=title)
    axes[-1].set_xlabel("sample of the mini-batch")
    figure.alt = (
        f"Three grids of {samples} samples by {units} hidden units. In V1 thread 0 of "
        "block 0 has every cell. In V2 and V3 a column, one sample, belongs to one "
        f"thread, {block} threads to a block. In the others {tile} columns belong "
        f"to a block, and each cell to a thread of its own: {tile * units} to a block."
    )
    return figure


# By count.


class Persistent(NamedTuple):
    """Blocks and their units; bytes of weights that a block keeps, and bytes that a
    multiprocessor loads for a step of a layer, here and in `cuda-fused`.
    """

    blocks: int
    units: int
    kept: int
    loads: int
    fused_loads: int


def persistent(work: Workload) -> Persistent:
    """What `cuda-persistent` plans for a workload on an H100."""
    n = Sizes(work.L, work.T, work.B, work.D, work.H, 1, 4)
    limits = {"multiprocessors": MULTIPROCESSORS, "shared": SHARED}
    plan = cuda_persistent.plan(n, np.float32, simulated=False, **limits)
    row = n.H * n.K * 4  # bytes of the weights of one input
    share = row * plan.units // n.H
    loads = plan.tile * 2 * n.H * 4 + n.H * share  # x and h, and the slice of U
    return Persistent(plan.blocks, plan.units, n.H * share, loads, 2 * n.H * row)


def busy(work: Workload) -> tuple[float, float]:
    """The share of an H100's multiprocessors with a block: of V2's, of cuda-fused's."""
    n = Sizes(work.L, work.T, work.B, work.D, work.H, 1, 4)
    limits = {"multiprocessors": MULTIPROCESSORS, "shared": SHARED, "threads": 256}
    fused = plans.plan(n, np.float32, **limits).blocks
    v2 = -(-work.B // 32)
    return min(1, v2 / MULTIPROCESSORS), min(1, fused / MULTIPROCESSORS)


def check_counts(params: lk.Params) -> None:
    """Hold `bytes_copied` to what the versions count; ValueError where they differ."""
    work = Workload(L=1, T=2, D=INPUTS, H=UNITS, B=2)
    dataset, order = work.dataset(2), np.arange(2)
    for name in runner.available("gpu"):
        net = lk.network(name, params)
        sent, fetched = gpu.copied(
            net, lambda net=net: net.epoch(dataset, order, 2, 0.1)
        )
        if name in gpu.STAY:  # which send the data set, once
            sent -= dataset.x.nbytes + dataset.target.nbytes
        if (sent, fetched) != (want := bytes_copied(name, work)):
            raise ValueError(f"{name}: got {sent, fetched} bytes, want {want}")


def share(work: Workload, version: str = "cuda-v3") -> float:
    """The share of V2's bytes that a version copies."""
    return sum(bytes_copied(version, work)) / sum(bytes_copied("cuda-v2", work))


def figure_bytes(counts: dict[str, Count]) -> Figure:
    """KiB to the device and back per mini-batch; counts: version -> (sent, fetched)."""
    figure, ax = plots.panels()
    for row, pair in enumerate(counts.values()):
        there, back = (count / 1024 for count in pair)
        ax.barh(row, there, color=plots.SKY, height=0.7)
        ax.barh(row, back, left=there, color=plots.ORANGE, height=0.7)
        last = f"{digits(back)} back" if back >= 0.1 else f"{pair[1]} bytes back"
        text = f"{digits(there)} there,\n{last}"
        place = there + back, row
        plots.note(ax, text, place, (5, 0), va="center", color="black")
    part = sum(counts["cuda-v3"]) / sum(counts["cuda-v2"])
    ax.set_title(f"V3 copies {evidence.percent(part)} of what V2 copies")
    plots.named_rows(ax, [name.removeprefix("cuda-") for name in counts])
    ax.set_xlabel("KiB copied per mini-batch, by count")
    ax.set_xlim(0, 1.3 * max(sum(pair) / 1024 for pair in counts.values()))
    return figure


# The compiled code, executed: records of `make ptx`.


def executed() -> tuple[pd.DataFrame, pd.DataFrame]:
    """What the PTX machine ran, a row a case, and the faults planted in it."""
    names = "ptx-machine.csv", "ptx-machine-faults.csv"
    runs, faults = (pd.read_csv(results.find(name)[0]) for name in names)
    return runs, faults


def machine_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Cases, errors and faults by version, and the instructions of the busiest thread
    of a training step where the same network was run with so many samples.
    """
    runs = runs.replace({"version": {"gpu_kernels": OF_PAGE}})
    by = runs.groupby("version", sort=False)
    table = pd.DataFrame({"cases": by.size(), "faults": by["faults"].sum()})
    error = by[["passes", "parameters"]].max().max(axis=1)
    table["largest error"] = [f"{value:.0e}" for value in error]
    first = runs.iloc[0]  # the network that V1 runs
    same = (runs[["L", "T", "D", "H"]] == first[["L", "T", "D", "H"]]).all(axis=1)
    same &= (runs["cell"] == "lstm") & (runs["dtype"] == "float32")
    # Where a version divides its work in two ways: by the better one.
    longest = runs[same].groupby(["version", "B"])["critical"].min().unstack()
    for B in longest:
        column = longest[B].reindex(table.index)
        told = [digits(value / 1e3) if value > 0 else "-" for value in column]
        table[f"{B} samples (thousand)"] = told
    ladder = [version.name for version in lk.versions()]
    return table.loc[sorted(table.index, key=[*ladder, OF_PAGE].index)]


def planted(faults: pd.DataFrame) -> str:
    """A sentence on the faults that were planted; faults: counts by outcome."""
    count = faults.reindex(columns=OUTCOMES, fill_value=0).sum()
    kinds = ", ".join(dict.fromkeys(faults["planted"]))
    return (
        f"Of {count.sum()} planted faults ({kinds}) the machine reports "
        f"{count['reported']}; {count['wrong result']} of the others give a wrong "
        f"result, {count['harmless']} change nothing in these cases."
    )


# Times, of this machine's device or recorded.


def of_part(rows: pd.DataFrame, variant: str, stage: str, largest: str = "") -> Any:
    """The rows of a comparison; with `largest` of its largest N, or B."""
    chosen = rows[(rows["variant"] == variant) & (rows["stage"] == stage)]
    most = chosen[largest].max() if largest else None
    return chosen[chosen[largest] == most] if largest else chosen


def ratio_of(chosen: pd.DataFrame, one: str, other: str) -> Interval | None:
    """How many times as fast as `other` a version is; None where one is missing. Of one
    process the range of its rounds.
    """
    if not {one, other} <= set(chosen["version"]):
        return None
    if chosen["process"].nunique() > 1:
        found = evidence.ratios(chosen, other, "version")[one].dropna()
        return Interval.of(found) if len(found) else None
    table = chosen.pivot_table(index="repeat", columns="version", values="seconds")
    found = (table[other] / table[one]).dropna()
    return Interval.of(found) if len(found) else None


def step_gain(rows: pd.DataFrame) -> Interval | None:
    """V3 compared with `numpy`, for a step of hundreds of samples."""
    return ratio_of(of_part(rows, "hundreds", "step"), "cuda-v3", "numpy")


def cudnn_gain(rows: pd.DataFrame) -> Interval | None:
    """`cuda-epoch` compared with cuDNN in a graph, on the larger airline data set."""
    return ratio_of(
        of_part(rows, "airline", "epoch", "N"), "cuda-epoch", "pytorch-graph"
    )


def persistent_gain(rows: pd.DataFrame) -> Interval | None:
    """`cuda-persistent` compared with cuDNN as PyTorch calls it, inference of the
    reference workload.
    """
    part = of_part(rows, "large", "forward on device", "B")
    return ratio_of(part, "cuda-persistent", "pytorch")


def power(rows: pd.DataFrame) -> Interval | None:
    """The power of the windows with which an epoch of `cuda-epoch` grows; of one
    process the range of its rounds.
    """
    grown = of_part(rows, "windows", "epoch")
    times = grown[grown["version"] == "cuda-epoch"]
    if times["N"].nunique() < 2:
        return None
    by = "process" if times["process"].nunique() > 1 else "repeat"
    table = times.groupby([by, "N"])["seconds"].median().unstack().dropna()
    if table.empty:
        return None
    few, many = table.columns[0], table.columns[-1]
    return Interval.of(np.log(table[many] / table[few]) / np.log(many / few))


def at_least_as_fast(gain: Interval | None, threshold: float) -> Judged:
    """The verdict and the numbers of a claim that a gain is at least so large."""
    if gain is None:
        return NOT_MEASURED
    return evidence.at_least(gain, threshold), evidence.speed(gain)


def at_most_the_power(grown: Interval | None, threshold: float) -> Judged:
    """The verdict and the numbers of a claim that time grows with such a power."""
    if grown is None:
        return NOT_MEASURED
    told = f"time grows as the windows to the power {grown}"
    return evidence.at_most(grown, threshold), told


def filled(table: pd.DataFrame) -> pd.DataFrame:
    """Columns and rows of which something was measured."""
    table = table.dropna(how="all").dropna(axis=1, how="all")
    return table.fillna("-").rename_axis("version")


def small_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Small networks: steps of 256 samples, and of 16 in an epoch."""
    parts = ("hundreds", "step"), ("airline", "epoch", "N")
    hundreds, airline = (
        of_part(rows, *part).groupby("version")["seconds"].median() for part in parts
    )
    steps = -(-of_part(rows, "airline", "epoch")["N"].max() // gpu.AIRLINE.B)
    over = pd.Series(dtype=float)
    if "numpy-sample" in hundreds:
        over = hundreds["numpy-sample"] / hundreds
    us = "\N{MICRO SIGN}s"
    columns = {
        "256 samples, over numpy-sample": over.map(evidence.speed),
        f"256 samples, a step ({us})": (1e6 * hundreds).map(digits),
        f"16 samples, a step of an epoch ({us})": (1e6 * airline / steps).map(digits),
    }
    return filled(pd.DataFrame(columns, [*CPU, *GPU, *TORCH]))


def large_table(rows: pd.DataFrame) -> pd.DataFrame:
    """The reference workload: milliseconds of inference from device to device and of a
    training step, by samples.
    """
    stages = {"inference": "forward on device", "step": "step"}
    columns = {}
    for told, stage in stages.items():
        part = of_part(rows, "large", stage)
        ms = 1e3 * part.groupby(["B", "version"])["seconds"].median()
        for B in sorted(part["B"].unique(), reverse=True):
            columns[f"{told}, {B:.0f} samples (ms)"] = ms[B].map(digits)
    return filled(pd.DataFrame(columns, [*CPU, *GPU, *TORCH]))


def figure_growth(rows: pd.DataFrame) -> Figure:
    """Times of an epoch over the windows of the data set, a line for each version."""
    grown = of_part(rows, "windows", "epoch").assign(ms=lambda r: 1e3 * r["seconds"])
    figure, ax = plots.panels()
    ax.set(xscale="log", yscale="log", xlabel="windows of the data set")
    ax.set(ylabel="milliseconds of an epoch")
    sizes = grown["N"].unique()
    ax.set_xlim(sizes.min() / 1.2, sizes.max() * 12)
    line = plots.lines(ax, grown, "N", "ms", "version")["cuda-epoch"]
    times, more = line.iloc[-1] / line.iloc[0], line.index[-1] / line.index[0]
    said = f"{digits(more)} times the data in {digits(times)} times the time"
    ax.set_title(f"cuda-epoch: {said}")
    return figure


def show_times(nb: Any, rows: pd.DataFrame, disturbed: str) -> None:
    """Show the tables of times, the figure of growing data, and what became of the
    bounds; nothing for no rows.
    """
    if rows.empty:
        return
    for table in (small_table(rows), large_table(rows)):
        if not table.empty:
            nb.table(table)
    nb.say(fastest(rows))
    if power(rows):
        caption = "Eight mini-batches to an epoch at every size."
        nb.show(figure_growth(rows), "04-growth", caption, disturbed=disturbed)
    nb.say(gpu_bounds.verdict(rows, cards.name_of(rows)))


def fastest(rows: pd.DataFrame) -> str:
    """Which version was fastest on small networks; "" where nothing was measured."""
    parts = {
        "a step of 256 samples": of_part(rows, "hundreds", "step"),
        "an epoch in steps of 16": of_part(rows, "airline", "epoch", "N"),
    }
    told = []
    for what, part in parts.items():
        took = part.groupby("version")["seconds"].median().sort_values()
        if len(took) > 1:
            first, second = took.index[:2]
            over = evidence.speed(took.iloc[1] / took.iloc[0])
            told.append(f"of {what} `{first}`, {over} over `{second}`")
    return f"The fastest: {'; '.join(told)}." if told else ""


def shown_of(rows: pd.DataFrame) -> str:
    """What was measured, for the summary; "" for no rows."""
    step = of_part(rows, "large", "step", "B").groupby("version")["seconds"].median()
    told = {"cuda-persistent": "`cuda-persistent`", "pytorch": "PyTorch with cuDNN"}
    told["pytorch-graph"] = "that in a CUDA graph"
    known = [f"{told[n]} {evidence.ms(step[n])}" for n in told if n in step]
    large = f"A training step of the reference workload: {', '.join(known)}, float32."
    return f"{fastest(rows)} {large if known else ''}".strip()
