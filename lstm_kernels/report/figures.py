"""The figures of the notebooks, drawn from results.

Each function returns a figure whose attribute `alt` says in words what it shows.
"""

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


def ladder(result, epochs, cores):
    """Bars of the time of `epochs` training epochs; result: median, q1, q3, ratio by version."""
    notes = {
        name: f"{1e3 * row['median']:.4g} ms, {row['ratio']:.0f}x"
        for name, row in result.iterrows()
    }
    figure, ax = plt.subplots(figsize=(8, 3.4))
    label = f"milliseconds for {epochs} epochs (median and quartiles)"
    plots.bars(ax, result, label=label, note=notes)
    fastest = result["ratio"].iloc[-1]
    ax.set_title(f"From plain loops to register tiles: {fastest:.0f} times on {cores} cores")
    figure.alt = "Time of training epochs for each version on a log axis: "
    figure.alt += "; ".join(f"{name} {note}" for name, note in notes.items()) + "."
    return figure


def pieces(parts):
    """Stacked bars of microseconds per training step; parts: version x piece."""
    figure, ax = plt.subplots(figsize=(8, 2.8))
    left = np.zeros(len(parts))
    for name, colour in zip(parts.columns, (plots.SKY, plots.BLUE, plots.GREY), strict=True):
        ax.barh(parts.index, parts[name], left=left, color=colour, label=name)
        left += parts[name].to_numpy()
    ax.set(xlabel="microseconds per training step")
    ax.invert_yaxis()
    ax.legend(ncols=3, loc="lower right")
    costlier = (parts["backward"] > parts["forward"]).sum()
    ax.set_title(f"Backward costs more than forward in {costlier} of {len(parts)} versions")
    figure.alt = "Stacked bars of the microseconds of a training step, forward, backward and rest: "
    figure.alt += (
        "; ".join(f"{name} {row.sum():.0f} in all" for name, row in parts.iterrows()) + "."
    )
    return figure


def race(error):
    """The error of h at each step of a network whose steps did not wait for each other."""
    figure, ax = plt.subplots(figsize=(8, 3.2))
    ax.plot(np.arange(1, len(error) + 1), error, color=plots.RED, marker="o", markersize=3)
    ax.set(xlabel="step t", ylabel="largest error of h")
    ax.set_title("The error starts where another thread starts: it has no state to start from")
    figure.alt = (
        f"Largest error of the hidden state at each of {len(error)} steps when steps do not wait "
        "for each other: it jumps where another thread's share begins and fades as the network "
        "forgets."
    )
    return figure


def gradient_forms(against):
    """Speed against numpy of both forms of the weight gradients; against: (H, B) x form."""
    figure, ax = plt.subplots(figsize=(8, 3.8))
    places = np.arange(len(against))
    for form, colour, marker in zip(against, (plots.ORANGE, plots.RED), "sD", strict=True):
        ax.plot(places, against[form], color=colour, marker=marker)
        plots.label_line(ax, places[-1], against[form].iloc[-1], form, colour)
    ax.axhline(1, color=plots.BLACK, linewidth=1)
    ax.annotate("numpy", (0, 1), (0, 4), textcoords="offset points")
    ax.set_xticks(places, [f"H {H}\nB {B}" for H, B in against.index])
    ax.set(ylabel="times as fast as numpy, one step")
    ax.margins(x=0.28)
    least = against.min()
    ax.set_title(f"A buffer per sample falls to {least.iloc[0]:.2f} times the speed of numpy")
    figure.alt = "Speed of a training step against numpy over growing hidden size and mini-batch: "
    figure.alt += "; ".join(f"{form} at least {value:.2f}" for form, value in least.items()) + "."
    return figure


def schedules(layer_by_layer, earliest):
    """Two grids (layers, steps) of the round in which each cell is computed."""
    grids = {
        f"One cell at a time, layer by layer: {layer_by_layer.max()} rounds": layer_by_layer,
        f"As early as the graph allows: {earliest.max()} rounds": earliest,
    }
    figure, axes = plt.subplots(len(grids), 1, figsize=(8, 4.6), sharex=True)
    for ax, (title, rounds) in zip(axes, grids.items(), strict=True):
        layers, steps = rounds.shape
        ax.imshow(rounds, origin="lower", cmap="cividis", aspect="auto")
        for (layer, step), value in np.ndenumerate(rounds):
            colour = "white" if value < 0.6 * rounds.max() else "black"
            ax.text(step, layer, value, ha="center", va="center", color=colour, fontsize=9)
        ax.set(title=title, ylabel="layer", yticks=range(layers), yticklabels=range(1, layers + 1))
        ax.grid(False)
    axes[-1].set(xlabel="step", xticks=range(steps), xticklabels=range(1, steps + 1))
    figure.alt = (
        f"Two grids of {layers} layers by {steps} steps with the round in which each cell is "
        f"computed: layer by layer the numbers run to {layer_by_layer.max()}, as early as the "
        f"graph allows they run along diagonals to {earliest.max()}."
    )
    return figure


ARROW = {"arrowstyle": "->", "shrinkA": 17, "shrinkB": 18}


def graph(rounds, marked):
    """The dependency graph of `rounds` (layers, steps); cells of the round `marked` are yellow."""
    layers, steps = rounds.shape
    figure, ax = plt.subplots(figsize=(8, 4.2))
    for (layer, step), value in np.ndenumerate(rounds):
        box = {"boxstyle": "round,pad=0.5", "fc": plots.YELLOW if value == marked else "white"}
        ax.text(step, layer, f"{layer}, {step}", ha="center", va="center", bbox=box)
        for before in ((step, layer - 1), (step - 1, layer)):
            ax.annotate("", (step, layer), before, arrowprops=ARROW)
    ax.set(xlim=(-1, steps - 0.5), ylim=(-1, layers - 0.5), xlabel="step $t$", ylabel="layer $l$")
    ax.set(xticks=range(steps), yticks=range(layers))
    ax.set_title("Cells on a diagonal do not need each other")
    ax.grid(visible=False)
    figure.alt = (
        f"Grid of {layers} layers by {steps} steps; arrows lead to each cell from the cell below "
        "and from the cell before; one diagonal is marked."
    )
    return figure


# Name: (x, y, what is written in it); an operation has no letter of its own.
LSTM_NODES = {
    "c_prev": (0, 4, "c_{t-1}"),
    "keep": (2, 4, r"\odot"),
    "add": (4.5, 4, "+"),
    "c": (6.6, 4, "c_t"),
    "next": (10.2, 4, "c_t"),
    "put": (4.5, 2.9, r"\odot"),
    "tanh": (6.6, 2.9, r"\tanh"),
    "show": (8.4, 2.9, r"\odot"),
    "h": (10.2, 2.9, "h_t"),
    "f": (2, 1.8, "f_t"),
    "i": (3.7, 1.8, "i_t"),
    "g": (5.3, 1.8, "g_t"),
    "o": (8.4, 1.8, "o_t"),
    "f_bar": (2, 0.6, r"\bar{f}_t"),
    "i_bar": (3.7, 0.6, r"\bar{i}_t"),
    "g_bar": (5.3, 0.6, r"\bar{g}_t"),
    "o_bar": (8.4, 0.6, r"\bar{o}_t"),
}
# From, to, derivative of the end with respect to the start.
LSTM_EDGES = [
    ("f_bar", "f", "f_t(1-f_t)"),
    ("i_bar", "i", "i_t(1-i_t)"),
    ("g_bar", "g", "1-g_t^2"),
    ("o_bar", "o", "o_t(1-o_t)"),
    ("c_prev", "keep", "f_t"),
    ("f", "keep", "c_{t-1}"),
    ("i", "put", "g_t"),
    ("g", "put", "i_t"),
    ("keep", "add", "1"),
    ("put", "add", "1"),
    ("add", "c", "1"),
    ("c", "next", "1"),
    ("c", "tanh", r"1-\tanh^2c_t"),
    ("tanh", "show", "o_t"),
    ("o", "show", r"\tanh\,c_t"),
    ("show", "h", "1"),
]


def lstm_cell():
    """One step of an LSTM as a graph, each arrow with its derivative."""
    figure, ax = plt.subplots(figsize=(9, 4.8))
    for x, y, text in LSTM_NODES.values():
        box = {"boxstyle": "circle,pad=0.3", "fc": "white" if "_" in text else plots.YELLOW}
        ax.text(x, y, f"${text}$", ha="center", va="center", bbox=box)
    for start, end, factor in LSTM_EDGES:
        (x0, y0, _), (x1, y1, _) = LSTM_NODES[start], LSTM_NODES[end]
        ax.annotate("", (x1, y1), (x0, y0), arrowprops=ARROW)
        place = (x0 + x1) / 2 + 0.1 * (y0 != y1), (y0 + y1) / 2 + 0.18 * (y0 == y1)
        ha = "center" if y0 == y1 else "left"
        ax.text(*place, f"${factor}$", color=plots.RED, ha=ha, va="center")
    ax.set(xlim=(-0.4, 10.6), ylim=(0.2, 4.4))
    ax.set_title("Gradients go back, multiplied by the red labels")
    ax.axis("off")
    figure.alt = (
        "Graph of an LSTM step, from the pre-activations and the old cell state to h and c; each "
        "arrow carries its derivative in red."
    )
    return figure
