"""The default number of threads: affinity, OMP_NUM_THREADS and CPU quotas."""

import os

import numba
import pytest

from lstm_kernels import Params, cores, network
from lstm_kernels.cores import Bounds


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ((1, None, None), "1 thread: 1 core this process may use, no CPU quota"),
        ((8, None, 1.99), "1 thread: 8 cores this process may use, a quota of 1.99 "),
        ((8, None, 0.5), "1 thread: 8 cores this process may use, a quota of 0.5 CPUs"),
        ((8, 3, None), "3 threads: 8 cores this process may use, no CPU quota, OMP_N"),
        ((8, 50, 2.5), "2 threads: 8 cores this process may use, a quota of 2.5 CPUs"),
        ((8, 50, 16.0), "8 threads: 8 cores this process may use, a quota of 16 CPUs"),
    ],
)
def test_the_least_bound_counts(bounds, said):
    assert Bounds(*bounds).threads == int(said.split()[0])
    assert str(Bounds(*bounds)).startswith(said)


@pytest.mark.parametrize(
    ("text", "count"),
    [("1", 1), (" 3 ", 3), ("4,2", 4), ("50", 50)]
    + [(text, None) for text in ("", "0", "-3", "banana", "1.5", ",3")],
)
def test_what_omp_num_threads_asks_for(text, count):
    assert cores.asked(text) == count


V1 = ["cpu/own/cpu.cfs_quota_us", "cpu/own/cpu.cfs_period_us"]
TOP = ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]
NESTED = ["cpu.max", "a/cpu.max", "a/b/cpu.max", "z/cpu.max"]
LEAST = ["700000 100000", "300000 100000", "max 100000", "100000 100000"]


@pytest.mark.parametrize(
    ("groups", "files", "texts", "want"),
    [
        ("4:cpu,cpuacct:/own\n5:memory:/other", V1, ["150000", "100000"], 1.5),
        ("4:cpu,cpuacct:/own", V1, ["-1", "100000"], None),
        ("4:cpu:/hosts", TOP, ["250000", "100000"], 2.5),  # a container sees the top
        ("4:cpuset:/own", V1, ["150000", "100000"], None),
        ("0::/a/b", NESTED, LEAST, 3),
        ("0::/../outside", ["cpu.max"], ["400000 100000"], 4),
        ("0::/", ["cpu.max"], ["max 100000"], None),
        ("", [], [], None),  # no Linux
    ],
)
def test_the_least_quota_of_all_groups_counts(tmp_path, groups, files, texts, want):
    paths = [f"sys/fs/cgroup/{file}" for file in files]
    pairs = zip(["proc/self/cgroup", *paths], [groups, *texts], strict=True)
    for path, text in pairs:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert cores.quota(tmp_path) == want


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="pins no process")
def test_affinity_bounds_the_threads():
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


def test_numbas_own_number_is_afterwards_what_it_was():
    before = numba.get_num_threads()
    net = network("numba-sample", Params.init(1, 2), threads=1)
    with net._guard():
        assert numba.get_num_threads() == 1
    assert numba.get_num_threads() == before
