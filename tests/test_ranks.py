"""Jobs of several ranks, by mpiexec: they compute what one process computes, and end
together.
"""

import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pandas as pd
import pytest

from lstm_kernels.ranks import launch
from lstm_kernels.ranks.__main__ import parser

pytestmark = pytest.mark.skipif(
    bool(launch.why_unavailable()), reason=f"no jobs here: {launch.why_unavailable()}"
)
LIMIT = 120  # seconds; a job that hangs is a failure


def run_program(name, ranks):
    """A program of rank_programs.py; raises JobError for one that fails or hangs."""
    path = Path(__file__).with_name("rank_programs.py")
    launch.follow([str(path), name], ranks, 1, LIMIT, lambda line: None)


def train(ranks, *, limit=LIMIT, show=None, **options):
    """The rows of a training job."""
    how = {"limit": limit, "show": show}
    text = launch.run("lstm_kernels.ranks", ranks, "training", options, **how)
    return pd.read_csv(io.StringIO(text))


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_parts(ranks):
    run_program("parts", ranks)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ranks_train_as_one_process_does(ranks):
    run_program("models", ranks)


@pytest.mark.parametrize("name", ["checkpoints", "diverged", "programs"])
def test_two_ranks(name):
    run_program(name, 2)


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
    options = {"epochs": 400, "checkpoint": file, "strings": 256, "stages": [1, 2]}

    def kill(line):
        if line.startswith("epoch 2 ") and not killed:
            killed.append(time.monotonic())
            os.kill(rank_process(1, str(file)), signal.SIGKILL)

    with pytest.raises(launch.JobError, match="rank 1: ended by SIGKILL") as caught:
        train(2, show=kill, **options)
    assert caught.value.rank == 1
    assert time.monotonic() - killed[0] < 10
    done = train(2, **options | {"epochs": 1, "resume": True})
    options["epochs"] = len(done) + 2
    resumed = train(2, resume=True, **options)
    want = train(2, **options | {"checkpoint": tmp_path / "other.npz"})
    assert resumed["loss"].tolist() == want["loss"].tolist()


def test_a_job_that_hangs_is_stopped_with_all_its_ranks(tmp_path):
    mark, stopped = str(tmp_path / "state.npz"), threading.Event()

    def freeze(line):
        if line.startswith("epoch 1 ") and not stopped.is_set():
            os.kill(rank_process(1, mark), signal.SIGSTOP)
            stopped.set()

    with pytest.raises(launch.JobError, match="stopped after 12 s, its limit"):
        train(2, limit=12, show=freeze, epochs=100_000, checkpoint=mark)
    assert stopped.is_set()
    assert rank_process(0, mark) is rank_process(1, mark) is None


@pytest.mark.skipif(sys.platform != "linux", reason="the system tells on Linux")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_job_ends_with_its_caller(tmp_path, number):
    """A program that prints nothing meets no closed pipe."""
    mark = str(tmp_path / "silent.py")
    Path(mark).write_text(
        "import time\n"
        "from lstm_kernels.ranks.world import main\n"
        f"main(lambda world: (open({mark!r} + str(world.rank), 'w'), time.sleep(60)))\n"
    )
    code = "import sys; from lstm_kernels.ranks import launch\n"
    code += "launch.follow([sys.argv[1]], 2, 1, 60, print)"
    caller = subprocess.Popen([sys.executable, "-c", code, mark])
    try:
        wait_until(lambda: all(Path(f"{mark}{rank}").exists() for rank in (0, 1)))
        assert rank_process(0, mark)
    finally:
        caller.send_signal(number)
        caller.wait()
    wait_until(lambda: rank_process(0, mark) is rank_process(1, mark) is None)


def wait_until(condition, seconds=30):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_training_writes_what_it_is_asked_for(tmp_path):
    rows = train(2, held_out=8, buckets=2, forget=1.0, save=tmp_path / "final.npz")
    assert rows["stage"].tolist() == ["epoch", "epoch", "held out"]
    assert rows["loss"].notna().all()
    assert 0 <= rows["accuracy"].iloc[-1] <= 1
    assert (tmp_path / "final.npz").exists()
    assert len(train(1, task="airline", epochs=3)) == 3


@pytest.mark.parametrize(
    ("ranks", "options", "message"),
    [
        (2, {"stages": [1, 1]}, "ValueError: stages: got .1, 1., want 3 layers in all"),
        (3, {"stages": [1, 2]}, "ValueError: stages: got 2 on 3 ranks, want a divisor"),
        (2, {"batch": 65}, "ValueError: batch_size: got 65"),
        (1, {"version": "cuda-v1"}, "ValueError: version: got 'cuda-v1', want one of"),
        (
            1,
            {"task": "airline", "held_out": 5},
            "ValueError: held_out: got 5 with task",
        ),
        (1, {"task": "airline", "buckets": 2}, "ValueError: buckets: got 2 with task"),
        (1, {"held_out": -5}, "ValueError: count: got -5"),
        (1, {"buckets": 0}, "ValueError: buckets: got 0"),
        (1, {"cell": "gru", "forget": 1.0}, "ValueError: forget: got 1.0 with cell"),
        (2, {"save": "/nowhere/x"}, "FileNotFoundError: .*save: No such file"),
        (2, {"checkpoint": "/nowhere/x"}, "FileNotFoundError: .*checkpoint: No such"),
    ],
)
def test_bad_input_is_refused_before_any_step(ranks, options, message):
    lines = []
    with pytest.raises(launch.JobError, match=f"rank 0: {message}"):
        train(ranks, show=lines.append, **options)
    assert not any(line.startswith("epoch") for line in lines)


@pytest.mark.parametrize(
    "words",
    [["--task", "music"], ["--overlap"], ["--resume", "1"], ["--stages", "1,2"]],
)
def test_the_command_line_takes_no_other_words(words, capsys):
    with pytest.raises(SystemExit):
        parser().parse_args(["training", *words])
    assert "error:" in capsys.readouterr().err


def test_options_are_booleans_and_lists():
    chosen = parser().parse_args(["training", "--stages", "1", "2", "--no-resume"])
    assert chosen.stages == [1, 2]
    assert chosen.resume is False
    words = launch.words({"stages": [1, 2], "resume": True, "held_out": None})
    assert list(words) == ["--stages", "1", "2", "--resume"]
