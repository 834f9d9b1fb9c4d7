"""Page 2, does it forecast, on synthetic rows."""

import numpy as np
import pandas as pd
import pytest
from pages import Page, rows

from lstm_kernels.forecast import network_rule, recursive

PAGE = Page("02")
page = PAGE.module
# Errors in thousands by pair of years; those of a month change their sign.
ERRORS = {"Holt–Winters": (7, 17, 13), "last year's growth": (11, 5, 19)}
ERRORS |= {"seasonal-naive": (47, 31, 53), "persistence": (37, 43, 59)}
HOLT = np.sqrt(np.mean(np.square(ERRORS["Holt–Winters"])))
EPOCHS = {1: (3, 4, 5), 16: (7, 9, 11), 83: (19, 23, 29)}  # of three seeds


def made_rows(errors, *, ahead=3.0, **columns):
    """Rows of `tidy`: errors one month ahead by pair, `ahead` more each month later."""
    parts = []
    for (pair, first), off in zip(page.PAIRS.items(), errors, strict=True):
        origin, lead = np.meshgrid(range(24), range(1, 25), indexing="ij")
        sign = np.where(origin % 2, 1.0, -1.0)
        truth = page.series()[np.minimum(first + origin + lead - 1, first + 23)]
        found = truth + sign * (off + ahead * (lead - 1))
        parts.append(page.tidy(found, first, pair=pair, **columns))
    return pd.concat(parts, ignore_index=True)


def trained(first=(29, 14, 23), second=(31, 29, 37), **columns):
    """Two records of three seeds, the middle one with the errors given, at a rate; at
    another one all err more.
    """
    parts = [
        made_rows(np.add(off, shift), seed=seed, epochs=epochs, rate=rate, **columns)
        for rate, more in ((0.1, 0), (0.3, 7))
        for epochs, off in ((10, np.add(first, more)), (20, np.add(second, more)))
        for seed, shift in enumerate((-1.0, 0.0, 5.0))
    ]
    made = pd.concat(parts)
    loss = 0.5 + made["seed"] / 10 - made["epochs"] / 100
    return made.assign(training=loss, validation=2 * loss)


def race(epochs=EPOCHS):
    """The runs of three seeds at two rates, of which the other takes longer."""
    made = [
        (size, rate, seed, count + more)
        for size, each in epochs.items()
        for rate, more in ((0.1, 0), (0.2, 1), (0.4, np.inf))
        for seed, count in enumerate(each)
    ]
    return pd.DataFrame(made, columns=["batch", "rate", "seed", "epochs"])


def made(lstm=None, one=3e-3, some=2e-3, whole=(1.7e-3, 1.5e-3, 1.6e-3)):
    parts = [made_rows(e, ahead=2.0, rule=name) for name, e in ERRORS.items()]
    return {
        "measure_training": [
            trained() if lstm is None else lstm,
            trained(ahead=1.0),
        ],
        "measure_rules": pd.concat(parts, ignore_index=True),
        "measure_race": race(),
        "measure_epochs": rows({1: one, 16: some, 83: whole}),
    }


def chosen(times):
    """Whether ten epochs are enough that err so many times as much as twenty."""
    errors = [20 * times[1]] * 3, [20] * 3
    return page.choose(page.median_forecast(trained(*errors))) == (0.1, 10)


EDGES = [
    (0, HOLT, lambda error: made(lstm=trained(second=[error[1]] * 3))),
    # The seed whose epochs are nearest, of single examples and of batches of 16.
    (1, 3e-3 * 4 / 23, lambda whole: made(some=1e-4, whole=whole)),
    (1, 2e-3 * 9 / 23, lambda whole: made(whole=whole)),
    (None, ("most", 1.05), chosen),
]
test_text, test_edge, test_all = PAGE.approved(made(), EDGES)


def test_measured_rows():
    """A network and a rule forecast what the package's own functions forecast."""
    passengers, first = page.series(), page.PAIRS[page.TEST]
    transform, dataset = page.prepare(passengers, first)
    page.check_update(dataset)
    page.check_leakage(passengers, first)
    assert page.prepare(passengers, first, 12)[1].target.shape == (96, 12)
    net = page.new_network(3)
    rule = network_rule(net, transform, window=12)
    found = page.paths(net, transform, passengers, first)
    want = recursive(rule, passengers[: first + 5], months=7)
    assert found[5, :7] == pytest.approx(want, rel=1e-5)
    assert len(page.measure_training(1, (0.1,), 1, 1)) == 3 * 300
    assert page.measure_training(1, (0.1,), 1, 1, out=12)["lead"].max() == 12
    assert set(page.measure_race(1, 2, 1e9)["epochs"]) == {1}
    assert set(page.measure_race(1, 2, 0.0)["epochs"]) == {2}
