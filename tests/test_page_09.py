"""Page 09: what is claimed of bfloat16 and of low rank, and drawn, on made rows."""

import numpy as np
import pages
import pandas as pd
import pytest

from lstm_kernels import Params, reference
from lstm_report import plots
from lstm_report.measure.evidence import Interval
from lstm_report.studies import low_rank

page = pages.functions("09_bytes")
ONE, MANY = "256 units, 1 sample", "256 units, 64 samples"


def gains(rank=(6.0, 6.5, 7.0)):
    """By (work, case), as `ratios_of` gives them."""
    found = {}
    for work in (ONE, MANY):
        for R, factor in ((8, 1.2), (16, 1.0), (32, 0.75), (64, 0.5)):
            found[work, f"rank {R}"] = Interval(*(factor * value for value in rank))
    return found


def costs(airline=1.0, signs=20.0, spread=0.0):
    """Loss over dense by task and seed, as `relative` gives it."""
    rows = {}
    for task, lost in ((page.AIRLINE, airline), (page.SIGNS, signs)):
        for seed in range(3):
            moved = 1 + spread * (seed - 1)
            ranks = {f"rank {R}": lost * moved for R in (8, 16, 32)}
            rows[task, seed] = ranks | {"rank 64": 1.2, "dense": 1.0, "bfloat16": 1.0}
    table = pd.DataFrame(rows).T
    return table.rename_axis(index=["task", "seed"])


def times(process, work, case, seconds):
    rows = [{"repeat": k, "seconds": value} for k, value in enumerate(seconds)]
    return pd.DataFrame(rows).assign(process=process, work=work, case=case)


def test_ratios_are_those_of_processes():
    parts = []
    for process, factor in ((0, 2.0), (1, 4.0), (2, 1.0)):
        parts.append(times(process, MANY, page.DENSE, [4.0, 8.0, 4.0]))
        seconds = [4.0 / factor, 8.0 / factor, 4.0 / factor]
        parts.append(times(process, MANY, "rank 8", seconds))
    assert page.ratios_of(pd.concat(parts)) == {(MANY, "rank 8"): (1.0, 2.0, 4.0)}


@pytest.mark.parametrize(("low", "held"), [(5.13, True), (5.1, False)])
def test_the_published_speed_up_has_to_be_reached_for_both(low, held):
    found = gains()
    found[ONE, "rank 16"] = Interval(low, 6, 7)
    claim = page.claim_rank(found)
    assert "5.12x" in claim["sentence"]  # 42.8 / 8.36
    assert claim["held"] is held
    assert claim["numbers"].count("sample") == 2
    assert page.claim_rank({})["held"] is None


def losses(off, seeds=(1.0, 1.1)):
    rows = [
        {"task": task, "seed": seed, "case": case, "loss": value * factor}
        for task in (page.AIRLINE, page.SIGNS)
        for seed, value in enumerate(seeds)
        for case, factor in (("trained", 1.0), ("bfloat16", 1 + off), ("dense", 0.5))
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("off", "held"), [(0.09, True), (-0.09, True), (0.11, False), (-0.11, False)]
)
def test_rounding_has_to_change_a_loss_less_than_seeds_do(off, held):
    claim = page.claim_loss(losses(off))  # of seeds 10 % apart
    assert claim["held"] is held
    assert claim["numbers"].count("seeds 10 % apart") == 2


def test_losses_are_compared_with_the_network_they_come_from():
    got = page.relative(losses(0.02)).loc[page.AIRLINE, 0]
    assert got["bfloat16"] == pytest.approx(1.02)  # of the trained one, not the tuned
    assert got["dense"] == 1


def test_the_figure_of_costs_shows_loss_over_speed():
    figure = page.figure_cost(gains(), costs(spread=0.1))
    (ax,) = figure.axes
    title = "Loss at rank 32, dense = 1: 1 on airline, 20 on 64 signs"
    assert ax.get_title("left") == title
    assert ax.get_xlabel() == "times as fast as dense float32 (64 samples)"
    assert ax.get_ylabel() == "held-out loss, dense = 1"
    (signs,) = (
        line
        for line in ax.lines
        if line.get_linestyle() == "-" and line.get_color() == plots.RED
    )
    x, y = signs.get_xydata().T
    np.testing.assert_allclose(x, [1, 3.25, 4.875, 6.5, 7.8])
    np.testing.assert_allclose(y, [1, 1.2, 20, 20, 20])
    words = plots.words(figure)
    for name in ("rank 64", "rank 8", "64 signs", "airline", "dense"):
        assert name in words
    other = page.figure_cost(gains(), costs(airline=1.31, signs=2.0))
    assert "1.31 on airline, 2 on 64 signs" in other.axes[0].get_title("left")


def test_the_table_has_milliseconds_and_speeds_from_dense_to_the_lowest_rank():
    cases = {page.DENSE: 1.0, "rank 8": 0.1, "rank 32": 0.2}
    rows = pd.concat(
        times(0, work, case, [value])
        for work in (ONE, MANY)
        for case, value in cases.items()
    )
    table = page.rank_table(rows, gains())
    assert list(table.index) == ["dense", "rank 32", "rank 8"]
    assert table.loc["rank 8", "64 samples (ms)"] == "100"
    assert table.loc["rank 8", "1 sample, speed"] == "7.8x (7.2x to 8.4x)"
    assert table.loc["dense", "1 sample, speed"] == ""


def test_the_signs_are_to_be_carried_and_the_years_are_apart():
    training, held_out = page.examples(page.SIGNS, smoke=True)
    np.testing.assert_array_equal(training.x[0], training.target)
    assert not training.x[1:].any()
    assert not np.array_equal(training.target, held_out.target)
    training, held_out = page.examples(page.AIRLINE)
    assert (len(training), len(held_out)) == (83, 24)  # months to 1956; 1957 and 1958
    np.testing.assert_array_equal(training.x[1:, -1, 0], held_out.x[:-1, 0, 0])


def test_rounding_is_to_the_nearest_of_two_the_even_one():
    """Every upper half, with lower halves at, below and above a tie."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    lower = [upper | low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]
    x = np.concatenate(lower).astype(np.uint32).view(np.float32)
    x = x[np.isfinite(x)]
    below = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)  # towards zero
    with np.errstate(over="ignore"):
        above = (below.view(np.uint32) + np.uint32(1 << 16)).view(np.float32)
    near, far = np.abs(x.astype(float) - below), np.abs(above.astype(float) - x)
    even = (below.view(np.uint32) >> 16) % 2 == 0
    want = np.where((near < far) | ((near == far) & even), below, above)
    want = np.where(np.isfinite(above), want, below)  # the largest stays the largest
    assert (page.rounded(x).view(np.uint32) == want.view(np.uint32)).all()


def test_rounded_predictions_are_near_those_of_the_reference():
    params = Params.init(2, 9, output_size=3)
    x = np.random.default_rng(0).standard_normal((4, 5, 2)).astype(np.float32)
    got = page.predict_rounded(params, x)
    want = reference.forward(params, x)[0][-1] @ params.V + params.b_out
    assert got.shape == (5, 3)
    assert 0 < np.abs(got - want).max() < 2e-2


def test_every_state_of_a_network_has_a_loss():
    rows = page.losses_of(
        page.SIGNS, 0, (2, 40), H=8, epochs=(1, 1), smoke=True
    ).set_index("case")["loss"]
    full = low_rank.full_rank(Params.init(8, 8))
    assert full < 40  # a rank that this layer cannot have is left out
    assert set(rows.index) == {"trained", "bfloat16", "rank 2", "dense"}
    assert rows["bfloat16"] == pytest.approx(rows["trained"], rel=0.05)
