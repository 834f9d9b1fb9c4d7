"""The figures and the table of notebook 02. A figure's attribute `alt` says what it shows."""

from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns

from ..forecast import errors
from . import plots

THOUSANDS = "passengers (thousands)"
RULES = {
    "LSTM": (plots.RED, "o"),
    "Holt–Winters": (plots.BLUE, "s"),
    "last year's growth": (plots.PURPLE, "D"),
    "seasonal-naive": (plots.GREEN, "v"),
    "persistence": (plots.ORANGE, "^"),
}


def series(dates, passengers, first):
    """The airline series, its last years marked as test years from index `first`."""
    figure, ax = plt.subplots()
    ax.plot(dates, passengers, color=plots.BLACK)
    ax.axvspan(dates[first], dates[-1], color="#eeeeee")
    ax.annotate("test years", (dates[first], 150), (6, 0), textcoords="offset points")
    rise = passengers[-12:].mean() / passengers[:12].mean()
    swing = np.ptp(passengers[-12:]) / np.ptp(passengers[:12])
    ax.set(xlabel="month", ylabel=THOUSANDS)
    ax.set_title(
        f"The level grows {rise:.1f}x from the first year to the last, the season {swing:.1f}x"
    )
    figure.alt = (
        f"Monthly airline passengers from 1949 to 1960, rising from {passengers[0]:.0f} to "
        f"{passengers[-1]:.0f} thousand with a summer peak that grows with the level; the last "
        f"{len(passengers) - first} months are shaded as test years."
    )
    return figure


def preprocessing(dates, passengers, z):
    """The logarithm of the series above its scaled growth."""
    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(8, 5))
    log = np.log(passengers)
    above.plot(dates, log, color=plots.BLACK)
    swing = np.ptp(log[-12:]) / np.ptp(log[:12])
    above.set(ylabel="log of thousands", title=f"In the logarithm the season grows {swing:.1f}x")
    below.plot(dates[1:], z, color=plots.BLUE)
    below.set(xlabel="month", ylabel="scaled growth z (std)")
    drift = np.abs([z[at : at + 12].mean() for at in range(len(z) - 11)]).max()
    below.set_title(
        f"After the difference the mean of twelve months stays within {drift:.1f} std of 0"
    )
    figure.alt = (
        "Two panels over 1949 to 1960: the logarithm of the series with a season of nearly "
        "constant size, and the scaled monthly growth, which moves around zero without trend."
    )
    return figure


def validation(losses, rmse, every, best):
    """Training losses (seeds, epochs) beside the validation error after each `every` epochs."""
    losses = np.asarray(losses)
    last = np.median(losses[:, -1])
    epochs = every * np.arange(1, len(rmse) + 1)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8))
    _spread(left, np.arange(1, losses.shape[1] + 1), losses, 100, color=plots.SKY)
    left.set(yscale="log", xlabel="epochs", ylabel="training loss (std²)")
    left.set_title(f"Training loss of {len(losses)} seeds: median ends at {last:.1g} std²")
    right.plot(epochs, rmse, color=plots.RED, marker="o", markersize=3)
    right.axvline(best, color=plots.GREY, linestyle=":")
    right.set(xlabel="epochs", ylabel="RMSE (thousands of passengers)")
    right.set_title(f"Error on 1957–1958: least at {best} epochs")
    figure.alt = (
        "Left: training loss over the epochs on a log axis, median and range of the seeds. Right: "
        f"one-step error of the ensemble on 1957 to 1958, lowest after {best} epochs."
    )
    return figure


def _spread(ax, x, rows, percent, **style):
    """The median of `rows` (seeds, N), and a band that holds `percent` of them."""
    x, y = np.tile(x, len(rows)), np.ravel(rows)
    sns.lineplot(x=x, y=y, estimator="median", errorbar=("pi", percent), ax=ax, **style)


def scores(truth, forecasts, members):
    """The errors of each rule's forecasts, and the medians of the LSTM's members', best first."""
    table = pd.DataFrame({name: errors(values, truth) for name, values in forecasts.items()}).T
    single = pd.DataFrame([errors(values, truth) for values in members])
    table.loc[f"one LSTM, median of {len(members)}"] = single.median()
    table.columns = ["RMSE (thousands)", "MAE (thousands)", "MAPE (%)"]
    return table.sort_values("RMSE (thousands)")


def forecasts(dates, truth, rules, members, horizon):
    """Forecasts by rule against the truth; the LSTM's with the band of 8 in 10 `members`."""
    figure, ax = plt.subplots(figsize=(9, 4.8))
    rmse = {name: errors(values, truth)["RMSE"] for name, values in rules.items()}
    ax.plot(dates, truth, color=plots.BLACK, linewidth=2.5)
    for name, values in rules.items():
        colour, marker = RULES[name]
        style = {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1.2}
        if name == "LSTM":
            _spread(ax, dates, members, 80, markeredgewidth=0, **style)
        else:
            ax.plot(dates, values, **style)
    ends = [
        (dates[-1], values[-1], f"{n}: {rmse[n]:.3g}", RULES[n][0]) for n, values in rules.items()
    ]
    ax.set(xlabel="month", ylabel=THOUSANDS)
    plots.label_lines(ax, [*ends, (dates[-1], truth[-1], "truth", plots.BLACK)])
    best = min(rmse, key=rmse.get)
    ax.set_title(f"{horizon} {best} errs least (labels: RMSE in thousands)")
    figure.alt = f"{horizon} forecasts of 1959 and 1960 against the truth. RMSE in thousands: "
    figure.alt += ", ".join(f"{name} {value:.3g}" for name, value in rmse.items()) + "."
    return figure


class Descent(NamedTuple):
    """Runs of gradient descent from several seeds with the best learning rate of a batch size."""

    steps: int  # of an epoch
    rate: float
    seconds: float  # of an epoch
    losses: np.ndarray  # (seeds, epochs)


def _cut(descents, unit):
    """Epochs or seconds (epochs,) and losses (seeds, epochs) by name, up to where the first run
    ends.
    """
    scales = {name: 1 if unit == "epochs" else run.seconds for name, run in descents.items()}
    end = min(scales[name] * run.losses.shape[1] for name, run in descents.items())
    curves = {}
    for name, run in descents.items():
        epochs = np.arange(1, max(1, int(end / scales[name] + 1e-9)) + 1)
        curves[name] = epochs * scales[name], run.losses[:, : len(epochs)]
    return curves


def batch_table(descents):
    """Each batch size with its rate, its time, and its loss where `batch_sizes` ends."""
    rows = {
        name: {
            "steps per epoch": run.steps,
            "learning rate": run.rate,
            "time of an epoch (ms)": 1e3 * run.seconds,
        }
        for name, run in descents.items()
    }
    for unit in ("epochs", "seconds"):
        curves = _cut(descents, unit)
        end = max(x[-1] for x, _ in curves.values())
        for name, (_, losses) in curves.items():
            rows[name][f"loss after {end:.3g} {unit} (std²)"] = np.median(losses[:, -1])
    return pd.DataFrame(rows).T


def batch_sizes(descents):
    """Training loss by epoch and by second: the median over the seeds, and their range."""
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.2), sharey=True)
    colours, leaders, labels = (plots.ORANGE, plots.RED, plots.BLUE), [], []
    for ax, unit in zip(axes, ("epochs", "seconds"), strict=True):
        ends = []
        for (name, (x, losses)), colour in zip(_cut(descents, unit).items(), colours, strict=True):
            _spread(ax, x, losses, 100, color=colour)
            ends.append((x[-1], np.median(losses[:, -1]), name, colour))
        leaders.append(min(ends, key=lambda end: end[1])[2])
        labels.append(ends)
        ax.set(yscale="log", xlabel=unit, ylabel="training loss (std²)")
        ax.set(xlim=(0, 1.45 * max(end[0] for end in ends)))
        ax.set_title(f"After the same {unit}: {leaders[-1]} leads")
    for ax, ends in zip(axes, labels, strict=True):  # once both have drawn: they share an axis
        plots.label_lines(ax, ends)
    figure.alt = (
        "Training loss on a log axis of stochastic, mini-batch and full-batch gradient descent, "
        f"median and range of {len(losses)} seeds: left over epochs, where {leaders[0]} ends "
        f"lowest, right over seconds, where {leaders[1]} does."
    )
    return figure
