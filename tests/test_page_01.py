"""Page 1: its claims, its figures and what is left of a gradient, on made rows."""

import numpy as np
import pandas as pd
import pytest
from pages import Page, rows, text_of
from planted import planted

import lstm_kernels as lk
from lstm_report.lesson import mistakes
from lstm_report.measure import results
from lstm_report.measure.workloads import Workload

PAGE = Page("01_cell")
page = PAGE.module
LIMIT = 2.0**-24
LEFT = {  # after 60 steps, by seed
    "LSTM, f = 0.99": (0.5, 1, 2),
    "LSTM, f = 0.9": (6.1e-8, 0.1, 0.2),
    "RNN, orthogonal W": (1e-9, 1e-8, 5.9e-8),
    "LSTM, f = 0.5": (1e-14, 1e-13, 1e-12),
    "RNN": (1e-22, 1e-21, 1e-20),
}
# Gradients of 100 and 200 steps, with subnormal numbers kept and flushed
FADING = pd.concat(
    [
        rows({"kept": 1e-3, "flushed": 1e-3}, T=100),
        rows({"kept": 8e-3, "flushed": 2e-3}, T=200),
    ]
)


def by_seed(left):
    """Shares of three seeds that end at these: as many steps, each of the same part."""
    steps = np.arange(page.BACK + 1) / page.BACK
    return {name: np.array(ends)[:, None] ** steps for name, ends in left.items()}


def made(gains=(1.9, 2, 1.7), **left):
    """How many times as long as one product a product a step takes, by process; the
    products of dh take 3, 5 and 7 times as long. left: of networks, by seed.
    """
    waiting = rows({"dW at once": 1, "dW each step": gains, "dh": (3, 5, 7)})
    alone = {"LSTM, f = 0.99": (0.4, 0.5, 0.6), "LSTM, f = 0.5": (1e-18, 2e-18, 3e-18)}
    return {
        "measure_waiting": waiting,
        "measure_fading": FADING,
        "shares": [by_seed(LEFT | left), by_seed(alone)],
    }


def ends(name):
    """Rows whose network of this name is left with so much."""
    return lambda left: made(**{name: left})


EDGES = [
    (0, 1, made),
    (1, LIMIT, ends("LSTM, f = 0.99")),
    (1, LIMIT, ends("LSTM, f = 0.9")),
    (1, ("most", LIMIT), ends("RNN, orthogonal W")),
    (1, ("most", LIMIT), ends("RNN")),
]
test_text, test_edge, test_all = PAGE.approved(made(), EDGES)


def test_what_a_step_back_multiplies_by():
    shares, alone = by_seed(LEFT), by_seed({"RNN": (1e-9, 1e-6, 1e-3)})
    words = "RNN, 0.794 (0.708 to 0.891), 0.447 (0.43 to 0.464)"
    assert words in text_of(page.a_step(shares, alone))
    (ax,) = page.figure_reach(shares, alone, LIMIT).axes
    np.testing.assert_allclose(ax.lines[1].get_ydata(), shares["LSTM, f = 0.99"][1])
    made, alone = page.shares(9), page.shares(9, alone=True)
    for f in (0.5, 0.9, 0.99):  # along the cell state alone: about the forget gate
        left = np.median(alone[f"LSTM, f = {f}"], axis=0)
        assert (left[60] / left[20]) ** (1 / 40) == pytest.approx(f, abs=0.015)
    assert made["RNN"][1, 60] < 1e-3 * made["RNN, orthogonal W"][1, 60]


def test_gradients_and_versions():
    right, late = page.errors(["lstm"], 3, [mistakes.late_c])
    page.check_errors([right], [late])
    for errors in ([late], [late]), ([right], [right]):
        with pytest.raises(AssertionError, match="got"):
            page.check_errors(*errors)
    cheap = planted(page, "compare_to_reference(name, params, x)", "0.5")
    assert "numpy" in cheap.in_every_version("gru")
    assert page.share_waiting(1, 32) == pytest.approx(32 / 66)
    (ax,) = page.figure_fading(FADING).axes
    shown = [line.get_xydata().tolist() for line in ax.lines]
    assert [[100, 10], [200, 40]] in shown  # microseconds a step
    assert page.recorded_fading(results.recorded("peers")) is not None


def test_every_node_of_the_cell_is_reached_by_what_its_equation_has():
    into = [end for _, end, *_ in page.EDGES]
    assert [into.count(end) for end in ("keep", "put", "add", "show")] == [2] * 4
    assert "h_t-1" in text_of(page.figure_cell())
    assert "f_t(1-f_t)" in text_of(page.figure_cell(True))


def test_what_is_timed_has_subnormal_numbers_and_agrees():
    rows = page.measure_fading(steps=(3, 260), B=2, D=1, H=8, repeats=2)
    assert rows.groupby(["T", "case"]).size().tolist() == [2, 2, 2, 2]
    work = Workload(L=1, T=260, D=1, H=8, B=2)
    net = lk.network("numpy", work.params())
    dx = np.abs(net.loss_and_grads(*work.example())[1].x)
    assert ((dx > 0) & (dx < np.finfo(np.float32).tiny)).any()
