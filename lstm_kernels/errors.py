"""What bad input gets: an error that names the argument, what it got and wants."""

import difflib
import math
import operator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

SMALL = 8192  # numbers; OpenBLAS takes threads for products of more than 10 000
FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
REAL = (int, float, np.integer, np.floating)


class UnavailableError(RuntimeError):
    """A version that exists but cannot run on this machine; the message says why."""


class DivergedError(ArithmeticError):
    """Training stopped at a number that is not finite. Holds `.epoch`, `.step`,
    `.history`.
    """

    # Unpickled by message
    def __init__(self, message, *, epoch=None, step=None, history=None):
        super().__init__(message)
        self.epoch, self.step, self.history = epoch, step, history


def check_array(name, value, shape, *, dtype=None):
    """Return `value` as a plain, C-contiguous, aligned np.ndarray, or raise.

    shape: sizes; a string stands for any size of at least one ("T", "B", ...). dtype:
    wanted dtype; None accepts float32 and float64. A memmap or another subclass is
    viewed as a plain array; a masked array and np.matrix, whose numbers mean something
    else, are refused. An array that is not contiguous or not aligned is copied; nothing
    is cast. NaN and infinity are refused. Raises TypeError (not an array, wrong dtype)
    or ValueError (rank, shape, empty, not finite).
    """
    if value.__class__ is not np.ndarray:
        value = _plain(name, value, f"a NumPy array of shape {_text(shape)}")
    if value.dtype not in FLOATS if dtype is None else value.dtype != dtype:
        want = "float32 or float64" if dtype is None else np.dtype(dtype)
        raise _wrong(TypeError, name, f"dtype {value.dtype}", want)
    got = value.shape
    if len(got) != len(shape):
        raise _wrong(ValueError, name, f"shape {got}", f"shape {_text(shape)}")
    for size, want in zip(got, shape, strict=True):
        if size == 0 or (want.__class__ is not str and size != want):
            empty = " and no empty axis" if 0 in got else ""
            raise _wrong(ValueError, name, f"shape {got}", _text(shape) + empty)
    # A small array is judged by its square, in one call: only finite numbers have a
    # finite one.
    finite = value.size <= SMALL and math.isfinite(np.vdot(value, value))
    if not (finite or np.isfinite(value).all()):
        first = _first(~np.isfinite(value), value)
        raise _wrong(ValueError, name, first, "finite values")
    if value.flags.c_contiguous and value.flags.aligned:
        return value
    return np.require(value, None, ("C", "A"))


def check_numbers(name, value, shape=("N",), *, positive=False):
    """Return real numbers (an array, a list, a pandas Series) as a new float64 array,
    or raise.

    shape: as for `check_array`; None takes any. positive: whether zero and less are
    refused. Raises TypeError (complex, dates, text, booleans, a mask) or ValueError as
    `check_array`.
    """
    want = "real numbers" if shape is None else f"real numbers of shape {_text(shape)}"
    if isinstance(value, np.ndarray):
        value = _plain(name, value, want)
    kind = type(value).__name__
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise _wrong(TypeError, name, f"{kind} ({error})", want) from None
    if array.dtype.kind not in "iuf":
        raise _wrong(TypeError, name, f"{kind} of {array.dtype}", want)
    shape = array.shape if shape is None else shape
    array = check_array(name, array.astype(np.float64), shape)
    if positive and array.min() <= 0:
        first = _first(array <= 0, array)
        raise _wrong(ValueError, name, first, "numbers above zero")
    return array


def check_dtype(name, value):
    """Return the np.dtype of float32 or float64, or raise TypeError."""
    dtype = None
    with suppress(TypeError, ValueError, SyntaxError):  # NumPy parses text
        dtype = None if value is None else np.dtype(value)
    if dtype is None or dtype not in FLOATS:  # None equals float64
        raise _wrong(TypeError, name, dtype or repr(value), "float32 or float64")
    return dtype


def check_int(name, value, low=1, high=None):
    """Return `value` as an int of `low` to `high` (None: any), or raise TypeError,
    ValueError.
    """
    span = f"of at least {low}" if high is None else f"from {low} to {high}"
    number = None
    with suppress(TypeError):
        number = None if isinstance(value, bool | np.bool_) else operator.index(value)
    if number is None or number < low or (high is not None and number > high):
        kind = TypeError if number is None else ValueError
        raise _wrong(kind, name, repr(value), f"an integer {span}")
    return number


def check_type(name, value, kind, want=None):
    """Return `value` if it is a `kind`, in words `want`, or raise TypeError."""
    if not isinstance(value, kind):
        want = want or f"lstm_kernels.{kind.__name__}"
        raise _wrong(TypeError, name, type(value).__name__, want)
    return value


def check_choice(name, value, choices):
    """Return `value` if it is one of `choices`, names, or raise ValueError."""
    if not isinstance(value, str) or value not in choices:
        near = difflib.get_close_matches(str(value).lower(), choices, n=1)
        mean = f"; did you mean {near[0]!r}?" if near else ""
        want = f"one of {', '.join(map(repr, choices))}{mean}"
        raise _wrong(ValueError, name, repr(value), want)
    return value


def check_rate(name, value, dtype=np.float64):
    """Return `value` as a positive float that `dtype` can hold, or raise TypeError,
    ValueError.
    """
    if not isinstance(value, REAL) or isinstance(value, bool):
        raise _wrong(TypeError, name, repr(value), "a number above zero")
    limits = np.finfo(dtype)
    # An int may be too large for a float, which NumPy's numbers would make of it.
    if not float(limits.tiny) <= value <= float(limits.max):
        span = f"from {limits.tiny:.3g} to {limits.max:.3g}"
        raise _wrong(ValueError, name, value, f"a number {span} in {limits.dtype}")
    return float(value)


def why_not_compiled():
    """None where Numba can compile this package, else the reason, in words."""
    try:
        import numba  # slow to import, and only needed here
    except Exception as error:
        return f"Numba cannot be imported: {error}"
    if numba.config.DISABLE_JIT:
        return "NUMBA_DISABLE_JIT is set"
    if not Path(__file__).exists():
        return "lstm_kernels is in an archive, and compiled code needs a folder"
    return None


@contextmanager
def extra(packages):
    """Import what the package can do without, `packages` of pip."""
    try:
        yield
    except ModuleNotFoundError as error:
        message = f"{error.name} is not installed: pip install {packages}"
        raise ModuleNotFoundError(message, name=error.name) from error


def counted(number, word):
    """`1 layer`, `2 layers`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def _wrong(kind, name, got, want):
    """The exception, of a kind, that every check raises."""
    return kind(f"{name}: got {got}, want {want}")


def _plain(name, value, want):
    """`value` as an np.ndarray and no subclass, without a copy, or TypeError."""
    if isinstance(value, np.ma.MaskedArray):
        raise _wrong(TypeError, name, "a masked array", f"{want} without a mask")
    if isinstance(value, np.matrix) or not isinstance(value, np.ndarray):
        raise _wrong(TypeError, name, type(value).__name__, want)
    return np.asarray(value)


def _text(shape):
    first = ", time first" if shape and shape[0] == "T" else ""
    end = ",)" if len(shape) == 1 else ")"
    return f"({', '.join(map(str, shape))}{end}{first}"


def _first(bad, value):
    """The first number of `value` that is `bad`, and where it is."""
    index = np.argwhere(bad)[0].tolist()
    return f"{value[tuple(index)]} at index {index}" if index else f"{value}"
