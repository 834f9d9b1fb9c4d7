"""What every version shares: checks, output layer, loss, descent, and the rule for a
network in use.
"""

import threading
from collections.abc import Callable
from functools import partial, partialmethod
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from .. import forks, reference
from ..blas import single_threaded
from ..cells import CELLS
from ..cores import cores
from ..data import Dataset, check_order
from ..errors import (
    UnavailableError,
    check_array,
    check_int,
    check_rate,
    check_type,
    counted,
)
from ..params import Grads, Params

State = tuple[np.ndarray, ...]
_ALONE: Any = type("Alone", (), {"__repr__": lambda _: "<no state>"})()  # none wanted


class Tape:
    """A forward pass that gradients can go back through (`Network.record`).

    y: (T, B, H); state: the final one, as `Network.forward` returns them. A tape
    belongs to the thread that recorded it, and to the parameters its network had then.
    Its memory goes back to the network when the tape ends.
    """

    def __init__(self, network, x, state):
        self._network, self._inputs = network, (x, state)
        self._thread = threading.current_thread()
        self._unusable: str | None = "its pass was not finished"
        self._number = network._next_pass()
        self.y, self.state, self._arrays = network._forward(x, state, True)
        self._parameters, self._unusable = network._parameters, None

    def __reduce__(self):
        raise TypeError("tape: got a copy or a pickle, want record(x) of that network")

    def backward(self, dy: np.ndarray, dstate: State | None = None) -> Grads:
        """Gradients of this pass. dy: (T, B, H), gradient of y. dstate: that of the
        final state, as `state`; None is zero. Returns Grads; V and b_out, which y does
        not use, get zero. May be called again. Raises RuntimeError for a tape of
        another thread, or of parameters that have changed, TypeError or ValueError for
        bad input.
        """
        network = self._network
        with network._held("backward"), network._guard():
            return network._go_back(self, dy, dstate)


def _unpickled(kind, made_with, params):
    """A network as it was pickled, where the machine may be another: it takes fewer
    threads than it was made with where there are fewer, which changes no bit. Raises
    UnavailableError where its version cannot run.
    """
    if why := kind.why_unavailable():
        raise UnavailableError(f"a pickled {kind.name!r} cannot run here: {why}")
    threads = made_with["threads"]
    if threads is not None:
        threads = min(threads, cores(), kind.most_threads() or threads)
    net = kind(params, **made_with | {"threads": threads})
    net._made_with = made_with  # pickled again, it is as it was
    return net


class Network:
    """A recurrent network of one version, with its own copy of the parameters.

    params: lstm_kernels.Params, copied. threads: how many to use; None is
    `cores.cores()`.

    A network computes one call at a time. A call from another thread waits; one from a
    signal handler or a finaliser that would enter a call of its own thread gets a
    RuntimeError. A Tape (`record`) belongs to the thread that made it, and ends where
    the parameters change; several live at once. `backward` is that of the tape of
    `forward(x, training=True)`, until the next call that computes; after two of them it
    cannot know which is meant, and is a RuntimeError. A call that an exception ends,
    KeyboardInterrupt too, leaves whole tapes or none, and the parameters as they were
    after the last whole step. A network belongs to the process that made it: in a
    forked child every call of it is a RuntimeError that says so. Networks can be copied
    and pickled: the parameters go along, tapes do not. Where a pickle is loaded, a
    network takes at most `cores.cores()` threads.

    A version is a subclass that replaces hooks: `layer_forward`, `layer_backward`, and
    the methods under "Hooks". Their arguments are checked already.
    """

    name = "network"  # of the version
    parallel = True  # whether it uses `threads`; else one
    keeps_passes = True  # has each tape arrays of its own? else the last pass has them
    layer_forward: Callable[..., Any] = staticmethod(reference.layer_forward)
    layer_backward: Callable[..., Any] = staticmethod(reference.layer_backward)

    def __init__(self, params: Params, threads: int | None = None):
        self._params = Params.check(params).copy()
        self._cell = CELLS[params.cell]
        self._threads = None if threads is None else check_int("threads", threads)
        most = self.most_threads()
        if self._threads and most and self._threads > most:
            want = f"at most {most}, which NUMBA_NUM_THREADS allows"
            raise ValueError(f"threads: got {threads}, want {want}")
        self._made_with: dict[str, Any] = {"threads": threads}  # a copy is too
        self._tape: Tape | str = (
            "there was none"  # of `backward`; else why there is none
        )
        self._pending = 0  # so many of them were recorded since the last backward
        self._parameters = object()  # of which values a tape is
        self._changed = ""  # what changed them
        self._passes = 0  # how many there were
        self._dtype = self._params.dtype
        self._x_shape = ("T", "B", self._params.input_size)
        self._lock, self._process = threading.RLock(), forks.process

    @staticmethod
    def why_unavailable() -> str | None:
        """None where it can run in this process, else the reason."""
        return None

    @staticmethod
    def most_threads() -> int | None:
        """How many a network can have in this process; None for any number."""
        return None

    def __reduce__(self):
        return _unpickled, (type(self), self._made_with, self.params())

    def __deepcopy__(self, memo):  # in the same process: of all that it has
        return type(self)(self.params(), **self._made_with)

    __copy__ = partialmethod(__deepcopy__, None)

    def __repr__(self) -> str:
        threads = self._threads if self.parallel else 1
        used = f", {counted(threads, 'thread')}" if threads else ""
        return f"{self.name}: {self._params.form}{used}"

    def __setattr__(self, name, value):
        if name == "params":  # a method, which all that saves and copies calls
            raise AttributeError("params: got a value, want net.assign(params)")
        super().__setattr__(name, value)

    def forward(
        self,
        x: np.ndarray,
        state: State | None = None,
        training: bool = False,
    ) -> tuple[np.ndarray, State]:
        """Outputs and final state of x (T, B, D), time first.

        x: of the parameters' dtype. Batch first is not noticed where the sizes fit: a
        (B, T, 1) is taken as B steps of T samples. state: tuple (h, c), or (h,) for rnn
        and gru, each (L, B, H); None is zero. training=True keeps what `backward`
        needs; x must not change until then. Returns y (T, B, H) and the final state,
        both the caller's own. Raises TypeError or ValueError for a wrong type, rank,
        shape, dtype, an empty axis, NaN or infinity.

        Sequences of different `lengths` (B,): pad them at their ends, with any numbers.
        The final state, and what `predict`, `loss_and_grads` and `step` compute, are
        then those after the padding. The last outputs of each sequence, and from their
        gradient `dlast` (B, H) the gradients, are:

        >>> y, _ = net.forward(x, training=True)
        >>> ends = lengths - 1, np.arange(len(lengths))
        >>> last = y[ends]
        >>> dy = np.zeros_like(y)
        >>> dy[ends] = dlast
        >>> grads = net.backward(dy)
        """
        x = self._check("x", x, self._x_shape)
        state = self._check_state("state", state, x.shape[1])
        with self._held("forward"), self._guard():
            self._tape = "the last forward was not finished"
            if training:
                tape = Tape(self, x, state)
                tape._network = None  # nobody else has it; a circle would keep memory
                self._tape, self._pending = tape, self._pending + 1
                return tape.y, tape.state
            self._end_tape("the last forward was not finished")
            y, state, _ = self._forward(x, state, False)
            self._tape = "the last forward was without training=True"
            return y, state

    def record(self, x: np.ndarray, state: State | None = None) -> Tape:
        """The Tape of a forward pass over x (T, B, D) from a state: its y, its final
        state, and `backward`. Several tapes live at once, and go back in any order:

        >>> first, second = net.record(x), net.record(2 * x)
        >>> distance = first.y - second.y  # half its square is the loss
        >>> grads = first.backward(distance), second.backward(-distance)

        Raises as `forward`.
        """
        x = self._check("x", x, self._x_shape)
        state = self._check_state("state", state, x.shape[1])
        with self._held("record"), self._guard():
            return Tape(self, x, state)

    def backward(self, dy: np.ndarray, dstate: State | None = None) -> Grads:
        """`Tape.backward` of the last `forward(x, training=True)`. Raises RuntimeError
        when no such forward came before, or several.
        """
        with self._held("backward"), self._guard():
            got, want = None, "forward(x, training=True) before"
            missing = getattr(self._tape, "_unusable", self._tape)
            if missing:
                got = f"nothing to go back through ({missing})"
            elif self._pending > 1:
                got = f"{self._pending} of them since the last one"
                want = f"one {want}, or a tape of each, net.record(x)"
                self._end_tape("several came before a backward")
            if got:
                raise RuntimeError(f"backward: got {got}, want {want}")
            return self._go_back(self._tape, dy, dstate)

    def _go_back(self, tape, dy, dstate):
        """The gradients of a tape."""
        got, want = tape._unusable and f"a tape, {tape._unusable}", "a whole one"
        if tape._thread is not threading.current_thread():
            got = "the tape of another Python thread"
            want = "forward(x, training=True) in this one"
        elif tape._parameters is not self._parameters:
            got, want = f"a tape from before {self._changed}", "one recorded after it"
        if got:
            raise RuntimeError(f"backward: got {got}, want {want}")
        T, B = tape._inputs[0].shape[:2]
        shape = T, B, self._params.hidden_size
        dy = self._check("dy", dy, shape)
        dstate = self._check_state("dstate", dstate, B)
        tape._unusable = "its backward was not finished"
        if tape is self._tape:
            self._pending = 0
        if not self.keeps_passes and self._passes != tape._number:
            tape._number = self._next_pass()
            *_, tape._arrays = self._forward(*tape._inputs, True)
        grads = self._backward(tape._arrays, dy, dstate, True)
        tape._unusable = None
        return grads

    def loss_and_grads(self, x: np.ndarray, target: np.ndarray) -> tuple[float, Grads]:
        """Mean squared error of y[-1] V + b_out against target (B, O), a float, and its
        Grads. x: (T, B, D), time first.
        """
        x, target = self._check_example(x, target)
        with self._held("loss_and_grads"), self._guard():
            self._end_tape("loss_and_grads came after it")
            return self._loss_and_grads(x, target)

    def step(self, x: np.ndarray, target: np.ndarray, learning_rate: float) -> float:
        """One mini-batch gradient-descent step where the parameters live; the loss
        before it.
        """
        rate = check_rate("learning_rate", learning_rate, self._dtype)
        x, target = self._check_example(x, target)
        with self._held("step"), self._guard():
            self._change("step")
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
        chosen, batch_size = check_order(dataset, order, batch_size)
        x, target = self._check_example(dataset.x, dataset.target)  # contiguous now
        with self._held("epoch"), self._guard():
            self._change("epoch")
            if not len(chosen):
                return []
            return self._epoch(dataset, x, target, chosen, batch_size, rate)

    @overload
    def predict(self, x: np.ndarray) -> np.ndarray: ...

    @overload
    def predict(
        self, x: np.ndarray, state: State | None
    ) -> tuple[np.ndarray, State]: ...

    def predict(self, x, state=_ALONE):
        """The output layer on the last step, y[-1] V + b_out, (B, O), for x (T, B, D),
        time first. With a state, as `forward` takes it, also the final one, from which
        a stream goes on:

        >>> state = None
        >>> for step in x:
        ...     prediction, state = net.predict(step[None], state)

        Raises as `forward`.
        """
        self._check_output()
        x = self._check("x", x, self._x_shape)
        start = None if state is _ALONE else state
        start = self._check_state("state", start, x.shape[1])
        with self._held("predict"), self._guard():
            self._end_tape("predict came after it")
            y, final, _ = self._forward(x, start, False)
            now = self._now()
            with single_threaded(), np.errstate(over="ignore", invalid="ignore"):
                prediction = y[-1] @ now.V + now.b_out
        return prediction if state is _ALONE else (prediction, final)

    def params(self) -> Params:
        """A copy of the parameters as they are now, on the host."""
        with self._held("params"):
            return self._now().copy()

    def assign(self, params: Params) -> None:
        """Take over other values for the parameters, of the same cell, shapes and
        dtype.
        """
        new = Params.check(params).copy()
        if new.form != self._params.form:
            raise ValueError(f"params: got {new.form}, want {self._params.form}")
        with self._held("assign"):
            self._change("assign")
            self._replace(new)

    def _held(self, call):
        """The lock of this network, for a `with`: between C's acquire and release there
        is no moment at which an interrupt could lose it.
        """
        if self._process != forks.process:
            got = f"a network of the process {self._process}, of which this is a fork"
            want = "one made in this process: lstm_kernels.network"
            raise RuntimeError(f"{call}: got {got}, want {want}")
        if self._lock._is_owned():
            got = "a network in the middle of a call of this thread"
            want = "a call after it: not in a signal handler or a finaliser"
            raise RuntimeError(f"{call}: got {got}, want {want}")
        return self._lock

    # Hooks.

    def _change(self, by):
        """The parameters are about to change."""
        self._parameters, self._changed = object(), by
        self._end_tape(f"{by} changed the parameters")

    def _end_tape(self, why):
        """`backward` has no tape any more."""
        self._tape, self._pending = why, 0
        self._next_pass()

    def _next_pass(self):
        """The number of the pass that begins."""
        self._passes += 1
        return self._passes

    def _guard(self):
        """The context of every computation: BLAS on one thread and arithmetic as C
        begins, so threads cannot change bits.
        """
        return single_threaded()

    def _now(self):
        """The parameters, of which a caller takes a copy."""
        return self._params

    def _replace(self, params):
        self._params = params

    def _forward(self, x, state, training):
        """y, the final state and what `_backward` needs."""
        layer = self.layer_forward
        y, state, tapes = reference.forward(self._params, x, state, layer_forward=layer)
        return (y.copy(), state, tapes) if training else (y, state, None)

    def _backward(self, arrays, dy, dstate, inputs):
        """Grads; without `inputs` x may be anything."""
        layer = self.layer_backward
        return reference.backward(
            self._params, arrays, dy, dstate, layer_backward=layer
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
        """The loss and the gradients of the parameters by name, all that `_step`
        needs.
        """
        loss, grads = self._loss_and_grads(x, target)
        return loss, grads.arrays()

    @np.errstate(over="ignore", invalid="ignore")
    def _step(self, x, target, rate):
        loss, gradients = self._descent(x, target)
        with single_threaded():
            for name, value in self._now().arrays().items():
                gradients[name] *= -value.dtype.type(rate)
                gradients[name] += value
        # All at once: an interrupt meets the old parameters or the new ones.
        self._replace(Params.from_arrays(gradients, self._cell.name))
        return loss

    def _epoch(self, dataset, x, target, order, batch_size, rate):
        return dataset.each_batch(order, batch_size, partial(self._step, rate=rate))

    # Checks.

    def checked_input(self, call, x):
        """x as `forward` takes it, for another entrance `call`, and raises as that."""
        with self._held(call):
            return self._check("x", x, self._x_shape)

    def _check(self, name, value, shape):
        return check_array(name, value, shape, dtype=self._dtype)

    def _check_state(self, name, state, B):
        if state is None:
            return None
        names = self._cell.state
        if not isinstance(state, tuple) or len(state) != len(names):
            want = f"a tuple ({', '.join(names)}) of arrays (L, B, H)"
            got = type(state).__name__
            got = f"a tuple of {len(state)}" if isinstance(state, tuple) else got
            raise TypeError(f"{name}: got {got}, want {want}")
        parts = dict(zip(names, state, strict=True))
        shape = (self._params.num_layers, B, self._params.hidden_size)
        return tuple(
            self._check(f"{name}.{part}", a, shape) for part, a in parts.items()
        )

    def _check_example(self, x, target):
        self._check_output()
        x = self._check("x", x, self._x_shape)
        return x, self._check("target", target, (x.shape[1], self._params.output_size))

    def _check_output(self):
        if self._params.V is None:
            want = "V and b_out (output_size of Params.init)"
            raise ValueError(f"params: got no output layer, want {want}")


class Compiled(Network):
    """A version whose passes are compiled for a CPU.

    subnormals: True keeps subnormal numbers, those below the dtype's normal range
    (1.2e-38 in float32), as NumPy does; False flushes them to zero in every thread of a
    pass (FTZ and DAZ of x86, FPCR.FZ of ARM). Gradients fade to such numbers over
    hundreds of steps, and Intel's cores take many times as long for them. Bits do not
    depend on the number of threads, and the caller's floating-point mode stays.
    """

    def __init__(self, params, threads=None, *, subnormals=False):
        super().__init__(params, threads)
        self.subnormals = check_type("subnormals", subnormals, bool, "True or False")
        self._made_with["subnormals"] = subnormals
