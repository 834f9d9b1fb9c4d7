"""The figures of notebook 02. Each has an attribute `alt`, which says in words what it shows."""

import matplotlib.pyplot as plt
import numpy as np

from . import plots


def series(dates, passengers, first):
    """The airline series, its last years marked as test years from index `first`."""
    figure, ax = plt.subplots()
    ax.plot(dates, passengers, color=plots.BLACK)
    ax.axvspan(dates[first], dates[-1], color="#eeeeee")
    ax.annotate("test years", (dates[first], 150), (6, 0), textcoords="offset points")
    ax.set(ylabel="passengers (thousands)")
    ax.set_title("The trend rises, and the season grows with it")
    figure.alt = (
        f"Monthly airline passengers from 1949 to 1960, rising from {passengers[0]:.0f} to "
        f"{passengers[-1]:.0f} thousand with a summer peak that grows with the level; the last "
        f"{len(passengers) - first} months are shaded as test years."
    )
    return figure


def preprocessing(dates, passengers, z):
    """The logarithm of the series above its scaled growth."""
    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(8, 5))
    above.plot(dates, np.log(passengers), color=plots.BLACK)
    above.set(ylabel="log passengers", title="After the logarithm the season has one size")
    below.plot(dates[1:], z, color=plots.BLUE)
    below.set(ylabel="scaled growth z", title="After the difference the trend is gone")
    figure.alt = (
        "Two panels over 1949 to 1960: the logarithm of the series with a season of constant "
        "size, and the scaled monthly growth, which moves around zero without trend."
    )
    return figure


def validation(losses, errors, every, best):
    """Training losses (seeds, epochs) beside the validation error after each `every` epochs."""
    epochs = every * np.arange(1, len(errors) + 1)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8))
    left.plot(
        np.arange(1, len(losses[0]) + 1), np.transpose(losses), color=plots.SKY, linewidth=0.7
    )
    left.set(yscale="log", xlabel="epoch", ylabel="training loss (scaled growth squared)")
    left.set_title("Training loss, a line per seed")
    right.plot(epochs, errors, color=plots.RED, marker="o", markersize=3)
    right.axvline(best, color=plots.GREY, linestyle=":")
    right.annotate(f"lowest at {best}", (best, max(errors)), (5, -2), textcoords="offset points")
    right.set(xlabel="epoch", ylabel="RMSE (thousands)", title="Error on years not trained on")
    figure.alt = (
        "Left: training loss of each seed over the epochs on a log axis. Right: one-step error "
        f"of the ensemble on 1957 to 1958, lowest at epoch {best}."
    )
    return figure


def forecasts(dates, truth, guesses, band, title):
    """Forecasts by name against the truth, and the band between percentiles 10 and 90 of `band`."""
    figure, ax = plt.subplots(figsize=(9, 4.6))
    ax.fill_between(dates, *np.percentile(band, [10, 90], axis=0), color=plots.RED, alpha=0.2)
    ax.plot(dates, truth, color=plots.BLACK, linewidth=2.5, label="truth")
    for (name, values), marker in zip(guesses.items(), "osv^", strict=True):
        style = {"color": plots.COLOURS[name], "marker": marker, "markersize": 4, "linewidth": 1.2}
        ax.plot(dates, values, label=name, **style)
    ax.set(ylabel="passengers (thousands)", title=title)
    ax.set_ylim(top=1.25 * max(truth))  # room for the names: the lines end too close together
    ax.legend(ncols=3, loc="upper left", fontsize=9)
    spread = {name: np.abs(values - truth).max() for name, values in guesses.items()}
    figure.alt = "Forecasts of 1959 and 1960 against the truth. Largest distance in thousands: "
    figure.alt += ", ".join(f"{name} {value:.0f}" for name, value in spread.items()) + "."
    return figure


def batch_sizes(runs, last_epoch, last_second, leaders):
    """Loss by epoch beside loss by second; runs: name -> (learning rate, History).

    leaders: the names with the lowest loss at the end of either panel.
    """
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 4), sharey=True)
    colours = (plots.ORANGE, plots.RED, plots.BLUE)
    for (name, (rate, run)), colour, marker in zip(runs.items(), colours, "osD", strict=True):
        times = np.arange(1, run.epochs + 1), np.cumsum(run.seconds)
        for ax, x, end in zip(axes, times, (last_epoch, last_second), strict=True):
            x, loss = x[x <= end], np.array(run.loss)[x <= end]
            ax.plot(x, loss, color=colour, marker=marker, markevery=0.2, markersize=4)
            text = f"{name}\nrate {rate:g}"
            plots.label_line(ax, x[-1], loss[-1], text, colour, fontsize=9)
    axes[0].set(yscale="log", xlabel="epoch", ylabel="training loss (scaled growth squared)")
    axes[1].set(xlabel="seconds")
    for ax, unit, leader in zip(axes, ("epoch", "second"), leaders, strict=True):
        ax.margins(x=0.3)
        ax.set_xlim(left=0)
        ax.set_title(f"By {unit}: {leader} leads")
    figure.alt = (
        "Training loss on a log axis of stochastic, mini-batch and full-batch gradient descent: "
        f"left over epochs, where {leaders[0]} ends lowest, right over seconds, where "
        f"{leaders[1]} does."
    )
    return figure
