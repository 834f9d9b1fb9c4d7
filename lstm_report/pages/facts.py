"""What several pages know of the machine, measured once for all of them: the rate of a
core on registers alone and in a matrix product, and what it takes to hand a cache line
to another core.
"""

from functools import partial

import numpy as np
import pandas as pd

from lstm_kernels import cores
from lstm_kernels.blas import single_threaded

from ..experiments import handover, vectors
from ..measure.evidence import Interval, seconds
from ..measure.timing import interleaved, together
from ..notebook import Shared

SIZE = 1024  # rows of the matrices of the SGEMM
WEIGHTS = 2**21  # numbers that are read again and again: a layer's of 512 units


def measure_machine(rounds: int) -> pd.DataFrame:
    """Seconds of 1e9 operations on registers and in an SGEMM on one core, of reading
    1e9 bytes of weights, and of handing eight bytes to the other core, one way; by
    `case`.
    """
    a = np.random.default_rng(0).standard_normal((SIZE, SIZE), np.float32)
    product = partial(np.matmul, a, a, out=np.empty_like(a))
    weights = np.ones(WEIGHTS, np.float32)
    with single_threaded():
        cases = {"SGEMM": product, "read": partial(np.dot, weights, weights)}
        library = interleaved(cases, repeats=rounds)
    of_1e9 = {"SGEMM": 2e-9 * SIZE**3, "read": 1e-9 * weights.nbytes}
    library["seconds"] /= library["case"].map(of_1e9)
    found = [1 / vectors.register_peak() for _ in range(rounds)]
    registers = {"case": "registers", "repeat": range(rounds), "seconds": found}
    parts = [library, pd.DataFrame(registers)]
    if cores.cores() > 1:
        lines = handover.hand_overs(None, sizes=(8,), repeats=rounds)
        parts.append(lines[lines["case"] == "line"][["case", "repeat", "seconds"]])
    return together(parts)


MACHINE = Shared(measure_machine, smoke={"rounds": 2}, paper={"rounds": 5})


def roof(rows: pd.DataFrame) -> Interval:
    """GFLOP/s of one core in multiply-adds on registers alone."""
    return Interval.of(1 / seconds(rows)["registers"])


def sgemm(rows: pd.DataFrame) -> Interval:
    """GFLOP/s of one core in a product of matrices by the BLAS library."""
    return Interval.of(1 / seconds(rows)["SGEMM"])


def reading(rows: pd.DataFrame) -> Interval:
    """GB/s at which one core reads a layer's weights again and again."""
    return Interval.of(1 / seconds(rows)["read"])


def hand_over(rows: pd.DataFrame) -> Interval | None:
    """Seconds until another core has a cache line; None where there is one core."""
    table = seconds(rows)
    return Interval.of(table["line"]) if "line" in table else None
