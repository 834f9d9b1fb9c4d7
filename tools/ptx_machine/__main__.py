"""python -m ptx_machine [ORDER...] [CASE...] runs cases, all or the `tested`; `plant`
before them plants faults; a line of JSON for each. `record` writes data/results/.
"""

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from itertools import chain
from multiprocessing import get_context

import pandas as pd
import ptx

from lstm_kernels.cores import cores
from lstm_report.measure import results

from . import machine
from .cases import CASES, TESTED, run
from .mutations import PARTS, PLANTED, plant

PATH = results.FOLDER / "ptx-machine.csv"
FAULTS = results.FOLDER / "ptx-machine-faults.csv"
SIZES = ["L", "T", "B", "D", "H"]
ERRORS, COUNTS = ["passes", "parameters"], ["launches", "instructions", "accesses"]


def each(pool, names, orders):
    """Rows of cases in each order; a process does all of a case, compiled once."""
    columns = [name for name in names for _ in orders], [*orders] * len(names)
    return pool.map(run, *columns, chunksize=len(orders))


def every_plant(pool, names, bounds):
    """Rows of the faults planted in cases."""
    parts = [(name, part, bounds) for name in names for part in range(PARTS)]
    return chain.from_iterable(pool.map(plant, *zip(*parts, strict=True)))


def summary(rows):
    """A row of the table for the orders of a case."""
    first = rows.iloc[0]
    made = dict(zip(SIZES, first["shape"], strict=True))
    named = first[["case", "version", "cell", "dtype"]].to_dict() | made
    named["orders"] = " ".join(rows["order"])
    named |= {name: float(f"{rows[name].max():.2g}") for name in ERRORS}
    named |= {name: int(first[name]) for name in [*COUNTS, "critical", "chain"]}
    named["product"] = round(float(first["product"]), 3)
    return named | {"faults": int(rows["faults"].map(len).sum())}


def record(pool):
    """Run every case in every order, plant faults, write both tables."""
    rows = pd.DataFrame(each(pool, CASES, machine.ORDERS))
    bad = rows["wrong"].notna() | (rows["faults"].map(len) > 0)
    if bad.any():
        sys.exit(rows[bad].to_string())
    made = {"compiler": f"numba-cuda {version('numba-cuda')}", "sources": ptx.sources()}
    groups = rows.groupby("case", sort=False)
    table = pd.DataFrame([summary(group) | made for _, group in groups])
    results.replace(PATH, table.to_csv(index=False))
    found = pd.DataFrame(every_plant(pool, PLANTED, 0))
    counts = found.groupby(["case", "planted", "outcome"], sort=False).size()
    counts = counts.unstack(fill_value=0).reset_index()
    results.replace(FAULTS, counts.assign(**made).to_csv(index=False))
    print(counts.to_string(index=False))
    print(f"{len(table)} cases right, without a fault; written to {PATH} and {FAULTS}")


def main(words):
    known = {*machine.ORDERS, *CASES, "tested", "plant", "record"}
    if strange := [word for word in words if word not in known]:
        sys.exit(f"got {strange[0]!r}, want some of {sorted(known)}")
    orders = [word for word in words if word in machine.ORDERS] or ["forward"]
    names = [word for word in words if word in CASES]
    with ProcessPoolExecutor(min(2, cores()), mp_context=get_context("spawn")) as pool:
        if words[:1] == ["record"]:
            return record(pool)
        if words[:1] == ["plant"]:
            rows = every_plant(pool, names or PLANTED, 4)
        else:
            every = TESTED if "tested" in words else CASES
            rows = each(pool, names or every, orders)
        for row in rows:
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
