"""The one timing function, and what disturbs it."""

import time

import numpy as np
import pandas as pd
import pytest

from lstm_report import measure as bench
from lstm_report.experiments import ladder
from lstm_report.measure import runner, timing
from lstm_report.measure.workloads import Workload


def test_interleaved_times_every_case_in_every_round():
    calls = []
    cases = {"a": lambda: calls.append("a"), "b": lambda: time.sleep(3e-3)}
    times = bench.interleaved(cases, repeats=4, least=1e-3)
    assert len(times) == 8
    assert times.groupby("case")["repeat"].nunique().to_dict() == {"a": 4, "b": 4}
    assert times[times["case"] == "b"]["seconds"].min() >= 3e-3
    assert len(calls) > 6  # a short case is called several times and its mean taken


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


def test_a_case_that_tries_divisions_is_timed_when_it_has_chosen(monkeypatch):
    left, timed = [7], []

    def case():
        timing.Trial.tried += left[0] > 0
        left[0] -= 1
        timed.append(left[0] < -1)  # the call after the last that tried found nothing

    monkeypatch.setattr(timing.Trial, "tried", 0)
    bench.interleaved({"a": case}, repeats=3, least=1e-9)
    assert timed == [False] * 8 + [True] * 4  # the first one counts the calls


def test_a_summary_has_the_median_and_quartiles():
    times = pd.DataFrame(
        {"case": "a", "repeat": range(5), "seconds": [4.0, 0.0, 3.0, 1.0, 2.0]}
    )
    assert bench.summary(times).loc["a"].to_dict() == {"median": 2, "q1": 1, "q3": 3}


def test_summary_takes_the_ratio_round_by_round():
    times = pd.DataFrame(
        [
            ("a", 0, 2.0),
            ("b", 0, 1.0),
            ("a", 1, 20.0),
            ("b", 1, 5.0),
            ("a", 2, 8.0),
            ("b", 2, 2.0),
        ],
        columns=["case", "repeat", "seconds"],
    )
    table = bench.summary(times, "a")
    assert list(table.index) == ["a", "b"]
    assert table["median"].to_dict() == {"a": 8.0, "b": 2.0}
    assert table["ratio"].to_dict() == {"a": 1.0, "b": 4.0}


def test_cases_may_take_their_own_time():
    times = bench.interleaved(
        {"a": lambda: 0.5, "b": lambda: 0.25}, repeats=3, self_timed=True
    )
    assert times.groupby("case")["seconds"].agg(["min", "max"]).to_numpy().tolist() == [
        [0.5, 0.5],
        [0.25, 0.25],
    ]


def test_a_rest_comes_before_every_case(monkeypatch):
    slept = []
    monkeypatch.setattr(timing.time, "sleep", slept.append)
    bench.interleaved(
        {"a": lambda: None, "b": lambda: None}, repeats=3, least=0, rest=0.5
    )
    assert slept == [0.5] * 6


def planted(*, apart=0.0, conditions=(), repeats=9):
    """Times of two cases whose quartiles are `apart`, and what happened to the
    machine.
    """
    seconds = 1 + apart * (np.arange(repeats) - 2) / 4
    times = pd.concat([pd.DataFrame({"case": c, "seconds": seconds}) for c in "ab"])
    times["repeat"] = [*range(repeats)] * 2
    times.attrs["conditions"] = dict(conditions)
    return times


def test_a_disturbed_run_says_what_disturbed_it():
    assert bench.disturbance(planted()) == ""
    assert bench.disturbance(planted(apart=0.1)) == ""
    assert bench.disturbance(planted(apart=0.31)) == "quartiles 31 % apart"
    quiet = {"stolen": 0.005, "others": 0.02, "slower": -0.3}
    assert bench.disturbance(planted(conditions=quiet)) == ""
    said = bench.disturbance(
        planted(conditions={"stolen": 0.04, "others": 0.12, "slower": 0.2})
    )
    assert said.split("; ") == [
        "4 % of the CPU time stolen by other virtual machines",
        "12 % of the CPU time taken by other processes",
        "the clock 20 % slower at the end",
    ]


def test_a_run_that_tells_nothing_is_quiet():
    assert bench.disturbance(bench.interleaved({}, repeats=0)) == ""
    assert bench.disturbance(planted().assign(seconds=0.0)) == ""
    with pytest.raises(
        ValueError, match=r"times: got columns \['case'\], want \['repeat', 'sec"
    ):
        bench.disturbance(pd.DataFrame({"case": ["a"]}))


def test_one_uneven_case_is_no_disturbance_but_one_disturbed_loop_is():
    uneven = planted(apart=0.5)
    uneven.loc[uneven["case"] == "b", "seconds"] = 1.0
    more = pd.concat([uneven, *(uneven.replace({"a": c, "b": c + c}) for c in "c")])
    more.loc[more["case"] == "c", "seconds"] = 1.0
    assert bench.disturbance(more) == ""
    loops = [planted().assign(stage="forward"), planted(apart=0.5).assign(stage="step")]
    assert bench.disturbance(timing.together(loops)) == "quartiles 50 % apart"


def test_rows_of_several_runs_keep_the_worst_that_happened():
    loops = [
        planted(conditions=c)
        for c in ({"stolen": 0.3}, {"stolen": 0.1, "others": 0.2}, {})
    ]
    assert timing.together(loops).attrs["conditions"] == {"stolen": 0.3, "others": 0.2}


def test_the_system_tells_what_others_took(monkeypatch):
    before = timing.System(whole=60.0, used=10.0, stolen=0.1, process=3.0, clock=4.0)
    # In 2 s of cores processes used 1.4 s, 1 s of it this one.
    after = timing.System(whole=62.0, used=11.4, stolen=0.4, process=4.0, clock=3.0)
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


@pytest.mark.parametrize("again", [False, True])
def test_a_disturbed_run_is_measured_again_and_the_quieter_kept(monkeypatch, again):
    clocks = iter([4000.0, 2000.0, 4000.0, 3000.0])
    monkeypatch.setattr(
        timing, "system", lambda: timing.System(0, 0, 0, 0, next(clocks))
    )
    times = bench.interleaved(
        {"a": lambda: 1.0}, repeats=3, least=0, self_timed=True, again=again
    )
    fall = 25 if again else 50
    assert bench.disturbance(times) == f"the clock {fall} % slower at the end"
    assert len(times) == 3


def test_rows_of_an_experiment_know_what_disturbed_it(monkeypatch):
    monkeypatch.setattr(runner, "interleaved", lambda cases, **how: planted(apart=0.5))
    work = Workload(1, 3, 1, 4, 2)
    rows = ladder.steps(["numpy"], work, repeats=1)
    assert bench.disturbance(rows) == "quartiles 50 % apart"


@pytest.mark.parametrize(("noisy", "said"), [(1, ""), (2, "quartiles 50 % apart")])
def test_half_of_the_processes_have_to_spread(noisy, said):
    """What one process has more than the others, the range over processes shows."""
    rows = [
        ("a", process, repeat, 1.0 + 0.5 * (process < noisy) * (repeat % 2))
        for process in range(3)
        for repeat in range(9)
    ]
    times = pd.DataFrame(rows, columns=["case", "process", "repeat", "seconds"])
    assert timing.disturbance(times) == said
    times = times.drop(columns="process").assign(N=times["process"])  # other loops
    assert timing.disturbance(times) == "quartiles 50 % apart"
