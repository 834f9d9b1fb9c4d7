"""The GPU versions on the PTX machine, beside the reference.

    python tools/gpu_cases.py [plant] [ORDER...] [CASE...]    a line of JSON for each
    python tools/gpu_cases.py record                          writes data/results/

`plant` plants faults into the compiled kernels, one at a time: does the machine see
them? `make ptx` records.
"""

import hashlib
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.metadata import version
from itertools import chain
from multiprocessing import get_context
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import pandas as pd
import ptx
from cuda_stand_in import Cuda, Kernel

import lstm_kernels as lk
from lstm_kernels.cells import CELLS
from lstm_kernels.cores import cores
from lstm_kernels.gpu import available, build, device
from lstm_kernels.ranks.rnn import outputs
from lstm_report.experiments import gpu_kernels
from lstm_report.measure import results
from lstm_report.measure.comparer import TOLERANCE, compare, compare_to_reference
from lstm_report.ptx_machine import ORDERS, compiler, opcodes
from lstm_report.ptx_machine.machine import FaultError, Machine
from lstm_report.ptx_machine.parse import FIELDS, Program

# All are there before `device.cuda` is another: their kernels are real CUDA.
VERSIONS = [
    import_module(f"lstm_kernels.versions.{row.name.replace('-', '_')}")
    for row in lk.versions()
    if row.target == "gpu"
]
PATH = results.FOLDER / "ptx-machine.csv"
FAULTS = results.FOLDER / "ptx-machine-faults.csv"


class Case(NamedTuple):
    """A network of a version; shape: L, T, B, D, H. The device has so many
    multiprocessors, and bytes of shared memory for a block.
    """

    version: str
    shape: tuple
    cell: str = "lstm"
    dtype: str = "float32"
    multiprocessors: int = 4
    shared: int = 227 << 10

    def card(self):
        return {"multiprocessors": self.multiprocessors, "shared": self.shared}


FEW, MANY = (2, 3, 5, 3, 9), (2, 3, 37, 3, 9)  # samples; sizes that nothing divides
AIRLINE, LARGE = (1, 12, 16, 1, 32), (1, 2, 2, 5, 512)
CASES = {
    "v1": Case("cuda-v1", FEW),
    "v3": Case("cuda-v3", MANY),
    "fused": Case("cuda-fused", FEW),
    "fused, four samples": Case("cuda-fused", MANY),
    "fused, gru": Case("cuda-fused", FEW, "gru"),
    "epoch, float64": Case("cuda-epoch", FEW, "lstm", "float64"),
    "persistent": Case("cuda-persistent", FEW, multiprocessors=6),
    "persistent, eight samples": Case("cuda-persistent", (2, 3, 40, 3, 32), "gru"),
    "page": Case("gpu_kernels", (3, 4, 1, 9, 9)),
    "epoch": Case("cuda-epoch", MANY),
    "fused, tiles": Case("cuda-fused", MANY, multiprocessors=2, shared=4000),
    "epoch, tiles": Case("cuda-epoch", MANY, multiprocessors=2, shared=4000),
    "v2": Case("cuda-v2", MANY),
}
TESTED = {*CASES} - {"epoch", "fused, tiles", "v2"}  # each kind of kernels once
PLANTED = "fused, tiles", "epoch, tiles", "persistent"
CASES |= {
    f"{name}, {cell}": CASES[name]._replace(cell=cell)
    for name in ("v3", "fused", "fused, four samples", "epoch", "persistent")
    for cell in CELLS
    if cell != "lstm"
}
CASES |= {
    f"{name}, float64": CASES[name]._replace(dtype="float64")
    for name in ("v3", "fused", "persistent")
}
CASES |= {
    "v1, airline": Case("cuda-v1", AIRLINE),
    "v3, airline": Case("cuda-v3", AIRLINE),
    "fused, airline": Case("cuda-fused", AIRLINE, multiprocessors=132),
    "epoch, airline": Case("cuda-epoch", AIRLINE, multiprocessors=20),
    "persistent, airline": Case("cuda-persistent", AIRLINE, multiprocessors=40),
    "fused, large": Case("cuda-fused", LARGE, multiprocessors=8),
    "epoch, large": Case("cuda-epoch", LARGE),
    "persistent, many": Case("cuda-persistent", MANY, multiprocessors=8),
    "persistent, wide": Case("cuda-persistent", (2, 3, 5, 3, 128), multiprocessors=9),
}
CASES |= {  # one step of one sample; beside a warp
    f"{name}, {H} units": CASES[name]._replace(shape=shape, multiprocessors=8)
    for name in ("fused", "epoch", "persistent")
    for H, shape in ((1, (1,) * 5), (31, (1, 3, 5, 2, 31)), (33, (1, 3, 5, 2, 33)))
}
_programs = {}  # compiled in this process: plants change them in place


def program(function, signature, capability):
    """The Program of a kernel, compiled once."""
    key = function.__module__, function.__qualname__, signature, capability
    if key not in _programs:
        text = compiler.compile_ptx(function, signature, capability)
        _programs[key] = Program(text, function.__name__)
    return _programs[key]


@contextmanager
def on_machine(memory, **options):
    """While inside, the package's GPU code sees a device that is the machine; options:
    as of `Cuda`.
    """
    stand = Cuda(memory, compile=program, **options)
    with ExitStack() as stack:
        for module in (device, *(m for m in VERSIONS if hasattr(m, "cuda"))):
            stack.enter_context(patch.object(module, "cuda", stand))
        stack.enter_context(patch.object(device, "allow_shared", lambda *kernel: None))
        compile = patch.object(build, "_compile", lambda *of: Kernel(stand, *of))
        stack.enter_context(compile)
        # Kernels belong to one machine, and what runs there.
        whys = available.why_unavailable, available.why_not_together
        for known in (build.build, *whys):
            known.cache_clear()
            stack.callback(known.cache_clear)
        yield stand


def run(name, order="forward"):
    """The row of a case: sizes, errors or what is `wrong`, counts, faults."""
    case, memory = CASES[name], Machine(order)
    row = {"case": name, "order": order, "wrong": None} | case._asdict()
    try:
        with on_machine(memory, **case.card()) as stand:
            of_page = case.version == "gpu_kernels"
            row |= errors_of_page(case, stand) if of_page else errors(case, memory)
    except (FaultError, AssertionError) as error:
        row["wrong"] = f"{type(error).__name__}: {error}"
    row["instructions"] = sum(int(n.sum()) for _, n in memory.counts.values())
    row["launches"], row["accesses"] = memory.launches, memory.accesses
    row["faults"] = [[*place, *found] for place, found in memory.faults.items()]
    return row


def errors(case, memory):
    """Largest errors of all passes, and of the parameters after a step and two epochs
    whose last mini-batch is smaller; the critical instructions of the step, and its
    chain of multiply-adds; a hash of all bits.
    """
    L, T, B, D, H = case.shape
    rng = np.random.default_rng(0)
    options = {"num_layers": L, "output_size": 2, "cell": case.cell}
    params = lk.Params.init(D, H, seed=0, dtype=case.dtype, **options)
    x = rng.standard_normal((T, B, D)).astype(case.dtype)
    target = rng.standard_normal((B, 2)).astype(case.dtype)
    both = net, reference = [lk.network(v, params) for v in (case.version, "numpy")]
    tolerance = TOLERANCE[np.dtype(case.dtype)]
    passes = compare_to_reference(net, params, x)
    (loss, grads), (true, expected) = (n.loss_and_grads(x, target) for n in both)
    compare(grads.arrays(), expected.arrays(), tolerance)
    counted = memory.critical, memory.chain
    before = [sum(count.values()) for count in counted]
    losses = [loss, net.step(x, target, 0.1)], [true, reference.step(x, target, 0.1)]
    after = [sum(count.values()) for count in counted]
    critical, products = (a - b for a, b in zip(after, before, strict=True))
    data = lk.Dataset(x, target)
    order = np.random.default_rng(1).permutation(B)
    for _ in range(2):
        for n, of_version in zip(both, losses, strict=True):
            of_version += n.epoch(data, order, -(-B * 2 // 3), 0.1)
    np.testing.assert_allclose(*losses, rtol=tolerance)
    arrays, true = (n.params().arrays() for n in both)
    return {
        "passes": passes,
        "parameters": compare(arrays, true, tolerance),
        "critical": critical,
        "chain": products,
        "bits": hash_of([*arrays.values(), *grads.arrays().values()]),
    }


def hash_of(arrays):
    return hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()[:12]


def errors_of_page(case, stand):
    """The same of the report's own kernels: layers at the same time, units of an
    RNN.
    """
    L, T, _, D, H = case.shape
    x = np.random.default_rng(0).standard_normal((T, 1, D)).astype(np.float32)
    stack = lk.Params.init(D, H, num_layers=L)
    rnn = lk.Params.init(D, H, output_size=5, cell="rnn")
    y, of_rnn = (lk.network("numpy", p).forward(x)[0] for p in (stack, rnn))
    signatures = gpu_kernels.SIGNATURES.items()
    kernels = {
        function: Kernel(stand, function, types) for function, types in signatures
    }
    tolerance = TOLERANCE[np.dtype(np.float32)]
    worst, results = 0.0, []
    with patch.object(gpu_kernels, "compiled", kernels.get):
        runs = gpu_kernels.stack_runs(stack, x), gpu_kernels.rnn_runs(rnn, x)
        for some, want in zip(runs, (y, outputs(rnn, of_rnn)), strict=True):
            for run in [*some.values(), *some.values()]:  # each twice
                results.append(run())
                worst = max(worst, compare({"y": results[-1]}, {"y": want}, tolerance))
    errors = {"passes": worst, "parameters": 0.0, "critical": 0, "chain": 0}
    return errors | {"bits": hash_of(results)}


def sites(program):
    """(what, pc, the row's new fields) of each fault that can be planted."""
    nothing = {"op": opcodes.number("nop")}
    for pc, statement in enumerate(program.statements):
        row = dict(zip(FIELDS, program.code[pc].tolist(), strict=True))
        parts = statement.split()[statement[0] == "@"].split(".")
        if parts[0] in ("bar", "barrier") and "red" not in parts:
            yield "a barrier less", pc, nothing
        if "cudaCGSynchronize" in statement:
            yield "a grid's barrier less", pc, nothing
        if parts[0] in ("ld", "st") and row["n"] > 1:
            yield "a vector off by a number", pc, {"offset": row["offset"] + 4}
        if row["how"] & 2:
            yield "an acquire less", pc, {"how": row["how"] & ~2}
        if row["how"] & 4:
            yield "a release less", pc, {"how": row["how"] & ~4}
        if row["how"] and parts[0] != "atom":
            yield "a plain flag", pc, {"how": 8}  # which still gives its turn away
        if parts[0] == "cp" and "wait" in statement:
            yield "a wait less", pc, nothing


def plant(name, order="random"):
    """Rows of the faults that can be planted in what a case executes, each with its
    outcome.
    """
    memory, rows = Machine(order), []
    with on_machine(memory, **CASES[name].card()):
        errors(CASES[name], memory)
    places = [
        (program, *site)
        for program, counts in memory.counts.values()
        for site in list(sites(program))
        # Without the first kernels there is no device to see faults on.
        if counts[site[1]] and not program.name.startswith("across")
    ]
    for program, what, pc, fields in places:
        before = program.code[pc].copy()
        for field, value in fields.items():
            program.code[pc, FIELDS.index(field)] = value
        row = run(name, order)
        program.code[pc] = before
        outcome = "wrong result" if row["wrong"] else "harmless"
        outcome = "reported" if row["faults"] else outcome
        rows.append({"case": name, "planted": what, "outcome": outcome})
    return rows


def summary(rows):
    """A row of the table for the orders of a case."""
    first = rows.iloc[0]
    row = first[["case", "version", "cell", "dtype"]].to_dict()
    row |= dict(zip("LTBDH", first["shape"], strict=True))
    row["orders"] = " ".join(rows["order"])
    row |= {k: float(f"{rows[k].max():.2g}") for k in ("passes", "parameters")}
    counts = "launches", "instructions", "accesses", "critical", "chain"
    row |= {name: int(first[name]) for name in counts}
    return row | {"faults": int(rows["faults"].map(len).sum())}


def record(pool):
    """Run every case in every order, plant faults, write both tables."""
    everything = [(name, order) for name in CASES for order in ORDERS]
    rows = pd.DataFrame(pool.map(run, *zip(*everything, strict=True), chunksize=3))
    bad = rows["wrong"].notna() | (rows["faults"].map(len) > 0)
    if bad.any():
        sys.exit(rows[bad].to_string())
    made = {"compiler": f"numba-cuda {version('numba-cuda')}", "sources": ptx.sources()}
    groups = rows.groupby("case", sort=False)
    table = pd.DataFrame([summary(group) | made for _, group in groups])
    results.replace(PATH, table.to_csv(index=False))
    planted = pd.DataFrame(chain.from_iterable(pool.map(plant, PLANTED)))
    counts = planted.groupby(["case", "planted", "outcome"], sort=False).size()
    counts = counts.unstack(fill_value=0).reset_index()
    results.replace(FAULTS, counts.assign(**made).to_csv(index=False))
    print(counts.to_string(index=False))
    print(f"{len(table)} cases right, without a fault; written to {PATH} and {FAULTS}")


def main(words):
    known = {*ORDERS, *CASES, "plant", "record"}
    if not words:
        sys.exit(f"{__doc__}\nCASE is one of {', '.join(map(repr, CASES))}")
    if strange := [word for word in words if word not in known]:
        sys.exit(f"got {strange[0]!r}, want some of {sorted(known)}")
    orders = [word for word in words if word in ORDERS] or ["forward"]
    names = [word for word in words if word in CASES] or [*CASES]
    with ProcessPoolExecutor(min(2, cores()), mp_context=get_context("spawn")) as pool:
        if "record" in words:
            return record(pool)
        if "plant" in words:
            rows = chain.from_iterable(pool.map(plant, names))
        else:
            each = [(name, order) for name in names for order in orders]
            rows = pool.map(run, *zip(*each, strict=True), chunksize=len(orders))
        for row in rows:
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
