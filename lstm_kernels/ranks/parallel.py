"""Training by several ranks: each has a stage of the layers, or a share of the samples,
or both.

Ranks form a grid of replicas x stages. A mini-batch is shared out over the replicas;
the share of one is cut into micro-batches, all of which go forward through its stages
before the first one goes back (fill and drain, Huang et al. 2019). Gradients of a stage
are then summed over the replicas, in the order of the ranks, so that a run has the same
bits each time. One stage is data parallelism, one replica model parallelism.

Every rank reads the data by itself; between ranks go activations, their gradients, and
sums.
"""

import hashlib
import math
from itertools import pairwise
from pathlib import Path

import numpy as np

from ..data import check_order
from ..errors import DivergedError, check_array, check_choice, check_int, check_rate
from ..files import read_npz, write_npz
from ..strings import check_strings, numbers
from ..training import FORMAT, Checkpoint
from ..versions import versions
from .layers import LOSSES, Stage, StageParams, TokenParams, layer_names, layers_of
from .world import Sum, whole_world


class Wire:
    """Messages to and from other stages of a replica. Sending does not wait; `flush`
    does, until all that was sent has left.
    """

    def __init__(self, world):
        self._comm, self._wait, self._sent = world.comm, world.MPI.Request.Waitall, []

    def send(self, stage, slot, value):
        value = np.ascontiguousarray(value)
        self._sent.append((self._comm.Isend(value, stage, slot), value))

    def receive(self, stage, slot, *, like):
        """like: an empty array of the shape and dtype."""
        self._comm.Recv(like, stage, slot)
        return like

    def flush(self):
        self._wait([request for request, _ in self._sent])
        self._sent = []


class Parallel:
    """A model over the ranks of a World; `lstm_kernels.train` takes it as it takes a
    network. Every method is collective: all ranks call it with the same arguments.

    params: Params with a read-out, or TokenParams, the same on every rank. world: None
    is that of all ranks of the job. stages: of each rank of a replica the number of its
    layers (`layer_names`); None is one stage. micro_batches: into how many the share of
    a replica is cut, if it has so many samples. loss: of LOSSES; "symbols" is that of
    NextSymbol, and of TokenParams the only one. version, threads: of the networks, one
    for each recurrent layer.

    A mini-batch may have fewer samples than there are replicas or micro-batches: some
    then have none, and add zeros. A step that an exception ends leaves the parameters
    as they were. Raises TypeError or ValueError, on every rank, for ranks that are no
    multiple of the stages, stages that do not add up to the layers, or ranks that
    disagree, about the parameters' values too.
    """

    def __init__(
        self,
        params,
        world=None,
        *,
        stages=None,
        micro_batches=1,
        loss="last",
        version="numba-fused",
        threads=1,
    ):
        self.world = world = world or whole_world()
        self.loss, self.version = loss, version
        self.stages, self.micro_batches = stages, micro_batches
        params = world.agreed(lambda: self._checked(params))
        options = [self.stages, micro_batches, loss, version]
        world.same("params, stages or options", [params.form, *options])
        world.same("params, the hash of their values", _digest(params))
        count = len(self.stages)
        self.replica, self.stage = divmod(world.rank, count)
        self.replicas = world.size // count
        self.is_first, self.is_last = self.stage == 0, self.stage == count - 1
        self._row, column = world.grid(count)
        first = sum(self.stages[: self.stage])
        span = slice(first, first + self.stages[self.stage])
        how = {"loss": loss, "version": version, "threads": threads}
        self.local = world.agreed(lambda: Stage(layers_of(params, span=span, **how)))
        self._sum = Sum(column, self.local.gradients)
        # Of the model its form alone: a rank holds its own layers, not the others'.
        self._kind, self._form, self._cell = type(params), params.form, params.cell
        self._D, self._O = params.input_size, params.output_size
        encoder = int(isinstance(params, TokenParams))
        H = params.hidden_size
        # Numbers of a step and sample that come from the stage before, and go on.
        self._in, self._out = (
            self._D if end <= encoder else H for end in (span.start, span.stop)
        )

    def _checked(self, params):
        """The parameters, where they and the options fit each other and the ranks."""
        params = params.check()
        # Those of a GPU keep one tape.
        names = [v.name for v in versions() if v.target == "cpu"]
        check_choice("version", self.version, names)
        check_choice("loss", self.loss, LOSSES)
        check_int("micro_batches", self.micro_batches)
        if params.V is None:
            raise ValueError("params: got no read-out, want V and b_out")
        tokens = isinstance(params, TokenParams)
        if tokens and self.loss != "symbols":
            raise ValueError(f"loss: got {self.loss!r} for TokenParams, want 'symbols'")
        inputs = len(params.E) if tokens else params.input_size
        if self.loss == "symbols" and inputs != params.output_size:
            got = f"{inputs} inputs and {params.output_size} outputs"
            raise ValueError(f"params: got {got}, want as many of each")
        count = len(layer_names(params))
        stages = [count] if self.stages is None else self.stages
        self.stages = [check_int("stages", number) for number in stages]
        if sum(self.stages) != count:
            raise ValueError(f"stages: got {self.stages}, want {count} layers in all")
        if self.world.size % len(self.stages):
            got = f"{len(self.stages)} on {self.world.size} ranks"
            raise ValueError(f"stages: got {got}, want a divisor of that")
        return params

    def __repr__(self):
        return f"{self._form} on {self.replicas} x {len(self.stages)} ranks"

    def params(self):
        """A copy of this rank's parameters."""
        return self._named(self.local.theta)

    def assign(self, params):
        """Take over other values for this rank's parameters, of the same shapes and
        dtype.
        """
        self.local.theta = self.local.checked(params.arrays())

    def gather(self):
        """A copy of all parameters, on every rank."""
        named = {}
        for part in self._row.comm.allgather(self.params().arrays()):
            named |= part
        return self._kind.from_arrays(named, self._cell)

    def loss_and_grads(self, x, target):
        """The loss of a mini-batch, a float, and the gradients of this rank's
        parameters.

        x, target: as a network takes them, (T, B, D) and (B, O), or with loss "symbols"
        as NextSymbol does, one-hot rows (T, B, S) and lengths (B, 1). Raises TypeError
        or ValueError for bad input, on every rank, before anything is computed.
        """
        loss = self.passes(*self._examples(x, target))
        return loss, self._named(self.local.gradients)

    def step(self, x, target, learning_rate):
        """A step of gradient descent; the loss before it. Raises DivergedError, on
        every rank, for a parameter that is not finite: all keep those before the step.
        """
        rate = check_rate("learning_rate", learning_rate, self.local.theta.dtype)
        return self.descend(*self._examples(x, target), rate)

    def epoch(self, dataset, order, batch_size, learning_rate):
        """A step for each mini-batch of `order`; the losses, up to one that is not
        finite. Raises as `step` does; a DivergedError holds `.step`.
        """
        rate = check_rate("learning_rate", learning_rate, self.local.theta.dtype)
        mixed = self.loss == "last"
        order, batch_size = self.world.agreed(
            lambda: check_order(dataset, order, batch_size, mixed=mixed)
        )
        losses = []

        def step(x, target):
            try:
                losses.append(self.descend(*self._examples(x, target), rate))
            except DivergedError as error:
                error.step = len(losses)
                raise
            return losses[-1]

        return dataset.each_batch(order, batch_size, step)

    def descend(self, inputs, wanted, count, rate):
        """A step on examples as of `passes`; the loss before it."""
        loss = self.passes(inputs, wanted, count)
        if math.isfinite(loss):
            theta = self.local.descended(rate)
            if not self.on_every_rank(np.isfinite(theta).all()):
                raise DivergedError("a parameter is not finite")
            self.local.theta = theta  # the step: old parameters before, new ones after
        return loss

    def on_every_rank(self, condition):
        """Whether a condition holds on every rank."""
        return all(self.world.comm.allgather(bool(condition)))

    def passes(self, inputs, wanted, count):
        """Forward and back through every stage, and the sums: `local.gradients` are
        then those of the whole mini-batch. The loss.

        inputs: (T, B, D), or symbols (T, B); wanted: what the read-out is compared
        with, samples last of symbols and first of targets; count: what every loss is
        divided by.
        """
        local, wire = self.local, Wire(self._row)
        local.begin()
        loss, parts = 0.0, self._micro_batches(inputs, wanted)
        for slot, (x, target) in enumerate(parts):
            if not self.is_first:
                room = np.empty((*x.shape[:2], self._in), local.theta.dtype)
                x = wire.receive(self.stage - 1, slot, like=room)
            y = local.forward(x, slot, target, count)
            if self.is_last:
                loss += y
            else:
                wire.send(self.stage + 1, slot, y)
        for slot, (x, _) in enumerate(parts):
            dy = None
            if not self.is_last:
                room = np.empty((*x.shape[:2], self._out), local.theta.dtype)
                dy = wire.receive(self.stage + 1, slot, like=room)
            dx = local.backward(dy, slot)
            if not self.is_first:
                wire.send(self.stage - 1, slot, dx)
        wire.flush()
        if self.replicas > 1:
            self._sum.run()
        return float(sum(self.world.comm.allgather(loss)))

    def _micro_batches(self, inputs, wanted):
        """(inputs, wanted) of each micro-batch of this rank's replica."""
        B = inputs.shape[1]
        low, high = (B * k // self.replicas for k in (self.replica, self.replica + 1))
        count = min(self.micro_batches, high - low)
        ends = [low + (high - low) * k // max(count, 1) for k in range(count + 1)]
        return [
            (
                np.ascontiguousarray(inputs[:, a:b]),
                wanted[:, a:b] if self.loss == "symbols" else wanted[a:b],
            )
            for a, b in pairwise(ends)
        ]

    def _examples(self, x, target):
        """Inputs and targets as `passes` takes them, checked on every rank."""
        dtype = self.local.theta.dtype

        def examples():
            if self.loss == "last":
                inputs = check_array("x", x, ("T", "B", self._D), dtype=dtype)
                shape = inputs.shape[1], self._O
                wanted = check_array("target", target, shape, dtype=dtype)
                return inputs, wanted, wanted.size
            rows = check_strings(x, target, symbols=self._O, dtype=dtype)
            symbols = numbers(rows)
            tokens = issubclass(self._kind, TokenParams)
            inputs = symbols[:-1] if tokens else rows[:-1]
            return inputs, symbols[1:], int(np.count_nonzero(symbols[1:] >= 0))

        return self.world.agreed(examples)

    def _named(self, flat):
        named = {name: a.copy() for name, a in self.local.named(flat).items()}
        return StageParams(named, self._cell)

    def checkpoint(self, path):
        """The Checkpoint that `train` writes to a path: one file of all ranks."""
        return SharedCheckpoint(path, self)


class SharedCheckpoint(Checkpoint):
    """A Checkpoint of a Parallel: what each stage's first replica has, in one file,
    which rank 0 reads and writes.

    Training goes on only on as many ranks, with the same stages and options, as it was
    written on: else the bits would differ. ValueError, on every rank, where another
    run has replaced the file since.
    """

    def __init__(self, path, model):
        self._model, self._world = model, model.world
        self._first = model.world.rank == 0
        self._seen = None  # of the file as this run read or wrote it
        model.world.agreed(lambda: super(SharedCheckpoint, self).__init__(path))
        self.run = {"ranks": model.world.size, "stages": model.stages}
        self.run |= {"micro_batches": model.micro_batches, "loss": model.loss}
        self.run |= {"version": model.version}

    def exists(self):
        return self._world.comm.bcast(super().exists() if self._first else None)

    def save(self, header, named):
        """Gather the arrays of every stage, and write them, on rank 0."""
        prefix = f"stage{self._model.stage}."
        named = {f"{prefix}{name}": a for name, a in named.items()}
        parts = self._world.comm.gather(named if self._model.replica == 0 else {})

        def write():
            if self._state() != self._seen:
                raise ValueError(f"checkpoint: {self.path} was written by another run")
            arrays = {name: a for part in parts for name, a in part.items()}
            write_npz(self.path, header, arrays)
            self._seen = self._state()

        self._world.agreed(write if self._first else lambda: None)

    def load(self, build):
        """build(header, arrays of this rank's stage), of what `save` wrote."""

        def read():
            self._seen = self._state()
            return read_npz(self.path, FORMAT, self._whole, name="checkpoint")

        saved = self._world.agreed(read if self._first else lambda: None)
        header, named = self._world.comm.bcast(saved)
        prefix = f"stage{self._model.stage}."
        ours = {n.removeprefix(prefix): named[n] for n in named if n.startswith(prefix)}

        def built():
            try:
                return build(header, ours)
            except ValueError as error:
                raise ValueError(f"checkpoint: {self.path}: {error}") from error

        return self._world.agreed(built)

    def _whole(self, header, named):
        saved = {name: header["run"].get(name) for name in self.run}
        if saved != self.run:
            raise ValueError(f"is of another run, got {saved}, want {self.run}")
        return header, named

    def _state(self):
        """What tells one file from another; None where there is none."""
        if not Path(self.path).exists():
            return None
        stat = Path(self.path).stat()
        return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _digest(params):
    """The hash of all values of the parameters."""
    digest = hashlib.sha256()
    for name, a in params.arrays().items():
        digest.update(f"{name} {a.shape} {a.dtype}".encode())
        digest.update(np.ascontiguousarray(a))
    return digest.hexdigest()
