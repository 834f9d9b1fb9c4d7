"""Forecasts of the airline series, one month and many months ahead, and the baselines to beat.

A *rule* forecasts the month after a history, the (N,) months so far: rule(history) is a float.
`one_step` hands it the true months, `recursive` its own forecasts. A history or series is finite
real numbers: an array, a list or a pandas Series. Anything else, and a history shorter than the
rule needs, is a TypeError or ValueError.
"""

import numpy as np
from scipy.optimize import Bounds, minimize

from .errors import check_int, check_numbers


def one_step(rule, series, *, first):
    """Forecast each month of `series` (N,) from `first` on, from the true months before it.

    Returns (N - first,).
    """
    series = check_numbers("series", series)
    first = check_int("first", first, 1, len(series) - 1)
    return np.array([rule(series[:month]) for month in range(first, len(series))])


def recursive(rule, series, *, months):
    """Forecast the `months` months after `series` (N,), each from the forecasts before it.

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
    """The last month times last year's growth: y_{t-1} y_{t-period} / y_{t-period-1}."""
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


class HoltWinters:
    """Exponential smoothing with additive trend and multiplicative season (Winters 1960).

    level_t = alpha y_t / s_{t-m} + (1 - alpha)(level_{t-1} + trend_{t-1}), trend_t = beta (level_t
    - level_{t-1}) + (1 - beta) trend_{t-1}, s_t = gamma y_t / (level_{t-1} + trend_{t-1}) + (1 -
    gamma) s_{t-m}. `fit` chooses alpha, beta, gamma and the initial state by least squares of the
    one-step errors.
    """

    def __init__(self, period=12):
        self.period = check_int("period", period)

    def fit(self, y):
        """Fit to y (N,), above zero, at least two periods; returns self."""
        y, m = check_numbers("y", y, positive=True), self.period
        if len(y) < 2 * m:
            raise ValueError(f"y: got {len(y)} values, want at least two periods of {m}")
        level = y[:m].mean()
        trend = (y[m : 2 * m].mean() - level) / m
        start = np.r_[0.3, 0.05, 0.3, level, trend, y[:m] / level]
        low = np.r_[[1e-4] * 3, [-np.inf] * 2, [0.1] * m]
        high = np.r_[[1 - 1e-4] * 3, [np.inf] * 2, [10] * m]
        scale = np.r_[1, 1, 1, level, level / m, np.ones(m)]  # the optimiser sees numbers near one

        def cost(theta):
            return np.sum((self.smooth(y, theta * scale)[0] - y) ** 2) / level**2

        bounds = Bounds(low / scale, high / scale)
        self.theta = minimize(cost, start / scale, bounds=bounds).x * scale
        return self

    def smooth(self, y, theta):
        """One-step forecasts (N,) of y, and the state (level, trend, last season) after it."""
        alpha, beta, gamma, level, trend, *season = theta
        forecasts = []
        for t, value in enumerate(y):
            base, s = level + trend, season[t % self.period]
            forecasts.append(base * s)
            before, level = level, alpha * value / s + (1 - alpha) * base
            trend = beta * (level - before) + (1 - beta) * trend
            season[t % self.period] = gamma * value / base + (1 - gamma) * s
        return np.array(forecasts), (level, trend, season)

    def __call__(self, history):
        """The rule: the month after `history`, whose first month is the first that was fitted."""
        level, trend, season = self.smooth(_history(history, 1), self.theta)[1]
        return (level + trend) * season[len(history) % self.period]


def errors(forecast, truth):
    """Root mean squared and mean absolute error, in the series' unit, and MAPE in per cent.

    forecast, truth: (N,); a month whose truth is zero has no percentage: ValueError.
    """
    truth = check_numbers("truth", truth)
    difference = check_numbers("forecast", forecast, truth.shape) - truth
    if not truth.all():
        at = int(np.argmin(truth != 0))
        raise ValueError(f"truth: got 0.0 at index [{at}], want numbers with a percentage")
    return {
        "RMSE": float(np.sqrt(np.mean(difference**2))),
        "MAE": float(np.mean(np.abs(difference))),
        "MAPE": float(100 * np.mean(np.abs(difference / truth))),
    }
