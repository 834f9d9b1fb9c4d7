"""C entry points of compiled functions that take a NamedTuple of arrays.

Another thread is given integers alone. So the arguments of a pass, a NamedTuple of
arrays and integers, lie in memory as Numba itself passes them (`Arguments`), and
machine code that is called with that address begins by loading them (`loader`).
"""

import ctypes
import hashlib
from functools import cache

import numba
import numpy as np
from numba import types

from ..kernels import native
from .intrinsics import WORD, call_address, instruction, on_stack

_HEAD = object.__basicsize__
_word_at = ctypes.c_int64.from_address
_probe = np.zeros(1)
_QUICK = _word_at(id(_probe) + _HEAD).value == _probe.ctypes.data


def address(array):
    """The address of an array's numbers: the first field of NumPy's array object, which
    takes a tenth of the time of `array.ctypes.data`.
    """
    if _QUICK:
        return _word_at(id(array) + _HEAD).value
    return array.ctypes.data


def _words(value):
    """A value of a NamedTuple as the words that Numba passes it in: an array as no
    owner, no parent, its size, that of an item, its address, shape and strides.
    """
    if isinstance(value, tuple):
        return [word for item in value for word in _words(item)]
    if isinstance(value, np.ndarray):
        head = 0, 0, value.size, value.itemsize, address(value)
        return [*head, *value.shape, *value.strides]
    return [int(value)]


class Arguments:
    """A NamedTuple of arrays and integers in memory, for compiled code. Threads may
    read it: `set` is for what none of them reads meanwhile. The arrays of `values`
    are kept; those of `set` and `point` must live as long as they are read.
    """

    def __init__(self, values):
        self.values, self.type = values, numba.typeof(values)
        self.words, self._places = [], {}
        for name, value in values._asdict().items():
            self._places[name] = len(self.words)
            self.words += _words(value)
        self._memory = np.array(self.words, np.int64)
        self.words, self.address = memoryview(self._memory), address(self._memory)

    def set(self, name, value):
        """Let a field be another array, of the same dtype and number of axes, or
        another integer.
        """
        for k, word in enumerate(_words(value), self._places[name]):
            self.words[k] = word

    def point(self, name, array):
        """Let a field be another array of the same shape: the quicker `set`."""
        self.words[self._places[name] + 4] = address(array)


def loader(kind):
    """A function for compiled code: a value of a Numba type from its address."""

    def typing(context, place):
        def generate(context, builder, signature, values):
            model = context.data_model_manager[kind]
            pointer = builder.inttoptr(values[0], model.get_value_type().as_pointer())
            return builder.load(pointer)

        return kind(types.int64), generate

    return numba.extending.intrinsic(typing)


@instruction(types.int64, types.int64, types.int64)
def word(builder, place, k):
    """Word k at an address."""
    return builder.load(builder.gep(builder.inttoptr(place, WORD.as_pointer()), [k]))


def _stage(arguments, box):
    number, layer, begin, end = word(box, 0), word(box, 1), word(box, 2), word(box, 3)
    start, stop, low, high = word(box, 4), word(box, 5), word(box, 6), word(box, 7)
    first, last, net = word(box, 8), word(box, 9), load(arguments)  # noqa: F821
    return kernel(  # noqa: F821
        net, number, layer, begin, end, start, stop, low, high, first, last
    )


@instruction(types.int64, *[types.int64] * 12)
def call_stage(builder, code, arguments, *box):
    """Call a stage at an address for a box of work (`stages.py`): the address of its
    Arguments, then ten integers.
    """
    return call_address(builder, WORD, code, [arguments, on_stack(builder, box)])


@cache
def stage_entry(kernel, kind):
    """The address of a stage: kernel(arguments, ...) of ten integers. kind: the Numba
    type of the Arguments.
    """
    function = kernel.py_func
    # Tells stages and types apart in Numba's cache
    label = hashlib.sha256(f"{function.__qualname__} {kind}".encode()).hexdigest()[:16]
    names = {"kernel": kernel, "load": loader(kind), "word": word}
    label = f"{function.__name__}_{label}"
    return native(_stage, label, origins=[function.__module__], names=names)
