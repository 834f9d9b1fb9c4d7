"""Notebook 07: counts that hold for any GPU, what was measured on one, and the figures
of both.
"""

import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from lstm_kernels.cells import CELLS
from lstm_kernels.gpu import device, plans
from lstm_kernels.gpu.layout import Sizes
from lstm_kernels.gpu.sample_kernels import UNITS

from ..experiments import gpu
from ..measure import results
from ..measure.timing import summary
from . import plots

NOT_YET = "Not measured yet: no results of a GPU are recorded."
WAITS = """<details><summary>Not measured yet: this section waits for a GPU</summary>
<p>None is at hand and no results of one are recorded. With one, this run times the comparisons
itself; <code>make gpu</code> records them, and they stand here under the machine's name: the times
of a step and of five epochs, the exponent of the time over the size of the data set, a figure for
each sweep (data set, mini-batch, hidden units), and the table of all.</p></details>"""
THIS_RUN = "this-run"  # the name of the machine in rows that are measured now
# Of `make ptx`; in a package that brings no results this names the files that are
# missed.
PTXAS, SASS = (next(iter(results.find(f)), Path(f)) for f in ("ptxas.csv", "sass.csv"))
# NVIDIA's data sheet of the H200 (SXM): single-precision TFLOP/s, device memory TB/s;
# shared memory has 32 banks of 4 bytes a clock in each multiprocessor (CUDA C++
# Programming Guide).
PEAK, MEMORY, MULTIPROCESSORS = 67.0, 4.8, 132
SHARED_MEMORY = MULTIPROCESSORS * 32 * 4 * 1.98e9 / 1e12  # TB/s, of all at 1.98 GHz
SHARED = 227 << 10  # bytes of shared memory that it grants a block


def loads(K=4, rows=4):
    """Numbers that a thread loads for a multiply-add, by kernel and part, as the texts
    have them.

    Forward a value meets K weights; four samples to a thread share these. In the
    backward pass K gradients meet K weights. For the weights' gradients `rows` values
    meet K gradients.
    """
    table = {
        "a thread per sample": ((1 + K) / K, 2, (rows + K) / (rows * K)),
        "a tile, one sample to a thread": ((1 + K) / K, 2, (rows + K) / (rows * K)),
        "a tile, four samples to a thread": (
            (4 + K) / (4 * K),
            5 / 4,
            (rows + K) / (rows * K),
        ),
    }
    columns = ["forward", "backward", "gradients"]
    frame = pd.DataFrame.from_dict(table, orient="index", columns=columns)
    return frame.assign(**{"flop per byte": 2 * 3 / (4 * frame.sum(axis=1))})


def step_bytes(version, work):
    """Bytes that a step sends and fetches: the arrays' sizes, float32."""
    theta = sum(a.size for a in work.params().arrays().values())
    batch, gradients = (
        work.T * work.B * work.D + work.B,
        theta + 1,
    )  # the loss behind them
    return {
        "cuda-v1": (4 * (batch + theta + gradients),) * 2,
        "cuda-v2": (4 * (batch + theta + gradients),) * 2,
        "cuda-v3": (4 * (batch + theta), 4 * gradients),
        "cuda-fused": (0, 0),  # inside an epoch
        "cuda-epoch": (0, 0),
    }[version]


def resources(capability="9.0", kernel="step"):
    """Registers of a kernel: a row for a version and variant, a column for each cell
    and dtype.
    """
    rows = pd.read_csv(PTXAS, dtype={"capability": str})
    rows = rows[(rows["kernel"] == kernel) & (rows["capability"] == capability)]
    keys, columns = ["version", "variant"], ["dtype", "cell"]
    return rows.pivot_table(index=keys, columns=columns, values="registers", sort=False)


def example_loops():
    """Instructions for a multiply-add in a loop of products, as it is improved change
    by change.
    """
    rows = pd.read_csv(SASS).query("version == 'example'").set_index("variant")
    each = rows["instructions"] / rows["multiply_adds"]
    loads = rows["loads"] / rows["multiply_adds"]
    columns = {"instructions for a multiply-add": each, "of them loads": loads}
    return pd.DataFrame(columns).rename_axis(None)


def loops(cell="lstm"):
    """The share of multiply-adds, in per cent, among the instructions of each hot
    loop.
    """
    rows = pd.read_csv(SASS).query("cell == @cell and version != 'example'")
    rows = rows.assign(share=100 * rows["multiply_adds"] / rows["instructions"])
    order = rows["loop"].unique()
    index = ["version", "variant"]
    return rows.pivot_table(index=index, columns="loop", values="share", sort=False)[
        order
    ]


def forms(works):
    """How often a thread turns in its loop for the gradients of a mini-batch of each
    Workload, in either form, on an H200, and which is taken.
    """
    table = {}
    for work in works:
        n = Sizes(work.L, work.T, work.B, work.D, work.H, 1)
        plan = _plan(n)
        turns = plans.rounds(
            n, CELLS["lstm"], plan.blocks, plan.all_blocks, plan.threads
        )
        name = f"{work.L} x {work.H} units, {work.B} samples"
        taken = "by all blocks" if plan.product else "by tile"
        table[name] = {"by tile": turns[0], "by all blocks": turns[1], "taken": taken}
    return pd.DataFrame.from_dict(table, orient="index")


def _plan(n):
    how = CELLS["lstm"], np.float32, MULTIPROCESSORS, SHARED
    return plans.plan(n, *how, most_threads=256, most_units=256)


def occupancy(work):
    """Blocks that a step launches on an H200, and how many a multiprocessor can hold.

    From the recorded registers of the float32 LSTM; a multiprocessor has 65536
    registers, given out in eights, 228 KiB of shared memory, and takes 32 blocks and 64
    warps.
    """
    n = Sizes(work.L, work.T, work.B, work.D, work.H, 1)
    plan = _plan(n)
    kind = f"{plan.R} to a thread, weights {'shared' if plan.resident else 'in device memory'}"
    kind, tile = f"{kind}, gradients by tile", (plan.threads, plan.shared)
    sums = 4 * UNITS * 4 * 4  # bytes of a thread: four rows, K gates
    launches = [
        ("cuda-v1", "one thread", "step", 1, 1, 2 * sums),
        ("cuda-v2", "thread per sample", "step", -(-work.B // 32), 32, 33 * sums),
        ("cuda-fused", kind, "step", plan.blocks, *tile),
        ("cuda-epoch", kind, "epoch", plan.all_blocks, *tile),
    ]
    table = {}
    for version, variant, kernel, blocks, threads, shared in launches:
        recorded = resources(kernel=kernel)["float32", "lstm"]
        compiled = version.replace("cuda-epoch", "cuda-fused")  # of the same texts
        warps, registers = -(-threads // 32), int(recorded[compiled, variant])
        hold = min(
            32, 64 // warps, 65536 // (8 * math.ceil(registers / 8) * 32 * warps)
        )
        hold = min(
            hold, (SHARED + 1024) // (shared + 1024)
        )  # the system keeps 1 KiB of each
        table[version] = {
            "blocks": blocks,
            "threads of a block": threads,
            "registers of a thread": registers,
            "shared memory of a block (KiB)": round(shared / 1024, 1),
            "multiprocessors busy (%)": round(100 * min(1, blocks / MULTIPROCESSORS)),
            "blocks that one can hold": hold,
            "its warps then (%)": round(100 * hold * warps / 64),
        }
    return pd.DataFrame.from_dict(table, orient="index").rename_axis("version")


def recorded():
    """The rows that `make gpu` recorded, of every machine; empty without any."""
    try:
        return results.read("gpu")
    except ValueError:
        return pd.DataFrame(
            columns=["machine", "variant", "stage", "version", "B", "N", "seconds"]
        )


def live():
    """Whether this run has a device to time."""
    return not device.SIMULATED and device.why_unavailable() is None


def measured(names, small=False):
    """Rows of the comparisons of `bench.gpu`: timed now where there is a device, else
    recorded.
    """
    if not live():
        return recorded()
    names = [name for name in gpu.CPU + gpu.GPU if name in names]
    work = gpu.Workload(L=1, T=3, D=1, H=4, B=8) if small else gpu.HUNDREDS
    sizes = [16, 32] if small else [10**p for p in range(2, 7)]
    many, few = ({"repeats": 1 if small else repeats} for repeats in (20, 5))
    own = [name for name in names if name in gpu.GPU]
    airline = (work, work.dataset(8)) if small else ()
    parts = [gpu.table(names, *airline, **few), gpu.hundreds(names, work, **many)]
    parts += [gpu.transfers(own, work, **many), gpu.sums(work, **many)]
    parts += [
        gpu.batches(gpu.STAY, [work.B], 64 * work.B if not small else 16, work, **few)
    ]
    parts += [gpu.windows(["numba-fused", "cuda-v3", *gpu.STAY], sizes, work, **few)]
    return pd.concat(parts, ignore_index=True).assign(machine=THIS_RUN)


def where(machine):
    """The GPU, the machine and the date of its recorded comparisons, in words."""
    if machine == THIS_RUN:
        return f"{device.describe()['name']}, in this run"
    m = results.record("gpu", machine)
    name, driver = m["gpu"]["name"], m["gpu"]["driver"]
    return f"{name} (driver {driver}) with {m['cpu']}, {m['cores']} cores, {m['date']}"


def each(variant, tell, rows=None):
    """`tell(rows)` for each machine that made a comparison, in sentences; or that none
    did.
    """
    rows = recorded() if rows is None else rows
    rows = rows[~rows["stage"].astype(str).str.endswith("by events")]
    rows = rows[rows["variant"].astype(str).str.startswith(variant)]
    said = [f"{where(name)}: {tell(part)}" for name, part in rows.groupby("machine")]
    return "\n\n".join(said) or NOT_YET


def times(rows):
    """Median milliseconds: a row for each machine, comparison and stage, a column a
    version.
    """
    keys = ["machine", "variant", "stage", "B", "N", "version"]
    medians = 1e3 * rows.groupby(keys, sort=False, dropna=False)["seconds"].median()
    return medians.unstack("version").add_suffix(" (ms)")


def speeds(rows):
    """Steps of hundreds of samples: how many times as fast as which."""
    steps = rows[rows["stage"] == "step"].groupby(["B", "version"])["seconds"].median()
    return " ".join(
        _speed(B, steps[B], rows[rows["B"] == B]) for B in steps.index.unique("B")
    )


def _speed(B, median, rows):
    slower = [name for name in ("sequential", "numpy") if name in median]
    said = ", ".join(
        f"{median[name] / median['cuda-v3']:.3g} times as fast as `{name}`"
        for name in slower
    )
    ratio = summary(rows[rows["stage"] == "5 epochs"], "cuda-v3", by="version")["ratio"]
    beyond = [f"{ratio[name]:.3g} times as fast with `{name}`" for name in gpu.STAY]
    return (
        f"a step of {B} samples takes `cuda-v3` {1e3 * median['cuda-v3']:.3g} ms, "
        f"{said}; five epochs of such steps run {' and '.join(beyond)}."
    )


def a_step(rows):
    """What a step takes inside an epoch of many, where the network stays on the
    device.
    """
    B = gpu.HUNDREDS.B if gpu.HUNDREDS.B in set(rows["B"]) else rows["B"].min()
    median = rows[rows["B"] == B].groupby("version")["seconds"].median()
    steps = math.ceil(rows["N"].iloc[0] / B)
    said = (f"`{name}` {1e6 * median[name] / steps:.3g} µs" for name in gpu.STAY)
    return f"a step of {B} samples in an epoch of {steps} takes {' and '.join(said)}."


def growth(rows):
    """The exponent of the time over the data set's size, up to where the device is
    full; and where `cuda-epoch` overtakes `numba-fused`.
    """
    both = rows.groupby(["N", "version"])["seconds"].median().unstack()
    N, fused, cpu = (
        both.index,
        both["cuda-epoch"].to_numpy(),
        both["numba-fused"].to_numpy(),
    )
    slopes = np.diff(np.log(fused)) / np.diff(np.log(N))
    full = next((i for i, slope in enumerate(slopes) if slope > 0.7), len(slopes)) or 1
    crossing = "`numba-fused` is faster at every size measured."
    if (fused < cpu).any():
        crossing = (
            f"`cuda-epoch` overtakes `numba-fused` from {N[fused < cpu][0]:,.0f} windows on, and "
            f"is {cpu[-1] / fused[-1]:.3g} times as fast at {N[-1]:,.0f}."
        )
    return (
        f"from {N[0]:,.0f} to {N[full]:,.0f} windows the time grows as their number to the power "
        f"{np.log(fused[full] / fused[0]) / np.log(N[full] / N[0]):.2f}; beyond, the device is "
        f"full: {N[-1]:,.0f} windows take {1e3 * fused[-1]:.3g} ms. {crossing}"
    )


def claims(rows):
    """What the source found, and whether it held in rows that were timed in this run,
    else None.
    """
    live = rows[rows["machine"] == THIS_RUN]
    hundreds = live["variant"] == "hundreds"
    live = live[~hundreds | (live["B"] == live.loc[hundreds, "B"].min())]
    median = live.groupby(["variant", "stage", "version"])["seconds"].median()
    epoch = live[(live["variant"] == "windows") & (live["version"] == "cuda-epoch")]
    epoch = epoch[epoch["stage"] == "epoch"]
    epoch = epoch.groupby("N")["seconds"].median()
    faster = slower = None
    if len(live):
        step = median["hundreds", "step"]
        faster = bool(step["cuda-v3"] < step["numpy"])
        slower = bool(epoch.iloc[-1] / epoch.iloc[0] < epoch.index[-1] / epoch.index[0])
    return {
        "A step of hundreds of samples takes `cuda-v3` less time than `numpy`": faster,
        "The time of an epoch of `cuda-epoch` in eight steps grows less than the data set": slower,
    }


def show(nb, rows):
    """Sentences, a figure of each sweep, and the medians; or that nothing was
    measured.
    """
    if rows.empty:
        return nb.say(WAITS)
    nb.say(each("hundreds", speeds, rows))
    nb.say(each("batch", a_step, rows))
    nb.say(each("windows", growth, rows))
    for variant, (x, label) in SWEEPS.items():
        sweep = rows[(rows["variant"] == variant) & (rows["stage"] == "epoch")]
        for machine, part in sweep.groupby("machine"):
            nb.show(scaling(part, x, label), f"07-{variant}-{machine}")
    return times(rows)


SWEEPS = {  # comparisons over a size: its column, and what it counts
    "windows": ("N", "windows"),
    "batch": ("B", "samples in a mini-batch"),
    "hidden": ("H", "hidden units"),
}
SHADES = (plots.BLUE, plots.ORANGE, plots.GREEN, plots.RED, plots.PURPLE, plots.SKY)


def mapping(samples=8, units=6, tile=2, threads=4):
    """Who computes what: samples across, units down; a colour for each block, a number
    a thread.
    """
    titles = {
        "cuda-v1: one thread": lambda s, j: (0, 0),
        "cuda-v2, v3: a thread per sample": lambda s, j: divmod(s, threads),
        f"cuda-fused: a block per tile of {tile}": lambda s, j: (
            s // tile,
            s % tile * units + j,
        ),
    }
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.4), sharey=True)
    for ax, (title, place) in zip(axes, titles.items(), strict=True):
        for s, j in np.ndindex(samples, units):
            block, thread = place(s, j)
            box = plt.Rectangle(
                (s - 0.48, j - 0.48), 0.96, 0.96, color=SHADES[block], alpha=0.35
            )
            ax.add_patch(box)
            ax.text(s, j, thread, ha="center", va="center", fontsize=8)
        ax.set(xlim=(-0.6, samples - 0.4), ylim=(units - 0.4, -0.6), xlabel="sample")
        ax.set(xticks=range(samples), yticks=range(units))
        ax.set_title(title, fontsize=9.5)
        ax.grid(visible=False)
    axes[0].set_ylabel("hidden unit")
    figure.alt = (
        f"Three grids of {samples} samples by {units} units, coloured by block and numbered by "
        f"thread: cuda-v1 has one thread for all, cuda-v2 and v3 one thread for a sample's column, "
        f"cuda-fused a block for {tile} samples with a thread for each unit of each sample."
    )
    return figure


def transfers(work, versions):
    """Bytes that a step sends and fetches, by version, as counted."""
    table = pd.DataFrame(
        {v: step_bytes(v, work) for v in versions}, ["to the device", "back"]
    ).T
    table /= 1024
    ax = table.plot.barh(figsize=(8, 2.8), width=0.75, color=[plots.BLUE, plots.ORANGE])
    for bars in ax.containers:
        ax.bar_label(bars, fmt=" %.1f", fontsize=9)
    ax.set_xlabel("KiB copied in a step")
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.margins(x=0.12)
    ax.legend(loc="lower right")
    total = table.sum(axis=1)
    share = total["cuda-v3"] / total["cuda-v2"]
    ax.set_title(
        f"V3 copies {share:.0%} of what V2 copies, cuda-fused inside an epoch nothing"
    )
    told = "; ".join(
        f"{name} {row.iloc[0]:.1f} and {row.iloc[1]:.1f}"
        for name, row in table.iterrows()
    )
    ax.figure.alt = f"KiB to the device and back in a step of {work.B} samples: {told}."
    return ax.figure


def roofline(table):
    """Limits of an H200 by its data sheet, and where the kernels lie by their
    `loads()`.
    """
    figure, ax = plt.subplots()
    x, told = np.geomspace(0.1, 100, 200), []
    lines = (
        ("shared memory", SHARED_MEMORY, plots.BLACK),
        ("device memory", MEMORY, plots.GREY),
    )
    for name, speed, colour in lines:
        ax.plot(x, np.minimum(PEAK, speed * x), color=colour)
        label = f"{name}, {speed:.3g} TB/s"
        ax.text(0.13, 1.25 * speed * 0.13, label, color=colour, rotation=33, fontsize=9)
    ax.text(100, 1.08 * PEAK, f"{PEAK:.0f} TFLOP/s", ha="right")
    kernels = zip(
        table["flop per byte"].items(), SHADES, "osD", (12, 9, 6), strict=False
    )
    for (
        name,
        at,
    ), colour, marker, size in kernels:  # a smaller marker may lie on a larger one
        most = min(PEAK, SHARED_MEMORY * at)
        told.append(f"{name}: {at:.2f} flop per byte, at most {most:.1f} TFLOP/s")
        ax.plot(
            at,
            most,
            marker,
            label=told[-1],
            markersize=size,
            color=colour,
            linestyle="",
        )
        ax.axvline(at, color=colour, linewidth=0.8, linestyle=":")
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="flop per byte that threads load",
        ylabel="TFLOP/s",
    )
    ax.set_ylim(0.1, 2 * PEAK)
    ax.legend(loc="lower right", fontsize=9)
    ax.set_title(
        "Loading operands, not arithmetic, limits these kernels (H200, data sheet)"
    )
    figure.alt = "Roofline of the H200 from its data sheet, kernels placed by count. "
    figure.alt += "; ".join(told) + "."
    return figure


def scaling(rows, x, label):
    """Times of an epoch over a size: a line for each version, quartiles as bars."""
    figure, ax = plt.subplots()
    told, title = [], ""
    for version, part in rows.groupby("version", sort=False):
        low, middle, high = (
            1e3
            * part.groupby(x)["seconds"]
            .quantile([0.25, 0.5, 0.75])
            .unstack()
            .T.to_numpy()
        )
        sizes, colour = part[x].sort_values().unique(), plots.COLOURS[version]
        ax.errorbar(
            sizes,
            middle,
            [middle - low, high - middle],
            color=colour,
            marker="o",
            markersize=4,
        )
        plots.label_line(ax, sizes[-1], middle[-1], version, colour)
        title = f"{version}: {middle[-1] / middle[0]:.3g} times the time for "
        title += f"{sizes[-1] / sizes[0]:.3g} times as many {label}"
        told.append(f"{version} {middle[0]:.3g} to {middle[-1]:.3g} ms")
    ax.set(
        xscale="log",
        yscale="log",
        xlabel=label,
        ylabel="milliseconds an epoch",
        title=title,
    )
    ax.margins(x=0.2)
    figure.alt = (
        f"Time of an epoch over {label}, both axes logarithmic: {'; '.join(told)}."
    )
    return figure
