"""Page 10: what is claimed and drawn of chunks in time, on made rows."""

from itertools import product

import numpy as np
import pages
import pandas as pd
import pytest

page = pages.functions("10_time")
FUSED, CHUNKS, NEWTON = page.FUSED, page.CHUNKS, page.NEWTON


def gains(**found):
    """Intervals by work, as the page has them; found: name -> middle."""
    ends = ["low", "middle", "high"]
    return {
        work: pd.DataFrame({CHUNKS: [0.9 * a, a, 1.1 * a]}, index=ends).T
        for work, a in found.items()
    }


# The last median sweeps of chunks and of Newton's method, over means; signs have others.
MEMORY = [(40, 4, True), (9, 4, False), (40, 7, False)]


@pytest.mark.parametrize(("last", "newton", "held"), MEMORY)
def test_sweeps_grow_with_what_is_remembered(last, newton, held):
    ends = {
        (page.SIGN, CHUNKS): (3, 13),
        (page.SIGN, NEWTON): (5, 11),
        (page.MEAN, CHUNKS): (2, last),
        (page.MEAN, NEWTON): (2, newton),
    }
    rows = pd.DataFrame(
        {"task": task, "method": method, "d": d, "seed": seed, "sweeps": n + seed - 1}
        for (task, method), each in ends.items()
        for d, n in zip((1, 64), each, strict=True)
        for seed in range(3)
    )
    claim = page.claim_memory(rows)
    assert claim["held"] is held
    assert f"numba-chunks 2 and {last}; Newton's method 2 and" in claim["numbers"]
    assert f"2 to {last} sweeps" in page.figure_memory(rows, 64).get_suptitle()


def test_networks_that_did_not_learn_are_left_out_and_counted():
    losses = [(CHUNKS, 0, 0.1), (NEWTON, 0, 0.1), (CHUNKS, 1, 0.25), (NEWTON, 1, 0.25)]
    losses += [(CHUNKS, 2, 0.24), (CHUNKS, 3, 1.0), (CHUNKS, 4, np.nan)]
    rows = pd.DataFrame(losses, columns=["method", "seed", "loss"])
    learned, lost = page.split_learned(rows.assign(task="a", d=2), 0.25)
    assert (list(learned["seed"]), lost) == ([0, 0, 2], 3)


@pytest.mark.parametrize(("least", "held"), [(9.0, True), (8.5, False)])
def test_small_layers_gain_a_quarter_of_the_lanes(least, held):
    names = [page.name_of(H, 100) for H in (1, 2, 4)]
    speeds = dict.fromkeys(names, 20.0) | {names[1]: least}
    lanes, limit = pd.DataFrame({"lanes": [32]}), pd.Series({4: 11.0, 64: 3.0})
    claim = page.claim_lanes(lanes, gains(**speeds), 100, limit)
    assert claim["held"] is held
    assert "at least 8x as fast" in claim["sentence"]
    assert "11x for 4." in claim["why"]
    title = page.figure_times(gains(**speeds)).axes[0].get_title("left")
    assert title == "Chunks to 20x"


def forced(units, lengths=(100, 200, 400, 800, 1600, 6400), w=20):
    """Times of a call of 100 us whose steps take 1 us, alone or of all chunks."""
    rows = []
    for H, T, count, process in product(units, lengths, (1, 32, 64), range(2)):
        microseconds = T
        if count > 1:
            microseconds = 100 + H * page.counts_of(T, count, w)[2]
        case = FUSED if count == 1 else f"{count} chunks"
        about = {"work": f"{H} {T}", "H": H, "T": T, "process": process, "repeat": 0}
        rows.append(about | {"case": case, "seconds": 1e-6 * microseconds})
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
    np.testing.assert_allclose(even["limit"], [64, 32], rtol=0.05)
    assert page.claim_even(even)["held"] is True
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


@pytest.mark.parametrize("count", [1, 4, 40])
def test_sweeps_in_numpy_end_with_the_right_answer(count):
    params, x = page.white(3, 40)
    right, *_ = page.reference.forward(params, x)
    for y, sweeps in (
        page.in_chunks(params, x, count, 0),
        page.by_newton(params, x, count),
    ):
        np.testing.assert_allclose(y, right, atol=1e-6)
        assert sweeps <= count


def test_newton_needs_fewer_sweeps_where_nothing_is_forgotten():
    params, x = page.white(2, 60)
    params.layers[0].b[2:4] += 4  # forget gates near one
    params, x = params.astype(np.float64), x.astype(np.float64)
    assert (
        page.by_newton(params, x, 20)[1] < page.in_chunks(params, x, 20, 1e-12)[1] / 2
    )


def test_jacobians_are_the_slopes_of_the_ends():
    params, x = page.white(2, 60)
    params, x = params.astype(np.float64), x.astype(np.float64)
    starts = np.random.default_rng(0).standard_normal((3, 4))
    cut = x.reshape(3, 20, 1).swapaxes(0, 1)

    def ends(starts):
        y, state, tapes = page.reference.forward(params, cut, page.split(starts))
        return page.joined(state), page.jacobians(params, tapes, y)

    for k in range(4):
        step = 1e-6 * np.eye(4)[k]
        slope = (ends(starts + step)[0] - ends(starts - step)[0]) / 2e-6
        np.testing.assert_allclose(ends(starts)[1][..., k], slope, atol=1e-8)
