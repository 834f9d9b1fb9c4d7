"""What every version shares: checks, read-out, loss, descent, and the rule for a
network in use.
"""

import os
import threading
import weakref
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from .. import reference
from ..blas import SingleThreaded
from ..cells import CELLS
from ..data import Dataset
from ..errors import UnavailableError, check_array, check_int, check_rate, counted
from ..params import Grads, Params, Weights
from .passes import GradientSums, Tape, TrainingPass

State = tuple[np.ndarray, ...]
_networks: weakref.WeakSet = weakref.WeakSet()


def _after_fork():
    # A child has the thread that forked it and no other: nobody would give their locks
    # back.
    for net in list(_networks):
        if not net._lock._is_owned():
            net._lock, net._forked = threading.RLock(), True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Network:
    """A recurrent network of one version, with its own copy of the parameters.

    params: lstm_kernels.Params, copied. threads: how many to use; None is
    `cores.cores()`.

    A network computes one call at a time. A call from another thread waits; one from a
    signal handler or a finaliser that would enter a call of its own thread gets a
    RuntimeError. The tape of `forward(x, training=True)` belongs to the thread that
    made it, until the next call that computes; several passes can be under way on tapes
    of `new_tape`. A call that an exception ends, KeyboardInterrupt too, leaves a whole
    tape or none, and the parameters as they were after the last whole step. A forked
    child has the parameters, but no tape; it shares no lock and no thread with its
    parent. Networks can be copied and pickled: the parameters go along, the tape does
    not.

    A rung is a subclass that replaces hooks: `layer_forward`, `layer_backward`, and the
    methods under "Hooks". Their arguments are checked already.
    """

    name = "network"  # of the version
    parameters = Params  # the class of its parameters
    parallel = True  # whether it uses `threads`; else one
    tapes = True  # whether it has `new_tape`
    rounding = (
        None  # what products do to their operands, a function of arrays; None: nothing
    )
    layer_forward = staticmethod(reference.layer_forward)
    layer_backward = staticmethod(reference.layer_backward)

    def __init__(self, params: Params, threads: int | None = None):
        self._params = self.parameters.check(params).copy()
        self._cell = CELLS[params.cell]
        self._threads = None if threads is None else check_int("threads", threads)
        self._made_with = {"threads": threads}  # a copy is too
        self._tape, self._changes = (
            Tape(self),
            0,
        )  # its own; how often parameters changed
        self._dtype, self._x_shape = (
            self._params.dtype,
            ("T", "B", self._params.input_size),
        )
        self._lock, self._forked = threading.RLock(), False
        # Are parameters being written, so that a fork now would tear them; are these
        # torn?
        self._writing = self._torn = False
        _networks.add(self)

    def __reduce__(self):
        return partial(type(self), **self._made_with), (self.params(),)

    def __repr__(self) -> str:
        threads = self._threads if self.parallel else 1
        used = f", {counted(threads, 'thread')}" if threads else ""
        return f"{self.name}: {self._params.form}{used}"

    def forward(
        self,
        x: np.ndarray,
        state: State | None = None,
        training: bool = False,
        *,
        tape: Tape | None = None,
    ) -> tuple[np.ndarray, State]:
        """Outputs and final state.

        x: (T, B, D), of the parameters' dtype. state: tuple (h, c), or (h,) for rnn and
        gru, each (L, B, H); None is zero. training=True keeps what `backward` needs; x
        must not change until then. tape: where, one of `new_tape`; None is the
        network's own. Returns y (T, B, H) and the final state, both the caller's own.
        Raises TypeError or ValueError for a wrong type, rank, shape, dtype, an empty
        axis, NaN or infinity.
        """
        x = self._check("x", x, self._x_shape)
        state = self._check_state("state", state, x.shape[1])
        room = () if tape is None else (self._own(tape, training).rooms,)
        tape = tape or self._tape
        with self._held("forward"), self._guard():
            tape.clear("the last forward was not finished")
            y, state, kept = self._forward(x, state, training, *room)
            if training:
                tape.passed = TrainingPass(
                    x.shape, threading.get_ident(), kept, self._changes
                )
            else:
                tape.missing = "the last forward was without training=True"
            return y, state

    def new_tape(self) -> Tape:
        """A Tape for `forward` and `backward` of this network: passes on different
        tapes can be under way at the same time, until the parameters change. It is used
        again and again: its arrays are kept. Raises UnavailableError where a version
        has but its own.
        """
        if not self.tapes:
            raise UnavailableError(f"new_tape: {self.name} keeps one tape, its own")
        return Tape(self)

    def new_sums(self) -> GradientSums:
        """GradientSums for `backward`: used again after the last pass, they begin
        anew.
        """
        return GradientSums(self)

    def backward(
        self,
        dy: np.ndarray,
        dstate: State | None = None,
        *,
        tape: Tape | None = None,
        inputs: bool = True,
        sums: GradientSums | None = None,
        more: bool = False,
    ) -> Grads:
        """Gradients after `forward(x, training=True)`.

        dy: (T, B, H), gradient of y. dstate: that of the final state, as `state`; None
        is zero. tape: that of the forward pass, as there. inputs: False leaves out the
        gradient of x, None. sums: of `new_sums`; the gradients of the parameters are
        added to those of passes before, and returned with the last one: with more=True
        there are none of them yet, no layers. Returns Grads; V and b_out, which y does
        not use, get zero. Raises RuntimeError when no such forward came before,
        TypeError or ValueError for bad input.
        """
        tape = self._tape if tape is None else self._own(tape, True)
        with self._held("backward"), self._guard():
            passed, why = tape.passed, tape.missing
            if passed is not None and passed.changes != self._changes:
                passed, why = None, "the parameters changed since"
            if passed is None:
                got = f"nothing to go back through ({why})"
                raise RuntimeError(
                    f"backward: got {got}, want forward(x, training=True) before"
                )
            if passed.thread != threading.get_ident():
                want = "forward(x, training=True) in this one"
                raise RuntimeError(
                    f"backward: got the tape of another Python thread, want {want}"
                )
            dy = self._check("dy", dy, (*passed.shape[:2], self._params.hidden_size))
            dstate = self._check_state("dstate", dstate, passed.shape[1])
            if sums is None:
                grads = self._backward(passed.kept, dy, dstate, inputs)
            else:
                self._check_sums(sums)
                sums.torn = True  # unless the pass ends
                grads = self._backward_summed(
                    sums, more, passed.kept, dy, dstate, inputs
                )
                sums.begun, sums.torn = more, False
            return grads if inputs else replace(grads, x=None)

    def loss_and_grads(self, x: np.ndarray, target: np.ndarray) -> tuple[float, Grads]:
        """Mean squared error of y[-1] V + b_out against target (B, O), a float, and its
        Grads.
        """
        x, target = self._check_example(x, target)
        with self._held("loss_and_grads"), self._guard():
            self._tape.clear("loss_and_grads came after it")
            return self._loss_and_grads(x, target)

    def step(self, x: np.ndarray, target: np.ndarray, learning_rate: float) -> float:
        """One mini-batch gradient-descent step where the parameters live; the loss
        before it.
        """
        rate = check_rate("learning_rate", learning_rate, self._dtype)
        x, target = self._check_example(x, target)
        with self._held("step"), self._guard():
            self._change("step changed the parameters")
            return self._step(x, target, rate)

    def epoch(
        self, dataset: Dataset, order: ArrayLike, batch_size: int, learning_rate: float
    ) -> list[float]:
        """A step for each mini-batch of `order`, the last one smaller if need be.

        dataset: lstm_kernels.Dataset. order: indices of examples (N,). Returns the
        losses, a list, each before its step; it ends early at one that is not finite.
        Raises TypeError or ValueError for an index that is no example, and as `step`
        does.
        """
        rate = check_rate("learning_rate", learning_rate, self._dtype)
        chosen, batch_size = self._check_order(dataset, order, batch_size)
        self._check_readout()
        with self._held("epoch"), self._guard():
            self._change("epoch changed the parameters")
            return self._epoch(dataset, chosen, batch_size, rate) if len(chosen) else []

    def predict(self, x: np.ndarray) -> np.ndarray:
        """The read-out of the last step, y[-1] V + b_out, (B, O)."""
        self._check_readout()
        x = self._check("x", x, self._x_shape)
        with self._held("predict"), self._guard():
            self._tape.clear("predict came after it")
            y, _, _ = self._forward(x, None, False)
            now = self._now()
            return y[-1] @ now.V + now.b_out

    def params(self) -> Params:
        """A copy of the parameters as they are now, on the host."""
        with self._held("params"):
            return self._now().copy()

    def assign(self, params: Params) -> None:
        """Take over other values for the parameters, of the same cell, shapes and
        dtype.
        """
        new = self.parameters.check(params).copy()
        if new.form != self._params.form:
            raise ValueError(f"params: got {new.form}, want {self._params.form}")
        self.adopt(new)

    def adopt(self, params: Params) -> None:
        """The same without a check or a copy: of arrays that fit, and that stay as they
        are.
        """
        with self._held("assign", whole=False):
            self._change("assign changed the parameters")
            self._replace(params)
            self._torn = False

    def _held(self, call, whole=True):
        """The lock of this network, for a `with`: between C's acquire and release there
        is no moment at which an interrupt could lose it. whole: want parameters that
        are whole.
        """
        if self._lock._is_owned():
            got = "a network in the middle of a call of this thread"
            want = "a call after it: not in a signal handler or a finaliser"
            raise RuntimeError(f"{call}: got {got}, want {want}")
        if self._forked:
            self._renew()
        if self._torn and whole:
            got = "parameters of a process forked while another thread changed them"
            raise RuntimeError(f"{call}: got {got}, want assign first")
        return self._lock

    def _renew(self):
        """Make the network this process's own: it was forked while a call may have
        run.
        """
        with self._lock:
            if self._forked:
                self._change("it is of the process this one was forked from")
                self._forget()
                self._torn, self._writing = self._torn or self._writing, False
                self._forked = False

    def _change(self, why):
        """The parameters are about to change: no tape is of use any more."""
        self._tape.clear(why)
        self._changes += 1

    def _check_sums(self, sums):
        if not isinstance(sums, GradientSums):
            raise TypeError(
                f"sums: got {type(sums).__name__}, want those of new_sums()"
            )
        if sums.of() is not self:
            raise ValueError(
                "sums: got those of another network, want this one's new_sums()"
            )
        if sums.torn:
            got = "sums of which a pass was not finished"
            raise RuntimeError(
                f"sums: got {got}, want sums.begin(), and all passes again"
            )

    def _own(self, tape, training):
        """A tape of `new_tape`, if it is of this network, for a training pass."""
        if not isinstance(tape, Tape):
            raise TypeError(f"tape: got {type(tape).__name__}, want one of new_tape()")
        if tape.of() is not self:
            raise ValueError(
                "tape: got one of another network, want one of this one's new_tape()"
            )
        if not training:
            raise ValueError("tape: got one without training=True, want None")
        return tape

    # Hooks.

    def _forget(self):
        """Drop what another thread may have been writing when the process was
        forked.
        """

    def _guard(self):
        """The context of every computation: BLAS on one thread, so threads cannot
        change bits.
        """
        return SingleThreaded()

    def _now(self):
        """The parameters, of which a caller takes a copy."""
        return self._params

    def _replace(self, params):
        self._params = params

    def _forward(self, x, state, training, rooms=None):
        """y, the final state and what `_backward` needs. rooms: of another tape than
        its own.
        """
        layer = self.layer_forward
        y, state, tapes = reference.forward(self._params, x, state, layer_forward=layer)
        return (y.copy(), state, tapes) if training else (y, state, None)

    def _backward(self, kept, dy, dstate, inputs):
        """Grads; without `inputs` x may be anything."""
        layer = self.layer_backward
        return reference.backward(self._params, kept, dy, dstate, layer_backward=layer)

    def _backward_summed(self, sums, more, *pass_):
        """Grads of the passes so far, without layers if there are more; `_backward`'s
        arguments.
        """
        grads = self._backward(*pass_)
        total = Weights.arrays(grads)
        for name, gradient in total.items() if sums.begun else ():
            gradient += sums.room[name]
        sums.room = total
        return replace(grads, layers=[], V=None, b_out=None) if more else grads

    def _loss_and_grads(self, x, target):
        how = {
            "layer_forward": self.layer_forward,
            "layer_backward": self.layer_backward,
        }
        return reference.loss_and_grads(self._params, x, target, **how)

    def _descent(self, x, target):
        """The loss and the gradients of the parameters by name, all that `_step`
        needs.
        """
        loss, grads = self._loss_and_grads(x, target)
        return loss, grads.arrays()

    def _step(self, x, target, rate):
        loss, gradients = self._descent(x, target)
        for name, value in self._params.arrays().items():
            gradients[name] *= -value.dtype.type(rate)
            gradients[name] += value
        # All at once: an interrupt meets the old parameters or the new ones.
        self._params = self.parameters.from_arrays(gradients, self._cell.name)
        return loss

    def _epoch(self, dataset, order, batch_size, rate):
        self._check_example(dataset.x, dataset.target)
        return dataset.each_batch(order, batch_size, partial(self._step, rate=rate))

    # Checks.

    def _check(self, name, value, shape):
        return check_array(name, value, shape, dtype=self._dtype)

    def _check_state(self, name, state, B):
        if state is None:
            return None
        names = self._cell.state
        if not isinstance(state, tuple) or len(state) != len(names):
            want = f"a tuple ({', '.join(names)}) of arrays (L, B, H)"
            got = (
                f"a tuple of {len(state)}"
                if isinstance(state, tuple)
                else type(state).__name__
            )
            raise TypeError(f"{name}: got {got}, want {want}")
        parts = dict(zip(names, state, strict=True))
        shape = (self._params.num_layers, B, self._params.hidden_size)
        return tuple(
            self._check(f"{name}.{part}", a, shape) for part, a in parts.items()
        )

    def _check_example(self, x, target):
        self._check_readout()
        x = self._check("x", x, self._x_shape)
        return x, self._check("target", target, (x.shape[1], self._params.output_size))

    @staticmethod
    def _check_order(dataset, order, batch_size):
        if not hasattr(dataset, "batch"):
            raise TypeError(
                f"dataset: got {type(dataset).__name__}, want lstm_kernels.Dataset"
            )
        if not getattr(dataset, "mixes", True):
            got = f"{type(dataset).__name__}, whose mini-batches are of one length each"
            raise TypeError(
                f"dataset: got {got}, want one whose examples are all as long"
            )
        order = np.asarray(order)
        if order.ndim != 1 or not np.issubdtype(order.dtype, np.integer):
            got = f"shape {order.shape} of {order.dtype}"
            raise TypeError(f"order: got {got}, want indices (N,), integers")
        if order.size and not 0 <= order.min() <= order.max() < len(dataset):
            got = f"indices {order.min()} to {order.max()}"
            raise ValueError(f"order: got {got}, want 0 to {len(dataset) - 1}")
        return np.ascontiguousarray(order, np.int64), check_int(
            "batch_size", batch_size
        )

    def _check_readout(self):
        if self._params.V is None:
            want = "V and b_out (output_size of Params.init)"
            raise ValueError(f"params: got no read-out, want {want}")
