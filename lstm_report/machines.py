"""Results by machine, from data/results/: README's table, and a page of the site."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pandas as pd

from lstm_kernels.versions import versions

from . import cards, runs
from .measure import results
from .measure.ceilings import SGEMM_GFLOP
from .measure.evidence import digits, speed
from .measure.results import plain
from .measure.timing import summary
from .measure.workloads import GRID

Line = dict[str, Any]  # of a table: texts by column
STAGES = {"forward": "inference", "step": "training step"}
PEERS = {"pytorch": "PyTorch", "pytorch-flush": "PyTorch, flushed", "jax": "JAX"}
PEERS |= {"onnxruntime": "ONNX Runtime"}
LEFT_OUT = "one layer", *(f"reference, {B} samples" for B in (4, 16, 64))


def markdown(rows: Iterable[Line] | pd.DataFrame) -> str:
    """Dicts of texts as a Markdown table; a column without any text is left out."""
    table = pd.DataFrame(rows).dropna(axis=1, how="all").fillna("")
    lines = [list(table), ["---"] + ["---:"] * (len(table.columns) - 1)]
    lines += table.map(plain).to_numpy().tolist()
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def workloads(rows: pd.DataFrame, stage: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Pairs (name, rows) of what was measured of a stage, public calls alone."""
    public = rows["variant"].isna() | rows["version"].isin(PEERS)
    part = rows[(rows["stage"] == stage) & public]
    for name, work in GRID.items():
        sizes = [getattr(work, letter) for letter in "LTDHB"]
        own = part[(part[list("LTDHB")] == sizes).all(axis=1)]
        if name not in LEFT_OUT and not own.empty:
            yield name, own


def peers(rows: pd.DataFrame, stage: str) -> Iterator[Line]:
    """`numba-fused` on one machine, a dict of texts for each workload: its share of
    SGEMM's rate, its speed compared with each peer (median ratio of the rounds).
    """
    sgemm = rows[(rows["stage"] == "ceiling") & (rows["version"] == "sgemm")]
    most = SGEMM_GFLOP / sgemm["seconds"].median()
    for name, part in workloads(rows, stage):
        table, work = summary(part, "numba-fused", by="version"), GRID[name]
        seconds = table["median"]["numba-fused"]
        rate = (work.gflop if stage == "forward" else work.step_gflop) / seconds
        line: Line = {"workload": name, "ms": digits(1e3 * seconds)}
        line["GFLOP/s"] = digits(rate)
        line["of SGEMM"] = f"{rate / most:.0%}" if most > 0 else None
        ratios = {label: table["ratio"].get(peer) for peer, label in PEERS.items()}
        yield line | {f"vs {k}": v and speed(1 / v) for k, v in ratios.items()}


def grid(rows: pd.DataFrame, stage: str) -> Iterator[Line]:
    """Median milliseconds of each version on one machine, a dict for each workload."""
    for name, part in workloads(rows, stage):
        ms = 1e3 * part.groupby("version")["seconds"].median()
        order = [version.name for version in versions() if version.name in ms]
        yield {"workload": name} | {version: digits(ms[version]) for version in order}


def sizes() -> Iterator[Line]:
    """The workloads that the tables show, a dict of texts for each."""
    names = {"L": "layers", "T": "steps", "D": "inputs", "H": "hidden units"}
    names |= {"B": "samples"}
    for name, work in GRID.items():
        if name not in LEFT_OUT:
            shown = {told: str(getattr(work, size)) for size, told in names.items()}
            yield {"workload": name} | shown


def page(folder: results.Folder = None) -> str:
    """The page of the site: `numba-fused` compared with other packages (`make
    bench-peers`), and every version (`make bench`).
    """
    parts = ["# Results by machine", "Medians of rounds in one loop, in milliseconds."]
    parts += ["Every network is an LSTM with float32 numbers:", markdown(sizes())]
    tables = {"peers": ("Other packages", peers), "grid": ("Versions", grid)}
    for experiment, (title, table) in tables.items():
        for machine, rows in results.read(experiment, folder).groupby("machine"):
            about = results.record(experiment, machine, folder)
            name = results.label(about | {"recorded": False})
            parts += [f"## {title}: {name}", f"{results.caption(about)}."]
            for stage, name in STAGES.items():
                parts += [f"{name.capitalize()}:", markdown(table(rows, stage))]
    return "\n\n".join(parts)


def newest(folder: results.Folder = None) -> str:
    """README's table: `numba-fused` on the machine that was measured last."""
    rows = results.read("peers", folder)
    names = set(rows["machine"])
    about = {name: results.record("peers", name, folder) for name in names}
    machine = max(about, key=lambda name: (about[name]["date"], name))
    parts = []
    for stage, name in STAGES.items():
        table = pd.DataFrame(peers(rows[rows["machine"] == machine], stage))
        shown = table.set_index("workload")
        wanted = ("ms", "vs PyTorch", "vs PyTorch, flushed")
        parts.append(
            shown[[name for name in wanted if name in shown]].add_prefix(f"{name}: ")
        )
    table = markdown(pd.concat(parts, axis=1).reset_index())
    return f"{table}\n\n{results.caption(about[machine])}."


def headline(told: Mapping[str, str], folder: results.Folder = None) -> str:
    """README's sentence of numbers that page 00 told, by their names, and their range
    over the runs that are kept.
    """
    if missing := {"over plain loops", "over NumPy"} - {*told}:
        raise ValueError(f"told: got {[*told]}, want also {', '.join(sorted(missing))}")
    text = (
        f"On one thread `numba-fused` trains it {told['over plain loops']} as fast as"
        f" plain loops and {told['over NumPy']} as fast as NumPy: the median of five"
        " processes, and their range."
    )
    every = runs.read(folder)
    days = runs.over_days("over plain loops", every)
    if len(every) > 1 and days:
        ends = f"{digits(days.low)}x to {digits(days.high)}x"
        count = len({run["machine"]["name"] for run in every})
        machines = "one machine" if count == 1 else f"{count} machines"
        text += f" Over {len(every)} runs on {machines} that median was {ends}."
    return text


def renewed(
    readme: str, told: Mapping[str, str] | None, folder: results.Folder = None
) -> str:
    """README's text with what stands between its markers renewed: `headline` of what
    page 00 told, or as it stands where that is None, the GPUs that were recorded, and
    `newest`; ValueError where it lacks one of them.
    """
    parts = {"gpu": cards.told(folder, recorded=True), "results": newest(folder)}
    parts |= {} if told is None else {"headline": headline(told, folder)}
    for name, content in parts.items():
        between = re.compile(rf"(<!-- {name}.*?-->\n).*(<!-- end of {name} -->)", re.S)
        new = "\n".join([r"\1", content.replace("\\", r"\\"), "", r"\2"])
        readme, count = between.subn(new, readme)
        if count != 1:
            raise ValueError(f"README.md: got {count} places for {name}, want one")
    return readme
