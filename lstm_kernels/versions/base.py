"""What every version shares: checked input, the stack, the read-out and the loss, one descent step.

A rung gives `layer_forward` and `layer_backward` with the signatures of the reference and inherits
the rest; a rung that schedules the layers itself replaces `_forward` and `_backward`.
"""

from functools import partial

import numpy as np

from .. import reference
from ..cells import CELLS
from ..errors import check_array, check_int, check_rate
from ..params import Params
from .blas import single_threaded


class Network:
    """A recurrent network of one version, with its own copy of the parameters.

    params: lstm_kernels.Params, copied. threads: how many to use; None is `cores.cores()`.
    """

    layer_forward = staticmethod(reference.layer_forward)
    layer_backward = staticmethod(reference.layer_backward)

    def __init__(self, params, threads=None):
        self._params = Params.check(params).copy()
        self._cell = CELLS[params.cell]
        self._threads = None if threads is None else check_int("threads", threads)
        self._tapes = None
        self._dtype, self._x_shape = self._params.dtype, ("T", "B", self._params.input_size)

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
        self._tapes = None  # a pass that is interrupted leaves none
        with self._limit():
            y, state, self._tapes = self._forward(x, state, training)
        return y, state

    def backward(self, dy, dstate=None):
        """Gradients after `forward(x, training=True)`.

        dy: (T, B, H), gradient of y. dstate: that of the final state, as `state`; None is zero.
        Returns Grads: the fields of Params, and `.x`, `.state`. V and b_out get zero: y does not
        use them.
        Raises RuntimeError when no such forward came before, TypeError or ValueError for bad input.
        """
        if self._tapes is None:
            raise RuntimeError(
                "backward: nothing to go back through, want forward(x, training=True) before"
            )
        T, B = self._tapes[0].x.shape[:2]
        dy = self._check("dy", dy, (T, B, self._params.hidden_size))
        dstate = self._check_state("dstate", dstate, B)
        with self._limit():
            return self._backward(dy, dstate)

    def loss_and_grads(self, x, target):
        """Mean squared error of y[-1] V + b_out against target (B, O), a float, and its Grads."""
        x, target = self._check_example(x, target)
        self._tapes = None  # a version may use their storage
        with self._limit():
            return self._loss_and_grads(x, target)

    def step(self, x, target, learning_rate):
        """One mini-batch gradient-descent step where the parameters live; the loss before it."""
        learning_rate = check_rate("learning_rate", learning_rate)
        x, target = self._check_example(x, target)
        with self._limit():
            loss, gradients = self._descent(x, target)
        for name, value in self._params.arrays().items():
            value -= value.dtype.type(learning_rate) * gradients[name]
        self._tapes = None  # it belongs to the parameters of before
        return loss

    def epoch(self, dataset, order, batch_size, learning_rate):
        """A step for each mini-batch of `order`, the last one smaller if need be.

        dataset: lstm_kernels.Dataset. order: indices of examples (N,). Returns the losses, a list,
        each before its step; it ends early at one that is not finite.
        Raises TypeError or ValueError for an index that is no example, and as `step` does.
        """
        order, batch_size = self._check_order(dataset, order, batch_size)
        step = partial(self.step, learning_rate=learning_rate)
        return dataset.each_batch(order, batch_size, step)

    def predict(self, x):
        """The read-out of the last step, y[-1] V + b_out, (B, O)."""
        self._check_readout()
        y, _ = self.forward(x)
        with self._limit():
            return y[-1] @ self._params.V + self._params.b_out

    def params(self):
        """A copy of the parameters as they are now, on the host."""
        return self._params.copy()

    def assign(self, params):
        """Take over other values for the parameters, of the same cell, shapes and dtype."""
        mine, other = self._params.arrays(), Params.check(params).arrays()
        form = {name: (a.shape, a.dtype) for name, a in mine.items()}
        if params.cell != self._params.cell or form != {
            n: (a.shape, a.dtype) for n, a in other.items()
        }:
            raise ValueError(
                "params: got another cell, shape or dtype, want those the network was made with"
            )
        for name, value in mine.items():
            value[...] = other[name]
        self._tapes = None

    def _forward(self, x, state, training):
        y, state, tapes = reference.forward(
            self._params, x, state, layer_forward=self.layer_forward
        )
        return (y.copy(), state, tapes) if training else (y, state, None)

    def _backward(self, dy, dstate):
        return reference.backward(
            self._params, self._tapes, dy, dstate, layer_backward=self.layer_backward
        )

    def _loss_and_grads(self, x, target):
        return reference.loss_and_grads(
            self._params,
            x,
            target,
            layer_forward=self.layer_forward,
            layer_backward=self.layer_backward,
        )

    def _descent(self, x, target):
        """The loss and the gradients of the parameters by name, all that `step` needs."""
        loss, grads = self._loss_and_grads(x, target)
        return loss, grads.arrays()

    def _limit(self):
        """The context of every computation: BLAS on one thread, so threads cannot change bits."""
        return single_threaded

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
