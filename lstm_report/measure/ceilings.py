"""What kernels are compared with: BLAS's SGEMM, and copying memory."""

from typing import Any

import numpy as np
import pandas as pd

from .comparer import compare
from .runner import timed

SIZE = 4096  # rows of the SGEMM's matrices
COUNT = 2**26  # float32 numbers of the copy
SGEMM_GFLOP = 2 * SIZE**3 / 1e9


def ceilings(
    threads: int, *, size: int = SIZE, count: int = COUNT, **options: Any
) -> pd.DataFrame:
    """Seconds of an SGEMM by BLAS, size x size, and of copying `count` numbers, as rows
    of a results file; BLAS takes its own threads, `threads` is what the rows record.
    """
    a = np.random.default_rng(0).standard_normal((size, size), dtype=np.float32)
    out, source = np.zeros_like(a), np.ones(count, np.float32)
    copy = np.zeros_like(source)
    cases = {
        "sgemm": lambda: np.matmul(a, a, out=out),
        "copy": lambda: np.copyto(copy, source),
    }

    def check():
        for run in cases.values():
            run()
        row = a[0].astype(np.float64) @ a
        return {
            "sgemm": compare({"row": out[0]}, {"row": row}, 1e-5),
            "copy": compare({"copy": copy}, {"copy": source}, 0.0),
        }

    times = timed({"ceiling": cases}, check, wait=True, **options)
    return times.rename(columns={"case": "version"}).assign(threads=threads)
