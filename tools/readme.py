"""Renew the results between the markers of README.md from data/results/."""

import sys
from pathlib import Path

import pandas as pd

from lstm_kernels.bench import results, summary, tail
from lstm_kernels.report import figures_gpu, tables, tables_isa

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- results: written by `make readme` -->", "<!-- end of results -->"


def table(frame):
    """A DataFrame of strings as a Markdown table."""
    lines = [list(frame.columns), ["---"] + ["---:"] * (len(frame.columns) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [*lines, *frame.to_numpy().tolist()])


def recorded(experiment, machine):
    """A machine's rows of an experiment; none, with the same columns, where it has not run."""
    try:
        rows = results.read(experiment)
    except ValueError:
        rows = pd.DataFrame(columns=[*results.COLUMNS, "machine"])
    return rows[rows["machine"] == machine]


def about(experiment, machine):
    """What a machine measured an experiment on, in a line."""
    return results.caption(results.record(experiment, machine))


def ladder(machine):
    """Five epochs of airline training, a row per version."""
    rows = recorded("airline", machine)
    part = rows[rows["stage"] == "5 epochs"]
    if part.empty:
        return []
    times = summary(part, by="version").sort_values("median", ascending=False)
    columns = {
        "version": [f"`{name}`" for name in times.index],
        "5 epochs": times["median"].map("{:.4f} s".format),
    }
    for baseline in ("sequential", "numpy-sample"):
        if baseline not in times.index:
            continue
        ratio = summary(part, baseline, by="version")["ratio"]
        columns[f"vs {baseline}"] = ratio[times.index].map("{:.4g}x".format)
    worst = part.groupby("version")["max_err"].max()
    columns["largest relative error"] = worst[times.index].map("{:.1e}".format)
    return [
        "Five epochs of training on the airline series (12 steps, 32 hidden units, mini-batch "
        f"16), medians of {part['repeat'].nunique()} rounds side by side. "
        f"{about('airline', machine)}.",
        table(pd.DataFrame(columns)),
    ]


def compiling(machine):
    """What the first step of a new process costs beyond the second."""
    rows = recorded("airline", machine)
    times = rows.pivot_table(index="version", columns="stage", values="seconds")
    times = times.reindex(columns=["compile", "load"]).dropna()
    said = "; ".join(
        f"`{name}`, {row['compile']:.1f} s the first time and {row['load']:.2f} s from its cache"
        for name, row in times.iterrows()
    )
    return [f"Not in these times: compiling {said}."] if said else []


def combined(machine):
    """Combined products and packing on the reference workload."""
    rows, gains, said = recorded("reference", machine), [], []
    for stage, what in (("forward", "inference"), ("step", "a training step")):
        part = rows[rows["stage"] == stage]
        if {"numpy-naive", "numpy"} <= set(part["version"]):
            ratio = summary(part, "numpy-naive", by="version")["ratio"]["numpy"]
            gains.append(f"{ratio:.2f}x in {what}")
    if gains:
        said.append(
            f"speed of `numpy`, with combined products, over `numpy-naive`: {', '.join(gains)}"
        )
    pack = rows[rows["stage"] == "pack"]
    pack = 1e3 * pack["seconds"].groupby(pack["variant"].fillna("all")).median()
    for name, what in (
        ("all", "packing the weights of `numba-fused` takes {:.1f} ms once"),
        ("transposes", "the transposed copies, written anew in each step, {:.1f} ms on one thread"),
    ):
        said += [what.format(pack[name])] if name in pack else []
    if not said:
        return []
    L, T, H, B = rows.iloc[0][["L", "T", "H", "B"]]
    return [
        f"Reference workload ({L} layers, {T} steps, {H} hidden units, batch {B}): "
        f"{'; '.join(said)}. {about('reference', machine)}."
    ]


def layers(machine):
    """The layers of a stack at the same time."""
    rows = recorded("layers", machine)
    times = rows.pivot(index=["stage", "L", "repeat"], columns="threads", values="seconds")
    if not {1, 2} <= set(times):  # there is one core
        return []
    speed = (times[1] / times[2]).groupby(level=["stage", "L"], sort=False).median()
    said = [
        f"{way} " + ", ".join(f"{value:.2f}x with {L}" for L, value in speed[way].items())
        for way in ("forward", "backward")
        if way in speed.index
    ]
    T, H = rows.iloc[0][["T", "H"]]
    return [
        f"Layers in parallel (`numba-wavefront`, {T} steps, {H} units, one sample): two threads "
        f"compared with one, by layers: {'; '.join(said)}. {about('layers', machine)}."
    ]


def grid(machine):
    """Every version on the grid of workloads."""
    rows, parts = recorded("grid", machine), []
    for stage in tables.WORDS:
        if (rows["stage"] == stage).any():
            frame = tables.grid(rows, stage)
            parts.append(table(frame.reset_index(names=frame.index.name)))
    said = "Every version on the grid of notebook 04, medians of rounds side by side"
    return [f"{said}. {about('grid', machine)}.", *parts] if parts else []


def peers(machine):
    """`numba-fused` beside PyTorch, JAX and ONNX Runtime, and how long small calls take."""
    rows, parts = recorded("peers", machine), []
    for stage in tables.WORDS:
        if not tables.peer_ratios(rows, stage).empty:
            frame = tables.peers(rows, stage)
            parts.append(table(frame.reset_index(names=frame.index.name)))
    if not parts:
        return []
    said = (
        "Beside PyTorch, JAX and ONNX Runtime (`make bench-peers`), medians of rounds in one loop "
        "with them: how many times as fast `numba-fused` is, and its rate beside that of BLAS's "
        f"SGEMM. {tables.about(machine, rows)}"
    )
    return [part for part in (said, *parts, tables.small_calls(rows)) if part]


def tails(machine):
    """How long small calls take at worst."""
    rows = recorded("tail", machine)
    said = tail.sentence(rows)
    return [f"{said} {about('tail', machine)}."] if said else []


def instruction_sets():
    """What `make bench-isa` recorded, where it was run."""
    rows = tables_isa.recorded()
    if rows.empty:
        return f"Instruction sets: {tables_isa.MISSING.lower()}"
    machines = tables_isa.records(rows)
    parts = [
        "Instruction sets (`make bench-isa`): `numba-fused`, PyTorch and SGEMM restricted alike, "
        "the least and largest speed compared with PyTorch's over all workloads, and two of them "
        "(inference, training):",
        table(tables_isa.summary(rows, machines)),
    ]
    parts += [tables_isa.about(part, machines[name]) for name, part in rows.groupby("machine")]
    return "\n\n".join([*parts, tables_isa.sentences(rows, machines)])


def gpu():
    """What `make gpu` recorded, where it was run."""
    tell = {"hundreds": figures_gpu.speeds, "windows": figures_gpu.growth}
    said = {name: figures_gpu.each(name, how) for name, how in tell.items()}
    if set(said.values()) == {figures_gpu.NOT_YET}:
        return "GPU: not measured yet (`make gpu` on a machine with one)."
    return "\n\n".join(f"GPU, {name}: {text}" for name, text in said.items())


def section():
    """The results of every machine, as Markdown; ValueError where none has any."""
    machines = sorted({path.parent.name for path in results.FOLDER.glob("*/*.csv")})
    if not machines:
        raise ValueError(f"results: got none in {results.FOLDER}, want those of `make bench`")
    parts = []
    for name in machines:
        parts.append(f"### {name}")
        for tell in (ladder, compiling, combined, layers, grid, peers, tails):
            parts += tell(name)
    return "\n\n".join([*parts, "### Instruction sets and GPU", instruction_sets(), gpu()])


def render(text):
    """README's text with the section between the markers renewed."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{section()}\n\n{END}{rest.split(END)[1]}"


def main():
    try:
        results.replace(README, render(README.read_text()))
    except ValueError as error:
        return f"readme: {error}"


if __name__ == "__main__":
    sys.exit(main())
