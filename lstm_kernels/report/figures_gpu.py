"""Notebook 07: counts that hold for any GPU, what was recorded on one, and the figures of both."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from ..bench import ptx, results
from ..bench.timing import summary
from ..gpu.device_functions import HEAD
from ..gpu.sample_kernels import UNITS
from . import plots

NOT_YET = "Not measured yet: no results of a GPU are recorded."
SHARED = 227 << 10  # bytes of shared memory that an H100 or H200 grants a block
# NVIDIA's data sheets of the H200 (SXM) and the T4: single-precision TFLOP/s, device memory TB/s;
# shared memory: 32 banks of 4 bytes a clock for each multiprocessor (CUDA C++ Programming Guide).
SHEETS = {
    "H200": {"tflops": 67.0, "memory": 4.8, "multiprocessors": 132, "clock_ghz": 1.98},
    "T4": {"tflops": 8.1, "memory": 0.32, "multiprocessors": 40, "clock_ghz": 1.59},
}


def shared_bandwidth(device):
    """TB/s at which threads can read shared memory, all multiprocessors together."""
    sheet = SHEETS[device]
    return sheet["multiprocessors"] * 128 * sheet["clock_ghz"] / 1000


def loads(K=4, rows=4):
    """Numbers that a thread loads for a multiply-add, by kernel and part, as the texts have them.

    Forward a value meets K weights; four samples to a thread share these. On the way back K
    gradients meet K weights. For the weights' gradients a value, or `rows` of them, meets K
    gradients.
    """
    table = {
        "a thread per sample": ((1 + K) / K, 2, (1 + K) / K),
        "a tile, one sample to a thread": ((1 + K) / K, 2, (rows + K) / (rows * K)),
        "a tile, four samples to a thread": ((4 + K) / (4 * K), 5 / 4, (rows + K) / (rows * K)),
    }
    columns = ["forward", "back", "gradients"]
    frame = pd.DataFrame.from_dict(table, orient="index", columns=columns)
    return frame.assign(**{"flop per byte": 2 * 3 / (4 * frame.sum(axis=1))})


def step_bytes(version, work):
    """Bytes that a step sends and fetches: the arrays' sizes, float32."""
    theta = sum(a.size for a in work.params().arrays().values())
    batch, gradients = work.T * work.B * work.D + work.B, theta + 1  # the loss behind them
    return {
        "cuda-v1": (4 * (batch + theta + gradients),) * 2,
        "cuda-v2": (4 * (batch + theta + gradients),) * 2,
        "cuda-v3": (4 * (batch + theta), 4 * gradients),
        "cuda-fused": (0, 0),  # inside an epoch
    }[version]


def occupancy(work, multiprocessors=132, capability="9.0"):
    """Blocks that a step launches, and how many a multiprocessor can hold.

    From the recorded registers of the float32 LSTM; a multiprocessor has 65536 registers, given out
    in eights, 228 KiB of shared memory, and takes 32 blocks and 64 warps.
    """
    recorded = pd.read_csv(ptx.PATH, dtype={"capability": str})
    chosen = recorded.query(
        "cell == 'lstm' and dtype == 'float32' and kernel == 'step' and capability == @capability"
    ).set_index(["version", "variant"])["registers"]
    from ..versions import cuda_fused

    n = (work.L, work.T, work.B, work.D, work.H, 1)
    most = ptx.THREADS["cuda-fused"]
    plan = cuda_fused.plan(n, "lstm", np.dtype(np.float32), multiprocessors, SHARED, most)
    kind = f"{plan.R} to a thread, weights {'shared' if plan.resident else 'in device memory'}"
    shapes = {
        ("cuda-v1", "one thread"): (1, 1, HEAD + 4 * 4 * UNITS * 2),
        ("cuda-v2", "thread per sample"): (-(-work.B // 32), 32, HEAD + 4 * 4 * UNITS * 33),
        ("cuda-fused", f"{kind}, ordered"): (plan.blocks, plan.threads, plan.shared),
    }
    table = {}
    for key, (blocks, threads, shared) in shapes.items():
        warps = -(-threads // 32)
        registers = 8 * math.ceil(chosen[key] / 8)
        hold = min(32, 64 // warps, ptx.REGISTERS // (registers * 32 * warps))
        hold = min(hold, (SHARED + 1024) // (shared + 1024))  # the system keeps 1 KiB of each
        table[key[0]] = {
            "blocks": blocks,
            "threads": threads,
            "registers": chosen[key],
            "shared (KiB)": round(shared / 1024, 1),
            "multiprocessors busy": f"{min(1, blocks / multiprocessors):.0%}",
            "blocks one can hold": hold,
            "its warps then": f"{hold * warps / 64:.0%}",
        }
    return pd.DataFrame.from_dict(table, orient="index").rename_axis("version")


def resources(capability="9.0"):
    """Registers of every step kernel by variant, cell and dtype at a capability."""
    rows = pd.read_csv(ptx.PATH, dtype={"capability": str})
    rows = rows[(rows["kernel"] == "step") & (rows["capability"] == capability)]
    keys = ["version", "variant"]
    table = rows.pivot_table(index=keys, columns=["dtype", "cell"], values="registers", sort=False)
    return table.map(lambda count: "" if pd.isna(count) else f"{count:.0f}")


def recorded(variant):
    """The recorded rows of a comparison of `make gpu`, of every machine; empty without any."""
    try:
        rows = results.read("gpu")
    except ValueError:
        return pd.DataFrame()
    return rows[rows["variant"].astype(str).str.startswith(variant)]


def where(machine):
    """The GPU, the machine and the date of its recorded comparisons, in words."""
    m = results.record("gpu", machine)
    gpu = m["gpu"]
    return (
        f"{gpu['name']} (driver {gpu['driver']}) with {m['cpu']}, {m['cores']} cores, {m['date']}"
    )


def each(variant, tell):
    """`tell(rows)` for each machine that recorded a comparison, in sentences; or that none did."""
    rows = recorded(variant)
    if rows.empty:
        return NOT_YET
    said = [f"{where(name)}: {tell(part)}" for name, part in rows.groupby("machine")]
    return "\n\n".join(said)


def speeds(rows):
    """Steps of hundreds of samples: how many times as fast as which."""
    median = rows[rows["stage"] == "step"].groupby("version")["seconds"].median()
    long = rows[rows["stage"] == "5 epochs"]
    v3 = {name: median[name] / median["cuda-v3"] for name in ("sequential", "numpy")}
    said = ", ".join(f"{ratio:.3g} times as fast as `{name}`" for name, ratio in v3.items())
    ratio = summary(long, "cuda-v3", by="version")["ratio"]["cuda-fused"]
    B = rows["B"].iloc[0]
    return (
        f"a step of {B} samples takes `cuda-v3` {1e3 * median['cuda-v3']:.3g} ms, {said}; five "
        f"epochs of such steps run {ratio:.3g} times as fast with `cuda-fused`."
    )


def growth(rows):
    """The exponent of the time over the data set's size, up to where the device is full."""
    times = rows.query("version == 'cuda-fused'").groupby("N")["seconds"].median()
    slopes = np.diff(np.log(times)) / np.diff(np.log(times.index))
    full = next((i for i, slope in enumerate(slopes) if slope > 0.7), len(slopes))
    exponent = np.polyfit(np.log(times.index[: full + 1]), np.log(times.iloc[: full + 1]), 1)[0]
    return (
        f"from {times.index[0]:,.0f} to {times.index[full]:,.0f} windows the time grows as their "
        f"number to the power {exponent:.2f}; beyond, the device is full: "
        f"{times.index[-1]:,.0f} windows take {1e3 * times.iloc[-1]:.3g} ms."
    )


def crossover(rows):
    """Where `cuda-fused` overtakes `numba-fused` as the data set grows."""
    times = rows.groupby(["N", "version"])["seconds"].median().unstack()
    ahead = times.index[times["cuda-fused"] < times["numba-fused"]]
    if ahead.empty:
        return "`numba-fused` is faster at every size measured."
    ratio = times["numba-fused"].iloc[-1] / times["cuda-fused"].iloc[-1]
    return (
        f"`cuda-fused` overtakes `numba-fused` from {ahead[0]:,.0f} windows on, and is "
        f"{ratio:.3g} times as fast at {times.index[-1]:,.0f}."
    )


def moved(rows):
    """Bytes and milliseconds of a step's copies, by version."""
    table = rows.groupby(["version", "stage", "variant"], sort=False)[["bytes", "seconds"]].median()
    return "; ".join(
        f"`{version}`, {stage}, {variant.split()[1]} {row['bytes']:,.0f} bytes in "
        f"{1e3 * row['seconds']:.3g} ms"
        for (version, stage, variant), row in table.iterrows()
    )


def ordered(rows):
    """What the fixed order of the sums costs beside atomics."""
    median = rows.groupby("variant")["seconds"].median()
    ratio = median["sums ordered"] / median["sums atomic"]
    return f"an epoch with sums in a fixed order takes {ratio:.3g} times that with atomics."


SHADES = (plots.BLUE, plots.ORANGE, plots.GREEN, plots.RED, plots.PURPLE, plots.SKY)


def mapping(samples=8, units=6, tile=2, threads=4):
    """Who computes what: samples across, units down; a colour for each block, a number a thread."""
    titles = {
        "cuda-v1: one thread": lambda s, j: (0, 0),
        "cuda-v2, v3: a thread per sample": lambda s, j: divmod(s, threads),
        f"cuda-fused: a block per tile of {tile}": lambda s, j: (s // tile, s % tile * units + j),
    }
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.4), sharey=True)
    for ax, (title, place) in zip(axes, titles.items(), strict=True):
        for s in range(samples):
            for j in range(units):
                block, thread = place(s, j)
                box = (s - 0.48, j - 0.48)
                colour = SHADES[block % len(SHADES)]
                ax.add_patch(plt.Rectangle(box, 0.96, 0.96, color=colour, alpha=0.35))
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
    figure, ax = plt.subplots(figsize=(8, 2.8))
    told = []
    for row, version in enumerate(versions):
        sent, fetched = (value / 1024 for value in step_bytes(version, work))
        ax.barh(row - 0.19, sent, 0.36, color=plots.BLUE, label="to the device" if not row else "")
        ax.barh(row + 0.19, fetched, 0.36, color=plots.ORANGE, label="" if row else "back")
        ax.text(sent, row - 0.19, f" {sent:.1f}", va="center", fontsize=9)
        ax.text(fetched, row + 0.19, f" {fetched:.1f}", va="center", fontsize=9)
        told.append(f"{version} {sent:.1f} and {fetched:.1f}")
    ax.set(yticks=range(len(versions)), yticklabels=versions, xlabel="KiB copied in a step")
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.margins(x=0.12)
    ax.legend(loc="lower right")
    last = sum(step_bytes("cuda-v3", work)) / sum(step_bytes("cuda-v2", work))
    ax.set_title(f"By hand {last:.0%} of it is copied, inside an epoch nothing")
    figure.alt = f"KiB to the device and back in a step of {work.B} samples: {'; '.join(told)}."
    return figure


def roofline(device, table, measured=()):
    """Limits of a device by its data sheet, and where the kernels lie by their loads.

    table: `loads()`. measured: (version, flop per byte, TFLOP/s) of recorded runs.
    """
    sheet, figure = SHEETS[device], plt.figure(figsize=(8, 4.2))
    ax, x = figure.subplots(), np.geomspace(0.1, 100, 200)
    shared = shared_bandwidth(device)
    ax.plot(x, np.minimum(sheet["tflops"], shared * x), color=plots.BLACK)
    ax.plot(x, np.minimum(sheet["tflops"], sheet["memory"] * x), color=plots.GREY)
    lines = (("shared memory", shared, plots.BLACK), ("device memory", sheet["memory"], plots.GREY))
    for name, speed, colour in lines:
        at = 0.13
        label = f"{name}, {speed:.3g} TB/s"
        ax.text(at, 1.25 * speed * at, label, color=colour, rotation=33, fontsize=9)
    ax.text(100, 1.08 * sheet["tflops"], f"{sheet['tflops']:.0f} TFLOP/s", ha="right")
    told, markers = [], "osD"
    for (name, row), colour, marker in zip(table.iterrows(), SHADES, markers, strict=False):
        at = row["flop per byte"]
        limit = min(sheet["tflops"], shared * at)
        size = 12 - 3 * len(told)  # one may lie on another
        ax.plot(
            [at],
            [limit],
            marker,
            markersize=size,
            color=colour,
            label=f"{name}: at most {limit:.1f} TFLOP/s",
        )
        ax.axvline(at, color=colour, linewidth=0.8, linestyle=":")
        told.append(f"{name} {at:.2f} flop per byte, at most {limit:.1f} TFLOP/s")
    for version, at, rate in measured:
        ax.plot([at], [rate], "*", color=plots.RED, markersize=11)
        plots.label_line(ax, at, rate, f"{version}, measured", plots.RED)
    ax.set(xscale="log", yscale="log", xlabel="flop per byte that threads load", ylabel="TFLOP/s")
    ax.set_ylim(0.1, 2 * sheet["tflops"])
    ax.legend(loc="lower right", fontsize=9)
    ax.set_title(f"Loading operands, not arithmetic, limits these kernels ({device}, data sheet)")
    figure.alt = f"Roofline of the {device} from its data sheet, kernels placed by count: "
    figure.alt += "; ".join(told) + "."
    return figure


def scaling(rows, x, label):
    """Recorded times of an epoch over a size: a line for each version, quartiles as bars."""
    figure, ax = plt.subplots()
    told, title = [], ""
    for version, part in rows.groupby("version", sort=False):
        times = 1e3 * part.groupby(x)["seconds"].quantile([0.25, 0.5, 0.75]).unstack()
        colour = plots.COLOURS[version]
        spread = [times[0.5] - times[0.25], times[0.75] - times[0.5]]
        ax.errorbar(times.index, times[0.5], spread, color=colour, marker="o", markersize=4)
        plots.label_line(ax, times.index[-1], times[0.5].iloc[-1], version, colour)
        size = times.index[-1] / times.index[0]
        title = f"{version}: {times[0.5].iloc[-1] / times[0.5].iloc[0]:.3g} times the time for "
        title += f"{size:.3g} times as many {label}"
        told.append(f"{version} {times[0.5].iloc[0]:.3g} to {times[0.5].iloc[-1]:.3g} ms")
    ax.set(xscale="log", yscale="log", xlabel=label, ylabel="milliseconds an epoch", title=title)
    ax.margins(x=0.2)
    figure.alt = f"Time of an epoch over {label}, both axes logarithmic: {'; '.join(told)}."
    return figure
