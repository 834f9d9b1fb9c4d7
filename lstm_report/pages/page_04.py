"""Page 4, the versions on a GPU: kernels on a toy network, what is copied, the records
of the executed code, and times where a device is found or was recorded.

Import it after `provenance.simulate_without_gpu`.
"""

import warnings
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

import lstm_kernels as lk
from lstm_kernels.cells import CELLS
from lstm_kernels.gpu import build, plain_kernels, plans
from lstm_kernels.gpu.layout import Sizes
from lstm_kernels.versions import cuda_persistent

from .. import plots
from ..experiments.gpu import Count
from ..measure import comparer, evidence, results, runner
from ..measure.evidence import Interval, digits
from ..measure.timing import interleaved
from ..measure.workloads import AIRLINE, Workload

LSTM = CELLS["lstm"]
MULTIPROCESSORS, SHARED = 132, 227 << 10  # of an H100; bytes that it grants a block
STEPS, SAMPLES, INPUTS, UNITS = 3, 7, 2, 5  # of the toy network
CPU, OURS, CUDNN = plots.BLACK, plots.BLUE, plots.RED
SMALL = {  # version -> what figure 4.1 calls it, and its colour
    "numpy-sample": ("NumPy, sample by sample", CPU),
    "numpy": ("NumPy, a mini-batch at once", CPU),
    "cuda-v1": ("V1", OURS),
    "cuda-v2": ("V2", OURS),
    "cuda-v3": ("V3", OURS),
    "cuda-fused": ("cuda-fused", OURS),
    "cuda-epoch": ("cuda-epoch", OURS),
    "pytorch": ("cuDNN", CUDNN),
    "pytorch-graph": ("cuDNN, CUDA graph", CUDNN),
    "numba-fused": ("numba-fused, all cores", CPU),
    "one core": ("one core, another machine", CPU),
}
LARGE = {
    "numba-fused": ("numba-fused, all cores", CPU),
    "cuda-fused": ("cuda-fused", OURS),
    "cuda-persistent": ("cuda-persistent", OURS),
    "pytorch": ("cuDNN", CUDNN),
    "pytorch-graph": ("cuDNN, CUDA graph", CUDNN),
    "pytorch-tf32": ("cuDNN, TF32", CUDNN),
    "pytorch-graph-tf32": ("cuDNN, TF32, CUDA graph", CUDNN),
}
TF32 = "pytorch-tf32", "pytorch-graph-tf32"  # whose peak is another


def measure_one_core(windows: int, rounds: int) -> pd.DataFrame:
    """Rows of an epoch of the airline network by `numba-fused` on one core of this
    machine; `step`: seconds of one of its mini-batches.
    """
    net = lk.network("numba-fused", AIRLINE.params(), threads=1)
    dataset, order = AIRLINE.dataset(windows), np.arange(windows)
    epoch = {"one core": lambda: net.epoch(dataset, order, AIRLINE.B, 0.05)}
    rows = interleaved(epoch, repeats=rounds)
    return rows.assign(step=rows["seconds"] / -(-windows // AIRLINE.B))


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


def persistent(work: Workload) -> Any:
    """The plan of `cuda-persistent` for a workload on an H100."""
    n = Sizes(work.L, work.T, work.B, work.D, work.H, 1, 4)
    limits = {"multiprocessors": MULTIPROCESSORS, "shared": SHARED}
    return cuda_persistent.plan(n, np.float32, simulated=False, **limits)


def blocks(samples: int) -> int:
    """The blocks that `cuda-epoch` launches on an H100 for the airline network, with so
    many samples in a mini-batch.
    """
    n = Sizes(AIRLINE.L, AIRLINE.T, samples, AIRLINE.D, AIRLINE.H, 1, 4)
    limits = {"multiprocessors": MULTIPROCESSORS, "shared": SHARED, "threads": 256}
    return plans.plan(n, np.float32, **limits).blocks


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


def executed() -> tuple[pd.DataFrame, pd.DataFrame]:
    """What the PTX machine ran (`make ptx`): a row a case, and the faults planted."""
    names = "ptx-machine.csv", "ptx-machine-faults.csv"
    runs, faults = (pd.read_csv(results.find(name)[0]) for name in names)
    return runs, faults.reindex(columns=["reported", "wrong result", "harmless"])


# Times, of this machine's device or recorded.


def small(rows: pd.DataFrame) -> pd.DataFrame:
    """Seconds of a step of the airline network by version: `table` in the five short
    epochs of the course project, `airline` in one long epoch.
    """
    found = {}
    for variant in ("table", "airline"):
        part = rows[rows["variant"] == variant]
        epochs = part["stage"].str.extract(r"(\d+) epochs")[0].fillna("1").astype(int)
        steps = epochs * np.ceil(part["N"] / part["B"])
        found[variant] = (part["seconds"] / steps).groupby(part["version"]).median()
    return pd.DataFrame(found, columns=["table", "airline"], dtype=float)


def large(rows: pd.DataFrame) -> pd.DataFrame:
    """Seconds of a training step and of inference of the reference workload by version,
    of its largest mini-batch; on a GPU inputs and outputs of inference stay there.
    """
    part = rows[rows["variant"] == "large"]
    part = part[part["B"] == part["B"].max()]
    table = part.groupby(["version", "stage"])["seconds"].median().unstack()
    table = table.reindex(columns=["step", "forward on device", "forward"])
    inference = table["forward on device"].fillna(table["forward"])
    return pd.DataFrame({"step": table["step"], "inference": inference})


def ratio_of(chosen: pd.DataFrame, one: str, other: str) -> Interval | None:
    """How many times as fast as `other` a version is; None where one is missing. Of one
    process the range of its rounds.
    """
    if not {one, other} <= set(chosen["version"]):
        return None
    if chosen["process"].nunique() > 1:
        found = evidence.ratios(chosen, other, "version")[one].dropna()
    else:
        table = chosen.pivot_table(index="repeat", columns="version", values="seconds")
        found = (table[other] / table[one]).dropna()
    return Interval.of(found) if len(found) else None


def power(rows: pd.DataFrame) -> Interval | None:
    """The power of the windows with which an epoch of `cuda-epoch` grows between the
    two largest data sets; of one process the range of its rounds.
    """
    times = rows[(rows["variant"] == "windows") & (rows["version"] == "cuda-epoch")]
    if times["N"].nunique() < 2:
        return None
    by = "process" if times["process"].nunique() > 1 else "repeat"
    table = times.groupby([by, "N"])["seconds"].median().unstack().dropna()
    if table.empty:
        return None
    few, many = table.columns[-2:]
    return Interval.of(np.log(table[many] / table[few]) / np.log(many / few))


def named(version: str) -> str:
    """What figure 4.1 calls a version on the large network."""
    return LARGE.get(version, (version, ""))[0]


def figure_versions(rows: pd.DataFrame, core: float | None = None) -> Figure:
    """Times of each version on the small and on the large network; core: seconds of a
    step on one core of the pages' machine, which is drawn hollow.
    """
    tables = small(rows), large(rows)
    if core:
        tables[0].loc["one core", "airline"] = core
    shown = [
        {name: how for name, how in names.items() if name in table.index}
        for names, table in zip((SMALL, LARGE), tables, strict=True)
    ]
    heights = [max(1, len(names)) for names in shown]
    figure, axes = plots.panels(2, 7.4, height_ratios=heights)
    marks = {"table": ("o", "short epochs"), "airline": ("D", "a long epoch")}
    _rows_of_versions(axes[0], 1e6 * tables[0], shown[0], marks)
    marks = {"step": ("o", "training step"), "inference": ("s", "inference")}
    _rows_of_versions(axes[1], 1e3 * tables[1], shown[1], marks)
    axes[0].set_title("Small network: one core keeps up")
    axes[0].set_xlabel("microseconds of a training step (log axis)")
    axes[1].set_title("Large network: cuDNN is ahead")
    axes[1].set_xlabel("milliseconds (log axis)")
    return figure


def _rows_of_versions(ax: Axes, table: pd.DataFrame, names: dict, marks: dict) -> None:
    """A row for each version, with a mark for each column of its times."""
    ax.set_xscale("log")
    for row, (version, (_, colour)) in enumerate(names.items()):
        times = table.loc[version].dropna()
        face = "white" if version == "one core" else colour
        how = {"color": colour, "markerfacecolor": face, "markersize": 6}
        for column, value in times.items():
            ax.plot(value, row, marks[column][0], **how)
        text = ", ".join(map(digits, sorted(times)))
        place = times.max(), row
        plots.note(ax, text, place, (8, 0), va="center", color=colour)
    for mark, told in marks.values():
        ax.plot([], [], mark, color=plots.GREY, label=told)
    plots.named_rows(ax, [told for told, _ in names.values()] or [""])
    ax.margins(x=0.3)
    ax.legend(loc="upper left")


def figure_growth(rows: pd.DataFrame) -> Figure:
    """Times of an epoch over the windows of the data set, a line for each version."""
    grown = rows[rows["variant"] == "windows"].assign(ms=lambda r: 1e3 * r["seconds"])
    figure, ax = plots.panels()
    ax.set(xscale="log", yscale="log", xlabel="windows of the data set")
    ax.set(ylabel="milliseconds of an epoch")
    ax.set_title("With larger mini-batches cuda-epoch overtakes the cores")
    if not grown.empty:
        ax.set_xlim(grown["N"].min() / 1.2, grown["N"].max() * 7)
        plots.lines(ax, grown, "N", "ms", "version")
    return figure
