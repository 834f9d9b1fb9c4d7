"""Networks in use: any sequence of public calls, with arrays of every kind, beside a
model.

The model of a network is its parameters, the pass that `backward` may go back through,
and its tapes. What a call returns has the bits of a new network that makes this one
call on one thread with plain arrays, and is within the tolerance of the reference in
float64. It keeps its values for ever. What was given keeps them too, and may be
overwritten afterwards. A refused call changes nothing. A call that an interrupt ends
leaves old parameters or new ones, and a network that goes on as a new one.
"""

import copy
import linecache
import pickle
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numba
import numpy as np
import pytest
import scipy.linalg  # noqa: F401 - its BLAS too is counted from here on
from conftest import HOSTILE, IN_USE
from hypothesis import settings, stateful
from hypothesis import strategies as st
from threadpoolctl import threadpool_info
from toys import random_schedule

import lstm_kernels as lk
from lstm_kernels import reference
from lstm_kernels.cells import CELLS
from lstm_report.measure.comparer import TOLERANCE, compare

CALLS = ["forward", "backward", "predict", "loss_and_grads", "step", "epoch", "assign"]
TEAM = [v for v in IN_USE if v in ("numba-wavefront", "numba-fused")]
RATE = 1e-3
# The same numbers in another array.
KINDS = {
    "plain": np.copy,
    "Fortran": lambda a: a.copy(order="F"),
    "strided": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "reversed": lambda a: np.flip(np.flip(a).copy()),
    "read-only": lambda a: np.broadcast_to(a.copy(), a.shape),
    "misaligned": lambda a: np.ndarray(a.shape, a.dtype, bytearray(1) + a.tobytes(), 1),
    "memmap": lambda a: a.copy().view(np.memmap),
}
# What no call takes in place of an array of floats.
BAD = {
    "list": np.ndarray.tolist,
    "other float": lambda a: a.astype({4: np.float64, 8: np.float32}[a.itemsize]),
    "other byte order": lambda a: a.astype(a.dtype.newbyteorder()),
    "integers": lambda a: a.astype(np.int32),
    "NaN": lambda a: np.where(a == a.flat[a.size // 2], a.dtype.type(np.nan), a),
    "infinity": lambda a: np.where(a == a.flat[a.size // 3], a.dtype.type(-np.inf), a),
    "no row": lambda a: a[:0],
    "empty rows": lambda a: a[..., :0],
    "an axis less": lambda a: a[0],
    "an axis more": lambda a: a[None],
    "longer rows": lambda a: np.concatenate([a, a], axis=-1),
}


def each(function, value):
    """`value` with a function of every array in its place."""
    if isinstance(value, lk.Params):
        arrays = {name: function(a) for name, a in value.arrays().items()}
        return lk.Params.from_arrays(arrays, value.cell)
    if isinstance(value, tuple):
        return tuple(each(function, part) for part in value)
    return function(value) if isinstance(value, np.ndarray) else value


def named(value):
    """The arrays and numbers in whatever a call takes or returns, by name."""
    if hasattr(value, "arrays"):
        return value.arrays()
    if isinstance(value, tuple | list):
        parts = ((k, named(part)) for k, part in enumerate(value))
        return {f"{k} {name}": a for k, part in parts for name, a in part.items()}
    return {} if value is None else {"": value}


def blas_threads():
    found = [library for library in threadpool_info() if library["user_api"] == "blas"]
    return [library["num_threads"] for library in found]


PACKAGE = str(Path(lk.__file__).parent)
# Tracing sees a `with` once more when its block ends; `try` is an instruction of its
# own. No signal comes at either.
NO_PLACE = "with ", "try:"


def interrupted(call, n):
    """Where call() got a KeyboardInterrupt: before the n-th line of this package that
    ran; None if there is none.
    """
    left, where, before = n, None, sys.gettrace()

    def enter(frame, event, arg):
        code = frame.f_code
        if code.co_name != "__del__" and code.co_filename.startswith(PACKAGE):
            return at_line
        return None  # Python loses what is raised in a finaliser

    def at_line(frame, event, arg):
        nonlocal left, where
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if event == "line" and where is None and not text.startswith(NO_PLACE):
            left -= 1
            if left < 0:
                where = f"{frame.f_code.co_name}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return at_line

    with suppress(KeyboardInterrupt):
        sys.settrace(enter)
        try:
            call()
        finally:
            sys.settrace(before)
    return where


def joined(value):
    """Results and parameters, each as one array, for single numbers among them: one may
    be a sum that cancels, whose own relative error no tolerance holds.
    """
    parts = [named(part).values() for part in value]
    return {
        str(k): np.concatenate([*map(np.ravel, part)])
        for k, part in enumerate(parts)
        if part
    }


def several(value):
    """The arrays of more than one number, by name."""
    return {name: a for name, a in named(value).items() if np.size(a) > 1}


def same_bits(got, want):
    np.testing.assert_equal(named(got), named(want))


def perform(net, name, given):
    """What a call returns, and the parameters after it."""
    given = (lk.Dataset(*given[:2]), *given[2:]) if name == "epoch" else given
    return getattr(net, name)(*given), net.params()


def truth(params, name, given, tape):
    """The same from the reference in float64."""
    widened = lambda a: a.astype(np.float64) if a.dtype.kind == "f" else a  # noqa: E731
    params, given, tape = each(widened, (params, given, tape))
    if name == "assign":
        return None, *given
    if name == "backward":
        _, _, tapes = reference.forward(params, *tape[:2])
        return reference.backward(params, tapes, *given), params
    if name in ("forward", "predict"):
        y, state, _ = reference.forward(params, *given[:2])
        if name == "forward":
            return (y, state), params
        prediction = y[-1] @ params.V + params.b_out
        return (prediction if len(given) == 1 else (prediction, state)), params
    if name == "loss_and_grads":
        return reference.loss_and_grads(params, *given), params
    if name == "epoch":
        (x, target, order, size, _), losses = given, []
        for batch in (order[k : k + size] for k in range(0, len(order), size)):
            loss, params = truth(params, "step", (x[:, batch], target[batch]), None)
            losses.append(loss)
        return losses, params
    loss, grads = reference.loss_and_grads(params, *given[:2])
    new = {n: a - RATE * grads.arrays()[n] for n, a in params.arrays().items()}
    return loss, lk.Params.from_arrays(new, params.cell)


def drawn(seed, cell, layers, D, H, O, dtype):
    # A single number may be a sum that cancels, whose relative error no tolerance of
    # float32 holds.
    how = {"dtype": np.float64 if 1 in (D, H) else dtype, "output_size": O}
    params = lk.Params.init(D, H, num_layers=layers, cell=cell, seed=seed, **how)
    if O:
        params.b_out += 4
    return params


@dataclass
class Used:
    """A network and its model. tape: the arguments of the forward pass to go back
    through; pending: how many of them came since the last backward; tapes: those that
    live, and their arguments; stale: those from before the parameters changed.
    """

    version: str
    form: tuple
    params: lk.Params
    net: object
    tape: tuple | None = None
    pending: int = 0
    shape: tuple = (4, 2)  # T, B of the last call
    threads: int | None = None
    tapes: list = field(default_factory=list)
    stale: list = field(default_factory=list)

    def changed(self):
        """Its parameters may be others from here on."""
        self.stale, self.tapes = [tape for tape, _ in self.tapes][-1:], []

    def arguments(self, name, seed, shape, also):
        """Plain ones of a call; also: a state, a training pass."""
        rng, mine, how = np.random.default_rng(seed), self.params, divmod(also, 3)
        back = name == "backward" and self.tape
        T, B = self.tape[0].shape[:2] if back else shape or self.shape
        draw = lambda *sizes: rng.standard_normal(sizes).astype(mine.dtype)  # noqa: E731
        x, dy = draw(T, B, mine.input_size), draw(T, B, mine.hidden_size)
        states = len(CELLS[mine.cell].state), mine.num_layers, B, mine.hidden_size
        order = rng.integers(B, size=rng.integers(3 * B))
        state = tuple(np.tanh(draw(*states))) if how[0] else None
        # Far from the outputs, which are about 4: no error is a small difference.
        target = draw(B, mine.output_size or 1) + mine.dtype.type(rng.choice((-8, 8)))
        return {
            "forward": (x, state, bool(how[1])),
            "backward": (dy, state),
            "predict": (x, state) if how[1] else (x,),
            "loss_and_grads": (x, target),
            "step": (x, target, RATE),
            "epoch": (x, target, order, B - B // 3, RATE),
            "assign": (drawn(seed, *self.form),),
        }[name]


oneof, seeds = st.sampled_from, st.integers(0, 99)
forms = [[*CELLS], [1, 2, 3], [3, 1, 8, 33], [7, 1, 8, 16, 17, 33, 64], [2, 1, None]]
made = {
    "seed": seeds,
    "form": st.tuples(*map(oneof, forms), oneof([np.float32, np.float64])),
    "threads": oneof([1, min(2, numba.config.NUMBA_NUM_THREADS), None]),
}
called = {
    "name": oneof(["forward", "forward", "backward", *CALLS]),
    "seed": seeds,
    # T, B, or None: as before. With and without training more than a network keeps.
    # 16 and 32 are whole vectors.
    "shape": st.none()
    | oneof(
        [(1, 1), (1, 8), (3, 1), (3, 9), (5, 9), (6, 17), (2, 3), (3, 16), (4, 32)]
    ),
    "also": oneof(range(6)),
}


class Machine(stateful.RuleBasedStateMachine):
    networks = stateful.Bundle("networks")

    def __init__(self, version):
        super().__init__()
        self.version, self.count, self.kept = version, 0, deque(maxlen=200)

    @stateful.initialize(target=networks, **made)
    def first(self, **made):
        return self.another(self.version, **made)

    @stateful.precondition(lambda self: self.count < 3)
    @stateful.rule(target=networks, version=oneof(IN_USE), **made)
    def another(self, version, seed, form, threads):
        self.count += 1
        params, options = drawn(seed, *form), {}
        if version == "numba-wavefront" and seed % 2:
            rng = np.random.default_rng(seed)
            options = {"schedules": lambda graph: random_schedule(rng, graph)}
        net = lk.network(version, params, threads=threads, **options)
        used = Used(version, form, params.copy(), net, threads=threads)
        self.keep(params, overwritten=True)
        return used

    @stateful.precondition(lambda self: self.count < 3)
    @stateful.rule(target=networks, used=networks, pickled=st.booleans())
    def copied(self, used, pickled):
        self.count += 1
        copied = lambda net: pickle.loads(pickle.dumps(net))  # noqa: E731
        pickled = pickled and used.version != "numba-wavefront"  # it may have a lambda
        net = copied(used.net) if pickled else copy.deepcopy(used.net)
        return Used(used.version, used.form, used.params, net, threads=used.threads)

    @stateful.rule(used=networks, kind=oneof([*KINDS]), **called)
    def call(self, used, name, seed, shape, also, kind="plain"):
        # Which has a tape to drop, of the same arrays
        if name in CALLS[2:] and seed % 3 == 0:
            self.call(used, "forward", seed + 1, shape, 1)
        plain = used.arguments(name, seed, shape, also)
        given = each(KINDS[kind], plain)
        if name == "backward" and used.pending > 1:  # it cannot know which is meant
            used.tape, used.pending = None, 0
        needed = used.tape if name == "backward" else used.params.V
        if needed is None and name in CALLS[1:-1]:
            return self.refuses(used, name, given)
        got = perform(used.net, name, given)
        same_bits(given, plain)
        new = lk.network(used.version, used.params, threads=1)
        if used.tape:
            new.forward(*used.tape)
        alike = each(np.copy, plain)
        same_bits(got, perform(new, name, alike))
        want = truth(used.params, name, plain, used.tape)
        alone = new.params().hidden_size == 1
        for read in (several, joined) if alone else (named,):
            compare(read(got), read(want), TOLERANCE[new.params().dtype])
        used.params = each(np.copy, got[1])
        if name in ("step", "epoch", "assign"):
            used.changed()
        if name != "backward":
            used.tape = alike if name == "forward" and plain[2] else None
        used.pending = used.pending + 1 if name != "backward" and used.tape else 0
        used.shape = shape or used.shape
        if used.tape is None:
            self.refuses(used, "backward", used.arguments("backward", seed, None, also))
        # The shortest way to a second backward of a shape
        elif name == "forward" and seed % 2:
            self.call(used, "backward", seed, None, also, kind)
        # And to what a state leaves behind
        if name == "forward" and plain[1] and seed % 4 == 0:
            self.call(used, name, seed, None, also % 3)
        self.keep(got, overwritten=seed % 2)
        self.keep(given, overwritten=used.tape is not alike)

    @stateful.rule(
        used=networks, seed=seeds, shape=called["shape"], also=oneof(range(6))
    )
    def record(self, used, seed, shape, also):
        x, state, _ = used.arguments("forward", seed, shape, also)
        tape = used.net.record(x, state)
        new = lk.network(used.version, used.params, threads=1)
        same_bits((tape.y, tape.state), new.forward(x, state))
        used.tapes = [*used.tapes[-3:], (tape, (x, state))]
        self.keep((tape.y, *tape.state), overwritten=False)

    @stateful.precondition(lambda self: self.count)
    @stateful.rule(used=networks, which=seeds, seed=seeds, with_state=st.booleans())
    def back_through_a_tape(self, used, which, seed, with_state):
        for tape in used.stale:
            with pytest.raises(RuntimeError, match="got a tape from before"):
                tape.backward(tape.y)
        if used.tapes:
            tape, (x, state) = used.tapes[which % len(used.tapes)]
            rng = np.random.default_rng(seed)
            draw = lambda a: rng.standard_normal(a.shape).astype(a.dtype)  # noqa: E731
            dy, dstate = draw(tape.y), tuple(map(draw, tape.state))
            dstate = dstate if with_state else None
            got = tape.backward(dy, dstate)
            new = lk.network(used.version, used.params, threads=1)
            new.forward(x, state, training=True)
            same_bits(got, new.backward(dy, dstate))
            self.keep(got, overwritten=seed % 2)

    @stateful.rule(used=networks, seed=seeds, place=seeds, batch=st.integers(1, 6))
    def diverge(self, used, seed, place, batch):
        """An epoch ends at the first loss that is not finite, also where its last
        mini-batch is a rest; with other parameters the network is as new.
        """
        if used.params.V is None:
            return
        x, target, *_ = used.arguments("step", seed, (3, 5), 0)
        place %= 5
        target[place] = np.finfo(target.dtype).max / 2
        losses = used.net.epoch(lk.Dataset(x, target), np.arange(5), batch, RATE)
        assert len(losses) == place // batch + 1
        assert np.isfinite(losses).tolist() == [True] * (place // batch) + [False]
        new, starts = (
            lk.network(used.version, used.params, threads=1),
            range(0, 5, batch),
        )
        for start, loss in zip(starts, losses[:-1], strict=False):
            some = slice(start, start + batch)
            assert new.step(x[:, some].copy(), target[some], RATE) == loss
        for _ in range(2):  # until all is NaN
            used.net.step(x, target, RATE)
        used.net.assign(used.params)
        used.tape, used.pending = None, 0
        used.changed()

    @stateful.rule(
        used=networks, name=oneof(CALLS), seed=seeds, line=st.integers(0, 400)
    )
    def interrupt(self, used, name, seed, line):
        if name not in ("forward", "assign") and used.params.V is None:
            return
        if used.version == "numba-sample" and used.threads != 1:
            return  # Numba's own number of threads may be left
        before = blas_threads()
        if name == "backward":
            used.tape = used.arguments("forward", seed, (3, 4), 1)
            used.net.forward(used.tape[0])  # else there would be two to go back through
            used.net.forward(*used.tape)
        given = used.arguments(name, seed, (3, 4), 1)
        new = lk.network(used.version, used.params, threads=1)
        wants = [used.params]
        if name in ("step", "assign"):
            wants.append(perform(new, name, given)[1])
        if name == "epoch":
            x, target, order, size, _ = given
            for start in range(0, len(order), size):
                some = order[start : start + size]
                new.step(x[:, some].copy(), target[some], RATE)
                wants.append(new.params())
        where = interrupted(lambda: perform(used.net, name, given), line)
        now, equal = used.net.params(), []
        for want in wants:
            with suppress(AssertionError):
                same_bits(now, want)
                equal.append(want)
        assert equal, where
        used.params = each(np.copy, now)
        if name in ("step", "epoch", "assign"):
            used.changed()
            used.stale = []  # the parameters may be the same ones, and the tapes whole
        x, _, _ = used.arguments("forward", seed, (2, 4), 0)
        new = lk.network(used.version, used.params, threads=1)
        with ThreadPoolExecutor(1) as pool:  # no lock was lost
            same_bits(pool.submit(used.net.forward, x).result(), new.forward(x))
        assert blas_threads() == before, where
        used.tape, used.pending, used.shape = None, 0, (2, 4)

    @stateful.rule(used=networks, bad=oneof([*BAD]), place=seeds, **called)
    def bad_call(self, used, bad, place, **called):
        name, given = called["name"], used.arguments(**called)
        dtype, arrays = used.params.dtype, named(given).values()
        floats = [a for a in arrays if getattr(a, "dtype", int) == dtype]
        chosen = floats[place % len(floats)]
        wrong = each(lambda a: BAD[bad](a) if a is chosen else a, given)
        self.refuses(used, name, wrong)

    def refuses(self, used, name, given):
        with pytest.raises(
            (TypeError, ValueError, RuntimeError), match=r"^\S+: (got|nothing) .*"
        ):
            perform(used.net, name, given)
        same_bits(used.net.params(), used.params)
        if used.tape:
            self.call(used, "backward", seed=0, shape=None, also=3)

    def keep(self, value, overwritten):
        """Watch arrays that were returned or given: nobody but the caller writes into
        them.
        """
        for a, before in self.kept:
            np.testing.assert_array_equal(a, before)
        for a in named(value).values():
            if isinstance(a, np.ndarray):
                if overwritten and a.flags.writeable:
                    a[...] = -1
                self.kept.append((a, a.copy()))


@pytest.mark.parametrize("version", IN_USE)
def test_any_sequence_of_calls(version):
    examples = 1000 if HOSTILE else 60 if version in TEAM else 20
    how = settings(max_examples=examples, stateful_step_count=40)
    stateful.run_state_machine_as_test(lambda: Machine(version), settings=how)
