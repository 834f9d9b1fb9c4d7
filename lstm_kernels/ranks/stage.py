"""A stage: neighbouring layers of a model, on one rank. The first layer may be an
embedding E, the last is the output layer with its loss, the others are recurrent.

Several micro-batches are under way at a time, each in a *slot* of its own, a number.
Where a version has arrays of its last pass alone (GPU), one that another came after
goes forward again before it goes back (Huang et al. 2019).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ..output_layer import back, cross_entropy_and_dz, squared_error_and_dz
from ..params import Layer, Named, Params
from ..versions import network

# "symbols": the cross-entropy of the symbol after each step; "last": the squares of the
# last step's error.
LOSSES = {"symbols": cross_entropy_and_dz, "last": squared_error_and_dz}


def layers_of(params: Params, embedding: np.ndarray | None) -> dict[str, Named]:
    """The layers of a model as they are given to ranks, in order: the arrays of each by
    name, by its name. embedding: E (S, D) or None.
    """
    layers: dict[str, Any] = (
        {} if embedding is None else {"embedding": {"E": embedding}}
    )
    for k, layer in enumerate(params.layers):
        layers[f"layer {k}"] = {f"layers.{k}.{n}": a for n, a in vars(layer).items()}
    return layers | {"output layer": {"V": params.V, "b_out": params.b_out}}


def flat(named: Named) -> np.ndarray:
    """All numbers of the arrays in one, a copy."""
    return np.concatenate([a.ravel() for a in named.values()])


def parts(numbers: np.ndarray, shapes: dict[str, tuple[int, ...]]) -> Named:
    """What `flat` made of arrays of such shapes: views."""
    ends = pairwise(accumulate(map(math.prod, shapes.values()), initial=0))
    places = zip(shapes.items(), ends, strict=True)
    return {name: numbers[a:b].reshape(shape) for (name, shape), (a, b) in places}


def union(layers: Iterable[Named]) -> Named:
    """The arrays of several layers by name."""
    return {name: a for layer in layers for name, a in layer.items()}


@dataclass
class StageParams:
    """The parameters of a rank, or their gradients, by name."""

    named: Named
    cell: str

    def arrays(self) -> Named:
        return dict(self.named)

    @classmethod
    def from_arrays(cls, named: Named, cell: str) -> "StageParams":
        return cls(dict(named), cell)

    @property
    def dtype(self) -> np.dtype:
        return next(iter(self.named.values())).dtype


class Stage:
    """Neighbouring layers, whose arrays are `named` (`layers_of`).

    loss: of LOSSES. version: what computes the recurrent layers; all others are
    NumPy's. is_first: whether the gradient of the input is of no use. In place of
    numbers that are not finite the recurrent layers take zeros, and the step has
    `diverged`: every rank takes part in it to its end.
    """

    def __init__(self, named: Named, cell: str, loss: str, version, is_first=False):
        self._cell, self._names, self._loss = cell, list(named), LOSSES[loss]
        self._inputs = not is_first or "E" in named
        self._prefixes = [name[:-1] for name in named if name.endswith(".U")]
        self.network: Any = None
        if self._prefixes:
            self.network = network(version, self._recurrent(named), threads=1)

    def begin(self, theta: Named, gradients: Named) -> None:
        """A step begins, whatever became of the last one. theta: parameters, of other
        stages too; gradients: as many zeros, to which the step adds.
        """
        self._theta = {name: theta[name] for name in self._names}
        self._gradients = {name: gradients[name] for name in self._names}
        self.diverged = False
        self._kept: dict[int, tuple] = {}  # by slot: what its backward pass needs
        if self.network:
            self.network.assign(self._recurrent(theta))

    def forward(self, value, slot, wanted, count):
        """One micro-batch: y (T, B, H) for the next stage, or the last one's loss.

        value: what the stage before sent, (T, B, D), or symbols (T, B) for an
        embedding, negative after a sequence's end: nothing wanted depends on those, and
        their gradient is zero. wanted, count: as of the loss in `LOSSES`.
        """
        theta, arrays, dz = self._theta, None, None
        x = theta["E"][value] if "E" in theta else value
        y = result = x
        if self.network:
            x = self._finite(x)
            y, arrays = result, _ = self._pass(slot, x)
        if "V" in theta:
            result, dz = self._loss(y, theta["V"], theta["b_out"], wanted, count)
        self._kept[slot] = value, x, arrays, y, dz
        return result

    def _pass(self, slot, x):
        """y, and what `_backward` of the network takes: a tape without its checks."""
        with self.network._guard():
            y, _, arrays = self.network._forward(x, None, True)
        self._latest = slot
        return y, arrays

    def backward(self, dy, slot):
        """One micro-batch back: dx (T, B, D) for the stage before, from dy (T, B, H) of
        the next one, which the last has itself. Adds gradients up.
        """
        gradients = self._gradients
        value, x, arrays, y, dz = self._kept.pop(slot)
        if "V" in gradients:
            dy, dV, db_out = back(y, self._theta["V"], dz)
            gradients["V"] += dV
            gradients["b_out"] += db_out
        if self.network:
            if not self.network.keeps_passes and slot != self._latest:
                _, arrays = self._pass(slot, x)
            dy = self._finite(dy)
            with self.network._guard():
                grads = self.network._backward(arrays, dy, None, self._inputs)
            for prefix, layer in zip(self._prefixes, grads.layers, strict=True):
                for part, gradient in vars(layer).items():
                    gradients[prefix + part] += gradient
            dy = grads.x
        if "E" in gradients:  # rows of one symbol are added in their order
            np.add.at(gradients["E"], value, dy)
        return dy

    def _recurrent(self, named):
        """The recurrent layers as Params of their own."""
        layers = ([named[before + part] for part in "UWb"] for before in self._prefixes)
        return Params([Layer(*arrays) for arrays in layers], cell=self._cell)

    def _finite(self, value):
        if np.isfinite(value).all():
            return value
        self.diverged = True
        return np.zeros_like(value)
