"""Training by several ranks: each has a stage of the layers, or a share of the samples,
or both.

Ranks form a grid of replicas x stages. A mini-batch is shared out over the replicas;
the share of one is cut into micro-batches, which go through its stages as a schedule of
`schedules.py` says. Gradients of a stage are then summed over the replicas, in the
order of the ranks, so that a run has the same bits each time. One stage is data
parallelism, one replica model parallelism.

Every rank reads the data by itself; between ranks go activations, their gradients, and
sums.
"""

from collections import deque
from itertools import accumulate, pairwise

import numpy as np

from ..data import Dataset
from ..errors import check_array, check_choice, check_int, check_rate
from ..schedules import PIPELINES, Graph, pipeline
from ..strings import numbers
from ..versions import versions
from .layers import LOSSES, Decoder, Encoder, Recurrent, StageParams, TokenParams
from .world import Sum, Sums, World

BUCKET = 1 << 20  # bytes of gradients that are summed at a time, at least


def layer_names(params):
    """The layers of a model as they are given to ranks: `embedding`, `layer 0`, ...,
    `read-out`.
    """
    encoder = ["embedding"] if isinstance(params, TokenParams) else []
    return [*encoder, *(f"layer {k}" for k in range(params.num_layers)), "read-out"]


class LocalLayers:
    """The layers of a model on one rank, with one flat array of their gradients.

    spans: (first, stop) of `layer_names`, neighbouring layers, for each stage that the
    rank has: a loop of the pipeline is through one of them. apart: each recurrent layer
    is a network of its own, so that its gradients are known before those of the layers
    below. Other arguments as of `Parallel`.
    """

    def __init__(self, params, spans, loss, version, threads, apart=False):
        self.layers, self._stages = (
            [],
            [],
        )  # of each loop, where its layers lie in `layers`
        for first, stop in spans:
            before = len(self.layers)
            self.layers += self._built(
                params, first, stop, loss, version, threads, apart
            )
            self._stages.append(slice(before, len(self.layers)))
        # Numbers of a step and sample that a stage gets from the one before, and gives
        # to the next.
        encoder = len(layer_names(params)) - params.num_layers - 1
        D, H = params.input_size, params.hidden_size
        self.sizes = [[D if end <= encoder else H for end in span] for span in spans]
        of_layers = [layer.arrays for layer in self.layers]
        arrays = {n: a for named in of_layers for n, a in named.items()}
        self.cell, self.dtype = params.cell, params.dtype
        self.theta, self._named = self._flat(arrays)
        self.gradients, self.named_gradients = self._flat(arrays)
        self._of_layers = [{n: self._named[n] for n in named} for named in of_layers]
        self._room = np.empty_like(self.theta)
        sizes = [sum(a.size for a in named.values()) for named in of_layers]
        self.bounds = [slice(a, b) for a, b in pairwise([0, *accumulate(sizes)])]

    def _built(self, params, first, stop, loss, version, threads, apart):
        """The layers from `first` to before `stop`."""
        names = layer_names(params)
        encoder = int(names[0] == "embedding")
        if encoder and not first:
            yield Encoder(params.E.copy())
        low, high = max(first - encoder, 0), min(stop - encoder, params.num_layers)
        for k in range(low, high, 1 if apart else max(1, high - low)):
            group = params.layers[k : k + 1 if apart else high]
            yield Recurrent(group, params.cell, k, bool(k or encoder), version, threads)
        if stop == len(names):
            yield Decoder(params.V.copy(), params.b_out.copy(), loss)

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
        for layer, named in zip(self.layers, self._of_layers, strict=True):
            layer.assign(named)

    def descend(self, rate, within=slice(None)):
        """theta -= rate * gradient, of the layers whose `bounds` are within these."""
        step = np.multiply(
            self.gradients[within], self.dtype.type(-rate), out=self._room[within]
        )
        self.theta[within] += step
        start, stop, _ = within.indices(self.theta.size)
        for layer, named, own in zip(
            self.layers, self._of_layers, self.bounds, strict=True
        ):
            if start <= own.start and own.stop <= stop:
                layer.assign(named)

    def forward(self, value, target, count, slot, loop=0):
        """One micro-batch: what the next stage gets, or the loss. value: of the stage
        before.
        """
        for layer in self.layers[self._stages[loop]]:
            if isinstance(layer, Decoder):
                return layer.forward(value, target, count, slot)
            value = layer.forward(value, slot)
        return value

    def backward(self, dy, slot, more=False, ready=None, loop=0):
        """One micro-batch back: the gradient for the stage before. Gradients of
        parameters are added; more: other micro-batches follow; ready(bounds) is called
        as soon as those of a layer are complete.
        """
        stage = self._stages[loop]
        pairs = zip(self.bounds[stage], self.layers[stage], strict=True)
        for bounds, layer in reversed(list(pairs)):
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
    """A model over the ranks of a World; `lstm_kernels.train` takes it as it takes a
    network.

    params: Params with a read-out, or TokenParams, the same on every rank. stages: of
    each rank of a replica the number of its layers (`layer_names`); None is one stage.
    micro_batches: into how many the share of a replica is cut, if it has so many
    samples. order: of PIPELINES. loops: how many stages a rank has; `stages` then has
    those of the first loop, of the second, and so on. loss: of LOSSES. overlap:
    gradients are summed while others are still computed, layer by layer, and a layer
    descends as soon as its own are there. version, threads: of the networks.

    A mini-batch may have fewer samples than there are replicas or micro-batches: some
    then have none, and add zeros. Raises TypeError or ValueError, on every rank, for
    ranks that are no multiple of the stages, stages that do not add up to the layers,
    or ranks that disagree.
    """

    def __init__(
        self,
        params,
        world=None,
        *,
        stages=None,
        micro_batches=1,
        order=PIPELINES[0],
        loops=1,
        loss="last",
        overlap=True,
        version="numba-fused",
        threads=1,
    ):
        self.world = world = world or World()
        params = params.check()
        # Those of a GPU keep one tape; `DeviceReplica` shares samples among GPUs.
        check_choice(
            "version", version, [v.name for v in versions() if v.target == "cpu"]
        )
        if params.V is None:
            raise ValueError("params: got no read-out, want V and b_out")
        self.loss, self.order, self.version = (
            check_choice("loss", loss, LOSSES),
            order,
            version,
        )
        count = len(layer_names(params))
        self.stages = (
            [count] if stages is None else [check_int("stages", n) for n in stages]
        )
        if sum(self.stages) != count:
            raise ValueError(f"stages: got {self.stages}, want {count} layers in all")
        self.loops, self.micro_batches = (
            loops,
            check_int("micro_batches", micro_batches),
        )
        self._schedules = {}
        self._schedule(1)  # stages, order and loops fit each other
        P = len(self.stages) // loops
        if world.size % P:
            raise ValueError(
                f"stages: got {P} on {world.size} ranks, want a divisor of that"
            )
        how = (
            params.form,
            self.stages,
            self.micro_batches,
            order,
            loops,
            loss,
            version,
        )
        world.agree("params, stages or options", how)
        self.replica, self.stage = divmod(world.rank, P)
        self.replicas = world.size // P
        self._row = world.comm.Split(self.replica)  # the stages of this replica
        self._column = World(world.comm.Split(self.stage))  # this stage's replicas
        self.apart = overlap and self.replicas > 1
        spans = list(pairwise([0, *accumulate(self.stages)]))[self.stage :: P]
        self.own = LocalLayers(params, spans, loss, version, threads, self.apart)
        # Of the model its form alone: a rank holds its own layers, not the others'.
        self._kind, self._form = type(params), params.form
        self._sums = Sums(self._column) if self.apart else None
        self._waiting = None  # bounds of gradients that are there and not yet summed

    def __repr__(self):
        return f"{self._form} on {self.replicas} x {self._row.Get_size()} ranks"

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
        """The loss of a mini-batch, a float, and the gradients of this rank's
        parameters.

        x, target: as a network takes them (T, B, D) and (B, O), or with loss "symbols"
        one-hot rows (T, B, S) and lengths (B, 1), as of `strings.one_hot`.
        """
        inputs, wanted, count = self._examples(x, target)
        loss = self.passes(inputs, wanted, count)
        return loss, StageParams(
            {n: a.copy() for n, a in self.own.named_gradients.items()}, self.own.cell
        )

    def step(self, x, target, learning_rate):
        """A step of gradient descent; the loss before it."""
        rate = check_rate("learning_rate", learning_rate, self.own.dtype)
        return self.passes(*self._examples(x, target), rate)

    def epoch(self, dataset, order, batch_size, learning_rate):
        """A step for each mini-batch of `order`; the losses, up to one that is not
        finite.
        """
        if not isinstance(dataset, Dataset):
            raise TypeError(
                f"dataset: got {type(dataset).__name__}, want lstm_kernels.Dataset"
            )
        return dataset.each_batch(
            order, batch_size, lambda x, target: self.step(x, target, learning_rate)
        )

    def _examples(self, x, target):
        """Inputs and targets by sample, and what the loss is divided by."""
        x = check_array("x", x, ("T", "B", "D"), dtype=self.own.dtype)
        if self.loss == "last":
            return (
                x,
                check_array("target", target, (x.shape[1], "O"), dtype=x.dtype),
                target.size,
            )
        x = x[: int(target.max())]
        symbols = numbers(x)
        inputs = symbols[:-1] if issubclass(self._kind, TokenParams) else x[:-1]
        return inputs, symbols[1:], int(np.count_nonzero(symbols[1:] >= 0))

    def passes(self, inputs, wanted, count, rate=0.0):
        """Forward and back through every stage, and the sums: `own.gradients` are then
        those of the whole mini-batch. With a rate a step of descent. Returns the loss
        before it.

        inputs: (T, B, D), or symbols (T, B); wanted: what the decoder compares with,
        samples last but one or last; count: what every loss is divided by.
        """
        own, row, T, B = self.own, self._row, inputs.shape[0], inputs.shape[1]
        low, high = (
            B * self.replica // self.replicas,
            B * (self.replica + 1) // self.replicas,
        )
        parts = max(1, min(self.micro_batches, high - low))
        own.gradients[:] = 0
        loss, sent, S, P = 0.0, deque(), len(self.stages), row.Get_size()
        before, after, left = (
            (self.stage - 1) % P,
            (self.stage + 1) % P,
            [parts] * self.loops,
        )
        for task in self._tasks(parts) if high > low else ():
            at, slot = task.layer, task.part
            stage = min(at, 2 * S - 1 - at)
            loop, tag = (
                stage // P,
                at * parts + slot,
            )  # of what comes; it goes to the next row
            a = low + (high - low) * slot // parts
            b = low + (high - low) * (slot + 1) // parts
            if at < S:
                if stage:
                    value = self._receive(before, tag, T, b - a, own.sizes[loop][0])
                else:
                    value = np.ascontiguousarray(inputs[:, a:b])
                mine = wanted[:, a:b] if self.loss == "symbols" else wanted[a:b]
                value = own.forward(value, mine, count, slot, loop)
                if stage == S - 1:
                    loss += value
                else:
                    sent.append((row.Isend(value, after, tag + parts), value))
            else:
                dy = None
                if stage < S - 1:
                    dy = self._receive(after, tag, T, b - a, own.sizes[loop][1])
                left[loop] -= 1
                ready = self._start if self._sums and not left[loop] else None
                dx = own.backward(dy, slot, left[loop] > 0, ready, loop)
                if stage:
                    dx = np.ascontiguousarray(dx)
                    sent.append((row.Isend(dx, before, tag + parts), dx))
        for request, _ in sent:
            request.Wait()
        for bounds in self._summed(high > low) if self.replicas > 1 else (slice(None),):
            if rate:
                own.descend(rate, bounds)
        return float(sum(self.world.comm.allgather(loss)))

    def _summed(self, started):
        """Bounds of gradients, once they are summed over the replicas; started: whether
        the sums of layers have begun.
        """
        if self._sums is None:
            Sum(self._column, self.own.gradients).run()
            yield slice(None)
            return
        for bounds in (
            () if started else reversed(self.own.bounds)
        ):  # nothing of its own: zeros
            self._start(bounds)
        yield from self._sums.completed()

    def _start(self, bounds):
        """The gradients of a layer are there: sum them, once they are BUCKET bytes with
        those that wait, or the last.
        """
        self._waiting = slice(bounds.start, (self._waiting or bounds).stop)
        array = self.own.gradients[self._waiting]
        if array.nbytes >= BUCKET or not bounds.start:
            self._sums.start(array, self._waiting)
            self._waiting = None

    def _receive(self, rank, tag, *shape):
        value = np.empty(shape, self.own.dtype)
        self._row.Recv(value, rank, tag)
        return value

    def _schedule(self, parts):
        S = len(self.stages)
        return pipeline(
            Graph(S, 1, parts, training=True), [1] * S, self.order, self.loops
        )

    def _tasks(self, parts):
        """What this rank runs for so many micro-batches, in its order."""
        if parts not in self._schedules:
            tasks = self._schedule(parts).tasks
            self._schedules[parts] = [
                task for task in tasks if task.worker == self.stage
            ]
        return self._schedules[parts]
