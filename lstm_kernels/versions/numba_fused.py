"""`numba-fused`: the machine's limit on a CPU.

What changed from `numba-sample`: weights are packed for vector registers, the cell is
the fused epilogue of a register tile, and a whole pass, a training step or an epoch
runs in one parallel region of a thread pool of its own. Threads share the samples of a
mini-batch, or the hidden units of a step, or run layers at the same time, or stay away:
the first calls autotune which is fastest (`cpu/partitions.py`). Bounded by the FMA
units for a mini-batch of some samples; by reading the weights once a step for a single
sample; for the smallest networks by what a call costs.

Who computes what changes no bit: the order of additions is fixed in
`cpu/micro_kernels.py` and `cpu/stages.py`. ARCHITECTURE.md says how x gets through
these rooms.

A network keeps workspaces for the shapes it was called with last, at most
MOST_WORKSPACES and MOST_BYTES; nothing of them is ever returned.
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
from ..cpu.fp_mode import FLUSH, KEEP
from ..cpu.micro_kernels import MicroKernels
from ..cpu.packing import Weights
from ..cpu.partitions import Autotuner, Tuning, autotuner, partitions
from ..cpu.thread_pool import MOST_THREADS, thread_pool
from ..cpu.workspace import Workspace
from ..errors import check_choice, check_int
from ..kernels import numbas_threads
from ..schedules import check, for_fewer
from .base import Compiled

# For later calls, beside that of the last one.
MOST_WORKSPACES, MOST_BYTES = 4, 1 << 30
# Which workspace and which kind of pass a call runs.
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


class Lease:
    """A workspace as what a tape keeps; it is free again when the tape ends."""

    workspace: Workspace | None = None  # None where an exception ended its backward

    def __init__(self, workspace, free, x):
        self._free, self._x = free, x  # its Arguments point into x
        self.workspace = workspace

    def __del__(self):
        if self.workspace is not None and len(self._free) <= MOST_WORKSPACES:
            self._free.append(self.workspace)


@dataclass(frozen=True)
class Pass:
    """A compiled pass over one x, as a function without arguments."""

    run: Callable[[], None]
    workspace: Workspace
    h: np.ndarray  # of the top layer, (T + 1, B, padded H), which the pass writes

    def __call__(self) -> None:
        self.run()


class NumbaFused(Compiled):
    """A network whose parameters live packed, and whose passes run in compiled code as
    a whole. A signal ends a long call between two steps, but waits while it changes the
    parameters.
    """

    name = "numba-fused"
    micro_kernels, packed = MicroKernels, Weights
    pool: Callable = staticmethod(thread_pool)  # where passes get threads

    def __init__(self, params, threads=None, *, subnormals=False):
        super().__init__(params, threads, subnormals=subnormals)
        most = min(numbas_threads(), cores(), self.most_threads())
        self._threads = self._threads or most
        hidden = self._params.hidden_size
        self.layout = self.micro_kernels(self._cell, self._dtype, hidden)
        # From now on the parameters: `_params` is their form
        self.weights = self.packed(self.layout, self._params)
        self._fp_mode = KEEP if subnormals else FLUSH
        self._free = []  # workspaces, the one used last at the end

    @staticmethod
    def most_threads():
        return min(numba.config.NUMBA_NUM_THREADS, MOST_THREADS)

    def _now(self):
        return self.weights.params()

    def _replace(self, params):
        self.weights.assign(params)

    def partition(self, T: int, B: int, call: str = "forward") -> Tuning:
        """How threads partition a call on mini-batches (T, B), and what each partition
        took while it was autotuned: a Tuning, for every network of this form in the
        process.

        call: "forward", "forward for training", "backward", "loss_and_grads" or "step",
        which stands for `epoch` too. Raises TypeError or ValueError for another, or for
        sizes below one.
        """
        check_choice("call", call, CALLS)
        sizes = check_int("T", T), check_int("B", B)
        return self._autotuner(*sizes, *CALLS[call]).tuning()

    def _autotuner(self, T, B, purpose, kind):
        """That of a pass, the same for all networks of this form."""
        inputs = tuple(self.weights.inputs)
        form = type(self), self.layout, inputs, self._threads, T, B, purpose, kind
        return autotuner(form, tuple(self._partitions(T, B)))

    def _partitions(self, T, B):
        """The candidates."""
        layers = self._params.num_layers
        return partitions(layers, T, B, self.layout.blocks, self._threads)

    def bare_forward(self, x, partition=None):
        """The compiled part of `forward(x)`, a Pass: it shows what a public call costs
        beside it. partition: a Partition; None is autotuned. Raises as `forward`.
        """
        x = self.checked_input("bare_forward", x)
        with self._held("bare_forward"):
            workspace = self._new_workspace(*x.shape[:2], "inference")
            if partition is not None:
                workspace.tuners["forward"] = Autotuner([partition])
            workspace.begin(x)
        h = workspace.net.h[-1].reshape(len(x) + 1, x.shape[1], -1)
        return Pass(partial(self._run_on, x, workspace), workspace, h)

    def _schedule(self, graph, partition):
        """The Schedule of a pass; what another class returns is checked."""
        return partition.schedule(graph, self._threads)

    def _checked_schedule(self, partition, graph):
        schedule = self._schedule(graph, partition)
        if type(self)._schedule is not NumbaFused._schedule:
            check(schedule)
            if schedule.graph != graph:
                raise ValueError(f"schedules: got {schedule.graph}, want {graph}")
        return for_fewer(schedule, self._threads)

    def _run_on(self, x, workspace):  # a partial of it keeps x alive
        self._run(workspace, "forward")

    def _run(self, workspace, kind, passes=1):
        """Run a kind of pass, so many times, as it is partitioned at present; its time
        is noted.
        """
        tuner = workspace.tuners.get(kind)
        first = tuner is None
        if first:
            sizes = workspace.shape[1:3]
            tuner = self._autotuner(*sizes, workspace.purpose, kind)
        partition, compiled = tuner.partition, workspace.last.get(kind)
        if compiled is None or compiled.partition is not partition:
            schedule = partial(self._checked_schedule, partition)
            compiled = workspace.compiled(kind, partition, schedule)
        start = perf_counter()
        workspace.run(compiled, passes, self.pool())
        if first:  # it compiled, and met new memory
            workspace.tuners[kind] = tuner
            Autotuner.trials += not tuner.done
        else:
            tuner.record(partition, (perf_counter() - start) / passes)

    def _new_workspace(self, T, B, purpose):
        sizes = T, B, purpose, self._threads, self._fp_mode
        return Workspace(self.layout, self.weights, *sizes)

    def _take(self, T, B, purpose):
        """A workspace for mini-batches (T, B), which nobody else has until it is free
        again. One whose call an exception ended does not come back.
        """
        key, workspace = (T, B, purpose), None
        for k in reversed(range(len(self._free))):
            if self._free[k].key == key:
                workspace = self._free.pop(k)
                break
        while self._free and self._keeps_too_much(workspace is None):
            del self._free[0]
        if purpose != "inference":
            self.weights.transpose()
        return workspace or self._new_workspace(*key)

    def _keeps_too_much(self, one_more):
        count, size = len(self._free), sum(kept.bytes for kept in self._free)
        return count + one_more > MOST_WORKSPACES or size > MOST_BYTES

    def _workspaces(self):
        """Those that are free, and that of `backward`, used last."""
        lease = getattr(self._tape, "_arrays", None)
        # None after a backward that was not finished
        leased = lease and lease.workspace
        return [*self._free, *([leased] if leased else [])]

    def _guard(self):
        return self._lock  # which is held: of contexts that do nothing, the quickest

    def _forward(self, x, state, training):
        workspace = self._take(*x.shape[:2], "gradients" if training else "inference")
        workspace.begin(x, state)
        self._run(workspace, "forward")
        outputs = workspace.outputs()
        if training:
            return *outputs, Lease(workspace, self._free, x)
        self._free.append(workspace)
        return *outputs, None

    def _backward(self, lease, dy, dstate, inputs):
        workspace, lease.workspace = lease.workspace, None
        gradients = workspace.begin_backward(dy, dstate)
        workspace.arguments.set("input_gradient", inputs)
        self._run(workspace, "backward")
        lease.workspace = workspace
        return workspace.collect(gradients, inputs)

    def _loss_and_grads(self, x, target):
        workspace = self._take(*x.shape[:2], "gradients")
        gradients = workspace.begin_backward()
        workspace.arguments.set("input_gradient", True)
        loss = self._train(workspace, x, target)
        gradients = workspace.collect(gradients)
        self._free.append(workspace)
        return loss, gradients

    def _step(self, x, target, rate):
        workspace = self._take(*x.shape[:2], "descent")
        workspace.net.scale[0] = descending(rate, self._dtype)
        loss = self._train(workspace, x, target)
        self._free.append(workspace)
        return loss

    def _train(self, workspace, x, target):
        """The loss of a pass forward and backward."""
        workspace.begin(x)
        workspace.arguments.point("target", target)
        self._run(workspace, "train")
        return float(workspace.net.losses[0])

    def _epoch(self, dataset, x, target, order, batch_size, rate):
        (T, _, _), losses = x.shape, []
        cut = len(order) - len(order) % batch_size
        for part, B in ((order[:cut], batch_size), (order[cut:], len(order) - cut)):
            if len(part) and all(map(math.isfinite, losses[-1:])):
                workspace = self._take(T, B, "descent")
                net, arguments = workspace.net, workspace.arguments
                net.scale[0] = descending(rate, self._dtype)
                workspace.begin(net.x)
                arguments.point("target", net.target)
                arguments.set("source", x)
                arguments.set("labels", target)
                losses += self._steps(workspace, part)
                for name in ("order", "losses"):
                    arguments.set(name, getattr(net, name))
                self._free.append(workspace)
        return losses

    def _steps(self, workspace, order):
        """Steps on the mini-batches of an order; their losses, up to one not finite."""
        arguments, losses, B = workspace.arguments, [], workspace.shape.B
        while order.size and all(map(math.isfinite, losses[-1:])):
            tuner = workspace.tuners.get("train")
            tuned = tuner is not None and tuner.done  # autotune on one step at a time
            passes = len(order) // B if tuned else 1
            some = np.full(passes, np.nan, self._dtype)
            arguments.set("losses", some)
            arguments.set("order", order)
            self._run(workspace, "train", passes)
            bad = (k + 1 for k, loss in enumerate(some) if not math.isfinite(loss))
            losses += some[: next(bad, passes)].tolist()
            order = order[passes * B :]
        return losses
