"""tanh and sigmoid as vector code, for the machines of `simd.py`."""

import math

import numpy as np

from .compiled import LIMIT, P, Q

# ln 2 in two parts, the first with trailing zeros: x - n ln 2 loses nothing.
LN2 = 6.93147180369123816490e-01, 1.90821492927058770002e-10


def _polynomial(m, x, coefficients):
    *rest, total = (m.constant(float(c)) for c in coefficients)
    for c in reversed(rest):
        total = m.fma(total, x, c)
    return total


def _tanh_float32(m, x, scale=1):
    """The rational tanh of `compiled.py`, of x / scale and divided by scale, a power of two: the
    scale goes into the coefficients and costs nothing.
    """
    limit = float(LIMIT) * scale
    x = m.clamp(x, -limit, limit)
    s = x * x
    p = [c / scale ** (2 * k + 2) for k, c in enumerate(map(float, P))]
    q = [c / scale ** (2 * k) for k, c in enumerate(map(float, Q))]
    return x * _polynomial(m, s, p) / _polynomial(m, s, q)


def _tanh_float64(m, x):
    """1 - 2 / (exp(2x) + 1), with exp by its Taylor polynomial about a multiple of ln 2."""
    x = m.clamp(x, -20.0, 20.0)  # beyond, tanh is 1 in float64
    x = x + x
    shift = m.constant(1.5 * 2**52)  # adding it leaves no room for a fraction: it rounds
    n = m.fma(x, m.constant(1 / math.log(2)), shift) - shift
    r = m.fma(n, m.constant(-LN2[1]), m.fma(n, m.constant(-LN2[0]), x))
    exp = _polynomial(m, r, [1 / math.factorial(k) for k in range(14)]) * m.power_of_two(n)
    one = m.constant(1.0)
    return one - (one + one) / (exp + one)


def functions(m):
    """tanh and sigmoid(x) = (1 + tanh(x / 2)) / 2 for a machine's dtype, as arithmetic only."""
    half = m.constant(0.5)
    if m.dtype == np.float32:
        return lambda x: _tanh_float32(m, x), lambda x: _tanh_float32(m, x, scale=2) + half
    return lambda x: _tanh_float64(m, x), lambda x: m.fma(half, _tanh_float64(m, half * x), half)
