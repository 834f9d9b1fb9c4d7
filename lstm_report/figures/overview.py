"""The figure and the table of the ideas, in notebook 00 and README."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from ..measure.timing import summary
from . import plots
from .tables import digits, speed


def ideas(times, chain):
    """Median and quartiles of each case in seconds, its speed over the first, and the
    factor over the case before it in the chain.

    times: as `bench.interleaved` returns it, of cases (version, threads). chain: case
    -> the one idea that it adds; "" for the first, None for a case that is measured
    beside the chain. Factors and speeds are ratios of medians, so that the factors
    multiply to the speed of the last case.
    """
    table = summary(times).loc[[*chain]].assign(idea=[*chain.values()])
    seconds = table["median"][table["idea"].notna()]
    return table.assign(
        factor=seconds.shift() / seconds, speed=seconds.iloc[0] / table["median"]
    )


def words(table):
    """The table of `ideas` as text, as a reader wants it."""
    ms = table[["median", "q1", "q3"]].mul(1e3).map(digits)
    return pd.DataFrame(
        {
            "version": [f"`{version}`" for version, _ in table.index],
            "threads": [str(threads) for _, threads in table.index],
            "idea it adds": table["idea"].fillna(""),
            "ms per epoch": ms["median"],
            "quartiles (ms)": ms["q1"] + " to " + ms["q3"],
            "factor of the idea": table["factor"]
            .map(speed, na_action="ignore")
            .fillna(""),
            "speed over plain loops": table["speed"].map(speed),
        }
    )


def factors(table):
    """The factor of each idea of the chain on a log axis, from `ideas`: where one ends,
    the next begins.
    """
    steps = table.dropna(subset="factor")
    first, last = (digits(1e3 * table["median"].iloc[at]) for at in (0, -1))
    begin, end = steps["speed"] / steps["factor"], steps["speed"]
    figure, ax = plt.subplots(figsize=(8, 3.2))
    colours = [plots.COLOURS[version] for version, _ in steps.index]
    ax.barh(steps["idea"], end - begin, left=begin, color=colours)
    labels = steps["factor"].map(speed)
    for place, (text, right) in enumerate(
        zip(labels, np.maximum(begin, end), strict=True)
    ):
        ax.annotate(
            text, (right, place), (6, 0), textcoords="offset points", va="center"
        )
    ax.set(xscale="log", xlabel="times as fast as plain Python loops", ylabel="idea")
    ax.margins(x=0.12)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set_title(
        f"A training epoch from {first} ms to {last} ms: {speed(end.iloc[-1])}"
    )
    return figure
