"""`numba-bf16`: operands of products in half the bytes.

What changed from `numba-fused`: what a product multiplies, weights, x, h and gradients
of gates, is rounded to bfloat16, two numbers where there was one (`cpu/bfloat16.py`).
Sums, the cell, the state, the read-out, and the parameters that descent changes stay
float32. Bounded by the processor's dot product of pairs for a mini-batch, which is up
to twice the rate of float32; by half the bytes for a single sample, whichever way they
are multiplied.
"""

from functools import cache, partial

import numpy as np

from ..cells import CELLS
from ..cpu import bfloat16_space, machine_code
from ..cpu.bfloat16 import WAYS, Bfloat16Tiles, check_way, rounded
from .numba_fused import NumbaFused, measured
from .numba_wavefront import NumbaWavefront

FLOAT = np.dtype(np.float32)


class Bfloat16Products:
    """What a network in tiles becomes whose products are of bfloat16 numbers.

    way: "dot" or "widening" (`cpu/bfloat16.py`); None takes what is fastest on this
    processor. Raises ValueError for a way that it lacks, TypeError for parameters in
    float64. The rest is as of the network that follows in the order of classes.
    """

    space = bfloat16_space.Bfloat16Space
    rounding = staticmethod(rounded)

    def __init__(self, params, threads=None, *, way=None, **more):
        self.way = check_way(way)
        super().__init__(params, threads, **more)
        self._made_with["way"] = way

    def _choose_tiles(self):
        if self._dtype != FLOAT:
            raise TypeError(
                f"params: got {self._dtype}, want float32: {self.name} has no other"
            )
        return Bfloat16Tiles(
            self._cell, FLOAT, self._params.hidden_size, None, self.way
        )

    def _choose_kernels(self):
        return machine_code.kernels(FLOAT, words=True)

    def _operands(self):
        return bfloat16_space.operands(self)

    # Words of U and W are written when they are needed next: an interrupt finds them
    # old or new.

    def _forget(self):
        super()._forget()
        self._words_are_old = True

    def _replace(self, params):
        self._words_are_old = True
        super()._replace(params)

    def pack_transposes(self, space):
        super().pack_transposes(space)  # and of all that is made of the parameters
        self._words_are_old = False

    def _space(self, *form):
        space = super()._space(*form)
        if self._words_are_old:
            bfloat16_space.pack(self)
            self._words_are_old = False
        return space

    def machine_costs(self):
        return machine_costs(self.way, self._threads)


class NumbaBf16(Bfloat16Products, NumbaFused):
    """`numba-fused` with products of bfloat16 numbers."""

    name = "numba-bf16"


class NumbaBf16Wavefront(Bfloat16Products, NumbaWavefront):
    """`numba-wavefront` with products of bfloat16 numbers."""

    name = "numba-bf16-wavefront"


@cache
def machine_costs(way, threads):
    """The costs of a way on this machine (`cost.py`), measured at the first call."""

    def tiles(H):
        return Bfloat16Tiles(CELLS["lstm"], FLOAT, H, None, way)

    return measured(partial(NumbaBf16, threads=threads, way=way), tiles, FLOAT, threads)


def way_in_words():
    """Which of the ways runs here, as the ladder says it."""
    return WAYS[check_way(None)]
