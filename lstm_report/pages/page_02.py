"""Page 2, does it forecast: the series, training, rules that compete, batch sizes."""

from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import lstm_kernels as lk
from lstm_kernels import data, forecast, training
from lstm_kernels.cores import allowed

from .. import plots
from ..measure.comparer import compare_to_reference
from ..measure.evidence import Interval, digits, ms, ratios, seconds, speed
from ..measure.timing import interleaved
from ..studies import forecasts

WINDOW = 12  # months of growth that the network sees
YEARS = 24  # months in a pair of years
PAIRS = {"1955–56": 72, "1957–58": 96, "1959–60": 120}  # the first month of each
CHOICE, TEST = "1957–58", "1959–60"  # years that choose the epochs, and test years
UNITS = 32
SMOOTH, GROWTH, NAIVE = "Holt–Winters", "last year's growth", "seasonal-naive"
SIZES = (1, 2, 4, 8, 16, 32, 64)
ADAM: dict[str, Any] = {"batch_size": 16, "learning_rate": 3e-3, "optimizer": "adam"}
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


def paths(net: Any, transform: Any, passengers: np.ndarray, first: int) -> np.ndarray:
    """Forecasts (YEARS origins, YEARS months) of the months from each origin on, the
    first of them from the true months, later ones from its own output.
    """
    z = transform.forward(passengers[: first + YEARS])
    origins = np.arange(first, first + YEARS)
    x = np.stack([z[month - 1 - WINDOW : month - 1] for month in origins], axis=1)
    out = net.params().b_out.size
    growth = np.zeros((YEARS, YEARS))
    for lead in range(0, YEARS if out == 1 else out, out):
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


def measure_training(
    seeds: int, epochs: int, every: int, out: int = 1
) -> pd.DataFrame:
    """Train by Adam before each pair of years, from `seeds` seeds; after each `every`
    epochs the rows of `tidy`, with training and validation loss.
    """
    passengers, parts = series(), []

    def watch(history, net, *, pair, seed, transform):
        if history.epochs % every:
            return
        found = paths(net, transform, passengers, PAIRS[pair])
        made = tidy(found, PAIRS[pair], pair=pair, seed=seed, epochs=history.epochs)
        near = made[made["lead"] == 1]
        off = np.log(near["forecast"] / near["truth"]) / transform.std
        loss = {"training": history.loss[-1], "validation": np.mean(off**2)}
        parts.append(made.assign(**loss))

    for pair, first in PAIRS.items():
        transform, dataset = prepare(passengers, first, out)
        for seed in range(seeds):
            on = partial(watch, pair=pair, seed=seed, transform=transform)
            net = new_network(seed, out)
            how = {"seed": seed, "progress": False, "on_epoch": on}
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
                path = forecasts.recursive(rule, known, months=months)
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
    """The epochs with the least such error on the years that choose them."""
    return int(by_epochs(rows, CHOICE).idxmin())


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


def table(rows: pd.DataFrame, rules: pd.DataFrame, epochs: int) -> pd.DataFrame:
    """RMSE one month ahead by pair and over all months, and how many numbers a rule
    has fitted.
    """
    lstm = medians(rows, epochs).assign(rule="LSTM")
    all_of = near(pd.concat([lstm, rules]))
    made = rmse(all_of, "rule", "pair").unstack("pair")
    made = made.assign(**{"all months": rmse(all_of, "rule")}).sort_values("all months")
    fitted = {"LSTM": numbers(), SMOOTH: 17}
    made.insert(0, "fitted numbers", [fitted.get(name, 0) for name in made.index])
    return made.rename_axis(index="RMSE, thousands", columns=None)


def numbers() -> int:
    """How many numbers the network has."""
    return sum(a.size for a in new_network(0).params().arrays().values())


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
    z = transform.forward(passengers[: first + YEARS])
    months = range(first, first + YEARS)
    x = np.stack([z[m - 1 - WINDOW : m - 1] for m in months], axis=1)
    x = x[..., None].astype(np.float32)
    before, truth = passengers[first - 1 : first + YEARS - 1], passengers[list(months)]

    def watch(history, net, **columns):
        if history.epochs <= 50 or history.epochs % 5 == 0:
            found = transform.backward(before, net.predict(x)[:, 0])
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
