"""The runner, the benchmark, the peers, layers, figures, and the command line."""

import re
import sys
import time

import numpy as np
import pandas as pd
import pytest

import lstm_kernels as lk
from lstm_kernels import __main__ as command
from lstm_kernels import cores, schedules, simulate
from lstm_report import measure as bench
from lstm_report import notebook
from lstm_report.experiments import divisions, gpu_run, ladder, layers
from lstm_report.measure import ceilings, peers, provenance, results, runner, timing
from lstm_report.measure.workloads import AIRLINE, REFERENCE, Workload


def test_figures_are_saved_twice_shown_with_alt_text_and_reproducible(
    tmp_path, monkeypatch
):
    import matplotlib.pyplot as plt

    shown = []
    monkeypatch.setattr(notebook, "display", lambda *a, **k: shown.append((a, k)))
    monkeypatch.chdir(tmp_path)
    nb = notebook.Notebook("smoke")
    for _ in range(2):
        figure, ax = plt.subplots()
        ax.plot([0, 1])
        figure.alt = "A line."
        nb.show(figure, "trial")
    assert shown[0][1]["metadata"]["image/png"]["alt"] == "A line."
    assert shown[0] == shown[1]
    names = sorted(p.name for p in (tmp_path / "build/smoke/figures").iterdir())
    assert names == ["trial.png", "trial.svg"]
    del figure.alt  # then it is what the figure says
    ax.set(title="It rises", xlabel="step")
    nb.show(figure, "trial")
    assert "It rises" in shown[-1][1]["metadata"]["image/png"]["alt"]


def test_smoke_and_paper_pick_their_value():
    assert notebook.Notebook("smoke").pick(smoke=1, paper=2) == 1
    assert notebook.Notebook("paper").pick(smoke=1, paper=2) == 2


def test_compile_times_are_the_first_step_beyond_the_second(monkeypatch):
    """A network stood in for: its first step takes 5 s, its second 1 s."""

    class Net:
        def step(self, x, target, learning_rate):
            clock[0] += steps.pop(0)

    clock, steps = [100.0], [5.0, 1.0]
    monkeypatch.setattr(ladder, "network", lambda name, params: Net())
    with monkeypatch.context() as patched:
        patched.setattr(time, "perf_counter", lambda: clock[0])
        assert ladder.first_step("numba-fused") == 4.0

    def with_caches(call, arguments):
        module, _, function = call.partition(":")
        assert callable(getattr(sys.modules[module], function))
        assert arguments == ["numba-fused"]
        return {"compile": 3.0, "load": 2.0}

    monkeypatch.setattr(ladder, "with_caches", with_caches)
    rows = ladder.compile_times("numba-fused")
    assert rows.set_index("stage")["seconds"].to_dict() == {"compile": 3, "load": 2}


def fixed(seconds):
    """Stands in for `interleaved`: three rounds in which each case takes so long, by
    name.
    """

    def timed(cases, **how):
        rows = [(name, r, seconds[name] * 2**r) for name in cases for r in range(3)]
        return pd.DataFrame(rows, columns=["case", "repeat", "seconds"])

    return timed


def test_forms_of_the_gradients_are_compared_by_their_steps(monkeypatch):
    forms = {"numpy": 4.0, "numba-sample/buffers": 2.0, "numba-sample": 1.0}

    def steps(names, work):
        rows = runner.rows_of(fixed(forms)(names).assign(stage="step"), work)
        return pd.concat([rows, rows.assign(stage="forward", seconds=9.0)])

    monkeypatch.setattr(ladder, "steps", steps)
    assert ladder.gradient_forms([(4, 2)]).loc[4, 2].to_list() == [8.0, 4.0, 2.0]


def test_layers_in_parallel_are_compared_with_each_step_divided(monkeypatch):
    seconds = {"units": 3.0, "samples": 2.0, "one thread": 0.5, divisions.CHOSEN: 0.5}

    def of_division(cases, **how):
        names = {name: name for name in cases if name in seconds}
        layers_ = {name: 1.0 + 0.5 * n for n, name in enumerate({*cases} - {*names})}
        return fixed(seconds | layers_)(cases)

    monkeypatch.setattr(runner, "interleaved", of_division)
    # So long that a part of the sequence is compared with the reference
    assert layers.against_steps([2], [128], L=2, T=500).loc[2, 128] == 2.0


def test_the_fastest_division_is_named_with_its_gain(monkeypatch):
    works = divisions.grid((1,), (8,), (1, 4))
    one = {"one thread": 3.0, divisions.CHOSEN: 9.0}
    loops = timed_rows([one, one | {"samples": 1.5}])
    monkeypatch.setattr(divisions, "timed", lambda *_, **__: next(loops))
    gain, fastest = divisions.gains(divisions.table(works, stages=["forward"]))
    assert gain.to_list() == [1.0, 2.0]
    assert fastest.to_list() == ["one thread", "samples"]


def timed_rows(loops):
    for loop in loops:
        rows = [("forward", name, 0, seconds) for name, seconds in loop.items()]
        yield pd.DataFrame(rows, columns=["stage", "case", "repeat", "seconds"])


def test_more_cores_than_layers_find_nothing_to_do():
    costs = schedules.Costs((1.0,))
    found = layers.many_cores(costs, (1, 2, 8), (2,), 64)
    assert found[2].to_list() == pytest.approx([1, 128 / 65, 128 / 65])


def test_bench_experiments_have_a_row_per_repeat():
    work = Workload(1, 3, 1, 4, 2)
    table = ladder.steps(["numpy", "numba-sample/buffers"], work, repeats=2)
    assert len(table) == 8
    assert set(table["stage"]) == {"forward", "step"}
    assert table["max_err"].between(0, 1e-4).all()
    assert set(table["variant"].dropna()) == {"buffers"}
    assert REFERENCE.gflop == pytest.approx(107.4, abs=0.1)


def test_a_version_that_breaks_while_it_is_timed_is_caught(monkeypatch):
    from lstm_kernels.versions.base import Network

    class Wearing(Network):
        used = 0

        def _step(self, x, target, rate):
            self.used += 1
            return super()._step(x, target, rate)

        def _forward(self, x, state, training):
            y, state, tapes = super()._forward(x, state, training)
            return (y * 2 if self.used else y), state, tapes

    monkeypatch.setattr(runner, "make_network", lambda name, params: Wearing(params))
    work = Workload(1, 12, 1, 4, 16)
    with pytest.raises(bench.MismatchError, match="y: relative error"):
        ladder.steps(["numpy"], work, repeats=1)


def test_both_forms_of_the_weight_gradients_agree():
    params, (x, target) = AIRLINE.params(), AIRLINE.example()
    got = runner.network("numba-sample/buffers", params).loss_and_grads(x, target)[1]
    want = runner.network("numba-sample", params).loss_and_grads(x, target)[1]
    bench.compare(got.arrays(), want.arrays(), 1e-5)


def test_the_wrong_parallel_loop_is_caught():
    import numba

    from lstm_kernels import Params, network
    from lstm_report.lesson import mistakes

    params = Params.init(1, 32, seed=1)
    x = np.random.default_rng(0).standard_normal((48, 4, 1)).astype(np.float32)
    y, _ = network("numpy", params).forward(x)
    before = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        assert mistakes.caught(mistakes.parallel_over_time(params, x), y) is None
    finally:
        numba.set_num_threads(before)
    # With two threads the loop may or may not be wrong; what they compute when it is,
    # surely is.
    ahead = mistakes.second_half_first(params, x)
    assert "y: relative error" in mistakes.caught(ahead, y)
    bench.compare({"y": ahead[:24]}, {"y": y[:24]}, 1e-5)
    assert mistakes.caught(ahead[24:], y[24:])
    assert mistakes.parallel_over_time(params, x).shape == y.shape


def test_the_command_line(capsys, tmp_path):
    command.main([])
    ladder = capsys.readouterr().out
    lines = ladder.partition("\n\n")[0].splitlines()
    places = {re.search(r" (cpu|gpu) +\S", line).start() for line in lines}
    # The columns are straight
    assert (len(lines), len(places)) == (len(lk.versions()), 1)
    assert "sequential" in ladder
    assert "runs here" in ladder
    assert cores.why() in ladder
    command.main(["train", "--epochs", "2", "--version", "numpy"])
    assert "1959-1960, one month ahead: RMSE" in capsys.readouterr().out
    with pytest.raises(SystemExit) as caught:
        command.main(["train", "--version", "cudnn"])
    assert caught.value.code == 2
    assert "name: got 'cudnn'" in capsys.readouterr().err


def test_the_model_is_fitted_to_what_it_is_given():
    """Passes whose tasks last exactly what the costs say give these costs back."""
    work = Workload(2, 500, 3, 4, 1)
    costs = schedules.Costs((2e-5,), task=3e-6, hand=1e-7, moved=4e-6, shared=1.25)
    timed = layers.calibration(work, "forward")
    for one in timed.values():
        one.lines = [simulate.simulate(one.schedule, layers.of_layers(costs, 2))]
    found = layers.fit(timed, 1e-7)
    for name in ("step", "task", "hand", "moved", "shared"):
        assert getattr(found, name) == pytest.approx(getattr(costs, name), rel=1e-2), (
            name
        )


def test_handovers_are_measured_between_tasks_that_wait():
    tasks = [
        schedules.Task(0, i, i + 1, worker=i % 2, after=(i - 1,) if i else ())
        for i in range(4)
    ]
    plan = schedules.Schedule(schedules.Graph(1, 4), tuple(tasks))
    starts, stops = (0, 3e-6, 7e-6, 9e-6), (2e-6, 5e-6, 8e-6, 9e-6)
    spans = [
        simulate.Span(i, i % 2, *when)
        for i, when in enumerate(zip(starts, stops, strict=True))
    ]
    waits = layers.handed_over(simulate.Timeline(plan, tuple(spans)))
    assert waits == pytest.approx([1e3, 2e3, 1e3])
    # One thread did the work of both
    alone = [span._replace(worker=0) for span in spans]
    assert layers.handed_over(simulate.Timeline(plan, tuple(alone))) == []
    found = layers.handovers("barrier", count=20, enough=1, patience=2)
    assert (found > 0).all()  # none, where two threads never ran at the same time


def test_the_sweep_over_layers_runs_on_one_core(monkeypatch):
    monkeypatch.setattr(layers.cores, "cores", lambda: 1)
    # More threads are an error
    monkeypatch.setattr("numba.config.NUMBA_NUM_THREADS", 1)
    found = layers.sweep(layers.SMALL_DEEP, layers=(1, 2), chunks=(4,), repeats=1)
    assert {one.threads for one in found.passes.values()} == {1}
    assert len(found.table) == 4
    assert found.costs["forward"].shared == 1


def test_a_pass_with_wrong_numbers_is_not_timed(monkeypatch):
    work = layers.SMALL_DEEP
    assert layers.Pass(work, "forward", 1, 5).error() < 1e-5
    right = layers.NumbaWavefront.forward
    wrong = lambda self, x, **how: (1.001 * right(self, x, **how)[0], None)  # noqa: E731
    monkeypatch.setattr(layers.NumbaWavefront, "forward", wrong)
    with pytest.raises(bench.MismatchError, match="y: relative error"):
        layers.sweep(work, layers=(1,), chunks=(), repeats=1)


def test_the_benchmark_writes_the_grid(tmp_path, monkeypatch):
    assert {"sequential", "numba-fused"} <= set(ladder.available())
    names = ["numpy", "numba-fused"]  # `sequential` takes long
    monkeypatch.setattr(ladder, "available", lambda: names)
    written = {experiment for experiment, _, path in ladder.main("smoke", tmp_path)}
    assert written == {"grid"}
    assert set(results.read("grid", tmp_path)["version"]) == set(names)


class Peer:
    """Stands in for a peer: what a network of ours computes, changed."""

    def __init__(self, work, change=lambda y: y, loss=lambda value: value):
        self.net = runner.network("numpy", work.params())
        self.change = change
        self.loss = loss

    def predict(self, x):
        return self.change(self.net.forward(x)[0])

    def step(self, x, target, rate):
        return self.loss(self.net.step(x, target, rate))


class Still(Peer):
    """A peer whose descent goes nowhere."""

    def step(self, x, target, rate):
        return self.net.loss_and_grads(x, target)[0]


@pytest.mark.parametrize(
    ("kind", "wrong", "message"),
    [
        (Peer, {"change": lambda y: y * 1.01}, "outputs: relative error"),
        (Peer, {"change": lambda y: y * np.nan}, "outputs: got 24 values that are not"),
        (Peer, {"loss": lambda v: v * 1.01}, "loss before a step: relative error"),
        (Peer, {"loss": lambda v: v * 0.99}, "loss before a step: relative error"),
        (Peer, {"loss": lambda v: np.nan}, "loss before a step: got 1 values"),
        (Still, {}, "loss after a step: relative error"),
    ],
)
def test_a_peer_with_other_outputs_or_loss_is_caught(kind, wrong, message):
    work = Workload(1, 3, 2, 4, 2)
    example = work.example()
    net = runner.network("numpy", work.params())
    assert peers.agreement(net, {"a": Peer(work)}, *example) == {"a": 0.0}
    net = runner.network("numpy", work.params())
    with pytest.raises(bench.MismatchError, match=f"^b: {message}"):
        peers.agreement(net, {"a": Peer(work), "b": kind(work, **wrong)}, *example)


def test_whoever_is_timed_beside_peers_rests_before(monkeypatch):
    """Other packages' threads wait on the cores for more work."""
    rests, work = [], Workload(1, 3, 2, 4, 2)

    def interleaved(cases, *, repeats, rest=0.0):
        rests.append(rest)
        return bench.interleaved({"numba-fused": lambda: None}, repeats=1, least=0)

    monkeypatch.setattr(runner, "interleaved", interleaved)
    monkeypatch.setattr(ceilings, "SIZE", 64)
    monkeypatch.setattr(ceilings, "COUNT", 64)
    monkeypatch.setitem(peers.PEERS, "pytorch", lambda params, threads: Peer(work))
    monkeypatch.setattr(peers, "installed", lambda names: names)
    peers.side_by_side(work, [], 1, repeats=1)
    peers.small_calls(1, repeats=1)
    ceilings.ceilings(1, repeats=1)
    assert rests == [timing.REST] * 5
    assert timing.REST >= 0.01


@pytest.mark.parametrize("main", [ladder.main, peers.main, gpu_run.main])
def test_a_folder_is_opened_before_anything_is_measured(tmp_path, monkeypatch, main):
    def measured(*words, **how):
        raise AssertionError("measured before the folder was opened")

    monkeypatch.setattr(runner, "interleaved", measured)
    monkeypatch.setattr(peers, "installed", lambda *names: ["pytorch"])
    monkeypatch.setattr(provenance, "machine", lambda preset=None: {"name": "here"})
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        list(main(preset="smoke", folder=tmp_path / "file"))


@pytest.mark.parametrize("command_", ["bench-peers", "bench-bf16"])
def test_a_comparison_without_peers_ends_at_once(
    tmp_path, monkeypatch, capsys, command_
):
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    monkeypatch.setattr("lstm_report.experiments.bfloat16.why_unavailable", str)
    with pytest.raises(SystemExit) as caught:
        command.main([command_, "--preset", "smoke", "--folder", str(tmp_path)])
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"python -m lstm_kernels: {command_}: ")
    assert "pytorch" in line
    assert not list(tmp_path.iterdir())


def test_peers_are_held_to_our_results(monkeypatch):
    for package in ("torch", "jax", "onnxruntime", "onnx"):
        pytest.importorskip(package)
    work = Workload(2, 3, 2, 8, 4)
    rows = peers.side_by_side(work, list(peers.PEERS), cores.allowed(), repeats=1)
    assert set(rows["version"]) == {"numba-fused", *peers.PEERS}
    assert rows[rows["version"] != "numba-fused"]["max_err"].max() < 1e-5
    right = peers.OnnxRuntime.predict
    monkeypatch.setattr(
        peers.OnnxRuntime, "predict", lambda self, x: right(self, x) * 1.01
    )
    with pytest.raises(
        bench.MismatchError, match="onnxruntime: outputs: relative error"
    ):
        peers.side_by_side(work, ["onnxruntime"], cores.allowed(), repeats=1)


def test_rates_count_the_products():
    work = Workload(L=2, T=3, D=5, H=7, B=11)
    inputs = 5 + 7 + 2 * 7
    assert work.gflop == pytest.approx(2 * 3 * 11 * 28 * inputs / 1e9)
    assert work.step_gflop == pytest.approx(2 * 3 * 11 * 28 * (3 * inputs - 5) / 1e9)


def test_ceilings_are_verified(monkeypatch):
    monkeypatch.setattr(ceilings, "SIZE", 64)
    monkeypatch.setattr(ceilings, "COUNT", 64)
    monkeypatch.setattr(ceilings, "REST", 0.0)
    rows = ceilings.ceilings(1, repeats=2)
    assert rows.groupby("version").size().to_dict() == {"copy": 2, "sgemm": 2}
    monkeypatch.setattr(ceilings.np, "copyto", lambda *arrays: None)
    with pytest.raises(bench.MismatchError, match="copy: relative error"):
        ceilings.ceilings(1, repeats=2)
