"""Page 0: its claims and its figure on made rows."""

import pandas as pd
import pytest
from pages import functions

page = functions("00")
SHAPES = "1 x 512 units, 100 steps, 1 sample", "1 x 32 units, 12 steps, 16 samples"


def rows_of(kind, times, found=("one thread",) * 3):
    """Rows of three processes, four rounds each; times: case -> seconds of each."""
    made = [
        (kind, case, process, repeat, seconds, found[process])
        for case, each in times.items()
        for process, seconds in enumerate(each)
        for repeat in range(4)
    ]
    names = ["kind", "case", "process", "repeat", "seconds", "found"]
    return pd.DataFrame(made, columns=names)


def everything(*, fused=1.0, large=2.0, small=1.0):
    """fused: seconds of its step in the slowest process, of 200 s in plain loops;
    large, small: the ratio of two threads to one in the worst process.
    """
    ladder = {name: [200.0] * 3 for name in page.RUNGS}
    ladder |= {"numba-tile": [4.0] * 3, "numba-fused": [1.0, fused, 1.0]}
    return pd.concat(
        [
            rows_of("ladder", ladder),
            rows_of(
                SHAPES[0],
                {"1": [2.0] * 3, "2": [2 / large, 0.8, 0.8]},
                ("units", "units", "layers"),
            ),
            rows_of(SHAPES[1], {"1": [1.0] * 3, "2": [1 / small, 1.25, 1.25]}),
            rows_of("layers", {"1": [2.0] * 3, "2": [1.0] * 3}),
            rows_of("inference", {"1": [2.0] * 3, "2": [4.0] * 3}),
            rows_of("baseline", {"baseline": [6.0] * 3, "all": [3.0] * 3}),
        ]
    )


@pytest.mark.parametrize(("fused", "held"), [(1.999, True), (2.001, False)])
def test_one_core_is_judged_by_the_slowest_process(fused, held):
    claim = page.claim_one_core(everything(fused=fused))
    assert claim["held"] == held
    assert "200x" in claim["numbers"]
    assert "50x" in claim["why"]  # the tile


@pytest.mark.parametrize(
    ("large", "small", "held"),
    [(1.6, 1.0, True), (1.59, 1.0, False), (1.6, 0.99, False)],
)
def test_threads_are_judged_at_both_ends(large, small, held):
    assert page.claim_threads(everything(large=large, small=small))["held"] == held


def test_the_projects_are_answered_from_the_rows():
    rows = everything()
    found, verdicts = page.answers(rows), page.verdicts(rows)
    assert list(found) == list(verdicts) == list(page.PROJECTS)
    assert found["CSC14116"].startswith("200x (200x to 200x) on one core")
    assert verdicts["CSC14116"] == "reached"
    assert "2x (2x to 2x)" in found["Layer-parallel"]
    assert verdicts["Layer-parallel"] == "reached"
    assert "50 % slower" in found["15-418"]
    assert verdicts["15-418"] == "threads do not pay here"
    assert verdicts["Optim-LSTM"] == "a CPU gains less"


def test_processes_that_disagree_are_counted():
    table = page.table_forms(everything())
    assert table.loc[SHAPES[0]].to_list() == [
        "by units of a step (2), by layers (1)",
        "2.5x (2x to 2.5x)",
    ]
    assert table.loc[SHAPES[1]].to_list() == [
        "one thread",
        "level (0.8x to 1x)",
    ]


def test_the_ladder_as_drawn():
    figure = page.figure_ladder(everything(fused=2.0))
    (ax,) = figure.axes
    assert ax.get_title("left") == "One core: 200 times as fast as plain loops"
    assert "times as fast" in ax.get_xlabel()
    assert ax.get_xscale() == "log"
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == page.RUNGS
    drawn = {
        line.get_ydata()[0]: line for line in ax.lines if len(line.get_xdata()) == 1
    }
    values = {names[int(row)]: line.get_xdata()[0] for row, line in drawn.items()}
    assert values["numba-fused"] == pytest.approx(200)
    assert values["numba-tile"] == pytest.approx(50)
    spans = [tuple(line.get_xdata()) for line in ax.lines if len(line.get_xdata()) == 2]
    assert pytest.approx((100, 200)) in spans
