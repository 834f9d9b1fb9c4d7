"""Page 4 on synthetic rows of a card, and what it counts, by hand."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from pages import Page, of_card, rows, text_of

from lstm_report.experiments.gpu import bytes_copied
from lstm_report.measure.workloads import AIRLINE, REFERENCE, Workload

PAGE = Page("04_gpu_ladder")
page = PAGE.module
# Whose record says what the card can do.
CARD = "intel-r-xeon-r-processor-6-207-16cores-nvidia-h100-80gb-hbm3"
NEAR = 0.97, 1.0, 1.04  # of the processes


def times(**seconds):
    """Seconds of each process by version, in which `_` stands for `-`."""
    return {name.replace("_", "-"): np.multiply(t, NEAR) for name, t in seconds.items()}


TABLE = times(numpy_sample=0.41, numpy=0.06, cuda_v1=1.9, cuda_v2=0.2, cuda_v3=0.15)
TABLE |= times(cuda_fused=0.011, cuda_epoch=3.6e-3, numba_fused=2.5e-3)
AIRLINE_EPOCH = times(cuda_fused=26e-3, cuda_epoch=3.9e-3, numba_fused=5.1e-3)
AIRLINE_EPOCH |= times(pytorch=0.19, pytorch_graph=9.5e-3)
STEP = times(numba_fused=0.24, cuda_fused=0.14, cuda_persistent=0.023, pytorch=0.02)
STEP |= times(pytorch_graph=0.012, pytorch_tf32=0.021, pytorch_graph_tf32=0.006)
INFERENCE = times(cuda_fused=0.088, cuda_persistent=6.2e-3, pytorch=6.5e-3)
INFERENCE |= times(pytorch_graph=4.8e-3, pytorch_tf32=7.9e-3, pytorch_graph_tf32=2e-3)
WINDOWS = {104: (0.43e-3, 0.74e-3), 1000: (1.5e-3, 0.81e-3), 10_000: (12e-3, 1.5e-3)}


def made(v3=5.9e-3, grown=(0.74, 0.76, 0.75), graph=STEP["pytorch-graph"]):
    """Rows of a card; v3: seconds of V3's step in each process, grown: the powers with
    which `cuda-epoch` grows at the end, graph: of a training step in a CUDA graph.
    """
    parts = [
        of_card("table", "5 epochs", TABLE, N=107, B=16),
        of_card("airline", "epoch", AIRLINE_EPOCH, N=1600, B=16),
        of_card("hundreds", "step", times(cuda_v2=8.9e-3) | {"cuda-v3": v3}, B=256),
        of_card("large", "step", STEP | {"pytorch-graph": graph}, B=64),
        of_card("large", "forward on device", INFERENCE, B=64),
        of_card("large", "forward", times(numba_fused=0.097), B=64),
        of_card("large", "step", times(cuda_persistent=0.01), B=16),  # not the largest
    ]
    last = 1.5e-3 * 10 ** np.array(grown)
    sizes = WINDOWS | {100_000: (0.12, last)}
    for N, (cpu, gpu) in sizes.items():
        took = {"numba-fused": cpu, "cuda-epoch": gpu}
        parts.append(of_card("windows", "epoch", took, N=N, B=N // 8))
    core = rows(times(one_core=5.7e-3)).assign(step=lambda r: r["seconds"] / 100)
    return {"gpu": pd.concat(parts).assign(machine=CARD), "measure_one_core": core}


# Limits of the process that is neither slow nor fast.
EDGES = [
    (0, ("most", 8.9e-3), lambda seconds: made(v3=seconds)),
    (1, ("most", 0.95), lambda powers: made(grown=powers)),
    (2, ("most", 0.023), lambda seconds: made(graph=seconds)),
]
test_text, test_edge, test_all = PAGE.approved(made(), EDGES)


def test_a_card_of_which_parts_failed_has_the_others():
    rows = made()["gpu"]
    assert page.ratio_of(rows, "cuda-v3", "cuda-v9") is None
    one = rows[rows["process"] == 0]
    assert page.power(one) == pytest.approx((0.74, 0.74, 0.74))
    assert page.power(rows[rows["N"] < 1000]) is None
    assert page.power(rows[:0]) is None
    assert "one core keeps up" in text_of(page.figure_versions(rows[:0]))
    assert "overtakes the cores" in text_of(page.figure_growth(rows[:0]))
    v3 = one[one["variant"] == "hundreds"].copy()
    slow = (v3["version"] == "cuda-v3") & (v3["repeat"] == 1)
    v3.loc[slow, "seconds"] *= 2
    gain = page.ratio_of(v3, "cuda-v3", "cuda-v2")
    assert gain.high == pytest.approx(2 * gain.low)  # of one process its rounds


def test_counts_by_hand():
    # x 56 numbers, states 70, of every step 35, of all 140, h or c 175, gates 560, the
    # layer 160, of which b is 20.
    work, count = Workload(L=1, T=4, D=2, H=5, B=7), bytes_copied
    forward = 70 + 56 + 160 + 2 * 175 + 560
    backward = 140 + 175 + 2 * 560 + 140 + 70 + 56
    all_launches = 4 * (forward + backward + 56 + 175 + 560 + 160)
    assert count("cuda-v1", work) == (all_launches, all_launches)
    sent, fetched = 56 + 160 + 70 + 140 + 70, 175 + 35 + 56 + 70 + 160
    assert count("cuda-v3", work) == (4 * sent, 4 * fetched)
    assert count("cuda-fused", work) == (56, 4)
    # The solution of exercise 2: the parameters, and 524 numbers a sample each way.
    each_way = 4 * (4352 + 9 * 524)
    assert count("cuda-v3", replace(AIRLINE, B=9)) == (each_way, each_way)
    assert (page.blocks(256), page.blocks(1250)) == (128, 105)  # tiles of 2, of 12
    plan = page.persistent(REFERENCE)
    assert (plan.blocks, plan.units) == (128, 16)
