"""The tables of the notebooks and of README: the ladder, the grid of workloads, what
`make bench-peers` recorded, and how long small calls take.
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
    rows = [
        (v.name, v.target, v.summary, v.why_unavailable or "runs here")
        for v in versions()
    ]
    columns = ["version", "target", "what it is", "here"]
    return pd.DataFrame(rows, columns=columns).set_index("version")


def of_grid(rows, stage):
    """The rows of a stage that compare versions on a workload of the grid, with its
    name.
    """
    public = rows["variant"].isna() | rows["version"].isin(PEERS)
    part = rows[(rows["stage"] == stage) & public]
    sizes = part[list("LTDHB")].itertuples(index=False, name=None)
    names = pd.Categorical([NAMES.get(size) for size in sizes], [*GRID], ordered=True)
    return part.assign(workload=names)


def median_times(rows, stage):
    """Median seconds by workload and version."""
    by = of_grid(rows, stage).groupby(["workload", "version"], observed=True)
    return by["seconds"].median().unstack()


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
    for machine, group in rows.groupby("machine", sort=False):
        for name, part in of_grid(group, stage).groupby("workload", observed=True):
            if "numba-fused" not in set(part["version"]):
                continue
            table = summary(part, "numba-fused", by="version")
            seconds = table["median"]["numba-fused"]
            rate = getattr(GRID[name], GFLOP[stage]) / seconds
            line = {"seconds": seconds, "GFLOP/s": rate}
            line |= {"of SGEMM": rate / ceiling(group)} | (1 / table["ratio"]).to_dict()
            lines[machine, name] = line
    index = pd.MultiIndex.from_tuples(list(lines), names=["machine", "workload"])
    columns = ["seconds", "GFLOP/s", "of SGEMM", *PEERS]
    return pd.DataFrame(list(lines.values()), index, columns)


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
    table = as_text(measured(rows, stage)).droplevel("machine")
    return table.rename_axis(index=WORDS[stage])


def worst_peer(rows):
    """The speed of `numba-fused` compared with the best peer of each machine, on the
    workload where it is least and where it is largest, in a sentence.
    """
    ends = []
    for machine, group in rows.groupby("machine"):
        for stage, what in WORDS.items():
            best = (
                measured(group, stage)[list(PEERS)].min(axis=1).dropna().sort_values()
            )
            text = " to ".join(
                f"{speed(best.iloc[k])} ({best.index[k][-1]})" for k in (0, -1)
            )
            ends.append(f"{machine}, {what}: {text}")
    return f"Recorded speed compared with the best peer. {'; '.join(ends)}."


def ceiling(rows, name="sgemm"):
    """GFLOP/s of the SGEMM, GB/s of the copy, of one machine; NaN where it was not
    measured.
    """
    part = rows[(rows["stage"] == "ceiling") & (rows["version"] == name)]
    return {"sgemm": SGEMM_GFLOP, "copy": COPY_GB}[name] / part["seconds"].median()


def about(experiment, rows):
    """What the recorded comparison of a machine ran on, in a line."""
    (machine,) = rows["machine"].unique()
    parts = [results.caption(results.record(experiment, machine))]
    known = rows[rows["version"].isin(PEERS)].dropna(subset="variant")
    numbers = known.groupby("version")["variant"].first()
    parts += [f"{name} {number}" for name, number in numbers.items()]
    parts.append(f"{rows['threads'].max():.0f} threads for everyone")
    for text, name in (("SGEMM {:.0f} GFLOP/s", "sgemm"), ("copy {:.0f} GB/s", "copy")):
        rate = ceiling(rows, name)
        parts += [text.format(rate)] if rate > 0 else []
    return f"{', '.join(parts)}."


def small_calls(rows):
    """The airline network, call by call, in sentences: those for which there are
    times.
    """
    variant = rows["variant"].fillna("")
    us = 1e6 * rows.groupby(["stage", "version", variant])["seconds"].median()
    public = us.get(("forward", "numba-fused", "public call"))
    kernel = us.get(("forward", "numba-fused", "kernel"))
    epoch = us.get(("epoch", "numba-fused", ""))
    torch = us.get(("epoch", "pytorch", ""))
    sentences = []
    if public and kernel:
        # The same call as in the table, where other packages' threads and data come
        # between.
        sentences.append(
            "Airline network, forward, in a loop without the other packages: "
            f"{public:.1f} us by the public call, of which {public - kernel:.1f} us "
            "are its checks and allocations."
        )
    if epoch and torch:
        steps = -(-len(airline_dataset()) // AIRLINE.B)
        sentences.append(
            f"An epoch of {steps} steps takes {epoch:.0f} us in compiled code, "
            f"{torch:.0f} us with PyTorch's SGD: {speed(torch / epoch)}."
        )
    return " ".join(sentences)
