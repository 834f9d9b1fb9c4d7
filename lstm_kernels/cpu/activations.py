"""tanh and sigmoid as arithmetic, for the emitter of `simd.py`: exact where a gate is
closed.

Both split e^y into s (1 + w) / (1 - w), with y = n ln 2 + r, s = 2^n and w = tanh(r /
2): one division, no cancellation near 0, and 0, 1 or -1 where the true value rounds to
it. NaN stays. In float32 both are within 1e-7, tanh relatively within 2.7e-7 and
sigmoid within 3.7e-7 (4.5e-6 far on the left where products are rounded before they are
added); a test tries all floats.
"""

import math
from functools import partial

import numpy as np


def _tanh_series(terms):
    """The coefficients of x, x^3, x^5, ... in tanh x, from tanh' = 1 - tanh^2."""
    c = [1.0]
    for k in range(1, terms):
        c.append(-sum(a * b for a, b in zip(c, reversed(c), strict=True)) / (2 * k + 1))
    return c


# tanh(x) / x by powers of x^2, for |x| <= ln(2) / 4: within 6e-8, fitted so that the
# largest error is smallest, and within 1e-17.
TANH = {np.float32: (1.0, -0.33331269, 0.13110459), np.float64: _tanh_series(9)}
# ln 2; in float64 as two parts, the first with trailing zeros: x - n ln 2 loses
# nothing.
LN2 = {
    np.float32: (math.log(2),),
    np.float64: (6.93147180369123816490e-01, 1.90821492927058770002e-10),
}


def _bias(m):
    """What the bits of an exponent hold for 1: 127 or 1023."""
    return 1 - np.finfo(m.dtype).minexp


def _beyond(m):
    """Where 1 + e^-y is 1, with room to spare."""
    return (np.finfo(m.dtype).nmant + 4) * math.log(2)


def _split(m, x, scale):
    """s, r and p with e^(scale x) = s (1 + r p) / (1 - r p); s is a power of two."""
    real, digits = m.dtype.type, np.finfo(m.dtype).nmant
    # A sum with it has no bits for a fraction: it rounds, and its last bits are n +
    # bias.
    shift = m.constant(1.5 * 2.0**digits + _bias(m))
    shifted = x * m.constant(scale / math.log(2)) + shift
    n, r = shifted - shift, x
    for part in LN2[real]:
        r = n * m.constant(-part / scale) + r
    square = r * r
    *rest, p = (
        m.constant(c * (scale / 2) ** (2 * k + 1)) for k, c in enumerate(TANH[real])
    )
    for c in reversed(rest):
        p = p * square + c
    return m.exponent(shifted), r, p


def tanh(m, x):
    """(e^2x - 1) / (e^2x + 1) of |x|, with the sign of x: the rounding of the numerator
    is in both.
    """
    s, r, p = _split(m, m.clamp(m.magnitude(x), 0.0, _beyond(m) / 2), 2)
    one, half = m.constant(1.0), m.constant(0.5)
    mean = s * half + half
    excess = mean * r * p + (mean - one)
    return m.copysign(excess / (excess + (one - r * p)), x)


def sigmoid(m, x):
    """e^x / (e^x + 1); 0 where e^x is below the smallest power of two."""
    s, r, p = _split(m, m.clamp(x, -_bias(m) * math.log(2), _beyond(m)), 1)
    part = s * r * p + s
    return part / (part + (m.constant(1.0) - r * p))


def functions(m):
    """tanh and sigmoid on an emitter's vectors."""
    return partial(tanh, m), partial(sigmoid, m)
