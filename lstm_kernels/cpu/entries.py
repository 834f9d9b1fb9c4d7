"""C entry points of compiled functions that take NamedTuples of arrays and integers.

Another thread is given integers alone. So the arguments of a pass, a NamedTuple of
arrays and integers, lie in memory as Numba itself passes them (`Arguments`), and
machine code is given their address: a `Reference`, of which it loads the fields that it
names.
"""

import ctypes
import hashlib
from functools import cache
from typing import NamedTuple

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    infer_getattr,
    lower_getattr_generic,
    models,
    register_model,
)

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


def hashed(text):
    """A short name for a text, or for what a text tells from others, as a type."""
    return hashlib.sha256(str(text).encode()).hexdigest()[:16]


class Reference(types.Type):
    """The Numba type of the address of a NamedTuple in memory, of a Numba type."""

    def __init__(self, kind):
        self.kind = kind
        # Symbols hold the name. Code that two processes kept, each of one kind, is
        # loaded in a third: where names were the same, so would be what they name.
        super().__init__(f"{kind.instance_class.__name__}_{hashed(kind)}")

    @property
    def key(self):
        return self.kind


def integers(fields):
    """The Reference of a NamedTuple of integers, which are words in a row."""
    return Reference(types.NamedUniTuple(types.int64, len(fields._fields), fields))


register_model(Reference)(lambda *kind: models.PrimitiveModel(*kind, WORD))


@infer_getattr
class _Fields(AttributeTemplate):
    key = Reference

    def generic_resolve(self, reference, name):
        fields = reference.kind.fields
        kind = reference.kind[fields.index(name)] if name in fields else None
        return Reference(kind) if isinstance(kind, types.BaseNamedTuple) else kind


@lower_getattr_generic(Reference)
def _field(context, builder, reference, address, name):
    kind = reference.kind
    pointer = context.get_value_type(kind).as_pointer()
    whole, k = builder.inttoptr(address, pointer), kind.fields.index(name)
    place = cgutils.gep_inbounds(builder, whole, 0, k)
    if isinstance(kind[k], types.BaseNamedTuple):
        return builder.ptrtoint(place, WORD)
    value = builder.load(place)
    # It does not change while compiled code runs: one load is enough
    value.set_metadata("invariant.load", builder.module.add_metadata([]))
    return value


class Item(NamedTuple):
    """A work item, which a stage is given (`stages.py`)."""

    number: int  # of the pass, in a call
    layer: int
    task_start: int  # steps of its task, in the order of the pass
    task_stop: int
    start: int  # its own
    stop: int
    low: int  # unit blocks
    high: int
    first: int  # samples
    last: int


@instruction(types.int64, *[types.int64] * (2 + len(Item._fields)))
def call_stage(builder, code, arguments, *item):
    """Call a stage at an address: the address of its Arguments, then those of an Item,
    which are put on the stack.
    """
    return call_address(builder, WORD, code, [arguments, on_stack(builder, item)])


@cache
def stage_entry(function, kind):
    """The address of a stage: function(net, item). kind: the Numba type of the
    Arguments, of which net is a Reference.
    """
    # Tells stages and types apart in Numba's cache
    label = hashed(f"{function.__qualname__} {kind}")
    return native(function, label, types.int64(Reference(kind), integers(Item)))
