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


MONTHS = np.array("1949-01", "M8[M]") + np.arange(40)
NO_SERIES = [
    (np.ma.array(np.arange(1.0, 41), mask=[0] * 39 + [1]), TypeError, "got a masked array, want"),
    (np.arange(1, 41) + 1j, TypeError, "got ndarray of complex128, want real numbers"),
    (MONTHS, TypeError, "got ndarray of datetime64"),
    (np.ones((40, 1)), ValueError, "got 2 axes"),
    (np.ones((20, 20)).view(np.ndarray).tolist(), ValueError, "got 2 axes"),
    (np.r_[1:40.0, np.nan], ValueError, r"got nan at index \[39\], want finite"),
    (["1"] * 40, TypeError, "got list of <U1, want real numbers"),
    ([1, [2, 3]], TypeError, "got list"),
    (np.ones(40, bool), TypeError, "got ndarray of bool"),
    (None, TypeError, "got NoneType"),
    (3, ValueError, "got 0 axes"),
    ([], ValueError, ".* and no empty axis"),
]


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize(("series", "error", "said"), NO_SERIES)
def test_what_is_no_series(series, error, said):
    transform = data.LogDifference(0.1, 0.2)
    fitted = forecast.HoltWinters(2)
    fitted.theta = np.ones(7)
    calls = {
        "series": lambda: data.windows(series, 3),
        "passengers": lambda: data.LogDifference.fit(series),
        "passengers ": lambda: transform.forward(series),
        " passengers": lambda: forecast.persistence(series, 1),
        "passengers  ": lambda: forecast.seasonal_naive(series, 12),
        "  passengers": lambda: forecast.one_step(Copy(1), transform, series, 3, 5),
        " passengers ": lambda: forecast.recursive(Copy(1), transform, series, 3, 5),
        "y": lambda: forecast.HoltWinters().fit(series),
        "y ": lambda: fitted.one_step(series, 0),
        " y": lambda: fitted.ahead(series, 1),
        "truth": lambda: forecast.errors(np.ones(40), series),
        "forecast": lambda: forecast.errors(series, np.ones(40)),
    }
    for name, call in calls.items():
        want = said if name != "forecast" or error is TypeError else ""  # its shape is truth's
        with pytest.raises(error, match=f"^{name.strip()}: {want}"):
            call()


def test_numbers_below_the_smallest_passenger():
    y = np.arange(40.0)
    for call in (
        data.LogDifference.fit,
        data.LogDifference(0, 1).forward,
        forecast.HoltWinters().fit,
    ):
        with pytest.raises(ValueError, match=r"got 0.0 at index \[0\], want numbers above zero"):
            call(y)
    with pytest.raises(ValueError, match=r"std: got 0.0, want numbers above zero"):
        data.LogDifference.fit([100, 100, 100])
    with pytest.raises(ValueError, match=r"before: got -1.0, want numbers above zero"):
        data.LogDifference(0, 1).backward(-1, 0)
    with pytest.raises(TypeError, match="z: got a masked array"):
        data.LogDifference(0, 1).backward([1, 2], np.ma.ones(2))
    with pytest.raises(ValueError, match="passengers: got 1 month, want at least 2"):
        data.LogDifference(0, 1).forward([1])


def test_windows_of_another_dtype():
    assert data.windows(np.arange(6.0), 3, dtype=np.float64).x.dtype == np.float64
    for dtype in (int, "nonsense", None, np.float16, ">f4"):
        with pytest.raises(TypeError, match=r"dtype: got .*, want float32 or float64"):
            data.windows(np.arange(6.0), 3, dtype=dtype)
    with pytest.raises(ValueError, match=r"target: got inf|x: got inf"):
        data.windows(10.0 ** np.arange(35, 42), 3)


def test_the_hash_of_a_data_set_is_that_of_all_it_holds():
    x, target = np.arange(12, dtype=np.float32).reshape(2, 3, 2), np.ones((3, 1), np.float32)
    datasets = [
        lk.Dataset(x, target),
        lk.Dataset(-x, target),
        lk.Dataset(x, -target),
        lk.Dataset(x.reshape(4, 3, 1), target),
        lk.Dataset(x.astype(float), target.astype(float)),
    ]
    assert len({dataset.sha256() for dataset in datasets}) == 5
    assert lk.Dataset(np.asfortranarray(x), target.copy()).sha256() == datasets[0].sha256()


def test_a_data_set_and_a_history_say_their_sizes():
    dataset = data.windows(np.arange(9.0), 3)
    assert repr(dataset) == "Dataset: 6 examples, x (3, 6, 1), target (6, 1), float32"
    assert repr(lk.History([2.0, 0.5], [1.0, 1.5])) == "History: 2 epochs in 2.5 s, last loss 0.5"
    assert repr(lk.History()) == "History: 0 epochs in 0 s"


def test_each_batch_stops_at_a_loss_that_is_not_finite():
    dataset, losses = data.windows(np.arange(9.0), 1), iter([1.0, np.nan, 3.0, 4.0])
    assert len(dataset.each_batch(np.arange(8), 2, lambda x, target: next(losses))) == 2
    assert next(losses) == 3.0


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


@pytest.mark.parametrize("first", [0, -1, 11, 40, 2.0, True])
def test_first_months_that_a_forecast_lacks(first):
    y, transform = np.arange(1.0, 41), data.LogDifference(0.1, 0.2)
    calls = [
        (lambda: forecast.one_step(Copy(1), transform, y, 12, first), 13),
        (lambda: forecast.seasonal_naive(y, first), 12),
    ]
    calls += [(lambda: forecast.persistence(y, first), 1)] * (first != 11)
    for call, least in calls:
        with pytest.raises((ValueError, TypeError), match=f"first: got .* from {least} to 39"):
            call()
    with pytest.raises((ValueError, TypeError), match="period: got"):
        forecast.seasonal_naive(y, 12, first if first != 11 and first != 40 else 0)


def test_recursive_forecast_wants_a_whole_window():
    transform = data.LogDifference(0.1, 0.2)
    with pytest.raises(
        ValueError, match="passengers: got 12 months, want at least 13 for a window"
    ):
        forecast.recursive(Copy(1), transform, np.arange(1.0, 13), 12, 2)
    with pytest.raises(ValueError, match="window: got 0"):
        forecast.recursive(Copy(1), transform, np.arange(1.0, 13), 0, 2)
    assert len(forecast.recursive(Copy(1), transform, np.arange(1.0, 14), 12, 2)) == 2


def test_errors_of_other_shapes_and_of_nothing():
    with pytest.raises(
        ValueError, match=r"forecast: got 2 axes, shape \(3, 1\), want shape \(3,\)"
    ):
        forecast.errors(np.ones((3, 1)), np.ones(3))
    with pytest.raises(ValueError, match=r"forecast: got shape \(2,\), want \(3,\)"):
        forecast.errors(np.ones(2), np.ones(3))
    with pytest.raises(ValueError, match=r"truth: got 0.0 at index \[1\], want numbers with a"):
        forecast.errors([1, 2, 3], [-1, 0, 3])
    assert forecast.errors([-1, -2], [-2, -4])["MAPE"] == 50


def test_where_holt_winters_starts_to_minimise(monkeypatch):
    y, starts = np.arange(1.0, 49), []
    monkeypatch.setattr(
        forecast, "minimize", lambda cost, start, **_: starts.append(start) or 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        forecast.HoltWinters().fit(y)
    scaled = starts[0] * np.r_[1, 1, 1, 6.5, 6.5 / 12, np.ones(12)]
    np.testing.assert_allclose(scaled, [0.3, 0.05, 0.3, 6.5, 1.0, *(y[:12] / 6.5)])


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
