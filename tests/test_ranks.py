"""Jobs of several ranks, by mpiexec: they compute what one process computes, and end
together.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lstm_kernels.ranks import launch
from lstm_report.experiments import devices

pytestmark = pytest.mark.skipif(
    bool(launch.why_unavailable()), reason=f"no jobs here: {launch.why_unavailable()}"
)
PROGRAMS = Path(__file__).with_name("rank_programs.py")


def run_program(name, ranks, *words, show=print, limit=120):
    """A program of rank_programs.py; raises JobError for one that fails or hangs."""
    launch.follow([str(PROGRAMS), name, *words], ranks, limit=limit, show=show)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_compute_what_one_process_does(ranks):
    run_program("every", ranks)


def test_what_rank_0_returns_comes_back():
    module, shown = "lstm_report.experiments.devices", []
    rows = launch.run(module, "memory", 2, devices.SMALL, show=shown.append)
    assert list(rows["variant"]) == ["rank 0", "rank 1"]
    assert shown[0].startswith(f"mpiexec -n 2 python -m lstm_kernels.ranks {module}")
    with pytest.raises(launch.JobError, match=r"rank [01]: TypeError: .*'layer'"):
        launch.run(module, "memory", 2, {"layer": 1})


@pytest.mark.parametrize(
    ("ranks", "options", "message"),
    [(0, {}, "ranks: got 0"), (1, {"limit": 0}, "limit"), (1, {"threads": 0}, "threa")],
)
def test_bad_arguments_of_a_job(ranks, options, message):
    with pytest.raises(ValueError, match=message):
        launch.follow(["none.py"], ranks, **options)


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
    file, killed, resumed, whole = str(tmp_path / "state.npz"), [], [], []

    def kill(line):
        if line.startswith("epoch 2:") and not killed:
            killed.append(time.monotonic())
            os.kill(rank_process(1, file), signal.SIGKILL)

    with pytest.raises(launch.JobError, match=r"rank 1 .* exited on signal 9"):
        run_program("training", 2, file, show=kill)
    assert time.monotonic() - killed[0] < 10
    run_program("training", 2, file, show=resumed.append)
    run_program("training", 2, str(tmp_path / "other.npz"), show=whole.append)
    resumed, whole = ([n for n in lines if "loss" in n] for lines in (resumed, whole))
    assert 0 < len(resumed) < len(whole) == 8
    assert resumed == whole[-len(resumed) :]


def script(path, text):
    """Write a program of ranks to `path`; its path as text."""
    head = "import os, signal, time\nfrom mpi4py.MPI import COMM_WORLD\n"
    path.write_text(head + text)
    return str(path)


def test_a_job_that_hangs_is_stopped_with_all_its_ranks(tmp_path):
    text = "if COMM_WORLD.rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\n"
    mark = script(tmp_path / "hangs.py", text + "COMM_WORLD.Barrier()")
    with pytest.raises(
        launch.JobError, match="limit: got a job of more than 5 seconds"
    ):
        launch.follow([mark], 2, limit=5)
    assert rank_process(0, mark) is rank_process(1, mark) is None


def test_an_interrupt_ends_the_job(tmp_path):
    mark = script(tmp_path / "sleeps.py", "print('up', flush=True)\ntime.sleep(60)")

    def interrupt(line):
        if line == "up":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch.follow([mark], 2, show=interrupt)
    assert rank_process(0, mark) is rank_process(1, mark) is None


@pytest.mark.skipif(sys.platform != "linux", reason="the system tells on Linux")
def test_a_job_ends_with_its_caller(tmp_path):
    """Also where mpiexec ends without a word to its ranks."""
    code = "import sys; from lstm_kernels.ranks import launch\n"
    code += "launch.follow(sys.argv[1:], 2, show=lambda line: print(line, flush=True))"
    words = [str(PROGRAMS), "sleeping", mark := str(tmp_path)]
    line = [sys.executable, "-c", code, *words]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as caller:
        try:
            assert any(re.fullmatch(r"mpiexec \d+\n", text) for text in caller.stdout)
            assert rank_process(0, mark)
        finally:
            caller.kill()
    wait_until(lambda: rank_process(0, mark) is rank_process(1, mark) is None)


@pytest.mark.parametrize("what", ["units", "message"])
def test_a_signal_ends_a_rank_whatever_it_waits_for(what):
    with pytest.raises(launch.JobError, match=r"rank 0 .* exited on signal 2"):
        run_program("waiting", 2, what, limit=30)


def test_a_rank_that_parts_from_the_others_ends_the_job():
    with pytest.raises(launch.JobError, match=r"rank 0: ValueError: call: got main"):
        run_program("parting", 2, limit=30)


@pytest.mark.skipif(sys.platform != "linux", reason="the system tells on Linux")
def test_an_mpiexec_that_does_not_answer_is_killed_with_its_ranks(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(launch, "GRACE", 1)
    for name in ("TMPDIR", "OMPI_MCA_btl_sm_backing_directory"):  # files it leaves
        monkeypatch.setenv(name, str(tmp_path))

    def stop(line):
        if line.startswith("mpiexec ") and line.split()[1].isdecimal():
            os.kill(int(line.split()[1]), signal.SIGSTOP)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_program("sleeping", 2, mark := str(tmp_path), show=stop)
    wait_until(lambda: rank_process(0, mark) is rank_process(1, mark) is None)


# An mpiexec that takes no notice of SIGTERM, and comes to its end much later.
DEAF = """#!{}
import pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(20)
pathlib.Path(__file__).with_name("ended").touch()
"""


@pytest.fixture
def deaf(monkeypatch, tmp_path):
    path = tmp_path / "mpiexec"
    path.write_text(DEAF.format(sys.executable))
    path.chmod(0o755)
    monkeypatch.setattr(launch, "mpiexec", lambda: str(path))
    monkeypatch.setattr(launch, "GRACE", 1)
    monkeypatch.setattr(launch, "STARTS", 1)
    yield
    assert not path.with_name("ended").exists()


def test_jobs_are_unavailable_where_mpiexec_does_not_end(deaf):
    why = launch.why_unavailable.__wrapped__()
    assert why.startswith("mpiexec does not start here")


def test_the_limit_and_an_interrupt_do_not_wait_for_mpiexec(deaf, monkeypatch):
    monkeypatch.setattr(launch, "why_unavailable", lambda: None)
    with pytest.raises(
        launch.JobError, match="limit: got a job of more than 2 seconds"
    ):
        launch.follow(["none.py"], 2, limit=2)

    def interrupt(line):
        if line == "up":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch.follow(["none.py"], 2, show=interrupt)


def wait_until(condition, seconds=30):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)
