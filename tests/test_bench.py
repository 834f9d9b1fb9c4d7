"""The runner, the benchmark, the peers, and the command line."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import lstm_kernels as lk
from lstm_kernels import __main__ as command
from lstm_kernels import cores, errors, reference
from lstm_report import measure as bench
from lstm_report.experiments import gpu_run, ladder
from lstm_report.measure import ceilings, peers, provenance, results, runner, timing
from lstm_report.measure.workloads import REFERENCE, Workload

ROOT = Path(lk.__file__).parents[1]


def test_bench_experiments_have_a_row_per_repeat():
    work = Workload(1, 3, 1, 4, 2)
    table = ladder.steps(["numpy", "numba-sample"], work, repeats=2)
    assert len(table) == 8
    assert set(table["stage"]) == {"forward", "step"}
    assert table["max_err"].between(0, 1e-4).all()
    assert set(table["version"]) == {"numpy", "numba-sample"}
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

    monkeypatch.setattr(runner, "network", lambda name, params: Wearing(params))
    work = Workload(1, 12, 1, 4, 16)
    with pytest.raises(bench.MismatchError, match="y: relative error"):
        ladder.steps(["numpy"], work, repeats=1)


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


def test_a_comparison_without_peers_ends_at_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as caught:
        command.main(["bench-peers", "--preset", "smoke", "--folder", str(tmp_path)])
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("python -m lstm_kernels: bench-peers: ")
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


@pytest.mark.parametrize("words", [[name] for name in command.REPORT])
@pytest.mark.parametrize("module", ["lstm_kernels", "lstm_report"])
def test_a_missing_package_of_the_report_is_a_line(words, module):
    """What installs it stands there, of whichever of its packages comes first."""
    lacking = "matplotlib", "psutil", "statsmodels"
    program = f"import runpy, sys\nsys.modules |= dict.fromkeys({lacking})\n"
    program += f"sys.argv = {['-m', *words, '--preset', 'smoke']}\n"
    program += f"runpy.run_module({module!r}, run_name='__main__')"
    done = python("-c", program)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert re.search(r"\w+ is not installed: pip install '\.\[report\]'", line)


def python(*words, **environment):
    command = [sys.executable, *words]
    how = {"env": os.environ | environment, "capture_output": True, "text": True}
    return subprocess.run(command, cwd=ROOT, **how, timeout=120)


@pytest.mark.parametrize("number", ["0", "-3"])
def test_a_number_of_threads_that_numba_refuses_is_the_reason(number):
    want = f"NUMBA_NUM_THREADS is '{number}', want at least 1"
    done = python("-m", "lstm_kernels", NUMBA_NUM_THREADS=number)
    assert (done.returncode, done.stderr) == (0, "")
    for line in done.stdout.splitlines()[: len(lk.versions())]:
        compiled = not line.startswith(("numpy", "sequential"))
        assert line.endswith(f"no: {want}" if compiled else "runs here")
    words = "-m", "lstm_kernels", "train", "--version"
    done = python(*words, "numba-fused", NUMBA_NUM_THREADS=number)
    assert done.stderr.count("\n") == 1
    assert want in done.stderr
    done = python(*words, "numpy", "--epochs", "1", NUMBA_NUM_THREADS=number)
    assert done.returncode == 0, done.stderr


def test_numba_that_cannot_be_imported_is_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    assert errors.why_not_compiled().startswith("Numba cannot be imported: ")


def scan(step, state, a):
    """`jax.lax.scan` in plain Python."""
    y = []
    for one in a:
        state, h = step(state, one)
        y.append(h)
    return state, np.stack(y)


def test_the_layer_as_users_write_it_is_the_references():
    """Its text runs on NumPy's arrays too; a stack of two."""
    jax = SimpleNamespace(
        numpy=np,
        nn=SimpleNamespace(sigmoid=reference.sigmoid),
        lax=SimpleNamespace(scan=scan),
    )
    work = Workload(2, 3, 4, 5, 2)
    params, (x, _) = work.params(dtype=np.float64), work.example()
    want, theta = reference.forward(params, x)[0], params.arrays()
    layers = partial(peers.stack, partial(peers.by_scan, jax), 2)
    bench.compare({"y": layers(theta, x)}, {"y": want}, 1e-6)
    # Another order of gates.
    swapped = theta | {"layers.0.b": np.roll(theta["layers.0.b"], 5)}
    with pytest.raises(bench.MismatchError, match="y: relative error"):
        bench.compare({"y": layers(swapped, x)}, {"y": want}, 1e-6)
