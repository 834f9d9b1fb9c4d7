"""What is measured of training by several ranks: programs of `ranks.py`."""

import ctypes
import gc
import re
import time
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pandas as pd

from lstm_kernels.errors import check_int
from lstm_kernels.params import Params
from lstm_kernels.ranks import planner
from lstm_kernels.ranks.parallel import Parallel
from lstm_kernels.ranks.stage import Stage, layers_of
from lstm_kernels.ranks.world import CORES, Sum, World, take_cores
from lstm_kernels.strings import (
    SYMBOLS,
    Bucketed,
    Reber,
    borders,
    equal_borders,
    one_hot,
)
from lstm_kernels.versions import network

from ..measure.workloads import Workload
from .handover import in_turn, timed

RATE = 1e-3
ALONE, NETWORK, REPLICAS = "one rank", "network", "data after"  # ways of training
ENOUGH, MOST = 5e-3, 50  # seconds that a layer is timed for at least, calls at most


def alone(world, call):
    """Seconds of a call of rank 0, while the others sleep."""
    return timed(world, call if world.rank == 0 else lambda: None)


@dataclass(frozen=True)
class Example:
    """A model and a mini-batch. symbols: of an embedding and a softmax; 0 for random
    inputs.
    """

    layers: int
    hidden: int
    symbols: int
    steps: int
    batch: int

    @cached_property
    def params(self):
        sizes = {"num_layers": self.layers, "output_size": self.symbols or 1, "seed": 0}
        return Params.init(self.hidden, self.hidden, **sizes)

    @cached_property
    def embedding(self):
        if not self.symbols:
            return None
        rng, shape = np.random.default_rng(1), (self.symbols, self.hidden)
        return rng.uniform(-1, 1, shape).astype(np.float32)

    @cached_property
    def arrays(self):
        """The arrays of each layer by its name."""
        return layers_of(self.params, self.embedding)

    @property
    def loss(self):
        return "symbols" if self.symbols else "last"

    @cached_property
    def data(self):
        """Inputs, what is to be predicted, and the count of that, as `Parallel.passes`
        wants.
        """
        rng, T, B = np.random.default_rng(0), self.steps, self.batch
        if self.symbols:
            text = rng.integers(self.symbols, size=(T + 1, B))
            return text[:-1], text[1:], T * B
        x = rng.standard_normal((T, B, self.hidden)).astype(np.float32)
        return x, rng.standard_normal((B, 1)).astype(np.float32), B

    def step(self, world, **options):
        """A step of descent of a model of so many ranks, as a function."""
        options |= {"embedding": self.embedding, "loss": self.loss}
        model = Parallel(self.params, world, **options)
        return partial(model.descend, *self.data, RATE)

    def columns(self):
        work = Workload(self.layers, self.steps, self.hidden, self.hidden, self.batch)
        return work.columns()

    def even(self, ranks):
        """As many recurrent layers on each rank, an embedding with the first, the
        read-out with the last.
        """
        ends = [self.layers * r // ranks for r in range(ranks + 1)]
        counts = np.diff(ends)
        counts[0] += bool(self.symbols)
        counts[-1] += 1
        return counts.tolist()


def speed(
    world,
    ways=(ALONE, NETWORK, REPLICAS, "8 fill-drain"),
    layers=4,
    hidden=512,
    symbols=0,
    steps=100,
    batch=64,
    repeats=5,
):
    """Time training steps of one workload by several ways, in one loop: a row per way
    and repeat; and the sum of all gradients over the ranks.

    ways: "one rank" (`Parallel` of one), "network" (the network's own step on one
    thread), "data after" (replicas, whose gradients are summed after their passes), and
    pipelines of M micro-batches, "M fill-drain", whose stages share the layers out
    evenly.
    """
    example, cases = Example(layers, hidden, symbols, steps, batch), {}
    single = World(world.MPI.COMM_SELF)
    for way in ways:
        pipe = re.fullmatch(r"([1-9]\d*) fill-drain", way)
        if way == NETWORK:
            net = network("numba-fused", example.params, threads=1)
            step = partial(net.step, *example.data[:2], RATE)
            cases[way] = partial(alone, world, step)
        elif way == ALONE:
            cases[way] = partial(alone, world, example.step(single))
        elif way == REPLICAS:
            cases[way] = partial(timed, world, example.step(world))
        elif pipe:
            stages = example.even(world.size)
            step = example.step(world, stages=stages, micro_batches=int(pipe[1]))
            cases[way] = partial(timed, world, step)
        else:
            want = f"{ALONE!r}, {NETWORK!r}, {REPLICAS!r} or 'M fill-drain'"
            raise ValueError(f"ways: got {way!r}, want {want}")
    rows = in_turn(cases, repeats).assign(stage="step", **example.columns())
    whole = sum(a.size for layer in example.arrays.values() for a in layer.values())
    total = Sum(world, np.zeros(whole, np.float32))
    sums = in_turn({"sum": partial(timed, world, total.run)}, repeats)
    rows = pd.concat([rows, sums.assign(stage="sum", bytes=4 * whole)])
    rows = rows.rename(columns={"case": "version"})
    single = rows["version"].isin([ALONE, NETWORK])
    return rows.assign(ranks=np.where(single, 1, world.size))


def costs(world, layers=4, hidden=512, symbols=0, steps=100, samples=8, repeats=5):
    """Time each layer on every rank at the same time: forward, backward and descent,
    for a micro-batch of so many samples. Rows per layer, way and repeat, the mean over
    ranks; `bytes` are those of its gradients.
    """
    example, cases, sizes = Example(layers, hidden, symbols, steps, samples), {}, {}
    for name in example.arrays:
        cost = _LayerCost(world, example, name)
        sizes[name] = cost.stage.gradients.nbytes
        for way in ("forward", "backward", "descent"):
            cases[f"{name}/{way}"] = partial(cost.seconds, way)
    rows = in_turn(cases, repeats)
    case = rows.pop("case").str.split("/", expand=True)
    rows = rows.assign(**example.columns()).assign(variant=case[0], stage=case[1])
    rows["bytes"] = rows["variant"].map(sizes)
    return rows.assign(version="layer", ranks=world.size)


class _LayerCost:
    """One layer of an example, with a mini-batch that it goes forward and back on."""

    def __init__(self, world, example, name):
        self._world, self._calls = world, {}
        k = list(example.arrays).index(name)
        options = {"loss": example.loss, "is_first": k == 0}
        self.stage = Stage(example.arrays[name], example.params.cell, **options)
        self.stage.begin()
        inputs, *self._wanted = example.data
        shape = *inputs.shape[:2], example.hidden
        self._dy = np.random.default_rng(k).standard_normal(shape).astype(np.float32)
        self._value = inputs if k == 0 else self._dy

    def seconds(self, way):
        """The mean over the ranks, of as many in a row as take ENOUGH."""
        world = self._world
        if way not in self._calls:
            taken = [self._once(way) for _ in range(2)]  # the first warms up
            calls = min(MOST, int(np.ceil(ENOUGH / max(taken[1], 1e-7))))
            self._calls[way] = world.comm.allreduce(calls, world.MPI.MAX)
        world.comm.Barrier()
        taken = [self._once(way) for _ in range(self._calls[way])]
        return world.comm.allreduce(sum(taken)) / len(taken) / world.size

    def _once(self, way):
        start = time.perf_counter()
        if way == "descent":
            self.stage.theta = self.stage.descended(RATE)
            self.stage.begin()
        else:
            self.stage.forward(self._value, 0, *self._wanted)
        if way == "backward":
            start = time.perf_counter()
            self.stage.backward(self._dy, 0)
        return time.perf_counter() - start


def partitions(
    world,
    layers=8,
    hidden=256,
    symbols=5000,
    steps=20,
    batch=64,
    micro_batches=8,
    counts=None,
    cores=None,
    repeats=5,
):
    """Time steps of pipelines by partition, and of one rank, in one loop; a row per
    partition (its name is the layers of each rank, "5+5") and repeat.

    counts: partitions; None is every one over the ranks. cores: of each rank, as
    [0, 1, 0], where two ranks stand for two parts of one device.
    """
    if cores is not None:
        if len(cores) != world.size:
            want = f"one for each of {world.size} ranks"
            raise ValueError(f"cores: got {cores!r}, want {want}")
        take_cores(check_int("cores", cores[world.rank], 0), len(CORES))
    example = Example(layers, hidden, symbols, steps, batch)
    if counts is None:
        counts = planner.partitions(len(example.arrays), world.size)
    single = example.step(World(world.MPI.COMM_SELF))
    cases = {ALONE: partial(alone, world, single)}
    for partition in counts:
        stages = list(partition)
        step = example.step(world, stages=stages, micro_batches=micro_batches)
        cases["+".join(map(str, stages))] = partial(timed, world, step)
    rows = in_turn(cases, repeats).rename(columns={"case": "variant"})
    version = np.where(rows["variant"] == ALONE, ALONE, "pipeline")
    ranks = np.where(version == ALONE, 1, world.size)
    rows = rows.assign(stage="step", version=version, ranks=ranks)
    return rows.assign(**example.columns())


def memory(
    world, layers=8, hidden=256, symbols=5000, steps=20, batch=64, micro_batches=8
):
    """The most memory that each rank of an even pipeline takes for its stage, as Linux
    counts it: a row per rank.
    """
    example = Example(layers, hidden, symbols, steps, batch)
    _ = example.params, example.data
    small = Example(layers, hidden, symbols and 8, 2, 1)  # so that code is loaded
    small.step(World(world.MPI.COMM_SELF))()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is free goes back to the system
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
    before, start = _peak(), time.perf_counter()
    counts = example.even(world.size)
    step = example.step(world, stages=counts, micro_batches=micro_batches)
    for _ in range(2):
        step()
    row = {"repeat": 0, "seconds": time.perf_counter() - start}
    row |= {"bytes": _peak() - before, "variant": f"rank {world.rank}"}
    row |= {"version": "pipeline", "stage": "memory", "ranks": world.size}
    return pd.DataFrame(world.comm.gather(row | example.columns()))


def _peak():
    """The most bytes that this process has held since its peak began."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s*(\d+) kB", text)[1])


def bucketing(
    world,
    counts=(1, 2, 3, 4, 6, 8, 12),
    strings=512,
    hidden=128,
    batch=32,
    micro_batches=1,
    stages=None,
    repeats=5,
):
    """Time epochs of a next-symbol model of two layers by the number of buckets, with
    the best borders and with equal ones: a row per kind, number and repeat.
    """
    words = Reber().strings(strings, seed=0)
    dataset, lengths = one_hot(words), [len(word) for word in words]
    order, S = np.random.default_rng(0).permutation(strings), len(SYMBOLS)
    params = Params.init(S, hidden, num_layers=2, output_size=S, seed=0)
    options = {"micro_batches": micro_batches, "stages": stages, "loss": "symbols"}
    model, cases = Parallel(params, world, **options), {}
    kinds = {"best borders": borders, "equal borders": equal_borders}
    for count in counts:
        for kind, choose in kinds.items():
            bucketed = Bucketed(dataset, choose(lengths, count))
            epoch = partial(model.epoch, bucketed, order, batch, RATE)
            cases[f"{kind}/{count}"] = partial(timed, world, epoch)
    rows = in_turn(cases, repeats)
    case = rows.pop("case").str.split("/", expand=True)
    rows = rows.assign(version=case[0], variant=case[1], ranks=world.size)
    work = Workload(2, max(lengths), S, hidden, batch)
    return rows.assign(**work.columns(), stage="epoch", N=strings)
