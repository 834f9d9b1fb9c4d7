"""The reader's machine beside those whose results are recorded."""

from functools import reduce
from operator import and_

import pandas as pd
from IPython.display import display

from ..figures import tables
from ..measure import disturbance, provenance, results
from ..measure.runner import measure, networks, rounds
from ..measure.workloads import AIRLINE

VERSIONS = ("sequential", "numpy", "numba-sample", "numba-fused")
MOST = 3  # recorded machines that are shown: the latest


def measured(preset):
    """Time a training step of the airline network here: rows of a results file, which
    are verified before and after.
    """
    x, target = AIRLINE.example()
    calls = {"step": lambda net: net.step(x, target, 1e-4)}
    return measure(networks(VERSIONS, AIRLINE), AIRLINE, calls, **rounds(preset))


def recorded():
    """Rows of the same on other machines, label -> rows, the latest records first."""
    rows = results.recorded("grid")
    found = []
    for machine, part in rows[_of_airline(rows)].groupby("machine"):
        record = results.record("grid", machine)
        name = results.label(record)
        if record["disturbance"]:
            name += ", disturbed"
        found.append((record["date"], name, part))
    newest = sorted(found, key=lambda each: each[:2], reverse=True)[:MOST]
    return {name: part for _, name, part in newest}


def table(here, others, label):
    """Median microseconds of a training step by machine and version; here: rows of this
    run.
    """
    lines = {("measured in this run", label): here}
    lines |= {("recorded", name): rows for name, rows in others.items()}
    medians = {key: _medians(rows) for key, rows in lines.items()}
    frame = 1e6 * pd.DataFrame.from_dict(medians, orient="index", columns=VERSIONS)
    frame.index = pd.MultiIndex.from_tuples(
        medians, names=["training step (us)", "machine"]
    )
    return frame.map(tables.digits)


def _medians(rows):
    return rows[_of_airline(rows)].groupby("version")["seconds"].median().to_dict()


def _of_airline(rows):
    sizes = (rows[name] == value for name, value in AIRLINE.columns().items())
    return reduce(and_, sizes) & (rows["stage"] == "step") & rows["variant"].isna()


def verdict(rows):
    """What the times of this run are worth, in a sentence."""
    if said := disturbance(rows):
        return f"This run was disturbed ({said}): repeat the cell before you compare."
    quartiles = (
        rows.groupby(["version", "stage"])["seconds"].quantile([0.25, 0.75]).unstack()
    )
    spread = (quartiles[0.75] / quartiles[0.25] - 1).median()
    distance = f"{spread:.1%} apart in the median"
    return f"This run was not disturbed: quartiles of a version are {distance}."


def show(nb):
    """Measure this machine, show it beside the recorded ones, and say what the times
    are worth.

    nb: the Notebook. Times are medians; CPU versions use every core where that helps.
    """
    here, others = measured(nb.preset), recorded()
    display(table(here, others, nb.machine()))
    fused = _medians(here)["numba-fused"]
    ratios = {
        name: _medians(rows)["numba-fused"] / fused for name, rows in others.items()
    }
    said = (
        f"{tables.speed(r)} {'as fast as' if r >= 1 else 'than'} on {n}"
        for n, r in ratios.items()
    )
    nb.say(f"`numba-fused` is here {'; '.join(said)}. " * bool(ratios) + verdict(here))
    for warning in provenance.warnings():
        nb.say(f"Note: {warning}.")
