"""The figures of notebook 07, drawn from plans, counts and recorded results."""

import matplotlib.pyplot as plt
import numpy as np

from . import gpu_tables, plots

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
        sent, fetched = (value / 1024 for value in gpu_tables.step_bytes(version, work))
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
    last = sum(gpu_tables.step_bytes("cuda-v3", work)) / sum(gpu_tables.step_bytes("cuda-v2", work))
    ax.set_title(f"By hand {last:.0%} of it is copied, inside an epoch nothing")
    figure.alt = f"KiB to the device and back in a step of {work.B} samples: {'; '.join(told)}."
    return figure


def roofline(device, table, measured=()):
    """Limits of a device by its data sheet, and where the kernels lie by their loads.

    table: `gpu_tables.loads()`. measured: (version, flop per byte, TFLOP/s) of recorded runs.
    """
    sheet, figure = gpu_tables.SHEETS[device], plt.figure(figsize=(8, 4.2))
    ax, x = figure.subplots(), np.geomspace(0.1, 100, 200)
    shared = gpu_tables.shared_bandwidth(device)
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
