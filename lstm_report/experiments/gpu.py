"""Comparisons of the GPU versions with each other and with the CPU's on the same
machine.

In a row, `variant` names the comparison, N the examples of the data set, bytes what a
step copies; a stage that ends in "by events" was timed by the device's own clock.
`gpu_run` runs them all.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from lstm_kernels.gpu import device
from lstm_kernels.training import train

from ..measure.runner import measure, network, networks, rows_of, timed, verify
from ..measure.timing import together
from ..measure.workloads import AIRLINE, Workload, airline_dataset

HUNDREDS = Workload(
    L=1, T=12, D=1, H=32, B=256
)  # the source's kind: hundreds of samples a step
LARGE = Workload(
    L=4, T=100, D=512, H=512, B=64
)  # on a GPU that is not filled by small networks
GPU = ("cuda-v1", "cuda-v2", "cuda-v3", "cuda-fused", "cuda-epoch")
CPU = ("sequential", "numpy-sample", "numpy", "numba-sample", "numba-fused")
SLOW = (
    "sequential",
    "numpy-sample",
    "cuda-v1",
)  # seconds for a step of hundreds of samples
STAY = ("cuda-fused", "cuda-epoch")  # whose network stays on the device
UPDATES = 8  # steps in an epoch where the data set grows: the mini-batch grows with it


def rows(nets, work, variant, stage, call, *, N=None, **options):
    """Rows of `measure` for a results file: `variant` names the comparison, after which
    stands the variant of the network, if it has one.
    """
    table = measure(nets, work, {stage: call}, **options)
    parts = [table, by_events(nets, work, stage, call, options["repeats"])]
    table = together([part for part in parts if len(part)])
    how = table["variant"].astype(object).fillna("")
    return table.assign(variant=(variant + " " + how).str.strip(), N=N)


def by_events(nets, work, stage, call, repeats):
    """Rows of the same calls, timed by the device between the events before and
    after.
    """
    taken = [
        {
            "case": name,
            "stage": f"{stage}, by events",
            "repeat": repeat,
            "seconds": seconds,
        }
        for name, net in nets.items()
        if name.startswith("cuda")
        for repeat in range(repeats)
        if (seconds := device.event_seconds(partial(call, net))) is not None
    ]
    return rows_of(pd.DataFrame(taken), work) if taken else pd.DataFrame()


def table(names, work=AIRLINE, dataset=None, *, epochs=5, **options):
    """The source's table: epochs of mini-batch gradient descent, by default on the
    airline windows; the slow versions twice.
    """
    dataset = dataset or airline_dataset()
    how = {
        "epochs": epochs,
        "batch_size": work.B,
        "learning_rate": 0.05,
        "progress": False,
    }
    few, parts = options | {"repeats": min(2, options["repeats"]), "again": False}, []
    for chosen, each in ((SLOW, few), ([n for n in names if n not in SLOW], options)):
        if nets := networks([name for name in names if name in chosen], work):
            call, N = (lambda net: train(net, dataset, **how)), len(dataset)
            stage = f"{epochs} epochs"
            parts.append(
                rows(nets, work, "table", stage, call, N=N, least=0.02, **each)
            )
    return together(parts)


def hundreds(names, work, *, repeats, batches=8, epochs=5, **options):
    """A step of hundreds of samples; and, but for the slow versions, epochs of such
    steps.
    """
    x, target = work.example()
    dataset, parts = work.dataset(batches * work.B), []
    how = {
        "epochs": epochs,
        "batch_size": work.B,
        "learning_rate": 1e-4,
        "progress": False,
    }
    long = f"{epochs} epochs"
    calls = {
        "step": lambda net: net.step(x, target, 1e-4),
        long: lambda net: train(net, dataset, **how),
    }
    for stage, slow, count in (
        ("step", True, max(1, repeats // 10)),
        ("step", False, repeats),
        (long, False, repeats),
    ):
        if chosen := [name for name in names if (name in SLOW) == slow]:
            N = len(dataset) if stage == long else None
            some = {"N": N, "repeats": count} | options
            parts.append(
                rows(
                    networks(chosen, work),
                    work,
                    "hundreds",
                    stage,
                    calls[stage],
                    **some,
                )
            )
    return together(parts)


def epochs(nets, work, variant, dataset, **options):
    """An epoch of each network in mini-batches of work.B, the data set where it was."""
    order = np.random.default_rng(0).permutation(len(dataset))

    def epoch(net):
        return net.epoch(dataset, order, work.B, 1e-4)

    return rows(nets, work, variant, "epoch", epoch, N=len(dataset), **options)


def windows(names, sizes, work, **options):
    """An epoch of UPDATES steps over data sets of growing size: the mini-batch grows
    with it.
    """
    parts, nets = [], networks(names, work)
    for N in sizes:
        sized = replace(work, B=-(-N // UPDATES))
        parts.append(epochs(nets, sized, "windows", work.dataset(N), **options))
    return together(parts)


def batches(names, sizes, N, work, **options):
    """An epoch over N windows in mini-batches of growing size."""
    nets, dataset = networks(names, work), work.dataset(N)
    return together(
        [epochs(nets, replace(work, B=B), "batch", dataset, **options) for B in sizes]
    )


def hidden(names, sizes, work, *, steps=4, **options):
    """An epoch of a few steps of networks of growing size."""
    parts = []
    for H in sizes:
        sized = replace(work, H=H)
        dataset = sized.dataset(steps * work.B)
        parts.append(
            epochs(networks(names, sized), sized, "hidden", dataset, **options)
        )
    return together(parts)


def sums(work, *, steps=8, **options):
    """Gradients summed in a fixed order, and with atomics: an epoch of `cuda-epoch`."""
    from lstm_kernels.versions.cuda_epoch import CudaEpoch

    forms = ("ordered", "atomic")
    nets = {f"cuda-epoch/{how}": CudaEpoch(work.params(), sums=how) for how in forms}
    return epochs(nets, work, "sums", work.dataset(steps * work.B), **options)


def copied(net, call):
    """Bytes that `call` copies to the device and back."""
    before = net._device.sent, net._device.fetched
    call()
    return net._device.sent - before[0], net._device.fetched - before[1]


def transfers(names, work, **options):
    """What a step copies, and how long these copies take alone; where the network stays
    on the device, inside an epoch.

    V1 and V2 copy as Numba does, from and to pageable memory, array by array; V3 by
    pinned memory.
    """
    dataset, (x, target) = work.dataset(work.B), work.example()
    order, parts = np.arange(work.B), []
    for name in names:
        net = network(name, work.params())
        check = partial(verify, {name: net}, work)
        step = partial(net.step, x, target, 1e-4)
        step()
        bytes_of = {"step": copied(net, step)}
        if name in STAY:
            many = np.tile(
                order, 9
            )  # what nine steps copy beyond one, shared among eight
            net.epoch(dataset, order, work.B, 1e-4)
            one, nine = (
                copied(net, partial(net.epoch, dataset, steps, work.B, 1e-4))
                for steps in (order, many)
            )
            # The order and the losses: they cross before the first step and after the
            # last.
            bytes_of["step of an epoch"] = [
                (b - a) // 8 for a, b in zip(one, nine, strict=True)
            ]
        for stage, counts in bytes_of.items():
            for way, size in zip(("sent", "fetched"), counts, strict=True):
                if size:
                    cases = {stage: {name: copies_alone(net, size, way)}}
                    times = timed(cases, check, **options)
                else:
                    nothing = {
                        "stage": stage,
                        "case": name,
                        "repeat": 0,
                        "seconds": 0.0,
                    }
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


def large(names, work, **options):
    """A step of a network whose weights no block can keep."""
    nets, (x, target) = networks(names, work), work.example()
    return rows(
        nets, work, "large", "step", lambda net: net.step(x, target, 1e-4), **options
    )
