"""The tables of the notebooks: the ladder, the source's table with our rows beside its own, and
what `make bench-peers` recorded.
"""

from dataclasses import astuple

import pandas as pd

from ..bench import experiments, results
from ..bench.ceilings import COPY_GB, SGEMM_GFLOP
from ..bench.peers import PEERS as PEER_CLASSES
from ..bench.timing import summary
from ..versions import versions


def ladder():
    """Every version, what it is, and whether it can run here."""
    rows = [(v.name, v.target, v.summary, v.why_unavailable or "runs here") for v in versions()]
    return pd.DataFrame(rows, columns=["version", "target", "what it is", "here"]).set_index(
        "version"
    )


WORDS = {"forward": "inference", "step": "training step"}
PEERS = tuple(PEER_CLASSES)


def workload(row):
    """The name of a grid workload, from the sizes in a row of results."""
    sizes = tuple(int(row[name]) for name in "LTDHB")
    return next(
        (name for name, work in experiments.GRID.items() if astuple(work) == sizes), str(sizes)
    )


def of_grid(rows, stage):
    """The rows of a stage that compare versions on a workload, with the workload's name."""
    public = rows["variant"].isna() | rows["version"].isin(PEERS)
    part = rows[(rows["stage"] == stage) & public]
    sizes = part[list("LTDHB")].drop_duplicates()
    names = {tuple(row[list("LTDHB")]): workload(row) for _, row in sizes.iterrows()}
    order = pd.CategoricalDtype(list(experiments.GRID), ordered=True)
    found = [names[tuple(values)] for values in part[list("LTDHB")].to_numpy()]
    return part.assign(workload=pd.Series(found, index=part.index).astype(order))


def median_times(rows, stage):
    """Median seconds by workload and version."""
    times = of_grid(rows, stage).groupby(["workload", "version"], observed=True)["seconds"]
    return times.median().unstack()


def peer_times(rows, stage):
    """The same, of `numba-fused` and the peers."""
    times = median_times(rows, stage).reindex(columns=["numba-fused", *PEERS])
    return times.dropna(axis=1, how="all")


def grid(rows, stage):
    """Median milliseconds of every version on every workload of the grid, as text."""
    table = 1e3 * median_times(rows, stage)
    order = [v.name for v in versions() if v.name in table]
    named = table[order].rename_axis(index=f"{WORDS[stage]} (ms)", columns=None)
    return named.map(lambda value: "" if pd.isna(value) else f"{value:.4g}")


def peer_ratios(rows, stage):
    """How many times as fast as each peer, the median of the ratios round by round."""
    part = of_grid(rows, stage)
    found = {
        name: 1 / summary(group, "numba-fused", by="version")["ratio"]
        for name, group in part.groupby("workload", observed=True)
        if "numba-fused" in set(group["version"])
    }
    table = pd.DataFrame(found).T.reindex(columns=list(PEERS))
    return table.dropna(axis=1, how="all")


def peers(rows, stage):
    """Times of `numba-fused`, its rate beside SGEMM's, and the peers' times over its own."""
    ours, ratios = peer_times(rows, stage)["numba-fused"], peer_ratios(rows, stage)
    count = {"forward": "gflop", "step": "step_gflop"}[stage]
    gflop = pd.Series({name: getattr(experiments.GRID[name], count) for name in ours.index})
    first = pd.DataFrame({"numba-fused (ms)": (1e3 * ours).map("{:.4g}".format)})
    first["GFLOP/s"] = (gflop / ours).map("{:.0f}".format)
    if (sgemm := ceiling(rows, "sgemm")) > 0:
        first["of SGEMM"] = (gflop / ours / sgemm).map("{:.0%}".format)
    shown = ratios.map("{:.2f}x".format).add_prefix("vs ")
    return first.join(shown).rename_axis(index=WORDS[stage])


def ceiling(rows, name):
    """GFLOP/s of the SGEMM, GB/s of the copy, of one machine; NaN where it was not measured."""
    seconds = rows[(rows["stage"] == "ceiling") & (rows["version"] == name)]["seconds"].median()
    return {"sgemm": SGEMM_GFLOP, "copy": COPY_GB}[name] / seconds


def about(machine, rows):
    """What the recorded comparison of a machine ran on, in a line."""
    versions = rows.dropna(subset="variant").query("version in @PEERS")
    parts = [
        f"{name} {number}"
        for name, number in versions.groupby("version")["variant"].first().items()
    ]
    parts.append(f"{rows['threads'].max():.0f} threads for everyone")
    for name, unit in (("sgemm", "GFLOP/s"), ("copy", "GB/s")):
        rate = ceiling(rows, name)
        parts += (
            [f"{name.upper() if name == 'sgemm' else name} {rate:.0f} {unit}"] if rate > 0 else []
        )
    return f"{results.caption(results.record('peers', machine))}; {', '.join(parts)}."


def small_calls(rows):
    """The airline network, call by call, in sentences: those for which there are times."""
    times = 1e6 * rows.groupby(["stage", "version", rows["variant"].fillna("")])["seconds"].median()
    public, kernel, epoch, torch = (
        times.get(key)
        for key in (
            *(("forward", "numba-fused", name) for name in ("public call", "kernel")),
            *(("epoch", name, "") for name in ("numba-fused", "pytorch")),
        )
    )
    said = []
    if public and kernel:
        # The same call as in the table, where other packages' threads and data come between.
        said.append(
            f"Airline network, forward, in a loop without the other packages: {public:.1f} us by "
            f"the public call, of which {public - kernel:.1f} us are its checks and allocations."
        )
    if epoch and torch:
        steps = -(-len(experiments.airline_dataset()) // experiments.AIRLINE.B)
        said.append(
            f"An epoch of {steps} steps takes {epoch:.0f} us in compiled code, {torch:.0f} us with "
            f"PyTorch's SGD: {torch / epoch:.1f} times."
        )
    return " ".join(said)


def against_best(ratio):
    """How fast compared with the best peer, in words."""
    return f"{ratio:.2f} times as fast" if ratio >= 1 else f"{1 / ratio - 1:.0%} slower"


def worst_peer(rows):
    """The smallest advantage over the best peer on each machine, in a sentence."""
    said = []
    for machine, part in rows.groupby("machine"):
        found = []
        for stage, what in (("forward", "inference"), ("step", "training")):
            least = peer_ratios(part, stage).min(axis=1)
            low, high = (f"{against_best(v)} ({at})" for at, v in _ends(least))
            found.append(f"{what} from {low} to {high}")
        said.append(f"{machine}: {', '.join(found)}")
    return f"Recorded compared with the best peer. {'; '.join(said)}."


def _ends(column):
    """The places and values of the least and the largest number."""
    return [(at, column[at]) for at in (column.idxmin(), column.idxmax())]
