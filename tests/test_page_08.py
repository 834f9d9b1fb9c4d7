"""Page 08 on synthetic rows; its timelines and predictions by hand."""

import pandas as pd
import pytest
from pages import Page, rows

PAGE = Page("08_devices")
page = PAGE.module
ALTERNATING, ENDS = (page.name_of(counts) for counts in (page.ALTERNATING, page.ENDS))
# Layers of 1 ms and 2 ms, an output layer of 2 ms and 4 ms, a free embedding: 7+3 is level.
SECONDS = {"one rank": 0.23, "one rank in pieces": 0.253, "replicas": 0.107}
SECONDS |= {"4+6": 0.191, "5+5": 0.173, "6+4": 0.139, "7+3": 0.151}
SECONDS |= {ALTERNATING: (0.167, 0.147, 0.149), ENDS: 0.181}
LAYERS = {"embedding": (0.0, 0.0, 1.3)} | {f"layer {k}": (1, 2, 3) for k in range(8)}
LAYERS |= {"output layer": (2, 4, 0.7)}  # ms
SIZES = {"embedding": 5 << 19, "output layer": 3 << 20}
MEMORY = {1: (307,), 2: (167, 113)}  # MiB of each rank


def made(memory=MEMORY, layers=LAYERS, **steps):
    """Rows of three jobs. steps: seconds of ways that are changed, "+" as "_"."""
    changed = {name.strip("_").replace("_", "+"): t for name, t in steps.items()}
    parts = [rows(SECONDS | changed, by="version", stage="step", ranks=2)]
    parts.append(rows({"sum": 0.0083, "message": 37e-6}, by="version", stage="part"))
    for name, taken in layers.items():
        ways = zip(("forward", "backward", "descent"), taken, strict=True)
        about = {"version": "layer", "variant": name, "bytes": SIZES.get(name, 1 << 20)}
        parts.append(rows({way: t / 1e3 for way, t in ways}, by="stage", **about))
    for ranks, each in memory.items():
        most = pd.DataFrame({"bytes": [m * 2**20 for m in each], "ranks": ranks})
        parts.append(most.assign(version="memory", stage="step", seconds=1.0))
    about = {"by": "variant", "version": "buckets", "stage": "epoch"}
    parts.append(rows({"1": 1.0, "4": (1.7, 1.6, 1.9)}, N=24, **about))
    parts.append(rows({"1": 2.0, "4": (1.1, 1.05, 1.2)}, N=64, **about))
    table = pd.concat(parts, ignore_index=True)
    return {"measure_devices": table, "devices": table}  # recorded without MPI


EDGES = [
    (0, 0.139 / 1.05, lambda seconds: made(_7_3=seconds)),
    (1, ("most", 0.139), lambda seconds: made(replicas=seconds)),
    (2, ("most", 0.667), lambda share: made(memory={1: (1,), 2: (0.2, share[1])})),
]
test_text, test_edge, test_all = PAGE.approved(made(), EDGES)


def test_memory_that_the_system_does_not_count_is_not_measured():
    assert PAGE.told(**made(memory={})).claims == "TT-"


def test_the_planned_border_may_be_the_one_by_count():
    told = PAGE.told(**made(layers=dict.fromkeys(LAYERS, (1, 2, 3))))
    assert "5+5 over" in told.text
    assert "over 5+5, by count: no difference (1x to 1x)" in told.text


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
    """5+5: stages of 4 and 6 ms forward, 8 and 12 back; the descent of 13.3 ms. Without
    messages and descent a pipeline takes what the planner says.
    """
    costs = page.by_layer(made()["measure_devices"])
    want = 0.010 + 7 * 0.006 + 0.020 + 7 * 0.012 + 0.0133
    assert page.predicted([5, 5], costs) == pytest.approx(want)
    assert page.planned(costs, made()["measure_devices"]) == [6, 4]
    ways = [costs[way].to_list() for way in ("forward", "backward")]
    layers = [page.planner.LayerCost("a layer", *each) for each in zip(*ways, strict=1)]
    for counts in page.planner.partitions(10, 2):
        drawn = page.timeline(counts, *ways, micro=page.MICRO).makespan
        assert drawn == pytest.approx(page.planner.predict(layers, counts, 8).seconds)
