"""The default number of threads: affinity, OMP_NUM_THREADS and CPU quotas, on made files
and on a real group.
"""

import os
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

import numba
import pytest

from lstm_kernels import Params, cores, network
from lstm_kernels.versions import numba_sample


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Make a root folder of files by path, for a process that may run on eight
    cores.
    """
    monkeypatch.setattr(cores, "allowed", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def make(groups, files):
        for path, text in {"proc/self/cgroup": groups, **files}.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text + "\n")
        cores.quota.cache_clear()
        return tmp_path

    yield make
    cores.quota.cache_clear()


def v1(quota, period="100000", group="own"):
    """What `machine` takes for a group of cgroup v1 with a quota."""
    folder = f"sys/fs/cgroup/cpu/{group}".rstrip("/")
    files = {f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": period}
    return "4:cpu,cpuacct:/own\n5:memory:/other", files


def v2(limits, group="/"):
    """The same of cgroup v2; limits: cpu.max by the group's path."""
    return f"0::{group}", {
        f"sys/fs/cgroup/{path}/cpu.max": v for path, v in limits.items()
    }


@pytest.mark.parametrize(
    ("quota", "count"),
    [
        ("100000", 1),
        ("150000", 1),
        ("200000", 2),
        ("50000", 1),
        ("1600000", 8),
        ("-1", 8),
    ],
)
def test_a_quota_is_rounded_down_to_one_thread_at_least(machine, quota, count):
    assert cores.cores(machine(*v1(quota))) == count


@pytest.mark.parametrize(
    "text", ["max 100000", "", "max", "100000", "0 100000", "300000 0", "x y"]
)
def test_what_is_no_quota(machine, text):
    root = machine(*v2({".": text}))
    assert cores.cores(root) == 8
    assert cores.why(root) == "8 threads: 8 cores this process may use, no CPU quota"


def test_the_least_quota_of_nested_groups_counts(machine):
    root = machine(
        *v2({".": "700000 100000", "a": "30000 10000", "a/b": "max 100000"}, "/a/b")
    )
    assert cores.cores(root) == 3
    want = "3 threads: 8 cores this process may use, a quota of 3 CPUs"
    assert cores.why(root) == want
    # Groups that this process is not in do not.
    root = machine(
        *v2({".": "max 100000", "a": "max 100000", "z": "100000 100000"}, "/a")
    )
    assert cores.cores(root) == 8


def test_groups_inside_a_container(machine):
    # The group's path is the host's; its folder is the top of what the container sees.
    assert cores.cores(machine(*v1("250000", group=""))) == 2
    assert cores.cores(machine(*v2({".": "150000 100000"}, "/pod/7/job"))) == 1
    assert cores.cores(machine(*v2({".": "400000 100000"}, "/../outside"))) == 4


def test_the_least_of_both_versions_counts(machine):
    (first, one), (second, other) = v1("300000"), v2({".": "500000 100000"})
    root = machine(f"{first}\n{second}", one | other)
    assert cores.cores(root) == 3
    assert cores.why(root).endswith("a quota of 3 CPUs")


@pytest.mark.parametrize("text", ["", ":", "0::", "nonsense", "4:cpu", "4:cpu:/own"])
def test_malformed_and_missing_files_are_no_quota(machine, text, tmp_path):
    assert cores.cores(machine(text, {})) == 8
    assert cores.cores(tmp_path / "nothing here") == 8


@pytest.mark.parametrize(
    ("text", "count"),
    [("1", 1), (" 3 ", 3), ("4,2", 4), ("2 , 1", 2), ("007", 7), ("50", 8)]
    + [(text, 8) for text in ("", "0", "-3", "banana", "2x", "1.5", ",3", "٣")],
)
def test_omp_num_threads_bounds_the_threads(machine, monkeypatch, text, count):
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    root = machine("", {})
    assert cores.cores(root) == count
    assert ("OMP_NUM_THREADS" in cores.why(root)) == (count < 8 or text == "50")
    assert cores.cores(machine(*v1("200000"))) == min(2, count)


@pytest.mark.parametrize("version", ["numpy", "numba-fused", "numba-sample"])
def test_networks_take_as_many_threads_as_omp_num_threads_says(monkeypatch, version):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    params, most = Params.init(1, 2), min(2, numba.config.NUMBA_NUM_THREADS)
    assert network(version, params)._threads == 1
    assert network(version, params, threads=most)._threads == most


def test_affinity_bounds_the_threads():
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system pins no process")
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cores.cores() == cores.allowed() == 1
        assert cores.why().startswith("1 thread: ")
    finally:
        os.sched_setaffinity(0, before)


def test_numba_sample_takes_so_many_threads(monkeypatch):
    monkeypatch.setattr(numba_sample, "cores", lambda: 1)
    params, before = Params.init(1, 2), numba.get_num_threads()
    with network("numba-sample", params)._guard():
        assert numba.get_num_threads() == 1
    with network("numba-sample", params, threads=before)._guard():
        assert numba.get_num_threads() == before  # asked for by hand
    assert numba.get_num_threads() == before


@pytest.fixture
def group():
    """A control group with a quota of one CPU, made for the test: the file to enter it
    by.
    """
    kinds = {
        "/sys/fs/cgroup/cpu": {
            "cpu.cfs_period_us": "100000",
            "cpu.cfs_quota_us": "100000",
        },
        "/sys/fs/cgroup": {"cpu.max": "100000 100000"},
    }
    for top, limits in kinds.items():
        folder = Path(top) / f"lstm-kernels-{uuid.uuid4().hex}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            # Else: no such controller here
            if all((folder / name).exists() for name in limits):
                for name, value in limits.items():
                    (folder / name).write_text(value)
                yield folder / "cgroup.procs"
                return
        except OSError:  # not for this user
            continue
        finally:
            with suppress(OSError):
                folder.rmdir()
    pytest.skip(
        "no control group can be made here: it takes root and a writable hierarchy"
    )


def test_a_real_quota(group):
    code = """
import os, sys
open(sys.argv[1], "w").write(str(os.getpid()))
from lstm_kernels import cores
print(cores.cores())
print(cores.why())
"""
    words = [sys.executable, "-c", code, str(group)]
    said = subprocess.run(
        words, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert said[0] == "1"
    if cores.allowed() > 1:
        assert "a quota of 1 CPU" in said[1]
