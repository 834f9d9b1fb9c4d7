"""The tables of the notebooks and of README: the ladder, the grid of workloads, and
what `make bench-peers` recorded.
"""

from dataclasses import astuple

import pandas as pd

from lstm_kernels.versions import versions

from ..measure import results
from ..measure.ceilings import COPY_GB, SGEMM_GFLOP
from ..measure.timing import summary
from ..measure.workloads import AIRLINE, GRID, airline_dataset

WORDS = {"forward": "inference", "step": "training step"}
GFLOP = {"forward": "gflop", "step": "step_gflop"}
LABELS = {"pytorch": "PyTorch", "jax": "JAX", "onnxruntime": "ONNX Runtime"}
PEERS = tuple(LABELS)
NAMES = {astuple(work): name for name, work in GRID.items()}


def digits(value):
    """A number with three significant digits, without an exponent."""
    return f"{float(f'{value:.3g}'):.0f}" if abs(value) >= 100 else f"{value:.3g}"


def speed(ratio):
    """How many times as fast, as text; below one, how much slower in per cent."""
    if pd.isna(ratio):
        return "not measured"
    if ratio < 1:
        return f"{100 * (1 - ratio):.2g} % slower"
    return (
        f"{ratio:.{1 if ratio >= 10 else 2}f}x" if ratio < 100 else f"{digits(ratio)}x"
    )


def markdown(frame):
    """A DataFrame of strings as a Markdown table."""
    lines = [list(frame.columns), ["---"] + ["---:"] * (len(frame.columns) - 1)]
    return "\n".join(
        f"| {' | '.join(row)} |" for row in [*lines, *frame.to_numpy().tolist()]
    )


def ladder():
    """Every version, what it is, and whether it can run here."""
    rows = []
    for v in versions():
        runs = f"runs here ({v.way})" if v.way else "runs here"
        rows.append((v.name, v.target, v.summary, v.why_unavailable or runs))
    columns = ["version", "target", "what it is", "here"]
    return pd.DataFrame(rows, columns=columns).set_index("version")


def of_grid(rows, stage):
    """The rows of a stage that compare versions on a workload of the grid, with its
    name.
    """
    public = rows["variant"].isna() | rows["version"].isin(PEERS)
    part = rows[(rows["stage"] == stage) & public]
    sizes = part[list("LTDHB")].itertuples(index=False, name=None)
    names = pd.Categorical([NAMES.get(size) for size in sizes], list(GRID), True)
    return part.assign(workload=names)


def median_times(rows, stage):
    """Median seconds by workload and version."""
    times = of_grid(rows, stage).groupby(["workload", "version"], observed=True)[
        "seconds"
    ]
    return times.median().unstack()


def grid(rows, stage):
    """Median milliseconds of every version on every workload of the grid, as text."""
    table = 1e3 * median_times(rows, stage)
    order = [v.name for v in versions() if v.name in table]
    named = table[order].rename_axis(index=f"{WORDS[stage]} (ms)", columns=None)
    return named.map(digits, na_action="ignore").fillna("")


def measured(rows, stage):
    """`numba-fused` in numbers, by machine and workload: seconds, GFLOP/s and the
    fraction of SGEMM's, and how many times as fast it is as each peer, the median of
    the ratios round by round; NaN where that was not measured.
    """
    lines = {}
    for machine, own in rows.groupby("machine", sort=False):
        for name, part in of_grid(own, stage).groupby("workload", observed=True):
            if "numba-fused" in set(part["version"]):
                table = summary(part, "numba-fused", by="version")
                seconds = table["median"]["numba-fused"]
                rate = getattr(GRID[name], GFLOP[stage]) / seconds
                line = {"seconds": seconds, "GFLOP/s": rate}
                line["of SGEMM"] = rate / ceiling(own)
                lines[machine, name] = line | (1 / table["ratio"]).to_dict()
    index = pd.MultiIndex.from_tuples(list(lines), names=["machine", "workload"])
    columns = ["seconds", "GFLOP/s", "of SGEMM", *PEERS]
    return pd.DataFrame(list(lines.values()), index, columns)


def peer_ratios(rows, stage):
    """How many times as fast `numba-fused` is as each peer, by workload, on one
    machine.
    """
    return (
        measured(rows, stage)[list(PEERS)]
        .dropna(axis=1, how="all")
        .droplevel("machine")
    )


def as_text(table):
    """What `measured` returns, as text; a column of which nothing is known is left
    out.
    """
    forms = {"seconds": lambda value: digits(1e3 * value), "of SGEMM": "{:.0%}".format}
    forms |= {"GFLOP/s": digits} | dict.fromkeys(PEERS, speed)
    names = {"seconds": "ms"} | {peer: f"vs {label}" for peer, label in LABELS.items()}
    known = table.dropna(axis=1, how="all")
    return pd.DataFrame({names.get(c, c): known[c].map(forms[c]) for c in known})


def peers(rows, stage):
    """`measured` of one machine, as text."""
    return (
        as_text(measured(rows, stage))
        .droplevel("machine")
        .rename_axis(index=WORDS[stage])
    )


def ends(rows):
    """The speed of `numba-fused` compared with the best peer, on the workload where it
    is least and where it is largest, as text: a row per machine, inference and
    training.
    """

    def between(ratios):
        ratios = ratios.sort_values()
        ends = ((ratios.iloc[k], ratios.index[k][-1]) for k in (0, -1))
        return " to ".join(f"{speed(ratio)} ({workload})" for ratio, workload in ends)

    table = {}
    for stage, what in WORDS.items():
        best = measured(rows, stage)[list(PEERS)].min(axis=1).dropna()
        table[what] = best.groupby(level="machine").apply(between)
    return pd.DataFrame(table).fillna("not measured")


def worst_peer(rows):
    """`ends` of every machine, in a sentence."""
    lines = ends(rows).iterrows()
    said = [
        f"{name}, {what}: {text}" for name, line in lines for what, text in line.items()
    ]
    return f"Recorded speed compared with the best peer. {'; '.join(said)}."


def ceiling(rows, name="sgemm"):
    """GFLOP/s of the SGEMM, GB/s of the copy, of one machine; NaN where it was not
    measured.
    """
    seconds = rows[(rows["stage"] == "ceiling") & (rows["version"] == name)][
        "seconds"
    ].median()
    return {"sgemm": SGEMM_GFLOP, "copy": COPY_GB}[name] / seconds


def about(experiment, rows):
    """What the recorded comparison of a machine ran on, in a line."""
    (machine,) = rows["machine"].unique()
    parts = [results.caption(results.record(experiment, machine))]
    versions = (
        rows[rows["version"].isin(PEERS)].dropna(subset="variant").groupby("version")
    )
    parts += [
        f"{name} {number}" for name, number in versions["variant"].first().items()
    ]
    parts.append(f"{rows['threads'].max():.0f} threads for everyone")
    rates = {"SGEMM {:.0f} GFLOP/s": "sgemm", "copy {:.0f} GB/s": "copy"}
    known = {text: ceiling(rows, name) for text, name in rates.items()}
    parts += [text.format(rate) for text, rate in known.items() if rate > 0]
    return f"{', '.join(parts)}."


def small_calls(rows):
    """The airline network, call by call, in sentences: those for which there are
    times.
    """
    times = (
        1e6
        * rows.groupby(["stage", "version", rows["variant"].fillna("")])[
            "seconds"
        ].median()
    )
    public, kernel = (
        times.get(("forward", "numba-fused", v)) for v in ("public call", "kernel")
    )
    epoch, torch = (
        times.get(("epoch", version, "")) for version in ("numba-fused", "pytorch")
    )
    said = []
    if public and kernel:
        # The same call as in the table, where other packages' threads and data come
        # between.
        said.append(
            f"Airline network, forward, in a loop without the other packages: {public:.1f} us by "
            f"the public call, of which {public - kernel:.1f} us are its checks and allocations."
        )
    if epoch and torch:
        steps = -(-len(airline_dataset()) // AIRLINE.B)
        said.append(
            f"An epoch of {steps} steps takes {epoch:.0f} us in compiled code, {torch:.0f} us with "
            f"PyTorch's SGD: {speed(torch / epoch)}."
        )
    return " ".join(said)
