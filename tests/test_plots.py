"""The forms of figures, on made rows."""

from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from pages import bars, cut_off

from lstm_report import plots


@pytest.fixture
def ax():
    plots.style()
    return plt.subplots(figsize=(8, 4))[1]


INTERVALS = pd.DataFrame(
    {"low": [1.5, 0.9], "middle": [2.0, 0.95], "high": [2.5, 1.1]}, ["tile", "threads"]
)


def texts(ax):
    return [text.get_text() for text in ax.texts]


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_labels_of_lines_that_end_together_keep_apart_and_in_order(ax, scale):
    ends = [3.0, 3.01, 3.02, 900.0]
    ax.set(yscale=scale, xlim=(0, 2), ylim=(1, 1000))
    plots.label_lines(ax, [(1, y, f"{y:g}", "black") for y in ends], fontsize=10)
    ax.figure.canvas.draw()
    boxes = [text.get_window_extent() for text in ax.texts]
    assert texts(ax) == ["3", "3.01", "3.02", "900"]
    assert all(low.y1 <= high.y0 for low, high in pairwise(boxes))
    middles = [(box.y0 + box.y1) / 2 for box in boxes]
    at = ax.transData.transform([(1, y) for y in ends])[:, 1]
    assert np.mean(middles[:3]) == pytest.approx(np.mean(at[:3]), abs=3)
    # Alone, so it stays where its line ends
    assert middles[3] == pytest.approx(at[3], abs=3)


def test_dots_have_their_intervals_names_and_values(ax):
    plots.dots(ax, INTERVALS)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["tile", "threads"]
    assert texts(ax) == ["2x", "5 % slower"]
    assert ax.yaxis_inverted()  # the first at the top
    lines = [tuple(line.get_xdata()) for line in ax.lines]
    assert lines == [(1.0, 1.0), (1.5, 2.5), (2.0,), (0.9, 1.1), (0.95,)]
    assert [line.get_ydata()[0] for line in ax.lines[1:]] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("options", "ends"), [({}, [(2, 4), (4, 8)]), ({"spread": 1}, [(1, 100), (2, 200)])]
)
def test_lines_are_medians_with_their_spread_and_labels_at_their_ends(
    ax, options, ends
):
    rows = pd.DataFrame(
        [
            (size, name, factor * size * rate)
            for size in (1, 2)
            for name, factor in (("ours", 1), ("theirs", 10))
            for rate in (1, 2, 3, 4, 100)
        ],
        columns=["H", "who", "seconds"],
    )
    ax.set(yscale="log", xlabel="hidden units")
    names = {"ours": "Ours"}
    medians = plots.lines(ax, rows, "H", "seconds", "who", names=names, **options)
    assert medians.to_dict("list") == {"ours": [3, 6], "theirs": [30, 60]}
    assert texts(ax) == ["Ours", "theirs"]
    assert bars(ax)[:2] == [pytest.approx(each) for each in ends]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("hidden units", "")


def test_cells_of_a_heat_map_can_be_read_on_every_colour_rows_go_upwards(ax):
    table = pd.DataFrame([[0.0, 1.0], [np.nan, 1]], [8, 16], columns=["low", "high"])
    ax.set(xlabel="units")
    text = [["a", "b"], ["none", "d"]]
    plots.heat(ax, table, text=text, cmap="gray", vmin=0, vmax=1)
    assert [(t.get_text(), t.get_position()) for t in ax.texts] == [
        *(("a", (0, 0)), ("b", (1, 0))),
        *(("none", (0, 1)), ("d", (1, 1))),
    ]
    assert [t.get_color() for t in ax.texts[:2]] == ["white", "black"]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["low", "high"]
    assert ax.get_xlabel() == "units"
    assert not ax.yaxis_inverted()
    # The middle of a cell is a whole number, as its text and its tick are.
    [mesh] = ax.collections
    corners = mesh.get_transform().transform(mesh.get_coordinates()[0])
    middle = ax.transData.inverted().transform(corners)[:, 0]
    assert middle == pytest.approx([-0.5, 0.5, 1.5])


def test_what_cannot_be_read_is_found():
    """Letters that are too small, a title that the edge cuts off."""
    figure, ax = plots.panels()
    ax.set_title("a title")
    assert plots.too_small(figure) == cut_off(figure) == []
    ax.text(0, 0, "a remark", fontsize=10)
    ax.text(0, 0, "hidden", fontsize=5, visible=False)
    assert plots.too_small(figure) == ["a remark"]
    figure.set_figwidth(2 * plots.WIDTH)
    assert {"a remark", "a title"} <= {*plots.too_small(figure)}
    ax.set_title(long := "as long as no figure is wide " * 9)
    assert long in cut_off(figure)


def test_a_figure_in_words(ax):
    ax.set_title("Twice as fast")
    ax.set(xlabel="hidden units", ylabel="seconds", xscale="log")
    plots.note(ax, "$H$", (1, 1))
    said = "Twice as fast. seconds against hidden units on a log axis. Labels: H."
    assert plots.words(ax.figure) == said
    ax.set_xlabel("")  # as where the panel below names it
    assert plots.words(ax.figure) == "Twice as fast. seconds. Labels: H."
