"""Bounds of a training step on four cards, beside counts by hand and executed code."""

import pandas as pd
import pytest

from lstm_report.experiments import gpu_bounds
from lstm_report.experiments.gpu_bounds import CARDS, GPU, bound
from lstm_report.measure import results
from lstm_report.measure.workloads import AIRLINE, REFERENCE, Workload

T4, P100, A100, H100 = CARDS.values()
NAMES = {
    "NVIDIA H100 80GB HBM3": H100,
    "Tesla T4": T4,
    "NVIDIA T4": T4,
    "Tesla P100-PCIE-16GB": P100,
    "NVIDIA A100-SXM4-40GB": A100,
    "A100-SXM4-80GB": A100,
}
OTHERS = "NVIDIA H100 PCIe", "NVIDIA A100-PCIE-40GB", "NVIDIA T400", "Quadro P1000"
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
        (
            *("cuda-fused", REFERENCE, T4),
            2 * 100 * 512 * 16 * (4 * 1025 + 7 * 512) / 128,
            "operands",
        ),
        # Four rows by four columns of 192 samples and steps.
        ("cuda-persistent", AIRLINE, H100, 16 * 192, "chain"),
        # 128 blocks forward and back, 132 for the gradients, in units of a layer's U.
        (
            *("cuda-persistent", REFERENCE, H100),
            100 * 64 * 2048 * 512 * ((8 + 7) / 128 + 8 / 132) / 128,
            "arithmetic",
        ),
    ],
)
def test_bounds_are_what_is_counted_by_hand(version, work, card, clocks, term):
    found = bound(version, work, card)
    assert found.term == term
    assert found.seconds == pytest.approx(clocks / card.ghz / 1e9)


def test_copies_bound_what_computes_little():
    work = Workload(L=3, T=1, D=1, H=1, B=1)
    slow = H100._replace(pcie=1e-3)
    # Numbers of V3: x, the layer's 12, the state twice, and dy; h, x, dx, state, layer.
    assert bound("cuda-v3", work, slow) == (3 * 4 * 36 / 1e6, "copies")
    # Of what stays on the device the layers do not matter: an index, and the loss.
    assert bound("cuda-epoch", work, slow) == (12 / 1e6, "copies")


def test_every_version_that_runs_has_a_bound():
    for card in CARDS.values():
        for work in (AIRLINE, REFERENCE):
            for version in GPU:
                found = bound(version, work, card)
                assert isinstance(found, str) or found.seconds > 0
    assert bound("cuda-persistent", AIRLINE, P100) == "needs capability 7.0"
    for card in (T4, A100):
        assert bound("cuda-persistent", REFERENCE, card) == "does not fit"
    wide = Workload(L=1, T=1, D=1, H=1 << 16, B=1)
    assert bound("cuda-fused", wide, H100) == "does not fit"


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
    made = {"version": version, "stage": stage, "N": N, "seconds": seconds}
    return work.columns() | made


def test_what_is_below_its_bound_is_refuted():
    least = bound("cuda-v2", AIRLINE, H100).seconds
    large = bound("cuda-fused", REFERENCE, H100).seconds
    steps = {"version": "cuda-fused", "work": REFERENCE, "stage": "step", "N": 64}
    good = [
        row_of(2 * least),  # 40 windows are two whole mini-batches
        row_of(3 * large, **steps),
        row_of(1e-9, stage="forward"),
        row_of(1e-9, version="numpy"),
    ]
    name = "NVIDIA H100 80GB HBM3"
    rows = pd.DataFrame(good)
    assert gpu_bounds.refuted(rows, name).empty
    said = "Of 2 cases that were timed on NVIDIA H100 80GB HBM3 none had a time below"
    said += " its bound; the nearest took 1 times its bound."
    assert gpu_bounds.verdict(rows, name) == said
    bad = [row_of(1.99 * least), row_of(0.99 * large, **steps)]
    rows = pd.DataFrame([*good, *bad])
    assert [*gpu_bounds.refuted(rows, name)["seconds"]] == [
        row["seconds"] for row in bad
    ]
    said = gpu_bounds.verdict(rows, name)
    assert "Of 2 cases that were timed on NVIDIA H100 80GB HBM3 2 had a" in said
    # What should not run at all was measured.
    rows = pd.DataFrame([row_of(9.0, version="cuda-persistent")])
    assert len(gpu_bounds.refuted(rows, "Tesla P100-PCIE-16GB")) == 1
    assert gpu_bounds.refuted(rows, name).empty


def test_cards_are_known_by_their_names():
    row = row_of(1.0, stage="step", version="cuda-v1")
    rows = pd.DataFrame([row])
    for name, card in NAMES.items():
        (least,) = gpu_bounds.compared(rows, name)["least"]
        assert least == bound("cuda-v1", AIRLINE, card).seconds
    for name in OTHERS:
        with pytest.raises(ValueError, match=f"name: got '{name}', want one of T4"):
            gpu_bounds.refuted(rows, name)
        want = f"There are no bounds of {name}: nothing to compare."
        assert gpu_bounds.verdict(rows, name) == want
    want = "No step of Tesla T4 was measured: nothing to compare."
    assert gpu_bounds.verdict(rows[:0], "Tesla T4") == want


def test_rates_give_the_published_peaks():
    published = 8.1, 9.3, 19.5, 67  # TFLOP/s in float32, of the makers' data sheets
    for card, peak in zip(CARDS.values(), published, strict=True):
        rate = 2 * card.multiprocessors * card.lanes * card.ghz / 1e3
        assert peak * 0.995 < rate < peak * 1.03  # the highest clock is above boost


def test_the_table_has_a_cell_for_each():
    table = gpu_bounds.table()
    assert table.shape == (12, 5)
    launches = table["launches a step"]
    assert launches["`cuda-v3`, reference (ms)"] == "3 a layer"
    assert launches["`cuda-epoch`, airline (\N{MICRO SIGN}s)"] == "1 an epoch"
    assert launches["`cuda-persistent`, reference (ms)"] == "6"
    least = (12 * 128 * 2 * 33 + 12 * 16 * 4) / 1.98e3
    want = f"{least:.3g} (chain)"
    assert table["H100"]["`cuda-v2`, airline (\N{MICRO SIGN}s)"] == want
    assert table["T4"]["`cuda-fused`, reference (ms)"] == "61.9 (operands)"
    assert table["P100"]["`cuda-persistent`, reference (ms)"] == "needs capability 7.0"
