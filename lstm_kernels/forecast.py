"""Forecasts of the airline series, one month and many months ahead, and the baselines
to beat.

A *rule* forecasts the month after a history, the (N,) months so far: rule(history) is a
float. `one_step` hands it the true months, `recursive` its own forecasts. A history or
series is finite real numbers: an array, a list or a pandas Series, of which an index of
months has every one once, the oldest first. Anything else, and a history shorter than
the rule needs, is a TypeError or ValueError.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .data import LogDifference, check_series, dates_of
from .errors import check_int, extra

Rule = Callable[[np.ndarray], float]


def one_step(rule: Rule, series: ArrayLike, *, first: int) -> np.ndarray:
    """Forecast each month of `series` (N,) from `first` on, from the true months before
    it.

    Returns (N - first,).
    """
    series = check_series("series", series)
    first = check_int("first", first, 1, len(series) - 1)
    return np.array([rule(series[:month]) for month in range(first, len(series))])


def recursive(rule: Rule, series: ArrayLike, *, months: int) -> np.ndarray:
    """Forecast the `months` months after `series` (N,), each from the forecasts before
    it.

    Returns (months,).
    """
    path = check_series("series", series)
    for _ in range(check_int("months", months)):
        path = np.append(path, rule(path))
    return path[-months:]


def persistence(history: ArrayLike) -> float:
    """The next month is as the last."""
    return _history(history, 1)[-1]


def seasonal_naive(history: ArrayLike, period: int = 12) -> float:
    """The next month is as the same month of the last period."""
    return _history(history, check_int("period", period))[-period]


def seasonal_growth(history: ArrayLike, period: int = 12) -> float:
    """The last month times last year's growth: y_{t-1} y_{t-period} /
    y_{t-period-1}.
    """
    history = _history(history, check_int("period", period) + 1, positive=True)
    return history[-1] * history[-period] / history[-period - 1]


def network_rule(net: Any, transform: LogDifference, *, window: int) -> Rule:
    """The rule of a network trained on windows of `window` values of `transform`."""
    window, dtype = check_int("window", window), net.params().dtype

    def rule(history):
        history = _history(history, window + 1)
        z = transform.forward(history[-window - 1 :]).astype(dtype)
        return transform.backward(history[-1], net.predict(z[:, None, None])[0, 0])

    return rule


def _history(history: ArrayLike, least: int, *, positive: bool = False) -> np.ndarray:
    """`history` as an array of at least `least` months."""
    history = check_series("history", history, positive=positive)
    if len(history) < least:
        raise ValueError(f"history: got {len(history)} months, want at least {least}")
    return history


def holt_winters(history: ArrayLike, period: int = 12) -> Rule:
    """The rule of exponential smoothing with additive trend and multiplicative season
    (Winters 1960), constants and initial state fitted to `history` (N,): above zero,
    two periods at least.

    What the rule forecasts from begins with the same month. Needs statsmodels.
    """
    with extra():
        from statsmodels.tsa.holtwinters import ExponentialSmoothing  # slow to import

    least = 2 * check_int("period", period)

    def model(history, **start):
        history = _history(history, least, positive=True)
        form = {"trend": "add", "seasonal": "mul", "seasonal_periods": period}
        return ExponentialSmoothing(history, **form, **start)

    fitted = model(history).fit().params
    constants = {n: fitted[n] for n in fitted if n.startswith("smoothing_")}
    start = {n: fitted[n] for n in ("initial_level", "initial_trend")}
    start |= {"initialization_method": "known"}
    start |= {"initial_seasonal": fitted["initial_seasons"]}

    def rule(history):
        return model(history, **start).fit(**constants, optimized=False).forecast(1)[0]

    return rule


def errors(forecast: ArrayLike, truth: ArrayLike) -> dict[str, float]:
    """Root mean squared and mean absolute error, in the series' unit, and MAPE in per
    cent.

    forecast, truth: (N,), of the same months. A month whose truth is zero has no
    percentage: ValueError.
    """
    months, others = dates_of(truth), dates_of(forecast)
    truth = check_series("truth", truth)
    difference = check_series("forecast", forecast, truth.shape) - truth
    if not (months is None or others is None or _same(months, others)):
        got, want = f"{others[0]} to {others[-1]}", f"{months[0]} to {months[-1]}"
        raise ValueError(f"forecast.index: got {got}, want truth's, {want}")
    if not truth.all():
        zero = np.argmin(truth != 0)
        raise ValueError(f"truth: got 0.0 at index {zero}, want no zero")
    return {
        "RMSE": float(np.sqrt(np.mean(difference**2))),
        "MAE": float(np.mean(np.abs(difference))),
        "MAPE": float(100 * np.mean(np.abs(difference / truth))),
    }


def _same(dates, others):
    """Whether two pandas indices are of the same dates; a period has all of its own."""
    if type(dates) is not type(others):
        periods = next(index for index in (dates, others) if hasattr(index, "qyear"))
        dates, others = (
            index
            if index is periods
            else index.tz_localize(None).to_period(periods.freq)
            for index in (dates, others)
        )
    return bool((dates == others).all())
