"""Page 10: what is claimed and drawn of chunks and of Newton's method, on made rows."""

import numpy as np
import pages
import pandas as pd
import pytest

page = pages.functions("10_time")
FUSED, CHUNKS, NEWTON = page.FUSED, page.CHUNKS, page.NEWTON


def gains(**found):
    """Intervals by work, as the page has them; found: name -> (chunks, Newton)."""
    return {
        work: pd.DataFrame(
            {CHUNKS: [0.9 * a, a, 1.1 * a], NEWTON: [0.9 * b, b, 1.1 * b]},
            index=["low", "middle", "high"],
        ).T
        for work, (a, b) in found.items()
    }


def counted(last, newton):
    """Sweeps of both versions over d, 2 at the first."""
    rows = [
        {"task": task, "version": version, "d": d, "seed": seed, "sweeps": sweeps}
        for task in (page.SIGN, page.MEAN)
        for seed in range(3)
        for version, end in ((CHUNKS, last), (NEWTON, newton))
        for d, sweeps in ((1, 2), (64, end))
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("last", "newton", "held"), [(40, 4, True), (9, 4, False), (40, 7, False)]
)
def test_sweeps_grow_with_what_is_remembered(last, newton, held):
    rows = counted(last, newton)
    claim = page.claim_memory(rows)
    assert claim["held"] is held
    assert f"2 and {last}" in claim["numbers"]
    figure = page.figure_memory(rows, 64)
    assert f"2 to {last} sweeps" in figure.get_suptitle()


@pytest.mark.parametrize(("least", "held"), [(9.0, True), (8.5, False)])
def test_small_layers_gain_a_quarter_of_the_lanes(least, held):
    names = [page.name_of(H, 100) for H in (1, 2, 4)]
    speeds = dict.fromkeys(names, (20.0, 2.0)) | {names[1]: (least, 2.0)}
    lanes, limit = pd.DataFrame({"lanes": [32]}), pd.Series({4: 11.0, 64: 3.0})
    claim = page.claim_lanes(lanes, gains(**speeds), 100, limit)
    assert claim["held"] is held
    assert "at least 8x as fast" in claim["sentence"]
    assert "11x for 4." in claim["why"]


@pytest.mark.parametrize(
    ("keeps", "wide", "held"), [(4, 0.2, True), (2, 0.2, False), (4, 0.95, False)]
)
def test_newton_gains_where_nothing_is_forgotten(keeps, wide, held):
    found = gains(one=(1.0, keeps), wide=(1.0, wide))
    assert page.claim_newton(found, ["one"], "wide")["held"] is held
    title = page.figure_times(found).axes[0].get_title("left")
    assert title == f"Chunks: up to 1x; Newton: up to {keeps}x"


def forced(even):
    """Times that cross at `even` steps: a call and a time for each step."""
    rows = []
    for H, T0 in even.items():
        for T in (100, 400, 1600, 6400):
            cut = 1e-6 * (T0 - T0 / 10 + T / 10)
            for case, seconds in (
                (FUSED, 1e-6 * T),
                ("32 chunks", cut),
                ("64", 2 * cut),
            ):
                rows += [
                    {"H": H, "T": T, "case": case, "seconds": seconds, "process": p}
                    | {"repeat": r, "work": f"{H} {T}"}
                    for p in range(2)
                    for r in range(2)
                ]
    return pd.DataFrame(rows)


def test_the_break_even_is_where_the_times_cross():
    rows = forced({1: 300, 4: 900})
    even = page.break_even(rows)
    np.testing.assert_allclose(even["predicted"], [300, 900], rtol=1e-6)
    np.testing.assert_allclose(even["measured"], [300, 900], rtol=0.15)
    assert page.claim_even(even)["held"] is True
    np.testing.assert_allclose(even["limit"], 10, rtol=1e-6)
    even["predicted"] *= 1.5
    assert page.claim_even(even)["held"] is False
    assert page.claim_even(page.break_even(forced({1: 10})))["held"] is None
    best = page.best_gains(rows)
    assert best[1, 6400].middle == pytest.approx(6400 / (270 + 640))
    figure = page.figure_map(best, even)
    assert figure.axes[0].get_title("left") == "Chunks are faster in 5 of 8 fields"


def test_tasks_tell_what_came_last():
    rng = np.random.default_rng(0)
    x, target = page.sequences(page.SIGN, rng, 30, 50, 5)
    for sequence, told in zip(x[..., 0].T, target[:, 0], strict=True):
        assert told == sequence[sequence != 0][-1]
    x, target = page.sequences(page.MEAN, rng, 40, 6, 4)
    mean = np.zeros(6)
    for step in x[..., 0]:
        mean = (1 - 1 / 4) * mean + step / 2
    np.testing.assert_allclose(target[:, 0], mean, rtol=1e-5)


def test_chunks_in_numpy_end_with_the_right_answer():
    params, x = page.white(3, 40)
    right, *_ = page.reference.forward(params, x)
    for count in (1, 4, 40):
        y, sweeps = page.in_chunks(params, x, count, 0)
        np.testing.assert_allclose(y, right, atol=1e-6)
        assert sweeps <= count
