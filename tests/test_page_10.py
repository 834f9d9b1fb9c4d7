"""Page 10, parallel in time, on synthetic rows."""

from math import inf

import numpy as np
import pandas as pd
from pages import Page, has, rows, text_of

PAGE = Page("10_time")
page = PAGE.module
SMALL, LARGE = (f"as initialised, {H} units" for H in (4, 64))


def sweeps(eight=5, last=13):
    """Sweeps of three seeds by d."""
    found = [
        (d, seed, 0.1 + seed / 100, count + (0, -1, 19)[seed])
        for d, count in ((2, 7), (8, eight), (32, last))
        for seed in range(3)
    ]
    return pd.DataFrame(found, columns=["d", "seed", "loss", "sweeps"])


def times(early=31.0, late=inf):
    """Seconds of three works; the steps in which a large one forgets."""
    works = [
        (SMALL, 29.0, 53.0, [7e-3, 8e-3, 11e-3], 2e-3, 1),
        (LARGE, early, late, 17e-3, 19e-3, 28),
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


EDGES = [  # by the law four sweeps for d = 8, ten for 32
    (0, ("most", 1.4 * 4), lambda count: made(eight=count[1])),
    (0, 10 / 1.4, lambda count: made(last=count[1])),
    (1, ("most", 58), lambda steps: made(of_times={"early": steps[1]})),
]
test_text, test_edge, test_all = PAGE.approved(made(), EDGES)


def test_bits_that_agree_refute_the_second_claim():
    assert PAGE.told(**made(of_times={"late": 997.0})).claims == "TF"


def test_the_mean_fades_and_the_law_follows():
    x, target = page.running_mean(np.random.default_rng(0), 40, 6, 4)
    mean = np.zeros(6)
    for step in x[..., 0]:
        mean = (1 - 1 / 4) * mean + step / 2
    np.testing.assert_allclose(target[:, 0], mean, rtol=1e-5)
    assert list(page.law(np.array([3, 4]), 64)) == [2, 3]  # 64 / log(2**24) is 3.8


def test_what_never_forgets():
    params, x = page.initialised(4, 800)
    bias = params.layers[0].b
    bias[:4], bias[4:8] = -4.0, 40.0  # the forget gates are one
    assert set(page.forgets(params, x, 400).values()) == {inf}
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
