"""`numba-fused`: the machine's limit on a CPU.

What changed from `numba-sample`: weights are packed for vector registers, the cell is
applied to the sums of a register tile before they are stored, and a whole pass, a
training step or an epoch runs in one region of threads of its own. They share the
samples of a mini-batch, or the hidden units of a step, or run layers at the same time,
or stay away: the first calls try which is fastest (`cpu/divisions.py`). Bounded by the
FMA units for a mini-batch of some samples; by reading the weights once a step for a
single sample; for the smallest networks by what a call costs.

Who computes what changes no bit: the order of additions is fixed in `tiles.py` and
`block_kernels.py`. ARCHITECTURE.md says how x gets through these rooms.

A network keeps arrays for the shapes it was called with last, at most MOST_SPACES and
MOST_BYTES; nothing of them is ever returned.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from time import perf_counter

import numba
import numpy as np

from ..blas import single_threaded
from ..cores import cores
from ..cpu import passes
from ..cpu.arrays import JOB_WORD, PROGRESS_WORD
from ..cpu.divisions import Choice, Trial, divisions, trial
from ..cpu.flow import Flow
from ..cpu.interrupts import run_on
from ..cpu.machine_code import address
from ..cpu.team import MOST_THREADS
from ..cpu.tiles import Tiles
from ..cpu.workspace import Packed, Space, at, point, transposes
from ..errors import check_choice, check_int
from ..kernels import numbas_threads
from ..schedules import Graph, wavefront
from .base import Network

MOST_SPACES, MOST_BYTES = 4, 1 << 30  # for later calls, beside those of the last one
# About how much longer than a forward pass a pass takes.
FORWARD_PASSES = {passes.infer: 1, passes.backward: 2, passes.train: 3}
# What `division` tells of: for which purpose which pass runs.
CALLS = {
    "forward": ("inference", passes.infer),
    "forward for training": ("gradients", passes.infer),
    "backward": ("gradients", passes.backward),
    "loss_and_grads": ("gradients", passes.train),
    "step": ("descent", passes.train),
}


@lru_cache(maxsize=64)
def descending(rate, dtype):
    """-rate as a number of a dtype, rounded to nearest whatever the caller's mode is:
    kept, since setting the mode takes longer than a small step may.
    """
    with single_threaded():
        return dtype.type(-rate)


@dataclass(frozen=True)
class Pass:
    """A compiled pass over one x, as a function without arguments."""

    run: Callable[[], None]
    space: Space
    h: np.ndarray  # of the top layer, (T + 1, B, padded H), which the pass writes

    def __call__(self) -> None:
        self.run()


class NumbaFused(Network):
    """A network whose parameters live packed, and whose passes run in compiled code as
    a whole. A signal ends a long call between two steps, but waits while it changes the
    parameters.
    """

    name = "numba-fused"
    tiles_class = Tiles

    def __init__(self, params, threads=None):
        super().__init__(params, threads)
        most = min(numbas_threads(), cores(), self.most_threads())
        self._threads = self._threads or most
        params = self._params
        sizes = self._cell, self._dtype, params.hidden_size
        self.tiles = self.tiles_class(*sizes)
        self.inputs = [len(layer.U) for layer in params.layers]
        self.packed = Packed(self.tiles, self.inputs, params.V, params.b_out)
        self.transposes = transposes(self.tiles, self.inputs)
        self._spaces, self._transposes_are_old = {}, True
        self.packed.pack(params)  # from now on the parameters: `_params` is their form

    @staticmethod
    def most_threads():
        return min(numba.config.NUMBA_NUM_THREADS, MOST_THREADS)

    def _now(self):
        return self.packed.unpack(self._params)

    def _replace(self, params):
        self._transposes_are_old = True
        self.packed.pack(params)

    def division(self, T: int, B: int, call: str = "forward") -> Choice:
        """How threads divide a call on mini-batches (T, B), and what each division took
        while they were tried: a Choice, for every network of this form in the process.

        call: "forward", "forward for training", "backward", "loss_and_grads" or "step",
        which stands for `epoch` too. Raises TypeError or ValueError for another, or for
        sizes below one.
        """
        check_choice("call", call, CALLS)
        purpose, kernel = CALLS[call]
        sizes = check_int("T", T), check_int("B", B)
        return self._trial(*sizes, purpose, kernel).choice()

    def _trial(self, T, B, purpose, kernel):
        """The Trial of a pass, the same for all networks of this form."""
        form = self.name, self.tiles, tuple(self.inputs), self._threads
        name = kernel.py_func.__name__
        return trial((*form, T, B, purpose, name), tuple(self._divisions(T, B)))

    def _divisions(self, T, B):
        """The divisions to try."""
        L, blocks = self._params.num_layers, self.tiles.blocks
        return divisions(L, T, B, blocks, self._threads)

    def bare_forward(self, x, division=None):
        """The compiled part of `forward(x)`, a Pass: it shows what a public call costs
        beside it. division: a Division; None is what is tried. Raises as `forward`.
        """
        x = self.checked_input("bare_forward", x)
        with self._held("bare_forward"):
            space = Space(self, *x.shape[:2], "inference")  # of its own
            if division is not None:
                space.trials[passes.infer] = Trial([division])
            h = space.begin(x)
        run = partial(self._infer, space, x, h)  # which keeps the arrays alive
        return Pass(run, space, h)

    def _infer(self, space, *arrays):
        self._run(space, passes.infer)

    def _run(self, space, kernel, count=1):
        """Run a kernel on a Space, a pass or `count` training steps, as it is divided
        at present; its time is noted.
        """
        trial = space.trials.get(kernel)
        fresh = trial is None
        if fresh:
            trial = self._trial(*space.x_shape, space.purpose, kernel)
        division = trial.division
        if space.division != division:
            self._divide(space, division)
        start = perf_counter()
        if division.by == "layers":
            self._run_layers(space, kernel)
        else:
            operations = space.operations * FORWARD_PASSES[kernel] * count
            space.work.run(kernel, space.participants, space, operations)
        if fresh:  # it compiled, and met new memory
            space.trials[kernel] = trial
            Trial.tried += not trial.decided
        else:
            trial.record(division, (perf_counter() - start) / count)

    def _divide(self, space, division):
        if division.by == "layers" and division not in space.flows:
            L, T = self._params.num_layers, space.x_shape[0]
            ways = (False,) if space.purpose == "inference" else (False, True)
            graphs = [Graph(L, T, backward=way) for way in ways]
            schedules = [self._schedule(graph, space, division) for graph in graphs]
            space.flows[division] = [Flow(schedule) for schedule in schedules]
            self._compile_tasks(space)
        space.divide(division)

    def _schedule(self, graph, space, division):
        """The Schedule of a division by layers."""
        chunk, together = division.chunk, division.together
        return wavefront(graph, self._threads, chunk, together=together)

    @staticmethod
    def _compile_tasks(space):
        """Compile what layers at the same time run, before that is timed."""
        kernels = [passes.forward_task]
        if space.purpose != "inference":
            kernels += [passes.backward_task, passes.read_out, passes.gradient_rounds]
        if space.purpose == "descent":
            kernels.append(passes.next_batch)
        for kernel in kernels:
            address(kernel, space.work.job.dtype)

    def _run_layers(self, space, kernel):
        """A pass, or training steps, as flows of tasks; interrupted, a whole number of
        steps has ended.
        """
        if kernel is passes.infer:
            self._flow(space, False, passes.forward_task)
        elif kernel is passes.backward:
            self._flow(space, True, passes.backward_task)
            all_threads = self._threads, space, space.operations
            space.work.run(passes.gradient_rounds, *all_threads)
        else:
            progress, word = space.work.progress, PROGRESS_WORD
            for _ in range(progress[word.first], progress[word.last]):
                if space.work.job_words[JOB_WORD.order]:
                    space.work.run(passes.next_batch, 1, space)
                self._run_layers(space, passes.infer)
                space.work.run(passes.read_out, 1, space)
                self._run_layers(space, passes.backward)
                if space.work.progress[word.last] == 0:  # the loss was not finite
                    break

    def _flow(self, space, backward, task):
        work, running = space.work, space.flows[space.division][backward]
        space.ran[backward] = running
        work.enter()  # which may renew the records
        work.job_words[JOB_WORD.tasks] = at(running.tasks)
        participants = min(self._threads, running.workers)
        code, owner = address(task, work.job.dtype), (space, work.arrays)
        call = running.run, participants, code, work.address, work.progress, owner
        work.leave(run_on(work, space.operations, *call))

    def _step(self, x, target, rate):
        space = self._space(*x.shape[:2], "descent")
        space.work.job_words[JOB_WORD.order] = 0
        return float(self._descend(space, rate, x, target, 1)[0])

    def _epoch(self, dataset, order, batch_size, rate):
        x, target = self._check_example(dataset.x, dataset.target)
        (T, N, _), losses = x.shape, []
        cut = len(order) - len(order) % batch_size
        for part, B in ((order[:cut], batch_size), (order[cut:], len(order) - cut)):
            if len(part) and all(map(math.isfinite, losses[-1:])):
                space = self._space(T, B, "descent")
                point(space.work.job, order=part, source=x, labels=target, N=N)
                batch = space.arrays["x"], space.arrays["target"]
                losses += self._descend(space, rate, *batch, len(part) // B).tolist()
        return losses

    def pack_transposes(self, space):
        """Write the transposed weights anew, on one thread; in a training step all
        threads do.
        """
        space.work.run(passes.pack_transposes, 1, space)
        self._transposes_are_old = False

    def _space(self, T, B, purpose):
        """The Space for mini-batches (T, B)."""
        key = T, B, purpose
        space = self._kept(self._spaces, key, partial(Space, self, *key))
        space.work.settle()
        if purpose != "inference" and self._transposes_are_old:
            self.pack_transposes(space)
        return space

    @staticmethod
    def _kept(spaces, key, make):
        """What is kept under a key, or what is made now in the place of another."""
        if key not in spaces:
            while spaces and (
                len(spaces) >= MOST_SPACES
                or sum(space.bytes for space in spaces.values()) > MOST_BYTES
            ):
                spaces.pop(next(iter(spaces)))
            spaces[key] = make()
        return spaces[key]

    def _guard(self):
        return self._lock  # which is held: of contexts that do nothing, the quickest

    def _forward(self, x, state, training):
        purpose = "gradients" if training else "inference"
        space = self._space(*x.shape[:2], purpose)
        top = space.begin(x, state)
        self._run(space, passes.infer)
        return *space.outputs(top), (x, space)  # x too: the records point to it

    def _backward(self, tape, dy, dstate, inputs):
        _, space = tape
        space.work.settle()
        gradients = space.begin_backward(dy, dstate)
        dx = space.arrays["dx"] if inputs else 0
        point(space.work.layers[0], dx=dx)
        self._run(space, passes.backward)
        return space.collect(gradients, inputs)

    def _loss_and_grads(self, x, target):
        space = self._space(*x.shape[:2], "gradients")
        gradients = space.begin_backward()
        point(space.work.layers[0], dx=space.arrays["dx"])
        loss = self._train(space, x, target, 1)[0]
        return float(loss), space.collect(gradients)

    def _descend(self, space, rate, x, target, count):
        space.work.job["rate"] = descending(rate, self._dtype)
        return self._train(space, x, target, count)

    def _train(self, space, x, target, count):
        """`count` steps on the mini-batch x, target; where the job has an order, on
        what it names, taken over into these; the losses, up to one not finite.
        """
        losses, work = np.empty(count, self._dtype), space.work
        word = PROGRESS_WORD
        space.begin(x)
        work.progress[word.done] = 0
        work.job_words[JOB_WORD.losses] = at(losses)
        work.job_words[JOB_WORD.target] = at(target)
        first, last = 0, 1
        while first < count and last:  # 0: the loss was not finite
            trial = space.trials.get(passes.train)
            many = trial is not None and trial.decided
            last = count if many else first + 1  # try on one step at a time
            # `work` may have gone over to new records
            progress = work.progress
            progress[word.first], progress[word.last] = first, last
            self._run(space, passes.train, last - first)
            first, last = last, work.progress[word.last]
        return losses[: work.progress[word.done]]
