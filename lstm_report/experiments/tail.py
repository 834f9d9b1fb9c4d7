"""How long small calls take at worst: alone, beside another library's waiting threads,
and beside another process.
"""

import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec

import pandas as pd

from ..measure.runner import networks, rows_of, verify
from ..measure.timing import interleaved
from ..measure.workloads import AIRLINE

CALLS = 4000
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@contextmanager
def busy_process():
    """A process that computes on one core for as long."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        try:
            time.sleep(0.2)
            yield
        finally:
            child.kill()


def measure(threads, count=CALLS):
    """Quantiles of the airline network's forward pass by the public call, as rows;
    those beside PyTorch's threads, which wait spinning after a product, only where it
    is installed.
    """
    nets, (x, _) = (
        networks(["numba-fused"], AIRLINE, threads=threads),
        AIRLINE.example(),
    )
    situations = {
        "alone": (nullcontext(), None),
        "beside a process": (busy_process(), None),
    }
    if find_spec("torch"):
        import torch

        torch.set_num_threads(threads)
        a = torch.ones(256, 256)
        situations["beside OpenMP"] = (nullcontext(), lambda: a @ a)
    errors, parts = verify(nets, AIRLINE), []
    for situation, (neighbour, before) in situations.items():

        def call(before=before):
            """Seconds of a call, without what comes before it."""
            if before is not None:
                before()
            start = time.perf_counter()
            nets["numba-fused"].forward(x)
            return time.perf_counter() - start

        with neighbour:
            interleaved({"warm up": call}, repeats=count // 4, least=0)
            times = interleaved({"calls": call}, repeats=count, least=0, own=True)
        seconds = times["seconds"].quantile(list(QUANTILES.values())).to_numpy()
        rows = {
            "case": f"numba-fused/{situation}",
            "stage": list(QUANTILES),
            "seconds": seconds,
        }
        parts.append(pd.DataFrame(rows))
    verify(nets, AIRLINE)
    times = pd.concat(parts, ignore_index=True).assign(
        repeat=0, max_err=errors["numba-fused"]
    )
    return rows_of(times, AIRLINE).assign(threads=threads)
