"""Renew the results between the markers of README.md from data/results/."""

import os
from pathlib import Path

import pandas as pd

from lstm_kernels.lab import gpu_tables, results, summary, tables, tables_isa, tail

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- results: written by `make readme` -->", "<!-- end of results -->"


def table(frame):
    """A DataFrame of strings as a Markdown table."""
    lines = [list(frame.columns), ["---"] + ["---:"] * (len(frame.columns) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [*lines, *frame.to_numpy().tolist()])


def ladder(rows):
    """Five epochs of airline training, a row per version."""
    part = rows[rows["stage"] == "5 epochs"]
    times = summary(part, "sequential", by="version").sort_values("median", ascending=False)
    sample = summary(part, "numpy-sample", by="version")["ratio"]
    worst = part.groupby("version")["max_err"].max()
    frame = pd.DataFrame(
        {
            "version": [f"`{name}`" for name in times.index],
            "5 epochs": times["median"].map("{:.4f} s".format),
            "vs sequential": times["ratio"].map("{:.4g}x".format),
            "vs numpy-sample": sample[times.index].map("{:.4g}x".format),
            "largest relative error": worst[times.index].map("{:.1e}".format),
        }
    )
    return table(frame)


def sentences(airline, reference):
    """What the other rows say, in words."""
    jit = airline[airline["stage"].isin(["compile", "load"])]
    median = jit.set_index(["version", "stage"])["seconds"]
    compiled = "; ".join(
        f"`{name}`, {median[name, 'compile']:.1f} s the first time and "
        f"{median[name, 'load']:.2f} s from its cache"
        for name in jit["version"].unique()
    )
    stages = dict(list(reference.groupby("stage")))
    gain = {
        stage: summary(stages[stage], "numpy-naive", by="version")["ratio"]["numpy"]
        for stage in ("forward", "step")
    }
    pack = 1e3 * stages["pack"].groupby(stages["pack"]["variant"].fillna("all"))["seconds"].median()
    L, T, H, B = reference.iloc[0][["L", "T", "H", "B"]]
    return (
        f"Not in these times: compiling {compiled}. On the reference workload ({L} layers, {T} "
        f"steps, {H} hidden units, batch {B}) combined products make `numpy` "
        f"{gain['forward']:.2f}x as fast as `numpy-naive` in inference and {gain['step']:.2f}x in "
        f"a training step; packing the weights of `numba-fused` takes {pack['all']:.1f} ms "
        f"once, and {pack['transposes']:.1f} ms on one thread for the transposed copies, which "
        f"each training step writes anew."
    )


def recorded(experiment, machine):
    """A machine's rows of an experiment, or none."""
    try:
        rows = results.read(experiment)
    except ValueError:
        return pd.DataFrame()
    return rows[rows["machine"] == machine]


def layers(machine):
    """The layers of a stack at the same time, where they were measured."""
    rows = recorded("layers", machine)
    if rows.empty:
        return []
    times = rows.pivot(index=["stage", "L", "repeat"], columns="threads", values="seconds")
    speed = (times[1] / times[2]).groupby(level=["stage", "L"]).median()
    said = [
        f"{way} " + ", ".join(f"{value:.2f}x with {L}" for L, value in speed[way].items())
        for way in ("forward", "backward")
    ]
    T, H = rows.iloc[0][["T", "H"]]
    return [
        f"Layers in parallel (`numba-wavefront`, {T} steps, {H} units, one sample): two threads "
        f"beside one, by layers: {'; '.join(said)}."
    ]


def grid(machine):
    """Every version on the grid of workloads, where it was measured."""
    rows = recorded("grid", machine)
    if rows.empty:
        return []
    parts = [
        "Every version on the grid (layers, steps, units and samples of each are in notebook 04):"
    ]
    for stage in ("forward", "step"):
        frame = tables.grid(rows, stage)
        parts.append(table(frame.reset_index(names=frame.index.name)))
    return parts


def peers(machine):
    """`numba-fused` beside PyTorch, JAX and ONNX Runtime, where they were measured."""
    rows = recorded("peers", machine)
    if rows.empty:
        return []
    parts = [
        "Beside PyTorch, JAX and ONNX Runtime (`make bench-peers`), medians of rounds in one loop: "
        "how many times as fast `numba-fused` is, and its rate beside that of BLAS's SGEMM. "
        + tables.about(machine, rows)
    ]
    for stage in ("forward", "step"):
        frame = tables.peers(rows, stage)
        parts.append(table(frame.reset_index(names=frame.index.name)))
    worst = recorded("tail", machine)
    return [*parts, tables.small_calls(rows), *([] if worst.empty else [tail.sentence(worst)])]


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
    if gpu_tables.recorded("table").empty:
        return "GPU: not measured yet (`make gpu` on a machine with one)."
    tell = {"hundreds": gpu_tables.speeds, "windows": gpu_tables.growth}
    return "\n\n".join(f"GPU, {gpu_tables.each(name, how)}" for name, how in tell.items())


def section():
    """The results of every machine, as Markdown."""
    airline, reference = results.read("airline"), results.read("reference")
    parts = []
    for name, rows in airline.groupby("machine"):
        m = results.machine(name)
        blas = ", ".join(sorted({f"{b['library']} with {b['kernels']} kernels" for b in m["blas"]}))
        rounds = rows[rows["stage"] == "5 epochs"]["repeat"].nunique()
        parts.append(
            "Five epochs of training on the airline series (12 steps, 32 hidden units, mini-batch "
            f"16), medians of {rounds} rounds side by side on "
            f"{m['cpu']}, {m['cores']} cores, {blas}, Numba {m['packages']['numba']}, {m['date']}:"
        )
        parts += [ladder(rows), sentences(rows, reference[reference["machine"] == name])]
        parts += [*layers(name), *grid(name), *peers(name)]
    return "\n\n".join([*parts, instruction_sets(), gpu()])


def render(text):
    """README's text with the section between the markers renewed."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{section()}\n\n{END}{rest.split(END)[1]}"


def main():
    new = render(README.read_text())
    beside = README.with_suffix(".part")
    beside.write_text(new)
    os.replace(beside, README)


if __name__ == "__main__":
    main()
