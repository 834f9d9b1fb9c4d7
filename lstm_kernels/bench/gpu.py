"""The benchmark of the GPU versions, beside the CPU's on the same machine.

`make gpu` runs the tests on the device, then this, and writes data/results/<machine>/gpu.csv. In a
row, `variant` names the comparison, N the examples of the data set, bytes what a step copies.
"""

import json
import shutil
import subprocess
import sys
import traceback
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import numpy as np
import pandas as pd

from ..gpu import device
from ..training import train
from . import experiments, provenance, results
from .runner import measure, network, networks, rounds, rows_of, timed, verify
from .timing import together
from .workloads import AIRLINE, Workload, airline_dataset

HUNDREDS = Workload(L=1, T=12, D=1, H=32, B=256)  # the source's kind: hundreds of samples a step
GPU = ("cuda-v1", "cuda-v2", "cuda-v3", "cuda-fused")
CPU = ("sequential", "numpy-sample", "numpy", "numba-sample", "numba-fused")
SLOW = ("sequential", "numpy-sample", "cuda-v1")  # seconds for a step of hundreds of samples
UPDATES = 8  # steps in an epoch where the data set grows: the mini-batch grows with it


def rows(nets, work, variant, stage, call, *, N=None, **options):
    """Rows of `measure` for a results file: `variant` names the comparison, after which stands the
    variant of the network, if it has one.
    """
    table = measure(nets, work, {stage: call}, **options)
    how = table["variant"].astype(object).fillna("")
    return table.assign(variant=(variant + " " + how).str.strip(), N=N)


def table(names, **options):
    """The source's table: five epochs of mini-batch gradient descent on the airline windows."""
    times = experiments.epochs(names, AIRLINE, epochs=5, **options)
    return times.assign(variant="table", N=len(airline_dataset()))


def hundreds(names, work, *, repeats, batches=8, **options):
    """A step of hundreds of samples; and, but for the slow versions, five epochs of such steps."""
    x, target = work.example()
    dataset, parts = work.dataset(batches * work.B), []
    how = {"epochs": 5, "batch_size": work.B, "learning_rate": 1e-4, "progress": False}
    calls = {
        "step": lambda net: net.step(x, target, 1e-4),
        "5 epochs": lambda net: train(net, dataset, **how),
    }
    for stage, slow, count in (
        ("step", True, max(1, repeats // 10)),
        ("step", False, repeats),
        ("5 epochs", False, repeats),
    ):
        if chosen := [name for name in names if (name in SLOW) == slow]:
            N = len(dataset) if stage == "5 epochs" else None
            some = {"N": N, "repeats": count} | options
            parts.append(
                rows(networks(chosen, work), work, "hundreds", stage, calls[stage], **some)
            )
    return together(parts)


def epochs(nets, work, variant, dataset, **options):
    """An epoch of each network in mini-batches of work.B, the data set where it was."""
    order = np.random.default_rng(0).permutation(len(dataset))

    def epoch(net):
        return net.epoch(dataset, order, work.B, 1e-4)

    return rows(nets, work, variant, "epoch", epoch, N=len(dataset), **options)


def windows(names, sizes, work, **options):
    """An epoch of UPDATES steps over data sets of growing size: the mini-batch grows with it."""
    parts, nets = [], networks(names, work)
    for N in sizes:
        sized = replace(work, B=-(-N // UPDATES))
        parts.append(epochs(nets, sized, "windows", work.dataset(N), **options))
    return together(parts)


def batches(names, sizes, N, work, **options):
    """An epoch over N windows in mini-batches of growing size."""
    nets, dataset = networks(names, work), work.dataset(N)
    return together([epochs(nets, replace(work, B=B), "batch", dataset, **options) for B in sizes])


def hidden(names, sizes, work, *, steps=4, **options):
    """An epoch of a few steps of networks of growing size."""
    parts = []
    for H in sizes:
        sized = replace(work, H=H)
        dataset = sized.dataset(steps * work.B)
        parts.append(epochs(networks(names, sized), sized, "hidden", dataset, **options))
    return together(parts)


def sums(work, *, steps=8, **options):
    """Gradients summed in a fixed order, and with atomics: an epoch of `cuda-fused`."""
    from ..versions.cuda_fused import CudaFused

    forms = ("ordered", "atomic")
    nets = {f"cuda-fused/{how}": CudaFused(work.params(), sums=how) for how in forms}
    return epochs(nets, work, "sums", work.dataset(steps * work.B), **options)


def copied(net, call):
    """Bytes that `call` copies to the device and back."""
    before = net._device.sent, net._device.fetched
    call()
    return net._device.sent - before[0], net._device.fetched - before[1]


def transfers(names, work, **options):
    """What a step copies, and how long these copies take alone; for `cuda-fused` inside an epoch.

    V1 and V2 copy as Numba does, from and to pageable memory, array by array; V3 by pinned memory.
    """
    dataset, (x, target) = work.dataset(work.B), work.example()
    order, parts = np.arange(work.B), []
    for name in names:
        net = network(name, work.params())
        check = partial(verify, {name: net}, work)
        step = partial(net.step, x, target, 1e-4)
        step()
        bytes_of = {"step": copied(net, step)}
        if name == "cuda-fused":
            many = np.tile(order, 9)  # what nine steps copy beyond one, shared among eight
            net.epoch(dataset, order, work.B, 1e-4)
            one, nine = (
                copied(net, partial(net.epoch, dataset, steps, work.B, 1e-4))
                for steps in (order, many)
            )
            # The order and the losses: they cross before the first step and after the last.
            bytes_of["step of an epoch"] = [(b - a) // 8 for a, b in zip(one, nine, strict=True)]
        for stage, counts in bytes_of.items():
            for way, size in zip(("sent", "fetched"), counts, strict=True):
                if size:
                    cases = {stage: {name: copies_alone(net, size, way)}}
                    times = timed(cases, check, **options)
                else:
                    nothing = {"stage": stage, "case": name, "repeat": 0, "seconds": 0.0}
                    times = pd.DataFrame([nothing])
                columns = {"variant": f"transfers {way}", "N": None, "bytes": size}
                parts.append(rows_of(times, work).assign(**columns))
    return together(parts)


def copies_alone(net, size, way):
    """A function that copies `size` bytes as the network does, and waits for it."""
    pinned = getattr(net, "name", "") == "cuda-v3"
    host = device.pinned(size, np.uint8) if pinned else np.zeros(size, np.uint8)
    array = net._device.array(f"copies {way}", size, np.uint8)[:size]

    def copy():
        if way == "sent":
            array.copy_to_device(host)
        else:
            array.copy_to_host(host)
        device.synchronize()

    return copy


# What compute-sanitizer watches: a step and a backward pass of every version, small.
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
    # The tests come with the repository, not with an installed package.
    plan, said = {"tests on the device": words} if results.ROOT else {}, {}
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
            said[name] = f"{'failed' if done.returncode else 'passed'}: {last}"
            if done.returncode:
                print(done.stdout[-6000:], done.stderr[-2000:], sep="\n", flush=True)
        except subprocess.TimeoutExpired:
            said[name] = f"not finished in {limit} s"
        results.replace(path, json.dumps(about | said, indent=1) + "\n")
        yield name, said[name], path


def main(preset="paper", folder=None):
    """Run every comparison; yields (name, rows, path) after each, all rows so far being written.

    One that fails leaves the others to run; RuntimeError names it at the end.
    """
    results.place(("gpu",), preset=preset, folder=folder)
    paper, runnable = preset == "paper", {*experiments.available(), *experiments.available("gpu")}
    names = [name for name in (*CPU, *GPU) if name in runnable]
    fast = [name for name in ("numba-fused", "cuda-v3", "cuda-fused") if name in names]
    work = HUNDREDS if paper else Workload(1, 3, 1, 4, 8)
    many, few = rounds(preset), rounds(preset, 5)
    powers = [round(10 ** (p / 2)) for p in range(4, 13)] if paper else [16, 32]
    sizes, N = ([16, 64, 256, 1024, 4096, 16384], 16384) if paper else ([4, 8], 16)
    units, steps = ([8, 16, 32, 64, 128, 256], 8) if paper else ([2, 4], 2)
    plan = {
        "table": lambda: table(names, **few),
        "hundreds": lambda: hundreds(names, work, batches=steps, **many),
        "transfers": lambda: transfers([name for name in names if name in GPU], work, **many),
        "sums": lambda: sums(work, steps=steps, **many),
        "windows": lambda: windows(fast, powers, work, **few),
        "batch": lambda: batches(fast, sizes, N, work, **few),
        "hidden": lambda: hidden(fast, units, work, **few),
    }
    parts, failed = [], []
    for name, run in plan.items():
        try:
            parts.append(run())
        except Exception as error:  # the others are still worth their minutes on the device
            traceback.print_exc()
            failed.append(f"{name} ({type(error).__name__})")
            continue
        path = results.write("gpu", together(parts), preset=preset, folder=folder)
        yield name, parts[-1], path
    if failed:
        raise RuntimeError(f"not measured, see above: {', '.join(failed)}")
