"""A network in use: threads, forks, signals, interrupts at any line. One rule:
`base.Network`.

Interrupts at any line are in test_machine. With LSTM_KERNELS_HOSTILE in the environment
everything runs longer (`make test-hostile`).
"""

import _thread
import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.linalg  # noqa: F401 - its BLAS too is counted from here on
from conftest import COMPILED, HOSTILE, IN_USE, ctrl_c_after, example
from threadpoolctl import threadpool_info

import lstm_kernels as lk
from lstm_kernels import blas, interrupts

versions = pytest.mark.parametrize("version", IN_USE)
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def arrays(grads):
    return {name: a.copy() for name, a in grads.arrays().items()}


def same(got, want):
    return got.keys() == want.keys() and all((got[n] == want[n]).all() for n in want)


def blas_threads():
    return [
        library["num_threads"]
        for library in threadpool_info()
        if library["user_api"] == "blas"
    ]


# Threads.


@versions
def test_threads_that_share_a_network_get_right_numbers_or_an_error(version):
    params, x, target = example((2, 6, 8, 5, 20))
    net, other = lk.network(version, params), x[:4].copy()
    dy = np.ones((6, 8, 20), np.float32)
    net.forward(x, training=True)
    want, (want_loss, want_grads) = net.backward(dy), net.loss_and_grads(x, target)
    wrong, refused, until = [], [], time.monotonic() + (20 if HOSTILE else 0.7)

    def differentiate():
        while time.monotonic() < until and not wrong:
            net.forward(x, training=True)
            try:
                if not same(arrays(net.backward(dy)), want.arrays()):
                    wrong.append("backward")
            except RuntimeError as error:
                refused.append(str(error))

    def learn():
        while time.monotonic() < until and not wrong:
            loss, grads = net.loss_and_grads(x, target)
            if loss != want_loss or not same(arrays(grads), want_grads.arrays()):
                wrong.append("loss_and_grads")
            net.forward(other)

    with ThreadPoolExecutor(3) as pool:
        for done in [
            pool.submit(work) for work in (differentiate, learn, differentiate)
        ]:
            done.result()
    assert not wrong
    assert all(word.startswith("backward: ") for word in refused)


def test_networks_in_several_threads_share_numbas():
    """Numba's own layer, workqueue, ends a process in which two enter it at once."""
    code = """
import threading, numpy as np, lstm_kernels as lk
params = lk.Params.init(5, 24, num_layers=2, output_size=1)
nets = [lk.network(name, params) for name in ("numba-sample", "numba-sample", "numba-fused")]
def work(net, T):
    x = np.ones((T, 9, 5), np.float32)
    want, _ = net.forward(x)
    for _ in range(100):
        assert (net.forward(x)[0] == want).all()
        net.loss_and_grads(x, np.ones((9, 1), np.float32))
    good.append(T)
good, args = [], [(nets[0], 4), (nets[0], 7), (nets[1], 5), (nets[2], 6)]
threads = [threading.Thread(target=work, args=a) for a in args]
[t.start() for t in threads]
[t.join() for t in threads]
assert sorted(good) == [4, 5, 6, 7]
"""
    environment = os.environ | {"NUMBA_THREADING_LAYER": "workqueue"}
    line = [sys.executable, "-c", code]
    subprocess.run(line, check=True, timeout=300, env=environment)


# The tape.


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda net, x, t: net.forward(x), "without training=True"),
        (lambda net, x, t: net.predict(x), "predict came after it"),
        (lambda net, x, t: net.loss_and_grads(x, t), "loss_and_grads came after it"),
        (lambda net, x, t: net.step(x, t, 0.1), "step changed the parameters"),
        (lambda net, x, t: net.epoch(lk.Dataset(x, t), [0], 1, 0.1), "epoch changed"),
        (lambda net, x, t: net.assign(net.params()), "assign changed the parameters"),
    ],
)
def test_a_tape_that_is_gone_is_an_error_that_says_why(spoil, message):
    params, x, target = example((1, 3, 2, 1, 7))
    net, dy = lk.network("numba-fused", params), np.ones((3, 2, 7), np.float32)
    with pytest.raises(RuntimeError, match="there was none"):
        net.backward(dy)
    net.forward(x, training=True)
    net.params()  # takes nothing away
    net.backward(dy)
    tape = net.record(x)
    for backward in (net.backward, tape.backward):
        with (
            ThreadPoolExecutor(1) as pool,
            pytest.raises(RuntimeError, match="another Python thread"),
        ):
            pool.submit(backward, dy).result()
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"^tape: got a copy or a pickle"):
            copied(tape)
    spoil(net, x, target)
    with pytest.raises(RuntimeError, match=f"{message}.*want forward"):
        net.backward(dy)


# Forks.

FORK = """
import os, sys, threading, warnings
import numpy as np
from threadpoolctl import threadpool_info
import lstm_kernels as lk
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of such forks
def blas():
    return [i["num_threads"] for i in threadpool_info() if i["user_api"] == "blas"]
version, busy = sys.argv[1], sys.argv[2] == "busy"
params = lk.Params.init(6, 64, num_layers=2, output_size=1)
x, target = np.ones((20, 32, 6), np.float32), np.ones((32, 1), np.float32)
net, before, stop = lk.network(version, params), blas(), []
want = {name: lk.network(name, params).forward(x)[0] for name in ("numba-fused", "numpy")}
y, _ = net.forward(x, training=True)
def work():
    while not stop:
        net.forward(x)
        net.loss_and_grads(x, target)
if busy:
    threading.Thread(target=work).start()
failed = 0
for _ in range(5 if busy else 1):
    child = os.fork()
    if child == 0:
        try:
            for call in (lambda: net.forward(x), lambda: net.backward(y), net.params):
                try:
                    call()
                    os._exit(2)
                except RuntimeError as error:
                    assert "of which this is a fork, want one made in" in str(error)
            for name, right in want.items():
                fresh = lk.network(name, params)
                assert (fresh.forward(x)[0] == right).all()
                fresh.step(x, target, 0.1)
            try:
                lk.network("numba-sample", params).step(x, target, 0.1)
                assert version != "numba-sample"
            except RuntimeError as error:
                assert "Numba's threads had begun, want another version" in str(error)
            assert set(blas()) == set(before), (blas(), before)
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
    failed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
stop.append(1)
sys.exit(failed)
"""


@forks
@versions
@pytest.mark.parametrize("thread", ["busy", "idle"])
def test_a_forked_child_makes_networks_of_its_own(version, thread):
    """Whatever another thread computes at the fork; the child never hangs."""
    line = [sys.executable, "-c", FORK, version, thread]
    subprocess.run(line, check=True, timeout=120)


@forks
def test_a_fork_waits_for_a_thread_that_compiles():
    """Numba compiles under a lock, which nobody would give back in the child."""
    program = """
import os, threading, time, warnings
import numba
from numba.core.compiler_lock import global_compiler_lock
import lstm_kernels.kernels
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of any fork with threads
begun = threading.Event()
def compile():
    with global_compiler_lock:
        begun.set()
        time.sleep(0.3)
threading.Thread(target=compile).start()
begun.wait()
child = os.fork()
assert numba.njit(lambda a: a + 1)(1) == 2
if child == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


# Signals and interrupts.


@versions
def test_a_signal_handler_cannot_enter_a_call_of_its_thread(version):
    params, x, target = example((2, 30, 16, 8, 48))
    net, dataset = lk.network(version, params), lk.Dataset(x, target)
    want, _ = net.forward(x)
    refused, entered, done = [], [], []

    def handler(*_):
        try:
            entered.append(net.forward(x)[0])
        except RuntimeError as error:
            refused.append(str(error))
        if not done:
            signal.setitimer(signal.ITIMER_REAL, 1e-3)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-3)
        until = time.monotonic() + 30
        while not refused and time.monotonic() < until:
            assert (net.forward(x)[0] == want).all()
    finally:
        done.append(True)  # the handler may run once more
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert refused
    assert all("in the middle of a call of this thread" in word for word in refused)
    assert all((y == want).all() for y in entered)
    assert len(net.epoch(dataset, range(16), 5, 0.1)) == 4


@versions
def test_ctrl_c_ends_a_long_call_between_two_steps(version):
    """Steps that would take minutes; the parameters are those after some number of
    whole ones.
    """
    params, x, target = example((2, 40, 8, 8, 32))
    dataset = lk.Dataset(np.repeat(x, 4, 1), np.repeat(target, 4, 0))
    order = np.random.default_rng(0).integers(0, 32, 8_000_000)
    net, replay = lk.network(version, params), lk.network(version, params)
    replay.epoch(dataset, order[:8], 8, 1e-3)
    replay.assign(params)

    with ctrl_c_after(0.3):
        net.epoch(dataset, order, 8, 1e-3)
    got = net.params().arrays()
    for k in range(0, 100_000, 8):
        if same(replay.params().arrays(), got):
            break
        replay.epoch(dataset, order[k : k + 8], 8, 1e-3)
    assert 0 < k < 99_992
    again = [one.epoch(dataset, order[:16], 8, 1e-3) for one in (net, replay)]
    assert len(again[0]) == 2
    assert again[0] == again[1]
    assert (net.forward(x)[0] == replay.forward(x)[0]).all()


@versions
def test_ctrl_c_ends_a_long_pass(version):
    params, _, _ = example((1, 1, 1, 4, 250))  # with padding: y is a copy
    net = lk.network(version, params)
    short, long = np.ones((3, 16, 4), np.float32), np.ones((20_000, 16, 4), np.float32)
    want, _ = net.forward(short)

    with ctrl_c_after(0.2):
        net.forward(long)
    assert (net.forward(short)[0] == want).all()


class Refuses:
    """Threads of a system that gives no more."""

    allocate_lock = _thread.allocate_lock

    @staticmethod
    def start_new_thread(*_):
        raise RuntimeError("can't start new thread")


def test_a_long_call_runs_where_no_thread_can_be_had():
    stop, own = [0], threading.get_ident()
    assert interrupts.interruptible(threading.get_ident, stop) != own
    assert interrupts.interruptible(threading.get_ident, stop, threads=Refuses) == own
    with pytest.raises(ZeroDivisionError):
        interrupts.interruptible(lambda: 1 / 0, stop)


def test_an_undisturbed_call_runs_to_its_end():
    """As compiling does: an exception inside Numba would leave it half changed."""
    done = []

    def work():
        for _ in range(30):
            time.sleep(0.01)
        done.append("all of it")

    with ctrl_c_after(0.05):
        interrupts.undisturbed(work)
    assert done
    assert interrupts.undisturbed(lambda: 3) == 3


# A handler raises when a function has returned, before its result is kept.
LOST = """
import _thread, sys, threading
from lstm_kernels import interrupts

class Raises:
    # A lock: an interrupt comes right after it was taken, `times` times.
    def __init__(self):
        self._lock, self.times = _thread.allocate_lock(), int(sys.argv[2])

    def acquire(self, *how, **more):
        if more:  # not the first time, which is before the call
            waits.set()
        taken = self._lock.acquire(*how, **more)
        if more and taken and self.times:
            self.times -= 1
            raise KeyboardInterrupt
        return taken

    def release(self):
        self._lock.release()

def start_and_raise(*how):
    _thread.start_new_thread(*how)
    raise KeyboardInterrupt

class Waiting:
    allocate_lock, start_new_thread = Raises, _thread.start_new_thread
class Starting:
    allocate_lock, start_new_thread = _thread.allocate_lock, start_and_raise
threads = Waiting if sys.argv[1] == "waiting" else Starting
for _ in range(20):
    stop, waits = [0], threading.Event()
    if threads is Starting:
        waits.set()
    try:
        interrupts.interruptible(waits.wait, stop, threads=threads)
        sys.exit("no interrupt")
    except KeyboardInterrupt:
        assert stop[0] == 1
"""


@pytest.mark.parametrize(
    ("moment", "times"), [("starting", 0), ("waiting", 1), ("waiting", 3)]
)
def test_a_result_lost_to_an_interrupt_is_not_waited_for(moment, times):
    line = [sys.executable, "-c", LOST, moment, str(times)]
    subprocess.run(line, check=True, timeout=60)


# Interrupts at random moments of a call, most of them near its end.
NEAR = """
import random, signal, sys, time
import numpy as np
import lstm_kernels as lk
from lstm_kernels.cpu import workspace
workspace.LONG = 0
version, count, T = sys.argv[1], *map(int, sys.argv[2:])
params = lk.Params.init(3, 40, num_layers=2, output_size=1)
B = 8
x = np.random.default_rng(0).standard_normal((T, B, 3)).astype(np.float32)
target = np.ones((B, 1), np.float32)
net = lk.network(version, params)
calls = [lambda: net.forward(x)[0], lambda: net.loss_and_grads(x, target)[1].layers[0].W]
armed = False
def callers(frame):
    while frame:
        yield frame.f_code.co_name
        frame = frame.f_back
def alarm(_, frame):
    if {"remove", "_remove", "__del__"} & {*callers(frame)}:
        signal.setitimer(signal.ITIMER_REAL, 1e-3)  # where Python drops what is raised
    elif armed:  # else it comes when the call is over already
        raise KeyboardInterrupt
signal.signal(signal.SIGALRM, alarm)
wants, seconds = [call() for call in calls], []
assert np.allclose(wants[0], lk.network("numpy", params).forward(x)[0], atol=1e-4)
for call in calls:
    start = time.perf_counter()
    call()
    seconds.append(time.perf_counter() - start)
for k in range(count):
    part = random.uniform(0.8, 1.1) if k % 3 else random.random()
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, seconds[k % 2] * part + 1e-6)
        calls[k % 2]()
        # Not one sleep: the signal may end it in another thread's place, or come as it
        # begins, and is seen when it is over.
        for _ in range(6000):
            time.sleep(seconds[k % 2] / 100)
        sys.exit("no interrupt")
    except KeyboardInterrupt:
        armed = False
    if k % 10 == 0:
        assert all((call() == want).all() for call, want in zip(calls, wants))
"""


# How many interrupts; steps of a sequence, so calls of some 5 and some 500 ms.
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer")
@pytest.mark.parametrize(
    ("count", "T"), [(2900, 200), (100, 10_000)] if HOSTILE else [(60, 200)]
)
@pytest.mark.parametrize("version", COMPILED)
def test_no_interrupt_of_a_call_hangs_or_harms(version, count, T):
    line = [sys.executable, "-c", NEAR, version, str(count), str(T)]
    subprocess.run(line, check=True, timeout=1500 if HOSTILE else 240)


GREEN = """
import _thread, threading
def never(function, arguments, *more):
    return 1  # as of a library whose threads take turns: it runs when somebody waits
_thread.start_new_thread = threading._start_new_thread = never
import numpy as np
import lstm_kernels as lk
from lstm_kernels.cpu import workspace
x = np.ones((40, 8, 5), np.float32)
params = lk.Params.init(5, 40, output_size=1)
for name in ("numba-fused", "numba-wavefront"):
    net = lk.network(name, params)
    want, _ = net.forward(x)
    workspace.LONG = 0
    assert all((net.forward(x)[0] == want).all() for _ in range(40)), name
    net.step(x, np.ones((8, 1), np.float32), 0.1)
    workspace.LONG = 2e9
print("served")
"""


def test_networks_compute_where_threads_of_python_are_none():
    told = subprocess.check_output(
        [sys.executable, "-c", GREEN], text=True, timeout=300
    )
    assert told == "served\n"


def test_blas_is_kept_to_one_thread_inside():
    before = blas_threads()
    assert max(before) > 1 or os.cpu_count() == 1

    def inside():
        with blas.single_threaded(), blas.single_threaded():
            return blas_threads()

    assert set(inside()) == {1}
    assert blas_threads() == before
    with ThreadPoolExecutor(1) as pool:  # not the thread that changed it first
        assert set(pool.submit(inside).result()) == {1}
    assert blas_threads() == before
