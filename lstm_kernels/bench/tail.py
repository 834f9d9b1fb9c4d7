"""How long small calls take at worst: alone, beside another library's waiting threads, and beside
another process.
"""

import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext

import numpy as np
import pandas as pd

from ..versions import network
from . import experiments, results

CALLS = 4000
QUANTILES = (0.5, 0.95, 0.99)


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
    work = experiments.AIRLINE
    net, (x, _) = network("numba-fused", work.params(), threads=threads), work.example()
    places = {"alone": (nullcontext(), None), "beside a process": (busy_process(), None)}
    try:
        import torch
    except ImportError:
        pass
    else:
        torch.set_num_threads(threads)
        a = torch.ones(256, 256)
        places["beside OpenMP"] = (nullcontext(), lambda: a @ a)
    parts = []
    for place, (beside, before) in places.items():
        with beside:
            calls(lambda: net.forward(x), before, count // 4)
            seconds = calls(lambda: net.forward(x), before, count)
        times = pd.DataFrame({"case": "numba-fused", "repeat": 0, "seconds": seconds})
        for q in QUANTILES:
            row = times.head(1).assign(seconds=times["seconds"].quantile(q))
            part = experiments.rows_of(row, work, f"p{100 * q:.0f}", {})
            parts.append(part.assign(variant=place, threads=threads))
    return pd.concat(parts, ignore_index=True)


def table(rows):
    """Microseconds: a line per place with every quantile, a column per quantile, p99 over p50."""
    found = rows.pivot_table(index="variant", columns="stage", values="seconds", sort=False) * 1e6
    found = found.reindex(columns=[f"p{100 * q:.0f}" for q in QUANTILES]).dropna()
    return found.assign(**{"p99 over p50": found["p99"] / found["p50"]})


def sentence(rows):
    """The same in words; empty where no place has every quantile."""
    said = [
        f"{place} half of the calls take at most {line['p50']:.0f} us and 99 of 100 at most "
        f"{line['p99']:.0f} us"
        for place, line in table(rows).iterrows()
    ]
    return f"Airline network, forward, call by call: {'; '.join(said)}." if said else ""


def recorded():
    """What each machine recorded, in sentences."""
    try:
        rows = results.read("tail")
    except ValueError:
        return "Not measured yet: no machine has recorded its tails."
    parts = rows.groupby("machine")
    return "\n\n".join(f"{machine}: {sentence(part)}" for machine, part in parts)
