"""Training by several ranks: each has some of the layers, or of the samples, or both.

Ranks form a grid of replicas, each of the ranks that its stages go round. A mini-batch
is shared out over the replicas; the share of one is cut into micro-batches, all of
which go forward through its stages before the first one goes back (fill and drain,
Huang et al. 2019). Gradients of a stage are then summed over the replicas, in the order
of the ranks, so that a run has the same bits each time. One stage is data parallelism,
one replica model parallelism.

Every rank reads the data by itself; between ranks go activations, their gradients, and
sums.
"""

import math
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..data import Dataset, check_order
from ..errors import (
    DivergedError,
    check_array,
    check_choice,
    check_int,
    check_rate,
    check_type,
)
from ..params import Named, Params
from ..schedules import fill_and_drain
from ..training import Checkpoint
from ..versions import VersionName, versions
from .stage import LOSSES, Stage, StageParams, layers_of
from .world import Sum, World, whole_world


class Parallel:
    """A model over the ranks of a World; `lstm_kernels.train` takes it as it takes a
    network. Every method is collective: all ranks call it with the same arguments.

    params: Params with an output layer, the same on every rank. world: None is that of
    all ranks of the job. embedding: E (S, D), the inputs of the S symbols, or None for
    inputs that come as they are. stages: of each stage the number of its layers
    (`layers_of`); None is one stage. A replica has a rank for each stage; of more
    stages than ranks, stage v is on rank v % ranks. micro_batches: into how many the
    share of a replica is cut, if it has so many samples. loss: "last", the mean squared
    error of the last step, or "symbols", the mean cross-entropy of the symbols after
    the first; with an embedding the only one. version: what computes the recurrent
    layers (`Stage`); of one for a GPU, process r of a machine uses device r % count.

    A mini-batch may have fewer samples than there are replicas or micro-batches: some
    then have none, and add zeros. A step that an exception ends leaves the parameters
    as they were. Raises TypeError or ValueError, on every rank, for ranks that are more
    than the stages and no multiple of them, stages that do not add up to the layers, or
    ranks that disagree, about the parameters' values too; and as `network` does for a
    version.
    """

    def __init__(
        self,
        params: Params,
        world: World | None = None,
        *,
        embedding: np.ndarray | None = None,
        stages: list[int] | None = None,
        micro_batches: int = 1,
        loss: str = "last",
        version: VersionName = "numba-fused",
    ):
        world = whole_world() if world is None else world
        self.world = check_type("world", world, World)
        self.loss = loss
        options = params, embedding, stages, micro_batches
        layers = world.agreed(lambda: self._checked(*options))
        self.options = {"stages": self.stages, "micro_batches": self.micro_batches}
        self.options |= {"loss": loss, "version": version}
        named = {name: a for layer in layers for name, a in layer.items()}
        named |= self.options | {"params.cell": params.cell}
        world.agreed(lambda: named, same=True)
        self.ranks = min(len(self.stages), world.size)  # of a replica
        self.replicas, self.replica = world.size // self.ranks, world.rank // self.ranks
        self.row, column = world.grid(self.ranks)
        self.local: dict[int, Stage] = {}  # by number: this rank's stages
        self.thetas: dict[int, np.ndarray] = {}  # and their parameters
        world.agreed(lambda: self._make_stages(layers, params.cell, version))
        self._sums = [Sum(column, stage.gradients) for stage in self.local.values()]
        self._embeds, self._cell = embedding is not None, params.cell
        self._D, self._O = params.input_size, params.output_size
        self.dtype = params.dtype

    def _checked(self, params, embedding, stages, micro_batches):
        """The arrays of each layer, where they and the options fit each other."""
        params = check_type("params", params, Params).check()
        check_choice("loss", self.loss, LOSSES)
        self.micro_batches = check_int("micro_batches", micro_batches)
        if params.V is None:
            raise ValueError("params: got no output layer, want V and b_out")
        inputs = params.input_size
        if embedding is not None:
            if self.loss != "symbols":
                got = f"{self.loss!r} with an embedding"
                raise ValueError(f"loss: got {got}, want 'symbols'")
            shape = "S", params.input_size
            embedding = check_array("embedding", embedding, shape, dtype=params.dtype)
            inputs = len(embedding)
        if self.loss == "symbols" and inputs != params.output_size:
            got = f"{inputs} inputs and {params.output_size} outputs"
            raise ValueError(f"params: got {got}, want as many of each")
        layers = list(layers_of(params, embedding).values())
        stages = [len(layers)] if stages is None else stages
        self.stages = stages = [check_int("stages", number) for number in stages]
        if sum(stages) != len(layers):
            want = f"{len(layers)} layers in all"
            raise ValueError(f"stages: got {stages}, want {want}")
        ranks = self.world.size
        if ranks % len(stages) and not 1 < ranks < len(stages):
            got = f"{len(stages)} on {ranks} ranks"
            want = "a divisor of that, or more on several"
            raise ValueError(f"stages: got {got}, want {want}")
        return layers

    def _make_stages(self, layers, cell, version):
        """Those of this rank, on the device of this process."""
        if any(v.name == version and v.target == "gpu" for v in versions()):
            from ..gpu.device import select  # which takes time to import

            select(whole_world().near[0])
        ends = list(accumulate(self.stages, initial=0))
        for v in range(self.row.rank, len(self.stages), self.ranks):
            own = layers[ends[v] : ends[v + 1]]
            named = {name: a for layer in own for name, a in layer.items()}
            stage = Stage(named, cell, loss=self.loss, is_first=v == 0, version=version)
            self.local[v], self.thetas[v] = stage, stage.flat(named)

    def params(self) -> StageParams:
        """A copy of this rank's parameters."""
        return self._copied(self.thetas)

    def assign(self, params: StageParams) -> None:
        """Take over other values for this rank's parameters, all or none. Raises
        TypeError or ValueError, on every rank, for what has another form or is not the
        same in every replica.
        """

        def thetas():
            source = check_type("params", params, (StageParams, Params), "StageParams")
            named = source.arrays()
            names = [name for stage in self.local.values() for name in stage.shapes]
            if named.keys() != set(names):
                got, want = ", ".join(named), ", ".join(names)
                raise ValueError(f"params: got {got}, want {want}")
            flats = {v: stage.flat(named) for v, stage in self.local.items()}
            return {f"params of stage {v}": theta for v, theta in flats.items()}

        new = self.world.agreed(thetas, same=True)
        self.thetas = dict(zip(self.local, new.values(), strict=True))

    def gradients(self) -> StageParams:
        """A copy of those that the last pass left of this rank's parameters."""
        return self._copied({v: stage.gradients for v, stage in self.local.items()})

    def _copied(self, flats):
        named: Named = {}
        for v, flat in flats.items():
            named |= self.local[v].named(flat.copy())
        return StageParams(named, self._cell)

    def gather(self) -> Named:
        """Copies of the arrays of all layers by name, on every rank."""
        named: Named = {}
        for part in self.row.comm.allgather(self.params().arrays()):
            named |= part
        return named

    def loss_and_grads(
        self, x: np.ndarray, target: np.ndarray
    ) -> tuple[float, StageParams]:
        """The loss of a mini-batch, and the gradients of this rank's parameters, of no
        use where the loss is not finite.

        x, target: as a network takes them, (T, B, D) and (B, O). With loss "symbols"
        one-hot rows (T, B, S) and how many of them each sequence has, (B, 1), two or
        more; after these, rows of zeros. Raises TypeError or ValueError for bad input,
        or one that ranks have otherwise, on every rank, before anything is computed.
        """
        *examples, _ = self._examples(x, target)
        return self.passes(*examples), self.gradients()

    def step(self, x: np.ndarray, target: np.ndarray, learning_rate: float) -> float:
        """A step of gradient descent; the loss before it. With one that is not finite
        there is no step. Raises as `loss_and_grads`; DivergedError, on every rank, for
        a parameter that is not finite: all keep those before the step.
        """
        return self.descend(*self._examples(x, target, learning_rate))

    def epoch(
        self, dataset: Dataset, order: ArrayLike, batch_size: int, learning_rate: float
    ) -> list[float]:
        """A step for each mini-batch of `order`; the losses, up to one that is not
        finite. Raises as `step` does; a DivergedError holds `.step`.
        """

        def checked():
            chosen, size = check_order(dataset, order, batch_size)
            rate = check_rate("learning_rate", learning_rate, self.dtype)
            arguments = {"order": chosen, "batch_size": size, "learning_rate": rate}
            return vars(dataset) | arguments

        *_, chosen, size, rate = self.world.agreed(checked, same=True).values()
        return dataset.each_batch(
            chosen, size, lambda x, target: self.step(x, target, rate)
        )

    def descend(self, inputs, wanted, count, rate):
        """A step on examples as of `passes`; the loss before it."""
        loss = self.passes(inputs, wanted, count)
        if math.isfinite(loss):
            thetas = {v: stage.descended(rate) for v, stage in self.local.items()}
            finite = all(np.isfinite(theta).all() for theta in thetas.values())
            if not self.on_every_rank(finite):
                raise DivergedError("a parameter is not finite")
            self.thetas = thetas  # the step: old parameters before, new ones after
        return loss

    def on_every_rank(self, condition: object) -> bool:
        """Whether a condition holds on every rank."""
        return all(self.world.comm.allgather(bool(condition)))

    def passes(self, inputs, wanted, count):
        """Forward and back through every stage, and the sums: `gradients` are then
        those of the whole mini-batch. The loss.

        inputs: (T, B, D), or symbols (T, B) for an embedding; wanted: what the output
        layer is compared with, symbols (T, B) or the target (B, O); count: what every
        loss is divided by.
        """
        parts, last = list(self._micro_batches(inputs, wanted)), len(self.stages) - 1
        comm, loss, shapes, sent = self.row.comm, 0.0, {}, []

        def send(to, value):  # without waiting
            sent.append(comm.Isend(np.ascontiguousarray(value), to % self.ranks))

        def receive(v, shape):
            value = np.empty(shape, self.dtype)
            comm.Recv(value, v % self.ranks)
            return value

        for v, stage in self.local.items():
            stage.begin(self.thetas[v])
        # What a task needs was sent a turn before, so that no rank waits for ever. A
        # rank sends in the order in which others receive: no message needs a tag.
        tasks = parts and fill_and_drain(last + 1, self.ranks, len(parts)).tasks
        for task in (task for task in tasks if task.worker == self.row.rank):
            v, m = min(task.layer, 2 * last + 1 - task.layer), task.samples[0]
            if task.layer > last:  # back
                dy = None if v == last else receive(v + 1, shapes[v, m])
                dx = self.local[v].backward(dy, m)
                if v > 0:
                    send(v - 1, dx)
                continue
            x, target = parts[m]
            if v > 0:
                x = receive(v - 1, (*x.shape[:2], self.local[v].width))
            y = self.local[v].forward(x, m, target, count)
            shapes[v, m] = np.shape(y)
            if v == last:
                loss += y
            else:
                send(v + 1, y)
        self.world.MPI.Request.Waitall(sent)
        if self.replicas > 1:
            for gradients in self._sums:
                gradients.run()
        if any(stage.diverged for stage in self.local.values()):
            loss = math.nan
        return float(sum(self.world.comm.allgather(loss)))

    def _micro_batches(self, inputs, wanted):
        """(inputs, wanted) of each micro-batch of this rank's replica."""
        B = inputs.shape[1]
        low, high = (B * k // self.replicas for k in (self.replica, self.replica + 1))
        count = min(self.micro_batches, high - low)
        for k in range(count):
            a, b = (low + (high - low) * end // count for end in (k, k + 1))
            part = wanted[:, a:b] if self.loss == "symbols" else wanted[a:b]
            yield np.ascontiguousarray(inputs[:, a:b]), part

    def _examples(self, x, target, rate=1.0):
        """What `descend` takes, the same on every rank."""

        def examples():
            if self.loss == "last":
                inputs = check_array("x", x, ("T", "B", self._D), dtype=self.dtype)
                wanted = check_array(
                    "target", target, (inputs.shape[1], self._O), dtype=inputs.dtype
                )
            else:
                inputs, wanted = _symbols(x, target, self._O, self.dtype)
            number = check_rate("learning_rate", rate, self.dtype)
            return {"x": inputs, "target": wanted, "learning_rate": number}

        inputs, wanted, number = self.world.agreed(examples, same=True).values()
        if self.loss == "last":
            return inputs, wanted, wanted.size, number
        inputs, wanted = (wanted if self._embeds else inputs)[:-1], wanted[1:]
        return inputs, wanted, int(np.count_nonzero(wanted >= 0)), number

    def checkpoint(self, path: Any) -> "SharedCheckpoint":
        """The Checkpoint that `train` writes to a path: one file of all ranks."""
        return SharedCheckpoint(path, self)


class SharedCheckpoint(Checkpoint):
    """A Checkpoint of a Parallel: what each rank of the first replica has, in one file
    that rank 0 writes and every rank reads. Training goes on only on as many ranks and
    with the same options: else the bits would differ.
    """

    def __init__(self, path, model: Parallel):
        self._model, self._agreed = model, model.world.agreed
        self._agreed(lambda: super(SharedCheckpoint, self).__init__(path))
        self.run = {"ranks": model.world.size} | model.options

    def exists(self) -> bool:
        return self._model.world.comm.bcast(super().exists())

    def save(self, header: dict, named: Named) -> None:
        """Gather the arrays of a replica, and write them, on rank 0."""
        parts = enumerate(self._model.row.comm.gather(named) or [])
        every = {f"{rank}.{n}": a for rank, part in parts for n, a in part.items()}
        write = super().save
        self._agreed(lambda: self._model.world.rank or write(header, every))

    def load(self, build: Callable) -> Any:
        """build(header, arrays of this rank), of what `save` wrote."""
        read, own = super().load, f"{self._model.row.rank}."

        def build_own(header, every):
            named = {n: a for n, a in every.items() if n.startswith(own)}
            return build(header, {n.removeprefix(own): a for n, a in named.items()})

        return self._agreed(lambda: read(build_own))


def _symbols(x, target, S, dtype):
    """One-hot rows x (T, B, S) up to the longest of the lengths `target` (B, 1), and
    their symbols (T, B), -1 after a sequence's end; or TypeError or ValueError.
    """
    x = check_array("x", x, ("T", "B", S), dtype=dtype)
    target = check_array("target", target, (x.shape[1], 1), dtype=dtype)
    inside = np.arange(len(x))[:, None] < target[:, 0]
    if (wrong := (inside.sum(axis=0) != target[:, 0]) | (target[:, 0] < 2)).any():
        got = f"{target[wrong, 0][0]} at index [{wrong.argmax()}, 0]"
        raise ValueError(f"target: got {got}, want a length, 2 to {len(x)}")
    wrong = (np.count_nonzero(x, axis=2) != inside) | (x.sum(axis=2) != inside)
    if wrong.any():
        t, b = np.argwhere(wrong)[0].tolist()
        want = "a one-hot row up to the length in target, and zeros after it"
        raise ValueError(f"x: got {x[t, b]} at index [{t}, {b}], want {want}")
    longest = int(target.max())
    return x[:longest], np.where(inside, x.argmax(axis=2), -1)[:longest]
