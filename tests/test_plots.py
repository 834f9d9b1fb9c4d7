"""The forms of figures, on made rows."""

import subprocess
import sys
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


FOUND = pd.DataFrame(
    {"low": [1.5, 0.9], "middle": [2.0, 0.95], "high": [2.5, 1.1]}, ["tile", "threads"]
)


def texts(ax):
    return [text.get_text() for text in ax.texts]


def test_a_title_that_the_edge_cuts_off_is_seen():
    figure, ax = plots.panels(1, 3)
    ax.set_title("a title that fits")
    assert not cut_off(figure)
    ax.set_title(long := "as long as no figure is wide " * 4)
    assert cut_off(figure) == [long]
    plt.close(figure)


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
    plots.dots(ax, FOUND)
    assert [label.get_text() for label in ax.get_yticklabels()] == list(FOUND.index)
    assert texts(ax) == ["2x", "5 % slower"]
    assert ax.yaxis_inverted()  # the first at the top
    lines = [tuple(line.get_xdata()) for line in ax.lines]
    assert lines == [(1.0, 1.0), (1.5, 2.5), (2.0,), (0.9, 1.1), (0.95,)]
    assert [line.get_ydata()[0] for line in ax.lines[1:]] == [0, 0, 1, 1]


def test_dots_without_a_reference_and_with_texts_of_their_own(ax):
    plots.dots(ax, FOUND, text=["two", "less"], reference=None)
    assert texts(ax) == ["two", "less"]
    assert len(ax.lines) == 4
    with pytest.raises(ValueError, match=r"zip\(\)"):
        plots.dots(ax, FOUND, text=["two"])


@pytest.mark.parametrize(
    ("how", "ends"),
    [({}, [(2, 4), (4, 8)]), ({"spread": 1}, [(1, 100), (2, 200)])],
)
def test_lines_are_medians_with_their_spread_and_labels_at_their_ends(ax, how, ends):
    rows = pd.DataFrame(
        [
            (size, name, factor * size * rate)
            for size in (1, 2)
            for name, factor in (("ours", 1), ("theirs", 10))
            for rate in (1, 2, 3, 4, 100)
        ],
        columns=["H", "who", "seconds"],
    )
    names = {"ours": "Ours"}
    medians = plots.lines(ax, rows, "H", "seconds", "who", names=names, **how)
    assert medians.to_dict("list") == {"ours": [3, 6], "theirs": [30, 60]}
    assert texts(ax) == ["Ours", "theirs"]
    assert bars(ax)[:2] == ends


def test_lines_on_a_log_axis_have_the_quantiles_of_the_rows(ax):
    rows = pd.DataFrame({"H": 1, "who": "ours", "seconds": [1.0, 2.0, 8.0, 16.0]})
    ax.set(yscale="log", xlabel="hidden units")
    plots.lines(ax, rows, "H", "seconds", "who", colours={"ours": plots.RED})
    line = ax.lines[0]
    assert line.get_ydata() == pytest.approx([5])
    assert line.get_color() == plots.RED
    assert bars(ax)[0] == pytest.approx((1.75, 10))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("hidden units", "")


def test_cells_of_a_heat_map_can_be_read_on_every_colour(ax):
    table = pd.DataFrame([[0.0, 1.0]], index=["row"], columns=["low", "high"])
    ax.set(xlabel="units")
    plots.heat(ax, table, text=[["a", "b"]], cmap="gray", vmin=0, vmax=1)
    assert texts(ax) == ["a", "b"]
    assert [text.get_color() for text in ax.texts] == ["white", "black"]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["low", "high"]
    assert ax.get_xlabel() == "units"
    # The middle of a cell is a whole number, as its text and its tick are.
    [mesh] = ax.collections
    corners = mesh.get_transform().transform(mesh.get_coordinates()[0])
    middle = ax.transData.inverted().transform(corners)[:, 0]
    assert middle == pytest.approx([-0.5, 0.5, 1.5])


def test_rows_of_a_heat_map_go_upwards_and_a_cell_without_a_number_has_its_text(ax):
    table = pd.DataFrame([[1.0], [np.nan]], index=[8, 16], columns=["ms"])
    plots.heat(ax, table, text=[["1"], ["none"]])
    assert [(text.get_text(), text.get_position()) for text in ax.texts] == [
        ("1", (0, 0)),
        ("none", (0, 1)),
    ]
    assert not ax.yaxis_inverted()


def test_small_letters_are_found_as_large_as_the_page_shows_them(ax):
    figure = ax.figure
    ax.set_title("a title")
    figure.set_figwidth(plots.WIDTH)
    assert plots.too_small(figure) == []
    ax.text(0, 0, "a remark", fontsize=10)
    ax.text(0, 0, "hidden", fontsize=5, visible=False)
    assert plots.too_small(figure) == ["a remark"]
    figure.set_figwidth(2 * plots.WIDTH)
    assert {"a remark", "a title"} <= {*plots.too_small(figure)}


IMPORT = """
import sys
import lstm_report.plots
assert "seaborn" not in sys.modules
"""


def test_seaborn_is_imported_where_something_is_drawn_alone():
    subprocess.run([sys.executable, "-c", IMPORT], check=True)


def test_a_figure_in_words(ax):
    ax.set_title("Twice as fast")
    ax.set(xlabel="hidden units", ylabel="seconds", xscale="log")
    plots.note(ax, "$H$", (1, 1))
    said = "Twice as fast. seconds against hidden units on a log axis. Labels: H."
    assert plots.words(ax.figure) == said
    ax.set_xlabel("")  # as where the panel below names it
    assert plots.words(ax.figure) == "Twice as fast. seconds. Labels: H."
