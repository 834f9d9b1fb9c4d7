"""The series, its preprocessing, one-step forecasts, and the rules of page 02."""

import hashlib
import itertools

import numpy as np
import pandas as pd
import pytest

import lstm_kernels as lk
from lstm_kernels import data, forecast
from lstm_report.studies import forecasts


def test_the_series_is_series_g():
    series = data.airline()
    joined = ",".join(map(str, series.to_numpy()))
    digest = "fe529825b8393b6873a1be3d9c484cbd0c7e6853b6ca082612f406a762e2de4e"
    assert hashlib.sha256(joined.encode()).hexdigest() == digest
    assert (len(series), series.iloc[0], series.sum()) == (144, 112, 40363)
    assert (str(series.index[0]), str(series.index[-1])) == ("1949-01", "1960-12")


def test_examples_that_are_batch_first():
    x = np.arange(24, dtype=np.float32).reshape(3, 4, 2)  # (N, T, D)
    dataset = data.Dataset.from_batch_first(x, np.zeros((3, 1), np.float32))
    assert (len(dataset), dataset.x.shape) == (3, (4, 3, 2))
    np.testing.assert_array_equal(dataset.x[1, 2], x[2, 1])


def test_windows_hold_every_run_and_the_value_after_it():
    dataset = data.windows(np.arange(6.0), 3)
    assert dataset.x.dtype == np.float32
    assert data.windows(np.arange(6.0), 3, dtype=np.float64).x.dtype == np.float64
    runs = [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
    np.testing.assert_array_equal(dataset.x[..., 0].T, runs)
    np.testing.assert_array_equal(dataset.target[:, 0], [3, 4, 5])
    x, target = dataset.batch(np.array([2, 0]))
    np.testing.assert_array_equal(x[:, :, 0], [[2, 0], [3, 1], [4, 2]])
    np.testing.assert_array_equal(target, [[5], [3]])
    assert x.flags.c_contiguous
    assert repr(dataset) == "Dataset: 3 examples, x (3, 3, 1), target (3, 1), float32"


TABLE = pd.DataFrame({"wind": [1.0, 2, 3, 4, 5], "rain": [10.0, 20, 30, 40, 50]})


@pytest.mark.parametrize(
    ("target", "places", "wanted"),
    [
        ("rain", 1, [[30, 40], [40, 50]]),
        (["rain"], [1], [[30, 40], [40, 50]]),
        (["rain", "wind"], [1, 0], [[30, 3, 40, 4], [40, 4, 50, 5]]),
        (None, None, [[3, 30, 4, 40], [4, 40, 5, 50]]),
    ],
)
def test_windows_of_several_columns_and_steps(target, places, wanted):
    """Runs of two rows; what comes in the two after them, step by step."""
    for table, columns in ((TABLE, target), (TABLE.to_numpy(), places)):
        dataset = data.windows(table, 2, target=columns, horizon=2, dtype="f8")
        runs = [[[1, 10], [2, 20]], [[2, 20], [3, 30]]]
        np.testing.assert_array_equal(dataset.x.swapaxes(0, 1), runs)
        np.testing.assert_array_equal(dataset.target, wanted)
    alone = data.windows(TABLE["wind"], 2, horizon=3)
    np.testing.assert_array_equal(alone.target, [[3, 4, 5]])


def test_the_hash_of_a_data_set_is_that_of_all_it_holds():
    x = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    target = np.ones((3, 1), np.float32)
    first, *others = (
        lk.Dataset(x, target),
        lk.Dataset(-x, target),
        lk.Dataset(x, -target),
        lk.Dataset(x.reshape(4, 3, 1), target),
        lk.Dataset(x.astype(float), target.astype(float)),
    )
    assert len({dataset.sha256() for dataset in (first, *others)}) == 5
    again = lk.Dataset(np.asfortranarray(x), target.copy())
    assert again.sha256() == first.sha256()


class Copy:
    """A 'network' that predicts the input of `lag` months before."""

    def __init__(self, lag, outputs=1):
        self.lag, self.outputs = lag, outputs

    def params(self):
        return lk.Params.init(1, 1, output_size=self.outputs)

    def predict(self, x):
        return x[-self.lag]


AIRLINE = data.airline().to_numpy(float)
Y = np.arange(1.0, 41)
TRANSFORM = data.LogDifference(0.1, 0.2)
NETWORK = forecast.network_rule(Copy(12), data.LogDifference.fit(AIRLINE), window=12)
RULES = {
    "persistence": forecasts.persistence,
    "seasonal_naive": forecasts.seasonal_naive,
    "seasonal_growth": forecasts.seasonal_growth,
    "network": NETWORK,
    "Holt-Winters": forecasts.holt_winters(AIRLINE[:120]),
}
# What takes a series, and what it calls it.
TAKERS = [
    ("series", lambda a: data.windows(a, 3)),
    ("passengers", TRANSFORM.forward),
    ("series", lambda a: forecast.one_step(forecasts.persistence, a, first=1)),
    ("history", NETWORK),
    ("truth", lambda a: forecast.errors(np.ones(len(a)), a)),
]
MONTHLY = pd.period_range("1949-01", periods=40, freq="M")
STAMPS = MONTHLY.to_timestamp()
STEPS = "MS", "BMS", "D", "B", "W-WED", "YS", "10min", "2MS", "WOM-3FRI", "QS"


def of(index):
    return pd.Series(np.arange(1.0, len(index) + 1), index=index)


@pytest.mark.parametrize(
    "index",
    [
        *(pd.date_range("2001-02-05", periods=40, freq=step) for step in STEPS),
        pd.date_range(
            "2001-03-20", periods=40, tz="Europe/Berlin"
        ),  # a day of 23 hours
        STAMPS + pd.Timedelta("14D"),  # the 15th of each month
        MONTHLY,
        MONTHLY.astype(str),
        STAMPS.strftime("%Y/%m/%d"),
    ],
)
def test_dates_go_forward_without_a_gap_for_all_that_takes_a_series(index):
    if isinstance(index, pd.DatetimeIndex):
        index = pd.DatetimeIndex(index.to_numpy(), tz=index.tz)  # as a file gives it
    for name, call in TAKERS:
        call(of(index))
        for fault in (index[::-1], index.insert(3, index[2]), index.delete(15)):
            with pytest.raises(
                ValueError, match=rf"^{name}\.index: got .* equal steps"
            ):
                call(of(fault))
    for labels in (range(40)[::-1], [f"{n:02d}" for n in range(40)]):  # no dates
        assert len(data.windows(of(labels), 3)) == 37


def test_errors_of_forecasts_of_other_months():
    series = of(MONTHLY)
    assert forecast.errors(series[:-1].to_numpy(), series[1:])["RMSE"] == 1
    months = pd.period_range("2001-01", periods=3, freq="M")
    same = [months, months.to_timestamp(), months.astype(str)]
    for one, other in itertools.product(same, repeat=2):
        both = pd.Series([1.0, 2, 4], one), pd.Series([1.0, 2, 4], other)
        assert forecast.errors(*both)["MAE"] == 0
    want = r"^forecast\.index: got 1949-01.* to 1952-03.*, want truth's, 1949-02.*"
    with pytest.raises(ValueError, match=want):
        forecast.errors(series[:-1], series[1:])


def test_errors():
    got = forecast.errors([1, 2], [2, 4])
    assert got == {"RMSE": 2.5**0.5, "MAE": 1.5, "MAPE": 50.0}
    assert forecast.errors([-1, -2], [-2, -4])["MAPE"] == 50


def test_log_difference_there_and_back():
    transform = data.LogDifference.fit(AIRLINE[:120])
    z = transform.forward(AIRLINE)
    np.testing.assert_allclose(transform.backward(AIRLINE[:-1], z), AIRLINE[1:])
    assert z[:119].mean() == pytest.approx(0, abs=1e-12)
    assert z[:119].std() == pytest.approx(1)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_one_step_uses_the_true_months_before_and_recursive_its_own(rule):
    before = forecast.one_step(rule, AIRLINE, first=120)
    assert before.shape == (24,)
    changed = AIRLINE.copy()
    changed[130:] = 1
    after = forecast.one_step(rule, changed, first=120)
    np.testing.assert_array_equal(after[:11], before[:11])
    assert not np.isclose(after[11], before[11]) or rule is forecasts.seasonal_naive
    path = forecast.recursive(rule, AIRLINE[:120], months=24)
    continued = forecast.one_step(rule, np.r_[AIRLINE[:120], path], first=120)
    np.testing.assert_array_equal(continued, path)


def test_a_forecast_fed_with_its_own_output():
    """Of the sum of the last two, from 2 and 3: Fibonacci's numbers."""

    def rule(history):
        assert not history.flags.writeable
        return history[-2:].sum()

    start = of(MONTHLY[:2]) + 1
    path = forecast.recursive(rule, start, months=4)
    np.testing.assert_array_equal(path, [5, 8, 13, 21])
    assert start.tolist() == [2, 3]


def test_rules():
    last = forecast.one_step(forecasts.persistence, Y, first=24)
    np.testing.assert_array_equal(last, Y[23:39])
    season = forecast.one_step(forecasts.seasonal_naive, Y, first=12)
    np.testing.assert_array_equal(season, Y[:28])
    y = AIRLINE
    got = forecast.one_step(forecasts.seasonal_growth, y, first=120)
    np.testing.assert_allclose(got, y[119:-1] * y[108:132] / y[107:131])
    # A network that repeats the growth of twelve months before is the same rule.
    network = forecast.one_step(NETWORK, y, first=120)
    np.testing.assert_allclose(network, got, rtol=1e-6)


def test_holt_winters_continues_a_series_of_its_own_kind():
    season = 1 + 0.3 * np.sin(np.arange(12))
    y = (100 + 2 * np.arange(96)) * np.resize(season, 96)
    path = forecast.recursive(forecasts.holt_winters(y[:72]), y[:72], months=24)
    np.testing.assert_allclose(path, y[72:], rtol=0.02)
