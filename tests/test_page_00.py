"""Page 0: its claims, its tables and its figure on made rows."""

import pandas as pd
from pages import claims, functions, rows, says

page = functions("00")
LARGE = "1 x 512 units, 100 steps, 1 sample"
SMALL = "1 x 32 units, 12 steps, 16 samples"
# Networks that are the worst and the best by their median, not in every process.
WIDE = {"2 x 32 units, 12 steps, 1 sample": (0.3, 0.6, 1.2)}
WIDE |= {"4 x 64 units, 12 steps, 1 sample": (0.9, 3, 4)}


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
    times = {kind: {"1": 1, "2": 1 / pd.Series(of)} for kind, of in WIDE.items()}
    times[SMALL] = {"1": 1, "2": faster(small)}
    made = [made, *(rows(of, kind=k, found="one thread") for k, of in times.items())]
    times = {"ladder": ladder, "baseline": {"baseline": 1, "all": faster(optim)}}
    times |= {"layers": {"1": 1, "2": faster(layers)}}
    times |= {"inference": {"1": 1, "2": faster(rnn)}}
    return pd.concat([*made, *(rows(of, kind=kind) for kind, of in times.items())])


ALL = everything()
test_claims = claims(
    (page.claim_one_core, ALL, True, "150x (100x to 170x)", "75x (50x to 85x)"),
    (page.claim_one_core, everything(fused=99), False),
    (page.claim_threads, ALL, True, "worst level (0.3x to 1.2x), best 2.4x (1.6x to"),
    (page.claim_threads, everything(large=1.59), False),
    (page.claim_threads, everything(small=0.59), True, "worst level (0.59x to 1x)"),
    (page.claim_threads, everything(small=0.58), False, "worst 13 % slower"),
)
test_words = says(
    (page.answers, ALL, "CSC14116: 150x (100x to 170x)", "25 % slower (0.5x to 0.85x)"),
    (page.answers, ALL, "threads: 2.4x (1.6x to 2.72x)", "CPU: 3x (2x to 3.4x)"),
    (page.verdicts, everything(fused=10), "CSC14116: reached"),
    (page.verdicts, everything(fused=9.9), "CSC14116: not reached"),
    (page.verdicts, everything(layers=1.6), "Layer-parallel: reached"),
    (page.verdicts, everything(layers=1.59), "Layer-parallel: partly"),
    (page.verdicts, everything(rnn=1.1), "15-418: threads pay"),
    (page.verdicts, everything(rnn=1), "15-418: threads do not pay here"),
    (page.verdicts, everything(optim=7.98), "Optim-LSTM: reached"),
    (page.verdicts, everything(optim=7.9), "Optim-LSTM: a CPU gains less"),
    (page.table_forms, ALL, f"{LARGE}, by units of a step (2), by layers (1), 2.4x"),
    (page.table_forms, ALL, f"{SMALL}, one thread, level (1x to 1.7x)"),
    (page.figure_ladder, ALL, "One core: 150 times as fast", "5x; 6x; 75x; 150x."),
)


def test_every_project_has_an_answer_and_a_verdict():
    assert list(page.verdicts(ALL)) == list(page.answers(ALL)) == list(page.PROJECTS)
