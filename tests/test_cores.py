"""The default number of threads: affinity, OMP_NUM_THREADS and CPU quotas."""

import os
import re

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


GROUP = "4:cpu,cpuacct:/own\n5:memory:/other"
V1 = ["cpu/own/cpu.cfs_quota_us", "cpu/own/cpu.cfs_period_us"]
TOP = ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]
V2 = ["cpu.max"]
NESTED = ["cpu.max", "a/cpu.max", "a/b/cpu.max"]


@pytest.mark.parametrize(
    ("groups", "files", "texts", "want"),
    [
        (GROUP, V1, ["150000", "100000"], 1.5),
        (GROUP, V1, ["-1", "100000"], None),
        (GROUP, TOP, ["250000", "100000"], 2.5),  # a container sees the top alone
        ("4:cpuset:/own", V1, ["150000", "100000"], None),
        (f"{GROUP}\n0::/", V1 + V2, ["300000", "100000", "500000 100000"], 3),
        ("0::/", V2, ["50000 100000"], 0.5),
        ("0::/pod/7/job", V2, ["150000 100000"], 1.5),
        ("0::/../outside", V2, ["400000 100000"], 4),
        ("0::/a/b", NESTED, ["700000 100000", "30000 10000", "max 100000"], 3),
        ("0::/a", ["cpu.max", "z/cpu.max"], ["max 100000", "100000 100000"], None),
        *(("0::/", V2, [text], None) for text in ("max 100000", "", "100000", "x y")),
        *(("0::/", V2, [text], None) for text in ("0 100000", "3 0", "max")),
        *((text, [], [], None) for text in ("", "0::", "nonsense", GROUP)),
    ],
)
def test_the_least_quota_of_all_groups_counts(tmp_path, groups, files, texts, want):
    made = {f"sys/fs/cgroup/{p}": text for p, text in zip(files, texts, strict=True)}
    for path, text in {"proc/self/cgroup": groups, **made}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text + "\n")
    assert cores.quota(tmp_path) == want


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
