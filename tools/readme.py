"""Renew what README.md shows: the run of notebook 00, and what is recorded in
data/results/.
"""

import re
import sys

import notebook_rules as rules
import pandas as pd

from lstm_report.experiments import (
    batches,
    compilers,
    compression,
    optimisations,
)
from lstm_report.figures import (
    bfloat16 as figures_bfloat16,
)
from lstm_report.figures import (
    gpu as figures_gpu,
)
from lstm_report.figures import (
    optimisations as figures_optimisations,
)
from lstm_report.figures import (
    pipelines as figures_pipelines,
)
from lstm_report.figures import (
    ranks as figures_ranks,
)
from lstm_report.figures import (
    tables,
)
from lstm_report.measure import results

README = rules.ROOT / "README.md"


def recorded(experiment, machine):
    """A machine's rows of an experiment; none, with the same columns, where it has not
    run.
    """
    return results.recorded(experiment).query("machine == @machine")


def by_stage(rows, tell, needs):
    """A table of inference and one of training, where `rows` has what it needs, as
    Markdown.
    """
    stages = [stage for stage in tables.WORDS if not needs(rows, stage).empty]
    return [tables.markdown(tell(rows, stage).reset_index()) for stage in stages]


def compiling(rows):
    """What the first step of a new process costs beyond the second."""
    times = rows.pivot_table(index="version", columns="stage", values="seconds")
    times = times.reindex(columns=["compile", "load"]).dropna()
    if times.empty:
        return []
    times.columns = ["seconds of the first step beyond the second", "with its cache"]
    shown = times.map("{:.2f}".format).reset_index()
    return ["Compiling, in a new process.", tables.markdown(shown)]


def reference(rows):
    """Every version and stage on the reference workload."""
    stage = (rows["stage"] + " " + rows["variant"].fillna("")).str.strip()
    times = 1e3 * rows.groupby(["version", stage])["seconds"].median().unstack()
    sizes = "{L:.0f} layers, {T:.0f} steps, {H:.0f} hidden units, batch {B:.0f}"
    sizes = sizes.format(**rows.iloc[0][list("LTHB")])
    shown = times.map(tables.digits, na_action="ignore").fillna("").reset_index()
    return [
        f"Reference workload ({sizes}), median milliseconds.",
        tables.markdown(shown),
    ]


def layers(rows):
    """The layers of a stack at the same time."""
    times = rows.pivot(
        index=["stage", "L", "repeat"], columns="threads", values="seconds"
    )
    if not {1, 2} <= set(times):  # there is one core
        return []
    ratio = (times[1] / times[2]).groupby(level=["stage", "L"], sort=False).median()
    shown = ratio.map(tables.speed).unstack().add_prefix("layers: ").reset_index()
    T, H = rows.iloc[0][["T", "H"]]
    said = f"Two threads compared with one (`numba-wavefront`, {T} steps, {H} units, one sample)."
    return [said, tables.markdown(shown)]


def grid(rows):
    """Every version on the grid of workloads."""
    parts = by_stage(rows, tables.grid, tables.of_grid)
    return [
        "Every version on the grid of notebook 04, medians of rounds in one loop.",
        *parts,
    ]


def peers(rows):
    """`numba-fused` compared with PyTorch, JAX and ONNX Runtime; how long small calls
    take.
    """
    said = (
        "Compared with PyTorch, JAX and ONNX Runtime (`make bench-peers`), medians of rounds in "
        "one loop: the speed of `numba-fused` over each, and its rate compared with that of BLAS's "
        "SGEMM."
    )
    parts = by_stage(rows, tables.peers, tables.peer_ratios)
    return [said, *parts, tables.small_calls(rows)] if parts else []


def tails(rows):
    """How long small calls take at worst."""
    table = tables.tails(rows).map(tables.digits)
    if table.empty:
        return []
    said = "Forward calls of the airline network, quantiles in us."
    return [said, tables.markdown(table.reset_index())]


def switches(rows):
    """Five optimisations, alone, in turn, and the best combination."""
    versions = {optimisations.STUDY, optimisations.FUSED}
    if versions - set(rows["version"][rows["stage"] == "forward"]):
        return []
    best = figures_optimisations.best_of(rows)
    said = (
        "Five optimisations, inference of the reference workload (`make bench-study`): speed over "
        f"a baseline of eight BLAS products a cell ({1e3 * best['baseline']:.3g} ms; `numba-fused` "
        f"{1e3 * best['fused']:.3g} ms), beside published figures."
    )
    table = figures_optimisations.source_table(optimisations.by_combination(rows))
    shown = table.reset_index(names=["", "optimisation"])
    return [said, tables.markdown(shown)]


def batch_rates(rows):
    """Rates over the batch size."""
    rates = batches.rates(rows)
    if rates.empty:
        return []
    table = rates.groupby(["name", "B"])["gflops"].median().unstack()
    shown = (
        table.map(tables.digits, na_action="ignore")
        .fillna("")
        .add_prefix("B = ")
        .reset_index()
    )
    sizes = f"{batches.WORK.L} layers of {batches.WORK.H} units"
    said = f"Inference over the batch size (`make bench-study`), {sizes}, GFLOP/s."
    return [said, tables.markdown(shown)]


def compiled(rows):
    """What a call takes, compiled and not."""
    rows = rows[rows["stage"] == "forward"].astype({"H": "Int64"})
    if rows.empty:
        return []
    table = 1e3 * rows.groupby(["version", "H"])["seconds"].median().unstack()
    shown = (
        table.map(tables.digits, na_action="ignore")
        .fillna("")
        .add_prefix("H = ")
        .reset_index()
    )
    said = (
        "One layer as users write it, compiled and not (`make bench-study`): inference of "
        f"{compilers.T} steps and {compilers.B} samples, ms."
    )
    return [said, tables.markdown(shown)]


def low_rank(rows):
    """What a rank costs on two tasks, fine-tuned."""
    rows = rows[rows["stage"] == "tuned"]
    if {compression.DENSE, compression.FACTORED} - set(rows["version"]):
        return []
    losses = figures_optimisations.rank_losses(rows)
    tuned = losses.xs("tuned", level="stage")
    table = {"rank": tuned.loc["reber"].index.astype(str)}
    for task, title in figures_optimisations.TASKS.items():
        table[f"{title}: loss"] = [
            tables.digits(loss) for loss in tuned.loc[task, "median"]
        ]
    table["outer symbol"] = tuned.loc["reber", "accuracy"].map("{:.0%}".format)
    shown = pd.DataFrame(table)
    shown["rank"] = ["dense", *shown["rank"][1:-1], "full"]
    said = (
        "Weights of low rank, 256 units, cut and fine-tuned (`make bench-study`): held-out loss, "
        "medians over seeds, and the share of Reber strings whose outer symbol is predicted."
    )
    return [said, tables.markdown(shown)]


def handovers(rows):
    """What handing a value over costs."""
    if "hand over" not in set(rows["stage"]):
        return []
    times = (
        figures_ranks.by_means(rows)["median"]
        .groupby(level="version", sort=False)
        .first()
    )
    shown = (1e9 * times).map(tables.digits).rename(figures_ranks.MEANS).reset_index()
    shown.columns = ["means", "ns, one way"]
    return [
        "Handing a hidden value to another core (`make bench-ranks`).",
        tables.markdown(shown),
    ]


def inference(rows):
    """One sequence through one layer, by several processes."""
    one, *_ = figures_ranks.cases(rows)
    if not {figures_ranks.ONE, "window"} <= set(one["version"]):
        return []
    shown = figures_ranks.speeds(one)["ratio"].map(tables.speed).unstack("H")
    shown = shown.rename(figures_ranks.WAYS).add_prefix("H = ").fillna("").reset_index()
    said = "RNN inference, one sample, two threads or processes compared with one"
    return [f"{said} (`make bench-ranks`).", tables.markdown(shown)]


def training(rows):
    """Training steps by several processes."""
    steps = figures_pipelines.steps(rows)
    if figures_pipelines.ALONE not in steps:
        return []
    table = figures_pipelines.ways(steps).reset_index(names="two ranks")
    said = "Training steps of the reference workload by two processes (`make bench-ranks`)."
    return [said, tables.markdown(table)]


def partitions(rows):
    """Eight layers, an encoder and a decoder on two processes."""
    if not {2, 3} <= set(rows["ranks"][rows["version"] == "pipeline"]):
        return []
    times = 1e3 * figures_pipelines.by_partition(rows)["median"]
    times = pd.concat(
        [times, 1e3 * figures_pipelines.by_partition(rows, ranks=3)["median"]]
    )
    shown = times.map(tables.digits).rename(
        {"1+8+1": "encoder and decoder on one device"}
    )
    said = "An embedding, eight LSTM layers and a read-out on two processes (`make bench-ranks`)"
    columns = ["parts on each", "ms for a training step"]
    table = shown.reset_index().set_axis(columns, axis=1)
    return [f"{said}, 8 micro-batches.", tables.markdown(table)]


def bucket_times(rows):
    """Epochs by the number of buckets."""
    if rows.empty:
        return []
    rows = rows.astype({"variant": int, "ranks": int})
    table = (
        1e3
        * rows.groupby(["version", "ranks", "variant"])["seconds"].median().unstack()
    )
    shown = table.map(tables.digits).add_suffix(" buckets").reset_index()
    strings = int(rows["N"].iloc[0])
    said = f"Epochs of {strings} strings by the number of buckets and of processes"
    return [f"{said} (`make bench-ranks`), ms.", tables.markdown(shown.astype(str))]


def learned(rows):
    """What an LSTM and an RNN learn of Reber strings."""
    if "held out" not in set(rows["stage"]):
        return []
    said = "Embedded Reber strings of 25 symbols or more, learned by a pipeline over buckets."
    table = figures_pipelines.learned(rows, 25, 512).reset_index(names="")
    return [said, tables.markdown(table)]


def in_bfloat16(rows):
    """`numba-bf16` beside `numba-fused`, PyTorch and ONNX Runtime."""
    stages = [stage for stage in ("forward", "step") if stage in set(rows["stage"])]
    if not stages or "numba-bf16" not in set(rows["version"]):
        return []
    shown = [figures_bfloat16.beside(rows, stage).reset_index() for stage in stages]
    said = "Products of bfloat16 numbers (`make bench-bf16`): ms, and speed over `numba-fused`."
    return [said, *map(tables.markdown, shown)]


def errors_in_bfloat16(rows):
    """How far rounding moves outputs and gradients."""
    if rows.empty:
        return []
    shown = figures_bfloat16.error_table(rows)
    shown.columns = [f"T = {T}, H = {H}" for T, H in shown.columns]
    said = "Largest errors of bfloat16 products against float64, of the outputs and of gradients, "
    said += "relative to the largest value of each."
    shown = shown.rename_axis(index=["array", "by"]).fillna("").reset_index()
    return [said, tables.markdown(shown)]


def learned_in_bfloat16(rows):
    """What is learned with products of bfloat16 numbers."""
    if "trained" not in set(rows["stage"]) or rows["version"].nunique() < 2:
        return []
    shown = figures_bfloat16.told_losses(figures_bfloat16.learned(rows)).reset_index(
        names="task"
    )
    seeds = rows["repeat"].nunique()
    said = f"Trained in float32 and with bfloat16 products, {seeds} seeds each, judged in float32."
    return [said, tables.markdown(shown)]


EXPERIMENTS = {
    "airline": compiling,
    "reference": reference,
    "layers": layers,
    "grid": grid,
    "peers": peers,
    "tail": tails,
    "switches": switches,
    "batches": batch_rates,
    "compilers": compiled,
    "low-rank": low_rank,
    "handover": handovers,
    "inference": inference,
    "ranks": training,
    "partitions": partitions,
    "buckets": bucket_times,
    "learning": learned,
    "bfloat16": in_bfloat16,
    "bfloat16-errors": errors_in_bfloat16,
    "bfloat16-learning": learned_in_bfloat16,
}


def told(experiment, machine):
    """What is said of an experiment of a machine, and on what it ran, as parts of
    Markdown; none where it has not run.
    """
    rows = recorded(experiment, machine)
    said, *parts = (not rows.empty and EXPERIMENTS[experiment](rows)) or [""]
    if not said:
        return []
    ran_on = f"{results.caption(results.record(experiment, machine))}."
    ran_on = tables.about(experiment, rows) if experiment == "peers" else ran_on
    return [f"{said} {ran_on}", *filter(None, parts)]


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
    return "\n\n".join(
        [*parts, *(tables.about("isa", own) for _, own in rows.groupby("machine"))]
    )


def gpu():
    """What `make gpu` recorded, where it was run."""
    tell = {"hundreds": figures_gpu.speeds, "windows": figures_gpu.growth}
    tell["batch"] = figures_gpu.a_step
    said = {name: figures_gpu.each(name, how) for name, how in tell.items()}
    if set(said.values()) == {figures_gpu.NOT_YET}:
        return "GPU: not measured yet (`make gpu` on a machine with one)."
    return "\n\n".join(f"GPU, {name}: {text}" for name, text in said.items())


def section():
    """The results of every machine, as Markdown, each in a box of its own; ValueError
    where none has any.
    """
    machines = sorted({path.parent.name for path in results.FOLDER.glob("*/*.csv")})
    if not machines:
        raise ValueError(
            f"results: got none in {results.FOLDER}, want those of `make bench`"
        )
    boxes = {}
    for name in machines:
        boxes[f"<code>{name}</code>"] = [
            part for which in EXPERIMENTS for part in told(which, name)
        ]
    boxes["Instruction sets and GPU"] = [instruction_sets(), gpu()]
    return "\n\n".join(
        "\n\n".join([f"<details>\n<summary>{title}</summary>", *parts, "</details>"])
        for title, parts in boxes.items()
    )


def renewed(text, name, content):
    """README's text with what stands between the markers of `name` replaced."""
    between = re.compile(
        rf"(<!-- {name}: .*?-->\n).*(<!-- end of {name} -->)", re.DOTALL
    )
    result, count = between.subn(lambda m: f"{m[1]}\n{content}\n\n{m[2]}", text)
    if count != 1:
        raise rules.ReportError(
            f"{README.name}: got {count} places for {name!r}, want one"
        )
    return result


def with_run(text, notebooks):
    """README's text with what the cells tagged `readme` of the executed notebook 00
    say.
    """
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
