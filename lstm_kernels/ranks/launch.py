"""Start a job of several ranks as a child process, show what it prints, and bring back
what rank 0 wrote.

    mpiexec -n RANKS python -m MODULE PROGRAM --option value

is all that `run` does, with an end: a job whose time is over, whose caller is
interrupted or killed, is stopped with all its ranks, and one that fails says which rank
failed and why. On a cluster the same line takes a host file (`mpiexec --hostfile`).
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

from ..errors import UnavailableError, check_int, check_rate
from .world import die_with_parent

INSTALL = "pip install 'lstm-kernels[mpi]'"
LINES = 200  # of what a job printed, that are kept
# How a rank says why it failed, and how mpiexec says that one ended.
FAILED = re.compile(r"^rank (\d+): (.+)$")
ENDED = re.compile(r"rank (\d+)\b.{0,200}?exited on signal (\d+)")


class JobError(RuntimeError):
    """A job of several ranks failed. Holds `.rank` (None where unknown) and `.lines`,
    the last that it printed.
    """

    def __init__(self, message, rank=None, lines=()):
        super().__init__(message)
        self.rank, self.lines = rank, tuple(lines)


def mpiexec():
    """The path of mpiexec: that of this Python's environment, else the first on the
    path.
    """
    beside = Path(sys.executable).parent / "mpiexec"
    return str(beside) if beside.exists() else shutil.which("mpiexec")


@cache
def why_unavailable():
    """None where jobs can run, else the reason."""
    if os.name == "nt":
        return "jobs of several ranks run on Linux and macOS"
    if not find_spec("mpi4py"):
        return f"mpi4py is not installed; {INSTALL} brings it"
    if mpiexec() is None:
        return f"there is no mpiexec; {INSTALL} brings one"
    line = [mpiexec(), "-n", "1", "true"]  # which takes a network interface
    tried = subprocess.run(line, env=environment(1), capture_output=True, text=True)
    printed = " ".join((tried.stderr + tried.stdout).split())[:200]
    return f"mpiexec does not start here ({printed})" if tried.returncode else None


def environment(threads):
    """The environment of a job: so many threads of BLAS and of Numba for each rank."""
    names = ("OMP", "OPENBLAS", "MKL", "NUMBA")
    limits = {f"{name}_NUM_THREADS": str(threads) for name in names}
    # It may be root, as in a container; mpiexec asks for both. UCX says in every window
    # that it is not there.
    mpi = dict.fromkeys(("", "_CONFIRM"), "1")
    mpi = {f"OMPI_ALLOW_RUN_AS_ROOT{name}": value for name, value in mpi.items()}
    mpi |= {"OMPI_MCA_osc": "^ucx", "PYTHONUNBUFFERED": "1"}
    return os.environ | limits | mpi


def words(options):
    """Options as words of a command line: True is `--name`, False and None are none, a
    list is its items one after another.
    """
    for name, value in options.items():
        if value is None or value is False:
            continue
        yield f"--{name.replace('_', '-')}"
        if value is not True:
            yield from map(str, value if isinstance(value, list | tuple) else [value])


def run(module, ranks, program, options, *, threads=1, limit=600.0, show=None):
    """Run a program on so many ranks; the text that rank 0 wrote to its `--result`.

    module: `python -m module program` is the command line. options: of the program, as
    `words` takes them. threads: of BLAS and Numba in each rank. limit: seconds; then
    the job is stopped. show: called with the command line and with each line that the
    job prints; None drops them. There may be more ranks than cores: they take turns.
    Raises UnavailableError where jobs cannot run, JobError for one that failed or ran
    out of time, TypeError or ValueError for bad input.
    """
    if why := why_unavailable():
        raise UnavailableError(f"run: {why}")
    ranks, threads = check_int("ranks", ranks), check_int("threads", threads)
    limit = check_rate("limit", limit)
    show = show or (lambda line: None)
    line = ["-m", module, program, *words(options)]
    show(" ".join(["mpiexec -n", str(ranks), "python", *line]))
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result")
        follow([*line, "--result", str(result)], ranks, threads, limit, show)
        return result.read_text(encoding="utf-8")


def follow(line, ranks, threads, limit, show):
    """Run a Python command line on so many ranks to its end."""
    start = [mpiexec(), "-n", str(ranks), "--oversubscribe", "--bind-to", "none"]
    lines = deque(maxlen=LINES)
    job = subprocess.Popen(
        [*start, sys.executable, *line],
        env=environment(threads),
        text=True,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=partial(die_with_parent, signal.SIGTERM),
    )

    def read():
        with job.stdout:
            for text in job.stdout:
                lines.append(text.rstrip("\n"))
                show(lines[-1])

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        job.wait(limit)
    except subprocess.TimeoutExpired:
        _stop(job)
        reader.join(5)
        raise JobError(f"stopped after {limit:g} s, its limit", None, lines) from None
    except BaseException:
        _stop(job)
        raise
    reader.join(5)  # what another process still holds open is not waited for
    if job.returncode:
        raise _error(job.returncode, lines)


def _stop(job):
    """End a job: mpiexec ends its ranks, which the system ends when it is gone."""
    job.terminate()
    try:
        job.wait(5)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def _error(code, lines):
    """What went wrong, in the words of the lowest rank that said so, or of mpiexec."""
    failed = sorted((int(m[1]), m[2]) for m in map(FAILED.match, lines) if m)
    if failed:
        rank, why = failed[0]
        return JobError(f"rank {rank}: {why}", rank, lines)
    if m := ENDED.search(" ".join(map(str.strip, lines))):  # it breaks lines
        name = signal.Signals(int(m[2])).name
        return JobError(f"rank {m[1]}: ended by {name}", int(m[1]), lines)
    last = "; ".join(list(lines)[-3:]) or "it printed nothing"
    return JobError(f"the job ended with status {code}: {last}", None, lines)
