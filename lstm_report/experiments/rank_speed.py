"""What is measured of training by several ranks: programs of `jobs.py`."""

import ctypes
import gc
import re
import time
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd

from lstm_kernels.errors import check_ints
from lstm_kernels.params import Params
from lstm_kernels.ranks.layers import TokenParams
from lstm_kernels.ranks.parallel import LocalLayers, Parallel, layer_names
from lstm_kernels.ranks.planner import partitions as every_partition
from lstm_kernels.ranks.world import CORES, World, take_cores
from lstm_kernels.strings import (
    SYMBOLS,
    Bucketed,
    Reber,
    borders,
    equal_borders,
    one_hot,
)
from lstm_kernels.versions import network

from ..measure.timing import interleaved
from ..measure.workloads import Workload
from .compilers import peak

RATE = 1e-3
ALONE = "one rank"
WAYS = ("forward", "backward", "last", "descent")
PIPELINE = re.compile(r"(\d+) (\S+)(?: (\d+) loops| ([\d+]+))?")  # of `speed`'s ways
ENOUGH, MOST = (
    5e-3,
    50,
)  # seconds that a layer is timed for at least, and how often at most


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
        sizes = {"num_layers": self.layers, "seed": 0}
        if self.symbols:
            return TokenParams.init(self.symbols, self.hidden, self.hidden, **sizes)
        return Params.init(self.hidden, self.hidden, output_size=1, **sizes)

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

    def model(self, world, kind=Parallel, **how):
        return kind(self.params, world, loss=self.loss, **how)

    def columns(self):
        work = Workload(self.layers, self.steps, self.hidden, self.hidden, self.batch)
        return work.columns()

    def step(self, model):
        """One step of descent: the loss before it."""
        return model.passes(*self.data, RATE)


class Unsummed(Parallel):
    """Ranks that keep their gradients to themselves: what a step takes without its
    sums.
    """

    def _summed(self, started):
        return [slice(None)]


def _alone(world, call):
    """A call of rank 0 alone, while the others sleep."""
    return partial(world.timed, call if world.rank == 0 else lambda: None)


# Data parallelism: the class, and whether it sums while it computes.
REPLICAS = {"data": (Parallel, True), "data after": (Parallel, False)}
REPLICAS["data unsummed"] = Unsummed, False


def speed(
    world,
    ways="one rank,network,data,data after,data unsummed,8 fill-drain",
    layers=4,
    hidden=512,
    symbols=0,
    steps=100,
    batch=64,
    repeats=5,
):
    """Time training steps of one workload by several ways, in one loop: a row per way
    and repeat.

    ways: "one rank" (`Parallel` of one), "network" (the network's own step on one
    thread), "data" (sums while computing), "data after" (sums after it), "data
    unsummed" (none), and pipelines "M order" of M micro-batches, "M order N loops",
    whose stages share the layers out evenly, or "M order 2+3" with so many layers a
    stage.
    """
    example, cases = Example(layers, hidden, symbols, steps, batch), {}
    x, target, _ = example.data
    for way in ways.split(","):
        if way == "network":
            net = network("numba-fused", example.params, threads=1)
            cases[way] = _alone(world, partial(net.step, x, target, RATE))
        elif way == ALONE:
            model = example.model(World(world.MPI.COMM_SELF))
            cases[way] = _alone(world, partial(example.step, model))
        else:
            model = _of_way(world, example, way)
            cases[way] = partial(world.timed, partial(example.step, model))
    rows = interleaved(cases, repeats=repeats, least=0, own=True)
    rows = rows.rename(columns={"case": "version"}).assign(
        stage="step", **example.columns()
    )
    return rows.assign(
        ranks=np.where(rows["version"].isin([ALONE, "network"]), 1, world.size)
    )


def _of_way(world, example, way):
    """The model on all ranks that one of `speed`'s ways names."""
    if way in REPLICAS:
        kind, overlap = REPLICAS[way]
        return example.model(world, kind, overlap=overlap)
    if not (found := PIPELINE.fullmatch(way)):
        known = ", ".join(map(repr, (ALONE, "network", *REPLICAS)))
        want = f"{known}, 'M order', 'M order N loops' or 'M order 2+3'"
        raise ValueError(f"ways: got {way!r}, want {want}")
    M, order, loops, counts = found.groups()
    loops = int(loops or 1)
    if counts:
        stages = check_ints("ways", counts.replace("+", ","))
    else:
        stages = _even(example.params, world.size * loops)
    how = {"micro_batches": int(M), "order": order, "loops": loops}
    return example.model(world, stages=stages, **how)


def _even(params, ranks):
    """As many recurrent layers each, an embedding with the first, the read-out with the
    last.
    """
    L, encoder = params.num_layers, len(layer_names(params)) - params.num_layers - 1
    ends = [L * r // ranks for r in range(ranks + 1)]
    counts = [b - a for a, b in pairwise(ends)]
    counts[0] += encoder
    counts[-1] += 1
    return counts


def costs(world, layers=4, hidden=512, symbols=0, steps=100, samples="8", repeats=5):
    """Time each layer on every rank at the same time: forward, backward with more
    micro-batches to come, backward with the last one, whose gradients are complete, and
    descent. Rows per layer, way, samples and repeat, the mean over ranks; `bytes` are
    those of its gradients.
    """
    cases, sizes = {}, {}
    for B in check_ints("samples", samples):
        example = Example(layers, hidden, symbols, steps, B)
        for k, name in enumerate(layer_names(example.params)):
            cost = _LayerCost(world, example, k)
            sizes[name] = cost.bytes
            for way in WAYS:
                cases[f"{name}/{way}/{B}"] = partial(cost.seconds, way)
    rows = interleaved(cases, repeats=repeats, least=0, own=True)
    case = rows.pop("case").str.split("/", expand=True)
    rows = rows.assign(**example.columns()).assign(variant=case[0], stage=case[1])
    rows = rows.assign(version="layer", B=case[2].astype(int), ranks=world.size)
    return rows.assign(bytes=rows["variant"].map(sizes))


class _LayerCost:
    """One layer of an example, with a mini-batch that it goes forward and back on."""

    def __init__(self, world, example, k):
        self._world, self._often, names = world, {}, layer_names(example.params)
        self._layer = LocalLayers(
            example.params, [(k, k + 1)], example.loss, "numba-fused", 1
        )
        self.bytes = self._layer.gradients.nbytes
        inputs, self._target, self._count = example.data
        shape = *inputs.shape[:2], example.hidden
        y = np.random.default_rng(k).standard_normal(shape).astype(np.float32)
        self._value = inputs if k == 0 else y
        self._dy = None if k == len(names) - 1 else y

    def seconds(self, way):
        """The mean over the ranks, of as many in a row as take ENOUGH."""
        world = self._world
        if way not in self._often:
            taken = [self._once(way) for _ in range(2)]  # the first warms up
            often = min(MOST, int(np.ceil(ENOUGH / max(taken[1], 1e-7))))
            self._often[way] = world.comm.allreduce(often, world.MPI.MAX)
        world.comm.Barrier()
        taken = [self._once(way) for _ in range(self._often[way])]
        return world.comm.allreduce(sum(taken)) / len(taken) / world.size

    def _once(self, way):
        start = time.perf_counter()
        if way == "descent":
            self._layer.descend(RATE)
        else:
            self._layer.forward(self._value, self._target, self._count, 0)
        if way in ("backward", "last"):
            start = time.perf_counter()
            self._layer.backward(self._dy, 0, way == "backward")
        return time.perf_counter() - start


def partitions(
    world,
    layers=8,
    hidden=256,
    symbols=5000,
    steps=20,
    batch=64,
    micro_batches=8,
    order="fill-drain",
    counts="",
    cores="",
    repeats=5,
):
    """Time steps of pipelines by partition, and of one rank, in one loop; a row per
    partition (its name is the layers of each rank, "5+5") and repeat.

    counts: "5,5;6,4", empty is every partition over the ranks. cores: of each rank, as
    "0,1,0", where two ranks stand for two parts of one device.
    """
    if cores:
        if len(core_of := check_ints("cores", cores, 0)) != world.size:
            raise ValueError(
                f"cores: got {cores!r}, want one for each of {world.size} ranks"
            )
        take_cores(core_of[world.rank], len(CORES))
    example = Example(layers, hidden, symbols, steps, batch)
    if counts:
        chosen = [check_ints("counts", words) for words in counts.split(";")]
    else:
        chosen = every_partition(len(layer_names(example.params)), world.size)
    single = example.model(World(world.MPI.COMM_SELF))
    cases = {ALONE: _alone(world, partial(example.step, single))}
    for partition in chosen:
        how = {
            "stages": list(partition),
            "micro_batches": micro_batches,
            "order": order,
        }
        model = example.model(world, **how)
        cases["+".join(map(str, partition))] = partial(
            world.timed, partial(example.step, model)
        )
    rows = interleaved(cases, repeats=repeats, least=0, own=True)
    rows = rows.rename(columns={"case": "variant"}).assign(
        stage="step", **example.columns()
    )
    version = np.where(rows["variant"] == ALONE, ALONE, "pipeline")
    return rows.assign(version=version, ranks=np.where(version == ALONE, 1, world.size))


def memory(
    world, layers=8, hidden=256, symbols=5000, steps=20, batch=64, micro_batches=8
):
    """The most memory that each rank of an even pipeline takes for its stage, as Linux
    counts it: a row per rank.
    """
    example = Example(layers, hidden, symbols, steps, batch)
    _ = example.params, example.data
    small = Example(layers, hidden, symbols and 8, 2, 1)  # so that code is loaded
    small.step(small.model(World(world.MPI.COMM_SELF)))
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is free goes back to the system
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
    before = peak()
    counts = _even(example.params, world.size)
    model = example.model(world, stages=counts, micro_batches=micro_batches)
    start = time.perf_counter()
    for _ in range(2):
        example.step(model)
    row = {
        "repeat": 0,
        "seconds": time.perf_counter() - start,
        "bytes": peak() - before,
    }
    row |= {"variant": f"rank {world.rank}", "version": "pipeline", "stage": "memory"}
    row |= example.columns() | {"ranks": world.size}
    return pd.DataFrame(world.comm.gather(row))


def bucketing(
    world,
    counts="1,2,3,4,6,8,12",
    strings=512,
    least=9,
    layers=2,
    hidden=128,
    batch=32,
    micro_batches=1,
    stages="",
    repeats=5,
):
    """Time epochs of a next-symbol model by the number of buckets, with the best
    borders and with equal ones: a row per kind, number and repeat.
    """
    words = Reber(least).strings(strings, seed=0)
    dataset, lengths = one_hot(words), [len(word) for word in words]
    S, cases, order = (
        len(SYMBOLS),
        {},
        np.random.default_rng(0).permutation(strings),
    )
    params = Params.init(S, hidden, num_layers=layers, output_size=S, seed=0)
    how = {"micro_batches": micro_batches, "loss": "symbols"}
    of_ranks = check_ints("stages", stages) if stages else None
    model = Parallel(params, world, stages=of_ranks, **how)
    for count in check_ints("counts", counts):
        for kind, choose in (
            ("best borders", borders),
            ("equal borders", equal_borders),
        ):
            bucketed = Bucketed(dataset, choose(lengths, count))
            epoch = partial(model.epoch, bucketed, order, batch, RATE)
            cases[f"{kind}/{count}"] = partial(world.timed, epoch)
    rows = interleaved(cases, repeats=repeats, least=0, own=True)
    case = rows.pop("case").str.split("/", expand=True)
    sizes = {
        "L": layers,
        "T": max(lengths),
        "D": S,
        "H": hidden,
        "B": batch,
        "N": strings,
    }
    return rows.assign(
        version=case[0], variant=case[1], stage="epoch", ranks=world.size, **sizes
    )
