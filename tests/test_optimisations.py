"""What notebook 06 measures of the switches and of low-rank weights, and what it draws."""

import numpy as np
import pandas as pd
import pytest

from lstm_kernels import data
from lstm_kernels.bench import MismatchError, compression, optimisations, results
from lstm_kernels.bench.optimisations import effects, gains, name
from lstm_kernels.bench.workloads import Workload
from lstm_kernels.study.switches import BASELINE, COMBINATIONS, EVERY, SWITCHES, Variant

TINY = Workload(2, 3, 5, 9, 4)


def planted(factors, together=None, rounds=6, noise=0.0, seed=0):
    """Seconds of all combinations, with known factors of the switches and of pairs."""
    rng, columns = np.random.default_rng(seed), {}
    for on in COMBINATIONS:
        seconds = 1.0 / np.prod([factors[s] for s in on])
        for pair, factor in (together or {}).items():
            seconds /= factor if set(pair) <= set(on) else 1.0
        columns[name(on)] = seconds * np.exp(noise * rng.standard_normal(rounds))
    return pd.DataFrame(columns)


def test_the_effects_are_those_that_were_planted():
    factors = dict(zip(SWITCHES, (2.0, 1.0, 1.5, 0.8, 1.2), strict=True))
    table = effects(planted(factors))
    for switch, factor in factors.items():
        assert table.loc[switch, "factor"] == pytest.approx(factor)
    assert table["factor"].drop(list(SWITCHES)).to_numpy() == pytest.approx(np.ones(10))
    pair = ("combine", "pack")
    table = effects(planted(factors, {pair: 1.3}))
    # Half of the settings have the partner on.
    assert table.loc["combine", "factor"] == pytest.approx(2.0 * 1.3**0.5)
    assert table.loc["combine x pack", "factor"] == pytest.approx(1.3)
    assert table.loc["combine x fuse", "factor"] == pytest.approx(1.0)


def test_the_intervals_hold_the_truth_as_often_as_they_say():
    factors, inside = dict.fromkeys(SWITCHES, 1.1), []
    for seed in range(40):
        table = effects(planted(factors, noise=0.05, seed=seed))
        main = table.loc[list(SWITCHES)]
        inside += list((main["low"] <= 1.1) & (main["high"] >= 1.1))
    assert 0.88 < np.mean(inside) < 0.995


def test_gains_are_of_rounds_and_a_missing_combination_is_named():
    table = planted(dict.fromkeys(SWITCHES, 1.1))
    drift = pd.Series(np.linspace(1, 3, len(table)))
    assert gains(table.mul(drift, axis=0))[name(EVERY)] == pytest.approx(1.1**5)
    assert gains(table)[name(BASELINE)] == 1
    rows = table.melt(ignore_index=False, var_name="variant", value_name="seconds")
    rows = rows.reset_index(names="repeat").assign(version="study", stage="forward")
    pd.testing.assert_frame_equal(
        optimisations.by_combination(rows), table, check_names=False, check_freq=False
    )
    with pytest.raises(ValueError, match=r"rows: lack \['combine \+ pack'\]"):
        optimisations.by_combination(rows[rows["variant"] != "combine + pack"])


def test_all_combinations_are_verified_and_timed(monkeypatch):
    rows = optimisations.all_combinations(TINY, repeats=2)
    assert set(rows.columns) <= set(results.COLUMNS)
    assert len(rows) == 2 * 33
    assert 0 < rows["max_err"].max() < 2e-5
    assert (optimisations.by_combination(rows) > 0).all(axis=None)
    fused = Variant._fused
    monkeypatch.setattr(Variant, "_fused", lambda s, sums, b, c, h: fused(s, sums, 2 * b, c, h))
    with pytest.raises(MismatchError):
        optimisations.all_combinations(TINY, repeats=1)


def test_ranks_are_verified_and_timed(monkeypatch):
    work = Workload(1, 3, 6, 6, 2)
    rows = optimisations.ranks_of(work, (1, 4, 12), repeats=2)
    assert set(rows.columns) <= set(results.COLUMNS)
    assert sorted(rows["low_rank"].dropna().unique()) == [1, 4, 12]
    assert set(rows["version"]) == {"factored", "numba-fused"}
    factor = optimisations.factor
    wrong = []

    def factor_wrongly(params, rank):
        wrong.append(factor(params, rank))
        return wrong[-1]

    network = optimisations.FactoredNetwork
    monkeypatch.setattr(optimisations, "factor", factor_wrongly)

    class Wrong(network):
        def forward(self, x, *rest):
            y, state = super().forward(x, *rest)
            return 1.001 * y, state

    monkeypatch.setattr(optimisations, "FactoredNetwork", Wrong)
    with pytest.raises(MismatchError):
        optimisations.ranks_of(work, (1,), repeats=1)


def test_compression_of_both_tasks():
    rows = compression.study("smoke", 2, (1, 4))
    assert set(rows.columns) <= set(results.COLUMNS)
    assert set(rows["variant"]) == {"airline", "reber"}
    assert len(rows) == 2 * 2 * (2 + 2 * 3)
    assert rows["loss"].notna().all()
    keys = ["variant", "repeat"]
    cut = rows[rows["stage"] == "cut"].sort_values("low_rank").groupby(keys).last()
    trained = rows[rows["stage"] == "trained"].groupby(keys).last()
    # Nothing is lost at full rank, and less and less on the way there.
    assert (cut["max_err"] < 1e-5).all()
    np.testing.assert_allclose(cut["loss"], trained["loss"], rtol=1e-4)
    tuned = rows[(rows["stage"] == "tuned") & (rows["version"] == "factored")]
    assert (tuned["seconds"] > 0).all()


def test_held_out_examples_are_not_trained_on():
    airline, grammar = compression.TASKS["smoke"]
    months = data.windows(airline._growth, 12)
    assert len(airline.training) + len(airline.held_out) == len(months) == 131
    assert len(airline.held_out) == 24
    np.testing.assert_array_equal(airline.held_out.x[:, 0], months.x[:, 107])
    fit = data.LogDifference.fit(data.airline().to_numpy(float)[:120])
    assert airline._growth[:119].mean() == pytest.approx(0, abs=1e-12)
    assert fit.std > 0
    assert airline.reference == pytest.approx(float(np.mean(airline.held_out.target**2)))
    assert grammar.training.x.shape[1] == 64
    assert 0.3 < grammar.reference < 0.6
