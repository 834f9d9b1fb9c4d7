"""Timing, provenance, results files, figures, and the command line."""

import contextlib
import io
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import lstm_kernels as lk
from lstm_kernels import __main__ as command
from lstm_kernels import cores, lab, schedules
from lstm_kernels.lab import (
    bench,
    figures_layers,
    gpu,
    layers,
    peers,
    provenance,
    restricted,
    results,
    tables,
    tail,
    timing,
)


def test_interleaved_times_every_case_in_every_round():
    calls = []
    cases = {"a": lambda: calls.append("a"), "b": lambda: time.sleep(3e-3)}
    times = lab.interleaved(cases, repeats=4, least=1e-3)
    assert len(times) == 8
    assert times.groupby("case")["repeat"].nunique().to_dict() == {"a": 4, "b": 4}
    assert times[times["case"] == "b"]["seconds"].min() >= 3e-3
    assert len(calls) > 6  # a short case is called several times and its mean taken


@pytest.mark.parametrize("repeats", [0, 1, 12])
def test_every_case_warms_up_and_rounds_go_in_other_orders(repeats):
    calls = []
    cases = {name: (lambda name=name: calls.append(name)) for name in "abc"}
    times = lab.interleaved(cases, repeats=repeats, least=0)
    assert calls[:6] == list("aabbcc")  # compiled, then timed for how often it is called
    rounds = [tuple(calls[i : i + 3]) for i in range(6, len(calls), 3)]
    assert len(rounds) == repeats
    assert all(set(one) == set("abc") for one in rounds)
    assert len(set(rounds)) > 1 or repeats < 12
    assert list(times["case"]) == calls[6:]


def test_a_summary_has_the_median_and_quartiles():
    times = pd.DataFrame({"case": "a", "repeat": range(5), "seconds": [4.0, 0.0, 3.0, 1.0, 2.0]})
    assert lab.summary(times).loc["a"].to_dict() == {"median": 2, "q1": 1, "q3": 3}


def test_summary_takes_the_ratio_round_by_round():
    times = pd.DataFrame(
        [("a", 0, 2.0), ("b", 0, 1.0), ("a", 1, 20.0), ("b", 1, 5.0), ("a", 2, 8.0), ("b", 2, 2.0)],
        columns=["case", "repeat", "seconds"],
    )
    table = lab.summary(times, "a")
    assert list(table.index) == ["a", "b"]
    assert table["median"].to_dict() == {"a": 8.0, "b": 2.0}
    assert table["ratio"].to_dict() == {"a": 1.0, "b": 4.0}


def rows(seconds=1.0):
    return pd.DataFrame(
        {"version": ["numpy"], "stage": ["step"], "repeat": [0], "seconds": [seconds]}
    )


def test_results_are_filed_by_machine_each_with_the_record_of_its_run(tmp_path, monkeypatch):
    path = results.write("trial", rows(), preset="smoke", folder=tmp_path)
    name = lab.machine()["name"]
    assert path == tmp_path / name / "trial.csv"
    record = results.record("trial", name, tmp_path)
    assert record["preset"] == "smoke"
    keys = {"cpu", "cores", "blas", "packages", "commit", "dirty", "date", "threads"}
    assert keys | {"distorting_variables", "python"} <= set(record)
    assert results.read("trial", tmp_path)["seconds"].to_list() == [1.0]
    assert list(results.read("trial", tmp_path).columns) == [*results.COLUMNS, "machine"]

    later = {"date": "2099-01-01", "commit": "later", "preset": "paper"}
    here = provenance.machine
    monkeypatch.setattr(provenance, "machine", lambda preset=None: here(preset) | later)
    results.write("other", rows(3.0), preset="paper", folder=tmp_path)
    assert results.record("trial", name, tmp_path) == record
    assert results.record("other", name, tmp_path).items() >= later.items()

    monkeypatch.setattr(provenance, "machine", lambda preset=None: here(preset) | {"name": "b"})
    results.write("trial", rows(2.0), preset="smoke", folder=tmp_path)
    assert sorted(results.read("trial", tmp_path)["seconds"]) == [1.0, 2.0]
    assert len(list(tmp_path.rglob("*"))) == 8  # two folders, three pairs, nothing left beside


def test_rows_come_back_as_they_were(tmp_path):
    results.write("trial", rows(1.23456789e-5), preset="smoke", folder=tmp_path)
    assert results.read("trial", tmp_path)["seconds"].to_list() == [1.23456789e-5]


@pytest.mark.parametrize("key", ["name", "cpu", "cores", "gpu"])
def test_a_folder_of_another_machine_is_not_overwritten(tmp_path, monkeypatch, key):
    path = results.write("trial", rows(), preset="smoke", folder=tmp_path)
    record = path.with_suffix(".json")
    other = json.loads(record.read_text()) | {key: "other"}
    record.write_text(json.dumps(other))
    for experiment in ("trial", "second"):
        with pytest.raises(ValueError, match="belongs to another machine"):
            results.write(experiment, rows(2.0), preset="smoke", folder=tmp_path)
    assert results.read("trial", tmp_path)["seconds"].to_list() == [1.0]


def test_smoke_does_not_replace_paper(tmp_path, monkeypatch):
    assert results.FOLDERS["paper"] == results.FOLDER
    assert not results.FOLDERS["smoke"].is_relative_to(results.FOLDER)
    monkeypatch.setattr(results, "FOLDERS", {p: tmp_path / p for p in ("smoke", "paper")})
    for preset in ("paper", "smoke"):
        assert tmp_path / preset in results.write("trial", rows(), preset=preset).parents
    with pytest.raises(ValueError, match=r"trial\.csv is of preset paper, smoke must not replace"):
        results.write("trial", rows(2.0), preset="smoke", folder=tmp_path / "paper")
    results.write("second", rows(2.0), preset="smoke", folder=tmp_path / "paper")
    assert results.read("trial", tmp_path / "paper")["seconds"].to_list() == [1.0]


def test_a_record_of_other_rows_is_refused(tmp_path):
    path = results.write("trial", rows(), preset="smoke", folder=tmp_path)
    path.write_text(path.read_text().replace("1", "2"))
    with pytest.raises(ValueError, match=r"trial\.json is of other rows than trial\.csv holds"):
        results.record("trial", path.parent.name, tmp_path)
    path.with_suffix(".json").unlink()
    with pytest.raises(ValueError, match=r"trial\.csv lacks trial\.json"):
        results.record("trial", path.parent.name, tmp_path)
    results.write("trial", rows(), preset="paper", folder=tmp_path)  # which repairs it
    assert results.record("trial", path.parent.name, tmp_path)["preset"] == "paper"


@pytest.mark.parametrize("path", sorted(results.FOLDER.glob("*/*.csv")), ids=lambda p: p.stem)
def test_recorded_results_have_every_column_and_their_own_record(path):
    assert path.read_text().partition("\n")[0].split(",") == results.COLUMNS
    record = results.record(path.stem, path.parent.name)
    assert (record["name"], record["preset"]) == (path.parent.name, "paper")


def test_results_refuse_unknown_columns_and_experiments(tmp_path):
    with pytest.raises(ValueError, match=r"unknown columns \['time'\]"):
        results.write("trial", rows().assign(time=1), preset="smoke", folder=tmp_path)
    with pytest.raises(ValueError, match=r"lacks \['seconds'\]"):
        results.write("t", rows().drop(columns="seconds"), preset="smoke", folder=tmp_path)
    with pytest.raises(ValueError, match="experiment: got 'none'"):
        results.read("none", tmp_path)


def test_distorting_variables_are_reported_for_the_library_in_use(monkeypatch):
    for name in provenance.DISTORTING:
        monkeypatch.setenv(name, "1")
    for library in ("openblas", "mkl", "nvpl", "blis"):
        monkeypatch.setattr(provenance, "blas", lambda library=library: [{"library": library}])
        named = [name for name in provenance.DISTORTING if name.startswith(library.upper())]
        assert provenance.distorting_variables() == [f"{name}=1" for name in named]
        assert bool(named) == (library != "blis")
    for name in provenance.DISTORTING:
        monkeypatch.delenv(name)
    assert provenance.distorting_variables() == []


def git(folder, *words):
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *author, *words], cwd=folder, check=True, capture_output=True)


def repository(folder, package, project="lstm-kernels"):
    """A repository in `folder` with one commit, which holds a package and its pyproject.toml."""
    package.mkdir(parents=True)
    (package / "code.py").write_text("1")
    (package.parent / "pyproject.toml").write_text(f'[project]\nname = "{project}"\n')
    for words in (["init"], ["add", "."], ["commit", "-m", "a"]):
        git(folder, *words)
    return package


def test_a_commit_is_recorded_with_whether_the_package_differs_from_it(tmp_path, monkeypatch):
    package = repository(tmp_path, tmp_path / "lstm_kernels")
    clean = provenance._commit(package)
    assert (len(clean["commit"]), clean["dirty"]) == (7, False)
    (tmp_path / "notes").write_text("beside the package")
    assert provenance._commit(package) == clean
    (package / "code.py").write_text("2")
    assert provenance._commit(package) == clean | {"dirty": True}
    monkeypatch.setenv("PATH", "")
    assert provenance._commit(package) == {"commit": None, "dirty": None}


@pytest.mark.parametrize(
    ("place", "project"), [("venv/lib/lstm_kernels", "lstm-kernels"), ("lstm_kernels", "other")]
)
def test_a_repository_around_the_environment_is_not_recorded(tmp_path, place, project):
    package = repository(tmp_path, tmp_path / place, project)
    assert provenance._commit(package) == {"commit": None, "dirty": None}
    (package.parent / "pyproject.toml").unlink()
    assert provenance._commit(package) == {"commit": None, "dirty": None}


def test_figures_are_saved_twice_shown_with_alt_text_and_reproducible(tmp_path, monkeypatch):
    import matplotlib.pyplot as plt

    from lstm_kernels.lab import notebook

    shown = []
    monkeypatch.setattr(notebook, "display", lambda *a, **k: shown.append((a, k)))
    monkeypatch.chdir(tmp_path)
    nb = lab.Notebook("smoke")
    for _ in range(2):
        figure, ax = plt.subplots()
        ax.plot([0, 1])
        nb.show(figure, "trial", alt="A line.")
    assert shown[0][1]["metadata"]["image/png"]["alt"] == "A line."
    assert shown[0] == shown[1]
    names = sorted(p.name for p in (tmp_path / "build/smoke/figures").iterdir())
    assert names == ["trial.png", "trial.svg"]
    with pytest.raises(ValueError, match="alt: got an empty text"):
        nb.show(figure, "trial", alt=" ")


def test_smoke_and_paper_pick_their_value():
    assert lab.Notebook("smoke").pick(smoke=1, paper=2) == 1
    assert lab.Notebook("paper").pick(smoke=1, paper=2) == 2


def test_compile_times_are_the_first_step_beyond_the_second(monkeypatch):
    """A process of its own, stood in for: its first step takes 5 s, its second 1 s."""
    caches = []

    class Net:
        def step(self, x, target, learning_rate):
            clock[0] += steps.pop(0)

    def run(words, *, env, **how):
        assert words[0] == sys.executable
        caches.append(env["NUMBA_CACHE_DIR"])
        assert Path(caches[-1]).is_dir()
        steps[:], printed = [5.0, 1.0], io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(words[2], {})
        return subprocess.CompletedProcess(words, 0, printed.getvalue())

    clock, steps = [100.0], []
    monkeypatch.setenv("NUMBA_CACHE_DIR", "the user's")
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(bench, "network", lambda name, params: Net())
    monkeypatch.setattr(bench.subprocess, "run", run)
    rows = bench.compile_times("numba-fused")
    assert rows.set_index("stage")["seconds"].to_dict() == {"compile": 4.0, "load": 4.0}
    assert caches[0] == caches[1] != "the user's"  # empty, then filled
    assert not Path(caches[0]).exists()


def test_bench_experiments_have_a_row_per_repeat():
    work = bench.Workload(1, 3, 1, 4, 2)
    table = bench.steps(["numpy", "numba-sample/buffers"], work, repeats=2)
    assert len(table) == 8
    assert set(table["stage"]) == {"forward", "step"}
    assert table["max_err"].between(0, 1e-4).all()
    assert set(table["variant"].dropna()) == {"buffers"}
    assert bench.REFERENCE.gflop == pytest.approx(107.4, abs=0.1)


@pytest.mark.parametrize("measure", ["steps", "epochs"])
def test_a_version_that_breaks_while_it_is_timed_is_caught(monkeypatch, measure):
    from lstm_kernels.versions.base import Network

    class Wearing(Network):
        used = 0

        def step(self, x, target, learning_rate):
            self.used += 1
            return super().step(x, target, learning_rate)

        def _forward(self, x, state, training):
            y, state, tapes = super()._forward(x, state, training)
            return (y * 2 if self.used else y), state, tapes

    monkeypatch.setattr(bench, "make_network", lambda name, params: Wearing(params))
    work = bench.Workload(1, 12, 1, 4, 16)
    with pytest.raises(lab.MismatchError, match="y: relative error"):
        getattr(bench, measure)(["numpy"], work, repeats=1)


def test_both_forms_of_the_weight_gradients_agree():
    params, (x, target) = bench.AIRLINE.params(), bench.AIRLINE.example()
    got = bench.network("numba-sample/buffers", params).loss_and_grads(x, target)[1]
    want = bench.network("numba-sample", params).loss_and_grads(x, target)[1]
    lab.compare(got.arrays(), want.arrays(), 1e-5)


def test_the_wrong_parallel_loop_is_caught():
    import numba

    from lstm_kernels import Params, network
    from lstm_kernels.lab import mistakes

    params = Params.init(1, 32, seed=1)
    x = np.random.default_rng(0).standard_normal((48, 4, 1)).astype(np.float32)
    y, _ = network("numpy", params).forward(x)
    before = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        assert mistakes.caught(mistakes.parallel_over_time(params, x), y) is None
    finally:
        numba.set_num_threads(before)
    # With two threads the loop may or may not be wrong; what they compute when it is, surely is.
    ahead = mistakes.second_half_first(params, x)
    assert "y: relative error" in mistakes.caught(ahead, y)
    lab.compare({"y": ahead[:24]}, {"y": y[:24]}, 1e-5)
    assert mistakes.caught(ahead[24:], y[24:])
    assert mistakes.parallel_over_time(params, x).shape == y.shape


def test_the_command_line(capsys, tmp_path):
    command.main([])
    ladder = capsys.readouterr().out
    lines = ladder.partition("\n\n")[0].splitlines()
    places = {re.search(r" (cpu|gpu) +\S", line).start() for line in lines}
    assert (len(lines), len(places)) == (len(lk.versions()), 1)  # the columns are straight
    assert "sequential" in ladder
    assert "runs here" in ladder
    assert cores.why() in ladder
    command.main(["train", "--epochs", "2", "--version", "numpy"])
    assert "1959-1960, one month ahead: RMSE" in capsys.readouterr().out
    with pytest.raises(SystemExit) as caught:
        command.main(["train", "--version", "cudnn"])
    assert caught.value.code == 2
    assert "name: got 'cudnn'" in capsys.readouterr().err


def test_cases_may_take_their_own_time():
    times = lab.interleaved({"a": lambda: 0.5, "b": lambda: 0.25}, repeats=3, own=True)
    assert times.groupby("case")["seconds"].agg(["min", "max"]).to_numpy().tolist() == [
        [0.5, 0.5],
        [0.25, 0.25],
    ]


def test_the_model_is_fitted_to_what_it_is_given():
    """Passes whose tasks last exactly what the costs say give these costs back."""
    work = bench.Workload(2, 500, 3, 4, 1)
    costs = schedules.Costs((2e-5,), task=3e-6, hand=1e-7, moved=4e-6, shared=1.25)
    timed = layers.calibration(work, "forward")
    for one in timed.values():
        one.lines = [schedules.simulate(one.schedule, layers.of_layers(costs, 2))]
    found = layers.fit(timed, 1e-7)
    for name in ("step", "task", "hand", "moved", "shared"):
        assert getattr(found, name) == pytest.approx(getattr(costs, name), rel=1e-2), name


def test_handovers_are_measured_between_tasks_that_wait():
    tasks = [
        schedules.Task(schedules.Block(0, i, i + 1), i % 2, (i - 1,) if i else ()) for i in range(4)
    ]
    plan = schedules.Schedule(schedules.Graph(1, 4), tuple(tasks))
    starts, stops = (0, 3e-6, 7e-6, 9e-6), (2e-6, 5e-6, 8e-6, 9e-6)
    spans = [
        schedules.Span(i, i % 2, *when) for i, when in enumerate(zip(starts, stops, strict=True))
    ]
    waits = layers._waits(schedules.Timeline(plan, tuple(spans)))
    assert waits == pytest.approx([0, 1e3, 2e3, 1e3])
    found = layers.handovers("barrier", count=20, runs=1, patience=2)
    assert found.size % 38 == 0  # none, where two threads never ran at the same time
    assert (found > 0).all()


def test_hand_overs_that_were_not_seen_are_said(monkeypatch):
    assert layers.handovers("barrier", count=20, patience=0).size == 0
    for waits, words in (([], "was not seen"), ([100.0, 300.0], "takes 200 ns in the median")):
        table, said = tables.handovers({"point-to-point": np.array(waits), "barrier": np.empty(0)})
        assert table.shape == (2, 5)
        assert words in said
        assert figures_layers.handover({"point-to-point": np.array(waits)}).alt


def test_the_sweep_over_layers_runs_on_one_core(monkeypatch):
    monkeypatch.setattr(layers.cores, "cores", lambda: 1)
    monkeypatch.setattr("numba.config.NUMBA_NUM_THREADS", 1)  # more threads are an error
    found = layers.sweep(layers.SMALL_DEEP, layers=(1, 2), chunks=(4,), repeats=1)
    assert set(found.rows()["threads"]) == {1}
    assert len(found.rows()) == len(found.table) == 4
    assert found.costs["forward"].shared == 1


def test_a_pass_with_wrong_numbers_is_not_timed(monkeypatch):
    work = layers.SMALL_DEEP
    timed = {"forward": layers.Pass(work, "forward", 1, layers.schedule_for(work, "forward", 1, 5))}
    assert layers.verify(timed)["forward"] < 1e-5
    right = layers.Pass.arrays
    wrong = lambda self: {name: 1.001 * a for name, a in right(self).items()}  # noqa: E731
    monkeypatch.setattr(layers.Pass, "arrays", wrong)
    with pytest.raises(lab.MismatchError, match="y: relative error"):
        layers.verify(timed)


def test_the_benchmark_writes_every_experiment(tmp_path, monkeypatch):
    tiny = bench.Workload(1, 3, 1, 4, 2)
    monkeypatch.setattr(
        bench, "compile_times", lambda name: bench.steps(["numpy"], tiny, repeats=1)
    )
    found = {experiment: path for experiment, _, path in bench.main("smoke", tmp_path)}
    assert set(found) == {"airline", "gradients", "reference", "grid", "layers"}
    grid = results.read("grid", tmp_path)
    assert set(grid["version"]) == set(bench.available())


class Peer:
    """Stands in for a peer: what our network computes, changed."""

    def __init__(self, net, change=lambda y: y, loss=lambda value: value):
        self.net, self.change, self.loss = net, change, loss

    def predict(self, x):
        return self.change(self.net.forward(x)[0])

    def step(self, x, target, rate):
        return self.loss(self.net.loss_and_grads(x, target)[0])


@pytest.mark.parametrize(
    "wrong",
    [
        {"change": lambda y: y * 1.01},
        {"change": lambda y: y * np.nan},
        {"loss": lambda value: value * 1.01},
        {"loss": lambda value: value * 0.99},
        {"loss": lambda value: np.nan},
    ],
)
def test_a_peer_with_other_outputs_or_loss_is_caught(wrong):
    work = bench.Workload(1, 3, 2, 4, 2)
    net, (x, target) = bench.network("numpy", work.params()), work.example()
    assert peers.agreement(net, {"a": Peer(net)}, x, target) == {"a": 0.0}
    with pytest.raises(lab.MismatchError, match=r"^b: other outputs or loss than numba-fused"):
        peers.agreement(net, {"a": Peer(net), "b": Peer(net, **wrong)}, x, target)


def test_whoever_is_timed_beside_peers_rests_before(monkeypatch):
    """Other packages' threads wait on the cores for more work."""
    rests, work = [], bench.Workload(1, 3, 2, 4, 2)

    def timed(cases, *, repeats, rest=0.0):
        rests.append(rest)
        return lab.interleaved({"numba-fused": lambda: None}, repeats=1, least=0)

    for module in (peers, restricted):
        monkeypatch.setattr(module, "interleaved", timed)
    monkeypatch.setattr(peers, "Torch", lambda params, threads: Peer(None))
    peers.side_by_side(work, [], 1, 1)
    peers.airline_epoch(1, 1)
    peers.overhead(1, 1)
    peers.ceilings(1, 1)
    restricted.public_step(work, [], 1, 1)
    assert rests == [peers.REST] * 6
    assert peers.REST >= 0.01


@pytest.mark.parametrize("main", [bench.main, peers.main, restricted.main, gpu.main, gpu.checks])
def test_a_folder_is_opened_before_anything_is_measured(tmp_path, monkeypatch, main):
    def measured(*words, **how):
        raise AssertionError("measured before the folder was opened")

    for module in (timing, bench, peers, restricted, gpu):
        monkeypatch.setattr(module, "interleaved", measured, raising=False)
    monkeypatch.setattr(subprocess, "run", measured)
    monkeypatch.setattr(provenance, "machine", lambda preset=None: {"name": "here"})
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        list(main(preset="smoke", folder=tmp_path / "file"))


def test_peers_are_held_to_our_results(monkeypatch):
    for package in ("torch", "jax", "onnxruntime", "onnx"):
        pytest.importorskip(package)
    work = bench.Workload(2, 3, 2, 8, 4)
    rows = peers.side_by_side(work, list(peers.PEERS), cores.allowed(), repeats=1)
    assert set(rows["version"]) == {"numba-fused", *peers.PEERS}
    assert rows[rows["version"] != "numba-fused"]["max_err"].max() < 1e-5
    right = peers.OnnxRuntime.predict
    monkeypatch.setattr(peers.OnnxRuntime, "predict", lambda self, x: right(self, x) * 1.01)
    with pytest.raises(lab.MismatchError, match="onnxruntime: other outputs"):
        peers.side_by_side(work, ["onnxruntime"], cores.allowed(), repeats=1)


def test_the_call_without_overhead_writes_to_arrays_of_its_own():
    net, (x, _) = bench.network("numba-fused", bench.AIRLINE.params()), bench.AIRLINE.example()
    bare = net.bare_forward(x)
    y, state = net.forward(x)
    for array in (y, *state):
        array[:] = 7
    bare()
    assert all((array == 7).all() for array in (y, *state))


def test_tables_of_peers_come_from_their_rows():
    times = {"numba-fused": 1.0, "pytorch": 2.0, "jax": 3.0, "onnxruntime": 4.0}
    rows = pd.DataFrame(
        [
            bench.AIRLINE.columns()
            | {"version": name, "variant": None if name == "numba-fused" else "1.0"}
            | {"stage": "forward", "repeat": repeat, "seconds": (repeat + 1) * seconds}
            for name, seconds in times.items()
            for repeat in range(3)
        ]
    )
    extra = {"version": "sgemm", "stage": "ceiling", "repeat": 0, "seconds": 1.0}
    rows = pd.concat([rows, pd.DataFrame([extra])])
    assert tables.peer_ratios(rows, "forward").loc["airline"].to_dict() == {
        "pytorch": 2.0,
        "jax": 3.0,
        "onnxruntime": 4.0,
    }
    shown = tables.peers(rows, "forward").loc["airline"]
    assert shown["vs jax"] == "3.00x"
    assert shown["numba-fused (ms)"] == "2000"


def test_rates_count_the_products():
    work = bench.Workload(L=2, T=3, D=5, H=7, B=11)
    inputs = 5 + 7 + 2 * 7
    assert work.gflop == pytest.approx(2 * 3 * 11 * 28 * inputs / 1e9)
    assert work.step_gflop == pytest.approx(2 * 3 * 11 * 28 * (3 * inputs - 5) / 1e9)


def test_a_rest_comes_before_every_case(monkeypatch):
    slept = []
    monkeypatch.setattr(timing.time, "sleep", slept.append)
    lab.interleaved({"a": lambda: None, "b": lambda: None}, repeats=3, least=0, rest=0.5)
    assert slept == [0.5] * 6


def tails(p50, p99, place="alone"):
    rows = [(place, "p50", p50), (place, "p95", p99), (place, "p99", p99)]
    return pd.DataFrame(rows, columns=["variant", "stage", "seconds"])


def test_tails_are_tabled_and_told():
    found = pd.concat([tails(10e-6, 25e-6), tails(20e-6, 4e-3, "beside OpenMP")])
    table = tail.table(found)
    assert table.loc["alone", "p99 over p50"] == pytest.approx(2.5)
    assert table.loc["beside OpenMP", "p99"] == pytest.approx(4000)
    assert "beside OpenMP half of the calls take at most 20 us and 99 of 100 at most 4000 us" in (
        tail.sentence(found)
    )


def test_the_slowest_calls_are_in_the_quantiles(monkeypatch):
    """One call in twenty takes long: p50 does not show it, p99 does."""
    made = [1e-3 if k % 20 == 0 else 1e-6 for k in range(200)]
    monkeypatch.setattr(tail, "calls", lambda case, before, count: np.array(made[:count]))
    rows = tail.measure(1, 200)
    table = tail.table(rows)
    assert table.loc["alone", "p50"] == pytest.approx(1)
    assert table.loc["alone", "p99"] == pytest.approx(1000)
    assert {"alone", "beside a process"} <= set(rows["variant"])


def compared(machine="here", stages=("forward", "step"), **seconds):
    """Rows of three rounds of the airline workload, by version; a round is twice the one before."""
    return pd.DataFrame(
        [
            bench.AIRLINE.columns()
            | {"version": name, "variant": "1" if name in peers.PEERS else None}
            | {"stage": stage, "repeat": r, "seconds": value * 2**r, "machine": machine}
            for stage in stages
            for name, value in seconds.items()
            for r in range(3)
        ]
    )


FAST = {"numba-fused": 1.0, "pytorch": 2.0, "jax": 3.0, "onnxruntime": 4.0}
SLOW = {"numba-fused": 2.0, "pytorch": 1.0, "jax": 8.0}


def test_the_worst_peer_is_the_fastest_one_of_each_machine():
    said = tables.worst_peer(pd.concat([compared("a", **FAST), compared("b", **SLOW)]))
    fast, slow = "2.00 times as fast (airline)", "100% slower (airline)"
    assert (
        said
        == "Recorded compared with the best peer. "
        + "; ".join(
            f"{name}: inference from {word} to {word}, training from {word} to {word}"
            for name, word in (("a", fast), ("b", slow))
        )
        + "."
    )


def test_deep_networks_are_compared_machine_by_machine(monkeypatch):
    deep = {"L": 8, "T": 500, "D": 256, "H": 256, "B": 1}
    rows = [
        compared(machine, **{"numba-wavefront": ours, "numba-fused": 3.0, "pytorch": 2.0})
        for machine, ours in (("a", 1.0), ("b", 4.0))
    ]
    monkeypatch.setattr(results, "read", lambda name: pd.concat(rows).assign(**deep))
    said = tables.deep_peers().split("\n\n")
    assert len(said) == 4
    assert said[0] == (
        "a, inference: `numba-wavefront` 2000.0 ms, `numba-fused` 6000.0 ms, PyTorch 4000.0 ms, "
        "2.00 times the time of `numba-wavefront`."
    )
    assert said[2].startswith("b, inference: `numba-wavefront` 8000.0 ms")
    assert "0.50 times the time" in said[2]


def test_speeds_are_in_per_cent_of_the_slower():
    table = pd.DataFrame({"seconds": {"plain": 8.0, "numpy": 4.0, "fast": 1.0}})
    shown = tables.with_ratios(table, "plain", "numpy")
    assert shown["vs sequential"].to_list() == ["100%", "200%", "800%"]
    assert shown["vs NumPy"].to_list() == ["50%", "100%", "400%"]


def test_rates_of_peers_are_of_the_same_rows():
    rows = compared(**FAST)
    gemm = {"version": "sgemm", "stage": "ceiling", "repeat": 0, "seconds": peers.SGEMM_GFLOP}
    shown = tables.peers(pd.concat([rows, pd.DataFrame([gemm])]), "step").loc["airline"]
    rate = bench.AIRLINE.step_gflop / 2  # GFLOP/s; SGEMM has one
    assert (shown["GFLOP/s"], shown["of SGEMM"]) == (f"{rate:.0f}", f"{rate:.0%}")
    assert tables.ceiling(pd.DataFrame([gemm]), "sgemm") == 1


def test_small_calls_are_told_as_far_as_they_were_timed():
    public, kernel, ours, torch = (
        compared(stages=[stage], **{version: seconds}).assign(variant=variant)
        for stage, version, seconds, variant in (
            ("forward", "numba-fused", 10e-6, "public call"),
            ("forward", "numba-fused", 8e-6, "kernel"),
            ("epoch", "numba-fused", 100e-6, None),
            ("epoch", "pytorch", 400e-6, None),
        )
    )
    calls, epoch = pd.concat([public, kernel]), pd.concat([ours, torch])
    said = tables.small_calls(calls)
    assert "20.0 us by the public call, of which 4.0 us are its checks" in said
    assert "epoch" not in said
    assert "200 us in compiled code, 800 us with PyTorch's SGD: 4.0 times" in tables.small_calls(
        epoch
    )
    assert tables.small_calls(pd.concat([calls, epoch])) == f"{said} {tables.small_calls(epoch)}"


def test_two_threads_are_compared_with_one():
    keys = [("layers", "forward", threads, 4) for threads in (1, 2)]
    times = [(str(key), r, (3.0 - key[2]) * 2**r) for key in keys for r in range(3)]
    columns = ["sweep", "way", "how", "size", "predicted"]

    class Found:
        passes = dict.fromkeys(keys)
        table = pd.DataFrame([(*keys[0], 6.0), (*keys[1], 4.0)], columns=columns)

    Found.times = pd.DataFrame(times, columns=["case", "repeat", "seconds"])
    (row,) = tables.layer_speedups(Found).to_dict("records")
    assert row == {"way": "forward", "layers": 4, "q1": 2, "median": 2, "q3": 2, "predicted": 1.5}


def test_two_machines_are_told_apart():
    one = pd.DataFrame(
        [
            ("numba-fused", None, 1, 12, 1, 32, 16, stage, repeat, seconds, machine)
            if version == "numba-fused"
            else (version, "1", 1, 12, 1, 32, 16, stage, repeat, seconds * factor, machine)
            for machine, factor in (("here", 2.0), ("there", 0.8))
            for stage, seconds in (("forward", 1.0), ("step", 3.0))
            for version in ("numba-fused", "pytorch")
            for repeat in range(3)
        ],
        columns=[*("version", "variant", *"LTDHB"), "stage", "repeat", "seconds", "machine"],
    )
    said = tables.worst_peer(one)
    assert "here: inference from 2.00 times as fast (airline) to 2.00 times" in said
    assert "there: inference from 25% slower (airline) to 25% slower" in said
