"""The series, its preprocessing, one-step forecasts, and the rules of page 02."""

import hashlib
from datetime import date

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
    with pytest.raises(ValueError, match=r"x: got 2 axes, .* want shape \(N, T, D\)"):
        data.Dataset.from_batch_first(x[0], dataset.target)
    with pytest.raises(ValueError, match=r"^target: got .*, want \(4, O\)"):
        data.Dataset.from_batch_first(dataset.x, dataset.target)  # time first already


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


COLUMNS = r"want one or a list of \['wind', 'rain'\]"


@pytest.mark.parametrize(
    ("series", "options", "message"),
    [
        (TABLE, {"target": "snow"}, f"target: got 'snow', {COLUMNS}"),
        (TABLE, {"target": 0}, f"target: got 0, {COLUMNS}"),
        (TABLE, {"target": []}, rf"target: got \[\], {COLUMNS}"),
        (TABLE, {"target": TABLE["rain"]}, f"target: got Series, {COLUMNS}"),
        (TABLE.to_numpy(), {"target": -1}, r"target: got -1, want .* \[0, 1\]"),
        (TABLE.to_numpy(), {"target": True}, "target: got True, want one or a list"),
        (TABLE.to_numpy(), {"target": 1.0}, "target: got 1.0, want one or a list"),
        (TABLE.to_numpy(), {"target": [False, True]}, r"target: got \[False, True\]"),
        (TABLE[:1], {}, "series: got 1 value, want at least 2"),
        (TABLE.assign(rain=1e300), {}, r"series as float32: got inf at index \[0, 1\]"),
        (TABLE, {"horizon": 0}, "horizon: got 0, want an integer from 1 to 4"),
        (TABLE, {"horizon": 4}, "length: got 2, want an integer from 1 to 1"),
        (TABLE.assign(day="Monday"), {}, r"series\['day'\]: got Series"),
        (TABLE.assign(rain=np.inf), {}, r"series\['rain'\]: got inf at index \[0\]"),
        (TABLE[["wind", "wind"]], {}, r"series\.columns: got .*, want each name once"),
        (TABLE[[]], {}, r"series: got shape \(5, 0\), want \(N, D\)"),
        (
            TABLE.set_index(pd.to_datetime(["2001-01-31", *["2001-03-01"] * 4])),
            {},
            r"series\['wind'\]\.index: got 2001-03-01 after 2001-03-01",
        ),
    ],
)
def test_windows_that_cannot_be(series, options, message):
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        data.windows(series, 2, **options)


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
    ("truth", lambda a: forecast.errors(np.ones(40), a)),
]
MONTHLY = pd.period_range("1949-01", periods=40, freq="M")
STAMPS = MONTHLY.to_timestamp()


def of(index):
    return pd.Series(np.arange(1.0, len(index) + 1), index=index)


@pytest.mark.parametrize(
    ("series", "error", "said"),
    [
        (np.ma.ones(40), TypeError, "got a masked array, want"),
        (np.arange(1, 41) + 1j, TypeError, "got ndarray of complex128, want real num"),
        (STAMPS.to_numpy(), TypeError, "got ndarray of datetime64"),
        (np.ones((40, 1, 1)), ValueError, "got 3 axes"),
        (np.r_[1:40.0, np.nan], ValueError, r"got nan at index \[39\], want finite"),
        (["1"] * 40, TypeError, "got list of <U1, want real numbers"),
        ([1, [2, 3]], TypeError, "got list"),
        (np.ones(40, bool), TypeError, "got ndarray of bool"),
        ([], ValueError, ".* and no empty axis"),
    ],
)
def test_what_is_no_series_is_none_for_all_that_takes_one(series, error, said):
    for name, call in TAKERS:
        with pytest.raises(error, match=f"^{name}: {said}"):
            call(series)


@pytest.mark.parametrize(
    ("index", "got"),
    [
        (MONTHLY[::-1], "1952-03 after 1952-04"),
        (MONTHLY.insert(3, MONTHLY[2]), "1949-03 after 1949-03"),
        (MONTHLY.delete(7), "1949-09 after 1949-07"),
        (MONTHLY.delete(7).astype(str), "1949-09 after 1949-07"),
        (STAMPS.delete(11), "1950-01-01 after 1949-11-01"),
        (STAMPS.insert(1, STAMPS[0]), "1949-01-01 after 1949-01-01"),
        (pd.PeriodIndex(["2000-01", "2000-04", "2000-06"], freq="2M"), "2000-04 after"),
        (MONTHLY.insert(4, pd.NaT), "NaT after 1949-04"),
        (MONTHLY.delete(1), "1949-03 after 1949-01"),
        (STAMPS.delete(1), "1949-03-01 after 1949-01-01"),
        (pd.Index([date(2001, m, 5) for m in (1, 2, 3, 5, 6)]), "2001-05-05 after"),
        (pd.Index([date(2001, 1, 5), None, date(2001, 1, 7)]), "None after 2001-01-05"),
        (STAMPS.delete(9).astype(object), "1949-11-01 after 1949-09-01"),
        (MONTHLY.delete(9).astype(object), "1949-11 after 1949-09"),
        (MONTHLY.delete(9).strftime("%Y/%m"), "1949/11 after 1949/09"),
        (MONTHLY.delete(9).astype(str).astype("string"), "1949-11 after 1949-09"),
        (pd.CategoricalIndex(MONTHLY.delete(9).astype(str)), "1949-11 after 1949-09"),
        (pd.Index(STAMPS.delete(9).strftime("%Y-%m-%d 00:00:00")), "1949-11-01 after"),
        (MONTHLY.strftime("%b-%y"), "'Jan-49', want dates that begin with the year"),
        (STAMPS.strftime("%d/%m/%Y"), "'01/01/1949', want dates that begin with"),
    ],
)
def test_dates_that_tell_of_a_fault(index, got):
    """A month that is missing or there twice, the newest first."""
    for name, call in TAKERS[:3]:
        with pytest.raises(ValueError, match=rf"^{name}\.index: got {got}"):
            call(of(index))


BERLIN = {"periods": 30, "tz": "Europe/Berlin"}  # a day of 23 hours, one of 25
STEPS = "MS", "BMS", "D", "B", "W-WED", "YS", "10min", "2MS", "WOM-3FRI", "SMS", "SME"


THIRTIETH = pd.Timestamp("2001-01-30")  # 28 February, 30 March


def days(*words, months=1):
    """Thirty dates from March 2001: these days of every `months` months, texts."""
    first = pd.date_range("2001-03", periods=30, freq=f"{months}MS").strftime("%Y-%m-")
    return pd.to_datetime([month + day for month in first for day in words][:30])


@pytest.mark.parametrize(
    "index",
    [
        *(pd.date_range("2001-02-05", periods=30, freq=step) for step in STEPS),
        pd.date_range("2001-03-20", freq="D", **BERLIN),
        pd.date_range("2001-10-27", freq="h", **BERLIN),
        *(days(day) for day in ("10", "15", "28")),
        days("01", "15"),
        days("10", "25"),
        days("15", months=3),
        days("04", months=12),
        days("15").tz_localize("Europe/Berlin"),
        days("01") - pd.Timedelta("1h"),  # the last of each month, at eleven
        pd.DatetimeIndex([THIRTIETH + pd.DateOffset(months=n) for n in range(30)]),
        pd.date_range("2001", periods=30, freq=pd.offsets.LastWeekOfMonth(weekday=4)),
    ],
)
def test_dates_that_go_forward_by_the_same_step_are_a_series(index):
    unknown = index.copy()
    unknown.freq = None  # as a file gives it
    names = [f"{n:02d}" for n in range(30)]
    for dates in (index, unknown, unknown.astype(object), range(30)[::-1], names):
        assert len(data.windows(of(dates), 3)) == 27
    with pytest.raises(ValueError, match=r"^series\.index: got .* want equal step"):
        data.windows(of(unknown.delete(15)), 3)


def test_errors_of_forecasts_of_other_months():
    series = of(MONTHLY)
    assert forecast.errors(series[:-1].to_numpy(), series[1:])["RMSE"] == 1
    want = r"^forecast\.index: got 1949-01.* to 1952-03.*, want truth's, 1949-02.*"
    with pytest.raises(ValueError, match=want):
        forecast.errors(series[:-1], series[1:])
    dates = STAMPS, STAMPS.astype(object), MONTHLY.astype(str), MONTHLY.astype(object)
    for index in (*dates, MONTHLY.to_timestamp("M"), STAMPS.tz_localize("UTC")):
        other = series.set_axis(index)
        for pair in ((other, series), (series, other), (other, other)):
            assert forecast.errors(*pair)["MAE"] == 0
        with pytest.raises(ValueError, match=r"^forecast\.index: got .*, want truth"):
            forecast.errors(other[:-1], series[1:])


def test_errors():
    got = forecast.errors([1, 2], [2, 4])
    assert got == {"RMSE": 2.5**0.5, "MAE": 1.5, "MAPE": 50.0}
    assert forecast.errors([-1, -2], [-2, -4])["MAPE"] == 50
    for given, truth, said in (
        (np.ones((3, 1)), np.ones(3), r"forecast: got 2 axes, .*, want shape \(3,\)"),
        (np.ones(2), np.ones(3), r"forecast: got shape \(2,\), want \(3,\)"),
        ([1, 2, 3], [-1, 0, 3], "truth: got 0.0 at index 1, want no zero"),
    ):
        with pytest.raises(ValueError, match=said):
            forecast.errors(given, truth)


def test_log_difference_there_and_back():
    transform = data.LogDifference.fit(AIRLINE[:120])
    z = transform.forward(AIRLINE)
    np.testing.assert_allclose(transform.backward(AIRLINE[:-1], z), AIRLINE[1:])
    assert z[:119].mean() == pytest.approx(0, abs=1e-12)
    assert z[:119].std() == pytest.approx(1)


FIT, FORWARD, BACK = data.LogDifference.fit, TRANSFORM.forward, TRANSFORM.backward
ONE_STEP, RULE = forecast.one_step, forecast.network_rule
RECURSIVE = forecast.recursive


@pytest.mark.parametrize(
    ("call", "arguments", "options", "message"),
    [
        (FIT, (Y - 1,), {}, r"passengers: got 0.0 at index \[0\], w"),
        (FIT, ([9, 9, 9],), {}, "std: got 0.0, want numbers above"),
        (FORWARD, ([1],), {}, "passengers: got 1 month, want at least 2"),
        (BACK, (-1, 0), {}, "before: got -1.0, want numbers above zero"),
        (BACK, ([1, 2], np.ma.ones(2)), {}, "z: got a masked array"),
        (BACK, ([1, 1], [0, 1e9]), {}, r"z: got up to 1e\+09, want finite"),
        (ONE_STEP, (max, Y), {"first": 40}, "first: got 40, want .* 1 to 39"),
        (ONE_STEP, (max, Y), {"first": 0}, "first: got 0"),
        (RECURSIVE, (max, Y), {"months": 0}, "months: got 0, want an integer of at"),
        (RECURSIVE, (max, [2, np.nan]), {"months": 1}, r"history: got nan at index"),
        (RECURSIVE, (max, of(STAMPS.delete(4))), {"months": 1}, r"history\.index: got"),
        (ONE_STEP, (lambda known: None, Y), {"first": 1}, r"rule\(history\): got None"),
        (
            RECURSIVE,
            (lambda known: known, Y),
            {"months": 1},
            r"rule\(history\): got 1 ax",
        ),
        (
            RECURSIVE,
            (lambda known: np.nan, Y),
            {"months": 1},
            r"rule\(history\): got nan",
        ),
        (RECURSIVE, (lambda known: known.sort(), Y), {"months": 1}, ".*read-only"),
        (
            RULE,
            (Copy(1, 2), TRANSFORM),
            {"window": 1},
            "net: got .*output_size 2, want 1",
        ),
        (RULE, (Copy(1), None), {"window": 1}, "transform: got NoneType, want"),
        (RULE, (Copy(1), TRANSFORM), {"window": 0}, "window: got 0"),
        (NETWORK, (Y[:12],), {}, "history: got 12 months, want at least 13"),
    ],
)
def test_calls_that_cannot_be(call, arguments, options, message):
    with pytest.raises((ValueError, TypeError), match=f"^{message}"):
        call(*arguments, **options)


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
    given = of(MONTHLY[:2]) + 1
    path = forecast.recursive(lambda known: known[-2:].sum(), given, months=4)
    np.testing.assert_array_equal(path, [5, 8, 13, 21])
    assert given.tolist() == [2, 3]


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
