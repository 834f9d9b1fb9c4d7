"""Page 8 on made rows; its timelines and predictions by hand."""

import numpy as np
import pandas as pd
import pytest
from pages import Page, rows

PAGE = Page("08_devices")
page = PAGE.module
ALTERNATING, ENDS = (page.name_of(counts) for counts in (page.ALTERNATING, page.ENDS))
# Layers of 1 ms and 2 ms, an output layer of 2 ms and 4 ms, a free embedding: 7+3 is level.
SECONDS = {"one rank": 0.23, "one rank in pieces": 0.253, "replicas": 0.107}
SECONDS |= {"4+6": 0.191, "5+5": 0.173, "6+4": 0.139, "7+3": 0.151, "8+2": 0.163}
SECONDS |= {ALTERNATING: (0.167, 0.131, 0.149), ENDS: 0.181}
EMBEDDING, LAYER, READ_OUT = (0.0, 0.0, 1), (1, 2, 3), (2, 4, 0.7)  # ms
MEMORY = {1: (307,), 2: (167, 113), 5: (71, 59, 53, 47, 43)}  # MiB of each rank


def made(memory=MEMORY, alone=0.8, embedding=EMBEDDING, **steps):
    """Rows of three jobs. steps: seconds of ways that are changed, "+" as "_"."""
    changed = {name.strip("_").replace("_", "+"): t for name, t in steps.items()}
    parts = [rows(SECONDS | changed, by="version", stage="step", max_err=1e-6, ranks=2)]
    parts.append(rows({"sum": 0.0083, "message": 37e-6}, by="version", stage="part"))
    inner = {f"layer {k}": LAYER for k in range(8)}
    layers = {"output layer": READ_OUT} | inner | {"embedding": embedding}
    for name, taken in layers.items():
        each = dict(zip(("forward", "backward", "descent"), taken, strict=True))
        each |= {"alone": alone * taken[0]} if alone else {}
        each = {way: t / 1000 for way, t in each.items()}
        about = {"version": "layer", "variant": name}
        sizes = {"output layer": 3 << 20, "embedding": 5 << 19}
        part = rows(each, by="stage", **about, bytes=sizes.get(name, 1 << 20))
        parts.append(part)
    for ranks, each in memory.items():
        most = pd.DataFrame({"bytes": [m * 2**20 for m in each], "ranks": ranks})
        parts.append(most.assign(version="memory", stage="step", seconds=1.0))
    about = {"version": "buckets", "stage": "epoch", "N": 64}
    parts.append(rows({"1": 2.0, "4": (1.1, 1.0, 1.2)}, by="variant", **about))
    table = pd.concat(parts, ignore_index=True)
    return {"measure_devices": table, "devices": table}  # recorded without MPI


CASES = {
    "held": (
        made(),
        "TTT",
        "| an LSTM layer | 1 | 2 | 3 | 1 |",
        "139 ms; 151 ms; 163 ms; 167 ms; 181 ms; 107 ms; 230 ms. ",
        "| 5+5 | 16 | 0.00293 MiB | 11.1 % | 23.1 % |",
        "compared with 5+5: 1.16x (1.04x to 1.32x). A message takes 37 µs, 3.7 % of",
        "1.3x (1.3x to 1.3x); compared with one rank 2.15x (2.15x to 2.15x) and 1.65x",
        "(54.4 %; it stores 51.9 % of the parameters)",
        "takes 307 MiB of 1, 167 MiB of 2, 71 MiB of 5.",
        "with four buckets compared with one: 1.82x (1.67x to 2x)",
    ),
    "without memory": (
        made(memory={}, alone=0, embedding=(2, 4, 1), **{"one rank in pieces": 0.23}),
        "FT-",
    ),
}
EDGES = [
    (0, 0.139 / 1.05, lambda seconds: made(_7_3=seconds[1])),  # the median of jobs
    (1, ("most", 0.139), lambda seconds: made(replicas=seconds)),
    (2, ("most", 0.667), lambda share: made(memory={1: (1,), 2: (0.2, share[1])})),
]
test_page, test_edge, test_all = PAGE.tests(__file__, CASES, EDGES)


def test_a_timeline_is_what_a_hand_draws():
    """Stage 1 waits for stage 0, and stage 0 for the gradients of stage 1."""
    line = page.timeline([1, 1], [1, 1], [2, 2], micro=2)
    forward = [(0, 0, 1), (0, 1, 2), (1, 1, 2), (1, 2, 3)]
    back = [(1, 3, 5), (1, 5, 7), (0, 5, 7), (0, 7, 9)]
    assert sorted(span[1:] for span in line.spans) == sorted(forward + back)
    assert line.idle == pytest.approx(1 - 12 / 18)
    late = page.timeline([1, 1], [1, 1], [2, 2], micro=2, hand=0.5)
    assert late.makespan == 10  # half a unit there, half a unit back
    same = page.timeline([1, 1], [1, 1], [2, 2], micro=2, ranks=1, hand=0.5)
    assert same.makespan == 12
    figure = page.figure_order()
    assert [len(ax.patches) for ax in figure.axes] == [2 * 2 * 4, 4 * 2 * 4]
    together = "Neighbours together: 8 messages, idle 20 %"
    assert f"{together}; Alternating: 24 messages, idle 11 %." in figure.alt


def test_what_crosses_between_ranks_is_a_count():
    """As tests/rank_programs.py counts it in a step, of a model with an embedding."""
    model = {"layers": 2, "hidden": 3, "symbols": 5, "steps": 3, "batch": 4}
    assert page.sent([2, 2], model) == 2 * (3 * 4 * 3) * 4
    assert page.sent([1, 2, 1], model) == 2 * 288
    assert page.sent([4], model) == 2 * (5 * 3 + 2 * 7 * 12 + 3 * 5 + 5) * 4


def test_a_step_is_the_passes_and_the_slower_descent():
    """5+5: stages of 4 and 6 ms forward, 8 and 12 back; the descent of 13 ms."""
    found, steps = made()["measure_devices"], page.steps_of(made()["measure_devices"])
    costs, want = page.by_layer(found), 0.010 + 7 * 0.006 + 0.020 + 7 * 0.012 + 0.013
    assert page.predicted([5, 5], costs) == pytest.approx(want)
    (ax,) = page.figure_placements(steps, costs, [6, 4], 0.0).axes
    drawn = [line.get_xdata()[0] for line in ax.lines if line.get_marker() == "D"]
    assert drawn[1] == pytest.approx(1e3 * want)
    assert len(drawn) == 7  # replicas are not predicted


def test_a_disturbed_step_is_told_and_an_epoch_by_itself():
    """Steps that take one or two times a time, beside the counts of memory; epochs that
    do not.
    """
    measured = made()["measure_devices"]
    for stage, other in (("step", "epoch"), ("epoch", "step")):
        even = measured["stage"] != stage
        measured["seconds"] = np.where(even, 0.1, 0.1 * 2.0 ** (measured["repeat"] % 2))
        assert page.noise_of(measured, stage)
        assert not page.noise_of(measured, other)
        # Cells of steps name no stage.
        assert bool(page.noise_of(measured)) == (stage == "step")


def test_jobs_of_a_record_are_its_rounds_and_wrong_gradients_are_not_told():
    old = pd.DataFrame({"repeat": range(6), "max_err": np.nan, "process": np.nan})
    assert page.recorded_on(old) == ""
    assert page.of_jobs(old)["process"].tolist() == [0, 0, 0, 1, 1, 1]
    with pytest.raises(ValueError, match="rows: got an error of 0"):
        page.of_jobs(old.assign(max_err=0.5))
