"""`numba-tile`: four samples at a time, a register tile in plain Numba.

What changed from `numba-sample`: a product takes four samples and four rows of the
weights at once, 16 multiply-adds for four loads of weights and four sums. Threads take
four samples each. Bounded by the sums, which are loaded and stored for every four rows
of the weights, and for larger networks by weights that leave the cache between samples.
"""

from functools import partial

from numba import njit, prange

from ..cpu.fp_mode import FLUSH, exchange_fp_mode
from ..kernels import OPTIONS
from . import numba_sample
from .numba_sample import NumbaSample, add_product, backward_units, forward_units

FP_MODE = FLUSH  # as of `numba_sample`


@njit(**OPTIONS)
def four(v, k):
    """v[k] to v[k+3], a tuple."""
    return v[k], v[k + 1], v[k + 2], v[k + 3]


@njit(**OPTIONS)
def add_tile(out, v, M):
    """out (4, n) += v (4, k) @ M (k, n), k a multiple of four."""
    out_a, out_b, out_c, out_d = four(out, 0)
    for k in range(0, len(M), 4):
        M0, M1, M2, M3 = four(M, k)
        a, b, c, d = four(v[0], k), four(v[1], k), four(v[2], k), four(v[3], k)
        for j in range(len(M0)):  # becomes vector code
            m0, m1, m2, m3 = M0[j], M1[j], M2[j], M3[j]
            out_a[j] += a[0] * m0 + a[1] * m1 + a[2] * m2 + a[3] * m3
            out_b[j] += b[0] * m0 + b[1] * m1 + b[2] * m2 + b[3] * m3
            out_c[j] += c[0] * m0 + c[1] * m1 + c[2] * m2 + c[3] * m3
            out_d[j] += d[0] * m0 + d[1] * m1 + d[2] * m2 + d[3] * m3


@njit(**OPTIONS)
def add_rows(out, v, M):
    """out (m, n) += v (m, k) @ M (k, n): in tiles, and what they leave row by row."""
    m, k = len(v) - len(v) % 4, len(M) - len(M) % 4
    for r in range(0, m, 4):
        add_tile(out[r : r + 4], v[r : r + 4], M[:k])
        if k < len(M):
            for i in range(r, r + 4):
                add_product(out[i], v[i, k:], M[k:])
    for r in range(m, len(v)):
        add_product(out[r], v[r], M)


def forward_tiles(x, U, W, b, h, c, gates):
    """`numba_sample.forward_samples`, four samples at a time."""
    T, B, _ = x.shape
    for tile in prange((B + 3) // 4):
        mode, first, last = exchange_fp_mode(FP_MODE), 4 * tile, min(4 * tile + 4, B)
        for t in range(T):
            a = gates[t, first:last]
            a[:] = b
            add_rows(a, x[t, first:last], U)
            add_rows(a, h[t, first:last], W)
            for s in range(first, last):
                forward_units(gates[t, s], h[t + 1, s], c[t, s], c[t + 1, s])
        exchange_fp_mode(mode)


def backward_tiles(dy, U_T, W_T, c, gates, dh, dc, da, dx):
    """`numba_sample.backward_samples`, four samples at a time."""
    T, B, _ = dy.shape
    for tile in prange((B + 3) // 4):
        mode, first, last = exchange_fp_mode(FP_MODE), 4 * tile, min(4 * tile + 4, B)
        for t in range(T - 1, -1, -1):
            for s in range(first, last):
                backward_units(
                    *(dy[t, s], dh[s], dc[s]),
                    *(gates[t, s], c[t, s], c[t + 1, s], da[t, s]),
                )
            d = da[t, first:last]
            dh[first:last], dx[t, first:last] = 0, 0
            add_rows(dh[first:last], d, W_T)
            add_rows(dx[t, first:last], d, U_T)
        exchange_fp_mode(mode)


def product_tiles(z, da, out):
    """out (m, n) += z (N, m).T @ da (N, n): an iteration owns four rows of out."""
    m = z.shape[1]
    for tile in prange((m + 3) // 4):
        mode, first, last = exchange_fp_mode(FP_MODE), 4 * tile, min(4 * tile + 4, m)
        add_rows(out[first:last], z[:, first:last].T, da)
        exchange_fp_mode(mode)


class NumbaTile(NumbaSample):
    name = "numba-tile"
    layer_forward = staticmethod(
        partial(numba_sample.layer_forward, kernel=forward_tiles)
    )
    layer_backward = staticmethod(
        partial(
            numba_sample.layer_backward, kernel=backward_tiles, product=product_tiles
        )
    )
