"""`numba-bf16`: inference with operands of products in half the bytes.

What changed from `numba-fused`: what a product multiplies, weights, x and h, is rounded
to bfloat16, and AVX512_BF16 multiplies pairs of such numbers (`cpu/bfloat16.py`). Sums,
the cell and the state stay float32. Bounded by the dot product of pairs for a
mini-batch, up to twice the rate of float32; by half the bytes for a single sample.
"""

import numpy as np

from ..cpu import bfloat16
from ..cpu.workspace import buffer
from ..errors import UnavailableError
from .numba_fused import NumbaFused


class NumbaBf16(NumbaFused):
    """`numba-fused` with products of bfloat16 numbers, for inference.

    Raises TypeError for parameters in float64, UnavailableError for a pass that would
    train.
    """

    name = "numba-bf16"
    tapes = False
    tiles_class = bfloat16.Bfloat16Tiles
    space_class = bfloat16.WordsSpace
    rounding = staticmethod(bfloat16.rounded)

    def __init__(self, params, threads=None):
        super().__init__(params, threads)
        if self._dtype != np.float32:
            want = f"float32: {self.name} has no other"
            raise TypeError(f"params: got {self._dtype}, want {want}")
        self._words = [
            {m: self._room(layer[m]) for m in "UW"} for layer in self.packed.layers
        ]
        self._words_are_old = True

    @staticmethod
    def _room(packed):
        """Memory for packed weights (J, rows, columns) as words."""
        J, rows, columns = packed.shape
        return buffer(J, rows // 2, columns, dtype=packed.dtype)

    def weights(self, l):
        return self.packed.layers[l] | self._words[l]

    def _replace(self, params):
        self._words_are_old = True
        super()._replace(params)

    def _space(self, *form):
        if self._words_are_old:  # an interrupt leaves them so
            for layer, packed in zip(self._words, self.packed.layers, strict=True):
                for m, words in layer.items():
                    words[...] = bfloat16.words_of_weights(packed[m])
            self._words_are_old = False
        return super()._space(*form)

    def _forward(self, x, state, training, spaces=None):
        if training:
            self._refuse_training()
        return super()._forward(x, state, training, spaces)

    def _refuse_training(self, *_):
        want = "numba-fused, which trains in float32"
        raise UnavailableError(f"name: got {self.name!r} for training, want {want}")

    _loss_and_grads = _step = _epoch = _refuse_training
