"""Comparisons of the GPU versions with each other, with the CPU's on the same machine
and with PyTorch on the same GPU; `plan` has them all, `gpu_run` runs them.

In a row, `variant` names the comparison, N the examples of the data set.
"""

import copy
import timeit
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import pandas as pd

from lstm_kernels import reference
from lstm_kernels.gpu import device
from lstm_kernels.params import Params
from lstm_kernels.versions import network, versions

from ..measure.comparer import compare
from ..measure.runner import available, rounds, rows_of, timed
from ..measure.timing import together
from ..measure.workloads import AIRLINE, REFERENCE, Workload, airline_dataset
from . import gpu_kernels, gpu_torch

# The source's kind: hundreds of samples a step; a network for a whole device, and a
# layer of a stack, of any depth, that fits one.
HUNDREDS = Workload(L=1, T=12, D=1, H=32, B=256)
LARGE = REFERENCE
LAYER = Workload(L=1, T=100, D=128, H=128, B=1)
SMALL = Workload(L=1, T=2, D=1, H=2, B=4)
DEPTHS = (1, 2, 4, 8)
STAY = tuple(v.name for v in versions() if v.mini_batch_on == "GPU")  # on the device
CPU = ("sequential", "numpy-sample", "numpy", "numba-sample", "numba-fused")
LONG = 1.0  # seconds of a call that is timed once
LARGE_ONLY = "cuda-persistent"
RATE, TRAINING_RATE, WHOLE = 1e-4, 0.05, 1.0  # by WHOLE a gradient shows in full
# The largest relative error: of sums in another order, and of products whose operands
# have the 11 bits of TF32.
CLOSE, CLOSE_TF32 = 1e-4, 3e-2

Count = tuple[int, int]  # of bytes sent and fetched

# Of this process's comparisons: who is not in them, and why.
left_out: list[str] = []


def truth(params, x, dataset, batch_size, rate):
    """What `found` has to be, by the reference in float64."""
    params, losses = params.astype(np.float64), []
    y = reference.forward(params, x.astype(np.float64))[0]
    for index in dataset.batches(np.arange(len(dataset)), batch_size):
        examples = (a.astype(np.float64) for a in dataset.batch(index))
        loss, grads = reference.loss_and_grads(params, *examples)
        losses.append(loss)
        grads = grads.arrays()
        named = {n: a - rate * grads[n] for n, a in params.arrays().items()}
        params = Params.from_arrays(named, params.cell)
    return {"y": y, "losses": np.array(losses)} | params.arrays()


def found(net, params, x, dataset, batch_size, rate):
    """y, then losses and parameters of an epoch, of a network that starts with
    `params`.
    """
    net.assign(params)
    y = net.forward(x)[0]
    losses = net.epoch(dataset, np.arange(len(dataset)), batch_size, rate)
    return {"y": y, "losses": np.array(losses)} | net.params().arrays()


def contest(
    variant, names, work, dataset, calls, *, rate, long=LONG, make=network, **options
):
    """Rows of networks and of PyTorch side by side; a call of `long` seconds is timed
    once. Who cannot be made or does not agree with the reference is `left_out`.

    calls: stage -> function that takes one of them and returns what is timed, or None.
    rate: of the epoch of `dataset` in which they have to agree. make: takes the name of
    a version and parameters, returns the network.
    """
    (x, _), nets, rows = work.example(), {}, []
    cases, errors = {stage: {} for stage in calls}, {}
    given = work.params(), x, dataset, work.B, rate
    want = truth(*given)

    def error(name):
        close = CLOSE_TF32 if "tf32" in name else CLOSE
        return compare(found(nets[name], *given), want, close)

    for name in names:
        try:
            kind = gpu_torch.KINDS.get(name)
            if kind is None:
                nets[name] = make(name, given[0])
            else:
                nets[name] = gpu_torch.Torch(given[0], **kind)
            errors[name] = error(name)
            for stage, call in calls.items():
                if (case := call(nets[name])) is None:
                    continue
                case()  # what it compiles is no part of its time
                seconds = timeit.timeit(case, number=1)
                if seconds < long:
                    cases[stage][name] = case
                else:
                    row = {"case": name, "repeat": 0, "seconds": seconds}
                    rows.append(row | {"stage": stage, "max_err": errors[name]})
        except Exception as wrong:  # the others are still worth their seconds
            sizes = f"{name} (L={work.L}, H={work.H}, B={work.B})"
            left_out.append(f"{sizes}: {device.told(wrong)}")
            rows = [row for row in rows if row["case"] != name]
            for named in cases.values():
                named.pop(name, None)
    parts = [pd.DataFrame(rows)] if rows else []
    if short := {name for named in cases.values() for name in named}:

        def check():
            return {name: error(name) for name in names if name in short}

        parts.append(timed(cases, check, **options))
    if not parts:
        raise RuntimeError(f"{variant}: {'; '.join(left_out) or 'nobody is here'}")
    return rows_of(together(parts), work).assign(variant=variant, N=len(dataset))


def epoch_of(dataset, batch_size, rate):
    """For `calls`: an epoch, in which nothing but losses leaves the device."""
    order = np.arange(len(dataset))
    return lambda net: partial(net.epoch, dataset, order, batch_size, rate)


def on_device(net, x):
    """Inference of an x that is on the device, whose y stays there, as a function that
    waits for the end; None for what runs elsewhere. The state goes on from call to
    call.
    """
    if isinstance(net, gpu_torch.Torch):
        return net.on_device(x)
    if net.name not in STAY:
        return None
    other = copy.copy(net)
    other.forward(x)
    other._device.copy_to = lambda array, host: array
    other._device.copy_from = lambda array, host: host

    def run():
        other._forward(x, None, False)
        device.cuda.synchronize()

    return run


def passes(variant, names, works, **options):
    """Inference from host to host and on the device, and a step of training on the
    device.
    """
    parts = []
    for work in works:
        (x, _), dataset = work.example(), work.dataset(work.B)
        calls = {
            "forward": lambda net, x=x: partial(net.forward, x),
            "forward on device": partial(on_device, x=x),
            "step": epoch_of(dataset, work.B, RATE),
        }
        how = {"rate": WHOLE} | options
        parts.append(contest(variant, names, work, dataset, calls, **how))
    return together(parts)


def epochs(variant, names, work, dataset, *, count=1, rate=TRAINING_RATE, **options):
    """So many epochs, after which nothing but losses need have left the device; of the
    airline windows five are the source's table.
    """
    epoch = epoch_of(dataset, work.B, rate)
    stage = f"{count} epochs" if count > 1 else "epoch"

    def call(net):
        return lambda: [epoch(net)() for _ in range(count)]

    return contest(variant, names, work, dataset, {stage: call}, rate=rate, **options)


def steps(variant, names, work, **options):
    """A step of descent on examples of the host."""
    x, target = work.example()
    calls = {"step": lambda net: partial(net.step, x, target, RATE)}
    dataset = work.dataset(work.B)
    return contest(variant, names, work, dataset, calls, rate=WHOLE, **options)


def growing(names, works, **options):
    """An epoch in eight mini-batches of each Workload."""
    how = options | {"rate": RATE}
    parts = [epochs("windows", names, w, w.dataset(8 * w.B), **how) for w in works]
    return together(parts)


def copied(net, call):
    """Bytes that `call` copies to the device and back."""
    before = net._device.sent, net._device.fetched
    call()
    return net._device.sent - before[0], net._device.fetched - before[1]


def bytes_copied(version: str, work: Workload) -> Count:
    """Bytes that a mini-batch of one layer sends and fetches, by count; float32."""
    T, B, D, H = work.T, work.B, work.D, work.H
    x, step, layer = T * B * D, B * H, 4 * H * (D + H + 1)
    h, gates, state = (T + 1) * step, 4 * T * step, 2 * step  # state: of h and c
    if version in ("cuda-v1", "cuda-v2"):
        forward = state + x + layer + 2 * h + gates
        backward = layer - 4 * H + h + 2 * gates + T * step + state + x
        gradients = x + h + gates + layer
        return (4 * (forward + backward + gradients),) * 2
    if version == "cuda-v3":
        sent = x + layer + state + T * step + state
        return 4 * sent, 4 * (h + step + x + state + layer)
    return 8 * B, 4


def by_kernels(measure, **options):
    """The rows of a function of `gpu_kernels`."""
    return measure(**options).assign(variant=measure.__name__)


def here(chosen, H=None, wrong=()):
    """Those of the chosen versions and kinds of PyTorch that run here. wrong: pairs
    (version, H) that do not count.
    """
    known = {*available(), *available("gpu")}
    if find_spec("torch"):  # which captures no graph on a CPU
        kinds = gpu_torch.KINDS.items()
        known |= {n for n, how in kinds if gpu_torch.ON == "cuda" or "graph" not in how}
    known -= {name for name, units in wrong if units == H}
    return [name for name in chosen if name in known]


class Part(NamedTuple):
    """A comparison: a function that returns rows, the most seconds it may take, the
    networks (version, Workload) whose kernels it needs, and whether a claim rests on
    it, which asks for more processes than one.
    """

    run: Callable[[], pd.DataFrame]
    seconds: float
    networks: tuple[tuple[str, Workload], ...] = ()
    claimed: bool = False


def plan(preset, wrong=()):
    """The comparisons in the order of their worth: name -> Part.

    wrong: as of `here`, what the probe has found.
    """
    paper = preset == "paper"
    sizes = AIRLINE, HUNDREDS, LARGE, LAYER
    airline, hundred, large, layer = sizes if paper else [SMALL] * 4
    many, ten, five = (rounds(preset, n) | {"again": False} for n in (20, 10, 5))
    stay = [name for name in STAY if name != LARGE_ONLY]
    every = here([*CPU, "cuda-v1", "cuda-v2", "cuda-v3", *stay], airline.H, wrong)
    plain = here(["pytorch", "pytorch-graph"])
    parts = {}

    def add(name, seconds, names, works, function, *given, claimed=False, **options):
        compiled = [n for n in names if n.startswith(("cuda", "numba"))]
        compiled = tuple((n, w) for w in works for n in compiled)
        run = partial(function, *given, **options)
        parts[name] = Part(run, seconds, compiled, claimed)

    names = [name for name in every if name in ("numba-fused", *stay)]
    given = "airline", [*names, *plain], airline, airline.dataset(1600 if paper else 6)
    add("airline", 40, names, [airline], epochs, *given, claimed=True, **many)
    names = [name for name in every if name not in ("sequential", "cuda-v1")]
    given = "hundreds", names, hundred
    add("hundreds", 30, names, [hundred], steps, *given, claimed=True, **many)
    given = "table", every, airline, airline_dataset() if paper else SMALL.dataset(4)
    add("table", 40, every, [airline], epochs, *given, count=5 if paper else 2, **many)

    names = here(["numba-fused", "cuda-fused", LARGE_ONLY], large.H, wrong)
    rivals = here(gpu_torch.KINDS)

    def passed(B, seconds):
        work = replace(large, B=B)
        given = "large", [*names, *rivals], [work]
        add(f"large, {B}", seconds, names, [work], passes, *given, **ten)

    passed(large.B, 60)
    small = {} if paper else {"T": 2, "depths": (1, 2), "H": 3}
    add("layers", 20, (), (), by_kernels, gpu_kernels.layers, **five, **small)
    small = {} if paper else {"T": 2, "sizes": (4,), "D": 2, "O": 2}
    add("units", 15, (), (), by_kernels, gpu_kernels.units, **five, **small)
    grown = [100, 1000, 10_000, 100_000] if paper else [8]
    works = [replace(hundred, B=-(-N // 8)) for N in grown]  # always eight steps
    names = [name for name in every if name in ("numba-fused", "cuda-epoch")]
    add("windows", 35, names, works, growing, names, works, claimed=True, **five)

    names = here(["numba-fused", "cuda-fused", LARGE_ONLY], large.H, wrong)
    for B in (16, 1) if paper else ():
        passed(B, 25)
    names = here([LARGE_ONLY], layer.H, wrong)
    stacks = [replace(layer, L=L) for L in (DEPTHS if paper else (2,))]
    add("deep", 30, names, stacks, passes, "deep", [*names, *plain], stacks, **five)
    return parts
