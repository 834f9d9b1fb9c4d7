"""What several pages know of the machine, measured once for all of them: the rate of a
core on registers alone and in a matrix product, and what it takes to hand a cache line
to another core.
"""

from functools import partial

import numpy as np
import pandas as pd

from lstm_kernels import cores
from lstm_kernels.blas import single_threaded

from ..experiments import handover, rungs
from ..measure.evidence import Interval, seconds
from ..measure.provenance import machine
from ..measure.timing import interleaved, together
from ..notebook import Shared

SIZE = 1024  # rows of the matrices of the SGEMM


def measure_machine(rounds: int) -> pd.DataFrame:
    """Seconds of 1e9 operations on registers and in an SGEMM on one core, and of
    handing eight bytes to the other core, one way; by `case`.
    """
    a = np.random.default_rng(0).standard_normal((SIZE, SIZE), np.float32)
    product = partial(np.matmul, a, a, out=np.empty_like(a))
    with single_threaded():
        sgemm = interleaved({"SGEMM": product}, repeats=rounds)
    sgemm["seconds"] /= 2e-9 * SIZE**3
    found = [1 / rungs.register_peak() for _ in range(rounds)]
    registers = {"case": "registers", "repeat": range(rounds), "seconds": found}
    parts = [sgemm, pd.DataFrame(registers)]
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


def cache() -> int:
    """Bytes of a core's L2 cache; 0 where the system does not say."""
    return 1024 * int(machine()["caches"].get("L2", "0K").rstrip("K"))


def hand_over(rows: pd.DataFrame) -> Interval | None:
    """Seconds until another core has a cache line; None where there is one core."""
    table = seconds(rows)
    return Interval.of(table["line"]) if "line" in table else None
