"""The runner, the benchmark, the peers, and the command line."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from planted import planted

import lstm_kernels as lk
from lstm_kernels import __main__ as command
from lstm_kernels import cores
from lstm_kernels.errors import UnavailableError
from lstm_kernels.versions.base import Network
from lstm_report import measure as bench
from lstm_report.experiments import ladder
from lstm_report.measure import ceilings, peers, results, runner
from lstm_report.measure.workloads import REFERENCE, Workload

ROOT = Path(lk.__file__).parents[1]
SMALL = Workload(1, 3, 2, 4, 2)


def test_the_benchmark_writes_a_row_per_repeat(tmp_path):
    assert {"sequential", "numba-fused"} <= set(ladder.available())
    names = ["numpy", "numpy-naive"]  # others take long
    assert [name for name, *_ in ladder.main("smoke", tmp_path, names)] == ["grid"]
    assert set(results.read("grid", tmp_path)["version"]) == set(names)
    table = ladder.steps(names, SMALL, repeats=2)
    rows = table.groupby(["version", "stage"]).size().unstack()
    assert rows.to_dict("list") == {"forward": [2, 2], "step": [2, 2]}
    assert table["max_err"].between(0, 1e-4).all()


class Wearing(Network):
    """One that is wrong once it has taken a step."""

    used = 0

    def _step(self, x, target, rate):
        self.used += 1
        return super()._step(x, target, rate)

    def _forward(self, x, state, training):
        y, state, tapes = super()._forward(x, state, training)
        return (y * 2 if self.used else y), state, tapes


def test_a_version_that_breaks_while_it_is_timed_is_caught():
    x, target = SMALL.example()
    nets = {"numpy": Wearing(SMALL.params())}
    calls = {"step": lambda net: net.step(x, target, 1e-4)}
    with pytest.raises(bench.MismatchError, match="y: relative error"):
        runner.measure(nets, SMALL, calls, repeats=1)


def test_rates_count_the_products():
    work = Workload(L=2, T=3, D=5, H=7, B=11)
    inputs = 5 + 7 + 2 * 7
    assert work.gflop == pytest.approx(2 * 3 * 11 * 28 * inputs / 1e9)
    assert work.step_gflop == pytest.approx(2 * 3 * 11 * 28 * (3 * inputs - 5) / 1e9)
    assert REFERENCE.gflop == pytest.approx(107.4, abs=0.1)


# --- beside other packages


class Peer:
    """Stands in for a peer: what a network of ours computes, changed."""

    def __init__(self, change=lambda y: y, loss=lambda value: value, still=False):
        self.net = runner.network("numpy", SMALL.params())
        self.change, self.loss, self.still = change, loss, still

    def predict(self, x):
        return self.change(self.net.forward(x)[0])

    def step(self, x, target, rate):
        if self.still:  # its descent goes nowhere
            return self.net.loss_and_grads(x, target)[0]
        return self.loss(self.net.step(x, target, rate))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"change": lambda y: y * 1.01}, "outputs: relative error"),
        ({"change": lambda y: y * np.nan}, "outputs: got 24 values that are not"),
        ({"loss": lambda v: v * 1.01}, "loss before a step: relative error"),
        ({"still": True}, "loss after a step: relative error"),
    ],
)
def test_a_peer_with_other_outputs_or_loss_is_caught(wrong, message):
    example = SMALL.example()
    net, again = (runner.network("numpy", SMALL.params()) for _ in range(2))
    assert peers.agreement(net, {"a": Peer()}, *example) == {"a": 0.0}
    with pytest.raises(bench.MismatchError, match=f"^b: {message}"):
        peers.agreement(again, {"a": Peer(), "b": Peer(**wrong)}, *example)


def test_whoever_is_timed_beside_peers_waits_for_their_threads():
    """Other packages' threads wait on the cores for more work."""
    waits = []

    def interleaved(cases, *, repeats, wait=False):
        waits.append(wait)
        return bench.interleaved({"numba-fused": lambda: None}, repeats=1, least=0)

    options = {"repeats": 1, "interleaved": interleaved}
    peers.side_by_side(SMALL, [], 1, **options)
    peers.small_calls(1, **options)
    ceilings.ceilings(1, size=64, count=64, **options)
    assert waits == [True] * 5


def test_a_comparison_without_peers_ends_at_once(tmp_path):
    with pytest.raises(UnavailableError, match="bench-peers: none of pytorch"):
        peers.main("smoke", tmp_path, names=[])
    assert not list(tmp_path.iterdir())


def test_ceilings_are_verified():
    options = {"size": 64, "count": 64, "repeats": 2}
    rows = ceilings.ceilings(1, **options)
    assert rows.groupby("version").size().to_dict() == {"copy": 2, "sgemm": 2}
    wrongs = {"np.copyto(copy, source)": "copy", "np.matmul(a, a, out=out)": "row"}
    for right, what in wrongs.items():
        with pytest.raises(bench.MismatchError, match=f"{what}: relative error"):
            planted(ceilings, right, "None").ceilings(1, **options)


# --- the command line


def test_the_command_line(capsys):
    command.main([])
    ladder = capsys.readouterr().out
    lines = ladder.partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in lines] == [v.name for v in lk.versions()]
    assert "runs here" in ladder
    assert cores.why() in ladder
    command.main(["train", "--epochs", "2", "--version", "numpy"])
    assert "1959-1960, one month ahead: RMSE" in capsys.readouterr().out
    command.main(["bench", "numpy-naive", "numpy", "--hidden", "3"])
    head, titles, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith("1 layer of 3 units, 12 steps, 16 samples")
    assert titles.split() == ["forward", "step"]
    assert [line.split()[0] for line in lines] == ["numpy-naive", "numpy"]
    assert all(float(time) > 0 for line in lines for time in line.split()[1:])
    for words in (["train", "--version", "cudnn"], ["bench", "cudnn"]):
        with pytest.raises(SystemExit) as end:
            command.main(words)
        assert end.value.code == 2
        assert "name: got 'cudnn'" in capsys.readouterr().err


def test_who_reads_a_line_alone_ends_it_without_a_traceback():
    """As `python -m lstm_kernels | head -1` does."""
    line = [sys.executable, "-m", "lstm_kernels"]
    how = {"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(line, **how) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_a_missing_package_of_the_report_is_a_line():
    """What installs it stands there, of whichever of its packages comes first."""
    lacking = "matplotlib", "psutil", "statsmodels"
    program = f"import runpy, sys\nsys.modules |= dict.fromkeys({lacking})\n"
    program += "sys.argv = ['-m', 'bench', '--preset', 'smoke']\n"
    program += "runpy.run_module('lstm_report', run_name='__main__')"
    line = [sys.executable, "-c", program]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert re.search(r"\w+ is not installed: pip install '\.\[report\]'", line)
