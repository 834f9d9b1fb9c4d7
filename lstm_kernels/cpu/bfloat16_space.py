"""The memory of `numba-bf16`: operands, beside the float32 that `workspace.py`
keeps.
"""

import numpy as np

from .bfloat16 import rounded
from .block_kernels import GRAIN
from .workspace import Space, Work, buffer, codes, describe, point


def words(numbers):
    """An array of floats (..., n), n even, as words (..., n / 2), whose dtype is
    float32.
    """
    upper = rounded(numbers).view(np.uint32)
    return (upper[..., ::2] >> 16 | upper[..., 1::2]).view(np.float32)


def operands(net):
    """Room for the operands of each layer that are made of its parameters: U, W, UT,
    WT.
    """
    tiles, layers = net.tiles, []
    for packed in net.packed.layers:
        layer = {}
        for m in "UW":
            J, rows, G, units = packed[m].shape
            layer[m] = buffer(J, tiles.words(rows), G, units, dtype=tiles.dtype)
            lines, wide = tiles.words(J * G * units), tiles.wide_units
            layer[f"{m}T"] = buffer(rows // wide, lines, wide, dtype=tiles.dtype)
        layers.append(layer)
    return layers


def pack(net):
    """Write U and W as operands, on one thread."""
    work = Work(*describe(net), 1)
    point(work.job, **codes(net.tiles, "pair_numbers"))
    net.kernels.run(1, "pack", work, net)


class Bfloat16Space(Space):
    """A Space with x, h and gradients of gates as words, in arrays whose dtype is
    float32.
    """

    def _aim_operands(self, net, layers, job, outputs):
        (T, B, _), tiles, L = self.y_shape, net.tiles, len(layers)
        self.x_words = self._new(T, B, tiles.words(self._columns(tiles, net.sizes[0])))
        # Slot 0 is the initial h, for the gradient of W.
        rooms, width = L if len(self.h) >= L - 1 else 2, tiles.words(tiles.padded)
        self.h_words, self.h0_words = (
            self._new(rooms, T + 1, B, width),
            self._new(L, B, width),
        )
        point(job, h0=self.h0_words, **codes(tiles, "round_numbers", "pair_numbers"))
        for l, layer in enumerate(layers):
            below = self.h_words[(l - 1) % rooms, 1:] if l else self.x_words
            point(
                layer,
                h_all=self.h_words[l % rooms, 1:],
                h_before=self.h_words[l % rooms],
            )
            point(layer, x=below, x_row=below[0, 0].nbytes)

    @staticmethod
    def _columns(tiles, count):
        """Numbers of a row that is read in whole vectors: an even number of lanes."""
        return -(-count // (2 * tiles.lanes)) * 2 * tiles.lanes

    def _gradients_of_gates(self):
        *shape, columns = self.a.shape
        return self._new(*shape, columns // 2)

    def _through(self, sizes):
        return {"through_U"} if sizes else set()

    def _prepare_training(self, net):
        super()._prepare_training(net)
        (T, B, _), tiles, job = self.y_shape, net.tiles, self.work.job
        pairs = (T * B + 1) // 2
        self.pairs = []
        for layer, D in zip(self.work.layers, net.sizes, strict=True):
            x, h = (
                self._new(pairs, self._vectors(tiles, n)) for n in (D, tiles.hidden)
            )
            self.pairs.append((x, h))
            point(layer, x_pairs=x, h_pairs=h)
        # As long as any row of operands; the number 1 as both halves of a word.
        self.zero = self._new(max(tiles.padded, *map(tiles.pad, net.sizes)))
        self.one = words(np.ones((1, 2), np.float32))[0]
        columns = max(GRAIN * self.a.shape[-1], self.a.shape[-1] * tiles.wide_units)
        self.scratch = self._new(len(net.sizes) * tiles.blocks, columns)
        point(job, zero=self.zero, one=self.one, dh=self.zero, scratch=self.scratch)
        point(job, scratch_block=self.scratch[0].nbytes, **codes(tiles, "pair_rounded"))

    @staticmethod
    def _vectors(tiles, count):
        """Numbers in so many whole vectors."""
        return -(-count // tiles.lanes) * tiles.lanes

    def _begin_operands(self):
        self.h0_words[...] = words(self.initial[0])
        if len(self.h_words) == len(self.h0_words):  # each layer has its own
            self.h_words[:, 0] = self.h0_words
