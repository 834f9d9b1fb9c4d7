"""`numba-fused`: the machine's limit on a CPU.

What changed from `numba-sample`: weights are packed for vector registers, the cell is
applied to the sums of a register tile before they are stored, and a whole pass, a
training step or an epoch runs in one region of threads of its own. They share the
samples of a mini-batch, or the hidden units of a step, or run layers at the same time,
or stay away: the first calls try which is fastest (`cpu/divisions.py`). Bounded by the
FMA units for a mini-batch of some samples; by reading the weights once a step for a
single sample; for the smallest networks by what a call costs.

Who computes what changes no bit: the order of additions is fixed in `tiles.py` and
`steps.py`. ARCHITECTURE.md says how x gets through these rooms.

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
from ..cpu.arrays import JOB_WORD, PROGRESS_WORD
from ..cpu.divisions import Choice, Trial, divisions, trial
from ..cpu.memory import at, point
from ..cpu.team import MOST_THREADS
from ..cpu.tiles import Tiles
from ..cpu.workspace import Packed, Space, transpose, transposes
from ..errors import check_choice, check_int
from ..kernels import numbas_threads
from ..schedules import check, for_fewer
from .base import Compiled

MOST_SPACES, MOST_BYTES = 4, 1 << 30  # for later calls, beside those of the last one
# About how much longer than a forward pass a pass takes.
FORWARD_PASSES = {"forward": 1, "backward": 2, "back in lanes": 2, "train": 3}
# What `division` tells of: for which purpose which kind of pass runs.
CALLS = {
    "forward": ("inference", "forward"),
    "forward for training": ("gradients", "forward"),
    "backward": ("gradients", "backward"),
    "loss_and_grads": ("gradients", "train"),
    "step": ("descent", "train"),
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


class NumbaFused(Compiled):
    """A network whose parameters live packed, and whose passes run in compiled code as
    a whole. A signal ends a long call between two steps, but waits while it changes the
    parameters.
    """

    name = "numba-fused"
    tiles_class = Tiles

    def __init__(self, params, threads=None, *, subnormals=False):
        super().__init__(params, threads, subnormals=subnormals)
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
        purpose, kind = CALLS[call]
        sizes = check_int("T", T), check_int("B", B)
        if call == "backward":
            kind = self._way_back(self._trial(*sizes, purpose, "forward").division)
        return self._trial(*sizes, purpose, kind).choice()

    @staticmethod
    def _way_back(division):
        """The kind of a backward pass after a forward pass that was divided so."""
        return "back in lanes" if division.lanes else "backward"

    def _trial(self, T, B, purpose, kind):
        """The Trial of a pass, the same for all networks of this form."""
        form = self.name, self.tiles, tuple(self.inputs), self._threads
        found = self._divisions(T, B)
        if kind in ("backward", "back in lanes"):  # as the forward pass was
            found = [d for d in found if bool(d.lanes) == (kind != "backward")]
        return trial((*form, T, B, purpose, kind), tuple(found))

    def _divisions(self, T, B):
        """The Divisions to try."""
        L, blocks = self._params.num_layers, self.tiles.blocks
        return divisions(L, T, B, blocks, self._threads, self.tiles.lanes)

    def bare_forward(self, x, division=None):
        """The compiled part of `forward(x)`, a Pass: it shows what a public call costs
        beside it. division: a Division; None is what is tried. Raises as `forward`.
        """
        x = self.checked_input("bare_forward", x)
        with self._held("bare_forward"):
            space = Space(self, *x.shape[:2], "inference")  # of its own
            space.wants_y = False
            if division is not None:
                space.trials["forward"] = Trial([division])
            h = space.begin(x)
        run = partial(self._infer, space, x, h)  # which keeps the arrays alive
        return Pass(run, space, h)

    def _infer(self, space, *arrays):
        self._run(space, "forward")

    def _schedule(self, graph, division):
        """Who computes what of a pass, as it is divided at present; what another class
        returns is checked.
        """
        return division.schedule(graph, self._threads)

    def _checked_schedule(self, division, graph):
        schedule = self._schedule(graph, division)
        if type(self)._schedule is not NumbaFused._schedule:
            check(schedule)
            if schedule.graph != graph:
                raise ValueError(f"schedules: got {schedule.graph}, want {graph}")
        return for_fewer(schedule, self._threads)

    def _run(self, space, kind, first=0, last=0):
        """Run a kind of pass on a Space, or training steps first, ..., last-1, as it is
        divided at present; its time is noted.
        """
        trial = space.trials.get(kind)
        fresh = trial is None
        if fresh:
            trial = self._trial(*space.x_shape, space.purpose, kind)
        division, count = trial.division, 1
        plan = space.plans.get(kind)
        if plan is None or plan.division is not division:
            schedule = partial(self._checked_schedule, division)
            plan = space.plan(kind, division, schedule)
        if space.used is not plan:
            space.use(plan)
        if kind == "train":
            count = last - first
            space.work.repeat(first, last)
        if division.lanes and kind != "back in lanes":
            space.begin_lanes(kind == "forward")
        start = perf_counter()
        space.work.run(plan, space, space.operations * FORWARD_PASSES[kind] * count)
        if fresh:  # it compiled, and met new memory
            space.trials[kind] = trial
            Trial.tried += not trial.decided
        else:
            trial.record(division, (perf_counter() - start) / count)

    def _step(self, x, target, rate):
        space = self._space(*x.shape[:2], "descent")
        space.work.job_words[JOB_WORD.order] = 0
        return float(self._descend(space, rate, x, target, 1)[0])

    def _epoch(self, dataset, x, target, order, batch_size, rate):
        (T, N, _), losses = x.shape, []
        cut = len(order) - len(order) % batch_size
        for part, B in ((order[:cut], batch_size), (order[cut:], len(order) - cut)):
            if len(part) and all(map(math.isfinite, losses[-1:])):
                space = self._space(T, B, "descent")
                point(space.work.job, order=part, source=x, labels=target, N=N)
                batch = space.arrays["x_batch"], space.arrays["target"]
                losses += self._descend(space, rate, *batch, len(part) // B).tolist()
        return losses

    def _space(self, T, B, purpose):
        """The Space for mini-batches (T, B)."""
        key = T, B, purpose
        space = self._kept(self._spaces, key, partial(Space, self, *key))
        space.work.settle()
        if purpose != "inference" and self._transposes_are_old:
            for layer in zip(self.packed.layers, self.transposes, strict=True):
                transpose(*layer)
            self._transposes_are_old = False
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
        self._run(space, "forward")
        return *space.outputs(top), (x, space)  # x too: the records point to it

    def _backward(self, tape, dy, dstate, inputs):
        _, space = tape
        space.work.settle()
        gradients = space.begin_backward(dy, dstate)
        point(space.work.job, dx=space.arrays["dx"] if inputs else 0)
        self._run(space, self._way_back(space.plans["forward"].division))
        return space.collect(gradients, inputs)

    def _loss_and_grads(self, x, target):
        space = self._space(*x.shape[:2], "gradients")
        gradients = space.begin_backward()
        point(space.work.job, dx=space.arrays["dx"])
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
        space.begin(x)
        work.progress[PROGRESS_WORD.done] = 0
        work.job_words[JOB_WORD.losses] = at(losses)
        work.job_words[JOB_WORD.target] = at(target)
        first = 0
        while first < count:
            trial = space.trials.get("train")
            many = trial is not None and trial.decided
            last = count if many else first + 1  # try on one step at a time
            self._run(space, "train", first, last)
            first = int(work.progress[PROGRESS_WORD.done])  # perhaps of new records
            if not math.isfinite(losses[first - 1]):
                break
        return losses[:first]
