"""Page 8: its predictions, claims, sentences and figures on made rows."""

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from pages import functions

from lstm_report import plots

page = functions("08_devices")
ALTERNATING, ENDS = "round 1+1+1+1+1+1+1+1+1+1", "round 1+8+1"


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def steps_of(**changed):
    """Rows of three jobs, two rounds each; name -> seconds in the jobs."""
    times = {"one rank": 0.2, "one rank in pieces": 0.25, "replicas": 0.1}
    times |= {"4+6": 0.16, "5+5": 0.14, "6+4": 0.125, "7+3": 0.13}
    times |= {ALTERNATING: 0.15, ENDS: 0.18} | changed
    made = [
        (name, process, 2 * process + k, seconds)
        for name, each in times.items()
        for process, seconds in enumerate(
            each if isinstance(each, list) else [each] * 3
        )
        for k in range(2)
    ]
    return pd.DataFrame(made, columns=["version", "process", "repeat", "seconds"])


def costs():
    """Eight layers of 1 ms and 2 ms, a read-out of 2 ms and 4 ms, a free embedding."""
    names = ["embedding", *(f"layer {k}" for k in range(8)), "read-out"]
    table = pd.DataFrame(0.001, names, ["forward", "backward", "descent"])
    table["backward"] = 0.002
    table.loc["embedding"] = [0.0, 0.0, 0.001]
    table.loc["read-out"] = [0.002, 0.004, 0.003]
    return table.assign(bytes=2**20)


def test_a_timeline_is_what_a_hand_draws():
    """Stage 1 waits for stage 0, and stage 0 for the gradients of stage 1."""
    spans = page.timeline([1, 1], [1, 1], [2, 2], micro=2)
    forward = [(0, 0, 1), (0, 1, 2), (1, 1, 2), (1, 2, 3)]
    back = [(1, 3, 5), (1, 5, 7), (0, 5, 7), (0, 7, 9)]
    assert sorted((s[0], *s[-2:]) for s in spans) == sorted(forward + back)
    assert page.idle_share(spans) == pytest.approx(1 - 12 / 18)
    late = page.timeline([1, 1], [1, 1], [2, 2], micro=2, hand=0.5)
    assert max(s[-1] for s in late) == 10  # half a unit there, half a unit back
    same = page.timeline([1, 1], [1, 1], [2, 2], micro=2, ranks=1, hand=0.5)
    assert max(s[-1] for s in same) == 12


def test_messages_are_counted_at_each_border_both_ways():
    assert page.messages([5, 5], 8) == 16
    assert page.messages([1] * 10, 8) == 144


def test_a_step_is_the_passes_and_the_slower_descent():
    """5+5: stages of 4 and 6 ms forward, 8 and 12 back; the descent of 7 ms."""
    want = 0.010 + 7 * 0.006 + 0.020 + 7 * 0.012 + 0.007
    assert page.predicted([5, 5], costs()) == pytest.approx(want)


def test_alternating_loses_from_the_message_that_is_told():
    limit = page.dearest_message(costs())
    for factor, slower in ((0.9, False), (1.01, True)):
        hand = factor * limit
        both = [page.predicted(n, costs(), hand) for n in ([1] * 10, [5, 5])]
        assert (both[0] > both[1]) == slower
    assert 1e-5 < limit < 1e-2


@pytest.mark.parametrize(
    ("name", "plan", "slow", "held"),
    [
        ("6+4", [6, 4], 0.1399, True),
        ("6+4", [6, 4], 0.1401, False),  # one job of three is enough
        ("7+3", [7, 3], 0.2, False),
        ("5+5", [5, 5], 0.14, False),
    ],
)
def test_the_balance_is_judged_by_the_slowest_job(name, plan, slow, held):
    times = slow if plan == [5, 5] else [0.1, slow, 0.12]
    claim = page.claim_balance(steps_of(**{name: times}), plan)
    assert claim["held"] == held
    assert name in claim["numbers"]


def test_a_balance_that_is_not_better_says_why():
    why = "differ by less", "same border", "alone does not tell"
    made = ([6, 4], [0.1, 0.2, 0.1]), ([5, 5], 0.14), ([6, 4], 0.15)
    for text, (plan, times) in zip(why, made, strict=True):
        name = "+".join(map(str, plan))
        assert text in page.claim_balance(steps_of(**{name: times}), plan)["why"]


@pytest.mark.parametrize(("slow", "held"), [(0.1401, True), (0.1399, False)])
def test_neighbours_are_judged_by_the_slowest_job(slow, held):
    rows = steps_of(**{ALTERNATING: [0.2, slow, 0.2]})
    claim = page.claim_neighbours(rows, costs(), 1e-5)
    assert claim["held"] == held
    assert "16 and 144 messages" in claim["numbers"]
    assert "10 µs, 1.0% of a layer" in claim["why"]
    assert "cost 1.4 ms" in claim["why"]


@pytest.mark.parametrize(("slow", "held"), [(0.1249, True), (0.1251, False)])
def test_samples_are_judged_by_the_slowest_job(slow, held):
    claim = page.claim_samples(steps_of(replicas=[0.1, slow, 0.1]), "6+4", 0.01)
    assert claim["held"] == held
    assert "one rank 2x (1.6x to 2x) and 1.6x (1.6x to 1.6x)" in claim["numbers"]
    assert "10% of a replica's step" in claim["why"]


def test_the_order_of_micro_batches():
    figure = page.figure_order()
    titles = [ax.get_title("left") for ax in figure.axes]
    assert titles == [
        "Neighbours together: 8 messages, idle 20%",
        "Alternating: 24 messages, idle 11%",
    ]
    assert all(title in figure.alt for title in titles)
    top, below = figure.axes
    assert len(top.patches) == 2 * 2 * 4
    assert len(below.patches) == 4 * 2 * 4
    assert max(bar.get_x() + bar.get_width() for bar in top.patches) == 30
    assert "forward passes of a layer" in below.get_xlabel()


@pytest.mark.parametrize(
    ("plan", "times", "title"),
    [
        ([6, 4], 0.125, "compared with by count: 1.12x"),
        ([6, 4], [0.13, 0.15, 0.14], "compared with by count: level"),
        ([6, 4], 0.16, "compared with by count: 12.5 % slower"),
        ([5, 5], 0.14, "by seconds and by count are the same here"),
    ],
)
def test_placements_measured_and_predicted(plan, times, title):
    rows = steps_of(**{"+".join(map(str, plan)): times})
    figure = page.figure_placements(rows, costs(), plan, 0.0)
    (ax,) = figure.axes
    assert figure.get_suptitle().endswith(title)
    assert "ms for a training step" in ax.get_xlabel()
    names = [tick.get_text() for tick in ax.get_yticklabels()]
    seconds, both = "6+4 (by seconds)", plan == [5, 5]
    assert names == [
        *("4+6", "5+5 (by both)" if both else "5+5 (by count)"),
        *("6+4" if both else seconds, "7+3"),
        *("alternating", "1+8+1 (ends together)", "replicas"),
    ]
    dots = [line for line in ax.lines if line.get_marker() == "o"]
    x = [float(line.get_xdata()[0]) for line in dots]
    assert x[:2] == pytest.approx([160, 140])
    assert x[4:] == pytest.approx([150, 180, 100])
    diamonds = [line for line in ax.lines if line.get_marker() == "D"]
    assert len(diamonds) == 6  # replicas are not predicted
    assert float(diamonds[1].get_xdata()[0]) == pytest.approx(163)
    assert "ms for a training step" in plots.words(figure)


def made_rows():
    """Rows of layers, of memory and of buckets."""
    table = costs()
    made = [
        {"version": "layer", "variant": name, "stage": way, "seconds": c[way]}
        | {"bytes": c["bytes"]}
        for name, c in table.iterrows()
        for way in ("forward", "backward", "descent")
    ]
    for ranks, mib in ((1, 300), (2, 170), (2, 150)):
        made.append({"version": "memory", "ranks": ranks, "bytes": mib * 2**20})
    for process in range(3):
        row = {"version": "buckets", "process": process, "repeat": process, "N": 64}
        made.append(row | {"variant": "1", "seconds": 2.0})
        made.append(row | {"variant": "4", "seconds": 1.0 + process / 10})
    return pd.DataFrame(made)


@pytest.mark.parametrize(("stage", "seen"), [("step", True), ("epoch", False)])
def test_a_disturbed_step_is_told(stage, seen):
    quiet = pd.DataFrame({"version": "6+4", "repeat": range(6), "seconds": 0.1})
    other = "epoch" if stage == "step" else "step"
    uneven = quiet.assign(seconds=3 * [0.1, 0.2], stage=stage)
    rows = pd.concat([quiet.assign(stage=other), uneven])
    assert bool(page.noise_of(rows)) == seen


def test_layers_keep_their_order_and_their_costs():
    rows = made_rows()
    table = page.by_layer(rows)
    assert list(table.index[[0, 1, 8, 9]]) == [
        *("embedding", "layer 0", "layer 7", "read-out")
    ]
    shown = page.kinds(table)
    assert list(shown.loc["read-out"]) == ["2", "4", "3", "1"]
    assert list(shown.loc["an LSTM layer", ["forward (ms)", "backward (ms)"]]) == [
        *("1", "2")
    ]


def test_sentences_of_memory_and_buckets():
    rows = made_rows()
    text = page.memory_text(rows)
    assert "300 MiB with 1 rank, 170 MiB with 2 ranks." in text
    assert "not measured" in page.memory_text(rows[rows["version"] != "memory"])
    text = " ".join(page.buckets_text(rows).split())
    assert "four buckets compared with one: 1.82x (1.67x to 2x)" in text
    assert "The 64 strings have 9 to " in text
