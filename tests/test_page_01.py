"""Page 1: its claims and figures on made rows, and what its new cell computes."""

import numpy as np
import pages
import pandas as pd
import pytest

from lstm_kernels.cells import CELLS, Cell
from lstm_report import differences, plots
from lstm_report.measure.evidence import Interval

PAGE = pages.functions("01_cell")
ONCE, EACH, CHAIN = "dW, one product", "dW, a product a step", "dh"


def test_the_share_that_waits():
    assert PAGE.share(1, 32) == pytest.approx(32 / 66)
    assert PAGE.share(7, 7) == 0.25


def waiting(gains):
    """A process for each gain: one product takes 1 s, a product a step as often."""
    rows = [
        (process, repeat, case, seconds)
        for process, gain in enumerate(gains)
        for repeat in range(2)
        for case, seconds in ((ONCE, 1.0), (EACH, gain), (CHAIN, 3.0))
    ]
    return pd.DataFrame(rows, columns=["process", "repeat", "case", "seconds"])


@pytest.mark.parametrize(
    ("gains", "held", "said"),
    [
        ((1.01, 1.5, 2, 2, 2), True, "2x (1.01x to 2x)"),
        ((0.99, 1.5, 2, 2, 2), False, "level (0.99x to 2x)"),
    ],
)
def test_putting_off_is_faster_in_every_process(gains, held, said):
    claim = PAGE.claim_waiting(waiting(gains))
    assert claim["held"] == held
    assert (
        claim["numbers"]
        == f"{said}; than the chain of dh, which must wait, 3x (3x to 3x)"
    )
    assert said in claim["why"]


def test_the_products_that_are_timed_agree():
    rows = PAGE.measure_waiting(T=3, B=2, H=4, repeats=2)
    assert set(rows["case"]) == {ONCE, EACH, CHAIN}
    assert len(rows) == 6


def left(**changed):
    """What is left after 60 steps, as an Interval over seeds by network."""
    ends = {
        "LSTM, f = 0.99": (0.5, 1, 2),
        "LSTM, f = 0.9": (6.1e-8, 0.1, 0.2),
        "RNN, orthogonal W": (1e-9, 1e-8, 5.9e-8),
        "LSTM, f = 0.5": (1e-14, 1e-13, 1e-12),
        "RNN": (1e-22, 1e-21, 1e-20),
    } | changed
    return {name: Interval(*each) for name, each in ends.items()}


@pytest.mark.parametrize(
    ("changed", "held"),
    [
        ({}, True),  # 2^-24 = 5.96e-8 lies between
        ({"LSTM, f = 0.9": (5.9e-8, 0.1, 0.2)}, False),
        ({"LSTM, f = 0.99": (5.9e-8, 1, 2)}, False),
        ({"RNN, orthogonal W": (1e-9, 1e-8, 6e-8)}, False),
        ({"RNN": (1e-22, 1e-21, 6e-8)}, False),
        ({"LSTM, f = 0.5": (1e-14, 1, 2)}, True),  # shown, and in no claim
    ],
)
def test_the_cell_state_carries_what_an_rnn_loses(changed, held):
    assert PAGE.claim_reach(left(**changed))["held"] == held


def test_the_numbers_of_that_claim_are_the_nearest():
    numbers = PAGE.claim_reach(left())["numbers"]
    assert "at least 6e-08 is left" in numbers
    assert "at most 6e-08" in numbers
    assert "2^{-24}" in PAGE.claim_reach(left())["sentence"]


class Zero:
    """Draws zeros, for the gradient of the last output ones."""

    def uniform(self, low, high, shape):
        return np.zeros(shape)

    def standard_normal(self, shape):
        return np.zeros(shape) if isinstance(shape, tuple) else np.ones(shape)


def test_without_weights_the_cell_state_leaves_the_product_of_its_gates(monkeypatch):
    def init(*sizes, **options):
        params = draw(*sizes, **options)
        params.layers[0].U[:, 6:9] = np.eye(3)  # x is seen by g alone
        return params

    draw = PAGE.lk.Params.init
    monkeypatch.setattr(PAGE.lk.Params, "init", init)
    monkeypatch.setattr(PAGE.np.random, "default_rng", lambda seed: Zero())
    shares = PAGE.reach("lstm", 0.9, False, 0, H=3)
    np.testing.assert_allclose(shares, 0.9 ** np.arange(61), rtol=1e-9)


@pytest.mark.parametrize("held", [True, False])
def test_the_figure_of_the_reach(held):
    names = list(PAGE.NETWORKS)
    shares = {
        name: np.array([[1, 10.0**-k, 10.0**-k], [1, 10.0 ** -(k + 2), 1]])
        for k, name in enumerate(names)
    }
    figure = PAGE.figure_reach(shares, held)
    (ax,) = figure.axes
    title = ax.get_title("left")
    assert (
        title.startswith("The cell state carries a gradient 60 steps; an RNN") == held
    )
    assert ax.get_xlabel() == "steps back"
    assert ax.get_ylabel() == "norm of $dx_t$ (share of the last step's)"
    assert ax.get_yscale() == "log"
    level, *lines = ax.lines
    assert level.get_ydata()[0] == 2.0**-24
    for k, line in enumerate(lines):  # between the two seeds
        middle = [1, (10.0**-k + 10.0 ** -(k + 2)) / 2, (10.0**-k + 1) / 2]
        np.testing.assert_allclose(line.get_ydata(), middle)
    written = [text.get_text() for text in ax.texts]
    assert written == ["lost in a float32 sum", *names[::-1]] or set(names) < set(
        written
    )
    assert "steps back" in plots.words(figure)


def test_the_figure_of_the_cell():
    figure = PAGE.figure_cell()
    written = [text.get_text() for ax in figure.axes for text in ax.texts]
    for name in (
        "$x_t$",
        "$h_{t-1}$",
        "$c_{t-1}$",
        "$h_t$",
        r"$\cdot\,U$",
        r"$\cdot\,W$",
    ):
        assert name in written
    # Each node is reached by the arrows that its equation has.
    into = [end for _, end, *_ in PAGE.WAITING]
    assert {end: into.count(end) for end in ("keep", "put", "add", "show")} == {
        "keep": 2,
        "put": 2,
        "add": 2,
        "show": 2,
    }
    assert "through W" in figure.alt
    assert "can wait" in figure.alt


def test_the_new_cell_has_its_gradient(monkeypatch):
    three = (0, 1, 2)
    cell = Cell("cifg", ("i", "g", "o"), three, three, ("h", "c"), PAGE.cifg)
    monkeypatch.setitem(CELLS, "cifg", cell)
    case = differences.case("cifg", 3, np.random.default_rng(1))
    assert differences.error(*case) < 1e-6
