"""Products of bfloat16 numbers: the tiles of `numba-fused` with operands of half the
bytes.

What a product multiplies, weights, x and h, is rounded to bfloat16, the upper half of a
float32 (Wang & Kanwar 2019): its exponent, 8 bits of precision. Two numbers are a
*word*, and lie where `tiles.py` has one number, so that the same loops run half as
often. The two of a word follow each other in the sum: rows k and k+1 of weights, units
of x and h. AVX512_BF16 multiplies two words in an instruction: two products, two sums;
it takes numbers below the normal range, 2^-126, for zero. The sums, the cell and all
that is no operand stay float32.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from numba import njit

from ..kernels import OPTIONS, cached
from . import registers
from .tiles import Tiles
from .workspace import Space, point

LARGEST = np.uint32(0x7F7F0000)  # bits of the largest finite bfloat16


def rounded(x):
    """An array of finite floats rounded to the nearest bfloat16, of two the even one;
    beyond the largest of them, to that. Its dtype stays.
    """
    bits = np.asarray(x, np.float32).view(np.uint32)
    sign, size = bits & np.uint32(1 << 31), bits & np.uint32(0x7FFFFFFF)
    near = size + np.uint32(0x7FFF) + (size >> 16 & np.uint32(1))
    near = np.minimum(near & np.uint32(0xFFFF0000), LARGEST) | sign
    return near.view(np.float32).astype(np.asarray(x).dtype)


def words(numbers):
    """An array of floats (..., n), n even, as words (..., n / 2) in a float32 array."""
    upper = rounded(np.ascontiguousarray(numbers)).view(np.uint32)
    return (upper[..., ::2] >> 16 | upper[..., 1::2]).view(np.float32)


def words_of_weights(packed):
    """Packed weights (J, rows, columns), rows even, as words of two rows each."""
    return words(packed.swapaxes(1, 2)).swapaxes(1, 2)


@njit(**OPTIONS)
def _upper(bits):
    """The upper half of a float32's bits after rounding, as `rounded` does it."""
    size = bits & np.uint32(0x7FFFFFFF)
    near = (size + np.uint32(0x7FFF) + ((size >> 16) & np.uint32(1))) >> 16
    return min(near, np.uint32(0x7F7F)) | ((bits >> 16) & np.uint32(0x8000))


@partial(cached, njit, **OPTIONS)
def words_of_rows(bits, out):
    """Rows of finite float32 numbers, their bits (n, D), as bits of words (n, m): two
    numbers each, of an odd D the last one with a zero.
    """
    n, D = bits.shape
    for row in range(n):
        for w in range(D // 2):
            low, high = _upper(bits[row, 2 * w]), _upper(bits[row, 2 * w + 1])
            out[row, w] = low | (high << 16)
        if D % 2:
            out[row, D // 2] = _upper(bits[row, D - 1])


def why_unavailable():
    """None where this CPU multiplies pairs, else the reason in words."""
    if registers.cpu_features().get("avx512bf16") and (
        registers.vector_registers().bytes == 64
    ):
        return None
    return "this CPU has no AVX512_BF16"


@dataclass(unsafe_hash=True)
class Bfloat16Tiles(Tiles):
    """The tiles of a cell whose products are of words; the dtype, of all else, is
    float32.
    """

    numbers: ClassVar[int] = 2

    def __post_init__(self):
        super().__post_init__()
        self.name = f"{self.name}_bfloat16"

    def all(self, keep=True):
        tiles = super().all(keep)
        return {name: tiles[name] for name in ("inputs", "step", "whole")}

    def product(self, m, a, b, total):
        return m.dot(a, b, total)

    def store_words(self, m, address, h):
        m.store_rounded(address, m.rounded(h))


class WordsSpace(Space):
    """A Space of inference with x and h as words beside h itself."""

    _same_as_h = ("h",)

    def _allocate(self, passes):
        L, D_words = self.sizes["L"], self.sizes["D_words"]
        self.sizes |= {"L_w": L, "x_width": D_words}
        return super()._allocate(passes | {"words"})

    def _aim_layers(self, net, layers):
        super()._aim_layers(net, layers)
        h_words = self.arrays["h_words"]
        point(layers[0], x_width=self.sizes["x_width"])
        for l, layer in enumerate(layers):
            point(layer, h_words=h_words[l])
            if l:
                point(layer, x=h_words[l - 1, 1:])

    def begin(self, x, state=None):
        x_words = self.arrays["x_words"]
        rows = x.shape[0] * x.shape[1]
        bits = x.view(np.uint32).reshape(rows, -1)
        words_of_rows(bits, x_words.view(np.uint32).reshape(rows, -1))
        return super().begin(x_words, state)

    def _begin_state(self, top, state):
        super()._begin_state(top, state)
        h_words, H = self.arrays["h_words"], self.sizes["H"]
        initial = np.zeros((len(h_words), self.sizes["B"], self.sizes["P"]), np.float32)
        initial[..., :H] = 0 if state is None else state[0]
        h_words[:, 0] = words(initial)
