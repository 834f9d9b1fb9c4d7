"""The series, its preprocessing, the forecasts and the baselines."""

import hashlib

import numpy as np
import pandas as pd
import pytest

import lstm_kernels as lk
from lstm_kernels import data, forecast


def test_the_series_is_series_g():
    series = data.airline()
    joined = ",".join(map(str, series.to_numpy()))
    digest = "fe529825b8393b6873a1be3d9c484cbd0c7e6853b6ca082612f406a762e2de4e"
    assert hashlib.sha256(joined.encode()).hexdigest() == digest
    assert (len(series), series.iloc[0], series.iloc[-1], series.sum()) == (
        144,
        112,
        432,
        40363,
    )
    assert (str(series.index[0]), str(series.index[-1])) == ("1949-01", "1960-12")


def test_another_series_is_refused(monkeypatch, tmp_path):
    (tmp_path / "airline_passengers.csv").write_text(
        "month,passengers\n1949-01,1\n1949-02,2\n"
    )
    monkeypatch.setattr(data, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match=r"got 2 values, 1,2\.\.\., want the 144"):
        data.airline()


def test_examples_that_are_batch_first():
    x = np.arange(24, dtype=np.float32).reshape(3, 4, 2)  # (N, T, D)
    dataset = data.Dataset.from_batch_first(x, np.zeros((3, 1), np.float32))
    assert (len(dataset), dataset.x.shape) == (3, (4, 3, 2))
    np.testing.assert_array_equal(dataset.x[1, 2], x[2, 1])
    with pytest.raises(ValueError, match=r"x: got 2 axes, .* want shape \(N, T, D\)"):
        data.Dataset.from_batch_first(x[0], np.zeros((3, 1), np.float32))
    with pytest.raises(ValueError, match="target: got shape"):
        data.Dataset.from_batch_first(x, np.zeros((4, 1), np.float32))


def test_windows_hold_every_run_and_the_value_after_it():
    dataset = data.windows(np.arange(6.0), 3)
    assert dataset.x.dtype == np.float32
    np.testing.assert_array_equal(
        dataset.x[..., 0].T, [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
    )
    np.testing.assert_array_equal(dataset.target[:, 0], [3, 4, 5])
    x, target = dataset.batch(np.array([2, 0]))
    np.testing.assert_array_equal(x[:, :, 0], [[2, 0], [3, 1], [4, 2]])
    np.testing.assert_array_equal(target, [[5], [3]])
    assert x.flags.c_contiguous


MONTHS = np.array("1949-01", "M8[M]") + np.arange(40)
NO_SERIES = [
    (
        np.ma.array(np.arange(1.0, 41), mask=[0] * 39 + [1]),
        TypeError,
        "got a masked array, want",
    ),
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


MONTHLY = pd.period_range("1949-01", periods=40, freq="M")
FREQUENCIES = ["MS", "ME", "BMS", "D", "B", "W-WED", "QE", "YS", "10min"]


def of(index):
    return pd.Series(np.arange(1.0, len(index) + 1), index=index)


@pytest.mark.parametrize(
    ("index", "got"),
    [
        (MONTHLY[::-1], "1952-03 after 1952-04"),
        (MONTHLY.delete(7), "1949-09 after 1949-07"),
        (MONTHLY.insert(3, MONTHLY[2]), "1949-03 after 1949-03"),
        (MONTHLY[::2], "1949-03 after 1949-01"),
        (MONTHLY.to_timestamp().delete(11), "1950-01-01 after 1949-11-01"),
        (MONTHLY.to_timestamp("M")[::-1], "1952-03-31 after 1952-04-30"),
        (MONTHLY.to_timestamp().insert(1, MONTHLY.to_timestamp()[0]), "1949-01-01 aft"),
        (pd.PeriodIndex(MONTHLY[:3].insert(2, MONTHLY[3]), freq="M"), "1949-04 after"),
        (MONTHLY.astype(str)[::-1], "1952-03 after 1952-04"),
        (MONTHLY.astype(str).delete(7), "1949-09 after 1949-07"),
    ],
)
def test_a_series_whose_index_tells_that_it_is_none(index, got):
    """A month that is missing or there twice, the newest first."""
    want = rf"got {got}.*, want equal steps, oldest first, or .*\.to_numpy\(\)"
    series = of(index)
    rule, transform = forecast.persistence, data.LogDifference(0.1, 0.2)
    fitted = RULES["Holt-Winters"]
    truth = np.ones(len(series))
    for name, call in {
        "series": lambda: data.windows(series, 3),
        "passengers": lambda: data.LogDifference.fit(series),
        "passengers ": lambda: transform.forward(series),
        "series ": lambda: forecast.one_step(rule, series, first=9),
        " series": lambda: forecast.recursive(rule, series, months=2),
        "history": lambda: rule(series),
        "history ": lambda: forecast.seasonal_naive(series),
        " history": lambda: forecast.seasonal_growth(series),
        " history ": lambda: network_rule()(series),
        "history  ": lambda: fitted(series),
        "  history": lambda: forecast.holt_winters(series, period=2),
        "forecast": lambda: forecast.errors(series, truth),
        "truth": lambda: forecast.errors(truth, series),
    }.items():
        with pytest.raises(ValueError, match=rf"^{name.strip()}\.index: {want}"):
            call()
    assert len(data.windows(series.to_numpy(), 3)) == len(series) - 3


@pytest.mark.parametrize("freq", FREQUENCIES)
def test_dates_that_go_forward_by_the_same_step_are_a_series(freq):
    index = pd.date_range("2001-02-05", periods=30, freq=freq)
    index = pd.DatetimeIndex(index.to_numpy())  # as a file gives it
    assert len(data.windows(of(index), 3)) == 27
    for wrong in (index[::-1], index.delete(9), index.insert(5, index[4])):
        with pytest.raises(
            ValueError, match=r"^series\.index: got 20.* after 20.*, want"
        ):
            data.windows(of(wrong), 3)


def test_an_index_that_cannot_tell_is_taken():
    zone = {"tz": "Europe/Berlin"}  # of one of whose days 23 hours, of one 25
    for index in (
        range(30),
        range(30)[::-1],
        [f"{30 - month}" for month in range(30)],
        [*MONTHLY.astype(str)[:30]],
        pd.date_range("2001-03-20", periods=30, freq="D", **zone),
        pd.date_range("2001-10-27", periods=30, freq="h", **zone),
        pd.period_range("2001Q3", periods=30, freq="Q"),
        pd.period_range("2001", periods=30, freq="3M"),
    ):
        assert len(data.windows(of(index), 3)) == 27
    for freq in ("SMS", "SME", "bh"):  # which pandas says goes on
        assert len(data.windows(of(pd.date_range("2001", periods=30, freq=freq)), 3))
    odd = pd.PeriodIndex(["2000-01", "2000-04", "2000-05", "2000-07"], freq="2M")
    with pytest.raises(ValueError, match="got 2000-04 after 2000-01, want equal steps"):
        data.windows(of(odd), 2)
    with pytest.raises(
        ValueError, match=r"^series\.index: got NaT, want a date for each"
    ):
        data.windows(of(MONTHLY.insert(4, pd.NaT)), 3)


def test_errors_of_forecasts_of_other_months():
    series = of(MONTHLY)
    want = r"^forecast\.index: got 1949-01 to 1952-03, want truth's, 1949-02 to 1952-04"
    with pytest.raises(ValueError, match=want):
        forecast.errors(series[:-1], series[1:])
    assert forecast.errors(series[1:], series[1:])["RMSE"] == 0
    dates = of(MONTHLY.to_timestamp())
    for other in (series, dates, of(MONTHLY.to_timestamp().as_unit("s"))):
        with pytest.raises(ValueError, match=r"^forecast\.index: got 1949-01"):
            forecast.errors(other[:-1], dates[1:])
        assert forecast.errors(other[1:], dates[1:])["RMSE"] == 0
    assert forecast.errors(series[:-1].to_numpy(), series[1:])["RMSE"] == 1


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize(("series", "error", "said"), NO_SERIES)
def test_what_is_no_series(series, error, said):
    transform = data.LogDifference(0.1, 0.2)
    fitted = RULES["Holt-Winters"]
    calls = {
        "series": lambda: data.windows(series, 3),
        "passengers": lambda: data.LogDifference.fit(series),
        "passengers ": lambda: transform.forward(series),
        "series ": lambda: forecast.one_step(forecast.persistence, series, first=1),
        " series": lambda: forecast.recursive(forecast.persistence, series, months=1),
        "history": lambda: forecast.persistence(series),
        "history ": lambda: forecast.seasonal_naive(series),
        " history": lambda: forecast.seasonal_growth(series),
        " history ": lambda: forecast.network_rule(Copy(1), transform, window=3)(
            series
        ),
        "history  ": lambda: fitted(series),
        "  history": lambda: forecast.holt_winters(series),
        "truth": lambda: forecast.errors(np.ones(40), series),
        "forecast": lambda: forecast.errors(series, np.ones(40)),
    }
    for name, call in calls.items():
        # Its shape is truth's
        want = said if name != "forecast" or error is TypeError else ""
        with pytest.raises(error, match=f"^{name.strip()}: {want}"):
            call()


def test_numbers_below_the_smallest_passenger():
    y = np.arange(40.0)
    for call in (
        data.LogDifference.fit,
        data.LogDifference(0, 1).forward,
        forecast.holt_winters,
        forecast.seasonal_growth,
    ):
        with pytest.raises(
            ValueError, match=r"got 0.0 at index \[0\], want numbers above zero"
        ):
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
    x = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    target = np.ones((3, 1), np.float32)
    datasets = [
        lk.Dataset(x, target),
        lk.Dataset(-x, target),
        lk.Dataset(x, -target),
        lk.Dataset(x.reshape(4, 3, 1), target),
        lk.Dataset(x.astype(float), target.astype(float)),
    ]
    assert len({dataset.sha256() for dataset in datasets}) == 5
    assert (
        lk.Dataset(np.asfortranarray(x), target.copy()).sha256() == datasets[0].sha256()
    )


def test_a_data_set_and_a_history_say_their_sizes():
    dataset = data.windows(np.arange(9.0), 3)
    assert repr(dataset) == "Dataset: 6 examples, x (3, 6, 1), target (6, 1), float32"
    assert (
        repr(lk.History([2.0, 0.5], [1.0, 1.5]))
        == "History: 2 epochs in 2.5 s, last loss 0.5"
    )
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
    with pytest.raises(
        ValueError, match=r"z: got up to 1e\+09, want finite passengers"
    ):
        transform.backward([100, 100], [0, 1e9])
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


def network_rule(lag=12):
    transform = data.LogDifference.fit(data.airline()[:120])
    return forecast.network_rule(Copy(lag), transform, window=12)


RULES = {
    "persistence": forecast.persistence,
    "seasonal_naive": forecast.seasonal_naive,
    "seasonal_growth": forecast.seasonal_growth,
    "network": network_rule(),
    "Holt-Winters": forecast.holt_winters(data.airline()[:120]),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_one_step_uses_the_true_months_before_and_only_those(rule):
    series = data.airline().to_numpy(float)
    before = forecast.one_step(rule, series, first=120)
    assert before.shape == (24,)
    changed = series.copy()
    changed[130:] = 1
    after = forecast.one_step(rule, changed, first=120)
    np.testing.assert_array_equal(after[:11], before[:11])
    assert not np.isclose(after[11], before[11]) or rule is forecast.seasonal_naive


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_recursive_forecasts_are_one_step_forecasts_of_a_series_that_they_continue(
    rule,
):
    series = data.airline().to_numpy(float)[:120]
    path = forecast.recursive(rule, series, months=24)
    continued = forecast.one_step(rule, np.r_[series, path], first=120)
    np.testing.assert_array_equal(continued, path)


def test_naive_rules():
    y = np.arange(30.0)
    np.testing.assert_array_equal(
        forecast.one_step(forecast.persistence, y, first=24), y[23:29]
    )
    np.testing.assert_array_equal(
        forecast.one_step(forecast.seasonal_naive, y, first=24), y[12:18]
    )
    assert forecast.seasonal_naive(y, 7) == 23
    assert forecast.errors([1, 2], [2, 4]) == {
        "RMSE": 2.5**0.5,
        "MAE": 1.5,
        "MAPE": 50.0,
    }


def test_last_years_growth():
    y = data.airline().to_numpy(float)
    got = forecast.one_step(forecast.seasonal_growth, y, first=120)
    np.testing.assert_allclose(got, y[119:-1] * y[108:132] / y[107:131])
    assert forecast.errors(got, y[120:])["RMSE"] == pytest.approx(19.7, abs=0.05)
    assert forecast.seasonal_growth([2, 3, 5, 7], 2) == 7 * 5 / 3
    # A network that repeats the growth of twelve months before is the same rule.
    network = forecast.one_step(network_rule(), y, first=120)
    np.testing.assert_allclose(network, got, rtol=1e-6)
    path = forecast.recursive(network_rule(), y[:120], months=24)
    growth = y[119] / y[107]
    np.testing.assert_allclose(path[:12], y[108:120] * growth, rtol=1e-5)
    np.testing.assert_allclose(path[12:], y[108:120] * growth**2, rtol=1e-5)


@pytest.mark.parametrize(
    ("rule", "least"),
    [
        (forecast.persistence, 1),
        (forecast.seasonal_naive, 12),
        (forecast.seasonal_growth, 13),
        (network_rule(), 13),
    ],
)
def test_a_history_that_a_rule_finds_too_short(rule, least):
    y = np.arange(1.0, 41)
    assert len(forecast.recursive(rule, y[:least], months=2)) == 2
    assert len(forecast.one_step(rule, y, first=least)) == 40 - least
    if least > 1:
        message = f"history: got {least - 1} months, want at least {least}"
        for call in (
            lambda: rule(y[: least - 1]),
            lambda: forecast.one_step(rule, y, first=least - 1),
            lambda: forecast.recursive(rule, y[: least - 1], months=1),
        ):
            with pytest.raises(ValueError, match=message):
                call()


@pytest.mark.parametrize("number", [0, -1, 2.0, True])
def test_numbers_of_months_that_are_none(number):
    y, transform = np.arange(1.0, 41), data.LogDifference(0.1, 0.2)
    for name, call in {
        "first": lambda: forecast.one_step(forecast.persistence, y, first=number),
        "months": lambda: forecast.recursive(forecast.persistence, y, months=number),
        "period": lambda: forecast.seasonal_naive(y, number),
        "period ": lambda: forecast.seasonal_growth(y, number),
        "window": lambda: forecast.network_rule(Copy(1), transform, window=number),
    }.items():
        with pytest.raises((ValueError, TypeError), match=f"^{name.strip()}: got"):
            call()
    with pytest.raises(ValueError, match=r"first: got 40, want .* from 1 to 39"):
        forecast.one_step(forecast.persistence, y, first=40)


def test_errors_of_other_shapes_and_of_nothing():
    with pytest.raises(
        ValueError, match=r"forecast: got 2 axes, shape \(3, 1\), want shape \(3,\)"
    ):
        forecast.errors(np.ones((3, 1)), np.ones(3))
    with pytest.raises(ValueError, match=r"forecast: got shape \(2,\), want \(3,\)"):
        forecast.errors(np.ones(2), np.ones(3))
    with pytest.raises(ValueError, match=r"truth: got 0.0 at index 1, want no zero"):
        forecast.errors([1, 2, 3], [-1, 0, 3])
    assert forecast.errors([-1, -2], [-2, -4])["MAPE"] == 50


def test_holt_winters_continues_a_series_of_its_own_kind():
    season = 1 + 0.3 * np.sin(np.arange(12))
    y = (100 + 2 * np.arange(96)) * np.resize(season, 96)
    path = forecast.recursive(forecast.holt_winters(y[:72]), y[:72], months=24)
    np.testing.assert_allclose(path, y[72:], rtol=0.02)
    with pytest.raises(ValueError, match="history: got 20 months, want at least 24"):
        forecast.holt_winters(y[:20])
