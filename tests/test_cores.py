"""The default number of threads: affinity, OMP_NUM_THREADS and CPU quotas, on made files
and on a real group.
"""

import os
import re
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

import numba
import pytest

from lstm_kernels import Params, cores, network
from lstm_kernels.cores import Bounds


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ((8, None, None), "8 threads: 8 cores this process may use, no CPU quota"),
        ((8, None, 3.0), "3 threads: 8 cores this process may use, a quota of 3 CPUs"),
        ((8, None, 1.99), "1 thread: .*, a quota of 1.99 CPUs"),
        ((8, None, 0.5), "1 thread: .*, a quota of 0.5 CPUs"),
        ((8, None, 16.0), "8 threads: .*, a quota of 16 CPUs"),
        ((8, 3, None), "3 threads: .*, no CPU quota, OMP_NUM_THREADS is 3"),
        ((8, 50, 2.5), "2 threads: .* of 2.5 CPUs, OMP_NUM_THREADS is 50"),
        ((1, None, None), "1 thread: 1 core this"),
    ],
)
def test_the_least_bound_counts(bounds, said):
    assert Bounds(*bounds).threads == int(said.split()[0])
    assert re.match(said, str(Bounds(*bounds)))


@pytest.mark.parametrize(
    ("text", "count"),
    [("1", 1), (" 3 ", 3), ("4,2", 4), ("2 , 1", 2), ("007", 7), ("50", 50)]
    + [(text, None) for text in ("", "0", "-3", "banana", "2x", "1.5", ",3", "٣")],
)
def test_what_omp_num_threads_asks_for(text, count):
    assert cores.asked(text) == count


V1_LINES = "4:cpu,cpuacct:/own\n5:memory:/other"
NESTED = {".": "700000 100000", "a": "30000 10000", "a/b": "max 100000"}
NOT_IN = {".": "max 100000", "a": "max 100000", "z": "100000 100000"}


def v1(quota, group="own", period="100000"):
    """Files of a group of cgroup v1."""
    folder = f"cpu/{group}".rstrip("/")
    return {
        f"{folder}/cpu.cfs_quota_us": quota,
        f"{folder}/cpu.cfs_period_us": period,
    }


def v2(limits):
    """Files of groups of cgroup v2; limits: cpu.max by the group's path."""
    return {f"{path}/cpu.max": limit for path, limit in limits.items()}


@pytest.mark.parametrize(
    ("groups", "files", "want"),
    [
        (V1_LINES, v1("150000"), 1.5),
        (V1_LINES, v1("-1"), None),
        ("4:cpuset:/own", v1("150000"), None),
        (V1_LINES, v1("250000", group=""), 2.5),  # a container sees the top alone
        ("0::/", v2({".": "50000 100000"}), 0.5),
        ("0::/pod/7/job", v2({".": "150000 100000"}), 1.5),
        ("0::/../outside", v2({".": "400000 100000"}), 4),
        ("0::/a/b", v2(NESTED), 3),
        ("0::/a", v2(NOT_IN), None),  # this process is not in z
        (f"{V1_LINES}\n0::/", v1("300000") | v2({".": "500000 100000"}), 3),
        *(
            ("0::/", v2({".": text}), None)
            for text in ("max 100000", "", "max", "100000", "0 100000", "3 0", "x y")
        ),
        *((text, {}, None) for text in ("", "0::", "nonsense", V1_LINES)),
    ],
)
def test_the_least_quota_of_all_groups_counts(tmp_path, groups, files, want):
    files = {f"sys/fs/cgroup/{path}": text for path, text in files.items()}
    for path, text in {"proc/self/cgroup": groups, **files}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text + "\n")
    assert cores.quota(tmp_path) == want
    assert cores.quota(tmp_path / "nothing here") is None


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


@pytest.mark.parametrize("version", ["numpy", "numba-fused", "numba-sample"])
def test_networks_take_as_many_threads_as_omp_num_threads_says(monkeypatch, version):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    params, most = Params.init(1, 2), min(2, numba.config.NUMBA_NUM_THREADS)
    assert network(version, params)._threads == 1
    assert network(version, params, threads=most)._threads == most
    before = numba.get_num_threads()
    for threads, want in (None, 1), (before, before):  # asked for by hand
        with network("numba-sample", params, threads=threads)._guard():
            assert numba.get_num_threads() == want
    assert numba.get_num_threads() == before


@pytest.fixture
def group():
    """A control group with a quota of one CPU, made for the test: the file to enter it
    by.
    """
    limits = {cores.V1: ("100000", "100000"), cores.V2: ("100000 100000",)}
    for (top, files), values in limits.items():
        folder = Path("/", top, f"lstm-kernels-{uuid.uuid4().hex}")
        try:
            folder.mkdir()
            if all((folder / name).exists() for name in files):
                for name, value in zip(files, values, strict=True):
                    (folder / name).write_text(value)
                yield folder / "cgroup.procs"
                return
        except OSError:  # no such hierarchy, or not for this user
            continue
        finally:
            with suppress(OSError):
                folder.rmdir()
    pytest.skip("it takes root and a writable hierarchy to make a control group")


def test_a_real_quota(group):
    code = """
import os, sys
open(sys.argv[1], "w").write(str(os.getpid()))
from lstm_kernels import cores
print(cores.quota(), cores.why())
"""
    words = [sys.executable, "-c", code, str(group)]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert said.startswith("1.0 1 thread: ")
    assert "a quota of 1 CPU" in said
