"""Training by several ranks: each has a stage of the layers, or a share of the samples, or both.

Ranks form a grid of replicas x stages. A mini-batch is shared out over the replicas; the share of
one is cut into micro-batches, which go through its stages as a schedule of `schedules.py` says.
Gradients of a stage are then summed over the replicas, in the order of the ranks, so that a run has
the same bits each time. One stage is data parallelism, one replica model parallelism.

Every rank reads the data by itself; between ranks go activations, their gradients, and sums.
"""

from collections import deque
from itertools import accumulate, pairwise

import numpy as np

from ..data import Dataset
from ..errors import check_array, check_choice, check_int, check_rate
from ..next_symbol import numbers
from ..schedules import PIPELINES, Graph, pipeline
from ..versions import versions
from .layers import LOSSES, Decoder, Encoder, Recurrent, StageParams, TokenParams
from .world import Sum, Sums, World

BUCKET = 1 << 20  # bytes of gradients that are summed at a time, at least


def layer_names(params):
    """The layers of a model as they are given to ranks: `embedding`, `layer 0`, ..., `read-out`."""
    encoder = ["embedding"] if isinstance(params, TokenParams) else []
    return [*encoder, *(f"layer {k}" for k in range(params.num_layers)), "read-out"]


class Stage:
    """Neighbouring layers of a model on one rank, with one flat array of their gradients.

    first, stop: of `layer_names`. apart: each recurrent layer is a network of its own, so that its
    gradients are known before those of the layers below. Other arguments as of `Parallel`.
    """

    def __init__(self, params, first, stop, loss, version, threads, apart=False):
        names = layer_names(params)
        encoder = int(names[0] == "embedding")
        self.first, self.last, self.layers = first == 0, stop == len(names), []
        if encoder and self.first:
            self.layers.append(Encoder(params.E.copy()))
        low, high = max(first - encoder, 0), min(stop - encoder, params.num_layers)
        for k in range(low, high, 1 if apart else max(1, high - low)):
            group = params.layers[k : k + 1 if apart else high]
            inputs = bool(k or encoder)
            self.layers.append(Recurrent(group, params.cell, k, inputs, version, threads))
        if self.last:
            self.layers.append(Decoder(params.V.copy(), params.b_out.copy(), loss))
        # Numbers of a step and sample that come from the stage before, and go to the next one.
        D, H = params.input_size, params.hidden_size
        self.inputs, self.outputs = (D if end <= encoder else H for end in (first, stop))
        of_layers = [layer.arrays for layer in self.layers]
        arrays = {n: a for named in of_layers for n, a in named.items()}
        self.cell, self.dtype = params.cell, params.dtype
        self.theta, self._named = self._flat(arrays)
        self.gradients, self.named_gradients = self._flat(arrays)
        self._of_layers = [{n: self._named[n] for n in named} for named in of_layers]
        self._room = np.empty_like(self.theta)
        sizes = [sum(a.size for a in named.values()) for named in of_layers]
        self.bounds = [slice(a, b) for a, b in pairwise([0, *accumulate(sizes)])]

    def _flat(self, arrays):
        """One array that holds copies of these, and its views by name."""
        flat, views, start = np.concatenate([a.ravel() for a in arrays.values()]), {}, 0
        for name, a in arrays.items():
            views[name] = flat[start : start + a.size].reshape(a.shape)
            start += a.size
        return flat, views

    def params(self):
        """A copy of the parameters."""
        return StageParams({n: a.copy() for n, a in self._named.items()}, self.cell)

    def assign(self, named):
        """Take over other values, by name."""
        for name, a in self._named.items():
            a[...] = named[name]
        self._give()

    def _give(self):
        for layer, named in zip(self.layers, self._of_layers, strict=True):
            layer.assign(named)

    def descend(self, rate):
        """theta -= rate * gradient."""
        np.multiply(self.gradients, self.dtype.type(-rate), out=self._room)
        self.theta += self._room
        self._give()

    def forward(self, value, target, count, slot):
        """One micro-batch: what the next stage gets, or the loss. value: of the stage before."""
        for layer in self.layers:
            if isinstance(layer, Decoder):
                return layer.forward(value, target, count, slot)
            value = layer.forward(value, slot)
        return value

    def backward(self, dy, slot, more=False, ready=None):
        """One micro-batch back: the gradient for the stage before. Gradients of parameters are
        added; more: other micro-batches follow; ready(bounds) is called as soon as those of a layer
        are complete.
        """
        for bounds, layer in zip(reversed(self.bounds), reversed(self.layers), strict=True):
            if isinstance(layer, Decoder):
                dy, named = layer.backward(slot, more)
            else:
                dy, named = layer.backward(dy, slot, more)
            for name, gradient in named.items():
                self.named_gradients[name] += gradient
            if ready is not None:
                ready(bounds)
        return dy


class Parallel:
    """A model over the ranks of a World; `lstm_kernels.train` takes it as it takes a network.

    params: Params with a read-out, or TokenParams, the same on every rank. stages: of each rank of
    a replica the number of its layers (`layer_names`); None is one stage. micro_batches: into how
    many the share of a replica is cut, if it has so many samples. order: of PIPELINES. loss: of
    LOSSES. overlap: gradients are summed while others are still computed, layer by layer. version,
    threads: of the networks.

    A mini-batch may have fewer samples than there are replicas or micro-batches: some then have
    none, and add zeros. Raises TypeError or ValueError, on every rank, for ranks that are no
    multiple of the stages, stages that do not add up to the layers, or ranks that disagree.
    """

    def __init__(
        self,
        params,
        world=None,
        *,
        stages=None,
        micro_batches=1,
        order=PIPELINES[0],
        loss="last",
        overlap=True,
        version="numba-fused",
        threads=1,
    ):
        self.world = world = world or World()
        params = params.check()
        # Those of a GPU keep one tape; `DeviceReplica` shares samples among GPUs.
        check_choice("version", version, [v.name for v in versions() if v.target == "cpu"])
        if params.V is None:
            raise ValueError("params: got no read-out, want V and b_out")
        self.loss, self.order, self.version = check_choice("loss", loss, LOSSES), order, version
        count = len(layer_names(params))
        self.stages = [count] if stages is None else [check_int("stages", n) for n in stages]
        if sum(self.stages) != count:
            raise ValueError(f"stages: got {self.stages}, want {count} layers in all")
        self.micro_batches, P = check_int("micro_batches", micro_batches), len(self.stages)
        if world.size % P:
            raise ValueError(f"stages: got {P} on {world.size} ranks, want a divisor of that")
        how = (params.form, self.stages, self.micro_batches, order, loss, version)
        world.agree("params, stages or options", how)
        self.replica, self.stage = divmod(world.rank, P)
        self.replicas = world.size // P
        self._row = world.comm.Split(self.replica)  # the stages of this replica
        self._column = World(world.comm.Split(self.stage))  # this stage's replicas
        first = sum(self.stages[: self.stage])
        self.apart = overlap and self.replicas > 1
        arguments = first, first + self.stages[self.stage], loss, version, threads, self.apart
        self.own = Stage(params, *arguments)
        # Of the model its form alone: a rank holds its own layers, not the others'.
        self._kind, self._form = type(params), params.form
        self._sums = Sums(self._column) if self.apart else None
        self._waiting = None  # bounds of gradients that are there and not yet summed
        self._schedules = {}
        check_choice("order", order, PIPELINES)

    def __repr__(self):
        return f"{self._form} on {self.replicas} x {len(self.stages)} ranks"

    def params(self):
        """A copy of this rank's parameters."""
        return self.own.params()

    def assign(self, params):
        """Take over other values for this rank's parameters."""
        self.own.assign(params.arrays())

    def gather(self):
        """A copy of all parameters, on every rank."""
        named = {}
        for part in self._row.allgather(self.own.params().arrays()):
            named |= part
        return self._kind.from_arrays(named, self.own.cell)

    def loss_and_grads(self, x, target):
        """The loss of a mini-batch, a float, and the gradients of this rank's parameters.

        x, target: as a network takes them (T, B, D) and (B, O), or with loss "symbols" one-hot rows
        (T, B, S) and lengths (B, 1), as of `data.symbols`.
        """
        inputs, wanted, count = self._examples(x, target)
        loss = self.passes(inputs, wanted, count)
        return loss, StageParams(
            {n: a.copy() for n, a in self.own.named_gradients.items()}, self.own.cell
        )

    def step(self, x, target, learning_rate):
        """A step of gradient descent; the loss before it."""
        loss = self.passes(*self._examples(x, target))
        self.own.descend(check_rate("learning_rate", learning_rate, self.own.dtype))
        return loss

    def epoch(self, dataset, order, batch_size, learning_rate):
        """A step for each mini-batch of `order`; the losses, up to one that is not finite."""
        if not isinstance(dataset, Dataset):
            raise TypeError(f"dataset: got {type(dataset).__name__}, want lstm_kernels.Dataset")
        return dataset.each_batch(
            order, batch_size, lambda x, target: self.step(x, target, learning_rate)
        )

    def _examples(self, x, target):
        """Inputs and targets by sample, and what the loss is divided by."""
        x = check_array("x", x, ("T", "B", "D"), dtype=self.own.dtype)
        if self.loss == "last":
            return x, check_array("target", target, (x.shape[1], "O"), dtype=x.dtype), target.size
        x = x[: int(target.max())]
        symbols = numbers(x)
        inputs = symbols[:-1] if issubclass(self._kind, TokenParams) else x[:-1]
        return inputs, symbols[1:], int(np.count_nonzero(symbols[1:] >= 0))

    def passes(self, inputs, wanted, count):
        """Forward and back through every stage, and the sums: `own.gradients` are then those of
        the whole mini-batch. Returns its loss.

        inputs: (T, B, D), or symbols (T, B); wanted: what the decoder compares with, samples last
        but one or last; count: what every loss is divided by.
        """
        stage, row, T, B = self.own, self._row, inputs.shape[0], inputs.shape[1]
        low, high = B * self.replica // self.replicas, B * (self.replica + 1) // self.replicas
        parts = max(1, min(self.micro_batches, high - low))
        stage.gradients[:] = 0
        loss, sent, place = 0.0, deque(), self.stage
        left = parts
        for task in self._tasks(parts) if high > low else ():
            back, slot = task.layer >= len(self.stages), task.part
            a = low + (high - low) * slot // parts
            b = low + (high - low) * (slot + 1) // parts
            if not back:
                if stage.first:
                    value = np.ascontiguousarray(inputs[:, a:b])
                else:
                    value = self._receive(place - 1, slot, T, b - a, stage.inputs)
                mine = wanted[:, a:b] if self.loss == "symbols" else wanted[a:b]
                value = stage.forward(value, mine if stage.last else None, count, slot)
                if stage.last:
                    loss += value
                else:
                    sent.append((row.Isend(value, place + 1, slot), value))
            else:
                dy = None
                if not stage.last:
                    dy = self._receive(place + 1, slot, T, b - a, stage.outputs)
                left -= 1
                ready = self._start if self._sums and not left else None
                dx = stage.backward(dy, slot, left > 0, ready)
                if not stage.first:
                    dx = np.ascontiguousarray(dx)
                    sent.append((row.Isend(dx, place - 1, slot), dx))
        for request, _ in sent:
            request.Wait()
        if self.replicas > 1:
            self._sum(started=high > low)
        return float(sum(self.world.comm.allgather(loss)))

    def _sum(self, started):
        """The gradients of all replicas; started: whether those of layers have begun to be."""
        if self._sums is None:
            Sum(self._column, self.own.gradients).run()
            return
        for bounds in () if started else reversed(self.own.bounds):  # nothing of its own: zeros
            self._start(bounds)
        self._sums.wait()

    def _start(self, bounds):
        """The gradients of a layer are there: sum them, once they are BUCKET bytes with those that
        wait, or the last.
        """
        self._waiting = slice(bounds.start, (self._waiting or bounds).stop)
        array = self.own.gradients[self._waiting]
        if array.nbytes >= BUCKET or not bounds.start:
            self._sums.start(array)
            self._waiting = None

    def _receive(self, rank, slot, *shape):
        value = np.empty(shape, self.own.dtype)
        self._row.Recv(value, rank, slot)
        return value

    def _tasks(self, parts):
        """What this rank runs for so many micro-batches, in its order."""
        if parts not in self._schedules:
            P = len(self.stages)
            schedule = pipeline(Graph(P, 1, parts, training=True), P, self.order)
            self._schedules[parts] = [t for t in schedule.tasks if t.worker == self.stage]
        return self._schedules[parts]
