"""Comparisons of the GPU versions with each other, with the CPU's on the same machine
and with PyTorch on the same GPU.

In a row, `variant` names the comparison, N the examples of the data set. `gpu_run` runs
them all.
"""

import copy
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec

import numpy as np

from lstm_kernels import cores, reference
from lstm_kernels.gpu import device
from lstm_kernels.params import Params
from lstm_kernels.training import train
from lstm_kernels.versions import network, versions

from ..measure.comparer import compare
from ..measure.runner import available, measure, networks, rounds, rows_of, timed
from ..measure.timing import together
from ..measure.workloads import AIRLINE, REFERENCE, Workload, airline_dataset
from . import gpu_torch

# The source's kind: hundreds of samples a step; a network for a whole device, and a
# layer of a stack, of any depth, that fits one; a stack for the cores of a CPU.
HUNDREDS = Workload(L=1, T=12, D=1, H=32, B=256)
LARGE = REFERENCE
LAYER = Workload(L=1, T=100, D=128, H=128, B=1)
STACK = Workload(L=8, T=120, D=256, H=256, B=1)
SMALL = Workload(L=1, T=2, D=1, H=2, B=4)
DEPTHS = (1, 2, 4, 8, 16)
STAY = tuple(v.name for v in versions() if v.mini_batch_on == "GPU")  # on the device
CPU = ("sequential", "numpy-sample", "numpy", "numba-sample", "numba-fused")
SLOW = ("sequential", "numpy-sample", "cuda-v1")  # seconds for a step of hundreds
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


def contest(variant, names, work, dataset, calls, *, rate, **options):
    """Rows of networks and of PyTorch side by side; who cannot be made or does not
    agree with the reference is `left_out`.

    calls: stage -> function that takes one of them and returns what is timed, or None.
    rate: of the epoch of `dataset` in which they have to agree.
    """
    (x, _), nets, cases = work.example(), {}, {stage: {} for stage in calls}
    given = work.params(), x, dataset, work.B, rate
    want = truth(*given)

    def error(name):
        close = CLOSE_TF32 if "tf32" in name else CLOSE
        return compare(found(nets[name], *given), want, close)

    for name in names:
        try:
            kind = gpu_torch.KINDS.get(name)
            make = partial(network, name) if kind is None else gpu_torch.Torch
            nets[name] = make(given[0], **(kind or {}))
            error(name)
            timed_calls = {stage: call(nets[name]) for stage, call in calls.items()}
        except Exception as wrong:  # the others are still worth their seconds
            nets.pop(name, None)
            said = f"{type(wrong).__name__}: {device.first_line(wrong)}"
            left_out.append(f"{name} (L={work.L}, H={work.H}, B={work.B}): {said}")
            continue
        for stage, call in timed_calls.items():
            cases[stage] |= {name: call} if call else {}
    if not nets:
        raise RuntimeError(f"{variant}: {'; '.join(left_out) or 'nobody is here'}")
    rows = rows_of(timed(cases, lambda: {n: error(n) for n in nets}, **options), work)
    return rows.assign(variant=variant, N=len(dataset))


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
        device.synchronize()

    return run


def training(names, work, datasets, **options):
    """An epoch of each data set; PyTorch's too is on the device all the time."""
    parts = []
    for dataset in datasets:
        calls = {"epoch": epoch_of(dataset, work.B, TRAINING_RATE)}
        how = {"rate": TRAINING_RATE} | options
        parts.append(contest("airline", names, work, dataset, calls, **how))
    return together(parts)


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


def compared(names, work, variant, stage, call, *, repeats, N=None, **options):
    """Rows of `call` of each version's network; the slow versions take one round."""
    slow = [name for name in names if name in SLOW]
    others = [name for name in names if name not in SLOW]
    once, often = {"repeats": 1, "least": 0}, {"repeats": repeats} | options
    parts = [
        measure(networks(chosen, work), work, {stage: call}, **how)
        for chosen, how in ((slow, once), (others, often))
        if chosen
    ]
    return together(parts).assign(variant=variant, N=N)


def epochs(variant, names, work, dataset, *, epochs=5, **options):
    """Epochs of mini-batch gradient descent; of the airline windows they are the
    source's table.
    """

    def call(net):
        train(net, dataset, epochs, work.B, TRAINING_RATE, progress=False)

    options |= {"N": len(dataset), "least": 0.02}
    return compared(names, work, variant, f"{epochs} epochs", call, **options)


def step_of(work):
    """A step of descent on examples of the host."""
    x, target = work.example()
    return lambda net: net.step(x, target, RATE)


def growing(names, sizes, **options):
    """An epoch over N random windows in mini-batches of work.B, for (work, N) of
    `sizes`: the data set is where it was.
    """
    parts = []
    for work, N in sizes:
        epoch = epoch_of(work.dataset(N), work.B, RATE)
        call = lambda net, epoch=epoch: epoch(net)()  # noqa: E731
        parts.append(compared(names, work, "windows", "epoch", call, N=N, **options))
    return together(parts)


def on_cores(cases, counts, **options):
    """Inference, or a step (`stages`), by so many threads of the CPU.

    cases: (version, Workload, cell, stages); an RNN's rows are a variant of their own.
    """
    parts = []
    for name, work, cell, stages in cases:
        params, (x, _) = work.params(cell=cell), work.example()
        nets = {f"{name}/{n}": network(name, params, threads=n) for n in counts}
        calls = {"forward": lambda net, x=x: net.forward(x), "step": step_of(work)}
        calls = {stage: calls[stage] for stage in stages}
        rows = measure(nets, work, calls, **options)
        variant = "threads" if cell == "lstm" else f"threads, {cell}"
        parts.append(rows.assign(threads=rows["variant"].astype(int), variant=variant))
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


def by_kernels(function, variant, **options):
    """The rows of a function of `gpu_kernels`."""
    kernels = import_module(".gpu_kernels", __package__)
    return getattr(kernels, function)(**options).assign(variant=variant)


def here(H, chosen, wrong=()):
    """Those of the chosen versions and kinds of PyTorch that run here. wrong: pairs
    (version, H) that do not count.
    """
    known = {*available(), *available("gpu")}
    if find_spec("torch"):  # which captures no graph on a CPU
        kinds = gpu_torch.KINDS.items()
        known |= {n for n, how in kinds if gpu_torch.ON == "cuda" or "graph" not in how}
    known -= {name for name, units in wrong if units == H}
    return [name for name in chosen if name in known]


def plan(preset, wrong=()):
    """The comparisons in the order of their worth: name -> function that returns rows.

    wrong: as of `here`, what the probe has found.
    """
    paper = preset == "paper"
    sizes = AIRLINE, HUNDREDS, LARGE, LAYER, STACK
    airline, hundred, large, layer, stack = sizes if paper else [SMALL] * 5
    many, some = rounds(preset), rounds(preset, 5)
    # Of long calls, none is measured again.
    ten, five, three = ({"repeats": n if paper else 1} for n in (10, 5, 3))
    stay = [name for name in STAY if name != LARGE_ONLY]
    every = here(airline.H, [*CPU, "cuda-v1", "cuda-v2", "cuda-v3", *stay], wrong)
    fast = [n for n in every if n in ("numba-fused", "cuda-v3", *stay)]
    plain = here(airline.H, ["pytorch", "pytorch-graph"])
    dataset = airline_dataset() if paper else SMALL.dataset(4)
    datasets = [dataset, airline.dataset(1600 if paper else 6)]
    parts = {"airline": partial(training, [*fast, *plain], airline, datasets, **many)}

    contenders = "numba-fused", "cuda-fused", LARGE_ONLY, *gpu_torch.KINDS
    contenders = here(large.H, contenders, wrong)
    fewer = {"large 16": 16, "large 1": 1} if paper else {}
    for part, B in ({"large": large.B} | fewer).items():
        works = [replace(large, B=B)]
        parts[part] = partial(passes, "large", contenders, works, **ten)

    count = 5 if paper else 1
    options = {"epochs": count} | many
    parts["table"] = partial(epochs, "table", every, airline, dataset, **options)
    names, call = [name for name in every if name != "sequential"], step_of(hundred)
    parts["hundreds"] = partial(
        compared, names, hundred, "hundreds", "step", call, **many
    )
    grown = [10**power for power in range(2, 7)] if paper else [8]
    grown = [(replace(hundred, B=-(-N // 8)), N) for N in grown]  # always eight steps
    parts["windows"] = partial(growing, fast, grown, **some)

    stacks = [replace(layer, L=L) for L in (DEPTHS if paper else (2,))]
    names = here(layer.H, ["cuda-fused", LARGE_ONLY, *plain], wrong)
    parts["layers"] = partial(passes, "layers", names, stacks, **five)
    if find_spec(f"{__package__}.gpu_kernels"):
        tiny = {} if paper else {"T": 2}
        depths = tiny | ({} if paper else {"depths": (1, 2), "H": 3})
        parts["stacks"] = partial(by_kernels, "layers", "layers", **five, **depths)
        units = tiny | ({} if paper else {"sizes": (4,), "D": 2, "O": 2})
        parts["units"] = partial(by_kernels, "units", "units", **five, **units)

    cases = [
        ("numba-fused", hundred, "lstm", ["step"]),
        ("numba-fused", stack, "lstm", ["forward"]),
        ("numba-wavefront", stack, "lstm", ["forward", "step"]),
        ("numba-fused", replace(large, T=10), "lstm", ["step"]),
    ]
    rnns = [Workload(1, 64, H, H, 1) for H in (512, 1024, 2048)] if paper else [SMALL]
    cases += [("numba-fused", work, "rnn", ["forward"]) for work in rnns]
    counts = [n for n in (1, 2, 4, 8, 16) if n <= cores.allowed()]
    parts["threads"] = partial(on_cores, cases, counts, **three)
    return parts
