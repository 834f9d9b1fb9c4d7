"""tanh and sigmoid of the compiled versions, and what a closed gate makes of them."""

import math
import os

import numpy as np
import pytest
from conftest import VERSIONS
from numba import njit

import lstm_kernels as lk
from lstm_kernels.cells import CELLS
from lstm_kernels.cpu import activations, registers, simd
from lstm_kernels.cpu.micro_kernels import passes
from lstm_kernels.gpu import available, build
from lstm_report.experiments.vectors import for_python
from lstm_report.measure.comparer import TOLERANCE, compare, run, truth

DTYPES = [np.dtype(np.float32), np.dtype(np.float64)]
COMPILED = ["numba-sample", "numba-fused"]  # all others call the code of one of them
# The largest errors, absolute and relative. The functions keep these bounds wherever a
# product is added without being rounded; `make test-hostile` tries every float32.
BOUNDS = {
    "float32": {"tanh": (9.6e-8, 2.7e-7), "sigmoid": (9.1e-8, 3.7e-7)},
    "float64": {"tanh": (2.3e-16, 6e-16), "sigmoid": (2.3e-16, 4e-16)},
}
UNFUSED = 4.5e-6  # relative, of float32's sigmoid at -87 where products are rounded


def arguments(dtype):
    """Numbers of every size and sign, infinities and NaN, and those beside the
    thresholds.
    """
    bits, step = (np.uint32, 4099) if dtype.itemsize == 4 else (np.uint64, 2**45 - 1)
    sizes = np.arange(0, np.iinfo(bits).max, step, dtype=bits)
    # Multiples of ln 2 / 4: where n changes, and where a result becomes 0 or 1.
    thresholds = math.log(2) / 4 * np.arange(-4 * _bias(dtype) - 4, 4 * _digits(dtype))
    at = np.append(thresholds, [0.0, -0.0, np.inf, -np.inf]).astype(dtype).view(bits)
    beside = at[:, None] + np.arange(-16, 17).astype(bits)
    x = np.concatenate([sizes, beside.ravel()]).view(dtype)
    x = np.concatenate([x, np.linspace(-40, 40, 200_000, dtype=dtype)])
    x[np.isnan(x)] = np.nan  # quiet
    return np.append(x, np.zeros(-len(x) % 64, dtype))


def _bias(dtype):
    return 1 - np.finfo(dtype).minexp


def _digits(dtype):
    return np.finfo(dtype).nmant


def exact(x):
    """tanh and sigmoid in more digits, and how far they are from their limit on this
    side.
    """
    x = x.astype(np.float64 if x.dtype == np.float32 else np.longdouble)
    small = np.exp(-np.abs(x))
    sigmoid = np.where(x < 0, small, 1) / (1 + small)
    near_tanh = 2 * small * small / (1 + small * small)
    return {"tanh": (np.tanh(x), near_tanh), "sigmoid": (sigmoid, small / (1 + small))}


def curves(m, x: passes("columns"), t: passes(), s: passes()):
    tanh, sigmoid = activations.functions(m)
    for i in m.each(x.columns, m.lanes):
        vector = m.load(x.moved(i * x.size).address)
        m.store(t.moved(i * x.size).address, tanh(vector))
        m.store(s.moved(i * x.size).address, sigmoid(vector))


def of_vectors(x):
    """tanh and sigmoid of x by the vector code."""
    t, s = np.empty_like(x), np.empty_like(x)
    lanes = registers.vector_registers().bytes // x.itemsize
    run = for_python(curves, x.dtype, lanes, f"test_{x.dtype}")
    run(*(a.reshape(1, -1) for a in (x, t, s)))
    return {"tanh": t, "sigmoid": s}


def check_accuracy(x):
    """What vectors make of x is within the bounds, exact where a gate is closed, and
    odd or 0 where it should be; returned.
    """
    dtype, number = x.dtype, ~np.isnan(x)
    got, want = of_vectors(x), exact(x)
    for name, value in got.items():
        assert np.array_equal(np.isnan(value), ~number)
        value, (true, rest) = value[number], (array[number] for array in want[name])
        absolute, relative = BOUNDS[dtype.name][name]
        if (dtype.name, name) == ("float32", "sigmoid"):
            relative = relative if registers.vector_registers().fused else UNFUSED
        error = np.abs(value - true)
        assert error.max(initial=0) < absolute
        assert np.abs(value).max(initial=0) <= 1
        closed = rest < 2.0 ** -(_digits(dtype) + 2)  # half of the spacing below 1
        left = {"tanh": -1, "sigmoid": value}[name]
        assert (value == np.where(x[number] > 0, 1, left))[closed].all()
        normal = np.abs(true) >= np.finfo(dtype).tiny
        assert (error[normal] / np.abs(true[normal])).max(initial=0) < relative
    assert (got["sigmoid"] == 0)[x < (0.5 - _bias(dtype)) * math.log(2)].all()
    assert np.array_equal(got["tanh"][number], -of_vectors(-x)["tanh"][number])
    return got


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tanh_and_sigmoid_are_accurate_and_the_same_for_numbers(dtype):
    x = arguments(dtype)
    for name, value in check_accuracy(x).items():
        of_number = simd.of_numbers(getattr(activations, name), dtype)
        each = njit(lambda x, f=of_number: np.array([f(one) for one in x]))
        np.testing.assert_array_equal(each(x), value)


@pytest.mark.skipif(
    "LSTM_KERNELS_HOSTILE" not in os.environ, reason="all floats take ten minutes"
)
def test_every_float32_is_within_the_bounds():
    with np.errstate(invalid="ignore"):  # NaN that signal
        for first in range(0, 1 << 32, 1 << 22):
            bits = np.arange(first, first + (1 << 22)).astype(np.uint32)
            check_accuracy(bits.view(np.float32))


@pytest.mark.skipif(
    available.why_unavailable() is not None, reason="no CUDA, nor its simulator"
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sigmoid_of_the_gpu_is_right_at_both_ends(dtype):
    """As Python, in which math.exp raises OverflowError."""
    sigmoid = build.sigmoid_for(dtype.type)
    sizes = -1e30, -1e6, -720, -30, -1, -0.0, 0, 1, 30, 1e6, np.inf, -np.inf
    x = np.array(sizes, dtype)
    got = np.array([sigmoid(value) for value in x])
    want = exact(x)["sigmoid"][0].astype(dtype)
    np.testing.assert_allclose(got, want, rtol=4 * np.finfo(dtype).eps, atol=0)
    assert math.isnan(sigmoid(dtype.type(np.nan)))


HELD = [(version, 100_000, 1e-2) for version in COMPILED]
HELD += [(version, 3, 1e-4) for version in VERSIONS if version.startswith("cuda")]


@pytest.mark.parametrize(("version", "T", "rtol"), HELD)
def test_a_closed_gate_keeps_the_cell(version, T, rtol):
    """The state of an LSTM after T steps, its gates' pre-activations held."""
    params = lk.Params.init(1, 4)
    layer, x = params.layers[0], np.zeros((T, 1, 1), np.float32)
    for g, c, want, within in ((0, 0.5, 0.5, 0), (30, 0, T * 9.3576e-14, rtol)):
        layer.U[:], layer.W[:], layer.b[:] = 0, 0, np.repeat([-30, 30, g, 30], 4)
        start = np.zeros((1, 1, 4), np.float32), np.full((1, 1, 4), c, np.float32)
        _, (_, got) = lk.network(version, params).forward(x, start)
        np.testing.assert_allclose(got, np.float32(want), rtol=within)


LARGE = [(cell, size, 1) for cell in ("rnn", "lstm", "gru") for size in (1e6, 1e9)]
LARGE += [("gru", 1, size) for size in (1e3, 1e6, 1e30)]


@pytest.mark.parametrize(("cell", "inputs", "states"), LARGE)
@pytest.mark.parametrize("version", COMPILED)
def test_saturated_units_have_the_references_gradients(version, cell, inputs, states):
    # With this seed no gate is half open at 1e6, where the sums of any float32 would
    # show.
    rng = np.random.default_rng(8)
    params = lk.Params.init(3, 17, cell=cell, seed=1)
    x, dy = (rng.standard_normal((5, 4, size)).astype(np.float32) for size in (3, 17))
    x *= np.float32(inputs)
    state, dstate = (
        tuple(
            (size * rng.uniform(-1, 1, (1, 4, 17))).astype(x.dtype)
            for _ in CELLS[cell].state
        )
        for size in (states, 1)
    )
    got = run(lk.network(version, params), x, dy, state, dstate)
    compare(got, truth(params, x, dy, state, dstate), TOLERANCE[x.dtype])
