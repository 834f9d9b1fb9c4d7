"""What else is in the process: other libraries' threads, forks and floating-point mode,
and machines that a pickled network comes to. Making and running a network changes
nothing of theirs, and nothing of theirs changes its bits.
"""

import copy
import ctypes
import os
import pickle
import platform
import subprocess
import sys
from contextlib import contextmanager, suppress
from functools import partial

import numba
import numpy as np
import pytest
from conftest import COMPILED, HOSTILE, IN_USE, example
from threadpoolctl import threadpool_info, threadpool_limits

import lstm_kernels as lk
from lstm_kernels import blas, schedules
from lstm_kernels.cells import CELLS
from lstm_kernels.versions.numba_fused import NumbaFused

WITH_OPENMP = ("numba-sample", "numba-tile")
ON_CPU = [v.name for v in lk.versions() if v.target == "cpu"]
WITHOUT_OPENMP = [name for name in ON_CPU if name not in WITH_OPENMP]


def run(code, *words, sent=b"", **environment):
    """What a program prints, as bytes; sent: what it reads."""
    kept = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    how = {"env": kept | environment, "input": sent, "timeout": 120}
    line = [sys.executable, "-c", code, *words]
    return subprocess.run(line, stdout=subprocess.PIPE, check=True, **how).stdout


# OpenMP, which Numba's threads are of.

USE = """
import ctypes, os, sys, warnings
import numpy as np, numba
import lstm_kernels as lk
def use(names):
    x, target = np.ones((4, 5, 3), np.float32), np.ones((5, 1), np.float32)
    for name in names:
        net = lk.network(name, lk.Params.init(3, 8, output_size=1))
        y, _ = net.forward(x, training=True)
        net.backward(y)
        net.step(x, target, 0.1)
        net.predict(x)
        try:
            net.forward(x[:, :, :2])
        except ValueError:
            pass
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_versions_without_openmp_leave_it_and_forks_of_others_alone():
    code = """
from lstm_kernels.__main__ import main
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks
use(sys.argv[1:])
main([])
try:
    print("begun:", numba.threading_layer())
except ValueError:
    pass
@numba.njit(parallel=True)
def total(a):
    s = 0.0
    for i in numba.prange(len(a)):
        s += a[i]
    return s
child = os.fork()
if child == 0:  # GNU's OpenMP ends a child of a process in which it has begun
    big = np.ones((300, 300))
    os._exit(int(total(np.ones(1000)) != 1000 or (big @ big).sum() != 300**3))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    assert b"begun:" not in run(USE + code, *WITHOUT_OPENMP)


def test_the_number_of_openmps_threads_stays_as_it_is():
    code = """
openmp = ctypes.CDLL("libgomp.so.1")
openmp.omp_set_num_threads(1)
use(sys.argv[1:])
print(numba.threading_layer(), openmp.omp_get_max_threads())
"""
    try:
        ctypes.CDLL("libgomp.so.1")
    except OSError:
        pytest.skip("GNU's OpenMP is not here")
    more = {"NUMBA_THREADING_LAYER": "omp", "NUMBA_NUM_THREADS": "2"}
    names = WITH_OPENMP if HOSTILE else WITH_OPENMP[:1]
    assert run(USE + code, *names, **more).split() == [b"omp", b"1"]


# BLAS.


def blas_threads():
    blas = [library for library in threadpool_info() if library["user_api"] == "blas"]
    return {library["num_threads"] for library in blas}


@pytest.mark.skipif(blas_threads() == {1}, reason="BLAS has one thread")
@pytest.mark.parametrize("meanwhile", ["nothing", "a limit ends", "a number is set"])
def test_blas_has_one_thread_inside_and_what_others_say_after(meanwhile):
    before, inside = blas_threads(), {1}
    with threadpool_limits(2, user_api="blas") as limit:
        with suppress(KeyError), blas.single_threaded(), blas.single_threaded():
            assert blas_threads() == inside
            if meanwhile == "a limit ends":
                limit.restore_original_limits()
            elif meanwhile == "a number is set":
                threadpool_limits(3, user_api="blas")
            blas.product(np.ones((3, 4)), np.ones((4, 5)), 1)
            assert blas_threads() == inside
            raise KeyError
        after = {"nothing": {2}, "a limit ends": before, "a number is set": {3}}
        assert blas_threads() == after[meanwhile]
    assert blas_threads() == before


# Pickles.


def pickled():
    """Networks of two threads, by what is special in them."""
    params = example((2, 12, 4, 3, 16))[0]
    one_by_one = partial(schedules.wavefront, workers=2, chunk=2)
    made = {
        name: lk.network(name, params, threads=2)
        for name in ("numba-fused", "numba-sample", "numba-tile", "numpy", "sequential")
    }
    wavefront = type(lk.network("numba-wavefront", params))
    made["schedules"] = wavefront(params, 2, schedules=one_by_one)
    return made


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="Numba has one thread")
def test_a_pickle_takes_the_threads_there_are_where_it_is_loaded():
    x, nets = example((2, 12, 4, 3, 16))[1], pickled()
    results = {name: net.forward(x)[0] for name, net in nets.items()}
    code = """
import pickle, sys
nets, x = pickle.load(sys.stdin.buffer)
out = {name: (net.forward(x)[0], net._threads, net._made_with) for name, net in nets.items()}
pickle.dump((out, nets), sys.stdout.buffer)
"""
    one = {"NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    loaded, back = pickle.loads(run(code, sent=pickle.dumps((nets, x)), **one))
    for name, (y, threads, made_with) in loaded.items():
        np.testing.assert_array_equal(y, results[name], err_msg=name)
        assert threads == 1, name
        assert made_with["threads"] == 2, name
    if lk.cores.cores() > 1:  # as they were
        assert {net._threads for net in back.values()} == {2}
    with pytest.raises(ValueError, match="threads: got 4000, want at most"):
        lk.network("numba-fused", nets["numba-fused"].params(), threads=4000)


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="Numba has one thread")
def test_a_copy_in_the_process_keeps_its_threads(monkeypatch):
    nets = pickled()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name, net in nets.items():
        assert copy.copy(net)._threads == copy.deepcopy(net)._threads == 2, name
        assert pickle.loads(pickle.dumps(net))._threads == 1, name


class Rung(NumbaFused):
    name, why = "rung", None

    @classmethod
    def why_unavailable(cls):
        return cls.why


def test_a_pickle_of_a_version_that_cannot_run_here_says_why():
    text = pickle.dumps(Rung(example((1, 1, 1, 1, 1))[0]))
    Rung.why = "there is no such device"
    want = "a pickled 'rung' cannot run here: there is no such device"
    with pytest.raises(lk.UnavailableError, match=want):
        pickle.loads(text)


# Flush to zero, which libraries switch on in threads: torch.set_flush_denormal.

TINY = float(np.finfo(np.float32).tiny)  # the least normal number
MACHINE = platform.machine().lower()
# Where an fenv_t has the register, its bits that flush, and those that are no mode
FLUSH = {"x86_64": (28, 0x8040, 0x3F), "aarch64": (0, 1 << 24, 0)}.get(MACHINE)
flushes = pytest.mark.skipif(
    sys.platform != "linux" or FLUSH is None, reason="fenv_t of Linux alone is known"
)


def mode(new=None):
    """How this thread computes, after it was told to compute so."""
    at, _, notes = FLUSH
    library, room = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    library.fegetenv(room)
    if new is not None:
        room[at : at + 4] = new.to_bytes(4, "little")
        library.fesetenv(room)
    return int.from_bytes(room[at : at + 4], "little") & ~notes


@contextmanager
def flushing():
    """A block in which this thread flushes to zero, and goes on doing so."""
    before = mode()
    try:
        mode(before | FLUSH[1])
        assert np.float32(1e-40) * np.float32(1) == 0
        yield
        assert mode() == before | FLUSH[1]
    finally:
        mode(before)


def everything(net, x, state, target):
    """All numbers of all calls."""
    y, final = net.forward(x, state, training=True)
    numbers = [y, *final, *net.backward(y, final).arrays().values()]
    loss, grads = net.loss_and_grads(x, target)
    numbers += [np.array(loss), *grads.arrays().values(), net.predict(x)]
    net.step(x, target, 1e-3)
    net.epoch(lk.Dataset(x, target), np.arange(x.shape[1]), 2, 1e-3)
    return [*numbers, *net.params().arrays().values()]


def several(name, params, threads, subnormals):
    """A network that keeps subnormal numbers or flushes them."""
    options = {"subnormals": subnormals} if name in COMPILED else {}
    return lk.network(name, params, threads=threads, **options)


# Whether each version is told to keep them: NumPy's always do.
MOST = min(2, numba.config.NUMBA_NUM_THREADS)
KEEPS = [(name, True) for name in IN_USE] + [(name, False) for name in COMPILED]


@flushes
@pytest.mark.parametrize(("name", "subnormals"), KEEPS)
@pytest.mark.parametrize(("B", "cell"), [(6, "lstm"), (16, "gru")])  # no c
def test_what_the_caller_does_with_subnormal_numbers_changes_nothing(
    name, subnormals, B, cell
):
    params, x, target = example((2, 12, B, 3, 16 if cell == "gru" else 20), cell)
    for layer in params.layers:
        layer.b[:] = 0
    params.b_out[:] = 0
    x, target = x * np.float32(1e-39), target * np.float32(0)
    shape = 2, B, params.hidden_size
    state = tuple(np.full(shape, 1e-39, np.float32) for _ in CELLS[cell].state)
    want = everything(several(name, params, 1, subnormals), x, state, target)
    largest = np.abs(want[0]).max()
    assert 0 < largest < TINY if subnormals else largest == 0
    with flushing():
        for threads in (1, MOST, MOST):
            net = several(name, params, threads, subnormals)
            results = everything(net, x, state, target)
            with pytest.raises(ValueError, match=r"^x: got"):
                net.forward(x[:, :, :1])
            for one, other in zip(results, want, strict=True):
                assert one.tobytes() == other.tobytes()
    before = mode()
    everything(several(name, params, MOST, subnormals), x, state, target)
    assert mode() == before


@flushes
def test_threads_of_numpys_products_that_begin_while_a_caller_flushes_do_not():
    code = """
sys.path.insert(0, sys.argv[1])
import test_neighbours as own
with own.flushing():
    y, _ = own.large().forward(own.LARGE)
sys.stdout.buffer.write(y.tobytes())
"""
    y, _ = large().forward(LARGE)
    assert 0 < np.abs(y).max() < TINY
    assert run("import sys\n" + code, os.path.dirname(__file__)) == y.tobytes()


LARGE = np.full((8, 64, 128), 1e-40, np.float32)  # a product that is worth threads


def large():
    params = lk.Params.init(128, 128)
    params.layers[0].b[:] = 0
    return lk.network("numpy", params, threads=2)


@flushes
@pytest.mark.parametrize(("name", "subnormals"), KEEPS)
@pytest.mark.parametrize(("B", "cell"), [(1, "lstm"), (16, "gru")])
def test_gradients_that_fade_become_zero_or_subnormal(name, subnormals, B, cell):
    params, x, _ = example((1, 60, B, 2, 13), cell)
    for array in params.arrays().values():
        array *= np.float32(0.3)
    dy = np.zeros((60, B, 13), np.float32)
    dy[-1] = 1e-24
    exact = lk.network("numpy", params.astype(np.float64))
    exact.forward(x.astype(np.float64), training=True)
    want = exact.backward(dy.astype(np.float64)).x
    assert (np.abs(want) < TINY).mean() > 0.1, "the example says nothing"
    results = []
    for threads in (1, MOST):
        net = several(name, params, threads, subnormals)
        for _ in range(3):  # it autotunes
            net.forward(x, training=True)
            results.append(net.backward(dy).x)
    got = results[0]
    assert all(other.tobytes() == got.tobytes() for other in results)
    for other in (copy.copy(net), pickle.loads(pickle.dumps(net))):
        other.forward(x, training=True)
        assert other.backward(dy).x.tobytes() == got.tobytes()
    least = TINY * 2.0**-23 if subnormals else TINY  # the distance of two numbers
    of_step = np.abs(want).max(axis=(1, 2), keepdims=True)
    assert (np.abs(got - want) <= 1e-4 * of_step + 200 * least).all()
    small = (got != 0) & (np.abs(got) < TINY)
    assert small.any() if subnormals else not small.any()
