"""A network in use: threads, forks, signals, interrupts at any line. One rule:
`base.Network`.

With LSTM_KERNELS_HOSTILE in the environment everything runs longer, and interrupts come
at every line (`make test-hostile`).
"""

import _thread
import contextlib
import copy
import linecache
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg  # noqa: F401 - its BLAS too is counted from here on
from conftest import COMPILED, HOSTILE, IN_USE, ctrl_c_after, example
from threadpoolctl import threadpool_info

import lstm_kernels as lk
from lstm_kernels import blas, interrupts
from lstm_kernels.versions import numba_fused

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
    with (
        ThreadPoolExecutor(1) as pool,
        pytest.raises(RuntimeError, match="another Python thread"),
    ):
        pool.submit(net.backward, dy).result()
    spoil(net, x, target)
    with pytest.raises(RuntimeError, match=f"{message}.*want forward"):
        net.backward(dy)


@versions
def test_a_call_that_is_refused_leaves_the_tape(version):
    params, x, target = example((1, 3, 2, 1, 7))
    net, dy = lk.network(version, params), np.ones((3, 2, 7), np.float32)
    net.forward(x, training=True)
    want = arrays(net.backward(dy))
    twice, good = np.concatenate([x, x], axis=2), lk.Dataset(x, target)
    for call, wrong in [
        ("forward", (twice,)),
        ("predict", (twice,)),
        ("loss_and_grads", (x, target[:, :0])),
        ("step", (twice, target, 0.1)),
        ("epoch", (lk.Dataset(twice, target), [0, 1], 1, 0.1)),
        ("epoch", (lk.Dataset(twice, target), np.arange(0), 1, 0.1)),
        ("epoch", (good, [2], 1, 0.1)),
        ("assign", (lk.Params.init(1, 8),)),
        ("backward", (dy[1:],)),
    ]:
        with pytest.raises((TypeError, ValueError)):
            getattr(net, call)(*wrong)
        assert same(arrays(net.backward(dy)), want), call


@versions
def test_a_backward_after_several_forwards_is_an_error(version):
    params, x, _ = example((1, 3, 2, 1, 7))
    net, dy = lk.network(version, params), np.ones((3, 2, 7), np.float32)
    net.forward(x, training=True)
    want = net.backward(dy).arrays()
    for count in (2, 3):
        for k in range(count):
            net.forward(x * np.float32(k), training=True)
        with pytest.raises(RuntimeError, match=rf"^backward: got {count} .*want one"):
            net.backward(dy)
        with pytest.raises(RuntimeError, match=r"several.*want forward"):
            net.backward(dy)
        net.forward(x, training=True)
        for _ in range(2):  # again on the same tape
            assert same(arrays(net.backward(dy)), want)
        # What comes between takes the first one away
        net.forward(x * np.float32(9), training=True)
        net.forward(x)
        net.forward(x, training=True)
        assert same(arrays(net.backward(dy)), want)


@versions
def test_a_pass_that_was_not_finished_is_none_of_several(version, monkeypatch):
    params, x, _ = example((1, 3, 2, 1, 7))
    net, dy = lk.network(version, params), np.ones((3, 2, 7), np.float32)
    net.forward(x, training=True)
    want = arrays(net.backward(dy))

    def interrupted(*_):
        raise KeyboardInterrupt

    for hook in ("_forward", "_backward"):
        with monkeypatch.context() as planted:
            planted.setattr(net, hook, interrupted)
            with contextlib.suppress(KeyboardInterrupt):
                net.forward(x, training=True)
                net.backward(dy)
        net.forward(x, training=True)
        assert same(arrays(net.backward(dy)), want)


@versions
def test_tapes_live_at_once_and_go_back_in_any_order(version):
    params, x, target = example((2, 3, 4, 2, 7))
    net, rng = lk.network(version, params), np.random.default_rng(0)
    xs = [x, 2 * x, x[:2].copy(), -x]
    dys = [rng.standard_normal((*x.shape[:2], 7)).astype(np.float32) for x in xs]
    want = []
    for x, dy in zip(xs, dys, strict=True):
        y, state = net.forward(x, training=True)
        want.append((y, *state, arrays(net.backward(dy))))
    tapes = [net.record(x) for x in xs]
    net.forward(xs[0])
    for k in (2, 0, 3, 1, 0):
        y, *state, grads = want[k]
        assert (tapes[k].y == y).all()
        assert all((a == b).all() for a, b in zip(tapes[k].state, state, strict=True))
        assert same(arrays(tapes[k].backward(dys[k])), grads)
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"^tape: got a copy or a pickle"):
            copied(tapes[0])
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="another Py"):
        pool.submit(tapes[1].backward, dys[1]).result()
    net.step(xs[0], target, 0.1)
    with pytest.raises(RuntimeError, match="got a tape from before step"):
        tapes[1].backward(dys[1])


def test_a_timeline_is_of_a_pass_that_ran():
    params, x, _ = example((2, 10, 8, 3, 20))
    net = lk.network("numba-wavefront", params)
    y, _ = net.forward(x, training=True)
    assert net.timeline(10, 8, training=True).makespan > 0
    for shape in ((10, 8), (9, 8, True), (10, 8, True, True)):
        with pytest.raises(ValueError, match="timeline: got T"):
            net.timeline(*shape)
    net.backward(np.ones_like(y))
    assert net.timeline(10, 8, True, True).makespan > 0


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
    refused, entered = [], []

    def handler(*_):
        try:
            entered.append(net.forward(x)[0])
        except RuntimeError as error:
            refused.append(str(error))
        signal.setitimer(signal.ITIMER_REAL, 1e-3)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-3)
        until = time.monotonic() + 30
        while not refused and time.monotonic() < until:
            assert (net.forward(x)[0] == want).all()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert refused
    assert all("in the middle of a call of this thread" in word for word in refused)
    assert all((y == want).all() for y in entered)
    assert len(net.epoch(dataset, range(16), 5, 0.1)) == 4


PACKAGE = str(Path(lk.__file__).parent)
# Tracing sees a `with` once more when its block ends; `try` is an instruction of its
# own. No signal comes at either.
NO_PLACE = "with ", "try:"


def interrupted(call, n):
    """Where call() got a KeyboardInterrupt: before the n-th line of this package that
    ran; None if there is none.
    """
    left, where = n, None

    def enter(frame, event, arg):
        code = frame.f_code
        if code.co_name != "__del__" and code.co_filename.startswith(PACKAGE):
            return at_line
        return None  # Python loses what is raised in a finaliser

    def at_line(frame, event, arg):
        nonlocal left, where
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if event == "line" and where is None and not text.startswith(NO_PLACE):
            left -= 1
            if left < 0:
                where = f"{frame.f_code.co_name}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return at_line

    with suppress(KeyboardInterrupt):
        sys.settrace(enter)
        try:
            call()
        finally:
            sys.settrace(None)
    return where


PARAMS, X, TARGET = example((2, 5, 4, 3, 17))
STATE = tuple(np.full((2, 4, 17), 0.5, np.float32) for _ in range(2))
DY, DATASET = np.ones((5, 4, 17), np.float32), lk.Dataset(X, TARGET)
OTHER = lk.Params.init(3, 17, num_layers=2, output_size=2, seed=9)
CALLS = {
    "forward": lambda net: net.forward(X, STATE),
    "backward": lambda net: (net.forward(X, STATE, training=True), net.backward(DY)),
    "loss_and_grads": lambda net: net.loss_and_grads(X, TARGET),
    "step": lambda net: net.step(X, TARGET, 0.1),
    "epoch": lambda net: net.epoch(DATASET, [0, 1, 2], 2, 0.1),
    "assign": lambda net: net.assign(OTHER),
}


def everything(net):
    """What a network computes, and its parameters after a step."""
    y, _ = net.forward(X)
    again, _ = net.forward(X, STATE, training=True)
    loss, grads = net.loss_and_grads(X, TARGET)
    net.step(X, TARGET, 0.1)
    after = {f"after.{name}": a for name, a in net.params().arrays().items()}
    return {"y": y, "again": again, "loss": np.array(loss)} | grads.arrays() | after


@versions
@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_at_any_line_leaves_a_network_that_is_whole(version, name):
    threads = 1 if version == "numba-sample" else None
    net, new, half = (lk.network(version, PARAMS, threads=threads) for _ in range(3))
    half.epoch(DATASET, [0, 1], 2, 0.1)  # the first step of two
    for one in (new, net):  # of which one is then as in its second call
        CALLS[name](one)
    allowed = [PARAMS.arrays(), new.params().arrays()]
    allowed += [half.params().arrays()] if name == "epoch" else []
    n, step, before = 0, 1 if HOSTILE else 17, blas_threads()
    while True:
        net.assign(PARAMS)
        where = interrupted(lambda: CALLS[name](net), n)
        if where is None:
            break
        now = net.params()
        assert any(same(now.arrays(), one) for one in allowed), where
        fresh = lk.network(version, now, threads=threads)
        if isinstance(net._tape, str) or net._tape._unusable:
            with pytest.raises(RuntimeError, match="nothing to go back through"):
                net.backward(DY)
        else:  # it came after the tape was whole
            fresh.forward(X, STATE, training=True)
            assert same(net.backward(DY).arrays(), fresh.backward(DY).arrays()), where
        assert same(everything(net), everything(fresh)), where
        assert blas_threads() == before, where
        assert not blas._computing._is_owned(), where
        n += step
    assert n > step


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
    if hasattr(net, "_free"):  # what it has written is lost
        assert [space.shape.T for space in net._free] == [3]
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


# An epoch ends at a loss that is not finite.


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy: it overflows
# The example at `place` has an infinite loss, in the mini-batch `last`: also in the
# last whole one before a smaller one, and in that.
@pytest.mark.parametrize(
    ("batch", "place", "last"), [(1, 3, 3), (3, 1, 0), (4, 1, 0), (4, 5, 1), (5, 3, 0)]
)
@versions
def test_an_epoch_ends_at_the_first_loss_that_is_not_finite(
    version, batch, place, last
):
    params, x, target = example((1, 3, 6, 1, 7))
    big = np.where(np.arange(6)[:, None] == place, np.float32(1e30), target)
    net, order = lk.network(version, params), np.arange(6)
    losses = net.epoch(lk.Dataset(x, big), order, batch, 0.1)
    assert len(losses) == last + 1
    assert np.isfinite(losses).tolist() == [True] * last + [False]


# Memory.


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="Linux alone tells")
def test_memory_is_bounded():
    """MiB of a process's memory, without what its allocator keeps."""
    code = """
import ctypes, gc, numpy as np, lstm_kernels as lk
from lstm_kernels.cpu.thread_pool import thread_pool
def note():
    if gc.isenabled():
        gc.collect()
    thread_pool().drain()
    thread_pool()._kept.clear()  # of the last region, in case a thread was late
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        print(int(file.read().split()[1]) * 4096 / 2**20)
def use(H, version="numba-fused", T=4):
    net = lk.network(version, lk.Params.init(3, H, num_layers=2, output_size=1))
    x, target = np.ones((T, 5, 3), np.float32), np.ones((5, 1), np.float32)
    net.step(x, target, 0.1)
    net.forward(x, training=True)
    net.backward(np.ones((T, 5, H), np.float32))
[use(H, version) for H in (40, 300) for version in ("numba-fused", "numba-wavefront")]
note()
[use(H) for H in range(1, 65, 2)]
note()
gc.disable()
[use(64, T=4000) for _ in range(10)]  # some 40 MB of arrays each
note()
"""
    line = [sys.executable, "-c", code]
    noted = subprocess.check_output(line, text=True, timeout=300).split()
    before, sizes, networks = map(float, noted)
    assert sizes - before < 20
    assert networks - sizes < 120


def test_a_network_keeps_workspaces_for_so_many_shapes():
    params, x, _ = example((1, 9, 2, 1, 3))
    net = lk.network("numba-fused", params)
    for T in range(1, 10):
        net.forward(x[:T].copy())
        kept = [space.shape.T for space in net._free]
        assert kept == [*range(max(1, T + 1 - numba_fused.MOST_WORKSPACES), T + 1)]


def test_kept_workspaces_are_bounded_in_bytes(monkeypatch):
    params, x, _ = example((2, 12, 8, 3, 40))
    net = lk.network("numba-fused", params)
    net.forward(x)
    each = net._free[0].bytes
    assert each > 12 * 8 * 64 * 4
    for most, steps, kept in ((int(2.5 * each), (12, 11, 10, 9, 8), 4), (0, (7,), 1)):
        monkeypatch.setattr(numba_fused, "MOST_BYTES", most)
        for T in steps:
            net.forward(x[:T].copy())
        assert sum(space.bytes for space in net._free) < kept * each
        assert steps[-1] == net._free[-1].shape.T
    assert len(net._free) == 1
