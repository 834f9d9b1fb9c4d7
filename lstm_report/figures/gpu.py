"""Notebook 07: counts that hold for any GPU, what was measured on one, and the figures
of both.
"""

import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from lstm_kernels.gpu import device, plans
from lstm_kernels.gpu.layout import Sizes

from ..experiments import gpu
from ..measure import results
from ..measure.timing import summary, together
from . import plots

NOT_YET = "Not measured yet: no results of a GPU are recorded."
WAITS = """<details><summary>Not measured yet: this section waits for a GPU</summary>
<p>None is at hand and no results of one are recorded. With one, this run times the
comparisons itself; <code>make gpu</code> records them, and they stand here under the
machine's name.</p></details>"""
THIS_RUN = "this-run"  # the name of the machine in rows that are measured now
# Of `make ptx`; in a package that brings no results this names the file that is missed.
PTXAS = next(iter(results.find("ptxas.csv")), Path("ptxas.csv"))
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
    meet K gradients, or one meets one.
    """
    by_tile = (rows + K) / (rows * K)
    table = {
        "a thread per sample": ((1 + K) / K, 2, 2),
        "a tile, one sample to a thread": ((1 + K) / K, 2, by_tile),
        "a tile, four samples to a thread": ((4 + K) / (4 * K), 5 / 4, by_tile),
    }
    columns = ["forward", "backward", "gradients"]
    frame = pd.DataFrame.from_dict(table, orient="index", columns=columns)
    return frame.assign(**{"flop per byte": 2 * 3 / (4 * frame.sum(axis=1))})


def step_bytes(version, work):
    """Bytes that a step sends and fetches: the arrays' sizes, float32."""
    theta = sum(a.size for a in work.params().arrays().values())
    x, target, gradients = work.T * work.B * work.D, work.B, theta + 1  # with the loss
    # Two launches of V1 and V2 have x, which Numba copies there and back each time.
    by_numba = (4 * (2 * x + target + theta + gradients),) * 2
    return {
        "cuda-v1": by_numba,
        "cuda-v2": by_numba,
        "cuda-v3": (4 * (x + target + theta), 4 * gradients),
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


def occupancy(work):
    """Blocks that a step launches on an H200, and how many a multiprocessor can hold.

    From the recorded registers of the float32 LSTM; a multiprocessor has 65536
    registers, given out in eights, 228 KiB of shared memory, and takes 32 blocks and 64
    warps.
    """
    n = Sizes(work.L, work.T, work.B, work.D, work.H, 1, 4)
    limits = {"multiprocessors": MULTIPROCESSORS, "shared": SHARED}
    plan = plans.plan(n, np.float32, **limits, most_threads=256, most_units=256)
    variant = f"{plan.R} to a thread, {work.H} units"
    tile = plan.x * plan.y, plan.shared
    launches = [
        ("cuda-v1", "one thread", "step", 1, 1, 0),
        ("cuda-v2", "thread per sample", "step", -(-work.B // 32), 32, 0),
        ("cuda-fused", variant, "step", plan.blocks, *tile),
        ("cuda-epoch", variant, "epoch", plan.all_blocks, *tile),
    ]
    table = {}
    for version, variant, kernel, blocks, threads, shared in launches:
        recorded = resources(kernel=kernel)["float32", "lstm"]
        compiled = version.replace("cuda-epoch", "cuda-fused")  # of the same texts
        warps, registers = -(-threads // 32), int(recorded[compiled, variant])
        # In eights; the system keeps 1 KiB of shared memory of each block.
        hold = 65536 // (8 * math.ceil(registers / 8) * 32 * warps)
        hold = min(hold, 32, 64 // warps, (SHARED + 1024) // (shared + 1024))
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


def measured(preset):
    """Rows of the comparisons of `experiments.gpu`: timed now where there is a device,
    else recorded.
    """
    if not live():
        return recorded()
    parts = [compare() for compare in gpu.plan(preset).values()]
    return together(parts).assign(machine=THIS_RUN)


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
    rows = rows[rows["variant"].astype(str).str.startswith(variant)]
    lines = [f"{where(name)}: {tell(part)}" for name, part in rows.groupby("machine")]
    return "\n\n".join(lines) or NOT_YET


def times(rows):
    """Median milliseconds: a row for each machine, comparison and stage, a column a
    version.
    """
    keys = ["machine", "variant", "stage", "B", "N", "version"]
    medians = 1e3 * rows.groupby(keys, sort=False, dropna=False)["seconds"].median()
    return medians.unstack("version").add_suffix(" (ms)")


def speeds(rows):
    """A step of hundreds of samples, and epochs of such steps: how many times as fast
    as which.
    """
    median = rows[rows["stage"] == "step"].groupby("version")["seconds"].median()
    v3 = median["cuda-v3"]
    slower = [name for name in ("sequential", "numpy") if name in median]
    steps = [f"{median[name] / v3:.3g} times as fast as `{name}`" for name in slower]
    epochs = rows[rows["stage"] == "5 epochs"]
    ratio = summary(epochs, "cuda-v3", by="version")["ratio"]
    beyond = [f"{ratio[name]:.3g} times as fast with `{name}`" for name in gpu.STAY]
    return (
        f"a step of {rows['B'].iloc[0]} samples takes `cuda-v3` {1e3 * v3:.3g} ms, "
        f"{', '.join(steps)}; five epochs of such steps run {' and '.join(beyond)}."
    )


def growth(rows):
    """How the time of `cuda-epoch` grows with the data set, as an exponent; and from
    where on it is faster than `numba-fused`.
    """
    both = rows.groupby(["N", "version"])["seconds"].median().unstack()
    N, seconds = both.index, both["cuda-epoch"].to_numpy()
    exponent = np.log(seconds[-1] / seconds[0]) / np.log(N[-1] / N[0])
    faster = N[seconds < both["numba-fused"].to_numpy()]
    crossing = "`numba-fused` is faster at every size measured."
    if len(faster):
        crossing = f"It is faster than `numba-fused` from {faster[0]:,.0f} windows on."
    return (
        f"from {N[0]:,.0f} to {N[-1]:,.0f} windows the time of `cuda-epoch` grows as "
        f"their number to the power {exponent:.2f}. {crossing}"
    )


def claims(rows):
    """What the source found, and whether it held in rows that were timed in this run,
    else None.
    """
    rows = rows[rows["machine"] == THIS_RUN]
    median = rows.groupby(["variant", "stage", "version"])["seconds"].median()
    faster = slower = None
    if len(rows):
        step = median["hundreds", "step"]
        faster = bool(step["cuda-v3"] < step["numpy"])
        grown = rows[(rows["variant"] == "windows") & (rows["version"] == "cuda-epoch")]
        epoch = grown.groupby("N")["seconds"].median()
        slower = bool(epoch.iloc[-1] / epoch.iloc[0] < epoch.index[-1] / epoch.index[0])
    return {
        "A step of hundreds of samples takes `cuda-v3` less time than `numpy`": faster,
        "The time of an epoch of `cuda-epoch` grows less than the data set": slower,
    }


def show(nb, rows):
    """Sentences, a figure of each sweep, and the medians; or that nothing was
    measured.
    """
    if rows.empty:
        return nb.say(WAITS)
    nb.say(each("hundreds", speeds, rows))
    nb.say(each("windows", growth, rows))
    for variant, (x, label) in SWEEPS.items():
        sweep = rows[rows["variant"] == variant]
        for machine, part in sweep.groupby("machine"):
            nb.show(scaling(part, x, label), f"07-{variant}-{machine}")
    return times(rows)


# Comparisons over a size: its column, and what it counts.
SWEEPS = {
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
    return ax.figure


def roofline(table):
    """Limits of an H200 by its data sheet, and where the kernels lie by their
    `loads()`.
    """
    figure, ax = plt.subplots()
    slopes = {"shared memory": 1e3 * SHARED_MEMORY, "device memory": 1e3 * MEMORY}
    plots.roofline(ax, slopes, {"arithmetic": 1e3 * PEAK}, high=100.0)
    ax.set_xlabel("operations per byte that threads load (by count)")
    labels = []
    for (name, flop), colour in zip(
        table["flop per byte"].items(), SHADES, strict=False
    ):
        most = min(1e3 * PEAK, 1e3 * SHARED_MEMORY * flop)
        text = f"{name}: {flop:.2f} flop per byte, at most {most / 1e3:.1f} TFLOP/s"
        ax.plot(flop, most, "o", color=colour)
        labels.append((flop, most, text, colour))
    plots.label_lines(ax, labels)
    ax.set_title(
        "Loading operands, not arithmetic, limits these kernels (H200, data sheet)"
    )
    return figure


def scaling(rows, x, label):
    """Times of an epoch over a size: a line for each version, quartiles as bars."""
    figure, ax = plt.subplots()
    ax.set(xscale="log", yscale="log", xlabel=label, ylabel="milliseconds an epoch")
    ax.margins(x=0.2)
    rows = rows.assign(milliseconds=1e3 * rows["seconds"])
    colours = plots.COLOURS
    medians = plots.over(ax, rows, x, "milliseconds", "version", colours=colours)
    last = rows["version"].iloc[-1]
    line = medians[last]
    times, more = line.iloc[-1] / line.iloc[0], line.index[-1] / line.index[0]
    ax.set_title(
        f"{last}: {times:.3g} times the time for {more:.3g} times as many {label}"
    )
    return figure
