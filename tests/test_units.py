"""Units of one layer that threads share: what comes in, who does not come, interrupts.

`rank_programs.py` has the same of ranks.
"""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import lstm_kernels as lk
from lstm_kernels.cpu.tiles import Tiles
from lstm_kernels.ranks import rnn
from lstm_kernels.ranks.parallel import Parallel

LEAST = 2 * Tiles(lk.cells.CELLS["lstm"], np.dtype(np.float32), 1024).units


def example(T=20, B=4, D=2, H=LEAST, cell="lstm", dtype=np.float32):
    """Units of two threads, x, and the right y."""
    params = lk.Params.init(D, H, cell=cell, dtype=dtype)
    x = np.random.default_rng(0).standard_normal((T, B, D)).astype(dtype)
    return rnn.Units(params, threads=2), x, lk.network("numpy", params).forward(x)[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("beside", [-1, 0, 1])
def test_agrees_with_the_reference(cell, beside, dtype):
    block = Tiles(lk.cells.CELLS[cell], np.dtype(dtype), 1024).units
    for T, B in ((1, 1), (63, 1), (64, 1), (65, 1), (9, 5)):
        units, x, want = example(T, B, 3, 2 * block + beside, cell, dtype)
        np.testing.assert_allclose(units.forward(x), want, atol=1e-5)


# The same numbers in another array.
KINDS = {
    "Fortran": np.asfortranarray,
    "strided": lambda x: np.repeat(x, 2, axis=0)[::2],
    "reversed": lambda x: x[::-1].copy()[::-1],
    "read-only": lambda x: np.broadcast_to(x, x.shape),
    "memmap": lambda x: x.view(np.memmap),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_layout_of_x_changes_no_number(kind):
    units, x, want = example()
    np.testing.assert_allclose(units.forward(KINDS[kind](x)), want, atol=1e-6)


BAD = {
    "float64": (
        lambda x: x.astype(float),
        TypeError,
        "got dtype float64, want float32",
    ),
    "float16": (lambda x: x.astype("f2"), TypeError, "got dtype float16"),
    "int32": (lambda x: x.astype("i4"), TypeError, "got dtype int32"),
    "fewer inputs": (lambda x: x[..., :1], ValueError, r"want \(T, B, 2\)"),
    "more inputs": (lambda x: np.dstack([x, x]), ValueError, r"want \(T, B, 2\)"),
    "no step": (lambda x: x[:0], ValueError, "no empty axis"),
    "an axis less": (lambda x: x[0], ValueError, "got 2 axes"),
    "NaN": (lambda x: x * np.float32(np.nan), ValueError, "got nan at index"),
    "a list": (np.ndarray.tolist, TypeError, "got list"),
    "a mask": (np.ma.array, TypeError, "got a masked array"),
    "nothing": (lambda x: None, TypeError, "got NoneType"),
}


@pytest.mark.parametrize("name", BAD)
def test_other_input_is_refused_at_every_entrance(name):
    spoil, kind, words = BAD[name]
    units, x, _ = example()
    net = lk.network("numba-fused", lk.Params.init(2, 8))
    for call in (units.forward, units.bound, net.bare_forward, net.forward):
        with pytest.raises(kind, match=f"^x: .*{words}"):
            call(spoil(x))


def test_other_arguments_are_named():
    params = lk.Params.init(2, LEAST)
    for call, words in (
        (lambda: rnn.Units(None), "params: got NoneType, want lstm_kernels.Params"),
        (lambda: rnn.Units(params, 3), "world: got int, want lstm_kernels.World"),
        (lambda: Parallel(None, None), "params: got NoneType"),
        (lambda: rnn.Units(params, threads=2.0), "threads: got 2.0"),
    ):
        if "Parallel" in call.__code__.co_names:
            pytest.importorskip("mpi4py")
        with pytest.raises(TypeError, match=words):
            call()


# Beside a team that is busy, gone, or without threads.
SHARED = """
import sys, threading
import numpy as np
import lstm_kernels as lk
from lstm_kernels.cpu.team import team
from lstm_kernels.ranks.rnn import Units
params, case = lk.Params.init(1, 256, cell="rnn"), sys.argv[1]
x = np.random.default_rng(0).standard_normal((60, 4, 1)).astype(np.float32)
want = lk.network("numba-fused", params, threads=1).forward(x)[0]
right, stop = [], []
def work(count):
    units = Units(params, threads=2)
    run, h = units.bound(x)
    for _ in range(count):
        assert (units.forward(x) == want).all()
        h[1:] = np.nan
        run()
        assert (h[1:, :, :256] == want).all()
    right.append(count)
def keep_busy():
    net = lk.network("numba-fused", lk.Params.init(1, 64, output_size=1), threads=2)
    while not stop:
        net.step(np.zeros((50, 64, 1), np.float32), np.zeros((64, 1), np.float32), 0.01)
if case == "busy":
    other = threading.Thread(target=keep_busy)
    other.start()
    work(60)
    stop.append(1)
    other.join()
elif case == "two":
    both = [threading.Thread(target=work, args=(200,)) for _ in range(2)]
    [thread.start() for thread in both]
    [thread.join() for thread in both]
elif case == "one":  # and the same run, which waits for its turn
    run, h = Units(params, threads=2).bound(x)
    def turns():
        for _ in range(100):
            run()
        right.append(100)
    all_three = [threading.Thread(target=turns) for _ in range(3)]
    [thread.start() for thread in all_three]
    [thread.join() for thread in all_three]
    assert (h[1:, :, :256] == want).all()
elif case == "dismissed":
    work(1)
    team().dismiss()
    work(20)
elif case == "alone":
    team()._start = lambda participants: None
    work(20)
print(sum(right))
"""


@pytest.mark.parametrize(
    ("case", "count"),
    [("busy", 60), ("two", 400), ("one", 300), ("dismissed", 21), ("alone", 20)],
)
def test_a_share_that_nobody_comes_for_is_taken_over(case, count):
    line = [sys.executable, "-c", SHARED, case]
    assert int(subprocess.check_output(line, timeout=120)) == count


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer")
def test_an_interrupt_ends_a_long_pass_and_the_next_is_right():
    units, x, want = example()
    run, h = units.bound(x)
    long = np.ones((100_000, 4, 2), np.float32)

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    long_run, _ = units.bound(long)
    try:
        for seconds in (0.01, 0.05):
            start = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, seconds)
            with pytest.raises(KeyboardInterrupt):
                [long_run() for _ in range(100)]
            assert time.monotonic() - start < 30
            h[1:] = np.nan
            run()
            got = h[1:, :, : want.shape[2]]
            np.testing.assert_allclose(got, want, atol=1e-6)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    long_run()  # from where it was left nothing remains
    first = units.forward(long[:1])
    np.testing.assert_array_equal(long_run.args[2][1][1, :, : want.shape[2]], first[0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_in_a_fork_they_are_another_process_s():
    units, x, want = example()
    params = units.net.params()
    units.forward(x)
    child = os.fork()
    if child == 0:
        try:
            units.forward(x)
        except RuntimeError as error:
            fresh = rnn.Units(params, threads=2)
            right = np.allclose(fresh.forward(x), want, atol=1e-6)
            os._exit(0 if "of which this is a fork" in str(error) and right else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_from_a_second_thread():
    units, x, want = example()
    found = []
    thread = threading.Thread(target=lambda: found.append(units.forward(x)))
    thread.start()
    thread.join()
    np.testing.assert_allclose(found[0], want, atol=1e-6)
