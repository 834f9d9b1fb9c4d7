"""The one comparer: a version's results against the reference's, array by array, by
name.
"""

import math
from functools import partial
from types import SimpleNamespace

import numpy as np

from lstm_kernels import reference
from lstm_kernels.versions import network

# Largest error, relative to the largest entry of the array, that counts as rounding.
TOLERANCE = {np.dtype(np.float32): 2e-5, np.dtype(np.float64): 1e-11}
LAST_PLACE = (
    2.0**-7
)  # from a bfloat16 number to the next, relative to it: it has 8 bits


def tolerance(net, T):
    """The largest relative error of a network's passes over T steps that counts as
    rounding.

    Where products round their operands, it is compared with a reference that rounds
    them too. The two add in another order; a sum that is close to the middle between
    two bfloat16 numbers may then be rounded to the other one. One of the H terms of a
    sum that is off by LAST_PLACE changes the sum by LAST_PLACE / sqrt(H) of its size; a
    value comes out of sums of T steps and L layers one after the other, whose changes
    add up like those of a random walk; and the largest of some thousand values is four
    times a typical one, sqrt(2 ln 2N).
    """
    params = net.params()
    if net.rounding is None:
        return TOLERANCE[params.dtype]
    return 4 * LAST_PLACE * math.sqrt((T + params.num_layers) / params.hidden_size)


def format_error(L, T, count):
    """The largest relative error that rounding operands to bfloat16 explains, of
    `count` values.

    An operand errs by 2^-8 of itself at most. Spread evenly, the errors of two factors
    are in the mean square 2^-8 sqrt(2/3) of their product, and a sum of products errs
    by as much of its own size, whatever its length. Sums of T steps and L layers follow
    each other, as in `tolerance`; the largest of N values is sqrt(2 ln 2N) times a
    typical one.
    """
    typical = LAST_PLACE / 2 * math.sqrt(2 / 3 * (T + L))
    return typical * math.sqrt(2 * math.log(2 * count))


def reference_of(rounding):
    """`forward`, `backward` and `loss_and_grads` of the reference, with products whose
    operands a function rounds first; None: as they are.
    """

    def product(a, b):
        return rounding(a) @ rounding(b)

    layers = {} if rounding is None else {"product": product}
    forward, backward = (
        {name: partial(getattr(reference, name), **layers)}
        for name in ("layer_forward", "layer_backward")
    )
    return SimpleNamespace(
        forward=partial(reference.forward, **forward),
        backward=partial(reference.backward, **backward),
        loss_and_grads=partial(reference.loss_and_grads, **forward, **backward),
    )


class MismatchError(AssertionError):
    """Results differ; the message names the array."""


def compare(got, want, tolerance):
    """Compare two dicts of named arrays; return the largest relative error.

    The error of an array is max|got - want| / max|want| (the divisor is 1 where want is all zero).
    Raises MismatchError for missing or extra names, what is not real numbers, another shape, NaN or
    infinity, or too large an error.
    """
    if set(got) != set(want):
        raise MismatchError(f"got arrays {sorted(got)}, want {sorted(want)}")
    worst = 0.0
    for name, expected in want.items():
        for side, array in (("got", got[name]), ("compared with", expected)):
            if array is None or (dtype := np.asarray(array).dtype).kind not in "fiub":
                kind = None if array is None else dtype
                raise MismatchError(f"{name}: {side} {kind}, want real numbers")
        value, expected = (
            np.asarray(array, np.float64) for array in (got[name], expected)
        )
        if value.shape != expected.shape:
            raise MismatchError(
                f"{name}: got shape {value.shape}, want {expected.shape}"
            )
        if bad := np.sum(~np.isfinite(value)):
            raise MismatchError(f"{name}: got {bad} values that are not finite")
        difference = np.abs(value - expected)
        error = difference.max() / (np.abs(expected).max() or 1.0)
        if not error <= tolerance:
            at = tuple(map(int, np.unravel_index(difference.argmax(), value.shape)))
            raise MismatchError(
                f"{name}: relative error {error:.3g} at {at}, want at most {tolerance:g} "
                f"(got {value[at]:.6g}, want {expected[at]:.6g})"
            )
        worst = max(worst, error)
    return float(worst)


def compare_outputs(programs, params, x, *, samples=None):
    """Largest relative error of each program's outputs against the reference in
    float64, by name.

    programs: name -> a function that returns y (T, B, H) of the mini-batch x. samples:
    indices of those of x to compare; None is all. Raises MismatchError, which names the
    program.
    """
    samples, errors = np.arange(x.shape[1]) if samples is None else samples, {}
    want = reference.forward(
        params.astype(np.float64), x[:, samples].astype(np.float64)
    )[0]
    for name, program in programs.items():
        try:
            errors[name] = compare(
                {"y": program()[:, samples]}, {"y": want}, TOLERANCE[x.dtype]
            )
        except MismatchError as error:
            raise MismatchError(f"{name}: {error}") from None
    return errors


def run(net, x, dy, state, dstate):
    """What a network computes on each public path, as a dict of named arrays.

    Inference from `state`, then from zero, then a training pass from `state` (each y
    and every final state), and every gradient: a path that no comparison takes may be
    wrong unseen, and a state that one call leaves behind shows in the next.
    """
    passes = {
        "inference": net.forward(x, state),
        "inference from zero": net.forward(x),
        "training": net.forward(x, state, training=True),
    }
    return _named(passes) | net.backward(dy, dstate).arrays()


def truth(params, x, dy, state=None, dstate=None, rounding=None):
    """What `run` returns, from the reference in float64. rounding: of what products
    multiply.
    """
    of = reference_of(rounding)
    params, x, dy = (array.astype(np.float64) for array in (params, x, dy))
    state, dstate = (
        arrays and tuple(a.astype(np.float64) for a in arrays)
        for arrays in (state, dstate)
    )
    y, final, tapes = of.forward(params, x, state)
    passes = dict.fromkeys(("inference", "inference from zero", "training"), (y, final))
    if state is not None:
        passes["inference from zero"] = of.forward(params, x)[:2]
    return _named(passes) | of.backward(params, tapes, dy, dstate).arrays()


def _named(passes):
    """The arrays of passes, path -> (y, final state), by name."""
    named = {}
    for path, (y, final) in passes.items():
        named[f"{path}: y"] = y
        named |= {f"{path}: final.{i}": array for i, array in enumerate(final)}
    return named


def compare_to_reference(version, params, x, *, threads=None, seed=0):
    """Run every public path of a version, from random states and from zero, forward and
    backward; return its largest relative error. Where its products round their
    operands, so do those of what it must agree with; what is returned is the error
    against the reference that rounds nothing.

    version: its name, or a network made from `params`. x: (T, B, D). Raises
    MismatchError.
    """
    rng = np.random.default_rng(seed)
    (T, B, _), L, H = x.shape, params.num_layers, params.hidden_size
    count = 2 if params.cell == "lstm" else 1
    dy = rng.standard_normal((T, B, H)).astype(x.dtype)
    state, dstate = (
        tuple(rng.uniform(-1, 1, (L, B, H)).astype(x.dtype) for _ in range(count))
        for _ in range(2)
    )
    net = (
        network(version, params, threads=threads)
        if isinstance(version, str)
        else version
    )
    given = params, x, dy, state, dstate
    got, want = run(net, x, dy, state, dstate), truth(*given, rounding=net.rounding)
    error = compare(got, want, tolerance(net, T))
    return error if net.rounding is None else compare(got, truth(*given), math.inf)
