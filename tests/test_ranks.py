"""Jobs of several ranks, by mpiexec: they compute what one process computes, and end
together.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lstm_kernels.ranks import launch

pytestmark = pytest.mark.skipif(
    bool(launch.why_unavailable()), reason=f"no jobs here: {launch.why_unavailable()}"
)
ROOT, PROGRAMS = Path(__file__).parents[1], "tests.rank_programs"


def run(name, ranks=2, limit=120, **options):
    return launch.run(PROGRAMS, name, ranks, options, limit=limit)


def test_two_ranks_compute_what_one_process_does(tmp_path):
    run("every", folder=str(tmp_path), limit=400)


def test_replicas_of_pipelines_compute_what_one_process_does():
    run("grid", ranks=4)


def test_what_rank_0_returns_comes_back_or_the_error_of_a_rank():
    sizes = {"layers": 8, "hidden": 16, "symbols": 40, "steps": 3, "batch": 8}
    module = "lstm_report.experiments.devices"
    rows = launch.run(module, "memory", 2, sizes)
    assert list(rows["variant"]) == ["rank 0", "rank 1"]
    with pytest.raises(
        launch.JobError, match=r"(?s)rank [01]: Trace.*TypeError.*'odd'"
    ):
        launch.run(module, "memory", 2, {"odd": 1})


@pytest.mark.parametrize("wrong", [{"ranks": 0}, {"limit": 0}, {"threads": 0}])
def test_bad_arguments_of_a_job_are_named(wrong):
    arguments = {"module": PROGRAMS, "function": "sums", "ranks": 1, "options": {}}
    with pytest.raises(ValueError, match=f"^{next(iter(wrong))}: got 0"):
        launch.run(**arguments | wrong)


def test_where_mpiexec_does_not_start_jobs_are_unavailable_with_its_reason(tmp_path):
    code = "from lstm_kernels.ranks import launch; launch.run('m', 'f', 1, {})"
    line = [sys.executable, "-c", code]
    bad = os.environ | {"PRTE_MCA_ess": "nothing"}
    end = subprocess.run(line, env=bad, cwd=ROOT, capture_output=True, text=True)
    assert "UnavailableError: run: mpiexec does not start here (" in end.stderr


def test_a_rank_that_is_killed_ends_the_job_and_as_many_can_go_on(tmp_path):
    torn, other = str(tmp_path), tmp_path / "other"
    with pytest.raises(launch.JobError, match=r"rank 1 with .* on\ssignal 9"):
        run("training", folder=torn, killed=2)
    with pytest.raises(launch.JobError, match=r"another run, got {'ranks': 2}, want"):
        run("training", ranks=3, folder=torn)
    other.mkdir()
    assert run("training", folder=torn) == run("training", folder=str(other))


@pytest.mark.parametrize("waits", ["units", "message"])
def test_a_signal_ends_a_rank_whatever_it_waits_for(waits):
    with pytest.raises(launch.JobError, match=r"rank 0 with .* on\ssignal 2"):
        run("waiting", waits=waits, stops=[0, signal.SIGINT], limit=30)


def test_a_rank_that_fails_or_parts_from_the_others_ends_the_job():
    with pytest.raises(launch.JobError, match="ValueError: call: got main"):
        run("parting", limit=30)
    with pytest.raises(launch.JobError, match=r"rank 1: Tr[\s\S]*Error: rank 1 alone"):
        run("waiting", limit=30)


def wait_until(condition, seconds=40):
    until = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < until
        time.sleep(0.05)
    return result


def alive(pid):
    """Whether a process is there, and no zombie."""
    stat = Path("/proc", pid, "stat")
    return stat.exists() and ") Z " not in stat.read_text()


# What happens to the caller or to mpiexec, and what the caller then raises.
ENDS = {
    "its limit": ([], "limit: got a job over 20 s, ended it"),
    "Ctrl-C": ([("caller", signal.SIGINT)], "KeyboardInterrupt"),
    "killed": ([("caller", signal.SIGKILL)], ""),
    "mpiexec killed": ([("mpiexec", signal.SIGKILL)], "the job ended with status -9"),
    "a deaf mpiexec": (
        [("mpiexec", signal.SIGSTOP), ("caller", signal.SIGINT)],
        "KeyboardInterrupt",
    ),
}


@pytest.mark.skipif(sys.platform != "linux", reason="the system tells on Linux")
@pytest.mark.parametrize("end", ENDS)
def test_a_job_ends_with_all_its_ranks(end, tmp_path):
    """Also where a rank is stopped."""
    stops, limit = [1, int(signal.SIGSTOP)], 20 if end == "its limit" else 60
    options = {"folder": str(tmp_path), "stops": stops}
    code = "from lstm_kernels.ranks import launch\n"
    code += f"launch.run({PROGRAMS!r}, 'waiting', 2, {options}, limit={limit})"
    line = [sys.executable, "-c", code]
    signals, message = ENDS[end]
    with subprocess.Popen(line, cwd=ROOT, stderr=subprocess.PIPE, text=True) as caller:
        file = wait_until(lambda: next(tmp_path.glob("pids"), None))
        pids = file.read_text().split()
        time.sleep(1)
        for name, number in signals:
            os.kill(caller.pid if name == "caller" else int(pids[0]), number)
        assert message in caller.communicate(timeout=60)[1]
    wait_until(lambda: not any(map(alive, pids)))
