"""Versions as their PTX on the machine, beside the reference: a line for each case."""

import hashlib
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

import lstm_kernels as lk
from lstm_kernels.cells import CELLS
from lstm_kernels.ranks.rnn import outputs
from lstm_report.experiments import gpu_kernels
from lstm_report.measure.comparer import TOLERANCE, compare, compare_to_reference

from .device import Cuda, stand_in
from .machine import FaultError, Machine


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


FEW, MANY = (2, 3, 5, 3, 9), (2, 3, 37, 3, 9)  # samples; sizes that nothing divides
AIRLINE, LARGE = (1, 12, 16, 1, 32), (1, 2, 2, 5, 512)
TESTED = {  # each kind once; the last two share kernels with others
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
}
TILES = {
    "fused, tiles": Case("cuda-fused", MANY, multiprocessors=2, shared=4000),
    "epoch, tiles": Case("cuda-epoch", MANY, multiprocessors=2, shared=4000),
}
CASES = TESTED | TILES | {"v2": Case("cuda-v2", MANY)}
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


for name in ("fused", "epoch", "persistent"):
    for H in (1, 31, 33):  # one step of one sample; beside a warp
        shape = (1, 1, 1, 1, 1) if H == 1 else (1, 3, 5, 2, H)
        sized = CASES[name]._replace(shape=shape, multiprocessors=8)
        CASES[f"{name}, {H} units"] = sized


def example(case):
    """Parameters, x (T, B, D) and target (B, 2)."""
    L, T, B, D, H = case.shape
    rng = np.random.default_rng(0)
    options = {"num_layers": L, "output_size": 2, "cell": case.cell}
    params = lk.Params.init(D, H, seed=0, dtype=case.dtype, **options)
    x = rng.standard_normal((T, B, D)).astype(case.dtype)
    return params, x, rng.standard_normal((B, 2)).astype(case.dtype)


def run(name, order="forward"):
    """The row of a case: sizes, errors or what is `wrong`, counts, faults."""
    case = CASES[name]
    memory = Machine(order)
    row = {"case": name, "order": order, "wrong": None} | case._asdict()
    try:
        with stand_in(Cuda(memory, case.multiprocessors, case.shared)) as stand:
            of_page = case.version == "gpu_kernels"
            row |= errors_of_page(case, stand) if of_page else errors(case, memory)
    except (FaultError, AssertionError) as error:
        row["wrong"] = f"{type(error).__name__}: {error}"
    row["instructions"] = sum(int(n.sum()) for _, n in memory.counts.values())
    row["launches"], row["accesses"] = memory.launches, memory.accesses
    row["product"] = memory.share_of_products()
    row["faults"] = [[*place, *what] for place, what in memory.faults.items()]
    return row


def errors(case, memory):
    """Largest errors of all passes, and of the parameters after a step and two epochs
    whose last mini-batch is smaller; the critical instructions of the step, and its
    chain of multiply-adds; a hash of all bits.
    """
    params, x, target = example(case)
    both = net, reference = [lk.network(v, params) for v in (case.version, "numpy")]
    tolerance = TOLERANCE[np.dtype(case.dtype)]
    passes = compare_to_reference(net, params, x)
    (loss, grads), (true, expected) = (n.loss_and_grads(x, target) for n in both)
    compare(grads.arrays(), expected.arrays(), tolerance)
    counted = memory.critical, memory.chain
    before = [sum(count.values()) for count in counted]
    losses = [loss, net.step(x, target, 0.1)], [true, reference.step(x, target, 0.1)]
    after = [sum(count.values()) for count in counted]
    critical, chain = (a - b for a, b in zip(after, before, strict=True))
    data = lk.Dataset(x, target)
    order = np.random.default_rng(1).permutation(len(target))
    for _ in range(2):
        for n, found in zip(both, losses, strict=True):
            found += n.epoch(data, order, -(-len(target) * 2 // 3), 0.1)
    np.testing.assert_allclose(*losses, rtol=tolerance)
    arrays, true = (n.params().arrays() for n in both)
    bits = b"".join(a.tobytes() for a in [*arrays.values(), *grads.arrays().values()])
    return {
        "passes": passes,
        "parameters": compare(arrays, true, tolerance),
        "critical": critical,
        "chain": chain,
        "bits": hashlib.sha256(bits).hexdigest()[:12],
    }


def errors_of_page(case, stand):
    """The same of the report's own kernels: layers at the same time, units of an
    RNN.
    """
    L, T, _, D, H = case.shape
    x = np.random.default_rng(0).standard_normal((T, 1, D)).astype(np.float32)
    stack = lk.Params.init(D, H, num_layers=L)
    rnn = lk.Params.init(D, H, output_size=5, cell="rnn")
    y, of_rnn = (lk.network("numpy", p).forward(x)[0] for p in (stack, rnn))
    made = {k: stand.kernel(k, types) for k, types in gpu_kernels.SIGNATURES.items()}
    tolerance = TOLERANCE[np.dtype(np.float32)]
    worst, found = 0.0, b""
    with patch.object(gpu_kernels, "compiled", made.get):
        runs = gpu_kernels.stack_runs(stack, x), gpu_kernels.rnn_runs(rnn, x)
        for some, want in zip(runs, (y, outputs(rnn, of_rnn)), strict=True):
            for run in [*some.values(), *some.values()]:  # each twice
                got = run()
                worst = max(worst, compare({"y": got}, {"y": want}, tolerance))
                found += got.tobytes()
    bits = hashlib.sha256(found).hexdigest()[:12]
    return {"passes": worst, "parameters": 0.0, "critical": 0, "chain": 0, "bits": bits}
