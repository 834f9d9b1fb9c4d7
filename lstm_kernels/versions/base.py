"""What every version shares: checked input, the stack, the read-out and the loss, one descent step,
and the rule for a network in use.

A rung gives `layer_forward` and `layer_backward` with the signatures of the reference and inherits
the rest; a rung that schedules the layers itself replaces `_forward` and `_backward`.
"""

import os
import threading
from functools import partial

import numpy as np

from .. import reference
from ..blas import SingleThreaded
from ..cells import CELLS
from ..errors import check_array, check_int, check_rate
from ..params import Params

# This process, the thread that it was forked in, and who makes a network its own.
_process, _forked_in, _renewing = object(), None, threading.Lock()


def _after_fork():
    global _process, _forked_in, _renewing
    _process, _forked_in, _renewing = object(), threading.get_ident(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Network:
    """A recurrent network of one version, with its own copy of the parameters.

    params: lstm_kernels.Params, copied. threads: how many to use; None is `cores.cores()`.

    A network computes one call at a time. A call from another thread waits; one from a signal
    handler or a finaliser that would enter a call of its own thread gets a RuntimeError. The tape
    of `forward(x, training=True)` belongs to the thread that made it, until the next call that
    computes. A call that an exception ends, KeyboardInterrupt too, leaves a whole tape or none, and
    the parameters as they were after the last whole step. A forked child has the parameters, but no
    tape; it shares no lock and no thread with its parent. Networks can be copied and pickled: the
    parameters go along, the tape does not.
    """

    layer_forward = staticmethod(reference.layer_forward)
    layer_backward = staticmethod(reference.layer_backward)

    def __init__(self, params, threads=None):
        self._params = Params.check(params).copy()
        self._cell = CELLS[params.cell]
        self._threads = None if threads is None else check_int("threads", threads)
        self._made_with = {"threads": threads}  # a copy is too
        self._tape = "there was none"  # its x.shape, thread and what `_forward` kept, or why not
        self._dtype, self._x_shape = self._params.dtype, ("T", "B", self._params.input_size)
        self._lock, self._process = threading.RLock(), _process
        # Are parameters being written, so that a fork now would tear them; are these torn?
        self._writing = self._torn = False

    def __reduce__(self):
        return partial(type(self), **self._made_with), (self.params(),)

    def forward(self, x, state=None, training=False):
        """Outputs and final state.

        x: (T, B, D), of the parameters' dtype. state: tuple (h, c), or (h,) for rnn and gru, each
        (L, B, H); None is zero. training=True keeps what `backward` needs; x must not change until
        then.
        Returns y (T, B, H) and the final state, both the caller's own. A non-contiguous input is
        copied.
        Raises TypeError or ValueError for a wrong type, rank, shape, dtype, an empty axis, NaN or
        infinity.
        """
        x = self._check("x", x, self._x_shape)
        state = self._check_state("state", state, x.shape[1])
        with self._held("forward"), self._guard():
            self._tape = "the last forward was not finished"
            y, state, kept = self._forward(x, state, training)
            if training:
                self._tape = x.shape, threading.get_ident(), kept
            else:
                self._tape = "the last forward was without training=True"
            return y, state

    def backward(self, dy, dstate=None):
        """Gradients after `forward(x, training=True)`.

        dy: (T, B, H), gradient of y. dstate: that of the final state, as `state`; None is zero.
        Returns Grads: the fields of Params, and `.x`, `.state`. V and b_out get zero: y does not
        use them.
        Raises RuntimeError when no such forward came before, TypeError or ValueError for bad input.
        """
        with self._held("backward"), self._guard():
            if isinstance(self._tape, str):
                raise RuntimeError(
                    f"backward: nothing to go back through ({self._tape}), want "
                    "forward(x, training=True) before"
                )
            (T, B, _), thread, kept = self._tape
            if thread != threading.get_ident():
                raise RuntimeError(
                    "backward: the last forward(x, training=True) ran in another Python thread, "
                    "want it in this one: a network keeps one tape"
                )
            dy = self._check("dy", dy, (T, B, self._params.hidden_size))
            dstate = self._check_state("dstate", dstate, B)
            return self._backward(kept, dy, dstate)

    def loss_and_grads(self, x, target):
        """Mean squared error of y[-1] V + b_out against target (B, O), a float, and its Grads."""
        x, target = self._check_example(x, target)
        with self._held("loss_and_grads"), self._guard():
            self._tape = "loss_and_grads came after it"
            return self._loss_and_grads(x, target)

    def step(self, x, target, learning_rate):
        """One mini-batch gradient-descent step where the parameters live; the loss before it."""
        rate = check_rate("learning_rate", learning_rate, self._dtype)
        x, target = self._check_example(x, target)
        with self._held("step"), self._guard():
            self._tape = "step changed the parameters"
            return self._step(x, target, rate)

    def epoch(self, dataset, order, batch_size, learning_rate):
        """A step for each mini-batch of `order`, the last one smaller if need be.

        dataset: lstm_kernels.Dataset. order: indices of examples (N,). Returns the losses, a list,
        each before its step; it ends early at one that is not finite.
        Raises TypeError or ValueError for an index that is no example, and as `step` does.
        """
        rate = check_rate("learning_rate", learning_rate, self._dtype)
        order, batch_size = self._check_order(dataset, order, batch_size)
        self._check_readout()
        with self._held("epoch"), self._guard():
            self._tape = "epoch changed the parameters"
            return self._epoch(dataset, order, batch_size, rate) if len(order) else []

    def predict(self, x):
        """The read-out of the last step, y[-1] V + b_out, (B, O)."""
        self._check_readout()
        x = self._check("x", x, self._x_shape)
        with self._held("predict"), self._guard():
            self._tape = "predict came after it"
            y, _, _ = self._forward(x, None, False)
            now = self._now()
            return y[-1] @ now.V + now.b_out

    def params(self):
        """A copy of the parameters as they are now, on the host."""
        with self._held("params"):
            return self._now().copy()

    def assign(self, params):
        """Take over other values for the parameters, of the same cell, shapes and dtype."""
        new, mine = Params.check(params).copy(), self._params.arrays()
        form = {name: (a.shape, a.dtype) for name, a in mine.items()}
        if new.cell != self._params.cell or form != {
            n: (a.shape, a.dtype) for n, a in new.arrays().items()
        }:
            raise ValueError(
                "params: got another cell, shape or dtype, want those the network was made with"
            )
        with self._held("assign", whole=False):
            self._tape = "assign changed the parameters"
            self._replace(new)
            self._torn = False

    def _held(self, call, whole=True):
        """The lock of this network, for a `with`: between C's acquire and release there is no
        moment at which an interrupt could lose it. whole: want parameters that are whole.
        """
        # A new thread of a child may have the number of one of its parent that held the lock.
        if self._lock._is_owned() and (
            self._process is _process or _forked_in == threading.get_ident()
        ):
            raise RuntimeError(
                f"{call}: this network is in the middle of a call of this thread, want {call} "
                "after it: not in a signal handler or a finaliser"
            )
        if self._process is not _process:
            self._renew()
        if self._torn and whole:
            raise RuntimeError(
                f"{call}: the process was forked while another thread changed the parameters, "
                "want assign first"
            )
        return self._lock

    def _renew(self):
        """Make the network this process's own: it was forked, maybe in the middle of a call."""
        with _renewing:
            if self._process is not _process:
                self._tape = "it belongs to the process that this one was forked from"
                self._forget()
                self._torn, self._writing = self._torn or self._writing, False
                self._lock, self._process = threading.RLock(), _process

    def _forget(self):
        """Drop what another thread may have been writing when the process was forked."""

    def _forward(self, x, state, training):
        """y, the final state and what `_backward` needs."""
        y, state, tapes = reference.forward(
            self._params, x, state, layer_forward=self.layer_forward
        )
        return (y.copy(), state, tapes) if training else (y, state, None)

    def _backward(self, kept, dy, dstate):
        return reference.backward(
            self._params, kept, dy, dstate, layer_backward=self.layer_backward
        )

    def _loss_and_grads(self, x, target):
        return reference.loss_and_grads(
            self._params,
            x,
            target,
            layer_forward=self.layer_forward,
            layer_backward=self.layer_backward,
        )

    def _step(self, x, target, rate):
        loss, gradients = self._descent(x, target)
        named = self._params.arrays()
        for name, value in named.items():
            new = gradients[name]
            new *= -new.dtype.type(rate)
            new += value
        new = Params.from_arrays({name: gradients[name] for name in named}, self._cell.name)
        self._params = new  # all at once: an interrupt finds the old ones or the new ones
        return loss

    def _epoch(self, dataset, order, batch_size, rate):
        self._check_example(dataset.x, dataset.target)
        return dataset.each_batch(order, batch_size, partial(self._step, rate=rate))

    def _descent(self, x, target):
        """The loss and the gradients of the parameters by name, all that `_step` needs."""
        loss, grads = self._loss_and_grads(x, target)
        return loss, grads.arrays()

    def _now(self):
        """The parameters as they are now."""
        return self._params

    def _replace(self, params):
        """Take over parameters, which are the network's from now on."""
        self._params = params

    def _guard(self):
        """The context of every computation: BLAS on one thread, so threads cannot change bits."""
        return SingleThreaded()

    def _check(self, name, value, shape):
        return check_array(name, value, shape, dtype=self._dtype)

    def _check_state(self, name, state, B):
        if state is None:
            return None
        names = self._cell.state
        if not isinstance(state, tuple) or len(state) != len(names):
            got = f"a tuple of {len(state)}" if isinstance(state, tuple) else type(state).__name__
            raise TypeError(
                f"{name}: got {got}, want a tuple ({', '.join(names)}) of arrays (L, B, H)"
            )
        shape = (self._params.num_layers, B, self._params.hidden_size)
        return tuple(
            self._check(f"{name}.{n}", a, shape) for n, a in zip(names, state, strict=True)
        )

    def _check_example(self, x, target):
        self._check_readout()
        x = self._check("x", x, self._x_shape)
        return x, self._check("target", target, (x.shape[1], self._params.output_size))

    @staticmethod
    def _check_order(dataset, order, batch_size):
        if not hasattr(dataset, "batch"):
            raise TypeError(f"dataset: got {type(dataset).__name__}, want lstm_kernels.Dataset")
        order = np.asarray(order)
        if order.ndim != 1 or not np.issubdtype(order.dtype, np.integer):
            raise TypeError(
                f"order: got shape {order.shape} of {order.dtype}, want indices (N,), integers"
            )
        if order.size and not 0 <= order.min() <= order.max() < len(dataset):
            raise ValueError(
                f"order: got indices {order.min()} to {order.max()}, want 0 to {len(dataset) - 1}"
            )
        return np.ascontiguousarray(order, np.int64), check_int("batch_size", batch_size)

    def _check_readout(self):
        if self._params.V is None:
            raise ValueError(
                "params: got no read-out, want V and b_out (output_size of Params.init)"
            )
