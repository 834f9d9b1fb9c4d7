"""Start a job of several ranks as a child process, show what it says, and bring back
its rows.

    mpiexec -n RANKS python -m lstm_kernels.ranks PROGRAM --option value

is all that `run` does, with an end: a job whose time is over, or whose caller is
interrupted, is stopped with all its ranks, and one that fails says which rank failed
and why. On a cluster the same line takes a host file (`mpiexec --hostfile`).
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

from lstm_report.measure.timing import conditions, system

from ..errors import UnavailableError, check_int, check_rate

INSTALL = "pip install 'lstm-kernels[mpi]'"
MODULE = "lstm_kernels.ranks"
KEPT = 200  # lines of what a job said
# How a rank says why it failed, and how mpiexec says that one ended.
FAILED = re.compile(r"^rank (\d+): (.+)$")
ENDED = re.compile(r"rank (\d+)\b.{0,200}?exited on signal (\d+)")


class JobError(RuntimeError):
    """A job of several ranks failed. Holds `.rank` (None where unknown) and `.said`,
    its lines.
    """

    def __init__(self, message, rank=None, said=()):
        super().__init__(message)
        self.rank, self.said = rank, tuple(said)


def mpiexec():
    """The path of mpiexec: that of this Python's environment, else the first on the
    path.
    """
    own = Path(sys.executable).parent / "mpiexec"
    return str(own) if own.exists() else shutil.which("mpiexec")


def why_unavailable():
    """None where jobs can run, else the reason."""
    if os.name == "nt":
        return "jobs of several ranks run on Linux and macOS"
    if not find_spec("mpi4py"):
        return f"mpi4py is not installed; {INSTALL} brings it"
    if mpiexec() is None:
        return f"there is no mpiexec; {INSTALL} brings one"
    return _why_not_started()


@cache
def _why_not_started():
    """None where mpiexec starts a process, else what it says: it takes a network
    interface.
    """
    line = [mpiexec(), "-n", "1", "true"]
    tried = subprocess.run(line, env=environment(), capture_output=True, text=True)
    said = " ".join((tried.stderr + tried.stdout).split())[:200]
    return f"mpiexec does not start here ({said})" if tried.returncode else None


def why_no_link():
    """None where `run` can give a job a link of its own, else the reason."""
    missing = [name for name in ("unshare", "ip", "tc") if not shutil.which(name)]
    if missing:
        return f"a link takes the command {missing[0]} of Linux"
    tried = subprocess.run([*_linked("1gbit"), "true"], capture_output=True, text=True)
    said = " ".join(tried.stderr.split()) or "no reason given"
    return f"a link is not permitted here ({said})" if tried.returncode else None


def _linked(rate):
    """What comes before a command that is to run in a network of its own, of such a
    rate.
    """
    limit = 'tc qdisc add dev lo root tbf rate "$0" burst 256k latency 100ms'
    return [
        "unshare",
        "-rn",
        "sh",
        "-c",
        f'ip link set lo up && {limit} && exec "$@"',
        rate,
    ]


def command(program, ranks, options, *, hosts=None, link=None):
    """The line that starts a job, as a list."""
    line = [*(_linked(link) if link else ()), mpiexec()]
    line += ["-n", str(ranks), "--oversubscribe", "--bind-to", "none"]
    if hosts is not None:
        line += ["--hostfile", str(hosts)]
    if link is not None:  # no shared memory
        only = {"pml": "ob1", "btl": "tcp,self", "btl_tcp_if_include": "lo"}
        line += [
            word for name, value in only.items() for word in ("--mca", name, value)
        ]
    line += [sys.executable, "-m", MODULE, program]
    for name, value in options.items():
        line += [f"--{name.replace('_', '-')}", str(value)]
    return line


def environment(threads=1):
    """The environment of a job: so many threads of BLAS and of Numba for each rank."""
    count = str(threads)
    names = (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "NUMBA_NUM_THREADS",
    )
    how = os.environ | dict.fromkeys(names, count) | {"PYTHONUNBUFFERED": "1"}
    how |= {"OMPI_MCA_osc": "^ucx"}  # which says in every window that it is not there
    if hasattr(
        os, "geteuid"
    ):  # it may be root, as in a container; mpiexec asks for both
        how |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return how


def run(
    program,
    ranks,
    *,
    threads=1,
    limit=600.0,
    hosts=None,
    link=None,
    show=None,
    **options,
):
    """Run a program of `distributed.__main__` on so many ranks; the rows that rank 0
    returns, a DataFrame.

    threads: of BLAS and Numba in each rank. limit: seconds; then the job is stopped.
    hosts: path of a host file. link: the rate of the network between the ranks, as
    "1gbit", over which all goes, in both directions together; None is what there is, on
    one machine shared memory. show: called with each line that the job prints; None
    drops them. options: the program's own. There may be more ranks than cores: they
    take turns. Raises UnavailableError where jobs cannot run, JobError for one that
    failed or ran out of time, TypeError or ValueError for bad input.
    """
    if why := why_unavailable() or (link and why_no_link()):
        raise UnavailableError(f"run: {why}")
    ranks, threads = check_int("ranks", ranks), check_int("threads", threads)
    limit = check_rate("limit", limit)
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "rows.csv")
        if show is not None:
            show(shown(program, ranks, options, link))
        line = command(
            program, ranks, options | {"result": result}, hosts=hosts, link=link
        )
        before = system()
        said = _follow(line, environment(threads), limit, show)
        if not result.exists():
            raise JobError(f"{program}: ended without a result", said=said)
        rows = pd.read_csv(result)
        rows.attrs["conditions"] = conditions(before, system())
        return rows


def shown(program, ranks, options, link=None):
    """The line of a job as one would type it."""
    words = [f"--{name.replace('_', '-')} {value}" for name, value in options.items()]
    where = f"on a link of {link}: " if link else ""
    return " ".join([f"{where}mpiexec -n {ranks} python -m {MODULE}", program, *words])


def _follow(line, env, limit, show):
    """Run a job to its end; the last lines that it said."""
    said, how = (
        deque(maxlen=KEPT),
        {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT},
    )
    start = time.monotonic()
    job = subprocess.Popen(line, env=env, text=True, start_new_session=True, **how)

    def read():
        with job.stdout:
            for text in job.stdout:
                said.append(text.rstrip("\n"))
                if show is not None:
                    show(said[-1])

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        job.wait(limit)
    except subprocess.TimeoutExpired:
        _stop(job)
        reader.join(5)
        message = (
            f"{line[0]}: stopped after {time.monotonic() - start:.0f} s, its limit"
        )
        raise JobError(message, said=said) from None
    except BaseException:
        _stop(job)
        raise
    reader.join(5)  # what another process still holds open is not waited for
    if job.returncode:
        raise _error(job.returncode, said)
    return said


def _stop(job):
    """End a job: mpiexec ends its ranks, which end themselves when it is gone
    (`world.py`).
    """
    job.terminate()
    try:
        job.wait(5)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def _error(code, said):
    """What went wrong, in the words of the lowest rank that said so, or of mpiexec."""
    failed = sorted((int(m[1]), m[2]) for m in map(FAILED.match, said) if m)
    if failed:
        rank, why = failed[0]
        return JobError(f"rank {rank}: {why}", rank, said)
    if m := ENDED.search(" ".join(line.strip() for line in said)):  # it breaks lines
        name = signal.Signals(int(m[2])).name
        return JobError(f"rank {m[1]}: ended by {name}", int(m[1]), said)
    last = "; ".join(list(said)[-3:]) or "it said nothing"
    return JobError(f"the job ended with status {code}: {last}", None, said)
