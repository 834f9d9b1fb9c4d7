"""Page 4, the ladder on a GPU: its counts, claims and figures on made rows."""

from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
from filed import filed
from pages import claims, functions, rows, says

from lstm_report.measure.workloads import AIRLINE, Workload

page = functions("04_gpu_ladder")
PROJECT = {"cuda-v1": 80.0, "cuda-v2": 18.8, "cuda-v3": 17.2}
NO_ROWS = rows({}, by="version", variant="", stage="", N=0)


def step(*v3):
    """A step of hundreds, with the seconds of V3 in three processes."""
    times = {"numpy": 0.8, "numpy-sample": 2.0, "cuda-v3": v3}
    return rows(times, by="version", variant="hundreds", stage="step", N=0)


def airline(*epoch):
    """Epochs of 80 steps, and of five, where PyTorch is ahead."""
    times = {"cuda-epoch": epoch, "pytorch-graph": 6.4e-3}
    many = rows(times, by="version", N=1280)
    few = rows(times | {"pytorch-graph": 1e-6}, by="version", N=80)
    return pd.concat([few, many]).assign(variant="airline", stage="epoch")


def grown(*powers):
    """Epochs of `cuda-epoch` that grow by a power of the windows in each process."""
    sizes = (100, 10_000, 1_000_000)
    epochs = {N: {"cuda-epoch": [1e-5 * N**p for p in powers]} for N in sizes}
    parts = [rows(times, by="version", N=N) for N, times in epochs.items()]
    return pd.concat(parts).assign(variant="windows", stage="epoch")


def measured():
    """Rows of all tables; the large network's step with 1 sample is not shown."""
    sizes = {1: 0.001, 64: 0.064}
    large = [rows({"pytorch": s}, by="version", B=B) for B, s in sizes.items()]
    large = pd.concat(large).assign(variant="large", stage="step")
    return pd.concat([step(0.5, 0.4, 0.6), airline(1.6e-3), large])


def executed():
    """Rows of the PTX machine: two cases of V1, one of `cuda-epoch`."""
    about = {"instructions": 4_000_000, "accesses": 500_000}
    made = [
        ("cuda-epoch", "gru", 2e-7, 1e-7, 0),
        ("cuda-v1", "lstm", 2e-7, 1e-7, 1),
        ("cuda-v1", "lstm", 1e-7, 3e-7, 4),
    ]
    names = ["version", "cell", "passes", "parameters", "faults"]
    return pd.DataFrame(made, columns=names).assign(**about)


FAULTS = {"planted": ["a barrier less", "a plain flag"], "reported": [5, 4]}
FAULTS = pd.DataFrame(FAULTS | {"wrong result": [0, 1], "harmless": [2, 0]})
BYTES = {"cuda-v2": (60 << 10, 61 << 10), "cuda-v3": (20 << 10, 10 << 10)}
BYTES |= {"cuda-epoch": (2048, 4)}
TIMES, NONE = (measured(), PROJECT, 130.0), (NO_ROWS, PROJECT, 130.0)
test_claims = claims(
    (page.claim_step, step(0.79, 0.4, 0.5), True, "`numpy`", "1.6x (1.01x to 2x)"),
    (page.claim_step, step(0.81, 0.4, 0.5), False, "level (0.988x to 2x) The cop"),
    (page.claim_step, NO_ROWS, None, "no GPU"),
    (page.claim_cudnn, airline(6.3e-3, 3.2e-3, 1e-3), True, "2x (1.02x to 6.4x)"),
    (page.claim_cudnn, airline(6.5e-3, 3.2e-3, 1e-3), False, "The barriers"),
    (page.claim_cudnn, NO_ROWS, None, "no GPU"),
    (page.claim_growth, grown(0.5, 0.99, 0.7), True, "power 0.7 (0.5 to 0.99)"),
    (page.claim_growth, grown(0.5, 1.01, 0.7), False, "has been full"),
    (page.claim_growth, NO_ROWS, None, "no GPU"),
)
test_words = says(
    (page.machine_table, executed(), "cuda-v1, 2, 1, 3e-07, 8, 1, 5\ncuda-epoch, 1"),
    (page.machine_table, executed(), "cuda-epoch, 1, 1, 2e-07, 4, 0.5, 0"),
    (page.planted, FAULTS, "Of 12 planted faults (a barrier less, a plain flag)"),
    (page.planted, FAULTS, "reports 9; 1 of the others give a wrong result, 2 change"),
    (page.times_table, TIMES, "cuda-v1, 1.62x, not measured yet, not measured yet"),
    (page.times_table, TIMES, "cuda-v3, 7.56x, 4x, not", "cuda-epoch, , not"),
    (page.times_table, TIMES, "measured yet, 20, not", "pytorch-graph, , not", "80, "),
    (page.times_table, TIMES, "pytorch, , not measured yet, not measured yet, 64"),
    (page.times_table, NONE, "cuda-v3, 7.56x, not", "no: x, 4x", "pytorch-graph, , n"),
    (page.figure_bytes, BYTES, "V3 copies 24.8 % of what V2 copies", "v2, v3, epoch"),
    (page.figure_bytes, BYTES, "60 there, 61 back; 20 there, 10 back; 2 there, 4 byt"),
    (page.figure_growth, grown(0.5), "epoch: 100 times the time for 10000 times the"),
    (page.figure_who, (), "V1: one thread. unit. Labels: 0; 0;", "its own: 8 to a b"),
    (page.figure_who, (), "Labels: 0; 0; 0; 0; 1; 1; 1; 1; 2; 2; 2; 2; 3; 3; 3; 3; 0;"),
    (page.figure_who, (), "Labels: 0; 1; 2; 3; 4; 5; 6; 7; 0; 1;"),
)


def test_bytes_by_hand():
    """x 56 numbers, states 70, of every step 35, of all 140, h or c 175, gates 560, the
    layer 160, of which b is 20.
    """
    work = Workload(L=1, T=4, D=2, H=5, B=7)
    forward = 70 + 56 + 160 + 2 * 175 + 560
    backward = 140 + 175 + 2 * 560 + 140 + 70 + 56
    all_launches = 4 * (forward + backward + 56 + 175 + 560 + 160)
    assert page.bytes_copied("cuda-v1", work) == (all_launches, all_launches)
    assert page.bytes_copied("cuda-v2", work) == (all_launches, all_launches)
    sent, fetched = 56 + 160 + 70 + 140 + 70, 175 + 35 + 56 + 70 + 160
    assert page.bytes_copied("cuda-v3", work) == (4 * sent, 4 * fetched)
    assert page.bytes_copied("cuda-fused", work) == (56, 4)
    # The solution of exercise 3: the parameters, and 524 numbers a sample each way.
    each_way = 4 * (4352 + 9 * 524)
    assert page.bytes_copied("cuda-v3", replace(AIRLINE, B=9)) == (each_way, each_way)


def test_blocks_by_hand():
    """256 samples: 8 warps; 128 tiles of two."""
    assert page.busy(page.gpu.HUNDREDS) == [6, 97]
    plan, kept, loads, others = page.persistent(page.gpu.LARGE)
    assert (plan.blocks, plan.units) == (128, 16)
    # W of 16 units; x and h of 64 samples, U of 16 units; U and W of the layer
    assert kept == 512 * 16 * 4 * 4
    assert loads == 4 * (2 * 64 * 512 + 512 * 16 * 4)
    assert others == 2 * 512 * 512 * 4 * 4


def test_what_the_figures_draw():
    (ax,) = page.figure_bytes(BYTES).axes
    widths = [bar.get_width() for bar in ax.patches]
    assert widths == pytest.approx([60, 61, 20, 10, 2, 4 / 1024])
    for ax, blocks in zip(page.figure_who().axes, (1, 2, 4), strict=True):
        assert len({patch.get_facecolor() for patch in ax.patches}) == blocks
    (ax,) = page.figure_growth(grown(0.5)).axes
    assert list(ax.lines[0].get_ydata()) == pytest.approx([0.1, 1, 10])  # milliseconds


@pytest.mark.skipif(not page.device.SIMULATED, reason="a GPU is measured anew")
def test_what_was_recorded_is_of_one_machine(tmp_path):
    nb, made = SimpleNamespace(preset="smoke"), step(0.5).drop(columns="process")
    assert page.gpu_rows(nb, tmp_path)[0].empty
    for name in ("a", "b"):
        about = {"date": f"of {name}", "gpu": {"name": "card"}}
        filed(tmp_path, made, "gpu", machine=name, **about)
    found, recorded = page.gpu_rows(nb, tmp_path)
    assert (len(found), recorded) == (len(made), "of a, card")
