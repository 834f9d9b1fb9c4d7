"""Page 1: its claims, its figures and what is left of a gradient, on made rows."""

import ast

import numpy as np
import pandas as pd
import pytest
from pages import Page, bound, has, loaded, rows, text_of

import lstm_kernels as lk
from lstm_report.lesson import mistakes
from lstm_report.measure import results
from lstm_report.measure.workloads import Workload

PAGE = Page("01_cell")
page = PAGE.module
LEFT = {  # after 60 steps, by seed; 2^-24 = 5.96e-8
    "LSTM, f = 0.99": (0.5, 1, 2),
    "LSTM, f = 0.9": (6.1e-8, 0.1, 0.2),
    "RNN, orthogonal W": (1e-9, 1e-8, 5.9e-8),
    "LSTM, f = 0.5": (1e-14, 1e-13, 1e-12),
    "RNN": (1e-22, 1e-21, 1e-20),
}


def waiting(*gains):
    """How many times as long as one product a product a step takes, by process; the
    products of dh take 3, 5 and 7 times as long.
    """
    return rows({"dW at once": 1, "dW each step": gains, "dh": (3, 5, 7)})


# Gradients of 100 and 200 steps, with subnormal numbers kept and flushed
FADING = pd.concat(
    [
        rows({"kept": 1e-3, "flushed": 1e-3}, T=100),
        rows({"kept": 8e-3, "flushed": 2e-3}, T=200),
    ]
)
FASTER = "faster than adding up a product a step (1.7x (1.01x to 2x); compared with"
CASES = {
    "faster": (
        {"measure_waiting": waiting(1.01, 2, 1.7), "measure_fading": FADING},
        "T",
        FASTER,
        "5x (3x to 7x)",
    ),
    "level": (
        {"measure_waiting": waiting(0.99, 2, 1.7), "measure_fading": FADING},
        "F",
        "In these processes it is level (0.99x to 2x)",
    ),
}
OTHERS = "share_waiting one_layer a_step arrow check_errors errors figure_cell power "
OTHERS += (
    "figure_reach in_every_version left reach shares measure_fading recorded_fading"
)
test_page, test_both, test_reached = PAGE.tests(CASES, also=OTHERS.split())


def by_seed(left):
    """Shares of three seeds that end at these: as many steps, each of the same part."""
    steps = np.arange(page.BACK + 1) / page.BACK
    return {name: np.array(ends)[:, None] ** steps for name, ends in left.items()}


REACHES = [  # network, what is left by seed, the verdict
    ("RNN", LEFT["RNN"], "T"),
    ("LSTM, f = 0.5", (1e-14, 1, 2), "T"),  # shown alone
    ("LSTM, f = 0.9", (5.9e-8, 0.1, 0.2), "F"),
    ("LSTM, f = 0.99", (5.9e-8, 1, 2), "F"),
    ("RNN, orthogonal W", (1e-9, 1e-8, 6e-8), "F"),
    ("RNN", (1e-22, 1e-21, 6e-8), "F"),
]


@pytest.mark.parametrize(("name", "ends", "verdict"), REACHES)
def test_the_claim_of_the_reach(monkeypatch, name, ends, verdict):
    reach, names = Page("01_cell"), {"seeds", "shares", "LOST", "kept", "held"}
    reach.chosen = [
        node
        for node in reach.statements
        if isinstance(node, ast.ImportFrom | ast.Import)
        or (names | {"lost", "figure"}) & (loaded(node) | bound(node))
    ]
    monkeypatch.setattr(page, "shares", lambda *_, alone=False: shown)
    shown = by_seed(LEFT | {name: ends})
    told = reach.told()
    assert "".join(told.claims) == verdict
    held = [
        "The cell state carries a gradient 60 steps",
        "RNNs at most $5.9 \\times 10",
    ]
    other = ["are on one side of the limit", "The limit is $6.0 \\times 10^{-8}$"]
    has(held if verdict == "T" else other, told.text)


def test_what_a_step_back_multiplies_by():
    shares, alone = by_seed(LEFT), by_seed({"RNN": (1e-9, 1e-6, 1e-3)})
    words = "RNN, 0.794 (0.708 to 0.891), 0.447 (0.43 to 0.464)"
    assert words in text_of(page.a_step(shares, alone))
    (ax,) = page.figure_reach(shares, alone, 2.0**-24, True).axes
    np.testing.assert_allclose(ax.lines[1].get_ydata(), shares["LSTM, f = 0.99"][1])
    made, alone = page.shares(9), page.shares(9, alone=True)
    for f in (0.5, 0.9, 0.99):  # along the cell state alone: about the forget gate
        left = np.median(alone[f"LSTM, f = {f}"], axis=0)
        assert (left[60] / left[20]) ** (1 / 40) == pytest.approx(f, abs=0.015)
    assert made["RNN"][1, 60] < 1e-3 * made["RNN, orthogonal W"][1, 60]
    assert len(alone) == 3


def test_gradients_and_versions(monkeypatch):
    right, late = page.errors(["lstm"], 3, [mistakes.late_c])
    page.check_errors([right], [late])
    for given in ([late], [late]), ([right], [right]):
        with pytest.raises(AssertionError, match="got"):
            page.check_errors(*given)
    monkeypatch.setattr(page, "compare_to_reference", lambda *_: 0.5)
    ran, missing = page.in_every_version("gru")
    assert "numpy" in ran
    assert ("cuda-v1" in ran) != ("`cuda-v1`" in missing)
    assert page.share_waiting(1, 32) == pytest.approx(32 / 66)
    assert page.share_waiting(7, 7) == 0.25


def test_every_node_of_the_cell_is_reached_by_what_its_equation_has():
    into = [end for _, end, *_ in page.EDGES]
    assert [into.count(end) for end in ("keep", "put", "add", "show")] == [2] * 4
    has(["step t + 1 waits", "h_t-1", "no: can wait"], text_of(page.figure_cell()))
    has(["step t - 1 waits", "f_t(1-f_t)"], text_of(page.figure_cell(True)))


def test_a_time_step_is_told_in_microseconds():
    (ax,) = page.figure_fading(FADING).axes
    shown = [line.get_xydata().tolist() for line in ax.lines]
    assert [[100, 10], [200, 40]] in shown
    assert [[100, 10], [200, 10]] in shown


def test_a_training_step_is_counted_in_forward_passes_by_machine():
    taken = {"forward": (1, 2, 3), "step": (3, 8, 30)}
    recorded = results.recorded("peers").groupby("machine")
    made = []
    for seconds, (machine, of) in enumerate(recorded):
        deep = of["T"] == 500
        for stage, times in taken.items():
            some = of[(of["stage"] == stage) & (of["version"] == "pytorch") & deep]
            made.append(some.assign(machine=machine, seconds=times[seconds]))
    table = page.recorded_fading(pd.concat(made))
    assert table["500 steps"].tolist() == [3, 4, 10]


def test_what_is_timed_has_subnormal_numbers_and_agrees():
    rows = page.measure_fading(steps=(3, 260), B=2, D=1, H=8, repeats=2)
    assert rows.groupby(["T", "case"]).size().tolist() == [2, 2, 2, 2]
    work = Workload(L=1, T=260, D=1, H=8, B=2)
    net = lk.network("numpy", work.params())
    dx = np.abs(net.loss_and_grads(*work.example())[1].x)
    assert ((dx > 0) & (dx < np.finfo(np.float32).tiny)).any()
