"""Shared by the tests: the versions, the cells and odd shapes."""

import numpy as np
import pytest

import lstm_kernels as lk
from lstm_kernels.cells import CELLS

VERSIONS = [v.name for v in lk.versions() if v.target == "cpu" and not v.why_unavailable]
# L, T, B, D, H: ones, sizes just past a block of 8 or 16, D != H, more samples than threads.
SHAPES = [
    (1, 1, 1, 1, 1),
    (1, 5, 3, 2, 7),
    (2, 4, 1, 3, 17),
    (3, 3, 9, 5, 8),
    (1, 12, 16, 1, 32),
    (2, 3, 17, 33, 9),
]


@pytest.fixture(params=CELLS)
def cell(request):
    return request.param


@pytest.fixture(params=VERSIONS)
def version(request):
    return request.param


def example(shape, cell="lstm", dtype=np.float32, output_size=2, seed=0):
    """Parameters, x (T, B, D) and target (B, O) for a shape (L, T, B, D, H)."""
    L, T, B, D, H = shape
    rng = np.random.default_rng(seed)
    params = lk.Params.init(D, H, L, output_size, cell, seed=seed, dtype=dtype)
    x = rng.standard_normal((T, B, D)).astype(dtype)
    return params, x, rng.standard_normal((B, output_size or 1)).astype(dtype)
