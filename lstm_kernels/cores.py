"""How many threads a version uses by default: the cores that this process can keep
busy.

Two things bound them on Linux: the cores it may run on (its affinity), and the CPU time
granted to its control groups (a quota, which Docker, JupyterHub and Binder set).
"""

import os
from functools import cache
from pathlib import Path, PurePosixPath

from .errors import counted

# By the controller's name in /proc/self/cgroup: where its groups are mounted, and the
# files with the quota and its period, in microseconds.
CONTROLLERS = {
    "cpu": (
        "sys/fs/cgroup/cpu",
        "cgroup v1",
        ("cpu.cfs_quota_us", "cpu.cfs_period_us"),
    ),
    "": ("sys/fs/cgroup", "cgroup v2", ("cpu.max",)),
}


def allowed():
    """How many cores this process may run on, whatever CPU time it is granted."""
    return (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1
    )


def cores(root="/"):
    """How many cores this process can keep busy, at least 1; root: where /proc and /sys
    are.
    """
    # Rounded down: threads that want more time than the quota grants use it up early,
    # and all of them stand still for the rest of the period (two threads on one CPU:
    # pauses of 54 ms).
    limit, _ = quota(root)
    return allowed() if limit is None else max(1, min(allowed(), int(limit)))


def why(root="/"):
    """What bounds `cores`, in words: `2 threads: 2 cores this process may use, no CPU
    quota`.
    """
    limit, source = quota(root)
    threads, places = counted(cores(root), "thread"), counted(allowed(), "core")
    if limit is None:
        return f"{threads}: {places} this process may use, no CPU quota"
    return f"{threads}: a quota of {limit:.3g} CPU{'s' * (limit != 1)} ({source}) on {places}"


@cache  # read once: it takes 0.1 ms, and a quota seldom changes while a process runs
def quota(root="/"):
    """The least quota of this process's control groups and of all groups around them,
    in CPUs, and which it is; two None without one.
    """
    quotas = []
    for line in _text(
        Path(root, "proc/self/cgroup")
    ).splitlines():  # `4:cpu,cpuacct:/docker/1f2e`
        _, names, path, *_ = *line.split(":", 2), "", ""
        name = "cpu" if "cpu" in names.split(",") else names
        if name not in CONTROLLERS:
            continue
        mount, version, files = CONTROLLERS[name]
        # In a container, which sees only the top, it may be the host's.
        own = PurePosixPath("/", path)
        for group in (own, *own.parents):
            folder = Path(root, mount, group.relative_to("/"))
            try:
                granted, period = (
                    int(word) for f in files for word in _text(folder / f).split()
                )
            except ValueError:  # no such file, or `max`
                continue
            if granted > 0 and period > 0:  # -1: no quota
                quotas.append((granted / period, f"{version}, {files[0]}"))
    return min(quotas, default=(None, None))


def _text(path):
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
