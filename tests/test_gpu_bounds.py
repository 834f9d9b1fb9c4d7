"""Bounds of a training step on four cards, beside counts by hand and executed code."""

from dataclasses import replace

import pandas as pd
import pytest

from lstm_report.experiments import gpu_bounds
from lstm_report.experiments.gpu_bounds import CARDS, bound
from lstm_report.measure import results
from lstm_report.measure.workloads import AIRLINE, REFERENCE, Workload

T4, P100, A100, H100 = CARDS.values()
NAME = "NVIDIA H100 80GB HBM3"
NAMES = {NAME: H100, "Tesla T4": T4, "NVIDIA T4": T4, "Tesla P100-PCIE-16GB": P100}
NAMES |= dict.fromkeys(("NVIDIA A100-SXM4-40GB", "A100-SXM4-80GB"), A100)
OTHERS = "NVIDIA H100 PCIe", "NVIDIA A100-PCIE-40GB", "NVIDIA T400", "Quadro P1000"
TILES = 2 * 100 * 512 * 16 / 128  # clocks of the reference's rows, in two tiles
LAYER = 100 * 64 * 2048 * 512 / 128  # of the multiply-adds of one layer's U
SEQUENCE = 12 * 128  # multiply-adds of a number of x or h in the airline's LSTM


@pytest.mark.parametrize(
    ("version", "work", "card", "clocks", "term"),
    [
        # Of 33 numbers forward, as many back, and gradients of 34 rows, 16 samples.
        ("cuda-v1", AIRLINE, H100, 16 * SEQUENCE * (2 * 33 + 34), "chain"),
        # A sample, and a unit of a row of the gradients, to a thread.
        ("cuda-v2", AIRLINE, H100, SEQUENCE * 2 * 33 + 12 * 16 * 4, "chain"),
        # 16 lanes for a warp: 34 rows of 32 units are 34 of them.
        ("cuda-v3", AIRLINE, T4, SEQUENCE * (2 * 33 + 16 * 34 / 34 / 16), "arithmetic"),
        # 34 rows of weights forward and 32 back, 16 bytes a unit; 16 blocks.
        ("cuda-epoch", AIRLINE, A100, 12 * (34 + 32) * 32 * 16 / 128, "operands"),
        # Two tiles of a sample after each other in the 32 blocks.
        ("cuda-fused", REFERENCE, T4, TILES * (4 * 1025 + 7 * 512), "operands"),
        # Four rows by four columns of 192 samples and steps.
        ("cuda-persistent", AIRLINE, H100, 16 * 192, "chain"),
        # 128 blocks forward and back, eight U and seven, 132 for the gradients.
        (
            "cuda-persistent",
            REFERENCE,
            H100,
            LAYER * (15 / 128 + 8 / 132),
            "arithmetic",
        ),
    ],
)
def test_bounds_are_what_is_counted_by_hand(version, work, card, clocks, term):
    least = bound(version, work, card)
    assert least.term == term
    assert least.seconds == pytest.approx(clocks / card.ghz / 1e9)


def test_copies_bound_what_computes_little_and_what_cannot_run_has_none():
    work = Workload(L=3, T=1, D=1, H=1, B=1)
    slow = H100._replace(pcie=1e-3)
    # Numbers of V3: x, the layer's 12, the state twice, and dy; h, x, dx, state, layer.
    assert bound("cuda-v3", work, slow) == (3 * 4 * 36 / 1e6, "copies")
    # Of what stays on the device the layers do not matter: an index, and the loss.
    assert bound("cuda-epoch", work, slow) == (12 / 1e6, "copies")

    assert bound("cuda-fused", replace(work, H=1 << 16), H100) == "does not fit"
    assert bound("cuda-persistent", AIRLINE, P100) == "needs capability 7.0"
    for card in (T4, A100):
        assert bound("cuda-persistent", REFERENCE, card) == "does not fit"


def test_the_executed_code_has_the_multiply_adds_of_a_chain():
    recorded = pd.read_csv(results.FOLDER / "ptx-machine.csv", index_col="case")
    for case in ("v1, airline", "v3, airline", "persistent, airline"):
        row = recorded.loc[case]
        assert Workload(**row[list("LTDHB")]) == AIRLINE
        card = H100._replace(multiprocessors=40, ghz=1e-9)  # a second for a clock
        least = bound(row["version"], AIRLINE, card)
        # Beside the products' there are those of exponentials.
        assert least.term == "chain"
        assert least.seconds <= row["chain"] <= 2 * least.seconds


def test_measured_times_lie_above():
    """Of an H100 SXM: seconds of a step of the reference workload."""
    for version, seconds in (("cuda-fused", 0.1408), ("cuda-persistent", 0.0225)):
        assert bound(version, REFERENCE, H100).seconds < seconds


def row_of(seconds, version="cuda-v2", work=AIRLINE, stage="epoch", N=40):
    row = {"version": version, "stage": stage, "N": N, "seconds": seconds}
    return work.columns() | row


def test_what_is_below_its_bound_is_refuted():
    least = bound("cuda-v2", AIRLINE, H100).seconds
    large = bound("cuda-fused", REFERENCE, H100).seconds
    steps = {"version": "cuda-fused", "work": REFERENCE, "stage": "step", "N": 64}
    good = [row_of(2 * least), row_of(3 * large, **steps)]  # two whole mini-batches
    good += [row_of(1e-9, stage="forward"), row_of(1e-9, version="numpy")]
    bad = [row_of(1.99 * least), row_of(0.99 * large, **steps)]
    said = f"Of 2 cases that were timed on {NAME} none had a time below"
    said += " its bound; the nearest took 1 times its bound."
    assert gpu_bounds.verdict(pd.DataFrame(good), NAME) == said
    rows = pd.DataFrame([*good, *bad])
    assert [*gpu_bounds.refuted(rows, NAME).index] == [4, 5]
    assert f"timed on {NAME} 2 had a" in gpu_bounds.verdict(rows, NAME)
    # What should not run at all was measured.
    rows = pd.DataFrame([row_of(9.0, version="cuda-persistent")])
    assert len(gpu_bounds.refuted(rows, "Tesla P100-PCIE-16GB")) == 1
    assert gpu_bounds.refuted(rows, NAME).empty


def test_cards_are_known_by_their_names():
    rows = pd.DataFrame([row_of(1.0, stage="step", version="cuda-v1")])
    for name, card in NAMES.items():
        (least,) = gpu_bounds.compared(rows, name)["least"]
        assert least == bound("cuda-v1", AIRLINE, card).seconds
    for name in OTHERS:
        with pytest.raises(ValueError, match=f"name: got '{name}', want one of T4"):
            gpu_bounds.refuted(rows, name)
        assert gpu_bounds.verdict(rows, name).startswith(
            f"There are no bounds of {name}"
        )
    assert "No step of Tesla T4" in gpu_bounds.verdict(rows[:0], "Tesla T4")


def test_rates_give_the_published_peaks():
    published = 8.1, 9.3, 19.5, 67  # TFLOP/s in float32, of the makers' data sheets
    for card, peak in zip(CARDS.values(), published, strict=True):
        rate = 2 * card.multiprocessors * card.lanes * card.ghz / 1e3
        assert peak * 0.995 < rate < peak * 1.03  # the highest clock is above boost


def test_the_table_has_a_cell_for_each():
    table = gpu_bounds.table()
    assert table.shape == (12, 5)
    assert table["launches a step"]["`cuda-persistent`, reference (ms)"] == "6"
    assert table["T4"]["`cuda-fused`, reference (ms)"] == "61.9 (operands)"
    assert table["P100"]["`cuda-persistent`, reference (ms)"] == "needs capability 7.0"
