"""Page 8: its predictions, claims, sentences and figures on made rows."""

import pandas as pd
import pytest
from pages import claims, functions, rows, says

page = functions("08_devices")
ALTERNATING, ENDS = "round 1+1+1+1+1+1+1+1+1+1", "round 1+8+1"
SECONDS = {"one rank": 0.2, "one rank in pieces": 0.25, "replicas": 0.1}
SECONDS |= {"4+6": 0.16, "5+5": 0.14, "6+4": 0.125, "7+3": 0.13}
SECONDS |= {ALTERNATING: 0.15, ENDS: 0.18}


def steps(name="5+5", *seconds):
    """Steps of three jobs, those of one way changed."""
    changed = {name: seconds} if seconds else {}
    return rows(SECONDS | changed, by="version")


def costs():
    """Eight layers of 1 ms and 2 ms, a read-out of 2 ms and 4 ms, a free embedding."""
    names = ["embedding", *(f"layer {k}" for k in range(8)), "read-out"]
    table = pd.DataFrame(0.001, names, ["forward", "backward", "descent"])
    table["backward"] = 0.002
    table.loc["embedding"] = [0.0, 0.0, 0.001]
    table.loc["read-out"] = [0.002, 0.004, 0.003]
    return table.assign(bytes=2**20)


def layers():
    """Rows of layers, in an order that is not theirs."""
    ways = "forward", "backward", "descent"
    parts = [
        rows({way: c[way]}, by="stage", variant=name, bytes=c["bytes"])
        for name, c in costs().iloc[::-1].iterrows()
        for way in ways
    ]
    return pd.concat(parts).assign(version="layer")


def memory():
    made = [(1, 300), (2, 170), (2, 150)]
    made = [("memory", ranks, mib * 2**20) for ranks, mib in made]
    return pd.DataFrame(made, columns=["version", "ranks", "bytes"])


def uneven(stage, even):
    """Rounds of a stage that take one or two times a time; of another, even ones."""
    one = {"version": "6+4", "repeat": range(6), "seconds": 3 * [0.1, 0.2]}
    one = pd.DataFrame(one).assign(stage=stage)
    return pd.concat([one, one.assign(seconds=0.1, stage=even)])


def placed(plan, *seconds):
    return steps("+".join(map(str, plan)), *seconds), costs(), plan, 0.0


BUCKETS = rows({"1": 2.0, "4": (1.1, 1.0, 1.2)}, by="variant", version="buckets", N=64)
EQUAL, EARLY, LATE = [5, 5], [6, 4], [7, 3]
LINES = "6+4 (by seconds), 7+3, alternating, 1+8+1 (ends together), replicas"
NEAR, FAR, MESSAGE = 0.1401, 0.1399, (costs(), 1e-5)
test_claims = claims(
    # One job of three is enough.
    (page.claim_balance, (steps("6+4", 0.1, FAR, 0.12), EARLY), True, "6+4: 1.17x (1x"),
    (
        page.claim_balance,
        (steps("6+4", 0.1, NEAR, 0.1), EARLY),
        False,
        "differ by less",
    ),
    (page.claim_balance, (steps("7+3", 0.1, 0.2, 0.1), LATE), False, "7+3: level"),
    (page.claim_balance, (steps("6+4", 0.15), EARLY), False, "alone does not tell"),
    (page.claim_balance, (steps(), EQUAL), False, "choose the same border"),
    (
        page.claim_neighbours,
        (steps(ALTERNATING, 0.2, NEAR, 0.3), *MESSAGE),
        True,
        "1.43x",
    ),
    (page.claim_neighbours, (steps(ALTERNATING, 0.2, FAR, 0.3), *MESSAGE), False),
    (page.claim_neighbours, (steps(), *MESSAGE), True, "; 16 and 144 messages a step"),
    (page.claim_neighbours, (steps(), *MESSAGE), True, "10 µs, 1.0% of a layer"),
    (page.claim_neighbours, (steps(), *MESSAGE), True, "all 144 cost 1.4 ms of a step"),
    (page.claim_samples, (steps("replicas", 0.1, 0.1249, 0.1), "6+4", 0.01), True),
    (page.claim_samples, (steps("replicas", 0.1, 0.1251, 0.1), "6+4", 0.01), False),
    (page.claim_samples, (steps(), "6+4", 0.01), True, "1.25x (1.25x to 1.25x); comp"),
    (page.claim_samples, (steps(), "6+4", 0.01), True, "2x (2x to 2x) and 1.6x (1.6x"),
    (page.claim_samples, (steps(), "6+4", 0.01), True, "takes 10% of a replica's step"),
)
test_words = says(
    (page.figure_order, (), "Neighbours together: 8 messages, idle 20%. (rank 0, rank"),
    (page.figure_order, (), "Alternating: 24 messages, idle 11%", "passes of a layer"),
    (page.figure_placements, placed(EARLY, 0.125), "by count: 1.12x. ", LINES),
    (page.figure_placements, placed(EARLY, 0.13, 0.15, 0.14), "by count: level. "),
    (page.figure_placements, placed(EARLY, 0.16), "by count: 12.5 % slower. "),
    (page.figure_placements, placed(EARLY), "(4+6, 5+5 (by count), 6+4 (by seconds)"),
    (page.figure_placements, placed(EQUAL), "are the same here."),
    (page.figure_placements, placed(EQUAL), "4+6, 5+5 (by both), 6"),
    (page.kinds, page.by_layer(layers()), "layer, 1, 2, 1, 1\nread-out, 2, 4, 3, 1"),
    (page.memory_text, memory(), "takes 300 MiB with 1 rank, 170 MiB with 2 ranks."),
    (page.memory_text, steps(), "Memory is not measured here"),
    (page.buckets_text, BUCKETS, "four buckets compared with one: 1.82x (1.67x to 2x)"),
    (page.buckets_text, BUCKETS, "The 64 strings have 9 to "),
)


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


def test_what_the_figures_draw():
    top, below = page.figure_order().axes
    assert (len(top.patches), len(below.patches)) == (2 * 2 * 4, 4 * 2 * 4)
    assert max(bar.get_x() + bar.get_width() for bar in top.patches) == 30
    (ax,) = page.figure_placements(*placed(EARLY)).axes
    measured, guessed = (
        [float(line.get_xdata()[0]) for line in ax.lines if line.get_marker() == mark]
        for mark in "oD"
    )
    assert measured == pytest.approx([160, 140, 125, 130, 150, 180, 100])
    assert len(guessed) == 6  # replicas are not predicted
    assert guessed[1] == pytest.approx(163)


def test_a_disturbed_step_is_told():
    assert page.noise_of(uneven("step", even="epoch"))
    assert not page.noise_of(uneven("epoch", even="step"))
    assert page.part_of(rows({"sum": 2, "message": 3}, by="version"), "message") == 3
