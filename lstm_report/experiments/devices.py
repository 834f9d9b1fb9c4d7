"""Page 08: ranks that train the model of the MXNet page, an encoder, eight LSTM layers
and a decoder, by sharing samples or layers.

`job` starts jobs of fresh ranks, which run `speeds` or `memory`.
"""

import ctypes
import gc
import re
import time
from collections import Counter
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd

from lstm_kernels.params import Params
from lstm_kernels.ranks import launch
from lstm_kernels.ranks.parallel import Parallel
from lstm_kernels.ranks.stage import Stage, flat, layers_of, parts
from lstm_kernels.ranks.world import Sum, World
from lstm_kernels.versions import VersionName

from ..measure import evidence, results
from ..measure.comparer import compare
from ..measure.timing import together
from ..studies import strings
from .handover import in_turn, timed

RATE = 1.0  # gradients times it are themselves: they can be compared after a step
ROUNDS = 3  # of a job
SMALL_RATE = 1e-3  # where only time counts: nothing grows
TOLERANCE = 1e-3  # relative, of float32 gradients after some steps
MODEL = {"layers": 8, "hidden": 128, "symbols": 1500, "steps": 32, "batch": 64}
SMALL = {"layers": 8, "hidden": 16, "symbols": 40, "steps": 3, "batch": 8}
MICRO = 8  # micro-batches of a mini-batch


@dataclass(frozen=True)
class Example:
    """A model and a mini-batch of random text; version: of `Parallel`."""

    layers: int
    hidden: int
    symbols: int
    steps: int
    batch: int
    version: VersionName = "numba-fused"

    @cached_property
    def params(self):
        sizes = {"num_layers": self.layers, "output_size": self.symbols}
        return Params.init(self.hidden, self.hidden, **sizes)

    @cached_property
    def embedding(self):
        rng, shape = np.random.default_rng(1), (self.symbols, self.hidden)
        return rng.uniform(-1, 1, shape).astype(np.float32)

    @cached_property
    def arrays(self):
        """The arrays of each layer by its name, encoder and decoder among them."""
        return layers_of(self.params, self.embedding)

    @cached_property
    def data(self):
        """Symbols, those that follow them, their number: as `Parallel.passes` wants."""
        shape = self.steps + 1, self.batch
        text = np.random.default_rng(0).integers(self.symbols, size=shape)
        return text[:-1], text[1:], self.steps * self.batch

    def parallel(self, world, stages=None, micro_batches=1):
        """The model over the ranks of a World."""
        options = {"stages": stages, "micro_batches": micro_batches}
        options |= {"embedding": self.embedding, "loss": "symbols"}
        return Parallel(self.params, world, version=self.version, **options)


def alone(world, case):
    """Seconds of a call of rank 0, while the others sleep."""
    return timed(world, case if world.rank == 0 else lambda: None)


def steps(world, partitions, around, micro_batches=MICRO, repeats=ROUNDS, **sizes):
    """Time a training step of one rank, of replicas, and of pipelines of two kinds, and
    what they are made of: the sum of all gradients, a message, and each layer.

    partitions: counts of layers for each rank; around: of more stages. All take equally
     many steps; the last must have the gradients of one rank.
    """
    example, single = Example(**sizes), World(world.MPI.COMM_SELF)
    models = {"one rank": example.parallel(single), "replicas": example.parallel(world)}
    models["one rank in pieces"] = example.parallel(single, None, micro_batches)
    for kind, ways in (("", partitions), ("round ", around)):
        for counts in ways:
            name = kind + "+".join(map(str, counts))
            models[name] = example.parallel(world, counts, micro_batches)
    calls = {n: partial(m.descend, *example.data, RATE) for n, m in models.items()}
    cases = {
        name: partial(alone if name.startswith("one") else timed, world, call)
        for name, call in calls.items()
    }
    rows = [in_turn(world, cases, repeats).assign(stage="step")]
    rows[0]["max_err"] = rows[0]["case"].map(_errors(world, models))
    whole = sum(a.size for layer in example.arrays.values() for a in layer.values())
    parts = {"sum": partial(timed, world, Sum(world, np.zeros(whole, "f")).run)}
    parts["message"] = partial(_message, world, example, micro_batches)
    rows.append(in_turn(world, parts, repeats).assign(stage="part"))
    rows.append(_layers(world, example, micro_batches, repeats))
    return together(rows).rename(columns={"case": "version"}).assign(ranks=world.size)


def _errors(world, models):
    """Of each way the largest error of the last step's gradients; one rank is right."""
    gradients = {name: model.gradients().arrays() for name, model in models.items()}
    want, errors = world.comm.bcast(gradients["one rank"]), {}
    for name, named in gradients.items():
        if world.rank == 0 or not name.startswith("one"):  # rank 1 slept through those
            of_one = {part: want[part] for part in named}
            errors[name] = compare(named, of_one, TOLERANCE)
    return errors


def _message(world, example, micro_batches):
    """Seconds that the outputs of a layer for a micro-batch take from rank to rank, as
    in training: from and to memory that is taken anew for each.
    """
    shape = example.steps, example.batch // micro_batches, example.hidden
    turns = 50

    def there_and_back():
        for _ in range(turns):
            for sender in (0, 1):
                if world.rank == sender:
                    world.comm.Send(np.zeros(shape, "f"), 1 - sender)
                elif world.rank == 1 - sender:
                    world.comm.Recv(np.empty(shape, "f"), sender)

    return timed(world, there_and_back) / (2 * turns)


class Layers:
    """Every layer as a stage of its own, of one rank."""

    def __init__(self, example, micro_batches):
        inputs, wanted, self._count = example.data
        ends = np.arange(micro_batches + 1) * example.batch // micro_batches
        self._parts = [
            (np.ascontiguousarray(inputs[:, a:b]), wanted[:, a:b])
            for a, b in pairwise(ends)
        ]
        self._stages, self._flats = {}, {}
        for k, (name, named) in enumerate(example.arrays.items()):
            form = example.params.cell, "symbols", example.version
            self._stages[name] = Stage(named, *form, is_first=k == 0)
            theta, shapes = flat(named), {n: a.shape for n, a in named.items()}
            self._flats[name] = theta, np.zeros_like(theta), shapes
            self._begin(name)

    def _begin(self, name):
        theta, gradients, shapes = self._flats[name]
        self._stages[name].begin(parts(theta, shapes), parts(gradients, shapes))

    def _descend(self, name):
        theta, gradients, shapes = self._flats[name]
        gradients *= gradients.dtype.type(SMALL_RATE)
        self._flats[name] = theta - gradients, gradients, shapes
        gradients[:] = 0
        self._begin(name)

    def seconds(self):
        """Seconds by layer and way, as they are met in training: every micro-batch goes
        through all layers, in a slot of its own, and back.
        """
        spent = Counter()

        def clocked(key, call, *arguments):
            start = time.perf_counter()
            result = call(*arguments)
            spent[key] += time.perf_counter() - start
            return result

        share = self._count
        for m, (value, wanted) in enumerate(self._parts):
            for name, stage in self._stages.items():
                key, each = (name, "forward"), (value, m, wanted, share)
                value = clocked(key, stage.forward, *each)
        for m in range(len(self._parts)):
            dy = None
            for name, stage in reversed(self._stages.items()):
                dy = clocked((name, "backward"), stage.backward, dy, m)
        found = {key: seconds / len(self._parts) for key, seconds in spent.items()}
        spent.clear()
        for name in self._stages:
            clocked((name, "descent"), self._descend, name)
        return found | spent


def _layers(world, example, micro_batches, repeats):
    """Time each layer for a micro-batch, on every rank at the same time: the mean over
    the ranks.
    """
    layers, rows = Layers(example, micro_batches), []
    for repeat in range(-1, repeats):  # the first warms up
        world.comm.Barrier()
        for (name, way), seconds in layers.seconds().items():
            mean = world.comm.allreduce(seconds) / world.size
            rows.append((name, way, repeat, mean))
    found = pd.DataFrame(rows, columns=["variant", "stage", "repeat", "seconds"])
    sizes = {
        name: sum(a.nbytes for a in named.values())
        for name, named in example.arrays.items()
    }
    found = found[found["repeat"] >= 0].assign(case="layer")
    return found.assign(bytes=found["variant"].map(sizes))


def buckets(world, counts, sizes, hidden, batch, stages, repeats=ROUNDS):
    """Time an epoch of a next-symbol model of two layers, a pipeline, for each number
    of strings, by the number of buckets.
    """
    S, parts = len(strings.SYMBOLS), []
    params = Params.init(S, hidden, num_layers=2, output_size=S)
    options = {"stages": stages, "micro_batches": 4, "loss": "symbols"}
    model = Parallel(params, world, **options)

    def epoch(dataset, batches):
        for index in batches:
            model.step(*dataset.batch(index), SMALL_RATE)

    for N in sizes:
        words = strings.reber(N)
        dataset, lengths, cases = strings.one_hot(words), [*map(len, words)], {}
        for count in counts:
            ends = strings.borders(lengths, count)
            batches = strings.batches(lengths, ends, np.arange(N), batch)
            cases[str(count)] = partial(timed, world, partial(epoch, dataset, batches))
        parts.append(in_turn(world, cases, repeats).assign(N=N))
    rows = together(parts).rename(columns={"case": "variant"})
    return rows.assign(version="buckets", stage="epoch", ranks=world.size)


def memory(world, micro_batches=MICRO, **sizes):
    """The most bytes that a rank of a pipeline takes for its stage in a step, as Linux
    counts them: a row per rank.
    """
    example = Example(**sizes)
    _ = example.arrays, example.data
    few = Example(sizes["layers"], sizes["hidden"], 8, 2, 1)  # so that code is loaded
    few.parallel(World(world.MPI.COMM_SELF)).descend(*few.data, RATE)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is free goes back to the system
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
    before, start = _peak(), time.perf_counter()
    ends = [sizes["layers"] * r // world.size for r in range(world.size + 1)]
    counts = np.diff(ends)
    counts[0] += 1  # the encoder
    counts[-1] += 1  # the decoder
    model = example.parallel(world, counts.tolist(), micro_batches)
    for _ in range(2):
        model.descend(*example.data, RATE)
    row = {"version": "memory", "stage": "step", "variant": f"rank {world.rank}"}
    row |= {"seconds": time.perf_counter() - start, "bytes": _peak() - before}
    rows = pd.DataFrame(world.comm.gather(row | {"ranks": world.size}))
    return rows.assign(repeat=0)


def _peak():
    """The most bytes that this process has held since its peak began."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s*(\d+) kB", text)[1])


def speeds(world, sizes, text, **ways):
    """The rows of `steps` and of `buckets`, of one job."""
    return together([steps(world, **ways, **sizes), buckets(world, **text)])


PARTITIONS = [[4, 6], [5, 5], [6, 4], [7, 3]]
AROUND = [[1] * 10, [1, 8, 1]]  # alternating; encoder and decoder on one rank
TEXT = {"counts": [1, 4], "sizes": [48, 96, 192, 384], "hidden": 128, "batch": 64}
TEXT |= {"stages": [1, 2]}


def job(few, process=0):
    """The rows of `steps` and `buckets` of a job of two ranks; in the first process
    also those of `memory`, a count, of jobs of one and of two ranks.
    """
    sizes = SMALL if few else MODEL
    text = TEXT | {"sizes": [24, 48], "hidden": 8, "batch": 8} if few else TEXT
    ways = {"sizes": sizes, "text": text, "partitions": PARTITIONS, "around": AROUND}
    parts = [launch.run(__name__, "speeds", 2, ways)]
    if process == 0 and Path("/proc/self/clear_refs").exists():
        for ranks in (1, 2):
            parts.append(launch.run(__name__, "memory", ranks, sizes))
    return together(parts)


def devices(preset):
    """The rows of five fresh processes (in smoke two)."""
    paper = preset == "paper"
    return evidence.fresh(job, evidence.PROCESSES if paper else 2, few=not paper)


def main(preset="paper", folder=None):
    """`make bench-ranks`: measure and write the file; yields (experiment, rows,
    path).
    """
    plan = {"devices": partial(devices, preset)}
    return results.fill(plan, preset=preset, folder=folder)
