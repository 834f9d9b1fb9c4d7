"""Page 2, does it forecast: the series, training, rules that compete, batch sizes."""

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import lstm_kernels as lk
from lstm_kernels import data
from lstm_kernels.forecast import recursive

from .. import plots
from ..measure.comparer import compare_to_reference
from ..measure.evidence import Interval, digits, intervals
from ..measure.timing import interleaved
from ..studies import forecasts

WINDOW = 12  # months of growth that the network sees
YEARS = 24  # months in a pair of years
PAIRS = {"1955–56": 72, "1957–58": 96, "1959–60": 120}  # the first month of each
CHOICE, TEST = "1957–58", "1959–60"  # years that choose, and test years
UNITS, BATCH = 32, 16
SMOOTH, GROWTH, NAIVE = "Holt–Winters", "last year's growth", "seasonal-naive"
PERSIST = "persistence"
RACE = {1: 0.1, BATCH: 0.4, 83: 0.8}  # middle learning rate by batch size; 83: all
COLOURS = {"LSTM": plots.RED, SMOOTH: plots.BLUE, GROWTH: plots.GREEN}
COLOURS |= {NAIVE: plots.ORANGE, "LSTM, twelve out": plots.PURPLE}


def series() -> np.ndarray:
    return data.airline().to_numpy(float)


def prepare(passengers: np.ndarray, first: int, out: int = 1) -> tuple:
    """The transform and the training examples of the months before `first`: WINDOW
    months of growth in, the `out` months after them.
    """
    transform = data.LogDifference.fit(passengers[:first])
    z = transform.forward(passengers[:first])
    runs = np.lib.stride_tricks.sliding_window_view(z, WINDOW + out).astype(np.float32)
    x = np.ascontiguousarray(runs[:, :WINDOW].T[..., None])
    return transform, lk.Dataset(x, np.ascontiguousarray(runs[:, WINDOW:]))


def check_leakage(passengers: np.ndarray, first: int) -> None:
    """Raise AssertionError if months from `first` on change the examples before it."""
    other = np.r_[passengers[:first], np.ones(len(passengers) - first)]
    before, after = (prepare(p, first)[1].sha256() for p in (passengers, other))
    assert before == after, "months after the training years changed the examples"


def new_network(seed: int = 0, out: int = 1) -> Any:
    params = lk.Params.init(1, UNITS, output_size=out, seed=seed)
    return lk.network("numba-fused", params, threads=1)


def check_update(dataset: lk.Dataset, rate: float = 0.5) -> None:
    """Raise AssertionError unless a step moves every parameter by its gradient."""
    net, batch = new_network(), dataset.batch(np.arange(BATCH))
    theta, (_, gradient) = net.params().arrays(), net.loss_and_grads(*batch)
    net.step(*batch, rate)
    for name, moved in net.params().arrays().items():
        want = theta[name] - rate * gradient.arrays()[name]
        assert np.allclose(moved, want, atol=1e-6), name


def paths(
    net: Any, transform: Any, passengers: np.ndarray, first: int, months: int = YEARS
) -> np.ndarray:
    """Forecasts (YEARS origins, YEARS months) of the months from each origin on, the
    first of them from the true months, later ones from its own output: `months` of
    them, or as many as the network has outputs; NaN beyond.
    """
    z = transform.forward(passengers[: first + YEARS])
    origins = np.arange(first, first + YEARS)
    x = np.stack([z[month - 1 - WINDOW : month - 1] for month in origins], axis=1)
    out = net.params().b_out.size
    growth = np.full((YEARS, YEARS), np.nan)
    for lead in range(0, months if out == 1 else out, out):
        last = np.ascontiguousarray(x[-WINDOW:, :, None], dtype=np.float32)
        growth[:, lead : lead + out] = net.predict(last)
        x = np.concatenate([x, growth[:, lead : lead + out].T])
    sums = np.cumsum(growth * transform.std + transform.mean, axis=1)
    return passengers[origins - 1][:, None] * np.exp(sums)


def tidy(found: np.ndarray, first: int, **columns: Any) -> pd.DataFrame:
    """Rows origin, lead, forecast, truth of `paths`: of months within the pair."""
    origin, lead = np.meshgrid(range(YEARS), range(1, YEARS + 1), indexing="ij")
    inside = (origin + lead <= YEARS) & np.isfinite(found)
    columns |= {"origin": origin[inside], "lead": lead[inside]}
    truth = series()[first + (origin + lead)[inside] - 1]
    return pd.DataFrame({**columns, "forecast": found[inside], "truth": truth})


def measure_training(
    seeds: int, rates: Sequence[float], epochs: int, every: int, out: int = 1
) -> pd.DataFrame:
    """Train before each pair of years, at each rate and from each seed; after each
    `every` epochs the rows of `tidy`, with training and validation loss.
    """
    passengers, parts = series(), []

    def watch(history, net, transform, first, **columns):
        if history.epochs % every:
            return
        found = paths(net, transform, passengers, first)
        made = tidy(found, first, epochs=history.epochs, **columns)
        one = near(made)
        off = np.log(one["forecast"] / one["truth"]) / transform.std
        loss = {"training": history.loss[-1], "validation": np.mean(off**2)}
        parts.append(made.assign(**loss))

    for (pair, first), rate, seed in product(PAIRS.items(), rates, range(seeds)):
        transform, dataset = prepare(passengers, first, out)
        columns = {"pair": pair, "rate": rate, "seed": seed}
        on = partial(watch, transform=transform, first=first, **columns)
        how: dict[str, Any] = {"seed": seed, "progress": False, "on_epoch": on}
        lk.train(new_network(seed, out), dataset, epochs, BATCH, rate, **how)
    return pd.concat(parts, ignore_index=True)


def measure_rules(leads: int) -> pd.DataFrame:
    """Rows of `tidy` of each rule: one month ahead, and up to `leads` months from its
    own forecasts; all of a pair from its first month.
    """
    passengers, parts = series(), []
    for pair, first in PAIRS.items():
        rules = {
            SMOOTH: forecasts.holt_winters(passengers[:first]),
            GROWTH: forecasts.seasonal_growth,
            NAIVE: forecasts.seasonal_naive,
            PERSIST: forecasts.persistence,
        }
        for name, rule in rules.items():
            found = np.full((YEARS, YEARS), np.nan)
            for origin in range(YEARS):
                months = min(YEARS - origin, leads if origin else YEARS)
                known = passengers[: first + origin]
                found[origin, :months] = recursive(rule, known, months=months)
            parts.append(tidy(found, first, pair=pair, rule=name))
    return pd.concat(parts, ignore_index=True)


def median_forecast(rows: pd.DataFrame, rule: str = "LSTM") -> pd.DataFrame:
    """The median forecast of the seeds."""
    by = ["rate", "epochs", "pair", "origin", "lead"]
    middle = rows.groupby(by)[["forecast", "truth"]].median().reset_index()
    return middle.assign(rule=rule)


def rmse(rows: pd.DataFrame, *by: str) -> Any:
    """Root mean squared error in thousands: a number, or one for each value of `by`."""
    squares = (rows["forecast"] - rows["truth"]) ** 2
    if not by:
        return float(np.sqrt(squares.mean()))
    return np.sqrt(squares.groupby([rows[name] for name in by], sort=False).mean())


def near(rows: pd.DataFrame) -> pd.DataFrame:
    """The forecasts one month ahead."""
    return rows[rows["lead"] == 1]


def a_year_ahead(rows: pd.DataFrame) -> pd.DataFrame:
    """The twelve months after each of 13 origins in each pair of years."""
    return rows[(rows["lead"] <= WINDOW) & (rows["origin"] <= YEARS - WINDOW)]


def choose(lstm: pd.DataFrame) -> tuple[float, int]:
    """The learning rate with the least error on the years that choose, and at this rate
    the fewest epochs whose error is within 5 % of the least.
    """
    errors = rmse(near(lstm[lstm["pair"] == CHOICE]), "rate", "epochs")
    errors = errors.loc[rate := errors.idxmin()[0]]
    return float(rate), int(errors.index[errors <= 1.05 * errors.min()][0])


def by_pair(rows: pd.DataFrame) -> pd.DataFrame:
    """RMSE by rule: of each pair of years, and of all months."""
    table = rmse(rows, "rule", "pair").unstack("pair")
    table = table.assign(**{"all months": rmse(rows, "rule")})
    names = {"index": "RMSE, thousands", "columns": None}
    return table.sort_values("all months").rename_axis(**names)


def difference(lstm: pd.DataFrame, rule: pd.DataFrame) -> Interval:
    """How much larger the LSTM's RMSE one month ahead is than a rule's: 95 % of a
    paired bootstrap over the months.
    """
    both = (near(one).sort_values(["pair", "origin"]) for one in (lstm, rule))
    off = [(one["forecast"] - one["truth"]).to_numpy() ** 2 for one in both]
    count = len(off[0])
    drawn = np.random.default_rng(0).integers(0, count, (10_000, count))
    of_lstm, of_rule = (np.sqrt(one[drawn].mean(axis=1)) for one in off)
    return Interval(*np.percentile(of_lstm - of_rule, (2.5, 50, 97.5)))


@np.errstate(over="ignore")  # forecasts of a run that diverges
def measure_race(seeds: int, most: int, goal: float) -> pd.DataFrame:
    """Rows batch, rate, seed, epochs: after how many epochs, at most so many, the error
    on the years that choose is below `goal`; infinite for a run that diverges.
    """
    passengers, first = series(), PAIRS[CHOICE]
    made: list[tuple[int, float, int, float]] = []
    transform, dataset = prepare(passengers, first)

    def below(history, net):
        found = paths(net, transform, passengers, first, months=1)
        return rmse(tidy(found, first)) < goal

    for (size, middle), by, seed in product(RACE.items(), (0.5, 1, 2), range(seeds)):
        how: dict[str, Any] = {"seed": seed, "progress": False, "on_epoch": below}
        try:
            run = lk.train(new_network(seed), dataset, most, size, by * middle, **how)
            made.append((size, by * middle, seed, run.epochs))
        except lk.DivergedError:
            made.append((size, by * middle, seed, np.inf))
    return pd.DataFrame(made, columns=["batch", "rate", "seed", "epochs"])


def at_best_rate(runs: pd.DataFrame) -> pd.DataFrame:
    """The epochs of each batch size, a column, at the rate with the least median: a row
    a seed.
    """
    table = runs.pivot(index="seed", columns=["batch", "rate"], values="epochs")
    best = table.median().groupby("batch").idxmin()
    return table[[*best]].droplevel("rate", axis=1)


def measure_epochs(sizes: Sequence[int], repeats: int) -> pd.DataFrame:
    """Seconds of an epoch of descent by batch size, the last of all examples, on one
    thread.
    """
    rng, examples = np.random.default_rng(0), sizes[-1]
    x = rng.standard_normal((WINDOW, examples, 1)).astype(np.float32)
    dataset = lk.Dataset(x, rng.standard_normal((examples, 1)).astype(np.float32))
    net, order = new_network(), np.arange(examples)
    compare_to_reference(net, net.params(), x)
    cases: dict[Any, Any] = {
        n: partial(net.epoch, dataset, order, n, 1e-4) for n in sizes
    }
    return interleaved(cases, repeats=repeats)


def figure_series(passengers: np.ndarray) -> Figure:
    """The series with its split and a window; the growth that the network sees."""
    form = {"sharex": True, "height_ratios": (1.4, 1)}
    figure, (above, below) = plots.panels(2, 4.8, **form)
    months = data.airline().index.to_timestamp()
    first, test = PAIRS[CHOICE], PAIRS[TEST]
    transform, _ = prepare(passengers, test)
    z = transform.forward(passengers)
    above.plot(months, passengers, color=plots.BLACK)
    below.plot(months[1:], z, color=plots.BLACK, lw=1)
    for ax in (above, below):
        ax.axvspan(months[first], months[test], color=plots.SKY, alpha=0.3, lw=0)
        ax.axvspan(months[test], months[-1], color=plots.ORANGE, alpha=0.3, lw=0)
    start = first - WINDOW
    window = slice(start - 1, first - 1)
    below.plot(months[start:first], z[window], "o-", color=plots.BLUE, ms=4)
    below.plot(months[first], z[first - 1], "s", color=plots.RED, ms=7)
    top = passengers.max()
    for text, at in (("training", 2), ("validation", first), ("test", test)):
        plots.note(above, text, (months[at], top), (3, -2), color=plots.BLACK)
    low = z.min()
    plots.note(below, "12 months in", (months[start], low), (-84, 0), color=plots.BLUE)
    plots.note(below, "target", (months[first], low), (8, 0), color=plots.RED)
    above.set(ylabel="passengers (thousands)")
    below.set(ylabel="scaled growth $z$", xlabel="month")
    above.set_title("Passengers: trend and season grow together")
    below.set_title("Their growth has one level and one season")
    return figure


def figure_epochs(rows: pd.DataFrame, smooth: float, chosen: int) -> Figure:
    """Training and validation loss by epochs, and the error of the median forecast by
    pair of years, of one learning rate. smooth: the error of Holt–Winters over all.
    """
    figure, (above, ax) = plots.panels(2, 6, sharex=True)
    last, labels, ends = int(rows["epochs"].max()), [], []
    one = near(rows[rows["pair"] == CHOICE])
    for name, colour in (("training", plots.BLUE), ("validation", plots.RED)):
        loss = one.groupby(["epochs", "seed"])[name].first().unstack()
        low, middle, high = np.percentile(loss, (10, 50, 90), axis=1)
        above.fill_between(loss.index, low, high, color=colour, alpha=0.25, lw=0)
        above.plot(loss.index, middle, color=colour)
        labels.append((last, middle[-1], name, colour))
    above.set(yscale="log", ylabel="loss (MSE of $z$)", xlim=(0, 1.35 * last))
    lstm = near(median_forecast(rows))
    errors = rmse(lstm, "epochs", "pair").unstack("pair")
    errors["all 72 months"] = rmse(lstm, "epochs")
    colours = plots.ORANGE, plots.GREEN, plots.PURPLE, plots.BLACK
    for name, colour in zip(errors, colours, strict=True):
        width = 2.4 if name == errors.columns[-1] else 1.2
        ax.plot(errors.index, errors[name], color=colour, lw=width)
        ends.append((last, errors[name].iloc[-1], name, colour))
    ax.hlines(smooth, 0, last, color=plots.BLUE, lw=1.4)
    plots.note(
        ax, "Holt–Winters, all 72 months", (0, smooth), (4, -14), color=plots.BLUE
    )
    ax.set(
        xlabel="epochs", ylabel="RMSE (thousands)", ylim=(8, 1.1 * errors.max().max())
    )
    for axis in (above, ax):
        axis.axvline(chosen, color=plots.GREY, lw=1)
    ax.set_xticks([tick for tick in ax.get_xticks() if tick <= last])
    plots.label_lines(above, labels)
    plots.label_lines(ax, ends)
    times = digits(labels[1][1] / labels[0][1])
    above.set_title(f"After {last} epochs: validation loss {times}x training loss")
    ax.set_title("No number of epochs beats Holt–Winters")
    return figure


def figure_forecast(all_of: pd.DataFrame, seeds: pd.DataFrame) -> Figure:
    """The test years one month ahead, and from own forecasts for all 24 months; the
    errors by months ahead. all_of: rows by `rule`; seeds: the LSTM's by seed.
    """
    figure, (*axes, last) = plots.panels(3, 9.4)
    months = data.airline().index.to_timestamp()[PAIRS[TEST] :]
    titles = "One month ahead", "24 months from own forecasts"
    for ax, title in zip(axes, titles, strict=True):
        wanted = near if ax is axes[0] else lambda rows: rows[rows["origin"] == 0]
        members, lines = (wanted(r[r["pair"] == TEST]) for r in (seeds, all_of))
        table = members.pivot(index=["origin", "lead"], columns="seed")["forecast"]
        low, high = np.percentile(table, (10, 90), axis=1)
        ax.fill_between(months, low, high, color=plots.RED, alpha=0.25, lw=0)
        scores, ends = [], []
        for name in ("LSTM", SMOOTH, GROWTH):
            found = lines[lines["rule"] == name]
            values = found["forecast"].to_numpy()
            ax.plot(months, values, color=COLOURS[name], lw=1.4)
            ends.append((months[-1], values[-1], name, COLOURS[name]))
            scores.append(f"{name} {digits(rmse(found))}")
        truth = found["truth"].to_numpy()
        ax.plot(months, truth, color=plots.BLACK, lw=2.2)
        ends.append((months[-1], truth[-1], "truth", plots.BLACK))
        ax.set(ylabel="passengers (thousands)")
        ax.set_xlim(months[0], months[-1] + 0.38 * (months[-1] - months[0]))
        ax.set_xticks(months[::6], [f"{month:%b %Y}" for month in months[::6]])
        plots.label_lines(ax, ends)
        ax.set_title(f"{title}: RMSE\n{', '.join(scores)}")
    table = rmse(a_year_ahead(all_of), "lead", "rule").unstack("rule")
    for name in COLOURS:
        last.plot(table.index, table[name], "o-", ms=4, color=COLOURS[name])
    last.set(xlim=(0.5, 1.65 * WINDOW), ylim=(0, 1.1 * table[[*COLOURS]].max().max()))
    last.set(xlabel="months ahead", ylabel="RMSE (thousands)", xticks=table.index[1::2])
    ends = [(WINDOW, table[name].iloc[-1], name, COLOURS[name]) for name in COLOURS]
    plots.label_lines(last, ends)
    last.set_title("Fed with its own output, the LSTM falls behind")
    return figure


def figure_race(
    epochs: pd.DataFrame, updates: pd.DataFrame, took: pd.DataFrame
) -> Figure:
    """Epochs, updates and time until the goal, over the seeds: a row a batch size."""
    figure, axes = plots.panels(3, 5.2)
    names = dict(
        zip(RACE, ("single examples", "batches of 16", "all at once"), strict=True)
    )
    parts = {
        "Single examples need the fewest epochs": (epochs, "epochs"),
        "All examples at once need the fewest updates": (updates, "updates"),
        "The order in time is that of the epochs": (1e3 * took, "ms on one thread"),
    }
    for ax, (title, (table, label)) in zip(axes, parts.items(), strict=True):
        plots.ticks(ax, "x", [2, 5, 10, 20, 50, 100, 200, 500, 1000])
        plots.dots(
            ax, intervals(table.rename(columns=names)), text=digits, reference=None
        )
        low, high = table.min().min(), table.max().max()
        ax.set(xlabel=f"{label} (log axis)", xlim=(low / 1.3, high * 1.5))
        ax.set_title(title)
    return figure
