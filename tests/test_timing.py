"""The one timing function, and what disturbs it."""

import threading
import time
from functools import partial

import numpy as np
import pandas as pd
import pytest

from lstm_report import measure as bench
from lstm_report.measure import timing
from lstm_report.measure.timing import System


def test_cases_of_a_block_are_neighbours_in_every_round():
    cases = {name: lambda: 1.0 for name in "abcde"}
    blocks = ["ad", "bce"]
    options = {"repeats": 30, "least": 0, "self_timed": True}
    times = bench.interleaved(cases, blocks=blocks, **options)
    rounds = {"".join(part["case"]) for _, part in times.groupby("repeat")}
    assert {one[:2] for one in rounds} > {"ad", "da"}
    for one in rounds:
        first = 2 if one[0] in "ad" else 3
        parts = {frozenset(one[:first]), frozenset(one[first:])}
        assert parts == {frozenset(block) for block in blocks}
    for wrong in ["ad", "bc"], ["ad", "bce", "a"], ["adf", "bce"]:
        with pytest.raises(ValueError, match=r"blocks: got .*, want each of .* once"):
            bench.interleaved(cases, blocks=wrong, **options)


def test_every_case_warms_up_and_rounds_go_in_other_orders():
    calls = []
    cases = {name: (lambda name=name: calls.append(name)) for name in "abc"}
    times = bench.interleaved(cases, repeats=12, least=0)
    assert calls[:3] == list("abc")  # compiled; nobody asks how often to call each
    rounds = [tuple(calls[i : i + 3]) for i in range(3, len(calls), 3)]
    assert len(rounds) == 12
    assert all(set(one) == set("abc") for one in rounds)
    assert len(set(rounds)) > 1
    assert list(times["case"]) == calls[3:]
    calls.clear()
    bench.interleaved(cases, repeats=0, least=1e-9)
    assert calls == list("aabbcc")  # the second time is taken


def test_a_short_case_is_called_several_times_and_its_mean_taken():
    calls = []
    cases = {"a": lambda: calls.append("a"), "b": lambda: time.sleep(3e-3)}
    times = bench.interleaved(cases, repeats=4, least=1e-3)
    assert times.groupby("case")["repeat"].nunique().to_dict() == {"a": 4, "b": 4}
    assert times[times["case"] == "b"]["seconds"].min() >= 3e-3
    assert len(calls) > 6


def test_a_case_that_autotunes_is_timed_when_it_has_chosen():
    left, timed = [7], []

    def case():
        timing.Autotuner.trials += left[0] > 0
        left[0] -= 1
        timed.append(left[0] < -1)  # the call after the last that tried found nothing

    bench.interleaved({"a": case}, repeats=3, least=1e-9)
    assert timed == [False] * 8 + [True] * 4  # the first one counts the calls


def test_no_case_is_timed_while_another_thread_computes():
    """As a library's threads do that look out for more work after a call."""
    ends, starts = [], []

    def leaves_a_thread():
        until = time.perf_counter() + 0.1
        ends.append(until)
        threading.Thread(target=spin, args=[until]).start()

    def spin(until):
        while time.perf_counter() < until:
            np.dot(ONES, ONES)

    cases = {"a": leaves_a_thread, "b": lambda: starts.append(time.perf_counter())}
    bench.interleaved(cases, repeats=3, least=0, wait=True)
    assert len(starts) == 1 + 3 * 2  # one to warm up, one that is not timed each
    for start in starts[1:]:
        assert all(end < start for end in ends if end - 0.1 < start)


def test_the_order_of_cases_differs_from_call_to_call():
    def order():
        called = []
        cases = {name: partial(called.append, name) for name in "abcdefgh"}
        bench.interleaved(cases, repeats=3, least=0)
        return tuple(called)

    assert len({order() for _ in range(4)}) > 1


def test_a_summary_has_the_median_the_quartiles_and_the_ratio_round_by_round():
    seconds = {"a": [4.0, 0.5, 3.0, 1.0, 2.0], "b": [1.0, 0.5, 1.0, 0.5, 1.0]}
    rows = [(c, r, s) for r in range(5) for c in "ab" for s in [seconds[c][r]]]
    times = pd.DataFrame(rows, columns=["case", "repeat", "seconds"])
    table = bench.summary(times, "b")
    assert list(table.index) == ["a", "b"]
    assert table.loc["a"].to_dict() == {"median": 2, "q1": 1, "q3": 3, "ratio": 0.5}
    assert "ratio" not in bench.summary(times)


def planted(apart=0.0, **conditions):
    """Nine times each of two cases, with quartiles `apart`, and what happened to the
    machine.
    """
    rows = [(c, r, 1 + apart * (r - 2) / 4) for c in "ab" for r in range(9)]
    times = pd.DataFrame(rows, columns=["case", "repeat", "seconds"])
    times.attrs["conditions"] = conditions
    return times


def uneven(*apart, by):
    """Such rows, one after the other, numbered in a column."""
    parts = [planted(each).assign(**{by: k}) for k, each in enumerate(apart)]
    return timing.together(parts)


ONES = np.ones((64, 64), np.float32)
ONE = planted(0.5).assign(seconds=lambda t: t["seconds"].where(t["case"] == "a", 1.0))
SPREAD = "quartiles 50 % apart"


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (planted(0.19), ""),
        (planted(0.31), "quartiles 31 % apart"),
        # What a row holds besides, its timeline, makes no loop of its own.
        (planted(0.31).assign(line=range(18)), "quartiles 31 % apart"),
        (planted(stolen=0.005, others=0.02, slower=-0.3), ""),
        (planted(stolen=0.04), "4 % of the CPU time stolen by other virtual machines"),
        (planted(others=0.12), "12 % of the CPU time taken by other processes"),
        (planted(0.31, slower=0.2), "quartiles 31 % apart; the clock 20 % slower"),
        (bench.interleaved({}, repeats=0), ""),
        # One uneven case is no disturbance, one disturbed loop is, and of processes
        # half: what one has more than the others, the range over processes shows.
        (pd.concat([ONE, planted().assign(case="c")]), ""),
        (uneven(0, 0.5, by="stage"), SPREAD),
        (uneven(0.5, 0, 0, by="process"), ""),
        (uneven(0.5, 0.5, 0, by="process"), SPREAD),
    ],
)
def test_a_disturbed_run_says_what_disturbed_it(times, said):
    assert bench.disturbance(times).removesuffix(" at the end") == said


def test_rows_of_several_runs_keep_the_worst_that_happened():
    loops = [planted(stolen=0.3), planted(stolen=0.1, others=0.2), planted()]
    assert timing.together(loops).attrs["conditions"] == {"stolen": 0.3, "others": 0.2}


def test_the_system_tells_what_others_took():
    before = System(whole=60.0, used=10.0, stolen=0.1, process=3.0, clock=4.0)
    # In 2 s of cores processes used 1.4 s, 1 s of it this one.
    after = System(whole=62.0, used=11.4, stolen=0.4, process=4.0, clock=3.0)
    conditions = timing.conditions(before, after)
    assert conditions == pytest.approx({"stolen": 0.15, "others": 0.2, "slower": 0.25})
    soon = before._replace(whole=60.3, stolen=0.3, clock=None)
    assert timing.conditions(before, soon) == {}  # too short for hundredths
    now, start = timing.system(), time.process_time()
    while time.process_time() < start + 0.2:
        pass
    later = timing.system()
    assert later.process - now.process >= 0.1
    assert later.used - now.used >= 0.1
    assert later.whole - later.used - later.stolen >= 0


@pytest.mark.parametrize(("again", "fall"), [(False, 50), (True, 25)])
def test_a_disturbed_run_is_measured_again_and_the_quieter_kept(again, fall):
    clocks = iter([4000.0, 2000.0, 4000.0, 3000.0])
    system = {"system": lambda: System(0, 0, 0, 0, next(clocks)), "self_timed": True}
    times = bench.interleaved({"a": lambda: 1.0}, repeats=3, again=again, **system)
    assert bench.disturbance(times) == f"the clock {fall} % slower at the end"
    assert times["seconds"].to_list() == [1.0] * 3  # which the case says
