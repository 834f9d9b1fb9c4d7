"""The tables of the notebooks and of README: the ladder, the grid of workloads, and what
`make bench-peers` recorded.
"""

from dataclasses import astuple

import pandas as pd

from ..bench import experiments, results
from ..bench.ceilings import COPY_GB, SGEMM_GFLOP
from ..bench.peers import PEERS as PEER_CLASSES
from ..bench.timing import summary
from ..versions import versions

WORDS = {"forward": "inference", "step": "training step"}
GFLOP = {"forward": "gflop", "step": "step_gflop", "public step": ""}  # what is not counted
PEERS = tuple(PEER_CLASSES)
LABELS = {"pytorch": "PyTorch", "jax": "JAX", "onnxruntime": "ONNX Runtime"}
NAMES = {astuple(work): name for name, work in experiments.GRID.items()}


def digits(value):
    """A number with three significant digits, without an exponent."""
    return f"{float(f'{value:.3g}'):.0f}" if abs(value) >= 100 else f"{value:.3g}"


def speed(ratio):
    """How many times as fast, as text; below one, how much slower in per cent."""
    if pd.isna(ratio):
        return "not measured"
    if ratio < 1:
        return f"{100 * (1 - ratio):.2g} % slower"
    return f"{ratio:.{1 if ratio >= 10 else 2}f}x" if ratio < 100 else f"{digits(ratio)}x"


def markdown(frame):
    """A DataFrame of strings as a Markdown table."""
    lines = [list(frame.columns), ["---"] + ["---:"] * (len(frame.columns) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [*lines, *frame.to_numpy().tolist()])


def ladder():
    """Every version, what it is, and whether it can run here."""
    rows = [(v.name, v.target, v.summary, v.why_unavailable or "runs here") for v in versions()]
    columns = ["version", "target", "what it is", "here"]
    return pd.DataFrame(rows, columns=columns).set_index("version")


def of_grid(rows, stage):
    """The rows of a stage that compare versions on a workload of the grid, with its name."""
    public = rows["variant"].isna() | rows["version"].isin(PEERS)
    part = rows[(rows["stage"] == stage) & public]
    sizes = part[list("LTDHB")].itertuples(index=False, name=None)
    names = pd.Categorical([NAMES.get(size) for size in sizes], list(experiments.GRID), True)
    return part.assign(workload=names)


def median_times(rows, stage):
    """Median seconds by workload and version."""
    times = of_grid(rows, stage).groupby(["workload", "version"], observed=True)["seconds"]
    return times.median().unstack()


def grid(rows, stage):
    """Median milliseconds of every version on every workload of the grid, as text."""
    table = 1e3 * median_times(rows, stage)
    order = [v.name for v in versions() if v.name in table]
    named = table[order].rename_axis(index=f"{WORDS[stage]} (ms)", columns=None)
    return named.map(lambda value: "" if pd.isna(value) else f"{value:.4g}")


def peer_ratios(rows, stage):
    """How many times as fast `numba-fused` is as each peer, the median of the ratios round by
    round.
    """
    found = {
        name: 1 / summary(part, "numba-fused", by="version")["ratio"]
        for name, part in of_grid(rows, stage).groupby("workload", observed=True)
        if "numba-fused" in set(part["version"])
    }
    return pd.DataFrame(found).T.reindex(columns=PEERS).dropna(axis=1, how="all")


def measured(rows, stage):
    """`numba-fused` in numbers, by workload: seconds, GFLOP/s and the fraction of SGEMM's, speed
    over each peer; NaN where operations are not counted or SGEMM was not measured.
    """
    table = median_times(rows, stage)[["numba-fused"]].set_axis(["seconds"], axis=1)
    counts = [getattr(experiments.GRID[w], GFLOP[stage], None) for w in table.index]
    table["GFLOP/s"] = pd.Series(counts, table.index, dtype=float) / table["seconds"]
    table["of SGEMM"] = table["GFLOP/s"] / ceiling(rows, "sgemm")
    return table.join(peer_ratios(rows, stage))


def as_text(table):
    """What `measured` returns, as text; a column of which nothing is known is left out."""
    forms = {"seconds": lambda value: digits(1e3 * value), "of SGEMM": "{:.0%}".format}
    forms |= {"GFLOP/s": digits} | dict.fromkeys(PEERS, speed)
    names = {"seconds": "ms"} | {peer: f"vs {label}" for peer, label in LABELS.items()}
    known = table.dropna(axis=1, how="all")
    return pd.DataFrame({names.get(c, c): known[c].map(forms[c]) for c in known})


def peers(rows, stage):
    """Times of `numba-fused`, its rate compared with SGEMM's, and its speed compared with each
    peer's, as text.
    """
    return as_text(measured(rows, stage)).rename_axis(index=WORDS[stage])


def ceiling(rows, name):
    """GFLOP/s of the SGEMM, GB/s of the copy, of one machine; NaN where it was not measured."""
    seconds = rows[(rows["stage"] == "ceiling") & (rows["version"] == name)]["seconds"].median()
    return {"sgemm": SGEMM_GFLOP, "copy": COPY_GB}[name] / seconds


def about(machine, rows):
    """What the recorded comparison of a machine ran on, in a line."""
    versions = rows[rows["version"].isin(PEERS)].dropna(subset="variant").groupby("version")
    parts = [results.caption(results.record("peers", machine)) + ";"]
    parts += [f"{name} {number}," for name, number in versions["variant"].first().items()]
    parts.append(f"{rows['threads'].max():.0f} threads for everyone")
    for name, words in (("sgemm", "SGEMM {:.0f} GFLOP/s"), ("copy", "copy {:.0f} GB/s")):
        rate = ceiling(rows, name)
        parts += [f", {words.format(rate)}"] if rate > 0 else []
    return " ".join(parts).replace(" ,", ",") + "."


def small_calls(rows):
    """The airline network, call by call, in sentences: those for which there are times."""
    times = 1e6 * rows.groupby(["stage", "version", rows["variant"].fillna("")])["seconds"].median()
    public, kernel = (times.get(("forward", "numba-fused", v)) for v in ("public call", "kernel"))
    epoch, torch = (times.get(("epoch", version, "")) for version in ("numba-fused", "pytorch"))
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
            f"PyTorch's SGD: {speed(torch / epoch)}."
        )
    return " ".join(said)


def worst_peer(rows):
    """The speed compared with the best peer on each machine, least and largest, in a sentence."""
    said = []
    for machine, part in rows.groupby("machine"):
        for stage, what in (("forward", "inference"), ("step", "training")):
            least = peer_ratios(part, stage).min(axis=1).dropna().sort_values()
            ends = (f"{speed(least[at])} ({at})" for at in (least.index[0], least.index[-1]))
            said.append(f"{machine}, {what}: {' to '.join(ends)}")
    return f"Recorded speed compared with the best peer. {'; '.join(said)}."
