"""What notebook 06 measures of the switches and of low-rank weights, and what it
draws.
"""

import numpy as np
import pandas as pd
import pytest

from lstm_kernels import data
from lstm_report.experiments import compression, optimisations
from lstm_report.experiments.optimisations import gains, name
from lstm_report.experiments.switches import (
    BASELINE,
    COMBINATIONS,
    EVERY,
    SWITCHES,
    Variant,
)
from lstm_report.measure import MismatchError, results
from lstm_report.measure.workloads import Workload

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


def test_gains_agree_and_a_missing_combination_is_named():
    table = planted(dict.fromkeys(SWITCHES, 1.1))
    drift = pd.Series(np.linspace(1, 3, len(table)))
    assert gains(table.mul(drift, axis=0))[name(EVERY)] == pytest.approx(1.1**5)
    assert gains(table)[name(BASELINE)] == 1
    rows = table.melt(ignore_index=False, var_name="variant", value_name="seconds")
    rows = rows.reset_index(names="repeat").assign(version="study", stage="forward")
    pd.testing.assert_frame_equal(
        optimisations.by_combination(rows), table, check_names=False, check_freq=False
    )
    with pytest.raises(ValueError, match=r"rows: lack \['combine \+ layout'\]"):
        optimisations.by_combination(rows[rows["variant"] != "combine + layout"])


def test_all_combinations_are_verified_and_timed(monkeypatch):
    rows = optimisations.all_combinations(TINY, repeats=2)
    assert set(rows.columns) <= set(results.COLUMNS)
    assert len(rows) == 2 * 37
    assert 0 < rows["max_err"].max() < 2e-5
    assert (optimisations.by_combination(rows) > 0).all(axis=None)
    fused = Variant._fused
    monkeypatch.setattr(
        Variant, "_fused", lambda s, sums, b, c, h: fused(s, sums, 2 * b, c, h)
    )
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
    assert airline.reference == pytest.approx(
        float(np.mean(airline.held_out.target**2))
    )
    assert grammar.training.x.shape[1] == 64
    assert 0.3 < grammar.reference < 0.6


# Figures and tables of the notebook; they need the extra `report`.


def rows_of_ranks(fast):
    """Dense layers of one second; factored ones by rank."""
    rows = []
    for B, repeat in ((1, 0), (64, 0), (1, 1), (64, 1)):
        rows.append((B, repeat, "numba-fused", np.nan, 1.0))
        rows += [(B, repeat, "factored", rank, 1 / gain) for rank, gain in fast.items()]
    columns = ["B", "repeat", "version", "low_rank", "seconds"]
    return pd.DataFrame(rows, columns=columns).assign(stage="forward")


def rows_of_losses(losses, dense=1.0):
    """Of both tasks, cut twice as bad as tuned."""
    rows = []
    for task, seed in (("airline", 0), ("reber", 0), ("airline", 1), ("reber", 1)):
        rows += [
            (task, seed, "numba-fused", s, np.nan, dense) for s in ("trained", "tuned")
        ]
        for rank, loss in losses.items():
            rows.append((task, seed, "factored", "cut", rank, 2 * loss))
            rows.append(
                (task, seed, "factored", "tuned", rank, loss * (1 + 0.001 * seed))
            )
    columns = ["variant", "repeat", "version", "stage", "low_rank", "loss"]
    other = {"accuracy": 1.0, "parameters": 10, "max_err": 0.1, "seconds": 1.0}
    return pd.DataFrame(rows, columns=columns).assign(**other)


def test_low_rank_figures_say_what_was_planted():
    figures = pytest.importorskip("lstm_report.figures.optimisations")
    plots = pytest.importorskip("lstm_report.figures.plots")
    fast = {1: 20.0, 8: 8.0, 32: 5.5, 64: 2.0, 512: 0.6}
    speeds = figures.rank_speeds(rows_of_ranks(fast))
    assert speeds.loc[(64, 32), "speed"] == pytest.approx(5.5)
    drawn = figures.draw_speeds(speeds, 256)
    assert "At rank 32 of 256 units: 5.50x (B = 1) and 5.50x (B = 64)" in plots.words(
        drawn
    )
    losses = figures.rank_losses(
        rows_of_losses({1: 3.0, 8: 1.5, 32: 1.01, 64: 1.0, 512: 1.0})
    )
    assert figures.enough_rank(losses, "reber") == 32
    assert figures.enough_rank(losses, "reber", excess=0.6) == 8
    table = figures.claimed(speeds, losses)
    assert list(table["largest rank"]) == [32, 32]
    assert table["Airline: loss"].iloc[0] == "+1.1%"
    drawn = figures.draw_losses(losses)
    assert "rank 32 of 512 is enough" in plots.words(drawn)
    drawn = figures.pareto(speeds, losses, 64)
    assert "Airline: +1.1% loss at 5.12x" in plots.words(drawn)
    slow = figures.rank_speeds(rows_of_ranks({1: 3.0, 8: 2.0, 32: 1.5}))
    assert list(figures.claimed(slow, losses)["largest rank"]) == ["none", "none"]


def test_recorded_rows_are_of_one_machine_which_is_named(monkeypatch):
    notebook, said = pytest.importorskip("lstm_report.notebook").Notebook("smoke"), []
    monkeypatch.setattr(notebook, "say", said.append)
    for experiment in ("switches", "batches", "compilers", "low-rank", "grid"):
        rows = notebook.recorded(experiment)
        (machine,) = rows["machine"].unique()
        record = results.record(experiment, machine)
        assert said[-1] == f"Recorded: {results.caption(record)}."
    with pytest.raises(ValueError, match="experiment: got 'none'"):
        notebook.recorded("none")
