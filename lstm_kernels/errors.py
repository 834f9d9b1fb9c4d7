"""What bad input gets: an error that names the argument, what it got and what it wants."""

import math
import operator

import numpy as np

SMALL = 8192  # numbers; OpenBLAS takes threads for products of more than 10 000
FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


class UnavailableError(RuntimeError):
    """A version that exists but cannot run on this machine; the message says why."""


class LowOccupancyWarning(UserWarning):
    """A GPU version was given too little work to fill the device; the message says why."""


class DivergedError(ArithmeticError):
    """Training stopped because the loss is no longer finite. Holds `.epoch`, `.step` and
    `.history`.
    """

    def __init__(self, message, *, epoch, step, history):
        super().__init__(message)
        self.epoch, self.step, self.history = epoch, step, history


def check_array(name, value, shape, *, dtype=None):
    """Return `value` as a C-contiguous array, or raise.

    shape: sizes; a string stands for any size of at least one ("T", "B", ...).
    dtype: wanted dtype; None accepts float32 and float64.
    A non-contiguous array is copied; nothing is cast. NaN and infinity are refused.
    Raises TypeError (not an array, wrong dtype) or ValueError (rank, shape, empty, not finite).
    """

    def want():
        return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"

    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name}: got {type(value).__name__}, want a NumPy array of shape {want()}")
    if dtype is None and value.dtype not in FLOATS:
        raise TypeError(f"{name}: got dtype {value.dtype}, want float32 or float64")
    if dtype is not None and value.dtype != dtype:
        raise TypeError(
            f"{name}: got dtype {value.dtype}, want {np.dtype(dtype)}, the network's dtype"
        )
    if value.ndim != len(shape):
        raise ValueError(f"{name}: got {value.ndim} axes, shape {value.shape}, want shape {want()}")
    for got, size in zip(value.shape, shape, strict=True):
        if got == 0 or (size.__class__ is not str and got != size):
            raise ValueError(f"{name}: got shape {value.shape}, want {want()} and no empty axis")
    # A small array is judged by its square, in one call: only finite numbers have a finite one.
    finite = value.size <= SMALL and math.isfinite(np.vdot(value, value))
    if not (finite or np.isfinite(value).all()):
        bad = np.argwhere(~np.isfinite(value))[0].tolist()
        raise ValueError(f"{name}: got {value[tuple(bad)]} at index {bad}, want finite values")
    return value if value.flags.c_contiguous else np.ascontiguousarray(value)


def check_int(name, value, low=1):
    """Return `value` as an int of at least `low`, or raise TypeError or ValueError."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: got {value!r}, want an integer of at least {low}") from None
    if isinstance(value, bool) or number < low:
        raise ValueError(f"{name}: got {value!r}, want an integer of at least {low}")
    return number


def check_choice(name, value, choices):
    """Return `value` if it is one of `choices`, or raise ValueError."""
    if value not in choices:
        raise ValueError(f"{name}: got {value!r}, want one of {', '.join(map(repr, choices))}")
    return value


def check_rate(name, value):
    """Return `value` as a finite float above zero, or raise TypeError or ValueError."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: got {value!r}, want a number above zero") from None
    if not 0 < number < float("inf"):
        raise ValueError(f"{name}: got {value!r}, want a finite number above zero")
    return number
