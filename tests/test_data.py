"""The series, its preprocessing, the forecasts and the baselines."""

import hashlib

import numpy as np
import pytest

import lstm_kernels as lk
from lstm_kernels import data, forecast


def test_the_series_is_series_g():
    series = data.airline()
    joined = ",".join(map(str, series.to_numpy()))
    digest = "fe529825b8393b6873a1be3d9c484cbd0c7e6853b6ca082612f406a762e2de4e"
    assert hashlib.sha256(joined.encode()).hexdigest() == digest
    assert (len(series), series.iloc[0], series.iloc[-1], series.sum()) == (144, 112, 432, 40363)
    assert (str(series.index[0]), str(series.index[-1])) == ("1949-01", "1960-12")


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("112", "113", 1),
        lambda text: text.replace("1949-02", "1949-03", 1),
        lambda text: "\n".join(text.split("\n")[:-5]),
        lambda text: text.replace("passengers", "people"),
        lambda text: text.replace("118", "many"),
        lambda text: "",
        lambda text: "\x00\x01\x02",
    ],
)
def test_a_corrupt_or_foreign_csv_is_refused(tmp_path, change):
    path = tmp_path / "series.csv"
    path.write_text(change(data.AIRLINE_CSV.read_text()))
    with pytest.raises(ValueError, match=r"path: .*series.csv"):
        data.airline(path)
    with pytest.raises(FileNotFoundError):
        data.airline(tmp_path / "none.csv")


def test_windows_hold_every_run_and_the_value_after_it():
    dataset = data.windows(np.arange(6.0), 3)
    assert dataset.x.dtype == np.float32
    np.testing.assert_array_equal(dataset.x[..., 0].T, [[0, 1, 2], [1, 2, 3], [2, 3, 4]])
    np.testing.assert_array_equal(dataset.target[:, 0], [3, 4, 5])
    x, target = dataset.batch(np.array([2, 0]))
    np.testing.assert_array_equal(x[:, :, 0], [[2, 0], [3, 1], [4, 2]])
    np.testing.assert_array_equal(target, [[5], [3]])
    assert x.flags.c_contiguous


def test_log_difference_there_and_back():
    passengers = data.airline().to_numpy(float)
    transform = data.LogDifference.fit(passengers[:120])
    z = transform.forward(passengers)
    np.testing.assert_allclose(transform.backward(passengers[:-1], z), passengers[1:])
    assert z[:119].mean() == pytest.approx(0, abs=1e-12)
    assert z[:119].std() == pytest.approx(1)


class Copy:
    """A 'network' that predicts the input of `lag` months before."""

    def __init__(self, lag):
        self.lag = lag

    def params(self):
        return lk.Params.init(1, 1)

    def predict(self, x):
        return x[-self.lag]


def test_one_step_uses_the_true_months_before_and_only_those():
    series = data.airline().to_numpy(float)
    transform = data.LogDifference.fit(series[:120])
    got = forecast.one_step(Copy(12), transform, series, 12, 120)
    want = series[119:-1] * series[108:132] / series[107:131]  # last year's growth
    np.testing.assert_allclose(got, want, rtol=1e-6)
    changed = series.copy()
    changed[130:] = 1
    again = forecast.one_step(Copy(12), transform, changed, 12, 120)
    np.testing.assert_array_equal(again[:11], got[:11])


def test_recursive_forecast_sees_no_test_month():
    series = data.airline().to_numpy(float)
    transform = data.LogDifference.fit(series[:120])
    got = forecast.recursive(Copy(12), transform, series[:120], 12, 24)
    growth = series[119] / series[107]
    np.testing.assert_allclose(got[:12], series[108:120] * growth, rtol=1e-5)
    np.testing.assert_allclose(got[12:], series[108:120] * growth**2, rtol=1e-5)


def test_naive_baselines():
    y = np.arange(30.0)
    np.testing.assert_array_equal(forecast.persistence(y, 24), np.arange(23, 29))
    np.testing.assert_array_equal(forecast.seasonal_naive(y, 24), np.arange(12, 18))
    assert forecast.errors([1, 2], [2, 4]) == {"RMSE": 2.5**0.5, "MAE": 1.5, "MAPE": 50.0}


def test_holt_winters_recursion_agrees_with_statsmodels():
    smoothing = pytest.importorskip("statsmodels.tsa.holtwinters")
    y = data.airline().to_numpy(float)
    model = forecast.HoltWinters().fit(y[:120])
    alpha, beta, gamma, level, trend, *season = model.theta
    theirs = smoothing.ExponentialSmoothing(
        y[:120],
        trend="add",
        seasonal="mul",
        seasonal_periods=12,
        initialization_method="known",
        initial_level=level,
        initial_trend=trend,
        initial_seasonal=season,
    ).fit(smoothing_level=alpha, smoothing_trend=beta, smoothing_seasonal=gamma, optimized=False)
    np.testing.assert_allclose(model.one_step(y[:120], 0), theirs.fittedvalues, rtol=1e-9)
    # Its forecast of the month that ends the series leaves out that month's last update: not ours.
    others = np.arange(24) % 12 != 11
    ours = model.ahead(y[:120], 24)[others]
    np.testing.assert_allclose(ours, theirs.forecast(24)[others], rtol=1e-9)


def test_holt_winters_continues_a_series_of_its_own_kind():
    season = 1 + 0.3 * np.sin(np.arange(12))
    y = (100 + 2 * np.arange(96)) * np.resize(season, 96)
    model = forecast.HoltWinters().fit(y[:72])
    np.testing.assert_allclose(model.ahead(y[:72], 24), y[72:], rtol=0.02)
    with pytest.raises(ValueError, match="y: got 20 values, want at least two periods of 12"):
        forecast.HoltWinters().fit(y[:20])
