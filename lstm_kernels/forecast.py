"""Forecasts of the airline series, one month and many months ahead, and the baselines to beat.

A series is (N,) finite real numbers: an array, a list or a pandas Series. Anything else, and a
month or size that the series does not have, is a TypeError or ValueError.
"""

import numpy as np
from scipy.optimize import minimize

from .errors import check_int, check_numbers


def one_step(net, transform, passengers, window, first):
    """Forecast each month from `first` on, from the true months before it.

    net: trained on windows of `window` values of `transform`. passengers: (N,). first: at least
    window + 1, the months before it that a window needs. Returns (N - first,).
    """
    window = check_int("window", window)
    passengers, first = _split(passengers, first, window + 1)
    z = transform.forward(passengers)  # z[t] leads from month t to month t + 1
    rows = [z[t - 1 - window : t - 1] for t in range(first, len(passengers))]
    x = np.array(rows, net.params().dtype).T[..., None]
    return transform.backward(passengers[first - 1 : -1], net.predict(x)[:, 0])


def recursive(net, transform, passengers, window, months):
    """Forecast the `months` months after `passengers` (N,), N > window, each from the forecasts
    before it. Returns (months,).
    """
    window, history = check_int("window", window), check_numbers("passengers", passengers).tolist()
    if len(history) <= window:
        raise ValueError(
            f"passengers: got {len(history)} months, want at least {window + 1} for a window of "
            f"{window} differences"
        )
    for _ in range(check_int("months", months)):
        z = transform.forward(history[-window - 1 :])
        x = z.astype(net.params().dtype)[:, None, None]
        history.append(float(transform.backward(history[-1], net.predict(x)[0, 0])))
    return np.array(history[-months:])


def persistence(passengers, first):
    """Each month from `first` on is as the month before it."""
    passengers, first = _split(passengers, first, 1)
    return passengers[first - 1 : -1]


def seasonal_naive(passengers, first, period=12):
    """Each month from `first` on is as the same month a year before."""
    period = check_int("period", period)
    passengers, first = _split(passengers, first, period)
    return passengers[first - period : len(passengers) - period]


def _split(series, first, needs, name="passengers"):
    """The series, and `first`, the first month to forecast, which needs `needs` months before."""
    series = check_numbers(name, series)
    return series, check_int("first", first, needs, len(series) - 1)


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
        bounds = [(1e-4, 1 - 1e-4)] * 3 + [(None, None)] * 2 + [(0.1, 10)] * m
        scale = np.r_[1, 1, 1, level, level / m, np.ones(m)]  # the optimiser sees numbers near one

        def cost(theta):
            return np.sum((self.smooth(y, theta * scale)[0] - y) ** 2) / level**2

        found = minimize(
            cost,
            start / scale,
            bounds=[
                (None if low is None else low / s, None if high is None else high / s)
                for (low, high), s in zip(bounds, scale, strict=True)
            ],
        )
        self.theta = found.x * scale
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

    def one_step(self, y, first):
        """Forecasts of y[first:], each from the true values before it."""
        y, first = _split(y, first, 0, "y")
        return self.smooth(y, self.theta)[0][first:]

    def ahead(self, y, months):
        """Forecasts of the `months` values after y."""
        y, steps = check_numbers("y", y), np.arange(1, check_int("months", months) + 1)
        level, trend, season = self.smooth(y, self.theta)[1]
        return (level + trend * steps) * np.array(season)[(len(y) + steps - 1) % self.period]


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
