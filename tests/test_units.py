"""A pass that threads partition by units: its bits, who does not come, interrupts; errors of
messages between ranks.

`rank_programs.py` has the same partition by ranks.
"""

import signal
import subprocess
import sys
import time
from types import FunctionType, SimpleNamespace

import numpy as np
import pytest
from conftest import ctrl_c_after

import lstm_kernels as lk
from lstm_kernels.cpu.packing import Layout
from lstm_kernels.cpu.partitions import Partition
from lstm_kernels.ranks import rnn

UNITS = Partition("units")
LEAST = 2 * Layout(lk.cells.CELLS["lstm"], np.dtype(np.float32), 1024).units


def example(T=20, B=4, D=2, H=LEAST, cell="lstm", dtype=np.float32):
    """A network of two threads, x, and the right y."""
    params = lk.Params.init(D, H, cell=cell, dtype=dtype)
    x = np.random.default_rng(0).standard_normal((T, B, D)).astype(dtype)
    want = lk.network("numpy", params).forward(x)[0]
    return lk.network("numba-fused", params, threads=2), x, want


def outputs(run, H):
    """y of a Pass that has run."""
    return run.h[1:, :, :H].copy()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_agrees_with_the_reference(cell, dtype):
    block = Layout(lk.cells.CELLS[cell], np.dtype(dtype), 1024).units
    for T, B, beside in ((1, 1, -1), (64, 1, 0), (65, 1, 1), (9, 5, 1)):
        H = 2 * block + beside
        net, x, want = example(T, B, 3, H, cell, dtype)
        run = net.bare_forward(x, UNITS)
        run()
        np.testing.assert_allclose(outputs(run, H), want, atol=1e-5)
    strided = np.repeat(x, 2, axis=0)[::2]  # the same numbers in another array
    other = net.bare_forward(strided, UNITS)
    other()
    np.testing.assert_array_equal(outputs(other, H), outputs(run, H))


def test_bad_input_is_named_at_every_entrance():
    net, x, _ = example()
    nan = x * np.float32(np.nan)
    for call, words in (
        (lambda: net.bare_forward(nan), "^x: got nan at index"),
        (lambda: net.bare_forward(nan, UNITS), "^x: got nan at index"),
        (lambda: net.bare_forward(x[:0], UNITS), "^x: got .* no empty axis"),
        (lambda: rnn.Units(net.params(), 3), "world: got int, want lstm_kernels.World"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            call()


# Beside a pool that has other work, or is without threads.
SHARED = """
import sys, threading
import numpy as np
import lstm_kernels as lk
from lstm_kernels.cpu.partitions import Partition
from lstm_kernels.cpu.thread_pool import thread_pool
params, right, alone = lk.Params.init(1, 256, cell="rnn"), [], sys.argv[1] == "alone"
x = np.random.default_rng(0).standard_normal((60, 4, 1)).astype(np.float32)
want = lk.network("numba-fused", params, threads=1).forward(x)[0]
net = lk.network("numba-fused", params, threads=2)
def work():
    run = net.bare_forward(x, Partition("units"))
    for _ in range(40):
        assert (net.forward(x)[0] == want).all()
        run.h[1:] = np.nan
        run()
        assert (run.h[1:, :, :256] == want).all()
    right.append("right")
if alone:
    thread_pool()._start = lambda workers: None
    work()
else:
    threads = [threading.Thread(target=work) for _ in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
print(*right)
"""


@pytest.mark.parametrize(
    ("case", "said"), [("three", ["right"] * 3), ("alone", ["right"])]
)
def test_units_that_nobody_comes_for_are_taken_over(case, said):
    line = [sys.executable, "-c", SHARED, case]
    assert subprocess.check_output(line, text=True, timeout=120).split() == said


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer")
def test_an_interrupt_ends_a_long_pass_and_the_next_is_right():
    net, x, want = example()
    run = net.bare_forward(x, UNITS)
    long = np.ones((100_000, 4, 2), np.float32)
    for seconds in (0.01, 0.05):
        start = time.monotonic()
        long_run = net.bare_forward(long, UNITS)
        with ctrl_c_after(seconds):
            [long_run() for _ in range(100)]
        assert time.monotonic() - start < 30
        run.h[1:] = np.nan
        run()
        np.testing.assert_allclose(outputs(run, LEAST), want, atol=1e-6)
    with pytest.raises(RuntimeError, match=r"^run: got a pass that a signal inter"):
        long_run()
    long_run = net.bare_forward(long, UNITS)
    long_run()
    first = net.forward(long[:1])[0]
    np.testing.assert_array_equal(outputs(long_run, LEAST)[0], first[0])


@pytest.mark.parametrize("failing", range(4))
def test_an_error_of_any_message_is_kept(failing):
    """The loops and kernels in Python, with calls of MPI of which one has an error."""
    loops = pytest.importorskip("lstm_report.experiments.mpi_loops")

    def run(function, *arguments, **fakes):
        codes = iter([17 * (call == failing) for call in range(4)])
        mpi = ("send", "receive", "gather", "send_receive", "gather_shares")
        fakes |= dict.fromkeys(mpi, lambda *_: next(codes))
        return FunctionType(function.__code__, vars(loops) | fakes)(*arguments)

    for first in (0, 1):
        assert run(loops.messages, 0, 0, 8, 2, first, 1, 0, 0, 0) == 17
    assert run(loops.collectives, 0, 0, 8, 4, 0, 0) == 17
    fakes = dict.fromkeys(("view", "address_of", "share_of_step"), lambda *_: None)
    net = SimpleNamespace(T=4, h=np.zeros((1, 5, 8)))
    for kernel in (loops.steps_by_messages, loops.steps_by_collective):
        more = {"load": lambda _: net, "units_of": lambda *_: (0, 1)}
        assert run(kernel, 0, 2, 0, 0, 0, 0, 0, 0, **fakes, **more) == 17
