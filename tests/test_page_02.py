"""Page 2: its claims and figures on made rows."""

import numpy as np
import pages
import pandas as pd
import pytest

from lstm_report import plots
from lstm_report.measure.evidence import Interval

PAGE = pages.functions("02_forecast")
OTHERS = ("last year's growth", "seasonal-naive", "persistence")


def errors(lstm, smooth=10.0, months=72):
    """Errors that have one size and change their sign: then no draw changes the RMSE."""
    sign = np.resize([1.0, -1.0], months)
    sizes = {"LSTM": lstm, "Holt–Winters": smooth} | dict.fromkeys(OTHERS, 40.0)
    return pd.DataFrame({name: size * sign for name, size in sizes.items()})


def title(figure, panel=0):
    return figure.axes[panel].get_title("left")


def labels(ax):
    return [text.get_text() for text in ax.texts]


@pytest.mark.parametrize(("lstm", "held"), [(10.1, True), (10.0, False), (9.9, False)])
def test_holt_winters_errs_less(lstm, held):
    claim = PAGE.claim_forecast(errors(lstm))
    assert claim["held"] == held
    assert "over 72 months" in claim["sentence"]
    assert claim["numbers"].startswith(f"RMSE 10 and {lstm:g} thousand")


def test_the_whole_interval_counts():
    """One month of 72 alone makes the LSTM worse: a third of all draws lack it."""
    made = errors(10.0)
    made.loc[5, "LSTM"] = 60.0
    claim = PAGE.claim_forecast(made)
    assert not claim["held"]
    assert "zero" in claim["why"]
    low, middle, _ = PAGE.bootstrap(made["LSTM"], made["Holt–Winters"])
    assert low == 0 < middle


def test_the_bootstrap_is_paired():
    """The same months are drawn of both: what they share cancels."""
    shared = np.random.default_rng(0).normal(size=72)
    assert PAGE.bootstrap(2 * shared, shared).low > 0
    low, middle, high = PAGE.bootstrap(shared)
    assert middle == pytest.approx(PAGE.rmse(shared, 0), rel=0.02)
    assert low < middle < high


@pytest.mark.parametrize(
    ("lstm", "said"),
    [(12.0, "err less than the LSTM"), (10.0, "and the LSTM are level")],
)
def test_the_figure_of_the_forecast(lstm, said):
    months = pd.date_range("1959-01", periods=24, freq="MS")
    truth = np.linspace(300, 400, 24)
    found = {"Holt–Winters": truth + 3, "LSTM": truth - 5, "persistence": 0 * truth}
    figure = PAGE.figure_forecast(months, truth, found, errors(lstm))
    assert title(figure) == "RMSE 3 (Holt–Winters), 5 (LSTM)"
    assert title(figure, 1) == f"72 months: three constants {said}"
    above, below = figure.axes
    drawn = [line.get_ydata() for line in above.lines]
    np.testing.assert_allclose(drawn, [truth, truth + 3, truth - 5])
    assert sorted(labels(above)) == ["Holt–Winters", "LSTM", "truth"]
    assert above.get_ylabel() == "passengers (thousands)"
    assert below.get_xlabel() == "RMSE (thousands of passengers)"
    assert labels(below) == ["10", f"{lstm:g}", "40", "40", "40"]
    assert {tick.get_text() for tick in below.get_yticklabels()} == set(errors(1))
    assert "Holt–Winters" in plots.words(figure)


def test_the_table_has_each_pair_and_all_months():
    first, second = errors(3.0, months=2), errors(4.0, months=2)
    table = PAGE.table_of({"a": first, "b": second}, pd.concat([first, second]))
    row = table.loc["LSTM"].to_list()
    assert row == pytest.approx([3, 4, np.sqrt(12.5)])
    assert list(table.index[:2]) == ["LSTM", "Holt–Winters"]
    assert list(table) == [f"RMSE (thousands), {name}" for name in ("a", "b", "all")]


@pytest.mark.parametrize(
    ("ensemble", "said"),
    [
        ((30, 11.1, 10, 20), "Least at 30 epochs, within 10 % of it from 30 on"),
        ((30, 10.9, 10, 20), "Least at 30 epochs, within 10 % of it from 20 on"),
        ((10, 30, 30, 30), "Least at 10 epochs, within 10 % of it from 10 on"),
    ],
)
def test_the_figure_of_the_epochs(ensemble, said):
    single = np.array([[40.0, 20, 20, 30], [44, 24, 24, 34], [48, 28, 28, 38]])
    figure = PAGE.figure_epochs(single, np.array(ensemble, float), 10)
    assert title(figure) == said
    (ax,) = figure.axes
    one, median = (line.get_ydata() for line in ax.lines)
    np.testing.assert_allclose(one, [44, 24, 24, 34])
    np.testing.assert_allclose(median, ensemble)
    assert ax.get_xlabel() == "epochs"
    assert ax.get_ylabel() == "RMSE on 1957–1958 (thousands)"
    assert sorted(labels(ax)) == ["single networks", "their median"]


def test_the_figure_of_the_noise():
    rows = [
        {"batch": size, "when": when, "noise": noise * (1 + 0.1 * k) / np.sqrt(size)}
        for when, noise in (("at the start", 8.0), ("when trained", 20.0))
        for size in PAGE.SIZES
        for k in (-1, 0, 1)
    ]
    figure = PAGE.figure_noise(pd.DataFrame(rows))
    assert title(figure) == "At B = 16 noise is 2x the gradient, later 5x"
    (ax,) = figure.axes
    dashed = [line for line in ax.lines if line.get_linestyle() == "--"]
    np.testing.assert_allclose(dashed[0].get_ydata(), 8 / np.sqrt(PAGE.SIZES))
    assert ax.get_xlabel() == "batch size $B$"
    assert ax.get_ylabel() == "noise of a gradient (times its norm)"
    assert {"at the start", "when trained"} <= set(labels(ax))


def test_the_noise_of_all_examples_is_none(monkeypatch):
    """And that of a batch what its gradient lies off, here computed by hand."""
    dataset = PAGE.prepare(PAGE.data.airline().to_numpy(float), 28)[1]  # 15 examples
    monkeypatch.setitem(PAGE.measure_noise.__globals__, "SIZES", (1, 15))
    rows = PAGE.measure_noise(PAGE.new_network(0), dataset, 3, "now")
    noise = rows.groupby("batch")["noise"].max()
    assert noise[15] < 1e-5 < 0.1 < noise[1]


def runs(full, sixteen=(10, 10, 20), last=5.0):
    """A seed each: at which epoch the full batch and 16 first are below 30 thousand."""
    rows = []
    for batch, epochs in ((1, (5, 5, 5)), (16, sixteen), (83, full)):
        for seed, first in enumerate(epochs):
            rows += [
                (batch, seed, e, last if e >= first else 50.0) for e in (5, 10, 20, 40)
            ]
    made = pd.DataFrame(rows, columns=["batch", "seed", "epochs", "rmse"])
    return made.assign(seconds=made["epochs"] / 1e3)


@pytest.mark.parametrize(
    ("full", "dearer", "held"),
    [
        ((20, 20, 40), (0.51, 1, 1), True),
        ((20, 20, 40), (0.49, 1, 1), False),
        ((20, 20, 20), (1, 1, 1), False),  # one seed is as fast
        ((20, 20, 99), (0.6, 1, 1), True),  # never, in that seed
    ],
)
def test_the_full_batch_takes_longer(full, dearer, held):
    claim = PAGE.claim_batches(runs(full), 30, Interval(*dearer))
    assert claim["held"] == held
    assert claim["numbers"].startswith("RMSE below 30 thousand: 2 times as long")


@pytest.mark.parametrize("held", [True, False])
def test_the_figure_of_the_batches(held):
    figure = PAGE.figure_batches(runs((20, 20, 40)), 31.7, 14.3, held)
    assert title(figure).startswith("Full batch: slower than 16") == held
    (ax,) = figure.axes
    assert ax.get_xlabel() == "seconds of training, one thread"
    assert ax.get_ylabel() == "RMSE on 1957–1958 (thousands)"
    levels = [line.get_ydata()[0] for line in ax.lines[:2]]
    assert levels == [31.7, 14.3]
    named = {"seasonal-naive", "Holt–Winters"}
    named |= {"single examples", "batches of 16", "all 83 at once"}
    assert set(labels(ax)) == named


def test_each_size_takes_its_best_rate():
    slow, fast = runs((40, 40, 40)), runs((20, 20, 20), last=4.0)
    both = pd.concat([slow.assign(rate=0.1), fast.assign(rate=0.5)])
    assert set(PAGE.chosen(both)["rate"]) == {0.5}
