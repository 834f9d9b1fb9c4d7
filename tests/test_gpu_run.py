"""`make gpu`, before there is a GPU: its parts and its clock are handed in."""

import json
import sys
import time
from dataclasses import replace
from functools import partial

import pandas as pd
import pytest
from test_cuda import simulated

import lstm_kernels as lk
from lstm_report.experiments import gpu, gpu_run
from lstm_report.experiments.gpu_run import Task
from lstm_report.measure.process import ProcessError


def rows(variant, left_out=()):
    about = {"version": "cuda-v3", "stage": "step", "repeat": 0, "seconds": 1.25e-5}
    result = pd.DataFrame([about | {"variant": variant}])
    result.attrs |= {"conditions": {"spread": 0.0}, "left_out": list(left_out)}
    return result


def tasks(**others):
    """Tasks that return at once, in the order of a run."""
    parts = {"probe": Task(lambda limit: "2 of 2 networks right", 20)}
    for name in ("airline", "table", "large"):
        run = lambda limit, name=name: rows(name)  # noqa: E731
        parts[name] = Task(run, 10, name == "airline")
    return parts | others


@simulated
def test_what_fails_leaves_the_others(tmp_path, capsys):
    """All so far is written after each part; what claims rest on is run again."""

    def late(limit):
        raise ProcessError("not finished in 45 s", "Traceback")

    words = [sys.executable, "-c", "print('2 failed'); raise SystemExit(9)"]
    parts = tasks(
        airline=Task(lambda limit: rows("airline", ["pytorch (H=32): no"]), 10, True),
        large=Task(late, 10),
        wrong=Task(lambda limit: {}["a key"], 10),
        empty=Task(lambda limit: rows("t")[:0], 10),
        tests=Task(partial(gpu_run.command, words), 10),
    )
    running = gpu_run.main("smoke", tmp_path, parts=parts)
    assert next(running)[:2] == ("probe", "2 of 2 networks right")
    name, _, path = next(running)
    assert (name, len(pd.read_csv(path))) == ("airline", 1)
    checks = path.with_name("gpu-checks.json")
    cut_off = json.loads(checks.read_text())
    assert (cut_off["rows"], cut_off["ended"]) == (1, False)
    want = r"^airline \(without pytorch .*; large \(not finished in 45 s\); wrong "
    want += r"\(KeyError.*; empty \(no rows\); tests \(failed: 2 failed\); airline"
    with pytest.raises(RuntimeError, match=want):
        list(running)
    assert "Traceback" in capsys.readouterr().err
    written = pd.read_csv(path)
    assert [*written["variant"]] == ["airline", "table", *["airline"] * 4]
    assert [*written["process"]] == [0, 0, 1, 2, 3, 4]
    outcomes = json.loads(checks.read_text())
    assert outcomes["airline"] == "measured without pytorch (H=32): no"
    assert outcomes["table"] == "measured"
    assert outcomes["versions"]["cuda-v3"] == "runs here"
    assert outcomes["airline, process 5"].startswith("measured without")
    assert (outcomes["rows"], outcomes["ended"]) == (6, True)
    assert {"date", "commit", "dirty", "preset"} <= outcomes.keys()


@simulated
def test_time_that_a_part_leaves_goes_to_the_next(tmp_path):
    limits, now, took = {}, [0.0], {"airline": 1, "table": 100}

    def part(name, *, limit):
        limits.setdefault(name, []).append(round(limit))
        now[0] += took.get(name, 0)
        return "done"

    parts = {
        name: Task(partial(part, name), task.seconds, task.again)
        for name, task in tasks().items()
    }
    how = {"parts": parts, "minutes": 2, "clock": lambda: now[0], "slower": 1}
    list(gpu_run.main("smoke", tmp_path, **how))
    # Of 120 s, 50 are due in all; a part has its own and what none needs.
    assert limits["probe"] == [48]  # and at most 40 % of all
    assert limits["airline"] == [120 - 20, 19, 18, 17, 16]  # four more processes
    assert limits["table"] == [119 - 10]
    assert limits["large"] == [19]
    now[0], took["table"] = 0.0, 118
    limits.clear()
    with pytest.raises(RuntimeError, match=r"large \(no time was left\)"):
        list(gpu_run.main("smoke", tmp_path, **how))
    assert len(limits["airline"]) == 1  # another would not fit


@simulated
def test_a_run_of_nothing_is_refused(tmp_path):
    for minutes in (0, float("nan")):
        with pytest.raises(ValueError, match=f"minutes: got {minutes}, want a number"):
            next(gpu_run.main("smoke", tmp_path, minutes))
    with pytest.raises(ValueError, match=r"only: got .'typo'., want some of"):
        next(gpu_run.main("smoke", tmp_path, only=("typo",)))
    assert not [*tmp_path.iterdir()]


@simulated
def test_a_run_fits_its_minutes_and_probes_what_it_measures():
    parts = gpu_run.tasks("paper")
    assert [*parts][:4] == ["probe", "airline", "hundreds", "table"]  # by their worth
    assert sum(task.seconds for task in parts.values()) <= 9 * 60
    claimed = [name for name, part in gpu.plan("paper").items() if part.claimed]
    assert [name for name in parts if parts[name].again] == claimed
    assert [*gpu_run.tasks("paper", ("units",))] == ["probe", "units"]
    probed = parts["probe"].run.args[-1]
    names = [name for name, _ in probed]
    assert {*names} >= {"cuda-v1", "cuda-v3", *gpu.STAY, "numba-fused"}
    assert len(probed) == len({*probed})
    last = names.index("cuda-persistent")  # a kernel that hangs takes no other's turn
    assert {*names[last:]} == {"cuda-persistent"}


@simulated
def test_what_is_wrong_is_compared_with_nothing(capsys):
    """The probe, a process of its own, names it; a comparison leaves it out."""
    small = gpu.Workload(1, 2, 1, 3, 4)
    cases, wrong = [("cuda-v3", small), ("cuda-nothing", gpu.HUNDREDS)], []
    with pytest.raises(ProcessError, match="1 of 2 networks right"):
        gpu_run.probe("smoke", wrong, cases, limit=120)
    assert wrong == [("cuda-nothing", 32)]
    right, other = capsys.readouterr().out.splitlines()
    assert "error" in right
    assert "cuda-nothing" in other
    said = gpu_run.probe("smoke", [], cases, limit=1)
    assert said == "0 of 2 networks right, 2 not reached"  # nor wrong
    result = gpu_run.comparison("large, 4", "smoke", [["cuda-persistent", 2]], limit=99)
    assert set(result["version"]) >= {"cuda-fused", "numba-fused"}
    assert "cuda-persistent" not in set(result["version"])
    assert (result["max_err"] < 1e-5).all()
    on_device = result[result["stage"] == "forward on device"]
    assert "numba-fused" not in set(on_device["version"])


@simulated
def test_comparisons_run():
    parts = "hundreds", "layers", "units", "windows"
    hundreds, layers, units, windows = (gpu.plan("smoke")[p].run() for p in parts)
    assert {*layers["version"]} >= {"layers_in_turn", "wavefront", "numba-wavefront"}
    assert {*units["version"]} == {"rnn", "rnn_grid", "numba-fused"}
    assert windows.groupby("N")["B"].first().to_dict() == {8: 1}  # eight steps
    for rows in (hundreds, layers, units, windows):
        assert (rows["max_err"] < 2e-5).all()
        assert "conditions" in rows.attrs


def contest(names, calls, work=gpu.SMALL, **options):
    how = {"rate": 1.0, "repeats": 3} | options
    return gpu.contest("a", names, work, work.dataset(5), calls, **how)


def test_a_long_call_is_timed_once_and_what_the_first_compiles_is_not_its_time():
    began = set()

    def call(net):
        def timed():
            slow = net.name == "numpy" or net.name not in began
            began.add(net.name)
            time.sleep(0.06 if slow else 0.001)

        return timed

    result = contest(["numpy", "numpy-sample"], {"step": call}, long=0.05, least=0)
    result = result.groupby("version")["seconds"].agg(["size", "min", "max"])
    assert result.loc["numpy", "size"] == 1
    assert result.loc["numpy", "min"] >= 0.06
    assert result.loc["numpy-sample", "size"] == 3
    assert result.loc["numpy-sample", "max"] < 0.05


def test_who_is_wrong_or_cannot_be_made_is_left_out():
    class Wrong(lk.versions()[0].load()):
        name = "numpy-sample"

        def epoch(self, *inputs):
            return [1.01 * loss for loss in super().epoch(*inputs)]

    def make(name, params):
        return Wrong(params) if name == Wrong.name else lk.network(name, params)

    names, work = ["numpy", Wrong.name, "cuda-nothing"], replace(gpu.SMALL, B=3)
    calls = {"epoch": gpu.epoch_of(work.dataset(5), 3, 0.1)}
    assert set(contest(names, calls, work, make=make)["version"]) == {"numpy"}
    wrong, missing = gpu.left_out[-2:]
    assert wrong.startswith("numpy-sample (L=1, H=2, B=3): MismatchError: losses")
    assert "cuda-nothing" in missing
    with pytest.raises(RuntimeError, match=r"^a: .*numpy-sample"):
        contest(names[1:], calls, work, make=make)
