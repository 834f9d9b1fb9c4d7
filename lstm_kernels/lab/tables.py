"""The tables of the notebooks: the ladder, and the source's table with our rows beside its own."""

import pandas as pd

from .. import data
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
