"""The exercises of the classroom: what a kernel is given and shall return, and likely
slips.
"""

import sys
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from itertools import combinations, permutations, product
from types import FunctionType, SimpleNamespace
from typing import NamedTuple

import numba
import numpy as np
from numba import prange

from lstm_kernels import reference
from lstm_kernels.cells import CELLS, lstm
from lstm_kernels.errors import counted
from lstm_kernels.params import Layer
from lstm_kernels.versions.numba_sample import add_product

from ..measure.comparer import TOLERANCE, MismatchError, compare
from .classroom import SINGLE, arrays_of_walk, states, units, walk
from .mistakes import late_c

# T, B, D, H: odd, so that no vector, tile or block of two comes out even; then ones.
SIZES = [(5, 3, 3, 7), (3, 7, 5, 9), (1, 1, 1, 1)]
INSTRUCTIONS = 2_000_000  # some times what a right kernel takes
BLOCKS = (3, 5)  # threads of a block, where exercise 6 runs without a GPU


@contextmanager
def limited(function):
    """Where a function that runs does not end, Endless after so many INSTRUCTIONS of
    its file's code.
    """
    file, left = function.__code__.co_filename, iter(range(INSTRUCTIONS))

    def within(frame, event, arg):
        if event == "opcode" and next(left, None) is None:
            got = f"it has not ended after {INSTRUCTIONS} instructions of Python"
            raise Endless(f"{got}. Hint: which loop never ends?")
        return within

    def begin(frame, event, arg):
        frame.f_trace_opcodes = frame.f_code.co_filename == file
        return within if frame.f_trace_opcodes else None

    before = sys.gettrace()
    sys.settrace(begin)
    try:
        yield
    finally:
        sys.settrace(before)


class NotSolved(MismatchError):
    """A kernel of the learner is not right yet; the message has a hint."""

    def _render_traceback_(self):
        """What IPython shows: the message alone, no frames of the grader."""
        return [str(self)]


class Wrong(NotSolved):
    """It is wrong; the message names the array and the error too."""


class Endless(Wrong):
    """It does not end."""


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


# Slips: what a likely mistake returns. An answer that equals one gets its hint. For
# INDEX_SLIPS, TILE_SLIPS, PRODUCT and GUARD the inputs are others, where an answer that
# raised returns something (`Exercise.elsewhere`).


def cell_of(make):
    """The forward function of a cell: pre-activations and c_prev to h and c alone."""
    forward, _ = make(np.tanh, reference.sigmoid)
    return lambda *arguments: forward(*arguments)[-2:]


right = cell_of(lstm)
FUNCTIONS = dict.fromkeys("ifo", reference.sigmoid) | dict.fromkeys("gc", np.tanh)


def cell_with(names, function):
    """The cell that has another function for some of i, f, g, o, or of c in h."""
    of = FUNCTIONS | dict.fromkeys(names, function)

    def forward(*a):
        i, f, g, o = (of[name](bar) for name, bar in zip("ifgo", a[:4], strict=True))
        c = f * a[4] + i * g
        return o * of["c"](c), c

    return forward


def recur(
    x,
    U,
    W,
    b,
    *,
    cell=right,
    as_c=False,
    in_place=False,
    by_D=False,
    refill=True,
    reset="",
    every=1,
):
    """`truth` with a slip: another cell; h in the place of c_prev; each unit's h
    written before the next unit's pre-activations are computed; gates D columns apart;
    pre-activations added to those of the step before; h or c set to zero before steps
    0, `every` and so on.
    """
    x, U, W, b = (a.astype(np.float64) for a in (x, U, W, b))
    (T, B, D), H = x.shape, len(W)
    gates = (D if by_D else H) * np.arange(4)
    h, c = np.zeros((2, T + 1, B, H))
    begin = b
    for t in range(T):
        h_is_kept, c_is_kept = (name not in reset or t % every > 0 for name in "hc")
        h[t + 1] = h_is_kept * h[t]
        c_prev = c_is_kept * (h if as_c else c)[t]
        for j in np.split(np.arange(H), H if in_place else 1):
            a = begin + x[t] @ U + h[t + 1] @ W
            bars = (a[:, gate + j] for gate in gates)
            h[t + 1][:, j], c[t + 1][:, j] = cell(*bars, c_prev[:, j])
        begin = b if refill else a
    return named(h, c)


def reordered(order, x, *weights, **how):
    """`recur` where `order` turns the (T, B) steps of samples into another array of
    sequences.
    """
    T, B, D = x.shape
    at = order(np.arange(T * B).reshape(T, B))
    found = recur(x.reshape(T * B, D)[at], *weights, **how)
    place = np.argsort(at, axis=None)
    h, c = (found[k][1:].reshape(T * B, -1)[place].reshape(T, B, -1) for k in "hc")
    return named(*(np.concatenate([np.zeros_like(v[:1]), v]) for v in (h, c)))


def chained(x, *weights, **how):
    """`recur` of one sequence: all steps of sample 0, then those of sample 1."""
    return reordered(lambda at: at.T.reshape(-1, 1), x, *weights, every=len(x), **how)


def by_unit(w):
    """Weights (..., 4*H) as one sees them who takes every fourth column for a gate."""
    return np.swapaxes(w.reshape(*w.shape[:-1], -1, 4), -1, -2).reshape(w.shape)


def permuted(p):
    return lambda *a: right(*(a[k] for k in p), a[4])


def minus_sigmoid(bar):
    return -reference.sigmoid(bar)


CELL_SLIPS = [
    ("h shows the new c, not the one before", cell_of(late_c)),
    ("h and c are exchanged: h comes first", lambda *a: right(*a)[::-1]),
    ("c is used in the place of h: h = o tanh(c)", lambda *a: (right(*a)[1],) * 2),
    ("h is used in the place of c: return c without o", lambda *a: (right(*a)[0],) * 2),
    ("f c_prev is missing: c = f c_prev + i g", cell_with("f", np.zeros_like)),
    ("i g is missing: c = f c_prev + i g", cell_with("i", np.zeros_like)),
    ("both parts are added: c = f c_prev + i g", cell_with("i", minus_sigmoid)),
    ("both parts are added: c = f c_prev + i g", cell_with("f", minus_sigmoid)),
    ("tanh is missing: h = o tanh(c)", cell_with("c", lambda c: c)),
    # 1 - sigmoid(x) is sigmoid(-x)
    ("i is a gate of its own, not the 1 - f of a GRU", lambda *a: right(-a[1], *a[1:])),
    ("f is a gate of its own, not 1 - i", lambda *a: right(a[0], -a[0], *a[2:])),
]
CELL_SLIPS += [
    (f"the factor {gate} is missing", cell_with(gate, np.ones_like)) for gate in "ifgo"
]
CELL_SLIPS += [
    (
        f"{', '.join(names)}: got {what}; i, f and o are sigmoids, g is a tanh, and h "
        "has tanh(c)",
        cell_with(names, function),
    )
    for what, function in {
        "no function": lambda bar: bar,
        "a sigmoid": reference.sigmoid,
        "a tanh": np.tanh,
        "a relu": lambda bar: np.maximum(bar, 0),
        "sigmoid(-x)": lambda bar: reference.sigmoid(-bar),
    }.items()
    for count in range(1, 6)
    for names in combinations("ifgoc", count)
]
PERMUTED = "the gates are permuted; their order is i, f, g, o"
CELL_SLIPS += [(PERMUTED, permuted(p)) for p in list(permutations(range(4)))[1:]]
STEP_SLIPS = [
    ("h stands in the place of c: f c_prev, not f h", partial(recur, as_c=True)),
    ("h W is missing", lambda x, U, W, b: truth(x, U, 0 * W, b)),
    ("x U is missing", lambda x, U, W, b: truth(x, 0 * U, W, b)),
    ("b is missing", lambda x, U, W, b: truth(x, U, W, 0 * b)),
    ("b is added: x U + h W + b", lambda x, U, W, b: truth(x, U, W, -b)),
    (
        "a gate is a block of H columns, not every fourth column",
        lambda x, *weights: recur(x, *map(by_unit, weights)),
    ),
    *((hint, partial(recur, cell=cell)) for hint, cell in CELL_SLIPS),
]
SUMMED = "a still holds the sums of the step before: a[:] = b at every step"
LOOP_SLIPS = [
    (
        "wrong order of loops: h and c hold one sample, so steps are the inner loop",
        partial(reordered, lambda at: at.reshape(-1, 1)),
    ),
    ("the state is not reset: every sample begins with zeros", chained),
    ("c is not reset: every sample begins with zeros", partial(chained, reset="h")),
    ("h is not reset: every sample begins with zeros", partial(chained, reset="c")),
    (
        "the state is reset at every step: it has to live from step to step",
        partial(recur, reset="hc"),
    ),
    (
        "c is reset at every step: it has to live from step to step",
        partial(recur, reset="c"),
    ),
    (SUMMED, partial(recur, refill=False)),
    (SUMMED, partial(chained, refill=False, reset="hc")),
    (
        "h W is added to H columns of a alone; it has 4 H",
        lambda x, U, W, b: truth(x, U, W * (np.arange(len(b)) < len(W)), b),
    ),
    (
        "h is overwritten while it is needed: all pre-activations first, then units",
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
    (
        "a is overwritten: add to it with +=, for every k",
        lambda x, U, W, b: truth(x, 0 * U, 0 * W, 0 * b),
    ),
    *STEP_SLIPS,
]


def turned(names):
    """`truth` where the first two axes of x, y or both are exchanged, of as many steps
    as samples; W may have rows to spare.
    """

    def slip(x, U, W, b):
        x, W = np.swapaxes(x, 0, 1) if "x" in names else x, W[: len(b) // 4]
        found = truth(x, U, W, b)
        return found | {"y": np.swapaxes(found["y"], 0, 1)} if "y" in names else found

    return slip


INDEX_SLIPS = [
    ("T and B are exchanged: T steps come first, as in x[t, s]", turned(names))
    for names in ("", "x", "y", "xy")
]
INDEX_SLIPS += [
    (
        "row k, column n of W is W[k, n], not W[n, k]",
        lambda x, U, W, b: truth(x, U, W.T[: len(b) // 4], b),
    )
]
EDGE = "the last tile has fewer rows or columns: it takes the last one once more"
TILE_SLIPS = [
    ("row k, column j of B is B[k, j], not B[j, k]", lambda A, B: {"C": A @ B.T}),
    ("row r, column k of A is A[r, k], not A[k, r]", lambda A, B: {"C": A.T @ B}),
    (EDGE, lambda A, B: {"C": A @ B}),
]
PRODUCT = (
    "it is right where every size is 1: x U and h W are matrix products, `x @ U`, and "
    "a gate is some columns of a"
)
GUARD = "the guard, s < samples: the last block has threads to spare"
UNWRITTEN = "numbers that are never written stay NaN"


def difference(got, want, dtype):
    """The largest relative error of named arrays; raises MismatchError."""
    return compare(got, {name: want[name] for name in got}, TOLERANCE[dtype])


def match(slips, got, *inputs):
    """The hint of the first slip that returns what the learner's function returned."""
    for hint, slip in slips:
        try:
            difference(got, slip(*inputs), inputs[-1].dtype)
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
            # A change in place would be seen by the step before
            state.flags.writeable = False
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
        found.append(np.full((*x.shape[:2], len(b) // 4), np.nan, x.dtype))
        form(x, U, W, b, found[-1])
    if not np.array_equal(found[0], found[-1], equal_nan=True):
        raise Wrong(
            "y depends on what the memory of np.empty held. Hint: h and c are filled "
            "with zeros before the first step, a with b before every step"
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

    threads = SimpleNamespace(**vars(numba) | {"prange": backwards})
    if isinstance(function, FunctionType):
        parts = {"add_product": add_product.py_func, "units": units.py_func}
        names = function.__globals__.items()
        parts |= {name: backwards for name, value in names if value is prange}
        parts |= {name: threads for name, value in names if value is numba}
        function = with_names(function, **parts)
        function(x, U, W, b, h, c, a)
        if not loops:
            raise Wrong("no loop is a prange. Hint: one has independent iterations")
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
    counts, most = np.zeros((len(BLOCKS), B), int), 0

    if not isinstance(function, FunctionType):
        raise Wrong("@njit compiles it for a CPU. Hint: leave it out")

    def noted(s, *arrays, **named):
        if not 0 <= s < B:
            raise IndexError(f"sample {s} of {B} does not exist")
        counts[row, s] += 1
        if counts[row, s] > B + size:  # more often than there are threads
            got = f"a thread computes sample {s} again and again"
            raise Endless(f"{got}. Hint: a thread has one sample, or none: `if`")
        walk(s, *arrays, **named)

    function = with_names(function, walk=noted)
    for row, size in enumerate(BLOCKS):  # noqa: B007 - `noted` reads it
        for block in range(-(-B // size)):
            for thread in range(size):
                before = counts.sum()
                function(block, thread, size, *arrays)
                most = max(most, counts.sum() - before)
    if most > 1 and (counts == 1).all():
        raise Wrong(
            f"one thread computes {most} samples while others wait. Hint: a thread "
            "computes one sample, which block, index and block_size tell"
        )
    if len(wrong := np.argwhere(counts != 1)):
        row, s = wrong[0]
        who = counted(counts[row, s], "thread")
        got = f"in blocks of {BLOCKS[row]} threads sample {s} is computed by {who}"
        raise Wrong(f"{got}, want 1. Hint: {why_counts(counts)}")
    return {"h": arrays[4], "c": arrays[5]}


# Why: a hint for what the function returned, or None.


def why_cell(got, a):
    slips = [
        (hint, lambda a, s=s: dict(zip("hc", s(*a.T), strict=True)))
        for hint, s in CELL_SLIPS
    ]
    return match(slips, got, a)


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
    C, want = got["C"], A @ B
    missing = np.isnan(C)
    if missing[-1].all() or missing[:, -1].all():
        return EDGE
    if missing.any():
        return UNWRITTEN
    (M, N), places = (n // 2 * 2 for n in C.shape), list(product((0, 1), repeat=2))
    for (r, c), (row, column) in permutations(places, 2):
        if M * N and np.allclose(C[r:M:2, c:N:2], want[row:M:2, column:N:2]):
            found = f"not row {row} by column {column}"
            return f"sum {r}{c} is row {r} by column {c}, {found}"
    last = A[:, -1:] * B[-1:]
    if A.shape[1] > 1 and np.isclose(C, last).any():
        return "a sum is overwritten: s01 = s01 + a0 * b1, for every k"
    if np.isclose(C, -want).any():
        return "products are added, not subtracted"
    return None


def exchanged(B):
    """How often each of B samples is computed with block and index exchanged."""
    counts = np.zeros((len(BLOCKS), B), int)
    for row, size in zip(counts, BLOCKS, strict=True):
        for block in range(-(-B // size)):
            row[block : block + size * size : size] += 1
    return counts


def why_counts(counts):
    """A hint for how many threads computed each sample, (BLOCKS, samples)."""
    if (counts == exchanged(counts.shape[1])).all():
        return "block and index are exchanged: block k begins at k times the block size"
    if not counts.any():
        return EXERCISES["thread"].hint
    if not counts[:, 0].any():
        return "block and index count from 0, and so does s"
    if (counts > 1).any():
        return "threads share a sample: block k begins at sample k times the block size"
    if not counts[:, -1].any() and (counts[:, :-1] == 1).all():
        return "the guard leaves out the last sample: want s < samples"
    return EXERCISES["thread"].hint


class Exercise(NamedTuple):
    """number; run: (function, *inputs) -> named arrays; why: (them, *inputs) -> a hint
    or None; hint: where to begin; axes: names of those of what is returned; elsewhere:
    inputs with which a likely slip of an index or a product does not raise, and slips;
    compiled: whether it is to be; draw: (rng, *sizes) -> inputs; want: inputs -> named
    arrays, in float64.
    """

    number: int
    run: Callable
    why: Callable
    hint: str
    axes: tuple[str, ...]
    elsewhere: tuple = ((), ())
    compiled: bool = False
    draw: Callable = draw
    want: Callable = truth

    def error(self, got, *inputs):
        """The largest relative error of what a function returned; raises
        MismatchError.
        """
        return difference(got, self.want(*inputs), inputs[-1].dtype)

    def told(self, error):
        """A MismatchError in words, with the names of axes."""
        what, at, rest = str(error).partition(" at (")
        if not at:
            return what
        index, _, rest = rest.partition(")")
        places = zip(self.axes, index.split(","), strict=False)
        return f"{what} at {', '.join(f'{a} {n.strip()}' for a, n in places)}{rest}"

    def why_raised(self, function):
        """A hint for a function that raised, or None."""
        inputs, slips = self.elsewhere
        try:
            got = self.run(function, *(array.copy() for array in inputs))
        except Exception:
            return None
        return match(slips, got, *inputs)


def seeded(*sizes):
    """x, U, W and b, the same on every call."""
    return draw(np.random.default_rng(5), *sizes)


STEPS = "step", "sample", "unit"
_x, _U, _W, _b = SQUARE = seeded(4, 4, 3, 2)
EXERCISES = {
    "cell": Exercise(
        1,
        run_cell,
        why_cell,
        "three gates are sigmoids, g is a tanh; c = f c_prev + i g, then h = o tanh(c)",
        ("case",),
        draw=lambda rng, T, B, D, H: (rng.uniform(-2, 2, (T * B * H, 5)),),
        want=lambda a: dict(zip("hc", right(*a.T), strict=True)),
    ),
    "step": Exercise(
        2,
        run_step,
        partial(match, STEP_SLIPS),
        "a = x U + h W + b for all samples at once; gate k is columns k*H to (k+1)*H",
        STEPS,
        (seeded(3, 1, 1, 1), [(PRODUCT, truth)]),
    ),
    "recurrence": Exercise(
        3,
        run_recurrence,
        why_recurrence,
        "each sample begins with zeros; add h[k] * W[k, n] to a[n] for every k and n",
        STEPS,
        ((_x, _U, np.resize(_W, (8, 8)), _b), INDEX_SLIPS),
        compiled=True,
    ),
    "parallel": Exercise(
        4,
        run_parallel,
        why_parallel,
        "prange where iterations do not need each other, range where they do",
        ("slot", *STEPS[1:]),
        (SQUARE, INDEX_SLIPS),
        compiled=True,
    ),
    "tile": Exercise(
        5,
        run_tile,
        why_tile,
        "four sums, two numbers of A and two of B for each k; sum rc is row r times "
        "column c",
        ("row", "column"),
        (np.random.default_rng(5).uniform(-1, 1, (2, 4, 4)), TILE_SLIPS),
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
        lambda *_: None,
        "a block begins where the one before ends; the last block may have threads "
        "to spare",
        ("slot", *STEPS[1:]),
        # 15 samples leave no thread to spare, in either number of BLOCKS
        (seeded(15, 15, 1, 1), [(GUARD, truth)]),
    ),
}
