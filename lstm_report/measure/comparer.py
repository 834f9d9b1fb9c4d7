"""The one comparer: results against the reference's, array by array, by name."""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import SimpleNamespace

import numpy as np

from lstm_kernels import reference
from lstm_kernels.cells import CELLS
from lstm_kernels.params import Params
from lstm_kernels.versions import VersionName, network
from lstm_kernels.versions.base import Network

Arrays = Mapping[str, np.ndarray]
# Largest error, relative to the largest entry of the array, that counts as rounding.
TOLERANCE = {np.dtype(np.float32): 2e-5, np.dtype(np.float64): 1e-11}
# From a bfloat16 number to the next, relative to it: it has 8 bits.
LAST_PLACE = 2.0**-7


class MismatchError(AssertionError):
    """Results differ; the message names the array."""


def tolerance(net: Network, T: int) -> float:
    """The largest relative error of a network's passes over T steps that counts as
    rounding.

    A network whose products round their operands is compared with a reference that
    rounds them too. The two add in another order, so a sum close to the middle between
    two bfloat16 numbers may be rounded to the other one. One of the H terms of a sum
    that is off by LAST_PLACE changes it by LAST_PLACE / sqrt(H) of its size; such
    changes add up over T steps and L layers like a random walk; the largest of some
    thousand values is four times a typical one, sqrt(2 ln 2N).
    """
    params = net.params()
    if net.rounding is None:
        return TOLERANCE[params.dtype]
    return 4 * LAST_PLACE * math.sqrt((T + params.num_layers) / params.hidden_size)


def reference_of(rounding: Callable | None) -> SimpleNamespace:
    """`forward`, `backward` and `loss_and_grads` of the reference, with products whose
    operands a function rounds first; None: as they are.
    """

    def product(a, b):
        return rounding(a) @ rounding(b)

    options = {} if rounding is None else {"product": product}
    forward = {"layer_forward": partial(reference.layer_forward, **options)}
    backward = {"layer_backward": partial(reference.layer_backward, **options)}
    return SimpleNamespace(
        forward=partial(reference.forward, **forward),
        backward=partial(reference.backward, **backward),
        loss_and_grads=partial(reference.loss_and_grads, **forward, **backward),
    )


def compare(got: Arrays, want: Arrays, tolerance: float) -> float:
    """Compare two dicts of named arrays; return the largest relative error.

    The error of an array is max|got - want| / max|want|; the divisor is 1 where want is
    all zero. Raises MismatchError for missing or extra names, what is not real numbers,
    another shape, NaN or infinity, or too large an error.
    """
    if set(got) != set(want):
        raise MismatchError(f"got arrays {sorted(got)}, want {sorted(want)}")
    errors = [0.0]
    for name in want:
        value = _real(name, "got", got[name])
        expected = _real(name, "compared with", want[name])
        if value.shape != expected.shape:
            shapes = f"got shape {value.shape}, want {expected.shape}"
            raise MismatchError(f"{name}: {shapes}")
        if bad := np.sum(~np.isfinite(value)):
            raise MismatchError(f"{name}: got {bad} values that are not finite")
        difference = np.abs(value - expected)
        error = difference.max() / (np.abs(expected).max() or 1.0)
        if not error <= tolerance:
            at = tuple(map(int, np.unravel_index(difference.argmax(), value.shape)))
            raise MismatchError(
                f"{name}: relative error {error:.3g} at {at}, want at most "
                f"{tolerance:g} (got {value[at]:.6g}, want {expected[at]:.6g})"
            )
        errors.append(float(error))
    return max(errors)


def _real(name, side, array):
    """An array of real numbers as float64; None and other kinds are refused."""
    dtype = None if array is None else np.asarray(array).dtype
    if dtype is None or dtype.kind not in "fiub":
        raise MismatchError(f"{name}: {side} {dtype}, want real numbers")
    return np.asarray(array, np.float64)


def compare_outputs(
    programs: Mapping[str, Callable[[], np.ndarray]],
    params: Params,
    x: np.ndarray,
    *,
    samples: np.ndarray | None = None,
    tolerances: Mapping[str, float] | Iterable[tuple[str, float]] = (),
) -> dict[str, float]:
    """Largest relative error of each program's outputs against the reference in
    float64, by name.

    programs: name -> a function that returns y (T, B, H) of the mini-batch x. samples:
    indices of those of x to compare; None is all. tolerances: by name, where it is not
    that of x. Raises MismatchError, which names the program.
    """
    samples = np.arange(x.shape[1]) if samples is None else samples
    wide = params.astype(np.float64), x[:, samples].astype(np.float64)
    want = {"y": reference.forward(*wide)[0]}
    errors, mosts = {}, dict(tolerances)
    for name, program in programs.items():
        try:
            most = mosts.get(name, TOLERANCE[x.dtype])
            errors[name] = compare({"y": program()[:, samples]}, want, most)
        except MismatchError as error:
            raise MismatchError(f"{name}: {error}") from None
    return errors


def run(net, x, dy, state, dstate):
    """What a network computes on each public path, as a dict of named arrays.

    Inference from `state`, then from zero; then, unless the network rounds what it
    multiplies, which is for inference alone, a training pass from `state` and every
    gradient. A path that no comparison takes may be wrong unseen, and a state that one
    call leaves behind shows in the next.
    """
    passes = {
        "inference": net.forward(x, state),
        "inference from zero": net.forward(x),
    }
    if net.rounding is not None:
        return _named(passes)
    passes["training"] = net.forward(x, state, training=True)
    return _named(passes) | net.backward(dy, dstate).arrays()


def truth(params, x, dy, state=None, dstate=None, rounding=None):
    """What `run` returns, from the reference in float64. rounding: of what products
    multiply, in inference; None: nothing.
    """
    exact = reference_of(rounding)
    params, x, dy = (array.astype(np.float64) for array in (params, x, dy))
    state, dstate = (
        arrays and tuple(a.astype(np.float64) for a in arrays)
        for arrays in (state, dstate)
    )
    y, final, tapes = exact.forward(params, x, state)
    passes = {"inference": (y, final), "inference from zero": (y, final)}
    if state is not None:
        passes["inference from zero"] = exact.forward(params, x)[:2]
    if rounding is not None:
        return _named(passes)
    passes["training"] = y, final
    return _named(passes) | exact.backward(params, tapes, dy, dstate).arrays()


def _named(passes):
    """The arrays of passes, path -> (y, final state), by name."""
    named = {}
    for path, (y, final) in passes.items():
        named[f"{path}: y"] = y
        named |= {f"{path}: final.{i}": array for i, array in enumerate(final)}
    return named


def compare_to_reference(
    version: VersionName | Network,
    params: Params,
    x: np.ndarray,
    *,
    threads: int | None = None,
    seed: int = 0,
) -> float:
    """Run every public path of a version, from random states and from zero, forward and
    backward; return its largest relative error. Where its products round their
    operands, so do those of what it must agree with; what is returned is the error
    against the reference that rounds nothing.

    version: its name, or a network made from `params`. x: (T, B, D). Raises
    MismatchError.
    """
    rng = np.random.default_rng(seed)
    (T, B, _), L, H = x.shape, params.num_layers, params.hidden_size
    dy = rng.standard_normal((T, B, H)).astype(x.dtype)
    state, dstate = (
        tuple(rng.uniform(-1, 1, (L, B, H)).astype(x.dtype) for _ in names)
        for names in [CELLS[params.cell].state] * 2
    )
    if isinstance(version, str):
        version = network(version, params, threads=threads)
    net = version
    arguments = x, dy, state, dstate
    got, want = run(net, *arguments), truth(params, *arguments, rounding=net.rounding)
    error = compare(got, want, tolerance(net, T))
    if net.rounding is None:
        return error
    unrounded = truth(params, *arguments)
    return compare(got, {name: unrounded[name] for name in got}, math.inf)
