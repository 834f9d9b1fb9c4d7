"""Page 07, what a hand-over costs: its claims, sentences and figures on made rows."""

import pandas as pd
import pytest
from pages import functions

page = functions("07_handover")
MESSAGES = "message", "message from Python", "collective", "collective from Python"


def rounds(both):
    """Job, round and number of two jobs of three rounds; `both`: a number, or one for
    each job.
    """
    pair = both if isinstance(both, tuple) else (both, both)
    return [(job, r, value) for job, value in enumerate(pair) for r in range(3)]


def hand_overs(**ns):
    """Rows by means of the ns of 8 bytes; 256 take twice as long, 1024 ten times."""
    columns = ["case", "bytes", "process", "repeat", "seconds"]
    rows = [
        (means.replace("_", " "), n, job, r, factor * value * 1e-9)
        for means, both in ns.items()
        for job, r, value in rounds(both)
        for n, factor in ((0, 1), (8, 1), (256, 2), (1024, 10))
        if (n == 0) == (means == "openmp")
    ]
    return pd.DataFrame(rows, columns=columns)


ALL = {"line": 100, "window": 110, "openmp": 700, "message": 250, "collective": 400}
ALL |= {"message_from_Python": 600, "collective_from_Python": 900}


def passes(speeds, step=2e-6):
    """Rows of 10 steps. speeds: way -> H -> speed; a step of one thread takes `step` at
    H = 128, and grows as H squared.
    """
    columns = ["case", "H", "process", "repeat", "seconds"]
    sizes = {H for by in speeds.values() for H in by}
    rows = [
        (way, H, job, r, 10 * step * (H / 128) ** 2 / value)
        for way, by in {"one thread": dict.fromkeys(sizes, 1), **speeds}.items()
        for H, both in by.items()
        for job, r, value in rounds(both)
    ]
    return pd.DataFrame(rows, columns=columns).assign(T=10)


THREADS = {
    "claims": {128: 0.5, 256: 0.9, 512: 1.5},
    "fixed": {128: 0.8, 256: 1.4, 512: 1.8},
    "openmp": {128: (0.9, 1.1), 256: (0.9, 1.1), 512: 1.6},
}
RANKS = {
    "window": {128: 0.8, 256: 1.4, 512: 1.8},
    "messages": {128: 0.4, 256: 0.7, 512: (1.1, 1.3)},
    "collective": {128: 0.3, 256: 0.6, 512: (0.9, 1.1)},
}


@pytest.mark.parametrize(
    ("changed", "held"),
    [
        ({}, True),
        ({"message": (111, 300)}, True),
        ({"message": (109, 300)}, False),  # in one job not longer than the window
        ({"window": 50, "message": (99, 300)}, False),  # nor than the line
    ],
)
def test_a_message_takes_longer_in_every_job(changed, held):
    claim = page.claim_messages(hand_overs(**ALL | changed))
    assert claim["held"] == held
    assert claim["why"]
    assert "line" in claim["numbers"]
    assert "window" in claim["numbers"]


def test_without_ranks_claims_of_messages_are_not_measured():
    threads = hand_overs(line=100, openmp=700)
    assert page.claim_messages(threads)["held"] is None
    assert page.claim_window(passes(THREADS))["held"] is None
    assert page.claim_large(passes(THREADS))["held"]
    assert page.say_hand_overs(threads) == ""
    assert "window" not in page.say_shares(passes(THREADS))
    assert list(page.answers(threads, passes(THREADS)).index) == [
        "threads, fixed shares",
        "threads, OpenMP",
    ]


@pytest.mark.parametrize(
    ("window", "held"), [(0.41, True), ((0.39, 0.9), False), ((0.41, 0.9), True)]
)
def test_a_window_beats_messages_in_every_job(window, held):
    rows = passes(THREADS | RANKS | {"window": RANKS["window"] | {128: window}})
    claim = page.claim_window(rows)
    assert claim["held"] == held
    assert "H = 256: 2x" in claim["numbers"]


@pytest.mark.parametrize(("low", "held"), [(1.01, True), (0.99, False)])
def test_every_means_pays_at_the_largest_size(low, held):
    ways = THREADS | RANKS | {"collective": {512: (low, 1.5)}}
    claim = page.claim_large(passes(ways))
    assert claim["held"] == held
    assert claim["sentence"] == "With 512 units every means pays"
    assert f"ranks, collective is as slow as {low}x" in claim["why"]


def test_a_means_pays_from_where_every_job_and_every_larger_size_gains():
    rows = passes(THREADS | RANKS | {"claims": {128: 1.2, 256: 0.9, 512: 1.5}})
    pays = page.pays_from(rows)
    threads = {"claims": 512, "fixed": 256, "openmp": 512}
    assert pays == threads | {"window": 256, "messages": 512, "collective": None}


def test_the_model_asks_for_half_a_step_longer_than_the_hand_over():
    # Half a step: 100, 400, 1600 ns; 256, 512, 1024 bytes cross, which take 2, 4.67 and
    # 10 times as long as 8: a message 110, 257; the collective 340, 793, 1700 ns.
    rows = passes(RANKS, step=200e-9)
    ways = {"line": 10, "window": 25, "message": 55, "collective": 170}
    found = page.predicted(hand_overs(**ways), rows)
    assert found == {"fixed": 128, "window": 128, "messages": 256, "collective": None}
    table = page.answers(hand_overs(**ways), passes(THREADS | RANKS, step=200e-9))
    assert list(table.loc["ranks, messages"]) == ["55", 256, 512]
    assert list(table.loc["ranks, collective"])[1:] == ["none of these"] * 2


def test_sentences_tell_what_was_measured():
    said = page.say_hand_overs(hand_overs(**ALL))
    assert (
        "Calling from Python adds 350 ns to a message, which itself takes 250" in said
    )
    assert "1.1x (1.1x to 1.1x) as long as a line" in said
    level = page.say_hand_overs(hand_overs(**ALL | {"window": (90, 110)}))
    assert "the same thing, and level" in level
    assert "level" not in said
    quick = page.say_hand_overs(hand_overs(**ALL | {"message_from_Python": 240}))
    assert "Python adds nothing that shows" in quick
    shares = page.say_shares(passes(THREADS | RANKS))
    assert "ranks with a window compared with threads: level (1x to 1x)" in shares
    assert "compared with claims: 1.6x (1.6x to 1.6x)" in shares
    fast = {"window": {512: (2.1, 2.5)}}
    assert "ranks, window, H = 512: 2.3x" in page.say_caches(passes(fast))
    assert "reads 2 MiB" in page.say_caches(passes(fast))
    assert "Nothing" in page.say_caches(passes({"window": {512: (1.9, 2.5)}}))
    learned = page.say_learned(hand_overs(**ALL), passes(THREADS | RANKS))
    assert "threads, fixed shares: 256" in learned
    assert "message 250 ns" in learned


@pytest.mark.parametrize(
    ("message", "title"),
    [
        (250, "A message takes 2.5x as long as a cache line"),
        ((99, 250), "A message and a cache line are level"),
        (50, "A cache line takes 2x as long as a message"),
    ],
)
def test_the_figure_of_hand_overs_has_a_dot_for_each_means(message, title):
    figure = page.figure_hand_overs(hand_overs(**ALL | {"message": message}))
    (ax,) = figure.axes
    assert ax.get_title("left") == title
    assert ax.get_xlabel() == "ns until 8 bytes have arrived, one way"
    names = [tick.get_text() for tick in ax.get_yticklabels()]
    assert names[:3] == [
        "cache line, two threads",
        "window, two ranks",
        "OpenMP region",
    ]
    assert names[3:] == list(MESSAGES)
    drawn = [line.get_xdata() for line in ax.lines if line.get_marker() == "o"]
    assert drawn[0] == pytest.approx([100])
    assert drawn[4] == pytest.approx([600])
    assert title in figure.alt
    assert "OpenMP region 700 ns" in figure.alt


def test_the_figure_of_speeds_has_a_line_for_each_way():
    figure = page.figure_speed(passes(THREADS | RANKS))
    (ax,) = figure.axes
    title = "Pays from H = 256 in memory, from 512 by messages"
    assert ax.get_title("left") == title
    assert (ax.get_xlabel(), ax.get_ylabel()) == (
        "hidden units H",
        "speed (one thread = 1)",
    )
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["128", "256", "512"]
    assert {text.get_text() for text in ax.texts} >= set(page.WAYS.values())
    drawn = {
        tuple(line.get_ydata().round(2))
        for line in ax.lines
        if line.get_marker() == "o"
    }
    assert (0.4, 0.7, 1.2) in drawn
    assert (0.5, 0.9, 1.5) in drawn
    assert "ranks, messages: 512" in figure.alt
    assert "ranks, collective: none" in figure.alt
    assert page.where_it_pays({"fixed": None, "messages": None}).endswith(
        "Pays nowhere in memory, never by messages"
    )


def test_the_figure_of_divisions_tells_what_crosses():
    figure = page.figure_divisions()
    said = {ax.get_ylabel(): ax.get_title("left") for ax in figure.axes}
    assert said["unit blocks"] == "h crosses each step"
    assert said["samples"] == "h crosses never"
    assert "by layers, h crosses each chunk" in figure.alt
