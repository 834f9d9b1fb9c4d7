"""Page 0: its claims, its tables and its figure on made rows."""

import pandas as pd
import pytest
from pages import claims, functions, rows, says

page = functions("00")
LARGE, SMALL = (
    "1 x 512 units, 100 steps, 1 sample",
    "1 x 32 units, 12 steps, 16 samples",
)


def everything(fused=100, large=1.6, small=1, layers=1.6, rnn=0.5, optim=2):
    """How many times as fast as its baseline each comparison is in the worst process;
    5 and 7 parts in 10 more in the others.
    """

    def faster(least):
        return tuple(1 / (least * part) for part in (1.5, 1, 1.7))

    ladder = {name: 1 / (2 + k) for k, name in enumerate(page.RUNGS)}
    ladder |= {"sequential": 1, "numba-tile": faster(50), "numba-fused": faster(fused)}
    made = rows({"1": 1, "2": faster(large)}, kind=LARGE)
    made["found"] = made["process"].map({0: "units", 1: "units", 2: "layers"})
    return pd.concat(
        [
            rows(ladder, kind="ladder"),
            made,
            rows({"1": 1, "2": faster(small)}, kind=SMALL, found="one thread"),
            rows({"1": 1, "2": faster(layers)}, kind="layers"),
            rows({"1": 1, "2": faster(rnn)}, kind="inference"),
            rows({"baseline": 1, "all": faster(optim)}, kind="baseline"),
        ]
    )


ALL = everything()
test_claims = claims(
    (page.claim_one_core, ALL, True, "150x (100x to 170x)", "75x (50x to 85x)"),
    (page.claim_one_core, everything(fused=99), False),
    (page.claim_threads, ALL, True, "best 2.4x (1.6x to 2.72x)"),
    (page.claim_threads, everything(large=1.59), False),
    (page.claim_threads, everything(small=0.59), True, "worst level (0.59x to 1x)"),
    (page.claim_threads, everything(small=0.58), False, "worst 13 % slower"),
)
test_words = says(
    (page.answers, ALL, "CSC14116: 150x (100x to 170x)", "25 % slower (0.5x to 0.85x)"),
    (page.answers, ALL, "threads: 2.4x (1.6x to 2.72x)", "CPU: 3x (2x to 3.4x)"),
    (page.table_forms, ALL, f"{LARGE}, by units of a step (2), by layers (1), 2.4x"),
    (page.table_forms, ALL, f"{SMALL}, one thread, level (1x to 1.7x)"),
    (page.figure_ladder, ALL, "One core: 150 times as fast", "5x; 6x; 75x; 150x."),
)


@pytest.mark.parametrize(
    ("project", "reached", "missed", "verdicts"),
    [
        ("CSC14116", {"fused": 10}, {"fused": 9.9}, ("reached", "not reached")),
        ("Layer-parallel", {"layers": 1.6}, {"layers": 1.59}, ("reached", "partly")),
        (
            "15-418",
            {"rnn": 1.1},
            {"rnn": 1},
            ("threads pay", "threads do not pay here"),
        ),
        (
            "Optim-LSTM",
            {"optim": 7.98},
            {"optim": 7.9},
            ("reached", "a CPU gains less"),
        ),
    ],
)
def test_a_goal_is_reached_in_every_process(project, reached, missed, verdicts):
    found = [page.verdicts(everything(**of)) for of in (reached, missed)]
    assert tuple(one[project] for one in found) == verdicts
    assert list(found[0]) == list(page.answers(ALL)) == list(page.PROJECTS)
