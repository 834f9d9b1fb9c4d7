"""Page 10: what is claimed and drawn of chunks in time, on made rows."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from pages import claims, functions, rows, says

page = functions("10_time")
FUSED, CHUNKS, NEWTON = page.FUSED, page.CHUNKS, page.NEWTON


def counted(last=40, newton=4):
    """Sweeps of three seeds by what is to be remembered: those of a mean end at `last`
    and `newton`, those of the sign elsewhere.
    """
    ends = {(page.SIGN, CHUNKS): (3, 13), (page.SIGN, NEWTON): (5, 11)}
    ends |= {(page.MEAN, CHUNKS): (2, last), (page.MEAN, NEWTON): (2, newton)}
    made = [
        (task, method, d, seed, sweeps + spread)
        for (task, method), each in ends.items()
        for d, sweeps in zip((1, 64), each, strict=True)
        for seed, spread in enumerate((0, -1, 9))
    ]
    return pd.DataFrame(made, columns=["task", "method", "d", "seed", "sweeps"])


def gains(one=20, two=20, four=20):
    """Intervals by work, as the page has them: of the least gains of small layers."""
    return {
        page.name_of(H, 100): pd.DataFrame(
            {CHUNKS: [least, 1.2 * least, 3 * least]}, index=["low", "middle", "high"]
        ).T
        for H, least in ((1, one), (2, two), (4, four))
    }


def lanes(**least):
    limit = pd.Series({4: 11.0, 64: 3.0})
    return pd.DataFrame({"lanes": [32]}), gains(**least), 100, limit


def cuts():
    """What chunks chose and the sweeps they took; of step by step, none."""
    chosen = pd.DataFrame({"chosen": ["32 chunks", "32 chunks", "64 chunks"]})
    chosen = chosen.assign(work="small", sweeps=[2, 3, 3], case=CHUNKS)
    other = chosen.assign(work="large", chosen="step by step", sweeps=None)
    return pd.concat([chosen, other, chosen.assign(case=FUSED, chosen=None, sweeps=9)])


LENGTHS = 100, 200, 400, 800, 1600, 6400


def forced(lengths=LENGTHS):
    """Times of a call of 100 us whose steps take 1 us, alone or of all chunks."""
    parts = []
    for H, T in product((1, 2), lengths):
        steps = {f"{n} chunks": page.counts_of(T, n, 20)[2] for n in (32, 64)}
        times = {name: 1e-6 * (100 + H * n) for name, n in steps.items()}
        parts.append(rows({FUSED: 1e-6 * T} | times, H=H, T=T))
    return pd.concat(parts)


FORGOTTEN = {1: 20, 2: 20}
EVEN = page.break_even(forced(), FORGOTTEN)
NONE = page.break_even(forced(LENGTHS[3:]), FORGOTTEN)
MAP, FAST = (page.best_gains(forced()), EVEN), gains(two=11)
test_claims = claims(
    (page.claim_memory, counted(), True, "numba-chunks 2 and 40; Newton's method 2 an"),
    (page.claim_memory, counted(), True, "From a mean over 1 to one over 64 steps"),
    (page.claim_memory, counted(last=9), False),
    (page.claim_memory, counted(newton=7), False, "Newton's method 2 and 7"),
    (page.claim_lanes, lanes(two=8), True, "at least 8x as fast"),
    (page.claim_lanes, lanes(two=8), True, "2 units, 100 steps: "),
    (page.claim_lanes, lanes(two=7.9), False, "would tend to 11x for 4."),
    (page.claim_lanes, lanes(four=7.9), False),
    (page.claim_even, EVEN, True, "1 unit: "),
    (page.claim_even, EVEN.assign(model=1.19 * EVEN["measured"]), True),
    (page.claim_even, EVEN.assign(model=EVEN["measured"] * [1, 1.21]), False),
    (page.claim_even, EVEN.assign(model=EVEN["measured"] * [0.79, 1]), False),
    (page.claim_even, NONE, None),
)
test_words = says(
    (page.figure_memory, (counted(), 64), "from 2 to 40 sweeps. last sign. sweeps"),
    (page.figure_memory, (counted(), 64), "running mean.", "64 chunks", "Newton"),
    (page.figure_times, FAST, "Chunks to 24x. ", "24x; 13.2x; 24x."),
    (page.figure_map, MAP, "Chunks are faster in 10 of 12 fields"),
    (page.chosen_table, cuts(), "small, 32 chunks, 3\nlarge, step by step, 1"),
)


def test_networks_that_did_not_learn_are_left_out_and_counted():
    losses = [(CHUNKS, 0, 0.1), (NEWTON, 0, 0.1), (CHUNKS, 1, 0.25), (NEWTON, 1, 0.25)]
    losses += [(CHUNKS, 2, 0.24), (CHUNKS, 3, 1.0), (CHUNKS, 4, np.nan)]
    made = pd.DataFrame(losses, columns=["method", "seed", "loss"])
    learned, lost = page.split_learned(made.assign(task="a", d=2), 0.25)
    assert (list(learned["seed"]), lost) == ([0, 0, 2], 3)


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
    for H, length in EVEN["model"].items():
        for T, faster in ((int(length) - 1, False), (int(length), True)):
            steps = min(page.counts_of(T, C, 20)[2] for C in (32, 64))
            assert (100 + H * steps <= T) is faster
    np.testing.assert_allclose(EVEN["measured"] / EVEN["model"], 1, atol=0.2)
    np.testing.assert_allclose(EVEN["limit"], [64, 32], rtol=0.05)
    steps = page.counts_of(6400, 64, 20)[2]
    assert MAP[0][1, 6400].middle == pytest.approx(6400 / (100 + steps))


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


def test_the_airline_series_is_repeated_and_its_network_trained():
    params, x = page.airline(2, 1)
    assert (x.shape, x.dtype, params.hidden_size) == ((2002, 1, 1), np.float32, 2)
    np.testing.assert_array_equal(x[:143], x[-143:])
    assert not np.array_equal(params.V, page.lk.Params.init(1, 2, output_size=1).V)


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
