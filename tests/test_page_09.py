"""Page 9, weights of low rank, on synthetic rows; its tasks, and the losses that it
measures.
"""

import numpy as np
import pandas as pd
import pytest
from pages import Page, rows
from planted import planted

from lstm_report.measure import MismatchError
from lstm_report.measure.workloads import Workload

PAGE = Page("09_bytes")
page = PAGE.module
# How many times as fast as dense in each process, by what computes.
GAINS = {
    "NumPy": {"rank 64": 2.2, "rank 32": 3.1, "rank 16": 3.7, "rank 8": 4.3},
    page.COMPILED: {"rank 64": 2.6, "rank 32": 4.7, "rank 8": (7.3, 6.9, 7.1)},
}
LOSSES = {  # over that of the dense network, by seed
    page.AIRLINE: {"rank 64": 1.01, "rank 32": (1.07, 1.03, 0.97), "rank 8": 1.11},
    page.SIGNS: {"rank 64": 1.13, "rank 8": (43, 44, 41)},
}


def made(sixteen=(5.6, 6.3, 5.9), signs=(26, 23, 25)):
    """sixteen: the gain of rank 16; signs: losses at rank 32 over the dense one's."""
    timed, losses = [], []
    for work, dense in (("NumPy", 0.097), (page.COMPILED, 0.067)):
        gains = {"rank 2": 5.1 + dense} | GAINS[work]
        gains |= {"rank 16": sixteen} if work == page.COMPILED else {}
        times = {case: dense / np.array(gain) for case, gain in gains.items()}
        timed.append(rows({page.DENSE: dense} | times, work=work))
    for task, dense in ((page.AIRLINE, 0.31), (page.SIGNS, 0.02)):
        cases = {page.DENSE: 1} | LOSSES[task]
        cases |= {"rank 32": signs} if task == page.SIGNS else {}
        for case, over in cases.items():
            each = dense * np.broadcast_to(over, 3)
            part = {"task": task, "case": case, "loss": each, "process": range(3)}
            losses.append(pd.DataFrame(part))
    return {"measure_speed": pd.concat(timed), "measure_losses": pd.concat(losses)}


LAW = (1 - 32 / 64) / 0.02  # the loss of rank 32 over the dense one's
EDGES = [
    (0, GAINS["NumPy"]["rank 16"], lambda gains: made(sixteen=gains)),
    (1, ("most", 1.1 * LAW), lambda over: made(signs=over)),
    (1, 0.9 * LAW, lambda over: made(signs=over)),
]
test_text, test_edge, test_all = PAGE.approved(made(), EDGES)


def test_the_signs_are_to_be_carried_and_the_years_are_apart():
    training, held_out = page.examples(page.SIGNS, small=True)
    np.testing.assert_array_equal(training.x[0], training.target)
    assert not training.x[1:].any()
    assert not np.array_equal(training.target, held_out.target)
    training, held_out = page.examples(page.AIRLINE)
    assert (len(training), len(held_out)) == (83, 24)  # months to 1956; 1957 and 1958
    np.testing.assert_array_equal(training.x[1:, -1, 0], held_out.x[:-1, 0, 0])


def test_what_is_measured():
    found = page.losses_of(page.SIGNS, 0, 8, (2, 12), small=True)
    assert [*found["case"]] == ["rank 2", "rank 12", "dense"]
    work = Workload(1, 3, 32, 32, 6)
    assert {*page.measure_speed(work, 1)["case"]} == {*page.CASES}
    wrong = planted(page, "net.forward(x)[0]}", "2 * net.forward(x)[0]}")
    with pytest.raises(MismatchError, match=r"^y: "):
        wrong.measure_speed(work, 1)
