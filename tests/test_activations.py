"""tanh and sigmoid of the compiled versions, and what a closed gate makes of them."""

import math
import os

import numpy as np
import pytest
from conftest import VERSIONS
from numba import njit, prange

import lstm_kernels as lk
from lstm_kernels.cells import CELLS
from lstm_kernels.cpu import activations, registers, simd
from lstm_kernels.cpu.micro_kernels import passes
from lstm_kernels.gpu import available, build
from lstm_report.experiments.vectors import for_python
from lstm_report.measure.comparer import TOLERANCE, compare, run, truth

DTYPES = [np.dtype(np.float32), np.dtype(np.float64)]
COMPILED = [v for v in VERSIONS if v.startswith("numba")]
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


def traced(x, t, s):
    """tanh(x) and sigmoid(x) of the vector code."""
    lanes = registers.vector_registers().bytes // x.itemsize
    run = for_python(curves, x.dtype, lanes, f"test_{x.dtype}")
    run(*(a.reshape(1, -1) for a in (x, t, s)))


def of_numbers(dtype):
    made = activations.tanh, activations.sigmoid
    return [simd.of_numbers(f, dtype) for f in made]


def numbers(x, t, s):
    """The same code for numbers, as in numba-sample."""
    tanh, sigmoid = of_numbers(x.dtype)

    @njit
    def apply(x, t, s):
        for i in range(len(x)):
            t[i], s[i] = tanh(x[i]), sigmoid(x[i])

    apply(x, t, s)


def curves_by(run, x):
    t, s = np.empty_like(x), np.empty_like(x)
    run(x, t, s)
    return {"tanh": t, "sigmoid": s}


@pytest.mark.parametrize("run", [traced])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tanh_and_sigmoid_are_accurate(dtype, run):
    x = arguments(dtype)
    got, want, number = curves_by(run, x), exact(x), ~np.isnan(x)
    for name, value in got.items():
        assert np.array_equal(np.isnan(value), ~number)
        value, (true, rest) = value[number], (array[number] for array in want[name])
        absolute, relative = BOUNDS[dtype.name][name]
        if name == "sigmoid" and dtype == np.float32:
            fused = registers.vector_registers().fused
            relative = relative if fused else UNFUSED
        error = np.abs(value - true)
        assert error.max() < absolute
        assert np.abs(value).max() == 1
        closed = rest < 2.0 ** -(_digits(dtype) + 2)  # half of the spacing below 1
        left = {"tanh": -1, "sigmoid": value}[name]
        assert (value == np.where(x[number] > 0, 1, left))[closed].all()
        normal = np.abs(true) >= np.finfo(dtype).tiny
        assert (error[normal] / np.abs(true[normal])).max() < relative
    assert (got["sigmoid"] == 0)[x < (0.5 - _bias(dtype)) * math.log(2)].all()
    assert np.array_equal(got["tanh"][number], -curves_by(run, -x)["tanh"][number])
    if run is traced:
        for name, value in curves_by(numbers, x).items():
            np.testing.assert_array_equal(value, got[name])


@pytest.mark.skipif(
    "LSTM_KERNELS_HOSTILE" not in os.environ, reason="all floats take a minute"
)
def test_every_float32_is_within_the_bounds():
    """Of numbers: vectors have the same bits. The true values are of float64."""
    dtype = np.dtype(np.float32)
    tanh, sigmoid = of_numbers(dtype)
    tiny = np.finfo(dtype).tiny

    @njit(parallel=True)
    def largest(x):
        """Absolute and relative errors of tanh, then of sigmoid."""
        t_error, t_relative, s_error, s_relative = 0.0, 0.0, 0.0, 0.0
        for i in prange(len(x)):
            exact, small = np.float64(x[i]), math.exp(-abs(np.float64(x[i])))
            t, s = math.tanh(exact), (small if exact < 0 else 1.0) / (1.0 + small)
            t_off, s_off = abs(tanh(x[i]) - t), abs(sigmoid(x[i]) - s)
            if math.isnan(t_off + s_off):  # which no max would show
                t_off = s_off = math.inf
            t_error, s_error = max(t_error, t_off), max(s_error, s_off)
            t_relative = max(t_relative, t_off / abs(t) if abs(t) >= tiny else 0.0)
            s_relative = max(s_relative, s_off / s if s >= tiny else 0.0)
        return t_error, t_relative, s_error, s_relative

    worst, count = np.zeros(4), 1 << 24
    for first in range(0, 1 << 32, count):
        x = np.arange(first, first + count, dtype=np.uint32).view(dtype)
        worst = np.maximum(worst, largest(x[~np.isnan(x)]))
    bounds = [*BOUNDS[dtype.name]["tanh"], *BOUNDS[dtype.name]["sigmoid"]]
    if not registers.vector_registers().fused:
        bounds[-1] = UNFUSED
    assert (worst < bounds).all()


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


LARGE = [(cell, size, 1) for cell in CELLS for size in (1e6, 1e9)]
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
