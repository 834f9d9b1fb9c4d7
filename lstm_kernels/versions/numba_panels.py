"""`numba-panels`: `numba-fused` on arrays."""

import math
from functools import partial
from time import perf_counter

import numba
import numpy as np

from ..cores import cores
from ..cpu.divisions import Trial, divisions, trial
from ..cpu.micro_kernels import MicroKernels
from ..cpu.packing import Weights
from ..cpu.passes import Workspace
from ..cpu.team import MOST_THREADS
from ..kernels import numbas_threads
from .base import Compiled
from .numba_fused import FORWARD_PASSES, MOST_BYTES, MOST_SPACES, descending


class NumbaPanels(Compiled):
    name = "numba-panels"

    def __init__(self, params, threads=None, *, subnormals=False):
        super().__init__(params, threads, subnormals=subnormals)
        most = min(numbas_threads(), cores(), self.most_threads())
        self._threads = self._threads or most
        params = self._params
        self.layout = MicroKernels(self._cell, self._dtype, params.hidden_size)
        self.weights = Weights(self.layout, params)
        self._workspaces = {}

    @staticmethod
    def most_threads():
        return min(numba.config.NUMBA_NUM_THREADS, MOST_THREADS)

    def _now(self):
        return self.weights.params()

    def _replace(self, params):
        self.weights.assign(params)

    def _trial(self, T, B, purpose, kind):
        form = self.name, self.layout, tuple(self.weights.inputs), self._threads
        found = divisions(self._params.num_layers, T, B, self.layout.blocks, self._threads, 1 << 30)
        return trial((*form, T, B, purpose, kind), tuple(found))

    def _run(self, space, kind, count=1):
        tuner = space.tuners.get(kind)
        fresh = tuner is None
        if fresh:
            tuner = self._trial(*space.shape[1:3], space.purpose, kind)
        division = tuner.division
        plan = space.used.get(kind)
        if plan is None or plan.division is not division:
            plan = space.plan(
                kind, division, lambda g: division.schedule(g, self._threads)
            )
            plan.division = division
        plan.begin(count)
        start = perf_counter()
        space.run(plan, space.operations * FORWARD_PASSES[kind] * count)
        if fresh:  # it compiled, and met new memory
            space.tuners[kind] = tuner
            Trial.tried += not tuner.decided
        else:
            tuner.record(division, (perf_counter() - start) / count)

    def _space(self, T, B, purpose):
        key = T, B, purpose
        spaces = self._workspaces
        if key not in spaces or spaces[key].in_use:
            while spaces and (
                len(spaces) >= MOST_SPACES
                or sum(space.bytes for space in spaces.values()) > MOST_BYTES
            ):
                spaces.pop(next(iter(spaces)))
            spaces[key] = Workspace(self.layout, self.weights, *key, self._threads, self.subnormals)
        if purpose != "inference":
            self.weights.transpose()
        return spaces[key]

    def _guard(self):
        return self._lock

    def _forward(self, x, state, training):
        space = self._space(*x.shape[:2], "gradients" if training else "inference")
        space.begin(x, state)
        self._run(space, "forward")
        return *space.outputs(), (x, space)

    def _backward(self, tape, dy, dstate, inputs):
        _, space = tape
        gradients = space.begin_backward(dy, dstate)
        space.arguments.set("input_gradient", inputs)
        self._run(space, "backward")
        return space.collect(gradients, inputs)

    def _loss_and_grads(self, x, target):
        space = self._space(*x.shape[:2], "gradients")
        gradients = space.begin_backward()
        space.begin(x)
        space.arguments.set("input_gradient", 1)
        loss = self._train(space, target, 1)[0]
        return float(loss), space.collect(gradients)

    def _step(self, x, target, rate):
        space = self._space(*x.shape[:2], "descent")
        space.begin(x)
        space.net.rate[0] = descending(rate, self._dtype)
        return float(self._train(space, target, 1)[0])

    def _train(self, space, target, count):
        losses = np.empty(count, self._dtype)
        space.arguments.set("target", target)
        space.arguments.set("losses", losses)
        space.arguments.set("learns", 1)
        self._run(space, "train", count)
        return losses
