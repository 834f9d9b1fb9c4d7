"""Networks in use: any sequence of public calls, with arrays of every kind, beside a
model.

The model of a network is its parameters and the pass that `backward` may go back
through. What a call returns has the bits of a new network that makes this one call on
one thread with plain arrays, and is within the tolerance of the reference in float64.
It keeps its values for ever. What was given keeps them too, and may be overwritten
afterwards. A refused call changes nothing.
"""

import copy
import pickle
from collections import deque
from dataclasses import dataclass

import numba
import numpy as np
import pytest
from conftest import HOSTILE, IN_USE
from hypothesis import HealthCheck, settings, stateful
from hypothesis import strategies as st

import lstm_kernels as lk
from lstm_kernels import reference
from lstm_kernels.cells import CELLS
from lstm_report.measure.comparer import TOLERANCE, compare

# HOSTILE: long, and from another seed every time.
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
        return y[-1] @ params.V + params.b_out, params
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
    through; pending: how many of them came since the last backward.
    """

    version: str
    form: tuple
    params: lk.Params
    net: object
    tape: tuple | None = None
    pending: int = 0
    shape: tuple = (4, 2)  # T, B of the last call

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
            "predict": (x,),
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
        params = drawn(seed, *form)
        net = lk.network(version, params, threads=threads)
        used = Used(version, form, params.copy(), net)
        self.keep(params, overwritten=True)
        return used

    @stateful.precondition(lambda self: self.count < 3)
    @stateful.rule(target=networks, used=networks, pickled=st.booleans())
    def copied(self, used, pickled):
        self.count += 1
        copied = lambda net: pickle.loads(pickle.dumps(net))  # noqa: E731
        net = copied(used.net) if pickled else copy.deepcopy(used.net)
        return Used(used.version, used.form, used.params, net)

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
    examples = 1000 if HOSTILE else 20 if version in TEAM else 8
    how = settings(max_examples=examples, stateful_step_count=30, deadline=None)
    how = settings(how, suppress_health_check=[*HealthCheck], database=None)
    how = settings(how, derandomize=not HOSTILE)
    stateful.run_state_machine_as_test(lambda: Machine(version), settings=how)
