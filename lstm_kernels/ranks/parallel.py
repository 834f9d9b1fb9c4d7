"""Training by several ranks: each has some of the layers, or of the samples, or both.

Ranks form a grid of replicas (data parallelism), each of the ranks that its stages go
round (model parallelism). A mini-batch is shared out over the replicas; the share of
one is cut into micro-batches, which all go forward through its stages before the first
one goes back (fill and drain, Huang et al. 2019). Every rank reads the data by itself;
between ranks go activations, their gradients, and sums.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import accumulate, pairwise
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
from ..versions import VersionName
from .stage import LOSSES, Stage, StageParams, flat, layers_of, parts, union
from .world import Sum, World, whole_world


class Parallel:
    """A model over the ranks of a World; `lstm_kernels.train` takes it as it takes a
    network. Every method is collective: all ranks call it with the same arguments.

    params: Params with an output layer. world: None is that of all ranks of the job.
    embedding: E (S, D), the inputs of the S symbols, or None. stages: the number of
    layers of each (`layers_of`); None is one stage. A replica has a rank for each; of
    more stages than ranks, stage v is on rank v % ranks. micro_batches: into how many
    the share of a replica is cut, if it has so many samples. loss: "last", the mean
    squared error of the last step, or "symbols", the mean cross-entropy of the symbols
    after the first. version: what computes the recurrent layers; of one for a GPU,
    process r of a machine uses device r % count.

    A step that an exception ends leaves the parameters as they were. Raises as
    `network`, and TypeError or ValueError, on every rank, for stages that do not fit
    the layers or the ranks, and for ranks that disagree, also about values.
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
        self.options: dict[str, Any] = {"loss": loss, "version": version}
        self.options |= {"stages": stages, "micro_batches": micro_batches}
        named = world.agreed(lambda: self._checked(params, embedding))  # of each stage
        same = {"params.cell": params.cell} | self.options | union(named)
        world.agreed(lambda: same, same=True)
        self.dtype, self._cell = params.dtype, params.cell
        self._symbols, self._embeds = loss == "symbols", embedding is not None
        D, S = params.input_size, params.output_size
        self._sizes = (S, 1) if self._symbols else (D, S)  # of x and target
        self._widths = [len(next(iter(arrays.values()))) for arrays in named]  # inputs
        self.ranks = min(len(named), world.size)  # of a replica
        self.row, self._column = world.grid(self.ranks)
        numbers = range(self.row.rank, len(named), self.ranks)  # of this rank's stages
        local = {v: named[v] for v in numbers}
        self.local = world.agreed(lambda: self._make_stages(local))
        own = union(local.values())
        self._shapes = {name: a.shape for name, a in own.items()}
        self._theta = flat(own)  # this rank's parameters; a step makes new ones
        self._gradients = np.zeros_like(self._theta)
        self._sum = Sum(self._column, self._gradients)

    def _checked(self, params, embedding):
        """The arrays of each stage, where they and the options fit each other."""
        params, options = check_type("params", params, Params).check(), self.options
        symbols = check_choice("loss", options["loss"], LOSSES) == "symbols"
        check_int("micro_batches", options["micro_batches"])
        if params.V is None:
            raise ValueError("params: got no output layer, want V and b_out")
        D, S = params.input_size, params.output_size
        if embedding is not None:
            embedding = check_array("embedding", embedding, (S, D), dtype=params.dtype)
            if not symbols:
                raise ValueError("loss: got 'last' with an embedding, want 'symbols'")
        elif symbols and D != S:
            raise ValueError(f"params: got {D} inputs, want {S} as of outputs")
        layers, ranks = [*layers_of(params, embedding).values()], self.world.size
        stages = [len(layers)] if options["stages"] is None else options["stages"]
        options["stages"] = stages = [check_int("stages", number) for number in stages]
        if sum(stages) != len(layers):
            raise ValueError(f"stages: got {stages}, want {len(layers)} layers in all")
        if ranks % len(stages) and not 1 < ranks < len(stages):
            want = f"a divisor of {ranks} ranks, or more on several"
            raise ValueError(f"stages: got {len(stages)}, want {want}")
        ends = pairwise(accumulate(stages, initial=0))
        return [union(layers[a:b]) for a, b in ends]

    def _make_stages(self, named):
        """A Stage of each, on the device of this process."""
        form = self._cell, self.options["loss"], self.options["version"]
        if str(form[-1]).startswith("cuda"):
            from ..gpu.device import select  # which takes time to import

            select(whole_world().near[0])
        return {v: Stage(arrays, *form, v == 0) for v, arrays in named.items()}

    def params(self) -> StageParams:
        """A copy of this rank's parameters."""
        return StageParams(parts(self._theta.copy(), self._shapes), self._cell)

    def gradients(self) -> StageParams:
        """A copy of those that the last pass left of this rank's parameters."""
        return StageParams(parts(self._gradients.copy(), self._shapes), self._cell)

    def gather(self) -> Named:
        """Copies of the arrays of all layers by name, on every rank."""
        return union(self.row.comm.allgather(self.params().arrays()))

    def assign(self, params: StageParams) -> None:
        """Take over other values for this rank's parameters, the same in replicas."""

        def checked():
            source = check_type("params", params, (StageParams, Params), "StageParams")
            named, check = source.arrays(), partial(check_array, dtype=self.dtype)
            if named.keys() != self._shapes.keys():
                raise ValueError(f"params: got {[*named]}, want {[*self._shapes]}")
            return {n: check(n, named[n], shape) for n, shape in self._shapes.items()}

        self._theta = flat(self.world.agreed(checked, same=True))

    def loss_and_grads(self, x: np.ndarray, target: np.ndarray):
        """The loss of a mini-batch, and the gradients of this rank's parameters, of no
        use where the loss is not finite: a float and a StageParams.

        x, target: as a network takes them. With loss "symbols" one-hot rows (T, B, S),
        zeros after the length of each sequence, and these lengths (B, 1), from two.
        Raises TypeError or ValueError for what is wrong or not the same on every rank,
        before anything is computed.
        """
        *examples, _ = self._examples(x, target, 1.0)
        return self.passes(*examples), self.gradients()

    def step(self, x: np.ndarray, target: np.ndarray, learning_rate: float) -> float:
        """A step of gradient descent; the loss before it, and no step where that is not
        finite. Raises as `loss_and_grads`, and DivergedError, on every rank, before a
        parameter that is not finite.
        """
        return self.descend(*self._examples(x, target, learning_rate))

    def epoch(
        self, dataset: Dataset, order: ArrayLike, batch_size: int, learning_rate: float
    ) -> list[float]:
        """A `step` for each mini-batch of `order`; the losses, up to one not finite."""

        def checked():
            chosen, size = check_order(dataset, order, batch_size)
            return {"order": chosen, "batch_size": size}

        chosen, size = self.world.agreed(checked, same=True).values()
        step = partial(self.step, learning_rate=learning_rate)
        return dataset.each_batch(chosen, size, step)

    def descend(self, inputs, wanted, count, rate):
        """A step on examples of `passes`, which uses gradients up; the loss before."""
        loss = self.passes(inputs, wanted, count)
        if math.isfinite(loss):
            with np.errstate(over="ignore", invalid="ignore"):
                self._gradients *= self.dtype.type(rate)
                theta = self._theta - self._gradients
            if not self.on_every_rank(np.isfinite(theta).all()):
                raise DivergedError("a parameter is not finite")
            self._theta = theta  # the step: old parameters before, new ones after
        return loss

    def on_every_rank(self, condition: object) -> bool:
        """Whether a condition holds on every rank."""
        return all(self.world.comm.allgather(bool(condition)))

    def passes(self, inputs, wanted, count):
        """The loss; `gradients` are then those of the whole mini-batch.

        inputs: (T, B, D), or symbols (T, B) for an embedding; wanted: the next symbols
        (T, B) or the target (B, O); count: what every loss is divided by.
        """
        examples, comm = list(self._micro_batches(inputs, wanted)), self.row.comm
        last, loss, sent = len(self._widths) - 1, 0.0, []

        def stage_of(layer):  # of a task: forward up to the last, and back
            return min(layer, 2 * last + 1 - layer)

        self._gradients[:] = 0
        named = [parts(a, self._shapes) for a in (self._theta, self._gradients)]
        for stage in self.local.values():
            stage.begin(*named)
        # What a task needs was sent a turn before, so that no rank waits for ever. A
        # rank sends in the order in which others receive: no message needs a tag.
        sizes = last + 1, self.ranks, len(examples)
        tasks = fill_and_drain(*sizes).tasks if examples else ()
        for task in (task for task in tasks if task.worker == self.row.rank):
            k, m = task.layer, task.samples[0]
            v, before, after = map(stage_of, (k, k - 1, k + 1))
            value, target = examples[m]
            if 0 < k != last + 1:
                shape = *value.shape[:2], self._widths[max(v, before)]
                value = np.empty(shape, self.dtype)
                comm.Recv(value, before % self.ranks)
            if k <= last:
                value = self.local[v].forward(value, m, target, count)
            else:
                value = self.local[v].backward(value, m)
            if k == last:
                loss += value
            elif after >= 0:  # without waiting
                sent.append(comm.Isend(np.ascontiguousarray(value), after % self.ranks))
        self.world.MPI.Request.Waitall(sent)
        if self._column.size > 1:
            self._sum.run()
        if any(stage.diverged for stage in self.local.values()):
            loss = math.nan
        return float(sum(self.world.comm.allgather(loss)))

    def _micro_batches(self, inputs, wanted):
        """(inputs, wanted) of each micro-batch of this rank's replica."""
        replica, replicas = self._column.rank, self._column.size
        samples = np.array_split(np.arange(inputs.shape[1]), replicas)[replica]
        count = min(self.options["micro_batches"], len(samples))
        for part in np.array_split(samples, count) if count else ():
            yield inputs.take(part, 1), wanted.take(part, 1 if self._symbols else 0)

    def _examples(self, x, target, rate):
        """What `descend` takes, the same on every rank."""

        def examples():
            (D, O), dtype = self._sizes, self.dtype
            inputs = check_array("x", x, ("T", "B", D), dtype=dtype)
            wanted = check_array("target", target, (inputs.shape[1], O), dtype=dtype)
            if self._symbols:
                inputs, wanted = _symbols(inputs, wanted)
            checked = check_rate("learning_rate", rate, dtype)
            return {"x": inputs, "target": wanted, "learning_rate": checked}

        inputs, wanted, number = self.world.agreed(examples, same=True).values()
        if not self._symbols:
            return inputs, wanted, wanted.size, number
        inputs, wanted = (wanted if self._embeds else inputs)[:-1], wanted[1:]
        return inputs, wanted, int(np.count_nonzero(wanted >= 0)), number

    def checkpoint(self, path: Any) -> "SharedCheckpoint":
        """The Checkpoint that `train` writes to a path: one file of all ranks."""
        return SharedCheckpoint(path, self)


class SharedCheckpoint(Checkpoint):
    """What each rank of the first replica has, in one file that rank 0 writes. Training
    goes on only on as many ranks, with the same options: else the bits would differ.
    """

    def __init__(self, path, model: Parallel):
        super().__init__(path)
        self._rank, self._gather = model.row.rank, model.row.comm.gather
        self._world = model.world
        self.run = {"ranks": model.world.size} | model.options

    def save(self, header: dict, named: Named) -> None:
        """Gather the arrays of a replica, and write them, on rank 0."""
        named = {f"{self._rank}.{name}": a for name, a in named.items()}
        every, write = union(self._gather(named) or []), super().save
        self._world.agreed(lambda: self._world.rank or write(header, every))

    def load(self, build: Callable) -> Any:
        """build(header, arrays of this rank), of what `save` wrote."""
        read, own = super().load, f"{self._rank}."

        def build_own(header, every):
            mine = [name for name in every if name.startswith(own)]
            return build(header, {n.removeprefix(own): every[n] for n in mine})

        return self._world.agreed(lambda: read(build_own))


def _symbols(x, lengths):
    """x up to the longest of the lengths, and its symbols (T, B), -1 after an end."""
    inside, longest = np.arange(len(x))[:, None] < lengths[:, 0], int(lengths.max())
    wrong = lengths[(inside.sum(axis=0)[:, None] != lengths) | (lengths < 2)]
    if wrong.size:
        raise ValueError(f"target: got {wrong[0]}, want lengths from 2 to {len(x)}")
    symbols = np.where(inside, x.argmax(axis=2), -1)
    rows = x[(x != (symbols[..., None] == np.arange(x.shape[2]))).any(axis=2)]
    if rows.size:
        want = "one-hot rows up to the length in target, then zeros"
        raise ValueError(f"x: got {rows[0]}, want {want}")
    return x[:longest], symbols[:longest]
