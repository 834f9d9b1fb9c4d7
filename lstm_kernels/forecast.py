"""Forecasts of the airline series, one month and many months ahead, and the baselines
to beat.

A *rule* forecasts the month after a history, the (N,) months so far: rule(history) is a
float. `one_step` hands it the true months, `recursive` its own forecasts. A history or
series is finite real numbers: an array, a list or a pandas Series. Anything else, and a
history shorter than the rule needs, is a TypeError or ValueError.
"""

import numpy as np

from .errors import check_int, check_numbers, extra


def one_step(rule, series, *, first):
    """Forecast each month of `series` (N,) from `first` on, from the true months before
    it.

    Returns (N - first,).
    """
    series = check_numbers("series", series)
    first = check_int("first", first, 1, len(series) - 1)
    return np.array([rule(series[:month]) for month in range(first, len(series))])


def recursive(rule, series, *, months):
    """Forecast the `months` months after `series` (N,), each from the forecasts before
    it.

    Returns (months,).
    """
    path = check_numbers("series", series)
    for _ in range(check_int("months", months)):
        path = np.append(path, rule(path))
    return path[-months:]


def persistence(history):
    """The next month is as the last."""
    return _history(history, 1)[-1]


def seasonal_naive(history, period=12):
    """The next month is as the same month of the last period."""
    return _history(history, check_int("period", period))[-period]


def seasonal_growth(history, period=12):
    """The last month times last year's growth: y_{t-1} y_{t-period} /
    y_{t-period-1}.
    """
    history = _history(history, check_int("period", period) + 1, positive=True)
    return history[-1] * history[-period] / history[-period - 1]


def network_rule(net, transform, *, window):
    """The rule of a network trained on windows of `window` values of `transform`."""
    window, dtype = check_int("window", window), net.params().dtype

    def rule(history):
        history = _history(history, window + 1)
        z = transform.forward(history[-window - 1 :]).astype(dtype)
        return transform.backward(history[-1], net.predict(z[:, None, None])[0, 0])

    return rule


def _history(history, least, *, positive=False):
    """`history` as an array of at least `least` months."""
    history = check_numbers("history", history, positive=positive)
    if len(history) < least:
        raise ValueError(f"history: got {len(history)} months, want at least {least}")
    return history


def holt_winters(history, period=12):
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


def errors(forecast, truth):
    """Root mean squared and mean absolute error, in the series' unit, and MAPE in per
    cent.

    forecast, truth: (N,); a month whose truth is zero has no percentage: ValueError.
    """
    truth = check_numbers("truth", truth)
    difference = check_numbers("forecast", forecast, truth.shape) - truth
    if not truth.all():
        zero = np.argmin(truth != 0)
        raise ValueError(f"truth: got 0.0 at index {zero}, want no zero")
    return {
        "RMSE": float(np.sqrt(np.mean(difference**2))),
        "MAE": float(np.mean(np.abs(difference))),
        "MAPE": float(100 * np.mean(np.abs(difference / truth))),
    }
