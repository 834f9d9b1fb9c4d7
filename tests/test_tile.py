"""`numba-tile` at sizes equal to its tile, one below and one above."""

from itertools import product

import numpy as np
import pytest

import lstm_kernels as lk
from lstm_report.measure import compare_to_reference


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("samples", [1, 3, 4, 5, 8, 9])
def test_sizes_around_the_tile(samples, dtype):
    rng = np.random.default_rng(0)
    for D, H in product((1, 3, 4, 5), (3, 4, 5)):
        params = lk.Params.init(D, H, num_layers=2, dtype=dtype)
        x = rng.standard_normal((3, samples, D)).astype(dtype)
        compare_to_reference("numba-tile", params, x)  # raises MismatchError
