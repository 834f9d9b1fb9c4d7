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
    ("keeps", "wide", "held"), [(4, 0.2, True), (1.1, 0.2, False), (4, 0.95, False)]
)
def test_newton_gains_where_nothing_is_forgotten(keeps, wide, held):
    found = gains(one=(1.0, keeps), wide=(1.0, wide))
    assert page.claim_newton(found, ["one"], "wide")["held"] is held
    title = page.figure_times(found).axes[0].get_title("left")
    assert title == f"Chunks to 1x, Newton to {keeps}x"


def forced(units, w=20):
    """Times of a call of 100 us whose steps take 1 us, alone or of all chunks."""
    rows = []
    for H in units:
        for T in (100, 200, 400, 800, 1600, 6400):
            cuts = {
                f"{C} chunks": 100 + H * page.counts_of(T, C, w)[2] for C in (32, 64)
            }
            for case, microseconds in ({FUSED: T} | cuts).items():
                rows += [
                    {"H": H, "T": T, "case": case, "seconds": 1e-6 * microseconds}
                    | {"work": f"{H} {T}", "process": p, "repeat": r}
                    for p in range(2)
                    for r in range(2)
                ]
    return pd.DataFrame(rows)


def test_steps_in_a_row_are_those_of_the_version():
    params, x = page.white(4, 400)
    w = page.forgets(params, page.white(4, 3200)[1])
    for count in (8, 20, 50):
        net = page.NumbaChunks(params, chunks=count, run_up=40)
        net.forward(x)
        n = net.seams.steps
        want = page.counts_of(400, count, w)[2]
        assert abs(min(40, n - 1) + n * net.seams.sweeps[0] - want) <= n


def test_the_break_even_is_where_the_times_cross():
    rows, forgotten = forced((1, 2)), {1: 20, 2: 20}
    even = page.break_even(rows, forgotten)
    for H, length in even["model"].items():
        for T, faster in ((int(length) - 1, False), (int(length), True)):
            steps = min(page.counts_of(T, C, 20)[2] for C in (32, 64))
            assert (100 + H * steps <= T) is faster
    np.testing.assert_allclose(even["measured"] / even["model"], 1, atol=0.2)
    assert page.claim_even(even)["held"] is True
    np.testing.assert_allclose(even["limit"], [64, 32], rtol=0.05)
    even["model"] *= 1.5
    assert page.claim_even(even)["held"] is False
    none = page.break_even(rows[rows["T"] > 400], forgotten)
    assert page.claim_even(none)["held"] is None
    assert page.best_gains(rows)[1, 6400].middle > page.best_gains(rows)[1, 800].middle
    title = page.figure_map(page.best_gains(rows), even).axes[0].get_title("left")
    assert title == "Chunks are faster in 10 of 12 fields"


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
