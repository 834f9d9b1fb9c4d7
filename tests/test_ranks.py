"""Jobs of several ranks, by mpiexec: they compute what one process computes, and end
together.
"""

import csv
import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lstm_kernels.ranks import launch
from lstm_kernels.ranks.__main__ import parser, run
from lstm_kernels.ranks.world import whole_world

pytestmark = pytest.mark.skipif(
    bool(launch.why_unavailable()), reason=f"no jobs here: {launch.why_unavailable()}"
)
LIMIT = 120  # seconds; a job that hangs is a failure


def run_program(name, ranks):
    """A program of rank_programs.py; raises JobError for one that fails or hangs."""
    path = Path(__file__).with_name("rank_programs.py")
    launch.follow([str(path), name], ranks, limit=LIMIT, show=lambda line: None)


def train(ranks, show=None, **options):
    """The losses of a training job by epoch."""
    module = "lstm_kernels.ranks"
    text = launch.run(module, ranks, "training", options, limit=LIMIT, show=show)
    return [float(row["loss"]) for row in csv.DictReader(io.StringIO(text))]


def train_in_process(*words):
    """A training of one rank, in this process."""
    run(whole_world(), parser().parse_args(["training", *map(str, words)]))


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_compute_what_one_process_does(ranks):
    run_program("every", ranks)


def test_a_fault_of_a_rank_is_seen():
    with pytest.raises(launch.JobError, match="rank 1: AssertionError"):
        run_program("wrong", 2)


def rank_process(rank, mark):
    """The process of a rank of the job whose command line has `mark`."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
            environment = (path / "environ").read_bytes()
        except OSError:
            continue
        wanted = f"OMPI_COMM_WORLD_RANK={rank}".encode()
        if mark.encode() in command and wanted in environment.split(b"\0"):
            return int(path.name)
    return None


def test_a_rank_that_is_killed_ends_the_job_and_the_rest_can_go_on(tmp_path):
    file, killed = tmp_path / "state.npz", []
    options = {"epochs": 8, "strings": 500, "stages": [1, 2], "checkpoint": file}

    def kill(line):
        if line.startswith("epoch 2 ") and not killed:
            killed.append(time.monotonic())
            os.kill(rank_process(1, str(file)), signal.SIGKILL)

    with pytest.raises(launch.JobError, match=r"rank 1 .* exited on signal 9"):
        train(2, show=kill, **options)
    assert time.monotonic() - killed[0] < 10
    resumed = []
    losses = train(2, show=resumed.append, **options)
    assert not any(line.startswith("epoch 2 ") for line in resumed)
    assert losses == train(2, **options | {"checkpoint": tmp_path / "other.npz"})


def script(path, text):
    """Write a program of ranks to `path`; its path as text."""
    path.write_text(
        f"import os, signal, time\nfrom mpi4py.MPI import COMM_WORLD\n{text}"
    )
    return str(path)


def test_a_job_that_hangs_is_stopped_with_all_its_ranks(tmp_path):
    text = "if COMM_WORLD.rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\n"
    mark = script(tmp_path / "hangs.py", text + "COMM_WORLD.Barrier()")
    with pytest.raises(launch.JobError, match=r"time limit .* reached: .* 5 seconds"):
        launch.follow([mark], 2, limit=5, show=print)
    assert rank_process(0, mark) is rank_process(1, mark) is None


def test_an_interrupt_ends_the_job(tmp_path):
    mark = script(tmp_path / "sleeps.py", "print('up', flush=True)\ntime.sleep(60)")

    def interrupt(line):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch.follow([mark], 2, show=interrupt)
    assert rank_process(0, mark) is rank_process(1, mark) is None


@pytest.mark.skipif(sys.platform != "linux", reason="the system tells on Linux")
def test_a_job_ends_with_its_caller(tmp_path):
    """A program that prints nothing meets no closed pipe."""
    text = "open(__file__ + str(COMM_WORLD.rank), 'w')\ntime.sleep(60)"
    mark = script(tmp_path / "silent.py", text)
    code = "import sys; from lstm_kernels.ranks import launch\n"
    code += "launch.follow([sys.argv[1]], 2, show=print)"
    caller = subprocess.Popen([sys.executable, "-c", code, mark])
    try:
        wait_until(lambda: all(Path(f"{mark}{rank}").exists() for rank in (0, 1)))
        assert rank_process(0, mark)
    finally:
        caller.kill()
        caller.wait()
    wait_until(lambda: rank_process(0, mark) is rank_process(1, mark) is None)


def wait_until(condition, seconds=30):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_training_writes_what_it_is_asked_for(tmp_path):
    file = tmp_path / "rows.csv"
    words = ["--held-out", 8, "--buckets", 2, "--forget", 1.0]
    train_in_process(*words, "--result", file)
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    assert [row["stage"] for row in rows] == ["epoch", "epoch", "held out"]
    assert all(float(row["loss"]) > 0 for row in rows)
    assert 0 <= float(rows[-1]["accuracy"]) <= 1


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (["--batch", 65], ValueError, "batch_size: got 65"),
        (["--stages", 1, 1], ValueError, "stages: got [1, 1], want 3 layers in all"),
        (["--held-out", -5], ValueError, "count: got -5"),
        (["--buckets", 0], ValueError, "buckets: got 0"),
        # More than there are lengths.
        (["--buckets", 65], ValueError, "buckets: got 65, want an integer from 1 to"),
        (["--cell", "gru", "--forget", 1.0], ValueError, "forget: got 1.0 with cell"),
        (["--result", "/nowhere/x"], FileNotFoundError, "result: No such file"),
        (["--checkpoint", "/nowhere/x"], FileNotFoundError, "checkpoint: No such"),
    ],
)
def test_bad_input_is_refused_before_any_step(words, error, message, capsys):
    with pytest.raises(error, match=re.escape(message)):
        train_in_process(*words)
    assert "epoch" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["music"], ["training", "--overlap"], ["training", "--stages", "1,2"]]
)
def test_the_command_line_takes_no_other_words(words, capsys):
    with pytest.raises(SystemExit):
        parser().parse_args(words)
    assert "error:" in capsys.readouterr().err


def test_options_are_words():
    words = launch.words({"stages": [1, 2], "micro_batches": 4})
    assert list(words) == ["--stages", "1", "2", "--micro-batches", "4"]
    chosen = parser().parse_args(["training", *words])
    assert chosen.stages is None
    assert parser().parse_args(["training", "--stages", "1", "2"]).stages == [1, 2]
