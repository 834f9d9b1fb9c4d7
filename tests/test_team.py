"""A team's regions: no one waits for a thread without work, and none works on old
records.
"""

import ctypes
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import example
from toys import Toy

import lstm_kernels as lk
from lstm_kernels.cpu import instructions, machine_code, run, team, workspace
from lstm_kernels.cpu.arrays import PLAN
from lstm_kernels.cpu.memory import at
from lstm_kernels.kernels import native
from lstm_kernels.schedules import Graph, by_samples, by_units, wavefront
from lstm_report.measure.comparer import compare_to_reference

words = instructions.integers


def count_tasks(p, turn, address):
    """Claim task after task; each adds one to its counter. The caller waits for all."""
    at = words(address, 4)  # claimed, done, how many, counters
    while True:
        task = instructions.add(address, 1)
        if task >= at[2]:
            break
        instructions.add(at[3] + 8 * task, 1)
        instructions.add(address + 8, 1)
    while p == 0 and instructions.read(address + 8) < at[2]:
        instructions.pause()
    return turn + 1


def loiter(p, turn, address):
    """Thread 1 comes, has no task, and stays until it is let go."""
    at = words(address, 4)  # arrived, let go, left
    if p:
        instructions.exchange(address, 1)
        while instructions.read(address + 8) == 0:
            instructions.pause()
    else:
        while instructions.read(address) == 0:
            instructions.pause()
    at[2] += p
    return turn


class Counting:
    """A region of so many participants, who count tasks."""

    def __init__(self, participants, tasks):
        self.participants, self.sync = participants, np.zeros(1, np.int64)
        self.counters = np.zeros(tasks, np.int64)
        self.renew()

    def renew(self):
        """A thread that stayed behind may look at the old one."""
        self.job = np.array([0, 0, len(self.counters), at(self.counters)])

    def run(self, threads):
        code = native(count_tasks, "test")
        region = self.participants, code, at(self.job), at(self.sync)
        return threads.run(*region, (self.job, self))


@pytest.mark.parametrize("participants", [1, 2, 3, 5])
def test_every_region_is_done_when_it_ends(participants):
    threads = team.Team()
    some = Counting(participants, 50)
    for turn in range(1, 201):
        some.counters[:] = 0
        some.run(threads)
        assert (some.counters == 1).all()
        assert some.sync[0] == turn
        some.renew()
    threads.drain()
    threads.dismiss()


def test_nobody_waits_for_threads_that_do_not_come():
    class Alone(team.Team):
        def _start(self, participants):
            pass

    threads, some = Alone(), Counting(4, 20)
    assert not some.run(threads)
    assert (some.counters == 1).all()


def test_a_thread_that_stays_behind_is_reported_and_its_job_kept():
    threads = team.Team()
    job, sync = np.zeros((2, 8), np.int64)
    code, owner = native(loiter, "test"), "owner of the job"
    assert threads.run(2, code, at(job), at(sync), owner)
    assert threads._kept == ["owner of the job"]
    some = Counting(2, 20)  # the team works on without it
    assert some.run(threads)
    assert (some.counters == 1).all()
    some.renew()
    assert len(threads._kept) == 2
    job[1] = 1
    threads.drain()
    assert job[2] == 1
    while some.run(threads):
        some.renew()
    assert not threads._kept
    threads.dismiss()


def test_a_network_leaves_its_records_to_a_thread_that_stayed(monkeypatch):
    """As if one stayed after every pass: results are right, and old records are never
    written.
    """
    params, x, target = example((2, 5, 6, 3, 33))
    old, real = [], workspace.Work.leave

    def leave(work, stayed):
        old.extend((record, record.tobytes()) for record in (work.layers, work.job))
        real(work, True)

    monkeypatch.setattr(workspace.Work, "leave", leave)
    for version in ("numba-fused", "numba-wavefront"):
        net, want = lk.network(version, params), lk.network("numpy", params)
        compare_to_reference(net, params, x)
        for _ in range(3):
            loss = want.step(x, target, 0.1)
            assert net.step(x, target, 0.1) == pytest.approx(loss, rel=1e-5)
    assert len({id(record) for record, _ in old}) == len(old) > 20
    assert all(record.tobytes() == then for record, then in old)


@pytest.mark.parametrize("share", [by_units, by_samples, wavefront])
def test_a_late_participant_does_nothing_of_a_pass_that_is_over(share):
    """As if it had been held up before it began."""
    some = Toy((share(Graph(3, 6, blocks=5, samples=4), 3), False))
    some.clear()
    progress = some.work.progress
    some.run(4)
    some.check(4)
    team.team().drain()
    late = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 4)(machine_code.address(run.run, PLAN))
    progress[1:3] = 0, 1  # they look at one pass each
    for p in range(3):
        for edition in range(4):
            assert late(p, edition, some.plan.address) == edition + 1
    some.check(4)
    some.run(1)  # and is no hindrance to the next one
    some.check(5)


def test_callers_at_once_work_alone_and_get_the_same_bits():
    params, x, _ = example((2, 20, 32, 64, 64))
    want = lk.network("numba-fused", params).forward(x)[0]
    ready = threading.Barrier(4)

    def work(_):
        net = lk.network("numba-fused", params)
        ready.wait()
        for _ in range(30):
            np.testing.assert_array_equal(net.forward(x)[0], want)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


@pytest.mark.skipif(
    not team.MOVES or len(os.sched_getaffinity(0)) < 2, reason="one core to be on"
)
def test_a_thread_that_sleeps_is_not_woken_on_the_core_of_its_caller():
    threads, some = team.Team(), Counting(2, 5)
    some.run(threads)
    threads.drain()
    line = threads._words[(team._THREADS + team.LINE) // 8 :]
    mine = os.sched_getaffinity(0)

    def allowed_after_waking():
        while not line[0]:
            time.sleep(1e-3)
        some.run(threads)
        return os.sched_getaffinity(int(line[2]))

    cores = sorted(mine)[:2]
    try:
        for core in cores:
            os.sched_setaffinity(0, {core})  # so that it is known where the caller is
            assert allowed_after_waking() == {core}  # the only one it may use
        os.sched_setaffinity(0, mine)
        allowed = allowed_after_waking()  # wherever the caller was: one core less
        assert allowed < mine
        assert len(allowed) == len(mine) - 1
    finally:
        os.sched_setaffinity(0, mine)
    threads.drain()
    threads.dismiss()


def test_a_process_that_ends_in_the_middle_of_work_ends_cleanly():
    code = """
import threading, time
import numpy as np, lstm_kernels as lk
net = lk.network("numba-fused", lk.Params.init(64, 64, num_layers=2), threads=2)
x = np.ones((50, 32, 64), np.float32)
net.forward(x)
threading.Thread(target=lambda: [net.forward(x) for _ in range(10**6)], daemon=True).start()
time.sleep(0.1)
"""
    for _ in range(3):
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
