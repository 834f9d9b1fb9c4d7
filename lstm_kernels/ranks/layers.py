"""The kinds of layer that a model is cut into, embedding, recurrent layers, read-out,
and a stage: the neighbouring layers that one rank has.

A layer goes forward and back on one micro-batch at a time; several are under way, each
in a *slot* of its own, a number. Parameters are arrays by name, of which a layer takes
over others with `assign`; gradients come back by the same names, after that of the
layer's input. Numbers that are not finite pass through a layer as NaN, so that every
rank takes part in a step that diverges, and all learn of it at its end.
"""

from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from ..errors import check_array
from ..params import Layer, Named, Parameters, Params
from ..readout import cross_entropy_and_grads, squared_error_and_grads
from ..versions import network

LOSSES = {"symbols": cross_entropy_and_grads, "last": squared_error_and_grads}


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
        plain = Params.from_arrays({n: a for n, a in named.items() if n != "E"}, cell)
        return cls(plain.layers, plain.V, plain.b_out, cell, named["E"])

    @classmethod
    def init(cls, symbols, input_size, hidden_size, *, seed=0, **options):
        """Params.init with a read-out of `symbols` outputs; E from U(-1, 1)."""
        options |= {"output_size": symbols, "seed": seed}
        params = Params.init(input_size, hidden_size, **options)
        E = np.random.default_rng([seed, 1]).uniform(-1, 1, (symbols, input_size))
        return cls.from_arrays(
            params.arrays() | {"E": E.astype(params.dtype)}, params.cell
        )

    def check(self, name="params"):
        """Raise TypeError or ValueError if shapes, dtypes or values do not fit."""
        Params(self.layers, self.V, self.b_out, self.cell).check(name)
        check_array(f"{name}.E", self.E, ("S", self.input_size), dtype=self.dtype)
        return self


class StageParams(Parameters):
    """The parameters that one rank has, or their gradients, by name."""

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


class Encoder:
    """x[t, n] = E[symbol], zero for a negative one; E (S, D)."""

    def __init__(self, params):
        self.arrays, self._symbols = {"E": params.E}, {}

    def assign(self, named):
        self.arrays = named

    def forward(self, symbols, slot, *_):
        """symbols (T, B) integers to x (T, B, D)."""
        self._symbols[slot] = symbols
        x = self.arrays["E"][symbols]
        x[symbols < 0] = 0
        return x

    def backward(self, dx, slot):
        """None, and the gradient of E: rows of one symbol are added in their order."""
        symbols = self._symbols.pop(slot)
        gradient = np.zeros_like(self.arrays["E"])
        np.add.at(gradient, symbols[symbols >= 0], dx[symbols >= 0])
        return None, {"E": gradient}


class Recurrent:
    """Layer k of a model, as a network of its own, so that a rank may have any of
    them. inputs: whether the gradient of its input is of use.
    """

    def __init__(self, params, k, *, inputs, version, threads):
        layer, self._cell, self._inputs = params.layers[k], params.cell, inputs
        self._parts = {f"layers.{k}.{part}": part for part in ("U", "W", "b")}
        self.arrays = {name: getattr(layer, p) for name, p in self._parts.items()}
        self._sizes = len(layer.U), len(layer.W)
        alone = Params([layer], cell=params.cell)
        self._net = network(version, alone, threads=threads)
        self._tapes = {}  # by slot; None where the input was not finite

    def assign(self, named):
        layer = Layer(*(named[name] for name in self._parts))
        self._net.assign(Params([layer], cell=self._cell))

    def forward(self, x, slot, *_):
        """x (T, B, D) to y (T, B, H)."""
        tape = self._tapes[slot] = self._tapes.get(slot) or self._net.new_tape()
        try:
            return self._net.forward(x, training=True, tape=tape)[0]
        except ValueError:
            if np.isfinite(x).all():
                raise
        self._tapes[slot] = None
        return np.full((*x.shape[:2], self._sizes[1]), np.nan, x.dtype)

    def backward(self, dy, slot):
        """dy (T, B, H) to the gradient of x, None where it is of no use, and those of
        the parameters.
        """
        tape = self._tapes[slot]
        if tape is not None and np.isfinite(dy).all():
            grads = self._net.backward(dy, tape=tape, inputs=self._inputs)
            layer = grads.layers[0]
            return grads.x, {n: getattr(layer, p) for n, p in self._parts.items()}
        dx = np.full((*dy.shape[:2], self._sizes[0]), np.nan, dy.dtype)
        return dx, {name: np.full_like(a, np.nan) for name, a in self.arrays.items()}


class Decoder:
    """The read-out V (H, O), b_out (O,) and its loss.

    loss: "symbols", the cross-entropy of the symbol after each step, or "last", the
    squares of the last step's error.
    """

    def __init__(self, params, loss):
        self.arrays = {"V": params.V, "b_out": params.b_out}
        self._loss, self._gradients = LOSSES[loss], {}

    def assign(self, named):
        self.arrays = named

    def forward(self, y, slot, wanted, count):
        """The loss of a micro-batch over `count`: predicted symbols, or numbers of the
        target.
        """
        V, b_out = self.arrays["V"], self.arrays["b_out"]
        loss, dy, dV, db_out = self._loss(y, V, b_out, wanted, count)
        self._gradients[slot] = dy, {"V": dV, "b_out": db_out}
        return loss

    def backward(self, _, slot):
        """The gradient of y, and those of the parameters."""
        return self._gradients.pop(slot)


def layer_names(params):
    """The layers of a model as they are given to ranks: `embedding`, `layer 0`, ...,
    `read-out`.
    """
    encoder = ["embedding"] if isinstance(params, TokenParams) else []
    return [*encoder, *(f"layer {k}" for k in range(params.num_layers)), "read-out"]


def layers_of(params, *, loss, version, threads, span=slice(None)):
    """The layers of a model, or those in a span of `layer_names`."""
    names = layer_names(params)
    made = []
    for name in names[span]:
        if name == "embedding":
            made.append(Encoder(params))
        elif name == "read-out":
            made.append(Decoder(params, loss))
        else:
            inputs = name != names[0]
            k = int(name.removeprefix("layer "))
            made.append(
                Recurrent(params, k, inputs=inputs, version=version, threads=threads)
            )
    return made


class Stage:
    """Neighbouring layers: their parameters in one flat array `theta`, which is never
    written to, only replaced; their gradients in another, `gradients`.
    """

    def __init__(self, layers):
        self.layers = layers
        named = {n: a for layer in layers for n, a in layer.arrays.items()}
        self._shapes = {name: a.shape for name, a in named.items()}
        self.theta = np.concatenate([a.ravel() for a in named.values()])
        self.gradients = np.zeros_like(self.theta)
        self._assigned = None  # the array that the layers have their parameters from

    def named(self, flat):
        """The parts of `flat` by the names of the parameters: views."""
        sizes = [int(np.prod(shape)) for shape in self._shapes.values()]
        ends = pairwise(accumulate(sizes, initial=0))
        places = zip(self._shapes.items(), ends, strict=True)
        return {name: flat[a:b].reshape(shape) for (name, shape), (a, b) in places}

    def checked(self, named):
        """Other parameters by name as a flat array. Raises TypeError or ValueError."""
        if named.keys() != self._shapes.keys():
            want = ", ".join(self._shapes)
            raise ValueError(f"params: got {', '.join(named)}, want {want}")
        arrays = [
            check_array(name, named[name], shape, dtype=self.theta.dtype)
            for name, shape in self._shapes.items()
        ]
        return np.concatenate([a.ravel() for a in arrays])

    def begin(self):
        """A step begins, whatever became of the last one: the gradients are zero, and
        every layer has the parameters of `theta`.
        """
        self.gradients[:] = 0
        if self._assigned is not self.theta:
            self._assigned, theta = None, self.theta
            named = self.named(theta)
            for layer in self.layers:
                layer.assign({name: named[name] for name in layer.arrays})
            self._assigned = theta

    def forward(self, value, slot, wanted, count):
        """One micro-batch: what the next stage gets, or the loss."""
        for layer in self.layers:
            value = layer.forward(value, slot, wanted, count)
        return value

    def backward(self, dy, slot):
        """One micro-batch back: the gradient for the stage before. Gradients of the
        parameters are added up.
        """
        total = self.named(self.gradients)
        for layer in reversed(self.layers):
            dy, named = layer.backward(dy, slot)
            for name, gradient in named.items():
                total[name] += gradient
        return dy

    def descended(self, rate):
        """theta - rate * gradient, a new array; the gradients are used up."""
        with np.errstate(over="ignore", invalid="ignore"):
            self.gradients *= self.gradients.dtype.type(rate)
            return self.theta - self.gradients
