"""The tables of the notebooks: the ladder, the source's table with our rows beside its own, and
what `make bench-peers` recorded.
"""

from dataclasses import astuple

import pandas as pd

from .. import data
from ..bench import experiments, results
from ..bench.peers import COPY_GB, SGEMM_GFLOP
from ..bench.peers import PEERS as PEER_CLASSES
from ..bench.timing import summary
from ..versions import versions


def ladder():
    """Every version, what it is, and whether it can run here."""
    rows = [(v.name, v.target, v.summary, v.why_unavailable or "runs here") for v in versions()]
    return pd.DataFrame(rows, columns=["version", "target", "what it is", "here"]).set_index(
        "version"
    )


def source():
    """The table of the course project as published: recorded there, not measured here."""
    table = pd.read_csv(data.FOLDER / "source_table.csv", index_col="version")
    return with_ratios(table, "Sequential (plain Python)", "NumPy")


def ours(seconds):
    """Our times, seconds by version, under the source's columns."""
    yes = {True: "yes", False: "no"}
    rows = {
        v.name: {
            "mini-batch": v.mini_batch_on,
            "data sample": v.sample_on,
            "thread positioning": yes[v.thread_positioning],
            "transfer optimised": yes[v.transfer_optimised],
            "seconds": seconds[v.name],
        }
        for v in versions()
        if v.name in seconds.index
    }
    table = with_ratios(pd.DataFrame.from_dict(rows, orient="index"), "sequential", "numpy-sample")
    return table.round({"seconds": 4})


def with_ratios(table, sequential, numpy):
    """The table with its speeds in per cent of the rows `sequential` and `numpy`."""
    speed = 1 / table["seconds"]
    percent = {"vs sequential": speed / speed[sequential], "vs NumPy": speed / speed[numpy]}
    return table.assign(**{name: ratio.map("{:.0%}".format) for name, ratio in percent.items()})


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


def handovers(waits):
    """Quantiles of the hand-overs' nanoseconds, a row per order, and what one point to point takes,
    in words; waits: order -> nanoseconds, empty where two threads never ran at the same time.
    """
    levels = {0.05: "5 %", 0.25: "25 %", 0.5: "median", 0.75: "75 %", 0.95: "95 %"}
    found = {order: pd.Series(values).quantile(list(levels)) for order, values in waits.items()}
    table = pd.DataFrame(found).T.rename(columns=levels)
    median = table.loc["point-to-point", "median"]
    seen = f"takes {median:.0f} ns in the median"
    return table, "was not seen: no two threads ran at the same time" if pd.isna(median) else seen


def layer_speedups(found):
    """Speed-up of two threads over one by way and number of layers, a `layers.Sweep`: measured
    (median and quartiles of the ratios round by round) and predicted.
    """
    times = found.times.pivot(index="repeat", columns="case", values="seconds")
    table, rows = found.table.set_index(["sweep", "way", "how", "size"])["predicted"], []
    for key in found.passes:
        sweep, way, threads, count = key
        if sweep == "layers" and threads == 2:
            one = sweep, way, 1, count
            low, middle, high = (times[str(one)] / times[str(key)]).quantile((0.25, 0.5, 0.75))
            rows.append((way, count, low, middle, high, table[one] / table[key]))
    return pd.DataFrame(rows, columns=["way", "layers", "q1", "median", "q3", "predicted"])


def block_lengths(table):
    """By way, the block length that the model picks, and in a sentence what it takes beside the
    fastest measured; table: the rows of `layers.Sweep` on block lengths.
    """
    best, said = {}, []
    for way, part in table[table["how"] == "point-to-point"].groupby("way", sort=False):
        pick, fast = (part.loc[part[kind].idxmin()] for kind in ("predicted", "measured"))
        best[way] = int(pick["size"])
        said.append(
            f"{way} the model picks blocks of {pick['size']} steps, {pick['measured']:.1f} ms "
            f"measured; the fastest measured are {fast['size']}, {fast['measured']:.1f} ms"
        )
    return best, f"{'; '.join(said).capitalize()}."


def deep_peers():
    """`numba-wavefront` and PyTorch on eight layers and one sample, as recorded, in sentences."""
    rows = results.read("peers")
    name, said = "deep, one sample", []
    for machine, part in rows.groupby("machine"):
        for stage, what in WORDS.items():
            deep = of_grid(part, stage)
            deep = deep[deep["workload"] == name]
            times = 1e3 * deep.groupby("version")["seconds"].median()
            if {"numba-wavefront", "pytorch"} <= set(times.index):
                ratio = summary(deep, "numba-wavefront", by="version")["ratio"]
                said.append(
                    f"{machine}, {what}: `numba-wavefront` {times['numba-wavefront']:.1f} ms, "
                    f"`numba-fused` {times['numba-fused']:.1f} ms, PyTorch {times['pytorch']:.1f} "
                    f"ms, {1 / ratio['pytorch']:.2f} times the time of `numba-wavefront`."
                )
    return "\n\n".join(said) or "Not measured yet."


def gpu_schedule():
    """The wavefront on a GPU, as recorded, in a sentence."""
    try:
        rows = results.read("gpu").query("version == 'cuda-wavefront'")
    except ValueError:
        return "Not measured yet: no results of a GPU are recorded."
    times = rows.groupby(["machine", "L", "stage"])["seconds"].median() * 1e3
    said = "; ".join(f"{m}, {L} layers, {s}: {v:.2f} ms" for (m, L, s), v in times.items())
    return f"{said}." if said else "Not measured yet: the recorded results have no wavefront."


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
