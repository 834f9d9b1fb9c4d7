"""The figures and the tables of notebook 02."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from lstm_kernels.forecast import errors

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
    ax.set(xlabel="month, 1949 to 1960", ylabel=THOUSANDS)
    grows = f"The level grows {rise:.1f}x from the first year to the last"
    ax.set_title(f"{grows}, the season {swing:.1f}x")
    return figure


def validation(rmse, every, best):
    """The validation error after each `every` epochs."""
    figure, ax = plt.subplots(figsize=(8, 3.4))
    epochs = every * np.arange(1, len(rmse) + 1)
    ax.plot(epochs, rmse, color=plots.RED, marker="o", markersize=3)
    ax.axvline(best, color=plots.GREY, linestyle=":")
    ax.set(xlabel="epochs", ylabel="RMSE (thousands of passengers)")
    ax.set_title(f"Error on 1957–1958: least at {best} epochs")
    return figure


def scores(truth, forecasts, members):
    """The errors of each rule's forecasts, and the medians of the LSTM's members', best
    first.
    """
    table = pd.DataFrame(
        {name: errors(values, truth) for name, values in forecasts.items()}
    ).T
    single = pd.DataFrame([errors(values, truth) for values in members])
    table.loc[f"one LSTM, median of {len(members)}"] = single.median()
    table.columns = ["RMSE (thousands)", "MAE (thousands)", "MAPE (%)"]
    return table.sort_values("RMSE (thousands)")


def forecasts(dates, truth, rules, members, horizon):
    """Forecasts by rule against the truth; the LSTM's with the band of 8 in 10
    `members`.
    """
    figure, ax = plt.subplots(figsize=(9, 4.8))
    ax.plot(dates, truth, color=plots.BLACK, linewidth=2.5)
    ends, rmse = [(dates[-1], truth[-1], "truth", plots.BLACK)], {}
    for name, values in rules.items():
        colour, marker = RULES[name]
        ax.plot(dates, values, color=colour, marker=marker, markersize=4, linewidth=1.2)
        rmse[name] = errors(values, truth)["RMSE"]
        ends.append((dates[-1], values[-1], f"{name}: {rmse[name]:.3g}", colour))
    ax.fill_between(
        dates, *np.percentile(members, (10, 90), axis=0), color=plots.RED, alpha=0.2
    )
    ax.set(xlabel="month, 1959 and 1960", ylabel=THOUSANDS)
    plots.label_lines(ax, ends)
    best = min(rmse, key=rmse.get)
    ax.set_title(f"{horizon} {best} errs least (labels: RMSE in thousands)")
    return figure


def _until(runs, unit):
    """The rows of `runs` up to where the first batch size ends, in epochs or in
    seconds.
    """
    return runs[runs[unit] <= (1 + 1e-9) * runs.groupby("batch")[unit].max().min()]


def batch_table(runs):
    """Each batch size with its rate, its time, and its median loss where `batch_sizes`
    ends.

    runs: a record of each batch size, seed and epoch: batch, seed, epochs, seconds,
    loss, and the constants of a batch size, steps per epoch and learning rate.
    """
    runs = pd.DataFrame(runs)
    by_size = runs.groupby("batch", sort=False)
    table = by_size[["steps per epoch", "learning rate"]].first()
    table["time of an epoch (ms)"] = 1e3 * by_size["seconds"].min()
    for unit in ("epochs", "seconds"):
        part = _until(runs, unit)
        last = part[part["epochs"] == part.groupby("batch")["epochs"].transform("max")]
        name = f"loss after {part[unit].max():.3g} {unit} (std²)"
        table[name] = last.groupby("batch")["loss"].median()
    return table.rename_axis(index=None)


def batch_sizes(runs):
    """Training loss by epoch and by second: the median over the seeds, and their range;
    runs: as of `batch_table`.
    """
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.2), sharey=True)
    table = batch_table(runs)
    runs = pd.DataFrame(runs)
    labels = {}
    for ax, unit, end in zip(
        axes, ("epochs", "seconds"), table.columns[-2:], strict=True
    ):
        ax.set(xlabel=unit, yscale="log")
        ax.set_title(f"After the same {unit}: {table[end].idxmin()} leads")
        for (size, part), colour in zip(
            _until(runs, unit).groupby("batch", sort=False),
            (plots.ORANGE, plots.RED, plots.BLUE),
            strict=False,
        ):
            by = part.groupby(unit)["loss"]
            middle = by.median()
            ax.plot(middle, color=colour)
            ax.fill_between(middle.index, by.min(), by.max(), color=colour, alpha=0.2)
            end_of_line = (middle.index[-1], middle.iloc[-1], size, colour)
            labels.setdefault(ax, []).append(end_of_line)
    axes[0].set_ylabel("training loss (std²)")
    for ax, ends in labels.items():  # once both have drawn: they share an axis
        plots.label_lines(ax, ends)
    return figure
