"""Page 7, what a hand-over costs: its claims, sentences and figures on made rows."""

import pandas as pd
import pytest
from pages import bars, claims, functions, rows, says

page = functions("07_handover")


def hand_overs(**ns):
    """Rows by means of the ns of 8 bytes; 256 take twice as long, 1024 ten times."""
    return pd.concat(
        rows({means.replace("_", " "): factor * 1e-9 * pd.Series(each)}, bytes=n)
        for means, each in ns.items()
        for n, factor in ((0, 1), (8, 1), (256, 2), (1024, 10))
        if (n == 0) == (means == "openmp")
    )


ALL = {
    "line": 100,
    "window": (110, 109, 113),
    "openmp": 700,
    "message": (250, 230, 270),
}
ALL |= {"collective": 400, "message_from_Python": 600, "collective_from_Python": 900}
EIGHT = hand_overs(**ALL)


def passes(*speeds, step=2e-6, **changed):
    """Rows of 10 steps. speeds: way -> H -> speed, one or that of each job; a step of
    one thread takes `step` at H = 128, and grows as H squared.
    """
    by_way = {way: by for ways in speeds for way, by in ways.items()}
    by_way = {way: by | changed.get(way, {}) for way, by in by_way.items()}
    sizes = {H for by in by_way.values() for H in by}
    parts = []
    for H in sorted(sizes):
        one = 10 * step * (H / 128) ** 2
        took = {way: one / pd.Series(by[H]) for way, by in by_way.items() if H in by}
        parts.append(rows({"one thread": one} | took, H=H))
    return pd.concat(parts).assign(T=10)


THREADS = {
    "claims": {128: 0.5, 256: 0.9, 512: 1.5},
    "fixed": {128: (0.8, 0.7, 0.75), 256: 1.4, 512: (1.8, 1.7, 1.9)},
    "openmp": {128: (0.9, 1.1, 1), 256: (0.9, 1.2, 1.3), 512: 1.6},
}
RANKS = {
    "window": {128: 0.8, 256: 1.4, 512: 1.8},
    "messages": {128: 0.4, 256: 0.7, 512: (1.1, 1.2, 1.4)},
    "collective": {128: 0.3, 256: 0.6, 512: (0.9, 1.1, 1.2)},
}
BOTH = passes(THREADS, RANKS)
PAY = passes(THREADS, RANKS, collective={512: (1.01, 1.5, 1.3)})
ONLY = hand_overs(line=100, openmp=700), passes(THREADS)  # without ranks


def changed(**ns):
    return hand_overs(**ALL | ns)


def of_128(*window):
    return passes(THREADS, RANKS, window={128: window})


def fast(*window):
    return passes({"window": {256: (1, 2, 3), 512: window}})


test_claims = claims(
    (
        page.claim_messages,
        changed(message=(114, 350, 250)),
        True,
        "2.5x (1.14x to 3.5x)",
    ),
    (
        page.claim_messages,
        changed(message=(114, 350, 250)),
        True,
        "2.21x (1.04x to 3.21",
    ),
    (page.claim_messages, changed(message=(109, 350, 250)), False),
    # Longer than a window, and not than a line.
    (page.claim_messages, changed(window=50, message=(99, 350, 250)), False),
    (page.claim_messages, ONLY[0], None),
    (page.claim_window, of_128(0.41, 0.9, 0.7), True, "H = 128: 1.75x", "H = 256: 2x"),
    (page.claim_window, of_128(0.39, 0.9, 0.7), False),
    (page.claim_window, ONLY[1], None),
    (page.claim_large, PAY, True, "512 units every"),
    (page.claim_large, PAY, True, "collective: 1.3x (1.01x to 1.5x)"),
    (page.claim_large, ONLY[1], True, "threads, claims is as slow as 1.5x"),
    (page.claim_large, BOTH, False, "ranks, collective is as slow as 0.9x"),
)
test_words = says(
    (page.say_hand_overs, EIGHT, "same loop: a window takes 1.1x (1.09x to 1.13x) as"),
    (page.say_hand_overs, EIGHT, "adds 350 ns to a message, which itself takes 250"),
    (page.say_hand_overs, EIGHT, "takes 1000 ns and a message 2500 ns"),
    (page.say_hand_overs, changed(window=(90, 110, 95)), "the same thing, and level"),
    (page.say_hand_overs, changed(message_from_Python=240), "adds nothing that shows"),
    (page.say_shares, BOTH, "H = 128, ranks with a window compared with threads: leve"),
    (page.say_shares, BOTH, "fixed shares compared with claims: 1.5x (1.4x to 1.6x)"),
    (page.say_shares, ONLY[1], "no: window"),
    (page.say_caches, fast(2.1, 2.5, 2.4), "ranks, window, H = 512: 2.4x"),
    (page.say_caches, fast(2.1, 2.5, 2.4), "reads 2 MiB"),
    (page.say_caches, fast(1.9, 2.5, 2.4), "Nothing is more than twice as fast"),
    (page.say_learned, (EIGHT, BOTH), "line takes 100 ns", "a message 250 ns"),
    (page.say_learned, (EIGHT, BOTH), "600 ns"),
    (page.say_learned, (EIGHT, BOTH), "threads, claims: 512, threads, fixed shares: 2"),
    (page.say_learned, (EIGHT, BOTH), "messages: 512, ranks, collective: nowhere"),
    (page.say_learned, ONLY, "no: message"),
    (page.figure_hand_overs, EIGHT, "A message takes 2.5x as long as a cache line"),
    (page.figure_hand_overs, EIGHT, "OpenMP region 700 ns; message 250 ns; message fr"),
    (page.figure_hand_overs, changed(message=(99, 250, 90)), "a cache line are level"),
    (page.figure_hand_overs, changed(message=(50, 40, 90)), "A cache line takes 2x as"),
    (page.figure_speed, BOTH, "Pays from H = 256 in memory, from 512 by messages."),
    (page.figure_speed, BOTH, "ranks, messages: 512; ranks, collective: none"),
    (page.where_it_pays, ({"fixed": None, "messages": None},), "nowhere in"),
    (page.where_it_pays, ({"fixed": None, "messages": None},), "never by"),
    (page.figure_divisions, (), "samples, h crosses never; by layers, h crosses each"),
)


def test_a_means_pays_from_where_every_job_and_every_larger_size_gains():
    made = passes(THREADS, RANKS, claims={128: 1.2})  # and not at 256
    pays = {"claims": 512, "fixed": 256, "openmp": 512}
    pays |= {"window": 256, "messages": 512, "collective": None}
    assert page.pays_from(made) == pays


def test_the_model_asks_for_half_a_step_longer_than_the_hand_over():
    # Half a step: 100, 400, 1600 ns; 256, 512, 1024 bytes cross, which take 2, 4.67 and
    # 10 times as long as 8: a message 110, 257; the collective 340, 793, 1700 ns.
    ways = hand_overs(line=10, window=25, message=55, collective=170)
    found = page.predicted(ways, passes(RANKS, step=200e-9))
    assert found == {"fixed": 128, "window": 128, "messages": 256, "collective": None}
    table = page.answers(ways, passes(THREADS, RANKS, step=200e-9))
    assert list(table.loc["ranks, messages"]) == ["55", 256, 512]
    assert list(table.loc["ranks, collective"])[1:] == ["none of these"] * 2
    names = ["threads, fixed shares", "threads, OpenMP"]
    assert list(page.answers(*ONLY).index) == names


def test_what_the_figures_draw():
    (ax,) = page.figure_hand_overs(EIGHT).axes
    dots = [line.get_xdata() for line in ax.lines if line.get_marker() == "o"]
    assert [dots[0], dots[4]] == [pytest.approx([100]), pytest.approx([600])]
    (ax,) = page.figure_speed(BOTH).axes
    drawn = [tuple(y.get_ydata()) for y in ax.lines if y.get_marker() == "o"]
    assert pytest.approx((0.4, 0.7, 1.2)) in drawn
    assert pytest.approx((0.5, 0.9, 1.5)) in drawn
    assert pytest.approx((1.1, 1.4)) in bars(ax)
