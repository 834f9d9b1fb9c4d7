"""Words that threads share: elements of arrays of int64, read and changed as one step.

Ordering is C11's: a load acquires, the others are sequentially consistent.
"""

from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from .intrinsics import WORDS

INT = types.int64


def _element(context, builder, values):
    """A pointer to words[i], the first two values."""
    data = make_array(WORDS)(context, builder, values[0]).data
    return builder.gep(data, [values[1]])


@intrinsic
def load_acquire(context, words, i):
    """words[i], before anything that is read later."""

    def generate(context, builder, signature, values):
        return builder.load_atomic(_element(context, builder, values), "acquire", 8)

    return INT(WORDS, INT), generate


@intrinsic
def atomic_add(context, words, i, number):
    """words[i] += number; its old value."""

    def generate(context, builder, signature, values):
        element = _element(context, builder, values)
        return builder.atomic_rmw("add", element, values[2], "seq_cst")

    return INT(WORDS, INT, INT), generate


@intrinsic
def atomic_exchange(context, words, i, number):
    """words[i] = number; its old value."""

    def generate(context, builder, signature, values):
        element = _element(context, builder, values)
        return builder.atomic_rmw("xchg", element, values[2], "seq_cst")

    return INT(WORDS, INT, INT), generate


@intrinsic
def compare_and_swap(context, words, i, old, new):
    """If words[i] is `old`, make it `new`: whether it was."""

    def generate(context, builder, signature, values):
        element = _element(context, builder, values)
        pair = builder.cmpxchg(element, values[2], values[3], "seq_cst", "acquire")
        return builder.extract_value(pair, 1)

    return types.boolean(WORDS, INT, INT, INT), generate
