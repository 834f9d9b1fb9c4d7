"""Renew what README.md shows: the run of notebook 00, and what is recorded in data/results/."""

import re
import sys

import notebook_rules as rules

from lstm_kernels.bench import results, summary
from lstm_kernels.report import figures_gpu, tables

README = rules.ROOT / "README.md"


def recorded(experiment, machine):
    """A machine's rows of an experiment; none, with the same columns, where it has not run."""
    return results.recorded(experiment).query("machine == @machine")


def about(experiment, machine):
    """What a machine measured an experiment on, in a line."""
    return results.caption(results.record(experiment, machine))


def by_stage(rows, tell, needs):
    """A table of inference and one of training, where `rows` has what it needs, as Markdown."""
    stages = [stage for stage in tables.WORDS if not needs(rows, stage).empty]
    return [tables.markdown(tell(rows, stage).reset_index()) for stage in stages]


def compiling(machine):
    """What the first step of a new process costs beyond the second."""
    rows = recorded("airline", machine)
    times = rows.pivot_table(index="version", columns="stage", values="seconds")
    times = times.reindex(columns=["compile", "load"]).dropna()
    said = "; ".join(
        f"`{name}` {row['compile']:.1f} s the first time, {row['load']:.2f} s from its cache"
        for name, row in times.iterrows()
    )
    return [f"Compiling: {said}. {about('airline', machine)}."] if said else []


def combined(machine):
    """Combined products and packing on the reference workload."""
    rows, said = recorded("reference", machine), []
    for stage, what in tables.WORDS.items():
        part = rows[rows["stage"] == stage]
        if {"numpy-naive", "numpy"} <= set(part["version"]):
            ratio = summary(part, "numpy-naive", by="version")["ratio"]["numpy"]
            said.append(f"{what}, `numpy` over `numpy-naive`: {tables.speed(ratio)}")
    pack = rows[rows["stage"] == "pack"]
    pack = 1e3 * pack["seconds"].groupby(pack["variant"].fillna("all")).median()
    for name, what in (
        ("all", "packing the weights of `numba-fused`, once: {:.1f} ms"),
        ("transposes", "their transposed copies, in each step, on one thread: {:.1f} ms"),
    ):
        said += [what.format(pack[name])] if name in pack else []
    if not said:
        return []
    sizes = "{L:.0f} layers, {T:.0f} steps, {H:.0f} hidden units, batch {B:.0f}"
    sizes = sizes.format(**rows.iloc[0][list("LTHB")])
    return [f"Reference workload ({sizes}). {'; '.join(said)}. {about('reference', machine)}."]


def layers(machine):
    """The layers of a stack at the same time."""
    rows = recorded("layers", machine)
    times = rows.pivot(index=["stage", "L", "repeat"], columns="threads", values="seconds")
    if not {1, 2} <= set(times):  # there is one core
        return []
    ratio = (times[1] / times[2]).groupby(level=["stage", "L"], sort=False).median()
    said = [
        f"{way} " + ", ".join(f"{tables.speed(value)} with {L}" for L, value in ratio[way].items())
        for way in ("forward", "backward")
        if way in ratio.index
    ]
    T, H = rows.iloc[0][["T", "H"]]
    return [
        f"Layers in parallel (`numba-wavefront`, {T} steps, {H} units, one sample): two threads "
        f"compared with one, by layers: {'; '.join(said)}. {about('layers', machine)}."
    ]


def grid(machine):
    """Every version on the grid of workloads."""
    said = "Every version on the grid of notebook 04, medians of rounds in one loop"
    parts = by_stage(recorded("grid", machine), tables.grid, tables.of_grid)
    return [f"{said}. {about('grid', machine)}.", *parts] if parts else []


def peers(machine):
    """`numba-fused` compared with PyTorch, JAX and ONNX Runtime; how long small calls take."""
    rows = recorded("peers", machine)
    parts = by_stage(rows, tables.peers, tables.peer_ratios)
    if not parts:
        return []
    said = (
        "Compared with PyTorch, JAX and ONNX Runtime (`make bench-peers`), medians of rounds in "
        "one loop: the speed of `numba-fused` over each, and its rate compared with that of BLAS's "
        f"SGEMM. {tables.about('peers', rows)}"
    )
    return [part for part in (said, *parts, tables.small_calls(rows)) if part]


def tails(machine):
    """How long small calls take at worst."""
    table = tables.tails(recorded("tail", machine)).map(tables.digits)
    if table.empty:
        return []
    said = f"Forward calls of the airline network, quantiles in us. {about('tail', machine)}."
    return [said, tables.markdown(table.reset_index())]


def instruction_sets():
    """What `make bench-isa` recorded, where it was run."""
    rows = results.recorded("isa")
    if rows.empty:
        return "Instruction sets: not measured yet (`make bench-isa`)."
    parts = [
        "Instruction sets (`make bench-isa`): `numba-fused`, PyTorch and SGEMM restricted alike, "
        "the least and largest speed compared with PyTorch's over all workloads:",
        tables.markdown(tables.ends(rows, tables.SET).reset_index()),
    ]
    return "\n\n".join([*parts, *(tables.about("isa", own) for _, own in rows.groupby("machine"))])


def gpu():
    """What `make gpu` recorded, where it was run."""
    tell = {"hundreds": figures_gpu.speeds, "windows": figures_gpu.growth}
    said = {name: figures_gpu.each(name, how) for name, how in tell.items()}
    if set(said.values()) == {figures_gpu.NOT_YET}:
        return "GPU: not measured yet (`make gpu` on a machine with one)."
    return "\n\n".join(f"GPU, {name}: {text}" for name, text in said.items())


def section():
    """The results of every machine, as Markdown, each in a box of its own; ValueError where none
    has any.
    """
    machines = sorted({path.parent.name for path in results.FOLDER.glob("*/*.csv")})
    if not machines:
        raise ValueError(f"results: got none in {results.FOLDER}, want those of `make bench`")
    boxes = {}
    for name in machines:
        tell = (compiling, combined, layers, grid, peers, tails)
        boxes[f"<code>{name}</code>"] = [part for how in tell for part in how(name)]
    boxes["Instruction sets and GPU"] = [instruction_sets(), gpu()]
    return "\n\n".join(
        "\n\n".join([f"<details>\n<summary>{title}</summary>", *parts, "</details>"])
        for title, parts in boxes.items()
    )


def renewed(text, name, content):
    """README's text with what stands between the markers of `name` replaced."""
    between = re.compile(rf"(<!-- {name}: .*?-->\n).*(<!-- end of {name} -->)", re.DOTALL)
    result, count = between.subn(lambda m: f"{m[1]}\n{content}\n\n{m[2]}", text)
    if count != 1:
        raise rules.ReportError(f"{README.name}: got {count} places for {name!r}, want one")
    return result


def with_run(text, notebooks):
    """README's text with what the cells tagged `readme` of the executed notebook 00 say."""
    overview = rules.read(notebooks / "00_overview.ipynb")
    said = [
        output.data["text/markdown"]
        for _, cell, output in rules.outputs(overview)
        if "readme" in rules.tags(cell) and "text/markdown" in output.get("data", {})
    ]
    return renewed(text, "run", "\n\n".join(said))


def render(text):
    """README's text with all that is computed renewed."""
    return renewed(with_run(text, rules.ROOT / "notebooks"), "results", section())


def main():
    try:
        rules.write(README, render(README.read_text(encoding="utf-8")))
    except ValueError as error:
        return f"readme: {error}"


if __name__ == "__main__":
    sys.exit(main())
