"""A stage: neighbouring layers of a model, on one rank. The first layer may be an
embedding E, the last is the output layer with its loss, the others are recurrent.

A stage goes forward and back on one micro-batch at a time; several are under way, each
in a *slot* of its own, a number.
"""

from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ..errors import check_array
from ..output_layer import back, cross_entropy_and_dz, squared_error_and_dz
from ..params import Layer, Named, Params
from ..versions import network
from ..versions.numba_fused import NumbaFused

# "symbols": the cross-entropy of the symbol after each step; "last": the squares of the
# last step's error.
LOSSES = {"symbols": cross_entropy_and_dz, "last": squared_error_and_dz}


def layers_of(
    params: Params, embedding: np.ndarray | None = None
) -> dict[str, dict[str, Any]]:
    """The layers of a model as they are given to ranks: name -> arrays by name, in
    order. params: Params with an output layer; embedding: E (S, D) or None.
    """
    layers = {} if embedding is None else {"embedding": {"E": embedding}}
    for k, layer in enumerate(params.layers):
        named = {f"layers.{k}.{part}": a for part, a in vars(layer).items()}
        layers[f"layer {k}"] = named
    return layers | {"output layer": {"V": params.V, "b_out": params.b_out}}


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


class Slots(NumbaFused):
    """A network whose training passes can be under way in several slots: each has its
    own arrays, all have the same weights. For the one thread that made it.
    """

    def __init__(self, params, threads=1):
        super().__init__(params, threads)
        self._slots = {}

    def forward_in(self, slot, x):
        """y (T, B, H) of x (T, B, D), finite numbers; what `backward_in` needs stays in
        the slot.
        """
        y, _, self._slots[slot] = self._forward(x, None, True)
        return y

    def backward_in(self, slot, dy, inputs):
        """The Grads of the pass of a slot, from dy (T, B, H). inputs: whether with that
        of x.
        """
        return self._backward(self._slots.pop(slot), dy, None, inputs)


class Tapes:
    """A network of any version in the place of Slots, with a tape in each. On a GPU a
    tape that another pass came after goes forward again before it goes back (Huang et
    al. 2019). To a GPU are copied the parameters, once a step, x of each forward and dy
    of each backward pass; from it y, and all gradients.
    """

    def __init__(self, version, params):
        self._network, self._tapes = network(version, params, threads=1), {}
        self.assign = self._network.assign

    def forward_in(self, slot, x):
        self._tapes[slot] = self._network.record(x)
        return self._tapes[slot].y

    def backward_in(self, slot, dy, inputs):
        return self._tapes.pop(slot).backward(dy)


class Stage:
    """Neighbouring layers: a step begins with their parameters in one flat array, which
    is only read, and adds their gradients up in another, `gradients`.

    named: the arrays of the layers (`layers_of`). loss: of LOSSES. is_first: whether
    the gradient of the input is of no use. version: what computes the recurrent layers;
    all others are NumPy's. Where the recurrent layers would take numbers that are not
    finite they take zeros, and the step has `diverged`, so that every rank takes part
    in it to its end.
    """

    def __init__(
        self, named: Named, cell: str, *, loss: str, is_first: bool, version: str
    ):
        self.cell = cell
        self.shapes = {name: a.shape for name, a in named.items()}
        first = next(iter(named.values()))
        self.width, self.dtype = len(first), first.dtype  # width: inputs, of U or V
        self.gradients = np.zeros(sum(a.size for a in named.values()), self.dtype)
        self.diverged = False
        self._loss = LOSSES[loss]
        self._inputs = not is_first or "E" in named
        self._prefixes = [name[:-1] for name in named if name.endswith(".U")]
        make = Slots if version == "numba-fused" else partial(Tapes, version)
        self._network = make(self._recurrent(named)) if self._prefixes else None
        self._symbols: dict[int, np.ndarray] = {}  # by slot
        self._read: dict[int, Any] = {}

    def flat(self, named: Named) -> np.ndarray:
        """The layers' arrays in one, a copy. Raises TypeError or ValueError."""
        arrays = [
            check_array(name, named[name], shape, dtype=self.dtype)
            for name, shape in self.shapes.items()
        ]
        return np.concatenate([a.ravel() for a in arrays])

    def named(self, flat: np.ndarray) -> Named:
        """The parts of `flat` by the names of the parameters: views."""
        sizes = [int(np.prod(shape)) for shape in self.shapes.values()]
        ends = pairwise(accumulate(sizes, initial=0))
        places = zip(self.shapes.items(), ends, strict=True)
        return {name: flat[a:b].reshape(shape) for (name, shape), (a, b) in places}

    def begin(self, theta: np.ndarray) -> None:
        """A step with these parameters begins, whatever became of the last one."""
        self._flat, self._theta = theta, self.named(theta)
        self.gradients[:] = 0
        self.diverged = False
        if self._network:
            self._network.assign(self._recurrent(self._theta))

    def forward(self, value, slot, wanted, count):
        """One micro-batch: y (T, B, H) for the next stage, or the last one's loss.

        value: what the stage before sent, (T, B, D), or symbols (T, B) for an
        embedding, where negative ones come after a sequence's end: whatever they are,
        nothing wanted depends on them, and their gradient is zero. wanted, count:
        predicted symbols (T, B) or the target (B, O), and what the loss is divided by.
        """
        theta = self._theta
        if "E" in theta:
            symbols = self._symbols[slot] = value
            value = theta["E"][symbols]
        if self._network:
            value = self._network.forward_in(slot, self._finite(value))
        if "V" in theta:
            loss, dz = self._loss(value, theta["V"], theta["b_out"], wanted, count)
            self._read[slot] = value, dz
            return loss
        return value

    def backward(self, dy, slot):
        """One micro-batch back: dx (T, B, D) for the stage before, from dy (T, B, H) of
        the next one. Gradients of the parameters are added up.
        """
        gradients = self.named(self.gradients)
        if "V" in gradients:
            y, dz = self._read.pop(slot)
            dy, dV, db_out = back(y, self._theta["V"], dz)
            gradients["V"] += dV
            gradients["b_out"] += db_out
        if self._network:
            grads = self._network.backward_in(slot, self._finite(dy), self._inputs)
            for prefix, layer in zip(self._prefixes, grads.layers, strict=True):
                for part, gradient in vars(layer).items():
                    gradients[prefix + part] += gradient
            dy = grads.x
        if "E" in gradients:  # rows of one symbol are added in their order
            np.add.at(gradients["E"], self._symbols.pop(slot), dy)
        return dy

    def descended(self, rate: float) -> np.ndarray:
        """The parameters minus rate * gradient, a new array; gradients are used up."""
        with np.errstate(over="ignore", invalid="ignore"):
            self.gradients *= self.gradients.dtype.type(rate)
            return self._flat - self.gradients

    def _recurrent(self, named):
        """The recurrent layers as Params of their own."""
        layers = [
            Layer(*(named[prefix + part] for part in "UWb"))
            for prefix in self._prefixes
        ]
        return Params(layers, cell=self.cell)

    def _finite(self, value):
        if np.isfinite(value).all():
            return value
        self.diverged = True
        return np.zeros_like(value)
