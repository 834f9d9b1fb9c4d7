"""How long small calls take at worst: alone, beside another library's waiting threads, and beside
another process.
"""

import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec

import numpy as np
import pandas as pd

from . import results
from .runner import networks, rows_of, verify
from .workloads import AIRLINE

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


def calls(case, before=None, count=CALLS):
    """Seconds of each of `count` calls; before: what is called before each, not timed."""
    seconds = np.empty(count)
    for k in range(count):
        if before is not None:
            before()
        start = time.perf_counter()
        case()
        seconds[k] = time.perf_counter() - start
    return seconds


def measure(threads, count=CALLS):
    """Quantiles of the airline network's forward pass by the public call, as rows; those beside
    PyTorch's threads, which wait spinning after a product, only where it is installed.
    """
    nets, (x, _) = networks(["numba-fused"], AIRLINE, threads=threads), AIRLINE.example()
    situations = {"alone": (nullcontext(), None), "beside a process": (busy_process(), None)}
    if find_spec("torch"):
        import torch

        torch.set_num_threads(threads)
        a = torch.ones(256, 256)
        situations["beside OpenMP"] = (nullcontext(), lambda: a @ a)
    errors, rows = verify(nets, AIRLINE), []
    for situation, (neighbour, before) in situations.items():
        with neighbour:
            for number in (count // 4, count):  # the first ones warm up
                seconds = calls(partial(nets["numba-fused"].forward, x), before, number)
        for stage, q in QUANTILES.items():
            rows.append((f"numba-fused/{situation}", stage, 0, np.quantile(seconds, q)))
    verify(nets, AIRLINE)
    times = pd.DataFrame(rows, columns=["case", "stage", "repeat", "seconds"])
    return rows_of(times.assign(max_err=errors["numba-fused"]), AIRLINE).assign(threads=threads)


def table(rows):
    """Microseconds: a row per situation that has every quantile, a column each; p99 over p50."""
    seconds = rows.pivot_table(index="variant", columns="stage", values="seconds", sort=False)
    micro = 1e6 * seconds.reindex(columns=list(QUANTILES)).dropna()
    return micro.assign(**{"p99 over p50": micro["p99"] / micro["p50"]})


def sentence(rows):
    """The same in words; empty where no situation has every quantile."""
    said = [
        f"{situation} half of the calls take at most {line['p50']:.0f} us and 99 of 100 at most "
        f"{line['p99']:.0f} us"
        for situation, line in table(rows).iterrows()
    ]
    return f"Airline network, forward, call by call: {'; '.join(said)}." if said else ""


def recorded():
    """What each machine recorded, in sentences."""
    try:
        rows = results.read("tail")
    except ValueError:
        return "Not measured yet: no machine has recorded its tails."
    return "\n\n".join(
        f"{results.label(results.record('tail', machine))}: {sentence(part)}"
        for machine, part in rows.groupby("machine")
    )
