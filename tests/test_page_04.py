"""Page 04: what is counted, claimed and drawn of GPUs, on made rows."""

from dataclasses import replace

import pages
import pandas as pd
import pytest

from lstm_report import plots
from lstm_report.measure.workloads import AIRLINE, Workload

page = pages.functions("04_gpu_ladder")
WORK = Workload(L=1, T=4, D=2, H=5, B=7)
PROJECT = {"cuda-v1": 80.0, "cuda-v2": 18.8, "cuda-v3": 17.2}


def rows(times, variant, stage, processes=(1.0,), **columns):
    """Rows of a comparison: (version, windows) -> seconds, in processes that take so
    many times as long.
    """
    parts = [
        {"version": version, "N": N, "seconds": factor * seconds, "process": process}
        for process, factor in enumerate(processes)
        for (version, N), seconds in times.items()
    ]
    about = {"variant": variant, "stage": stage, "repeat": 0}
    return pd.DataFrame(parts).assign(**about, **columns)


def nothing():
    columns = ["variant", "stage", "version", "N", "seconds", "process", "repeat"]
    return pd.DataFrame(columns=columns)


def steps(v3, slow=1.0):
    """Steps in two processes, in the second of which v3 takes `slow` times as long."""
    parts = []
    for process, factor in enumerate((1.0, slow)):
        times = {
            ("numpy", 0): 0.8,
            ("numpy-sample", 0): 2.0,
            ("cuda-v3", 0): factor * v3,
        }
        part = rows(times, "hundreds", "step")
        parts.append(part.assign(process=process))
    return pd.concat(parts)


def grown(power, versions=("cuda-v3", "cuda-epoch")):
    times = {
        (name, N): 1e-5 * N**power
        for name in versions
        for N in (100, 10_000, 1_000_000)
    }
    return rows(times, "windows", "epoch")


def test_bytes_by_hand():
    """x 56 numbers, states 70, of every step 35, of all 140, h or c 175, gates 560, the
    layer 160, of which b is 20.
    """
    forward = 70 + 56 + 160 + 2 * 175 + 560
    backward = 140 + 175 + 2 * 560 + 140 + 70 + 56
    all_launches = 4 * (forward + backward + 56 + 175 + 560 + 160)
    assert page.bytes_copied("cuda-v1", WORK) == (all_launches, all_launches)
    assert page.bytes_copied("cuda-v2", WORK) == (all_launches, all_launches)
    sent, fetched = 56 + 160 + 70 + 140 + 70, 175 + 35 + 56 + 70 + 160
    assert page.bytes_copied("cuda-v3", WORK) == (4 * sent, 4 * fetched)
    assert page.bytes_copied("cuda-fused", WORK) == (56, 4)
    assert page.bytes_copied("cuda-epoch", WORK) == (56, 4)
    # The solution of exercise 3: the parameters, and 524 numbers a sample each way.
    each_way = 4 * (4352 + 9 * 524)
    assert page.bytes_copied("cuda-v3", replace(AIRLINE, B=9)) == (each_way, each_way)


def test_the_figure_of_bytes():
    counts = {"cuda-v2": (60 * 1024, 60 * 1024), "cuda-v3": (20 * 1024, 10 * 1024)}
    figure = page.figure_bytes(counts | {"cuda-epoch": (2048, 4)})
    (ax,) = figure.axes
    assert ax.get_title("left") == "V3 copies 25 % of what V2 copies"
    assert ax.get_xlabel() == "KiB copied per mini-batch, by count"
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["v2", "v3", "epoch"]
    widths = [bar.get_width() for bar in ax.patches]
    assert widths == pytest.approx([60, 60, 20, 10, 2, 4 / 1024])
    texts = [text.get_text() for text in ax.texts]
    assert texts == [
        "60 there, 60 back",
        "20 there, 10 back",
        "2 there, 4 bytes back",
    ]


def test_who_computes_what():
    figure = page.figure_who()
    first, second, third = figure.axes
    assert {text.get_text() for text in first.texts} == {"0"}
    assert [text.get_text() for text in second.texts[::4]] == [
        *"01230123"
    ]  # units down
    assert [text.get_text() for text in third.texts[:8]] == [*"01234567"]
    blocks = {patch.get_facecolor() for patch in third.patches}
    assert len(blocks) == 4
    assert third.get_xlabel() == "sample of the mini-batch"
    assert first.get_ylabel() == "unit"
    assert "each cell to a thread of its own: 8 to a block" in figure.alt


def test_blocks_by_hand():
    """256 samples: 8 warps; 128 tiles of two."""
    assert page.busy(page.gpu.HUNDREDS) == [6, 97]
    plan, kept, loads, others = page.persistent(page.gpu.LARGE)
    assert (plan.blocks, plan.units) == (128, 16)
    # W of 16 units; x and h of 64 samples, U of 16 units; U and W of the layer
    assert kept == 512 * 16 * 4 * 4
    assert loads == 4 * (2 * 64 * 512 + 512 * 16 * 4)
    assert others == 2 * 512 * 512 * 4 * 4


def test_the_table_of_what_the_machine_executed():
    about = {"cell": "lstm", "instructions": 4_000_000, "accesses": 500_000}
    about |= {"faults": 1}
    errors = {"passes": 2e-7, "parameters": 1e-7}, {"passes": 1e-7, "parameters": 3e-7}
    runs = [about | {"version": "cuda-v1"} | each for each in errors]
    runs.append(runs[0] | {"version": "cuda-epoch", "cell": "gru", "faults": 0})
    table = page.machine_table(pd.DataFrame(runs))
    assert list(table.index) == ["cuda-v1", "cuda-epoch"]
    assert list(table["cases"]) == [2, 1]
    assert list(table["cells"]) == [1, 1]
    assert list(table["largest error"]) == ["3e-07", "2e-07"]
    assert list(table["instructions (million)"]) == ["8", "4"]
    assert list(table["accesses (million)"]) == ["1", "0.5"]
    assert list(table["faults"]) == [2, 0]


def test_the_sentence_on_planted_faults():
    faults = {"planted": ["a barrier less", "a plain flag"], "reported": [5, 4]}
    faults |= {"wrong result": [0, 1], "harmless": [2, 0]}
    said = page.planted(pd.DataFrame(faults))
    assert "Of 12 planted faults (a barrier less, a plain flag)" in said
    assert "reports 9; 1 of the others give a wrong result, 2 change nothing" in said


@pytest.mark.parametrize(
    ("v3", "slow", "held"),
    [(0.79, 1.0, True), (0.81, 1.0, False), (0.5, 1.5, True), (0.5, 1.7, False)],
)
def test_v3_has_to_be_faster_in_every_process(v3, slow, held):
    claim = page.claim_step(steps(v3, slow))
    assert claim["held"] is held
    assert claim["why"]


@pytest.mark.parametrize(
    ("ours", "slow", "held"),
    [(0.99, 1.0, True), (1.01, 1.0, False), (0.8, 1.2, True), (0.8, 1.3, False)],
)
def test_epoch_has_to_be_ahead_of_cudnn_in_every_process(ours, slow, held):
    parts = []
    for process, factor in enumerate((1.0, slow)):
        times = {("cuda-epoch", 1600): factor * ours, ("pytorch-graph", 1600): 1.0}
        parts.append(rows(times, "airline", "epoch").assign(process=process))
    parts.append(rows({("cuda-epoch", 108): 0.1}, "airline", "epoch"))
    claim = page.claim_cudnn(pd.concat(parts))
    assert claim["held"] is held
    assert claim["why"]


@pytest.mark.parametrize(("power", "held"), [(0.99, True), (1.01, False)])
def test_time_has_to_grow_more_slowly_than_the_data(power, held):
    claim = page.claim_growth(grown(power))
    assert claim["held"] is held
    assert f"to the power {power}" in claim["numbers"]
    both = pd.concat([grown(0.9), grown(power).assign(process=1)])
    assert page.claim_growth(both)["held"] is held


def test_without_a_device_nothing_is_claimed_and_nothing_is_a_time():
    for claim in (page.claim_step, page.claim_growth, page.claim_cudnn):
        claim = claim(nothing())
        assert claim["held"] is None
        assert claim["numbers"] == "no GPU"
    table = page.times_table(nothing(), PROJECT, 130.0)
    assert list(table.index) == [*page.SHORT, "pytorch", "pytorch-graph"]
    assert set(table.to_numpy()[:, 1:].ravel()) == {page.NOT_YET}
    assert table.loc["cuda-v1", "over NumPy, project"] == "1.62x"
    assert table.loc["cuda-v3", "over NumPy, project"] == "7.56x"


def test_measured_times_fill_the_table_and_the_figure():
    table = page.times_table(steps(0.5), PROJECT, 130.0)
    assert table.loc["cuda-v3", "over numpy-sample, ours"] == "4x"
    assert table.loc["cuda-epoch", "over numpy-sample, ours"] == page.NOT_YET
    small = rows({("cuda-epoch", 108): 1.0}, "airline", "epoch")
    many = {("cuda-epoch", 1600): 2e-3, ("pytorch-graph", 1600): 8e-3}
    many = rows(many, "airline", "epoch")
    large = [rows({("pytorch", 0): B * 1e-3}, "large", "step", B=B) for B in (1, 64)]
    table = page.times_table(pd.concat([small, many, *large]), PROJECT, 130.0)
    assert table.loc["cuda-epoch", "airline step (us)"] == "20"  # of 100 steps
    assert table.loc["pytorch-graph", "airline step (us)"] == "80"
    assert table.loc["pytorch", "reference step (ms)"] == "64"
    figure = page.figure_growth(pd.concat([steps(0.5), grown(0.5)]))
    (ax,) = figure.axes
    title = "cuda-epoch: 100 times the time for 10000 times the data"
    assert ax.get_title("left") == title
    assert ax.get_xlabel() == "windows of the data set"
    assert ax.get_ylabel() == "milliseconds of an epoch"
    line = next(line for line in ax.lines if len(line.get_xdata()) == 3)
    assert list(line.get_ydata()) == pytest.approx([0.1, 1, 10])  # milliseconds
    words = plots.words(figure)
    assert "cuda-v3" in words
    assert "cuda-epoch" in words
