"""The kinds of layer that a model is cut into: encoder, recurrent layers, decoder.

A layer goes forward and back on one micro-batch at a time; several are under way, each
in a *slot* of its own, a number. Parameters are arrays by name, which a layer takes
over with `assign`. Gradients come back by the same names, next to that of the layer's
input.
"""

from dataclasses import dataclass

import numpy as np

from ..errors import check_array
from ..params import Named, Parameters, Params
from ..readout import cross_entropy_and_grads, squared_error_and_grads
from ..versions import network


@dataclass(repr=False)
class TokenParams(Params):
    """Params of a model of S symbols, with their embedding E (S, D) before the
    layers.
    """

    E: np.ndarray | None = None

    def arrays(self) -> Named:
        """Every array by name: E, then those of Params."""
        return {"E": self.E} | super().arrays()

    @classmethod
    def from_arrays(cls, named, cell):
        """The inverse of `arrays`."""
        params = Params.from_arrays({n: a for n, a in named.items() if n != "E"}, cell)
        return cls(params.layers, params.V, params.b_out, cell, named["E"])

    @classmethod
    def init(cls, symbols, input_size, hidden_size, *, seed=0, **options):
        """Params.init with a read-out of `symbols` outputs; E from U(-1, 1)."""
        params = Params.init(
            input_size, hidden_size, output_size=symbols, seed=seed, **options
        )
        E = np.random.default_rng([seed, 1]).uniform(-1, 1, (symbols, input_size))
        return cls(
            params.layers, params.V, params.b_out, params.cell, E.astype(params.dtype)
        )

    def check(self, name="params"):
        """Raise TypeError or ValueError if shapes, dtypes or values do not fit."""
        Params(self.layers, self.V, self.b_out, self.cell).check(name)
        check_array(f"{name}.E", self.E, ("S", self.input_size), dtype=self.dtype)
        return self


class StageParams(Parameters):
    """The parameters that one rank has, by name."""

    def __init__(self, named, cell):
        self.named, self.cell = named, cell

    def arrays(self):
        return dict(self.named)

    @classmethod
    def from_arrays(cls, named, cell):
        return cls(dict(named), cell)

    @property
    def dtype(self):
        return next(iter(self.named.values())).dtype

    @property
    def form(self):
        """The names and shapes in words."""
        return ", ".join(f"{name} {a.shape}" for name, a in self.named.items())


class Encoder:
    """x[t, n] = E[symbol], zero for a negative one; E (S, D)."""

    def __init__(self, E):
        self.arrays, self._kept = {"E": E}, {}

    def assign(self, arrays):
        self.arrays = arrays

    def forward(self, symbols, slot=None):
        """symbols (T, B) integers to x (T, B, D)."""
        if slot is not None:
            self._kept[slot] = symbols
        x = self.arrays["E"][symbols]
        x[symbols < 0] = 0
        return x

    def backward(self, dx, slot, more=False):
        """No gradient of the symbols, and that of E: rows of one symbol are added in
        order.
        """
        symbols, E = self._kept.pop(slot), self.arrays["E"]
        there = symbols >= 0
        numbers, rows = symbols[there], dx[there]
        order = np.argsort(numbers, kind="stable")
        found, first = np.unique(numbers[order], return_index=True)
        gradient = np.zeros_like(E)
        if len(found):
            gradient[found] = np.add.reduceat(rows[order], first, axis=0)
        return None, {"E": gradient}


class Recurrent:
    """Neighbouring recurrent layers, in one network; `first` is the number of the
    lowest. inputs: whether the gradient of what they are given is of use.
    """

    def __init__(self, layers, cell, first, inputs, version="numba-fused", threads=1):
        self._wants_inputs = inputs
        self.net, self._cell = (
            network(version, Params(layers, cell=cell), threads=threads),
            cell,
        )
        inside = [
            f"layers.{k}.{part}" for k in range(len(layers)) for part in Params.parts
        ]
        outside = [
            f"layers.{first + k}.{p}" for k in range(len(layers)) for p in Params.parts
        ]
        self._sums = self.net.new_sums()
        self._inside, self._tapes = dict(zip(outside, inside, strict=True)), {}

    @property
    def arrays(self):
        named = self.net.params().arrays()
        return {outer: named[inner] for outer, inner in self._inside.items()}

    def assign(self, arrays):
        named = {inner: arrays[outer] for outer, inner in self._inside.items()}
        self.net.adopt(Params.from_arrays(named, self._cell))

    def forward(self, x, slot=None):
        """x (T, B, D) to y (T, B, H)."""
        if slot is None:
            return self.net.forward(x)[0]
        if slot not in self._tapes:
            self._tapes[slot] = self.net.new_tape()
        return self.net.forward(x, training=True, tape=self._tapes[slot])[0]

    def backward(self, dy, slot, more=False):
        """The gradient of x, or None, and those of the parameters, as of every layer;
        with `more` micro-batches to come they are kept, and come with those of the
        last.
        """
        how = {"inputs": self._wants_inputs, "sums": self._sums, "more": more}
        grads = self.net.backward(dy, tape=self._tapes[slot], **how)
        if more:
            return grads.x, {}
        named = grads.arrays()
        return grads.x, {outer: named[inner] for outer, inner in self._inside.items()}


LOSSES = {"symbols": cross_entropy_and_grads, "last": squared_error_and_grads}


class Decoder:
    """The read-out V (H, O), b_out (O,) and its loss.

    loss: "symbols", the cross-entropy of the symbol after each step, or "last", the
    squares of the last step's error.
    """

    def __init__(self, V, b_out, loss):
        self.arrays, self._loss, self._kept = {"V": V, "b_out": b_out}, LOSSES[loss], {}

    def assign(self, arrays):
        self.arrays = arrays

    def forward(self, y, target, count, slot):
        """The loss of a micro-batch over `count`: predicted symbols, or numbers of the
        target.
        """
        V, b_out = self.arrays["V"], self.arrays["b_out"]
        loss, dy, dV, db_out = self._loss(y, V, b_out, target, count)
        self._kept[slot] = dy, {"V": dV, "b_out": db_out}
        return loss

    def backward(self, slot, more=False):
        """The gradient of y, and those of the parameters."""
        return self._kept.pop(slot)
