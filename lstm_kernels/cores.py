"""How many threads a version uses by default: the cores that a process can keep busy.

Three things bound them: the cores it may run on (its affinity), the CPU time granted to
its control groups (a quota, which Docker, JupyterHub and Binder set; Linux alone has
these two), and OMP_NUM_THREADS, with which a job says how many threads of a process it
has cores for.
"""

import os
import re
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from .errors import counted

# Where control groups of version 1 and 2 are mounted, and a group's files with its
# quota and the period of that, in microseconds.
V1 = "sys/fs/cgroup/cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us")
V2 = "sys/fs/cgroup", ("cpu.max",)


class Bounds(NamedTuple):
    """What bounds the threads of a process; None: no such bound."""

    allowed: int  # cores that it may run on
    asked: int | None  # of OMP_NUM_THREADS
    quota: float | None  # CPUs

    @property
    def threads(self) -> int:
        """How many cores it can keep busy, at least 1."""
        # Rounded down: threads that want more time than the quota grants use it up
        # early, and all of them stand still for the rest of the period (two threads on
        # one CPU: pauses of 54 ms).
        return max(1, int(min(bound for bound in self if bound)))

    def __str__(self) -> str:
        quota = f"a quota of {self.quota:.3g} CPUs" if self.quota else "no CPU quota"
        asked = f", OMP_NUM_THREADS is {self.asked}" if self.asked else ""
        places = f"{counted(self.allowed, 'core')} this process may use"
        return f"{counted(self.threads, 'thread')}: {places}, {quota}{asked}"


def cores() -> int:
    """How many cores this process can keep busy, at least 1."""
    return _bounds().threads


def why() -> str:
    """What bounds `cores`, in words."""
    return str(_bounds())


def _bounds():
    return Bounds(allowed(), asked(os.environ.get("OMP_NUM_THREADS", "")), quota())


def allowed() -> int:
    """How many cores this process may run on, whatever CPU time it is granted."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def asked(text: str) -> int | None:
    """What OMP_NUM_THREADS asks for, its first number as for OpenMP, which takes the
    others inside its threads; None where it is not a number of threads.
    """
    first = text.partition(",")[0].strip()
    return int(first) or None if first.isdecimal() else None


@cache  # read once: it takes 0.1 ms, and a quota seldom changes while a process runs
def quota(root: str | os.PathLike = "/") -> float | None:
    """The least quota of this process's control groups and of all groups around them,
    in CPUs; None without one. root: the folder with proc/ and sys/.
    """
    quotas = []
    # Lines as `0::/docker/1f2e` of v2, and of v1 as `4:cpu,cpuacct:/docker/1f2e`
    for line in _text(Path(root, "proc/self/cgroup")).splitlines():
        _, names, group = line.split(":", 2)
        if names and "cpu" not in names.split(","):
            continue
        mount, files = V1 if names else V2
        # In a container, which sees only the top, the group may be the host's.
        for folder in (PurePosixPath(group[1:]), *PurePosixPath(group[1:]).parents):
            text = " ".join(_text(Path(root, mount, folder, file)) for file in files)
            if number := re.match(r"([1-9]\d*)\s+([1-9]\d*)", text):  # not `max`, -1
                quotas.append(int(number[1]) / int(number[2]))
    return min(quotas, default=None)


def _text(path):
    with suppress(OSError):
        return path.read_text(errors="replace")
    return ""
