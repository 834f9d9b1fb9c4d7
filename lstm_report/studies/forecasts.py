"""Rules that the LSTM of page 02 competes with.

A rule is one of `lstm_kernels.forecast`: rule(history) is the month after the (N,)
months so far, an array of float64, all above zero.
"""

import numpy as np
from statsmodels.tsa.holtwinters import ExponentialSmoothing

from lstm_kernels.forecast import Rule

YEAR = 12


def persistence(history: np.ndarray) -> float:
    """The next month is as the last."""
    return history[-1]


def seasonal_naive(history: np.ndarray) -> float:
    """The next month is as the same month of the last year."""
    return history[-YEAR]


def seasonal_growth(history: np.ndarray) -> float:
    """The last month times last year's growth: y_{t-1} y_{t-12} / y_{t-13}."""
    return history[-1] * history[-YEAR] / history[-YEAR - 1]


def holt_winters(history: np.ndarray) -> Rule:
    """The rule of exponential smoothing with additive trend and multiplicative season
    (Winters 1960), constants and initial state fitted to `history` (N,), two years at
    least. What the rule forecasts from begins with the same month.
    """
    form = {"trend": "add", "seasonal": "mul", "seasonal_periods": YEAR}
    fitted = ExponentialSmoothing(history, **form).fit().params
    constants = {n: fitted[n] for n in fitted if n.startswith("smoothing_")}
    start = {n: fitted[n] for n in ("initial_level", "initial_trend")}
    start |= {"initialization_method": "known"}
    start |= {"initial_seasonal": fitted["initial_seasons"]}

    def rule(history):
        model = ExponentialSmoothing(history, **form, **start)
        return model.fit(**constants, optimized=False).forecast(1)[0]

    return rule
