"""Page 2, does it forecast: the series, training, rules that compete, batch sizes."""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import lstm_kernels as lk
from lstm_kernels import data, training
from lstm_kernels.cores import allowed
from lstm_kernels.forecast import recursive

from .. import plots
from ..measure.comparer import compare_to_reference
from ..measure.evidence import (
    Interval,
    at_least,
    digits,
    ms,
    percent,
    ratios,
    seconds,
    speed,
)
from ..measure.timing import interleaved
from ..studies import forecasts

WINDOW = 12  # months of growth that the network sees
YEARS = 24  # months in a pair of years
PAIRS = {"1955–56": 72, "1957–58": 96, "1959–60": 120}  # the first month of each
CHOICE, TEST = "1957–58", "1959–60"  # years that choose the epochs, and test years
UNITS = 32
SMOOTH, GROWTH, NAIVE = "Holt–Winters", "last year's growth", "seasonal-naive"
SIZES = (1, 2, 4, 8, 16, 32, 64)
ADAM: dict[str, Any] = {"batch_size": 16, "learning_rate": 1e-2, "optimizer": "adam"}
PLAN = (
    83,
    5,
    {  # examples, seeds; epochs and learning rates by batch size
        1: (250, (0.02, 0.05)),
        16: (500, (0.2, 0.4)),
        83: (700, (0.4, 0.7)),
    },
)
SMOKE_PLAN = 83, 2, {1: (10, (0.1,)), 16: (20, (0.5,)), 83: (40, (0.5,))}
COLOURS = {"LSTM": plots.RED, SMOOTH: plots.BLUE, GROWTH: plots.GREEN}
COLOURS |= {NAIVE: plots.ORANGE, "LSTM, twelve out": plots.PURPLE}
BOTH = {"at the start": plots.BLUE, "trained": plots.RED}


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


def new_network(seed: int, out: int = 1, version: Any = "numba-fused") -> Any:
    params = lk.Params.init(1, UNITS, output_size=out, seed=seed)
    return lk.network(version, params, threads=1)


def check_update_rules(dataset: lk.Dataset, rate: float = 0.5) -> None:
    """Raise AssertionError unless a step of each rule moves every parameter as its
    equation says: by the gradient, or in Adam's first step by the rate.
    """
    net, order = new_network(0), np.arange(16)
    batch = dataset.batch(order)
    theta, (_, gradient) = net.params().arrays(), net.loss_and_grads(*batch)
    net.step(*batch, rate)
    adam = training.Adam(new_network(0))
    adam.epoch(dataset, order, 16, rate)
    for name, moved in net.params().arrays().items():
        d, by_adam = gradient.arrays()[name], adam.net.params().arrays()[name]
        assert np.allclose(moved, theta[name] - rate * d, atol=1e-6), name
        large = np.abs(d) > 1e-6  # compared with epsilon, 1e-8
        step = (by_adam - theta[name])[large]
        assert np.allclose(step, -rate * np.sign(d)[large], rtol=0.02), name


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
    inside = origin + lead <= YEARS
    columns |= {"origin": origin[inside], "lead": lead[inside]}
    truth = series()[first + (origin + lead)[inside] - 1]
    return pd.DataFrame({**columns, "forecast": found[inside], "truth": truth})


def measure_training(seeds: int, epochs: int, every: int, out: int = 1) -> pd.DataFrame:
    """Train by Adam before each pair of years, from `seeds` seeds; after each `every`
    epochs the rows of `tidy`, with training and validation loss.
    """
    passengers, parts = series(), []

    def watch(history, net, *, pair, seed, transform):
        if history.epochs % every:
            return
        found = paths(net, transform, passengers, PAIRS[pair])
        columns = {"pair": pair, "seed": seed, "epochs": history.epochs}
        made = tidy(found, PAIRS[pair], **columns).dropna()
        near = made[made["lead"] == 1]
        off = np.log(near["forecast"] / near["truth"]) / transform.std
        loss = {"training": history.loss[-1], "validation": np.mean(off**2)}
        parts.append(made.assign(**loss))

    for pair, first in PAIRS.items():
        transform, dataset = prepare(passengers, first, out)
        for seed in range(seeds):
            on = partial(watch, pair=pair, seed=seed, transform=transform)
            net = new_network(seed, out)
            how: dict[str, Any] = {"seed": seed, "progress": False, "on_epoch": on}
            lk.train(net, dataset, epochs, **ADAM, **how)
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
            "persistence": forecasts.persistence,
        }
        for name, rule in rules.items():
            found = np.full((YEARS, YEARS), np.nan)
            for origin in range(YEARS):
                months = min(YEARS - origin, leads if origin else YEARS)
                known = passengers[: first + origin]
                path = recursive(rule, known, months=months)
                found[origin, :months] = path
            parts.append(tidy(found, first, pair=pair, rule=name).dropna())
    return pd.concat(parts, ignore_index=True)


def medians(rows: pd.DataFrame, epochs: int | None = None) -> pd.DataFrame:
    """The median forecast of the seeds, after `epochs` or after each record."""
    if epochs is not None:
        rows = rows[rows["epochs"] == epochs]
    by = ["epochs", "pair", "origin", "lead"]
    return rows.groupby(by)[["forecast", "truth"]].median().reset_index()


def rmse(rows: pd.DataFrame, *by: str) -> Any:
    """Root mean squared error in thousands: a number, or one for each value of `by`."""
    squares = (rows["forecast"] - rows["truth"]) ** 2
    if not by:
        return float(np.sqrt(squares.mean()))
    return np.sqrt(squares.groupby([rows[name] for name in by], sort=False).mean())


def near(rows: pd.DataFrame, pair: str = "") -> pd.DataFrame:
    """The forecasts one month ahead, of one pair of years or of all."""
    rows = rows[rows["lead"] == 1]
    return rows[rows["pair"] == pair] if pair else rows


def by_epochs(rows: pd.DataFrame, pair: str = "") -> pd.Series:
    """RMSE of the median forecast one month ahead, by epochs."""
    return rmse(near(medians(near(rows)), pair), "epochs")


def best(rows: pd.DataFrame) -> int:
    """The fewest epochs whose error on the years that choose is within 5 % of the
    least: past it, which record is the least is a matter of the seeds.
    """
    errors = by_epochs(rows, CHOICE)
    return int(errors.index[errors <= 1.05 * errors.min()][0])


def of_rule(rules: pd.DataFrame, name: str, pair: str = "") -> float:
    """RMSE of a rule one month ahead."""
    return rmse(near(rules[rules["rule"] == name], pair))


def hindsight(rows: pd.DataFrame) -> float:
    """RMSE over all months with the best number of epochs of each pair."""
    least = [by_epochs(rows, pair).min() for pair in PAIRS]
    return float(np.sqrt(np.mean(np.square(least))))


def bootstrap(
    rows: pd.DataFrame, rules: pd.DataFrame, epochs: int, without: str = ""
) -> Interval:
    """How much larger the LSTM's RMSE is than Holt–Winters' one month ahead: 95 % of a
    paired bootstrap over the months, without one pair of years.
    """
    lstm, smooth = (
        one[one["pair"] != without].sort_values(["pair", "origin"])
        for one in (near(medians(rows, epochs)), near(rules[rules["rule"] == SMOOTH]))
    )
    off = [(one["forecast"] - one["truth"]).to_numpy() ** 2 for one in (lstm, smooth)]
    drawn = np.random.default_rng(0).integers(0, len(lstm), (10_000, len(lstm)))
    of_lstm, of_smooth = (np.sqrt(one[drawn].mean(axis=1)) for one in off)
    return Interval(*np.percentile(of_lstm - of_smooth, (2.5, 50, 97.5)))


def apart(difference: Interval) -> str:
    tells = difference.low > 0 or difference.high < 0
    return f"{'tells' if tells else 'does not tell'} the two apart: {difference}"


def decides(everything: Interval, without: Interval) -> str:
    """What the months of the first pair do to the difference."""
    if everything.low > 0 >= without.low:
        return "decides"
    larger = everything.middle > without.middle
    return f"makes it {'larger' if larger else 'smaller'}, it does not decide"


def table(rows: pd.DataFrame, rules: pd.DataFrame, epochs: int) -> pd.DataFrame:
    """RMSE one month ahead by pair and over all months, and how many numbers a rule
    has fitted.
    """
    lstm = medians(rows, epochs).assign(rule="LSTM")
    all_of = near(pd.concat([lstm, rules]))
    made = rmse(all_of, "rule", "pair").unstack("pair")
    made = made.assign(**{"all months": rmse(all_of, "rule")}).sort_values("all months")
    fitted = {"LSTM": numbers(), SMOOTH: "3 + 14"}
    made.insert(0, "fitted numbers", [fitted.get(name, "0") for name in made.index])
    return made.rename_axis(index="RMSE, thousands", columns=None)


def numbers() -> str:
    """How many numbers the network has."""
    return f"{sum(a.size for a in new_network(0).params().arrays().values()):,}"


def examples_before(pair: str) -> int:
    """How many examples there are to learn from before a pair of years."""
    return len(prepare(series(), PAIRS[pair])[1])


def leads(
    rows: pd.DataFrame, twelve: pd.DataFrame, rules: pd.DataFrame, epochs: int
) -> pd.DataFrame:
    """RMSE by months ahead, a column a rule: of the year after each of 13 origins in
    each pair.
    """
    parts = [medians(rows, epochs).assign(rule="LSTM")]
    parts.append(medians(twelve, epochs).assign(rule="LSTM, twelve out"))
    far = pd.concat([*parts, rules[rules["rule"] != "persistence"]])
    far = far[(far["lead"] <= WINDOW) & (far["origin"] <= YEARS - WINDOW)]
    return rmse(far, "lead", "rule").unstack("rule")


def whole_path(rows: pd.DataFrame) -> pd.DataFrame:
    """The path of 24 months in the test years, from their first month on."""
    return rows[(rows["pair"] == TEST) & (rows["origin"] == 0)]


def measure_noise(epochs: int, draws: int) -> pd.DataFrame:
    """Rows batch, noise, norm, when, targets: how far gradients of batches lie from
    that of all examples, over its norm, the root mean square of 25 draws a row.

    Before and after training, and before it with targets moved up by one.
    """
    _, dataset = prepare(series(), PAIRS[TEST])
    moved = lk.Dataset(dataset.x, dataset.target + 1)
    net = new_network(0)
    parts = [
        noise_of(net, dataset, draws, when="at the start"),
        noise_of(net, moved, draws, when="moved"),
    ]
    lk.train(net, dataset, epochs, 16, 0.2, progress=False)
    return pd.concat([*parts, noise_of(net, dataset, draws, when="trained")])


def noise_of(net: Any, dataset: lk.Dataset, draws: int, when: str) -> pd.DataFrame:
    def gradient(index):
        arrays = net.loss_and_grads(*dataset.batch(index))[1].arrays()
        wanted = (arrays[name].ravel() for name in net.params().arrays())
        return np.concatenate([*wanted]).astype(float)

    whole, rng = gradient(np.arange(len(dataset))), np.random.default_rng(0)
    norm, made = np.linalg.norm(whole), []
    for size in SIZES:
        for _ in range(draws):
            orders = (rng.permutation(len(dataset)) for _ in range(25))
            off = [np.linalg.norm(gradient(order[:size]) - whole) for order in orders]
            noise = np.sqrt(np.mean(np.square(off))) / norm
            made.append({"batch": size, "noise": noise, "norm": norm, "when": when})
    return pd.DataFrame(made)


def noise_at(rows: pd.DataFrame, size: int, when: str) -> float:
    found = rows[(rows["batch"] == size) & (rows["when"] == when)]
    return float(found["noise"].median())


def cancel(rows: pd.DataFrame) -> float:
    """How many times as large the noise of one example is at the start with targets of
    mean zero as with targets moved up by one.
    """
    return noise_at(rows, 1, "at the start") / noise_at(rows, 1, "moved")


def measure_epochs(examples: int, repeats: int) -> pd.DataFrame:
    """Seconds of an epoch of descent by batch size, on one thread and on all."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((WINDOW, examples, 1)).astype(np.float32)
    dataset = lk.Dataset(x, rng.standard_normal((examples, 1)).astype(np.float32))
    params, order = lk.Params.init(1, UNITS, output_size=1), np.arange(examples)
    cases = {}
    for threads, count in (("one", 1), ("all", allowed())):
        net = lk.network("numba-fused", params, threads=count)
        compare_to_reference(net, params, x)
        for size in (1, 16, examples):
            call = partial(net.epoch, dataset, order, size, 1e-4)
            cases[f"{size}, {threads}"] = call
    return interleaved(cases, repeats=repeats)


def measure_descents(
    plan: dict[int, tuple[int, tuple[float, ...]]], seeds: int
) -> pd.DataFrame:
    """Rows batch, rate, seed, epochs, rmse one month ahead on the years that choose:
    of gradient descent, every epoch up to 50, then every fifth; none once it diverges.

    plan: epochs and learning rates by batch size.
    """
    passengers, first, made = series(), PAIRS[CHOICE], []
    transform, dataset = prepare(passengers, first)
    truth = passengers[first : first + YEARS]

    def watch(history, net, **columns):
        if history.epochs <= 50 or history.epochs % 5 == 0:
            found = paths(net, transform, passengers, first, months=1)[:, 0]
            off = np.sqrt(np.mean((found - truth) ** 2))
            made.append({**columns, "epochs": history.epochs, "rmse": off})

    cases = [
        (size, epochs, rate, seed)
        for size, (epochs, rates) in plan.items()
        for rate in rates
        for seed in range(seeds)
    ]
    for size, epochs, rate, seed in cases:
        on = partial(watch, batch=size, rate=rate, seed=seed)
        how: dict[str, Any] = {"seed": seed, "on_epoch": on, "progress": False}
        try:
            lk.train(new_network(seed), dataset, epochs, size, rate, **how)
        except lk.DivergedError:
            made = [r for r in made if (r["batch"], r["rate"]) != (size, rate)]
    return pd.DataFrame(made)


def reached(runs: pd.DataFrame, goal: float) -> pd.DataFrame:
    """Epochs until the error is first below `goal`, infinite if it never is: a row a
    seed, a column a batch size.
    """
    when = runs["epochs"].where(runs["rmse"] < goal, np.inf)
    return when.groupby([runs["seed"], runs["batch"]]).min().unstack("batch")


def chosen(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs of each batch size at its best rate: least median error at any time."""
    middle = runs.groupby(["batch", "rate", "epochs"])["rmse"].median()
    rates = dict(middle.groupby(["batch", "rate"]).min().groupby("batch").idxmin())
    wanted = pd.MultiIndex.from_tuples(rates.values())
    return runs[pd.MultiIndex.from_frame(runs[["batch", "rate"]]).isin(wanted)]


def more_epochs(runs: pd.DataFrame, goal: float) -> tuple[Interval, Interval]:
    """How many times the epochs of the next smaller batch size the second and the
    largest need to be below `goal`, over the seeds; NaN, which no threshold passes,
    where the smaller is never below.
    """
    epochs = reached(runs, goal).to_numpy()
    before = np.where(np.isinf(epochs[:, :-1]), np.nan, epochs[:, :-1])
    found = epochs[:, 1:] / before
    first, second = (Interval(c.min(), float(np.median(c)), c.max()) for c in found.T)
    return first, second


def in_time(runs: pd.DataFrame, times: pd.DataFrame) -> pd.DataFrame:
    """The runs with their seconds of training on one thread."""
    took = seconds(times).median()
    of_epoch = runs["batch"].map({n: took[f"{n}, one"] for n in runs["batch"].unique()})
    return runs.assign(seconds=runs["epochs"] * of_epoch)


def needed(runs: pd.DataFrame, goal: float) -> tuple[pd.Series, pd.Series]:
    """Epochs, and updates, until the median seed is below `goal`, by batch size."""
    epochs = reached(runs, goal).median()
    return epochs, epochs * np.ceil(max(epochs.index) / epochs.index)


def race(runs: pd.DataFrame, times: pd.DataFrame, goal: float) -> pd.DataFrame:
    """By batch size: an epoch, updates and time until the median seed is below `goal`,
    the least median error and when it came, the gain of threads.
    """
    took, made = seconds(times).median(), []
    need, updates = needed(runs, goal)
    for size, epochs in need.items():
        middle = runs[runs["batch"] == size].groupby("epochs")["rmse"].median()
        one = took[f"{size}, one"]
        gain = Interval.of(ratios(times, f"{size}, one")[f"{size}, all"])
        line = {
            "an epoch": ms(one),
            "epochs to the goal": digits(epochs),
            "updates": digits(updates[size]),
            "time": ms(epochs * one),
            "least RMSE (thousands)": digits(middle.min()),
            "after": ms(middle.idxmin() * one),
            "all threads": speed(gain),
        }
        made.append(pd.Series(line, name=str(size)))
    return pd.DataFrame(made).rename_axis("examples in a batch")


def first_in_time(runs: pd.DataFrame, times: pd.DataFrame, goal: float) -> str:
    """Which batch sizes are below `goal` first in seconds, in words: the first and
    those within 25 % of it, which another processor may put in another order.
    """
    took = seconds(times).median()
    need = reached(runs, goal).median()
    time = need * [took[f"{n}, one"] for n in need.index]
    return " and ".join(size_name(n) for n in need.index[time <= 1.25 * time.min()])


def fewest(runs: pd.DataFrame, times: pd.DataFrame, goal: float) -> str:
    """Which batch size needs fewest epochs, updates, seconds; in words."""
    need, updates = needed(runs, goal)
    return (
        f"{size_name(need.idxmin())} need the fewest epochs,"
        f" {size_name(updates.idxmin())} the fewest updates, and"
        f" {first_in_time(runs, times, goal)} the least time on one thread."
    )


def order_in_updates(runs: pd.DataFrame, goal: float) -> str:
    _, updates = needed(runs, goal)
    return "turns round" if updates.is_monotonic_decreasing else "is another"


def size_name(size: int) -> str:
    return {1: "single examples", 16: "batches of 16"}.get(size, f"all {size} at once")


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
    plots.note(
        below, "12 months in", (months[start], z.min()), (-84, 0), color=plots.BLUE
    )
    plots.note(below, "target", (months[first], z.min()), (8, 0), color=plots.RED)
    above.set(ylabel="passengers (thousands)")
    below.set(ylabel="scaled growth $z$", xlabel="month")
    above.set_title("Passengers: trend and season grow together")
    below.set_title("Their growth has one level and one season")
    return figure


def band(ax: Any, table: pd.DataFrame, colour: str) -> None:
    """The 10th to 90th percentile of the columns of a table, and their median."""
    low, middle, high = np.percentile(table, (10, 50, 90), axis=1)
    ax.fill_between(table.index, low, high, color=colour, alpha=0.25, lw=0)
    ax.plot(table.index, middle, color=colour)


def figure_epochs(rows: pd.DataFrame, rules: pd.DataFrame) -> Figure:
    """Training and validation loss by epochs; the seeds' median's error by pair."""
    figure, (above, ax) = plots.panels(2, 6, sharex=True)
    one = near(rows, CHOICE)
    labels, at = [], int(rows["epochs"].max())
    for name, colour in (("training", plots.BLUE), ("validation", plots.RED)):
        loss = one.groupby(["epochs", "seed"])[name].first().unstack()
        band(above, loss, colour)
        labels.append((at, loss.loc[at].median(), name, colour))
    above.set(yscale="log", ylabel="loss (MSE of $z$)")
    above.set(xlim=(0, 1.4 * at))
    for axis in (above, ax):
        axis.axvline(best(rows), color=plots.GREY, lw=1)
    ends = []
    colours = plots.ORANGE, plots.GREEN, plots.PURPLE
    for pair, colour in zip(PAIRS, colours, strict=True):
        errors = by_epochs(rows, pair)
        ax.plot(errors.index, errors, color=colour, lw=1.2)
        ends.append((at, errors.loc[at], pair, colour))
    errors = by_epochs(rows)
    ax.plot(errors.index, errors, color=plots.BLACK, lw=2.4)
    ends.append((at, errors.loc[at], "all 72 months", plots.BLACK))
    smooth = of_rule(rules, SMOOTH)
    ax.hlines(smooth, 0, at, color=plots.BLUE, lw=1.4)
    ends.append((at, smooth, "Holt–Winters, all", plots.BLUE))
    ax.set(xlabel="epochs", ylabel="RMSE (thousands)", ylim=(0, 1.1 * errors.max()))
    ax.set_xticks([tick for tick in ax.get_xticks() if tick <= at])
    plots.label_lines(above, labels)
    plots.label_lines(ax, ends)
    times = digits(labels[1][1] / labels[0][1])
    above.set_title(f"After {at} epochs: validation loss {times}x training loss")
    where = "no" if at_least(least(rows), smooth) else "some"
    ax.set_title(f"Ahead of Holt–Winters at {where} number of epochs")
    return figure


def least(rows: pd.DataFrame) -> float:
    """The LSTM's least RMSE over all months, after any number of epochs."""
    return float(by_epochs(rows).min())


def figure_forecast(
    rows: pd.DataFrame, rules: pd.DataFrame, epochs: int, far: pd.DataFrame
) -> Figure:
    """The test years one month ahead, and from own forecasts for all 24 months; the
    errors `far` by months ahead.
    """
    figure, (*axes, last) = plots.panels(3, 9.4)
    draw_leads(last, far)
    months = data.airline().index.to_timestamp()[PAIRS[TEST] :]
    lstm = medians(rows, epochs)
    each = rows[rows["epochs"] == epochs]
    panels = {
        "One month ahead": near,
        "24 months from own forecasts": whole_path,
    }
    for ax, (title, wanted) in zip(axes, panels.items(), strict=True):
        scores, ends = [], []
        members = wanted(each)
        members = members[members["pair"] == TEST]
        seeds = members.pivot(index=["origin", "lead"], columns="seed")["forecast"]
        low, high = np.percentile(seeds, (10, 90), axis=1)
        ax.fill_between(months, low, high, color=plots.RED, alpha=0.25, lw=0)
        lines = {"LSTM": wanted(lstm)}
        lines |= {n: wanted(rules[rules["rule"] == n]) for n in (SMOOTH, GROWTH)}
        for name, found in lines.items():
            found = found[found["pair"] == TEST]
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
    return figure


def draw_leads(ax: Any, table: pd.DataFrame) -> None:
    """The error by months ahead, of each rule."""
    for name in table:
        ax.plot(table.index, table[name], "o-", ms=4, color=COLOURS[name])
    last = table.index[-1]
    ax.set(xlim=(0.5, 1.65 * last), ylim=(0, 1.1 * table.to_numpy().max()))
    ax.set(xlabel="months ahead", ylabel="RMSE (thousands)", xticks=table.index[1::2])
    ends = [(last, table[name].iloc[-1], name, COLOURS[name]) for name in table]
    plots.label_lines(ax, ends)
    ax.set_title(f"{table.iloc[-1].idxmin()} errs least twelve months ahead")


def figure_noise(rows: pd.DataFrame) -> Figure:
    """The noise over the batch size, with the line 1 / sqrt(B)."""
    figure, ax = plots.panels(1, 3.7)
    names = {"moved": "at the start,\ntargets moved by 1"}
    low, high = rows["noise"].min(), rows["noise"].max()
    ax.set(xscale="log", yscale="log", xlim=(0.8, 700), ylim=(low / 1.5, high * 1.5))
    ax.set(xlabel="examples in a batch $B$", ylabel="noise over gradient")
    for name in rows["when"].unique():
        law = noise_at(rows, 1, name) / np.sqrt(SIZES)
        ax.plot(SIZES, law, "--", color=plots.GREY, lw=1)
    plots.level(ax, 1)
    colours = BOTH | {"moved": plots.GREEN}
    plots.lines(ax, rows, "batch", "noise", "when", names=names, colours=colours)
    plots.ticks(ax, "x", SIZES)
    start, later = (digits(noise_at(rows, 16, name)) for name in BOTH)
    ax.set_title(
        f"In batches of 16 the noise is {start} times the gradient\n"
        f"at the start, {later} times once trained"
    )
    return figure


def figure_batches(runs: pd.DataFrame, times: pd.DataFrame, goal: float) -> Figure:
    """The error on the validation years by batch size, over epochs and over time."""
    figure, axes = plots.panels(2, 6.4)
    timed = in_time(runs, times)
    shades = plots.ORANGE, plots.RED, plots.BLUE
    colours = dict(zip(sorted(runs["batch"].unique()), shades, strict=True))
    names = {size: size_name(size) for size in colours}
    words = {"epochs": "epochs", "seconds": "seconds of training on one thread"}
    kept = timed[timed["epochs"].isin(sparse(int(runs["epochs"].max())))]
    for ax, (x, label) in zip(axes, words.items(), strict=True):
        ax.set(xscale="log", xlim=(kept[x].min() / 1.3, kept[x].max() * 9))
        ax.set(ylim=(0, 60), xlabel=label, ylabel="RMSE (thousands)")
        plots.level(ax, goal, "seasonal-naive")
        plots.lines(ax, kept, x, "rmse", "batch", names=names, colours=colours)
    need = reached(runs, goal).median()
    axes[0].set_title(
        f"Fewest epochs to beat seasonal-naive: {size_name(need.idxmin())}"
    )
    axes[1].set_title(f"Least time: {first_in_time(runs, times, goal)}")
    return figure


def sparse(last: int) -> set[int]:
    """Recorded epochs, few of them, evenly spread on a log axis."""
    few = np.unique(np.geomspace(1, last, 24).astype(int))
    return {int(e) if e <= 50 else int(5 * (e // 5)) for e in few}


def error(rows: pd.DataFrame, epochs: int) -> float:
    """The LSTM's RMSE over all months, one month ahead."""
    return float(by_epochs(rows).loc[epochs])


def beats(one: float, other: float) -> str:
    return "errs less than" if one < other else "errs no less than"


def pairs_won(rows: pd.DataFrame, rules: pd.DataFrame, epochs: int) -> str:
    """In which pairs of years last year's growth errs less, in which the LSTM."""
    lstm = {pair: by_epochs(rows, pair).loc[epochs] for pair in PAIRS}
    won = [pair for pair in PAIRS if of_rule(rules, GROWTH, pair) < lstm[pair]]
    lost = [pair for pair in PAIRS if pair not in won]
    names = [" and ".join(some) or "no pair of years" for some in (won, lost)]
    return f"errs less in {names[0]}, the LSTM in {names[1]}"


def leads_said(table: pd.DataFrame) -> str:
    """Which of the two networks errs less over all twelve months; who errs least."""
    total = np.sqrt((table**2).mean()).sort_values()
    one, twelve = total["LSTM"], total["LSTM, twelve out"]
    less = "less" if twelve < one else "more"
    return (
        f"Over the year ahead the output layer of twelve errs {less} than the LSTM fed"
        f" with its own output (RMSE {digits(twelve)} and {digits(one)} thousand);"
        f" {total.index[0]} errs least ({digits(total.iloc[0])})."
    )


def norm_gain(rows: pd.DataFrame) -> float:
    """How many times as large moved targets make the gradient over all examples."""
    norm = rows.groupby("when")["norm"].first()
    return float(norm["moved"] / norm["at the start"])


def both(one: Interval, other: Interval, above: float) -> bool:
    """Whether two ratios are larger than `above` from every seed; NaN is not."""
    return bool(one.low > above and other.low > above)


def ends(runs: pd.DataFrame) -> str:
    """How the least median errors of the batch sizes compare."""
    least = runs.groupby(["batch", "epochs"])["rmse"].median().groupby("batch").min()
    spread = least.max() / least.min() - 1
    return (
        f"The least errors of the three sizes, each after as many epochs as it was"
        f" given, lie {percent(spread)} apart."
    )
