"""A thread pool's regions: no one waits for a thread without work, and what a late
thread may read is kept.
"""

import gc
import os
import subprocess
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from lstm_kernels.cpu import thread_pool
from lstm_kernels.cpu.atomics import atomic_add, atomic_exchange, load_acquire
from lstm_kernels.cpu.intrinsics import pause, words_at
from lstm_kernels.cpu.thread_pool import LINE, ThreadPool
from lstm_kernels.kernels import native

TASKS = 50


def count_tasks(p, first, last, address):
    """Claim task after task; each adds one to its counter. The caller waits for all."""
    words = words_at(address, 2 * LINE + TASKS)  # claimed, done, the counters
    while True:
        task = atomic_add(words, 0, 1)
        if task >= TASKS:
            break
        atomic_add(words, 2 * LINE + task, 1)
        atomic_add(words, LINE, 1)
    while p == 0 and load_acquire(words, LINE) < TASKS:
        pause()
    return last


def loiter(p, first, last, address):
    """Thread 1 comes, has no task, and stays until it is let go."""
    words = words_at(address, 3)  # arrived, let go, left
    if p:
        atomic_exchange(words, 0, 1)
        while load_acquire(words, 1) == 0:
            pause()
    else:
        while load_acquire(words, 0) == 0:
            pause()
    atomic_add(words, 2, p)
    return last


def linger(p, first, last, address):
    """Note who comes; the caller stays for some milliseconds."""
    atomic_add(words_at(address, LINE), p, 1)
    if p == 0:
        for _ in range(100_000):
            pause()
    return last


@pytest.fixture
def pool():
    pool = ThreadPool()
    yield pool
    pool.drain()
    pool.shut_down()


def each_once(pool, workers, generation=1):
    """Whether a region of so many workers did each task once."""
    words = np.zeros(2 * LINE + TASKS, np.int64)
    code = native(count_tasks, "test")
    result = pool.run(workers, code, words.ctypes.data, words, 0, generation)
    return (words[2 * LINE :] == 1).all() and result == generation


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_every_region_is_done_when_it_ends_whoever_else_opens_one(pool, workers):
    def regions(_):
        return [each_once(pool, workers, g) for g in range(1, 101)]

    assert all(regions(0))
    with ThreadPoolExecutor(4) as callers:
        assert all(map(all, callers.map(regions, range(4))))


def test_no_more_threads_join_than_a_region_has_workers(pool):
    came = np.zeros(LINE, np.int64)
    for _ in range(20):
        assert each_once(pool, 5)  # whose threads look for more work
        pool.run(2, native(linger, "test"), came.ctypes.data, came, 0, 1)
    pool.drain()
    assert came[0] == 20
    assert came[1] <= 20
    assert not came[2:].any()


class Owner:
    """What the arguments of a region point into."""


def test_a_late_thread_is_not_waited_for_and_what_it_may_read_is_kept(pool):
    owner, words = Owner(), np.zeros(8, np.int64)
    alive = weakref.ref(owner)
    pool.run(2, native(loiter, "test"), words.ctypes.data, owner, 0, 1)
    del owner
    try:
        assert each_once(pool, 2)
        gc.collect()
        assert alive() is not None
    finally:
        words[1] = 1  # it may go
    pool.drain()
    assert words[2] == 1
    for _ in range(1000):
        assert each_once(pool, 2)
        if alive() is None:
            break
    assert alive() is None


@pytest.mark.skipif(
    not thread_pool.MOVES or len(os.sched_getaffinity(0)) < 2,
    reason="one core to be on",
)
def test_a_parked_thread_is_not_woken_on_the_core_of_its_caller(pool):
    assert each_once(pool, 2)
    pool.drain()
    line, mine = pool._line(1), os.sched_getaffinity(0)

    def allowed_after_waking():
        while not line[thread_pool._PARKED]:
            time.sleep(1e-3)
        assert each_once(pool, 2)
        return os.sched_getaffinity(int(line[thread_pool._NUMBER]))

    try:
        for core in sorted(mine)[:2]:
            os.sched_setaffinity(0, {core})  # so that it is known where the caller is
            assert allowed_after_waking() == {core}  # the only one it may use
        os.sched_setaffinity(0, mine)
        allowed = allowed_after_waking()  # wherever the caller was: one core less
        assert allowed < mine
        assert len(allowed) == len(mine) - 1
    finally:
        os.sched_setaffinity(0, mine)


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
