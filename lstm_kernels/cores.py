"""How many threads a version uses by default: the cores that a process can keep busy.

Three things bound them: the cores it may run on (its affinity), the CPU time granted to
its control groups (a quota, which Docker, JupyterHub and Binder set; Linux alone has
these two), and OMP_NUM_THREADS, with which a job says how many threads of a process it
has cores for.
"""

import os
import re
from functools import cache
from pathlib import Path, PurePosixPath

from .errors import counted

# By the controller's name in /proc/self/cgroup: where its groups are mounted, and the
# files with the quota and its period, in microseconds.
CONTROLLERS = {
    "cpu": ("sys/fs/cgroup/cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us")),
    "": ("sys/fs/cgroup", ("cpu.max",)),
}


def allowed():
    """How many cores this process may run on, whatever CPU time it is granted."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cores(root="/"):
    """How many cores this process can keep busy, at least 1; root: where /proc and /sys
    are.
    """
    # Rounded down: threads that want more time than the quota grants use it up early,
    # and all of them stand still for the rest of the period (two threads on one CPU:
    # pauses of 54 ms).
    limit = quota(root)
    bounds = [allowed(), asked(), None if limit is None else max(1, int(limit))]
    return min(bound for bound in bounds if bound is not None)


def why(root="/"):
    """What bounds `cores`, in words."""
    limit = quota(root)
    bound = "no CPU quota" if limit is None else f"a quota of {limit:.3g} CPUs"
    places = counted(allowed(), "core")
    if asked() is not None:
        bound += f", OMP_NUM_THREADS is {asked()}"
    return f"{counted(cores(root), 'thread')}: {places} this process may use, {bound}"


def asked():
    """What OMP_NUM_THREADS asks for, its first number as for OpenMP, which takes the
    others inside its threads; None where it is not set, or not a number of threads.
    """
    first = re.match(r"\s*(\d+)\s*(,|$)", os.environ.get("OMP_NUM_THREADS", ""), re.A)
    return int(first[1]) or None if first else None


@cache  # read once: it takes 0.1 ms, and a quota seldom changes while a process runs
def quota(root="/"):
    """The least quota of this process's control groups and of all groups around them,
    in CPUs; None without one.
    """
    quotas = []
    for line in _text(Path(root, "proc/self/cgroup")).splitlines():
        # As in `4:cpu,cpuacct:/docker/1f2e`.
        _, names, path, *_ = *line.split(":", 2), "", ""
        name = "cpu" if "cpu" in names.split(",") else names
        mount, files = CONTROLLERS.get(name, ("", ()))
        # In a container, which sees only the top, the group may be the host's.
        group = PurePosixPath("/", path)
        for folder in (group, *group.parents) if files else ():
            place = Path(root, mount, folder.relative_to("/"))
            numbers = [word for file in files for word in _text(place / file).split()]
            if len(numbers) == 2 and all(word.isdigit() for word in numbers):
                granted, period = map(int, numbers)  # else `max` or -1: no quota
                if granted and period:
                    quotas.append(granted / period)
    return min(quotas, default=None)


def _text(path):
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
