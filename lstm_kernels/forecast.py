"""Forecasts of the airline series, one month and many months ahead, and the baselines to beat."""

import numpy as np
from scipy.optimize import minimize

from .errors import check_int


def one_step(net, transform, passengers, window, first):
    """Forecast each month from `first` on, from the true months before it.

    net: trained on windows of `window` values of `transform`. passengers: (N,). Returns (N -
    first,).
    """
    z = transform.forward(passengers)  # z[t] leads from month t to month t + 1
    rows = [z[t - 1 - window : t - 1] for t in range(first, len(passengers))]
    x = np.array(rows, net.params().dtype).T[..., None]
    return transform.backward(passengers[first - 1 : -1], net.predict(x)[:, 0])


def recursive(net, transform, passengers, window, months):
    """Forecast the `months` months after `passengers`, each from the forecasts before it. Returns
    (months,).
    """
    history = list(np.asarray(passengers, float))
    for _ in range(check_int("months", months)):
        z = transform.forward(history[-window - 1 :])
        x = z.astype(net.params().dtype)[:, None, None]
        history.append(float(transform.backward(history[-1], net.predict(x)[0, 0])))
    return np.array(history[len(passengers) :])


def persistence(passengers, first):
    """Each month from `first` on is as the month before it."""
    return np.asarray(passengers, float)[first - 1 : -1]


def seasonal_naive(passengers, first, period=12):
    """Each month from `first` on is as the same month a year before."""
    return np.asarray(passengers, float)[first - period : len(passengers) - period]


class HoltWinters:
    """Exponential smoothing with additive trend and multiplicative season (Winters 1960).

    level_t = alpha y_t / s_{t-m} + (1 - alpha)(level_{t-1} + trend_{t-1}), trend_t = beta (level_t
    - level_{t-1}) + (1 - beta) trend_{t-1}, s_t = gamma y_t / (level_{t-1} + trend_{t-1}) + (1 -
    gamma) s_{t-m}. `fit` chooses alpha, beta, gamma and the initial state by least squares of the
    one-step errors.
    """

    def __init__(self, period=12):
        self.period = period

    def fit(self, y):
        y, m = np.asarray(y, float), self.period
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
        return self.smooth(y, self.theta)[0][first:]

    def ahead(self, y, months):
        """Forecasts of the `months` values after y."""
        level, trend, season = self.smooth(y, self.theta)[1]
        steps = np.arange(1, months + 1)
        return (level + trend * steps) * np.array(season)[(len(y) + steps - 1) % self.period]


def errors(forecast, truth):
    """Root mean squared and mean absolute error, in the series' unit, and MAPE in per cent."""
    difference = np.asarray(forecast) - np.asarray(truth)
    return {
        "RMSE": float(np.sqrt(np.mean(difference**2))),
        "MAE": float(np.mean(np.abs(difference))),
        "MAPE": float(100 * np.mean(np.abs(difference) / truth)),
    }
