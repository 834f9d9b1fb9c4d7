"""Jobs of several ranks, by mpiexec: they compute what one process computes, and end
together.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from lstm_kernels.ranks import launch

pytestmark = pytest.mark.skipif(
    bool(launch.why_unavailable()), reason=f"no jobs here: {launch.why_unavailable()}"
)
LIMIT = 120  # seconds; a job that hangs is a failure


def run_program(name, ranks):
    """A program of rank_programs.py; raises JobError for one that fails or hangs."""
    line = [launch.mpiexec(), "-n", str(ranks), "--oversubscribe", "--bind-to", "none"]
    line += [sys.executable, str(Path(__file__).with_name("rank_programs.py")), name]
    launch._follow(line, launch.environment(), LIMIT, None)


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_parts(ranks):
    run_program("parts", ranks)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ranks_train_as_one_process_does(ranks):
    run_program("models", ranks)


def test_a_checkpoint_of_another_run_is_refused():
    run_program("checkpoints", 2)


def test_every_program_returns_rows_of_a_results_file():
    run_program("programs", 2)


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
    options = {"epochs": 400, "checkpoint": file, "strings": 256, "stages": "1,2"}

    def kill(line):
        if line.startswith("epoch 2 ") and not killed:
            killed.append(time.monotonic())
            os.kill(rank_process(1, str(file)), signal.SIGKILL)

    with pytest.raises(launch.JobError, match="rank 1: ended by SIGKILL") as caught:
        launch.run("training", 2, limit=LIMIT, show=kill, **options)
    assert caught.value.rank == 1
    assert time.monotonic() - killed[0] < 10
    done = launch.run(
        "training", 2, limit=LIMIT, **(options | {"epochs": 1, "resume": 1})
    )
    epochs = len(done) + 2
    options["epochs"] = epochs
    resumed = launch.run("training", 2, limit=LIMIT, resume=1, **options)
    whole = options | {"checkpoint": tmp_path / "other.npz"}
    want = launch.run("training", 2, limit=LIMIT, **whole)
    assert resumed["loss"].tolist() == want["loss"].tolist()


def test_a_job_that_hangs_is_stopped_with_all_its_ranks(tmp_path):
    mark = str(tmp_path / "state.npz")
    stopped = threading.Event()

    def freeze(line):
        if line.startswith("epoch 1 ") and not stopped.is_set():
            os.kill(rank_process(1, mark), signal.SIGSTOP)
            stopped.set()

    with pytest.raises(launch.JobError, match="stopped after"):
        launch.run(
            "training", 2, limit=12, show=freeze, epochs=100_000, checkpoint=mark
        )
    assert stopped.is_set()
    assert rank_process(0, mark) is rank_process(1, mark) is None


@pytest.mark.skipif(
    bool(launch.why_no_link()), reason=f"no link: {launch.why_no_link()}"
)
def test_a_job_on_a_link():
    rows = launch.run(
        "sums", 2, limit=LIMIT, link="100mbit", sizes="1048576", repeats=2
    )
    # Two ranks hand over 2 MiB in all, at 12.5 MB/s; what the first burst holds comes
    # at once.
    assert rows["seconds"].min() > 0.05


@pytest.mark.parametrize(
    ("ranks", "options", "message"),
    [
        (2, {"stages": "1,1"}, "stages: got .1, 1., want 3 layers in all"),
        (3, {"stages": "1,2"}, "stages: got 2 on 3 ranks, want a divisor"),
        (2, {"batch": 65}, "batch_size: got 65"),
        (2, {"task": "music"}, "task: got 'music', want one of 'airline', 'reber'"),
        (1, {"order": "zigzag"}, "order: got 'zigzag'"),
    ],
)
def test_bad_input(ranks, options, message):
    with pytest.raises(launch.JobError, match=f"rank 0: ValueError: {message}"):
        launch.run("training", ranks, limit=LIMIT, **options)
