"""The one timing function, and what disturbs it."""

import time

import numpy as np
import pandas as pd
import pytest

from lstm_report import measure as bench
from lstm_report.measure import timing
from lstm_report.measure.timing import System


def test_cases_of_a_block_are_neighbours_in_every_round():
    cases = {name: lambda: 1.0 for name in "abcde"}
    blocks = ["ad", "bce"]
    how = {"repeats": 30, "least": 0, "self_timed": True}
    times = bench.interleaved(cases, blocks=blocks, **how)
    rounds = {"".join(part["case"]) for _, part in times.groupby("repeat")}
    assert {round[:2] for round in rounds} > {"ad", "da"}
    for round in rounds:
        first = 2 if round[0] in "ad" else 3
        parts = {frozenset(round[:first]), frozenset(round[first:])}
        assert parts == {frozenset(block) for block in blocks}
    for wrong in ["ad", "bc"], ["ad", "bce", "a"], ["adf", "bce"]:
        with pytest.raises(ValueError, match=r"blocks: got .*, want each of .* once"):
            bench.interleaved(cases, blocks=wrong, **how)


@pytest.mark.parametrize("repeats", [0, 1, 12])
def test_every_case_warms_up_and_rounds_go_in_other_orders(repeats):
    calls = []
    cases = {name: (lambda name=name: calls.append(name)) for name in "abc"}
    times = bench.interleaved(cases, repeats=repeats, least=0)
    # Compiled; nobody asks how often each is to be called
    assert calls[:3] == list("abc")
    rounds = [tuple(calls[i : i + 3]) for i in range(3, len(calls), 3)]
    assert len(rounds) == repeats
    assert all(set(one) == set("abc") for one in rounds)
    assert len(set(rounds)) > 1 or repeats < 12
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


def test_a_rest_comes_before_every_case_and_a_call_that_is_not_timed_after_it():
    starts = []
    cases = dict.fromkeys("ab", lambda: starts.append(time.perf_counter()))
    bench.interleaved(cases, repeats=3, least=0, rest=0.01)
    assert len(starts) == 2 + 3 * 2 * 2
    assert min(np.diff(starts)[1::2]) >= 0.01


def test_a_summary_has_the_median_the_quartiles_and_the_ratio_round_by_round():
    seconds = {"a": [4.0, 0.5, 3.0, 1.0, 2.0], "b": [1.0, 0.5, 1.0, 0.5, 1.0]}
    rows = [(c, r, s) for r in range(5) for c in "ab" for s in [seconds[c][r]]]
    times = pd.DataFrame(rows, columns=["case", "repeat", "seconds"])
    table = bench.summary(times, "b")
    assert list(table.index) == ["a", "b"]
    assert table.loc["a"].to_dict() == {"median": 2, "q1": 1, "q3": 3, "ratio": 0.5}
    assert table["ratio"]["b"] == 1
    assert "ratio" not in bench.summary(times)


def planted(apart=0.0, **conditions):
    """Nine times each of two cases, with quartiles `apart`, and what happened to the
    machine.
    """
    rows = [(c, r, 1 + apart * (r - 2) / 4) for c in "ab" for r in range(9)]
    times = pd.DataFrame(rows, columns=["case", "repeat", "seconds"])
    times.attrs["conditions"] = conditions
    return times


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (planted(), ""),
        (planted(0.1), ""),
        (planted(0.31), "quartiles 31 % apart"),
        # What a row holds besides, its timeline, makes no loop of its own.
        (planted(0.31).assign(line=range(18)), "quartiles 31 % apart"),
        (planted(stolen=0.005, others=0.02, slower=-0.3), ""),
        (planted(stolen=0.04), "4 % of the CPU time stolen by other virtual machines"),
        (planted(others=0.12), "12 % of the CPU time taken by other processes"),
        (planted(0.31, slower=0.2), "quartiles 31 % apart; the clock 20 % slower"),
        (bench.interleaved({}, repeats=0), ""),
        (planted().assign(seconds=0.0), ""),
    ],
)
def test_a_disturbed_run_says_what_disturbed_it(times, said):
    found = bench.disturbance(times)
    assert found.removesuffix(" at the end") == said


def test_rows_without_repeats_or_seconds_are_refused():
    want = r"times: got columns \['case'\], want \['repeat', 'sec"
    with pytest.raises(ValueError, match=want):
        bench.disturbance(pd.DataFrame({"case": ["a"]}))


def test_one_uneven_case_is_no_disturbance_but_one_disturbed_loop_is():
    uneven = planted(0.5)
    uneven.loc[uneven["case"] == "b", "seconds"] = 1.0
    even = uneven[uneven["case"] == "b"].assign(case="c")
    assert bench.disturbance(pd.concat([uneven, even])) == ""
    loops = [planted().assign(stage="forward"), planted(0.5).assign(stage="step")]
    assert bench.disturbance(timing.together(loops)) == "quartiles 50 % apart"


@pytest.mark.parametrize(("noisy", "said"), [(1, ""), (2, "quartiles 50 % apart")])
def test_half_of_the_processes_have_to_spread(noisy, said):
    """What one process has more than the others, the range over processes shows."""
    parts = [planted(0.5 * (p < noisy)).assign(process=p) for p in range(3)]
    times = pd.concat(parts)
    assert timing.disturbance(times) == said
    times = times.rename(columns={"process": "N"})  # other loops
    assert timing.disturbance(times) == "quartiles 50 % apart"


def test_rows_of_several_runs_keep_the_worst_that_happened():
    loops = [planted(stolen=0.3), planted(stolen=0.1, others=0.2), planted()]
    assert timing.together(loops).attrs["conditions"] == {"stolen": 0.3, "others": 0.2}


def test_the_system_tells_what_others_took():
    before = System(whole=60.0, used=10.0, stolen=0.1, process=3.0, clock=4.0)
    # In 2 s of cores processes used 1.4 s, 1 s of it this one.
    after = System(whole=62.0, used=11.4, stolen=0.4, process=4.0, clock=3.0)
    found = timing.conditions(before, after)
    assert found == pytest.approx({"stolen": 0.15, "others": 0.2, "slower": 0.25})
    soon = before._replace(whole=60.3, stolen=0.3, clock=None)
    assert timing.conditions(before, soon) == {}  # too short for hundredths


def test_the_system_counts_what_this_process_uses():
    before, start = timing.system(), time.process_time()
    while time.process_time() < start + 0.2:
        pass
    after = timing.system()
    assert after.process - before.process >= 0.1
    assert after.used - before.used >= 0.1
    assert after.whole - after.used - after.stolen >= 0
    assert after.clock is None or 0.2 < after.clock < 10


@pytest.mark.parametrize(("again", "fall"), [(False, 50), (True, 25)])
def test_a_disturbed_run_is_measured_again_and_the_quieter_kept(again, fall):
    clocks = iter([4000.0, 2000.0, 4000.0, 3000.0])
    how = {"system": lambda: System(0, 0, 0, 0, next(clocks)), "self_timed": True}
    times = bench.interleaved({"a": lambda: 1.0}, repeats=3, again=again, **how)
    assert bench.disturbance(times) == f"the clock {fall} % slower at the end"
    assert times["seconds"].to_list() == [1.0] * 3  # which the case says
