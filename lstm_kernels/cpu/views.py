"""Parts of arrays for micro-kernels, without what Python's slices do besides: negative
indices, and bounds that are cut off at an array's end.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from .instructions import WORD


@intrinsic
def view(context, array, start, shape):
    """The part of an array of some shape from element `start` on; the axes that the
    shape lacks are the first ones. The tests check that it lies inside.
    """
    if not isinstance(array, types.Array):
        return None
    kind = types.Array(array.dtype, len(shape), "A")
    skipped = array.ndim - len(shape)

    def generate(context, builder, signature, values):
        whole = make_array(array)(context, builder, values[0])
        strides = cgutils.unpack_tuple(builder, whole.strides)
        offset = ir.Constant(WORD, 0)
        indices = cgutils.unpack_tuple(builder, values[1])
        for index, stride in zip(indices, strides, strict=True):
            offset = builder.add(offset, builder.mul(index, stride))
        data = cgutils.pointer_add(builder, whole.data, offset)
        part = make_array(kind)(context, builder)
        sizes = cgutils.unpack_tuple(builder, values[2])
        rest = strides[skipped:]
        populate_array(part, data, sizes, rest, whole.itemsize, None)
        return part._getvalue()

    return kind(array, start, shape), generate
