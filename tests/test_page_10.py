"""Page 10: what is claimed and drawn of chunks in time, on made rows."""

from math import inf

import numpy as np
import pandas as pd
from pages import Page, has, rows, text_of

PAGE = Page("10_time")
page = PAGE.module
SMALL, LARGE = (f"as initialised, {H} units" for H in (4, 64))


def sweeps(eight=5, last=13, newton=3):
    """Sweeps of three seeds that learned, and of one that did not."""
    made = {page.CHUNKS: (7, eight, last), page.NEWTON: (2, 2, newton)}
    found = [
        (d, seed, (0.1, 0.2, 0.24, inf)[seed], method, count + (0, -1, 19, 61)[seed])
        for method, each in made.items()
        for d, count in zip((2, 8, 32), each, strict=True)
        for seed in range(4)
    ]
    return pd.DataFrame(found, columns=["d", "seed", "loss", "method", "sweeps"])


def times(early=31.0, late=inf, small=2e-3):
    """Seconds of a small work in chunks; the steps in which a large one forgets."""
    works = [
        (SMALL, 29.0, 53.0, [7e-3, 8e-3, 11e-3], small, 3),
        (LARGE, early, late, 17e-3, 17e-3, 28),
        ("mean over 2 steps, 8 units", 101.0, 211.0, 13e-3, 5e-3, 7),
    ]
    parts = [
        rows({page.ALONE: one, page.CHUNKS: many}, work=work, sweeps=sweeps).assign(
            **{page.MILLIONTH: millionth, page.BITS: bits}
        )
        for work, millionth, bits, one, many, sweeps in works
    ]
    for H, T, many in ((1, 200, [3e-3, 3e-3, 5e-3]), (16, 800, [1e-3, 2e-3, 3e-3])):
        made = {page.ALONE: 4e-3, "22 chunks": 7e-3, "44 chunks": many}
        parts.append(rows(made, H=H, T=T))
    return pd.concat(parts)


def made(of_times=(), **of_sweeps):
    measured = {"measure_sweeps": sweeps(**of_sweeps)}
    return measured | {"measure_times": times(**dict(of_times))}


CASES = {
    "held": (
        made(),
        "TTT",
        "8 steps: 5, by the law 4; 32 steps: 13, by the law 10",
        "over Newton's: 2.17; products of Newton's method over those of chunks: 3.92",
        "| 29 | 53 | 3 | 7 ms | 4x (3.5x to 5.5x)",
        "| 31 | not in 2048 | 28 | 17 ms | level (1x to 1x)",
        "faster in 1 of 2 cases. units H against steps T. Labels: 1.33x; nanx; nanx; 2x",
    ),
    "at twice the law": (made(eight=8), "TTT"),
    "above twice the law": (made(eight=9), "FTT"),
    "below half the law": (made(last=4, newton=1), "FTT"),
    "Newton waits": (made(newton=7), "TFT"),
    "Newton is cheap": (made(last=18, newton=1), "TFT"),
    "as early": (made(of_times={"early": 60.0}), "TTT"),
    "later": (made(of_times={"early": 61.0}), "TTF"),
    "bits agree": (made(of_times={"late": 997.0}), "TTF"),
}
test_page, _, test_all = PAGE.tests(__file__, CASES)


def test_the_mean_fades_and_the_law_follows():
    x, target = page.running_mean(np.random.default_rng(0), 40, 6, 4)
    mean = np.zeros(6)
    for step in x[..., 0]:
        mean = (1 - 1 / 4) * mean + step / 2
    np.testing.assert_allclose(target[:, 0], mean, rtol=1e-5)
    assert list(page.law(np.array([3, 4]), 64)) == [2, 3]  # 64 / log(2**24) is 3.8


def test_what_never_forgets_newton_corrects():
    params, x = page.initialised(4, 800)
    bias = params.layers[0].b
    bias[:4], bias[4:8] = -4.0, 40.0  # the forget gates are one
    assert set(page.forgets(params, x, 400).values()) == {inf}
    y, count = page.by_newton(params, x, 50)
    np.testing.assert_allclose(y, page.reference.forward(params, x)[0], atol=1e-5)
    assert count < 10  # of 50 without a correction
    bias[4:8], params.layers[0].W[:] = -200.0, 0.0
    assert set(page.forgets(params, x, 400).values()) == {0.0}


def test_chunks_have_the_bits_of_the_sequence():
    params, x = page.initialised(4, 240)
    net = page.NumbaFused(params)
    right, _ = net.forward(x)
    for count, run_up in ((1, 0), (2, 0), (16, 0), (16, 15), (240, 1)):
        *_, y = page.in_chunks(net, x, count, run_up)
        np.testing.assert_array_equal(y, right)
    slow = [*page.in_chunks(net, x, 4)]
    wrong = [int((y != right).any(axis=(1, 2)).sum()) for y in slow]
    assert wrong[0] > wrong[-1] == 0


def test_correct_chunks_are_counted():
    right = np.zeros((12, 1, 2))
    wrong = right + np.repeat([0, 0.1, 0], 4)[:, None, None]
    shown = text_of(page.sweeps_figure([wrong, right], right, 3))
    has(["Sweep 1, correct chunks: 2 of 3", "Sweep 2, correct chunks: 3 of 3"], shown)
