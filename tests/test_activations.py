"""tanh and sigmoid of the compiled versions against NumPy's in more digits, up to closed gates."""

import ctypes

import numpy as np
import pytest
from conftest import VERSIONS, example
from numba import njit

import lstm_kernels as lk
from lstm_kernels import reference
from lstm_kernels.cells import CELLS
from lstm_kernels.lab.compare import TOLERANCE, compare
from lstm_kernels.versions import activations, cuda_functions, registers, simd
from lstm_kernels.versions.checked import Checked

DTYPES = [np.dtype(np.float32), np.dtype(np.float64)]
COMPILED = [v for v in VERSIONS if v.startswith("numba")]
SIMULATED = [v for v in VERSIONS if v.startswith("cuda")]
# The largest errors, measured over every float32: absolute, relative. Of sigmoid the relative error
# grows to the left where a product and its sum are rounded one by one: with |x| 2^-24.
BOUNDS = {
    "float32": {"tanh": (9.3e-8, 2.8e-7), "sigmoid": (9.3e-8, 3.7e-7)},
    "float64": {"tanh": (2.3e-16, 5e-16), "sigmoid": (2.3e-16, 4e-16)},
}
UNFUSED = 4.5e-6


def arguments(dtype):
    """Numbers of every size and sign, NaN and infinities among them, and the thresholds."""
    bits, step = (np.uint32, 4099) if dtype.itemsize == 4 else (np.uint64, 2**45 - 1)
    every = np.arange(0, np.iinfo(bits).max, step, dtype=bits)
    bias, digits = 1 - np.finfo(dtype).minexp, np.finfo(dtype).nmant
    halves = np.arange(-2 * bias - 4, 2 * digits + 12) * (np.log(2) / 4)  # where n changes
    near = np.nextafter(halves.astype(dtype), 0).view(bits)[:, None] + np.arange(8, dtype=bits)
    some = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, *TOPS[dtype.name]], dtype).view(bits)
    some = some[:, None] + np.arange(-64, 64).astype(bits)
    x = np.concatenate([every, near.ravel(), some.ravel()]).view(dtype)
    x = np.concatenate([x, np.linspace(-40, 40, 200_000, dtype=dtype)])
    return np.append(x, np.zeros(-len(x) % 64, dtype))


# Beyond the first tanh is 1, beyond the second sigmoid; below the third e^x has no more digits.
TOPS = {"float32": (9.0109, 17.3287, -87.3365), "float64": (19.0615, 36.7368, -708.3964)}


def traced(dtype, x):
    """tanh(x), sigmoid(x) of the vector code."""
    lanes = registers.vector_registers().bytes // dtype.itemsize
    t, s = np.empty_like(x), np.empty_like(x)
    tile = simd.compiled(curves, dtype, lanes, f"test_{dtype}")
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(tile)
    call(len(x) // lanes, *(a.ctypes.data for a in (x, t, s)))
    return t, s


def curves(m, count, x, t, s):
    tanh, sigmoid = activations.functions(m)

    def body(i):
        here = i * (m.lanes * m.dtype.itemsize)
        m.store(t + here, tanh(m.load(x + here)))
        m.store(s + here, sigmoid(m.load(x + here)))

    m.loop(count, body)


def checked(dtype, x):
    """The same in NumPy."""
    t, s = np.empty_like(x), np.empty_like(x)
    m = Checked(dtype, len(x), [x, t, s])
    curves(m, 1, *(a.ctypes.data for a in (x, t, s)))
    return t, s


def numbers(dtype, x):
    """The same on numbers, as numba-sample does."""
    tanh, sigmoid = (simd.of_numbers(f, dtype) for f in (activations.tanh, activations.sigmoid))

    @njit
    def apply(x, t, s):
        for i in range(len(x)):
            t[i], s[i] = tanh(x[i]), sigmoid(x[i])

    t, s = np.empty_like(x), np.empty_like(x)
    apply(x, t, s)
    return t, s


def device(dtype, x):
    """The functions of the GPU, as the simulator runs them."""
    x = x[::17]
    real = dtype.type
    return [
        np.array([f(value) for value in map(real, x)]).astype(dtype).repeat(17)[: 17 * len(x)]
        for f in (cuda_functions.tanh, cuda_functions.sigmoid)
    ]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # signalling NaN, in NumPy
@pytest.mark.parametrize("run", [traced, checked, numbers])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tanh_and_sigmoid_are_accurate(dtype, run):
    x = arguments(dtype)
    check(dtype, x, *run(dtype, x), fused=run is not checked and registers.vector_registers().fused)


def check(dtype, x, t, s, fused):
    got, want = {"tanh": t, "sigmoid": s}, exact(x)
    number = ~np.isnan(x)
    for name, value in got.items():
        assert np.array_equal(np.isnan(value), ~number)
        value, true = value[number], want[name][number]
        absolute, relative = BOUNDS[dtype.name][name]
        error, size = np.abs(value - true), np.abs(true)
        assert error.max() < absolute
        assert np.abs(value).max() == 1
        for end in (-1, 1):  # closed
            assert (value[true.astype(dtype) == end] == end).all()
        if name == "sigmoid" and dtype == np.float32 and not fused:
            relative = UNFUSED
        normal = size > np.finfo(dtype).tiny
        assert (error[normal] / size[normal]).max() < relative
    assert (s[want["sigmoid"] == 0] == 0).all()
    assert (s[x < 1.01 * TOPS[dtype.name][2]] == 0).all()


def exact(x):
    """tanh and sigmoid in longer numbers, the sigmoid without loss to the left."""
    x = x.astype(np.float64 if x.dtype == np.float32 else np.longdouble)
    small = np.exp(-np.abs(x))
    return {"tanh": np.tanh(x), "sigmoid": np.where(x < 0, small, 1) / (1 + small)}
