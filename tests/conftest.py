"""Shared by the tests: the versions, the cells and odd shapes. Where there is no CUDA
driver the GPU versions run in Numba's simulator, slowly.
"""

import os
import signal
import sys
import traceback
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from lstm_report.measure.provenance import simulate_without_gpu

# A shell that starts the tests in the background ignores SIGINT, and so would they.
signal.signal(signal.SIGINT, signal.default_int_handler)
SIMULATED = simulate_without_gpu()
if SIMULATED:
    # Its threads are Python's, and often wait for each other
    sys.setswitchinterval(1e-4)

import lstm_kernels as lk  # noqa: E402
from lstm_kernels.cells import CELLS, Cell  # noqa: E402

VERSIONS = [v.name for v in lk.versions() if not v.why_unavailable]
# Those that a user's process does things to. What other versions of NumPy and plain
# Python would show of it, `numpy` does, and `numba-sample` what `numba-tile` would,
# which `make test-hostile` asks all the same.
HOSTILE = "LSTM_KERNELS_HOSTILE" in os.environ
ALIKE = ["sequential", "numpy-sample"]
ALIKE += [] if HOSTILE else ["numpy-naive", "numba-tile"]
IN_USE = [v for v in VERSIONS if not v.startswith("cuda") and v not in ALIKE]
COMPILED = [name for name in IN_USE if name.startswith("numba")]


def coupled(tanh, sigmoid):
    """An LSTM with coupled gates, f = 1 - i (Greff et al. 2017)."""

    def forward(i_bar, g_bar, o_bar, c_prev):
        i, o = sigmoid(i_bar), sigmoid(o_bar)
        g = tanh(g_bar)
        c = c_prev + i * (g - c_prev)
        return i, g, o, o * tanh(c), c

    def backward(dh, dc, i, g, o, c_prev, c):
        tanh_c = tanh(c)
        do, dtanh_c = dh * tanh_c, dh * o
        dc = dc + dtanh_c - dtanh_c * tanh_c * tanh_c
        di, dg = dc * (g - c_prev), dc * i
        return (di - di * i) * i, dg - dg * g * g, (do - do * o) * o, dc - dc * i

    return forward, backward


# A new cell is two functions and a line in CELLS: of any number of gates.
COUPLED = Cell("coupled", ("i", "g", "o"), (0, 1, 2), (0, 1, 2), ("h", "c"), coupled)
ALL_CELLS = [*CELLS, COUPLED.name]


@pytest.fixture(autouse=True)
def one_cell_more(monkeypatch, request):
    """CELLS has that cell in tests of ALL_CELLS."""
    of_test = getattr(request.node, "callspec", None)
    if of_test and of_test.params.get("cell") == COUPLED.name:
        monkeypatch.setitem(CELLS, COUPLED.name, COUPLED)


# HOSTILE: from another seed every time.
settings.register_profile(
    "suite",
    deadline=None,
    database=None,
    derandomize=not HOSTILE,
    suppress_health_check=[*HealthCheck],
)
settings.load_profile("suite")
# L, T, B, D, H: ones, sizes just past a block of 8 or 16, D != H, more samples than
# threads.
SHAPES = [
    (1, 1, 1, 1, 1),
    (1, 5, 3, 2, 7),
    (2, 4, 1, 3, 17),
    (3, 3, 9, 5, 8),
    (1, 12, 16, 1, 32),
    (2, 3, 17, 33, 9),
]
# Hidden units equal to a vector, a unit block and a wide block of some instruction set,
# in either dtype, and one less and one more: where storage has no padding, other code
# runs.
EDGES = [H + beside for H in (4, 8, 16, 32, 64, 128) for beside in (-1, 0, 1)]


@pytest.fixture(autouse=True)
def no_figure_is_left_open():
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


@pytest.fixture(params=["rnn", "lstm", "gru"])
def cell(request):
    """Of the papers; a new one is in ALL_CELLS alone."""
    return request.param


@pytest.fixture(params=VERSIONS)
def version(request):
    return request.param


def example(shape, cell="lstm", dtype=np.float32, output_size=2, seed=0):
    """Parameters, x (T, B, D) and target (B, O) for a shape (L, T, B, D, H)."""
    L, T, B, D, H = shape
    rng = np.random.default_rng(seed)
    options = {
        "num_layers": L,
        "output_size": output_size,
        "cell": cell,
        "dtype": dtype,
    }
    params = lk.Params.init(D, H, seed=seed, **options)
    x = rng.standard_normal((T, B, D)).astype(dtype)
    return params, x, rng.standard_normal((B, output_size or 1)).astype(dtype)


@contextmanager
def ctrl_c_after(seconds):
    """A block that one KeyboardInterrupt ends, as of Ctrl-C after so many seconds; one
    that is lost fails after twenty more.
    """
    raised = []

    def alarm(number, frame):
        names = {one.f_code.co_name for one, _ in traceback.walk_stack(frame)}
        if names & {"remove", "_remove", "__del__", "gc_callback"}:
            # Python drops an exception in the callback of a weak reference, of the
            # garbage collector and in a finaliser, and in what they call.
            signal.setitimer(signal.ITIMER_REAL, 1e-3, 20)
            return
        raised.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, alarm)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, 20)
        with pytest.raises(KeyboardInterrupt):
            yield
        assert len(raised) == 1, "an interrupt was lost"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
