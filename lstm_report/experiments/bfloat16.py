"""Notebook 10's measurements: `numba-bf16` beside PyTorch and ONNX Runtime, how far
rounding moves results, and what networks learn that are trained with it.
"""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from lstm_kernels import reference
from lstm_kernels.cells import CELLS
from lstm_kernels.cores import allowed
from lstm_kernels.cpu.bfloat16 import Bfloat16Tiles, available
from lstm_kernels.params import Params
from lstm_kernels.versions.numba_bf16 import NumbaBf16, NumbaBf16Wavefront
from lstm_kernels.versions.numba_wavefront import NumbaWavefront

from ..measure import ceilings, peers, results
from ..measure.comparer import TOLERANCE, compare, format_error, run, truth
from ..measure.runner import each, network, rounds, rows_of, timed, verify
from ..measure.timing import REST, interleaved, summary, together
from ..measure.workloads import AIRLINE, GRID, REFERENCE, Workload
from . import ablation, compression

LAYER = GRID["one layer"]
WORKS = {
    "one layer": LAYER,
    "four layers": REFERENCE,
    "256 samples": replace(LAYER, B=256),
    "one sample": Workload(L=4, T=100, D=1024, H=1024, B=1),
    "deep, one sample": GRID["deep, one sample"],
}
# H and T of what `errors` compares, each with four samples.
ERRORS = [(32, 10), (32, 100), (128, 10), (128, 100), (512, 10), (512, 100)]
FUSED, BF16, FLOAT = "numba-fused", "numba-bf16", np.dtype(np.float32)


class TorchBfloat16(peers.Torch):
    """PyTorch's network with parameters, inputs and outputs in bfloat16."""

    def __init__(self, params, threads):
        super().__init__(params, threads)
        self.net.bfloat16(), self.readout.bfloat16()
        self._given = {}

    def given(self, array):
        """An array in bfloat16; converted once, so that it is not timed."""
        key = id(array), array.shape
        if key not in self._given:
            self._given[key] = self.torch.from_numpy(array).bfloat16(), array
        return self._given[key][0]

    def outputs(self, x):
        with self.torch.inference_mode():
            return self.net(self.given(x))[0]

    def predict(self, x):
        return self.outputs(x).float().numpy()

    def step(self, x, target, rate):
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        y, _ = self.net(self.given(x))
        error = self.readout(y[-1]) - self.given(target)
        loss = (error * error).mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def run(self, x, dy):
        """y and its gradients by PyTorch's names, of a training pass, as float32."""
        x = self.given(x).clone().requires_grad_()
        y, _ = self.net(x)
        y.backward(self.given(dy))
        named = {"y": y.detach(), "x": x.grad}
        return named | {name: p.grad for name, p in self.net.named_parameters()}


def networks(work, threads):
    """Our networks by name, a case each: numba-fused, and numba-bf16 by each way of
    this CPU.
    """
    nets = {FUSED: network(FUSED, work.params(), threads=threads)}
    for way in available():
        nets[f"{BF16}/{way}"] = NumbaBf16(work.params(), threads=threads, way=way)
    if work.L > 1 and work.B == 1:
        nets["numba-wavefront"] = NumbaWavefront(work.params(), threads=threads)
        nets["numba-bf16-wavefront"] = NumbaBf16Wavefront(
            work.params(), threads=threads
        )
    return nets


def speeds(work, threads, **options):
    """Rows: our networks and the peers on a workload, in one loop, inference and
    training steps.
    """
    x, target = work.example()
    nets, params = networks(work, threads), work.params()
    torch, half = peers.Torch(params, threads), TorchBfloat16(params, threads)
    onnx = peers.OnnxRuntime(params, threads)
    few = np.arange(min(2, work.B))
    want = reference.forward(params.astype(np.float64), x[:, few].astype(np.float64))[0]
    others = {"pytorch": torch.predict, "pytorch/bfloat16": half.predict}
    others["onnxruntime"] = onnx.predict
    bounds = dict.fromkeys(others, TOLERANCE[FLOAT])
    bounds["pytorch/bfloat16"] = format_error(work.L, work.T, want.size)

    def check():
        found = {
            name: compare({"y": predict(x)[:, few]}, {"y": want}, bounds[name])
            for name, predict in others.items()
        }
        return found | verify(nets, work)

    untouched = {name: partial(call, x) for name, call in others.items()}
    untouched["pytorch/bfloat16"] = partial(half.outputs, x)
    # Others than those whose outputs are compared with what the parameters of the start
    # give.
    trained = nets | {"pytorch": peers.Torch(params, threads)}
    trained["pytorch/bfloat16"] = TorchBfloat16(params, threads)
    cases = {
        "forward": untouched | each(nets, lambda net: net.forward(x)),
        "step": each(trained, lambda either: either.step(x, target, 1e-4)),
    }
    times = timed(cases, check, rest=REST, **options)
    return rows_of(times, work).assign(threads=threads)


def products(threads, repeats=20, **options):
    """Rows: products of 4096 x 4096 by BLAS in float32 and by PyTorch in bfloat16, and
    a copy.
    """
    import torch

    torch.set_num_threads(threads)
    rows = ceilings.ceilings(threads, repeats=repeats, **options)
    a = torch.randn(
        ceilings.SIZE, ceilings.SIZE, generator=torch.Generator().manual_seed(0)
    )
    half, out = a.bfloat16(), torch.zeros_like(a, dtype=torch.bfloat16)

    def check():
        torch.matmul(half, half, out=out)
        want = half[0].double() @ half.double()
        bound = 2.0**-7  # of sums in float32, rounded once
        got = {"row": out[0].float().numpy()}
        return {"bf16 gemm": compare(got, {"row": want.numpy()}, bound)}

    cases = {"ceiling": {"bf16 gemm": lambda: torch.matmul(half, half, out=out)}}
    times = timed(cases, check, repeats=repeats, rest=REST, **options)
    more = times.rename(columns={"case": "version"}).assign(threads=threads)
    return together([rows, more])


def compared(preset):
    """`speeds` of every workload, and `products`."""
    works = WORKS.values() if preset == "paper" else [AIRLINE]
    parts = [products(allowed(), **rounds(preset, 9))]
    for work in works:
        how = rounds(preset, max(9, work.repeats))
        parts.append(speeds(work, allowed(), **how))
    return together(parts)


def rates():
    """GFLOP/s of one core by name: each instruction on registers alone, and each tile's
    loop; the best of three rounds.
    """
    calls = {"float32 multiply-add, on registers": ablation.register_peak}
    if "dot" in available():
        calls["dot product, on registers"] = partial(ablation.register_peak, dot=True)
    calls["float32, the tile's loop"] = ablation.peak
    for way in available():
        calls[f"{way}, the tile's loop"] = partial(ablation.peak, _tiles(way))
    rounds_ = [{name: call() for name, call in calls.items()} for _ in range(3)]
    return {name: max(one[name] for one in rounds_) for name in calls}


def _tiles(way):
    return Bfloat16Tiles(CELLS["lstm"], FLOAT, 64, None, way)


def loops(found):
    """Of `rates`, those of the tiles' loops by the names of `networks`."""
    return {
        FUSED if name.startswith("float32") else f"{BF16}/{name.split(',')[0]}": rate
        for name, rate in found.items()
        if "loop" in name
    }


def bits(work, threads):
    """Whether all ways, numbers of threads and orders of tasks give the same bits in a
    training pass; how many numbers of how many networks were compared.
    """
    params, (x, target) = work.params(), work.example()
    nets = [
        NumbaBf16(params, n, way=way)
        for way in available()
        for n in sorted({1, threads})
    ]
    nets += [NumbaBf16Wavefront(params, threads, way=way) for way in available()]
    got = [net.loss_and_grads(x, target)[1].arrays() for net in nets]
    same = all(np.array_equal(one[name], got[0][name]) for one in got for name in one)
    return same, sum(array.size for array in got[0].values()), len(nets)


def by_samples(counts, *, H, T, repeats, again=False):
    """Rates of h W of a layer with H units by the number of samples: version ->
    (operations for a byte of weights, GFLOP/s, counts); and the times.
    """
    params, cases, points = Params.init(1, H), {}, {}
    nets = {name: network(name, params) for name in (FUSED, BF16)}
    for B in counts:
        x = np.ones((T, B, 1), np.float32)
        cases |= {f"{name} {B}": net.bare_forward(x) for name, net in nets.items()}
    times = interleaved(cases, repeats=repeats, again=again)
    seconds = summary(times)["median"] / (T - 1)  # the first step has no product
    for name, size in zip(nets, (4, 2), strict=True):
        rate = [8e-9 * B * H * H / seconds[f"{name} {B}"] for B in counts]
        points[name] = [2 * B / size for B in counts], rate, counts
    return points, times


def passes(work, threads, *, repeats, again=False):
    """Inference and training steps of our networks on a workload, beside the loops of
    their tiles, all in one loop: a table by network, and the times.

    The table has GFLOP/s of a tile's loop, which are those of one core times `threads`,
    milliseconds, and which part of that rate each pass reaches (medians of the rounds'
    ratios).
    """
    (x, target), nets = work.example(), networks(work, threads)
    nets = {name: net for name, net in nets.items() if "wavefront" not in name}
    cases, gflop = {}, {"inference": work.gflop, "training": work.step_gflop}
    for name, net in nets.items():
        tiles = _tiles(net.way) if isinstance(net, NumbaBf16) else None
        cases[f"{name}, loop"], count = ablation.tile_loop(tiles)
        gflop[f"{name}, loop"] = threads * count / 1e9
        cases[f"{name}, inference"] = partial(net.forward, x)
        cases[f"{name}, training"] = partial(net.step, x, target, 1e-4)
    times = interleaved(cases, repeats=repeats, rest=REST, again=again)
    seconds = times.pivot_table(index="repeat", columns="case", values="seconds")
    lines = {}
    for name in nets:
        loop = gflop[f"{name}, loop"] / seconds[f"{name}, loop"]
        line = lines[name] = {"its loop, GFLOP/s": loop.median()}
        for what in ("inference", "training"):
            own = seconds[f"{name}, {what}"]
            line[f"{what}, ms"] = 1e3 * own.median()
            line[f"{what}, of its loop"] = (gflop[what] / own / loop).median()
    return pd.DataFrame(lines).T, times


def halved(table, work):
    """What half the bytes can gain at most, by network, beside what they gain: of
    `passes` on one sample.

    Inputs of many steps are multiplied at once, at the loop's rate; if the rest waits
    for weights, half of what `numba-fused` takes for it is the least.
    """
    before = (
        work.D + (work.L - 1) * work.H
    )  # of the rows of all weights, those of inputs
    gflop = work.gflop * before / (before + work.L * work.H)
    ms, inputs = table["inference, ms"], 1e3 * gflop / table["its loop, GFLOP/s"]
    rest = ms - inputs
    columns = {
        "ms": ms,
        "of these, inputs": inputs,
        "the rest": rest,
        "speed": ms[FUSED] / ms,
    }
    columns["bound"] = ms[FUSED] / (inputs + rest[FUSED] / 2)
    return pd.DataFrame(columns)


def errors(preset, seeds=3):
    """Rows: largest error against float64, relative to the largest entry, of y and
    every gradient, by H and T, of numba-bf16 by each way and of PyTorch in bfloat16.
    """
    rows, sizes = [], ERRORS if preset == "paper" else ERRORS[:1]
    for H, T in sizes:
        work = Workload(L=1, T=T, D=H, H=H, B=4)
        for seed in range(seeds):
            params, x, dy = (
                work.params(seed=seed),
                work.example(seed)[0],
                work.dy(seed + 100),
            )
            want = _by_torch_s_names(truth(params, x, dy))
            found = {"pytorch": TorchBfloat16(params, allowed()).run(x, dy)}
            for way in available():
                net = NumbaBf16(params, way=way)
                found[f"{BF16}/{way}"] = _by_torch_s_names(run(net, x, dy, None, None))
            for name, got in found.items():
                version, _, variant = name.partition("/")
                for stage, array in want.items():
                    value = np.asarray(
                        got[stage].float() if version == "pytorch" else got[stage]
                    )
                    error = compare({stage: value}, {stage: array}, math.inf)
                    about = {
                        "version": version,
                        "variant": variant or None,
                        "stage": stage,
                    }
                    rows.append(
                        work.columns() | about | {"repeat": seed, "max_err": error}
                    )
    return pd.DataFrame(rows).assign(seconds=np.nan)


def _by_torch_s_names(named):
    """y and gradients of one layer by PyTorch's names and shapes; both its biases have
    b's.
    """
    layer = {name: named[f"layers.0.{name}"] for name in "UWb"}
    table = {"y": named["training: y"], "x": named["x"]}
    table |= {"weight_ih_l0": layer["U"].T, "weight_hh_l0": layer["W"].T}
    return table | {"bias_ih_l0": layer["b"]}


def learning(preset, seeds=5):
    """Rows: held-out losses of the tasks of `compression`, trained by both versions
    from the same parameters on the same mini-batches.
    """
    rows = []
    for task in TASKS[preset]:
        for seed in range(seeds if preset == "paper" else 1):
            for version in (FUSED, BF16):
                net = network(version, task.start(seed))
                seconds = task.train(net, task.epochs, task.learning_rate, seed)
                # Judged by the same arithmetic: what differs is what was learned.
                loss, accuracy = task.judge(network(FUSED, net.params()))
                own, _ = task.judge(net)
                about = {"version": version, "variant": task.name, "stage": "trained"}
                about |= {
                    "repeat": seed,
                    "loss": loss,
                    "accuracy": accuracy,
                    "seconds": seconds,
                }
                rows += [about, about | {"stage": "judged by itself", "loss": own}]
    table = pd.DataFrame(rows)
    return table.assign(dtype="float32", threads=allowed())


TASKS = {
    "paper": (
        compression.Airline(32, 200, 0, 16, 3e-3),
        compression.Grammar(64, 20, 0, 32, 2e-3),
    ),
    "smoke": compression.TASKS["smoke"],
}


def main(preset="paper", folder=None):
    """Compare; yields (experiment, rows, path) once its file is written."""
    plan = {
        "bfloat16": partial(compared, preset),
        "bfloat16-errors": partial(errors, preset),
        "bfloat16-learning": partial(learning, preset),
    }
    return results.fill(plan, preset=preset, folder=folder)
