"""Page 2: its claims, tables and figures on made rows."""

import numpy as np
import pandas as pd
import pytest
from pages import claims, functions, says

from lstm_report.measure.evidence import Interval

page = functions("02_forecast")
RULES = {"last year's growth": 30.0, "seasonal-naive": 40.0, "persistence": 50.0}


def errors(lstm, months=72):
    """Errors that have one size and change their sign: then no draw changes the RMSE.
    Holt–Winters errs by 10 thousand.
    """
    sign = np.resize([1.0, -1.0], months)
    sizes = {"LSTM": lstm, "Holt–Winters": 10.0} | RULES
    return pd.DataFrame({name: size * sign for name, size in sizes.items()})


def one_bad_month():
    """One month of 72 alone makes the LSTM worse: a third of all draws lack it."""
    made = errors(10.0)
    made.loc[5, "LSTM"] = 60.0
    return made


def forecast(lstm):
    """What `figure_forecast` draws: two years, forecasts 3 and 5 thousand off."""
    truth = np.linspace(300, 400, 24)
    found = {"Holt–Winters": truth + 3, "LSTM": truth - 5, "persistence": 0 * truth}
    return pd.date_range("1959-01", periods=24, freq="MS"), truth, found, errors(lstm)


def noise():
    """A noise of 8 and of 20 at one example, that falls as the root of the batch."""
    made = [
        {"batch": size, "when": when, "noise": whole * other / np.sqrt(size)}
        for when, whole in (("at the start", 8.0), ("when trained", 20.0))
        for size in page.SIZES
        for other in (0.7, 1, 1.1)
    ]
    return pd.DataFrame(made)


def runs(full, sixteen=(10, 10, 20), last=5.0):
    """A seed each: at which epoch the full batch and 16 first are below 30 thousand."""
    made = [
        (batch, seed, e, last if e >= first else 50.0)
        for batch, epochs in ((1, (5, 5, 5)), (16, sixteen), (83, full))
        for seed, first in enumerate(epochs)
        for e in (5, 10, 20, 40)
    ]
    made = pd.DataFrame(made, columns=["batch", "seed", "epochs", "rmse"])
    return made.assign(seconds=made["epochs"] / 1e3)


SLOW = runs((20, 20, 40))
SINGLE = np.array([[40.0, 20, 20, 30], [44, 24, 24, 34], [48, 28, 28, 38]])


def epochs(*ensemble):
    return SINGLE, np.array(ensemble), 10


DEARER = Interval(0.51, 1.1, 1.2)
test_claims = claims(
    (page.claim_forecast, errors(10.1), True, "over 72 months", "RMSE 10 and 10.1"),
    (page.claim_forecast, errors(10.0), False),
    (page.claim_forecast, errors(9.9), False),
    (page.claim_forecast, one_bad_month(), False, "holds zero"),
    (page.claim_batches, (SLOW, 30, DEARER), True, "2.2 times as long, 1.02 to 2.4"),
    (page.claim_batches, (SLOW, 30, Interval(0.49, 1.1, 1.2)), False),
    # One seed is as fast; in one the full batch is never below.
    (page.claim_batches, (runs((20, 20, 20)), 30, Interval(1, 1.1, 1.2)), False),
    (page.claim_batches, (runs((20, 20, 99)), 30, Interval(0.6, 1.1, 1.2)), True),
)
test_words = says(
    (page.figure_forecast, forecast(12.0), "RMSE 3 (Holt–Winters), 5 (LSTM)"),
    (page.figure_forecast, forecast(12.0), "err less than", "10; 12; 30; 40; 50."),
    (page.figure_forecast, forecast(10.0), "three constants and the LSTM are level"),
    (page.figure_epochs, epochs(30, 11.1, 10, 20), "Least at 30", "10 % of it from 30"),
    (page.figure_epochs, epochs(30, 10.9, 10, 20), "Least at 30", "10 % of it from 20"),
    (page.figure_epochs, epochs(10, 30, 31, 32), "Least at 10", "10 % of it from 10"),
    (page.figure_noise, noise(), "At B = 16 noise is 2x the gradient, later 5x"),
    (page.figure_batches, (SLOW, 31.7, 14.3, True), "slower than 16 to beat"),
    (page.figure_batches, (SLOW, 31.7, 14.3, False), "beat seasonal-naive at one time"),
)


def test_the_bootstrap_is_paired():
    """The same months are drawn of both: what they share cancels."""
    shared = np.random.default_rng(0).normal(size=72)
    assert page.bootstrap(2 * shared, shared).low > 0
    low, middle, high = page.bootstrap(shared)
    assert middle == pytest.approx(page.rmse(shared, 0), rel=0.02)
    assert low < middle < high
    low, middle, _ = page.bootstrap(
        *one_bad_month()[["LSTM", "Holt–Winters"]].to_numpy().T
    )
    assert low == 0 < middle


def test_what_the_figures_draw():
    above, _ = page.figure_forecast(*forecast(12.0)).axes
    _, truth, found, _ = forecast(12.0)
    drawn = [line.get_ydata() for line in above.lines]
    np.testing.assert_allclose(drawn, [truth, found["Holt–Winters"], found["LSTM"]])
    (ax,) = page.figure_epochs(*epochs(30, 11.1, 10, 20)).axes
    drawn = [line.get_ydata() for line in ax.lines]
    np.testing.assert_allclose(drawn, [[44, 24, 24, 34], [30, 11.1, 10, 20]])
    (ax,) = page.figure_noise(noise()).axes
    laws = [line.get_ydata() for line in ax.lines if line.get_linestyle() == "--"]
    np.testing.assert_allclose(laws, np.outer((8, 20), np.array(page.SIZES) ** -0.5))
    (ax,) = page.figure_batches(SLOW, 31.7, 14.3, True).axes
    assert [line.get_ydata()[0] for line in ax.lines[:2]] == [31.7, 14.3]


def test_the_table_has_each_pair_and_all_months():
    first, second = errors(3.0, months=2), errors(4.0, months=2)
    table = page.table_of({"a": first, "b": second}, pd.concat([first, second]))
    assert table.loc["LSTM"].to_list() == pytest.approx([3, 4, np.sqrt(12.5)])
    assert list(table.index) == ["LSTM", "Holt–Winters", *RULES]
    assert list(table) == [f"RMSE (thousands), {name}" for name in ("a", "b", "all")]


def test_the_noise_of_all_examples_is_none():
    dataset = page.prepare(page.data.airline().to_numpy(float), 28)[1]
    assert len(dataset) == 15
    found = page.measure_noise(page.new_network(0, "numpy"), dataset, 1, "now")
    by_size = found.set_index("batch")["noise"]
    assert by_size[[16, 32, 64]].max() < 1e-5 < 0.1 < by_size[1]


def test_a_pair_of_years_is_forecast_by_every_rule():
    passengers = page.data.airline().to_numpy(float)
    members = [np.full(24, value) for value in (1, 9, 2)]
    found = page.pair(passengers, 72, page.rules(passengers, 72), members)
    assert list(found) == ["LSTM", "Holt–Winters", *RULES]
    assert set(found["LSTM"]) == {2}
    for name, months in (("persistence", 1), ("seasonal-naive", 12)):
        known = passengers[72 - months : 96 - months]
        np.testing.assert_array_equal(found[name], known)


def test_a_descent_is_recorded_every_fifth_epoch_unless_it_diverges():
    passengers = page.data.airline().to_numpy(float)
    made = page.descend(passengers, 96, 16, 0.01, 11, 3)
    assert list(made["epochs"]) == [5, 10]
    assert made["rmse"].between(1, 1000).all()
    assert page.descend(passengers, 96, 16, 1e30, 11, 3).empty


def test_each_size_takes_its_best_rate():
    slow, fast = runs((40, 40, 40)), runs((20, 20, 20), last=4.0)
    both = pd.concat([slow.assign(rate=0.1), fast.assign(rate=0.5)])
    assert set(page.chosen(both)["rate"]) == {0.5}
