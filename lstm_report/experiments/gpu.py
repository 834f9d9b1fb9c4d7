"""Comparisons of the GPU versions with each other and with the CPU's on the same
machine.

In a row, `variant` names the comparison, N the examples of the data set. `gpu_run` runs
them all.
"""

from dataclasses import replace
from functools import partial

import numpy as np

from lstm_kernels.training import train

from ..measure.runner import available, measure, networks, rounds
from ..measure.timing import together
from ..measure.workloads import AIRLINE, Workload, airline_dataset

# The source's kind: hundreds of samples a step; and a network for a whole device.
HUNDREDS = Workload(L=1, T=12, D=1, H=32, B=256)
LARGE = Workload(L=4, T=100, D=512, H=512, B=64)
SMALL = Workload(L=1, T=2, D=1, H=3, B=8)
GPU = ("cuda-v1", "cuda-v2", "cuda-v3", "cuda-fused", "cuda-epoch")
CPU = ("sequential", "numpy-sample", "numpy", "numba-sample", "numba-fused")
SLOW = ("sequential", "numpy-sample", "cuda-v1")  # seconds for a step of hundreds
STAY = ("cuda-fused", "cuda-epoch")  # whose network stays on the device
RATE = 1e-4


def compared(names, work, variant, stage, call, *, repeats, N=None, **options):
    """Rows of `call` of each version's network, after its name a variant; the slow
    versions take two rounds at most.
    """
    slow = [name for name in names if name in SLOW]
    others = [name for name in names if name not in SLOW]
    parts = [
        measure(networks(chosen, work), work, {stage: call}, repeats=count, **options)
        for chosen, count in ((slow, min(2, repeats)), (others, repeats))
        if chosen
    ]
    return together(parts).assign(variant=variant, N=N)


def epochs(variant, names, work, dataset, *, epochs=5, **options):
    """Epochs of mini-batch gradient descent; of the airline windows they are the
    source's table.
    """

    def call(net):
        train(net, dataset, epochs, work.B, 0.05, progress=False)

    options |= {"N": len(dataset), "least": 0.02}
    return compared(names, work, variant, f"{epochs} epochs", call, **options)


def steps(variant, names, work, **options):
    """A step of descent on random examples."""
    x, target = work.example()

    def step(net):
        net.step(x, target, RATE)

    return compared(names, work, variant, "step", step, **options)


def hundreds(names, work, *, batches=8, epochs_of_steps=5, **options):
    """A step of hundreds of samples; and, but for the slow versions, epochs of such
    steps.
    """
    fast = [name for name in names if name not in SLOW]
    dataset = work.dataset(batches * work.B)
    long = epochs("hundreds", fast, work, dataset, epochs=epochs_of_steps, **options)
    return together([steps("hundreds", names, work, **options), long])


def growing(names, sizes, **options):
    """An epoch over N random windows in mini-batches of work.B, for (work, N) of
    `sizes`: the data set is where it was.
    """
    parts = []
    for work, N in sizes:
        epoch = partial(_epoch, work, work.dataset(N))
        parts.append(compared(names, work, "windows", "epoch", epoch, N=N, **options))
    return together(parts)


def _epoch(work, dataset, net):
    net.epoch(dataset, np.arange(len(dataset)), work.B, RATE)


def copied(net, call):
    """Bytes that `call` copies to the device and back."""
    before = net._device.sent, net._device.fetched
    call()
    return net._device.sent - before[0], net._device.fetched - before[1]


def plan(preset):
    """The comparisons in the order of their worth: name -> function that returns
    rows.
    """
    paper = preset == "paper"
    runs_here = {*available(), *available("gpu")}
    names = [name for name in (*CPU, *GPU) if name in runs_here]
    fast = [name for name in ("numba-fused", "cuda-v3", *STAY) if name in names]
    stay = [name for name in STAY if name in names]
    work = HUNDREDS if paper else SMALL
    deep = LARGE if paper else SMALL
    dataset = airline_dataset() if paper else SMALL.dataset(8)
    airline = AIRLINE if paper else SMALL
    windows = [round(10 ** (p / 2)) for p in range(4, 13)] if paper else [8, 16]
    grown = [(replace(work, B=-(-N // 8)), N) for N in windows]  # always eight steps
    count = 5 if paper else 1
    long = {"batches": 8 if paper else 1, "epochs_of_steps": count}
    many, few = rounds(preset), rounds(preset, 5)
    return {
        "hundreds": partial(hundreds, names, work, **long, **many),
        "windows": partial(growing, fast, grown, **few),
        "large": partial(steps, "large", stay, deep, **few),
        "table": partial(
            epochs, "table", names, airline, dataset, epochs=count, **many
        ),
    }
