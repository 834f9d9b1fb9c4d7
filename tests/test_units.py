"""Units of one layer that threads share: what comes in, who does not come, interrupts;
errors of messages between ranks.

`rank_programs.py` has the same of ranks.
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
from lstm_kernels.cpu.tiles import Tiles
from lstm_kernels.ranks import rnn

LEAST = 2 * Tiles(lk.cells.CELLS["lstm"], np.dtype(np.float32), 1024).units


def example(T=20, B=4, D=2, H=LEAST, cell="lstm", dtype=np.float32):
    """Units of two threads, x, and the right y."""
    params = lk.Params.init(D, H, cell=cell, dtype=dtype)
    x = np.random.default_rng(0).standard_normal((T, B, D)).astype(dtype)
    return rnn.Units(params, threads=2), x, lk.network("numpy", params).forward(x)[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_agrees_with_the_reference(cell, dtype):
    block = Tiles(lk.cells.CELLS[cell], np.dtype(dtype), 1024).units
    for T, B, beside in ((1, 1, -1), (64, 1, 0), (65, 1, 1), (9, 5, 1)):
        units, x, want = example(T, B, 3, 2 * block + beside, cell, dtype)
        np.testing.assert_allclose(units.forward(x), want, atol=1e-5)
    strided = np.repeat(x, 2, axis=0)[::2]  # the same numbers in another array
    np.testing.assert_array_equal(units.forward(strided), units.forward(x))


def test_bad_input_is_named_at_every_entrance():
    units, x, _ = example()
    nan, net = x * np.float32(np.nan), lk.network("numba-fused", units.net.params())
    params, deep = (lk.Params.init(2, LEAST, num_layers=L) for L in (1, 2))
    for call, words in (
        (lambda: units.forward(nan), "^x: got nan at index"),
        (lambda: units.bound(nan), "^x: got nan at index"),
        (lambda: net.bare_forward(nan), "^x: got nan at index"),
        (lambda: units.bound(x[:0]), "^x: got .* no empty axis"),
        (lambda: rnn.Units(None), "params: got NoneType, want lstm_kernels.Params"),
        (lambda: rnn.Units(params, 3), "world: got int, want lstm_kernels.World"),
        (lambda: rnn.Units(params, threads=2.0), "threads: got 2.0"),
        (lambda: rnn.Units(lk.Params.init(2, 4)), "shares: got 2 workers for 1 unit"),
        (lambda: rnn.Units(deep), "params: got 2 layers, want"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            call()


# Beside a team that has other work, or is without threads.
SHARED = """
import sys, threading
import numpy as np
import lstm_kernels as lk
from lstm_kernels.cpu.team import team
from lstm_kernels.ranks.rnn import Units
params, right, alone = lk.Params.init(1, 256, cell="rnn"), [], sys.argv[1] == "alone"
x = np.random.default_rng(0).standard_normal((60, 4, 1)).astype(np.float32)
want = lk.network("numba-fused", params, threads=1).forward(x)[0]
units = Units(params, threads=2)
run = units.bound(x)
def work():
    for _ in range(40):
        assert (units.forward(x) == want).all()
        if alone:
            run.h[1:] = np.nan
        run()
        assert (run.h[1:, :, :256] == want).all()
    right.append("right")
if alone:
    team()._start = lambda participants: None
    work()
else:  # and the same run, which waits for its turn
    threads = [threading.Thread(target=work) for _ in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
print(*right)
"""


@pytest.mark.parametrize(
    ("case", "said"), [("three", ["right"] * 3), ("alone", ["right"])]
)
def test_a_share_that_nobody_comes_for_is_taken_over(case, said):
    line = [sys.executable, "-c", SHARED, case]
    assert subprocess.check_output(line, text=True, timeout=120).split() == said


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer")
def test_an_interrupt_ends_a_long_pass_and_the_next_is_right():
    units, x, want = example()
    run = units.bound(x)
    long = np.ones((100_000, 4, 2), np.float32)

    long_run = units.bound(long)
    for seconds in (0.01, 0.05):
        start = time.monotonic()
        with ctrl_c_after(seconds):
            [long_run() for _ in range(100)]
        assert time.monotonic() - start < 30
        run.h[1:] = np.nan
        run()
        got = run.h[1:, :, : want.shape[2]]
        np.testing.assert_allclose(got, want, atol=1e-6)
    long_run()  # from where it was left nothing remains
    first = units.forward(long[:1])
    np.testing.assert_array_equal(long_run.h[1, :, : want.shape[2]], first[0])


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
    names = "error", "kind", "comm", "status", "counts", "starts", "me", "h"
    for kernel in (loops.steps_by_messages, loops.steps_by_collective):
        record = SimpleNamespace(shares=2, **dict.fromkeys(names, 0))
        fakes = dict.fromkeys(("array", "place", "share_of_step"), lambda *_: None)
        fakes |= dict.fromkeys(("messages_at", "layer_at"), lambda *_, r=record: r)
        job = SimpleNamespace(T=4, B=1, P=8, tasks=0, layers=0)
        run(kernel.py_func, 0, 0, job, units_of=lambda *_: (0, 1), **fakes)
        assert record.error == 17
