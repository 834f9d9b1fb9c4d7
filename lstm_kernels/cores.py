"""How many threads a version uses by default: the cores that this process can keep busy.

Two things bound them on Linux: the cores it may run on (its affinity), and the CPU time granted to
its control groups (a quota, which Docker, JupyterHub and Binder set).
"""

import os
from functools import cache
from pathlib import Path

# By type of file system: the controller's name in /proc/self/cgroup, and the files with the quota
# and its period, in microseconds.
KINDS = {
    "cgroup": ("cpu", "cgroup v1", ("cpu.cfs_quota_us", "cpu.cfs_period_us")),
    "cgroup2": ("", "cgroup v2", ("cpu.max",)),
}


def allowed():
    """How many cores this process may run on, whatever CPU time it is granted."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores(root="/"):
    """How many cores this process can keep busy, at least 1; root: where /proc and /sys are."""
    # Rounded down: threads that want more time than the quota grants use it up early, and all of
    # them stand still for the rest of the period (two threads on one CPU: pauses of 54 ms).
    limit, _ = quota(root)
    return allowed() if limit is None else max(1, min(allowed(), int(limit)))


def why(root="/"):
    """What bounds `cores`, in words: `2 threads: 2 cores this process may use, no CPU quota`."""
    limit, source = quota(root)
    threads, places = _count(cores(root), "thread"), _count(allowed(), "core")
    if limit is None:
        return f"{threads}: {places} this process may use, no CPU quota"
    return f"{threads}: a quota of {_count(limit, 'CPU')} ({source}) on {places}"


@cache  # read once: it takes 0.1 ms, and a quota seldom changes while a process runs
def quota(root="/"):
    """The least quota of this process's control groups, in CPUs, and which it is; else two None."""
    quotas = []
    for folder, version, files in _groups(Path(root)):
        try:
            granted, period = (int(word) for name in files for word in _text(folder / name).split())
        except ValueError:  # no such file, or `max`
            continue
        if granted > 0 and period > 0:  # -1: no quota
            quotas.append((granted / period, f"{version}, {files[0]}"))
    return min(quotas, default=(None, None))


def _groups(root):
    """(folder, version, files) of this process's control groups and of all groups around them."""
    own = {}
    for line in _text(root / "proc/self/cgroup").splitlines():  # `4:cpu,cpuacct:/docker/1f2e`
        _, controllers, path, *_ = *line.split(":", 2), "", ""
        own |= dict.fromkeys(controllers.split(","), Path(path))
    for line in _text(root / "proc/self/mountinfo").splitlines():
        # `36 35 0:30 <the part mounted> <where> rw,relatime - cgroup cgroup rw,cpu`
        left, _, right = line.partition(" - ")
        if len(left.split()) < 5 or len(right.split()) < 3:
            continue
        top, where = left.split()[3:5]
        kind, _, options = right.split()[:3]
        controller, *about = KINDS.get(kind, (None,))
        if controller not in own or controller not in ["", *options.split(",")]:
            continue
        mount, path = root / where.lstrip("/"), own[controller]
        # A container may see its own group only, as the top of what is mounted.
        inside = path.is_relative_to(top) and ".." not in path.parts
        folder = mount / path.relative_to(top) if inside else mount
        for group in (folder, *folder.parents):
            yield group, *about
            if group == mount:
                break


def _text(path):
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _count(number, word):
    return f"{number:.3g} {word}{'' if number == 1 else 's'}"
