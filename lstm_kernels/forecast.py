"""Forecasts of a series of months, one month ahead, and their errors.

A *rule* forecasts the month after a history, the (N,) months so far, read-only:
rule(history) is a finite number. A series is finite real numbers: an array, a list or a
pandas Series whose dates go forward without a gap. Anything else is a TypeError or
ValueError.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .data import LogDifference, check_series, dates_of
from .errors import check_int, check_numbers, check_type

Rule = Callable[[np.ndarray], float]


def one_step(rule: Rule, series: ArrayLike, *, first: int) -> np.ndarray:
    """Forecast each month of `series` (N,) from `first` on, from the true months before
    it.

    Returns (N - first,).
    """
    series = check_series("series", series)
    first = check_int("first", first, 1, len(series) - 1)
    return np.array([_next(rule, series[:n]) for n in range(first, len(series))])


def recursive(rule: Rule, history: ArrayLike, *, months: int) -> np.ndarray:
    """Forecast the `months` after `history` (N,), each from the forecasts before it, as
    if these had come true. Returns (months,).
    """
    path = check_series("history", history)
    for _ in range(check_int("months", months)):
        path = np.append(path, _next(rule, path))
    return path[-months:]


def _next(rule, history):
    check_type("rule", rule, Callable, "a function of a history")
    history.flags.writeable = False
    return check_numbers("rule(history)", rule(history), ())


def network_rule(net: Any, transform: LogDifference, *, window: int) -> Rule:
    """The rule of a network trained on windows of `window` values of `transform`. It
    raises ValueError for a history of `window` months or fewer. Raises ValueError for a
    network of several inputs or outputs.
    """
    check_type("transform", transform, LogDifference)
    if not hasattr(net, "predict"):
        check_type("net", net, (), "a network of lstm_kernels.network")
    window, params = check_int("window", window), net.params()
    if (params.input_size, params.output_size) != (1, 1):
        got = f"input_size {params.input_size}, output_size {params.output_size}"
        raise ValueError(f"net: got {got}, want 1 of each")

    def rule(history):
        months = check_series("history", history)
        if len(months) <= window:
            got, want = f"{len(months)} months", f"at least {window + 1}"
            raise ValueError(f"history: got {got}, want {want}")
        z = transform.forward(months[-window - 1 :]).astype(params.dtype)
        return transform.backward(months[-1], net.predict(z[:, None, None])[0, 0])

    return rule


def errors(forecast: ArrayLike, truth: ArrayLike) -> dict[str, float]:
    """Root mean squared and mean absolute error, in the series' unit, and MAPE in per
    cent.

    forecast, truth: (N,), of the same dates where both have some, else ValueError. A
    month whose truth is zero has no percentage: ValueError.
    """
    months, others = (
        dates.to_timestamp() if hasattr(dates, "to_timestamp") else dates
        for dates in (dates_of(truth), dates_of(forecast))
    )
    truth = check_series("truth", truth)
    difference = check_series("forecast", forecast, truth.shape) - truth
    if months is not None and others is not None and not others.equals(months):
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
