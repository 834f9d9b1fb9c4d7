"""A pass that threads partition by units, just past a block. `rank_programs.py` has the
same partition by ranks.
"""

import numpy as np
import pytest

import lstm_kernels as lk
from lstm_kernels.cpu.packing import Layout
from lstm_kernels.cpu.partitions import Partition

UNITS = Partition("units")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_units_agree_with_the_reference_just_past_a_block(cell, dtype):
    block = Layout(lk.cells.CELLS[cell], np.dtype(dtype), 1024).units
    for T, B, beside in ((1, 1, -1), (64, 1, 0), (65, 1, 1), (9, 5, 1)):
        H = 2 * block + beside
        params = lk.Params.init(3, H, cell=cell, dtype=dtype)
        x = np.random.default_rng(0).standard_normal((T, B, 3)).astype(dtype)
        run = lk.network("numba-fused", params, threads=2).bare_forward(x, UNITS)
        run()
        want = lk.network("numpy", params).forward(x)[0]
        np.testing.assert_allclose(run.h[1:, :, :H], want, atol=1e-5)
    for wrong, words in ((x * dtype(np.nan), "got nan at"), (x[:0], "no empty axis")):
        with pytest.raises(ValueError, match=f"^x: .*{words}"):
            lk.network("numba-fused", params).bare_forward(wrong, UNITS)
