"""Products of bfloat16 numbers: the tiles of `numba-fused` with operands of half the
bytes.

What a product multiplies, weights, x, h and gradients of gates, is rounded to bfloat16,
the upper half of a float32 (Wang & Kanwar 2019): its exponent, 8 bits of precision. Two
numbers are a *word*, and lie where `tiles.py` has one number, so that the same loops
run half as often. The two of a word follow each other in the sum: rows k and k+1 of
weights, units of h and of gradients, and in the gradient of a weight rows (t, sample).
The sums, the cell and all that is no operand stay float32.

Two ways to multiply words: AVX512_BF16's *dot product*, two products and two sums in an
instruction; or *widening*, which makes float32 of both halves and uses the float32
multiply-add. A product of two bfloat16 numbers has 16 bits, so float32 holds it
exactly, and both ways round the same sums in the same order: they give the same bits,
but that the dot product takes numbers below the normal range, 2^-126, for zero.
"""

from dataclasses import dataclass
from typing import ClassVar

import llvmlite.binding
import numba
import numpy as np

from ..errors import check_choice
from . import registers
from .tiles import Tiles

WAYS = {
    "dot": "AVX512_BF16: a dot product of pairs",
    "widening": "widened to float32 as they are loaded",
}


def rounded(x):
    """An array of floats rounded to the nearest bfloat16, of two the even one; its
    dtype stays.
    """
    bits = np.asarray(x, np.float32).view(np.uint32)
    near = bits + (0x7FFF + (bits >> 16 & 1)).astype(np.uint32)
    near = np.where(np.isnan(x), bits | 1 << 22, near).astype(np.uint32)
    return (near & np.uint32(0xFFFF0000)).view(np.float32).astype(np.asarray(x).dtype)


def available():
    """The ways that this CPU has, the one that is chosen first.

    The dot product comes first where its rate was measured to be above that of
    multiply-adds: on AMD's Zen 4, twice. On Intel's Emerald Rapids it was measured at
    half of it.
    """
    features = registers.cpu_features()
    if not (features.get("avx512bf16") and registers.vector_registers().bytes == 64):
        return ("widening",)
    amd = (numba.config.CPU_NAME or llvmlite.binding.get_host_cpu_name()).startswith(
        "znver"
    )
    return ("dot", "widening") if amd else ("widening", "dot")


def check_way(way):
    """The way to multiply: the best of `available` for None. ValueError for one it
    lacks.
    """
    return available()[0] if way is None else check_choice("way", way, available())


@dataclass(unsafe_hash=True)
class Bfloat16Tiles(Tiles):
    """The tiles of a cell whose products are of words; the dtype, of all else, is
    float32.
    """

    way: str = "dot"
    numbers: ClassVar[int] = 2

    def __post_init__(self):
        super().__post_init__()
        self.name = f"{self.name}_{self.way}"

    def all(self, keep=True):
        tiles = super().all(keep)
        for name in (
            "few",
            "single",
        ):  # what reads rows of packed weights, or has no words of h
            del tiles[name]
        pairs = {
            f"pair_{source}": self.pair(source) for source in ("numbers", "rounded")
        }
        return tiles | pairs | {"round_numbers": self.round_numbers()}

    def tile_rows(self, vectors):
        return registers.tile_rows(vectors, halves=1 if self.way == "dot" else 2)

    def operand(self, m, word):
        """Of a word that is widened two registers: its halves."""
        return word if self.way == "dot" else [*m.halves(word)]

    def product(self, m, a, b, total):
        if self.way == "dot":
            return m.dot(a, b, total)
        for a_half, b_half in zip(a, b, strict=True):
            total = m.fma(a_half, b_half, total)
        return total

    def store_operand(self, m, address, vector):
        m.store_rounded(address, m.rounded(vector))

    def keep_h(self, m, kept, first, i, v, h):
        h_all, row = kept
        place = first * row + (i * row + v * self.vector_bytes // self.numbers)
        m.store_rounded(h_all + place, m.rounded(h))

    def round_numbers(self):
        """out = x rounded, for rows of so many vectors and `rest` numbers."""

        def round_numbers(m, rows, vectors, rest, x, x_row, out, out_row):
            line, half, size = (
                self.vector_bytes,
                self.vector_bytes // 2,
                self.dtype.itemsize,
            )
            one = m.of_one_lane()

            def row(r):
                x_r, out_r = (
                    x + r * x_row,
                    out + r * out_row,
                )  # the first number of row r

                def vector(v):
                    m.store_rounded(out_r + v * half, m.rounded(m.load(x_r + v * line)))

                def number(k):
                    x_k = x_r + vectors * line + k * size  # number k behind the vectors
                    place = out_r + vectors * half + k * (size // 2)  # the same
                    one.store_rounded(place, one.rounded(one.load(x_k)))

                m.loop(vectors, vector)
                one.loop(rest, number)

            m.loop(rows, row)

        return round_numbers

    def pair(self, source):
        """Rows of words out of two rows of numbers each, a and b; `row` bytes from a to
        the next a.

        source: "numbers", float32 that are rounded here, or "rounded", bfloat16.
        """
        of_numbers = source == "numbers"

        def pair(m, count, vectors, a, b, row, out, out_row):
            line = self.vector_bytes
            width = line if of_numbers else line // 2

            def load(address):
                return (
                    m.rounded(m.load(address))
                    if of_numbers
                    else m.load_rounded(address)
                )

            def one_row(p):
                def vector(v):
                    place = p * row + v * width  # row p, vector v
                    words = m.pair(load(a + place), load(b + place))
                    m.store(out + p * out_row + v * line, words)  # the same

                m.loop(vectors, vector)

            m.loop(count, one_row)

        pair.__name__ = f"pair_{source}"
        return pair
