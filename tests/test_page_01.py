"""Page 1: its claims, its figures and what is left of a gradient, on made rows."""

import numpy as np
import pytest
from pages import claims, functions, rows, says

from lstm_report.measure.evidence import Interval

page = functions("01")


def waiting(*gains):
    """How many times as long as one product a product a step takes, by process; the
    chain of dh takes 3, 5 and 7 times as long.
    """
    each = {"dW, one product": 1, "dW, a product a step": gains, "dh": (3, 5, 7)}
    return rows(each)


def left(changed="", *interval):
    """What is left after 60 steps, an Interval over seeds by network: 2^-24 = 5.96e-8
    lies between those that carry and those that lose.
    """
    ends = {
        "LSTM, f = 0.99": (0.5, 1, 2),
        "LSTM, f = 0.9": (6.1e-8, 0.1, 0.2),
        "RNN, orthogonal W": (1e-9, 1e-8, 5.9e-8),
        "LSTM, f = 0.5": (1e-14, 1e-13, 1e-12),
        "RNN": (1e-22, 1e-21, 1e-20),
    }
    ends |= {changed: interval} if changed else {}
    return {name: Interval(*each) for name, each in ends.items()}


def by_seed():
    """Shares of three seeds, 60 steps back, by network: each falls by its own power."""
    powers = np.array([[1, 2, 7]]).T * np.arange(61)
    return {name: (1 - 0.01 * k) ** powers for k, name in enumerate(page.NETWORKS)}


FASTER, LEVEL = waiting(1.01, 2, 1.7), waiting(0.99, 2, 1.7)
test_claims = claims(
    (page.claim_waiting, FASTER, True, "1.7x (1.01x to 2x)", "wait, 5x (3x to 7x)"),
    (page.claim_waiting, LEVEL, False, "the ratio is level (0.99x"),
    (page.claim_reach, left(), True, "at least 6e-08 is left", "at most 6e-08"),
    (page.claim_reach, left("LSTM, f = 0.9", 5.9e-8, 0.1, 0.2), False),
    (page.claim_reach, left("LSTM, f = 0.99", 5.9e-8, 1, 2), False),
    (page.claim_reach, left("RNN, orthogonal W", 1e-9, 1e-8, 6e-8), False),
    (page.claim_reach, left("RNN", 1e-22, 1e-21, 6e-8), False),
    (page.claim_reach, left("LSTM, f = 0.5", 1e-14, 1, 2), True),  # shown alone
)
test_words = says(
    (page.figure_reach, (by_seed(), True), "an RNN loses it"),
    (page.figure_reach, (by_seed(), True), "sum; RNN; LSTM, f = 0.5"),
    (page.figure_reach, (by_seed(), False), "are not on two sides of the limit"),
    (page.figure_cell, (), "h_t-1; cdot,W; +; cdot,U; x_t"),
)


def test_the_figure_of_the_reach_draws_medians_and_the_range_of_seeds():
    (ax,) = page.figure_reach(by_seed(), True).axes
    level, *lines = ax.lines
    assert level.get_ydata()[0] == 2.0**-24
    for shares, line, band in zip(
        by_seed().values(), lines, ax.collections, strict=True
    ):
        np.testing.assert_allclose(line.get_ydata(), shares[1])
        ends = band.get_paths()[0].vertices[:, 1]
        assert {shares[0, -1], shares[2, -1]} <= set(ends)


def test_the_share_that_waits():
    assert page.share(1, 32) == pytest.approx(32 / 66)
    assert page.share(7, 7) == 0.25


def test_a_step_back_leaves_the_forget_gate_of_a_gradient():
    for f in (0.5, 0.9, 0.99):
        shares = [page.reach("lstm", f, False, seed, H=1) for seed in range(29)]
        a_step = [(share[60] / share[20]) ** (1 / 40) for share in shares]
        assert np.median(a_step) == pytest.approx(f, abs=0.03)
        assert {len(share) for share in shares} == {61}
        assert {share[0] for share in shares} == {1}
    plain, orthogonal = (page.reach("rnn", None, turned, 0) for turned in (False, True))
    assert plain[60] < 1e-3 * orthogonal[60]


def test_every_node_of_the_cell_is_reached_by_what_its_equation_has():
    into = [end for _, end, *_ in page.WAITING]
    assert [into.count(end) for end in ("keep", "put", "add", "show")] == [2] * 4
