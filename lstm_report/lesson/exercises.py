"""The exercises of the classroom: what a kernel is given and shall return, and likely
slips.
"""

from collections.abc import Callable
from functools import partial
from itertools import permutations
from types import FunctionType, SimpleNamespace
from typing import NamedTuple

import numpy as np

from lstm_kernels import reference
from lstm_kernels.cells import CELLS, lstm
from lstm_kernels.params import Layer
from lstm_kernels.versions.numba_sample import add_product

from ..measure.comparer import TOLERANCE, MismatchError, compare
from .classroom import SINGLE, arrays_of_walk, states, units, walk
from .mistakes import late_c, sigmoid_g

# T, B, D, H: odd, so that no vector, tile or block of two comes out even; then ones.
SIZES = [(5, 3, 3, 7), (3, 7, 5, 9), (1, 1, 1, 1)]
BLOCKS = (3, 5)  # threads of a block, where exercise 6 runs without a GPU


class NotSolved(MismatchError):
    """A kernel of the learner is not right yet; the message has a hint."""

    def _render_traceback_(self):
        """What IPython shows: the message alone, no frames of the grader."""
        return [str(self)]


class Wrong(NotSolved):
    """It is wrong; the message names the array and the error too."""


class Open(NotSolved):
    """It still has blanks."""


def draw(rng, T, B, D, H):
    """x (T, B, D), U, W and b of a layer, float32."""
    shapes = (T, B, D), (D, 4 * H), (H, 4 * H), (4 * H,)
    return tuple(rng.uniform(-1, 1, shape).astype(SINGLE) for shape in shapes)


def named(h, c):
    """h and c (T+1, B, H), and the outputs y (T, B, H)."""
    return {"h": h, "c": c, "y": h[1:]}


def truth(x, U, W, b):
    """h and c (T+1, B, H) from zero states: the reference in float64."""
    x, U, W, b = (a.astype(np.float64) for a in (x, U, W, b))
    zero = np.zeros((x.shape[1], len(W)))
    tape = reference.layer_forward(CELLS["lstm"], Layer(U, W, b), x, zero, zero)
    return named(tape.h, tape.c)


# Slips: what a likely mistake returns. An answer that equals one gets its hint.


def cell_of(make):
    """The forward function of a cell: pre-activations and c_prev to h and c alone."""
    forward, _ = make(np.tanh, reference.sigmoid)
    return lambda *arguments: forward(*arguments)[-2:]


right = cell_of(lstm)


def without_tanh(i_bar, f_bar, g_bar, o_bar, c_prev):
    _, c = right(i_bar, f_bar, g_bar, o_bar, c_prev)
    return reference.sigmoid(o_bar) * c, c


def raw(bar):
    return bar


def with_gate(gate, value):
    """The cell where one of i, f, g, o is another function of its pre-activation."""

    def forward(*a):
        i, f, g, o = (
            value(bar)
            if name == gate
            else (np.tanh if name == "g" else reference.sigmoid)(bar)
            for name, bar in zip("ifgo", a[:4], strict=True)
        )
        c = f * a[4] + i * g
        return o * np.tanh(c), c

    return forward


def recur(x, U, W, b, *, cell=right, as_c=False, in_place=False, by_D=False):
    """`truth` with a slip: another cell; h in the place of c_prev; each unit's h
    written before the next unit's pre-activations are computed; gates D columns apart.
    """
    x, U, W, b = (a.astype(np.float64) for a in (x, U, W, b))
    (T, B, D), H = x.shape, len(W)
    gates = (D if by_D else H) * np.arange(4)
    h, c = np.zeros((2, T + 1, B, H))
    for t in range(T):
        h[t + 1], c_prev = h[t], h[t] if as_c else c[t]
        for j in range(H):
            if in_place or j == 0:
                a = x[t] @ U + h[t + 1] @ W + b
            bars = a[:, gates + j].T
            h[t + 1, :, j], c[t + 1, :, j] = cell(*bars, c_prev[:, j])
    return named(h, c)


def reordered(order, x, *weights):
    """`truth` where `order` turns the (T, B) steps of samples into another array of
    sequences.
    """
    T, B, D = x.shape
    at = order(np.arange(T * B).reshape(T, B))
    found, place = truth(x.reshape(T * B, D)[at], *weights), np.argsort(at, axis=None)
    h, c = (found[k][1:].reshape(T * B, -1)[place].reshape(T, B, -1) for k in "hc")
    return named(*(np.concatenate([np.zeros_like(v[:1]), v]) for v in (h, c)))


def by_unit(w):
    """Weights (..., 4*H) as one sees them who takes every fourth column for a gate."""
    return np.swapaxes(w.reshape(*w.shape[:-1], -1, 4), -1, -2).reshape(w.shape)


def permuted(p):
    return lambda *a: right(*(a[k] for k in p), a[4])


CELL_SLIPS = [
    ("g is the candidate: a tanh, no sigmoid", cell_of(sigmoid_g)),
    ("h shows the new c, not the one before", cell_of(late_c)),
    ("h and c are exchanged: h comes first", lambda *a: right(*a)[::-1]),
    ("h = o tanh(c): the tanh is missing", without_tanh),
    ("c is used in the place of h: h = o tanh(c)", lambda *a: (right(*a)[1],) * 2),
    ("h is used in the place of c: return c without o", lambda *a: (right(*a)[0],) * 2),
]
CELL_SLIPS += [
    (
        f"the {'tanh' if gate == 'g' else 'sigmoid'} of {gate} is missing",
        with_gate(gate, raw),
    )
    for gate in "ifgo"
]
CELL_SLIPS += [
    (f"the factor {gate} is missing", with_gate(gate, np.ones_like)) for gate in "ifgo"
]
PERMUTED = "the gates are permuted; their order is i, f, g, o"
CELL_SLIPS += [(PERMUTED, permuted(p)) for p in list(permutations(range(4)))[1:]]
STEP_SLIPS = [
    ("h stands in the place of c: f c_prev, not f h", partial(recur, as_c=True)),
    ("h W is missing", lambda x, U, W, b: truth(x, U, 0 * W, b)),
    ("x U is missing", lambda x, U, W, b: truth(x, 0 * U, W, b)),
    ("b is missing", lambda x, U, W, b: truth(x, U, W, 0 * b)),
    (
        "a gate is a block of H columns, not every fourth column",
        lambda x, *weights: recur(x, *map(by_unit, weights)),
    ),
    *((hint, partial(recur, cell=cell)) for hint, cell in CELL_SLIPS),
]
LOOP_SLIPS = [
    (
        "the state is not reset: every sample begins with zeros",
        partial(reordered, lambda at: at.T.reshape(-1, 1)),
    ),
    (
        "wrong order of loops: h and c hold one sample, so the loop over steps is "
        "inside",
        partial(reordered, lambda at: at.reshape(-1, 1)),
    ),
    (
        "the state is reset at every step: it has to live from step to step",
        partial(reordered, lambda at: at.reshape(1, -1)),
    ),
    (
        "h is overwritten while it is still needed: all pre-activations first, then "
        "the units",
        partial(recur, in_place=True),
    ),
    (
        "h W runs over D rows of W alone; it has H",
        lambda x, U, W, b: truth(
            x, U, np.where(np.arange(len(W)) < len(U), W.T, 0).T, b
        ),
    ),
    (
        "the gates of unit j are H apart, not D: a[j], a[H + j] and so on",
        partial(recur, by_D=True),
    ),
    *STEP_SLIPS,
]
TILE_SLIPS = [
    ("row k, column j of B is B[k, j], not B[j, k]", lambda A, B: {"C": A @ B.T}),
    ("row r, column k of A is A[r, k], not A[k, r]", lambda A, B: {"C": A.T @ B}),
]
UNWRITTEN = "numbers that are never written stay NaN"


def match(slips, got, *inputs):
    """The hint of the first slip that returns what the learner's function returned."""
    for hint, slip in slips:
        slipped = slip(*inputs)
        try:
            compare(
                got, {name: slipped[name] for name in got}, TOLERANCE[inputs[-1].dtype]
            )
            return hint
        except MismatchError:
            pass
    return None


# Runs: how a learner's function is called. Returns named arrays.


def with_names(function, **names):
    """The function anew, with other values for global names."""
    space = function.__globals__ | names
    parts = function.__name__, function.__defaults__, function.__closure__
    return FunctionType(function.__code__, space, *parts)


def pair(result, shape):
    """h and c as a function returned them, or an error that says what it returned."""
    if not isinstance(result, tuple | list) or len(result) != 2:
        kind = "nothing" if result is None else type(result).__name__
        raise Wrong(f"it returns {kind}, want h and c: `return h, c`")
    for name, value in zip("hc", result, strict=True):
        if np.shape(value) != shape:
            raise Wrong(f"{name}: got shape {np.shape(value)}, want {shape}")
    return result


def run_cell(function, a):
    results = [function(*row) for row in a.tolist()]
    pair(results[0], ())
    h, c = np.array(results).T
    return {"h": h, "c": c}


def run_step(function, x, U, W, b):
    h = c = np.zeros((x.shape[1], len(W)), x.dtype)
    steps = [(h, c)]
    for now in x:
        for state in steps[-1]:
            state.flags.writeable = (
                False  # a change in place would be seen by the step before
            )
        result = pair(function(now, *steps[-1], U, W, b), h.shape)
        steps.append(tuple(map(np.asarray, result)))
    return {"h": [h for h, _ in steps], "c": [c for _, c in steps]}


def numpy_with(fill):
    """NumPy whose `empty` holds `fill`: what a result must not depend on."""
    names = vars(np) | {"empty": lambda shape, dtype=float: np.full(shape, fill, dtype)}
    return SimpleNamespace(**names)


def run_recurrence(function, x, U, W, b):
    forms, found = [function], []
    if isinstance(function, FunctionType):
        forms = [with_names(function, np=numpy_with(fill)) for fill in (0, 1)]
    for form in forms:
        found.append(np.full((*x.shape[:2], len(W)), np.nan, x.dtype))
        form(x, U, W, b, found[-1])
    if not np.array_equal(found[0], found[-1], equal_nan=True):
        raise Wrong(
            "y depends on what the memory of np.empty held. Hint: set h and c to zero "
            "before the first step"
        )
    return {"y": found[0]}


def run_parallel(function, x, U, W, b):
    h, c = states(x, U, W, b)
    a, loops = np.empty((*x.shape[:2], len(b)), x.dtype), []

    def backwards(*bounds):
        """In Python `prange` runs backwards: right only where iterations do not need
        each other.
        """
        loops.append(bounds)
        return reversed(range(*bounds))

    if isinstance(function, FunctionType):
        parts = {"add_product": add_product.py_func, "units": units.py_func}
        function = with_names(function, prange=backwards, **parts)
        function(x, U, W, b, h, c, a)
        if not loops:
            raise Wrong(
                "no loop is a prange. Hint: which iterations do not need each other?"
            )
    else:
        if not function.targetoptions.get("parallel"):
            raise Wrong(
                "compiled without threads, a prange is a range. Hint: "
                "@njit(parallel=True)"
            )
        function(x, U, W, b, h, c, a)
    return {"h": h, "c": c}


def run_tile(function, A, B):
    C = np.full((len(A), B.shape[1]), np.nan)
    function(A, B, C)
    return {"C": C}


def run_thread(function, x, U, W, b):
    """Every thread of every block in turn, and how often each sample was computed."""
    arrays = arrays_of_walk(x, U, W, b)
    B = x.shape[1]
    counts = np.zeros((len(BLOCKS), B), int)

    def counted(s, *arrays):
        if not 0 <= s < B:
            raise IndexError(f"sample {s} of {B} does not exist")
        counts[row, s] += 1
        walk(s, *arrays)

    function = with_names(function, walk=counted)
    for row, size in enumerate(BLOCKS):  # noqa: B007 - `counted` reads it
        for block in range(-(-B // size)):
            for thread in range(size):
                function(block, thread, size, *arrays)
    return {"threads of a sample": counts, "h": arrays[4], "c": arrays[5]}


# Why: a hint for what the function returned, or None.


def why_cell(got, a):
    slips = [
        (hint, lambda a, s=s: dict(zip("hc", s(*a.T), strict=True)))
        for hint, s in CELL_SLIPS
    ]
    return match(slips, got, a)


def why_step(got, *inputs):
    return match(STEP_SLIPS, got, *inputs)


def why_recurrence(got, *inputs):
    return UNWRITTEN if np.isnan(got["y"]).any() else match(LOOP_SLIPS, got, *inputs)


def why_parallel(got, *inputs):
    missing = np.isnan(got["h"])
    if len(missing) > 2 and missing[2:].all() and not missing[1].any():
        return (
            "step t reads what step t-1 writes: the steps cannot run at the same time"
        )
    return UNWRITTEN if missing.any() else match(LOOP_SLIPS, got, *inputs)


def why_tile(got, A, B):
    missing = np.isnan(got["C"])
    if missing[-1].all() or missing[:, -1].all():
        return EDGE
    return UNWRITTEN if missing.any() else None


def raised_tile(function):
    """A hint where it raised: on square matrices of even size there is no edge."""
    A, B = np.random.default_rng(5).uniform(-1, 1, (2, 4, 4))
    try:
        got = run_tile(function, A, B)
    except Exception:
        return None
    return match(TILE_SLIPS, got, A, B) or EDGE


def exchanged(B):
    """How often each of B samples is computed with block and index exchanged."""
    counts = np.zeros((len(BLOCKS), B), int)
    for row, size in zip(counts, BLOCKS, strict=True):
        for block in range(-(-B // size)):
            row[block : block + size * size : size] += 1
    return counts


def why_thread(got, *inputs):
    counts = got["threads of a sample"]
    if (counts == exchanged(counts.shape[1])).all():
        return "block and index are exchanged: block k begins at k times the block size"
    if (counts > 1).any():
        return "threads share a sample: block k begins at sample k times the block size"
    if not counts[:, -1].any() and (counts[:, :-1] == 1).all():
        return "the guard leaves out the last sample: want s < samples"
    return None if counts.all() else "the numbers of a sample without a thread stay NaN"


class Exercise(NamedTuple):
    """number; run: (function, *inputs) -> named arrays; why: (them, *inputs) -> a hint
    or None; hint: where to begin; raised: function -> a hint where it raises, or None;
    compiled: whether it is to be; draw: (rng, *sizes) -> inputs; want: inputs -> named
    arrays, in float64.
    """

    number: int
    run: Callable
    why: Callable
    hint: str
    raised: Callable = lambda function: None
    compiled: bool = False
    draw: Callable = draw
    want: Callable = truth

    def error(self, got, *inputs):
        """The largest relative error of what a function returned; raises
        MismatchError.
        """
        want = self.want(*inputs)
        # What no reference returns, how many threads computed a sample, shall be one.
        want = {
            name: want.get(name, np.ones(np.shape(array)))
            for name, array in got.items()
        }
        return compare(got, want, TOLERANCE[inputs[-1].dtype])


EDGE = (
    "the last tile has fewer rows or columns: it takes the last row or column once more"
)
EXERCISES = {
    "cell": Exercise(
        1,
        run_cell,
        why_cell,
        "three gates are sigmoids, g is a tanh; c = f c_prev + i g, then h = o tanh(c)",
        draw=lambda rng, T, B, D, H: (rng.uniform(-2, 2, (T * B * H, 5)),),
        want=lambda a: dict(zip("hc", right(*a.T), strict=True)),
    ),
    "step": Exercise(
        2,
        run_step,
        why_step,
        "a = x U + h W + b for all samples at once; gate k is columns k*H to (k+1)*H",
    ),
    "recurrence": Exercise(
        3,
        run_recurrence,
        why_recurrence,
        "each sample begins with zeros; add h[k] * W[k, n] to a[n] for every k and n",
        compiled=True,
    ),
    "parallel": Exercise(
        4,
        run_parallel,
        why_parallel,
        "prange where iterations do not need each other, range where they do",
        compiled=True,
    ),
    "tile": Exercise(
        5,
        run_tile,
        why_tile,
        "four sums, two numbers of A and two of B for each k; sum rc is row r times "
        "column c",
        raised=raised_tile,
        compiled=True,
        draw=lambda rng, T, B, D, H: (
            rng.uniform(-1, 1, (T, B)),
            rng.uniform(-1, 1, (B, H)),
        ),
        want=lambda A, B: {"C": A @ B},
    ),
    "thread": Exercise(
        6,
        run_thread,
        why_thread,
        "a block begins where the one before ends; the last block may have threads "
        "to spare",
        raised=lambda function: (
            "the guard, s < samples: the last block has threads to spare"
        ),
    ),
}
