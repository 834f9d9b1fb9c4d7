"""Page 4, the ladder on a GPU: its counts, claims and figures on made rows."""

import ast
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from pages import Page, bound, has, loaded, of_card, text_of

from lstm_report.measure.comparer import compare
from lstm_report.measure.workloads import AIRLINE, Workload

PAGE = Page("04_gpu_ladder")
page = PAGE.module


def told(step, epoch, grown, persistent):
    """Rows of a device: seconds of V3's step, of `cuda-epoch`'s airline epoch, powers
    with which its epochs grow, inference by `cuda-persistent`; in each process.
    """
    times = {"numpy": 0.8, "numpy-sample": 2.3, "cuda-v3": step}
    parts = [of_card("hundreds", "step", times, B=256)]
    times = {"cuda-epoch": epoch, "pytorch-graph": 6.4e-3}
    parts.append(of_card("airline", "epoch", times, N=1280, B=16))
    for N in (100, 10_000, 700_000):
        took = {"cuda-epoch": [1e-5 * N**power for power in grown]}
        parts.append(of_card("windows", "epoch", took, N=N, B=N // 8))
    for B, took in ((1, 0.001), (64, 0.067)):
        times = {"pytorch": took, "cuda-persistent": 2 * took}
        parts.append(of_card("large", "step", times, B=B))
    times = {"pytorch": 0.006, "cuda-persistent": persistent}
    parts.append(of_card("large", "forward on device", times, B=64))
    return pd.concat(parts)


WON = {"step": (0.5, 0.4, 0.79), "epoch": (1.7e-3, 1.6e-3, 6.3e-3)}
WON |= {"grown": (0.5, 0.99, 0.7), "persistent": (3e-3, 5e-3, 1e-3)}
CASES = {
    "won": (
        {"gpu": told(**WON)},
        "TTTT",
        "(1.6x (1.01x to 2x))",
        "| cuda-v3 | 4.6x | 500000 | - |",
        "| cuda-epoch | - | - | 39.4 |",  # 80 steps in 3.15 ms
        "| pytorch | 6 | 67 | 1 |",
        "step of 256 samples `cuda-v3`, 1.6x over `numpy`; of an epo",
    ),
    "no device": ({}, "----", "no: 4.6x", "no: windows to the power"),
}
EDGES = [
    (0, ("most", 0.8), lambda seconds: {"gpu": told(**WON | {"step": seconds})}),
    (1, ("most", 1), lambda power: {"gpu": told(**WON | {"grown": power})}),
    (2, ("most", 6.4e-3), lambda seconds: {"gpu": told(**WON | {"epoch": seconds})}),
    (3, ("most", 6e-3), lambda seconds: {"gpu": told(**WON | {"persistent": seconds})}),
]
test_page, test_edge, test_all = PAGE.tests(__file__, CASES, EDGES)


def test_what_the_machine_executed():
    names = ["version", "cell", "B", "critical", "passes", "faults"]
    cases = [
        ("cuda-v1", "lstm", 5, 1_621_138, 3e-7, 1),
        ("cuda-epoch", "lstm", 37, 51_466, 2e-7, 2),
        ("cuda-epoch", "lstm", 37, 30_486, 1e-7, 4),
        ("cuda-epoch", "gru", 37, 11, 5e-7, 0),  # another cell
    ]
    runs = pd.DataFrame(cases, columns=names).assign(T=3, D=3, H=9, dtype="float32")
    table = text_of(page.machine_table(runs.assign(L=2, parameters=1e-7)))
    assert table == "cuda-v1, 1, 1, 3e-07, 1620, -\ncuda-epoch, 3, 6, 5e-07, -, 30.5"
    assert len(page.machine_table(page.executed()[0])) == len(page.GPU) + 1
    faults = {"planted": ["a", "b"], "reported": [5, 4], "harmless": [2, 0]}
    assert "reports 9; 0 of the others" in page.planted(pd.DataFrame(faults))


def test_counts_by_hand():
    # x 56 numbers, states 70, of every step 35, of all 140, h or c 175, gates 560, the
    # layer 160, of which b is 20.
    work = Workload(L=1, T=4, D=2, H=5, B=7)
    forward = 70 + 56 + 160 + 2 * 175 + 560
    backward = 140 + 175 + 2 * 560 + 140 + 70 + 56
    all_launches = 4 * (forward + backward + 56 + 175 + 560 + 160)
    assert page.bytes_copied("cuda-v1", work) == (all_launches, all_launches)
    sent, fetched = 56 + 160 + 70 + 140 + 70, 175 + 35 + 56 + 70 + 160
    assert page.bytes_copied("cuda-v3", work) == (4 * sent, 4 * fetched)
    assert page.bytes_copied("cuda-fused", work) == (56, 4)
    assert page.share(work) == (sent + fetched) / (all_launches / 2)
    # The solution of exercise 3: the parameters, and 524 numbers a sample each way.
    each_way = 4 * (4352 + 9 * 524)
    assert page.bytes_copied("cuda-v3", replace(AIRLINE, B=9)) == (each_way, each_way)
    # 256 samples: 8 warps; 128 tiles of two
    assert page.busy(page.gpu.HUNDREDS) == (8 / 132, 128 / 132)
    # W of 16 units; x and h of 64 samples, U of 16 units; U and W of the layer
    kept, loads = 512 * 16 * 4 * 4, 4 * (2 * 64 * 512 + 512 * 16 * 4)
    want = 128, 16, kept, loads, 2 * 512 * 512 * 4 * 4
    assert page.persistent(page.gpu.LARGE) == want


def test_what_the_figures_draw():
    counts = {"cuda-v2": (60 << 10, 61 << 10), "cuda-v3": (20 << 10, 10 << 10)}
    said = text_of(page.figure_bytes(counts | {"cuda-epoch": (2048, 4)}))
    assert "V3 copies 24.8 % of what V2 copies" in said
    assert "60 there, 61 back; 20 there, 10 back; 2 there, 4 bytes" in said
    assert "0; 4; 0; 4; 0; 4; 0; 4; 1; 5;" in text_of(page.figure_who())
    with pytest.raises(AssertionError, match="want a mismatch"):
        page.caught(compare, {"h": np.ones(3)}, {"h": np.ones(3)})


def test_of_one_process_the_rounds_are_the_range():
    rows = told(**WON)
    rows = rows[rows["process"] == 0]
    assert page.step_gain(rows) == (1.6, 1.6, 1.6)  # whatever the round
    slow = (rows["version"] == "numpy") & (rows["repeat"] == 1)
    rows.loc[slow, "seconds"] /= 2
    assert page.step_gain(rows) == pytest.approx((0.8, 1.6, 1.6))
    times = (rows["version"] == "cuda-epoch") & (rows["N"] == 700_000)
    rows.loc[times & (rows["repeat"] == 2), "seconds"] *= 7000
    grown = page.power(rows)
    assert (grown.low, grown.high) == pytest.approx((0.5, 1.5))
    assert page.power(rows[rows["N"] == 100]) is None


def test_what_is_counted_needs_no_device():
    """The cells by count, which no rows reach, as they stand."""
    names = {"caption", "gpu", "plan", "large", "hundreds", "airline"}
    names |= {"v2_busy", "counts"}
    nodes = [
        node
        for node in PAGE.statements
        if isinstance(node, ast.ImportFrom)
        or (names & (bound(node) | loaded(node)) and "errors" not in loaded(node))
    ]
    words = ["128 blocks keep 16 units each, 128 KiB of weights", "loads 384 KiB for"]
    words += ["8 MiB.", "6.44 %", "8.69 %", "6.06 %", "97 %"]
    has(words, PAGE.told(nodes).text)
