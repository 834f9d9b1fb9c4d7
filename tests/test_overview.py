"""What notebook 00 and README tell: speeds, and the factors of the ideas."""

import numpy as np
import pandas as pd
import pytest

from lstm_report.figures import overview as figures_overview
from lstm_report.figures import plots, tables


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (float("nan"), "not measured"),
        (0.971, "2.9 % slower"),
        (0.5, "50 % slower"),
        (1.0, "1.00x"),
        (2.104, "2.10x"),
        (14.04, "14.0x"),
        (112.6, "113x"),
        (1937.2, "1940x"),
    ],
)
def test_a_speed_has_three_digits_and_a_loss_is_in_per_cent(ratio, text):
    assert tables.speed(ratio) == text


CHAIN = {
    ("a", 1): "",
    ("b", 1): "compilation",
    ("b", 2): None,
    ("c", 1): "tile",
    ("c", 2): "threads",
}


def test_the_factors_of_the_ideas_multiply_to_the_headline():
    """Medians of rounds that drift, so that a product of medians of ratios would miss
    it.
    """
    seconds = dict(zip(CHAIN, (8.0, 2.0, 9.0, 0.5, 0.625), strict=True))
    drift = {("a", 1): (1, 2, 3), ("c", 2): (3, 1, 2)}
    rows = [
        (case, repeat, value * factor)
        for case, value in seconds.items()
        for repeat, factor in enumerate(drift.get(case, (1, 2, 2.5)))
    ]
    times = pd.DataFrame(rows, columns=["case", "repeat", "seconds"])
    table = figures_overview.ideas(times, CHAIN)
    factor = table["factor"].dropna()
    assert factor.to_dict() == {
        ("b", 1): 4.0,
        ("c", 1): 4.0,
        ("c", 2): pytest.approx(0.8),
    }
    assert (
        factor.prod()
        == pytest.approx(table["speed"].iloc[-1])
        == pytest.approx(8 / 0.625)
    )
    shown = figures_overview.words(table)
    assert shown["factor of the idea"].to_list() == [
        "",
        "4.00x",
        "",
        "4.00x",
        "20 % slower",
    ]
    assert shown["version"].to_list() == ["`a`", "`b`", "`b`", "`c`", "`c`"]
    assert tables.markdown(shown).count("\n") == 6


def test_the_figure_of_the_factors_says_them():
    table = pd.DataFrame(
        {
            "median": [8.0, 2.0, 4.0],
            "factor": [np.nan, 4.0, 0.5],
            "speed": [1.0, 4.0, 2.0],
        },
        [("sequential", 1), ("numpy", 1), ("numpy", 2)],
    ).assign(idea=["", "batching", "threads"])
    figure = figures_overview.factors(table)
    figure.canvas.draw()
    told = plots.words(figure)
    assert told.startswith(
        "A training epoch from 8000 ms to 4000 ms: 2.00x. idea (batching, threads)"
    )
    assert told.endswith("on a log axis. Labels: 4.00x; 50 % slower.")
    first, second = figure.axes[0].patches
    assert (first.get_x(), first.get_width()) == (1.0, 3.0)
    # It begins where the other ends
    assert (second.get_x(), second.get_width()) == (4.0, -2.0)
