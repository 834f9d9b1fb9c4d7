"""The benchmark of the GPU versions, beside the CPU's on the same machine.

`make gpu` runs the tests on the device, then this, and writes data/results/<machine>/gpu.csv. In a
row, `variant` names the comparison, N the examples of the data set, bytes what a step copies.
"""

import json
import shutil
import subprocess
import sys
import traceback
from importlib.util import find_spec

import numpy as np
import pandas as pd

from ..data import Dataset
from ..gpu import device
from ..training import train
from . import experiments, provenance, results
from .experiments import AIRLINE, Workload, network
from .timing import interleaved

HUNDREDS = Workload(L=1, T=12, D=1, H=32, B=256)  # the source's kind: hundreds of samples a step
GPU = ("cuda-v1", "cuda-v2", "cuda-v3", "cuda-fused")
CPU = ("sequential", "numpy-sample", "numpy", "numba-sample", "numba-fused")
SLOW = ("sequential", "numpy-sample", "cuda-v1")  # seconds for a step of hundreds of samples
UPDATES = 8  # steps in an epoch where the data set grows: the mini-batch grows with it


def examples(N, work, seed=0):
    """A data set of N random windows."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((work.T, N, work.D)).astype(np.float32)
    return Dataset(x, rng.standard_normal((N, 1)).astype(np.float32))


def nets(names, work):
    return {name: network(name, work.params()) for name in names}


def rows(times, work, variant, stage, *, errors=None, N=None):
    """Rows of a results file; the cases are versions, a name after a slash says how."""
    table = experiments.rows_of(times, work, stage, errors or {})
    how = table["variant"].astype(object).fillna("")
    return table.assign(variant=(variant + " " + how).str.strip(), N=N)


def table(names, *, repeats):
    """The source's table: five epochs of mini-batch gradient descent on the airline windows."""
    found = experiments.epochs(names, AIRLINE, epochs=5, repeats=repeats)
    return found.assign(variant="table", N=len(experiments.airline_dataset()))


def hundreds(names, work, *, repeats, batches=8):
    """A step of hundreds of samples; and, but for the slow versions, five epochs of such steps."""
    made, (x, target) = nets(names, work), work.example()
    errors, parts = experiments.verify(made, work), []
    for chosen, count in ((SLOW, max(1, repeats // 10)), (set(names) - set(SLOW), repeats)):
        cases = {n: (lambda net=made[n]: net.step(x, target, 1e-4)) for n in names if n in chosen}
        if cases:
            times = interleaved(cases, repeats=count)
            parts.append(rows(times, work, "hundreds", "step", errors=errors))
    dataset = examples(batches * work.B, work)
    cases = {
        name: (lambda net=made[name]: train(net, dataset, 5, work.B, 1e-4, progress=False))
        for name in names
        if name not in SLOW
    }
    times = interleaved(cases, repeats=repeats)
    parts.append(rows(times, work, "hundreds", "5 epochs", errors=errors, N=len(dataset)))
    experiments.verify(made, work)
    return pd.concat(parts, ignore_index=True)


def epochs(made, dataset, batch_size, *, repeats):
    """Seconds of an epoch of each network, the data set where it was."""
    order = np.random.default_rng(0).permutation(len(dataset))
    cases = {
        name: (lambda net=net: net.epoch(dataset, order, batch_size, 1e-4))
        for name, net in made.items()
    }
    return interleaved(cases, repeats=repeats)


def windows(names, sizes, work, *, repeats):
    """An epoch of UPDATES steps over data sets of growing size: the mini-batch grows with it."""
    parts, made = [], nets(names, work)
    for N in sizes:
        dataset, B = examples(N, work), -(-N // UPDATES)
        times = epochs(made, dataset, B, repeats=repeats)
        sized = Workload(work.L, work.T, work.D, work.H, B)
        parts.append(rows(times, sized, "windows", "epoch", N=N))
    experiments.verify(made, work)
    return pd.concat(parts, ignore_index=True)


def batches(names, sizes, N, work, *, repeats):
    """An epoch over N windows in mini-batches of growing size."""
    parts, made, dataset = [], nets(names, work), examples(N, work)
    for B in sizes:
        times = epochs(made, dataset, B, repeats=repeats)
        sized = Workload(work.L, work.T, work.D, work.H, B)
        parts.append(rows(times, sized, "batch", "epoch", N=N))
    experiments.verify(made, work)
    return pd.concat(parts, ignore_index=True)


def hidden(names, sizes, work, *, repeats, steps=4):
    """An epoch of a few steps of networks of growing size."""
    parts = []
    for H in sizes:
        sized = Workload(work.L, work.T, work.D, H, work.B)
        made, dataset = nets(names, sized), examples(steps * work.B, sized)
        errors = experiments.verify(made, sized)
        times = epochs(made, dataset, work.B, repeats=repeats)
        parts.append(rows(times, sized, "hidden", "epoch", errors=errors, N=len(dataset)))
    return pd.concat(parts, ignore_index=True)


def sums(work, *, repeats, steps=8):
    """Gradients summed in a fixed order, and with atomics: an epoch of `cuda-fused`."""
    from ..versions.cuda_fused import CudaFused

    made = {
        f"cuda-fused/{how}": CudaFused(work.params(), sums=how) for how in ("ordered", "atomic")
    }
    errors = experiments.verify(made, work)
    dataset = examples(steps * work.B, work)
    times = epochs(made, dataset, work.B, repeats=repeats)
    return rows(times, work, "sums", "epoch", errors=errors, N=len(dataset))


def copied(net, call):
    """Bytes that `call` copies to the device and back."""
    before = net._device.sent, net._device.fetched
    call()
    return net._device.sent - before[0], net._device.fetched - before[1]


def transfers(names, work, *, repeats):
    """What a step copies, and how long these copies take alone; for `cuda-fused` inside an epoch.

    V1 and V2 copy as Numba does, from and to pageable memory, array by array; V3 by pinned memory.
    """
    dataset, (x, target) = examples(work.B, work), work.example()
    order, parts = np.arange(work.B), []
    for name in names:
        net = network(name, work.params())
        net.step(x, target, 1e-4)
        call = lambda net=net: net.step(x, target, 1e-4)  # noqa: E731
        bytes_of = {"step": copied(net, call)}
        if name == "cuda-fused":
            many = np.tile(order, 9)  # what nine steps copy beyond one, shared among eight
            net.epoch(dataset, order, work.B, 1e-4)
            one, nine = (
                copied(net, lambda o=o, net=net: net.epoch(dataset, o, work.B, 1e-4))
                for o in (order, many)
            )
            inside = [(b - a) // 8 for a, b in zip(one, nine, strict=True)]
            # The order and the losses: they cross before the first step and after the last.
            bytes_of["step of an epoch"] = inside
        for stage, (sent, fetched) in bytes_of.items():
            for way, size in (("sent", sent), ("fetched", fetched)):
                copy = copies_alone(net, size, way)
                times = interleaved({name: copy}, repeats=repeats) if size else None
                if times is None:
                    times = pd.DataFrame({"case": [name], "repeat": [0], "seconds": [0.0]})
                found = rows(times, work, f"transfers {way}", stage, N=None)
                parts.append(found.assign(bytes=size))
    return pd.concat(parts, ignore_index=True)


def copies_alone(net, size, way):
    """A function that copies `size` bytes as the network does, and waits for it."""
    pinned = getattr(net, "name", "") == "cuda-v3"
    host = device.pinned(size, np.uint8) if pinned else np.zeros(size, np.uint8)
    array = net._device.array(f"copies {way}", max(size, 1), np.uint8)[:size]

    def copy():
        if way == "sent":
            array.copy_to_device(host)
        else:
            array.copy_to_host(host)
        device.synchronize()

    return copy


def medians(rows):
    """Median seconds by variant, version and size."""
    keys = ["variant", "stage", "N", "H", "B", "version"]
    return rows.groupby(keys, sort=False, dropna=False)["seconds"].median()


# What compute-sanitizer watches: a step and a way back of every version, small.
WATCHED = """
import numpy as np, lstm_kernels as lk
from lstm_kernels.bench import compare_to_reference
for name in {names}:
    params = lk.Params.init(3, 9, num_layers=2, output_size=2)
    x = np.random.default_rng(0).standard_normal((4, 37, 3)).astype(np.float32)
    compare_to_reference(name, params, x)
    lk.network(name, params).step(x, np.zeros((37, 2), np.float32), 0.1)
"""


def checks(folder=None, preset="paper", limit=100):
    """Run the tests on the device, and compute-sanitizer where it is installed; yields (name,
    result, path) after each, all results so far being written to gpu-checks.json.

    limit: seconds for each of them.
    """
    tests = [f"tests/test_{name}.py" for name in ("cuda", "versions", "bad_input")]
    words = [sys.executable, "-m", "pytest", "-q", "-k", "cuda", *tests]
    words += ["-n", "4"] if find_spec("xdist") else []  # compiling takes most of the time
    code = WATCHED.format(names=[name for name in GPU if name != "cuda-v1"])
    plan, found = {"tests on the device": words}, {}
    if tool := shutil.which("compute-sanitizer"):
        for kind in ("memcheck", "racecheck"):
            watch = [tool, "--tool", kind, "--error-exitcode", "9", sys.executable, "-c", code]
            plan[f"compute-sanitizer {kind}"] = watch
    path = results.place(("gpu",), preset=preset, folder=folder) / "gpu-checks.json"
    now = provenance.machine(preset)
    about = {key: now[key] for key in ("date", "commit", "dirty")}
    for name, words in plan.items():
        try:
            how = {"capture_output": True, "text": True, "timeout": limit, "check": False}
            done = subprocess.run(words, cwd=results.ROOT, **how)
            last = (done.stdout.strip().splitlines() or ["no output"])[-1]
            found[name] = f"{'failed' if done.returncode else 'passed'}: {last}"
            if done.returncode:
                print(done.stdout[-6000:], done.stderr[-2000:], sep="\n", flush=True)
        except subprocess.TimeoutExpired:
            found[name] = f"not finished in {limit} s"
        results.replace(path, json.dumps(about | found, indent=1) + "\n")
        yield name, found[name], path


def main(preset="paper", folder=None):
    """Run every comparison; yields (name, rows, path) after each, all rows so far being written.

    One that fails leaves the others to run; RuntimeError names it at the end.
    """
    results.place(("gpu",), preset=preset, folder=folder)
    paper = preset == "paper"
    names = [
        n for n in (*CPU, *GPU) if n in {*experiments.available(), *experiments.available("gpu")}
    ]
    fast = [name for name in ("numba-fused", "cuda-v3", "cuda-fused") if name in names]
    work = HUNDREDS if paper else Workload(1, 3, 1, 4, 8)
    repeats = 20 if paper else 1
    powers = [round(10 ** (p / 2)) for p in range(4, 13)] if paper else [16, 32]
    plan = {
        "table": lambda: table(names, repeats=5 if paper else 1),
        "hundreds": lambda: hundreds(names, work, repeats=repeats, batches=8 if paper else 2),
        "transfers": lambda: transfers([n for n in GPU if n in names], work, repeats=repeats),
        "sums": lambda: sums(work, repeats=repeats, steps=8 if paper else 2),
        "windows": lambda: windows(fast, powers, work, repeats=5 if paper else 1),
        "batch": lambda: batches(
            fast,
            [16, 64, 256, 1024, 4096, 16384] if paper else [4, 8],
            16384 if paper else 16,
            work,
            repeats=5 if paper else 1,
        ),
        "hidden": lambda: hidden(
            fast, [8, 16, 32, 64, 128, 256] if paper else [2, 4], work, repeats=5 if paper else 1
        ),
    }
    found, failed = [], []
    for name, run in plan.items():
        try:
            found.append(run())
        except Exception as error:  # the others are still worth their minutes on the device
            traceback.print_exc()
            failed.append(f"{name} ({type(error).__name__})")
            continue
        together = pd.concat(found, ignore_index=True)
        yield name, found[-1], results.write("gpu", together, preset=preset, folder=folder)
    if failed:
        raise RuntimeError(f"not measured, see above: {', '.join(failed)}")
