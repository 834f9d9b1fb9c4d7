"""The one comparer: results against the reference's, array by array, by name."""

from collections.abc import Callable, Mapping

import numpy as np

from lstm_kernels import reference
from lstm_kernels.cells import CELLS
from lstm_kernels.params import Params
from lstm_kernels.versions import VersionName, network
from lstm_kernels.versions.base import Network

Arrays = Mapping[str, np.ndarray]
State = tuple[np.ndarray, ...]
# Largest error, relative to the largest entry of the array, that counts as rounding.
TOLERANCE = {np.dtype(np.float32): 2e-5, np.dtype(np.float64): 1e-11}


class MismatchError(AssertionError):
    """Results differ; the message names the array."""


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
        if len(bad := np.argwhere(~np.isfinite(value))):
            first = f"the first at {tuple(bad[0].tolist())}"
            found = f"got {len(bad)} values that are not finite"
            raise MismatchError(f"{name}: {found}, {first}")
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
) -> dict[str, float]:
    """Largest relative error of each program's outputs against the reference in
    float64, by name.

    programs: name -> a function that returns y (T, B, H) of the mini-batch x. Raises
    MismatchError, which names the program.
    """
    wide = params.astype(np.float64), x.astype(np.float64)
    want, errors = {"y": reference.forward(*wide)[0]}, {}
    for name, program in programs.items():
        try:
            errors[name] = compare({"y": program()}, want, TOLERANCE[x.dtype])
        except MismatchError as error:
            raise MismatchError(f"{name}: {error}") from None
    return errors


def run(
    net: Network, x: np.ndarray, dy: np.ndarray, state: State, dstate: State
) -> dict[str, np.ndarray]:
    """What a network computes on each public path, as a dict of named arrays.

    Inference from `state`, then from zero; then a training pass from `state` and every
    gradient. A path that no comparison takes may be wrong unseen, and a state that one
    call leaves behind shows in the next.
    """
    passes = {
        "inference": net.forward(x, state),
        "inference from zero": net.forward(x),
    }
    passes["training"] = net.forward(x, state, training=True)
    return _named(passes) | net.backward(dy, dstate).arrays()


def truth(
    params: Params,
    x: np.ndarray,
    dy: np.ndarray,
    state: State | None = None,
    dstate: State | None = None,
) -> dict[str, np.ndarray]:
    """What `run` returns, from the reference in float64."""
    params, (x, dy) = params.astype(np.float64), _wide((x, dy))
    state, dstate = state and _wide(state), dstate and _wide(dstate)
    y, final, tapes = reference.forward(params, x, state)
    passes = {"inference": (y, final), "inference from zero": (y, final)}
    if state is not None:
        passes["inference from zero"] = reference.forward(params, x)[:2]
    passes["training"] = y, final
    return _named(passes) | reference.backward(params, tapes, dy, dstate).arrays()


def _wide(arrays):
    return tuple(array.astype(np.float64) for array in arrays)


def _named(passes):
    """The arrays of passes, path -> (y, final state), by name."""
    named = {}
    for path, (y, final) in passes.items():
        named[f"{path}: y"] = y
        named |= {f"{path}: final.{i}": array for i, array in enumerate(final)}
    return named


def compare_to_reference(
    version: VersionName | Network, params: Params, x: np.ndarray
) -> float:
    """Run every public path of a version, from random states and from zero, forward and
    backward; return its largest relative error.

    version: its name, or a network made from `params`. x: (T, B, D). Raises
    MismatchError.
    """
    rng = np.random.default_rng(0)
    (T, B, _), L, H = x.shape, params.num_layers, params.hidden_size
    dy = rng.standard_normal((T, B, H)).astype(x.dtype)
    state, dstate = (
        tuple(rng.uniform(-1, 1, (L, B, H)).astype(x.dtype) for _ in names)
        for names in [CELLS[params.cell].state] * 2
    )
    if isinstance(version, str):
        version = network(version, params)
    arguments = x, dy, state, dstate
    got, want = run(version, *arguments), truth(params, *arguments)
    return compare(got, want, TOLERANCE[params.dtype])
